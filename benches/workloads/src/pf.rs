//! The cheapest path through a grid.

use preempt::{Buffer, Error};
use preempt_workload_kernels::input::{self, fill_u32, hash};
use preempt_workload_kernels::pf::{COSTS, columns_of_task, dynproc};

use crate::{Between, Definition, Memory, Output, Program, Size, blocks};

pub const DEFINITION: Definition =
    Definition { name: "PF", source: "Rodinia, pathfinder", flep_amortize: 150, build };

/// The most rows of a launch.
const PYRAMID: u32 = 20;

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    build_between(memory, size.into(), seed)
}

pub fn build_between(memory: Memory<'_>, size: Between, seed: u32) -> Result<Program, Error> {
    let extents = |size: Size| -> (u32, u32) {
        match size {
            Size::Reduced => (20_000, 48),
            Size::Trivial => (8 * columns_of_task(PYRAMID), 41),
            Size::Small => (600_000, 101),
            Size::Large => (8 << 20, 101),
        }
    };
    let columns = size.number(|size| extents(size).0 as usize) as u32;
    let rows = size.number(|size| extents(size).1 as usize) as u32;
    let mut setup = Vec::new();
    let mut random = |seed: u32, length: usize| -> Result<Buffer<u32>, Error> {
        let mut buffer = memory.zeroed(length)?;
        setup.push(fill_u32(seed, COSTS, &mut buffer).grid(blocks(length, input::BLOCK)));
        Ok(buffer)
    };
    // The first row is where ways begin, and the wall is the other ones.
    let begin = random(seed, columns as usize)?;
    let wall = random(seed + 1, ((rows - 1) * columns) as usize)?;
    let grid = columns.div_ceil(columns_of_task(PYRAMID));
    let step = |from: &Buffer<u32>, to: &mut Buffer<u32>, first: u32| {
        let count = PYRAMID.min(rows - 1 - first);
        dynproc(&wall, from, to, columns, first, count, PYRAMID).grid(grid)
    };
    // Back and forth between two buffers, but the first launch takes the first row, which stays as it is.
    let length = columns as usize;
    let (mut now, mut next) = (memory.zeroed(length)?, memory.zeroed(length)?);
    let mut steps = vec![step(&begin, &mut now, 0)];
    for first in (PYRAMID..rows - 1).step_by(PYRAMID as usize) {
        steps.push(step(&now, &mut next, first));
        std::mem::swap(&mut now, &mut next);
    }
    let reference = move || {
        let first_row: Vec<u32> = (0..columns).map(|x| hash(seed, x) % COSTS).collect();
        (0..rows - 1).fold(first_row, |before, row| {
            let cost = |x: u32| hash(seed + 1, row * columns + x) % COSTS;
            let cheapest = |x: usize| {
                let beside = x.saturating_sub(1)..=(x + 1).min(before.len() - 1);
                *before[beside].iter().min().unwrap()
            };
            (0..columns).map(|x| cheapest(x as usize) + cost(x)).collect()
        })
    };
    let outputs = vec![Output::integers(memory, "costs", now, reference)?];
    Ok(Program { setup, steps, dominant: 0, outputs })
}
