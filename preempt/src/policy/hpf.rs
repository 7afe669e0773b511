//! Priority first, then the shortest remaining time.

use std::time::Duration;

use super::remaining::ByRemaining;
use super::{Arrival, DeviceView, Plan, Policy};
use crate::vocabulary::LaunchId;

/// Highest priority first, with minimal performance degradation (HPF; FLEP section 5.2.1), with spatial sharing.
///
/// A more urgent launch never waits for a less urgent one, except for the block-tasks that run when it arrives.
/// Of launches of equal priority, the one with the shortest [remaining time](DeviceView::remaining) goes first; it
/// takes SMs from one that has some only if that one's remaining time is longer than its own by more than the
/// [yield overhead](DeviceView::yield_overhead). Average slowdown, over launches of equal priority on the whole device,
/// is at most twice the optimum, as far as the predictions are right.
///
/// A remaining time that nobody can tell counts as longest; launches of which none is known run in the order in which
/// they became ready. A constant stream of urgent or short launches can keep another one waiting for ever.
#[derive(Debug, Default)]
pub struct Hpf {
    line: ByRemaining,
}

impl Hpf {
    /// With nothing in the line.
    pub fn new() -> Hpf {
        Hpf::default()
    }

    /// What is [queued behind](DeviceView::backlog) a launch in its stream counts as remaining time, too: for
    /// programs of several launches, of which the last one's end is waited for.
    pub fn by_stream() -> Hpf {
        Hpf { line: ByRemaining::by_stream() }
    }
}

impl Policy for Hpf {
    fn name(&self) -> &str {
        "hpf"
    }

    fn arrived(&mut self, _now: Duration, launch: Arrival) {
        self.line.arrived(launch.id, launch.priority);
    }

    fn changed(&mut self, _now: Duration, launch: Arrival) {
        self.line.changed(launch.id, launch.priority);
    }

    fn yielded(&mut self, _now: Duration, launch: LaunchId) {
        self.line.yielded(launch);
    }

    fn departed(&mut self, _now: Duration, launch: LaunchId) {
        self.line.departed(launch);
    }

    fn assign(&mut self, _now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        self.line.assign(device, plan);
    }
}
