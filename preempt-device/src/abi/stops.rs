//! How blocks leave an SM that was taken: the time that they have, and what they tell of it.

use super::{Halves, Post};
use crate::atomic_shim::{AtomicU32, AtomicU64, Ordering};

/// The time within which blocks leave an SM that a signal takes: it says which way of leaving a block chooses.
///
/// In 8 bits: three of mantissa and five of exponent. So a limit is up to an eighth shorter than what was asked for, and never
/// longer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct StopLimit(pub(super) u8);

impl StopLimit {
    /// As soon as possible, whatever that costs: at the next yield point or checkpoint.
    pub const SOONEST: StopLimit = StopLimit(u8::MAX);
    /// When the block-task ends, however late that is.
    pub const NEVER: StopLimit = StopLimit(u8::MAX - 1);
    /// As soon as possible, and nothing that the launch does counts any more, as all of it is done again with other memory.
    /// So a block leaves at the next yield point whatever its block-task has done before, behind a marker, too.
    pub const REVOKED: StopLimit = StopLimit(u8::MAX - 2);
    /// What no block keeps to: it leaves when its block-task ends.
    pub const ZERO: StopLimit = StopLimit(0);

    /// The nearest limit that is no longer than this time; [`NEVER`](StopLimit::NEVER) from 26 s on.
    pub const fn within(nanos: u64) -> StopLimit {
        if nanos < 8 {
            return StopLimit::ZERO;
        }
        let exponent = nanos.ilog2() - 3;
        let code = exponent << 3 | (nanos >> exponent) as u32 & 7;
        // The first code, 8 ns, would be zero.
        let code = code + 1;
        if code < StopLimit::REVOKED.0 as u32 { StopLimit(code as u8) } else { StopLimit::NEVER }
    }

    /// This limit, or the other one if that leaves less time.
    pub const fn or_stricter(self, other: StopLimit) -> StopLimit {
        if self.strictness() <= other.strictness() { self } else { other }
    }

    /// Less for less time. What nothing keeps to gives blocks all the time that they need.
    const fn strictness(self) -> u16 {
        match self {
            StopLimit::REVOKED => 0,
            StopLimit::SOONEST => 1,
            StopLimit::ZERO => u16::MAX,
            StopLimit(code) => code as u16 + 1,
        }
    }

    /// Nanoseconds; `u64::MAX` for [`NEVER`](StopLimit::NEVER), and 0 for [`SOONEST`](StopLimit::SOONEST) and
    /// [`REVOKED`](StopLimit::REVOKED).
    #[inline(always)]
    pub const fn nanos(self) -> u64 {
        match self {
            StopLimit::SOONEST | StopLimit::REVOKED | StopLimit::ZERO => 0,
            StopLimit::NEVER => u64::MAX,
            StopLimit(code) => (8 | (code as u64 - 1) & 7) << ((code - 1) >> 3),
        }
    }
}

/// [`Stops`] in memory.
#[derive(Debug, Default)]
#[repr(C)]
pub struct StopWords {
    longest: AtomicU32,
    latest: AtomicU32,
    /// Blocks by technique: drained, requeued and switched, from the lowest bit on, 20 bits for each.
    techniques: AtomicU64,
    lost: AtomicU64,
}

/// How the blocks of a cohort have left since the last report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stops {
    /// Units of [`Block::clock`](crate::worker::Block::clock): the longest time between two looks of the worker loop, which a
    /// block-task or several short ones took.
    pub longest: u32,
    /// Nanoseconds from the arrival of a signal with a limit until the last block left for it; 0 if that is not known.
    pub latest: u32,
    /// Blocks that ended a chunk on an SM that was taken.
    pub drained: u32,
    /// Blocks that requeued a block-task at a yield point.
    pub requeued: u32,
    /// Blocks that left a block-task at a checkpoint.
    pub switched: u32,
    /// Units of the same clock: the time of requeued block-tasks until they stopped, over all blocks.
    pub lost: u64,
}

/// Bits for the number of blocks that left by one technique: more than a cohort has blocks.
const TECHNIQUE_BITS: u32 = 20;

/// How a block left an SM that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Technique {
    Drain,
    Requeue,
    Switch,
}

impl Stops {
    pub(super) fn with_techniques(self, word: u64) -> Stops {
        let of =
            |index: u32| (word >> (index * TECHNIQUE_BITS)) as u32 & ((1 << TECHNIQUE_BITS) - 1);
        Stops { drained: of(0), requeued: of(1), switched: of(2), ..self }
    }
}

impl StopWords {
    /// Adds a chunk, which nothing waits for.
    #[inline(always)]
    pub(crate) fn add_chunk(&self, longest: u32) {
        self.longest.fetch_max(longest, Ordering::Relaxed);
    }

    /// Adds how a block left, which nothing waits for.
    #[inline(always)]
    pub(crate) fn add(&self, technique: Technique, latest: u32, lost: u32) {
        self.latest.fetch_max(latest, Ordering::Relaxed);
        let one = 1 << (technique as u32 * TECHNIQUE_BITS);
        self.techniques.fetch_add(one, Ordering::Relaxed);
        self.lost.fetch_add(u64::from(lost), Ordering::Relaxed);
    }

    /// Moves everything to a post, on the last block of a cohort.
    ///
    /// Exchanges, because blocks of the launch's other cohorts add at the same time. Relaxed: these are statistics, and what
    /// is not seen here is moved to the post of the next cohort.
    #[inline(always)]
    pub(crate) fn post(&self, post: &Post) {
        let longest = self.longest.swap(0, Ordering::Relaxed);
        let latest = self.latest.swap(0, Ordering::Relaxed);
        post.times.store(Halves { high: latest, low: longest }.pack(), Ordering::Relaxed);
        post.techniques.store(self.techniques.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        post.lost.store(self.lost.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Signal, SmRange};
    use super::*;

    #[test]
    fn a_limit_is_kept_to_an_eighth_and_never_exceeded() {
        for nanos in (8..4000).chain([15_000, 50_000, 1 << 20, 999_999_999, 20_000_000_000]) {
            let limit = StopLimit::within(nanos);
            assert!(limit.nanos() <= nanos && nanos < limit.nanos() + limit.nanos() / 8 + 1);
            let signal = Signal::within(5, SmRange::new(3, 9), limit);
            assert_eq!((signal.limit(), signal.range()), (limit, SmRange::new(3, 9)));
            assert!(!signal.is_newer(Signal::new(5, SmRange::new(3, 9))));
            assert!(signal.is_newer(Signal::new(4, SmRange::ALL)));
        }
        assert_eq!([0, 7].map(StopLimit::within), [StopLimit::ZERO; 2]);
        assert_eq!([60_000_000_000, u64::MAX].map(StopLimit::within), [StopLimit::NEVER; 2]);
        assert_eq!(Signal::new(5, SmRange::ALL).limit(), StopLimit::SOONEST);
        let by_strictness = [
            StopLimit::REVOKED,
            StopLimit::SOONEST,
            StopLimit::within(9000),
            StopLimit::NEVER,
            StopLimit::ZERO,
        ];
        for (index, &limit) in by_strictness.iter().enumerate() {
            for other in &by_strictness[index..] {
                assert_eq!([limit.or_stricter(*other), other.or_stricter(limit)], [limit; 2]);
            }
        }
    }
}
