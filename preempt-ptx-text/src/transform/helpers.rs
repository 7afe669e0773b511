//! Functions that an entry calls, where they ask for what differs in the worker loop: copies that are given it.

use std::collections::BTreeSet;
use std::ops::Range;

use super::body::{self, Reader, callee, part, reads_task};
use crate::lex::{Kind, Tokens};
use crate::text::Edit;
use crate::tree::{FunctionItem, Module, StatementKind};
use crate::verdict::{Refusal, SLOT_BYTES};

/// How the name of a copy ends.
pub(super) const COPY: &str = "__preempt_copy";
/// Bytes of the parameter that a copy has behind its own: index of the block-task and grid.
pub(super) const POSITION_BYTES: usize = 24;
const POSITION: &str = "preempt_position";

const CURE: &str = "inline the function into the kernel, or launch the kernel without preemption";

/// Where each word of the position is.
pub(super) fn position_words() -> impl Iterator<Item = usize> {
    (0..POSITION_BYTES).step_by(4)
}

/// Those of the functions, each behind those that it calls, that need a copy: they read what differs in the loop, or call one
/// that does.
pub(super) fn copied<'m>(called: &[&'m FunctionItem<'m>]) -> BTreeSet<&'m str> {
    let mut copied = BTreeSet::new();
    for function in called {
        let statements = function.body.iter().flat_map(|body| &body.statements);
        let needs = statements.filter_map(|statement| match &statement.kind {
            StatementKind::Instruction(of) => Some(of),
            _ => None,
        });
        let needs_copy =
            |of| reads_task(of) || callee(of).is_some_and(|name| copied.contains(name));
        if needs.into_iter().any(needs_copy) {
            copied.insert(function.name);
        }
    }
    copied
}

/// The copy of a function, behind the functions that it calls.
pub(super) fn copy(
    module: &Module<'_>,
    function: &FunctionItem<'_>,
    copied: &BTreeSet<&str>,
) -> Result<String, Refusal> {
    let Some(body) = &function.body else { return Ok(String::new()) };
    let name = format!("{}{COPY}", function.name);
    let refuse = |what: &str| {
        Err(Refusal::new(function.name, module.place(function.at), what.to_owned(), CURE))
    };
    if module.functions().any(|function| function.name == name) {
        return refuse("the name of its copy is taken");
    }
    if function.parameters.iter().any(|parameter| parameter.space != ".param") {
        return refuse("it needs a copy, and has parameters in registers");
    }
    let mut edits = Vec::new();
    for statement in &body.statements {
        if let StatementKind::Instruction(of) = &statement.kind {
            edits.extend(body::edits(module, statement, of, Reader::Copy, copied));
        }
    }
    let position = format!(".param .align 4 .b8 {POSITION}[{POSITION_BYTES}]");
    let registers = Reader::Copy.registers();
    let mut start = format!("\n\t.reg .b32 {};", registers.join(", "));
    for (register, at) in registers.iter().zip(position_words()) {
        start += &format!("\n\tld.param.b32 {register}, [{POSITION}+{at}];");
    }
    start += &Reader::Copy.set_shared_size(SLOT_BYTES);
    let head = head(module, function, &name, &position);
    Ok(format!("{head}{{{start}{}\n", part(module.text, body.start + 1..body.end(), edits)))
}

/// What is ahead of the body of an entry or a function, with another name and one more parameter behind its own.
pub(super) fn head(
    module: &Module<'_>,
    function: &FunctionItem<'_>,
    name: &str,
    parameter: &str,
) -> String {
    let end = function.body.as_ref().map_or(function.at, |body| body.start);
    let item = module
        .items
        .iter()
        .map(|item| item.span)
        .find(|span| span.start <= function.at && function.at < span.end);
    let mut start = item.map_or(function.at, |span| span.start);
    if !function.is_entry {
        // Without a linkage, which could make it two of a name where files are linked.
        let tokens = Tokens::of(&module.text[start..function.at]);
        start +=
            tokens.into_iter().find(|token| token.text == ".func").map_or(0, |token| token.start);
    }
    let name_end = function.at + function.name.len();
    let mut edits = vec![Edit { place: function.at..name_end, text: name.to_owned() }];
    match parameters(module.text, name_end..end) {
        Some((close, is_empty)) => {
            let comma = if is_empty { "" } else { "," };
            edits.push(Edit { place: close..close, text: format!("{comma}\n\t{parameter}\n") });
        }
        None => edits.push(Edit { place: name_end..name_end, text: format!("({parameter})") }),
    }
    part(module.text, start..end, edits)
}

/// Where the list of parameters closes that may follow a name, and whether it is empty.
fn parameters(text: &str, behind_name: Range<usize>) -> Option<(usize, bool)> {
    let start = behind_name.start;
    let mut tokens = Tokens::of(&text[behind_name]).filter(|token| token.kind != Kind::Blank);
    tokens.next().filter(|token| token.is('('))?;
    let mut is_empty = true;
    let mut depth = 1usize;
    for token in tokens {
        match token.kind {
            Kind::Mark('(') => depth += 1,
            Kind::Mark(')') => depth -= 1,
            _ => is_empty = false,
        }
        if depth == 0 {
            return Some((start + token.start, is_empty));
        }
    }
    None
}
