//! Whether an entry can be made preemptible, by which rules, or why not.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use thiserror::Error;

use crate::code::{Budget, Code, TooLarge};
use crate::divergence::{Among, Divergence};
use crate::flow::Flow;
use crate::tree::{Body, Declaration, FunctionItem, Module, Place, StatementKind};
use crate::waits::{self, Reads, Wait};

mod exits;
mod steps;

/// Steps of the analysis of one entry, which takes at most a few seconds, and for kernels of some thousand instructions takes
/// less than a hundredth of them.
pub(crate) const BUDGET: u64 = 10_000_000;
/// Bytes of parameters that the worker loop adds: the cohort (`preempt-device`), aligned to 8.
pub(crate) const COHORT_BYTES: u64 = 160;
/// Bytes of shared memory that the worker loop adds: its slot of 112, and what aligns that.
pub(crate) const SLOT_BYTES: u64 = 128;
const STATIC_SHARED_LIMIT: u64 = 48 << 10;
/// The oldest architecture whose threads are scheduled as on newer ones: code for older ones may rely on warps in lockstep.
const OLDEST_TARGET: u32 = 70;

const CURE_PLAIN: &str = "launch the kernel without preemption";
const CURE_WAIT: &str = "launch the kernel without preemption; or give the loop a bound, read constant data through \
    `const __restrict__`, or let the last block that is done go on in the place of a block that waits";
const CURE_TARGET: &str = "compile the file for `sm_80` or newer, with addresses of 64 bits";
const CURE_SIZE: &str = "split the kernel, or launch it without preemption";

/// What is to be said of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Verdict {
    /// Its body gives the same results in a worker loop.
    Accepted(Accepted),
    /// It does not, or nothing shows that it does. Here are the reasons, of which there is one or more.
    Refused(Vec<Refusal>),
}

/// What an entry that is accepted needs.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Accepted {
    /// What a rewrite has to do besides putting the body into the loop.
    pub rules: BTreeSet<Rule>,
    /// The lowest barrier of the block, from 1 on, that the entry does not use; the loop takes it. An SM has 64 barriers, and a block is
    /// allotted all up to the highest in use.
    pub barrier: u8,
    /// What is right but may surprise.
    pub notes: BTreeSet<Note>,
    /// Whether blocks need a multiple of 32 threads in x, or one row, so that no warp has threads of several rows: threads return
    /// by their y or z, and others of their warp would wait for them.
    pub whole_rows: bool,
}

/// What a rewrite of an entry has to do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Rule {
    /// Some threads return and others come to a barrier of the block: those that returned have to meet them there.
    EarlyExit,
    /// Lanes of a warp may return before others synchronise the warp: member masks must leave them out.
    ReturnedLanes,
    /// A function that is called asks for what differs in the loop, such as the index of the block: it needs a copy that is
    /// given the task's.
    HelperIndex,
    /// There is dynamic shared memory, so the loop's slot goes behind it: in front it would move what may be aligned.
    SlotBehindDynamicShared,
    /// The entry asks for the size of its shared memory, from which the loop's slot must be taken off.
    SharedSize,
    /// A barrier object in shared memory is initialised again by each block-task, and is invalidated before.
    MbarrierInit,
    /// `griddepcontrol` waits for, or lets go, another grid: the loop does that.
    GridDependency,
    /// Asynchronous copies must be waited for before the next block-task.
    AsyncCopies,
    /// The same of bulk copies, whose reads of shared memory need a fence of the proxy, too.
    BulkCopies,
}

/// What is right but may surprise.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Note {
    /// The entry reads which SM it runs on: that can be others than in an ordinary grid.
    Multiprocessor,
    /// A barrier of the block is behind a branch that its threads may part at.
    DivergentBarrier,
    /// A loop looks at what other blocks write, and goes on without it after some rounds. In a worker loop those may be blocks that
    /// run much later.
    GivesUp,
    /// The entry can trap, which ends the context.
    Trap,
}

/// Why an entry is refused: one of its instructions or directives.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{function}: {what} ({place}); {cure}")]
#[non_exhaustive]
pub struct Refusal {
    /// The entry, or the function that it calls, where that is.
    pub function: String,
    /// Where in the text.
    pub place: Place,
    /// What is there.
    pub what: String,
    /// What to do about it.
    pub cure: &'static str,
}

impl Refusal {
    pub(crate) fn new(function: &str, place: Place, what: String, cure: &'static str) -> Refusal {
        Refusal { function: function.to_owned(), place, what, cure }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Accepted(accepted) if accepted.rules.is_empty() => f.write_str("exact"),
            Verdict::Accepted(accepted) => write!(f, "by rule: {:?}", accepted.rules),
            Verdict::Refused(reasons) => {
                let reasons: Vec<_> = reasons.iter().map(Refusal::to_string).collect();
                write!(f, "refused: {}", reasons.join("; "))
            }
        }
    }
}

impl<'a> Module<'a> {
    /// Whether the entry of this name can be made preemptible; `None` if there is no such entry.
    ///
    /// What the analysis does not know it refuses. It looks at the text alone: that the launch has no cluster and is not
    /// cooperative is for the caller to know.
    ///
    /// ```
    /// # use preempt_ptx_text::{Verdict, read};
    /// let module = read(
    ///     ".version 8.0
    ///     .target sm_90
    ///     .address_size 64
    ///     .visible .entry waits(.param .u64 flag) {
    ///         .reg .pred %p; .reg .b32 %r; .reg .b64 %at;
    ///         ld.param.u64 %at, [flag];
    ///     AGAIN:
    ///         ld.acquire.gpu.global.u32 %r, [%at];
    ///         setp.eq.u32 %p, %r, 0;
    ///         @%p bra AGAIN;
    ///         ret;
    ///     }",
    /// )?;
    /// let Some(Verdict::Refused(reasons)) = module.verdict("waits") else { panic!() };
    /// assert_eq!(reasons[0].place.line, 8);
    /// # Ok::<(), preempt_ptx_text::PtxError>(())
    /// ```
    pub fn verdict(&self, entry: &str) -> Option<Verdict> {
        self.judge(entry).map(|judged| judged.verdict)
    }

    pub(crate) fn judge(&self, entry: &str) -> Option<Judged<'_>> {
        let bodies: BTreeMap<_, _> =
            self.functions().filter(|f| f.body.is_some()).map(|f| (f.name, f)).collect();
        let function = *bodies.get(entry).filter(|function| function.is_entry)?;
        let mut judge = Judge {
            module: self,
            reached: Vec::new(),
            is_dynamic: false,
            has_shared: false,
            warp_syncs: BTreeSet::new(),
            bodies,
            reads: BTreeMap::new(),
            barriers: BTreeSet::new(),
            budget: Budget(BUDGET),
            refusals: Vec::new(),
            rules: BTreeSet::new(),
            notes: BTreeSet::new(),
            whole_rows: false,
            lanes_part: false,
            used: steps::Used::default(),
        };
        if judge.entry(function).is_err() {
            let what = "the entry is too large for the analysis".to_owned();
            judge.refuse(function.name, function.at, what, CURE_SIZE);
        }
        Some(judge.judged(function))
    }
}

/// A verdict, and what a rewrite of the entry has to know besides.
#[derive(Debug)]
pub(crate) struct Judged<'m> {
    pub verdict: Verdict,
    pub entry: &'m FunctionItem<'m>,
    /// The functions that it calls, directly or not, each behind those that it calls.
    pub called: Vec<&'m FunctionItem<'m>>,
    /// Whether there is dynamic shared memory.
    pub is_dynamic: bool,
    /// Whether threads of a block share memory or wait for each other.
    pub cooperates: bool,
    /// Whether a barrier of the block is behind a branch that lanes of a warp may part at. Where whole warps return, and others
    /// come to barriers, each barrier can stay where it is.
    pub lanes_part: bool,
    /// The barrier that is the next free one behind that of the loop, for votes at yield points.
    pub vote: Option<u8>,
}

/// What is known of an entry so far.
struct Judge<'m> {
    module: &'m Module<'m>,
    reached: Vec<&'m FunctionItem<'m>>,
    is_dynamic: bool,
    has_shared: bool,
    /// The functions in which lanes of a warp wait for those in a mask.
    warp_syncs: BTreeSet<&'m str>,
    /// The functions with a body.
    bodies: BTreeMap<&'m str, &'m FunctionItem<'m>>,
    /// What the functions that were looked at read of other blocks' writes.
    reads: BTreeMap<&'m str, Reads>,
    /// The functions with a barrier of the block.
    barriers: BTreeSet<&'m str>,
    budget: Budget,
    refusals: Vec<Refusal>,
    rules: BTreeSet<Rule>,
    notes: BTreeSet<Note>,
    whole_rows: bool,
    /// Whether a barrier of the block is behind a branch that lanes of a warp may part at. Where whole warps return, and others
    /// come to barriers, each barrier can stay where it is.
    lanes_part: bool,
    used: steps::Used<'m>,
}

impl<'m> Judge<'m> {
    fn refuse(&mut self, function: &str, at: usize, what: String, cure: &'static str) {
        // Reasons of one kind are told once for each function: the first place is enough.
        const MOST: usize = 16;
        let is_told = self.refusals.iter().any(|of| of.function == function && of.what == what);
        if !is_told && self.refusals.len() < MOST {
            self.refusals.push(Refusal::new(function, self.module.place(at), what, cure));
        }
    }

    fn judged(mut self, entry: &'m FunctionItem<'m>) -> Judged<'m> {
        let mut free = (1..16).filter(|number| !self.used.barriers.contains_key(number));
        let (barrier, vote) = (free.next(), free.next());
        if barrier.is_none() {
            let what = "all 16 barriers of the block are in use".to_owned();
            self.refuse(entry.name, entry.at, what, CURE_PLAIN);
        }
        let cooperates = self.has_shared || !self.barriers.is_empty();
        let verdict = match barrier {
            Some(barrier) if self.refusals.is_empty() => Verdict::Accepted(Accepted {
                rules: self.rules,
                barrier,
                notes: self.notes,
                whole_rows: self.whole_rows,
            }),
            _ => Verdict::Refused(self.refusals),
        };
        self.reached.retain(|function| function.name != entry.name);
        Judged {
            verdict,
            entry,
            called: self.reached,
            is_dynamic: self.is_dynamic,
            cooperates,
            lanes_part: self.lanes_part,
            vote,
        }
    }

    fn entry(&mut self, entry: &'m FunctionItem<'m>) -> Result<(), TooLarge> {
        for (directive, _) in &entry.directives {
            let cluster =
                ["reqnctapercluster", "explicitcluster", "blocksareclusters", "maxclusterrank"];
            if cluster.contains(&directive.trim_start_matches('.')) {
                let what = format!("`{directive}` asks for clusters of blocks");
                self.refuse(entry.name, entry.at, what, CURE_PLAIN);
            }
        }
        self.module(entry);
        self.parameters(entry);
        self.reached = self.reach(entry)?;
        for function in self.reached.clone() {
            self.function(function, function.name == entry.name)?;
        }
        self.shared(entry);
        Ok(())
    }

    /// The functions that the entry calls, directly or not, each behind those that it calls; the entry is the last.
    fn reach(
        &mut self,
        entry: &'m FunctionItem<'m>,
    ) -> Result<Vec<&'m FunctionItem<'m>>, TooLarge> {
        let mut reached = Vec::new();
        let mut open = BTreeSet::from([entry.name]);
        let mut seen = open.clone();
        let mut path = vec![(entry, calls(entry).into_iter())];
        while let Some((function, callees)) = path.last_mut() {
            self.budget.spend(1)?;
            let Some((name, at)) = callees.next() else {
                reached.push(*function);
                open.remove(function.name);
                path.pop();
                continue;
            };
            let caller = function.name;
            if open.contains(name) {
                let what =
                    format!("`{name}` calls itself, directly or not, and a wait can hide in that");
                self.refuse(caller, at, what, CURE_PLAIN);
            } else if let Some(&callee) = self.bodies.get(name) {
                if seen.insert(name) {
                    open.insert(name);
                    path.push((callee, calls(callee).into_iter()));
                }
            } else if !matches!(name, "vprintf" | "__assertfail" | "malloc" | "free") {
                let launches =
                    name.starts_with("cudaLaunch") || name.starts_with("cudaGetParameter");
                let what = match launches {
                    true => format!("`{name}` launches a grid from the device"),
                    false => format!("it calls `{name}`, whose body is not in the file"),
                };
                self.refuse(
                    caller,
                    at,
                    what,
                    "link the function in as PTX, or launch the kernel without preemption",
                );
            }
        }
        Ok(reached)
    }

    fn function(&mut self, function: &'m FunctionItem<'m>, is_entry: bool) -> Result<(), TooLarge> {
        let Some(body) = &function.body else { return Ok(()) };
        let code = match Code::of(self.module, function, body) {
            Ok(code) => code,
            Err(refusal) => {
                self.refusals.push(refusal);
                return Ok(());
            }
        };
        self.budget.spend(code.steps.len())?;
        let flow = Flow::of(&code, &mut self.budget)?;
        self.steps(function, &code, &flow, is_entry);
        let known = &self.reads;
        let callee = |name: &str| match name {
            // Memory that another block frees.
            "malloc" => Reads::Others,
            _ => known.get(name).copied().unwrap_or_default(),
        };
        let reads = code.steps.iter().map(|step| waits::reads(step, &callee)).max();
        let (wait, gives_up) = waits::first(&code, &flow, &callee, &mut self.budget)?;
        if gives_up {
            self.notes.insert(Note::GivesUp);
        }
        self.reads.insert(function.name, reads.unwrap_or_default());
        match wait {
            Some(Wait::On { step, reads }) => {
                let opcode = code.steps[step].of.opcode;
                let what = match reads {
                    Reads::Others => format!(
                        "a loop ends by what `{opcode}` reads, which another block may have to write first"
                    ),
                    _ => format!(
                        "a loop ends by what `{opcode}` reads, and nothing shows that this is not written by another block"
                    ),
                };
                self.refuse(function.name, code.steps[step].at, what, CURE_WAIT);
            }
            Some(Wait::Forever { step }) => {
                let what = "a loop has no exit but a trap".to_owned();
                self.refuse(function.name, code.steps[step].at, what, CURE_PLAIN);
            }
            None => {}
        }
        if code.steps.iter().any(|step| self.is_barrier(step)) {
            self.barriers.insert(function.name);
        }
        if code.steps.iter().any(|step| self.has_member_mask(step)) {
            self.warp_syncs.insert(function.name);
        }
        if is_entry {
            let mut part =
                |among| Divergence::of(&code, &flow, among, &mut self.budget).map(|of| of.branches);
            let parted = exits::Parted {
                threads: part(Among::Block)?,
                lanes: part(Among::WarpOfRow)?,
                lanes_of_rows: part(Among::Warp)?,
            };
            self.exits(function, &code, &flow, &parted)?;
        }
        Ok(())
    }

    /// What the file as a whole asks for.
    fn module(&mut self, entry: &FunctionItem<'m>) {
        let target = self.module.target();
        if self.module.architecture().is_none_or(|number| number < OLDEST_TARGET) {
            let what = format!("the file is for `{target}`, whose warps may run in lockstep");
            self.refuse(entry.name, entry.at, what, CURE_TARGET);
        }
        if self.module.address_bits() != Some("64") {
            let what = "addresses are not declared to have 64 bits".to_owned();
            self.refuse(entry.name, entry.at, what, CURE_TARGET);
        }
    }

    fn parameters(&mut self, entry: &FunctionItem<'m>) {
        let mut end = 0u64;
        for parameter in &entry.parameters {
            let Some(bytes) = parameter.bytes() else {
                let what = format!("a parameter of the type `{}`", parameter.ty);
                self.refuse(entry.name, entry.at, what, CURE_PLAIN);
                continue;
            };
            end = aligned(end, parameter.alignment()).saturating_add(bytes);
        }
        let limit = if self.module.version() < (8, 1) { 4352 } else { 32764 };
        if aligned(end, 8).saturating_add(COHORT_BYTES) > limit {
            let what = format!(
                "{end} bytes of parameters leave no room for the {COHORT_BYTES} of the worker loop"
            );
            self.refuse(
                entry.name,
                entry.at,
                what,
                "pass a pointer to them, or launch the kernel without preemption",
            );
        }
    }

    /// Shared memory of the entry and of what it calls.
    fn shared(&mut self, entry: &FunctionItem<'m>) {
        let mut bytes = 0u64;
        let mut is_dynamic = false;
        let mut count = |declaration: &Declaration<'m>| match declaration.is_extern {
            true => is_dynamic = true,
            false => {
                let own = declaration.bytes().unwrap_or_default();
                bytes = aligned(bytes, declaration.alignment()).saturating_add(own);
            }
        };
        for variable in self.module.variables().filter(|variable| variable.space == ".shared") {
            if variable.names.iter().any(|name| self.used.symbols.contains(name.name)) {
                count(variable);
            }
        }
        let reached = self.bodies.iter().filter(|(name, _)| self.reads.contains_key(*name));
        for body in reached.filter_map(|(_, function)| function.body.as_ref()) {
            declarations(body).filter(|of| of.space == ".shared").for_each(&mut count);
        }
        (self.is_dynamic, self.has_shared) = (is_dynamic, is_dynamic || bytes > 0);
        if is_dynamic {
            self.rules.insert(Rule::SlotBehindDynamicShared);
        } else if aligned(bytes, 16).saturating_add(SLOT_BYTES) > STATIC_SHARED_LIMIT {
            let what = format!(
                "{bytes} bytes of static shared memory leave no room for the {SLOT_BYTES} of the worker loop"
            );
            let cure = "make a part of it dynamic, or launch the kernel without preemption";
            self.refuse(entry.name, entry.at, what, cure);
        }
        if let (Some(at), false) = (self.used.shared_access, self.has_shared) {
            let what = "it accesses shared memory that is not declared".to_owned();
            self.refuse(entry.name, at, what, steps::CURE_SHARED);
        }
        if let (Some(at), false) = (self.used.shared_read, self.used.shared_written) {
            let what = "it reads shared memory that it never writes".to_owned();
            let cure = "initialise the shared memory: in a worker loop it holds what the block-task before left";
            self.refuse(entry.name, at, what, cure);
        }
    }
}

fn aligned(bytes: u64, to: u64) -> u64 {
    bytes.checked_next_multiple_of(to).unwrap_or(u64::MAX)
}

fn declarations<'b, 'a>(body: &'b Body<'a>) -> impl Iterator<Item = &'b Declaration<'a>> {
    body.statements.iter().filter_map(|statement| match &statement.kind {
        StatementKind::Declaration(declaration) => Some(declaration),
        _ => None,
    })
}

/// The functions that one calls by name, and where.
fn calls<'a>(function: &FunctionItem<'a>) -> Vec<(&'a str, usize)> {
    let statements = function.body.iter().flat_map(|body| &body.statements);
    let call = |statement: &crate::tree::Statement<'a>| match &statement.kind {
        StatementKind::Instruction(of) if of.root() == "call" => {
            let operand = of.operands.iter().take(2).find_map(|operand| operand.name())?;
            (!operand.starts_with('%')).then_some((operand, statement.span.start))
        }
        _ => None,
    };
    statements.filter_map(call).collect()
}
