//! Priority inheritance: an operation is as urgent as the most urgent operation that waits for it, and due as early.
//!
//! A submitted operation raises those before it, as far as that changes them. An operation that ends before its turn,
//! or asks for less, has those before it look at their successors again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::{Change, Engine, Op, Phase, Whose};
use crate::policy::{Arrival, Priority, Urgency};
use crate::vocabulary::{LaunchId, OpKey};

/// The urgency of an operation that asks for nothing.
pub(super) const NOTHING: Urgency =
    Urgency { priority: Priority(i32::MIN), weight: 1, deadline: None, latency_limit: None };

/// Operations to look at; kept for their capacity.
#[derive(Debug, Default)]
pub(super) struct Inheritance {
    raised: Vec<OpKey>,
    /// By the number of their submission.
    reconsidered: BinaryHeap<(u64, OpKey)>,
}

impl Op {
    /// The urgency that the application asks for; nothing once the operation is over.
    fn asks(&self) -> Urgency {
        match self.phase {
            Phase::Finished => Urgency { weight: self.urgency.weight, ..NOTHING },
            Phase::Blocked | Phase::Active => self.urgency,
        }
    }
}

/// How long blocks of others may stay: not at all without a limit, and as long as they need if nothing keeps to it.
pub(super) fn patience(of: Urgency) -> Duration {
    match of.latency_limit {
        Some(Duration::ZERO) => Duration::MAX,
        limit => limit.unwrap_or_default(),
    }
}

/// `own`, raised to the urgency of `other`. Weights are not inherited.
fn inherit(own: Urgency, other: Urgency) -> Urgency {
    let deadline = match (own.deadline, other.deadline) {
        (Some(own), Some(other)) => Some(own.min(other)),
        (own, other) => own.or(other),
    };
    // The limit is that of the more urgent one, whose launch takes the SMs; of two that are equally urgent, the stricter one.
    let terms = |of: Urgency| (of.priority, Reverse((patience(of), of.latency_limit)));
    let (priority, Reverse((_, latency_limit))) = terms(own).max(terms(other));
    Urgency { priority, weight: own.weight, deadline, latency_limit }
}

impl Engine {
    /// Makes the operations that one waits for as urgent as it is. The cost is that of what changes.
    pub(super) fn raise(&mut self, now: Duration, key: OpKey) {
        let mut raised = std::mem::take(&mut self.inheritance.raised);
        raised.push(key);
        while let Some(key) = raised.pop() {
            let Some(op) = self.ops.get(key) else { continue };
            let (urgency, count) = (op.effective, op.waits_for.len());
            for index in 0..count {
                let before = self.ops[key].waits_for[index];
                // Operations that are over are not waited for any more.
                let Some(op) = self.ops.get_mut(before) else { continue };
                let effective = inherit(op.effective, urgency);
                if effective != op.effective {
                    op.effective = effective;
                    raised.push(before);
                    self.tell(now, before);
                }
            }
        }
        self.inheritance.raised = raised;
    }

    /// Computes the urgency of operations and of their blockers anew.
    pub(super) fn reconsider(&mut self, now: Duration, keys: impl IntoIterator<Item = OpKey>) {
        if self.intake.over.is_some() {
            // Everything ends, whatever it asked for.
            return;
        }
        let mut line = std::mem::take(&mut self.inheritance.reconsidered);
        line.extend(keys.into_iter().filter_map(|key| Some((self.ops.get(key)?.number, key))));
        // In the reverse order of submission, so that the successors of each are up to date.
        while let Some((_, key)) = line.pop() {
            let Some(op) = self.ops.get(key) else { continue };
            let waiting = op.successors.iter().filter_map(|&successor| self.ops.get(successor));
            let effective = waiting.fold(op.asks(), |own, op| inherit(own, op.effective));
            if effective == op.effective {
                continue;
            }
            let before = op.waits_for.iter();
            line.extend(before.filter_map(|&key| Some((self.ops.get(key)?.number, key))));
            self.ops[key].effective = effective;
            self.tell(now, key);
        }
        self.inheritance.reconsidered = line;
    }

    /// Makes launches more urgent, or less, from now on.
    pub(super) fn change(&mut self, now: Duration, of: Whose, change: Change) {
        let keys: Vec<OpKey> = match of {
            // A call has the weight of its program, and inherits the rest.
            Whose::Launch(key) => {
                [key].into_iter().chain(self.calls(key).iter().copied()).collect()
            }
            Whose::Stream(stream) => {
                let is_of = |(_, op): &(OpKey, &Op)| op.stream == stream;
                self.ops.iter().filter(is_of).map(|(key, _)| key).collect()
            }
        };
        for &key in &keys {
            let Some(Op { urgency, part_of, .. }) = self.ops.get_mut(key) else { continue };
            match change {
                Change::Weight(weight) => urgency.weight = weight.max(1),
                _ if part_of.is_some() => {}
                Change::Priority(priority) => urgency.priority = priority,
                Change::Deadline(deadline) => urgency.deadline = deadline,
                Change::LatencyLimit(limit) => urgency.latency_limit = limit,
                // Of streams alone.
                Change::Suspended(_) => {}
            }
        }
        self.reconsider(now, keys);
    }

    /// Tells the policy the new urgency of a launch, if it knows the launch.
    fn tell(&mut self, now: Duration, key: OpKey) {
        let Some(arrival) = self.ops.get(key).and_then(|op| arrival(key, op)) else { return };
        let launch = self.ops.get(key).and_then(|op| op.launch.as_ref());
        if launch.is_some_and(|launch| launch.arrival.is_some()) {
            self.agenda.unsettled = true;
            self.ask(now, |policy| policy.changed(now, arrival));
        }
    }
}

/// A launch as policies see it; `None` for other operations.
pub(super) fn arrival(key: OpKey, op: &Op) -> Option<Arrival> {
    let Urgency { priority, weight, deadline, .. } = op.effective;
    let tasks = op.launch.as_ref()?.spec.tasks;
    Some(Arrival { id: LaunchId(key), stream: op.stream, priority, weight, deadline, tasks })
}
