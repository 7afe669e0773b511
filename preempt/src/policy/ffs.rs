//! Weighted round robin, with turns as long as yields are expensive.

use std::time::Duration;

use super::delegate::delegate;
use super::shares::{Shares, Turn};
use super::{Arrival, DeviceView, Plan};
use crate::vocabulary::LaunchId;

/// Fairness first, under an overhead constraint (FFS; FLEP section 5.2.2), with spatial sharing.
///
/// Streams take turns. In each, stream i has the device for an *epoch* of T · Wᵢ, where W is its
/// [weight](Arrival::weight). T is the smallest for which ΣO / (T · ΣW) is at most the given overhead. O is the cost
/// of a yield of the stream, on average over its time; sums are over the launches that wait or run. An epoch is
/// measured in time on SMs, summed over SMs. A stream that had too much or too little in one gets the difference in
/// the next. So a stream that always has work is granted its share to within two epochs of the heaviest stream. SMs that a
/// launch cannot fill go to the streams after it, and cost nothing if no other stream wants them.
///
/// A stream whose launch ends in mid-epoch takes its turn up again if its next launch arrives within 200 µs. What
/// other streams had meanwhile counts. That may be a yield for each launch, which T does not account for. If the next
/// launch arrives later, the rest of the epoch is added to the stream's next one. Block-tasks that end within half of T
/// are not stopped at the end of an epoch ([`latency_limit`](super::Policy::latency_limit)): what is dropped is lost to all
/// streams. What they do then is not counted, so a stream whose block-tasks end within that time does more than its share, by up
/// to half of T in each epoch. One whose block-tasks take longer does less, because what is dropped counts. Launches that do not
/// yield run beyond their epoch, and their streams wait longer for the next one. Priorities and remaining times do not count.
#[derive(Debug)]
pub struct Ffs {
    shares: Shares,
}

/// Time for which a stream without a launch keeps its turn.
const GRACE: Duration = Duration::from_micros(200);

impl Ffs {
    /// With yields that cost at most a tenth of the time, as in FLEP section 6.3.3.
    pub fn new() -> Ffs {
        Ffs::with_max_overhead(0.1)
    }

    /// With yields that cost at most this fraction of the time; from 0.001 to 1, and what lies outside
    /// counts as the nearest of these.
    pub fn with_max_overhead(max_overhead: f64) -> Ffs {
        // What is not a number allows for no overhead.
        let limit = if max_overhead.is_nan() { 0.0 } else { max_overhead };
        Ffs { shares: Shares::new(Turn::Overhead(limit.clamp(0.001, 1.0)), GRACE) }
    }

    /// Without spatial sharing, as in FLEP: the stream whose turn it is has the whole device, and pays for all of it.
    /// Then streams whose launches cannot fill the device have no less than their share, and others no more.
    pub fn whole_device(self) -> Ffs {
        Ffs { shares: self.shares.whole_device() }
    }
}

impl Default for Ffs {
    fn default() -> Ffs {
        Ffs::new()
    }
}

delegate!(Ffs, "ffs", shares);
