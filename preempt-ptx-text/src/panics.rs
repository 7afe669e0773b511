//! Records of panics: what a thread writes ahead of its trap, and what the host reads of it.
//!
//! A panic in a kernel is a bare `trap`, after which the driver reports that the context failed, and nothing else. So each
//! function gets one more block of code, and its traps become branches to it. There the first thread of the module that
//! panics writes a record to the host's memory. The others wait for that, because any trap ends the context. The code
//! reads only what is at hand there: special registers, parameters, and the register of the task's index.

use std::ffi::CStr;
use std::fmt::Display;
use std::ops::Range;

use super::check::readable;
use super::lex::{Kind, Tokens};
use super::text::{
    Edit, Function, Functions, Reach, blanked, edited, functions, kernels, word_after,
};

/// The variable of a module with records: the address of its record, or 0, and the word by which threads claim it. The
/// host writes the address before kernels run.
pub const PANIC_VARIABLE: &CStr = c"preempt_panic";

/// Words of four bytes in a record.
pub const PANIC_WORDS: usize = 12;

/// Stands in a preemptible entry where a block-task starts, before the register with its index (`preempt-device`).
const TASK_MARK: &str = "// preempt.task ";

/// Scopes of operations on memory are of this version and architecture.
const VERSION: (u32, u32) = (6, 0);
const TARGET: u32 = 70;

// The words of a record.
const WRITTEN: usize = 0;
const FUNCTION: usize = 1;
const PLACE: usize = 2;
const THREAD: usize = 3;
/// The block, or the task and the x and y of its grid.
const BLOCK: usize = 6;
const TICKET: usize = 9;
const POST: usize = 10;

// The values of `PLACE`.
const BLOCK_UNKNOWN: u32 = 0;
const OF_GRID: u32 = 1;
const OF_COHORT: u32 = 2;

/// The index of a task where there is none: outside of the worker loop.
const NO_TASK: u32 = u32::MAX;

/// Where a preemptible entry's first parameter has what a record says: bytes from its start.
#[derive(Clone, Copy, Debug)]
pub struct CohortLayout {
    /// Block-tasks in x, y and z, of four bytes each.
    pub grid: usize,
    /// The address of its post.
    pub post: usize,
    /// The number of this use of the post, of four bytes.
    pub ticket: usize,
}

/// What a record says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Panic {
    /// Index into [`panic_sources`].
    pub function: usize,
    /// The thread's position in its block.
    pub thread: [u32; 3],
    /// The position of the block-task in its grid, if the function knows it.
    pub block: Option<[u32; 3]>,
    /// Address of the post, and ticket, of a preemptible entry's cohort.
    pub cohort: Option<(u64, u32)>,
}

impl Panic {
    /// Reads a record; `None` if none was written.
    pub fn read(words: &[u32; PANIC_WORDS]) -> Option<Panic> {
        let three = |at: usize| [words[at], words[at + 1], words[at + 2]];
        let block = three(BLOCK);
        let (block, cohort) = match words[PLACE] {
            OF_GRID => (Some(block), None),
            OF_COHORT => {
                let [task, x, y] = block;
                let (x, y) = (x.max(1), y.max(1));
                let block = [task % x, task / x % y, task / x / y];
                let post = u64::from(words[POST]) | u64::from(words[POST + 1]) << 32;
                (Some(block).filter(|_| task != NO_TASK), Some((post, words[TICKET])))
            }
            _ => (None, None),
        };
        let function = words[FUNCTION] as usize;
        (words[WRITTEN] != 0).then_some(Panic { function, thread: three(THREAD), block, cohort })
    }
}

/// The code that a panic was in, in the user's words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PanicSource {
    /// The name of the kernel; of a function, if one kernel alone calls it.
    pub kernel: Option<String>,
    /// The symbol of the kernel's preemptible entry, if it has one.
    pub preemptible: Option<String>,
    /// The path of a function that is no entry.
    pub function: Option<String>,
}

/// The code of each function, in the order of their numbers in records.
pub fn panic_sources(functions: &Functions<'_>) -> Vec<PanicSource> {
    let kernels = kernels(functions);
    let reached: Vec<_> =
        kernels.iter().map(|kernel| Reach::of(kernel.preemptible, functions).functions).collect();
    let source = |(&name, function): (&&str, &Function<'_>)| {
        let own = kernels.iter().find(|kernel| [kernel.preemptible, kernel.plain].contains(&name));
        let mut callers = kernels.iter().zip(&reached).filter(|(_, all)| all.contains(&name));
        let only = match (own, callers.next(), callers.next()) {
            (None, Some((kernel, _)), None) => Some(kernel),
            (own, ..) => own,
        };
        let symbol = function.is_entry.then_some(name);
        PanicSource {
            kernel: only.map(|kernel| kernel.name).or(symbol).map(str::to_owned),
            preemptible: only.map(|kernel| kernel.preemptible.to_owned()),
            function: (!function.is_entry).then(|| readable(name)),
        }
    };
    functions.iter().map(source).collect()
}

/// `ptx` whose panics leave a record; `None` if nothing in it panics, or if it is for GPUs before `sm_70`. Functions keep
/// their names and their order.
pub fn with_panic_records(ptx: &str, cohort: CohortLayout) -> Option<String> {
    let text = blanked(ptx);
    let (_, version) = word_after(&text, ".version")?;
    let (major, minor) = version.split_once('.')?;
    let (_, target) = word_after(&text, ".target")?;
    let digits = target.strip_prefix("sm_")?.trim_end_matches(|c: char| c.is_ascii_lowercase());
    let is_known = (major.parse().ok()?, minor.parse().ok()?) >= VERSION
        && digits.parse::<u32>().ok()? >= TARGET
        && !text.contains("preempt_panic");
    let (address_size, bits) = word_after(&text, ".address_size")?;
    if !is_known || bits != "64" {
        return None;
    }
    let functions = functions(&text);
    let kernels = kernels(&functions);
    let mut edits = Vec::new();
    for (number, (&name, function)) in functions.iter().enumerate() {
        let is_preemptible = kernels.iter().any(|kernel| kernel.preemptible == name);
        edits.extend(recording(ptx, number, function, is_preemptible.then_some(cohort)));
    }
    if edits.is_empty() {
        return None;
    }
    edits.push(Edit {
        place: address_size.end..address_size.end,
        text: "\n.visible .global .align 8 .b64 preempt_panic[2];".to_owned(),
    });
    Some(edited(ptx, edits))
}

/// The edits that give a function its block; none if it has no trap.
fn recording(
    ptx: &str,
    number: usize,
    function: &Function<'_>,
    cohort: Option<CohortLayout>,
) -> Vec<Edit> {
    let mut edits: Vec<_> = traps(function)
        .map(|place| Edit { place, text: "bra $preempt_panic".to_owned() })
        .collect();
    if edits.is_empty() {
        return edits;
    }
    let end = function.start + function.body.len();
    let mut place = if function.is_entry { Place::Grid } else { Place::Unknown };
    if let Some(layout) = cohort {
        let marks = task_marks(ptx, function);
        place = match first_parameter(function) {
            Some(parameter) if !marks.is_empty() => Place::Cohort { parameter, layout },
            _ => Place::Unknown,
        };
        if matches!(place, Place::Cohort { .. }) {
            edits.extend(marks);
            let start = function.start + 1;
            let text = format!(
                "\n\t.reg .b32 %preempt_panic_task;\n\tmov.b32 %preempt_panic_task, {NO_TASK};"
            );
            edits.push(Edit { place: start..start, text });
        }
    }
    edits.push(Edit { place: end - 1..end - 1, text: block(number, place) });
    edits
}

/// Where in the file the function's traps are: the word, whose guard stays.
fn traps(function: &Function<'_>) -> impl Iterator<Item = Range<usize>> {
    let mut tokens = Tokens::of(function.body).filter(|token| token.kind != Kind::Blank).peekable();
    std::iter::from_fn(move || {
        loop {
            let token = tokens.next()?;
            if token.text == "trap" && tokens.peek().is_some_and(|next| next.is(';')) {
                let start = function.start + token.start;
                return Some(start..start + token.text.len());
            }
        }
    })
}

/// Sets the task's register at each mark.
fn task_marks(ptx: &str, function: &Function<'_>) -> Vec<Edit> {
    let body = ptx.get(function.start..function.start + function.body.len()).unwrap_or_default();
    let mark = |(at, mark): (usize, &str)| {
        let line = body[at + mark.len()..].lines().next().unwrap_or_default();
        let register = line.trim();
        let place = function.start + at..function.start + at + mark.len() + line.len();
        register
            .starts_with('%')
            .then(|| Edit { place, text: format!("mov.b32 %preempt_panic_task, {register};") })
    };
    body.match_indices(TASK_MARK).filter_map(mark).collect()
}

/// The name of an entry's first parameter.
fn first_parameter<'a>(entry: &Function<'a>) -> Option<&'a str> {
    let (_, parameters) = entry.head.split_once('(')?;
    let first = parameters.split([',', ')']).next()?;
    let name = first.split('[').next()?.split_whitespace().next_back()?;
    name.starts_with(|c: char| c.is_ascii_alphabetic() || "_$%".contains(c)).then_some(name)
}

/// What a function knows of the block-task that it runs.
#[derive(Clone, Copy)]
enum Place<'a> {
    Unknown,
    Grid,
    Cohort { parameter: &'a str, layout: CohortLayout },
}

/// The code of a record, ahead of the trap. Registers of its own are few, and no value of the kernel is kept for it but
/// the task's index, which the worker loop has anyway.
fn block(number: usize, place: Place<'_>) -> String {
    let (kind, words) = match place {
        Place::Unknown => (BLOCK_UNKNOWN, String::new()),
        Place::Grid => (OF_GRID, APART.to_owned() + &special("%ctaid", BLOCK)),
        Place::Cohort { parameter, layout: CohortLayout { grid, post, ticket } } => {
            let words = [
                (grid, BLOCK + 1),
                (grid + 4, BLOCK + 2),
                (ticket, TICKET),
                (post, POST),
                (post + 4, POST + 1),
            ];
            let load = |(from, to)| {
                format!("\tld.param.b32 %preempt_panic_word, [{parameter}+{from}];\n{}", store(to))
            };
            let task = "\tmov.b32 %preempt_panic_word, %preempt_panic_task;\n";
            let [x, y, rest @ ..] = words.map(load);
            let code = [APART, task, &store(BLOCK), &x, &y, APART].concat();
            (OF_COHORT, code + &rest.concat())
        }
    };
    let (function, kind) = (constant(number, FUNCTION), constant(kind, PLACE));
    let (thread, written) = (special("%tid", THREAD), constant(1, WRITTEN));
    // The claim is of the device's memory, so that threads that wait do not read the host's. All of the record comes
    // before its first word, and that before any trap. The first thread traps if there is no record, too.
    format!(
        "\
\tret;
$preempt_panic:
\t.reg .pred %preempt_panic_is;
\t.reg .b32 %preempt_panic_word;
\t.reg .b64 %preempt_panic_own, %preempt_panic_record;
\tmov.b64 %preempt_panic_own, preempt_panic;
\tatom.relaxed.gpu.global.cas.b32 %preempt_panic_word, [%preempt_panic_own+8], 0, 1;
\tsetp.eq.u32 %preempt_panic_is, %preempt_panic_word, 0;
\t@%preempt_panic_is bra $preempt_panic_first;
$preempt_panic_wait:
\tld.volatile.global.u32 %preempt_panic_word, [%preempt_panic_own+8];
\tsetp.eq.u32 %preempt_panic_is, %preempt_panic_word, 1;
\t@%preempt_panic_is bra $preempt_panic_wait;
\tbra $preempt_panic_trap;
$preempt_panic_first:
\tld.volatile.global.b64 %preempt_panic_record, [%preempt_panic_own];
\tsetp.eq.u64 %preempt_panic_is, %preempt_panic_record, 0;
\t@%preempt_panic_is bra $preempt_panic_written;
{function}{kind}{APART}{thread}{words}\
\tfence.acq_rel.sys;
{written}\
\tfence.acq_rel.sys;
$preempt_panic_written:
\tst.volatile.global.u32 [%preempt_panic_own+8], 2;
$preempt_panic_trap:
\ttrap;
\texit;
"
    )
}

/// Reads the claim once more, which nothing changes meanwhile, and branches on it. The assembler would otherwise load the
/// words on both sides at the same time, and small kernels would take more registers for that.
const APART: &str = "\
\tld.volatile.global.u32 %preempt_panic_word, [%preempt_panic_own+8];
\tsetp.ne.u32 %preempt_panic_is, %preempt_panic_word, 1;
\t@%preempt_panic_is bra $preempt_panic_trap;
";

/// Writes the register `word` to a word of the record.
fn store(word: usize) -> String {
    format!("\tst.volatile.global.b32 [%preempt_panic_record+{}], %preempt_panic_word;\n", 4 * word)
}

fn constant(value: impl Display, word: usize) -> String {
    format!("\tmov.b32 %preempt_panic_word, {value};\n{}", store(word))
}

/// Writes x, y and z of a special register.
fn special(register: &str, word: usize) -> String {
    let one = |(at, axis)| {
        format!("\tmov.b32 %preempt_panic_word, {register}.{axis};\n{}", store(word + at))
    };
    ["x", "y", "z"].into_iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests;
