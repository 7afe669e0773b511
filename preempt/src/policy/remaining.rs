//! Launches by priority, and those of equal priority by what is left of them.

use std::cmp::Reverse;
use std::time::Duration;

use super::line::Line;
use super::placement::Placement;
use super::{DeviceView, Plan, Priority};
use crate::engine::LaunchId;

/// The line of [`Hpf`](super::Hpf) and [`ShortestRemaining`](super::ShortestRemaining).
#[derive(Debug, Default)]
pub(super) struct ByRemaining {
    line: Line<LaunchId, Place>,
    /// Launches of which the remaining time is not what it was when the place was chosen: those that came, that had
    /// SMs at the last plan, or whose last block has left.
    stale: Vec<LaunchId>,
    arrivals: u64,
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

    pub fn assign(&mut self, device: &dyn DeviceView, plan: &mut Plan) {
        let owners = || device.owners().chunk_by(|a, b| a == b).filter_map(|run| run[0]);
        for launch in self.stale.drain(..).chain(owners()) {
            if let Some(place) = self.line.key(launch) {
                let waits = device.range(launch).is_empty();
                let left = device.remaining(launch).unwrap_or(UNKNOWN);
                let saved = if waits { Duration::ZERO } else { device.yield_overhead(launch) };
                let left = left.saturating_sub(saved);
                self.line.put(launch, Place { left, waits, ..place });
            }
        }
        self.stale.extend(owners());
        self.placement.share(&mut self.line, device, plan);
    }
}

/// Longer than anything that is known.
const UNKNOWN: Duration = Duration::MAX;
