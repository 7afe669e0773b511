//! Helper functions that live in another crate than the kernels that call them.
#![cfg_attr(target_arch = "nvptx64", no_std)]

use preempt_device::thread;

/// The number of the block-task in its grid: x runs fastest, then y, then z.
#[inline(always)]
pub fn task_number() -> u32 {
    let (block, grid) = (thread::block_idx(), thread::grid_dim());
    (block.z * grid.y + block.y) * grid.x + block.x
}

/// A barrier behind a condition, where the kernel's attribute cannot see it.
#[inline(always)]
pub fn sync_if(condition: bool) {
    if condition {
        thread::sync_threads();
    }
}
