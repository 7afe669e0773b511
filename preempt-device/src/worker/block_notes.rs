//! The state that the elected thread of a block keeps while tasks run. It is in shared memory, because in
//! registers it would occupy those of all threads of the kernel.

use core::cell::UnsafeCell;
use core::fmt;

use super::MAX_REQUEUES;
use crate::abi::{Cohort, Halves};
use crate::atomic_shim::{AtomicU32, Ordering::Relaxed};
use crate::target;

/// A word in memory that only the elected thread uses, by volatile accesses.
#[derive(Default)]
#[repr(transparent)]
pub struct Note<T>(UnsafeCell<T>);

impl<T: Copy> Note<T> {
    #[inline(always)]
    pub(super) fn get(&self) -> T {
        // SAFETY: one thread accesses the word, by these two functions.
        unsafe { self.0.get().read_volatile() }
    }

    #[inline(always)]
    pub(super) fn set(&self, value: T) {
        // SAFETY: as above.
        unsafe { self.0.get().write_volatile(value) }
    }
}

impl<T> fmt::Debug for Note<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Note")
    }
}

/// A copy of the first 16 bytes of a device queue, the least that can be copied past the L1 cache. They are
/// two words and not one note, because a volatile value that is larger than a register goes through local
/// memory.
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub struct SignalCopy {
    pub(super) signal: Note<u64>,
    _behind: Note<u64>,
}

/// The state that the elected thread of a block keeps while tasks run.
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub struct BlockNotes {
    /// The target of [`Block::ask`](super::Block::ask).
    pub(crate) asked: SignalCopy,
    /// The last word of the queue that granted the SM.
    pub(super) seen: Note<u64>,
    /// The tasks that are claimed and have not started, without chunks from the list: their number (high
    /// half), and the first one (low half).
    pub(super) claimed: Note<u64>,
    /// The start time of the running tasks (high half), and their number; 0 before the first ones.
    pub(super) batch: Note<u64>,
    /// Tasks: the most that fit between two looks.
    pub(super) most: Note<u32>,
    /// The number of tasks that were claimed ahead.
    pub(super) size: Note<u32>,
    /// The number of tasks that the block has finished or runs.
    pub(super) done: Note<u32>,
    /// Not 0 while the block claims no fresh tasks because of chunks on the list.
    pub(super) list_first: Note<u32>,
    /// Not 0 if the last chunk is from the list.
    pub(super) is_listed: Note<u32>,
    /// Of kernels with yield points: the start time of the running tasks, whose lowest bit says whether the first of them was
    /// requeued as often as it may be without a limit. Threads at yield points read it, so it is no note.
    began: AtomicU32,
    /// Units of [`Block::clock`](super::Block::clock): the longest chunk.
    pub(super) longest: Note<u32>,
    /// How the block leaves, plus 1; 0 while it does not.
    pub(super) technique: Note<u32>,
    /// Nanoseconds since the signal that it leaves for, if that is known.
    pub(super) latest: Note<u32>,
    /// Units of the clock: the work of a requeued task.
    pub(super) lost: Note<u32>,
}

impl BlockNotes {
    /// Notes that tasks begin, the first of which was requeued so often.
    ///
    /// Relaxed: the time is for an estimate, and a thread that reads the last one instead takes its task for a long one. An
    /// exchange, because `racecheck` reports a store as a race with concurrent reads.
    #[inline(always)]
    pub(super) fn begin(&self, now: u32, requeues: u32) {
        self.began.swap(now & !1 | u32::from(requeues >= MAX_REQUEUES), Relaxed);
    }

    /// Whether the first of the running tasks may be requeued for signals with a limit alone. It also says so of those behind it.
    /// A task that takes so long that it is requeued has none in its chunk, as a rule.
    #[cfg(any(target_arch = "nvptx64", all(test, not(loom))))]
    #[inline(always)]
    pub(crate) fn is_spent(&self) -> bool {
        self.began.load(Relaxed) & 1 > 0
    }

    /// The time since the running tasks began.
    #[inline(always)]
    pub(crate) fn elapsed(&self, now: u32) -> u32 {
        now.wrapping_sub(self.began.load(Relaxed))
    }
}

/// The tasks that are claimed and have not started, after the claim in flight has returned. None if `ahead`
/// has the bit [`REQUEUED`](crate::abi::REQUEUED); callers that count all claimed tasks pass it without that bit.
#[inline(always)]
pub(super) fn claimed(notes: &BlockNotes, cohort: &Cohort, ahead: u32) -> Halves {
    let claimed = Halves::unpack(notes.claimed.get());
    if claimed.high > 0 {
        return claimed;
    }
    // Hidden from the compiler, which would otherwise have all threads compute the following values.
    let start = target::opaque(ahead);
    let high = tasks_from(cohort, start, notes.size.get());
    // Wrapping: if nothing was claimed, the start may be past the last number.
    let claimed = Halves { high, low: cohort.handed.wrapping_add(start) };
    notes.claimed.set(claimed.pack());
    claimed
}

/// How many of `size` claimed tasks from `start` on exist; none if `start` has the bit [`REQUEUED`](crate::abi::REQUEUED).
#[inline(always)]
pub(super) fn tasks_from(cohort: &Cohort, start: u32, size: u32) -> u32 {
    claimable(cohort).saturating_sub(start).min(size)
}

/// The number of tasks that are claimed, and not handed out.
#[inline(always)]
pub(super) fn claimable(cohort: &Cohort) -> u32 {
    // Computed anew each time; see [`target::opaque`].
    target::opaque(cohort.tasks) - cohort.handed
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_time_says_whether_a_task_is_requeued_once_more_without_a_limit() {
        let notes = BlockNotes::default();
        for (requeues, is_spent) in [(0, false), (MAX_REQUEUES - 1, false), (MAX_REQUEUES, true)] {
            notes.begin(1001, requeues);
            assert_eq!(notes.is_spent(), is_spent, "{requeues}");
            assert!(notes.elapsed(1100) <= 101);
        }
    }
}
