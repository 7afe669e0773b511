//! Sums of absolute differences for the estimation of motion (Parboil, `sad`).
//!
//! A macroblock has 16 by 16 pixels of a frame, and is compared with each place up to [`RANGE`] pixels away in the
//! frame before: for each of its 16 parts of 4 by 4 pixels, and then for larger parts. Parts and macroblocks are
//! row by row; all places of one part are one after the other, row by row.

use core::ops::Range;

use preempt_device::prelude::*;

use crate::input::hash;

/// Threads of a block.
pub const BLOCK: usize = 128;

/// Pixels of a macroblock's row, and of its column.
pub const MACROBLOCK: usize = 16;

/// Pixels of a row, and of a column, of the smallest part.
const PART: usize = 4;

/// Parts of a row, and of a column, of a macroblock.
const PARTS: usize = MACROBLOCK / PART;

/// How far away a place is at most, in each direction.
pub const RANGE: usize = 16;

/// Places in x, and in y.
const SIDE: usize = 2 * RANGE + 1;

/// Places.
pub const PLACES: usize = SIDE * SIDE;

/// Pixels of a row, and of a column, that places cover.
const WINDOW: usize = MACROBLOCK + 2 * RANGE;

/// Parts of 4 by 4 pixels in a macroblock.
pub const SMALLEST: usize = PARTS * PARTS;

/// Elements of a window that a thread reads between two checkpoints. Fewer cost more votes, and more let the block leave later.
const FILL: usize = 6;

/// Rounds in which the threads of a block read the window and the macroblock.
const FILLS: u32 = (WINDOW * WINDOW).div_ceil(FILL * BLOCK) as u32;

/// Parts that a thread compares between two checkpoints: a row of them, which takes 4 µs on an H200. With fewer, votes take more of
/// the time; with more, a block leaves later.
const COMPARED: usize = PARTS;

/// Rounds in which the threads of a block compare all parts with all places.
const ROUNDS: u32 = (PLACES.div_ceil(BLOCK) * (SMALLEST / COMPARED)) as u32;

/// Parts that [`larger_sad_calc_8`] makes of them: eight of 8 by 4, eight of 4 by 8, and four of 8 by 8.
pub const MIDDLE: usize = 20;

/// Parts that [`larger_sad_calc_16`] makes of those: two of 16 by 8, two of 8 by 16, and the macroblock.
pub const LARGEST: usize = 5;

/// The brightness of a pixel of a frame: in frame 1 all is moved by 3 to the right and 5 down, with noise.
#[inline(always)]
pub const fn pixel(seed: u32, frame: u32, x: u32, y: u32) -> u8 {
    let (from_x, from_y) = (x + 5 - 3 * frame, y + 5 - 5 * frame);
    let noise = hash(seed + 1 + frame, y << 16 | x) % 16;
    (hash(seed, from_y << 16 | from_x) % 240 + noise) as u8
}

/// All pixels of a frame of this width, row by row. The grid may be larger.
#[preemptible(block = 256)]
pub fn sad_frame(seed: u32, frame: u32, width: u32, pixels: SliceMut<u8>) {
    let i = thread::index_1d();
    if (i as usize) < pixels.len() {
        // SAFETY: each thread writes its own element.
        unsafe { pixels.write(i as usize, pixel(seed, frame, i % width, i / width)) }
    }
}

/// How much part `part` of a macroblock differs from what is at a place in the window.
///
/// # Safety
///
/// `own` is a macroblock, and `moved` the place in a window.
#[inline(always)]
unsafe fn difference(own: *const u8, moved: *const u8, part: usize) -> u32 {
    let (top, left) = (part / PARTS * PART, part % PARTS * PART);
    let mut sum = 0;
    let mut k = 0;
    while k < PART * PART {
        let (row, column) = (top + k / PART, left + k % PART);
        // SAFETY: the caller's promise.
        let (here, there) = unsafe {
            (own.add(row * MACROBLOCK + column).read(), moved.add(row * WINDOW + column).read())
        };
        sum += u32::from(here).abs_diff(u32::from(there));
        k += 1;
    }
    sum
}

/// Reads parts of a macroblock of `frame` and of the window around it in `before`, from its first row and column on; there
/// are [`FILLS`] of them. A barrier lies between this and reads by other threads.
///
/// # Safety
///
/// Both frames have `width` by `height` pixels, and the macroblock is in them.
#[inline(always)]
unsafe fn read_tiles(
    (own, window): (*mut u8, *mut u8),
    (frame, before): (&[u8], &[u8]),
    (width, height): (usize, usize),
    (first_row, first_column): (usize, usize),
    parts: Range<u32>,
) {
    let mut i = parts.start as usize * FILL * BLOCK + thread::thread_idx_x() as usize;
    let end = parts.end as usize * FILL * BLOCK;
    while i < end && i < WINDOW * WINDOW {
        // SAFETY: the caller's promise; rows and columns are below those of the tiles.
        unsafe {
            if i < MACROBLOCK * MACROBLOCK {
                let (row, column) = (first_row + i / MACROBLOCK, first_column + i % MACROBLOCK);
                own.add(i).write(*frame.get_unchecked(row * width + column));
            }
            let row = (first_row + i / WINDOW).saturating_sub(RANGE).min(height - 1);
            let column = (first_column + i % WINDOW).saturating_sub(RANGE).min(width - 1);
            window.add(i).write(*before.get_unchecked(row * width + column));
        }
        i += BLOCK;
    }
}

/// The sums of the smallest parts of all macroblocks: `sums[(macroblock * 16 + part) * PLACES + place]`. Pixels outside of
/// the frame are like those at its edge. One block-task for each macroblock; frames have `width` by `height` pixels,
/// both multiples of [`MACROBLOCK`].
///
/// The tiles in shared memory are written in full before they are read, and sums are written only.
#[preemptible(block = 128, idempotent)]
pub fn mb_sad_calc(width: u32, height: u32, frame: &[u8], before: &[u8], sums: SliceMut<u32>) {
    let own = shared_array![u8; MACROBLOCK * MACROBLOCK];
    let window = shared_array![u8; WINDOW * WINDOW];
    let t = thread::thread_idx_x() as usize;
    let (width, height) = (width as usize, height as usize);
    let macroblock = thread::block_idx_x() as usize;
    let of_row = width / MACROBLOCK;
    let (first_row, first_column) =
        (macroblock / of_row * MACROBLOCK, macroblock % of_row * MACROBLOCK);
    // Once, so that nothing below has to be checked.
    assert!(first_row + MACROBLOCK <= height && first_column + MACROBLOCK <= width);
    assert!(width * height <= frame.len() && width * height <= before.len());
    assert!((macroblock + 1) * SMALLEST * PLACES <= sums.len());
    // SAFETY: rows and columns are below height and width, and below those of the tiles. A barrier lies between writes
    // and reads of the tiles, and each thread writes its own elements of `sums`.
    unsafe {
        read_tiles(
            (own, window),
            (frame, before),
            (width, height),
            (first_row, first_column),
            0..FILLS,
        );
        let mut first = 0;
        while first < PLACES {
            thread::sync_threads();
            yield_point!();
            let place = first + t;
            if place < PLACES {
                let moved = window.add(place / SIDE * WINDOW + place % SIDE);
                let mut part = 0;
                while part < SMALLEST {
                    let at = (macroblock * SMALLEST + part) * PLACES + place;
                    sums.as_mut_ptr().add(at).write(difference(own, moved, part));
                    part += 1;
                }
            }
            first += BLOCK;
        }
    }
}

/// What [`mb_sad_calc`] computes, with a checkpoint ahead of each row of parts, while it has yield points ahead of each place.
#[preemptible(block = 128, idempotent)]
pub fn mb_sad_calc_saving(
    width: u32,
    height: u32,
    frame: &[u8],
    before: &[u8],
    sums: SliceMut<u32>,
) {
    let own = shared_array![u8; MACROBLOCK * MACROBLOCK];
    let window = shared_array![u8; WINDOW * WINDOW];
    let t = thread::thread_idx_x() as usize;
    let (width, height) = (width as usize, height as usize);
    let macroblock = thread::block_idx_x() as usize;
    let of_row = width / MACROBLOCK;
    let (first_row, first_column) =
        (macroblock / of_row * MACROBLOCK, macroblock % of_row * MACROBLOCK);
    // Once, so that nothing below has to be checked.
    assert!(first_row + MACROBLOCK <= height && first_column + MACROBLOCK <= width);
    assert!(width * height <= frame.len() && width * height <= before.len());
    assert!((macroblock + 1) * SMALLEST * PLACES <= sums.len());
    // Sums are written, and there is nothing to keep.
    checkpoint!(nothing: () = () => for round in 0..FILLS + ROUNDS {
        if round < FILLS {
            // SAFETY: frames are as large as was asserted.
            unsafe { read_tiles((own, window), (frame, before), (width, height), (first_row, first_column), round..round + 1) };
            if round + 1 == FILLS {
                thread::sync_threads();
            }
            continue;
        }
        let first = (round - FILLS) as usize * COMPARED;
        let (place, mut part) = (first / SMALLEST * BLOCK + t, first % SMALLEST);
        if place < PLACES {
            // SAFETY: the place is below `PLACES`, and a barrier lies between the tiles' writes and reads. Each thread writes
            // its own elements.
            unsafe {
                let moved = window.add(place / SIDE * WINDOW + place % SIDE);
                let end = part + COMPARED;
                while part < end {
                    let at = (macroblock * SMALLEST + part) * PLACES + place;
                    sums.as_mut_ptr().add(at).write(difference(own, moved, part));
                    part += 1;
                }
            }
        }
    });
}

/// Block-tasks of [`larger_sad_calc_8`] for each macroblock.
pub const SLICES: u32 = (4 * PLACES).div_ceil(BLOCK) as u32;

/// The sums of middle parts from those that [`mb_sad_calc`] writes: of the eight parts of 8 pixels in x and 4 in y, then
/// the eight of 4 in x and 8 in y, and then the four of 8 by 8. [`SLICES`] block-tasks for each macroblock.
///
/// A block-task takes about as long as one read of memory. It has no yield point, because that would add another read. Elements
/// are counted with 32 bits: so a thread of the preemptible form has what it needs in as many registers as let an SM hold all
/// blocks that the plain form has there.
#[preemptible(block = 128)]
pub fn larger_sad_calc_8(smallest: &[u32], sums: SliceMut<u32>) {
    let macroblock = thread::block_idx_y();
    // Once, so that nothing below has to be checked.
    let (of_smallest, of_middle) = ((SMALLEST * PLACES) as u32, (MIDDLE * PLACES) as u32);
    assert!((macroblock as usize + 1) * SMALLEST * PLACES <= smallest.len());
    assert!((macroblock as usize + 1) * MIDDLE * PLACES <= sums.len());
    // And `smallest` has fewer.
    assert!(sums.len() <= u32::MAX as usize);
    let (places, parts) = (PLACES as u32, PARTS as u32);
    let i = thread::block_idx_x() * BLOCK as u32 + thread::thread_idx_x();
    if i >= 4 * places {
        return;
    }
    // A quarter has 8 by 8 pixels.
    let (quarter, place) = (i / places, i % places);
    let (top, left) = (quarter / 2, quarter % 2);
    let first = macroblock * of_smallest + (2 * top * parts + 2 * left) * places + place;
    // SAFETY: parts and places are below their numbers.
    let part = |i: u32| unsafe { *smallest.get_unchecked((first + i * places) as usize) };
    let (a, b, c, d) = (part(0), part(1), part(parts), part(parts + 1));
    let at = macroblock * of_middle + place;
    // SAFETY: as above, and each thread writes its own elements.
    unsafe {
        let to = sums.as_mut_ptr();
        to.add((at + (4 * top + left) * places) as usize).write(a + b);
        to.add((at + (4 * top + 2 + left) * places) as usize).write(c + d);
        to.add((at + (8 + top * parts + 2 * left) * places) as usize).write(a + c);
        to.add((at + (9 + top * parts + 2 * left) * places) as usize).write(b + d);
        to.add((at + (16 + quarter) * places) as usize).write(a + b + c + d);
    }
}

/// The sums of the largest parts from those that [`larger_sad_calc_8`] writes: of the upper and the lower half, the left
/// and the right one, and the macroblock. One block-task for each macroblock.
#[preemptible(block = 128)]
pub fn larger_sad_calc_16(middle: &[u32], sums: SliceMut<u32>) {
    let macroblock = thread::block_idx_x() as usize;
    // Once, so that nothing below has to be checked.
    assert!((macroblock + 1) * MIDDLE * PLACES <= middle.len());
    assert!((macroblock + 1) * LARGEST * PLACES <= sums.len());
    let mut place = thread::thread_idx_x() as usize;
    while place < PLACES {
        yield_point!();
        let first = macroblock * MIDDLE + 16;
        // SAFETY: parts and places are below their numbers.
        let quarter = |i: usize| unsafe { *middle.get_unchecked((first + i) * PLACES + place) };
        let (a, b, c, d) = (quarter(0), quarter(1), quarter(2), quarter(3));
        yield_point!();
        // SAFETY: as above, and each thread writes its own elements.
        unsafe {
            let to = sums.as_mut_ptr().add(macroblock * LARGEST * PLACES + place);
            to.write(a + b);
            to.add(PLACES).write(c + d);
            to.add(2 * PLACES).write(a + c);
            to.add(3 * PLACES).write(b + d);
            to.add(4 * PLACES).write(a + b + c + d);
        }
        place += BLOCK;
    }
}
