//! The functions of a PTX file, what they have in shared memory, and what is written into them.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::repeat_n;
use std::ops::Range;

use super::lex::{Kind, Token, Tokens};

/// How the name of a kernel's second entry ends. That is the plain entry, beside a preemptible one of the kernel's name;
/// of a kernel for rust-cuda it is the preemptible entry.
const PLAIN: &str = "__plain";
const PREEMPTIBLE: &str = "__preemptible";

/// The worker loop's own shared memory, and that of yield points, which come with a barrier of the loop.
const LOOP_VARIABLES: [&str; 2] = ["preempt_slot", "preempt_yields"];
/// The worker loop's own barrier.
const LOOP_BARRIER: &str = "1";

/// A function with a body.
#[derive(Debug)]
pub struct Function<'a> {
    /// Whether the driver can launch it.
    pub is_entry: bool,
    /// From the name on, or from what it returns, to where the body starts.
    pub head: &'a str,
    /// With its braces.
    pub body: &'a str,
    /// Where the body starts in the file.
    pub start: usize,
    /// The targets of its calls. Kernels share functions, which are read once.
    calls: OnceCell<Vec<&'a str>>,
}

impl<'a> Function<'a> {
    /// The targets of its calls: a function's name, or the register that holds one.
    fn calls(&self) -> &[&'a str] {
        self.calls.get_or_init(|| calls(self.body).collect())
    }
}

/// The functions of a file, by name.
pub type Functions<'a> = BTreeMap<&'a str, Function<'a>>;

/// `ptx` with blanks for comments and for what is in quotes. What is left stays where it is.
pub fn blanked(ptx: &str) -> String {
    let mut text = String::with_capacity(ptx.len());
    // What is kept is copied in long pieces, since that is nearly all.
    for token in Tokens::of(ptx) {
        let is_dropped = match token.kind {
            Kind::Quoted | Kind::Unended => true,
            Kind::Blank => token.text.starts_with('/'),
            _ => false,
        };
        if is_dropped {
            text.push_str(&ptx[text.len()..token.start]);
            text.extend(repeat_n(' ', token.text.len()));
        }
    }
    text.push_str(&ptx[text.len()..]);
    text
}

/// The tokens of a text that say something.
fn tokens(text: &str) -> impl Iterator<Item = Token<'_>> {
    Tokens::of(text).filter(|token| token.kind != Kind::Blank)
}

/// The functions that `text`, which is [`blanked`], defines. It need not be PTX that [`read`](crate::read) takes: of what is
/// broken there are those functions that have a body.
pub fn functions(text: &str) -> Functions<'_> {
    let mut functions = BTreeMap::new();
    let mut tokens = tokens(text);
    while let Some(token) = tokens.next() {
        let is_entry = match token.text {
            ".entry" => true,
            ".func" => false,
            _ => continue,
        };
        let head_start = token.end();
        // The name is followed by the parameters; a function's may be preceded by what it returns, in parentheses.
        let (mut name, mut is_result) = (None, false);
        let Some(open) = tokens.find(|token| {
            match token.kind {
                Kind::Mark('(') if name.is_none() => is_result = true,
                Kind::Mark(')') => is_result = false,
                Kind::Word if !is_result => name = name.or(Some(token.text)),
                _ => {}
            }
            token.is('{') || token.is(';')
        }) else {
            break;
        };
        if open.is(';') {
            continue;
        }
        let mut depth = 1usize;
        let close = tokens.find(|token| {
            depth += usize::from(token.is('{'));
            depth -= usize::from(token.is('}'));
            depth == 0
        });
        let start = open.start;
        let end = close.map_or(text.len(), |close| close.end());
        let (head, body) = (&text[head_start..start], &text[start..end]);
        let function = Function { is_entry, head, body, start, calls: OnceCell::new() };
        functions.insert(name.unwrap_or_default(), function);
    }
    functions
}

/// A kernel with both entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kernel<'a> {
    /// What it is launched as.
    pub name: &'a str,
    /// The entry with the worker loop.
    pub preemptible: &'a str,
    /// The entry that is an ordinary grid.
    pub plain: &'a str,
}

/// The preemptible kernels, in the order of their entries' names.
pub fn kernels<'a>(functions: &Functions<'a>) -> Vec<Kernel<'a>> {
    let entry = |name: &str| {
        let (&name, function) = functions.get_key_value(name)?;
        function.is_entry.then_some(name)
    };
    let kernel = |second: &'a str| {
        let second = entry(second)?;
        if let Some(name) = second.strip_suffix(PLAIN).and_then(entry) {
            return Some(Kernel { name, preemptible: name, plain: second });
        }
        let name = second.strip_suffix(PREEMPTIBLE).and_then(entry)?;
        Some(Kernel { name, preemptible: second, plain: name })
    };
    functions.keys().filter_map(|&name| kernel(name)).collect()
}

pub(crate) fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%')
}

/// What an entry runs.
#[derive(Debug, Default)]
pub(crate) struct Reach<'a> {
    /// The entry and the functions that it calls, directly or not. What is only declared, the
    /// driver's own functions such as `vprintf`, is left out.
    pub functions: Vec<&'a str>,
    /// A function among them that calls through a pointer, so the callee is unknown.
    pub indirect: Option<&'a str>,
}

impl<'a> Reach<'a> {
    pub fn of(entry: &str, functions: &Functions<'a>) -> Reach<'a> {
        let mut reach = Reach::default();
        let mut seen = BTreeSet::new();
        let entry = functions.get_key_value(entry).map(|(&name, _)| name);
        let mut waiting: Vec<_> = entry.into_iter().collect();
        while let Some(name) = waiting.pop() {
            let Some(function) = functions.get(name).filter(|_| seen.insert(name)) else {
                continue;
            };
            reach.functions.push(name);
            for &callee in function.calls() {
                match callee.starts_with('%') {
                    true => reach.indirect = reach.indirect.or(Some(name)),
                    false => waiting.push(callee),
                }
            }
        }
        reach
    }
}

/// The instructions in `body` with one of these `operations`, from its suffixes on.
fn instructions<'a>(
    body: &'a str,
    operations: &'static [&'static str],
) -> impl Iterator<Item = &'a str> {
    let mut before = None;
    tokens(body).filter_map(move |token| {
        let before = before.replace(token);
        let operation = token.text.split('.').next().filter(|name| operations.contains(name))?;
        // As an operand or in a declaration it is a variable's name.
        let is_name = before.is_some_and(|before| {
            matches!(before.kind, Kind::Mark(',' | '[' | '(' | '|' | '+' | '-'))
                || before.kind == Kind::Word && before.text.starts_with('.')
        });
        let after = &body[token.start + operation.len()..];
        after.find(';').filter(|_| !is_name).map(|end| &after[..end])
    })
}

fn calls(body: &str) -> impl Iterator<Item = &str> {
    instructions(body, &["call"]).filter_map(|call| {
        let mut operands = call.strip_prefix(".uni").unwrap_or(call).trim_start();
        if operands.starts_with('(') {
            let (_, rest) = operands.split_once(')')?;
            operands = rest.trim_start().strip_prefix(',')?.trim_start();
        }
        operands.split(|c: char| !is_of_name(c)).next().filter(|name| !name.is_empty())
    })
}

/// Those of `entries` of `text`, which is [`blanked`], whose own code may use shared memory or wait for other threads of its
/// block. What the worker loop does does not count.
pub fn cooperates<'a>(
    text: &str,
    functions: &Functions<'_>,
    entries: impl IntoIterator<Item = &'a str>,
) -> BTreeSet<&'a str> {
    let shared = shared_variables(text);
    // Kernels share functions.
    let mut known = BTreeMap::new();
    let mut does = |name| {
        *known.entry(name).or_insert_with(|| {
            let body = functions[name].body;
            let is_shared =
                |token: Token<'_>| token.kind == Kind::Word && shared.contains(token.text);
            has_own_barrier(body) || !shared.is_empty() && tokens(body).any(is_shared)
        })
    };
    let mut entries: BTreeSet<_> = entries.into_iter().collect();
    entries.retain(|entry| {
        let reach = Reach::of(entry, functions);
        reach.indirect.is_some() || reach.functions.into_iter().any(&mut does)
    });
    entries
}

/// The variables in shared memory that the kernels' own code declares in `text`, which is [`blanked`], in functions or
/// outside.
fn shared_variables(text: &str) -> BTreeSet<&str> {
    let mut variables = BTreeSet::new();
    // As a word of its own; in an instruction it is part of the operation.
    let mut is_shared = false;
    for token in tokens(text) {
        match token.kind {
            Kind::Word if token.text == ".shared" => is_shared = true,
            Kind::Word if is_shared && !token.text.starts_with('.') => {
                variables.insert(token.text);
            }
            Kind::Mark(';' | '{' | '}') => is_shared = false,
            _ => {}
        }
    }
    variables.retain(|name| !LOOP_VARIABLES.contains(name));
    variables
}

/// Whether there is a barrier of the block, or of more, that is not the worker loop's.
fn has_own_barrier(body: &str) -> bool {
    let is_own = |instruction: &str| {
        let (operation, operands) =
            instruction.split_once(char::is_whitespace).unwrap_or((instruction, ""));
        let is = |suffix| operation.split('.').any(|part| part == suffix);
        // A reduction's result comes before its barrier.
        let barrier = operands.split(',').nth(usize::from(is("red"))).unwrap_or_default();
        !is("warp") && (is("cluster") || barrier.trim() != LOOP_BARRIER)
    };
    instructions(body, &["bar", "barrier"]).any(is_own)
}

/// Bytes of an entry's first parameter, if that is an array.
pub fn first_parameter_bytes(entry: &Function<'_>) -> Option<usize> {
    let (_, parameters) = entry.head.split_once('(')?;
    let first = parameters.split([',', ')']).next()?;
    first.split_once('[')?.1.split(']').next()?.trim().parse().ok()
}

/// Stands in the preemptible entry of a kernel whose attribute fixes the block, before the number of its
/// threads (`preempt-device`).
const BLOCK_MARK: &str = "// preempt.block ";

/// The threads of every block of an entry of `ptx`, if the entry says how many they are.
pub fn block_threads(ptx: &str, entry: &Function<'_>) -> Option<u32> {
    // The entry's own text is blanked, and the mark is a comment.
    let body = ptx.get(entry.start..entry.start + entry.body.len())?;
    let number = body.lines().find_map(|line| line.trim().strip_prefix(BLOCK_MARK))?;
    number.trim().parse().ok().filter(|&threads| threads > 0)
}

/// `ptx` with a register bound on each entry in `bounds` that has none of its own.
pub fn bound_registers(
    ptx: &str,
    functions: &Functions<'_>,
    bounds: &BTreeMap<&str, u32>,
) -> String {
    let entries = bounds
        .iter()
        .filter_map(|(name, bound)| functions.get(name).map(|entry| (entry, bound)))
        .filter(|(entry, _)| entry.is_entry && !entry.head.contains(".maxnreg"));
    // Not `.maxntid` with `.minnctapersm`, which say the same for one block size, and make it a hard
    // limit: the block is chosen at launch.
    let edits = entries.map(|(entry, bound)| Edit {
        place: entry.start..entry.start,
        text: format!(".maxnreg {bound}\n"),
    });
    edited(ptx, edits.collect())
}

/// Stands where a grid waits for the one before it, in code for GPUs that cannot start it early.
const WAIT_MARK: &str = "// preempt.griddepcontrol.wait";
/// Stands where a grid lets the one after it start.
const RELEASE_MARK: &str = "// preempt.griddepcontrol.launch_dependents";
/// The instruction, and what it needs.
const WAIT: &str = "griddepcontrol.wait;";
const RELEASE: &str = "griddepcontrol.launch_dependents;";
const WAIT_VERSION: (u32, u32) = (7, 8);
const WAIT_TARGET: u32 = 90;

/// The least compute capability of a GPU that starts grids early, times ten.
pub const EARLY_CAPABILITY: u32 = WAIT_TARGET;

/// `ptx` with the instruction that waits for the grid before, wherever it is marked; `None` if it is
/// nowhere.
pub fn with_waits(ptx: &str) -> Option<String> {
    let text = blanked(ptx);
    let is_alone = |at: usize, mark: &str| {
        let (before, after) = (&ptx[..at], &ptx[at + mark.len()..]);
        let line = &before[before.rfind('\n').map_or(0, |end| end + 1)..];
        line.trim().is_empty() && after.lines().next().unwrap_or_default().trim().is_empty()
    };
    let mut edits = Vec::new();
    for (mark, text) in [(WAIT_MARK, WAIT), (RELEASE_MARK, RELEASE)] {
        let places = ptx.match_indices(mark).filter(|&(at, mark)| is_alone(at, mark));
        edits.extend(
            places.map(|(at, mark)| Edit { place: at..at + mark.len(), text: text.to_owned() }),
        );
    }
    if edits.is_empty() {
        return None;
    }
    let (place, version) = word_after(&text, ".version")?;
    let (major, minor) = version.split_once('.')?;
    if (major.parse().ok()?, minor.parse().ok()?) < WAIT_VERSION {
        edits.push(Edit { place, text: format!("{}.{}", WAIT_VERSION.0, WAIT_VERSION.1) });
    }
    let (place, target) = word_after(&text, ".target")?;
    // An architecture with its own features (`sm_90a`) runs nowhere else.
    if let Ok(number) = target.strip_prefix("sm_")?.parse::<u32>()
        && number < WAIT_TARGET
    {
        edits.push(Edit { place, text: format!("sm_{WAIT_TARGET}") });
    }
    Some(edited(ptx, edits))
}

/// Whether the entry waits for the grid before it.
pub fn waits(entry: &Function<'_>) -> bool {
    entry.body.contains(WAIT)
}

/// The word behind a directive, and where it is.
pub(crate) fn word_after<'a>(text: &'a str, directive: &str) -> Option<(Range<usize>, &'a str)> {
    let end = text.find(directive)? + directive.len();
    let rest = text[end..].trim_start();
    let start = text.len() - rest.len();
    let word = rest.split(|c: char| c == ',' || c.is_whitespace()).next()?;
    Some((start..start + word.len(), word))
}

/// What to write over a part of a file.
#[derive(Clone, Debug)]
pub(crate) struct Edit {
    pub place: Range<usize>,
    pub text: String,
}

pub(crate) fn edited(ptx: &str, mut edits: Vec<Edit>) -> String {
    edits.sort_by_key(|edit| edit.place.start);
    let added: usize = edits.iter().map(|edit| edit.text.len()).sum();
    let mut text = String::with_capacity(ptx.len() + added);
    let mut copied = 0;
    for edit in edits {
        text.push_str(&ptx[copied..edit.place.start]);
        text.push_str(&edit.text);
        copied = edit.place.end;
    }
    text + &ptx[copied..]
}

#[cfg(test)]
mod tests;
