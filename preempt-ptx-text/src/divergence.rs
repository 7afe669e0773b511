//! Which values differ between the threads of a block, or the lanes of a warp, and which branches they therefore part at.

use crate::code::{Budget, Code, Space, Step, TooLarge};
use crate::flow::Flow;

/// Between which threads values are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Among {
    /// Those of a block.
    Block,
    /// The lanes of a warp.
    Warp,
    /// The lanes of a warp, where each row of a block, along x, consists of whole warps.
    WarpOfRow,
}

/// What differs between threads of a block.
#[derive(Debug)]
pub(crate) struct Divergence {
    /// The blocks at whose end threads may part, in the order of the text.
    pub branches: Vec<usize>,
}

impl Divergence {
    pub fn of(
        code: &Code<'_>,
        flow: &Flow,
        among: Among,
        budget: &mut Budget,
    ) -> Result<Divergence, TooLarge> {
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
            let own = step.uses.iter().any(|&id| {
                code.special(id).is_some_and(|special| is_of_thread(special, code.names[id], among))
            });
            if own || is_source(step, among) {
                mark(&step.defs, &mut waiting, &mut differs);
            }
        }
        let mut parts = vec![false; flow.exit()];
        while let Some(id) = waiting.pop() {
            for &at in &users[id] {
                budget.spend(1)?;
                let step = &code.steps[at];
                let is_of_warp = among == Among::WarpOfRow && is_of_warp(code, step);
                if !is_of_block(step) && !is_of_warp {
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

fn is_of_thread(special: &str, name: &str, among: Among) -> bool {
    if among == Among::WarpOfRow && matches!(name, "%tid.y" | "%tid.z") {
        return false;
    }
    let of_thread = ["%tid", "%laneid", "%warpid", "%lanemask", "%clock", "%globaltimer", "%pm"];
    of_thread.iter().any(|name| special.starts_with(name))
}

/// A reduction over the whole block: the same for all of its threads.
fn is_of_block(step: &Step<'_>) -> bool {
    step.is_barrier() && step.of.has("red")
}

/// What depends on the number of a warp in its row alone, so that it is the same for all of its lanes.
fn is_of_warp(code: &Code<'_>, step: &Step<'_>) -> bool {
    const LANE_BITS: i64 = 5;
    const LANES: i64 = 1 << LANE_BITS;
    let number = step.of.operand(2).and_then(|operand| operand.integer());
    let of_lane = |&id: &usize| is_lane_of_row(code, id);
    let Some(number) = number.filter(|_| step.guard.is_none() && step.uses.iter().all(of_lane))
    else {
        return false;
    };
    let is_first_lane = |number: i64| number >= 0 && number % LANES == 0;
    match step.root() {
        "shr" => (LANE_BITS..32).contains(&number),
        "and" => number % LANES == 0,
        // Without a second condition.
        "setp" if step.uses.len() == 1 => match step.of.opcode.split('.').nth(1) {
            Some("lt" | "ge" | "lo" | "hs") => is_first_lane(number),
            Some("gt" | "le" | "hi" | "ls") => is_first_lane(number.wrapping_add(1)),
            _ => false,
        },
        _ => false,
    }
}

/// Whether a register has the number of a thread along x, which fits into 16 bits, as it is.
fn is_lane_of_row(code: &Code<'_>, id: usize) -> bool {
    let mut id = id;
    // Longer than any chain but one of registers that are computed from themselves.
    for _ in 0..code.steps.len() {
        let [at] = code.defs[id][..] else { return false };
        let from = &code.steps[at];
        let converts_integers = || {
            let types = from.of.opcode.split('.').skip(1);
            types.clone().count() == 2
                && types
                    .clone()
                    .all(|ty| matches!(ty, "u16" | "u32" | "u64" | "s16" | "s32" | "s64"))
        };
        let is_same = match from.root() {
            "mov" => true,
            "cvt" => converts_integers(),
            _ => false,
        };
        if !is_same || from.guard.is_some() {
            return false;
        }
        let source = from.of.operand(1).and_then(|operand| operand.name());
        match (source, &from.uses[..]) {
            (Some("%tid.x"), _) => return true,
            (Some(_), &[next]) => id = next,
            _ => return false,
        }
    }
    false
}

/// Whether its result differs even where its operands do not.
fn is_source(step: &Step<'_>, among: Among) -> bool {
    match step.root() {
        // An ordinary load of one address by all lanes of a warp gives all the same, and so does one of shared memory by all
        // threads of a block, which wait for each other around what they write. Another block may write global memory
        // between the loads of two warps.
        "ld" | "ldu" => match step.space() {
            Space::Fixed => false,
            Space::Local | Space::Generic => true,
            Space::Shared | Space::Global => {
                let is_strong = step.of.has_any(&["volatile", "relaxed", "acquire", "mmio"]);
                let is_others = step.space() == Space::Global && !step.of.has("nc");
                is_strong || is_others && among == Among::Block
            }
        },
        "atom" | "shfl" | "vote" | "match" | "activemask" | "elect" | "redux" | "ldmatrix"
        | "mma" | "wmma" | "wgmma" | "mbarrier" | "movmatrix" | "suld" | "multimem" | "call"
        | "alloca" | "stacksave" => true,
        _ => false,
    }
}
