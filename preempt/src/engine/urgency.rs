//! Priority inheritance: what others wait for is as urgent as the most urgent of them, and due as early as the
//! first of them is due.
//!
//! Whoever comes raises those before it, and only as far as that changes anything; whoever goes before its turn, or
//! asks for less, has those before it look again at all that still wait for them.

use std::collections::BinaryHeap;
use std::time::Duration;

use super::{Change, Engine, Op, Phase, Whose};
use crate::policy::{Arrival, Priority, Urgency};
use crate::vocabulary::{LaunchId, OpKey};

/// What one asks for that wants nothing.
const NOTHING: Urgency = Urgency { priority: Priority(i32::MIN), weight: 1, deadline: None };

/// Operations to look at; kept for their capacity.
#[derive(Debug, Default)]
pub(super) struct Inheritance {
    raised: Vec<OpKey>,
    /// By the number of their submission.
    reconsidered: BinaryHeap<(u64, OpKey)>,
}

impl Op {
    /// What it asks for itself.
    fn asks(&self) -> Urgency {
        match self.phase {
            Phase::Finished => Urgency { weight: self.urgency.weight, ..NOTHING },
            Phase::Blocked | Phase::Active => self.urgency,
        }
    }
}

/// `own`, as urgent as `other` if that one is more urgent. Weights are not inherited.
fn inherit(own: Urgency, other: Urgency) -> Urgency {
    let deadline = match (own.deadline, other.deadline) {
        (Some(own), Some(other)) => Some(own.min(other)),
        (own, other) => own.or(other),
    };
    Urgency { priority: own.priority.max(other.priority), weight: own.weight, deadline }
}

impl Engine {
    /// Makes those that an operation waits for as urgent as it is. The cost is that of what changes.
    pub(super) fn raise(&mut self, now: Duration, key: OpKey) {
        let mut raised = std::mem::take(&mut self.inheritance.raised);
        raised.push(key);
        while let Some(key) = raised.pop() {
            let Some(op) = self.ops.get(key) else { continue };
            let (urgency, count) = (op.effective, op.waits_for.len());
            for index in 0..count {
                let before = self.ops[key].waits_for[index];
                // Those that are over are waited for no more.
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

    /// Looks again at what operations ask for, and at those that they wait for.
    pub(super) fn reconsider(&mut self, now: Duration, keys: impl IntoIterator<Item = OpKey>) {
        if self.intake.over.is_some() {
            // Everything ends, whatever it asked for.
            return;
        }
        let mut line = std::mem::take(&mut self.inheritance.reconsidered);
        line.extend(keys.into_iter().filter_map(|key| Some((self.ops.get(key)?.number, key))));
        // The last one in the order of submission first: those that wait for it are done with.
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
            Whose::Launch(key) => vec![key],
            Whose::Stream(stream) => {
                let is_of = |(_, op): &(OpKey, &Op)| op.stream == stream;
                self.ops.iter().filter(is_of).map(|(key, _)| key).collect()
            }
        };
        for &key in &keys {
            let Some(Op { urgency, .. }) = self.ops.get_mut(key) else { continue };
            match change {
                Change::Priority(priority) => urgency.priority = priority,
                Change::Weight(weight) => urgency.weight = weight.max(1),
                Change::Deadline(deadline) => urgency.deadline = deadline,
            }
        }
        self.reconsider(now, keys);
    }

    /// Tells the policy how urgent a launch has become, if it knows the launch.
    fn tell(&mut self, now: Duration, key: OpKey) {
        let Some(arrival) = self.ops.get(key).and_then(|op| arrival(key, op)) else { return };
        let launch = self.ops.get(key).and_then(|op| op.launch.as_ref());
        if launch.is_some_and(|launch| launch.arrival.is_some()) {
            self.agenda.unsettled = true;
            self.ask(now, |policy| policy.changed(now, arrival));
        }
    }
}

/// A launch as policies hear of it; `None` for other operations.
pub(super) fn arrival(key: OpKey, op: &Op) -> Option<Arrival> {
    let Urgency { priority, weight, deadline } = op.effective;
    let tasks = op.launch.as_ref()?.spec.tasks;
    Some(Arrival { id: LaunchId(key), stream: op.stream, priority, weight, deadline, tasks })
}
