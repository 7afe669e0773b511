//! Decomposition of a matrix into triangular ones, in place (Rodinia, `lud`).
//!
//! The matrix has `n` by `n` elements, row by row; `n` is a multiple of [`TILE`], and `first` is the first row and
//! column of the tile on the diagonal that the three kernels have come to. The matrix is overwritten by both
//! factors, so a block-task cannot run twice, and there are no yield points.

use preempt_device::prelude::*;

/// Rows and columns of a tile.
pub const TILE: usize = 16;

/// Threads of a block of [`lud_perimeter`]: one for each column of a tile to the right, and for each row of a tile below.
pub const PERIMETER_BLOCK: u32 = 2 * TILE as u32;

/// The tile on the diagonal. One block.
#[preemptible(block = 16)]
pub fn lud_diagonal(matrix: SliceMut<f32>, n: u32, first: u32) {
    let tile = shared_array![f32; TILE * TILE];
    let t = thread::thread_idx_x() as usize;
    let (n, first) = (n as usize, first as usize);
    // Once, so that nothing below has to be checked.
    assert!(first + TILE <= n && n * n <= matrix.len());
    let own = matrix.as_mut_ptr().wrapping_add(first * n + first + t);
    // SAFETY: rows and columns are below `TILE` in the tile, and below `n` in the matrix. Barriers lie between writes
    // and reads by other threads.
    unsafe {
        let at = |row: usize, column: usize| tile.add(row * TILE + column);
        let mut row = 0;
        while row < TILE {
            at(row, t).write(own.add(row * n).read());
            row += 1;
        }
        thread::sync_threads();
        let mut i = 0;
        while i < TILE - 1 {
            // Column `i` of the lower factor, and then row `i + 1` of the upper one.
            if t > i {
                let mut x = at(t, i).read();
                let mut j = 0;
                while j < i {
                    x = GpuFloat::mul_add(-at(t, j).read(), at(j, i).read(), x);
                    j += 1;
                }
                at(t, i).write(x / at(i, i).read());
            }
            thread::sync_threads();
            if t > i {
                let mut x = at(i + 1, t).read();
                let mut j = 0;
                while j <= i {
                    x = GpuFloat::mul_add(-at(i + 1, j).read(), at(j, t).read(), x);
                    j += 1;
                }
                at(i + 1, t).write(x);
            }
            thread::sync_threads();
            i += 1;
        }
        let mut row = 0;
        while row < TILE {
            own.add(row * n).write(at(row, t).read());
            row += 1;
        }
    }
}

/// The tiles to the right of the one on the diagonal, and those below. One block-task for one of each.
#[preemptible(block = PERIMETER_BLOCK)]
pub fn lud_perimeter(matrix: SliceMut<f32>, n: u32, first: u32) {
    let diagonal = shared_array![f32; TILE * TILE];
    let right = shared_array![f32; TILE * TILE];
    let below = shared_array![f32; TILE * TILE];
    let t = thread::thread_idx_x() as usize;
    let (n, first) = (n as usize, first as usize);
    let other = first + (thread::block_idx_x() as usize + 1) * TILE;
    // Once, so that nothing below has to be checked.
    assert!(other + TILE <= n && n * n <= matrix.len());
    let (half, i) = (t / TILE, t % TILE);
    let matrix = matrix.as_mut_ptr();
    // SAFETY: rows and columns are below `TILE` in the tiles, and below `n` in the matrix. A barrier lies between the
    // writes of one half of the threads and the reads of the other; after it, each thread has a row or a column of
    // its own.
    unsafe {
        let mut row = half;
        while row < TILE {
            let at = row * TILE + i;
            diagonal.add(at).write(matrix.add((first + row) * n + first + i).read());
            right.add(at).write(matrix.add((first + row) * n + other + i).read());
            below.add(at).write(matrix.add((other + row) * n + first + i).read());
            row += 2;
        }
        thread::sync_threads();
        let mut k = 0;
        while k < TILE {
            let mut j = 0;
            if half == 0 {
                let mut x = right.add(k * TILE + i).read();
                while j < k {
                    let factor = diagonal.add(k * TILE + j).read();
                    x = GpuFloat::mul_add(-factor, right.add(j * TILE + i).read(), x);
                    j += 1;
                }
                right.add(k * TILE + i).write(x);
            } else {
                let mut x = below.add(i * TILE + k).read();
                while j < k {
                    let factor = diagonal.add(j * TILE + k).read();
                    x = GpuFloat::mul_add(-below.add(i * TILE + j).read(), factor, x);
                    j += 1;
                }
                below.add(i * TILE + k).write(x / diagonal.add(k * TILE + k).read());
            }
            k += 1;
        }
        thread::sync_threads();
        let mut row = half;
        while row < TILE {
            let at = row * TILE + i;
            matrix.add((first + row) * n + other + i).write(right.add(at).read());
            matrix.add((other + row) * n + first + i).write(below.add(at).read());
            row += 2;
        }
    }
}

/// The tiles right of and below the one on the diagonal: each less the product of the tiles at its left and above that
/// [`lud_perimeter`] has written. One block-task for each of them, x for the columns.
#[preemptible(block = (16, 16))]
pub fn lud_internal(matrix: SliceMut<f32>, n: u32, first: u32) {
    let left = shared_array![f32; TILE * TILE];
    let above = shared_array![f32; TILE * TILE];
    let (tx, ty) = (thread::thread_idx_x() as usize, thread::thread_idx_y() as usize);
    let (n, first) = (n as usize, first as usize);
    let row = first + (thread::block_idx_y() as usize + 1) * TILE + ty;
    let column = first + (thread::block_idx_x() as usize + 1) * TILE + tx;
    // Once, so that nothing below has to be checked.
    assert!(row < n && column < n && n * n <= matrix.len());
    let matrix = matrix.as_mut_ptr();
    // SAFETY: rows and columns are below `TILE` in the tiles, and below `n` in the matrix. A barrier lies between writes
    // and reads, and each thread writes its own element.
    unsafe {
        left.add(ty * TILE + tx).write(matrix.add(row * n + first + tx).read());
        above.add(ty * TILE + tx).write(matrix.add((first + ty) * n + column).read());
        thread::sync_threads();
        let mut sum = 0.0f32;
        let mut k = 0;
        while k < TILE {
            let (x, y) = (left.add(ty * TILE + k).read(), above.add(k * TILE + tx).read());
            sum = GpuFloat::mul_add(x, y, sum);
            k += 1;
        }
        let own = matrix.add(row * n + column);
        own.write(own.read() - sum);
    }
}

/// Element `i` of a matrix of `n` by `n` whose diagonal is large enough that no rows have to be exchanged.
#[inline(always)]
pub fn element(seed: u32, i: u32, n: u32) -> f32 {
    let diagonal = if i.is_multiple_of(n + 1) { n as f32 / 4.0 } else { 0.0 };
    crate::input::between(seed, i, -1.0, 1.0) + diagonal
}

/// `matrix[i] = element(seed, i, n)`; the grid may be larger.
#[preemptible(block = 256)]
pub fn lud_matrix(seed: u32, n: u32, matrix: SliceMut<f32>) {
    let i = thread::index_1d();
    if (i as usize) < matrix.len() {
        // SAFETY: each thread writes its own element.
        unsafe { matrix.write(i as usize, element(seed, i, n)) }
    }
}
