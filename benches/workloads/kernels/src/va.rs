//! Vector addition (CUDA samples, `vectorAdd`).

use preempt_device::prelude::*;

/// Threads of a block.
pub const BLOCK: u32 = 256;

/// `out[i] = a[i] + b[i]`; the grid may be larger than `out`.
#[preemptible(block = 256)]
pub fn vector_add(a: &[f32], b: &[f32], out: SliceMut<f32>) {
    let i = thread::index_1d() as usize;
    if i < out.len() {
        // SAFETY: each thread writes its own element.
        unsafe { out.write(i, a[i] + b[i]) }
    }
}
