//! Chunks whose first task was dropped in its middle. The block that dropped it puts the chunk
//! back and leaves; whoever claims next takes it, before fresh tasks.
//!
//! The counters are relaxed, and so is the look at an entry before it is taken: they hand out indices.
//! What a dropped task wrote goes with the exchange on its entry, between the fences here.

use super::{Block, Chunk};
use crate::abi::{DROP_CAPACITY, DropList, Halves};
use crate::atomic_shim::{AtomicU64, Ordering::Relaxed, fence_acquire, fence_release, pause};

/// Puts `rest`, of which the first task was dropped once more, on the list; `false` if it is full.
///
/// Every thread of the block calls this, after all have ended the task.
#[inline(always)]
pub(super) fn put_back(block: &mut impl Block, list: &DropList, rest: Chunk) -> bool {
    let dropped = Chunk { drops: rest.drops + 1, ..rest };
    let put = block.elect(|_| if put(list, dropped) { dropped } else { Chunk::NONE });
    put.len > 0
}

/// On one thread, after a barrier of the whole block.
#[inline(always)]
fn put(list: &DropList, chunk: Chunk) -> bool {
    let mut counters = list.counters.load(Relaxed);
    let index = loop {
        let Halves { high: put, low: taken } = Halves::unpack(counters);
        if put.wrapping_sub(taken) as usize >= DROP_CAPACITY {
            return false;
        }
        let next = Halves { high: put.wrapping_add(1), low: taken }.pack();
        match list.counters.compare_exchange(counters, next, Relaxed, Relaxed) {
            Ok(_) => break put,
            Err(current) => counters = current,
        }
    };
    let entry = &list.entries[index as usize % DROP_CAPACITY];
    // Release: what the dropped task wrote comes before what it will write when it runs again.
    fence_release();
    // Whoever takes what was here one lap before may not have got to it yet.
    while entry.compare_exchange(0, chunk.pack(), Relaxed, Relaxed).is_err() {
        pause();
    }
    true
}

/// Takes the oldest chunk, if there is one, and if it has been written. One that has not is left to
/// others, or to a later cohort: it is not lost, since its tasks are not done.
#[inline(always)]
pub(super) fn take(list: &DropList) -> Chunk {
    let mut counters = list.counters.load(Relaxed);
    loop {
        let Halves { high: put, low: taken } = Halves::unpack(counters);
        if put == taken {
            return Chunk::NONE;
        }
        let entry = &list.entries[taken as usize % DROP_CAPACITY];
        if entry.load(Relaxed) == 0 {
            return Chunk::NONE;
        }
        let next = Halves { high: put, low: taken.wrapping_add(1) }.pack();
        match list.counters.compare_exchange(counters, next, Relaxed, Relaxed) {
            Ok(_) => break take_from(entry),
            Err(current) => counters = current,
        }
    }
}

/// Takes what is in an entry, once there is something.
///
/// Whoever took the index one lap before may not have got to it yet, and then its chunk is still
/// here. It does not matter which of the two takes which: an exchange gives each chunk to one only.
#[inline(always)]
fn take_from(entry: &AtomicU64) -> Chunk {
    loop {
        let word = entry.swap(0, Relaxed);
        if word != 0 {
            // Acquire: pairs with the fence in `put`.
            fence_acquire();
            return Chunk::unpack(word);
        }
        pause();
    }
}
