//! The result of tuning, which errors carry, too.

use std::time::Duration;

/// An amortizing factor, and what was measured with it.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct Tuned {
    /// The factor, for [`Call::amortize`](crate::Call::amortize); at least 1.
    pub amortize: u32,
    /// How much longer the preemptible kernel takes, as a part of the plain time: 0.04 is 4 %. Negative if it is
    /// faster. Not below the limit only if no factor is.
    pub overhead: f64,
    /// Median time of the plain kernel, from its launch to the end of waiting for it.
    pub plain: Duration,
    /// Median time of the preemptible kernel with this factor.
    pub preemptible: Duration,
    /// Whether it comes from the file, so that nothing was launched.
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
