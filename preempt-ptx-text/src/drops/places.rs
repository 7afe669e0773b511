//! Where the yield points of a body are.

use crate::code::{Budget, Code, Step};
use crate::divergence::{Among, Divergence};
use crate::flow::Flow;
use crate::tree::OperandKind;

use super::Stop;

/// Loops that have a yield point in a body without barriers; where there are more, outer loops alone have one. Each yield
/// point adds a hundred instructions.
const MOST_LOOPS: usize = 16;

/// A yield point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Point {
    /// Ahead of the instruction at this byte of the text, the first of a loop, each round of which takes so many instructions.
    Poll { at: usize, round: usize },
    /// In the place of the barrier there.
    Vote { at: usize },
}

/// The yield points of a body.
pub(super) struct Places {
    pub points: Vec<Point>,
    /// Of each instruction, whether a thread of the block may have come to it when the block leaves.
    pub may_come_before: Vec<bool>,
    /// Why there are none, and at which byte of the text.
    pub why_none: (Option<usize>, &'static str),
}

/// Finds the yield points of a body where threads vote, or poll. `obstacles` are steps that may not come before one.
pub(super) fn find(
    code: &Code<'_>,
    flow: &Flow,
    (votes, has_barrier): (bool, bool),
    obstacles: &[usize],
    budget: &mut Budget,
) -> Result<Places, Stop> {
    let none = |at: Option<usize>, why| Places {
        points: Vec::new(),
        may_come_before: vec![false; code.steps.len()],
        why_none: (at, why),
    };
    let loops = flow.loops(budget)?;
    if loops.is_empty() {
        return Ok(none(None, "it has no loop"));
    }
    if !votes {
        let reached = flow.reached();
        let together = code
            .steps
            .iter()
            .enumerate()
            .find(|&(at, step)| reached[flow.block_of[at]] && waits_for_lanes(step));
        if let Some((_, step)) = together {
            let why = "lanes of a warp wait for each other, and some of them may have left";
            return Ok(none(Some(step.at), why));
        }
        let points = if obstacles.is_empty() { polls(code, flow, loops) } else { Vec::new() };
        let may_come_before = vec![true; code.steps.len()];
        return Ok(Places { points, may_come_before, why_none: (None, "") });
    }
    if !has_barrier {
        return Ok(none(None, "no barrier of the block is left for votes"));
    }
    let barriers: Vec<_> =
        (0..code.steps.len()).filter(|&at| code.steps[at].is_barrier()).collect();
    if let Some(&other) = barriers.iter().find(|&&at| !is_of_whole_block(&code.steps[at])) {
        let why = "parts of the block wait for each other by a barrier of their own";
        return Ok(none(Some(code.steps[other].at), why));
    }
    // Blocks that not all threads run, or not all as often.
    let mut parts = vec![false; flow.exit() + 1];
    for branch in Divergence::of(code, flow, Among::Block, budget)?.branches {
        for inner in flow.region(branch, budget)? {
            parts[inner] = true;
        }
    }
    let is_behind = behind(flow, obstacles.iter().map(|&at| flow.block_of[at]), budget)?;
    let comes_behind = |at: usize| {
        let block = flow.block_of[at];
        let own = |&other: &usize| flow.block_of[other] == block && other < at;
        is_behind[block] || obstacles.iter().any(own)
    };
    let innermost = innermost(flow, &loops);
    let reached = flow.reached();
    let mut has_vote = vec![false; loops.len()];
    let mut votes = Vec::new();
    for &at in &barriers {
        let block = flow.block_of[at];
        let Some(around) = innermost[block] else { continue };
        let step = &code.steps[at];
        let is_plain = step.of.has("sync") && !step.of.has("red") && step.guard.is_none();
        budget.spend(1 + obstacles.len())?;
        if is_plain && reached[block] && !parts[block] && !has_vote[around] && !comes_behind(at) {
            has_vote[around] = true;
            votes.push(at);
        }
    }
    let why_none = "no loop has a barrier that all threads of the block come to together";
    // What comes before a vote: what it is reached from.
    let mut may_come_before = vec![false; code.steps.len()];
    let mut ahead = vec![false; flow.exit() + 1];
    let mut waiting: Vec<_> = votes.iter().map(|&at| flow.block_of[at]).collect();
    for &at in &votes {
        let block = &flow.blocks[flow.block_of[at]];
        may_come_before[block.start..at].fill(true);
    }
    while let Some(block) = waiting.pop() {
        for &before in &flow.before[block] {
            budget.spend(1)?;
            if !std::mem::replace(&mut ahead[before], true) {
                waiting.push(before);
            }
        }
    }
    for (block, range) in flow.blocks.iter().enumerate().filter(|&(block, _)| ahead[block]) {
        let _ = block;
        may_come_before[range.clone()].fill(true);
    }
    let points = votes.iter().map(|&at| Point::Vote { at: code.steps[at].at }).collect();
    Ok(Places { points, may_come_before, why_none: (None, why_none) })
}

/// One at the start of each loop.
fn polls(code: &Code<'_>, flow: &Flow, mut loops: Vec<Vec<usize>>) -> Vec<Point> {
    if loops.len() > MOST_LOOPS {
        let all = loops.clone();
        loops
            .retain(|of| !all.iter().any(|other| other.len() > of.len() && other.contains(&of[0])));
        loops.truncate(MOST_LOOPS);
    }
    let innermost = innermost(flow, &loops);
    let mut points: Vec<_> = loops
        .iter()
        .enumerate()
        .map(|(number, blocks)| {
            let own = blocks.iter().filter(|&&block| innermost[block] == Some(number));
            let round = own.map(|&block| flow.blocks[block].len()).sum();
            Point::Poll { at: code.steps[flow.blocks[blocks[0]].start].at, round }
        })
        .collect();
    points.sort_by_key(|point| match point {
        Point::Poll { at, .. } | Point::Vote { at } => *at,
    });
    points.dedup_by_key(|point| match point {
        Point::Poll { at, .. } | Point::Vote { at } => *at,
    });
    points
}

/// The innermost loop around each block, by its index.
fn innermost(flow: &Flow, loops: &[Vec<usize>]) -> Vec<Option<usize>> {
    let mut innermost: Vec<Option<usize>> = vec![None; flow.exit() + 1];
    for (number, blocks) in loops.iter().enumerate() {
        for &block in blocks {
            let is_inner = innermost[block].is_none_or(|other| loops[other].len() > blocks.len());
            if is_inner {
                innermost[block] = Some(number);
            }
        }
    }
    innermost
}

/// The blocks that control may come to behind any of these.
fn behind(
    flow: &Flow,
    blocks: impl Iterator<Item = usize>,
    budget: &mut Budget,
) -> Result<Vec<bool>, Stop> {
    let mut behind = vec![false; flow.exit() + 1];
    let mut waiting: Vec<usize> = blocks.collect();
    while let Some(block) = waiting.pop() {
        for &next in &flow.after[block] {
            budget.spend(1)?;
            if !std::mem::replace(&mut behind[next], true) {
                waiting.push(next);
            }
        }
    }
    Ok(behind)
}

/// Whether an instruction is for several lanes of a warp at once.
fn waits_for_lanes(step: &Step<'_>) -> bool {
    step.of.has_any(&["sync", "aligned", "warp"])
        || matches!(
            step.root(),
            "shfl"
                | "vote"
                | "match"
                | "redux"
                | "elect"
                | "mma"
                | "wmma"
                | "ldmatrix"
                | "stmatrix"
                | "movmatrix"
        )
}

/// Whether a barrier is that of all threads of the block, number 0.
fn is_of_whole_block(step: &Step<'_>) -> bool {
    let of = step.of;
    let place = usize::from(of.has("red"));
    let takes = if of.has("red") { 3 } else { 1 };
    of.has_any(&["sync", "red"])
        && of.operands.len() == takes
        && of
            .operand(place)
            .is_some_and(|number| number.kind == OperandKind::Plain && number.integer() == Some(0))
}
