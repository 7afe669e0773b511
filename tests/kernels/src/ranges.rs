//! Kernels for launches on parts of buffers: each thread has one element.

use preempt_device::prelude::*;

/// `x[i] = factor * x[i] + i`
#[preemptible(block = 32)]
pub fn scale(factor: u32, x: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    if i < x.len() {
        // SAFETY: each thread writes its own element.
        unsafe { x.write(i, x.read(i).wrapping_mul(factor).wrapping_add(i as u32)) }
    }
}

/// `out[i] = a[i] + b[i]`, where there are both, and `out[i] + 1` elsewhere.
#[preemptible(block = 32)]
pub fn sum(a: &[u32], b: &[u32], out: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    if i < out.len() {
        // SAFETY: each thread writes its own element.
        unsafe {
            let sum =
                if i < a.len() && i < b.len() { a[i].wrapping_add(b[i]) } else { out.read(i) + 1 };
            out.write(i, sum);
        }
    }
}

/// Copies four elements by their addresses.
#[preemptible(block = 4)]
pub fn copy_four(from: *const u32, to: *mut u32) {
    let i = thread::index_1d() as usize;
    // SAFETY: both ranges have four elements, and each thread writes its own one.
    unsafe { to.add(i).write(from.add(i).read()) }
}
