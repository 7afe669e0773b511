//! What the threads of a pool have behind their lock: the dispatcher, the tasks, and what each device's threads are to run.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, PoolError, caught};
use crate::pool::dispatch::{Dispatcher, End, Order, PoolPolicy, TaskNumber};
use crate::pool::policy::FirstCome;
use crate::pool::run::Progress;
use crate::pool::task::{Body, TaskReport, Ticket};
use crate::pool::terms::{Class, Stop};
use crate::scheduler::Stream;
use crate::sync::Condvar;

pub(super) struct State {
    pub(super) dispatcher: Dispatcher,
    /// By task number.
    pub(super) entries: Vec<Option<Entry>>,
    pub(super) serials: u64,
    /// Tasks whose results were not given.
    pub(super) tasks: usize,
    /// For the threads of each device.
    pub(super) lanes: Vec<Lane>,
    /// Runs that have ended on each device, and been told to.
    pub(super) departures: Vec<u64>,
    /// Devices that have failed.
    pub(super) lost: Vec<bool>,
    /// Threads that have not ended.
    pub(super) threads: usize,
    pub(super) orders: Vec<Order>,
    pub(super) is_closed: bool,
    /// While the deciding thread waits: after which time it decides, if it does.
    pub(super) waits: Option<Option<Duration>>,
    pub(super) policy_error: Option<Arc<str>>,
}

pub(super) struct Entry {
    pub(super) serial: u64,
    pub(super) body: Arc<dyn Body>,
    /// Of the run that is under way.
    pub(super) run: Option<Arc<Progress>>,
    pub(super) is_cancelled: bool,
    pub(super) failures: u32,
}

/// The runs of a device that none of its threads has taken yet.
#[derive(Default)]
pub(super) struct Lane {
    pub(super) waiting: VecDeque<Assignment>,
    /// For threads that wait for one.
    pub(super) comes: Arc<Condvar>,
}

/// A run for a device's threads.
pub(super) struct Assignment {
    pub(super) ticket: Ticket,
    pub(super) class: Class,
    pub(super) body: Arc<dyn Body>,
    pub(super) progress: Arc<Progress>,
}

/// What is to be done without the lock, since it runs code of the application.
#[derive(Default)]
pub(super) struct After {
    /// Streams that are to be driven, because they were suspended, or resumed.
    pub(super) suspended: Vec<Stream>,
    pub(super) resumed: Vec<Stream>,
    pub(super) revokes: Vec<Arc<Progress>>,
    pub(super) answers: Vec<(Arc<dyn Body>, Result<TaskReport, Error>)>,
    /// Policies that were replaced.
    pub(super) policies: Vec<Box<dyn PoolPolicy>>,
}

impl State {
    pub(super) fn entry(&mut self, Ticket { number, serial }: Ticket) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(number.index())?.as_mut()?;
        (entry.serial == serial).then_some(entry)
    }

    /// Ends a task that does not run, with this error.
    pub(super) fn give_up(
        &mut self,
        now: Duration,
        number: TaskNumber,
        error: Error,
        after: &mut After,
    ) {
        let Some(entry) = self.entries[number.index()].take() else { return };
        self.dispatcher.ended(now, number, End::Dropped);
        after.answers.push((entry.body, Err(error)));
    }

    /// Ends all tasks that do not run.
    pub(super) fn give_up_all(
        &mut self,
        now: Duration,
        error: impl Fn(Arc<str>) -> PoolError,
        after: &mut After,
    ) {
        for at in 0..self.entries.len() {
            let waits = self.entries[at].as_ref().filter(|entry| entry.run.is_none());
            if let Some(error) = waits.map(|entry| error(entry.body.name().clone())) {
                self.give_up(now, TaskNumber::at(at), error.into(), after);
            }
        }
    }

    /// Decides, and carries out what was decided, until nothing is left to decide.
    pub(super) fn turn(&mut self, now: Duration, after: &mut After) {
        let mut orders = std::mem::take(&mut self.orders);
        while !self.is_closed {
            let decided = caught(|| self.dispatcher.decide(now, &mut orders));
            if let Err(message) = decided {
                // Orders that it gave before are carried out: the dispatcher counts on that.
                self.replace_policy(message, after);
            } else if orders.is_empty() {
                break;
            }
            self.carry_out(now, &mut orders, after);
        }
        self.orders = orders;
    }

    /// After which time to decide at the latest.
    pub(super) fn wake(&mut self, after: &mut After) -> Option<Duration> {
        caught(|| self.dispatcher.wake()).unwrap_or_else(|message| {
            self.replace_policy(message, after);
            None
        })
    }

    pub(super) fn replace_policy(&mut self, message: String, after: &mut After) {
        self.policy_error = Some(message.into());
        after.policies.push(self.dispatcher.set_policy(Box::new(FirstCome)));
    }

    /// Suspends the stream of a task's run, or resumes it, and gives it, to be driven.
    pub(super) fn set_yielded(&self, task: TaskNumber, has_yielded: bool) -> Option<Stream> {
        let entry = self.entries[task.index()].as_ref()?;
        entry.run.as_ref()?.set_yielded(has_yielded)
    }

    pub(super) fn carry_out(&mut self, now: Duration, orders: &mut Vec<Order>, after: &mut After) {
        for order in orders.drain(..) {
            match order {
                Order::Start { task, device } => {
                    let class = self.dispatcher.class_of(task);
                    let Some(entry) = &mut self.entries[task.index()] else { continue };
                    let (body, progress) = (entry.body.clone(), Arc::<Progress>::default());
                    entry.run = Some(progress.clone());
                    let ticket = Ticket { number: task, serial: entry.serial };
                    let lane = &mut self.lanes[device];
                    lane.waiting.push_back(Assignment { ticket, class, body, progress });
                    lane.comes.notify_one();
                }
                Order::Resume { task, .. } => {
                    after.resumed.extend(self.set_yielded(task, false));
                }
                Order::Stop { task, stop: Stop::Yield(_), .. } => {
                    after.suspended.extend(self.set_yielded(task, true));
                    self.dispatcher.yielded(now, task);
                }
                Order::Stop { task, .. } => {
                    let entry = self.entries[task.index()].as_ref();
                    after.revokes.extend(entry.and_then(|entry| entry.run.clone()));
                }
            }
        }
    }
}
