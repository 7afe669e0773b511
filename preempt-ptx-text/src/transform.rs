//! Makes entries of any compiler preemptible: their bodies are put into the worker loop.
//!
//! An entry that is accepted stays as it is, and gets a second entry beside it. That is the worker loop as `preempt-ptx`
//! compiled it, with the body in a scope of its own where the loop runs a block-task. What is rewritten in the body is
//! listed by [`Rule`](crate::Rule); `transform/README.md` says more.

use std::collections::BTreeSet;

use thiserror::Error;

use crate::drops::{Droppable, Drops, ParameterUse};
use crate::lex::Kind;
use crate::reader::{PtxError, read};
use crate::text::{Edit, edited};
use crate::tree::{Declaration, FunctionItem, ItemKind, Module};
use crate::verdict::{Accepted, COHORT_BYTES, Judged, Refusal, Rule, SLOT_BYTES, Verdict};
use template::{Filling, Form, Template};
use yielding::{YIELDING_BYTES, Yielding};

mod body;
mod helpers;
mod meeting;
mod template;
mod yielding;

/// How the name of a preemptible entry ends (`preempt_ptx_text::kernels`).
const PREEMPTIBLE: &str = "__preemptible";
/// How the name of one with yield points ends.
const YIELDING: &str = "__yielding";
/// The parameter that the preemptible entry has behind its own.
const COHORT: &str = "preempt_cohort";
/// The loop's shared memory where the entry has none that is dynamic: the dynamic memory, which the launch gives it.
const SLOT: &str = "preempt_slot";
/// The start of dynamic memory, and the register with the address of the loop's slot at the end of it.
const DYNAMIC: &str = "preempt_dynamic";
const SLOT_REGISTER: &str = "%preempt_slot";
/// What the names of the loop, and of what is put into bodies, start with.
const RESERVED: [&str; 4] = ["preempt_", "%preempt_", "$preempt_", "%task_"];

const CURE_NAMES: &str = "give the text as the compiler wrote it; kernels in Rust with `#[preemptible]` are preemptible already";

/// A file with preemptible entries, and what became of each entry that was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Transformed {
    /// The text of the file. All that it had is in it as it was, but for its version and target, which may be higher.
    pub ptx: String,
    /// The entries, in the order that they were asked for.
    pub kernels: Vec<TransformedKernel>,
}

/// What became of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TransformedKernel {
    /// The name of the entry, which is the plain entry of the kernel.
    pub name: String,
    /// Whether it was accepted, and why or why not.
    pub verdict: Verdict,
    /// The preemptible entry; `None` if the entry was refused.
    pub preemptible: Option<PreemptibleEntry>,
    /// Whether its block-tasks may be dropped at yield points; `None` if it was refused, or not asked ([`Options::yields`]).
    pub droppable: Option<Droppable>,
    /// The preemptible entry with yield points, if there are any.
    pub yielding: Option<YieldingEntry>,
}

/// A preemptible entry with yield points, and what a launch of it needs.
///
/// It is another one beside [`PreemptibleEntry`], for launches that cannot promise what it needs.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct YieldingEntry {
    /// The entry. It gets its own name, and more shared memory.
    pub entry: PreemptibleEntry,
    /// The number of places at which block-tasks may be dropped.
    pub points: usize,
    /// What a launch passes for parameters, by their position. Other parameters may be anything, or no parameter matters.
    pub uses: Vec<(usize, ParameterUse)>,
}

/// What [`transform_with`] does besides.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Whether entries whose block-tasks may be dropped get a third entry, with yield points in its loops. It takes more
    /// registers and some time of each round.
    pub yields: bool,
}

impl Options {
    /// With yield points, or without.
    pub fn yields(self, yields: bool) -> Options {
        Options { yields, ..self }
    }
}

/// A preemptible entry, and what a launch of it needs.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PreemptibleEntry {
    /// The name of the entry.
    pub name: String,
    /// The parameters of the plain entry, which come first.
    pub parameters: Vec<Parameter>,
    /// The last parameter: the cohort.
    pub cohort: Parameter,
    /// Bytes of dynamic shared memory that a launch gives it beyond those of the plain entry.
    pub added_shared: u32,
    /// Whether all threads have to end a block-task before the next one starts: they share memory or wait for each other.
    pub cooperates: bool,
    /// Whether a launch needs blocks with a multiple of 32 threads in x, or one row ([`Accepted::whole_rows`]).
    pub whole_rows: bool,
}

/// A parameter of an entry, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Parameter {
    /// From the start of the parameters.
    pub offset: u64,
    /// Its size.
    pub bytes: u64,
}

/// Why a file cannot be transformed at all.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum TransformError {
    /// The text is not PTX as it is known here.
    #[error(transparent)]
    NotUnderstood(#[from] PtxError),

    /// The file has no such entry.
    #[error("the PTX has no entry `{name}`; it has {}", listed(.entries))]
    NoEntry {
        /// What was asked for.
        name: String,
        /// The entries that there are.
        entries: Vec<String>,
    },

    /// The worker loop that was compiled into this crate is not as it should be.
    #[error("the worker loop of preempt-ptx-text has {what}; compile it anew with `preempt-ptx`")]
    Worker {
        /// What is wrong with it.
        what: String,
    },
}

fn listed(names: &[String]) -> String {
    match names {
        [] => "none".to_owned(),
        names => names.join(", "),
    }
}

/// Makes the entries of these names preemptible, as far as they can be shown to give the same results: pure text to text.
///
/// Each accepted entry gets a second one beside it, whose name ends in `__preemptible`. What the analysis does not know it
/// refuses. It looks at the text alone: that the launch has no cluster and is not cooperative is for the caller to know.
///
/// ```
/// let ptx = "
///     .version 8.0
///     .target sm_90
///     .address_size 64
///     .visible .entry fill(.param .u64 fill_data) {
///         .reg .b32 %r<2>; .reg .b64 %a<4>;
///         ld.param.u64 %a1, [fill_data];
///         mov.u32 %r1, %ctaid.x;
///         mul.wide.u32 %a2, %r1, 4;
///         add.s64 %a3, %a1, %a2;
///         st.global.u32 [%a3], %r1;
///         ret;
///     }
/// ";
/// let transformed = preempt_ptx_text::transform(ptx, &["fill"])?;
/// let entry = transformed.kernels[0].preemptible.as_ref().expect("there is nothing to refuse");
/// assert_eq!(entry.name, "fill__preemptible");
/// assert_eq!((entry.cohort.offset, entry.cohort.bytes), (8, 160));
/// assert!(transformed.ptx.contains("mov.u32 %r1, %preempt_block_x;"));
/// # Ok::<(), preempt_ptx_text::TransformError>(())
/// ```
///
/// # Errors
///
/// [`TransformError::NotUnderstood`] if the text cannot be read, and [`TransformError::NoEntry`]. An entry that is refused is
/// no error: its [`verdict`](TransformedKernel::verdict) says why.
pub fn transform(text: &str, entries: &[&str]) -> Result<Transformed, TransformError> {
    transform_with(text, entries, Options::default())
}

/// Does what [`transform`] does, and more.
///
/// ```
/// use preempt_ptx_text::{Droppable, Options, ParameterUse, transform_with};
///
/// let ptx = "
///     .version 8.0
///     .target sm_90
///     .address_size 64
///     .visible .entry sum(.param .u64 from, .param .u64 to, .param .u32 n) {
///         .reg .b32 %r<5>; .reg .b64 %a<6>; .reg .pred %p<2>;
///         ld.param.u64 %a1, [from]; ld.param.u64 %a2, [to]; ld.param.u32 %r1, [n];
///         mov.u32 %r2, %tid.x; mov.u32 %r4, 0;
///         mul.wide.u32 %a3, %r2, 4; add.s64 %a4, %a1, %a3; add.s64 %a5, %a2, %a3;
///     AGAIN:
///         ld.global.u32 %r3, [%a4];
///         add.u32 %r4, %r4, %r3; add.s64 %a4, %a4, 1024; sub.u32 %r1, %r1, 1;
///         setp.ne.u32 %p1, %r1, 0;
///         @%p1 bra AGAIN;
///         st.global.u32 [%a5], %r4;
///         ret;
///     }
/// ";
/// let transformed = transform_with(ptx, &["sum"], Options::default().yields(true))?;
/// let kernel = &transformed.kernels[0];
/// assert_eq!(kernel.droppable, Some(Droppable::Strict));
/// let entry = kernel.yielding.as_ref().expect("its loop has one");
/// assert_eq!((&*entry.entry.name, entry.points), ("sum__yielding", 1));
/// assert_eq!(entry.uses, [(0, ParameterUse::Read), (1, ParameterUse::Written)]);
/// # Ok::<(), preempt_ptx_text::TransformError>(())
/// ```
///
/// # Errors
///
/// As [`transform`]. An entry whose block-tasks may not be dropped is no error: [`droppable`](TransformedKernel::droppable) says
/// why.
pub fn transform_with(
    text: &str,
    entries: &[&str],
    options: Options,
) -> Result<Transformed, TransformError> {
    let module = read(text)?;
    let compiled = |form| Template::compiled(form).map_err(|what| TransformError::Worker { what });
    let template = compiled(Form::Worker)?;
    let yielding = match options.yields {
        true => Some((compiled(Form::Polling)?, compiled(Form::Voting)?)),
        false => None,
    };
    let reserved = reserved(&module);
    let mut splicing = Splicing {
        module: &module,
        template,
        yielding,
        reserved,
        added: Vec::new(),
        copies: BTreeSet::new(),
        shared: BTreeSet::new(),
    };
    let kernels =
        entries.iter().map(|name| splicing.kernel(name)).collect::<Result<Vec<_>, _>>()?;
    let ptx = splicing.text();
    Ok(Transformed { ptx, kernels })
}

/// Where a name is that the loop has, too.
fn reserved(module: &Module<'_>) -> Option<usize> {
    let words = crate::lex::Tokens::of(module.text).filter(|token| token.kind == Kind::Word);
    words
        .into_iter()
        .find(|word| RESERVED.iter().any(|name| word.text.starts_with(name)))
        .map(|word| word.start)
}

struct Splicing<'m> {
    module: &'m Module<'m>,
    template: &'static Template,
    /// Where threads poll, and where they vote.
    yielding: Option<(&'static Template, &'static Template)>,
    /// Where a name is that the loop has, too.
    reserved: Option<usize>,
    /// What is put behind the file's functions.
    added: Vec<String>,
    /// The functions that have a copy.
    copies: BTreeSet<&'m str>,
    /// Declarations of shared memory that the added entries have.
    shared: BTreeSet<String>,
}

impl<'m> Splicing<'m> {
    fn kernel(&mut self, name: &str) -> Result<TransformedKernel, TransformError> {
        let judged = self.module.judge(name).ok_or_else(|| TransformError::NoEntry {
            name: name.to_owned(),
            entries: self.module.entries().map(str::to_owned).collect(),
        })?;
        let mut kernel = TransformedKernel {
            name: name.to_owned(),
            verdict: judged.verdict.clone(),
            preemptible: None,
            droppable: None,
            yielding: None,
        };
        let Verdict::Accepted(accepted) = &judged.verdict else { return Ok(kernel) };
        match self.splice(&judged, accepted) {
            Ok(entry) => kernel.preemptible = Some(entry),
            Err(refusal) => {
                kernel.verdict = Verdict::Refused(vec![refusal]);
                return Ok(kernel);
            }
        }
        if let Some(entry) = kernel.preemptible.as_ref().filter(|_| self.yielding.is_some()) {
            let drops = Drops::of(self.module, &judged, accepted);
            match self.splice_yielding(&judged, accepted, &drops, entry) {
                Ok(entry) => {
                    kernel.yielding = entry;
                    kernel.droppable = Some(drops.verdict);
                }
                Err(refusal) => kernel.droppable = Some(Droppable::Never(vec![refusal])),
            }
        }
        Ok(kernel)
    }

    /// Adds the entry with yield points, if there are any.
    fn splice_yielding(
        &mut self,
        judged: &Judged<'m>,
        accepted: &Accepted,
        drops: &Drops,
        preemptible: &PreemptibleEntry,
    ) -> Result<Option<YieldingEntry>, Refusal> {
        if drops.points.is_empty() {
            return Ok(None);
        }
        let entry = judged.entry;
        let name = format!("{}{YIELDING}", entry.name);
        if self.module.functions().any(|function| function.name == name) {
            let what = "the file has an entry of the name that the one with yield points gets";
            let place = self.module.place(entry.at);
            return Err(Refusal::new(entry.name, place, what.to_owned(), CURE_NAMES));
        }
        let text = self.entry(entry, &name, judged, accepted, &BTreeSet::new(), Some(drops))?;
        self.added.push(text);
        let entry =
            PreemptibleEntry { name, added_shared: YIELDING_BYTES as u32, ..preemptible.clone() };
        Ok(Some(YieldingEntry { entry, points: drops.points.len(), uses: drops.uses.clone() }))
    }

    fn splice(
        &mut self,
        judged: &Judged<'m>,
        accepted: &Accepted,
    ) -> Result<PreemptibleEntry, Refusal> {
        let Judged { entry, called, .. } = judged;
        let name = format!("{}{PREEMPTIBLE}", entry.name);
        let refuse = |at: usize, what: &str| {
            Refusal::new(entry.name, self.module.place(at), what.to_owned(), CURE_NAMES)
        };
        if let Some(at) = self.reserved {
            return Err(refuse(at, "a name that starts as those of the worker loop do"));
        }
        if self.module.functions().any(|function| function.name == name) {
            return Err(refuse(entry.at, "the file has a preemptible entry of the kernel"));
        }
        if accepted.rules.contains(&Rule::MbarrierInit) {
            called.iter().try_for_each(|function| body::check_called(self.module, function))?;
        }
        let copied = helpers::copied(called);
        let mut copies = Vec::new();
        for function in called.iter().filter(|function| copied.contains(function.name)) {
            if !self.copies.contains(function.name) {
                copies.push((function.name, helpers::copy(self.module, function, &copied)?));
            }
        }
        let text = self.entry(entry, &name, judged, accepted, &copied, None)?;
        for (name, copy) in copies {
            self.copies.insert(name);
            self.added.push(copy);
        }
        self.added.push(text);
        // All that is dynamic starts at one address, which is aligned for each of the file's declarations.
        let (alignment, name_of_shared) = if judged.is_dynamic { (1, DYNAMIC) } else { (16, SLOT) };
        self.shared.insert(format!(".extern .shared .align {alignment} .b8 {name_of_shared}[];\n"));
        let (parameters, cohort) = place_parameters(entry);
        let added_shared = SLOT_BYTES as u32;
        Ok(PreemptibleEntry {
            name,
            parameters,
            cohort,
            added_shared,
            cooperates: judged.cooperates,
            whole_rows: accepted.whole_rows,
        })
    }

    fn entry(
        &self,
        entry: &FunctionItem<'m>,
        name: &str,
        judged: &Judged<'m>,
        accepted: &Accepted,
        copied: &BTreeSet<&str>,
        drops: Option<&Drops>,
    ) -> Result<String, Refusal> {
        let cohort = format!(".param .align 8 .b8 {COHORT}[{COHORT_BYTES}]");
        let head = helpers::head(self.module, entry, name, &cohort);
        let slot = if judged.is_dynamic { SLOT_REGISTER } else { SLOT };
        let (barrier, vote) = (accepted.barrier, judged.vote.unwrap_or_default());
        let filling = Filling { cohort: COHORT, barrier, vote, slot, body: "" };
        let (template, yielding) = match (drops, self.yielding) {
            (Some(drops), Some((polling, voting))) => {
                let template = if drops.votes { voting } else { polling };
                let points = &drops.points;
                let votes = drops.votes;
                (template, Some(Yielding { template, filling: filling.clone(), points, votes }))
            }
            _ => (self.template, None),
        };
        let slot_bytes = match yielding {
            Some(_) => template::YIELDING_SLOT_BYTES,
            None => template::SLOT_BYTES,
        };
        let body = body::scope(self.module, entry, judged, accepted, copied, yielding.as_ref())?;
        let filling = Filling { body: &body, ..filling };
        let mut start = String::new();
        if judged.is_dynamic {
            // At the end, and aligned there: the launch gives 16 bytes more for that.
            start += &format!(
                "\n\t.reg .b32 %preempt_end, %preempt_size;
\t.reg .b64 {SLOT_REGISTER};
\tmov.u32 %preempt_end, {DYNAMIC};
\tmov.u32 %preempt_size, %dynamic_smem_size;
\tadd.u32 %preempt_end, %preempt_end, %preempt_size;
\tsub.u32 %preempt_end, %preempt_end, {};
\tand.b32 %preempt_end, %preempt_end, -16;
\tcvt.u64.u32 {SLOT_REGISTER}, %preempt_end;",
                slot_bytes
            );
        }
        if accepted.rules.contains(&Rule::MbarrierInit) {
            start += "\n\t.reg .b32 %preempt_again;\n\tmov.b32 %preempt_again, 0;";
        }
        let text = template.filled(&filling);
        // Lines of comments alone are empty now.
        let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        Ok(format!("{head}{{{start}\n{}\n}}\n", lines.join("\n")))
    }

    /// The file with all that was added.
    fn text(&self) -> String {
        let mut edits = Vec::new();
        if !self.added.is_empty() {
            let version = self.module.version().max(template::VERSION);
            let old = self.module.version();
            if version != old
                && let Some(word) = self.module.directive(".version")
            {
                edits.push(self.replace(word, format!("{}.{}", version.0, version.1)));
            }
            if self.module.architecture().is_some_and(|number| number < template::ARCHITECTURE) {
                edits.push(
                    self.replace(self.module.target(), format!("sm_{}", template::ARCHITECTURE)),
                );
            }
            // Behind all functions, so that what they call is known; debug information comes later.
            let functions =
                self.module.items.iter().filter(|item| matches!(item.kind, ItemKind::Function(_)));
            let end =
                functions.map(|item| item.span.end).next_back().unwrap_or(self.module.text.len());
            let shared: String = self.shared.iter().map(String::as_str).collect();
            edits.push(Edit {
                place: end..end,
                text: format!("\n\n{shared}\n") + &self.added.join("\n"),
            });
        }
        edited(self.module.text, edits)
    }

    fn replace(&self, word: &str, text: String) -> Edit {
        let start = self.module.offset(word);
        Edit { place: start..start + word.len(), text }
    }
}

/// Where the parameters of an entry are, and the cohort behind them.
pub(crate) fn place_parameters(entry: &FunctionItem<'_>) -> (Vec<Parameter>, Parameter) {
    let mut end = 0u64;
    let mut place = |bytes: u64, alignment: u64| {
        let offset = end.next_multiple_of(alignment);
        end = offset + bytes;
        Parameter { offset, bytes }
    };
    let own = |parameter: &Declaration<'_>| {
        place(parameter.bytes().unwrap_or_default(), parameter.alignment())
    };
    let parameters = entry.parameters.iter().map(own).collect();
    (parameters, place(COHORT_BYTES, 8))
}
