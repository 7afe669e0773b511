//! Kernels that are generic over constants.

use preempt_device::prelude::*;

/// `out[i]` is the sum of `weights[k] * x[i + k]` over the elements of `x` that exist.
#[preemptible(block = 2 * TAPS as u32, instances(8, 16))]
pub fn filtered<const TAPS: usize>(weights: [f32; TAPS], x: &[f32], out: SliceMut<f32>) {
    let tile = shared_array![f32; 3 * TAPS];
    let t = thread::thread_idx_x() as usize;
    let start = thread::block_idx_x() as usize * 2 * TAPS;
    for at in [t, t + 2 * TAPS] {
        if at < 3 * TAPS {
            let element = if start + at < x.len() { x[start + at] } else { 0.0 };
            // SAFETY: within the tile, and one thread for each element.
            unsafe { tile.add(at).write(element) };
        }
    }
    thread::sync_threads();
    let mut sum = 0.0;
    for (tap, weight) in weights.iter().enumerate() {
        // SAFETY: within the tile, which is not written any more.
        sum += weight * unsafe { tile.add(t + tap).read() };
    }
    if start + t < out.len() {
        // SAFETY: each thread writes its own element.
        unsafe { out.write(start + t, sum) };
    }
}

/// `out[i] = x[i] * FACTOR`, added to what is there if `ADDS`.
#[preemptible(instances((3, true), (-2, false)))]
pub fn scaled<const FACTOR: i32, const ADDS: bool>(x: &[i32], out: SliceMut<i32>) {
    let i = thread::index_1d() as usize;
    if i < out.len() {
        // SAFETY: each thread reads and writes its own element.
        unsafe { out.write(i, x[i] * FACTOR + if ADDS { out.read(i) } else { 0 }) };
    }
}
