//! Priority first, then the shortest remaining time.

use std::time::Duration;

use super::delegate::delegate;
use super::remaining::ByRemaining;
use super::{Arrival, DeviceView, Plan};
use crate::vocabulary::LaunchId;

/// Highest priority first, with minimal performance degradation (HPF; FLEP section 5.2.1), with spatial sharing.
///
/// A more urgent launch never waits for a less urgent one, except for the block-tasks that run when it arrives. Of
/// launches of equal priority, the one with the shortest [remaining time](DeviceView::remaining) goes first. It takes
/// SMs from another one only if that pays for the yield. The other's remaining time must exceed its own by more than
/// the [yield overhead](DeviceView::yield_overhead). Average slowdown, over launches of equal priority on the whole
/// device, is at most twice the optimum, as far as the predictions are right.
///
/// An unknown remaining time counts as longest; launches of unknown remaining time run in the order in which they
/// became ready. A constant stream of urgent or short launches can keep another launch waiting for ever.
#[derive(Debug)]
pub struct Hpf {
    queue: ByRemaining,
}

impl Hpf {
    /// Remaining time is that of each launch alone.
    pub fn new() -> Hpf {
        Hpf { queue: ByRemaining::default().by_priority() }
    }

    /// The [backlog](DeviceView::backlog) of a launch's stream counts as its remaining time, too. This is for programs
    /// of several launches, whose users wait for the end of the last one.
    pub fn by_stream() -> Hpf {
        Hpf { queue: ByRemaining::default().by_priority().by_stream() }
    }
}

impl Default for Hpf {
    fn default() -> Hpf {
        Hpf::new()
    }
}

delegate!(Hpf, "hpf", queue);
