//! Kernels with real work, for what preemption costs the one that is preempted.

use preempt_device::prelude::*;

/// Threads of a block of [`matrix_multiply`] in x and in y.
pub const TILE: usize = 32;

/// Element `i` of what [`fill`] writes: a number from -1 up to 1, by a hash of `i` and `seed`
/// (the finalizer of MurmurHash3).
#[inline(always)]
pub const fn random(seed: u32, i: u32) -> f32 {
    let mut bits = i ^ seed.wrapping_mul(0x9E37_79B9);
    bits = (bits ^ bits >> 16).wrapping_mul(0x85EB_CA6B);
    bits = (bits ^ bits >> 13).wrapping_mul(0xC2B2_AE35);
    bits ^= bits >> 16;
    (bits >> 8) as f32 / (1 << 23) as f32 - 1.0
}

/// `out[i] = random(seed, i)`; the grid may be larger than `out`.
#[preemptible(block = 256)]
pub fn fill(seed: u32, out: SliceMut<f32>) {
    let i = thread::index_1d();
    if (i as usize) < out.len() {
        // SAFETY: each thread writes its own element.
        unsafe { out.write(i as usize, random(seed, i)) }
    }
}

/// `out[i] = a[i] + b[i]`; the grid may be larger than `out`.
#[preemptible(block = 256)]
pub fn vector_add(a: &[f32], b: &[f32], out: SliceMut<f32>) {
    let i = thread::index_1d() as usize;
    if i < out.len() {
        // SAFETY: each thread writes its own element.
        unsafe { out.write(i, a[i] + b[i]) }
    }
}

/// `c = a * b` for matrices of `n` by `n` elements, row by row; one task for each 32 by 32 tile of
/// `c`, x for its columns. `n` is a multiple of 32.
#[preemptible(block = (32, 32))]
pub fn matrix_multiply(a: &[f32], b: &[f32], c: SliceMut<f32>, n: u32) {
    let a_tile = shared_array![f32; TILE * TILE];
    let b_tile = shared_array![f32; TILE * TILE];
    let (tx, ty) = (thread::thread_idx_x() as usize, thread::thread_idx_y() as usize);
    let at = thread::index_2d();
    let n = n as usize;
    // Once, so that nothing below has to be checked.
    let fits = n.is_multiple_of(TILE) && (at.x as usize) < n && (at.y as usize) < n;
    assert!(fits && n * n <= a.len() && n * n <= b.len() && n * n <= c.len());
    let (mut from_a, mut from_b) = (at.y as usize * n + tx, ty * n + at.x as usize);
    let mut sum = 0.0f32;
    let mut tile = 0;
    // SAFETY: `n` is a multiple of the tile and row and column are below it, so all indices are below
    // `n * n`. `tx` and `ty` are below 32, barriers lie between writes and reads of the tiles, and
    // each thread writes its own element of `c`.
    unsafe {
        while tile < n / TILE {
            a_tile.add(ty * TILE + tx).write(*a.get_unchecked(from_a));
            b_tile.add(ty * TILE + tx).write(*b.get_unchecked(from_b));
            thread::sync_threads();
            let mut k = 0;
            while k < TILE {
                let (x, y) = (a_tile.add(ty * TILE + k).read(), b_tile.add(k * TILE + tx).read());
                sum = GpuFloat::mul_add(x, y, sum);
                k += 1;
            }
            thread::sync_threads();
            from_a += TILE;
            from_b += TILE * n;
            tile += 1;
        }
        c.write(at.y as usize * n + at.x as usize, sum);
    }
}
