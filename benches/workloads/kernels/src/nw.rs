//! Alignment of two sequences by Needleman and Wunsch (Rodinia, `nw`).
//!
//! Scores are a matrix of one more row and column than the sequences have elements, row by row; they are signed
//! numbers. Tiles on one diagonal from lower left to upper right are computed at once, from the scores in the
//! row above and the column at the left of each. So a launch reads and writes the same buffer, and has no yield
//! points.

use preempt_device::prelude::*;

use crate::input::hash;

/// Rows and columns of a tile, and threads of a block.
pub const TILE: usize = 16;

/// Rows and columns of a tile with what is above and at the left of it.
const WITH_EDGE: usize = TILE + 1;

/// Elements of the sequences: amino acids, and letters for several of them.
const LETTERS: u32 = 24;

/// The seed of the table of similarities, which is the same for all programs.
const TABLE: u32 = 0xB105;

/// The similarity of two elements of sequences, -4 to 9, whichever is first.
#[inline(always)]
pub const fn similarity(a: u32, b: u32) -> i32 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    let random = hash(TABLE, high * LETTERS + low);
    if a == b { 4 + (random % 6) as i32 } else { (random % 8) as i32 - 4 }
}

/// Element `i` of sequence `seed`.
#[inline(always)]
pub const fn letter(seed: u32, i: u32) -> u32 {
    hash(seed, i) % LETTERS
}

/// The similarities of all elements of the sequences `seed` and `seed + 1`, both of `n` elements: `n` numbers for
/// each element of the first. The grid may be larger.
#[preemptible(block = 256)]
pub fn nw_similarities(seed: u32, n: u32, similarities: SliceMut<i32>) {
    let i = thread::index_1d();
    if (i as usize) < similarities.len() {
        let (a, b) = (letter(seed, i / n), letter(seed.wrapping_add(1), i % n));
        // SAFETY: each thread writes its own element.
        unsafe { similarities.write(i as usize, similarity(a, b)) }
    }
}

/// The first row and column of scores for sequences of `n` elements, with a `penalty` for each gap. The grid may be
/// larger than `n + 1`.
#[preemptible(block = 256)]
pub fn nw_edges(n: u32, penalty: i32, scores: SliceMut<u32>) {
    let (i, n) = (thread::index_1d() as usize, n as usize);
    if i <= n {
        let score = -penalty * i as i32;
        // SAFETY: each thread writes its own elements, but the first thread writes the same element twice.
        unsafe {
            scores.write(i, score as u32);
            scores.write(i * (n + 1), score as u32);
        }
    }
}

/// Tiles on diagonal `diagonal` of those that start in the first row or at the main one: `diagonal + 1` block-tasks.
#[preemptible(block = 16)]
pub fn needle_upper_left(
    n: u32,
    penalty: i32,
    diagonal: u32,
    similarities: &[i32],
    scores: SliceMut<u32>,
) {
    let tile = shared_array![i32; WITH_EDGE * WITH_EDGE];
    let x = thread::block_idx_x() as usize;
    // SAFETY: all threads of a block come here.
    unsafe { align(n as usize, penalty, (x, diagonal as usize - x), similarities, scores, tile) }
}

/// Tiles on the diagonals after the main one; `tiles` of them are on this one, and there are as many block-tasks.
#[preemptible(block = 16)]
pub fn needle_lower_right(
    n: u32,
    penalty: i32,
    tiles: u32,
    similarities: &[i32],
    scores: SliceMut<u32>,
) {
    let tile = shared_array![i32; WITH_EDGE * WITH_EDGE];
    let (x, of_row) = (thread::block_idx_x() as usize, n as usize / TILE);
    let at = (of_row - tiles as usize + x, of_row - 1 - x);
    // SAFETY: all threads of a block come here.
    unsafe { align(n as usize, penalty, at, similarities, scores, tile) }
}

/// The scores of the tile at (`x`, `y`).
///
/// # Safety
///
/// All threads of a block call this, with the same arguments, and `tile` has room for a tile with its edges.
#[inline(always)]
unsafe fn align(
    n: usize,
    penalty: i32,
    (x, y): (usize, usize),
    similarities: &[i32],
    scores: SliceMut<u32>,
    tile: *mut i32,
) {
    let t = thread::thread_idx_x() as usize;
    let (first_row, first_column, width) = (y * TILE, x * TILE, n + 1);
    // Once, so that nothing below has to be checked.
    assert!(first_row + TILE <= n && first_column + TILE <= n);
    assert!(n * n <= similarities.len() && width * width <= scores.len());
    let scores = scores.as_mut_ptr();
    // SAFETY: rows and columns are at most `TILE` in the tile and `n` in the matrix. Barriers lie between writes and
    // reads by other threads: within a diagonal, threads read what the two before it wrote.
    unsafe {
        let at = |row: usize, column: usize| tile.add(row * WITH_EDGE + column);
        let score = |row: usize, column: usize| {
            scores.add((first_row + row) * width + first_column + column)
        };
        if t == 0 {
            at(0, 0).write(score(0, 0).read() as i32);
        }
        at(0, t + 1).write(score(0, t + 1).read() as i32);
        at(t + 1, 0).write(score(t + 1, 0).read() as i32);
        thread::sync_threads();
        let mut diagonal = 0;
        while diagonal < 2 * TILE - 1 {
            // Thread `t` has column `t`, and is in the tile from diagonal `t` on, for as many as there are rows.
            let row = diagonal.wrapping_sub(t);
            if row < TILE {
                let of_pair = (first_row + row) * n + first_column + t;
                let similarity = *similarities.get_unchecked(of_pair);
                let aligned = at(row, t).read() + similarity;
                let gap = at(row, t + 1).read().max(at(row + 1, t).read()) - penalty;
                at(row + 1, t + 1).write(aligned.max(gap));
            }
            thread::sync_threads();
            diagonal += 1;
        }
        let mut row = 1;
        while row <= TILE {
            score(row, t + 1).write(at(row, t + 1).read() as u32);
            row += 1;
        }
    }
}
