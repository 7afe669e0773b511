//! Ordinary kernels: what the code for them looks like is checked, and what they cost measured.

use preempt_device::prelude::*;

use crate::TILE;

/// `out[i] = a[i] + b[i]`; the grid may be larger than `out`.
#[preemptible(block = 256)]
pub fn vector_add(a: &[f32], b: &[f32], out: SliceMut<f32>) {
    let i = thread::index_1d() as usize;
    if i < out.len() {
        // SAFETY: each thread writes its own element.
        unsafe { out.write(i, a[i] + b[i]) }
    }
}

/// [`vector_add`], without `unsafe`.
#[preemptible(block = 256)]
pub fn vector_add_own(a: &[f32], b: &[f32], out: PerThread<f32>) {
    if let Some(own) = out.own() {
        own.set(a[own.index()] + b[own.index()]);
    }
}

/// Each thread adds its number in x to its element, in two steps that find it anew.
#[preemptible]
pub fn add_index(out: PerThread<u32>) {
    let again = out;
    if let (Some(own), Some(same)) = (out.own(), again.own()) {
        own.set(own.get() + 1);
        same.set(same.get() + own.index() as u32 - 1);
    }
}

/// `c = a * b` for matrices of `n` by `n` elements, row by row; one task for each 16 by 16 tile
/// of `c`, x for its columns. `n` need not be a multiple of 16.
#[preemptible(block = (16, 16))]
pub fn tiled_mm(a: &[f32], b: &[f32], c: SliceMut<f32>, n: u32) {
    let a_tile = shared_array![f32; TILE * TILE];
    let b_tile = shared_array![f32; TILE * TILE];
    let (tx, ty) = (thread::thread_idx_x() as usize, thread::thread_idx_y() as usize);
    let at = thread::index_2d();
    let (row, column, n) = (at.y as usize, at.x as usize, n as usize);
    let mut sum = 0.0f32;
    let mut first = 0;
    // SAFETY: `tx` and `ty` are below 16, barriers lie between writes and reads of the tiles,
    // and each thread writes its own element of `c`.
    unsafe {
        while first < n {
            let in_a = row < n && first + tx < n;
            let in_b = column < n && first + ty < n;
            a_tile.add(ty * TILE + tx).write(if in_a { a[row * n + first + tx] } else { 0.0 });
            b_tile.add(ty * TILE + tx).write(if in_b { b[(first + ty) * n + column] } else { 0.0 });
            thread::sync_threads();
            let mut k = 0;
            while k < TILE {
                let (x, y) = (a_tile.add(ty * TILE + k).read(), b_tile.add(k * TILE + tx).read());
                sum = GpuFloat::mul_add(x, y, sum);
                k += 1;
            }
            thread::sync_threads();
            first += TILE;
        }
        if row < n && column < n {
            c.write(row * n + column, sum);
        }
    }
}

/// Swaps neighbours: `out[i] = input[i ^ 1]`. `input` has an even number of elements; the grid
/// may be larger.
///
/// The shape matters: a compiler pass once made two barriers of this one, each for a part of the
/// block.
#[preemptible(block = 128)]
pub fn guard_sync_guard(input: &[u32], out: SliceMut<u32>) {
    let values = shared_array![u32; 128];
    let i = thread::index_1d() as usize;
    let t = thread::thread_idx_x() as usize;
    let ok = i < input.len();
    if ok {
        // SAFETY: `t` is below 128, and each thread writes its own element.
        unsafe { values.add(t).write(input[i]) };
    }
    thread::sync_threads();
    if ok {
        // SAFETY: the neighbour has written before the barrier; each thread writes its own.
        unsafe { out.write(i, values.add(t ^ 1).read()) };
    }
}

/// An argument with fields of several sizes.
#[derive(Clone, Copy, PartialEq, Debug, KernelArg)]
#[repr(C)]
pub struct Affine {
    /// Multiplies.
    pub factor: f32,
    /// Is added, to elements with an even and with an odd number.
    pub offsets: [f64; 2],
    /// Whether to change the sign.
    pub negate: bool,
    /// How many elements to write.
    pub count: u32,
}

/// `out[i] = ±(i * factor + offsets[i % 2])` for `i < count`, in `f64`.
#[preemptible]
pub fn struct_arg(affine: Affine, out: SliceMut<f64>) {
    let i = thread::index();
    if i < affine.count {
        let offset = if i.is_multiple_of(2) { affine.offsets[0] } else { affine.offsets[1] };
        let value = f64::from(i) * f64::from(affine.factor) + offset;
        // SAFETY: each thread writes its own element.
        unsafe { out.write(i as usize, if affine.negate { -value } else { value }) };
    }
}

/// `out[i] = sqrt(ln(1 + exp(tanh(out[i]))))`: functions that `core` lacks.
#[preemptible]
pub fn math(out: SliceMut<f32>) {
    let i = thread::index() as usize;
    // SAFETY: each thread has its own element.
    unsafe {
        let x = GpuFloat::exp(GpuFloat::tanh(out.read(i)));
        out.write(i, GpuFloat::sqrt(GpuFloat::ln(1.0 + x)));
    }
}
