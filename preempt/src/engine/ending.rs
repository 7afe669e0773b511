//! How operations end, by themselves or before their work is done, and what that sets free.

use std::time::Duration;

use preempt_device::abi::{SmRange, StopLimit};
use slotmap::SlotMap;

use super::launch::Launch;
use super::order::End;
use super::program::following;
use super::queues::DeviceQueues;
use super::{Action, Engine, Op, Outcome, Phase, Verdict};
use crate::vocabulary::{LaunchId, OpKey, QueueIndex};

impl Engine {
    /// Ends everything, because a lost device reports nothing.
    pub(super) fn lose_device(&mut self, now: Duration, actions: &mut Vec<Action>) {
        self.queues.clear();
        self.lose_opaque();
        for op in self.ops.values_mut() {
            match &mut op.launch {
                Some(launch) => launch.cohorts = Default::default(),
                // A copy that has started ends like a copy that has not.
                None if op.phase == Phase::Active && op.program.is_none() => {
                    op.phase = Phase::Blocked;
                }
                None => {}
            }
        }
        self.end_all(now, Verdict::Failed, actions);
        self.release(now, actions);
        // Copies that had started, and launches that had finished before all their blocks had left.
        let rest = self.ops.iter().filter(|(_, op)| op.blockers == 0).map(|(key, _)| key);
        for op in rest.collect::<Vec<_>>() {
            // A program is gone with its last call.
            if self.ops.contains_key(op) {
                self.pass_on(op, End::Stopped, actions);
            }
        }
    }

    /// Ends all operations, and those to come.
    pub(super) fn end_all(&mut self, now: Duration, verdict: Verdict, actions: &mut Vec<Action>) {
        self.intake.over = Some(verdict);
        let all: Vec<OpKey> = self.ops.keys().collect();
        for op in all {
            self.stop(now, op, verdict, actions);
        }
    }

    /// Ends an operation before its work is done: at once, or when its blocks have left.
    pub(super) fn stop(
        &mut self,
        now: Duration,
        key: OpKey,
        verdict: Verdict,
        actions: &mut Vec<Action>,
    ) {
        let Some(op) = self.ops.get_mut(key) else { return };
        if op.phase == Phase::Finished || op.verdict.is_some_and(|_| verdict != Verdict::Failed) {
            return;
        }
        op.verdict = Some(verdict);
        self.disarm(key);
        let Some(op) = self.ops.get_mut(key) else { return };
        if op.program.is_some() {
            self.stop_calls(now, key, verdict, actions);
            return;
        }
        let outcome = match &op.launch {
            Some(launch) => outcome(launch, Some(verdict)),
            None => Some(verdict.outcome(0)),
        };
        match (op.phase, &op.launch, outcome) {
            (Phase::Blocked, _, Some(outcome)) => {
                op.phase = Phase::Finished;
                actions.push(Action::Finish { op: key, outcome });
                self.withdraw_opaque(key);
                self.reconsider(now, [key]);
            }
            (Phase::Blocked, ..) => self.flush(key, actions),
            (_, Some(_), Some(outcome)) => self.finish(now, key, outcome, actions),
            (_, Some(_), None) => self.depart(now, key, actions),
            // A copy that has started ends by itself.
            (_, None, _) => {}
        }
    }

    /// Makes a launch leave that was queued behind others, and the launches queued with it, which are launched again.
    pub(super) fn flush(&mut self, key: OpKey, actions: &mut Vec<Action>) {
        let Some(Op { launch: Some(launch), .. }) = self.ops.get(key) else { return };
        for cohort in launch.cohorts.iter().flatten() {
            // What is in the queue obeys its word, so one is enough for a chain of calls.
            let limit = leaving_limit(&self.ops, &self.queues, cohort.queue);
            if self.queues.range(cohort.queue) != SmRange::EMPTY
                || self.queues.is_slower(cohort.queue, limit)
            {
                let signal = self.queues.signal(cohort.queue, SmRange::EMPTY, limit);
                actions.push(Action::Signal { queue: cohort.queue, signal });
            }
        }
    }

    /// Reports an operation and starts what waited for it.
    pub(super) fn finish(
        &mut self,
        now: Duration,
        key: OpKey,
        mut outcome: Outcome,
        actions: &mut Vec<Action>,
    ) {
        if let Some(opaque) = self.ops[key].opaque {
            self.end_opaque(now, key, opaque, outcome);
        }
        let launch = self.ops[key].launch.as_ref();
        if let (Outcome::Done(report), Some(launch)) = (&mut outcome, launch) {
            *report = launch.done(now, self.ledger.sms());
        }
        if let Some(range) = launch.map(|launch| launch.range) {
            self.hand_over(key, range);
        }
        self.depart(now, key, actions);
        let op = &mut self.ops[key];
        op.phase = Phase::Finished;
        actions.push(Action::Finish { op: key, outcome });
        if let Some(program) = op.part_of {
            self.call_ended(now, program, outcome, actions);
        }
        let op = &self.ops[key];
        let end = match outcome {
            Outcome::Done(_) => End::Succeeded,
            Outcome::Failed => End::Failed(op.name),
            Outcome::InputLost { kernel } => End::Failed(kernel),
            // What it would have written is not there.
            Outcome::NotAdmitted => End::Failed(op.name),
            Outcome::Cancelled { .. } | Outcome::Closed { .. } => End::Stopped,
        };
        self.pass_on(key, end, actions);
    }

    /// Hands a launch's SMs over to the one after it in the stream.
    pub(super) fn hand_over(&mut self, key: OpKey, range: SmRange) {
        let is_guest = self.ops[key].launch.as_ref().is_some_and(|launch| launch.is_guest);
        if let Some(next) = following(&self.ops, key)
            && let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(next)
        {
            (launch.handover, launch.is_guest) = (range, is_guest);
        }
    }

    /// Takes a finished operation out of the order.
    pub(super) fn pass_on(&mut self, key: OpKey, end: End, actions: &mut Vec<Action>) {
        let op = &mut self.ops[key];
        self.order.leave(key, op.stream, &op.uses, end);
        let mut successors = std::mem::take(&mut op.successors);
        let stream = op.stream;
        let mut is_out = op.launch.as_ref().is_none_or(Launch::is_out);
        if let Some(program) = &mut op.program {
            program.is_over = true;
            is_out = program.left == 0;
        }
        self.count_call(key, end);
        for successor in successors.drain(..) {
            let successor_op = &mut self.ops[successor];
            successor_op.blockers -= 1;
            successor_op.foreign_blockers -= u32::from(successor_op.stream != stream);
            match successor_op.blockers {
                0 => self.agenda.released.push_back(successor),
                1 if successor_op.armed => self.waits_for_release(successor),
                _ => {}
            }
        }
        self.intake.spare_keys.push(successors);
        if is_out {
            self.retire(key, actions);
        }
    }

    /// Forgets an operation that is finished and has left the device.
    pub(super) fn retire(&mut self, key: OpKey, actions: &mut Vec<Action>) {
        let Some(mut op) = self.ops.remove(key) else { return };
        if let Some(Launch { control: Some(control), ran, .. }) = op.launch {
            self.controls.give_back(control.control, ran);
        }
        op.uses.clear();
        self.intake.spare_uses.push(op.uses);
        op.waits_for.clear();
        self.intake.spare_keys.push(op.waits_for);
        actions.push(Action::Retire { op: key });
        if let Some(program) = op.part_of {
            self.call_retired(program, actions);
        }
    }

    /// Tells the policy that a launch is over, and releases its SMs.
    pub(super) fn depart(&mut self, now: Duration, key: OpKey, actions: &mut Vec<Action>) {
        let Some(launch) = &mut self.ops[key].launch else { return };
        let is_plain = launch.spec.plain;
        if launch.arrival.take().is_none() {
            // Of a suspended one, blocks may have yet to leave.
            if self.ops[key].verdict == Some(Verdict::Revoked) && !is_plain {
                self.flush(key, actions);
            }
            return;
        }
        launch.books(&mut self.ledger, &mut self.guests).release(launch.range);
        launch.set_range(now, SmRange::EMPTY, self.ledger.sms());
        self.note(key, now, SmRange::EMPTY, true);
        self.launches.known -= 1;
        self.agenda.unsettled = true;
        let verdict = self.ops[key].verdict;
        if verdict == Some(Verdict::Revoked) && !is_plain {
            // Where a queue has others, too, these leave as well, and its word is one that they may have.
            self.flush(key, actions);
        } else if verdict.is_some() {
            self.shrink(now, key, StopLimit::SOONEST, actions);
        }
        self.ask(now, |policy| policy.departed(now, LaunchId(key)));
    }
}

/// How the blocks of a queue leave whose SMs are all taken. A word stops whatever runs there. So the word of a revocation, which
/// stops block-tasks behind their markers, is only for queues all of whose launches were revoked: the last block of one
/// may have left already, unknown here, and a block of the next one run.
fn leaving_limit(ops: &SlotMap<OpKey, Op>, queues: &DeviceQueues, queue: QueueIndex) -> StopLimit {
    let is_revoked = |op| ops.get(op).is_some_and(|op| op.verdict == Some(Verdict::Revoked));
    if queues.launches(queue).all(is_revoked) { StopLimit::REVOKED } else { StopLimit::SOONEST }
}

/// The outcome of a launch, if it ends now.
pub(super) fn outcome(launch: &Launch, verdict: Option<Verdict>) -> Option<Outcome> {
    let report = launch.report();
    match verdict {
        Some(verdict @ (Verdict::Failed | Verdict::InputLost(_))) => {
            launch.is_out().then(|| verdict.outcome(report.tasks))
        }
        // A stop that meets completion is a completion.
        _ if launch.remaining() == 0 => Some(Outcome::Done(report)),
        Some(verdict) => launch.is_out().then(|| verdict.outcome(report.tasks)),
        None => None,
    }
}
