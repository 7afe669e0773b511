//! The kernels that the tests run, on every device. Each says what it leaves behind.
//!
//! *Task* is the number of the block-task in its grid and *thread* the thread's number in the
//! whole grid, block after block ([`thread::index`]); x runs fastest in both.

use preempt_device::atomic::{AtomicU32, Ordering::Relaxed};
use preempt_device::prelude::*;

pub mod atomics;
mod compute;
mod counting;
mod dynamic;
mod faults;
mod indices;
mod instances;
pub mod math;
mod memory;
mod ranges;
mod warps;
mod yielding;

pub use compute::{
    Affine, add_index, guard_sync_guard, math, struct_arg, tiled_mm, vector_add, vector_add_own,
};
pub use counting::{
    count_1d, paced_1d, paced_2d, paced_3d, paced_early_return, paced_irregular, paced_shared,
};
pub use dynamic::{apart, reversed_runs};
pub use faults::{disagree, panics};
pub use indices::{helper_indices, optional, sm_of_task};
pub use instances::{filtered, scaled};
pub use memory::{Weights, exchanged, same_as_table, weighted, window_sums};
pub use ranges::{copy_four, scale, sum};
pub use warps::{MATCHES, warp_matches, warp_sums};
pub use yielding::{
    meet_marked, rotate_marking, rotate_saving, rotate_yielding, spin_marked, spin_marking,
    spin_yielding, tables_saving,
};

/// Threads in a block of [`tiled_mm`], in x and in y.
pub const TILE: usize = 16;

/// Adds `value` to the element at `index`, atomically: nothing that runs twice goes unseen.
#[inline(always)]
fn add(counts: SliceMut<u32>, index: u32, value: u32) {
    let index = index as usize;
    assert!(index < counts.len());
    // SAFETY: in bounds, and all kernels here access counts atomically.
    unsafe { AtomicU32::from_ptr(counts.as_mut_ptr().add(index)) }.fetch_add(value, Relaxed);
}

/// Thread 0 of the block adds 1 to `counts[task]`, and each thread adds 1 to `writes[thread]`.
#[inline(always)]
fn count(counts: SliceMut<u32>, writes: SliceMut<u32>) {
    if thread::thread_number() == 0 {
        add(counts, preempt_test_helpers::task_number(), 1);
    }
    add(writes, thread::index(), 1);
}
