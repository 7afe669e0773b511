//! In the order in which launches became ready.

use std::time::Duration;

use super::indexed_heap::IndexedHeap;
use super::{Arrival, DeviceView, Packing, Plan, Policy, Priority};
use crate::vocabulary::LaunchId;

/// First come, first served, whatever the priorities; what the first launch leaves free goes to the next one.
///
/// No launch waits for ever, and none yields except SMs that it cannot fill any more. The engine goes on with this
/// policy when it has to refuse another one. A short launch waits for all long ones that arrived before it.
#[derive(Debug, Default)]
pub struct Fifo {
    queue: IndexedHeap<LaunchId, u64>,
    arrivals: u64,
}

impl Fifo {
    /// An empty queue.
    pub fn new() -> Fifo {
        Fifo::default()
    }
}

impl Policy for Fifo {
    fn name(&self) -> &str {
        "fifo"
    }

    fn arrived(&mut self, _now: Duration, launch: Arrival) {
        self.arrivals += 1;
        self.queue.put(launch.id, self.arrivals);
    }

    // It keeps its place.
    fn changed(&mut self, _now: Duration, _launch: Arrival) {}

    fn departed(&mut self, _now: Duration, launch: LaunchId) {
        self.queue.remove(launch);
    }

    fn goes_by_order(&self) -> bool {
        true
    }

    fn may_preempt(&self, _by: Priority, _of: Priority) -> bool {
        false
    }

    fn assign(&mut self, _now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        plan.share_queue(&mut self.queue, Packing::Spread, device);
    }
}
