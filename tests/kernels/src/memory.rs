//! Kernels that tempt the compiler to keep memory where it must not, or to put into memory what fits in registers.

use preempt_device::prelude::*;

/// Weights by value, read at an index that only the thread knows.
#[derive(Clone, Copy, Debug, KernelArg)]
#[repr(C)]
pub struct Weights {
    /// The weights.
    pub by_lane: [f32; 32],
}

/// `out[i] = x[i] * by_lane[i % 32] * by_row[i / 256 % 800]`
#[preemptible(block = 256)]
pub fn weighted(weights: Weights, by_row: [f32; 800], x: &[f32], out: SliceMut<f32>) {
    let i = thread::index_1d() as usize;
    if i < out.len() {
        let weight = weights.by_lane[i % 32] * by_row[i / 256 % 800];
        // SAFETY: each thread writes its own element.
        unsafe { out.write(i, x[i] * weight) }
    }
}

/// `out[i]` is the sum of those of `x[i + 16]`, `x[i + 8]`, `x[i + 4]`, `x[i + 2]` and `x[i + 1]` that exist.
#[preemptible(block = 256)]
pub fn window_sums(x: &[f32], out: SliceMut<f32>) {
    let i = thread::index_1d() as usize;
    let mut sum = 0.0;
    for distance in [16, 8, 4, 2, 1] {
        if i + distance < x.len() {
            sum += x[i + distance];
        }
    }
    if i < out.len() {
        // SAFETY: each thread writes its own element.
        unsafe { out.write(i, sum) }
    }
}

/// `out[i]` is 1 if `x[8 * i..8 * i + 8]` is the table, else 0: a comparison that the compiler leaves to a function.
#[preemptible(block = 256)]
pub fn same_as_table(table: [u32; 8], x: &[u32], out: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    if i < out.len() {
        // SAFETY: each thread writes its own element.
        unsafe { out.write(i, u32::from(x[8 * i..8 * i + 8] == table)) }
    }
}

/// Writes through a reference, waits until another thread has written there, and reads. Not a helper to imitate: the
/// reference says that no other thread does.
fn exchange(own: &mut u32, other: *mut u32, value: u32) -> u32 {
    *own = value;
    thread::sync_threads();
    // SAFETY: in shared memory, and each thread has one of its own to write to.
    unsafe { other.write(value) };
    thread::sync_threads();
    *own
}

/// `out[i] = i ^ 1`, by a helper that holds a `&mut` to shared memory across barriers, which is undefined in Rust. Only
/// for the GPU, where the build takes what the compiler would conclude from it away.
#[preemptible(block = 128)]
pub fn exchanged(out: SliceMut<u32>) {
    let values = shared_array![u32; 128];
    let (i, t) = (thread::index_1d(), thread::thread_idx_x() as usize);
    // SAFETY: `t` is below 128, and each thread writes its own element of `out`. What `&mut` promises does not hold.
    unsafe {
        let found = exchange(&mut *values.add(t), values.add(t ^ 1), i);
        out.write(i as usize, found);
    }
}
