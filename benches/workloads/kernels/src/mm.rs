//! Tiled matrix multiplication (CUDA samples, `matrixMul`).

use preempt_device::prelude::*;

/// Rows and columns of a tile, and threads of a block in x and in y.
pub const TILE: usize = 32;

/// `c = a * b` for matrices of `n` by `n` elements, row by row; one block-task for each tile of `c`, x for
/// its columns. `n` is a multiple of [`TILE`].
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
            yield_point!();
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
