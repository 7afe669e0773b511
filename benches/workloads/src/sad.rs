//! Sums of absolute differences.

use preempt::Error;
use preempt_workload_kernels::input;
use preempt_workload_kernels::sad::{
    LARGEST, MACROBLOCK, MIDDLE, PLACES, RANGE, SLICES, SMALLEST, larger_sad_calc_8,
    larger_sad_calc_16, mb_sad_calc, mb_sad_calc_saving, pixel, sad_frame,
};

use crate::{Definition, Memory, Output, Program, Size, blocks};

pub const DEFINITION: Definition =
    Definition { name: "SAD", source: "Parboil, sad", flep_amortize: 1, build };

/// The same with a checkpoint.
pub const CHECKPOINTED: Definition = Definition { build: build_saving, ..DEFINITION };

/// A part of a macroblock: its upper left pixel's row and column, and its extents in y and in x.
type Part = [usize; 4];

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    with(memory, size, seed, false)
}

fn build_saving(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    with(memory, size, seed, true)
}

fn with(memory: Memory<'_>, size: Size, seed: u32, saving: bool) -> Result<Program, Error> {
    let (width, height): (u32, u32) = match size {
        Size::Reduced => (64, 64),
        Size::Trivial => (96, 64),
        Size::Small => (640, 320),
        // The paper's input: 1.4 GB of sums.
        Size::Large => (1920, 1072),
    };
    let pixels = (width * height) as usize;
    let (mut frame, mut before) = (memory.zeroed(pixels)?, memory.zeroed(pixels)?);
    let grid = blocks(pixels, input::BLOCK);
    let setup = vec![
        sad_frame(seed, 1, width, &mut frame).grid(grid),
        sad_frame(seed, 0, width, &mut before).grid(grid),
    ];
    let macroblocks = pixels / (MACROBLOCK * MACROBLOCK);
    let sums = |parts: usize| memory.zeroed::<u32>(macroblocks * parts * PLACES);
    let (mut smallest, mut middle, mut largest) = (sums(SMALLEST)?, sums(MIDDLE)?, sums(LARGEST)?);
    let grid = macroblocks as u32;
    let steps = vec![
        match saving {
            false => mb_sad_calc(width, height, &frame, &before, &mut smallest).grid(grid),
            true => mb_sad_calc_saving(width, height, &frame, &before, &mut smallest).grid(grid),
        },
        larger_sad_calc_8(&smallest, &mut middle).grid((SLICES, grid)),
        larger_sad_calc_16(&middle, &mut largest).grid(grid),
    ];
    let reference = move |parts: &[Part]| reference(seed, [width, height], parts);
    let outputs = vec![
        Output::integers(memory, "4 by 4", smallest, move || reference(&parts(4, 4)))?,
        Output::integers(memory, "up to 8 by 8", middle, move || {
            reference(&[parts(4, 8), parts(8, 4), parts(8, 8)].concat())
        })?,
        Output::integers(memory, "up to 16 by 16", largest, move || {
            reference(&[parts(8, 16), parts(16, 8), parts(16, 16)].concat())
        })?,
    ];
    Ok(Program { setup, steps, dominant: 0, outputs })
}

/// All parts of a macroblock with these extents in y and in x, row by row.
fn parts(height: usize, width: usize) -> Vec<Part> {
    let of_row =
        move |row| (0..MACROBLOCK).step_by(width).map(move |column| [row, column, height, width]);
    (0..MACROBLOCK).step_by(height).flat_map(of_row).collect()
}

/// The sums of these parts of all macroblocks, for all places.
fn reference(seed: u32, [width, height]: [u32; 2], parts: &[Part]) -> Vec<u32> {
    let side = 2 * RANGE;
    let pixel_of = |frame, i: u32| pixel(seed, frame, i % width, i / width);
    let [before, frame] =
        [0, 1].map(|number| (0..width * height).map(|i| pixel_of(number, i)).collect::<Vec<u8>>());
    let difference = |x: usize, y: usize, right: usize, down: usize| {
        let moved = |at: usize, by: usize, extent: u32| {
            (at + by).saturating_sub(RANGE).min(extent as usize - 1)
        };
        let (from_x, from_y) = (moved(x, right, width), moved(y, down, height));
        frame[y * width as usize + x].abs_diff(before[from_y * width as usize + from_x])
    };
    let mut sums = Vec::new();
    for top in (0..height as usize).step_by(MACROBLOCK) {
        for left in (0..width as usize).step_by(MACROBLOCK) {
            for &[row, column, height, width] in parts {
                for down in 0..=side {
                    for right in 0..=side {
                        let rows = top + row..top + row + height;
                        let pixels = rows.flat_map(|y| {
                            (left + column..left + column + width).map(move |x| (x, y))
                        });
                        let of = pixels.map(|(x, y)| u32::from(difference(x, y, right, down)));
                        sums.push(of.sum());
                    }
                }
            }
        }
    }
    sums
}
