//! How far blocks are in their tasks: what they tell the host, which stops nothing to know it.

use crate::atomic_shim::{AtomicU64, Ordering::Relaxed};

/// Blocks: the most of a cohort that tell how far they are. With more of them on each SM, SMs hardly differ, and the host reads
/// for longer.
pub const MAX_PROGRESS: usize = 1024;

const MARK_BITS: u32 = 8;
const SM_BITS: u32 = super::SM_BITS;
const SHIFT: u32 = MARK_BITS + SM_BITS;

/// What a block tells of its running tasks, in memory of the host: its SM, and when they began.
///
/// Relaxed: the host chooses by it which SMs it takes, and no other memory access depends on it.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Progress(AtomicU64);

/// A block's running tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begun {
    /// The SM that the block is on.
    pub sm: u32,
    /// Nanoseconds of the device's clock, modulo 2⁴⁶: when they began.
    pub at: u64,
}

impl Progress {
    /// Notes that the block, which is on this SM and in the cohort with this mark, begins tasks.
    #[inline(always)]
    pub fn begin(&self, mark: u8, sm: u32, now: u64) {
        self.0.store(now << SHIFT | u64::from(sm) << MARK_BITS | u64::from(mark), Relaxed);
    }

    /// Forgets what a block has told.
    pub fn clear(&self) {
        self.0.store(0, Relaxed);
    }

    /// What a block of the cohort with this mark, which is not 0, has told last.
    pub fn read(&self, mark: u8) -> Option<Begun> {
        let word = self.0.load(Relaxed);
        let sm = (word >> MARK_BITS) as u32 & ((1 << SM_BITS) - 1);
        (word as u8 == mark).then_some(Begun { sm, at: word >> SHIFT })
    }
}

impl Begun {
    /// Nanoseconds from the beginning of these tasks to that of others, if those began later; 0 otherwise.
    pub fn until(self, other: Begun) -> u64 {
        let bits = u64::BITS - SHIFT;
        let between = other.at.wrapping_sub(self.at) << SHIFT >> SHIFT;
        // Half of the clock's range lies ahead.
        if between >> (bits - 1) == 0 { between } else { 0 }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_word_tells_what_a_block_of_its_cohort_runs() {
        let word = Progress::default();
        assert_eq!(word.read(1), None);
        word.begin(255, 131, 1_000_000_007);
        assert_eq!(word.read(255), Some(Begun { sm: 131, at: 1_000_000_007 }));
        assert_eq!(word.read(1), None, "another cohort's");
        word.begin(1, super::super::MAX_SMS, u64::MAX);
        assert_eq!(word.read(1), Some(Begun { sm: super::super::MAX_SMS, at: (1 << 46) - 1 }));
    }

    #[test]
    fn times_are_compared_where_the_clock_begins_anew() {
        let at = |at| Begun { sm: 0, at };
        assert_eq!(at(5).until(at(25)), 20);
        assert_eq!(at(25).until(at(5)), 0);
        assert_eq!(at((1 << 46) - 5).until(at(5)), 10);
        assert_eq!(at(5).until(at((1 << 46) - 5)), 0);
    }
}
