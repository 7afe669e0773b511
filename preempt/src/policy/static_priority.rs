//! The most urgent launch first, with as many SMs as it can fill; the next ones share the rest.

use std::cmp::Reverse;
use std::time::Duration;

use super::indexed_heap::IndexedHeap;
use super::{Arrival, DeviceView, Packing, Plan, Policy, Priority};
use crate::vocabulary::LaunchId;

/// Static priorities (EffiSha section 7), with spatial sharing (FLEP section 5.2).
///
/// A more urgent launch never waits for a less urgent one, except for the block-tasks that run when it arrives, and for
/// plain grids that more than five levels of more urgent plain grids have preempted.
/// Launches of equal priority run in the order in which they became ready, whatever their priorities were then. A
/// later one yields to an earlier one only if a more urgent launch made that one yield before. A launch takes no more
/// SMs than it can use; the others go to the next launches.
///
/// A constant stream of urgent launches can keep a less urgent one waiting for ever.
#[derive(Debug, Default)]
pub struct StaticPriority {
    queue: IndexedHeap<LaunchId, (Reverse<Priority>, u64)>,
    arrivals: u64,
    packing: Packing,
}

impl StaticPriority {
    /// With spatial sharing: each launch has as many SMs as it can use, with one block-task on each, and is as fast
    /// as alone. The rest is for the next one.
    pub fn new() -> StaticPriority {
        StaticPriority::default()
    }

    /// With just as many SMs for each launch as its block-tasks fill, and more for the others. Launches of few
    /// block-tasks are slower than alone.
    ///
    /// On an idle device the hardware spreads the blocks of such a launch over all SMs, whatever it is granted. An SM divides
    /// its memory into cache and shared memory for the kernel that comes first, and blocks that need another division
    /// wait until those are gone. So a less urgent launch can wait for all of a launch that needs only a part of the SMs.
    pub fn packed() -> StaticPriority {
        StaticPriority { packing: Packing::Packed, ..StaticPriority::default() }
    }

    /// Without spatial sharing: the most urgent launch has the whole device, as in EffiSha.
    pub fn whole_device() -> StaticPriority {
        StaticPriority { packing: Packing::WholeDevice, ..StaticPriority::default() }
    }
}

impl Policy for StaticPriority {
    fn name(&self) -> &str {
        "static priority"
    }

    fn arrived(&mut self, _now: Duration, launch: Arrival) {
        self.arrivals += 1;
        self.queue.put(launch.id, (Reverse(launch.priority), self.arrivals));
    }

    fn changed(&mut self, _now: Duration, launch: Arrival) {
        if let Some((_, arrival)) = self.queue.key(launch.id) {
            self.queue.put(launch.id, (Reverse(launch.priority), arrival));
        }
    }

    fn departed(&mut self, _now: Duration, launch: LaunchId) {
        self.queue.remove(launch);
    }

    // With the whole device, a launch also has SMs that its blocks do not fill.
    fn goes_by_order(&self) -> bool {
        self.packing != Packing::WholeDevice
    }

    // An older launch of the same priority may have yielded before.
    fn may_preempt(&self, by: Priority, of: Priority) -> bool {
        by >= of
    }

    fn assign(&mut self, _now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        plan.share_queue(&mut self.queue, self.packing, device);
    }
}
