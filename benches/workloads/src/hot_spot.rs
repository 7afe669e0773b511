//! Temperatures of a chip.

use preempt::{Buffer, Error};
use preempt_workload_kernels::hot_spot::{Chip, EXTENT, HEIGHT, calculate_temp};
use preempt_workload_kernels::input::between;

use crate::{Definition, Memory, Output, Program, Size, Tolerance, random_f32};

pub const DEFINITION: Definition =
    Definition { name: "HS", source: "Rodinia, hotspot", flep_amortize: 32, build };

/// Temperatures at the start, and the power of cells, as in Rodinia's inputs.
const TEMPERATURES: (f32, f32) = (320.0, 340.0);
const POWER: (f32, f32) = (0.0, 0.02);

/// A chip of 16 by 16 mm and 0.5 mm of silicon, with Rodinia's constants, in steps as long as it makes them.
fn chip(rows: u32, columns: u32) -> Chip {
    let (thickness, conductivity, heat, density) = (0.0005f32, 100.0f32, 1.75e6f32, 3e6f32);
    let (height, width) = (0.016 / rows as f32, 0.016 / columns as f32);
    let capacity = 0.5 * heat * thickness * width * height;
    let step = 0.001 / (density / (0.5 * thickness * heat));
    Chip {
        step: step / capacity,
        x: 2.0 * conductivity * thickness * height / width,
        y: 2.0 * conductivity * thickness * width / height,
        z: conductivity * height * width / thickness,
        ambient: 80.0,
    }
}

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    let (rows, columns, launches): (u32, u32, usize) = match size {
        Size::Reduced => (203, 170, 3),
        Size::Trivial => (48, 48, 2),
        Size::Small => (1280, 1280, 16),
        // 16 times the paper's cells: 0.2 GB are read and written by each launch.
        Size::Large => (4096, 4096, 16),
    };
    let chip = chip(rows, columns);
    let length = (rows * columns) as usize;
    let mut setup = Vec::new();
    let start = random_f32(memory, &mut setup, seed, TEMPERATURES, length)?;
    let power = random_f32(memory, &mut setup, seed + 1, POWER, length)?;
    let grid = (columns.div_ceil(EXTENT as u32), rows.div_ceil(EXTENT as u32));
    let step = |from: &Buffer<f32>, to: &mut Buffer<f32>| {
        calculate_temp(chip, &power, from, to, rows, columns).grid(grid)
    };
    // Back and forth between two buffers, but the first launch reads the input, which stays as it is.
    let (mut now, mut next) = (memory.zeroed(length)?, memory.zeroed(length)?);
    let mut steps = vec![step(&start, &mut now)];
    while steps.len() < launches {
        steps.push(step(&now, &mut next));
        std::mem::swap(&mut now, &mut next);
    }
    let reference = move || {
        let random =
            |seed, (low, high)| (0..length as u32).map(move |i| between(seed, i, low, high));
        let power: Vec<f32> = random(seed + 1, POWER).collect();
        let start: Vec<f32> = random(seed, TEMPERATURES).collect();
        let iterate =
            |now: Vec<f32>, _| iterate(chip, &power, &now, rows as usize, columns as usize);
        (0..launches * HEIGHT).fold(start, iterate)
    };
    // Each cell is the same expression.
    let outputs = vec![Output::floats(memory, "temperatures", now, Tolerance::Exact, reference)?];
    Ok(Program { setup, steps, dominant: 0, outputs })
}

/// The temperatures after one more iteration.
fn iterate(chip: Chip, power: &[f32], now: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let next = |i: usize| {
        let (row, column, center) = (i / columns, i % columns, now[i]);
        // A cell at the edge has itself as its neighbour there.
        let of_row = |row: usize| now[row * columns + column];
        let of_column = |column: usize| now[row * columns + column];
        let (north, south) = (of_row(row.saturating_sub(1)), of_row((row + 1).min(rows - 1)));
        let west = of_column(column.saturating_sub(1));
        let east = of_column((column + 1).min(columns - 1));
        let flow = power[i]
            + (south + north - 2.0 * center) * chip.y
            + (east + west - 2.0 * center) * chip.x
            + (chip.ambient - center) * chip.z;
        chip.step.mul_add(flow, center)
    };
    (0..now.len()).map(next).collect()
}
