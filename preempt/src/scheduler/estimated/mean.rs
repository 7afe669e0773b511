//! Means of what was seen.

use std::time::Duration;

/// Numbers, about, in the mean: as many as FLEP profiles for each kernel (section 4.2).
const MOST: f64 = 50.0;

/// A mean of numbers, or of times in seconds, in which the last [`MOST`] weigh most.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    count: f64,
    mean: f64,
}

impl Mean {
    pub fn add(&mut self, time: Duration) {
        self.add_number(time.as_secs_f64());
    }

    pub fn add_number(&mut self, number: f64) {
        self.count = (self.count + 1.0).min(MOST);
        self.mean += (number - self.mean) / self.count;
    }

    /// The mean, if it is of this number of times or more.
    pub fn of_at_least(&self, count: f64) -> Option<Duration> {
        (self.count >= count).then(|| Duration::from_secs_f64(self.mean))
    }

    /// The mean of the numbers and `first`, which counts as one number before them.
    pub fn with(&self, first: f64) -> f64 {
        (self.count * self.mean + first) / (self.count + 1.0)
    }
}
