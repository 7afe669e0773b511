//! Whether a block-task of an entry can be dropped within its loops and run again from its start, and where.
//!
//! A block-task that runs again gives the same result if nothing that it reads has changed, and if it writes again all that
//! it has written. So of all that a block may have done when it leaves, each instruction has to be shown to be harmless:
//!
//! - A store to global memory goes by an address that is made of known parameters, and no load goes by the same ones. Distinct
//!   parameters may still be of the same memory: what the call has to pass is told ([`ParameterUse`]).
//! - Where it goes, and whether it is done, is the same in each run ([`determined`]): it depends on no shared memory, no
//!   atomic operation, no clock, and not on the SM. What it stores may.
//! - Registers, local and shared memory are written anew, as in each block-task of a worker loop.
//!
//! All else is an *obstacle*: atomic operations on global memory, volatile accesses, fences of the GPU, and what is not
//! known. In a body with barriers, threads leave at one of these, at which all are, so obstacles matter that may come
//! before it. In a body without, threads leave one by one, and others may have done anything.
//!
//! What is assumed is what a call of a foreign kernel promises: an address that is made of a parameter stays within what the
//! call passes there, and integers that are passed by value, multiplied, are no addresses.

use std::collections::BTreeSet;

use crate::code::{Budget, Code, Space, Step, TooLarge};
use crate::flow::Flow;
use crate::tree::{FunctionItem, Module, OperandKind};
use crate::verdict::{Accepted, BUDGET, Judged, Refusal, Rule};
use bases::{Access, Bases};
use determined::Determined;
pub(crate) use places::Point;

mod bases;
mod determined;
mod places;

const CURE: &str = "the kernel yields between its block-tasks alone";
const CURE_ALIAS: &str = "pass what is read and what is written by different parameters; until then the kernel yields between \
    its block-tasks alone";
/// Modifiers of accesses that other threads may wait for, or that may not be repeated.
const STRONG: [&str; 6] = ["volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"];

/// Whether block-tasks of an entry may be dropped at yield points, and run again from their start.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Droppable {
    /// At any time.
    Strict,
    /// As long as no thread has come to what cannot be done twice. The yield points are ahead of that.
    Relaxed,
    /// At no place in its loops. Here are the reasons.
    Never(Vec<Refusal>),
}

/// What a call has to pass for a parameter, so that block-tasks may be dropped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum ParameterUse {
    /// Memory that no other argument writes.
    Read,
    /// Memory that no other argument touches.
    Written,
    /// A number, and no address.
    Number,
}

/// What is known of dropping block-tasks of an entry.
#[derive(Debug)]
pub(crate) struct Drops {
    pub verdict: Droppable,
    /// Whether threads vote at yield points, or each of them looks.
    pub votes: bool,
    /// In the order of the text.
    pub points: Vec<Point>,
    /// By the positions of parameters, in their order.
    pub uses: Vec<(usize, ParameterUse)>,
}

impl Drops {
    pub fn of(module: &Module<'_>, judged: &Judged<'_>, accepted: &Accepted) -> Drops {
        let entry = judged.entry;
        let refuse =
            |at: usize, what: String, cure| Refusal::new(entry.name, module.place(at), what, cure);
        let never = |reasons: Vec<Refusal>| Drops {
            verdict: Droppable::Never(reasons),
            votes: false,
            points: Vec::new(),
            uses: Vec::new(),
        };
        if let Some(what) = prevents(judged, accepted) {
            return never(vec![refuse(entry.at, what.to_owned(), CURE)]);
        }
        let Some(body) = &entry.body else { return never(Vec::new()) };
        let code = match Code::of(module, entry, body) {
            Ok(code) => code,
            Err(refusal) => return never(vec![refusal]),
        };
        match look(module, entry, judged, &code) {
            Ok(drops) => drops,
            Err(Stop::At(at, what)) => never(vec![refuse(at, what, CURE)]),
            Err(Stop::TooLarge) => {
                let what = "the entry is too large for the analysis".to_owned();
                never(vec![refuse(entry.at, what, CURE)])
            }
        }
    }
}

/// Why the analysis ends.
#[derive(Debug)]
enum Stop {
    /// An instruction, by its place in the text.
    At(usize, String),
    TooLarge,
}

impl From<TooLarge> for Stop {
    fn from(_: TooLarge) -> Stop {
        Stop::TooLarge
    }
}

/// What rules out yield points, whatever the instructions are.
fn prevents(judged: &Judged<'_>, accepted: &Accepted) -> Option<&'static str> {
    let has = |rule| accepted.rules.contains(&rule);
    if !judged.called.is_empty() {
        return Some("it calls functions, which the analysis does not look into");
    }
    if has(Rule::EarlyExit) || has(Rule::ReturnedLanes) {
        return Some("threads return before others come to where they wait for each other");
    }
    if has(Rule::BulkCopies) || has(Rule::MbarrierInit) {
        return Some("bulk copies may be in flight when the block leaves");
    }
    None
}

/// Something that cannot be done twice, by its index among the steps.
struct Obstacle {
    step: usize,
    what: String,
    cure: &'static str,
}

/// An access to global memory.
struct Accessed<'a> {
    step: usize,
    access: Access<'a>,
}

fn look(
    module: &Module<'_>,
    entry: &FunctionItem<'_>,
    judged: &Judged<'_>,
    code: &Code<'_>,
) -> Result<Drops, Stop> {
    let mut budget = Budget(BUDGET);
    let flow = Flow::of(code, &mut budget)?;
    let reached = flow.reached();
    let bases = Bases::of(module, entry, code, &mut budget)?;
    let mut effects = Effects::default();
    for (at, step) in code.steps.iter().enumerate() {
        if reached[flow.block_of[at]] {
            effects.look(at, step, &bases)?;
        }
    }
    budget.spend(effects.loads.len() * (1 + effects.stores.len() + effects.changes.len()))?;
    let determined = Determined::of(code, &flow, &effects.changing(), &mut budget)?;
    let Effects { mut obstacles, stores, loads, changes } = effects;
    let written: BTreeSet<_> =
        stores.iter().chain(&changes).flat_map(|of| of.access.written()).collect();
    // Stores that are harmless, if the call passes what it has to.
    let mut repeatable = Vec::new();
    for store in stores {
        budget.spend(1 + loads.len())?;
        let step = &code.steps[store.step];
        let opcode = step.of.opcode;
        let of = |loaded: &Accessed<'_>| {
            let line = module.place(code.steps[loaded.step].at).line;
            format!("`{}` in line {line}", code.steps[loaded.step].of.opcode)
        };
        let unknown = loads.iter().find(|load| load.access.is_unknown());
        let same = loads.iter().find(|load| load.access.may_be_of(&store.access));
        let (what, cure) = if store.access.is_unknown() {
            (format!("nothing shows what memory `{opcode}` writes"), CURE)
        } else if let Some(variable) = store.access.variable() {
            (format!("`{opcode}` writes the variable `{variable}` of the module"), CURE)
        } else if !determined.is_place(code, &flow, store.step) {
            let what = format!(
                "where `{opcode}` writes, or whether it does, may differ when the block-task runs again"
            );
            (what, CURE)
        } else if let Some(load) = same {
            (format!("`{opcode}` may overwrite what {} reads", of(load)), CURE_ALIAS)
        } else if let Some(load) = unknown {
            let what = format!(
                "`{opcode}` may overwrite what {} reads: nothing shows what memory that is",
                of(load)
            );
            (what, CURE)
        } else {
            repeatable.push(store);
            continue;
        };
        obstacles.push(Obstacle { step: store.step, what, cure });
    }
    obstacles.sort_by_key(|obstacle| obstacle.step);
    let votes = judged.cooperates;
    let steps: Vec<_> = obstacles.iter().map(|obstacle| obstacle.step).collect();
    let found = places::find(
        code,
        &flow,
        (votes, judged.vote.is_some()),
        &steps,
        &determined,
        &mut budget,
    )?;
    let reasons = |obstacles: &[Obstacle]| {
        // A few are enough to know what to change.
        const MOST: usize = 8;
        let reason = |of: &Obstacle| {
            let place = module.place(code.steps[of.step].at);
            Refusal::new(entry.name, place, of.what.clone(), of.cure)
        };
        obstacles.iter().take(MOST).map(reason).collect::<Vec<_>>()
    };
    let verdict = match (found.points.is_empty(), obstacles.is_empty()) {
        (true, false) => Droppable::Never(reasons(&obstacles)),
        (true, true) => {
            let (at, what) = found.why_none;
            let place = module.place(at.unwrap_or(entry.at));
            Droppable::Never(vec![Refusal::new(entry.name, place, what.to_owned(), CURE)])
        }
        (false, true) => Droppable::Strict,
        (false, false) => Droppable::Relaxed,
    };
    let before: Vec<_> =
        repeatable.iter().filter(|store| found.may_come_before[store.step]).collect();
    let mut uses = BTreeSet::new();
    if !found.points.is_empty() && !before.is_empty() {
        budget.spend(loads.len() * before.len())?;
        uses.extend(&written);
        for load in &loads {
            let is_read = |of: &(usize, _)| !written.contains(&(of.0, ParameterUse::Written));
            uses.extend(load.access.read().filter(is_read));
            for store in &before {
                uses.extend(store.access.numbers_with(&load.access));
            }
        }
    }
    Ok(Drops { verdict, votes, points: found.points, uses: uses.into_iter().collect() })
}

/// What the instructions of an entry do that a second run might not repeat.
#[derive(Default)]
struct Effects<'a> {
    obstacles: Vec<Obstacle>,
    stores: Vec<Accessed<'a>>,
    /// All that reads.
    loads: Vec<Accessed<'a>>,
    /// What writes besides the stores.
    changes: Vec<Accessed<'a>>,
}

impl<'a> Effects<'a> {
    /// The loads of memory that block-tasks of the launch may write.
    fn changing(&self) -> BTreeSet<usize> {
        let is_changed = |load: &&Accessed<'_>| {
            let mut writes = self.stores.iter().chain(&self.changes).map(|write| &write.access);
            writes.any(|write| {
                write.is_unknown() || load.access.is_unknown() || write.may_be_of(&load.access)
            })
        };
        self.loads.iter().filter(is_changed).map(|load| load.step).collect()
    }

    fn look(&mut self, at: usize, step: &Step<'a>, bases: &Bases<'a>) -> Result<(), Stop> {
        let of = step.of;
        let is_strong = of.has_any(&STRONG);
        let what = match step.root() {
            "call" => return Err(Stop::At(step.at, format!("`{}` calls a function", of.opcode))),
            "mbarrier" | "tensormap" | "setmaxnreg" => {
                let what = format!(
                    "`{}`: what it started may be in flight when the block leaves",
                    of.opcode
                );
                return Err(Stop::At(step.at, what));
            }
            "cp" if of.has_any(&["bulk", "reduce", "mbarrier"]) => {
                let what = format!("`{}` may be in flight when the block leaves", of.opcode);
                return Err(Stop::At(step.at, what));
            }
            "cp" if of.has_any(&["commit_group", "wait_group", "wait_all"]) => return Ok(()),
            "cp" if of.has("async") => {
                self.loads.push(Accessed { step: at, access: bases.access(step, 1) });
                return Ok(());
            }
            "st" | "ld" | "ldu" | "wmma" if step.space() == Space::Fixed => return Ok(()),
            "wmma" if !of.has_any(&["load", "store"]) => return Ok(()),
            "st" | "ld" | "ldu" | "wmma" => {
                let is_store = step.root() == "st" || of.has("store");
                let place = usize::from(!is_store);
                let Some(access) = bases.global(step, place) else { return Ok(()) };
                let accessed = Accessed { step: at, access };
                match (is_store, is_strong) {
                    (true, false) => self.stores.push(accessed),
                    (true, true) => self.changes.push(accessed),
                    (false, _) => self.loads.push(accessed),
                }
                if !is_strong {
                    return Ok(());
                }
                "may be seen by other blocks, or see what they write"
            }
            "atom" | "red" => match bases.global(step, usize::from(step.root() == "atom")) {
                None => return Ok(()),
                Some(access) => {
                    self.loads.push(Accessed { step: at, access: access.clone() });
                    self.changes.push(Accessed { step: at, access });
                    "changes global memory by what is there"
                }
            },
            // Surfaces may be of any memory.
            "sust" | "sured" => {
                self.loads.push(Accessed { step: at, access: Access::unknown() });
                self.changes.push(Accessed { step: at, access: Access::unknown() });
                "writes to a surface, whose memory is not known"
            }
            "fence" | "membar" if is_of_block(step) => return Ok(()),
            "fence" | "membar" => "orders accesses that other blocks may see",
            "tex" | "tld4" | "suld" => {
                self.loads.push(Accessed { step: at, access: Access::unknown() });
                return Ok(());
            }
            root if is_harmless(root) => return Ok(()),
            _ => "is an operation that cannot be shown to be the same twice",
        };
        self.obstacles.push(Obstacle {
            step: at,
            what: format!("`{}` {what}", of.opcode),
            cure: CURE,
        });
        Ok(())
    }
}

/// Whether a fence is for threads of the block alone, or for the block's shared memory.
fn is_of_block(step: &Step<'_>) -> bool {
    step.of.has("shared::cta")
        || step.of.has("cta") && !step.of.has_any(&["gpu", "sys", "cluster", "gl", "proxy"])
}

/// Whether an operation but computes, waits for threads of the block, or gives a hint.
fn is_harmless(root: &str) -> bool {
    determined::is_pure(root)
        || matches!(
            root,
            "activemask"
                | "addc"
                | "applypriority"
                | "bra"
                | "brx"
                | "elect"
                | "exit"
                | "griddepcontrol"
                | "ldmatrix"
                | "madc"
                | "nanosleep"
                | "prefetch"
                | "prefetchu"
                | "ret"
                | "stmatrix"
                | "subc"
                | "suq"
                | "trap"
                | "txq"
                | "wgmma"
        )
}

/// The names in the address that is an operand.
fn address<'s, 'a>(step: &'s Step<'a>, operand: usize) -> Option<&'s [&'a str]> {
    let place = step.of.operand(operand).filter(|of| of.kind == OperandKind::Address)?;
    Some(&place.names)
}
