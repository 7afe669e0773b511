//! Alignment of two sequences.

use preempt::Error;
use preempt_workload_kernels::input::BLOCK;
use preempt_workload_kernels::nw::{
    TILE, letter, needle_lower_right, needle_upper_left, nw_edges, nw_similarities, similarity,
};

use crate::{Definition, Memory, Output, Program, Size, blocks};

pub const DEFINITION: Definition =
    Definition { name: "NW", source: "Rodinia, nw", flep_amortize: 8, build };

/// What a gap takes off the score: Rodinia's example.
const PENALTY: i32 = 10;

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    let n: u32 = match size {
        Size::Reduced => 256,
        Size::Trivial => 64,
        Size::Small => 512,
        // The paper's input: 511 launches, each of which the next one waits for.
        Size::Large => 4096,
    };
    let tiles = n / TILE as u32;
    let mut similarities = memory.zeroed((n * n) as usize)?;
    let mut scores = memory.zeroed(((n + 1) * (n + 1)) as usize)?;
    let setup =
        vec![nw_similarities(seed, n, &mut similarities).grid(blocks(similarities.len(), BLOCK))];
    let mut steps = vec![nw_edges(n, PENALTY, &mut scores).grid(blocks(n as usize + 1, BLOCK))];
    for diagonal in 0..tiles {
        let call = needle_upper_left(n, PENALTY, diagonal, &similarities, &mut scores);
        steps.push(call.grid(diagonal + 1));
    }
    for left in (1..tiles).rev() {
        let call = needle_lower_right(n, PENALTY, left, &similarities, &mut scores);
        steps.push(call.grid(left));
    }
    let reference = move || {
        let width = n as usize + 1;
        let mut scores = vec![0i32; width * width];
        for row in 0..width {
            for column in 0..width {
                let at = row * width + column;
                scores[at] = if row == 0 || column == 0 {
                    -PENALTY * (row + column) as i32
                } else {
                    let pair = (letter(seed, row as u32 - 1), letter(seed + 1, column as u32 - 1));
                    let aligned = scores[at - width - 1] + similarity(pair.0, pair.1);
                    let (above, left) = (scores[at - width] - PENALTY, scores[at - 1] - PENALTY);
                    aligned.max(above).max(left)
                };
            }
        }
        scores.into_iter().map(|score| score as u32).collect()
    };
    let outputs = vec![Output::integers(memory, "scores", scores, reference)?];
    // The main diagonal, which has most tiles.
    Ok(Program { setup, steps, dominant: tiles as usize, outputs })
}
