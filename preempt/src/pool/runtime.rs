//! The threads of a pool: they carry out what [`Dispatcher`] orders, and tell it what came of it.
//!
//! Each device has two threads: one for the task that runs there, and one for a task that has yielded. The dispatcher is behind
//! one lock. A thread that brings news takes it, has the dispatcher decide, and carries out its orders. With the lock held, only
//! the policy is called of the application's code.
//!
//! A thread whose task has ended takes the next one of its device itself, because the device is idle until the other thread wakes
//! (30 to 70 µs on the H100's host). The other one is woken all the same, because the first gives the task's answer before, by
//! code of the application.
//!
//! A task that *yields* has its stream suspended: its launches leave the device to the task that takes its place, and go on where
//! they were when that has ended. So a user-facing task has the device between its launches, too, and kernels of the driver's that
//! zero its memory find an SM. SMs that it does not fill stay free. When they went to the batch task, user-facing tasks took 1.6
//! times as long as alone, and 1.25 times where batch tasks were killed (H200, four parts). A task that is *revoked* has its
//! operations cancelled, and its body returns.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use super::dispatch::{ApplicationNumber, Dispatcher, End, PoolPolicy, PoolStats, Rules};
use super::resident::{Evict, Place};
use super::run::{Ended, Progress, Run};
use super::task::{Body, TaskReport, Ticket};
use super::terms::{Class, KILL, Stop};
use crate::error::{DeviceError, Error, PoolError};
use crate::policy::Priority;
use crate::scheduler::{Scheduler, Stream};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Instant, Mutex, contain, lock};
#[cfg(target_os = "linux")]
use crate::worker::Standbys;

mod state;

use state::{After, Assignment, Entry, Lane, State};

/// Threads of a device.
const LANES: usize = 2;

/// Failures of devices that a task may see. With more, a task that makes devices fail would cost each of the pool's.
const FAILURES: u32 = 1;

/// The longest that a pool waits for bodies when it is dropped.
const FAREWELL: Duration = Duration::from_secs(10);

/// What the threads of a pool share.
pub(super) struct Inner {
    /// Of each device, or none; parts of one device have the same.
    #[cfg(target_os = "linux")]
    workers: Vec<Arc<Standbys>>,
    stop: Stop,
    /// What may keep memory of devices between tasks.
    residents: Mutex<Vec<Weak<dyn Evict>>>,
    /// Device memory in bytes that each device has at least.
    memory: u64,
    start: Instant,
    state: Mutex<State>,
    /// For the thread that decides after a time.
    wakes: Condvar,
    /// For threads that wait until a task has left a device.
    departs: Condvar,
}

/// How a run has ended.
enum Outcome {
    /// With a result, or an error of the task's own.
    Over(Result<(), Error>),
    Revoked,
    /// Its device had failed before its body was called.
    Elsewhere,
    /// Its device has failed.
    Lost(Error),
}

impl Inner {
    /// What the threads share, and the threads.
    pub fn start(
        schedulers: Vec<Scheduler>,
        #[cfg(target_os = "linux")] workers: Vec<Arc<Standbys>>,
        memory: u64,
        rules: Rules,
        policy: Box<dyn PoolPolicy>,
    ) -> Result<(Arc<Inner>, Vec<JoinHandle<()>>), Error> {
        let devices = schedulers.len();
        let lanes = (0..devices).map(|_| Lane::default()).collect();
        let state = State {
            dispatcher: Dispatcher::with_parts(other_parts(&schedulers), rules, policy),
            entries: Vec::new(),
            serials: 0,
            tasks: 0,
            lanes,
            departures: vec![0; devices],
            lost: vec![false; devices],
            threads: 0,
            orders: Vec::new(),
            is_closed: false,
            waits: None,
            policy_error: None,
        };
        let (state, wakes, departs) = (Mutex::new(state), Condvar::new(), Condvar::new());
        let start = Instant::now();
        let inner = Arc::new(Inner {
            #[cfg(target_os = "linux")]
            workers,
            stop: rules.stop,
            residents: Mutex::default(),
            memory,
            start,
            state,
            wakes,
            departs,
        });
        let mut threads = Vec::new();
        let mut spawn = |name, body: Box<dyn FnOnce() + Send>| {
            lock(&inner.state).threads += 1;
            let of_thread = inner.clone();
            let spawned = spawn(name, move || {
                contain(body);
                of_thread.thread_ended();
            });
            threads.push(spawned.inspect_err(|_| inner.thread_ended())?);
            Ok(())
        };
        let start_all = || {
            for (device, scheduler) in schedulers.into_iter().enumerate() {
                for _ in 0..LANES {
                    // The threads alone keep the scheduler, so that it ends with them.
                    let (inner, scheduler) = (inner.clone(), scheduler.clone());
                    let serve = move || inner.serve(device, &scheduler);
                    spawn("preempt-task", Box::new(serve))?;
                }
            }
            let inner = inner.clone();
            spawn("preempt-pool", Box::new(move || inner.decide_in_time()))
        };
        match start_all() {
            Ok(()) => Ok((inner, threads)),
            Err(error) => {
                inner.close(threads);
                Err(error)
            }
        }
    }

    #[cfg(target_os = "linux")]
    pub fn workers(&self, device: usize) -> Option<&Arc<Standbys>> {
        self.workers.get(device)
    }

    /// Whether tasks may have workers.
    #[cfg(target_os = "linux")]
    pub fn has_workers(&self) -> bool {
        !self.workers.is_empty()
    }

    #[cfg(not(target_os = "linux"))]
    pub fn has_workers(&self) -> bool {
        false
    }

    /// Waits until the workers of this device are gone that were killed, and no longer than until the run is revoked; returns
    /// whether there were any.
    #[cfg(target_os = "linux")]
    pub fn await_workers(&self, device: usize, progress: &Progress) -> bool {
        let workers = self.workers(device);
        workers.is_some_and(|workers| workers.await_departures(|| progress.is_revoked()))
    }

    #[cfg(not(target_os = "linux"))]
    pub fn await_workers(&self, _device: usize, _progress: &Progress) -> bool {
        false
    }

    pub fn stats(&self) -> PoolStats {
        lock(&self.state).dispatcher.stats()
    }

    pub fn policy_error(&self) -> Option<Error> {
        let message = lock(&self.state).policy_error.clone()?;
        Some(PoolError::PolicyReplaced { message }.into())
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Changes the state, and does what follows.
    fn with<R>(&self, change: impl FnOnce(&mut State, Duration, &mut After) -> R) -> R {
        let mut after = After::default();
        let changed = {
            let mut state = lock(&self.state);
            let now = self.now();
            let changed = change(&mut state, now, &mut after);
            state.turn(now, &mut after);
            let wake = state.wake(&mut after);
            let is_sooner = |waits: Option<Duration>| match (wake, waits) {
                (Some(wake), Some(waits)) => wake < waits,
                (wake, None) => wake.is_some(),
                (None, Some(_)) => false,
            };
            if state.waits.is_some_and(is_sooner) {
                self.wakes.notify_all();
            }
            changed
        };
        self.do_after(after);
        changed
    }

    fn do_after(&self, After { suspended, resumed, revokes, answers, policies }: After) {
        suspended.iter().for_each(Stream::drive);
        if !revokes.is_empty() {
            revokes.iter().for_each(|run| run.revoke());
            // With the lock, so that a thread that has just looked whether it is revoked does not miss it.
            let _state = lock(&self.state);
            self.departs.notify_all();
        }
        if !answers.is_empty() {
            let given = answers.len();
            for (body, result) in answers {
                // The last one to have the body may drop it: code of the application.
                contain(move || body.answer(result));
            }
            lock(&self.state).tasks -= given;
            self.departs.notify_all();
        }
        // After the answers, which users may wait for.
        resumed.iter().for_each(Stream::drive);
        policies.into_iter().for_each(|policy| contain(move || drop(policy)));
    }

    fn thread_ended(&self) {
        lock(&self.state).threads -= 1;
        self.departs.notify_all();
    }

    pub fn keep(&self, resident: Weak<dyn Evict>) {
        let mut residents = lock(&self.residents);
        residents.retain(|known| known.strong_count() > 0 && !known.ptr_eq(&resident));
        residents.push(resident);
    }

    /// Drops what is kept on a device between tasks and no run uses; returns whether there was any.
    pub fn evict(&self, place: Place) -> bool {
        let residents: Vec<_> = lock(&self.residents).iter().filter_map(Weak::upgrade).collect();
        // Each of them.
        residents.iter().fold(false, |is_any, resident| resident.evict(place) | is_any)
    }

    /// A number that no other pool has at the same time.
    pub fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    pub fn wait_until_idle(&self) {
        let state = lock(&self.state);
        let waited = self.departs.wait_while(state, |state| state.tasks > 0);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    pub fn application(&self, class: Class) -> ApplicationNumber {
        lock(&self.state).dispatcher.application(class)
    }

    pub fn close_application(&self, number: ApplicationNumber) {
        lock(&self.state).dispatcher.close(number);
    }

    pub fn submit(
        &self,
        application: ApplicationNumber,
        body: Arc<dyn Body>,
        memory: u64,
    ) -> Result<Ticket, Error> {
        let task = || body.name().clone();
        if memory > self.memory {
            let (task, bytes, limit) = (task(), memory, self.memory);
            return Err(PoolError::TooLarge { task, bytes, limit }.into());
        }
        self.with(|state, now, _| {
            if state.is_closed {
                return Err(PoolError::PoolDropped { task: task() }.into());
            }
            if state.lost.iter().all(|&is_lost| is_lost) {
                return Err(PoolError::NoDeviceLeft { task: task() }.into());
            }
            let stop = match self.stop {
                Stop::Never => Stop::Never,
                _ if body.is_opaque() => Stop::Revoke(KILL),
                stop => stop,
            };
            let number = state.dispatcher.submit_with(now, application, stop, body.is_opaque());
            state.serials += 1;
            state.tasks += 1;
            let serial = state.serials;
            let (is_cancelled, failures, run) = (false, 0, None);
            let entry = Entry { serial, body: body.clone(), run, is_cancelled, failures };
            let at = number.index();
            if state.entries.len() <= at {
                state.entries.resize_with(at + 1, || None);
            }
            state.entries[at] = Some(entry);
            Ok(Ticket { number, serial })
        })
    }

    pub fn cancel(&self, ticket: Ticket) {
        self.with(|state, now, after| {
            let Some(entry) = state.entry(ticket) else { return };
            match &entry.run {
                Some(run) => {
                    after.revokes.push(run.clone());
                    entry.is_cancelled = true;
                }
                None => {
                    let error = PoolError::Cancelled { task: entry.body.name().clone() };
                    state.give_up(now, ticket.number, error.into(), after);
                }
            }
        });
    }

    /// Waits until another task has left this device, if there is one that leaves or goes first; returns whether there was.
    pub fn await_room(&self, ticket: Ticket, device: usize, progress: &Progress) -> bool {
        let mut after = After::default();
        let mut state = lock(&self.state);
        let mut orders = Vec::new();
        let seen = state.departures[device];
        let comes_free = state.dispatcher.make_room(ticket.number, &mut orders);
        state.carry_out(self.now(), &mut orders, &mut after);
        drop(state);
        self.do_after(after);
        if comes_free {
            let mut state = lock(&self.state);
            while state.departures[device] == seen && !progress.is_revoked() {
                let waited = self.departs.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
            }
        }
        comes_free
    }

    /// Runs tasks on a device, until the pool is closed.
    fn serve(self: &Arc<Self>, device: usize, scheduler: &Scheduler) {
        while let Some(assignment) = self.next_of(device) {
            let outcome = self.run(device, scheduler, &assignment);
            if !matches!(outcome, Outcome::Over(_)) {
                // It may have memory of the device.
                assignment.body.discard();
            }
            self.report(device, scheduler, &assignment, outcome);
            // Code of the application.
            contain(move || drop(assignment));
        }
    }

    /// The next run for a thread of this device, waiting for it; `None` once the pool is closed and none is left.
    fn next_of(&self, device: usize) -> Option<Assignment> {
        let mut state = lock(&self.state);
        let comes = state.lanes[device].comes.clone();
        loop {
            if let Some(assignment) = state.lanes[device].waiting.pop_front() {
                return Some(assignment);
            }
            if state.is_closed {
                return None;
            }
            state = comes.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn run(
        self: &Arc<Self>,
        device: usize,
        scheduler: &Scheduler,
        assignment: &Assignment,
    ) -> Outcome {
        let Assignment { ticket, class, body, progress } = assignment;
        if progress.is_revoked() {
            return Outcome::Revoked;
        }
        if has_failed(scheduler) {
            return Outcome::Elsewhere;
        }
        // In the order of the classes' urgency.
        let priority = match class {
            Class::UserFacing => Priority(1),
            Class::Batch => Priority(0),
        };
        let stream = scheduler.stream(priority);
        if let (Class::Batch, Stop::Revoke(latency)) = (class, self.stop) {
            // The policy counts on the device after that time.
            stream.set_longest_plain(Some(latency));
        }
        let run = Run {
            inner: self.clone(),
            ticket: *ticket,
            name: body.name().clone(),
            device,
            #[cfg(target_os = "linux")]
            is_opaque: body.is_opaque(),
            scheduler: scheduler.clone(),
            stream,
            progress: progress.clone(),
        };
        if progress.begin(&run.stream) {
            run.stream.drive();
        }
        let returned = body.run(&run);
        let Ended { is_cut, error } = progress.end();
        // An operation's error says more than what followed from it.
        let result = error.map_or(returned, Err);
        progress.give_back(result.is_ok() && !is_cut);
        if is_cut {
            return Outcome::Revoked;
        }
        match result {
            Err(error @ Error::Device(DeviceError::ContextLost { .. })) => Outcome::Lost(error),
            result => Outcome::Over(result),
        }
    }

    fn report(
        &self,
        device: usize,
        scheduler: &Scheduler,
        assignment: &Assignment,
        outcome: Outcome,
    ) {
        let number = &assignment.ticket.number;
        let is_lost = match &outcome {
            Outcome::Over(Ok(())) | Outcome::Revoked => false,
            Outcome::Lost(_) | Outcome::Elsewhere => true,
            // A panic in a kernel is the kernel's, and the context is lost with it.
            Outcome::Over(Err(_)) => has_failed(scheduler),
        };
        self.with(|state, now, after| {
            state.departures[device] += 1;
            self.departs.notify_all();
            if is_lost && !std::mem::replace(&mut state.lost[device], true) {
                // What has yielded there is not resumed by orders any more, and sees that its device has failed.
                let yielded = state.dispatcher.lose(device);
                after.resumed.extend(yielded.and_then(|task| state.set_yielded(task, false)));
            }
            let is_closed = state.is_closed;
            let Some(entry) = state.entries[number.index()].as_mut() else { return };
            entry.run = None;
            let task = || assignment.body.name().clone();
            let stays_away = match (is_closed, entry.is_cancelled) {
                (_, true) => Some(PoolError::Cancelled { task: task() }),
                (true, _) => Some(PoolError::PoolDropped { task: task() }),
                _ => None,
            };
            match (outcome, stays_away) {
                (Outcome::Over(result), _) => {
                    let end = if result.is_ok() { End::Finished } else { End::Dropped };
                    state.entries[number.index()] = None;
                    let past = state.dispatcher.ended(now, *number, end);
                    let report = past.map(|past| TaskReport {
                        device,
                        turnaround: now.saturating_sub(past.since),
                        ran: past.ran,
                        yields: past.yields,
                        revocations: past.revocations,
                    });
                    let answer = result.map(|()| report.unwrap_or_default());
                    after.answers.push((assignment.body.clone(), answer));
                }
                (_, Some(error)) => state.give_up(now, *number, error.into(), after),
                (Outcome::Lost(error), None) if entry.failures >= FAILURES => {
                    state.give_up(now, *number, error, after);
                }
                (Outcome::Lost(_), None) => {
                    entry.failures += 1;
                    state.dispatcher.revoked(now, *number);
                }
                (Outcome::Revoked | Outcome::Elsewhere, None) => {
                    state.dispatcher.revoked(now, *number);
                }
            }
            if state.lost.iter().all(|&is_lost| is_lost) {
                let error = |task| PoolError::NoDeviceLeft { task };
                state.give_up_all(now, error, after);
            }
        });
    }

    /// Has the policy asked again after the time that it says, while tasks are outstanding.
    fn decide_in_time(&self) {
        loop {
            let mut state = lock(&self.state);
            if state.is_closed {
                return;
            }
            let mut after = After::default();
            let period = state.wake(&mut after);
            state.waits = Some(period);
            let mut state = match period {
                Some(period) => {
                    let waited = self.wakes.wait_timeout(state, period);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.wakes.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
            state.waits = None;
            drop(state);
            self.do_after(after);
            self.with(|_, _, _| ());
        }
    }

    /// Ends the workers that have no call, and waits for those that were killed.
    fn close_workers(&self) {
        #[cfg(target_os = "linux")]
        self.workers.iter().for_each(|workers| workers.close());
    }

    /// Ends what runs and gives up what waits; then waits for the threads, for a while.
    pub fn close(&self, threads: Vec<JoinHandle<()>>) {
        let mut after = After::default();
        {
            let mut state = lock(&self.state);
            state.is_closed = true;
            // Threads that have no task end, the others after theirs.
            state.lanes.iter().for_each(|lane| lane.comes.notify_all());
            let now = self.now();
            state.give_up_all(now, |task| PoolError::PoolDropped { task }, &mut after);
            let runs = state.entries.iter().flatten().filter_map(|entry| entry.run.clone());
            after.revokes.extend(runs);
            self.wakes.notify_all();
        }
        self.do_after(after);
        self.close_workers();
        let end = Instant::now() + FAREWELL;
        let devices = lock(&self.state).lost.len();
        // A body that drops the pool does not wait for itself.
        let is_own = threads.iter().any(|thread| thread.thread().id() == thread::current().id());
        let mut state = lock(&self.state);
        while state.threads > usize::from(is_own) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(state);
                return self.close_workers();
            }
            let waited = self.departs.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        // Those that the runs had.
        self.close_workers();
        // No run is left that could use it.
        for device in 0..devices {
            self.evict(Place { pool: self.key(), device });
        }
    }
}

/// Of each device, the other parts of that which it is a part of.
fn other_parts(schedulers: &[Scheduler]) -> Vec<Vec<usize>> {
    let wholes: Vec<_> = schedulers.iter().map(whole_of).collect();
    let others = |device: usize| {
        let is_other = move |part: &usize| *part != device;
        let parts = (0..wholes.len()).filter(is_other);
        parts.filter(|&part| wholes[part].is_some() && wholes[part] == wholes[device]).collect()
    };
    (0..wholes.len()).map(others).collect()
}

/// The first device of those that are parts of the same as this one.
#[cfg(target_os = "linux")]
pub(super) fn first_part(schedulers: &[Scheduler], device: usize) -> usize {
    let whole = whole_of(&schedulers[device]);
    let first = whole.and_then(|_| schedulers.iter().position(|of| whole_of(of) == whole));
    first.unwrap_or(device)
}

/// The device that the scheduler's device is a part of, if it is one.
fn whole_of(scheduler: &Scheduler) -> Option<u64> {
    scheduler.device().whole().map(|whole| whole.inner.id)
}

/// Whether nothing runs on this device any more.
fn has_failed(scheduler: &Scheduler) -> bool {
    let answer = scheduler.device().memory();
    matches!(answer, Err(Error::Device(DeviceError::ContextLost { .. })))
}

fn spawn(
    name: &'static str,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(body);
    let what = "a pool";
    spawned.map_err(|source| Error::Thread { what, source: Arc::new(source) })
}
