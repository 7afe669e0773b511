//! Looks at the launches that a policy decides about.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use preempt::LaunchId;
use preempt::policy::{Arrival, DeviceView, Plan, Policy, Priority};

/// Watches a policy without a change to its decisions, which can therefore be replayed without the watch.
pub struct Watch<P> {
    policy: P,
    /// Launches that arrived since the last plan.
    fresh: Vec<Arrival>,
    notes: LaunchNotes,
}

/// Observations since they were last taken.
#[derive(Clone, Default)]
pub struct LaunchNotes(Arc<Mutex<Vec<Note>>>);

/// A launch when it was first planned. There is none of a launch that was queued on the device and over before a policy
/// heard of it.
#[derive(Clone, Copy, Debug)]
pub struct Note {
    pub stream: u32,
    pub tasks: u32,
    /// The SMs that it could fill.
    pub need: u32,
    /// Expected time to stop: the mean of its kernel's earlier stops.
    pub stop: Duration,
    /// Work that it was expected to repeat then.
    pub requeued: Duration,
}

impl LaunchNotes {
    /// Takes the observations since the last call.
    pub fn take(&self) -> Vec<Note> {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Note>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Policy> Watch<P> {
    pub fn new(policy: P) -> (Watch<P>, LaunchNotes) {
        let notes = LaunchNotes::default();
        (Watch { policy, fresh: Vec::new(), notes: notes.clone() }, notes)
    }
}

impl<P: Policy> Policy for Watch<P> {
    fn name(&self) -> &str {
        self.policy.name()
    }

    fn admits(&mut self, now: Duration, launch: &Arrival, device: &dyn DeviceView) -> bool {
        self.policy.admits(now, launch, device)
    }

    fn arrived(&mut self, now: Duration, launch: Arrival) {
        self.fresh.push(launch);
        self.policy.arrived(now, launch);
    }

    fn changed(&mut self, now: Duration, launch: Arrival) {
        self.policy.changed(now, launch);
    }

    fn yielded(&mut self, now: Duration, launch: LaunchId) {
        self.policy.yielded(now, launch);
    }

    fn departed(&mut self, now: Duration, launch: LaunchId) {
        self.policy.departed(now, launch);
    }

    fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        let mut notes = self.notes.lock();
        for Arrival { id, stream, tasks, .. } in self.fresh.drain(..) {
            let (need, requeued) = (device.need(id), device.requeued(id));
            let stop = device.yield_overhead(id).saturating_sub(requeued);
            // 0 if the launch is over.
            if need > 0 {
                notes.push(Note { stream, tasks, need, stop, requeued });
            }
        }
        drop(notes);
        self.policy.assign(now, device, plan);
    }

    fn goes_by_order(&self) -> bool {
        self.policy.goes_by_order()
    }

    fn may_preempt(&self, by: Priority, of: Priority) -> bool {
        self.policy.may_preempt(by, of)
    }

    fn wake(&self) -> Option<Duration> {
        self.policy.wake()
    }
}
