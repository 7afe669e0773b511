//! SMs in proportion to weights.

use std::time::Duration;

use super::delegate::delegate;
use super::shares::{Shares, Turn};
use super::{Arrival, DeviceView, Plan};
use crate::vocabulary::LaunchId;

/// Shares of the device in proportion to the weights of streams, by virtual time. This is start-time fair queueing
/// (Goyal, Vin and Cheng, SIGCOMM 1996); Linux's CFS is of the kind.
///
/// A stream's virtual time is its time on SMs, summed over SMs and divided by its [weight](Arrival::weight). It counts
/// while a launch has less than it can fill. The stream that is furthest behind runs until it is a *quantum* ahead:
/// that time on the whole device, for a weight of 1. So over any time, a stream that always has work differs from its
/// share by at most two quanta of the heaviest one. It waits for at most a quantum of each other one. A new stream
/// starts where the stream that is furthest behind is: it neither waits for what others have had before, nor makes them
/// wait. A stream that comes back within a millisecond, and a quantum, takes its turn up again, and what others had
/// meanwhile counts.
///
/// [`Ffs`](super::Ffs) is the same with a quantum that follows what yields cost; this one is for a bound on the wait.
/// A yield for each quantum is the price. Launches that do not yield run beyond it, and their streams wait longer for
/// the next one. Priorities and remaining times do not count.
#[derive(Debug)]
pub struct FairShare {
    shares: Shares,
}

impl FairShare {
    /// With a quantum of 1 ms.
    pub fn new() -> FairShare {
        FairShare::with_quantum(Duration::from_millis(1))
    }

    /// With another quantum, of at least 10 µs and at most an hour; what lies outside counts as the nearest of these.
    pub fn with_quantum(quantum: Duration) -> FairShare {
        let quantum = quantum.min(Duration::from_secs(3600));
        FairShare { shares: Shares::new(Turn::Fixed(quantum), quantum.min(GRACE)) }
    }
}

/// Time for which a stream without a launch keeps its turn, if a quantum is not shorter.
const GRACE: Duration = Duration::from_millis(1);

impl Default for FairShare {
    fn default() -> FairShare {
        FairShare::new()
    }
}

delegate!(FairShare, "fair share", shares);
