//! Markers against drops: in a kernel that may be dropped until a thread gets to its marker, the first of both decides.

use crate::atomic_shim::{AtomicU32, Ordering::Relaxed};

/// What the threads of a block without barriers have decided about the block-task that they run: that it is dropped, or that
/// one of them has passed a marker, so that it runs to its end. One word for each block.
///
/// The word holds the index of the block-task that it is about, and the decision. So no thread has to reset it when the
/// next block-task begins, which it could do neither before the last thread has ended the preceding one, nor after the
/// first thread has begun the next: a word about another block-task says nothing about this one. A block that has dropped a
/// block-task leaves, or runs it again as one that cannot be requeued and asks nothing here. A block that has marked one
/// finishes it, or leaves for a revocation. So an index is decided about at most once in the life of a block.
///
/// Relaxed: each thread acts by the word alone. The changes of one word have one order, so all threads agree which decision
/// was the first. What follows a marker is reached only by the answer, so no store of it comes before. What a dropped run
/// wrote reaches the next run of the block-task with the requeue list, or the end of the cohort.
///
/// All threads of a block have ended a block-task before one begins the next: the worker loop has a barrier there where
/// kernels have yield points. So no thread changes the word for one block-task while others look at it for another.
#[doc(hidden)]
#[derive(Debug)]
#[repr(transparent)]
pub struct Decision(AtomicU32);

/// The word of a block that has decided nothing. No block-task has this index: there are at most
/// [`MAX_TASKS`](crate::abi::MAX_TASKS).
const NONE: u32 = u32::MAX;

const _: () = assert!(NONE >> 1 >= crate::abi::MAX_TASKS);

/// The bit that says that the block-task was dropped.
const DROPPED: u32 = 1;

impl Default for Decision {
    #[inline(always)]
    fn default() -> Decision {
        Decision(AtomicU32::new(NONE))
    }
}

impl Decision {
    /// Drops `task`, or marks it, unless a thread of the block has done either before. Returns whether it is dropped.
    #[inline(always)]
    pub fn decide(&self, task: u32, drops: bool) -> bool {
        let own = task << 1 | u32::from(drops);
        let mut word = self.0.load(Relaxed);
        if word >> 1 != task {
            // Two threads may have seen that nothing is decided. With a store, each would go by its own decision.
            word = match self.0.compare_exchange(word, own, Relaxed, Relaxed) {
                Ok(_) => {
                    #[cfg(not(any(target_arch = "nvptx64", all(test, loom))))]
                    count(drops);
                    own
                }
                // Only threads of this block-task have changed the word since it began.
                Err(word) => word,
            };
        }
        word & DROPPED > 0
    }
}

/// Block-tasks that were marked, and that were dropped, by blocks that this process emulates, in kernels with markers.
#[cfg(not(any(target_arch = "nvptx64", all(test, loom))))]
static COUNTS: [core::sync::atomic::AtomicU64; 2] =
    [const { core::sync::atomic::AtomicU64::new(0) }; 2];

/// Counts a decision, for tests.
#[cfg(not(any(target_arch = "nvptx64", all(test, loom))))]
pub(super) fn count(drops: bool) {
    // Relaxed: counts order nothing.
    COUNTS[usize::from(drops)].fetch_add(1, Relaxed);
}

/// How many block-tasks were marked, and how many were dropped, by blocks that this process emulates, in kernels with
/// markers. With barriers in the body, each thread that is marked counts.
#[doc(hidden)]
#[cfg(not(any(target_arch = "nvptx64", all(test, loom))))]
pub fn counts() -> [u64; 2] {
    COUNTS.each_ref().map(|count| count.load(Relaxed))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_decision_about_a_task_stands() {
        let decision = Decision::default();
        for task in [0, 7, 8, 3, crate::abi::MAX_TASKS - 1] {
            for first in [false, true] {
                let decision = Decision(AtomicU32::new(decision.0.load(Relaxed)));
                for drops in [first, !first, first] {
                    assert_eq!(decision.decide(task, drops), first);
                }
            }
            decision.decide(task, task % 2 > 0);
        }
    }
}
