//! Nine-point stencil.

use preempt::{Buffer, Error};
use preempt_workload_kernels::input::between;
use preempt_workload_kernels::stencil_2d::{COLUMNS, ROWS, Weights, stencil_9_points};

use crate::{Definition, Memory, Output, Program, Size, Tolerance, random_f32};

pub const DEFINITION: Definition =
    Definition { name: "Stencil2D", source: "SHOC, Stencil2D", flep_amortize: 64, build };

const RANGE: (f32, f32) = (0.0, 1.0);

/// SHOC's default weights.
const WEIGHTS: Weights = Weights { center: 0.25, cardinal: 0.15, diagonal: 0.05 };

/// The value around the grid.
const OUTSIDE: f32 = 0.5;

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    let (rows, columns, iterations): (u32, u32, usize) = match size {
        Size::Reduced => (203, 501, 3),
        Size::Trivial => (4 * ROWS as u32, 2 * COLUMNS as u32, 2),
        Size::Small => (4096, 4096, 5),
        Size::Large => (16_384, 16_384, 10),
    };
    let length = (rows * columns) as usize;
    let mut setup = Vec::new();
    let cells = random_f32(memory, &mut setup, seed, RANGE, length)?;
    let grid = (columns.div_ceil(COLUMNS as u32), rows.div_ceil(ROWS as u32));
    let step = |from: &Buffer<f32>, to: &mut Buffer<f32>| {
        stencil_9_points(WEIGHTS, OUTSIDE, from, to, rows, columns).grid(grid)
    };
    // Back and forth between two buffers, but the first iteration reads the input, which stays as it is.
    let (mut now, mut next) = (memory.zeroed(length)?, memory.zeroed(length)?);
    let mut steps = vec![step(&cells, &mut now)];
    while steps.len() < iterations {
        steps.push(step(&now, &mut next));
        std::mem::swap(&mut now, &mut next);
    }
    let reference = move || {
        let element = |i| between(seed, i, RANGE.0, RANGE.1);
        let input: Vec<f32> = (0..length as u32).map(element).collect();
        (0..iterations).fold(input, |cells, _| iterate(&cells, rows as usize, columns as usize))
    };
    // Each cell is the same expression.
    let outputs = vec![Output::floats(memory, "cells", now, Tolerance::Exact, reference)?];
    Ok(Program { setup, steps, dominant: 0, outputs })
}

/// The grid after one more iteration.
fn iterate(cells: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let cell = |row: usize, column: usize| {
        // An offset of one, so that the cells above and left of the grid have an index.
        let (row, column) = (row.wrapping_sub(1), column.wrapping_sub(1));
        if row < rows && column < columns { cells[row * columns + column] } else { OUTSIDE }
    };
    let three = |row, column| [cell(row, column), cell(row, column + 1), cell(row, column + 2)];
    let next = |i: usize| {
        let (row, column) = (i / columns, i % columns);
        WEIGHTS.apply(three(row, column), three(row + 1, column), three(row + 2, column))
    };
    (0..rows * columns).map(next).collect()
}
