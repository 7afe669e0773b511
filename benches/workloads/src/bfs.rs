//! Breadth-first search.

use preempt::Error;
use preempt_workload_kernels::bfs::{
    BLOCK, DEGREES, SOURCE, UNSEEN, bfs_expand, bfs_reset, bfs_targets, depth, target,
};
use preempt_workload_kernels::input;
use preempt_workload_kernels::lists::list_starts;

use crate::{Definition, Memory, Output, Program, Size, blocks};

pub const DEFINITION: Definition =
    Definition { name: "BFS", source: "SHOC and Rodinia, BFS", flep_amortize: 10, build };

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    // `widest` is the level with most vertices, more than half of all. It is the same for all but rare seeds, because
    // each level has about 14 times the vertices of the one before, until most are found.
    let (vertices, widest): (u32, u32) = match size {
        Size::Reduced => (20_001, 4),
        Size::Trivial => (2048, 3),
        Size::Small => (512 << 10, 5),
        // 120 million neighbours.
        Size::Large => (8 << 20, 6),
    };
    let grid = blocks(vertices as usize, BLOCK);
    let edges = DEGREES.start(seed, vertices) as usize;
    let mut setup = Vec::new();
    let mut starts = memory.zeroed(vertices as usize + 1)?;
    let start_blocks = blocks(starts.len(), input::BLOCK);
    setup.push(list_starts(DEGREES, seed, &mut starts).grid(start_blocks));
    let mut targets = memory.zeroed(edges)?;
    setup.push(bfs_targets(seed + 1, &starts, &mut targets).grid(grid));
    let mut levels = memory.zeroed(vertices as usize)?;
    let mut steps = vec![bfs_reset(&mut levels).grid(grid)];
    // Every vertex is in the tree, and no deeper than this. By random neighbours most are nearer, so the last launches
    // find none, which the host cannot know.
    for level in 0..depth(vertices) {
        steps.push(bfs_expand(level, &starts, &targets, &mut levels).grid(grid));
    }
    let outputs =
        vec![Output::integers(memory, "levels", levels, move || reference(seed, vertices))?];
    Ok(Program { setup, steps, dominant: 1 + widest as usize, outputs })
}

/// The level of each vertex.
fn reference(seed: u32, vertices: u32) -> Vec<u32> {
    let mut levels = vec![UNSEEN; vertices as usize];
    levels[SOURCE as usize] = 0;
    let mut queue = vec![SOURCE];
    let mut next = 0;
    while let Some(&vertex) = queue.get(next) {
        next += 1;
        let start = DEGREES.start(seed, vertex);
        for j in start..DEGREES.start(seed, vertex + 1) {
            let neighbour = target(seed + 1, vertex, start, j, vertices);
            if levels[neighbour as usize] == UNSEEN {
                levels[neighbour as usize] = levels[vertex as usize] + 1;
                queue.push(neighbour);
            }
        }
    }
    levels
}
