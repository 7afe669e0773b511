//! How far blocks are in their tasks: what they tell the host, which stops nothing to know it.

use crate::atomic_shim::{AtomicU64, Ordering::Relaxed};

/// Blocks: the most of a cohort that tell how far they are. With more of them on each SM, SMs hardly differ, and the host reads
/// for longer.
pub const MAX_PROGRESS: usize = 1024;

const MARK_BITS: u32 = 8;
const SM_BITS: u32 = super::SM_BITS;
const SPENT: u64 = 1 << (MARK_BITS + SM_BITS);
const SHIFT: u32 = MARK_BITS + SM_BITS + 1;

/// What a block tells of its running tasks, in memory of the host: its SM, when they began, and whether they can be dropped.
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
    /// Nanoseconds of the device's clock, modulo 2⁴⁵: when they began.
    pub at: u64,
    /// Whether they run to their end if the block has to leave without a limit: the first of them was requeued as often as it
    /// may be.
    pub is_spent: bool,
}

impl Progress {
    /// Notes that the block begins tasks, in the cohort with this mark.
    #[inline(always)]
    pub fn begin(&self, mark: u8, Begun { sm, at, is_spent }: Begun) {
        let spent = if is_spent { SPENT } else { 0 };
        self.0.store(at << SHIFT | spent | u64::from(sm) << MARK_BITS | u64::from(mark), Relaxed);
    }

    /// Forgets what a block has told.
    pub fn clear(&self) {
        self.0.store(0, Relaxed);
    }

    /// What a block of the cohort with this mark, which is not 0, has told last.
    pub fn read(&self, mark: u8) -> Option<Begun> {
        let word = self.0.load(Relaxed);
        let sm = (word >> MARK_BITS) as u32 & ((1 << SM_BITS) - 1);
        let begun = Begun { sm, at: word >> SHIFT, is_spent: word & SPENT > 0 };
        (word as u8 == mark).then_some(begun)
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
        let begun = Begun { sm: 131, at: 1_000_000_007, is_spent: true };
        word.begin(255, begun);
        assert_eq!(word.read(255), Some(begun));
        assert_eq!(word.read(1), None, "another cohort's");
        let begun = Begun { sm: super::super::MAX_SMS, at: u64::MAX, is_spent: false };
        word.begin(1, begun);
        assert_eq!(word.read(1), Some(Begun { at: (1 << 45) - 1, ..begun }));
    }

    #[test]
    fn times_are_compared_where_the_clock_begins_anew() {
        let at = |at| Begun { sm: 0, at, is_spent: false };
        assert_eq!(at(5).until(at(25)), 20);
        assert_eq!(at(25).until(at(5)), 0);
        assert_eq!(at((1 << 45) - 5).until(at(5)), 10);
        assert_eq!(at(5).until(at((1 << 45) - 5)), 0);
    }
}
