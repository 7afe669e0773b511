//! Slots of a save area, where block-tasks are kept whose block left at a checkpoint.
//!
//! A slot belongs to a block-task from the checkpoint where a block leaves it until another block goes on with it. So slots
//! are in use only for block-tasks on the requeue list, whose entries name them, and no block accesses those. An exchange gives
//! each entry to one block, so a block-task goes on once from each save.
//!
//! | who passes the slot on | to | by |
//! | --- | --- | --- |
//! | the block that leaves | the block that takes the entry | the fences of `requeue` |
//! | the block that goes on | the block that finds the slot free | release and acquire, below |
//!
//! Each slot has a bit, which is 0 while it is free. A block that looks for a slot sees 32 of them in one access, which takes
//! most of a microsecond on a GPU: with a word for each slot, blocks that were stopped at the same time looked for one for tens
//! of them.

use crate::atomic_shim::{AtomicU32, Ordering::Relaxed, fence_acquire, fence_release};
use crate::target;

/// Takes a free slot of the first `slots`; `None` if no slot is free. The search starts where the hash of the block's `number`
/// says, so blocks seldom try the same slot. One thread of the block calls this; the others may write to the slot after a
/// barrier.
#[inline(always)]
pub(crate) fn take(words: &[AtomicU32], slots: u32, number: u32) -> Option<u32> {
    let in_use = slots.div_ceil(u32::BITS);
    // Fibonacci hashing (Knuth): the high bits choose a word, and the low ones where in it.
    let hash = number.wrapping_mul(0x9E37_79B9);
    let (first, turn) = (((hash >> 16) * in_use) >> 16, hash % u32::BITS);
    for step in 0..in_use {
        let index = first + step;
        let index = if index < in_use { index } else { index - in_use };
        // In bounds, as a function without panics for the GPU. Hidden from the compiler, which would otherwise step a pointer
        // through the words, and forget in what memory they are.
        let word = words.get(target::opaque(index) as usize)?;
        let existing = match slots - index * u32::BITS {
            rest @ ..u32::BITS => (1 << rest) - 1,
            _ => u32::MAX,
        };
        // At first as if all were free, which is right more often than not, and spares a load.
        let mut taken = 0;
        // Each further round means that another block has this slot.
        while taken & existing != existing {
            let bit = ((!taken & existing).rotate_right(turn).trailing_zeros() + turn) % u32::BITS;
            // Relaxed: it alone decides whose the slot is.
            taken = word.fetch_or(1 << bit, Relaxed);
            if taken & 1 << bit == 0 {
                // Acquire: what the last block read from the slot comes before what this one writes. On a GPU, this thread
                // alone has the fence, and the other threads of its block write behind a barrier with it.
                fence_acquire();
                return Some(index * u32::BITS + bit);
            }
        }
    }
    None
}

/// Gives a slot back. One thread of the block calls this, after a barrier behind which no thread reads the slot.
#[inline(always)]
pub(crate) fn give_back(words: &[AtomicU32], slot: u32) {
    let Some(word) = words.get((slot / u32::BITS) as usize) else { return };
    // Release: pairs with the fence in `take`, also where other blocks have changed other bits of the word since. The barrier
    // before puts what other threads read from the slot ahead of it.
    fence_release();
    word.fetch_and(!(1 << (slot % u32::BITS)), Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_slot_is_taken_once() {
        for slots in [1, 31, 32, 33, 64, 100] {
            let words: Vec<_> = (0..5).map(|_| AtomicU32::new(0)).collect();
            let taken: BTreeSet<_> = (0..slots).filter_map(|n| take(&words, slots, n)).collect();
            assert!(taken.into_iter().eq(0..slots), "{slots} slots");
            assert_eq!(take(&words, slots, 7), None);
            give_back(&words, slots / 2);
            assert_eq!(take(&words, slots, 7), Some(slots / 2));
            (0..slots).for_each(|slot| give_back(&words, slot));
            assert!(words.iter().all(|word| word.load(Relaxed) == 0));
        }
        assert_eq!(take(&[], 0, 3), None);
    }

    /// As many block-tasks as an H200 holds blocks, with a quarter of the slots in use.
    #[test]
    fn blocks_seldom_try_the_same_slot() {
        let words: Vec<_> = (0..128).map(|_| AtomicU32::new(0x8888_8888)).collect();
        for number in 0..1056 {
            take(&words, 4096, number).expect("a slot");
        }
        let most = words.iter().map(|word| word.load(Relaxed).count_ones()).max();
        assert!(most < Some(u32::BITS), "a word is full: {most:?}");
    }
}
