//! Consecutive tasks, in one word.

use crate::abi::Halves;

/// Consecutive tasks that one block claimed; none when `len` is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// The first task.
    pub start: u32,
    /// How many tasks.
    pub len: u32,
    /// How often the first task was requeued; the others were not.
    pub requeues: u32,
}

impl Chunk {
    /// No tasks: the block leaves.
    pub const NONE: Chunk = Chunk { start: 0, len: 0, requeues: 0 };

    /// Packs the chunk into one word: `start` in the low half, `len` in 30 bits of the high half, `requeues`
    /// in 2. Zero is `NONE`.
    #[inline(always)]
    pub const fn pack(self) -> u64 {
        Halves { high: self.requeues << 30 | self.len, low: self.start }.pack()
    }

    /// The chunk in a word from [`pack`](Chunk::pack).
    #[inline(always)]
    pub const fn unpack(word: u64) -> Chunk {
        let Halves { high, low } = Halves::unpack(word);
        Chunk { start: low, len: high & ((1 << 30) - 1), requeues: high >> 30 }
    }
}

/// A chunk without its first task: the number of tasks, in 30 bits, and how often the first one was requeued, in 2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Counts(u32);

impl Counts {
    const LEN: u32 = (1 << 30) - 1;

    #[inline(always)]
    pub fn len(self) -> u32 {
        self.0 & Counts::LEN
    }

    #[inline(always)]
    pub fn requeues(self) -> u32 {
        self.0 >> 30
    }

    /// The chunk from `start` on.
    #[inline(always)]
    pub fn from(self, start: u32) -> Chunk {
        Chunk { start, len: self.len(), requeues: self.requeues() }
    }

    /// With this number of requeues.
    #[inline(always)]
    pub fn requeued(self, requeues: u32) -> Counts {
        Counts(self.len() | requeues << 30)
    }

    /// What is behind the first task, which there is.
    #[inline(always)]
    pub fn behind(self) -> Counts {
        Counts(self.len() - 1)
    }
}

impl Chunk {
    #[inline(always)]
    pub(super) fn counts(self) -> Counts {
        Counts((self.pack() >> 32) as u32)
    }

    /// A task that was saved in this slot.
    #[inline(always)]
    pub const fn saved(task: u32, slot: u32) -> Chunk {
        Chunk { start: task, len: slot + 1, requeues: SAVED }
    }

    /// The task, as a chunk of its own, and the slot that it was saved in, if it was.
    #[inline(always)]
    pub(super) fn with_slot(self) -> (Chunk, Option<u32>) {
        match self.requeues {
            SAVED => (Chunk { len: 1, requeues: 0, ..self }, Some(self.len - 1)),
            _ => (self, None),
        }
    }
}

/// In the place of the number of requeues: the chunk is one task that was saved, and its length says where.
const SAVED: u32 = 3;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_tasks_behind_one_were_not_requeued() {
        let chunk = Chunk { start: 7, len: (1 << 30) - 1, requeues: 2 };
        let counts = chunk.counts();
        assert_eq!((counts.from(7), counts.len(), counts.requeues()), (chunk, chunk.len, 2));
        let behind = Chunk { start: 8, len: chunk.len - 1, requeues: 0 };
        assert_eq!(counts.behind().from(8), behind);
        assert_eq!(counts.behind().requeued(1).from(8), Chunk { requeues: 1, ..behind });
        assert_eq!(counts.requeued(0).requeues(), 0);
    }
}
