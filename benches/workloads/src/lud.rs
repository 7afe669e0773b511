//! Decomposition of a matrix into triangular ones.

use preempt::Error;
use preempt_workload_kernels::input::{BLOCK, between};
use preempt_workload_kernels::lud::{TILE, lud_diagonal, lud_internal, lud_matrix, lud_perimeter};

use crate::{Definition, Memory, Output, Program, Size, Tolerance, blocks};

pub const DEFINITION: Definition =
    Definition { name: "LUD", source: "Rodinia, lud", flep_amortize: 64, build };

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    let n: u32 = match size {
        Size::Reduced => 96,
        Size::Trivial => 48,
        Size::Small => 320,
        // Four times the paper's rows: 382 launches, each of which the next one waits for.
        Size::Large => 2048,
    };
    let elements = (n * n) as usize;
    let mut matrix = memory.zeroed(elements)?;
    // The matrix is overwritten, so each run makes it anew.
    let mut steps = vec![lud_matrix(seed, n, &mut matrix).grid(blocks(elements, BLOCK))];
    for first in (0..n).step_by(TILE) {
        let others = n / TILE as u32 - first / TILE as u32 - 1;
        steps.push(lud_diagonal(&mut matrix, n, first).grid(1));
        if others > 0 {
            steps.push(lud_perimeter(&mut matrix, n, first).grid(others));
            steps.push(lud_internal(&mut matrix, n, first).grid((others, others)));
        }
    }
    let reference = move || factors(seed, n as usize);
    // In another order, and in double precision: an element is a sum of up to 96 products below 1.
    let near = Tolerance::Within { absolute: 2e-5, relative: 2e-5 };
    let outputs = vec![Output::floats(memory, "factors", matrix, near, reference)?];
    Ok(Program { setup: Vec::new(), steps, dominant: 3, outputs })
}

/// Both factors in one matrix: the upper one, and below its diagonal the lower one, whose diagonal is 1.
fn factors(seed: u32, n: usize) -> Vec<f32> {
    let mut matrix: Vec<f64> =
        (0..(n * n) as u32).map(|i| f64::from(between(seed, i, -1.0, 1.0))).collect();
    for i in 0..n {
        matrix[i * n + i] += n as f64 / 4.0;
    }
    for k in 0..n {
        for row in k + 1..n {
            let factor = matrix[row * n + k] / matrix[k * n + k];
            matrix[row * n + k] = factor;
            for column in k + 1..n {
                matrix[row * n + column] -= factor * matrix[k * n + column];
            }
        }
    }
    matrix.into_iter().map(|x| x as f32).collect()
}
