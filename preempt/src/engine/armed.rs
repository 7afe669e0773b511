//! Armed operations: submitted, and not started before they are released.
//!
//! The release is one of an armed operation's blockers. When it is the only one, the operation's first launch goes to the
//! device behind a *gate*, a block that waits there for the release and needs no SM. So the release starts the launch
//! without the host, and the gate tells other launches to leave. What it tells them is foreseen here: the words that they
//! would get if the launch arrived now. They may be out of date when the gate is opened, and need not be right. A launch
//! that leaves without being told by the engine has its SMs covered again, and the plan that follows the release tells
//! those that were not told.
//!
//! Where the gate was closed, or left, before the release, the blocks behind it do nothing, as behind a launch that has
//! yielded. The operation then starts like any other.

use std::time::Duration;

use preempt_device::abi::{Signal, SmRange};

use super::cohorts::CohortPlace;
use super::ledger::{count, intersection, kept};
use super::shape::Place;
use super::{Action, Engine, Launch, Op, Outcome, Phase, Verdict, arrival};
use crate::policy::Plan;
use crate::vocabulary::{LaunchId, OpKey, QueueIndex, Timestamp};

/// What a gate tells another queue's cohorts when it is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hint {
    /// The queue with the gate.
    pub gate: QueueIndex,
    pub queue: QueueIndex,
    pub signal: Signal,
}

impl Engine {
    /// Notes that an armed operation waits for its release alone.
    pub(super) fn waits_for_release(&mut self, key: OpKey) {
        self.agenda.armed.push(key);
        self.agenda.may_arm = true;
    }

    /// Takes the release out of what an operation waits for.
    pub(super) fn disarm(&mut self, key: OpKey) {
        let Some(op) = self.ops.get_mut(key).filter(|op| op.armed) else { return };
        op.armed = false;
        op.blockers -= 1;
        if op.blockers == 0 {
            self.agenda.released.push_back(key);
        }
        self.agenda.armed.retain(|&other| other != key);
    }

    /// Ends an operation that will not be released. Blocks of it may be on the device for a while, because they need room to
    /// leave, but what is behind a gate that was not opened does nothing. So no other operation waits for them.
    pub(super) fn end_disarmed(&mut self, now: Duration, key: OpKey, actions: &mut Vec<Action>) {
        if !self.ops.get(key).is_some_and(|op| op.armed) {
            return;
        }
        let calls = self.calls(key).to_vec();
        for op in calls.into_iter().chain([key]) {
            let Some(ended) = self.ops.get_mut(op).filter(|op| op.phase == Phase::Blocked) else {
                continue;
            };
            ended.phase = Phase::Finished;
            ended.verdict = Some(Verdict::Cancelled);
            actions.push(Action::Finish { op, outcome: Outcome::Cancelled { done: 0 } });
        }
        self.reconsider(now, [key]);
        self.disarm(key);
    }

    /// Releases an armed operation, which counts as submitted now.
    pub(super) fn release_armed(&mut self, now: Duration, key: OpKey) {
        let Some(op) = self.ops.get_mut(key).filter(|op| op.armed) else { return };
        let queued = Timestamp::after_start(now);
        if let Some(program) = &mut op.program {
            program.submitted_at(queued);
        }
        let first = self.first_launch(key);
        for index in 0..self.calls(key).len().max(1) {
            let call = self.calls(key).get(index).copied().unwrap_or(key);
            let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(call) else { continue };
            launch.submitted_at(queued);
            // The gate may be open since before.
            launch.early = launch.control.is_some();
            if call == first {
                // No launch hands SMs over to it.
                launch.handover = SmRange::EMPTY;
            }
        }
        self.disarm(key);
    }

    /// The operation that an armed one begins with: itself, or its first call.
    fn first_launch(&self, key: OpKey) -> OpKey {
        self.calls(key).first().copied().unwrap_or(key)
    }

    /// The operations that have a gate which may be opened.
    fn gated(&self) -> impl Iterator<Item = (OpKey, QueueIndex)> {
        self.agenda.armed.iter().filter_map(|&key| {
            let first = self.first_launch(key);
            let launch = self.ops.get(first)?.launch.as_ref()?;
            launch.queue.filter(|_| !launch.is_out()).map(|queue| (first, queue))
        })
    }

    /// Puts the first launch of one armed operation behind a gate, if one can be.
    pub(super) fn arm_one(&mut self, now: Duration, actions: &mut Vec<Action>) -> bool {
        self.agenda.may_arm = false;
        let armed = self.agenda.armed.clone();
        let has_gate = armed.into_iter().any(|key| self.put_behind_gate(now, key, actions));
        // There may be another one, and the gate does not know yet whom to tell.
        self.agenda.may_arm = has_gate;
        self.agenda.foresees |= has_gate;
        has_gate
    }

    /// Whether what was put behind a gate has not left, and its launch is over: mostly it was disarmed, and waits for room, as
    /// the next one would.
    fn has_late_gate(&self) -> bool {
        let is_over = |op| self.ops.get(op).is_some_and(|op| op.phase == Phase::Finished);
        self.queues.gated().any(is_over)
    }

    fn put_behind_gate(&mut self, now: Duration, key: OpKey, actions: &mut Vec<Action>) -> bool {
        let sms = self.ledger.sms();
        let first = self.first_launch(key);
        let Some(op) = self.ops.get(first) else { return false };
        let Op { launch: Some(launch), phase: Phase::Blocked, verdict: None, .. } = op else {
            actions.push(Action::Disarm { op: key });
            return false;
        };
        // One that has been behind a gate is disarmed.
        if launch.control.is_some() {
            return false;
        }
        // A plain launch would run whether the gate is opened or not.
        if launch.spec.plain {
            actions.push(Action::Disarm { op: key });
            return false;
        }
        if self.is_suspended(key) {
            actions.push(Action::Disarm { op: key });
            return false;
        }
        // Its launch reports what it would find.
        if self.would_lose(first) {
            actions.push(Action::Disarm { op: key });
            return false;
        }
        if self.is_draining() || !self.queues.may_chain() || self.has_late_gate() {
            return false;
        }
        let Some(arrival) = arrival(first, op) else { return false };
        let plan = self.foresee(now, arrival);
        if plan.grants.is_empty() {
            // The policy cannot tell.
            actions.push(Action::Disarm { op: key });
            return false;
        }
        let Some(range) = granted(&plan, first, sms).filter(|range| !range.is_empty()) else {
            return false;
        };
        if !self.admits(now, &arrival) {
            actions.push(Action::Disarm { op: key });
            return false;
        }
        let Some(Op { launch: Some(launch), .. }) = self.ops.get(first) else { return false };
        let (level, over) = self.level(first);
        let highest = self.queues.count().levels;
        let Some(queue) = self.queues.free(level.max(1).min(highest), highest) else {
            self.agenda.short_of_queues = true;
            return false;
        };
        let over = over.filter(|_| self.queues.level(queue) >= level);
        let place = Place::Gated { room: launch.room(count(range, sms), range.contains(sms - 1)) };
        let shape = launch.work(0, sms, &self.costs).shape(place, || false, || 0.0);
        let Some(shape) = shape else { return false };
        let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(first) else { return false };
        // For those that are queued behind it.
        launch.handover = range;
        self.put(first, (0, queue), shape, CohortPlace::Gated { over }, actions);
        self.go_on_behind(queue);
        true
    }

    /// Whether gates could be told something else than before.
    pub fn foresees(&self) -> bool {
        self.agenda.foresees
    }

    /// What each gate is to tell from now on.
    pub fn hints(&mut self, now: Duration, hints: &mut Vec<Hint>) {
        self.agenda.foresees = false;
        let gated: Vec<_> = self.gated().collect();
        for (first, gate) in gated {
            let Some(arrival) = self.ops.get(first).and_then(|op| arrival(first, op)) else {
                continue;
            };
            let plan = self.foresee(now, arrival);
            let sms = self.ledger.sms();
            // Without SMs of its own it takes none from others.
            if granted(&plan, first, sms).is_none_or(SmRange::is_empty) {
                continue;
            }
            let limit = self.limit(first);
            for (queue, op, _) in self.queues.heads() {
                let launch = self.ops.get(op).and_then(|op| op.launch.as_ref());
                let is_told = |launch: &&Launch| launch.arrival.is_some() && !launch.spec.plain;
                let Some(launch) = launch.filter(is_told) else { continue };
                let keeps = granted(&plan, op, sms).unwrap_or(SmRange::EMPTY);
                let keeps = intersection(launch.range, keeps, sms);
                let range = kept(self.queues.range(queue), keeps, sms);
                if range != self.queues.range(queue) {
                    hints.push(Hint {
                        gate,
                        queue,
                        signal: self.queues.next_word(queue, range, limit),
                    });
                }
            }
        }
    }
}

/// The SMs that a plan grants to a launch.
fn granted(plan: &Plan, op: OpKey, sms: u32) -> Option<SmRange> {
    let of = plan.grants.iter().find(|(id, _)| *id == LaunchId(op));
    of.map(|&(_, range)| range).filter(|range| range.hi() <= sms)
}
