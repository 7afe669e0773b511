//! Seven-point stencil.

use preempt::{Buffer, Error};
use preempt_workload_kernels::input::between;
use preempt_workload_kernels::stencil_3d::{
    COLUMNS, Extents, ROWS, stencil_7_points, stencil_7_points_saving,
};

use crate::{Definition, Memory, Output, Program, Size, Tolerance, random_f32};

pub const DEFINITION: Definition =
    Definition { name: "ST", source: "Parboil, stencil", flep_amortize: 1, build };

/// The same with a checkpoint.
pub const CHECKPOINTED: Definition = Definition { build: build_saving, ..DEFINITION };

const RANGE: (f32, f32) = (0.0, 1.0);

/// Parboil's weights.
const OF_CELL: f32 = 1.0 / 6.0;
const OF_NEIGHBOURS: f32 = 1.0 / 36.0;

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    with(memory, size, seed, false)
}

fn build_saving(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    with(memory, size, seed, true)
}

fn with(memory: Memory<'_>, size: Size, seed: u32, saving: bool) -> Result<Program, Error> {
    let (x, y, z, iterations): (u32, u32, u32, usize) = match size {
        Size::Reduced => (201, 31, 20, 3),
        Size::Trivial => (128, 32, 32, 2),
        // The paper's grid.
        Size::Small => (512, 512, 64, 4),
        // Four times the paper's planes: 0.5 GB are read and written by each launch.
        Size::Large => (512, 512, 256, 10),
    };
    let extents = Extents { x, y, z };
    let length = (x * y * z) as usize;
    let mut setup = Vec::new();
    let cells = random_f32(memory, &mut setup, seed, RANGE, length)?;
    let grid = (x.div_ceil(COLUMNS), y.div_ceil(ROWS));
    let step = |from: &Buffer<f32>, to: &mut Buffer<f32>| match saving {
        false => stencil_7_points(extents, OF_NEIGHBOURS, OF_CELL, from, to).grid(grid),
        true => stencil_7_points_saving(extents, OF_NEIGHBOURS, OF_CELL, from, to).grid(grid),
    };
    // Back and forth between two buffers, but the first iteration reads the input, which stays as it is.
    let (mut now, mut next) = (memory.zeroed(length)?, memory.zeroed(length)?);
    let mut steps = vec![step(&cells, &mut now)];
    while steps.len() < iterations {
        steps.push(step(&now, &mut next));
        std::mem::swap(&mut now, &mut next);
    }
    let reference = move || {
        let input: Vec<f32> =
            (0..length as u32).map(|i| between(seed, i, RANGE.0, RANGE.1)).collect();
        (0..iterations).fold(input, |cells, _| iterate(&cells, extents))
    };
    // Each cell is the same expression.
    let outputs = vec![Output::floats(memory, "cells", now, Tolerance::Exact, reference)?];
    Ok(Program { setup, steps, dominant: 0, outputs })
}

/// The grid after one more iteration.
fn iterate(cells: &[f32], extents: Extents) -> Vec<f32> {
    let [x, y, z] = [extents.x, extents.y, extents.z].map(|extent| extent as usize);
    let mut next = cells.to_vec();
    for plane in 1..z - 1 {
        for row in 1..y - 1 {
            for column in 1..x - 1 {
                let at = (plane * y + row) * x + column;
                // Planes, rows and columns, the later ones first but for the last pair.
                let places = [at + x * y, at - x * y, at + x, at - x, at - 1, at + 1];
                let sum = places.into_iter().map(|at| cells[at]).reduce(|sum, cell| sum + cell);
                next[at] = OF_NEIGHBOURS.mul_add(sum.unwrap_or_default(), -(OF_CELL * cells[at]));
            }
        }
    }
    next
}
