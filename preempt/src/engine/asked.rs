//! Which latency limits were asked for.
//!
//! A signal has four significant bits of a limit ([`StopLimit::within`]), rounded down, so its limit is up to an eighth shorter. A
//! stop counts as late if it took longer than what was asked for.

use std::time::Duration;

use preempt_device::abi::StopLimit;

use crate::policy::on_device;

/// The limits that were asked for, and what signals have in their place.
#[derive(Debug, Default)]
pub(super) struct AskedLimits(Vec<(StopLimit, Duration)>);

impl AskedLimits {
    /// Takes in that this limit is asked for; returns what a signal has in its place.
    pub fn add(&mut self, limit: Duration) -> StopLimit {
        let code = on_device(limit);
        match self.0.iter_mut().find(|(of, _)| *of == code) {
            Some((_, shortest)) => *shortest = limit.min(*shortest),
            None => self.0.push((code, limit)),
        }
        code
    }

    /// What was asked for where signals have this limit; of several the shortest, so that none counts as kept which was not. Where
    /// they have none because it is so long (26 s), no stop is late.
    pub fn of(&self, code: StopLimit) -> Duration {
        let known = self.0.iter().find(|&&(of, _)| of == code && code != StopLimit::NEVER);
        known.map_or(Duration::from_nanos(code.nanos()), |&(_, asked)| asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_counts_against_the_shortest_limit_that_was_asked_for() {
        let us = Duration::from_micros;
        let mut asked = AskedLimits::default();
        assert_eq!(asked.of(on_device(us(30))), Duration::from_nanos(28_672), "as signals have it");
        let codes = [15, 30].map(|limit| asked.add(us(limit)));
        assert_eq!(codes.map(|code| asked.of(code)), [us(15), us(30)]);
        // Signals have the same for both.
        assert_eq!([29, 30].map(|limit| asked.add(us(limit))), [codes[1]; 2]);
        assert_eq!(asked.of(codes[1]), us(29));
        assert_eq!(asked.add(Duration::ZERO), StopLimit::ZERO);
        assert_eq!(asked.of(StopLimit::ZERO), Duration::ZERO);
        let longest = [us(30_000_000), Duration::MAX].map(|limit| asked.add(limit));
        assert_eq!(longest, [StopLimit::NEVER; 2]);
        assert_eq!(asked.of(StopLimit::NEVER), Duration::from_nanos(u64::MAX));
    }
}
