//! Sum of a vector (SHOC, `Reduction`).

use preempt_device::prelude::*;

use crate::sum_by_halves;

/// Threads of a block.
pub const BLOCK: u32 = 256;
const THREADS: usize = BLOCK as usize;

/// What one block adds up before it goes on by what all blocks add up.
pub const PAIRS: usize = 2 * THREADS;

/// `partial[block] = ` the sum of the block's part of `x`: of [`PAIRS`] elements at `block * PAIRS`, and so on
/// in steps of `PAIRS` times the number of blocks. `partial` has an element for each block-task.
///
/// The order of additions depends on the grid alone. [`reduce_in_order`] has the same.
#[preemptible(block = BLOCK)]
pub fn reduce(x: &[f32], partial: SliceMut<f32>) {
    let sums = shared_array![f32; THREADS];
    let t = thread::thread_idx_x() as usize;
    let grid = thread::grid_dim_x();
    // Numbers of elements are below `1 << 32`, and so are the sums of them here.
    assert!(x.len() <= 1 << 31 && grid <= 1 << 20);
    let (length, step) = (x.len() as u32, PAIRS as u32 * grid);
    let mut i = thread::block_idx_x() * PAIRS as u32 + t as u32;
    let mut sum = 0.0f32;
    // SAFETY: indices are compared with the length. `t` is below the number of threads, barriers lie between
    // writes of the sums and reads by other threads, all lanes of the first warp shuffle, and each block
    // writes its own element.
    unsafe {
        // Two steps at once, so that four loads are under way.
        while i + step + BLOCK < length {
            let (first, second) = (x.as_ptr().add(i as usize), x.as_ptr().add((i + step) as usize));
            let (a, b) = (first.read(), first.add(THREADS).read());
            let (c, d) = (second.read(), second.add(THREADS).read());
            sum += a + b;
            sum += c + d;
            i += 2 * step;
        }
        while i < length {
            let first = x.as_ptr().add(i as usize);
            let b = if i + BLOCK < length { first.add(THREADS).read() } else { 0.0 };
            sum += first.read() + b;
            i += step;
        }
        sums.add(t).write(sum);
        thread::sync_threads();
        let mut half = THREADS / 2;
        while half >= 32 {
            if t < half {
                sum += sums.add(t + half).read();
                sums.add(t).write(sum);
            }
            thread::sync_threads();
            half /= 2;
        }
        if t < 32 {
            let mut distance = 16;
            while distance > 0 {
                sum += warp::warp_shuffle_down(warp::FULL_MASK, sum, distance, 32).0;
                distance /= 2;
            }
            if t == 0 {
                partial.write(thread::block_idx_x() as usize, sum);
            }
        }
    }
}

/// What block-task `block` of a grid of `grid` writes in [`reduce`], of the `length` elements that `x` gives.
pub fn reduce_in_order(x: impl Fn(usize) -> f32, length: usize, block: usize, grid: usize) -> f32 {
    let element = |i: usize| if i < length { x(i) } else { 0.0 };
    let mut sums = [0.0f32; THREADS];
    for first in (block * PAIRS..length).step_by(PAIRS * grid) {
        for (t, sum) in sums.iter_mut().enumerate() {
            *sum += element(first + t) + element(first + t + THREADS);
        }
    }
    sum_by_halves(&mut sums)
}
