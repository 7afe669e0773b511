//! Consecutive tasks, in one word.

use super::MAX_REQUEUES_FOR_LIMITS;
use crate::abi::{Halves, MAX_TASKS, share_bits};

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

    /// Packs the chunk into one word: `start` in the low half, `len` in 29 bits of the high half, `requeues`
    /// in 3. Zero is `NONE`.
    #[inline(always)]
    pub const fn pack(self) -> u64 {
        Halves { high: self.requeues << LEN_BITS | self.len, low: self.start }.pack()
    }

    /// The chunk in a word from [`pack`](Chunk::pack).
    #[inline(always)]
    pub const fn unpack(word: u64) -> Chunk {
        let Halves { high, low } = Halves::unpack(word);
        Chunk { start: low, len: high & ((1 << LEN_BITS) - 1), requeues: high >> LEN_BITS }
    }
}

impl Chunk {
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
const SAVED: u32 = 7;

/// Bits of a chunk's length. They suffice, because a claim takes half of an even share at most.
const LEN_BITS: u32 = 29;

const _: () = assert!(MAX_TASKS >> share_bits(1) < 1 << LEN_BITS);
const _: () = assert!(MAX_REQUEUES_FOR_LIMITS < SAVED && SAVED < 1 << (u32::BITS - LEN_BITS));
