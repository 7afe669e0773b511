//! White blood cells in a video: where they are, and their outlines (Rodinia, `leukocyte`).
//!
//! Cells are circles of unknown radius that are darker than what is around. The first two kernels find them by how
//! steep the image is along each circle; the third one computes, for each cell, a field that leads its outline to
//! edges.

use preempt_device::prelude::*;

use crate::input::{hash, unit};

/// Threads of a block.
pub const BLOCK: usize = 256;

/// Circles around each pixel: their radii are 8, 10, .., 20 pixels.
pub const CIRCLES: usize = 7;

/// The largest of these radii.
pub const LARGEST: u32 = 20;

/// Points on each circle.
pub const POINTS: usize = 150;

/// Points between two yield points; [`POINTS`] is a multiple of it.
const CHUNK: usize = 10;

/// The radius of the disc that [`dilate`] takes the maximum of.
pub const DISC: i32 = 12;

/// Rows of the field of a cell.
pub const ROWS: usize = 41;

/// Columns of the field of a cell.
pub const COLUMNS: usize = 81;

/// Elements of the field of a cell.
pub const CELL: usize = ROWS * COLUMNS;

/// The mean change of a field below which it is done.
pub const CUTOFF: f32 = 0.00002;

/// The weight of a field's smoothness.
const SMOOTHING: f32 = 0.5;

/// The divisor of both forces, as in the original.
const LAMBDA: f32 = 8.0 * SMOOTHING + 1.0;

/// The brightness of a pixel: there is a cell every 48 pixels in both directions, of a radius of 8 to 14.
#[inline(always)]
pub fn pixel(seed: u32, x: u32, y: u32) -> f32 {
    let (row, column) = (y / 48, x / 48);
    let cell = hash(seed, row << 16 | column);
    let (across, down) = ((x % 48) as i32 - 24, (y % 48) as i32 - 24);
    let squared = (across * across + down * down) as u32;
    let (radius, noise) = (8 + cell % 7, unit(seed.wrapping_add(1), y << 16 | x));
    let light = if squared < radius * radius { 0.2 } else { 0.7 };
    GpuFloat::mul_add(0.25, noise, light)
}

/// The gradient of the image, in x and in y, at pixel `i` of rows of `width` pixels.
#[inline(always)]
pub fn gradient(seed: u32, width: u32, i: u32) -> [f32; 2] {
    // Away from the edges.
    let (x, y) = (1 + i % width, 1 + i / width);
    let in_x = pixel(seed, x + 1, y) - pixel(seed, x - 1, y);
    [in_x, pixel(seed, x, y + 1) - pixel(seed, x, y - 1)]
}

/// `gradients[i] = gradient(seed, width, i)`; the grid may be larger.
#[preemptible(block = 256)]
pub fn leukocyte_gradients(seed: u32, width: u32, gradients: SliceMut<[f32; 2]>) {
    let i = thread::index_1d();
    if (i as usize) < gradients.len() {
        // SAFETY: each thread writes its own element.
        unsafe { gradients.write(i as usize, gradient(seed, width, i)) }
    }
}

/// Element `i` of the edges in the part of the image around a cell, 0 to 1: a ring with gaps, and noise.
#[inline(always)]
pub fn edge(seed: u32, cell: u32, i: u32) -> f32 {
    let seed = hash(seed, cell);
    let (row, column) = (i / COLUMNS as u32, i % COLUMNS as u32);
    let (down, across) = (row as i32 - ROWS as i32 / 2, column as i32 - COLUMNS as i32 / 2);
    let squared = (down * down + across * across) as u32;
    let radius = 8 + seed % 7;
    let is_ring = squared >= radius * radius && squared < (radius + 2) * (radius + 2);
    let noise = 0.2 * unit(seed, i);
    if is_ring && !hash(seed, row / 4 * 64 + column / 4).is_multiple_of(5) {
        1.0 - noise
    } else {
        noise
    }
}

/// The edges of all cells, one cell after the other. The grid may be larger.
#[preemptible(block = 256)]
pub fn leukocyte_edges(seed: u32, edges: SliceMut<f32>) {
    let i = thread::index_1d();
    if (i as usize) < edges.len() {
        // SAFETY: each thread writes its own element.
        unsafe { edges.write(i as usize, edge(seed, i / CELL as u32, i % CELL as u32)) }
    }
}

/// The largest inverse coefficient of variation of the gradient along circles around each pixel of the image, 0 near
/// its edges. `offsets` has, for each circle, how far its points are from the center in an array of the image, and
/// `directions` the cosines and sines of the points. One thread for each pixel; the grid may be larger.
#[preemptible(block = 256)]
pub fn gicov(
    width: u32,
    height: u32,
    gradients: &[[f32; 2]],
    offsets: &[i32],
    directions: &[[f32; 2]],
    result: SliceMut<f32>,
) {
    let (i, margin) = (thread::index_1d(), LARGEST + 2);
    // Once, so that nothing below has to be checked.
    let pixels = width as usize * height as usize;
    assert!(pixels <= gradients.len() && pixels <= result.len());
    assert!(CIRCLES * POINTS <= offsets.len() && POINTS <= directions.len());
    let (x, y) = (i % width, i / width);
    let mut largest = 0.0;
    if x >= margin && x + margin < width && y >= margin && y + margin < height {
        let mut most = 0.0f32;
        let mut circle = 0;
        while circle < CIRCLES {
            // Mean and squared distances from it, point by point.
            let (mut sum, mut mean, mut squares) = (0.0f32, 0.0f32, 0.0f32);
            let mut point = 0;
            while point < POINTS {
                yield_point!();
                let stop = point + CHUNK;
                while point < stop {
                    // SAFETY: circles and points are below their numbers. Points are at most `margin` from the pixel in
                    // both directions, so they are in the image.
                    let ([in_x, in_y], [cosine, sine]) = unsafe {
                        let offset = *offsets.get_unchecked(circle * POINTS + point);
                        let at = (i as i32 + offset) as usize;
                        (*gradients.get_unchecked(at), *directions.get_unchecked(point))
                    };
                    let slope = GpuFloat::mul_add(in_y, sine, in_x * cosine);
                    sum += slope;
                    let distance = slope - mean;
                    mean += distance / (point + 1) as f32;
                    squares = GpuFloat::mul_add(distance, slope - mean, squares);
                    point += 1;
                }
            }
            let mean = sum / POINTS as f32;
            let variance = squares / (POINTS - 1) as f32;
            if mean * mean / variance > most {
                most = mean * mean / variance;
                largest = mean / GpuFloat::sqrt(variance);
            }
            circle += 1;
        }
    }
    if (i as usize) < pixels {
        // SAFETY: each thread writes its own element.
        unsafe { result.as_mut_ptr().add(i as usize).write(largest) }
    }
}

/// The largest element of `found` in the disc around each pixel. One thread for each; the grid may be larger.
#[preemptible(block = 256)]
pub fn dilate(width: u32, height: u32, found: &[f32], dilated: SliceMut<f32>) {
    let i = thread::index_1d();
    // Once, so that nothing below has to be checked.
    let pixels = width as usize * height as usize;
    assert!(pixels <= found.len() && pixels <= dilated.len());
    if (i as usize) < pixels {
        let (x, y) = ((i % width) as i32, (i / width) as i32);
        let mut most = 0.0f32;
        let mut down = -DISC;
        while down <= DISC {
            yield_point!();
            let mut across = -DISC;
            while across <= DISC {
                let (column, row) = ((x + across) as u32, (y + down) as u32);
                let is_near = across * across + down * down <= DISC * DISC;
                if is_near && column < width && row < height {
                    // SAFETY: in the image.
                    let other = unsafe { *found.get_unchecked((row * width + column) as usize) };
                    if other > most {
                        most = other;
                    }
                }
                across += 1;
            }
            down += 1;
        }
        // SAFETY: each thread writes its own element.
        unsafe { dilated.as_mut_ptr().add(i as usize).write(most) }
    }
}

/// How much of a difference counts: none of it where it points away from the direction of motion, which is to the lower
/// right.
#[inline(always)]
fn counted(difference: f32, direction: f32) -> f32 {
    let along = difference * direction;
    let share = if along > 0.0001 {
        1.0
    } else if along > -0.0001 {
        0.5
    } else {
        0.0
    };
    share * difference
}

/// A round of thread `t` over the field of a cell; the sum of its changes.
///
/// # Safety
///
/// `from`, `to` and `edge` have [`CELL`] elements each, of which no other thread writes those in `from` or this thread's in
/// `to`.
#[inline(always)]
unsafe fn flow(from: *mut f32, to: *mut f32, edge: *const f32, t: usize) -> f32 {
    // SAFETY: elements are below those of a cell, and so are their neighbours.
    unsafe {
        let mut change = 0.0f32;
        let mut i = t;
        while i < CELL {
            let (row, column) = (i / COLUMNS, i % COLUMNS);
            // What is outside of the field is like its edge.
            let above = if row == 0 { 0 } else { COLUMNS };
            let below = if row + 1 == ROWS { 0 } else { COLUMNS };
            let left = if column == 0 { 0 } else { 1 };
            let right = if column + 1 == COLUMNS { 0 } else { 1 };
            let own = from.add(i).read();
            let difference = |at: usize| from.add(at).read() - own;
            let mut flow = counted(difference(i - above - left), 0.0);
            flow += counted(difference(i - above), -1.0);
            flow += counted(difference(i - above + right), -2.0);
            flow += counted(difference(i - left), 1.0);
            flow += counted(difference(i + right), -1.0);
            flow += counted(difference(i + below - left), 2.0);
            flow += counted(difference(i + below), 1.0);
            flow += counted(difference(i + below + right), 0.0);
            let smooth = GpuFloat::mul_add(SMOOTHING / LAMBDA, flow, own);
            let steep = *edge.add(i);
            let next = GpuFloat::mul_add(-steep / LAMBDA, smooth - steep, smooth);
            to.add(i).write(next);
            change += (next - own).abs();
            i += BLOCK;
        }
        change
    }
}

/// The fields of all cells: a motion gradient vector flow, from the edges on, until it changes by less than [`CUTOFF`]
/// in the mean, or for `most` rounds; `rounds` has how many there were. One block-task for each cell, with its field in
/// shared memory.
///
/// A block-task writes the field there before it reads it, and what it writes to global memory it does not read.
#[preemptible(block = 256, idempotent)]
pub fn imgvf(most: u32, edges: &[f32], fields: SliceMut<f32>, rounds: SliceMut<u32>) {
    let field = shared_array![f32; 2 * CELL];
    let changes = shared_array![f32; BLOCK];
    let (t, cell) = (thread::thread_idx_x() as usize, thread::block_idx_x() as usize);
    // Once, so that nothing below has to be checked.
    assert!((cell + 1) * CELL <= edges.len() && (cell + 1) * CELL <= fields.len());
    assert!(cell < rounds.len());
    // SAFETY: elements are below those of a cell, and so are their neighbours. Barriers lie between writes and reads by
    // other threads, since rounds take turns with both halves of `field`. Each block-task writes its own elements.
    unsafe {
        let edge = edges.as_ptr().add(cell * CELL);
        let mut i = t;
        while i < CELL {
            field.add(i).write(*edge.add(i));
            i += BLOCK;
        }
        let (mut round, mut goes_on) = (0, 1);
        while goes_on != 0 {
            thread::sync_threads();
            yield_point!();
            let from = field.add(round as usize % 2 * CELL);
            let to = field.add((round as usize + 1) % 2 * CELL);
            let mut change = flow(from, to, edge, t);
            changes.add(t).write(change);
            thread::sync_threads();
            let mut half = BLOCK / 2;
            while half > 0 {
                if t < half {
                    change += changes.add(t + half).read();
                    changes.add(t).write(change);
                }
                thread::sync_threads();
                half /= 2;
            }
            round += 1;
            let is_moving = changes.read() >= CUTOFF * CELL as f32;
            goes_on = thread::sync_threads_and(u32::from(is_moving && round < most));
        }
        let result = field.add(round as usize % 2 * CELL);
        let mut i = t;
        while i < CELL {
            fields.as_mut_ptr().add(cell * CELL + i).write(result.add(i).read());
            i += BLOCK;
        }
        if t == 0 {
            rounds.write(cell, round);
        }
    }
}

/// What [`imgvf`] computes, with a checkpoint in the place of its yield point: a block-task that is left goes on with its
/// field.
#[preemptible(block = 256, idempotent)]
pub fn imgvf_saving(most: u32, edges: &[f32], fields: SliceMut<f32>, rounds: SliceMut<u32>) {
    let field = shared_array![f32; 2 * CELL];
    let changes = shared_array![f32; BLOCK];
    let (t, cell) = (thread::thread_idx_x() as usize, thread::block_idx_x() as usize);
    // Once, so that nothing below has to be checked.
    assert!((cell + 1) * CELL <= edges.len() && (cell + 1) * CELL <= fields.len());
    assert!(cell < rounds.len());
    let mut i = t;
    while i < CELL {
        // SAFETY: elements are below those of a cell.
        unsafe { field.add(i).write(*edges.get_unchecked(cell * CELL + i)) }
        i += BLOCK;
    }
    // The number of the round, and whether there is one.
    checkpoint!(state: (u32, u32) = (0, 1) => while state.1 != 0 {
        thread::sync_threads();
        let round = state.0;
        // SAFETY: elements are below those of a cell, and so are their neighbours. Barriers lie between writes and reads by
        // other threads, since rounds take turns with both halves of `field`.
        unsafe {
            let edge = edges.as_ptr().add(cell * CELL);
            let from = field.add(round as usize % 2 * CELL);
            let to = field.add((round as usize + 1) % 2 * CELL);
            let mut change = flow(from, to, edge, t);
            changes.add(t).write(change);
            thread::sync_threads();
            let mut half = BLOCK / 2;
            while half > 0 {
                if t < half {
                    change += changes.add(t + half).read();
                    changes.add(t).write(change);
                }
                thread::sync_threads();
                half /= 2;
            }
            let is_moving = changes.read() >= CUTOFF * CELL as f32;
            let goes_on = thread::sync_threads_and(u32::from(is_moving && round + 1 < most));
            state = (round + 1, goes_on);
        }
    });
    let round = state.0;
    // SAFETY: as above. Each block-task writes its own elements.
    unsafe {
        let result = field.add(round as usize % 2 * CELL);
        let mut i = t;
        while i < CELL {
            fields.as_mut_ptr().add(cell * CELL + i).write(result.add(i).read());
            i += BLOCK;
        }
        if t == 0 {
            rounds.write(cell, round);
        }
    }
}
