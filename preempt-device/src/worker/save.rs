//! Slots of a save area, where block-tasks are kept whose block left at a checkpoint.
//!
//! A slot belongs to a block-task, from the checkpoint where a block leaves it for the first time until it ends. Between
//! these, it belongs to the block that runs the block-task: that alone reads the slot and writes it. While the block-task
//! is on the requeue list, its entry names the slot, and no block accesses it. An exchange gives each entry to one block, so
//! the block-task goes on once from each save. A block-task that is left again keeps its slot.
//!
//! | who passes the slot on | to | by |
//! | --- | --- | --- |
//! | the block that leaves | the block that takes the entry | the fences of `requeue` |
//! | the block that ends the block-task | the block that finds the slot free | release and acquire, below |

use crate::atomic_shim::{AtomicU32, Ordering::Relaxed, fence_acquire, fence_release};

/// Takes a slot that no block-task has, `first` if that is free; `None` if all are taken. One thread of the block calls
/// this; the others may write to the slot after a barrier.
#[inline(always)]
pub(crate) fn take(used: &[AtomicU32], first: u32) -> Option<u32> {
    let slots = used.len() as u32;
    let first = first.checked_rem(slots)?;
    for number in 0..slots {
        let slot = first + number;
        let slot = if slot < slots { slot } else { slot - slots };
        // In bounds, as a function without panics for the GPU.
        let word = used.get(slot as usize)?;
        // Relaxed: the exchange alone decides whose the slot is; a load before it spares words that others have.
        if word.load(Relaxed) == 0 && word.swap(1, Relaxed) == 0 {
            // Acquire: what the last block read from the slot comes before what this one writes. On a GPU, this thread
            // alone has the fence, and the other threads of its block write behind a barrier with it.
            fence_acquire();
            return Some(slot);
        }
    }
    None
}

/// Gives a slot back. One thread of the block calls this, after a barrier behind which no thread reads the slot.
#[inline(always)]
pub(crate) fn give_back(used: &[AtomicU32], slot: u32) {
    let Some(word) = used.get(slot as usize) else { return };
    // Release: pairs with the fence in `take`. The barrier before puts what other threads read from the slot ahead of it.
    fence_release();
    word.store(0, Relaxed);
}
