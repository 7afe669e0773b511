//! The engine: what happens to launches and copies, as a pure function of events.
//!
//! No threads, no clock, no device: [`Engine::submit`] and [`Engine::handle`] take what
//! happened, [`Engine::settle`] asks the policy, and all of them append [`Action`]s for a device
//! and for whoever waits. States, and races by name, are in `README.md` beside this file.

use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::time::Duration;

use preempt_device::abi::{Posted, SmRange};
use slotmap::{SlotMap, new_key_type};

use crate::device::QueueCount;
use crate::error::caught;
use crate::policy::{Arrival, Plan, Policy, Urgency};
use crate::recording::{Recording, Step};

mod cohorts;
mod controls;
mod ending;
mod interface;
mod launch;
mod ledger;
mod opaque;
mod order;
mod planning;
mod queues;
mod recorder;
#[cfg(test)]
mod tests;
mod urgency;

use controls::Controls;
pub(crate) use controls::{ControlIndex, ControlUse};
use ending::outcome;
pub(crate) use interface::{
    Action, After, Change, CohortOrder, Event, Grant, Outcome, Refusal, Submission, Whose,
};
use launch::Launch;
pub use launch::LaunchReport;
pub(crate) use launch::{LaunchSpec, fills};
use ledger::Ledger;
pub(crate) use ledger::count;
pub(crate) use opaque::Opaque;
use opaque::Pieces;
pub(crate) use order::{BufferId, Use};
use order::{End, Order};
use queues::DeviceQueues;
pub(crate) use queues::QueueIndex;
pub(crate) use recorder::Recorder;
use urgency::arrival;

new_key_type! {
    /// A launch or a copy.
    pub(crate) struct OpKey;
}

/// A launch, as policies know it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaunchId(pub(crate) OpKey);

impl fmt::Debug for LaunchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LaunchId({:?})", self.0.0)
    }
}

#[derive(Debug)]
struct Op {
    stream: u32,
    name: &'static str,
    uses: Vec<Use>,
    /// Operations that have to finish first, those of them in other streams, and those that wait for
    /// this one.
    blockers: u32,
    foreign_blockers: u32,
    successors: Vec<OpKey>,
    /// Those that this one waited for when it came. Some may be over.
    waits_for: Vec<OpKey>,
    /// Its place in the order of submission.
    number: u64,
    /// What it asks for itself, and with all that wait for it.
    urgency: Urgency,
    effective: Urgency,
    /// The operation after this one in its stream.
    next: Option<OpKey>,
    /// `None` for a copy, and for opaque work.
    launch: Option<Launch>,
    opaque: Option<Opaque>,
    phase: Phase,
    /// Why the operation ends before its work is done.
    verdict: Option<Verdict>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Waits for its blockers ("preparing"), perhaps with a cohort queued on the device behind the
    /// last of them; or for the device to be drained.
    Blocked,
    /// A copy on the device, or a launch that the policy knows; [`Launch::state`] says more.
    Active,
    /// Reported as finished.
    Finished,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Cancelled,
    Closed,
    Failed,
    /// It was queued on the device, and this kernel had failed and left a buffer in pieces.
    InputLost(&'static str),
}

impl Verdict {
    /// What it comes to when `done` tasks were done.
    fn outcome(self, done: u32) -> Outcome {
        match self {
            Verdict::Cancelled => Outcome::Cancelled { done },
            Verdict::Closed => Outcome::Closed { done },
            Verdict::Failed => Outcome::Failed,
            Verdict::InputLost(kernel) => Outcome::InputLost { kernel },
        }
    }
}

/// See the module's documentation.
pub(crate) struct Engine {
    ops: SlotMap<OpKey, Op>,
    order: Order,
    ledger: Ledger,
    controls: Controls,
    queues: DeviceQueues,
    /// Whether a launch waits for a queue.
    short_of_queues: bool,
    /// DeviceQueues in which more launches could be queued.
    behind: VecDeque<QueueIndex>,
    policy: Box<dyn Policy>,
    policy_name: String,
    refusal: Option<Refusal>,
    /// Launches that the policy knows, and how many there ever were.
    known: usize,
    arrivals: u64,
    /// Those of them that came since it was asked.
    newcomers: Vec<OpKey>,
    /// Plans that the policy ever made.
    plans: u64,
    /// When the policy wants to be asked again.
    wake: Option<Duration>,
    /// Operations that there ever were.
    submissions: u64,
    opaque: Pieces,
    /// Something changed that the policy should look at.
    unsettled: bool,
    /// How everything ends that is submitted from now on.
    over: Option<Verdict>,
    plan: Plan,
    /// Who has other SMs than before, if somebody keeps accounts.
    grants: Option<Vec<Grant>>,
    /// Operations whose last blocker is gone; always empty between calls.
    released: VecDeque<OpKey>,
    /// If somebody wants to see it decide again.
    recorder: Option<Box<Recorder>>,
    /// Kept for their capacity.
    lost: Vec<(u32, OpKey)>,
    losers: Vec<OpKey>,
    raised: Vec<OpKey>,
    reconsidered: BinaryHeap<(u64, OpKey)>,
    spare_uses: Vec<Vec<Use>>,
    spare_keys: Vec<Vec<OpKey>>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("ops", &self.ops)
            .field("ledger", &self.ledger)
            .field("policy", &self.policy_name)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine for a device of `sms` SMs.
    pub fn new(sms: u32, queues: QueueCount, policy: Box<dyn Policy>) -> Engine {
        let name = caught(|| policy.name().to_owned());
        Engine {
            ops: SlotMap::with_key(),
            order: Order::default(),
            ledger: Ledger::new(sms),
            controls: Controls::default(),
            queues: DeviceQueues::new(queues),
            short_of_queues: false,
            behind: VecDeque::new(),
            policy,
            policy_name: name.unwrap_or_else(|_| "a policy that cannot say its name".into()),
            refusal: None,
            known: 0,
            arrivals: 0,
            newcomers: Vec::new(),
            plans: 0,
            wake: None,
            submissions: 0,
            opaque: Pieces::default(),
            unsettled: false,
            over: None,
            plan: Plan::default(),
            grants: None,
            released: VecDeque::new(),
            recorder: None,
            lost: Vec::new(),
            losers: Vec::new(),
            raised: Vec::new(),
            reconsidered: BinaryHeap::new(),
            spare_uses: Vec::new(),
            spare_keys: Vec::new(),
        }
    }

    /// Whether an operation is unfinished or still on the device.
    pub fn is_busy(&self) -> bool {
        !self.ops.is_empty()
    }

    /// From now on the failure of an operation is told as that of this kernel.
    pub fn blame(&mut self, op: OpKey, kernel: &'static str) {
        if let Some(op) = self.ops.get_mut(op) {
            op.name = kernel;
        }
    }

    /// The name of the policy that decides.
    pub fn policy_name(&self) -> &str {
        &self.policy_name
    }

    /// Why the policy was replaced, if it was.
    pub fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_ref()
    }

    /// Records from now on what it is told and decides; nothing has happened yet.
    pub fn record(&mut self) {
        self.recorder = Some(Box::default());
    }

    /// What was recorded, if anything is.
    pub fn recording(&self) -> Option<Recording> {
        let recorder = self.recorder.as_ref()?;
        let policy = match &self.refusal {
            Some(refusal) => &refusal.policy,
            None => &self.policy_name,
        };
        Some(Recording::new(policy, self.ledger.sms(), self.queues.count(), recorder))
    }

    /// Takes the last call that was recorded since this was called.
    pub fn last_step(&mut self) -> Option<Step> {
        let steps = &mut self.recorder.as_mut()?.steps;
        let last = steps.pop();
        steps.clear();
        last
    }

    /// Who has each SM.
    pub fn owners(&self) -> &[Option<LaunchId>] {
        self.ledger.owners()
    }

    /// Who got or lost SMs since the first call, in the order in which it happened: for the caller to take out.
    pub fn grants(&mut self) -> &mut Vec<Grant> {
        self.grants.get_or_insert_default()
    }

    /// Notes that a launch has other SMs than before.
    fn note(&mut self, op: OpKey, at: Duration, range: SmRange, is_over: bool) {
        if let Some(grants) = &mut self.grants {
            grants.push(Grant { op, at, range, is_over });
        }
    }

    /// Forgets a buffer that is there no more, and whose contents were lost. This decides nothing, since no
    /// operation will use it.
    pub fn forget(&mut self, buffer: BufferId) {
        self.order.forget(buffer);
    }

    /// The SMs that the cohorts in a queue may use.
    pub fn queue_range(&self, queue: QueueIndex) -> SmRange {
        self.queues.range(queue)
    }

    /// Takes in a launch or copy.
    pub fn submit(
        &mut self,
        now: Duration,
        submission: Submission<'_>,
        actions: &mut Vec<Action>,
    ) -> OpKey {
        let told = actions.len();
        let mut uses = self.spare_uses.pop().unwrap_or_default();
        uses.extend_from_slice(submission.uses);
        let urgency = submission.urgency;
        self.submissions += 1;
        let op = self.ops.insert(Op {
            stream: submission.stream,
            name: submission.name,
            uses,
            blockers: 0,
            foreign_blockers: 0,
            successors: self.spare_keys.pop().unwrap_or_default(),
            waits_for: Vec::new(),
            number: self.submissions,
            urgency,
            effective: urgency,
            next: None,
            launch: submission.launch.map(|spec| Launch::new(now, spec)),
            opaque: submission.opaque,
            phase: Phase::Blocked,
            verdict: None,
        });
        let mut waits_for = self.spare_keys.pop().unwrap_or_default();
        let mut foreign_blockers = 0;
        let after = submission.after.filter(|&after| self.is_in_order(after));
        let ops = &mut self.ops;
        let mut wait_for = |key: OpKey| {
            let before = &mut ops[key];
            before.successors.push(op);
            waits_for.push(key);
            foreign_blockers += u32::from(before.stream != submission.stream);
        };
        let before = self.order.enter(op, submission.stream, submission.uses, &mut wait_for);
        after.into_iter().for_each(wait_for);
        let blockers = waits_for.len() as u32;
        self.ops[op].waits_for = waits_for;
        self.ops[op].blockers = blockers;
        self.ops[op].foreign_blockers = foreign_blockers;
        match self.over {
            Some(verdict) => self.stop(now, op, verdict, actions),
            None => self.raise(now, op),
        }
        if blockers == 0 {
            self.released.push_back(op);
        } else if let Some(before) = before {
            self.ops[before].next = Some(op);
            let queue = self.ops[before].launch.as_ref().and_then(|launch| launch.queue);
            if let Some(queue) = queue {
                self.go_on_behind(queue);
            }
        }
        self.release(now, actions);
        if let Some(recorder) = &mut self.recorder {
            recorder.submitted(now, submission, op, &actions[told..]);
        }
        op
    }

    /// Whether others can be put behind an operation.
    fn is_in_order(&self, key: OpKey) -> bool {
        // One that was cancelled in the queue keeps its place until those before it are over.
        self.ops.get(key).is_some_and(|op| op.phase != Phase::Finished || op.blockers > 0)
    }

    /// Takes in what happened. What no longer applies is ignored.
    pub fn handle(&mut self, now: Duration, event: Event, actions: &mut Vec<Action>) {
        let told = actions.len();
        match event {
            Event::CohortOut { op, slot, posted } => {
                self.cohort_out(now, op, slot, Some(posted), actions);
            }
            Event::Refused { op, slot } => self.cohort_out(now, op, slot, None, actions),
            Event::CopyDone { op } => self.copy_done(now, op, actions),
            Event::Fault { op } => self.stop(now, op, Verdict::Failed, actions),
            Event::Cancel { op } => self.stop(now, op, Verdict::Cancelled, actions),
            Event::Change { of, change } => self.change(now, of, change),
            Event::Close => self.end_all(now, Verdict::Closed, actions),
            Event::Lost => self.lose_device(now, actions),
        }
        self.release(now, actions);
        if let Some(recorder) = &mut self.recorder {
            recorder.handled(now, event, &actions[told..]);
        }
    }

    /// Starts every operation whose blockers are gone.
    fn release(&mut self, now: Duration, actions: &mut Vec<Action>) {
        while let Some(key) = self.released.pop_front() {
            let op = &mut self.ops[key];
            if op.phase == Phase::Finished {
                // Cancelled while it waited. It kept its place in the order until now.
                self.bequeath(key, SmRange::EMPTY);
                self.pass_on(key, End::Stopped, actions);
                continue;
            }
            if let Some(kernel) = self.order.lost(&op.uses) {
                if op.launch.as_ref().is_none_or(Launch::is_out) {
                    self.finish(now, key, Outcome::InputLost { kernel }, actions);
                } else {
                    // It was queued behind the one that failed. Nobody may follow before it is out.
                    op.phase = Phase::Active;
                    op.verdict = Some(Verdict::InputLost(kernel));
                    self.flush(key, actions);
                }
                continue;
            }
            op.phase = Phase::Active;
            if let Some(opaque) = op.opaque {
                self.release_opaque(key, opaque, actions);
                continue;
            }
            let Some(launch) = &mut op.launch else {
                actions.push(Action::Copy { op: key });
                continue;
            };
            let handover = launch.handover;
            launch.ready(now);
            if let Some(outcome) = outcome(launch, op.verdict) {
                // It was queued on the device, and is over. What it was left is for the next one.
                // For how long it had that, nobody knows.
                launch.set_range(now, handover, self.ledger.sms());
                self.finish(now, key, outcome, actions);
            } else if op.verdict.is_none() {
                // Some of it may have run, queued behind the one before it.
                let has_begun = !launch.is_out() || launch.report().tasks > 0;
                let Some(arrival) = arrival(key, op) else { continue };
                if !has_begun && !self.admits(now, &arrival) {
                    self.finish(now, key, Outcome::NotAdmitted, actions);
                    continue;
                }
                self.arrivals += 1;
                self.known += 1;
                self.newcomers.push(key);
                self.unsettled = true;
                let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) else { continue };
                launch.arrival = Some(self.arrivals);
                self.take_over(now, key, handover, actions);
                self.ask(now, |policy| policy.arrived(now, arrival));
            }
        }
    }

    /// `posted` is `None` if the cohort never was on the device.
    fn cohort_out(
        &mut self,
        now: Duration,
        key: OpKey,
        slot: u8,
        posted: Option<Posted>,
        actions: &mut Vec<Action>,
    ) {
        let Some(Op { launch: Some(launch), phase, verdict, .. }) = self.ops.get_mut(key) else {
            return;
        };
        if let (Some(posted), Some(used), Some(cohort)) =
            (posted, launch.control, &launch.cohorts[usize::from(slot)])
            && !launch.spec.plain
        {
            // A plain grid uses its post, and nothing else of a control block.
            launch.ran = true;
            self.controls.depart(used.control, slot.into(), cohort.blocks, posted.done);
        }
        let Some(queue) = launch.cohort_out(slot.into(), posted.unwrap_or_default()) else {
            return;
        };
        self.queues.leave(queue, key, slot.into());
        if self.queues.is_free(queue) {
            self.unsettled |= std::mem::take(&mut self.short_of_queues);
        }
        let is_out = launch.is_out();
        if is_out {
            launch.count_progress(now, self.ledger.sms());
        }
        match *phase {
            Phase::Finished => {
                if is_out {
                    self.retire(key, actions);
                }
            }
            // It was queued behind another launch. Whether it left or is done: its turn comes when
            // that one is reported.
            Phase::Blocked => {
                if is_out
                    && matches!(verdict, Some(Verdict::Cancelled | Verdict::Closed))
                    && launch.remaining() > 0
                    && let Some(outcome) = outcome(launch, *verdict)
                {
                    *phase = Phase::Finished;
                    actions.push(Action::Finish { op: key, outcome });
                    self.reconsider(now, [key]);
                }
            }
            Phase::Active => match outcome(launch, *verdict) {
                Some(outcome) => self.finish(now, key, outcome, actions),
                None => {
                    let range = launch.range;
                    if is_out {
                        // It has to start over on whatever SMs it has, or will be given.
                        self.ledger.uncover(range);
                    }
                    self.unsettled |= self.ledger.uncovered(range) > 0;
                    if range.is_empty() && launch.arrival.is_some() {
                        self.ask(now, |policy| policy.yielded(now, LaunchId(key)));
                    }
                }
            },
        }
    }

    fn copy_done(&mut self, now: Duration, key: OpKey, actions: &mut Vec<Action>) {
        let Some(Op { launch: None, phase: Phase::Active, verdict, .. }) = self.ops.get(key) else {
            return;
        };
        let outcome = match verdict {
            Some(Verdict::Failed) => Outcome::Failed,
            _ => Outcome::Done(LaunchReport::default()),
        };
        self.finish(now, key, outcome, actions);
    }
}
