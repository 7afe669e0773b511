//! The engine with its device. One thread at a time runs it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use preempt_device::abi::{Begun, SmRange, Stops};
use preempt_device::host::Preemption;
use slotmap::SecondaryMap;

use super::armed::Armed;
use super::combiner::{Mail, Turn};
use super::completion::Completion;
use super::external::ExternalOperation;
use super::opaque::OpaqueJob;
use super::priorities::Priorities;
use super::program::ProgramJob;
use super::shared::Settings;
use crate::device::{CohortEnd, Device, KernelLaunch, OwnedCopy, Report, Session};
use crate::engine::{
    Action, Called, Change, Engine, Event, Hint, LaunchSpec, Lead, Refusal, Running, Told, Use,
};
use crate::policy::{Policy, Priority, Urgency, is_watched};
use crate::predict::Predictor;
use crate::recording::Recording;
use crate::scheduler::estimated::estimates::Estimates;
use crate::scheduler::estimated::forecast::{Ended, Forecast};
use crate::scheduler::observed::accounts::{Accounts, LaunchEntry};
use crate::sync::{Condvar, Instant, Mutex, lock};
use crate::vocabulary::{CohortOrder, Costs, OpKey, QueueIndex};

mod accounting;
mod batching;
mod execute;
mod overdue;
#[cfg(all(test, not(shuttle)))]
mod tests;

/// What a panic in a kernel costs where it ends the device.
const LOST_WITH_IT: &str = "the GPU's context is lost with it: start the process anew";

/// Messages from other threads to the core.
#[derive(Debug)]
pub(in crate::scheduler) enum Message {
    Submit(Job),
    Cancel(Arc<Completion>),
    /// These are to be stopped, and nothing that they have written counts. Together, so that none begins with what another
    /// one has left half done.
    Revoke(Vec<Arc<Completion>>),
    /// An armed launch of a program is to run; it was [released](super::armed::Armed::release).
    Release(Arc<Completion>),
    /// An armed launch of a program will not run; it was [disarmed](super::armed::Armed::disarm).
    Disarmed(Arc<Completion>),
    Change(Target, Change),
    Close,
}

/// The launches whose urgency changes.
#[derive(Debug)]
pub(in crate::scheduler) enum Target {
    Stream(u32),
    Launch(Arc<Completion>),
}

/// A launch or copy with everything that it needs.
#[derive(Debug)]
pub(in crate::scheduler) struct Job {
    pub completion: Arc<Completion>,
    pub stream: u32,
    pub name: &'static str,
    pub uses: Vec<Use>,
    /// Without a deadline, because that depends on the time of submission.
    pub urgency: Urgency,
    /// The longest launch that may be a plain grid without being told to, if it is less than for all.
    pub longest_plain: Option<Duration>,
    pub work: Work,
}

pub(in crate::scheduler) enum Work {
    Launch {
        launch: Arc<KernelLaunch>,
        preemption: Preemption,
        spec: LaunchSpec,
        /// Time from submission to deadline.
        due: Option<Duration>,
    },
    Program(Box<ProgramJob>),
    Copy(OwnedCopy),
    /// No work. It ends once the operations before it in its stream, and `after`, have ended.
    Event {
        after: Option<Arc<Completion>>,
    },
    Opaque(OpaqueJob),
    ExternalOperation(Arc<ExternalOperation>),
}

impl Work {
    /// Whether dropping it may run application code.
    pub fn is_of_others(&self) -> bool {
        match self {
            Work::Launch { .. } | Work::Copy(_) | Work::Event { .. } => false,
            Work::Program(program) => program.is_of_others,
            Work::Opaque(job) => job.has_work(),
            Work::ExternalOperation(_) => true,
        }
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Launch { launch, .. } => {
                f.debug_tuple("Launch").field(&launch.kernel.name).finish()
            }
            Work::Program(job) => job.fmt(f),
            Work::Copy(copy) => f.debug_tuple("Copy").field(copy).finish(),
            Work::Event { .. } => f.write_str("Event"),
            Work::Opaque(job) => job.fmt(f),
            Work::ExternalOperation(external) => external.fmt(f),
        }
    }
}

/// What a turn leaves to do after the combiner is released.
#[derive(Default)]
pub(in crate::scheduler) struct News {
    /// Wakers to call; threads that wait for handles are woken already.
    pub wakers: Vec<Waker>,
    /// Ended jobs, dropped after the combiner is released because freeing memory can take long.
    pub retired: Vec<Job>,
    pub became_busy: bool,
    pub became_idle: bool,
    /// Whether the turn had anything to do.
    pub happened: bool,
    /// Whether there is more to come.
    pub is_busy: bool,
    /// Whether the scheduler is closed and everything is done.
    pub is_over: bool,
    /// Whether the policy's next wake-up time has changed.
    pub wake_changed: bool,
}

/// Whether operations are in flight.
#[derive(Debug, Default)]
pub(in crate::scheduler) struct InFlight {
    pub any: Mutex<bool>,
    pub none: Condvar,
}

/// What the poller has to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::scheduler) enum Rest {
    /// Operations are in flight; the poller may sleep for at most this time.
    Busy(Duration),
    Idle,
    /// Closed, and everything is done. The core does nothing from now on, because the device may have another
    /// scheduler, whose reports it must not take.
    Retired,
}

/// Multiples of the time that a kernel takes to stop: how long a launch may be that tells how long the hardware took to
/// make room for it. Predictions are off by some percent, and those of a longer launch by more than the wait.
const TELLING: u32 = 4;

/// A job that the engine has taken in.
struct InWork {
    job: Job,
    /// Why it failed, if it did.
    fault: Option<Arc<str>>,
    /// Whether every block-task is done.
    is_done: bool,
    /// Whether its blocks had to wait for blocks of other launches to leave.
    waited: bool,
    /// Its entry in the accounts, if it is a launch.
    entry: Option<LaunchEntry>,
}

/// A call of a preemptible program that the engine has taken in.
#[derive(Clone, Copy, Debug)]
struct InCall {
    program: OpKey,
    /// Its place in the program.
    index: usize,
    /// Its predicted time, if it is a launch.
    predicted: Option<Duration>,
    /// Whether every block-task is done.
    is_done: bool,
    /// Whether its blocks had to wait for others to leave.
    waited: bool,
}

/// The streams that have had a latency limit, as far as it matters which: launches of the only one never leave for its limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Limited {
    None,
    One(u32),
    Several,
}

impl Limited {
    /// Takes in a stream with this limit.
    fn add(&mut self, stream: u32, limit: Option<Duration>) {
        if limit.is_some_and(is_watched) {
            *self = match *self {
                Limited::None => Limited::One(stream),
                Limited::One(only) if only == stream => Limited::One(only),
                _ => Limited::Several,
            };
        }
    }

    /// Whether a stream other than this one is among them.
    fn has_others(self, stream: u32) -> bool {
        self != Limited::None && self != Limited::One(stream)
    }
}

pub(in crate::scheduler) struct Core {
    engine: Engine,
    device: Device,
    start: Instant,
    jobs: SecondaryMap<OpKey, InWork>,
    calls: SecondaryMap<OpKey, InCall>,
    session: Session,
    /// What was seen of kernels' stops and forms.
    estimates: Estimates,
    /// The longest launch that may be a plain grid without being told to.
    longest_plain: Duration,
    costs: Costs,
    limited: Limited,
    /// Expected durations of launches.
    forecast: Forecast,
    /// Ended launches that the forecast has not learned from.
    ended: Vec<Ended>,
    accounts: Accounts,
    /// External operations that were started.
    externals: Vec<(OpKey, Arc<ExternalOperation>)>,
    /// Why the device is lost, if it is.
    lost: Option<Arc<str>>,
    /// The launch whose kernel panicked when the device was lost.
    panicked: Option<OpKey>,
    actions: Vec<Action>,
    /// Kept for its capacity.
    orders: Vec<CohortOrder>,
    /// Kept for their capacity.
    reports: Vec<Report>,
    news: News,
    in_flight: Arc<InFlight>,
    /// Of the streams that there are.
    priorities: Arc<Priorities>,
    /// Of the other streams, when a launch was taken in; kept for its capacity.
    others: Vec<Priority>,
    /// Of the launches that were taken in since the last decision.
    lead: Lead,
    /// Kept for its capacity.
    called: Vec<Called>,
    /// Kept for its capacity.
    hints: Vec<Hint>,
    /// Operations that got a gate, and until when each may wait behind it. The first one is the next.
    armed: VecDeque<(Duration, OpKey)>,
    armed_for: Duration,
    /// When overdue launches were looked for, and those that were told of.
    watched: Duration,
    told_overdue: SecondaryMap<OpKey, ()>,
    closed: bool,
    retired: bool,
}

impl Turn for Core {
    type Message = Message;
    type News = News;

    /// Takes in messages of other threads and reports of the device, and acts on them.
    fn turn(&mut self, mut mail: Mail<'_, Message>) -> News {
        if self.retired {
            // Only cancels of ended operations are left.
            while mail.next().is_some() {}
            return News::default();
        }
        let wake = self.wake();
        // Monotonic, because the policy's clock does not go back.
        let begin = self.start.elapsed();
        self.take_reports(begin);
        self.end_armed(begin);
        self.act(begin);
        self.take_steps(begin, &mut mail);
        self.watch(begin);
        if self.engine.may_go_ahead() {
            // The turn has lasted for long, and the device's reports come first: the poller comes back for the rest.
            self.device.inner.announce();
        }
        self.news.wake_changed = self.wake() != wake;
        let is_busy = !self.is_idle();
        let was_busy = std::mem::replace(&mut *lock(&self.in_flight.any), is_busy);
        if is_busy != was_busy {
            self.accounts.set_busy(begin, is_busy);
        }
        self.news.became_busy = is_busy && !was_busy;
        self.news.became_idle = was_busy && !is_busy;
        // Also for a launch that arrived and was refused in one turn.
        if !is_busy {
            self.session.rest();
        }
        self.news.is_busy = is_busy;
        self.news.is_over = self.closed && !is_busy;
        if !self.news.happened {
            // Otherwise the next turn does, which comes at once where a thread attends.
            self.device.inner.backend.maintain();
        }
        std::mem::take(&mut self.news)
    }
}

impl Core {
    pub fn new(
        device: Device,
        policy: Box<dyn Policy>,
        predictor: Box<dyn Predictor>,
        in_flight: Arc<InFlight>,
        priorities: Arc<Priorities>,
        Settings { trace, longest_plain, armed_for, costs, recording, .. }: Settings,
    ) -> Core {
        let costs = costs.unwrap_or(device.costs());
        let mut engine =
            Engine::new(device.properties().sms, device.inner.capabilities.queues, costs, policy);
        if recording {
            engine.record();
        }
        Core {
            engine,
            session: Session::new(&device, &costs, armed_for),
            start: Instant::now(),
            jobs: SecondaryMap::new(),
            calls: SecondaryMap::new(),
            estimates: Estimates::new(costs.whole_stop()),
            longest_plain,
            costs,
            limited: Limited::None,
            forecast: Forecast::new(predictor),
            ended: Vec::new(),
            accounts: Accounts::new(device.properties().sms, trace),
            device,
            externals: Vec::new(),
            lost: None,
            panicked: None,
            actions: Vec::new(),
            orders: Vec::new(),
            reports: Vec::new(),
            news: News::default(),
            in_flight,
            priorities,
            others: Vec::new(),
            lead: Lead::default(),
            called: Vec::new(),
            hints: Vec::new(),
            armed: VecDeque::new(),
            armed_for,
            watched: Duration::ZERO,
            told_overdue: SecondaryMap::new(),
            closed: false,
            retired: false,
        }
    }

    /// Its launches are none of the application's: neither `tracing` nor `metrics` are told of them.
    pub fn untold(self) -> Core {
        Core { accounts: self.accounts.untold(), ..self }
    }

    /// Whether nothing is in flight. In a closed scheduler everything ends, also what waits for a stream to be resumed.
    pub fn is_idle(&self) -> bool {
        if self.closed { !self.engine.is_busy() } else { !self.engine.is_in_flight() }
    }

    /// What is left for the poller to do.
    pub fn rest(&mut self) -> Rest {
        match (self.is_idle(), self.closed) {
            (false, _) => {
                let now = self.start.elapsed();
                Rest::Busy(self.wake().map_or(Duration::MAX, |wake| wake.saturating_sub(now)))
            }
            (true, false) => Rest::Idle,
            (true, true) => {
                self.retired = true;
                Rest::Retired
            }
        }
    }

    /// When there is something to do, whatever else happens.
    fn wake(&self) -> Option<Duration> {
        let armed = self.armed.front().map(|&(until, _)| until);
        self.engine.wake().into_iter().chain(armed).min()
    }

    /// The recording until now, if one is kept.
    pub fn recording(&self) -> Option<Recording> {
        Recording::of(&self.engine)
    }

    /// Why the policy was replaced, if it was.
    pub fn refusal(&self) -> Option<&Refusal> {
        self.engine.refusal()
    }

    /// The message of the predictor's panic, if it panicked.
    pub fn predictor_panic(&self) -> Option<&str> {
        self.forecast.panic()
    }

    /// Queues one launch behind another, if there is one to queue.
    fn go_ahead(&mut self, now: Duration) {
        self.engine.go_ahead(now, &mut self.actions);
        self.news.happened |= !self.actions.is_empty();
        self.act(now);
        self.foresee(now);
    }

    /// Tells gates what to tell others when they are opened.
    fn foresee(&mut self, now: Duration) {
        if self.engine.foresees() {
            self.hints.clear();
            self.engine.hints(now, &mut self.hints);
            self.session.hint(&self.hints);
        }
    }

    /// The program that an operation is, or is a call of, if it is armed.
    fn armed(&self, op: OpKey) -> Option<(OpKey, &Arc<Armed>)> {
        let op = self.calls.get(op).map_or(op, |call| call.program);
        Some((op, self.program(op)?.armed.as_ref()?))
    }

    /// Cancels an armed operation, unless it was released.
    fn disarm(&mut self, now: Duration, op: OpKey) {
        if let Some((op, armed)) = self.armed(op)
            && armed.disarm()
        {
            self.engine.handle(now, Event::Disarmed { op }, &mut self.actions);
        }
    }

    /// Disarms what has been armed for as long as it may. Its gate has left, or has no room.
    fn end_armed(&mut self, now: Duration) {
        while let Some(&(until, op)) = self.armed.front()
            && until <= now
        {
            self.armed.pop_front();
            self.disarm(now, op);
        }
    }

    /// Asks the policy, if anything has changed.
    fn settle(&mut self, now: Duration) {
        let decides = self.engine.is_unsettled(now);
        let start = if decides { self.accounts.decides() } else { None };
        let Core { engine, session, actions, .. } = self;
        // Also if the policy has nothing to decide, because opaque work may wait for the last block to leave.
        engine.settle_by(now, &|queues| look(session, queues), actions);
        if let Some(start) = start {
            self.accounts.decided(start.elapsed());
        }
        if decides {
            self.account();
        }
    }

    /// Asks the policy if anything has changed, and carries out its plan. Ended launches were taken in at the same
    /// time, so SMs pass from launch to launch and always have an owner.
    fn decide(&mut self, now: Duration) {
        loop {
            // A failed action may give the policy more to decide, and a started external operation may have ended
            // already.
            self.end_externals(now);
            self.settle(now);
            if self.actions.is_empty() {
                break;
            }
            self.act(now);
        }
        self.foresee(now);
    }

    fn take_reports(&mut self, now: Duration) {
        let mut reports = std::mem::take(&mut self.reports);
        self.session.poll(now, &mut reports);
        self.news.happened |= !reports.is_empty();
        for report in reports.drain(..) {
            match report {
                Report::CopyDone(op) => {
                    self.engine.handle(now, Event::CopyDone { op }, &mut self.actions);
                }
                Report::Fault(op, message) => self.fault(now, op, message),
                Report::Lost { message, panicked } => {
                    self.lost.get_or_insert(message);
                    // No `Event::Fault`: what comes behind the launch is lost for the same reason as all else.
                    if let Some((op, place)) = panicked {
                        let (op, message) = self.blamed(op, &format!("{place}; {LOST_WITH_IT}"));
                        if let Some(work) = self.jobs.get_mut(op) {
                            work.fault = Some(message);
                            self.panicked = Some(op);
                        }
                    }
                    // A lost device needs no news of their ends.
                    self.externals.clear();
                    self.engine.handle(now, Event::Lost, &mut self.actions);
                }
                // The last launch of a chain first: those before it have then ended when their turn comes. Their SMs go
                // to the launch behind them as a whole, even if a launch in between can use few.
                Report::CohortOut(end) => self.cohort_out(now, end),
            }
        }
        self.reports = reports;
        self.act(now);
    }

    /// The kernel that an operation launches, and the preemption that it asks for, if it is a launch or a call that is one.
    fn kernel(&self, op: OpKey) -> Option<(&Arc<KernelLaunch>, Preemption)> {
        match (self.jobs.get(op), self.calls.get(op)) {
            (Some(InWork { job, .. }), _) => match &job.work {
                Work::Launch { launch, preemption, .. } => Some((launch, *preemption)),
                _ => None,
            },
            (None, Some(&InCall { program, index, .. })) => {
                let program = self.program(program)?;
                Some((program.kernel(index)?, program.preemption))
            }
            (None, None) => None,
        }
    }

    fn program(&self, op: OpKey) -> Option<&ProgramJob> {
        match &self.jobs.get(op)?.job.work {
            Work::Program(program) => Some(program),
            _ => None,
        }
    }

    /// The operation whose handle reports what happened to this one, and the message for it.
    fn blamed(&self, op: OpKey, message: &str) -> (OpKey, Arc<str>) {
        match self.calls.get(op) {
            Some(&InCall { program, index, .. }) => {
                let of = self.program(program);
                (program, of.map_or(message.into(), |of| of.message(index, message)))
            }
            None => (op, message.into()),
        }
    }

    fn cohort_out(&mut self, now: Duration, end: CohortEnd) {
        let CohortEnd { order, posted, launched, stopped, stopped_within, stops, limit } = end;
        if stopped_within.is_some() || stops != Stops::default() {
            // The blocks' own time, or else what the host saw of a cohort that lost all SMs.
            let seen = stopped_within.zip(stopped.map(|stopped| now.saturating_sub(stopped)));
            let of_blocks = limit.map(|limit| (limit, Duration::from_nanos(stops.latest.into())));
            // Theirs has 32 bits, so it is no longer one from here on.
            let is_long = |&(_, took): &(_, Duration)| took.as_nanos() > u32::MAX.into();
            let stop = seen.filter(is_long).or(of_blocks).or(seen);
            let stop = stop.map(|(limit, took)| (self.engine.asked(limit), took));
            let lost = self.device.inner.capabilities.time(stops.lost);
            let slot = self.kernel(order.op).map_or(0, |(launch, _)| launch.slot_bytes());
            self.accounts.stopped(&stops, (lost, slot), stop);
            self.learn_dropped(order.op, &stops, lost);
        }
        let CohortOrder { op, slot, plain, after, gated, over, signal, workers, .. } = order;
        if let Some((launch, preemption)) = self.kernel(op) {
            let (launch, tasks) = (launch.clone(), launch.tasks());
            let took = now.saturating_sub(launched);
            let is_whole = posted.done == tasks;
            // Behind a gate it has waited for its release, too.
            let is_alone = after.is_none() && !gated && over.is_none();
            if preemption == Preemption::Auto && is_alone && is_whole {
                self.estimates.record(launch.kernel, tasks, plain, took);
            }
            // A program's calls have no entry.
            let entry = self.jobs.get(op).and_then(|work| work.entry.as_ref());
            if let Some(over) = over.filter(|_| is_whole && !gated)
                && let Some(predicted) = entry.and_then(|entry| entry.predicted)
                && let Some(Work::Launch { launch, .. }) =
                    self.jobs.get(over).map(|work| &work.job.work)
                && predicted <= TELLING * self.estimates.stop(launch.kernel)
            {
                self.estimates.made_room(launch.kernel, took.saturating_sub(predicted));
            }
            // Where it kept to SMs that hold fewer blocks than it has block-tasks, spare blocks may have waited for room.
            let sms = self.device.properties().sms.max(1);
            let room = || (0..sms).filter(|&sm| signal.range().contains(sm)).count() as u32;
            let none_waited =
                || signal.range() == SmRange::ALL || tasks <= room() * (workers / sms);
            if let Some(stopped) = stopped.filter(|_| none_waited()) {
                self.estimates.stopped(launch.kernel, now.saturating_sub(stopped));
            }
        }
        self.engine.handle(now, Event::CohortOut { op, slot, posted }, &mut self.actions);
        if gated && posted.done == 0 {
            // The gate has waited for as long as it may.
            self.disarm(now, op);
        }
    }

    /// Learns which part of their block-tasks blocks drop when they have to leave, from those of one cohort: `lost` in all.
    fn learn_dropped(&mut self, op: OpKey, stops: &Stops, lost: Duration) {
        let Some(InWork { job, entry: Some(entry), .. }) = self.jobs.get(op) else { return };
        let (Work::Launch { launch, spec, .. }, Some(predicted)) = (&job.work, entry.predicted)
        else {
            return;
        };
        let left = stops.drained + stops.requeued;
        let block_task = spec.block_task_of(predicted, self.device.properties().sms);
        if left > 0 && launch.kernel.yields && !block_task.is_zero() {
            let part = (lost / left).div_duration_f64(block_task);
            self.estimates.has_dropped(launch.kernel, part);
        }
    }

    fn end_externals(&mut self, now: Duration) {
        let mut externals = std::mem::take(&mut self.externals);
        externals.retain(|(op, external)| {
            let Some(end) = external.end() else { return true };
            self.news.happened = true;
            if let Err(message) = end {
                if let Some(kernel) = external.cause() {
                    self.engine.blame(*op, kernel);
                }
                self.fault(now, *op, message);
            }
            self.engine.handle(now, Event::CopyDone { op: *op }, &mut self.actions);
            false
        });
        // None was started meanwhile, because only actions start external operations.
        self.externals = externals;
    }
}

/// What the first cohorts of these queues run, by what their blocks have told.
fn look(session: &Session, queues: &[QueueIndex]) -> Vec<Told> {
    let told: Vec<_> = queues.iter().map(|&queue| (queue, session.told(queue))).collect();
    // The device's time is known by what blocks tell alone. All have run for longer by the same time.
    let later = |last: Begun, next: Begun| if last.until(next) > 0 { next } else { last };
    let last = told.iter().flat_map(|(_, begun)| begun).copied().reduce(later);
    let running = |begun: &Begun| Running {
        sm: begun.sm,
        since: Duration::from_nanos(last.map_or(0, |last| begun.until(last))),
        is_spent: begun.is_spent,
    };
    told.iter().map(|(queue, begun)| (*queue, begun.iter().map(running).collect())).collect()
}
