//! What the elected thread of a block remembers while tasks run, in shared memory: all threads of the kernel would have
//! the registers for it.

use core::cell::UnsafeCell;
use core::fmt;

use crate::abi::{Cohort, Halves};
use crate::target;

/// A word that only the elected thread uses, and that the compiler leaves where it is.
#[derive(Default)]
#[repr(transparent)]
pub struct Note<T>(UnsafeCell<T>);

impl<T: Copy> Note<T> {
    #[inline(always)]
    pub(super) fn get(&self) -> T {
        // SAFETY: one thread uses it, by these two functions.
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

/// The start of a queue, as the block has last seen it. The smallest copy past the L1 cache has 16 bytes; two words, and
/// not one note with both, since what is volatile and larger than a register goes through local memory.
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub struct SignalCopy {
    pub(super) signal: Note<u64>,
    _behind: Note<u64>,
}

/// What the elected thread of a block remembers while tasks run.
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub struct BlockNotes {
    /// What [`Block::ask`](super::Block::ask) asks for.
    pub(crate) asked: SignalCopy,
    /// The last word of the queue that grants the SM.
    pub(super) seen: Note<u64>,
    /// What is claimed and has not run, but for chunks from the list: so many tasks (high half) from the one in the
    /// low half on. While a chunk of it runs, what is behind that one.
    pub(super) claimed: Note<u64>,
    /// When the tasks that run were started (high half), and how many they are; none before the first ones.
    pub(super) batch: Note<u64>,
    /// The most tasks that fit into the time between two looks.
    pub(super) most: Note<u32>,
    /// How many tasks were claimed ahead.
    pub(super) size: Note<u32>,
    /// Tasks that the block has done, and those that run.
    pub(super) done: Note<u32>,
    /// Not 0 while nothing is claimed, since there is more on the list.
    pub(super) list_first: Note<u32>,
    /// Not 0 if the chunk that was decided on last is from the list.
    pub(super) is_listed: Note<u32>,
}

/// What is claimed and does not run, as the claim that was under way has ended. Nothing, for now, if `ahead` has
/// [`REQUEUED`]: it is without that when everything counts.
#[inline(always)]
pub(super) fn claimed(notes: &BlockNotes, cohort: &Cohort, ahead: u32) -> Halves {
    let claimed = Halves::unpack(notes.claimed.get());
    if claimed.high > 0 {
        return claimed;
    }
    // Or else the compiler would have all threads compute what follows from it.
    let start = target::opaque(ahead);
    let high = tasks_from(cohort, start, notes.size.get());
    // No task if nothing was claimed, and then perhaps past the last number.
    let claimed = Halves { high, low: cohort.handed.wrapping_add(start) };
    notes.claimed.set(claimed.pack());
    claimed
}

/// How many there are of `size` claimed tasks from `start` on; none if that has [`REQUEUED`].
#[inline(always)]
pub(super) fn tasks_from(cohort: &Cohort, start: u32, size: u32) -> u32 {
    (cohort.tasks - cohort.handed).saturating_sub(start).min(size)
}
