//! Triad of vectors (SHOC, `Triad`, after the STREAM benchmark).

use preempt_device::prelude::*;

/// Threads of a block.
pub const BLOCK: u32 = 128;

/// `c[i] = a[i] + s * b[i]`, rounded once; the grid may be larger than `c`.
#[preemptible(block = BLOCK)]
pub fn triad(a: &[f32], b: &[f32], c: SliceMut<f32>, s: f32) {
    let i = thread::index_1d() as usize;
    if i < c.len() {
        // SAFETY: each thread writes its own element.
        unsafe { c.write(i, triad_of(a[i], b[i], s)) }
    }
}

/// What [`triad`] writes.
#[inline(always)]
pub fn triad_of(a: f32, b: f32, s: f32) -> f32 {
    GpuFloat::mul_add(s, b, a)
}
