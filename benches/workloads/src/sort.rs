//! Radix sort.

use preempt::{Buffer, Call, Error};
use preempt_workload_kernels::input::{BLOCK as FILL_BLOCK, fill_u32, hash};
use preempt_workload_kernels::sort::{
    DIGIT_BITS, DIGITS, WINDOW, sort_bottom_scan, sort_number, sort_reduce, sort_top_scan,
};

use crate::{Definition, Memory, Output, Program, Size, blocks};

pub const DEFINITION: Definition =
    Definition { name: "Sort", source: "SHOC, Sort", flep_amortize: 4, build };

/// Bound of the keys: nearly all numbers, so that each digit takes all its values.
const BOUND: u32 = u32::MAX;

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    // Keys, and windows of keys that a block-task sorts one after the other.
    let (length, windows): (usize, u32) = match size {
        Size::Reduced => (101_000, 2),
        Size::Trivial => (32_000, 2),
        Size::Small => (1 << 20, 4),
        Size::Large => (20 << 20, 8),
    };
    let tasks = length.div_ceil(windows as usize * WINDOW) as u32;
    let mut keys: Buffer<u32> = memory.zeroed(length)?;
    let mut values: Buffer<u32> = memory.zeroed(length)?;
    let mut counts: Buffer<u32> = memory.zeroed(DIGITS * tasks as usize)?;
    let mut bases: Buffer<u32> = memory.zeroed(DIGITS * tasks as usize)?;
    let fill_grid = blocks(length, FILL_BLOCK);
    let setup = vec![
        fill_u32(seed, BOUND, &mut keys).grid(fill_grid),
        sort_number(&mut values).grid(fill_grid),
    ];
    let mut steps: Vec<Call<'static>> = Vec::new();
    let mut pass =
        |from: &(Buffer<u32>, Buffer<u32>), to: &mut (Buffer<u32>, Buffer<u32>), shift| {
            steps.push(sort_reduce(&from.0, shift, windows, &mut counts).grid(tasks));
            steps.push(sort_top_scan(&counts, &mut bases).grid(1));
            let move_all =
                sort_bottom_scan(&from.0, &from.1, &bases, shift, windows, &mut to.0, &mut to.1);
            steps.push(move_all.grid(tasks));
        };
    // The input stays as it is; between passes the keys alternate between two buffers.
    let input = (keys, values);
    let mut odd = (memory.zeroed(length)?, memory.zeroed(length)?);
    let mut even = (memory.zeroed(length)?, memory.zeroed(length)?);
    pass(&input, &mut odd, 0);
    pass(&odd, &mut even, DIGIT_BITS);
    for twice in 1..u32::BITS / DIGIT_BITS / 2 {
        let shift = twice * 2 * DIGIT_BITS;
        pass(&even, &mut odd, shift);
        pass(&odd, &mut even, shift + DIGIT_BITS);
    }
    let sorted = move || {
        let mut pairs: Vec<_> = (0..length as u32).map(|i| (hash(seed, i) % BOUND, i)).collect();
        pairs.sort_by_key(|&(key, _)| key);
        pairs
    };
    let keys_reference = move || sorted().into_iter().map(|(key, _)| key).collect();
    let values_reference = move || sorted().into_iter().map(|(_, value)| value).collect();
    let outputs = vec![
        Output::integers(memory, "keys", even.0, keys_reference)?,
        Output::integers(memory, "values", even.1, values_reference)?,
    ];
    // The first scatter, because all of them take as long.
    Ok(Program { setup, steps, dominant: 2, outputs })
}
