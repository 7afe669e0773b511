//! Nearest neighbours.

use preempt::Error;
use preempt_workload_kernels::nn::{BLOCK, Record, nn_distances, nn_records, record};

use crate::{Between, Definition, Memory, Output, Program, Size, Tolerance, blocks};

pub const DEFINITION: Definition =
    Definition { name: "NN", source: "Rodinia, nn", flep_amortize: 100, build };

/// The published default.
const TARGET: Record = Record { latitude: 30.0, longitude: 90.0 };

/// Blocks in x: Rodinia's bound, beyond which it launches grids of two dimensions.
const MOST_BLOCKS_IN_X: u32 = 65_535;

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    build_between(memory, size.into(), seed)
}

pub fn build_between(memory: Memory<'_>, size: Between, seed: u32) -> Result<Program, Error> {
    let length = size.number(|size| match size {
        Size::Reduced => 40_000,
        Size::Trivial => 4096,
        Size::Small => 58_000_000,
        Size::Large => 1_300_000_000,
    });
    let mut records = memory.zeroed(length)?;
    let mut distances = memory.zeroed(length)?;
    let grid = grid(length);
    let setup = vec![nn_records(seed, &mut records).grid(grid)];
    let steps = vec![nn_distances(&records, TARGET, &mut distances).grid(grid)];
    let reference = move || {
        let distance = |i| {
            let Record { latitude, longitude } = record(seed, i);
            let (north, east) = (TARGET.latitude - latitude, TARGET.longitude - longitude);
            north.mul_add(north, east * east).sqrt()
        };
        (0..length as u32).map(distance).collect()
    };
    // One rounding after the other as in the kernel, and square roots are rounded correctly everywhere.
    let outputs =
        vec![Output::floats(memory, "distances", distances, Tolerance::Exact, reference)?];
    Ok(Program { setup, steps, dominant: 0, outputs })
}

/// A grid of one thread for each record, with fewer blocks past the end than rows.
fn grid(length: usize) -> (u32, u32) {
    let blocks = blocks(length, BLOCK);
    let rows = blocks.div_ceil(MOST_BLOCKS_IN_X);
    (blocks.div_ceil(rows), rows)
}
