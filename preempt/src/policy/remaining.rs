//! Launches by what is left of them, and by priority before that.

use std::cmp::Reverse;
use std::time::Duration;

use super::indexed_heap::IndexedHeap;
use super::placement::runs;
use super::{Arrival, DeviceView, Packing, Plan, Policy, Priority};
use crate::vocabulary::LaunchId;

/// The queue of [`Hpf`](super::Hpf) and [`ShortestRemaining`](super::ShortestRemaining).
#[derive(Debug, Default)]
pub(super) struct ByRemaining {
    queue: IndexedHeap<LaunchId, RemainingKey>,
    /// Launches whose remaining time has changed since their key was made: they arrived, had SMs at the last plan, or
    /// their last block has left.
    stale: Vec<LaunchId>,
    arrivals: u64,
    /// Whether the launch of the highest priority is first, whatever is left of it.
    by_priority: bool,
    /// Whether launches that are queued behind a launch in its stream count as part of it.
    by_stream: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct RemainingKey {
    priority: Reverse<Priority>,
    /// The remaining time; of a launch with SMs, less what it costs to make it yield. So a waiting launch comes first
    /// if and only if that pays.
    left: Duration,
    waits: bool,
    arrival: u64,
}

impl ByRemaining {
    /// Of launches of different priority, the one of the higher priority is first.
    pub fn by_priority(self) -> ByRemaining {
        ByRemaining { by_priority: true, ..self }
    }

    /// Launches that are queued behind a launch in its stream count as part of it.
    pub fn by_stream(self) -> ByRemaining {
        ByRemaining { by_stream: true, ..self }
    }

    fn priority(&self, launch: Arrival) -> Reverse<Priority> {
        Reverse(if self.by_priority { launch.priority } else { Priority::default() })
    }

    /// Makes the key of a launch anew; whether it is another one.
    fn look_again(&mut self, launch: LaunchId, device: &dyn DeviceView) -> bool {
        let Some(before) = self.queue.key(launch) else { return false };
        let waits = device.range(launch).is_empty();
        let left = device.remaining(launch).unwrap_or(UNKNOWN);
        let saved = if waits { Duration::ZERO } else { device.yield_overhead(launch) };
        let behind = if self.by_stream { device.backlog(launch) } else { Duration::ZERO };
        let left = left.saturating_add(behind).saturating_sub(saved);
        let key = RemainingKey { left, waits, ..before };
        if key != before {
            self.queue.put(launch, key);
        }
        key != before
    }
}

impl Policy for ByRemaining {
    fn name(&self) -> &str {
        "by remaining time"
    }

    fn arrived(&mut self, _now: Duration, launch: Arrival) {
        self.arrivals += 1;
        let (priority, arrival) = (self.priority(launch), self.arrivals);
        self.queue.put(launch.id, RemainingKey { priority, left: UNKNOWN, waits: true, arrival });
        self.stale.push(launch.id);
    }

    fn changed(&mut self, _now: Duration, launch: Arrival) {
        if let Some(key) = self.queue.key(launch.id) {
            let priority = self.priority(launch);
            self.queue.put(launch.id, RemainingKey { priority, ..key });
        }
    }

    fn yielded(&mut self, _now: Duration, launch: LaunchId) {
        self.stale.push(launch);
    }

    fn departed(&mut self, _now: Duration, launch: LaunchId) {
        self.queue.remove(launch);
    }

    fn goes_by_order(&self) -> bool {
        true
    }

    fn may_preempt(&self, by: Priority, of: Priority) -> bool {
        !self.by_priority || by >= of
    }

    fn assign(&mut self, _now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        let owners = || runs(device).map(|(owner, _)| owner);
        let mut stale = std::mem::take(&mut self.stale);
        for launch in stale.drain(..).chain(owners()) {
            self.look_again(launch, device);
        }
        self.stale = stale;
        self.stale.extend(owners());
        // Behind waiting launches, more may have been queued since, but not less: a launch that stays first is first.
        while self.by_stream
            && let Some((_, first)) = self.queue.first()
            && self.look_again(first, device)
        {}
        plan.share_queue(&mut self.queue, Packing::Spread, device);
    }
}

/// Longer than every predicted duration.
const UNKNOWN: Duration = Duration::MAX;
