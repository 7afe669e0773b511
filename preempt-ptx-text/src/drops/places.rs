//! Where the yield points of a body are.

use crate::code::{Budget, Code, Step};
use crate::divergence::{Among, Divergence};
use crate::flow::Flow;
use crate::tree::OperandKind;

use super::Stop;
use super::determined::Determined;

/// Loops that have a yield point at their start; where there are more, outer loops alone have one. Each yield
/// point adds a hundred instructions.
const MOST_LOOPS: usize = 16;
/// Loops that have one in the place of a barrier, of which the first ones in the text have it.
const MOST_BARRIERS: usize = 32;

/// A yield point, by a byte of the text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Point {
    /// Ahead of the instruction there, the first of a loop, each round of which takes so many instructions.
    Ahead { at: usize, round: usize },
    /// In the place of the barrier there.
    Barrier { at: usize },
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
    determined: &Determined,
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
        let points = if obstacles.is_empty() { starts(code, flow, loops) } else { Vec::new() };
        let points = points.into_iter().map(|(_, point)| point).collect();
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
    let carries = |step: &&Step<'_>| matches!(step.root(), "addc" | "subc" | "madc");
    if let Some(step) = code.steps.iter().find(carries) {
        let why = "a carry from another instruction, which threads may then part by";
        return Ok(none(Some(step.at), why));
    }
    // Blocks that not all threads run, or not all as often.
    let mut parts = vec![false; flow.exit() + 1];
    for branch in Divergence::of(code, flow, Among::Block, budget)?.branches {
        for inner in flow.region(branch, budget)? {
            parts[inner] = true;
        }
    }
    // Barriers pair by their number. Where all come to each of them, they pair by place, too.
    let reached = flow.reached();
    let is_parted = |&&at: &&usize| {
        let block = flow.block_of[at];
        reached[block] && (parts[block] || code.steps[at].guard.is_some())
    };
    if let Some(&at) = barriers.iter().find(is_parted) {
        let why = "some threads of the block may come to another barrier instead, or to none";
        return Ok(none(Some(code.steps[at].at), why));
    }
    let is_behind = behind(flow, obstacles.iter().map(|&at| flow.block_of[at]), budget)?;
    let comes_behind = |at: usize| {
        let block = flow.block_of[at];
        let own = |&other: &usize| flow.block_of[other] == block && other < at;
        is_behind[block] || obstacles.iter().any(own)
    };
    // What matrix products still write and read when a block leaves. Other copies are waited for behind the body.
    let in_flight = in_flight(code, flow, budget)?;
    let comes_behind = |at: usize| in_flight[at] || comes_behind(at);
    let innermost = innermost(flow, &loops);
    let mut has_vote = vec![false; loops.len()];
    let mut votes = Vec::new();
    for &at in &barriers {
        let block = flow.block_of[at];
        let Some(around) = innermost[block] else { continue };
        let step = &code.steps[at];
        let is_plain = step.of.has("sync") && !step.of.has("red");
        budget.spend(1 + obstacles.len())?;
        let has_room = votes.len() < MOST_BARRIERS && !has_vote[around];
        if is_plain && reached[block] && has_room && !comes_behind(at) {
            has_vote[around] = true;
            votes.push(at);
        }
    }
    // Where all threads come to a loop, and as often, they vote at its start. That is one more barrier, so no thread may wait
    // for another one that comes there first: for what that one writes to shared memory.
    let mut in_loops = loops.iter().flatten().map(|&block| &code.steps[flow.blocks[block].end - 1]);
    let waits = in_loops.any(|last| last.uses.iter().any(|&id| determined.differs(id)));
    let first = |of: &[usize]| flow.blocks[of[0]].start;
    let is_without = |of: &Vec<usize>| {
        let is_inside = |at: &usize| of.contains(&flow.block_of[*at]);
        reached[of[0]] && !parts[of[0]] && !comes_behind(first(of)) && !votes.iter().any(is_inside)
    };
    budget.spend(loops.iter().map(|of| of.len() * (1 + votes.len()) + obstacles.len()).sum())?;
    let others = loops.into_iter().filter(|of| !waits && is_without(of)).collect();
    let others = starts(code, flow, others);
    let why_none = "all threads of the block come together to no loop, and to no barrier in one";
    let of_barriers = votes.iter().map(|&at| (at, Point::Barrier { at: code.steps[at].at }));
    let mut points: Vec<_> = of_barriers.chain(others).collect();
    points.sort();
    // What comes before a vote: what it is reached from.
    let mut may_come_before = vec![false; code.steps.len()];
    let mut ahead = vec![false; flow.exit() + 1];
    let mut waiting: Vec<_> = points.iter().map(|&(at, _)| flow.block_of[at]).collect();
    for &(at, _) in &points {
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
    for (range, _) in flow.blocks.iter().zip(&ahead).filter(|(_, is_ahead)| **is_ahead) {
        may_come_before[range.clone()].fill(true);
    }
    let points = points.into_iter().map(|(_, point)| point).collect();
    Ok(Places { points, may_come_before, why_none: (None, why_none) })
}

/// One at the start of each of these loops, with the instruction that is there.
fn starts(code: &Code<'_>, flow: &Flow, mut loops: Vec<Vec<usize>>) -> Vec<(usize, Point)> {
    if loops.len() > MOST_LOOPS {
        let mut is_inside = vec![false; flow.exit() + 1];
        loops.sort_by_key(|of| std::cmp::Reverse(of.len()));
        loops.retain(|of| {
            let is_outer = !is_inside[of[0]];
            of.iter().filter(|_| is_outer).for_each(|&block| is_inside[block] = true);
            is_outer
        });
        loops.truncate(MOST_LOOPS);
    }
    let innermost = innermost(flow, &loops);
    let start = |(number, blocks): (usize, &Vec<usize>)| {
        let own = blocks.iter().filter(|&&block| innermost[block] == Some(number));
        let round = own.map(|&block| flow.blocks[block].len()).sum();
        let first = flow.blocks[blocks[0]].start;
        (first, Point::Ahead { at: code.steps[first].at, round })
    };
    let mut points: Vec<_> = loops.iter().enumerate().map(start).collect();
    points.sort();
    // An inner loop may start where the outer one does.
    points.dedup_by_key(|(first, _)| *first);
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

/// Whether asynchronous matrix products may be in flight ahead of each instruction.
fn in_flight(code: &Code<'_>, flow: &Flow, budget: &mut Budget) -> Result<Vec<bool>, Stop> {
    let mut ahead = vec![false; code.steps.len()];
    if !code.steps.iter().any(|step| step.root() == "wgmma") {
        return Ok(ahead);
    }
    let mut at_start = vec![false; flow.exit() + 1];
    let mut waiting: Vec<usize> = (0..flow.exit()).collect();
    while let Some(block) = waiting.pop() {
        let mut is_any = at_start[block];
        budget.spend(flow.blocks[block].len())?;
        for at in flow.blocks[block].clone() {
            ahead[at] |= is_any;
            let step = &code.steps[at];
            let waits_for_all = step.of.has("wait_group")
                && step.guard.is_none()
                && step.of.operand(0).and_then(|number| number.integer()) == Some(0);
            match step.root() {
                "wgmma" if step.of.has("mma_async") => is_any = true,
                "wgmma" if waits_for_all => is_any = false,
                _ => {}
            }
        }
        for &next in flow.after[block].iter().filter(|_| is_any) {
            if next != flow.exit() && !std::mem::replace(&mut at_start[next], true) {
                waiting.push(next);
            }
        }
    }
    Ok(ahead)
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
