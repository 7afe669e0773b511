//! The limits of stops whose times blocks tell.

use preempt_device::abi::{Signal, StopLimit};
use slotmap::SecondaryMap;

use crate::vocabulary::OpKey;

/// The limit of a signal, if it leaves blocks some time.
pub(super) fn limited(signal: Signal) -> Option<StopLimit> {
    match signal.limit() {
        StopLimit::SOONEST | StopLimit::REVOKED => None,
        limit => Some(limit),
    }
}

/// For each launch, the limit of the signals of which its blocks' times will tell.
///
/// Of the launch, and not of the cohort that was signalled: all cohorts of a launch add to the same words
/// ([`StopWords`](preempt_device::abi::StopWords)), and whichever ends first posts them. That is often a cohort which was launched
/// after the stop.
#[derive(Debug, Default)]
pub(super) struct StopLimits(SecondaryMap<OpKey, Known>);

#[derive(Clone, Copy, Debug)]
struct Known {
    /// The loosest since a time was told last, because a time is the longest for all of them.
    limit: StopLimit,
    is_told: bool,
}

impl StopLimits {
    /// Takes in that a signal has this limit.
    pub fn add(&mut self, op: OpKey, limit: StopLimit) {
        let limit = match self.0.get(op) {
            Some(&Known { limit: known, is_told: false }) if known.or_stricter(limit) == limit => {
                known
            }
            _ => limit,
        };
        self.0.insert(op, Known { limit, is_told: false });
    }

    /// The limit for a time that was told. It stays until the next signal, for blocks that leave later on account of the same.
    pub fn of_told(&mut self, op: OpKey) -> Option<StopLimit> {
        let known = self.0.get_mut(op)?;
        known.is_told = true;
        Some(known.limit)
    }

    pub fn forget(&mut self, op: OpKey) {
        self.0.remove(op);
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use preempt_device::abi::SmRange;
    use slotmap::SlotMap;

    use super::*;

    #[test]
    fn words_without_a_limit_have_none() {
        for (limit, expected) in [
            (StopLimit::SOONEST, None),
            (StopLimit::REVOKED, None),
            (StopLimit::ZERO, Some(StopLimit::ZERO)),
            (StopLimit::NEVER, Some(StopLimit::NEVER)),
        ] {
            assert_eq!(limited(Signal::within(1, SmRange::EMPTY, limit)), expected);
        }
    }

    #[test]
    fn a_time_is_compared_with_the_loosest_limit_since_the_last_one() {
        let mut keys = SlotMap::<OpKey, ()>::with_key();
        let [op, other] = [(); 2].map(|()| keys.insert(()));
        let [short, long] = [10_000, 30_000].map(StopLimit::within);
        let mut limits = StopLimits::default();
        assert_eq!(limits.of_told(op), None);
        for (added, expected) in [
            (&[short][..], short),
            (&[long], long),
            (&[short], short),
            (&[short, long, short], long),
            (&[], long),
            (&[long, StopLimit::ZERO], StopLimit::ZERO),
        ] {
            added.iter().for_each(|&limit| limits.add(op, limit));
            assert_eq!(limits.of_told(op), Some(expected), "{added:?}");
            assert_eq!(limits.of_told(other), None);
        }
        limits.forget(op);
        assert_eq!(limits.of_told(op), None);
    }
}
