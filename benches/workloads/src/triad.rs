//! Triad of vectors.

use preempt::Error;
use preempt_workload_kernels::input::between;
use preempt_workload_kernels::triad::{BLOCK, triad, triad_of};

use crate::{Definition, Memory, Output, Program, Size, Tolerance, blocks, random_f32};

pub const DEFINITION: Definition =
    Definition { name: "Triad", source: "SHOC, Triad", flep_amortize: 200, build };

const RANGE: (f32, f32) = (-1.0, 1.0);
/// The factor of the second vector, as in SHOC.
const FACTOR: f32 = 1.75;

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    let length = match size {
        Size::Reduced => 40_010,
        Size::Trivial => 2048,
        Size::Small => 12 << 20,
        // 1.2 GB are read and written.
        Size::Large => 100 << 20,
    };
    let mut setup = Vec::new();
    let a = random_f32(memory, &mut setup, seed, RANGE, length)?;
    let b = random_f32(memory, &mut setup, seed + 1, RANGE, length)?;
    let mut c = memory.zeroed(length)?;
    let steps = vec![triad(&a, &b, &mut c, FACTOR).grid(blocks(length, BLOCK))];
    let reference = move || {
        let element = |seed, i| between(seed, i, RANGE.0, RANGE.1);
        let sum = |i| triad_of(element(seed, i), element(seed + 1, i), FACTOR);
        (0..length as u32).map(sum).collect()
    };
    let outputs = vec![Output::floats(memory, "sums", c, Tolerance::Exact, reference)?];
    Ok(Program { setup, steps, dominant: 0, outputs })
}
