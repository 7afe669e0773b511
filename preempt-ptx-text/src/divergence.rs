//! Which values differ between the threads of a block, and which branches the threads therefore part at.

use crate::code::{Budget, Code, Space, Step, TooLarge};
use crate::flow::Flow;

/// What differs between threads of a block.
#[derive(Debug)]
pub(crate) struct Divergence {
    /// The blocks at whose end threads may part, in the order of the text.
    pub branches: Vec<usize>,
}

impl Divergence {
    pub fn of(code: &Code<'_>, flow: &Flow, budget: &mut Budget) -> Result<Divergence, TooLarge> {
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
        for step in &code.steps {
            let own = step.uses.iter().any(|&id| code.special(id).is_some_and(is_of_thread));
            if own || is_source(step) {
                mark(&step.defs, &mut waiting, &mut differs);
            }
        }
        let mut parts = vec![false; flow.exit()];
        while let Some(id) = waiting.pop() {
            for &at in &users[id] {
                budget.spend(1)?;
                let step = &code.steps[at];
                if !is_of_block(step) {
                    mark(&step.defs, &mut waiting, &mut differs);
                }
                let ends = matches!(step.root(), "bra" | "brx" | "ret" | "exit" | "trap");
                let block = flow.block_of[at];
                if ends && !parts[block] {
                    parts[block] = true;
                    // What is written in a part that not all threads run differs behind it.
                    for inner in flow.region(block, budget)? {
                        for step in &code.steps[flow.blocks[inner].clone()] {
                            budget.spend(1)?;
                            if !is_of_block(step) {
                                mark(&step.defs, &mut waiting, &mut differs);
                            }
                        }
                    }
                }
            }
        }
        let branches = (0..flow.exit()).filter(|&block| parts[block]).collect();
        Ok(Divergence { branches })
    }
}

fn is_of_thread(special: &str) -> bool {
    let of_thread = ["%tid", "%laneid", "%warpid", "%lanemask", "%clock", "%globaltimer", "%pm"];
    of_thread.iter().any(|name| special.starts_with(name))
}

/// A reduction over the whole block: the same for all of its threads.
fn is_of_block(step: &Step<'_>) -> bool {
    step.is_barrier() && step.of.has("red")
}

/// Whether its result differs even where its operands do not.
fn is_source(step: &Step<'_>) -> bool {
    match step.root() {
        // An ordinary load of one address by all threads, which nothing may write meanwhile, gives all the same.
        "ld" | "ldu" => match step.space() {
            Space::Fixed => false,
            Space::Local | Space::Generic => true,
            Space::Shared | Space::Global => {
                step.of.has_any(&["volatile", "relaxed", "acquire", "mmio"])
            }
        },
        "atom" | "shfl" | "vote" | "match" | "activemask" | "elect" | "redux" | "ldmatrix"
        | "mma" | "wmma" | "wgmma" | "mbarrier" | "movmatrix" | "suld" | "multimem" | "call"
        | "alloca" | "stacksave" => true,
        _ => false,
    }
}
