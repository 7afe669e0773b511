//! The list of chunks that blocks gave back. Its first task was requeued at a yield point, or a block that
//! has to leave had claimed it ahead. A block that starts takes chunks from the list before fresh tasks, and
//! a block that finds no fresh tasks takes them then. The claims announce requeued tasks, too.
//!
//! The counters are relaxed: they hand out reservations and entries. Memory that a requeued task wrote is
//! ordered by the exchange on its entry, between the fences here. No operation is retried because of another
//! block: when a device is cleared, all its blocks are here at the same time.

use super::Chunk;
use crate::abi::{Claims, REQUEUE_CAPACITY, REQUEUE_MARGIN, REQUEUED, RequeueList};
use crate::atomic_shim::{AtomicU64, Ordering::Relaxed, fence_acquire, fence_release, pause};

/// Puts a chunk on the list, and a second one if that is not empty; `false` if there is no room. One thread
/// of the block calls this. If the block has run a task of the chunks, a barrier of the whole block lies
/// before.
///
/// Both at once, because the cost is the number of atomic operations on the list's words.
#[inline(always)]
pub(super) fn put(list: &RequeueList, first: Chunk, second: Chunk) -> bool {
    // Other blocks may find room at the same time: the margin holds two chunks of each block.
    let used = list.put.load(Relaxed).wrapping_sub(list.taken.load(Relaxed));
    if used >= REQUEUE_CAPACITY as u32 - REQUEUE_MARGIN {
        return false;
    }
    let count = 1 + u32::from(second.len > 0);
    let index = list.put.fetch_add(count, Relaxed);
    // Release: the writes of the requeued task come before those of its next run.
    fence_release();
    put_into(list, index, first);
    if second.len > 0 {
        put_into(list, index.wrapping_add(1), second);
    }
    list.available.fetch_add(count, Relaxed);
    true
}

/// Puts a task on the list whose block left it at a checkpoint, as a [saved](Chunk::saved) chunk. One thread of the block
/// calls this, and a barrier of the whole block lies before.
///
/// There is room: the margin holds one of these for each slot of a save area, beside two chunks of each block.
#[inline(always)]
pub(super) fn put_saved(list: &RequeueList, saved: Chunk) {
    let index = list.put.fetch_add(1, Relaxed);
    // Release: what the block wrote, to the slot and elsewhere, comes before what the task's next block does.
    fence_release();
    put_into(list, index, saved);
    list.available.fetch_add(1, Relaxed);
}

#[inline(always)]
fn put_into(list: &RequeueList, index: u32, chunk: Chunk) {
    let entry = &list.entries[index as usize % REQUEUE_CAPACITY];
    // The block that reserved this entry's previous chunk may not have taken it yet.
    while entry.compare_exchange(0, chunk.pack(), Relaxed, Relaxed).is_err() {
        pause();
    }
}

/// Takes a chunk that no block has reserved, if there is one; `available` was just read from the list. A
/// block may find none because others find the list empty at the same time. The chunk then stays for a later
/// cohort; it is not lost, because its tasks are not counted as done.
#[inline(always)]
pub(super) fn take(list: &RequeueList, available: u32) -> Chunk {
    if (available as i32) <= 0 {
        return Chunk::NONE;
    }
    if (list.available.fetch_sub(1, Relaxed) as i32) <= 0 {
        list.available.fetch_add(1, Relaxed);
        return Chunk::NONE;
    }
    // Not more entries are handed out here than chunks were put.
    let index = list.taken.fetch_add(1, Relaxed);
    take_from(&list.entries[index as usize % REQUEUE_CAPACITY])
}

/// Announces in the claims that a task was requeued, after it was put on the list.
#[inline(always)]
pub(super) fn announce(claims: &Claims) {
    claims.next.fetch_or(REQUEUED, Relaxed);
}

/// Withdraws the announcement from the claims, if the list is empty. The announcement is a hint: a chunk that
/// is put at this moment may stay unannounced. It is then taken with the next requeued one, by a block that
/// starts or looks anyway, or when all tasks are claimed.
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

/// Takes the chunk in an entry, and waits for it: a chunk that was put earlier may have been counted before
/// this one is written.
///
/// The block that reserved this entry one lap before may not have taken its chunk yet. It does not matter
/// which of the two blocks takes which chunk: an exchange gives each chunk to one block only.
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
