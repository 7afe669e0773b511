//! A pool as its policy sees it, and what the policy decides.

use std::fmt::Debug;
use std::time::Duration;

use super::{Count, Order, State, TaskNumber};
use crate::pool::terms::Class;

/// Decides which tasks start where, and which are stopped.
///
/// ```
/// use preempt::pool::{Class, PoolPlan, PoolPolicy};
/// use preempt::sim::pool::{JobMix, PoolSimulation, PoolWorkload, SLA};
///
/// /// Keeps one of several devices for user-facing tasks, and stops none.
/// #[derive(Debug)]
/// struct OneKept;
///
/// impl PoolPolicy for OneKept {
///     fn decide(&mut self, plan: &mut PoolPlan<'_>) {
///         let devices = plan.devices();
///         plan.serve(Class::UserFacing, devices);
///         plan.serve(Class::Batch, devices.saturating_sub(1));
///     }
/// }
///
/// let workload = PoolWorkload::datacenter(JobMix::W1, 4, 0.5, 1);
/// let results = PoolSimulation::new(4, OneKept).run(&workload)?;
/// println!("{:.1} % of the user-facing tasks are late", 100.0 * results.late(SLA));
/// assert_eq!(results.yields(), 0);
/// # Ok::<(), preempt::Error>(())
/// ```
pub trait PoolPolicy: Debug + Send {
    /// Decides, whenever a task has come, has ended or was stopped, and at each [wake](PoolPolicy::wake).
    fn decide(&mut self, plan: &mut PoolPlan<'_>);

    /// Says why a pool cannot have it, and what to do, if so.
    fn refused(&self) -> Option<&'static str> {
        None
    }

    /// After which time it is to be asked again at the latest, while tasks are outstanding.
    fn wake(&self) -> Option<Duration> {
        None
    }
}

/// A batch task that can be stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Victim {
    /// The device that runs it.
    pub device: usize,
    /// What it is expected to run for yet, if a task of its application has ended.
    pub rest: Option<Duration>,
    /// From the decision to stop it until its device is free.
    pub latency: Duration,
}

/// A task that waits for a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Waiting {
    /// Lower is older.
    pub age: u64,
    /// The time since it became outstanding.
    pub waited: Duration,
    /// What it is expected to run for yet, if a task of its application has ended.
    pub takes: Option<Duration>,
}

/// A pool as its policy sees it, and what it decides.
#[derive(Debug)]
pub struct PoolPlan<'a> {
    pub(super) state: &'a mut State,
    pub(super) now: Duration,
    pub(super) orders: &'a mut Vec<Order>,
}

impl PoolPlan<'_> {
    /// The number of devices, without those that have failed.
    pub fn devices(&self) -> usize {
        self.state.slots.len() - self.state.lost
    }

    /// A device where nothing runs; if there is any, one where no task has yielded.
    pub fn idle(&self) -> Option<usize> {
        self.state.idle.first().map(|&(_, device)| device)
    }

    /// A device where nothing runs and no task has yielded.
    pub fn spare(&self) -> Option<usize> {
        self.state.idle.first().filter(|(has_paused, _)| !has_paused).map(|&(_, device)| device)
    }

    /// Devices whose tasks were told to leave and have not left.
    pub fn leaving(&self) -> usize {
        self.state.leaving
    }

    /// Tasks of a class that wait for a device.
    pub fn waiting(&self, class: Class) -> usize {
        self.state.waiting[class as usize].len()
    }

    /// Tasks of a class that wait for a device, one by one, the oldest first.
    pub fn waiting_tasks(&self, class: Class) -> impl Iterator<Item = Waiting> {
        self.state.waiting[class as usize].iter().filter_map(|&(age, number)| {
            let task = self.state.tasks[number.index()].as_ref()?;
            let takes = self.state.applications[task.application.index()].mean;
            Some(Waiting { age, waited: self.now.saturating_sub(task.since), takes })
        })
    }

    /// The age of the oldest of them: lower is older.
    pub fn oldest(&self, class: Class) -> Option<u64> {
        self.state.waiting[class as usize].first().map(|&(age, _)| age)
    }

    /// Tasks of a class that run.
    pub fn running(&self, class: Class) -> usize {
        self.state.counts[class as usize].running
    }

    /// Tasks of a class that wait, run, or have yielded.
    pub fn outstanding(&self, class: Class) -> usize {
        self.state.counts[class as usize].outstanding
    }

    /// What outstanding tasks of a class take together, by what tasks of their applications took, or of the class where none
    /// of the application's has ended yet; `None` if none of the class has.
    pub fn work(&self, class: Class) -> Option<Duration> {
        let Count { mean, work, unknown, .. } = self.state.counts[class as usize];
        mean.map(|mean| work.saturating_add(mean.saturating_mul(unknown as u32)))
    }

    /// Batch tasks that run and can be stopped, the latest started first.
    pub fn victims(&self) -> impl Iterator<Item = Victim> {
        self.state.victims.iter().rev().filter_map(|&(.., device)| self.victim(device))
    }

    fn victim(&self, device: usize) -> Option<Victim> {
        let rules = self.state.rules;
        let slot = self.state.slots.get(device)?;
        let (number, since) = slot.runs.filter(|_| !slot.is_leaving && !slot.is_lost)?;
        // One that goes on since this very moment could be stopped and go on without end.
        if slot.is_resumed && since == self.now {
            return None;
        }
        let task = self.state.tasks[number.index()].as_ref()?;
        let application = &self.state.applications[task.application.index()];
        let ran = task.ran + self.now.saturating_sub(since);
        let rest = application.mean.map(|mean| mean.saturating_sub(ran));
        let is_one = rules.may_stop(task) && application.class == Class::Batch;
        is_one.then_some(Victim { device, rest, latency: task.stop.latency() })
    }

    /// Starts the oldest task of a class on an idle device. Where a task has yielded no other batch task starts: it goes on
    /// there. An [opaque](crate::pool::Task::opaque) task has all [parts](crate::Device::split) of a device; it is started where
    /// all of them are idle. If there is no such device, it is not, and those behind it wait until there is one, for as long as
    /// tasks of another class keep a part of each device busy. Returns whether one was started.
    pub fn start(&mut self, class: Class, device: usize) -> bool {
        self.oldest(class).is_some_and(|age| self.start_one(class, age, device))
    }

    /// As [`start`](PoolPlan::start), the waiting task of this age.
    pub fn start_one(&mut self, class: Class, age: u64, mut device: usize) -> bool {
        let Some(slot) = self.state.slots.get(device) else { return false };
        let is_kept = slot.paused.is_some() && class == Class::Batch;
        if slot.runs.is_some() || slot.is_lost || slot.is_taken || is_kept {
            return false;
        }
        let mut from = self.state.waiting[class as usize].range((age, TaskNumber::at(0))..);
        let Some(&(_, task)) = from.next().filter(|(of, _)| *of == age) else { return false };
        if self.state.tasks[task.index()].as_ref().is_some_and(|task| task.is_whole) {
            let Some(whole) = self.state.whole(device) else { return false };
            device = whole;
        }
        self.state.waiting[class as usize].remove(&(age, task));
        if let Some(of) = &mut self.state.tasks[task.index()] {
            of.started = self.now;
        }
        self.state.enter(self.now, device, task);
        self.orders.push(Order::Start { task, device });
        true
    }

    /// Starts the oldest tasks of a class on idle devices, until the class runs on this number of them.
    pub fn serve(&mut self, class: Class, devices: usize) {
        while self.running(class) < devices
            && let Some(device) = self.idle()
            && self.start(class, device)
        {}
    }

    /// Stops the batch task of this device. Returns whether it can be.
    pub fn stop(&mut self, device: usize) -> bool {
        if self.victim(device).is_none() {
            return false;
        }
        let slot = &mut self.state.slots[device];
        let Some((number, _)) = slot.runs else { return false };
        slot.is_leaving = true;
        self.state.leaving += 1;
        let Some(task) = &self.state.tasks[number.index()] else { return false };
        self.state.victims.remove(&(task.started, task.age, device));
        let stop = task.stop;
        self.orders.push(Order::Stop { task: number, device, stop });
        true
    }

    /// Stops this number of batch tasks, the latest started first, without those that end sooner than they could be stopped.
    pub fn stop_latest(&mut self, tasks: usize) {
        let pays = |victim: &Victim| victim.rest.is_none_or(|rest| rest > victim.latency);
        let victims: Vec<_> = self.victims().filter(pays).take(tasks).collect();
        for victim in victims {
            self.stop(victim.device);
        }
    }

    /// Lets tasks go on that have yielded, where nothing else runs. One that gives up its memory comes back as revoked.
    pub(super) fn resume_all(&mut self) {
        let paused = self.state.idle.range((true, 0)..).map(|&(_, device)| device);
        let giving_up = |device: &usize| self.state.slots[*device].is_giving_up;
        let resumed: Vec<_> = paused.filter(|device| !giving_up(device)).collect();
        for device in resumed {
            let Some(task) = self.state.slots[device].paused else { continue };
            self.state.enter(self.now, device, task);
            self.state.slots[device].is_resumed = true;
            self.orders.push(Order::Resume { task, device });
        }
    }
}
