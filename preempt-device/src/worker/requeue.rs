//! Chunks that blocks gave back: those whose first task was requeued in its middle, and those that were claimed
//! ahead by a block that has to leave. Whoever starts takes them before fresh tasks, and whoever finds no fresh
//! tasks takes them then. Of what was requeued the claims tell, too.
//!
//! The counters are relaxed: they hand out rights and places. What a requeued task wrote goes with the exchange on
//! its entry, between the fences here. No operation is tried again because another block came in between: when a
//! device is cleared, all its blocks are here at the same time.

use super::Chunk;
use crate::abi::{Claims, REQUEUE_CAPACITY, REQUEUE_MARGIN, REQUEUED, RequeueList};
use crate::atomic_shim::{AtomicU64, Ordering::Relaxed, fence_acquire, fence_release, pause};

/// Puts a chunk on the list, and a second one if that is not empty; `false` if there is no room. On one thread; if a
/// task of them has run, after a barrier of the whole block.
///
/// Two at once, since it is the number of atomic operations on the list's words that takes time.
#[inline(always)]
pub(super) fn put(list: &RequeueList, first: Chunk, second: Chunk) -> bool {
    // Others may find room at the same time: the margin is there for two chunks of each block.
    let used = list.put.load(Relaxed).wrapping_sub(list.taken.load(Relaxed));
    if used >= REQUEUE_CAPACITY as u32 - REQUEUE_MARGIN {
        return false;
    }
    let count = 1 + u32::from(second.len > 0);
    let index = list.put.fetch_add(count, Relaxed);
    // Release: what the requeued task wrote comes before what it will write when it runs again.
    fence_release();
    put_into(list, index, first);
    if second.len > 0 {
        put_into(list, index.wrapping_add(1), second);
    }
    list.available.fetch_add(count, Relaxed);
    true
}

#[inline(always)]
fn put_into(list: &RequeueList, index: u32, chunk: Chunk) {
    let entry = &list.entries[index as usize % REQUEUE_CAPACITY];
    // Whoever takes what was here one lap before may not have got to it yet.
    while entry.compare_exchange(0, chunk.pack(), Relaxed, Relaxed).is_err() {
        pause();
    }
}

/// Takes a chunk, if there is one that nobody has a right to; `available` was just read from the list. Some may find
/// none because others are finding that out: the chunk is then left to a later cohort, and not lost, since its tasks
/// are not done.
#[inline(always)]
pub(super) fn take(list: &RequeueList, available: u32) -> Chunk {
    if (available as i32) <= 0 {
        return Chunk::NONE;
    }
    if (list.available.fetch_sub(1, Relaxed) as i32) <= 0 {
        list.available.fetch_add(1, Relaxed);
        return Chunk::NONE;
    }
    // No more places are given out here than chunks were put.
    let index = list.taken.fetch_add(1, Relaxed);
    take_from(&list.entries[index as usize % REQUEUE_CAPACITY])
}

/// Has claims say that a task was requeued, after it was put on the list.
#[inline(always)]
pub(super) fn announce(claims: &Claims) {
    claims.next.fetch_or(REQUEUED, Relaxed);
}

/// Has claims no longer say that a task was requeued, if nothing is on the list. A hint: a chunk that is put there at this
/// moment may go untold, and is then taken with the next one that is requeued, by a block that starts or looks anyway, or
/// when nothing is left to claim.
#[inline(always)]
pub(super) fn withdraw(claims: &Claims, list: &RequeueList) {
    let is_empty = || list.available.load(Relaxed) as i32 <= 0;
    if is_empty() {
        claims.next.fetch_and(!REQUEUED, Relaxed);
        if !is_empty() {
            announce(claims);
        }
    }
}

/// Takes what is in an entry, once there is something: the right to a chunk may be to another one, that was put
/// sooner than this one.
///
/// Whoever took the place one lap before may not have got to it yet, and then its chunk is still here. It does not
/// matter which of the two takes which: an exchange gives each chunk to one only.
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
