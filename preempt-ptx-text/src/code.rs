//! The instructions of a function, with what each reads and writes.

use std::collections::BTreeMap;

use crate::tree::{Body, FunctionItem, Instruction, Module, OperandKind, StatementKind};
use crate::verdict::Refusal;

/// A register, a variable or a special register of a function.
pub(crate) type Id = usize;

const CURE_WHOLE: &str = "give the text as the compiler wrote it";

/// Work that the analysis of an entry may take, in steps of the order of one instruction. Kernels of compilers stay below a
/// hundredth of it.
#[derive(Debug)]
pub(crate) struct Budget(pub u64);

/// The budget is used up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooLarge;

impl Budget {
    pub fn spend(&mut self, steps: usize) -> Result<(), TooLarge> {
        self.0 = self.0.checked_sub(steps as u64).ok_or(TooLarge)?;
        Ok(())
    }
}

/// What an instruction accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Space {
    Shared,
    Local,
    /// Parameters and constants, which nothing writes.
    Fixed,
    Global,
    Generic,
}

#[derive(Debug)]
pub(crate) struct Step<'a> {
    pub of: &'a Instruction<'a>,
    /// Where it is in the text.
    pub at: usize,
    pub defs: Vec<Id>,
    /// What it reads, its guard included.
    pub uses: Vec<Id>,
    pub guard: Option<Id>,
    /// The instructions that it may branch to; `None` if it is no branch.
    pub targets: Option<Vec<usize>>,
    /// The function that it calls; `None` too where that is in a register.
    pub callee: Option<&'a str>,
}

impl Step<'_> {
    pub fn root(&self) -> &str {
        self.of.root()
    }

    /// The state space of its address.
    pub fn space(&self) -> Space {
        for modifier in self.of.opcode.split('.').skip(1) {
            match modifier {
                "shared" | "shared::cta" | "shared::cluster" => return Space::Shared,
                "local" => return Space::Local,
                "param" | "param::entry" | "param::func" | "const" => return Space::Fixed,
                "global" => return Space::Global,
                _ => {}
            }
        }
        Space::Generic
    }

    /// Whether it may write to memory that threads of the block or the thread itself read back.
    pub fn stores(&self) -> bool {
        let root = self.root();
        matches!(root, "st" | "atom" | "red" | "stmatrix" | "call" | "cp" | "wmma" | "multimem")
            && self.space() != Space::Fixed
    }

    /// A synchronisation of the block, or of a part of it by a number.
    pub fn is_barrier(&self) -> bool {
        matches!(self.root(), "bar" | "barrier") && !self.of.has("warp") && !self.of.has("cluster")
    }
}

#[derive(Debug)]
pub(crate) struct Code<'a> {
    pub steps: Vec<Step<'a>>,
    /// By [`Id`].
    pub names: Vec<&'a str>,
    /// The steps that write each register.
    pub defs: Vec<Vec<usize>>,
}

impl<'a> Code<'a> {
    pub fn of(
        module: &Module<'a>,
        function: &'a FunctionItem<'a>,
        body: &'a Body<'a>,
    ) -> Result<Code<'a>, Refusal> {
        let refuse = |at: usize, what: String| {
            Refusal::new(function.name, module.place(at), what, CURE_WHOLE)
        };
        let mut names = Names::default();
        for declaration in function.parameters.iter().chain(&function.returns) {
            for declared in &declaration.names {
                names.declare(0, declared.name, None);
            }
        }
        // Labels are known before the branches to them, and each scope has its own.
        let mut labels = BTreeMap::new();
        let mut lists = BTreeMap::new();
        let mut count = 0;
        for statement in &body.statements {
            match &statement.kind {
                StatementKind::Label(name) => {
                    let before = labels.insert((statement.scope, *name), count);
                    let what = || format!("the label `{name}` is there twice");
                    before.map_or(Ok(()), |_| Err(refuse(statement.span.start, what())))?;
                }
                StatementKind::BranchTargets { name, labels } => {
                    lists.insert((statement.scope, *name), labels);
                }
                StatementKind::Declaration(declaration) => {
                    for declared in &declaration.names {
                        names.declare(statement.scope, declared.name, declared.count);
                    }
                }
                StatementKind::Instruction(_) => count += 1,
                _ => {}
            }
        }
        let chain = |scope: usize| {
            std::iter::successors(Some(scope), |&scope| body.scopes.get(scope).copied().flatten())
        };
        let mut steps = Vec::with_capacity(count);
        for statement in &body.statements {
            let StatementKind::Instruction(of) = &statement.kind else { continue };
            let (at, scope) = (statement.span.start, statement.scope);
            let label = |name: &str| {
                let place = chain(scope).find_map(|scope| labels.get(&(scope, name)).copied());
                place.ok_or_else(|| refuse(at, format!("there is no label `{name}`")))
            };
            let mut step = Step {
                of,
                at,
                defs: Vec::new(),
                uses: Vec::new(),
                guard: None,
                targets: None,
                callee: None,
            };
            let last = of.operands.last();
            let mut skipped = None;
            match of.root() {
                "bra" => {
                    let name = last.and_then(|operand| operand.name());
                    let name = name.ok_or_else(|| refuse(at, "a branch to nowhere".into()))?;
                    step.targets = Some(vec![label(name)?]);
                    skipped = Some(of.operands.len() - 1);
                }
                "brx" => {
                    let name = last.and_then(|operand| operand.name()).unwrap_or_default();
                    let list = chain(scope).find_map(|scope| lists.get(&(scope, name)));
                    let list = list.ok_or_else(|| {
                        refuse(at, format!("there is no list `{name}` of targets"))
                    })?;
                    step.targets =
                        Some(list.iter().map(|name| label(name)).collect::<Result<_, _>>()?);
                    skipped = Some(of.operands.len() - 1);
                }
                "call" => {
                    let is_list = |at: usize| {
                        of.operand(at).is_some_and(|operand| operand.kind == OperandKind::List)
                    };
                    let place = usize::from(is_list(0));
                    step.callee =
                        of.operand(place).and_then(|operand| operand.name()).filter(|name| {
                            !name.starts_with('%') && names.find(chain(scope), name).is_none()
                        });
                    skipped = step.callee.is_some().then_some(place);
                    // What follows the arguments is the prototype.
                    if of.operands.len() > place + 2 {
                        step.callee = None;
                    }
                }
                _ => {}
            }
            let writes = destinations(of);
            for (index, operand) in of.operands.iter().enumerate() {
                if Some(index) == skipped {
                    continue;
                }
                for &name in &operand.names {
                    if matches!(name, "_" | "WARP_SZ") {
                        continue;
                    }
                    let id = match names.find(chain(scope), name) {
                        Some(id) => id,
                        // A special register, or a variable of the module.
                        None if special(name).is_some() || !name.starts_with('%') => {
                            names.intern(name)
                        }
                        None => {
                            let what = format!(
                                "`{name}` is declared nowhere, and no special register that is known"
                            );
                            return Err(refuse(at, what));
                        }
                    };
                    let is_sum = of.root() == "wgmma";
                    match writes == Some(index) {
                        true if is_sum => {
                            step.defs.push(id);
                            step.uses.push(id);
                        }
                        true => step.defs.push(id),
                        false => step.uses.push(id),
                    }
                }
            }
            if let Some(guard) = of.guard {
                let id = names.find(chain(scope), guard.register);
                let what = || format!("`{}` is declared nowhere", guard.register);
                let id = id.ok_or_else(|| refuse(at, what()))?;
                step.guard = Some(id);
                step.uses.push(id);
            }
            steps.push(step);
        }
        let mut defs = vec![Vec::new(); names.all.len()];
        for (index, step) in steps.iter().enumerate() {
            for &id in &step.defs {
                defs[id].push(index);
            }
        }
        Ok(Code { steps, names: names.all, defs })
    }

    pub fn special(&self, id: Id) -> Option<&'static str> {
        special(self.names[id])
    }
}

/// The operand that an instruction writes; a parameter of a call counts as a register.
fn destinations(of: &Instruction<'_>) -> Option<usize> {
    let first = of.operand(0)?;
    match of.root() {
        "st" if of.has_any(&["param", "param::func"]) => Some(0),
        "st" | "bra" | "brx" | "ret" | "exit" | "trap" | "fence" | "membar" | "red" | "cp"
        | "prefetch" | "prefetchu" | "nanosleep" | "griddepcontrol" | "setmaxnreg" | "sust"
        | "sured" | "stmatrix" | "brkpt" | "pmevent" | "discard" | "applypriority"
        | "tensormap" | "stackrestore" => None,
        "bar" | "barrier" => of.has("red").then_some(0),
        "mbarrier" => (first.kind != OperandKind::Address).then_some(0),
        "wgmma" => of.has("mma_async").then_some(0),
        "wmma" => (!of.has("store")).then_some(0),
        "multimem" => of.has("ld_reduce").then_some(0),
        "call" => (first.kind == OperandKind::List && of.operands.len() > 1).then_some(0),
        _ => Some(0),
    }
}

/// The special register of this name, without its component.
pub(crate) fn special(name: &str) -> Option<&'static str> {
    const KNOWN: [&str; 43] = [
        "%tid",
        "%ntid",
        "%laneid",
        "%warpid",
        "%nwarpid",
        "%ctaid",
        "%nctaid",
        "%smid",
        "%nsmid",
        "%gridid",
        "%is_explicit_cluster",
        "%clusterid",
        "%nclusterid",
        "%cluster_ctaid",
        "%cluster_nctaid",
        "%cluster_ctarank",
        "%cluster_nctarank",
        "%lanemask_eq",
        "%lanemask_le",
        "%lanemask_lt",
        "%lanemask_ge",
        "%lanemask_gt",
        "%clock",
        "%clock_hi",
        "%clock64",
        "%globaltimer",
        "%globaltimer_lo",
        "%globaltimer_hi",
        "%reserved_smem_offset_begin",
        "%reserved_smem_offset_end",
        "%reserved_smem_offset_cap",
        "%reserved_smem_offset_0",
        "%reserved_smem_offset_1",
        "%total_smem_size",
        "%aggr_smem_size",
        "%dynamic_smem_size",
        "%current_graph_exec",
        "%pm",
        "%pm0",
        "%pm1",
        "%pm2",
        "%pm3",
        "%envreg",
    ];
    let stem = name.split('.').next().unwrap_or(name);
    if stem.strip_prefix("%envreg").is_some_and(|digits| digits.parse::<u8>().is_ok()) {
        return Some("%envreg");
    }
    KNOWN.into_iter().find(|known| *known == stem)
}

/// What is declared, by scope.
#[derive(Default)]
struct Names<'a> {
    all: Vec<&'a str>,
    declared: BTreeMap<(usize, &'a str), Id>,
    /// Of `%r<9>`.
    counted: BTreeMap<(usize, &'a str), u64>,
    numbered: BTreeMap<(usize, &'a str), Id>,
    others: BTreeMap<&'a str, Id>,
}

impl<'a> Names<'a> {
    fn add(&mut self, name: &'a str) -> Id {
        self.all.push(name);
        self.all.len() - 1
    }

    fn declare(&mut self, scope: usize, name: &'a str, count: Option<u64>) {
        match count {
            Some(count) => drop(self.counted.insert((scope, name), count)),
            None => {
                let id = self.add(name);
                self.declared.insert((scope, name), id);
            }
        }
    }

    fn find(&mut self, scopes: impl Iterator<Item = usize>, name: &'a str) -> Option<Id> {
        // A component of a vector counts as all of it.
        let name = if special(name).is_some() { name } else { name.split('.').next()? };
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = name[stem.len()..].parse::<u64>().ok();
        for scope in scopes {
            if let Some(&id) = self.declared.get(&(scope, name)) {
                return Some(id);
            }
            if let (Some(number), Some(&count)) = (number, self.counted.get(&(scope, stem)))
                && number < count
            {
                if let Some(&id) = self.numbered.get(&(scope, name)) {
                    return Some(id);
                }
                let id = self.add(name);
                self.numbered.insert((scope, name), id);
                return Some(id);
            }
        }
        None
    }

    fn intern(&mut self, name: &'a str) -> Id {
        if let Some(&id) = self.others.get(name) {
            return id;
        }
        let id = self.add(name);
        self.others.insert(name, id);
        id
    }
}
