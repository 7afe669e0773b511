//! The most urgent launch first, with as many SMs as it can fill; the next ones share the rest.

use std::cmp::Reverse;
use std::time::Duration;

use super::anticipation::Anticipation;
use super::indexed_heap::IndexedHeap;
use super::{Arrival, DeviceView, Packing, Plan, Policy, Priority, SmRange};
use crate::vocabulary::LaunchId;

/// Static priorities (EffiSha section 7), with spatial sharing (FLEP section 5.2).
///
/// A more urgent launch never waits for a less urgent one, except for the block-tasks that run when it arrives, and for
/// plain grids that more than five levels of more urgent plain grids have preempted.
/// Launches of equal priority run in the order in which they became ready, whatever their priorities were then. A
/// later one yields to an earlier one only if a more urgent launch made that one yield before. A launch takes no more
/// SMs than it can use; the others go to the next launches. What a less urgent launch has left does not count: it yields
/// even if it would have ended sooner than it yields.
///
/// A constant stream of urgent launches can keep a less urgent one waiting for ever.
#[derive(Debug, Default)]
pub struct StaticPriority {
    queue: IndexedHeap<LaunchId, Key>,
    arrivals: u64,
    packing: Packing,
    /// Whether SMs are left free for streams whose next launch comes soon.
    anticipates: bool,
    anticipation: Anticipation,
    /// The last plan.
    granted: Vec<(LaunchId, SmRange)>,
}

/// The priority, the number of the arrival, and the stream.
type Key = (Reverse<Priority>, u64, u32);

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

    /// Leaves the SMs of a launch that has ended free for the next launch of its stream, where that mostly comes sooner than a
    /// less urgent launch with those SMs would yield, and for no longer than that takes. An application that waits for each of
    /// its launches finds them free then, and the less urgent launch has no work to do again.
    ///
    /// The default policy of a scheduler does this.
    pub fn anticipating(self) -> StaticPriority {
        StaticPriority { anticipates: true, ..self }
    }
}

impl StaticPriority {
    fn enter(&mut self, launch: Arrival) {
        self.arrivals += 1;
        self.queue.put(launch.id, (Reverse(launch.priority), self.arrivals, launch.stream));
    }
}

impl Policy for StaticPriority {
    fn name(&self) -> &str {
        match self.anticipates {
            true => "static priority with anticipation",
            false => "static priority",
        }
    }

    fn arrived(&mut self, now: Duration, launch: Arrival) {
        self.enter(launch);
        self.anticipation.came(now, launch.stream);
    }

    fn changed(&mut self, _now: Duration, launch: Arrival) {
        if let Some((_, arrival, stream)) = self.queue.key(launch.id) {
            self.queue.put(launch.id, (Reverse(launch.priority), arrival, stream));
        }
    }

    fn departed(&mut self, now: Duration, launch: LaunchId) {
        let Some((Reverse(priority), _, stream)) = self.queue.remove(launch) else { return };
        let granted = self.granted.iter().find(|(id, _)| *id == launch);
        if let Some(&(_, range)) = granted.filter(|_| self.anticipates) {
            self.anticipation.ended(now, stream, priority, range);
        }
    }

    // Nothing of its stream comes soon.
    fn withdrawn(&mut self, _now: Duration, launch: LaunchId) {
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

    fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        match self.queue.first() {
            Some(((Reverse(priority), ..), first)) => {
                let waits = self.anticipation.waits(now, (priority, first), device);
                waits.for_each(|range| plan.leave_free(range));
            }
            None => self.anticipation.rests(),
        }
        plan.share_queue(&mut self.queue, self.packing, device);
        if self.anticipates {
            self.granted.clear();
            self.granted.extend_from_slice(plan.grants());
        }
    }

    fn foresee(
        &mut self,
        _now: Duration,
        launch: Arrival,
        device: &dyn DeviceView,
        plan: &mut Plan,
    ) {
        if self.goes_by_order() {
            self.enter(launch);
            plan.share_queue(&mut self.queue, self.packing, device);
            self.queue.remove(launch.id);
        }
    }

    fn wake(&self) -> Option<Duration> {
        self.anticipation.until()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::ModelDevice;

    #[test]
    fn the_next_launch_of_a_stream_finds_its_sms_free() {
        let us = Duration::from_micros;
        let grants = |policy: StaticPriority| {
            let (mut device, mut policy, mut plan) = (ModelDevice::new(8), policy, Plan::default());
            let batch = device.launch(1000);
            device.set_yield_overhead(batch.id, us(20), Duration::ZERO);
            policy.arrived(us(0), batch);
            let mut ranges = Vec::new();
            for round in 1..4 {
                let urgent = device.launch(3).stream(1).priority(1);
                policy.arrived(us(100 * round), urgent);
                for ends in [false, true] {
                    let now = us(100 * round + if ends { 95 } else { 0 });
                    if ends {
                        policy.departed(now, urgent.id);
                        device.remove(urgent.id);
                    }
                    plan.clear();
                    policy.assign(now, &device, &mut plan);
                    device.follow(&plan);
                    ranges.push(device.range(batch.id));
                }
            }
            assert_eq!(policy.wake(), policy.anticipates.then_some(us(395 + 20)));
            // Not for longer than a yield takes, and not for a launch that is as urgent.
            let other = device.launch(1000).stream(2).priority(1);
            policy.arrived(us(396), other);
            plan.clear();
            policy.assign(us(396), &device, &mut plan);
            assert_eq!(
                (plan.grants(), policy.wake()),
                (&[(other.id, SmRange::new(0, 8))][..], None)
            );
            ranges
        };
        let (all, rest) = (SmRange::new(0, 8), SmRange::new(3, 8));
        assert_eq!(grants(StaticPriority::new()), [rest, all, rest, all, rest, all]);
        let anticipating = StaticPriority::new().anticipating();
        // The first gap says what to expect.
        assert_eq!(grants(anticipating), [rest, all, rest, rest, rest, rest]);
    }
}
