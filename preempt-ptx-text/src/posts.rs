//! Posts of plain grids: a word in the host's memory that says that a grid is over.
//!
//! A plain entry is an ordinary kernel, so a write of the stream behind it would have to say that. It holds the next grid of
//! the stream up for two to three microseconds, and takes the host as long. So each plain entry gets one more parameter,
//! ahead of the others, and code at its start and at its end:
//!
//! - A grid writes the word of the grid before it in its stream. That one is over, because the stream has started this one.
//! - A grid of few blocks writes its own word: the last block does, which the blocks find by counting.

use std::mem::offset_of;
use std::ops::Range;

use super::text::{Edit, Function, blanked, edited, functions, has_scopes, is_of_name, kernels};

/// The first parameter of a plain entry [with posts](with_posts). What has the address 0 is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct PlainPosts {
    /// The address, in the host's memory, of the word of the grid before this one in its stream.
    pub before: u64,
    /// That word.
    pub before_word: u64,
    /// The address, in the device's memory, of a counter of four bytes that is 0 before the grid, and after it. No other
    /// grid counts with it at the same time.
    pub counter: u64,
    /// With a counter: the grid's blocks less one.
    pub others: u64,
    /// With a counter: the address of this grid's word.
    pub own: u64,
    /// With a counter: this grid's word.
    pub own_word: u64,
}

/// `ptx` whose plain entries have [`PlainPosts`] as their first parameter; `None` if there are no such entries, or if it is
/// for GPUs before `sm_70`.
pub fn with_posts(ptx: &str) -> Option<String> {
    let text = blanked(ptx);
    if !has_scopes(&text) || text.contains("preempt_post") {
        return None;
    }
    let functions = functions(&text);
    let plain = kernels(&functions).into_iter().filter_map(|kernel| functions.get(kernel.plain));
    let edits: Vec<_> = plain.filter_map(posting).flatten().collect();
    (!edits.is_empty()).then(|| edited(ptx, edits))
}

/// Whether an entry has [`PlainPosts`] as its first parameter.
pub fn has_posts(entry: &Function<'_>) -> bool {
    entry.head.contains("preempt_posts")
}

/// The edits that give an entry its parameter and its code; `None` if it has no list of parameters.
fn posting(entry: &Function<'_>) -> Option<Vec<Edit>> {
    let Function { head, body, start, .. } = *entry;
    let (before, parameters) = head.split_once('(')?;
    let list = start - head.len() + before.len() + 1;
    let separator = if parameters.trim_start().starts_with(')') { "" } else { "," };
    let bytes = size_of::<PlainPosts>();
    let parameter = format!("\n\t.param .align 8 .b8 preempt_posts[{bytes}]{separator}");
    let (first, last) = (start + 1, start + body.len() - 1);
    let mut edits: Vec<_> = returns(entry)
        .map(|place| Edit { place, text: "bra $preempt_post_last".to_owned() })
        .collect();
    edits.push(Edit { place: list..list, text: parameter });
    edits.push(Edit { place: first..first, text: at_start() });
    edits.push(Edit { place: last..last, text: at_end() });
    Some(edits)
}

/// Where in the file the entry's returns are: the instruction, whose guard stays.
fn returns(entry: &Function<'_>) -> impl Iterator<Item = Range<usize>> {
    let Function { body, start, .. } = *entry;
    body.match_indices("ret").filter_map(move |(at, word)| {
        let end = body[at..].find(';')? + at;
        let is_word = !body[..at].ends_with(|c| is_of_name(c) || c == '.')
            && matches!(body[at + word.len()..end].trim(), "" | ".uni");
        is_word.then(|| start + at..start + end)
    })
}

fn field(offset: usize, register: &str) -> String {
    format!("\tld.param.b64 {register}, [preempt_posts+{offset}];\n")
}

/// Branches unless this is the first thread of its block; of the grid, with the axes of both.
fn unless_first(registers: &[&str], label: &str) -> String {
    let (first, others) = registers.split_first().expect("some");
    let others: String = others
        .iter()
        .map(|other| {
            format!(
                "\tmov.u32 %preempt_post_b, {other};\n\tor.b32 %preempt_post_a, %preempt_post_a, %preempt_post_b;\n"
            )
        })
        .collect();
    format!(
        "\tmov.u32 %preempt_post_a, {first};\n{others}\tsetp.ne.u32 %preempt_post_is, %preempt_post_a, 0;\n\
        \t@%preempt_post_is bra {label};\n"
    )
}

const REGISTERS: &str = "\
\t.reg .pred %preempt_post_is;
\t.reg .b32 %preempt_post_a, %preempt_post_b;
\t.reg .b64 %preempt_post_at, %preempt_post_word;
";
const THREAD: [&str; 3] = ["%tid.x", "%tid.y", "%tid.z"];
const BLOCK: [&str; 3] = ["%ctaid.x", "%ctaid.y", "%ctaid.z"];

/// The first thread of the grid writes the word of the grid before.
fn at_start() -> String {
    let (at, word) = (
        field(offset_of!(PlainPosts, before), "%preempt_post_at"),
        field(offset_of!(PlainPosts, before_word), "%preempt_post_word"),
    );
    let unless_first = unless_first(&[THREAD, BLOCK].concat(), "$preempt_post_none");
    // Release, by a thread that the stream has started after all writes of the grid before: so these come before the word
    // for what reads it.
    format!(
        "\n\t{{\n{REGISTERS}{at}\
\tsetp.eq.u64 %preempt_post_is, %preempt_post_at, 0;
\t@%preempt_post_is bra $preempt_post_none;
{unless_first}{word}\
\tst.release.sys.b64 [%preempt_post_at], %preempt_post_word;
$preempt_post_none:
\t}}
"
    )
}

/// The last block of the grid writes the grid's own word.
fn at_end() -> String {
    let (counter, at, word) = (
        field(offset_of!(PlainPosts, counter), "%preempt_post_at"),
        field(offset_of!(PlainPosts, own), "%preempt_post_at"),
        field(offset_of!(PlainPosts, own_word), "%preempt_post_word"),
    );
    let others = field(offset_of!(PlainPosts, others), "%preempt_post_word");
    let unless_first = unless_first(&THREAD, "$preempt_post_left");
    // The barrier puts the writes of all threads of the block before what its first thread does next. Acquire and release:
    // the last block passes on what the others have written, with its own release of the word. `inc` leaves a 0 behind the
    // last block, before the word, and thus before the host launches a grid that counts with it.
    format!(
        "\
$preempt_post_last:
\t{{\n{REGISTERS}{counter}\
\tsetp.eq.u64 %preempt_post_is, %preempt_post_at, 0;
\t@%preempt_post_is bra $preempt_post_left;
\tbarrier.sync 0;
{unless_first}{others}\
\tcvt.u32.u64 %preempt_post_b, %preempt_post_word;
\tatom.acq_rel.gpu.global.inc.u32 %preempt_post_a, [%preempt_post_at], %preempt_post_b;
\tsetp.ne.u32 %preempt_post_is, %preempt_post_a, %preempt_post_b;
\t@%preempt_post_is bra $preempt_post_left;
{at}{word}\
\tst.release.sys.b64 [%preempt_post_at], %preempt_post_word;
$preempt_post_left:
\t}}
\tret;
"
    )
}

#[cfg(test)]
mod tests;
