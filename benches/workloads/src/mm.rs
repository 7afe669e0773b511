//! Tiled matrix multiplication.

use preempt::Error;
use preempt_workload_kernels::input::between;
use preempt_workload_kernels::mm::{TILE, matrix_multiply};

use crate::{Between, Definition, Memory, Output, Program, Size, Tolerance, random_f32};

pub const DEFINITION: Definition =
    Definition { name: "MM", source: "CUDA samples, matrixMul", flep_amortize: 2, build };

const RANGE: (f32, f32) = (-1.0, 1.0);

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    build_between(memory, size.into(), seed)
}

pub fn build_between(memory: Memory<'_>, size: Between, seed: u32) -> Result<Program, Error> {
    let n = size.number(|size| match size {
        Size::Reduced => 192,
        Size::Trivial => 128,
        Size::Small => 1184,
        Size::Large => 1440,
    });
    let n = (n / TILE * TILE) as u32;
    let elements = (n * n) as usize;
    let mut setup = Vec::new();
    let a = random_f32(memory, &mut setup, seed, RANGE, elements)?;
    let b = random_f32(memory, &mut setup, seed + 1, RANGE, elements)?;
    let mut c = memory.zeroed(elements)?;
    let tiles = n / TILE as u32;
    let steps = vec![matrix_multiply(&a, &b, &mut c, n).grid((tiles, tiles))];
    let reference = move || {
        let element = |seed, i| between(seed, i, RANGE.0, RANGE.1);
        let product = |i: u32| {
            let (row, column) = (i / n, i % n);
            let term = |sum: f32, k: u32| {
                element(seed, row * n + k).mul_add(element(seed + 1, k * n + column), sum)
            };
            (0..n).fold(0.0, term)
        };
        (0..elements as u32).map(product).collect()
    };
    // In the kernel's order.
    let outputs = vec![Output::floats(memory, "product", c, Tolerance::Exact, reference)?];
    Ok(Program { setup, steps, dominant: 0, outputs })
}
