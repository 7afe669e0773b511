//! Measured times, and how they are shown.

use std::time::Duration;

use preempt_report::{digits, percentile};

/// Measured times of one thing.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<Duration>);

impl Samples {
    /// Adds a time.
    pub fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// Adds all of these.
    pub fn append(&mut self, mut times: Samples) {
        self.0.append(&mut times.0);
    }

    /// Adds the time, if there is one.
    pub fn extend(&mut self, time: Option<Duration>) {
        self.0.extend(time);
    }

    /// All times, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = Duration> {
        self.0.iter().copied()
    }

    /// The number of times.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The median: half of the times are no longer. Zero if there are none.
    pub fn p50(&self) -> Duration {
        self.summary().p50
    }

    /// The standard error of the median: 1.25 standard deviations over the root of the number of times. A standard
    /// deviation is the distance of the quartiles, which strays change little, over 1.35. Both hold for normal
    /// distributions.
    pub fn p50_error(&self) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = |share: f64| percentile(&sorted, share).unwrap_or_default();
        (at(0.75) - at(0.25)).mul_f64(1.25 / 1.35 / (self.0.len().max(1) as f64).sqrt())
    }

    /// Percentiles of the times; zeros if there are none.
    pub fn summary(&self) -> Summary {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = |share: f64| percentile(&sorted, share).unwrap_or_default();
        Summary { p50: at(0.5), p99: at(0.99), max: at(1.0) }
    }
}

/// Percentiles of many times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Summary {
    /// Half of them are no longer.
    pub p50: Duration,
    /// 99 of 100 are no longer.
    pub p99: Duration,
    /// The longest.
    pub max: Duration,
}

/// The ratio of `a` to `b`; `None` if `b` is zero.
pub fn ratio(a: Duration, b: Duration) -> Option<f64> {
    (!b.is_zero()).then(|| a.as_secs_f64() / b.as_secs_f64())
}

/// The geometric mean of the values that are there.
pub fn geometric_mean(ratios: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let logarithms: Vec<f64> = ratios.flatten().map(f64::ln).collect();
    let count = logarithms.len() as f64;
    (count > 0.0).then(|| (logarithms.iter().sum::<f64>() / count).exp())
}

/// The arithmetic mean; `None` of no values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// A time with three significant digits.
pub fn show(time: Duration) -> String {
    let nanos = time.as_nanos() as f64;
    let (value, unit) = match nanos {
        nanos if nanos < 1e6 => (nanos / 1e3, "µs"),
        nanos if nanos < 1e9 => (nanos / 1e6, "ms"),
        nanos => (nanos / 1e9, "s"),
    };
    format!("{} {unit}", digits(value))
}

/// A time, if there is one.
pub fn show_time(time: Option<Duration>) -> String {
    time.map_or_else(|| "-".to_owned(), show)
}

/// A number with three significant digits.
pub fn show_number(number: Option<f64>) -> String {
    number.map_or_else(|| "-".to_owned(), digits)
}

/// A ratio with three significant digits.
pub fn show_ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| digits(ratio) + "x")
}

/// A fraction of one, in percent.
pub fn show_percent(part: Option<f64>) -> String {
    part.map_or_else(|| "-".to_owned(), |part| format!("{:.1} %", 100.0 * part))
}

#[cfg(test)]
mod tests {
    use preempt_report::microseconds;

    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let mut samples = Samples::default();
        (1..=200).rev().for_each(|n| samples.push(Duration::from_micros(n)));
        let Summary { p50, p99, max } = samples.summary();
        assert_eq!([p50, p99, max].map(microseconds), [100.0, 198.0, 200.0]);
        assert_eq!(Samples::default().summary().max, Duration::ZERO);
    }

    #[test]
    fn a_geometric_mean_is_of_what_there_is() {
        let mean = geometric_mean([Some(0.5), None, Some(8.0)].into_iter());
        assert!(mean.is_some_and(|mean| (mean - 2.0).abs() < 1e-12));
        assert_eq!(geometric_mean([None].into_iter()), None);
    }

    #[test]
    fn more_samples_tell_a_median_better() {
        let samples =
            |count: u64| Samples((0..count).map(|n| Duration::from_micros(n % 4)).collect());
        let [few, many] = [4, 400].map(|count| samples(count).p50_error().as_nanos());
        assert_eq!((few, many), (926, 93));
        assert_eq!(Samples::default().p50_error(), Duration::ZERO);
    }

    #[test]
    fn times_have_three_digits() {
        let shown =
            [5, 1_234, 45_678, 999_400, 12_345_678, 3_000_000_000].map(Duration::from_nanos);
        let expected = ["0.01 µs", "1.23 µs", "45.7 µs", "999 µs", "12.3 ms", "3.00 s"];
        assert_eq!(shown.map(show), expected);
    }
}
