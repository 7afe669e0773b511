//! Vector addition.

use preempt::Error;
use preempt_workload_kernels::input::between;
use preempt_workload_kernels::va::{BLOCK, vector_add};

use crate::{Between, Definition, Memory, Output, Program, Size, Tolerance, blocks, random_f32};

pub const DEFINITION: Definition =
    Definition { name: "VA", source: "CUDA samples, vectorAdd", flep_amortize: 200, build };

const RANGE: (f32, f32) = (-1.0, 1.0);

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    build_between(memory, size.into(), seed)
}

pub fn build_between(memory: Memory<'_>, size: Between, seed: u32) -> Result<Program, Error> {
    let length = size.number(|size| match size {
        Size::Reduced => 40_000,
        Size::Trivial => 4096,
        Size::Small => 48 << 20,
        Size::Large => 1 << 31,
    });
    let mut setup = Vec::new();
    let a = random_f32(memory, &mut setup, seed, RANGE, length)?;
    let b = random_f32(memory, &mut setup, seed + 1, RANGE, length)?;
    let mut out = memory.zeroed(length)?;
    let steps = vec![vector_add(&a, &b, &mut out).grid(blocks(length, BLOCK))];
    let reference = move || {
        let element = |seed, i| between(seed, i, RANGE.0, RANGE.1);
        (0..length as u32).map(|i| element(seed, i) + element(seed + 1, i)).collect()
    };
    let outputs = vec![Output::floats(memory, "sums", out, Tolerance::Exact, reference)?];
    Ok(Program { setup, steps, dominant: 0, outputs })
}
