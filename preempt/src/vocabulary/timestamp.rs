use std::ops::Sub;
use std::time::Duration;

/// A moment, as a time since the scheduler was built.
///
/// The difference of two timestamps is a [`Duration`]; timestamps of different schedulers have nothing in common.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp(Duration);

impl Timestamp {
    /// The moment this long after the scheduler was built.
    pub const fn after_start(time: Duration) -> Timestamp {
        Timestamp(time)
    }

    /// How long after the scheduler was built.
    pub const fn since_start(self) -> Duration {
        self.0
    }
}

impl Sub for Timestamp {
    type Output = Duration;

    /// The time from `earlier` to this moment; zero if it is later.
    fn sub(self, earlier: Timestamp) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}
