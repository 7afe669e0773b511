//! Vector addition.

use preempt::{Error, Scheduler};
use preempt_workload_kernels::input::between;
use preempt_workload_kernels::va::{BLOCK, vector_add};

use crate::{Between, Definition, Output, Program, Size, Tolerance, blocks, random_f32};

pub const DEFINITION: Definition =
    Definition { name: "VA", source: "CUDA samples, vectorAdd", flep_amortize: 200, build };

const RANGE: (f32, f32) = (-1.0, 1.0);

fn build(scheduler: &Scheduler, size: Size, seed: u32) -> Result<Program, Error> {
    build_between(scheduler, size.into(), seed)
}

pub fn build_between(scheduler: &Scheduler, size: Between, seed: u32) -> Result<Program, Error> {
    let length = size.number(|size| match size {
        Size::Reduced => 40_000,
        Size::Trivial => 4096,
        Size::Small => 48 << 20,
        Size::Large => 1 << 31,
    });
    let mut setup = Vec::new();
    let a = random_f32(scheduler, &mut setup, seed, RANGE, length)?;
    let b = random_f32(scheduler, &mut setup, seed + 1, RANGE, length)?;
    let mut out = scheduler.zeroed(length)?;
    let steps = vec![vector_add(&a, &b, &mut out).grid(blocks(length, BLOCK))];
    let reference = move || {
        let element = |seed, i| between(seed, i, RANGE.0, RANGE.1);
        (0..length as u32).map(|i| element(seed, i) + element(seed + 1, i)).collect()
    };
    let outputs = vec![Output::floats(scheduler, "sums", out, Tolerance::Exact, reference)?];
    Ok(Program { setup, steps, dominant: 0, outputs })
}
