//! The control flow of a function: basic blocks, post-dominators, control dependence and loops.

use std::ops::Range;

use crate::code::{Budget, Code, TooLarge};

/// The basic blocks of a function and the ways between them.
#[derive(Debug)]
pub(crate) struct Flow {
    /// The instructions of each block.
    pub blocks: Vec<Range<usize>>,
    /// The blocks behind each. [`Flow::exit`] stands for the end of the thread, or of the call. A trap, which ends the whole
    /// grid, has none.
    pub after: Vec<Vec<usize>>,
    pub before: Vec<Vec<usize>>,
    /// The immediate post-dominator of each block; `None` where the exit cannot be reached.
    pub post: Vec<Option<usize>>,
    /// The block of each instruction.
    pub block_of: Vec<usize>,
}

impl Flow {
    pub fn of(code: &Code<'_>, budget: &mut Budget) -> Result<Flow, TooLarge> {
        let count = code.steps.len();
        let mut starts = vec![false; count + 1];
        starts[0] = true;
        for (at, step) in code.steps.iter().enumerate() {
            let ends = matches!(step.root(), "bra" | "brx" | "ret" | "exit" | "trap");
            starts[at + 1] |= ends;
            for &target in step.targets.iter().flatten() {
                starts[target] = true;
            }
        }
        let firsts: Vec<_> = (0..count).filter(|&at| starts[at]).collect();
        let ends = firsts.iter().copied().skip(1).chain([count]);
        let blocks: Vec<_> = firsts.iter().copied().zip(ends).map(|(from, to)| from..to).collect();
        let mut block_of = vec![blocks.len(); count + 1];
        for (block, range) in blocks.iter().enumerate() {
            block_of[range.clone()].fill(block);
        }
        let exit = blocks.len();
        let mut after = vec![Vec::new(); exit + 1];
        let mut before = vec![Vec::new(); exit + 1];
        for (block, range) in blocks.iter().enumerate() {
            let last = &code.steps[range.end - 1];
            let next = block_of[range.end];
            let mut ways: Vec<usize> = match last.root() {
                "bra" | "brx" => last.targets.iter().flatten().map(|&at| block_of[at]).collect(),
                "ret" | "exit" => vec![exit],
                "trap" => Vec::new(),
                _ => vec![next],
            };
            if last.guard.is_some() && !ways.contains(&next) {
                ways.push(next);
            }
            ways.sort_unstable();
            ways.dedup();
            budget.spend(1 + ways.len())?;
            for &way in &ways {
                before[way].push(block);
            }
            after[block] = ways;
        }
        let mut flow = Flow { blocks, after, before, post: Vec::new(), block_of };
        flow.post = flow.post_dominators(budget)?;
        Ok(flow)
    }

    /// The blocks that a thread can come to.
    pub fn reached(&self) -> Vec<bool> {
        let mut reached = vec![false; self.exit() + 1];
        for block in self.order(0, &self.after) {
            reached[block] = true;
        }
        reached
    }

    /// Stands for the end of the thread.
    pub fn exit(&self) -> usize {
        self.blocks.len()
    }

    /// By the algorithm of Cooper, Harvey and Kennedy ("A Simple, Fast Dominance Algorithm"), on the flow backwards.
    fn post_dominators(&self, budget: &mut Budget) -> Result<Vec<Option<usize>>, TooLarge> {
        let exit = self.exit();
        let order = self.order(exit, &self.before);
        let mut number = vec![usize::MAX; exit + 1];
        for (at, &block) in order.iter().enumerate() {
            number[block] = at;
        }
        let mut post = vec![None; exit + 1];
        post[exit] = Some(exit);
        let mut changed = true;
        while changed {
            changed = false;
            for &block in order.iter().rev().filter(|&&block| block != exit) {
                let mut new: Option<usize> = None;
                for &way in self.after[block].iter().filter(|&&way| post[way].is_some()) {
                    budget.spend(1)?;
                    new = Some(match new {
                        None => way,
                        Some(mut a) => {
                            let mut b = way;
                            while a != b {
                                budget.spend(1)?;
                                let lower = if number[a] < number[b] { &mut a } else { &mut b };
                                *lower = post[*lower].unwrap_or(exit);
                            }
                            a
                        }
                    });
                }
                if new.is_some() && post[block] != new {
                    (post[block], changed) = (new, true);
                }
            }
        }
        Ok(post)
    }

    /// The blocks that are reached from `root`, each behind those that are reached from it first.
    fn order(&self, root: usize, ways: &[Vec<usize>]) -> Vec<usize> {
        let mut seen = vec![false; ways.len()];
        seen[root] = true;
        let mut order = Vec::new();
        let mut stack = vec![(root, 0)];
        while let Some((block, next)) = stack.last_mut() {
            match ways[*block].get(*next) {
                Some(&way) => {
                    *next += 1;
                    if !seen[way] {
                        seen[way] = true;
                        stack.push((way, 0));
                    }
                }
                None => {
                    order.push(*block);
                    stack.pop();
                }
            }
        }
        order
    }

    /// The blocks between the branch at the end of `block` and where its ways meet.
    pub fn region(&self, block: usize, budget: &mut Budget) -> Result<Vec<usize>, TooLarge> {
        let stop = self.post[block].unwrap_or(self.exit());
        let mut seen = vec![false; self.exit() + 1];
        budget.spend(seen.len() / 16)?;
        (seen[stop], seen[self.exit()]) = (true, true);
        let (mut region, mut waiting) = (Vec::new(), self.after[block].clone());
        while let Some(block) = waiting.pop() {
            budget.spend(1)?;
            if !seen[block] {
                seen[block] = true;
                region.push(block);
                waiting.extend(&self.after[block]);
            }
        }
        Ok(region)
    }

    /// The blocks whose branch decides whether each block runs.
    pub fn control_dependence(&self, budget: &mut Budget) -> Result<Vec<Vec<usize>>, TooLarge> {
        let mut on = vec![Vec::new(); self.exit() + 1];
        for block in 0..self.exit() {
            if self.after[block].len() < 2 {
                continue;
            }
            for &way in &self.after[block] {
                let mut at = way;
                while Some(at) != self.post[block] && at != self.exit() {
                    budget.spend(1)?;
                    if on[at].last() != Some(&block) {
                        on[at].push(block);
                    }
                    match self.post[at] {
                        Some(next) => at = next,
                        None => break,
                    }
                }
            }
        }
        Ok(on)
    }

    /// The blocks from whose start the exit is reached past none of `stops`.
    pub fn leaves_past(&self, stops: &[bool]) -> Vec<bool> {
        let mut leaves = vec![false; self.exit() + 1];
        let mut waiting = vec![self.exit()];
        while let Some(block) = waiting.pop() {
            if !leaves[block] {
                leaves[block] = true;
                waiting.extend(self.before[block].iter().filter(|&&block| !stops[block]));
            }
        }
        leaves
    }

    /// The loops of the function, inner ones too: sets of blocks from each of which every other is reached. The first block
    /// of each is the one without which, as a target, what is inside are the inner loops.
    pub fn loops(&self, budget: &mut Budget) -> Result<Vec<Vec<usize>>, TooLarge> {
        let mut order = self.order(0, &self.after);
        order.reverse();
        let mut rank = vec![usize::MAX; self.exit() + 1];
        for (at, &block) in order.iter().enumerate() {
            rank[block] = at;
        }
        let mut loops = Vec::new();
        // Of which blocks parts are looked at, and which of them is no target.
        let mut waiting = vec![(order, None)];
        let mut part = vec![0usize; self.exit() + 1];
        let mut parts = 0;
        while let Some((blocks, header)) = waiting.pop() {
            budget.spend(blocks.len())?;
            parts += 1;
            for &block in &blocks {
                part[block] = parts;
            }
            let is_inside = |block: usize| part[block] == parts && Some(block) != header;
            for mut set in self.components(&blocks, is_inside, budget)? {
                set.sort_unstable_by_key(|&block| rank[block]);
                let header = set[0];
                waiting.push((set.clone(), Some(header)));
                loops.push(set);
            }
        }
        Ok(loops)
    }

    /// Tarjan's strongly connected components that have a cycle, among blocks that `is_inside`.
    fn components(
        &self,
        blocks: &[usize],
        is_inside: impl Fn(usize) -> bool,
        budget: &mut Budget,
    ) -> Result<Vec<Vec<usize>>, TooLarge> {
        const NEW: usize = 0;
        let mut index = std::collections::HashMap::new();
        let mut low = std::collections::HashMap::new();
        let mut on_stack = std::collections::HashSet::new();
        let (mut stack, mut found, mut count) = (Vec::new(), Vec::new(), NEW);
        for &root in blocks.iter().filter(|&&block| is_inside(block)) {
            if index.contains_key(&root) {
                continue;
            }
            let mut path = vec![(root, 0)];
            while let Some(&mut (block, ref mut next)) = path.last_mut() {
                budget.spend(1)?;
                if *next == 0 && !index.contains_key(&block) {
                    count += 1;
                    index.insert(block, count);
                    low.insert(block, count);
                    stack.push(block);
                    on_stack.insert(block);
                }
                if let Some(&way) = self.after[block].get(*next) {
                    *next += 1;
                    if !is_inside(way) {
                    } else if !index.contains_key(&way) {
                        path.push((way, 0));
                    } else if on_stack.contains(&way) {
                        let least = low[&block].min(index[&way]);
                        low.insert(block, least);
                    }
                    continue;
                }
                path.pop();
                if let Some(&(caller, _)) = path.last() {
                    let least = low[&caller].min(low[&block]);
                    low.insert(caller, least);
                }
                if low[&block] == index[&block] {
                    let from = stack.iter().rposition(|&of| of == block).unwrap_or(0);
                    let set = stack.split_off(from);
                    for block in &set {
                        on_stack.remove(block);
                    }
                    if set.len() > 1 || self.after[block].contains(&block) {
                        found.push(set);
                    }
                }
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests;
