//! Means of times.

use std::time::Duration;

/// Times, about, in the mean: as many as FLEP profiles for each kernel (section 4.2).
const MOST: f64 = 50.0;

/// A mean of times, in which the last [`MOST`] weigh most.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    count: f64,
    seconds: f64,
}

impl Mean {
    pub fn add(&mut self, time: Duration) {
        self.count = (self.count + 1.0).min(MOST);
        self.seconds += (time.as_secs_f64() - self.seconds) / self.count;
    }

    /// The mean, if it is of this number of times or more.
    pub fn of_at_least(&self, count: f64) -> Option<Duration> {
        (self.count >= count).then(|| Duration::from_secs_f64(self.seconds))
    }
}
