//! Threads that return before others.

use super::{Judge, Note, Rule};
use crate::code::{Code, Step, TooLarge};
use crate::flow::Flow;
use crate::tree::FunctionItem;

const CURE_EXIT: &str = "let all threads of the block come to where threads wait for each other, or launch the kernel without \
    preemption";

/// The basic blocks at whose end threads may part, in the order of the text.
#[derive(Debug)]
pub(super) struct Parted {
    /// Those of a block.
    pub threads: Vec<usize>,
    /// Those of a warp whose lanes are all of one row of the block.
    pub lanes: Vec<usize>,
    /// Those of any warp.
    pub lanes_of_rows: Vec<usize>,
}

impl<'m> Judge<'m> {
    /// Whether threads of the block wait in it for each other.
    pub(super) fn is_barrier(&self, step: &Step<'m>) -> bool {
        step.is_barrier() || step.callee.is_some_and(|name| self.barriers.contains(name))
    }

    /// Whether lanes of a warp wait in it for those that a mask names.
    pub(super) fn has_member_mask(&self, step: &Step<'m>) -> bool {
        step.of.has_member_mask() || step.callee.is_some_and(|name| self.warp_syncs.contains(name))
    }

    /// Looks for threads of an entry that return, where others go on to a barrier of the block or of the warp: the hardware
    /// counts who has returned as arrived, and a worker loop must do the like.
    pub(super) fn exits(
        &mut self,
        entry: &FunctionItem<'m>,
        code: &Code<'m>,
        flow: &Flow,
        parted: &Parted,
    ) -> Result<(), TooLarge> {
        let holds = |is: &dyn Fn(&Step<'m>) -> bool| {
            let mut blocks: Vec<_> =
                flow.blocks.iter().map(|range| code.steps[range.clone()].iter().any(is)).collect();
            blocks.push(false);
            blocks
        };
        let barriers = holds(&|step| self.is_barrier(step));
        let warps = holds(&|step| self.has_member_mask(step));
        // A thread that comes to a barrier of the whole block returns after all others have come there.
        let waits = holds(&|step| self.has_member_mask(step) || is_of_all(step));
        let (past_barriers, past_warps) = (flow.leaves_past(&barriers), flow.leaves_past(&waits));
        let calls = holds(&|step| step.callee.is_some() && self.has_member_mask(step));
        let (mut hazard, mut call) = (None, None);
        for &block in &parted.threads {
            let lanes_part = parted.lanes.binary_search(&block).is_ok();
            // Unless warps have lanes of several rows.
            let rows_part = !lanes_part && parted.lanes_of_rows.binary_search(&block).is_ok();
            let region = flow.region(block, &mut self.budget)?;
            self.budget.spend(region.len())?;
            let leaves = |past: &[bool]| flow.after[block].iter().any(|&way| past[way]);
            if region.iter().any(|&block| barriers[block]) {
                self.notes.insert(Note::DivergentBarrier);
                self.lanes_part |= lanes_part;
                if leaves(&past_barriers) {
                    hazard = hazard.or(Some(flow.blocks[block].end - 1));
                    self.whole_rows |= rows_part;
                }
            }
            if region.iter().any(|&block| warps[block]) && leaves(&past_warps) {
                self.whole_rows |= rows_part;
                if !lanes_part {
                    continue;
                }
                self.rules.insert(Rule::ReturnedLanes);
                if region.iter().any(|&block| calls[block]) {
                    call = call.or(Some(flow.blocks[block].end - 1));
                }
            }
        }
        if let Some(step) = call {
            let what = "threads may return here while others of their warp wait for them in a function that the entry calls";
            self.refuse(entry.name, code.steps[step].at, what.to_owned(), CURE_EXIT);
        }
        let Some(step) = hazard else { return Ok(()) };
        self.rules.insert(Rule::EarlyExit);
        let helpers = self.barriers.iter().any(|name| *name != entry.name);
        let several = self.used.barriers.keys().any(|&number| number != 0);
        let counted = self.used.barriers.values().any(|&counted| counted);
        let why = match (helpers, several, counted) {
            (true, ..) => "is in a function that the entry calls",
            (_, true, _) => "is not barrier 0",
            (.., true) => "counts threads or reduces a predicate",
            _ => return Ok(()),
        };
        let what = format!("threads may return here while others wait at a barrier, which {why}");
        self.refuse(entry.name, code.steps[step].at, what, CURE_EXIT);
        Ok(())
    }
}

/// Whether all threads of a block wait in it for each other.
fn is_of_all(step: &Step<'_>) -> bool {
    let count_at = if step.of.has("red") { 3 } else { 1 };
    step.is_barrier()
        && step.guard.is_none()
        && step.of.has_any(&["sync", "red"])
        && step.of.operands.len() == count_at
}
