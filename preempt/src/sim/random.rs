//! Random numbers, determined by a seed.

use std::time::Duration;

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Clone, Copy, Debug)]
pub(super) struct Random(u64);

impl Random {
    /// The numbers of one of many things that have the same seed.
    pub fn of(seed: u64, thing: u64) -> Random {
        let mut random = Random(seed);
        Random(random.next() ^ thing.wrapping_mul(0xD1B5_4A32_D192_ED03))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ bits >> 31
    }

    /// Evenly from 0 to below 1.
    pub fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// An exponentially distributed time.
    pub fn exponential(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-(1.0 - self.part()).ln())
    }

    /// A number from 1 to `most` with a Pareto distribution, bounded by drawing from its part below `most`.
    pub fn pareto(&mut self, shape: f64, most: f64) -> f64 {
        let beyond = most.powf(-shape);
        (1.0 - self.part() * (1.0 - beyond)).powf(-1.0 / shape).min(most)
    }
}
