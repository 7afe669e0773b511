//! What is the same whenever a block-task runs, as long as the memory that it reads is.

use std::collections::BTreeSet;

use crate::code::{Budget, Code, Id, Space, Step, TooLarge};
use crate::flow::Flow;

use super::{STRONG, address};

/// Special registers that depend on the block-task, the thread and the launch alone.
const OF_TASK: [&str; 6] = ["%tid", "%ntid", "%ctaid", "%nctaid", "%laneid", "%dynamic_smem_size"];

/// What may differ from run to run.
#[derive(Debug)]
pub(super) struct Determined {
    /// Registers whose values may.
    differs: Vec<bool>,
    /// Basic blocks of which it may differ whether, or how often, they run.
    parts: Vec<bool>,
}

impl Determined {
    /// `changing` are loads of memory that block-tasks of the launch may write.
    pub fn of(
        code: &Code<'_>,
        flow: &Flow,
        changing: &BTreeSet<usize>,
        budget: &mut Budget,
    ) -> Result<Determined, TooLarge> {
        let mut users = vec![Vec::new(); code.names.len()];
        for (at, step) in code.steps.iter().enumerate() {
            for &id in &step.uses {
                users[id].push(at);
            }
        }
        let mut differs = vec![false; code.names.len()];
        let mut waiting = Vec::new();
        let mark = |ids: &[usize], waiting: &mut Vec<usize>, differs: &mut Vec<bool>| {
            for &id in ids {
                if !std::mem::replace(&mut differs[id], true) {
                    waiting.push(id);
                }
            }
        };
        for id in 0..code.names.len() {
            let is_of_task =
                |special: &str| OF_TASK.contains(&special) || special.starts_with("%lanemask");
            let is_unwritten = code.names[id].starts_with('%') && code.defs[id].is_empty();
            if is_unwritten && !code.special(id).is_some_and(is_of_task) {
                mark(&[id], &mut waiting, &mut differs);
            }
        }
        for (at, step) in code.steps.iter().enumerate() {
            if is_source(step) || changing.contains(&at) {
                mark(&step.defs, &mut waiting, &mut differs);
            }
        }
        let mut parts = vec![false; flow.exit() + 1];
        let mut is_branch = vec![false; flow.exit() + 1];
        while let Some(id) = waiting.pop() {
            for &at in &users[id] {
                budget.spend(1)?;
                let step = &code.steps[at];
                mark(&step.defs, &mut waiting, &mut differs);
                let ends = matches!(step.root(), "bra" | "brx" | "ret" | "exit" | "trap");
                let block = flow.block_of[at];
                if !ends || std::mem::replace(&mut is_branch[block], true) {
                    continue;
                }
                for inner in flow.region(block, budget)? {
                    parts[inner] = true;
                    for step in &code.steps[flow.blocks[inner].clone()] {
                        budget.spend(1)?;
                        mark(&step.defs, &mut waiting, &mut differs);
                    }
                }
            }
        }
        Ok(Determined { differs, parts })
    }

    /// Whether a register may hold something else in another run.
    pub fn differs(&self, id: Id) -> bool {
        self.differs[id]
    }

    /// Whether a store is done in each run, or in none, and to the same place.
    pub fn is_place(&self, code: &Code<'_>, flow: &Flow, store: usize) -> bool {
        let step = &code.steps[store];
        let Some(names) = address(step, 0) else { return false };
        let is_same = |&id: &usize| !self.differs[id];
        let mut address = step.uses.iter().filter(|id| names.contains(&code.names[**id]));
        !self.parts[flow.block_of[store]] && address.all(is_same) && step.guard.iter().all(is_same)
    }
}

/// Whether the results of an instruction may differ where what it reads does not.
fn is_source(step: &Step<'_>) -> bool {
    match step.root() {
        "ld" | "ldu" => match step.space() {
            Space::Fixed => false,
            Space::Global => step.of.has_any(&STRONG),
            Space::Shared | Space::Local | Space::Generic => true,
        },
        // Lanes that take part are named.
        "shfl" | "vote" => !step.of.has("sync"),
        root => !is_pure(root),
    }
}

/// Whether an operation but computes, of its operands alone.
pub(super) fn is_pure(root: &str) -> bool {
    const PURE: &[&str] = &[
        "abs",
        "add",
        "and",
        "bar",
        "barrier",
        "bfe",
        "bfi",
        "bfind",
        "bmsk",
        "brev",
        "clz",
        "cnot",
        "copysign",
        "cos",
        "createpolicy",
        "cvt",
        "cvta",
        "div",
        "dp2a",
        "dp4a",
        "ex2",
        "fma",
        "fns",
        "isspacep",
        "lg2",
        "lop3",
        "mad",
        "mad24",
        "match",
        "max",
        "min",
        "mma",
        "mov",
        "movmatrix",
        "mul",
        "mul24",
        "neg",
        "not",
        "or",
        "popc",
        "prmt",
        "rcp",
        "redux",
        "rem",
        "rsqrt",
        "sad",
        "selp",
        "set",
        "setp",
        "shf",
        "shfl",
        "shl",
        "shr",
        "sin",
        "slct",
        "sqrt",
        "sub",
        "szext",
        "tanh",
        "testp",
        "vabsdiff",
        "vadd",
        "vote",
        "xor",
    ];
    PURE.contains(&root)
}
