//! What has to hold for the text of a PTX file, whatever compiled it.
//!
//! A kernel `k` is preemptible if the file has an entry `k` and an entry `k__plain`. Only the
//! plain one may look at the block index of the hardware.

use std::collections::{BTreeMap, BTreeSet};

use super::error::Error;

/// Ends the name of a kernel's plain entry.
const PLAIN: &str = "__plain";
/// Starts the names of the registers that hold the task's indices (`preempt-device`).
const TASK_REGISTER: &str = "%preempt_";
/// Special registers that tell where the hardware put the block.
const HARDWARE_INDEX: [&str; 4] = ["%ctaid", "%nctaid", "%clusterid", "%nclusterid"];

/// What is in a PTX file that passed [`check`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The `.target`, such as `sm_80`.
    pub target: String,
    /// Kernels with a preemptible and a plain entry.
    pub preemptible: Vec<String>,
    /// Every other entry.
    pub native: Vec<String>,
}

/// Refuses PTX whose preemptible kernels would compute something else than they do in an
/// ordinary grid.
///
/// ```
/// let ptx = "
///     .version 7.0
///     .target sm_80
///     .address_size 64
///     .visible .entry k() { ret; }
///     .visible .entry k__plain() { ret; }
/// ";
/// let report = preempt::build::check(ptx)?;
/// assert_eq!(report.preemptible, ["k"]);
/// # Ok::<(), preempt::build::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::HardwareIndex`] if a preemptible kernel, or a function that it calls, reads the
/// hardware's block index or grid dimensions; [`Error::IndirectCall`] if that cannot be told;
/// [`Error::NotInlined`] if a function reads the task's and is not part of a kernel;
/// [`Error::NotPtx`].
pub fn check(ptx: &str) -> Result<Report, Error> {
    let text = without_comments(ptx);
    let target = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(".target"))
        .and_then(|names| names.split([',', ' ', '\t']).find(|name| !name.is_empty()))
        .ok_or(Error::NotPtx { what: "it has no `.target`" })?;

    let functions = functions(&text);
    for (name, function) in &functions {
        if !function.is_entry && function.body.contains(TASK_REGISTER) {
            return Err(Error::NotInlined { function: readable(name) });
        }
    }
    let entries = || functions.iter().filter(|(_, function)| function.is_entry);
    let is_entry = |name: &str| functions.get(name).is_some_and(|function| function.is_entry);
    let mut report =
        Report { target: target.to_owned(), preemptible: Vec::new(), native: Vec::new() };
    for (name, _) in entries() {
        if is_entry(&format!("{name}{PLAIN}")) {
            check_preemptible(name, &functions)?;
            report.preemptible.push((*name).to_owned());
        } else if !name.strip_suffix(PLAIN).is_some_and(is_entry) {
            report.native.push((*name).to_owned());
        }
    }
    Ok(report)
}

/// Follows the calls of `entry`.
fn check_preemptible(entry: &str, functions: &BTreeMap<&str, Function>) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    let mut waiting = vec![entry];
    while let Some(name) = waiting.pop() {
        // What is only declared is the driver's own, such as `vprintf`.
        let Some(function) = functions.get(name).filter(|_| seen.insert(name)) else { continue };
        if let Some(register) = hardware_index(function.body) {
            return Err(Error::HardwareIndex {
                entry: entry.to_owned(),
                function: readable(name),
                register: register.to_owned(),
            });
        }
        for callee in calls(function.body) {
            if callee.starts_with('%') {
                let function = readable(name);
                return Err(Error::IndirectCall { entry: entry.to_owned(), function });
            }
            waiting.push(callee);
        }
    }
    Ok(())
}

/// A function with a body.
#[derive(Debug)]
struct Function<'a> {
    is_entry: bool,
    body: &'a str,
}

/// The functions that `text` defines, by name.
fn functions(text: &str) -> BTreeMap<&str, Function<'_>> {
    let mut functions = BTreeMap::new();
    let mut rest = text;
    while let Some((is_entry, after)) = next_function(rest) {
        rest = after;
        // The name is followed by the parameters; a function's may be preceded by what it
        // returns, in parentheses.
        let mut head = after.trim_start();
        if head.starts_with('(') {
            head = head.split_once(')').map_or("", |(_, head)| head).trim_start();
        }
        let name = head.split(|c: char| !is_of_name(c)).next().unwrap_or_default();
        let Some(at) = after.find(['{', ';']) else { break };
        if after.as_bytes()[at] == b'{' {
            let body = braced(&after[at..]);
            functions.insert(name, Function { is_entry, body });
            rest = &after[at + body.len()..];
        }
    }
    functions
}

/// Whether the next function of `text` is an entry, and the text after its directive.
fn next_function(text: &str) -> Option<(bool, &str)> {
    let find = |directive: &str| {
        let mut places = text.match_indices(directive).map(|(at, _)| at + directive.len());
        places.find(|&end| text[end..].starts_with(char::is_whitespace))
    };
    match (find(".entry"), find(".func")) {
        (Some(entry), Some(function)) if function < entry => Some((false, &text[function..])),
        (Some(entry), _) => Some((true, &text[entry..])),
        (None, Some(function)) => Some((false, &text[function..])),
        (None, None) => None,
    }
}

/// The start of `text` up to the brace that closes its first one.
fn braced(text: &str) -> &str {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return &text[..=at],
            '}' => depth -= 1,
            _ => {}
        }
    }
    text
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%')
}

/// The targets of the calls in `body`: a function's name, or the register that holds one.
fn calls(body: &str) -> impl Iterator<Item = &str> {
    body.split(';').filter_map(|statement| {
        // In front of the instruction can be a label, a guard or the brace of a call sequence.
        let at = statement.match_indices("call").map(|(at, _)| at).find(|&at| {
            let before = statement[..at].chars().next_back();
            let after = statement[at + 4..].chars().next();
            !before.is_some_and(|c| is_of_name(c) || c == '.')
                && after.is_some_and(|c| c == '.' || c.is_whitespace() || c == '(')
        })?;
        let operands = statement[at + 4..].strip_prefix(".uni").unwrap_or(&statement[at + 4..]);
        let mut operands = operands.trim_start();
        if operands.starts_with('(') {
            let (_, rest) = operands.split_once(')')?;
            operands = rest.trim_start().strip_prefix(',')?.trim_start();
        }
        operands.split(|c: char| !is_of_name(c)).next().filter(|name| !name.is_empty())
    })
}

/// The first special register in `body` that tells the hardware's block index.
fn hardware_index(body: &str) -> Option<&str> {
    body.match_indices('%').find_map(|(at, _)| {
        let end = body[at + 1..].find(|c| !is_of_name(c)).map_or(body.len(), |len| at + 1 + len);
        let axis = body[end..].starts_with(['.']).then(|| end + 2).filter(|&end| end <= body.len());
        HARDWARE_INDEX.contains(&&body[at..end]).then(|| &body[at..axis.unwrap_or(end)])
    })
}

/// `ptx` with each comment replaced by a space.
fn without_comments(ptx: &str) -> String {
    let mut text = String::with_capacity(ptx.len());
    let mut rest = ptx;
    while let Some(at) = rest.find('/') {
        text.push_str(&rest[..at]);
        let comment = &rest[at..];
        rest = if comment.starts_with("//") {
            comment.find('\n').map_or("", |end| &comment[end..])
        } else if let Some(inside) = comment.strip_prefix("/*") {
            text.push(' ');
            inside.split_once("*/").map_or("", |(_, rest)| rest)
        } else {
            text.push('/');
            &comment[1..]
        };
    }
    text + rest
}

/// A Rust path where the symbol is one.
fn readable(symbol: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(symbol))
}

#[cfg(test)]
mod tests;
