//! Kernels as they were written for rust-cuda. What preempt has added are the lines with
//! `preempt_device`, `#[preemptible]` and `yield_point!`.

extern crate preempt_device as cuda_std;

use cuda_std::prelude::*;

/// Numbers in a window, and threads in a block of [`score`].
pub const WINDOW: usize = 256;

/// Steps that are made in a row.
pub const STRIDE: u32 = 64;

/// Where [`STRIDE`] steps of a random walk lead from `x` (xorshift, Marsaglia 2003).
fn stride(mut x: u32) -> u32 {
    for _ in 0..STRIDE {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
    }
    x
}

/// `ends[i]` is where a random walk of `strides` times [`STRIDE`] steps comes to from `starts[i]`.
///
/// # Safety
///
/// `ends` has as many elements as `starts`.
#[preemptible(idempotent)]
#[kernel]
pub unsafe fn walk(starts: &[u32], strides: u32, ends: *mut u32) {
    let i = thread::index_1d() as usize;
    if i < starts.len() {
        let mut x = starts[i];
        for _ in 0..strides {
            yield_point!();
            x = stride(x);
        }
        // SAFETY: `i` is below the length of `starts`, and no other thread has it.
        unsafe { *ends.add(i) = x }
    }
}

/// `scores[block]` is the dot product of a row of [`WINDOW`] `weights` for each block, and the `window`.
///
/// # Safety
///
/// Blocks have [`WINDOW`] threads; `weights` has as many elements as there are threads, `window` as
/// many as a block has, and `scores` one for each block.
#[preemptible]
#[kernel]
pub unsafe fn score(weights: &[i32], window: &[i32], scores: *mut i32) {
    let products = shared_array![i32; WINDOW];
    let t = thread::thread_idx_x() as usize;
    // SAFETY: `t` is below `WINDOW`, and each thread writes its own product.
    unsafe { *products.add(t) = weights[thread::index_1d() as usize] * window[t] };
    thread::sync_threads();
    let mut width = WINDOW / 2;
    while width > 0 {
        if t < width {
            // SAFETY: below `2 * width`, and what others write lies below `width` or before the barrier.
            unsafe { *products.add(t) += *products.add(t + width) };
        }
        thread::sync_threads();
        width /= 2;
    }
    if t == 0 {
        // SAFETY: one thread of each block, which has a score.
        unsafe { *scores.add(thread::block_idx_x() as usize) = *products };
    }
}
