//! Preemptible programs: calls that run one after the other, as one operation of the order.
//!
//! The operation of the program has its place in the stream, and all uses. It opens when everything before it is done.
//! Its calls are operations, too: a chain without uses, whose first call starts at the opening. For the policy, each
//! call that is a launch is a launch of the program's stream. The program waits for its last call from the opening on,
//! and ends as its calls did.

use std::time::Duration;

use slotmap::SlotMap;

use super::launch::{Launch, LaunchReport};
use super::order::End;
use super::urgency::NOTHING;
use super::{Action, Engine, Op, Outcome, Phase, Submission, Verdict};
use crate::policy::Urgency;
use crate::vocabulary::{OpKey, QueueIndex, Timestamp};

/// What a program's operation knows of its calls.
#[derive(Debug)]
pub(super) struct Program {
    /// In their order. Some may be retired.
    calls: Vec<OpKey>,
    /// Calls that are not retired.
    pub left: usize,
    /// Calls that were done.
    done: usize,
    /// Whether everything before the program is done.
    is_open: bool,
    /// Whether the program is out of the order, and retires with its last call.
    pub is_over: bool,
    /// Whether the policy was asked to admit it, by its first launch.
    is_admitted: bool,
    is_refused: bool,
    /// Whether a launch of it is over.
    has_run: bool,
    /// When the copy started that runs.
    copies_since: Duration,
    /// The sum of the calls' reports, and the time of its copies.
    report: LaunchReport,
}

impl Program {
    pub fn new(now: Duration, calls: Vec<OpKey>) -> Program {
        let queued = Timestamp::after_start(now);
        Program {
            left: calls.len(),
            calls,
            done: 0,
            is_open: false,
            is_over: false,
            is_admitted: false,
            is_refused: false,
            has_run: false,
            copies_since: now,
            report: LaunchReport { queued, ..LaunchReport::default() },
        }
    }

    /// Sets when it was submitted.
    pub fn submitted_at(&mut self, queued: Timestamp) {
        self.report.queued = queued;
    }

    /// The outcome, once the last call is over.
    fn outcome(&self, now: Duration, verdict: Option<Verdict>) -> Outcome {
        let report = LaunchReport { done: Timestamp::after_start(now), ..self.report };
        match verdict {
            Some(verdict @ (Verdict::Failed | Verdict::InputLost(_))) => {
                verdict.outcome(report.tasks)
            }
            _ if self.is_refused => Outcome::NotAdmitted,
            // A stop that meets completion is a completion.
            _ if self.done == self.calls.len() => Outcome::Done(report),
            Some(verdict) => verdict.outcome(report.tasks),
            None => Outcome::Failed,
        }
    }
}

/// The operation behind one in its stream, as the device sees it. A program is its calls: its first one is behind what is
/// before the program, unless the program waits for other streams, too, and what is behind it is behind its last one.
pub(super) fn following(ops: &SlotMap<OpKey, Op>, key: OpKey) -> Option<OpKey> {
    let op = ops.get(key)?;
    let next = match (op.next, op.part_of) {
        (Some(next), _) => next,
        (None, Some(program)) => ops.get(program)?.next?,
        (None, None) => return None,
    };
    match ops.get(next)? {
        // It is behind a gate, and behind nothing else.
        Op { armed: true, .. } => None,
        Op { program: Some(program), foreign_blockers: 0, .. } => program.calls.first().copied(),
        Op { program: Some(_), .. } => None,
        _ => Some(next),
    }
}

impl Engine {
    /// The operations of a program's calls; none for other operations, and once the program is retired.
    pub fn calls(&self, key: OpKey) -> &[OpKey] {
        let program = self.ops.get(key).and_then(|op| op.program.as_ref());
        program.map_or(&[], |program| &program.calls)
    }

    /// Takes in the calls of a program, each behind the one before. The first waits for the opening.
    pub(super) fn enter_calls(&mut self, now: Duration, submission: Submission<'_>) -> Vec<OpKey> {
        let Submission { stream, urgency: Urgency { weight, .. }, calls, .. } = submission;
        let mut keys: Vec<OpKey> = Vec::with_capacity(calls.len());
        // They inherit the program's priority and deadline, because it waits for them.
        let urgency = Urgency { weight, ..NOTHING };
        for call in calls {
            self.intake.submissions += 1;
            let mut waits_for = self.intake.spare_keys.pop().unwrap_or_default();
            waits_for.extend(keys.last());
            let key = self.ops.insert(Op {
                stream,
                name: call.name,
                uses: self.intake.spare_uses.pop().unwrap_or_default(),
                blockers: 1,
                foreign_blockers: 0,
                armed: false,
                successors: self.intake.spare_keys.pop().unwrap_or_default(),
                waits_for,
                number: self.intake.submissions,
                urgency,
                effective: urgency,
                next: None,
                launch: Launch::called(now, call),
                opaque: None,
                program: None,
                part_of: None,
                phase: Phase::Blocked,
                verdict: None,
            });
            if let Some(&before) = keys.last() {
                self.ops[before].successors.push(key);
                self.ops[before].next = Some(key);
            }
            keys.push(key);
        }
        keys
    }

    /// Tells the calls of their program, which waits for the last one.
    pub(super) fn join_calls(&mut self, key: OpKey, last: OpKey) {
        self.ops[last].successors.push(key);
        for index in 0..self.calls(key).len() {
            let call = self.calls(key)[index];
            self.ops[call].part_of = Some(key);
        }
    }

    /// The queue of the last cohort of an operation.
    pub(super) fn last_queue(&self, key: OpKey) -> Option<QueueIndex> {
        let last = self.calls(key).last().copied().unwrap_or(key);
        self.ops.get(last)?.launch.as_ref()?.queue
    }

    /// Goes on with a program: everything before it is done, or its last call is over.
    pub(super) fn advance_program(&mut self, now: Duration, key: OpKey, actions: &mut Vec<Action>) {
        let Op { program: Some(program), phase, verdict, uses, blockers, .. } = &mut self.ops[key]
        else {
            return;
        };
        if program.is_open {
            match phase {
                // Cancelled while it waited. It kept its place in the order until now.
                Phase::Finished => self.pass_on(key, End::Stopped, actions),
                Phase::Blocked | Phase::Active => {
                    let outcome = program.outcome(now, *verdict);
                    self.finish(now, key, outcome, actions);
                }
            }
            return;
        }
        program.is_open = true;
        program.report.ready = Timestamp::after_start(now);
        program.report.started = program.report.ready;
        // The last call.
        *blockers = 1;
        let first = program.calls[0];
        let lost = self.order.lost(uses);
        if *phase == Phase::Blocked {
            *phase = Phase::Active;
            if let Some(kernel) = lost {
                self.stop(now, key, Verdict::InputLost(kernel), actions);
            }
        }
        // After a stop they are over, and pass the turn on to each other.
        self.ops[first].blockers = 0;
        self.agenda.released.push_back(first);
    }

    /// Whether the policy has yet to admit a program, by its first launch.
    pub(super) fn is_admitting(&mut self, key: OpKey) -> bool {
        let program = self.ops.get_mut(key).and_then(|op| op.program.as_mut());
        program.is_some_and(|program| !std::mem::replace(&mut program.is_admitted, true))
    }

    /// Whether a launch that is queued ahead would find lost contents, as far as is known now.
    pub(super) fn would_lose(&self, key: OpKey) -> bool {
        let Some(op) = self.ops.get(key) else { return false };
        let of = op.part_of.and_then(|program| self.ops.get(program));
        self.order.lost(&of.unwrap_or(op).uses).is_some()
    }

    /// Stops the calls of a program that has this verdict.
    pub(super) fn stop_calls(
        &mut self,
        now: Duration,
        key: OpKey,
        verdict: Verdict,
        actions: &mut Vec<Action>,
    ) {
        let of_calls = match verdict {
            Verdict::Closed | Verdict::Revoked => verdict,
            Verdict::Cancelled | Verdict::Failed | Verdict::InputLost(_) => Verdict::Cancelled,
        };
        for index in 0..self.calls(key).len() {
            self.stop(now, self.calls(key)[index], of_calls, actions);
        }
        self.end_unopened(now, key, actions);
    }

    /// Reports a program that was stopped before its turn, unless a call that was queued ahead has run, or may run.
    pub(super) fn end_unopened(&mut self, now: Duration, key: OpKey, actions: &mut Vec<Action>) {
        let Some(Op {
            program: Some(program), phase: Phase::Blocked, verdict: Some(verdict), ..
        }) = self.ops.get(key)
        else {
            return;
        };
        let launches = program.calls.iter().filter_map(|&call| self.ops.get(call)?.launch.as_ref());
        let has_run = |launch: &Launch| !launch.is_out() || launch.report().tasks > 0;
        if !program.is_open && !launches.into_iter().any(has_run) {
            let outcome = verdict.outcome(0);
            self.ops[key].phase = Phase::Finished;
            actions.push(Action::Finish { op: key, outcome });
            self.reconsider(now, [key]);
        }
    }

    /// A call of a program has ended: if it was not done, what is behind it has no effect.
    pub(super) fn call_ended(
        &mut self,
        now: Duration,
        key: OpKey,
        outcome: Outcome,
        actions: &mut Vec<Action>,
    ) {
        let verdict = match outcome {
            Outcome::Done(_) => return,
            Outcome::Failed | Outcome::InputLost { .. } => Verdict::Failed,
            Outcome::Cancelled { .. } | Outcome::NotAdmitted => Verdict::Cancelled,
            Outcome::Closed { .. } => Verdict::Closed,
        };
        if let Some(Op { program: Some(program), .. }) = self.ops.get_mut(key) {
            program.is_refused |= outcome == Outcome::NotAdmitted;
        }
        self.stop(now, key, verdict, actions);
    }

    /// Adds what a call did to the report of its program.
    pub(super) fn count_call(&mut self, key: OpKey, end: End) {
        let Some(Op { part_of: Some(of), launch, .. }) = self.ops.get(key) else { return };
        let is_captured = |launch: &Launch| launch.spec.plain && !launch.is_plain_kernel;
        let is_captured = launch.as_ref().is_some_and(is_captured);
        let (of, call) = (*of, launch.as_ref().map(Launch::report));
        let Some(Op { program: Some(program), .. }) = self.ops.get_mut(of) else { return };
        program.done += usize::from(matches!(end, End::Succeeded));
        let Some(call) = call else { return };
        let report = &mut program.report;
        if !std::mem::replace(&mut program.has_run, true) {
            report.started = call.started.max(report.started);
        }
        // Captured work has no block-tasks, and as many here as it needs SMs.
        let tasks = if is_captured { 0 } else { call.tasks };
        report.tasks = report.tasks.saturating_add(tasks);
        report.armed |= call.armed;
        report.yields += call.yields;
        report.resumes += call.resumes;
        report.amortize = report.amortize.max(call.amortize);
        report.sm_time += call.sm_time;
        report.own_time += call.own_time;
        report.has_shared |= call.has_shared;
    }

    /// A copy starts, which may be a call of a program.
    pub(super) fn copy_starts(&mut self, now: Duration, key: OpKey) {
        if let Some(program) = self.program_of(key) {
            program.copies_since = now;
        }
    }

    /// Counts the time of a copy as the program's own: one plain launch of the program would take it, too.
    pub(super) fn copy_ends(&mut self, now: Duration, key: OpKey) {
        if let Some(program) = self.program_of(key) {
            program.report.own_time += now.saturating_sub(program.copies_since);
        }
    }

    fn program_of(&mut self, call: OpKey) -> Option<&mut Program> {
        let program = self.ops.get(call)?.part_of?;
        self.ops.get_mut(program)?.program.as_deref_mut()
    }

    /// A call of a program is retired. The program is retired with the last of them.
    pub(super) fn call_retired(&mut self, key: OpKey, actions: &mut Vec<Action>) {
        let Some(Op { program: Some(program), .. }) = self.ops.get_mut(key) else { return };
        program.left -= 1;
        if program.left == 0 && program.is_over {
            self.retire(key, actions);
        }
    }
}
