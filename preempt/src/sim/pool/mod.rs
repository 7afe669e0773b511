//! Pools of devices in virtual time: how many user-facing tasks are late, and what batch tasks lose, by policy, by the way in
//! which tasks are stopped, and by the number of devices.
//!
//! ```
//! use std::time::Duration;
//! use preempt::pool::{Elastic, FirstCome, Stop};
//! use preempt::sim::pool::{JobMix, PoolSimulation, PoolWorkload, SLA};
//!
//! let (devices, load, seed) = (4, 1.0, 1);
//! let workload = PoolWorkload::datacenter(JobMix::W1, devices, load, seed);
//!
//! let elastic = PoolSimulation::new(devices, Elastic::new(SLA)).stop(Stop::Yield(Duration::from_micros(50)));
//! let first_come = PoolSimulation::new(devices, FirstCome);
//! let (elastic, first_come) = (elastic.run(&workload)?, first_come.run(&workload)?);
//! assert!(elastic.late(SLA) < first_come.late(SLA) / 2.0);
//! # Ok::<(), preempt::Error>(())
//! ```
//!
//! # The model
//!
//! A task has a device alone for its time, whichever device it is. Decisions take none. A task that is told to leave works
//! until it has left, [`Stop::latency`] after the decision, or until it ends before that. If it yields, the task that takes its
//! place has the device from the decision on, and waits there; if it is revoked, the device is free when it has left. Times that
//! were [measured](PoolWorkload::with_times) have what yields take. As in TReM's
//! evaluation, [a number](crate::pool::OUTSTANDING) of tasks of one job is outstanding at a time, and their times count from
//! then.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use crate::error::{Error, SimulationError};
use crate::pool::{
    Class, Dispatcher, End, OUTSTANDING, Order, Past, PoolPolicy, PoolStats, REVOCATIONS, Rules,
    Stop, TaskNumber,
};

mod workload;

pub use workload::{JobMix, JobTimes, PoolJob, PoolWorkload, SLA};

/// Times that a policy is asked in a row with nothing else happening, before the simulation is given up: it may wait for a time,
/// and not for ever.
const IDLE_WAKES: u32 = 100_000;

/// Devices and a policy, for one workload.
#[derive(Debug)]
#[must_use = "nothing is simulated before `run`"]
pub struct PoolSimulation {
    devices: usize,
    policy: Box<dyn PoolPolicy>,
    rules: Rules,
}

/// What happens to a device or to the list of jobs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Happening {
    Arrival(usize),
    /// The task on a device ends, unless the device's run has changed since.
    End(usize, u64),
    /// It has left, unless it ended before.
    Left(usize, u64),
    Wake,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    task: TaskNumber,
    since: Duration,
    /// Of all runs; distinguishes this one from others on the device.
    number: u64,
}

/// A task that is not over.
#[derive(Clone, Copy, Debug)]
struct Live {
    job: usize,
    is_measured: bool,
    /// What it runs for from its start, and yet.
    whole: Duration,
    rest: Duration,
}

impl PoolSimulation {
    /// This number of devices, whose tasks are never stopped.
    pub fn new(devices: usize, policy: impl PoolPolicy + 'static) -> PoolSimulation {
        PoolSimulation::boxed(devices, Box::new(policy))
    }

    /// As [`new`](PoolSimulation::new), with a boxed policy.
    pub fn boxed(devices: usize, policy: Box<dyn PoolPolicy>) -> PoolSimulation {
        let (outstanding, revocations) = (OUTSTANDING, REVOCATIONS);
        PoolSimulation {
            devices,
            policy,
            rules: Rules { stop: Stop::Never, outstanding, revocations },
        }
    }

    /// How batch tasks are stopped.
    pub fn stop(mut self, stop: Stop) -> PoolSimulation {
        self.rules.stop = stop;
        self
    }

    /// Runs a workload until all of its tasks have ended.
    ///
    /// # Errors
    ///
    /// [`SimulationError::GivenUp`] for a pool without a device, a policy that a pool refuses, and tasks that the policy never
    /// starts.
    pub fn run(self, workload: &PoolWorkload) -> Result<PoolResults, Error> {
        let given_up = |reason: &str| SimulationError::GivenUp { reason: reason.to_owned() };
        if self.devices == 0 {
            return Err(given_up("a pool of no device: it has one at least").into());
        }
        if let Some(reason) = self.policy.refused() {
            return Err(given_up(reason).into());
        }
        let mut run = Run::of(self, workload);
        while let Some(Reverse((now, _, happening))) = run.agenda.pop() {
            run.happens(now, happening);
            // What happens at one time is decided about once.
            while let Some(Reverse((at, ..))) = run.agenda.peek().copied()
                && at == now
                && let Some(Reverse((.., happening))) = run.agenda.pop()
            {
                run.happens(now, happening);
            }
            run.decide(now);
        }
        if run.live.iter().any(Option::is_some) {
            return Err(
                given_up("the policy leaves tasks where they are: see that it starts all").into()
            );
        }
        Ok(PoolResults { stats: run.pool.stats(), ..run.results })
    }
}

struct Run<'a> {
    workload: &'a PoolWorkload,
    stop: Stop,
    pool: Dispatcher,
    agenda: BinaryHeap<Reverse<(Duration, u64, Happening)>>,
    entered: u64,
    slots: Vec<Option<Running>>,
    /// What the next task of each device waits for there.
    waits: Vec<Duration>,
    /// By number.
    live: Vec<Option<Live>>,
    orders: Vec<Order>,
    is_awake: bool,
    idle_wakes: u32,
    jobs: BTreeMap<usize, u32>,
    results: PoolResults,
}

impl<'a> Run<'a> {
    fn of(simulation: PoolSimulation, workload: &'a PoolWorkload) -> Run<'a> {
        let PoolSimulation { devices, policy, rules } = simulation;
        let arrivals = workload.jobs().iter().map(|job| job.arrival);
        let mut run = Run {
            workload,
            stop: rules.stop,
            pool: Dispatcher::new(devices, rules, policy),
            agenda: BinaryHeap::new(),
            entered: 0,
            slots: vec![None; devices],
            waits: vec![Duration::ZERO; devices],
            live: Vec::new(),
            orders: Vec::new(),
            is_awake: false,
            idle_wakes: 0,
            jobs: BTreeMap::new(),
            results: PoolResults {
                devices,
                last_arrival: arrivals.max().unwrap_or_default(),
                ..PoolResults::default()
            },
        };
        for (number, job) in workload.jobs().iter().enumerate() {
            run.enter(job.arrival, Happening::Arrival(number));
        }
        run
    }

    fn enter(&mut self, at: Duration, happening: Happening) {
        self.entered += 1;
        self.agenda.push(Reverse((at, self.entered, happening)));
    }

    fn happens(&mut self, now: Duration, happening: Happening) {
        match happening {
            Happening::Arrival(number) => {
                let job = &self.workload.jobs()[number];
                let application = self.pool.application(job.class);
                self.jobs.insert(number, job.tasks);
                for index in 0..job.tasks {
                    let measured = self.workload.measured(number, index);
                    let (whole, is_measured) = (measured.unwrap_or(job.task), measured.is_some());
                    let task = self.pool.submit(now, application);
                    let at = task.index();
                    if self.live.len() <= at {
                        self.live.resize(at + 1, None);
                    }
                    self.live[at] = Some(Live { job: number, is_measured, whole, rest: whole });
                }
            }
            Happening::End(device, number) => {
                let Some(running) = self.slots[device].filter(|of| of.number == number) else {
                    return;
                };
                self.leaves(now, device, running);
                let live = self.live[running.task.index()].take();
                let past = self.pool.ended(now, running.task, End::Finished);
                let (Some(Past { since, .. }), Some(live)) = (past, live) else {
                    return;
                };
                let job = &self.workload.jobs()[live.job];
                if job.class == Class::UserFacing {
                    self.results.responses.push(now - since);
                }
                let left = self.jobs.entry(live.job).or_default();
                *left -= 1;
                if *left == 0 && job.class == Class::Batch {
                    self.results.batch_jobs.push(now - job.arrival);
                }
            }
            Happening::Left(device, number) => {
                let Some(running) = self.slots[device].filter(|of| of.number == number) else {
                    return;
                };
                self.leaves(now, device, running);
                self.waits[device] = match self.stop {
                    Stop::Yield(latency) => latency,
                    _ => Duration::ZERO,
                };
                if let Some(live) = &mut self.live[running.task.index()] {
                    let leaves = if live.is_measured { Duration::ZERO } else { self.waits[device] };
                    live.rest = match self.stop {
                        Stop::Revoke(_) => live.whole,
                        _ => live.rest.saturating_sub(now + leaves - running.since),
                    };
                }
                match self.stop {
                    Stop::Revoke(_) => self.pool.revoked(now, running.task),
                    _ => self.pool.yielded(now, running.task),
                }
            }
            Happening::Wake => self.is_awake = false,
        }
    }

    fn leaves(&mut self, now: Duration, device: usize, running: Running) {
        self.slots[device] = None;
        let until = now.min(self.results.last_arrival);
        self.results.busy += until.saturating_sub(running.since);
    }

    fn decide(&mut self, now: Duration) {
        let mut orders = std::mem::take(&mut self.orders);
        self.pool.decide(now, &mut orders);
        for order in orders.drain(..) {
            match order {
                Order::Start { task, device } | Order::Resume { task, device } => {
                    let number = self.entered;
                    self.slots[device] = Some(Running { task, since: now, number });
                    let rest = self.live[task.index()].map_or(Duration::ZERO, |live| live.rest);
                    let waits = std::mem::take(&mut self.waits[device]);
                    let is_kept = matches!(order, Order::Resume { .. })
                        || self.live[task.index()].is_some_and(|live| live.is_measured);
                    let end = now + rest + if is_kept { Duration::ZERO } else { waits };
                    self.enter(end, Happening::End(device, number));
                }
                Order::Stop { device, stop, .. } => {
                    let number = self.slots[device].map_or(0, |of| of.number);
                    let leaves = match stop {
                        Stop::Yield(_) => now,
                        stop => now + stop.latency(),
                    };
                    self.enter(leaves, Happening::Left(device, number));
                }
            }
        }
        self.orders = orders;
        self.idle_wakes = if self.agenda.is_empty() { self.idle_wakes + 1 } else { 0 };
        let wake = self.pool.wake().filter(|_| !self.is_awake && self.idle_wakes < IDLE_WAKES);
        if let Some(period) = wake {
            self.is_awake = true;
            self.enter(now + period, Happening::Wake);
        }
    }
}

/// What came of a workload.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PoolResults {
    devices: usize,
    last_arrival: Duration,
    /// Devices' time with a task, until the last job came.
    busy: Duration,
    responses: Vec<Duration>,
    batch_jobs: Vec<Duration>,
    stats: PoolStats,
}

impl PoolResults {
    /// From when a user-facing task was outstanding until it had ended, of all, in the order of their ends.
    pub fn responses(&self) -> &[Duration] {
        &self.responses
    }

    /// The part of the user-facing tasks that took longer than this.
    pub fn late(&self, sla: Duration) -> f64 {
        let late = self.responses.iter().filter(|&&response| response > sla).count();
        late as f64 / self.responses.len().max(1) as f64
    }

    /// From the arrival of a batch job until its last task had ended, of all, in the order of their ends.
    pub fn batch_jobs(&self) -> &[Duration] {
        &self.batch_jobs
    }

    /// How often a task yielded.
    pub fn yields(&self) -> u64 {
        self.stats.yields
    }

    /// How often a task was revoked.
    pub fn revocations(&self) -> u64 {
        self.stats.revocations
    }

    /// What revoked tasks had run for, by what all tasks ran for that ended.
    pub fn wasted(&self) -> f64 {
        let PoolStats { useful, wasted, .. } = self.stats;
        wasted.as_secs_f64() / useful.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// The part of the devices' time, until the last job came, in which they had a task.
    pub fn utilization(&self) -> f64 {
        let all = self.last_arrival.as_secs_f64() * self.devices as f64;
        if all > 0.0 { self.busy.as_secs_f64() / all } else { 1.0 }
    }
}

#[cfg(test)]
mod tests;
