//! Loops in which a block waits for what another block writes.
//!
//! A block that leaves gives back the block-tasks that it claimed ahead, so one that spins for them would spin for ever. A
//! loop is let through if what it ends by cannot be another block's: nothing that its exits depend on is read from memory
//! that other blocks write, or it comes to an end whatever is read.

use crate::code::{Budget, Code, Id, Space, Step, TooLarge};
use crate::flow::Flow;

use progress::End;

mod addresses;
mod progress;

/// How a value may come from another block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) enum Reads {
    /// It does not.
    #[default]
    Nothing,
    /// By an ordinary load.
    Plain,
    /// By an operation that is there to see what others write: volatile, relaxed, acquire, or atomic.
    Others,
}

/// A loop that may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// Its exits depend on what this instruction reads.
    On { step: usize, reads: Reads },
    /// It has no exit; its first instruction.
    Forever { step: usize },
}

/// The loop being looked at.
struct Loop<'a, 'b> {
    code: &'b Code<'a>,
    flow: &'b Flow,
    /// By block.
    inside: &'b [bool],
    blocks: &'b [usize],
    /// What the functions that are called read, by name.
    callee: &'b dyn Fn(&str) -> Reads,
}

/// The first loop of a function that may wait for other blocks, and whether one gives up such a wait after some rounds. What called
/// functions read is told by `callee`.
pub(crate) fn first(
    code: &Code<'_>,
    flow: &Flow,
    callee: &dyn Fn(&str) -> Reads,
    budget: &mut Budget,
) -> Result<(Option<Wait>, bool), TooLarge> {
    let mut gives_up = false;
    let dependence = flow.control_dependence(budget)?;
    let mut inside = vec![false; flow.exit() + 1];
    for blocks in flow.loops(budget)? {
        for &block in &blocks {
            inside[block] = true;
        }
        let one = Loop { code, flow, inside: &inside, blocks: &blocks, callee };
        let wait = one.wait(&dependence, &mut gives_up, budget)?;
        for &block in &blocks {
            inside[block] = false;
        }
        if wait.is_some() {
            return Ok((wait, gives_up));
        }
    }
    Ok((None, gives_up))
}

/// What an instruction gives of other blocks' writes.
pub(crate) fn reads(step: &Step<'_>, callee: &dyn Fn(&str) -> Reads) -> Reads {
    let strong = step.of.has_any(&["volatile", "relaxed", "acquire", "mmio", "cv"]);
    match (step.root(), step.space()) {
        (_, Space::Shared | Space::Local | Space::Fixed) if step.root() != "call" => Reads::Nothing,
        ("ld", _) if step.of.has("nc") => Reads::Nothing,
        ("ld", _) if strong => Reads::Others,
        ("ld" | "ldu" | "tex" | "tld4", _) => Reads::Plain,
        ("wmma", _) if step.of.has("load") => Reads::Plain,
        ("atom" | "suld" | "multimem", _) => Reads::Others,
        ("call", _) => step.callee.map_or(Reads::Others, callee),
        _ => Reads::Nothing,
    }
}

impl Loop<'_, '_> {
    /// The instructions of the loop.
    fn steps(&self) -> impl Iterator<Item = usize> {
        self.blocks.iter().flat_map(|&block| self.flow.blocks[block].clone())
    }

    fn has(&self, step: usize) -> bool {
        self.inside[self.flow.block_of[step]]
    }

    /// The instructions of the loop that write a register.
    fn defs(&self, id: Id) -> impl Iterator<Item = usize> {
        self.code.defs[id].iter().copied().filter(|&at| self.has(at))
    }

    /// The branches out of the loop.
    fn exits(&self) -> impl Iterator<Item = usize> {
        let leaves = |block: &usize| self.flow.after[*block].iter().any(|&way| !self.inside[way]);
        self.blocks.iter().copied().filter(leaves)
    }

    /// Whether a way through the loop from the first block back to it passes none of `blocks`.
    fn goes_round_past(&self, blocks: &[usize], budget: &mut Budget) -> Result<bool, TooLarge> {
        let first = self.blocks[0];
        if blocks.contains(&first) {
            return Ok(false);
        }
        let mut seen = std::collections::HashSet::new();
        let mut waiting = vec![first];
        while let Some(block) = waiting.pop() {
            for &way in &self.flow.after[block] {
                budget.spend(1)?;
                if way == first {
                    return Ok(true);
                }
                if self.inside[way] && !blocks.contains(&way) && seen.insert(way) {
                    waiting.push(way);
                }
            }
        }
        Ok(false)
    }

    fn wait(
        &self,
        dependence: &[Vec<usize>],
        gives_up: &mut bool,
        budget: &mut Budget,
    ) -> Result<Option<Wait>, TooLarge> {
        budget.spend(self.blocks.len())?;
        let exits: Vec<_> = self.exits().filter(|&block| self.ends_without_trap(block)).collect();
        if exits.is_empty() {
            return Ok(Some(Wait::Forever { step: self.flow.blocks[self.blocks[0]].start }));
        }
        let found = self.sources(&exits, dependence, budget)?;
        let Some(&(step, reads)) = found.iter().max_by_key(|(_, reads)| *reads) else {
            return Ok(None);
        };
        // Rounds up to a bound that is not known here may be a wait as good as for ever, if no load moves on.
        let is_right = match self.end(&exits, reads, budget)? {
            Some(End::Certain) => true,
            Some(End::Looked) => {
                *gives_up = true;
                true
            }
            Some(End::AtBound) | None => self.moves_on(&found, budget)?,
        };
        Ok((!is_right).then_some(Wait::On { step, reads }))
    }

    /// Whether a way out of the loop at `block` leads to anything else than a trap.
    fn ends_without_trap(&self, block: usize) -> bool {
        let mut ways = self.flow.after[block].iter().filter(|&&way| !self.inside[way]);
        ways.any(|&way| way == self.flow.exit() || self.flow.post[way].is_some())
    }

    /// The branch that ends a block, and the registers that decide it.
    fn decides(&self, block: usize) -> (usize, &[Id]) {
        let last = self.flow.blocks[block].end - 1;
        (last, &self.code.steps[last].uses)
    }

    /// What the exits depend on of what is read in the loop.
    fn sources(
        &self,
        exits: &[usize],
        dependence: &[Vec<usize>],
        budget: &mut Budget,
    ) -> Result<Vec<(usize, Reads)>, TooLarge> {
        let mut found = Vec::new();
        let mut seen = vec![false; self.code.names.len()];
        budget.spend(seen.len() / 16)?;
        let mut branches = std::collections::HashSet::new();
        let mut done = std::collections::HashSet::new();
        let mut waiting: Vec<Id> = Vec::new();
        let mut memory_is_seen = false;
        for &exit in exits {
            branches.insert(exit);
            waiting.extend(self.decides(exit).1);
            // Whether an exit comes up at all.
            for &branch in dependence[exit].iter().filter(|&&block| self.inside[block]) {
                if branches.insert(branch) {
                    waiting.extend(self.decides(branch).1);
                }
            }
        }
        if self.goes_round_past(exits, budget)? {
            // Rounds that come to no exit: what decides them counts, too.
            let inner = self.blocks.iter().filter(|&&block| self.flow.after[block].len() > 1);
            for &branch in inner {
                if branches.insert(branch) {
                    waiting.extend(self.decides(branch).1);
                }
            }
        }
        while let Some(id) = waiting.pop() {
            if std::mem::replace(&mut seen[id], true) {
                continue;
            }
            let mut steps: Vec<usize> = self.defs(id).collect();
            budget.spend(1 + self.code.defs[id].len())?;
            while let Some(at) = steps.pop() {
                if !done.insert(at) {
                    continue;
                }
                let step = &self.code.steps[at];
                waiting.extend(&step.uses);
                match reads(step, self.callee) {
                    // Constant for the whole grid, says the code. One address read for ever, or a few in turn, do not look
                    // like it.
                    Reads::Nothing if step.of.has("nc") && !self.searches(at, budget)? => {
                        found.push((at, Reads::Plain));
                    }
                    Reads::Nothing => {}
                    reads => found.push((at, reads)),
                }
                if step.root() == "cp" {
                    // What it brings is another block's as any load's.
                    found.push((at, Reads::Others));
                }
                if reads_back(step) && !std::mem::replace(&mut memory_is_seen, true) {
                    let stores = self.steps().filter(|&at| self.code.steps[at].stores());
                    steps.extend(stores);
                    budget.spend(self.flow.blocks.len() / 16)?;
                }
                let block = self.flow.block_of[at];
                for &branch in dependence[block].iter().filter(|&&block| self.inside[block]) {
                    budget.spend(1)?;
                    if branches.insert(branch) {
                        waiting.extend(self.decides(branch).1);
                    }
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }
}

/// Whether it reads what threads of its own block may have written in the loop, to global memory too.
fn reads_back(step: &Step<'_>) -> bool {
    let reads = ["ld", "ldmatrix", "wmma", "atom", "call", "ldu"];
    reads.contains(&step.root()) && step.space() != Space::Fixed && !step.of.has("nc")
}
