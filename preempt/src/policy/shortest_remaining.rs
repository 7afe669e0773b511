//! The shortest remaining time first.

use std::time::Duration;

use super::remaining::ByRemaining;
use super::{Arrival, DeviceView, Plan, Policy, Priority};
use crate::vocabulary::LaunchId;

/// The launch of which the least is left first, whatever the priorities: the rule that [`Hpf`](super::Hpf) has for
/// launches of equal priority (FLEP section 5.2.1), for all of them.
///
/// A launch takes SMs from another one only if that one's [remaining time](DeviceView::remaining) is longer than its
/// own by more than the [yield overhead](DeviceView::yield_overhead). Average slowdown on the whole device is at most
/// twice the optimum (Muthukrishnan et al., as cited there), as far as the predictions are right.
///
/// A remaining time that nobody can tell counts as longest. A constant stream of short launches can keep a long one
/// waiting for ever.
#[derive(Debug, Default)]
pub struct ShortestRemaining {
    line: ByRemaining,
}

impl ShortestRemaining {
    /// With nothing in the line.
    pub fn new() -> ShortestRemaining {
        ShortestRemaining::default()
    }

    /// What is [queued behind](DeviceView::backlog) a launch in its stream counts as remaining time, too: for
    /// programs of several launches, of which the last one's end is waited for.
    pub fn by_stream() -> ShortestRemaining {
        ShortestRemaining { line: ByRemaining::by_stream() }
    }
}

impl Policy for ShortestRemaining {
    fn name(&self) -> &str {
        "shortest remaining"
    }

    fn arrived(&mut self, _now: Duration, launch: Arrival) {
        self.line.arrived(launch.id, Priority::default());
    }

    // Nothing that it looks at.
    fn changed(&mut self, _now: Duration, _launch: Arrival) {}

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
