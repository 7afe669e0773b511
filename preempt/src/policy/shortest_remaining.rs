//! The shortest remaining time first.

use std::time::Duration;

use super::delegate::delegate;
use super::remaining::ByRemaining;
use super::{Arrival, DeviceView, Plan};
use crate::vocabulary::LaunchId;

/// The launch with the least left to do first, whatever the priorities. [`Hpf`](super::Hpf) has this rule for launches
/// of equal priority (FLEP section 5.2.1).
///
/// A launch takes SMs from another one only if that pays for the yield. The other's [remaining
/// time](DeviceView::remaining) must exceed its own by more than the [yield overhead](DeviceView::yield_overhead).
/// Average slowdown on the whole device is at most twice the optimum (Muthukrishnan et al., as cited there), as far as
/// the predictions are right.
///
/// An unknown remaining time counts as longest. A constant stream of short launches can keep a long one waiting for
/// ever.
#[derive(Debug, Default)]
pub struct ShortestRemaining {
    queue: ByRemaining,
}

impl ShortestRemaining {
    /// Remaining time is that of each launch alone.
    pub fn new() -> ShortestRemaining {
        ShortestRemaining::default()
    }

    /// The [backlog](DeviceView::backlog) of a launch's stream counts as its remaining time, too. This is for programs
    /// of several launches, whose users wait for the end of the last one.
    pub fn by_stream() -> ShortestRemaining {
        ShortestRemaining { queue: ByRemaining::default().by_stream() }
    }
}

delegate!(ShortestRemaining, "shortest remaining", queue);
