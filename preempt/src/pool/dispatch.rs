//! Which task of a pool runs where: a state machine without threads, clocks or devices.
//!
//! It is told what happened and gives orders. Each task is started, and after a revocation started again, until it has
//! finished once.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::terms::{Class, Stop};

mod plan;

pub use plan::{PoolPlan, PoolPolicy, Victim, Waiting};

/// The weight of the newest time in a mean: eight tasks, as many as one application has outstanding, make most of it.
const NEWEST: f64 = 0.125;

/// A task, from when it is submitted until it has finished.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct TaskNumber(u32);

impl TaskNumber {
    /// Numbers are given again. No two tasks that are not over have the same.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    pub fn at(index: usize) -> TaskNumber {
        TaskNumber(index as u32)
    }
}

/// An application, whose tasks are alike.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ApplicationNumber(u32);

impl ApplicationNumber {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// What is to be done with a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// The task runs from its start.
    Start { task: TaskNumber, device: usize },
    /// It goes on where it yielded.
    Resume { task: TaskNumber, device: usize },
    /// It leaves, in this way: where it runs, or gives up the memory that it kept there when it yielded.
    Stop { task: TaskNumber, device: usize, stop: Stop },
}

/// What holds whatever the policy is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rules {
    pub stop: Stop,
    /// Tasks of one application that are outstanding at most.
    pub outstanding: usize,
    /// Revocations of one task at most.
    pub revocations: u32,
}

impl Rules {
    /// Whether a batch task may be stopped.
    fn may_stop(&self, task: &Task) -> bool {
        // One that has yielded may be revoked, for its memory.
        task.stop != Stop::Never && task.revocations < self.revocations
    }
}

/// What became of a pool's tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PoolStats {
    /// Tasks that have given a result.
    pub finished: u64,
    /// Tasks that gave an error: of their own, or as they were cancelled or given up.
    pub dropped: u64,
    /// How often a task yielded.
    pub yields: u64,
    /// How often a task was revoked.
    pub revocations: u64,
    /// Time that finished tasks had a device for, without what they lost.
    pub useful: Duration,
    /// Time that tasks had a device until they were revoked.
    pub wasted: Duration,
}

#[derive(Debug)]
struct Task {
    application: ApplicationNumber,
    /// From when its time counts.
    since: Duration,
    /// The order in which tasks became outstanding.
    age: u64,
    /// What it ran for, and did not lose.
    ran: Duration,
    /// When it started, the last time from its start.
    started: Duration,
    yields: u32,
    revocations: u32,
    /// How it is stopped.
    stop: Stop,
    /// Whether it has all parts of a device that was split.
    is_whole: bool,
    place: Place,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// Not outstanding yet.
    Held,
    Waiting,
    Running(usize),
    /// It has yielded on this device, where its memory is.
    Paused(usize),
}

/// A task that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Past {
    /// From when its time counted.
    pub since: Duration,
    /// What it ran for, and did not lose.
    pub ran: Duration,
    pub yields: u32,
    pub revocations: u32,
}

/// How a task ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// It ran to its end.
    Finished,
    /// It is not to run any more.
    Dropped,
}

#[derive(Debug)]
struct Application {
    class: Class,
    /// Whether its number is given again when its last task has ended.
    is_closed: bool,
    /// Tasks that are not outstanding yet.
    held: VecDeque<TaskNumber>,
    outstanding: usize,
    mean: Option<Duration>,
}

impl Application {
    /// What its outstanding tasks take together, and their number if that is not known.
    fn work(&self) -> (Duration, usize) {
        match self.mean {
            Some(mean) => (mean.saturating_mul(self.outstanding as u32), 0),
            None => (Duration::ZERO, self.outstanding),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// The task that runs, and since when.
    runs: Option<(TaskNumber, Duration)>,
    is_leaving: bool,
    /// Whether it went on there, as opposed to started.
    is_resumed: bool,
    /// The task that has yielded, whose memory is here.
    paused: Option<TaskNumber>,
    /// Set while that one was told to give it up.
    is_giving_up: bool,
    /// Set for ever when the device has failed.
    is_lost: bool,
    /// Set while a task on another part has the whole device.
    is_taken: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    outstanding: usize,
    running: usize,
    mean: Option<Duration>,
    /// Of outstanding tasks whose applications' means are known, and the number of the others.
    work: Duration,
    unknown: usize,
}

impl Count {
    fn account(&mut self, before: (Duration, usize), now: (Duration, usize)) {
        self.work = self.work.saturating_add(now.0).saturating_sub(before.0);
        self.unknown = self.unknown + now.1 - before.1;
    }
}

#[derive(Debug)]
struct State {
    rules: Rules,
    slots: Vec<Slot>,
    /// Of each device, the other parts of that which it is a part of.
    others: Vec<Vec<usize>>,
    /// Devices where nothing runs: those that have no task that has yielded first.
    idle: BTreeSet<(bool, usize)>,
    /// Devices that run batch tasks which may be stopped and are not leaving, by when these started.
    victims: BTreeSet<(Duration, u64, usize)>,
    leaving: usize,
    lost: usize,
    tasks: Vec<Option<Task>>,
    free: Vec<TaskNumber>,
    applications: Vec<Application>,
    free_applications: Vec<ApplicationNumber>,
    /// Outstanding tasks without a device, the oldest first.
    waiting: [BTreeSet<(u64, TaskNumber)>; 2],
    counts: [Count; 2],
    ages: u64,
    stats: PoolStats,
}

/// The tasks of a pool and its policy.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    state: State,
    policy: Box<dyn PoolPolicy>,
}

impl Dispatcher {
    pub fn new(devices: usize, rules: Rules, policy: Box<dyn PoolPolicy>) -> Dispatcher {
        Dispatcher::with_parts(vec![Vec::new(); devices], rules, policy)
    }

    /// With devices of which these are the other parts of that which each is a part of.
    pub fn with_parts(
        others: Vec<Vec<usize>>,
        rules: Rules,
        policy: Box<dyn PoolPolicy>,
    ) -> Dispatcher {
        let devices = others.len();
        let state = State {
            rules,
            slots: vec![Slot::default(); devices],
            others,
            idle: (0..devices).map(|device| (false, device)).collect(),
            victims: BTreeSet::new(),
            leaving: 0,
            lost: 0,
            tasks: Vec::new(),
            free: Vec::new(),
            applications: Vec::new(),
            free_applications: Vec::new(),
            waiting: Default::default(),
            counts: Default::default(),
            ages: 0,
            stats: PoolStats::default(),
        };
        Dispatcher { state, policy }
    }

    pub fn application(&mut self, class: Class) -> ApplicationNumber {
        let state = &mut self.state;
        let (is_closed, held, outstanding, mean) = (false, VecDeque::new(), 0, None);
        let application = Application { class, is_closed, held, outstanding, mean };
        match state.free_applications.pop() {
            Some(number) => {
                state.applications[number.index()] = application;
                number
            }
            None => {
                state.applications.push(application);
                ApplicationNumber(state.applications.len() as u32 - 1)
            }
        }
    }

    /// No more tasks of this application will come.
    pub fn close(&mut self, application: ApplicationNumber) {
        self.state.applications[application.index()].is_closed = true;
        self.state.forget_if_over(application);
    }

    /// Takes a task in, which is outstanding at once if its application may have another one. It is stopped as the rules say.
    pub fn submit(&mut self, now: Duration, application: ApplicationNumber) -> TaskNumber {
        self.submit_with(now, application, self.state.rules.stop, false)
    }

    /// The same for a task that is stopped in this way, and may have all parts of a device that was split.
    pub fn submit_with(
        &mut self,
        now: Duration,
        application: ApplicationNumber,
        stop: Stop,
        is_whole: bool,
    ) -> TaskNumber {
        // What has yielded shares its device when it goes on.
        let stop = match stop {
            Stop::Yield(latency) if is_whole => Stop::Revoke(latency),
            stop => stop,
        };
        let state = &mut self.state;
        let (since, started, ran) = (now, now, Duration::ZERO);
        let (age, place) = (0, Place::Held);
        let (yields, revocations) = (0, 0);
        let task = Some(Task {
            application,
            since,
            age,
            ran,
            started,
            yields,
            revocations,
            stop,
            is_whole,
            place,
        });
        let number = match state.free.pop() {
            Some(number) => {
                state.tasks[number.index()] = task;
                number
            }
            None => {
                state.tasks.push(task);
                TaskNumber(state.tasks.len() as u32 - 1)
            }
        };
        state.applications[application.index()].held.push_back(number);
        state.let_in(now, application);
        number
    }

    /// A task has ended, wherever it is and whatever it was told.
    pub fn ended(&mut self, now: Duration, number: TaskNumber, end: End) -> Option<Past> {
        let state = &mut self.state;
        let place = state.tasks.get(number.index())?.as_ref()?.place;
        state.take_off(now, number);
        let task = state.tasks[number.index()].take()?;
        state.free.push(number);
        let application = &mut state.applications[task.application.index()];
        if end == End::Finished {
            state.stats.finished += 1;
            state.stats.useful += task.ran;
        } else {
            state.stats.dropped += 1;
        }
        if place == Place::Held {
            application.held.retain(|held| *held != number);
        } else {
            let before = application.work();
            application.outstanding -= 1;
            let class = application.class;
            let count = &mut state.counts[class as usize];
            if end == End::Finished {
                update(&mut application.mean, task.ran);
                update(&mut count.mean, task.ran);
            }
            count.account(before, application.work());
            count.outstanding -= 1;
            state.let_in(now, task.application);
        }
        state.forget_if_over(task.application);
        let Task { since, ran, yields, revocations, .. } = task;
        Some(Past { since, ran, yields, revocations })
    }

    /// A task has left its device, and goes on there.
    pub fn yielded(&mut self, now: Duration, number: TaskNumber) {
        let state = &mut self.state;
        let Some(Place::Running(device)) = state.take_off(now, number) else { return };
        state.stats.yields += 1;
        if let Some(task) = &mut state.tasks[number.index()] {
            task.yields += 1;
        }
        state.slots[device].paused = Some(number);
        state.move_to(number, Place::Paused(device));
        if state.idle.remove(&(false, device)) {
            state.idle.insert((true, device));
        }
    }

    /// A task has left its device without its memory, and what it did there is lost.
    pub fn revoked(&mut self, now: Duration, number: TaskNumber) {
        let state = &mut self.state;
        let (Some(Place::Running(_) | Place::Paused(_)), Some(task)) =
            (state.take_off(now, number), &mut state.tasks[number.index()])
        else {
            return;
        };
        state.stats.revocations += 1;
        state.stats.wasted += std::mem::take(&mut task.ran);
        task.revocations += 1;
        let class = state.applications[task.application.index()].class;
        state.waiting[class as usize].insert((task.age, number));
        state.move_to(number, Place::Waiting);
    }

    /// A running or a yielded task needs memory of its device that is not there. Has the yielded one give up its own for the
    /// running one; the other way round, it waits. Returns whether memory comes free by that, since another task has some.
    pub fn make_room(&mut self, number: TaskNumber, orders: &mut Vec<Order>) -> bool {
        let Some(Some(Task { place, .. })) = self.state.tasks.get(number.index()) else {
            return false;
        };
        match *place {
            Place::Running(device) => {
                let slot = &mut self.state.slots[device];
                let Some(task) = slot.paused else { return false };
                if !std::mem::replace(&mut slot.is_giving_up, true) {
                    orders.push(Order::Stop { task, device, stop: Stop::Revoke(Duration::ZERO) });
                }
                true
            }
            Place::Paused(device) => self.state.slots[device].runs.is_some(),
            Place::Held | Place::Waiting => false,
        }
    }

    /// A device has failed: nothing starts there from now on. The tasks that are there end or are revoked. Returns the task that
    /// has yielded there, which no order resumes.
    pub fn lose(&mut self, device: usize) -> Option<TaskNumber> {
        let state = &mut self.state;
        let slot = &mut state.slots[device];
        if !std::mem::replace(&mut slot.is_lost, true) {
            state.lost += 1;
            state.idle.remove(&(false, device));
            state.idle.remove(&(true, device));
            state.leaving -= usize::from(std::mem::take(&mut slot.is_leaving));
            // It runs on none of the devices that policies know of.
            if let Some((number, _)) = slot.runs {
                let class = state.class_of(number);
                state.counts[class as usize].running -= 1;
            }
        }
        state.slots[device].paused
    }

    /// What is to be done now.
    pub fn decide(&mut self, now: Duration, orders: &mut Vec<Order>) {
        let mut plan = PoolPlan { state: &mut self.state, now, orders };
        self.policy.decide(&mut plan);
        plan.resume_all();
    }

    /// Goes on with another policy; returns the one before.
    pub fn set_policy(&mut self, policy: Box<dyn PoolPolicy>) -> Box<dyn PoolPolicy> {
        std::mem::replace(&mut self.policy, policy)
    }

    pub fn class_of(&self, number: TaskNumber) -> Class {
        self.state.class_of(number)
    }

    /// After which time to decide at the latest.
    pub fn wake(&self) -> Option<Duration> {
        let is_busy = self.state.counts.iter().any(|count| count.outstanding > 0);
        self.policy.wake().filter(|_| is_busy)
    }

    pub fn stats(&self) -> PoolStats {
        self.state.stats
    }
}

fn update(mean: &mut Option<Duration>, newest: Duration) {
    *mean = Some(match *mean {
        None => newest,
        Some(mean) => mean.mul_f64(1.0 - NEWEST) + newest.mul_f64(NEWEST),
    });
}

impl State {
    fn move_to(&mut self, number: TaskNumber, place: Place) {
        if let Some(task) = &mut self.tasks[number.index()] {
            task.place = place;
        }
    }

    fn forget_if_over(&mut self, application: ApplicationNumber) {
        let of = &mut self.applications[application.index()];
        if of.is_closed && of.outstanding == 0 && of.held.is_empty() {
            // So that it is forgotten once.
            of.is_closed = false;
            self.free_applications.push(application);
        }
    }

    /// Makes tasks outstanding, as many as an application may have.
    fn let_in(&mut self, now: Duration, application: ApplicationNumber) {
        let of = &mut self.applications[application.index()];
        while of.outstanding < self.rules.outstanding {
            let Some(number) = of.held.pop_front() else { return };
            let Some(task) = &mut self.tasks[number.index()] else { continue };
            (task.since, task.age) = (now, self.ages);
            self.ages += 1;
            let before = of.work();
            of.outstanding += 1;
            let count = &mut self.counts[of.class as usize];
            count.account(before, of.work());
            count.outstanding += 1;
            task.place = Place::Waiting;
            self.waiting[of.class as usize].insert((task.age, number));
        }
    }

    fn class_of(&self, number: TaskNumber) -> Class {
        let task = self.tasks[number.index()].as_ref();
        task.map_or(Class::Batch, |task| self.applications[task.application.index()].class)
    }

    /// An idle device, all of whose other parts are idle: this one, if it is.
    fn whole(&self, device: usize) -> Option<usize> {
        let is_empty = |slot: &Slot| slot.runs.is_none() && slot.paused.is_none() && !slot.is_taken;
        // A part that has failed runs nothing.
        let is_free = |part: &usize| self.slots[*part].is_lost || is_empty(&self.slots[*part]);
        let is_whole = |device: &usize| {
            is_empty(&self.slots[*device]) && self.others[*device].iter().all(is_free)
        };
        let others = self.idle.iter().map(|&(_, device)| device);
        [device].into_iter().chain(others).find(is_whole)
    }

    /// Puts a task on an idle device.
    fn enter(&mut self, now: Duration, device: usize, number: TaskNumber) {
        let slot = &mut self.slots[device];
        self.idle.remove(&(slot.paused.is_some(), device));
        slot.paused = slot.paused.filter(|paused| *paused != number);
        (slot.runs, slot.is_resumed) = (Some((number, now)), false);
        self.move_to(number, Place::Running(device));
        let class = self.class_of(number);
        self.counts[class as usize].running += 1;
        let task = self.tasks[number.index()].as_ref();
        if task.is_some_and(|task| task.is_whole) {
            for &part in &self.others[device] {
                self.idle.remove(&(false, part));
                self.slots[part].is_taken = true;
            }
        }
        if let Some(task) = task.filter(|task| class == Class::Batch && self.rules.may_stop(task)) {
            self.victims.insert((task.started, task.age, device));
        }
    }

    /// Takes a task off where it is, and counts what it ran for; returns where it was.
    fn take_off(&mut self, now: Duration, number: TaskNumber) -> Option<Place> {
        let class = self.class_of(number);
        let task = self.tasks.get_mut(number.index())?.as_mut()?;
        let place = task.place;
        match place {
            Place::Held => {}
            Place::Waiting => drop(self.waiting[class as usize].remove(&(task.age, number))),
            Place::Running(device) => {
                let slot = &mut self.slots[device];
                let since = slot.runs.take().map_or(now, |(_, since)| since);
                task.ran += now.saturating_sub(since);
                self.leaving -= usize::from(std::mem::take(&mut slot.is_leaving));
                self.victims.remove(&(task.started, task.age, device));
                if !slot.is_lost {
                    self.counts[class as usize].running -= 1;
                    self.idle.insert((slot.paused.is_some(), device));
                }
                if task.is_whole {
                    for &part in &self.others[device] {
                        let slot = &mut self.slots[part];
                        slot.is_taken = false;
                        if !slot.is_lost {
                            self.idle.insert((false, part));
                        }
                    }
                }
            }
            Place::Paused(device) => {
                let slot = &mut self.slots[device];
                (slot.paused, slot.is_giving_up) = (None, false);
                if self.idle.remove(&(true, device)) {
                    self.idle.insert((false, device));
                }
            }
        }
        Some(place)
    }
}

#[cfg(test)]
mod tests;
