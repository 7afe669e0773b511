//! A decision that has no effect, by an engine of the poller's own, before other threads leave the core to the poller.
//!
//! A thread that has slept finds neither the code of a decision in its caches nor the addresses of its pages. The first
//! urgent launch that it decides then takes three times as long as the next ones (H200 with a Xeon: 65 µs, and 21). A
//! poller that [spins](crate::SchedulerBuilder::poller_spin) while anything is in flight decides all launches meanwhile. So
//! it first simulates an urgent launch that preempts another one. It holds no lock, and other threads run the core until
//! it is done.

use std::time::Duration;

use preempt_device::abi::Posted;

use crate::engine::{Action, Engine, Event, LaunchSpec, Submission};
use crate::policy::{Priority, StaticPriority, Urgency};
use crate::vocabulary::{CohortOrder, Costs, OpKey, QueueCount};

/// The urgent launch that preempts another one.
pub(super) struct Rehearsal {
    engine: Engine,
    sms: u32,
    /// Kept for their capacity.
    actions: Vec<Action>,
    cohorts: Vec<CohortOrder>,
    /// Signals until now.
    signals: u32,
}

/// Block-tasks of the urgent launch. The other one has as many for each SM.
const TASKS: u32 = 8;

impl Rehearsal {
    pub fn new(sms: u32, queues: QueueCount, costs: Costs) -> Rehearsal {
        let engine = Engine::new(sms, queues, costs, Box::new(StaticPriority::new()));
        Rehearsal { engine, sms, actions: Vec::new(), cohorts: Vec::new(), signals: 0 }
    }

    /// Simulates it once.
    pub fn run(&mut self) {
        let tasks = TASKS * self.sms;
        let batch = self.launch(0, tasks);
        let urgent = self.launch(1, TASKS);
        self.end(urgent, TASKS);
        self.end(batch, tasks);
        debug_assert!(!self.engine.is_busy(), "both are over");
    }

    fn launch(&mut self, priority: u32, tasks: u32) -> OpKey {
        let spec = LaunchSpec {
            tasks,
            predicted: None,
            yield_overhead: Duration::ZERO,
            requeued: Duration::ZERO,
            blocks_per_sm: 1,
            on_last_sm: 1,
            plain: false,
            hardware_stop: None,
        };
        let urgency = Urgency { priority: Priority(priority as i32), ..Urgency::default() };
        let submission = Submission {
            stream: priority,
            name: "rehearsal",
            uses: &[],
            after: None,
            urgency,
            launch: Some(spec),
            opaque: None,
            calls: &[],
        };
        let op = self.engine.submit(Duration::ZERO, submission, &mut self.actions);
        self.decide();
        op
    }

    /// All cohorts of the launch are out, with all of its tasks.
    fn end(&mut self, op: OpKey, tasks: u32) {
        let mut left = tasks;
        while let Some(at) = self.cohorts.iter().position(|order| order.op == op) {
            let CohortOrder { slot, .. } = self.cohorts.remove(at);
            let posted = Posted { done: std::mem::take(&mut left), amortize: 1 };
            let out = Event::CohortOut { op, slot, posted };
            self.engine.handle(Duration::ZERO, out, &mut self.actions);
            self.decide();
        }
    }

    fn decide(&mut self) {
        self.engine.settle(Duration::ZERO, &mut self.actions);
        for action in self.actions.drain(..) {
            match action {
                Action::Launch(order) => self.cohorts.push(order),
                Action::Signal { .. } => self.signals += 1,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_each_time_and_keeps_nothing() {
        let queues = QueueCount { normal: 2, urgent: 1, levels: 2, chains: 1 };
        let mut rehearsal = Rehearsal::new(132, queues, Costs::default());
        for _ in 0..10 {
            rehearsal.run();
            assert!(!rehearsal.engine.is_busy() && rehearsal.cohorts.is_empty());
            assert_eq!(std::mem::take(&mut rehearsal.signals), 1, "it preempts");
        }
    }
}
