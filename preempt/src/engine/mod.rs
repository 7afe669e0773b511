//! The engine: what happens to launches and copies, as a pure function of events.
//!
//! No threads, no clock, no device: [`Engine::submit`] and [`Engine::handle`] take in what happened,
//! [`Engine::settle`] asks the policy, [`Engine::go_ahead`] queues a launch ahead. All of them append [`Action`]s for a device
//! and for the threads that wait. [`Engine::hints`] says what gates are to tell.
//! States, and races by name, are in `README.md` beside this file.

use std::fmt;
use std::time::Duration;

use preempt_device::abi::{Posted, SmRange};
use rustc_hash::FxHashMap;
use slotmap::SlotMap;

use crate::policy::Policy;
use crate::vocabulary::{BufferId, Costs, LaunchId, OpKey, QueueCount, QueueIndex};

mod agenda;
mod armed;
mod asked;
mod cohorts;
mod controls;
mod ending;
mod form;
mod interface;
mod launch;
mod ledger;
mod merge;
mod opaque;
mod operation;
mod order;
mod pace;
mod planning;
mod precedence;
mod program;
mod progress;
mod queues;
mod recorder;
mod shape;
mod step;
mod suspend;
#[cfg(test)]
mod tests;
mod urgency;

use agenda::{Agenda, Intake, Launches};
pub(crate) use armed::Hint;
use asked::AskedLimits;
use controls::Controls;
use ending::outcome;
pub(crate) use form::{Circumstances, LONGEST_PLAIN, Learned, is_plain_as_a_whole};
pub(crate) use interface::{
    Action, Called, Change, Event, Grant, Outcome, Refusal, Submission, Whose,
};
pub use launch::LaunchReport;
use launch::{CohortLeft, Launch};
pub(crate) use launch::{LaunchSpec, fills};
use ledger::Ledger;
pub(crate) use ledger::count;
pub(crate) use merge::{MAX_CALLS, merged, of_unknown_size, whole};
pub(crate) use opaque::Opaque;
use opaque::Pieces;
use operation::{Op, Phase, Verdict};
pub(crate) use order::Use;
use order::{End, Order};
pub(crate) use pace::{Did, Lead, Next, Pace, ToDo};
use planning::Decider;
pub(crate) use precedence::{Kind, Waiting, goes_first};
use program::Program;
use progress::SmCosts;
pub(crate) use progress::{Leaving, Running, Told};
use queues::DeviceQueues;
use recorder::Observers;
pub(crate) use recorder::Recorded;
pub(crate) use step::{
    ChangeRecord, Input, LaunchRecord, Step, UrgencyRecord, UseRecord, WhoseRecord, interned,
};
use urgency::{Inheritance, arrival};

/// What happens to launches and copies: events in, actions out. `README.md` names the states and the races.
pub(crate) struct Engine {
    /// What the device and its host take; it never changes.
    costs: Costs,
    /// All operations that are not retired. Each file writes the part of an [`Op`] that it is about.
    ops: SlotMap<OpKey, Op>,
    /// What waits for what. `mod.rs` enters operations, `ending.rs` takes them out.
    order: Order,
    /// Which launch has which SM. `planning.rs` follows plans and moves guests between the books, `cohorts.rs` covers SMs and
    /// hands them over, `ending.rs` and `suspend.rs` release them. SMs are uncovered where blocks have left (`mod.rs`) or are sent away
    /// (`cohorts.rs`, `planning.rs`). Of two launches that share all SMs, the second one is in `guests`.
    ledger: Ledger,
    guests: Ledger,
    /// Control blocks. `cohorts.rs` takes them, `mod.rs` counts what blocks left there, `ending.rs` gives them back.
    controls: Controls,
    /// What is queued on the device. `cohorts.rs` fills queues, `mod.rs` takes cohorts out; `cohorts.rs` signals the
    /// loss of SMs, `ending.rs` that a queue has to leave.
    queues: DeviceQueues,
    intake: Intake,
    launches: Launches,
    agenda: Agenda,
    /// The policy and its plan. Only `planning.rs` and `opaque.rs`, which plans that nothing runs, write it.
    decider: Decider,
    /// What it costs to take SMs. `progress.rs` writes it; `mod.rs` says that a launch has come, `planning.rs` that a decision was
    /// made.
    sm_costs: SmCosts,
    /// Which limits were asked for; they decide nothing. Only `planning.rs` writes it.
    asked: AskedLimits,
    /// Opaque work. Only `opaque.rs` writes it.
    opaque: Pieces,
    /// Streams that are suspended, and how often. Only `suspend.rs` writes it.
    suspended: FxHashMap<u32, u32>,
    /// Kept for its capacity by `urgency.rs`.
    inheritance: Inheritance,
    /// What observers asked for; it decides nothing. `recorder.rs` writes it.
    observers: Observers,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("ops", &self.ops)
            .field("ledger", &self.ledger)
            .field("policy", &self.policy_name())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine for a device of `sms` SMs.
    pub fn new(sms: u32, queues: QueueCount, costs: Costs, policy: Box<dyn Policy>) -> Engine {
        Engine {
            costs,
            ops: SlotMap::with_key(),
            order: Order::default(),
            ledger: Ledger::new(sms),
            guests: Ledger::new(sms),
            controls: Controls::default(),
            queues: DeviceQueues::new(queues),
            intake: Intake::default(),
            launches: Launches::default(),
            agenda: Agenda::default(),
            decider: Decider::new(policy),
            sm_costs: SmCosts::default(),
            asked: AskedLimits::default(),
            opaque: Pieces::default(),
            suspended: FxHashMap::default(),
            inheritance: Inheritance::default(),
            observers: Observers::default(),
        }
    }

    /// Whether an operation is unfinished or still on the device.
    pub fn is_busy(&self) -> bool {
        !self.ops.is_empty()
    }

    /// Names another kernel as the cause, from now on, when the failure of an operation is reported.
    pub fn blame(&mut self, op: OpKey, kernel: &'static str) {
        if let Some(op) = self.ops.get_mut(op) {
            op.name = kernel;
        }
    }

    /// The owner of each SM.
    pub fn owners(&self) -> &[Option<LaunchId>] {
        self.ledger.owners()
    }

    /// Forgets a freed buffer whose contents were lost. This decides nothing, because no operation will use it.
    pub fn forget(&mut self, buffer: BufferId) {
        self.order.forget(buffer);
    }

    /// The SMs that the first cohort in a queue may use.
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
        let mut uses = self.intake.spare_uses.pop().unwrap_or_default();
        uses.extend_from_slice(submission.uses);
        let urgency = submission.urgency;
        let calls = self.enter_calls(now, submission);
        let (last_call, armed) = (calls.last().copied(), submission.armed);
        self.intake.submissions += 1;
        let op = self.ops.insert(Op {
            stream: submission.stream,
            name: submission.name,
            uses,
            blockers: 0,
            foreign_blockers: 0,
            armed,
            successors: self.intake.spare_keys.pop().unwrap_or_default(),
            waits_for: Vec::new(),
            number: self.intake.submissions,
            urgency,
            effective: urgency,
            next: None,
            launch: submission.launch.map(|spec| Launch::new(now, spec)),
            opaque: submission.opaque,
            program: last_call.map(|_| Box::new(Program::new(now, calls))),
            part_of: None,
            phase: Phase::Blocked,
            verdict: None,
        });
        let mut waits_for = self.intake.spare_keys.pop().unwrap_or_default();
        let (mut foreign_blockers, mut armed_before) = (0, Vec::new());
        let after = submission.after.filter(|&after| self.is_in_order(after));
        let ops = &mut self.ops;
        let mut wait_for = |key: OpKey| {
            let before = &mut ops[key];
            before.successors.push(op);
            waits_for.push(key);
            armed_before.extend(before.armed.then_some(key));
            foreign_blockers += u32::from(before.stream != submission.stream);
        };
        let before = self.order.enter(op, submission.stream, submission.uses, &mut wait_for);
        after.into_iter().for_each(wait_for);
        let blockers = waits_for.len() as u32 + u32::from(armed);
        if let Some(last) = last_call {
            self.join_calls(op, last);
            // Not a blocker before the program has its turn.
            waits_for.push(last);
        }
        self.ops[op].waits_for = waits_for;
        self.ops[op].blockers = blockers;
        self.ops[op].foreign_blockers = foreign_blockers;
        match self.intake.over {
            Some(verdict) => self.stop(now, op, verdict, actions),
            None => self.raise(now, op),
        }
        if armed && blockers == 1 && self.intake.over.is_none() {
            self.waits_for_release(op);
        }
        actions.extend(armed_before.into_iter().map(|op| Action::Disarm { op }));
        if blockers == 0 {
            self.agenda.released.push_back(op);
        } else if let Some(before) = before {
            self.ops[before].next = Some(op);
            if let Some(queue) = self.last_queue(before) {
                self.go_on_behind(queue);
            }
        }
        let calls = match &self.observers.recorder {
            // Where everything ends at once, the program is gone after this.
            Some(_) => self.calls(op).to_vec(),
            None => Vec::new(),
        };
        self.release(now, actions);
        if let Some(recorder) = &mut self.observers.recorder {
            recorder.submitted(now, submission, (op, &calls), &actions[told..]);
        }
        op
    }

    /// Whether others can be put behind an operation.
    fn is_in_order(&self, key: OpKey) -> bool {
        // A launch that was cancelled in the queue keeps its place until those before it are over.
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
            Event::Revoke { op } => self.stop(now, op, Verdict::Revoked, actions),
            Event::Release { op } => self.release_armed(now, op),
            Event::Disarmed { op } => self.end_disarmed(now, op, actions),
            Event::Change { of: Whose::Stream(stream), change: Change::Suspended(is) } => {
                self.suspend(now, stream, is, actions);
            }
            Event::Change { of, change } => self.change(now, of, change),
            Event::Close => self.end_all(now, Verdict::Closed, actions),
            Event::Lost => self.lose_device(now, actions),
        }
        self.release(now, actions);
        if let Some(recorder) = &mut self.observers.recorder {
            recorder.handled(now, event, &actions[told..]);
        }
    }

    /// Starts every operation whose blockers are gone.
    fn release(&mut self, now: Duration, actions: &mut Vec<Action>) {
        while let Some(key) = self.agenda.released.pop_front() {
            let op = &mut self.ops[key];
            if op.program.is_some() {
                self.advance_program(now, key, actions);
                continue;
            }
            if op.phase == Phase::Finished {
                // Cancelled while it waited. It kept its place in the order until now.
                self.hand_over(key, SmRange::EMPTY);
                self.pass_on(key, End::Stopped, actions);
                continue;
            }
            if let Some(kernel) = self.order.lost(&op.uses) {
                if op.launch.as_ref().is_none_or(Launch::is_out) {
                    self.finish(now, key, Outcome::InputLost { kernel }, actions);
                } else {
                    // It was queued behind the failed launch. Its successors start when it is out, because it may
                    // still run.
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
                self.copy_starts(now, key);
                actions.push(Action::Copy { op: key });
                continue;
            };
            let handover = launch.handover;
            launch.ready(now);
            if let Some(outcome) = outcome(launch, op.verdict) {
                // It was queued on the device, and is over. Its SMs go to the next launch. How long it ran on them is
                // not known.
                launch.set_range(now, handover, self.ledger.sms());
                self.finish(now, key, outcome, actions);
            } else if op.verdict.is_none() {
                // Some of it may have run, queued behind the one before it.
                let has_begun = !launch.is_out() || launch.report().tasks > 0;
                let part_of = op.part_of;
                let Some(arrival) = arrival(key, op) else { continue };
                let is_new = part_of.is_none_or(|program| self.is_admitting(program));
                if is_new && !has_begun && !self.admits(now, &arrival) {
                    self.finish(now, key, Outcome::NotAdmitted, actions);
                    continue;
                }
                if self.is_suspended(key) {
                    self.keep_back(now, key, actions);
                    continue;
                }
                let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) else { continue };
                launch.early &= handover.is_empty() && !launch.is_out();
                // A gate that was opened has told others already where SMs are taken from them.
                let (is_unplaced, is_early) = (handover.is_empty() && !launch.early, launch.early);
                self.count_arrival(key, is_unplaced);
                let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) else { continue };
                if is_early {
                    // Its blocks stay where they are until the policy has decided.
                    launch.start(now);
                    let queue = launch.queue;
                    self.agenda.released_early.push(key);
                    queue.into_iter().for_each(|queue| self.go_on_behind(queue));
                } else {
                    self.take_over(now, key, handover, actions);
                }
                self.ask(now, |policy| policy.arrived(now, arrival));
            }
        }
    }

    /// Counts a launch that the policy is told of; `is_unplaced` if nothing has decided yet which SMs it gets.
    fn count_arrival(&mut self, key: OpKey, is_unplaced: bool) {
        let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) else { return };
        self.launches.arrivals += 1;
        self.launches.known += 1;
        self.agenda.unsettled = true;
        launch.arrival = Some(self.launches.arrivals);
        if is_unplaced && launch.spec.may_leave_sms(self.ledger.sms()) {
            self.sm_costs.came(key);
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
        let Some(Op { launch: Some(launch), phase, verdict, part_of, .. }) = self.ops.get_mut(key)
        else {
            return;
        };
        let part_of = *part_of;
        if let (Some(posted), Some(used), Some(cohort)) =
            (posted, launch.control, &launch.cohorts[usize::from(slot)])
            && !launch.spec.plain
        {
            // A plain grid uses its post, and nothing else of a control block.
            launch.ran = true;
            self.controls.depart(used.control, slot.into(), cohort.blocks, posted.done);
        }
        let Some(CohortLeft { queue, has_bounced }) =
            launch.cohort_out(slot.into(), posted.unwrap_or_default())
        else {
            return;
        };
        self.queues.leave(queue, key, slot.into());
        if self.queues.is_free(queue) {
            self.agenda.unsettled |= std::mem::take(&mut self.agenda.short_of_queues);
        }
        // An armed program without a gate may have waited for this.
        self.agenda.may_arm |= !self.agenda.armed.is_empty() && self.queues.may_chain();
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
            // It was queued behind another launch, and has bounced or is done. Its turn comes when that launch is
            // reported.
            Phase::Blocked => {
                if is_out
                    && matches!(
                        verdict,
                        Some(Verdict::Cancelled | Verdict::Revoked | Verdict::Closed)
                    )
                    && launch.remaining() > 0
                    && let Some(outcome) = outcome(launch, *verdict)
                {
                    *phase = Phase::Finished;
                    actions.push(Action::Finish { op: key, outcome });
                    self.reconsider(now, [key]);
                }
                if let Some(program) = part_of.filter(|_| is_out) {
                    self.end_unopened(now, program, actions);
                }
            }
            Phase::Active => match outcome(launch, *verdict) {
                Some(outcome) => self.finish(now, key, outcome, actions),
                None => {
                    let range = launch.range;
                    let ledger = launch.books(&mut self.ledger, &mut self.guests);
                    if is_out || has_bounced {
                        // It has to start over on the SMs that it has, or will be given: on those beside the blocks that it
                        // has, if there are any.
                        ledger.uncover(range);
                    }
                    self.agenda.unsettled |= ledger.uncovered(range) > 0;
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
        self.copy_ends(now, key);
        self.finish(now, key, outcome, actions);
    }
}
