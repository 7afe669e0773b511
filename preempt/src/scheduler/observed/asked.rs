//! Which latency limits were asked for.
//!
//! A signal has a limit of four bits, the nearest one that is no longer ([`StopLimit::within`]): up to an eighth shorter. What is
//! counted as late is later than what was asked for.

use std::time::Duration;

use preempt_device::abi::StopLimit;

use crate::policy::kept;

/// The limits that were asked for, and what the device keeps to for each.
#[derive(Debug, Default)]
pub(in crate::scheduler) struct AskedLimits(Vec<(StopLimit, Duration)>);

impl AskedLimits {
    /// Takes in that a launch, a stream or the policy asks for this limit.
    pub fn add(&mut self, limit: Option<Duration>) {
        let Some(limit) = limit else { return };
        let kept = kept(limit);
        match self.0.iter_mut().find(|(of, _)| *of == kept) {
            Some((_, shortest)) => *shortest = limit.min(*shortest),
            None => self.0.push((kept, limit)),
        }
    }

    /// What was asked for where the device keeps to this limit; of several the shortest, so that none counts as kept which was
    /// not.
    pub fn of(&self, kept: StopLimit) -> Duration {
        // To end all block-tasks is never late, whatever was asked for.
        let known = self.0.iter().find(|&&(of, _)| of == kept && kept != StopLimit::NEVER);
        known.map_or(Duration::from_nanos(kept.nanos()), |&(_, asked)| asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_counts_against_the_shortest_limit_that_was_asked_for() {
        let us = Duration::from_micros;
        let mut asked = AskedLimits::default();
        assert_eq!(asked.of(kept(us(30))), Duration::from_nanos(28_672), "as the device keeps to");
        asked.add(None);
        asked.add(Some(us(15)));
        asked.add(Some(us(30)));
        assert_eq!((asked.of(kept(us(30))), asked.of(kept(us(15)))), (us(30), us(15)));
        // The device takes both for one.
        asked.add(Some(us(29)));
        asked.add(Some(us(30)));
        assert_eq!(asked.of(kept(us(30))), us(29));
        asked.add(Some(Duration::ZERO));
        assert_eq!(asked.of(StopLimit::ZERO), Duration::ZERO);
        asked.add(Some(us(30_000_000)));
        asked.add(Some(Duration::MAX));
        assert_eq!(asked.of(StopLimit::NEVER), Duration::from_nanos(u64::MAX));
    }
}
