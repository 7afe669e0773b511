//! Product of a sparse matrix and a vector.

use preempt::Error;
use preempt_workload_kernels::input::{BLOCK, between};
use preempt_workload_kernels::lists::{Lists, list_starts};
use preempt_workload_kernels::spmv::{ROWS, column, row_in_order, spmv_matrix, spmv_vector, value};

use crate::{Between, Definition, Memory, Output, Program, Size, Tolerance, blocks, random_f32};

pub const DEFINITION: Definition =
    Definition { name: "SPMV", source: "SHOC, Spmv (CSR, vector)", flep_amortize: 2, build };

const RANGE: (f32, f32) = (-1.0, 1.0);

/// Rows have up to `2 * spread` elements; one in 1024 has 100 times the mean of all rows in addition.
const fn rows_of(spread: u32) -> Lists {
    Lists { least: 0, spread, long: 111 * spread, group: 1024 }
}

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    build_between(memory, size.into(), seed)
}

pub fn build_between(memory: Memory<'_>, size: Between, seed: u32) -> Result<Program, Error> {
    let rows_and_lists = |size: Size| match size {
        Size::Reduced => (1201, rows_of(16)),
        Size::Trivial => (64, rows_of(16)),
        Size::Small => (256 << 10, rows_of(64)),
        // 220 million elements, each of 8 bytes and an index into a vector of 12 MB.
        Size::Large => (3 << 20, rows_of(64)),
    };
    let rows = size.number(|size| rows_and_lists(size).0) as u32;
    let lists = rows_and_lists(size.to).1;
    let start = move |row| lists.start(seed, row);
    let elements = start(rows) as usize;
    let mut setup = Vec::new();
    let mut starts = memory.zeroed(rows as usize + 1)?;
    setup.push(list_starts(lists, seed, &mut starts).grid(blocks(starts.len(), BLOCK)));
    let mut columns = memory.zeroed(elements)?;
    let mut values = memory.zeroed(elements)?;
    let grid = rows.div_ceil(ROWS as u32);
    setup.push(spmv_matrix(seed + 1, &starts, &mut columns, &mut values).grid(grid));
    let x = random_f32(memory, &mut setup, seed + 3, RANGE, rows as usize)?;
    let mut y = memory.zeroed(rows as usize)?;
    let steps = vec![spmv_vector(&starts, &columns, &values, &x, &mut y).grid(grid)];
    let reference = move || {
        let product = |row| {
            let (first, length) = (start(row), start(row + 1) - start(row));
            row_in_order(length, |k| {
                let column = column(seed + 1, first, k, length, rows);
                (value(seed + 1, first + k), between(seed + 3, column, RANGE.0, RANGE.1))
            })
        };
        (0..rows).map(product).collect()
    };
    // In the kernel's order.
    let outputs = vec![Output::floats(memory, "product", y, Tolerance::Exact, reference)?];
    Ok(Program { setup, steps, dominant: 0, outputs })
}
