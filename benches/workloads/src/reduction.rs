//! Sum of a vector.

use preempt::Error;
use preempt_workload_kernels::input::between;
use preempt_workload_kernels::reduction::{reduce, reduce_in_order};

use crate::{Definition, Memory, Output, Program, Size, Tolerance, random_f32};

pub const DEFINITION: Definition =
    Definition { name: "Reduction", source: "SHOC, Reduction", flep_amortize: 10, build };

// Not around 0, where the sum would be small and a missing element would hardly show.
const RANGE: (f32, f32) = (0.0, 1.0);

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    let (length, grid) = match size {
        Size::Reduced => (160_001, 100),
        Size::Trivial => (16 << 10, 8),
        Size::Small => (16 << 20, 4096),
        // 2.1 GB are read, 32 KiB of them by each block-task.
        Size::Large => (1 << 29, 1 << 16),
    };
    let mut setup = Vec::new();
    let x = random_f32(memory, &mut setup, seed, RANGE, length)?;
    let mut partial = memory.zeroed(grid as usize)?;
    let mut sum = memory.zeroed(1)?;
    let steps = vec![reduce(&x, &mut partial).grid(grid), reduce(&partial, &mut sum).grid(1)];
    let partials = move || {
        let element = |i: usize| between(seed, i as u32, RANGE.0, RANGE.1);
        let one = |block| reduce_in_order(element, length, block, grid as usize);
        (0..grid as usize).map(one).collect::<Vec<f32>>()
    };
    let total = move || {
        let partials = partials();
        vec![reduce_in_order(|i| partials[i], partials.len(), 0, 1)]
    };
    // Both sums are in the kernel's order.
    let outputs = vec![
        Output::floats(memory, "partial sums", partial, Tolerance::Exact, partials)?,
        Output::floats(memory, "sum", sum, Tolerance::Exact, total)?,
    ];
    Ok(Program { setup, steps, dominant: 0, outputs })
}
