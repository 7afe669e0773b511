//! The result of tuning, which errors carry, too.

use std::time::Duration;

/// An amortizing factor, and what was measured with it.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct Tuned {
    /// The factor, for [`Call::amortize`](crate::BorrowingCall::amortize); at least 1.
    pub amortize: u32,
    /// What the preemptible kernel takes beyond the plain one, as a part of what that one takes: 0.04 is 4 %. Less
    /// than 0 if it is faster. If it is not below the limit, no factor is.
    pub overhead: f64,
    /// From the launch of the plain kernel to the end of waiting for it: the median.
    pub plain: Duration,
    /// The same for the preemptible kernel with this factor.
    pub preemptible: Duration,
    /// Whether it comes from the file, and nothing was launched.
    pub cached: bool,
}

impl Tuned {
    pub(crate) fn new(amortize: u32, plain: Duration, preemptible: Duration) -> Tuned {
        // Clocks may be too coarse to see the launch.
        let nanos = |time: Duration| time.as_nanos().max(1) as f64;
        let overhead = (nanos(preemptible) - nanos(plain)) / nanos(plain);
        Tuned { amortize, overhead, plain, preemptible, cached: false }
    }
}
