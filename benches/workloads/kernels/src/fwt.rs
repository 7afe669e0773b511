//! Walsh transforms, and convolution by them (CUDA samples, `fastWalshTransform`).
//!
//! All kernels overwrite what they read, so a block-task cannot run twice, and there are no yield points. The one with a loop
//! has a form with a checkpoint.

use preempt_device::prelude::*;

/// The logarithm of the elements that a block transforms in shared memory.
pub const LOG_CHUNK: u32 = 11;

/// Elements that a block transforms in shared memory.
pub const CHUNK: usize = 1 << LOG_CHUNK;

/// Threads of a block that transforms in shared memory: each has four elements.
const CHUNK_BLOCK: u32 = CHUNK as u32 / 4;

/// Threads of other blocks.
pub const BLOCK: u32 = 256;

/// Elements of a thread of [`modulate`] in a full grid. With 64 of them, a block-task takes longer than blocks may take to leave.
pub const RUN: u32 = 16;

/// The transform of four elements, `stride` apart.
///
/// # Safety
///
/// All of them are in the memory behind the pointer, and no other thread accesses them meanwhile.
#[inline(always)]
unsafe fn butterfly(first: *mut f32, stride: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let (a, b) = (first.read(), first.add(stride).read());
        let (c, d) = (first.add(2 * stride).read(), first.add(3 * stride).read());
        let (sum_ac, sum_bd, rest_ac, rest_bd) = (a + c, b + d, a - c, b - d);
        first.write(sum_ac + sum_bd);
        first.add(stride).write(sum_ac - sum_bd);
        first.add(2 * stride).write(rest_ac + rest_bd);
        first.add(3 * stride).write(rest_ac - rest_bd);
    }
}

/// Two steps of the transform, of elements that are `stride` apart and of those twice as far: a power of two. One thread
/// for four elements.
#[preemptible(block = BLOCK)]
pub fn fwt_batch_2(stride: u32, data: SliceMut<f32>) {
    let (i, stride) = (thread::index_1d() as usize, stride as usize);
    let low = i & (stride - 1);
    let first = (i - low) * 4 + low;
    if first + 3 * stride < data.len() {
        // SAFETY: within the data, and each thread has its own elements.
        unsafe { butterfly(data.as_mut_ptr().add(first), stride) }
    }
}

/// The other steps, within each [`CHUNK`] elements: one block-task for each of them.
#[preemptible(block = CHUNK_BLOCK)]
pub fn fwt_batch_1(data: SliceMut<f32>) {
    let chunk = shared_array![f32; CHUNK];
    let (t, threads) = (thread::thread_idx_x() as usize, CHUNK / 4);
    let first = thread::block_idx_x() as usize * CHUNK;
    // Once, so that nothing below has to be checked.
    assert!(first + CHUNK <= data.len());
    // SAFETY: `t` is below a quarter of the chunk, so the elements are within it. In each step, a thread has elements of
    // its own, and barriers lie between steps.
    unsafe {
        let data = data.as_mut_ptr().add(first);
        let mut i = t;
        while i < CHUNK {
            chunk.add(i).write(data.add(i).read());
            i += threads;
        }
        let mut stride = CHUNK / 4;
        while stride > 1 {
            thread::sync_threads();
            let low = t & (stride - 1);
            butterfly(chunk.add((t - low) * 4 + low), stride);
            stride /= 4;
        }
        // One step is left, since the logarithm is odd.
        thread::sync_threads();
        let mut i = t;
        while i < CHUNK / 2 {
            let (a, b) = (chunk.add(2 * i).read(), chunk.add(2 * i + 1).read());
            chunk.add(2 * i).write(a + b);
            chunk.add(2 * i + 1).write(a - b);
            i += threads;
        }
        thread::sync_threads();
        let mut i = t;
        while i < CHUNK {
            data.add(i).write(chunk.add(i).read());
            i += threads;
        }
    }
}

/// `a[i] = a[i] * b[i] * scale`. Threads go through the elements in steps of the grid's threads; any grid will do.
#[preemptible(block = BLOCK)]
pub fn modulate(scale: f32, b: &[f32], a: SliceMut<f32>) {
    let (mut i, length) = (thread::index_1d() as usize, a.len());
    let step = (thread::grid_dim_x() * BLOCK) as usize;
    // Once, so that nothing below has to be checked.
    assert!(length <= b.len());
    while i < length {
        // SAFETY: below the length of both, and each thread has its own elements.
        unsafe {
            let own = a.as_mut_ptr().add(i);
            own.write(own.read() * *b.get_unchecked(i) * scale);
        }
        i += step;
    }
}

/// Elements of a thread of [`modulate_saving`] between two checkpoints.
const SAVING_RUN: u32 = 8;

/// What [`modulate`] computes, with a checkpoint.
#[preemptible(block = BLOCK)]
pub fn modulate_saving(scale: f32, b: &[f32], a: SliceMut<f32>) {
    let first = thread::index_1d() as usize;
    let length = a.len();
    let step = (thread::grid_dim_x() * BLOCK) as usize;
    // Once, so that nothing below has to be checked.
    assert!(length <= b.len());
    let rounds = length.div_ceil(step * SAVING_RUN as usize) as u32;
    // A round overwrites its own elements, and there is nothing to keep.
    checkpoint!(nothing: () = () => for round in 0..rounds {
        let mut i = first + (round * SAVING_RUN) as usize * step;
        let mut k = 0;
        while k < SAVING_RUN && i < length {
            // SAFETY: below the length of both, and each thread has its own elements.
            unsafe {
                let own = a.as_mut_ptr().add(i);
                own.write(own.read() * *b.get_unchecked(i) * scale);
            }
            i += step;
            k += 1;
        }
    });
}
