//! Launches by priority, and those of equal priority by what is left of them.

use std::cmp::Reverse;
use std::time::Duration;

use super::line::Line;
use super::placement::{Placement, runs};
use super::{DeviceView, Plan, Priority};
use crate::vocabulary::LaunchId;

/// The line of [`Hpf`](super::Hpf) and [`ShortestRemaining`](super::ShortestRemaining).
#[derive(Debug, Default)]
pub(super) struct ByRemaining {
    line: Line<LaunchId, Place>,
    /// Launches of which the remaining time is not what it was when the place was chosen: those that came, that had
    /// SMs at the last plan, or whose last block has left.
    stale: Vec<LaunchId>,
    arrivals: u64,
    /// Whether what is queued behind a launch in its stream counts.
    by_stream: bool,
    placement: Placement,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    priority: Reverse<Priority>,
    /// The remaining time; of a launch with SMs, less what it costs to make it yield. So one that waits comes first
    /// if and only if that pays.
    left: Duration,
    waits: bool,
    arrival: u64,
}

impl ByRemaining {
    /// What is queued behind a launch in its stream counts, too.
    pub fn by_stream() -> ByRemaining {
        ByRemaining { by_stream: true, ..ByRemaining::default() }
    }

    pub fn arrived(&mut self, launch: LaunchId, priority: Priority) {
        self.arrivals += 1;
        let (priority, arrival) = (Reverse(priority), self.arrivals);
        self.line.put(launch, Place { priority, left: UNKNOWN, waits: true, arrival });
        self.stale.push(launch);
    }

    pub fn changed(&mut self, launch: LaunchId, priority: Priority) {
        if let Some(place) = self.line.key(launch) {
            self.line.put(launch, Place { priority: Reverse(priority), ..place });
        }
    }

    pub fn yielded(&mut self, launch: LaunchId) {
        self.stale.push(launch);
    }

    pub fn departed(&mut self, launch: LaunchId) {
        self.line.remove(launch);
    }

    /// Finds the place of a launch anew; whether it is another one.
    fn look_again(&mut self, launch: LaunchId, device: &dyn DeviceView) -> bool {
        let Some(before) = self.line.key(launch) else { return false };
        let waits = device.range(launch).is_empty();
        let left = device.remaining(launch).unwrap_or(UNKNOWN);
        let saved = if waits { Duration::ZERO } else { device.yield_overhead(launch) };
        let behind = if self.by_stream { device.backlog(launch) } else { Duration::ZERO };
        let left = left.saturating_add(behind).saturating_sub(saved);
        let place = Place { left, waits, ..before };
        if place != before {
            self.line.put(launch, place);
        }
        place != before
    }

    pub fn assign(&mut self, device: &dyn DeviceView, plan: &mut Plan) {
        let owners = || runs(device).map(|(owner, _)| owner);
        let mut stale = std::mem::take(&mut self.stale);
        for launch in stale.drain(..).chain(owners()) {
            self.look_again(launch, device);
        }
        self.stale = stale;
        self.stale.extend(owners());
        // Behind those that wait, more may have been queued since, but not less: one that stays first is first.
        while self.by_stream
            && let Some((_, first)) = self.line.first()
            && self.look_again(first, device)
        {}
        self.placement.share(&mut self.line, device, plan);
    }
}

/// Longer than anything that is known.
const UNKNOWN: Duration = Duration::MAX;
