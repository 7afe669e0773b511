//! The kernels.

use cuda_std::prelude::*;
#[allow(unused_imports, reason = "the preemptible forms have names of their own")]
use cuda_std::{shared_array, thread as threads, warp};
use preempt_device::preemptible;

/// Threads in a block of [`reverse`] and [`block_sums`].
pub const BLOCK: usize = 128;

/// `c[i] = a[i] + b[i]`, as rust-cuda's own example has it.
///
/// # Safety
///
/// `c` has as many elements as `a` and `b`.
#[preemptible]
#[kernel]
#[allow(improper_ctypes_definitions)]
pub unsafe fn add(a: &[f32], b: &[f32], c: *mut f32) {
    let idx = thread::index_1d() as usize;
    if idx < a.len() {
        // SAFETY: `idx` is below the length of `a`, and no other thread has it.
        let elem = unsafe { &mut *c.add(idx) };
        *elem = a[idx] + b[idx];
    }
}

/// Reverses each run of [`BLOCK`] elements, through shared memory.
///
/// # Safety
///
/// `d` has [`BLOCK`] elements for each block of the grid, and blocks have as many threads.
#[kernel]
#[preemptible(block = BLOCK as u32)]
pub unsafe fn reverse(d: *mut i32) {
    let s = shared_array![i32; BLOCK];
    let t = thread::thread_idx_x() as usize;
    let start = thread::block_idx_x() as usize * BLOCK;
    // SAFETY: `t` is below `BLOCK`, the elements are this block's, and a barrier is between the threads.
    unsafe {
        *s.add(t) = *d.add(start + t);
        thread::sync_threads();
        *d.add(start + t) = *s.add(BLOCK - t - 1);
    }
}

/// Sums each run of [`BLOCK`] elements: a tree in shared memory, with a path of every form.
///
/// # Safety
///
/// `sums` has an element for each block of the grid, and blocks have [`BLOCK`] threads.
#[kernel]
#[preemptible(block = (BLOCK as u32, 1, 1), amortize = 2)]
pub unsafe fn block_sums(x: &[u32], sums: *mut u32) {
    use cuda_std::thread::{self, sync_threads};
    let partial = cuda_std::shared_array![u32; BLOCK];
    let t = thread::thread_idx_x() as usize;
    let i = cuda_std::thread::index_1d() as usize;
    // SAFETY: `t` is below `BLOCK`, and each thread writes its own element.
    unsafe { *partial.add(t) = if i < x.len() { x[i] } else { 0 } };
    sync_threads();
    let mut width = BLOCK / 2;
    while width > 0 {
        if t < width {
            // SAFETY: below `2 * width`, and what others write lies below `width` or before the barrier.
            unsafe { *partial.add(t) += *partial.add(t + width) };
        }
        thread::sync_threads();
        width /= 2;
    }
    if t == 0 {
        assert_eq!(thread::block_dim_x() as usize, BLOCK);
        // SAFETY: one thread of each block, which has a sum.
        unsafe { *sums.add(thread::block_idx_x() as usize) = *partial };
    }
}

/// `out[y * width + x] = y * 1000 + x` on a 2D grid; `lanes[..]` is the lane of the thread.
///
/// # Safety
///
/// `out` and `lanes` have `width * height` elements.
#[preemptible]
#[kernel]
pub unsafe fn coordinates(width: u32, height: u32, out: *mut u32, lanes: *mut u32) {
    let at = thread::index_2d();
    if at.x >= width || at.y >= height {
        return;
    }
    let i = (at.y * width + at.x) as usize;
    // SAFETY: below `width * height`, and no other thread has it.
    unsafe {
        *out.add(i) = at.y * 1000 + at.x;
        *lanes.add(i) = warp::lane_id();
    }
}

/// The thread's number in the grid, by a helper outside of the kernel.
#[inline(always)]
fn helper() -> u32 {
    threads::index_1d()
}

/// `out[i] = i`, where `i` is what a helper function says.
///
/// # Safety
///
/// `out` has an element for each thread.
#[preemptible]
#[kernel]
pub unsafe fn by_helper(out: *mut u32) {
    let i = helper();
    // SAFETY: the element of this thread.
    unsafe { *out.add(i as usize) = i }
}
