//! Prefix sums.

use preempt::{Buffer, Error};
use preempt_workload_kernels::input::BLOCK as FILL_BLOCK;
use preempt_workload_kernels::scan::{
    WINDOW, element, scan_bottom, scan_fill, scan_reduce, scan_top,
};

use crate::{Definition, Memory, Output, Program, Size, Tolerance, blocks};

pub const DEFINITION: Definition =
    Definition { name: "Scan", source: "SHOC, Scan", flep_amortize: 4, build };

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    // Elements, and windows of elements that a block-task scans one after the other.
    let (length, windows): (usize, u32) = match size {
        Size::Reduced => (200_003, 3),
        Size::Trivial => (32 << 10, 4),
        Size::Small => (12 << 20, 4),
        Size::Large => (88 << 20, 8),
    };
    let tasks = length.div_ceil(windows as usize * WINDOW);
    let mut input: Buffer<f32> = memory.zeroed(length)?;
    let mut sums: Buffer<f32> = memory.zeroed(tasks)?;
    let mut carries: Buffer<f32> = memory.zeroed(tasks)?;
    let mut out = memory.zeroed(length)?;
    let setup = vec![scan_fill(seed, &mut input).grid(blocks(length, FILL_BLOCK))];
    let steps = vec![
        scan_reduce(&input, windows, &mut sums).grid(tasks as u32),
        scan_top(&sums, &mut carries).grid(1),
        scan_bottom(&input, &carries, windows, &mut out).grid(tasks as u32),
    ];
    let reference = move || {
        let add = |sum: &mut f32, i: u32| {
            *sum += element(seed, i);
            Some(*sum)
        };
        (0..length as u32).scan(0.0, add).collect()
    };
    // The sums are integers. With numbers from -8 to 8 that average out, they stay far below 2²⁴ for all
    // sizes (the largest has a standard deviation of 5 * 10⁴), so no order of additions rounds.
    let outputs = vec![Output::floats(memory, "sums", out, Tolerance::Exact, reference)?];
    Ok(Program { setup, steps, dominant: 2, outputs })
}
