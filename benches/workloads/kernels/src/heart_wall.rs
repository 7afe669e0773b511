//! Tracking of points on the walls of hearts through ultrasound sequences (Rodinia, `heartwall`).
//!
//! In each frame, a point is looked for in a window around its place in the frame before: it is where its template has
//! the largest normalized cross-correlation with the window. The template then takes in what is there. Points, and
//! with them their templates, are sequence by sequence.

use preempt_device::prelude::*;

use crate::input::{hash, unit};

/// Threads of a block.
pub const BLOCK: usize = 256;

/// The same, for numbers of elements.
const THREADS: u32 = BLOCK as u32;

/// Rows of a template between two yield points.
const CHUNK: u32 = 2;

/// Elements of a window that a thread reads between two checkpoints. Fewer cost more votes, and more let the block leave later.
const FILL: u32 = 4;

/// The largest template, in both directions: the original's.
const MOST_WANTED: u32 = 51;

/// The largest window, in both directions: the original's.
const MOST_SEARCHED: u32 = 81;

/// How much of a template stays in each frame.
pub const KEPT: f32 = 0.75;

/// The extents of frames, templates and windows, in pixels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, KernelArg)]
#[repr(C)]
pub struct Extents {
    /// Of a frame's row.
    pub width: u32,
    /// Of a frame's column.
    pub height: u32,
    /// Of a template, in both directions; an odd number up to 51.
    pub template: u32,
    /// Of a window, in both directions; an odd number up to 81, not below that of a template, nor above that of a frame.
    pub window: u32,
    /// Points of a sequence.
    pub points: u32,
}

/// The brightness of a pixel of a frame, 0 to 1. From frame to frame, all goes 1 to the right and 2 up, with noise.
#[inline(always)]
pub fn pixel(seed: u32, sequence: u32, frame: u32, x: u32, y: u32) -> f32 {
    let seed = hash(seed, sequence);
    let (from_x, from_y) = (x + 4096 - frame, y + 4096 + 2 * frame);
    let noise = unit(seed.wrapping_add(1 + frame), y << 16 | x);
    0.85 * unit(seed, from_y << 16 | from_x) + 0.15 * noise
}

/// The pixels of frame `frame` of all sequences, one sequence after the other, row by row. The grid may be larger.
#[preemptible(block = 256)]
pub fn heart_wall_frame(of: Extents, seed: u32, frame: u32, pixels: SliceMut<f32>) {
    let i = thread::index_1d();
    if (i as usize) < pixels.len() {
        let of_frame = of.width * of.height;
        let (sequence, at) = (i / of_frame, i % of_frame);
        let pixel = pixel(seed, sequence, frame, at % of.width, at / of.width);
        // SAFETY: each thread writes its own element.
        unsafe { pixels.write(i as usize, pixel) }
    }
}

/// The templates of all points, from their places in the first frame: row and column of each, at least half a template
/// away from the frame's edges. The grid may be larger.
#[preemptible(block = 256)]
pub fn heart_wall_templates(of: Extents, pixels: &[f32], places: &[u32], templates: SliceMut<f32>) {
    let i = thread::index_1d();
    if (i as usize) < templates.len() {
        let of_template = of.template * of.template;
        let (point, at) = (i / of_template, i % of_template);
        let row = places[2 * point as usize] + at / of.template - of.template / 2;
        let column = places[2 * point as usize + 1] + at % of.template - of.template / 2;
        let sequence = point / of.points;
        let pixel = pixels[((sequence * of.height + row) * of.width + column) as usize];
        // SAFETY: each thread writes its own element.
        unsafe { templates.write(i as usize, pixel) }
    }
}

/// Sums over a part of a template and of what is at a place in the window: of both, of their squares, and of their products.
type Sums = (f32, f32, f32, f32, f32);

/// The sums with one more row.
///
/// # Safety
///
/// From both places on there are `length` elements.
#[inline(always)]
unsafe fn with_row(sums: Sums, there: *const f32, wanted: *const f32, length: u32) -> Sums {
    let (mut here, mut template, mut here_squared, mut template_squared, mut both) = sums;
    let mut column = 0;
    while column < length {
        // SAFETY: the caller's promise.
        let (x, y) =
            unsafe { (there.add(column as usize).read(), wanted.add(column as usize).read()) };
        (here, template) = (here + x, template + y);
        here_squared = GpuFloat::mul_add(x, x, here_squared);
        template_squared = GpuFloat::mul_add(y, y, template_squared);
        both = GpuFloat::mul_add(x, y, both);
        column += 1;
    }
    (here, template, here_squared, template_squared, both)
}

/// The normalized cross-correlation, from the sums over this many pixels.
#[inline(always)]
fn score(sums: Sums, pixels: u32) -> f32 {
    let (here, template, here_squared, template_squared, both) = sums;
    let share = 1.0 / pixels as f32;
    let covariance = both - here * template * share;
    let variance = here_squared - here * here * share;
    let of_wanted = template_squared - template * template * share;
    covariance / GpuFloat::sqrt(variance * of_wanted)
}

/// The points' places in this frame, row and column of each, and their templates after it. One block-task for each
/// point.
///
/// All that a block-task reads from global memory stays as it is, and it writes shared memory before it reads it.
#[preemptible(block = 256, idempotent)]
pub fn heart_wall_track(
    of: Extents,
    pixels: &[f32],
    places: &[u32],
    templates: &[f32],
    next_places: SliceMut<u32>,
    next_templates: SliceMut<f32>,
) {
    let searched = shared_array![f32; (MOST_SEARCHED * MOST_SEARCHED) as usize];
    let wanted = shared_array![f32; (MOST_WANTED * MOST_WANTED) as usize];
    let scores = shared_array![f32; BLOCK];
    let numbers = shared_array![u32; BLOCK];
    let width: u32 = of.width;
    let height: u32 = of.height;
    let points: u32 = of.points;
    let template: u32 = of.template;
    let window: u32 = of.window;
    let (t, point) = (thread::thread_idx_x(), thread::block_idx_x());
    // Once, so that nothing below has to be checked.
    assert!(0 < template && template <= window && window <= width && window <= height);
    assert!(template <= MOST_WANTED && window <= MOST_SEARCHED);
    // Elements have 32 bits, which takes fewer registers.
    let of_frame = width as u64 * height as u64;
    assert!((point / points + 1) as u64 * of_frame <= pixels.len() as u64);
    assert!(pixels.len() <= u32::MAX as usize && next_templates.len() <= u32::MAX as usize);
    let (of_template, of_window) = (template * template, window * window);
    let own_templates = (point as usize + 1) * of_template as usize;
    assert!(own_templates <= templates.len() && own_templates <= next_templates.len());
    let own_place = 2 * point as usize;
    assert!(own_place + 1 < places.len() && own_place + 1 < next_places.len());
    let origin = |place: u32, extent: u32| place.saturating_sub(window / 2).min(extent - window);
    let (top, left) = (origin(places[own_place], height), origin(places[own_place + 1], width));
    let side = window - template + 1;
    // SAFETY: the window is in the frame, and its rows and columns are below `window`, those of the template below
    // `template`; where a template lies in the window is below `side` in both directions. Barriers lie between
    // writes and reads by other threads. Each block-task writes its own elements.
    unsafe {
        let frame = point / points * width * height;
        let mut i = t;
        while i < of_window {
            let from = frame + (top + i / window) * width + left + i % window;
            searched.add(i as usize).write(*pixels.get_unchecked(from as usize));
            i += THREADS;
        }
        let mut i = t;
        while i < of_template {
            let from = point * of_template + i;
            wanted.add(i as usize).write(*templates.get_unchecked(from as usize));
            i += THREADS;
        }
        let (mut best, mut number) = (f32::NEG_INFINITY, u32::MAX);
        let mut first = 0;
        while first < side * side {
            let place = first + t;
            // Threads without a place have that of the first.
            let at = if place < side * side { place } else { 0 };
            let corner = searched.add((at / side * window + at % side) as usize);
            let mut sums = (0.0, 0.0, 0.0, 0.0, 0.0);
            let mut row = 0;
            while row < template {
                if row.is_multiple_of(CHUNK) {
                    thread::sync_threads();
                    yield_point!();
                }
                let there = corner.add((row * window) as usize);
                sums = with_row(sums, there, wanted.add((row * template) as usize), template);
                row += 1;
            }
            let score = score(sums, of_template);
            if place < side * side && score > best {
                (best, number) = (score, place);
            }
            first += THREADS;
        }
        scores.add(t as usize).write(best);
        numbers.add(t as usize).write(number);
        thread::sync_threads();
        let mut half = THREADS / 2;
        while half > 0 {
            if t < half {
                let there = (t + half) as usize;
                let (score, other) = (scores.add(there).read(), numbers.add(there).read());
                // The first of equal ones.
                if score > best || score == best && other < number {
                    (best, number) = (score, other);
                    scores.add(t as usize).write(best);
                    numbers.add(t as usize).write(number);
                }
            }
            thread::sync_threads();
            half /= 2;
        }
        // Without a score, which takes a window of one brightness, the first place.
        let found = numbers.read().min(side * side - 1);
        let (down, right) = (found / side, found % side);
        if t == 0 {
            next_places.write(own_place, top + down + template / 2);
            next_places.write(own_place + 1, left + right + template / 2);
        }
        let mut i = t;
        while i < of_template {
            let here = (down + i / template) * window + right + i % template;
            let taken = (1.0 - KEPT) * searched.add(here as usize).read();
            let next = GpuFloat::mul_add(KEPT, wanted.add(i as usize).read(), taken);
            next_templates.as_mut_ptr().add((point * of_template + i) as usize).write(next);
            i += THREADS;
        }
    }
}

/// What [`heart_wall_track`] computes, with a checkpoint in the place of its yield points.
#[preemptible(block = 256, idempotent)]
pub fn heart_wall_track_saving(
    of: Extents,
    pixels: &[f32],
    places: &[u32],
    templates: &[f32],
    next_places: SliceMut<u32>,
    next_templates: SliceMut<f32>,
) {
    let searched = shared_array![f32; (MOST_SEARCHED * MOST_SEARCHED) as usize];
    let wanted = shared_array![f32; (MOST_WANTED * MOST_WANTED) as usize];
    let scores = shared_array![f32; BLOCK];
    let numbers = shared_array![u32; BLOCK];
    let width: u32 = of.width;
    let height: u32 = of.height;
    let points: u32 = of.points;
    let template: u32 = of.template;
    let window: u32 = of.window;
    let (t, point) = (thread::thread_idx_x(), thread::block_idx_x());
    // Once, so that nothing below has to be checked.
    assert!(0 < template && template <= window && window <= width && window <= height);
    assert!(template <= MOST_WANTED && window <= MOST_SEARCHED);
    // Elements have 32 bits, which takes fewer registers.
    let of_frame = width as u64 * height as u64;
    assert!((point / points + 1) as u64 * of_frame <= pixels.len() as u64);
    assert!(pixels.len() <= u32::MAX as usize && next_templates.len() <= u32::MAX as usize);
    let (of_template, of_window) = (template * template, window * window);
    let own_templates = (point as usize + 1) * of_template as usize;
    assert!(own_templates <= templates.len() && own_templates <= next_templates.len());
    let own_place = 2 * point as usize;
    assert!(own_place + 1 < places.len() && own_place + 1 < next_places.len());
    let origin = |place: u32, extent: u32| place.saturating_sub(window / 2).min(extent - window);
    let (top, left) = (origin(places[own_place], height), origin(places[own_place + 1], width));
    let side = window - template + 1;
    // Rounds that read the window and the template, which a block-task has no need to repeat when it goes on. The template is
    // the smaller one.
    let fill = of_window.div_ceil(FILL * THREADS);
    // Then for all places, and for all rows of a template.
    let chunks = template.div_ceil(CHUNK);
    let all = fill + (side * side).div_ceil(THREADS) * chunks;
    let start = (0.0, 0.0, 0.0, 0.0, 0.0);
    // Where a place's template begins in the window. Threads without a place have that of the first.
    let corner_of = |place: u32| {
        let at = if place < side * side { place } else { 0 };
        at / side * window + at % side
    };
    // The best score and its place; of the place that is looked at, the row that is next, its corner, and the sums. Row and corner
    // are not computed in each round, because divisions take long.
    let start_state = (f32::NEG_INFINITY, u32::MAX, 0, corner_of(t), start);
    checkpoint!(state: (f32, u32, u32, u32, Sums) = start_state => for round in 0..all {
        if round < fill {
            let first = round * FILL * THREADS + t;
            let mut k = 0;
            while k < FILL {
                let i = first + k * THREADS;
                // SAFETY: the window is in the frame, and its rows and columns are below `window`, as the template's elements
                // are below `of_template`.
                unsafe {
                    if i < of_window {
                        let frame = point / points * width * height;
                        let from = frame + (top + i / window) * width + left + i % window;
                        searched.add(i as usize).write(*pixels.get_unchecked(from as usize));
                    }
                    if i < of_template {
                        let from = point * of_template + i;
                        wanted.add(i as usize).write(*templates.get_unchecked(from as usize));
                    }
                }
                k += 1;
            }
            if round + 1 == fill {
                // Ahead of the reads by other threads.
                thread::sync_threads();
            }
            continue;
        }
        let (mut best, mut number, mut row, mut corner, mut sums) = state;
        let end = template.min(row + CHUNK);
        while row < end {
            // SAFETY: rows are below those of the template, and the place is in the window.
            sums = unsafe {
                let there = searched.add((corner + row * window) as usize);
                with_row(sums, there, wanted.add((row * template) as usize), template)
            };
            row += 1;
        }
        if end == template {
            let place = (round - fill) / chunks * THREADS + t;
            let score = score(sums, of_template);
            if place < side * side && score > best {
                (best, number) = (score, place);
            }
            (row, corner, sums) = (0, corner_of(place + THREADS), start);
        }
        state = (best, number, row, corner, sums);
    });
    let (mut best, mut number, ..) = state;
    // SAFETY: as above.
    unsafe {
        scores.add(t as usize).write(best);
        numbers.add(t as usize).write(number);
        thread::sync_threads();
        let mut half = THREADS / 2;
        while half > 0 {
            if t < half {
                let there = (t + half) as usize;
                let (score, other) = (scores.add(there).read(), numbers.add(there).read());
                // The first of equal ones.
                if score > best || score == best && other < number {
                    (best, number) = (score, other);
                    scores.add(t as usize).write(best);
                    numbers.add(t as usize).write(number);
                }
            }
            thread::sync_threads();
            half /= 2;
        }
        // Without a score, which takes a window of one brightness, the first place.
        let found = numbers.read().min(side * side - 1);
        let (down, right) = (found / side, found % side);
        if t == 0 {
            next_places.write(own_place, top + down + template / 2);
            next_places.write(own_place + 1, left + right + template / 2);
        }
        let mut i = t;
        while i < of_template {
            let here = (down + i / template) * window + right + i % template;
            let taken = (1.0 - KEPT) * searched.add(here as usize).read();
            let next = GpuFloat::mul_add(KEPT, wanted.add(i as usize).read(), taken);
            next_templates.as_mut_ptr().add((point * of_template + i) as usize).write(next);
            i += THREADS;
        }
    }
}
