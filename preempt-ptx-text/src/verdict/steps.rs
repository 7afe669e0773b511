//! What single instructions of an entry ask for.

use std::collections::{BTreeMap, BTreeSet};

use super::{CURE_PLAIN, Judge, Note, Rule};
use crate::code::{Code, Id, Space, Step};
use crate::flow::Flow;
use crate::tree::{FunctionItem, OperandKind};

/// What the instructions of an entry and of what it calls use.
#[derive(Debug, Default)]
pub(super) struct Used<'a> {
    /// The barriers of the block, by number, and whether one counts threads or reduces a predicate.
    pub barriers: BTreeMap<u8, bool>,
    /// Variables, by name.
    pub symbols: BTreeSet<&'a str>,
    /// The first instruction that reads shared memory.
    pub shared_read: Option<usize>,
    pub shared_written: bool,
    /// The first instruction that accesses shared memory, but for those that name a variable.
    pub shared_access: Option<usize>,
}

/// Operations that do the same in a worker loop, as far as nothing else is said of them.
const KNOWN: &[&str] = &[
    "abs",
    "activemask",
    "add",
    "addc",
    "and",
    "applypriority",
    "atom",
    "bar",
    "barrier",
    "bfe",
    "bfi",
    "bfind",
    "bmsk",
    "bra",
    "brev",
    "brx",
    "call",
    "clz",
    "cnot",
    "copysign",
    "cos",
    "cp",
    "createpolicy",
    "cvt",
    "cvta",
    "discard",
    "div",
    "dp2a",
    "dp4a",
    "elect",
    "ex2",
    "exit",
    "fence",
    "fma",
    "fns",
    "griddepcontrol",
    "isspacep",
    "ld",
    "ldmatrix",
    "ldu",
    "lg2",
    "lop3",
    "mad",
    "mad24",
    "madc",
    "match",
    "max",
    "mbarrier",
    "membar",
    "min",
    "mma",
    "mov",
    "movmatrix",
    "mul",
    "mul24",
    "nanosleep",
    "neg",
    "not",
    "or",
    "pmevent",
    "popc",
    "prefetch",
    "prefetchu",
    "prmt",
    "rcp",
    "red",
    "redux",
    "rem",
    "ret",
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
    "st",
    "stmatrix",
    "sub",
    "subc",
    "suld",
    "suq",
    "sured",
    "sust",
    "szext",
    "tanh",
    "tensormap",
    "testp",
    "tex",
    "tld4",
    "trap",
    "txq",
    "vabsdiff",
    "vadd",
    "vote",
    "wgmma",
    "wmma",
    "xor",
];

pub(super) const CURE_SHARED: &str =
    "declare the shared memory, so that the loop's own is not put there";
const CURE_UNKNOWN: &str = "launch the kernel without preemption, or compile it for an older GPU";

impl<'m> Judge<'m> {
    pub(super) fn steps(
        &mut self,
        function: &'m FunctionItem<'m>,
        code: &Code<'m>,
        flow: &Flow,
        is_entry: bool,
    ) {
        let (mut inits, mut invalidations) = (0, 0);
        let reached = flow.reached();
        // Compilers leave what no thread comes to, such as an `exit` behind a trap.
        let runs = |at: usize| reached[flow.block_of[at]];
        for (_, step) in code.steps.iter().enumerate().filter(|&(at, _)| runs(at)) {
            self.operation(function, step, is_entry);
            self.registers(function, code, step, is_entry);
            if step.is_barrier() {
                self.barrier(function, code, step);
            }
            if step.root() == "mbarrier" {
                inits += usize::from(step.of.has("init"));
                invalidations += usize::from(step.of.has("inval"));
            }
            self.memory(function, step);
            let names = step.of.operands.iter().flat_map(|operand| &operand.names);
            self.used.symbols.extend(names.filter(|name| !name.starts_with('%')));
        }
        if inits > invalidations {
            self.rules.insert(Rule::MbarrierInit);
        }
        self.multiprocessor(function, code);
    }

    fn operation(&mut self, function: &FunctionItem<'m>, step: &Step<'m>, is_entry: bool) {
        let (of, root) = (step.of, step.root());
        let has_cluster = of.opcode.contains("shared::cluster") && !matches!(root, "fence");
        let is_load = root == "cp" && of.has("bulk") && of.has("global");
        let refused = match root {
            "setmaxnreg" => Some(
                "changes the number of registers of a warp, which the next block-task would keep",
            ),
            "brkpt" => Some("stops for a debugger"),
            "mapa" | "getctarank" => Some("addresses shared memory of another block of a cluster"),
            "clusterlaunchcontrol" => Some("takes blocks from the grid by itself"),
            "alloca" | "stacksave" | "stackrestore" => {
                Some("allocates on the stack, which each block-task would add to")
            }
            "multimem" => Some("accesses the memory of several GPUs"),
            "barrier" if of.has("cluster") => Some("waits for the other blocks of a cluster"),
            "exit" if !is_entry => Some("ends the thread in a function that the entry calls"),
            "st" | "red" if of.has("async") => Some("writes to shared memory of another block"),
            "cp" if of.has_any(&["multicast::cluster"]) => {
                Some("copies to several blocks of a cluster")
            }
            "call" if step.callee.is_none() => Some("calls a function that a register points to"),
            _ if has_cluster && !is_load => Some("accesses shared memory of a cluster"),
            _ if !KNOWN.contains(&root) => Some("is an operation that the analysis does not know"),
            _ => None,
        };
        if let Some(why) = refused {
            self.refuse(function.name, step.at, format!("`{}` {why}", of.opcode), CURE_UNKNOWN);
        }
        match root {
            "griddepcontrol" => {
                self.rules.insert(Rule::GridDependency);
                if !is_entry {
                    self.rules.insert(Rule::HelperIndex);
                }
            }
            "cp" if of.has("bulk") => drop(self.rules.insert(Rule::BulkCopies)),
            "cp" if of.has("async") => drop(self.rules.insert(Rule::AsyncCopies)),
            "trap" => drop(self.notes.insert(Note::Trap)),
            _ => {}
        }
    }

    /// What special registers an instruction reads.
    fn registers(
        &mut self,
        function: &FunctionItem<'m>,
        code: &Code<'m>,
        step: &Step<'m>,
        is_entry: bool,
    ) {
        for &id in &step.uses {
            let Some(special) = code.special(id) else { continue };
            let name = code.names[id];
            let why = match special {
                "%ctaid" | "%nctaid" if special == name => {
                    Some("is read as a vector: read its components instead")
                }
                "%ctaid" | "%nctaid" if !is_read_of_word(step, name) => {
                    Some("is read as something else than a word of 32 bits")
                }
                "%ctaid" | "%nctaid" => {
                    if !is_entry {
                        self.rules.insert(Rule::HelperIndex);
                    }
                    None
                }
                "%gridid" => Some("differs between the grids that a kernel runs as"),
                "%envreg" => Some("holds what a grid-wide barrier or a driver's extension needs"),
                "%is_explicit_cluster" => Some("is about clusters"),
                "%current_graph_exec" => Some("is about the graph that a grid was launched by"),
                "%dynamic_smem_size" if !is_read_of_word(step, "%dynamic_smem_size.x") => {
                    Some("is read as something else than a word of 32 bits")
                }
                "%dynamic_smem_size" => {
                    self.rules.insert(Rule::SharedSize);
                    if !is_entry {
                        self.rules.insert(Rule::HelperIndex);
                    }
                    None
                }
                // Rounded up, so that what the loop adds cannot be taken off.
                "%total_smem_size" | "%aggr_smem_size" => {
                    Some("counts the shared memory of the worker loop, too")
                }
                _ if special.contains("cluster") => Some("is about clusters"),
                _ => None,
            };
            if let Some(why) = why {
                self.refuse(function.name, step.at, format!("`{name}` {why}"), CURE_PLAIN);
            }
        }
    }

    fn barrier(&mut self, function: &FunctionItem<'m>, code: &Code<'m>, step: &Step<'m>) {
        if step.of.has("arrive") {
            let what = "an arrival at a barrier that nothing shows to be waited for in the same block-task";
            self.refuse(function.name, step.at, what.to_owned(), CURE_PLAIN);
        }
        let is_reduction = step.of.has("red");
        let place = usize::from(is_reduction);
        let operand = step.of.operand(place);
        let number = operand.and_then(|operand| {
            operand.integer().or_else(|| {
                let name = operand.name()?;
                let id = step.uses.iter().copied().find(|&id| code.names[id] == name)?;
                constant(code, id)
            })
        });
        match number.and_then(|number| u8::try_from(number).ok()).filter(|&number| number < 16) {
            Some(number) => {
                // A count comes behind the number, and in a reduction before the predicate.
                let has_count = step.of.operands.len() > 1 + 2 * place;
                *self.used.barriers.entry(number).or_default() |= is_reduction || has_count;
            }
            None => {
                let what = "the number of a barrier is in a register".to_owned();
                self.refuse(function.name, step.at, what, CURE_PLAIN);
            }
        }
    }

    fn memory(&mut self, function: &FunctionItem<'m>, step: &Step<'m>) {
        let is_shared = step.space() == Space::Shared;
        if is_shared && step.root() != "fence" {
            self.used.shared_access.get_or_insert(step.at);
            let mut addresses =
                step.of.operands.iter().filter(|of| of.kind == OperandKind::Address);
            if addresses.any(|address| address.names.is_empty()) {
                let what = format!("`{}` accesses shared memory by a number", step.of.opcode);
                self.refuse(function.name, step.at, what, CURE_SHARED);
            }
        }
        match step.root() {
            "ld" | "ldmatrix" if is_shared => {
                self.used.shared_read.get_or_insert(step.at);
            }
            // By an address of any kind, or by a copy.
            "st" | "call" | "cp" | "stmatrix" | "wmma" | "atom" | "red" | "mbarrier" => {
                let other = matches!(step.space(), Space::Global | Space::Local | Space::Fixed);
                self.used.shared_written |= !other || step.root() == "cp";
            }
            _ => {}
        }
    }

    /// An index made of the SM that a block is on is taken for the block's own, which it is not in a worker loop.
    fn multiprocessor(&mut self, function: &FunctionItem<'m>, code: &Code<'m>) {
        let is_source = |id: &Id| matches!(code.special(*id), Some("%smid" | "%nsmid"));
        let mut comes = vec![false; code.names.len()];
        let mut waiting: Vec<Id> = (0..code.names.len()).filter(|id| is_source(id)).collect();
        if waiting.is_empty() {
            return;
        }
        self.notes.insert(Note::Multiprocessor);
        let mut users = vec![Vec::new(); code.names.len()];
        for step in &code.steps {
            for &id in &step.uses {
                users[id].push(step);
            }
        }
        while let Some(id) = waiting.pop() {
            if std::mem::replace(&mut comes[id], true) {
                continue;
            }
            for &step in &users[id] {
                let addresses =
                    step.of.operands.iter().filter(|of| of.kind == OperandKind::Address);
                let is_address =
                    addresses.flat_map(|of| &of.names).any(|name| *name == code.names[id]);
                if is_address && step.space() != Space::Fixed {
                    let what = "the number of an SM becomes an address: blocks share what is there"
                        .to_owned();
                    self.refuse(function.name, step.at, what, CURE_PLAIN);
                }
                waiting.extend(&step.defs);
            }
        }
    }
}

/// Whether a special register is read as the register is that holds the same of the block-task.
fn is_read_of_word(step: &Step<'_>, name: &str) -> bool {
    let is_component = name.ends_with(".x") || name.ends_with(".y") || name.ends_with(".z");
    let from = step.of.opcode.rsplit('.').next().unwrap_or_default();
    is_component
        && matches!(step.root(), "mov" | "cvt")
        && matches!(from, "u32" | "s32" | "b32")
        && step.of.operands.len() == 2
}

/// The number that a register always holds.
fn constant(code: &Code<'_>, id: Id) -> Option<i64> {
    let &[at] = &code.defs[id][..] else { return None };
    let step = &code.steps[at];
    let is_constant = step.root() == "mov" && step.guard.is_none();
    step.of.operand(1).filter(|_| is_constant).and_then(|operand| operand.integer())
}
