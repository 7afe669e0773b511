//! The worker loop as `preempt-ptx` compiled it, with a place for a body.

use std::sync::OnceLock;

use crate::lex::{Kind, Tokens};
use crate::reader::read;
use crate::tree::{FunctionItem, Module, Span, Statement, StatementKind};
use crate::verdict::COHORT_BYTES;
use point::Point;

mod point;

/// Of the crate in `worker/` beside `src/`, which `preempt-ptx` compiles.
const WORKER: &str = include_str!("worker.ptx");
/// The loop's shared memory: words that the elected thread and all others exchange, and its notes.
const SLOT: &str = "preempt_slot";
pub(super) const SLOT_BYTES: u64 = 112;
/// The watch of a block with yield points, which is put behind the slot, and what both take.
const WATCH: &str = "preempt_yields";
const WATCH_BYTES: u64 = 8;
pub(super) const YIELDING_SLOT_BYTES: u64 = SLOT_BYTES + 16;
/// The barriers of the crate's kernel: where the body goes, the loop's own, and that of votes.
const MARK: &str = "0";
const LOOP_BARRIER: &str = "1";
const VOTE_BARRIER: &str = "2";
/// The registers that hold the block-task's index and the launch's grid.
const TASK_REGISTERS: [&str; 6] = [
    "%preempt_block_x",
    "%preempt_block_y",
    "%preempt_block_z",
    "%preempt_grid_x",
    "%preempt_grid_y",
    "%preempt_grid_z",
];
/// Comments that the loader of the PTX makes instructions of, where the GPU has them.
const KEPT_COMMENT: &str = "// preempt.griddepcontrol.";

/// The version and architecture that the loop needs.
pub(super) const VERSION: (u32, u32) = (7, 0);
pub(super) const ARCHITECTURE: u32 = 80;

/// The entries of the crate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// Without yield points.
    Worker,
    /// At its yield points each thread looks. For bodies without barriers.
    Polling,
    /// At its yield points all threads vote. For bodies with barriers, some of which the votes replace.
    Voting,
}

impl Form {
    fn entry(self) -> &'static str {
        match self {
            Form::Worker => "worker",
            Form::Polling => "polling",
            Form::Voting => "voting",
        }
    }
}

/// The body of the loop's entry, cut to pieces.
#[derive(Debug)]
pub(super) struct Template {
    pieces: Vec<Piece>,
    /// What a body has at each yield point.
    pub point: Option<Point>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Piece {
    Text(String),
    /// The name of the parameter with the cohort.
    Cohort,
    /// The number of the loop's barrier.
    Barrier,
    /// The number of the barrier of votes.
    Vote,
    /// The address of the loop's shared memory.
    Slot,
    /// The address of the watch.
    Watch,
    /// Where the body goes.
    Body,
}

/// What a [`Template`] is filled with.
#[derive(Clone, Debug)]
pub(super) struct Filling<'a> {
    pub cohort: &'a str,
    pub barrier: u8,
    /// Used by votes alone.
    pub vote: u8,
    pub slot: &'a str,
    pub body: &'a str,
}

impl Filling<'_> {
    fn of(&self, pieces: &[Piece]) -> String {
        let mut text = String::new();
        for piece in pieces {
            match piece {
                Piece::Text(part) => text.push_str(part),
                Piece::Cohort => text.push_str(self.cohort),
                Piece::Barrier => text.push_str(&self.barrier.to_string()),
                Piece::Vote => text.push_str(&self.vote.to_string()),
                Piece::Slot => text.push_str(self.slot),
                Piece::Watch => text.push_str(&format!("{}+{SLOT_BYTES}", self.slot)),
                Piece::Body => text.push_str(self.body),
            }
        }
        text
    }
}

impl Template {
    /// The loop of this crate, which is read once. What it says if it cannot be had is a test's concern: the text is compiled in.
    pub fn compiled(form: Form) -> Result<&'static Template, String> {
        static ALL: [OnceLock<Result<Template, String>>; 3] = [const { OnceLock::new() }; 3];
        let template = ALL[form as usize].get_or_init(|| Template::of(WORKER, form));
        template.as_ref().map_err(String::clone)
    }

    /// Cuts the entry of the loop, and checks that it is as the splicing takes it to be.
    fn of(text: &str, form: Form) -> Result<Template, String> {
        let module = read(text).map_err(|error| error.to_string())?;
        if module.version() > VERSION || module.architecture() != Some(ARCHITECTURE) {
            return Err("another version or target than its constants say".to_owned());
        }
        let outside: Vec<_> = module.variables().collect();
        let is_known = |of: &&crate::tree::Declaration<'_>| is_slot(of) || is_watch(of);
        if !outside.iter().all(is_known) {
            return Err("variables outside of the entry".to_owned());
        }
        let entry = module.functions().find(|f| f.is_entry && f.name == form.entry());
        let entry = entry.ok_or("no entry")?;
        let body = entry.body.as_ref().ok_or("no body")?;
        let parameter = parameter(entry)?;
        let point = match form {
            Form::Worker => None,
            _ => Some(point::Found::of(&module, entry, body, form)?),
        };
        let inside = point.as_ref().map(|point| point.span);
        let Shape { marks, slots } = shape(body, inside)?;
        let is_outside = outside.iter().any(|of| is_slot(of));
        let slot = match (&slots[..], is_outside) {
            (&[slot], false) => Some(slot),
            ([], true) => None,
            _ => return Err(format!("{} slots", slots.len() + usize::from(is_outside))),
        };
        let mark = match (inside, &marks[..]) {
            (Some(point), []) => point,
            (None, &[mark]) => mark,
            _ => return Err(format!("{} places for a body", marks.len())),
        };
        let cut = Cut { text, parameter, slot, point: point.as_ref() };
        let whole = body.start + 1..body.end() - 1;
        let mut pieces = cut.pieces(whole.start..mark.start, false)?;
        pieces.push(Piece::Body);
        pieces.extend(cut.pieces(mark.end..whole.end, false)?);
        let point = match &point {
            Some(found) => Some(found.point(cut.pieces(found.span.start..found.span.end, true)?)),
            None => None,
        };
        Ok(Template { pieces, point })
    }

    /// What is between the braces of an entry with this filling.
    pub fn filled(&self, with: &Filling<'_>) -> String {
        with.of(&self.pieces)
    }
}

/// How a text is cut.
struct Cut<'a> {
    text: &'a str,
    parameter: &'a str,
    /// The declaration of the slot.
    slot: Option<Span>,
    /// The yield point, with whose state and names the text is changed.
    point: Option<&'a point::Found<'a>>,
}

impl Cut<'_> {
    fn pieces(&self, part: std::ops::Range<usize>, in_point: bool) -> Result<Vec<Piece>, String> {
        let mut pieces = Vec::new();
        let mut text_from = part.start;
        let mut after_barrier = false;
        let mut replaced = self.point.filter(|_| in_point).map_or(&[][..], |of| &of.replaced);
        for token in Tokens::of(&self.text[part.clone()]) {
            let (start, end) = (part.start + token.start, part.start + token.end());
            let is_within = |span: Span| span.start <= start && end <= span.end;
            while let [(span, _), rest @ ..] = replaced
                && span.end <= start
            {
                replaced = rest;
            }
            let is_comment = token.kind == Kind::Blank && token.text.starts_with('/');
            let piece = match token.kind {
                _ if self.slot.is_some_and(is_within) => None,
                _ if replaced.first().is_some_and(|(span, _)| is_within(*span)) => replaced
                    .first()
                    .filter(|(span, _)| span.start == start)
                    .map(|(_, text)| Piece::Text(text.clone())),
                _ if is_comment && !token.text.starts_with(KEPT_COMMENT) => None,
                Kind::Word if token.text == self.parameter => Some(Piece::Cohort),
                Kind::Word if token.text == SLOT => Some(Piece::Slot),
                Kind::Word if token.text == WATCH => {
                    if !self.text[..start].ends_with('[') || !self.text[end..].starts_with(']') {
                        return Err(format!("`{WATCH}` elsewhere than in an address"));
                    }
                    Some(Piece::Watch)
                }
                Kind::Number if after_barrier && token.text == VOTE_BARRIER => Some(Piece::Vote),
                Kind::Number if after_barrier => Some(Piece::Barrier),
                _ => {
                    match token.kind {
                        Kind::Word if token.text.starts_with("bar.") => after_barrier = true,
                        Kind::Mark(';') => after_barrier = false,
                        _ => {}
                    }
                    if let Some(name) = self.point.and_then(|point| point.renamed(token.text)) {
                        pieces.push(Piece::Text(self.text[text_from..start].to_owned()));
                        pieces.push(Piece::Text(name));
                        text_from = end;
                    }
                    continue;
                }
            };
            after_barrier = false;
            pieces.push(Piece::Text(self.text[text_from..start].to_owned()));
            pieces.extend(piece);
            text_from = end;
        }
        pieces.push(Piece::Text(self.text[text_from..part.end].to_owned()));
        Ok(pieces)
    }
}

fn is_slot(of: &crate::tree::Declaration<'_>) -> bool {
    of.space == ".shared"
        && of.names.iter().all(|name| name.name == SLOT)
        && of.bytes() == Some(SLOT_BYTES)
        && of.alignment() == 16
}

fn is_watch(of: &crate::tree::Declaration<'_>) -> bool {
    of.space == ".shared"
        && of.names.iter().all(|name| name.name == WATCH)
        && of.bytes() == Some(WATCH_BYTES)
}

/// The name of the one parameter.
fn parameter<'a>(entry: &FunctionItem<'a>) -> Result<&'a str, String> {
    let [parameter] = &entry.parameters[..] else {
        return Err("another number of parameters than one".to_owned());
    };
    match &parameter.names[..] {
        [name] if parameter.bytes() == Some(COHORT_BYTES) && parameter.alignment() == 8 => {
            Ok(name.name)
        }
        _ => Err("a cohort of another size".to_owned()),
    }
}

/// Where the marks and the declarations of the slot are.
struct Shape {
    marks: Vec<Span>,
    slots: Vec<Span>,
}

/// Looks for them, if all else is as it should be. What is in a yield point is looked at by [`point`].
fn shape(body: &crate::tree::Body<'_>, point: Option<Span>) -> Result<Shape, String> {
    let (mut marks, mut slots, mut declared) = (Vec::new(), Vec::new(), Vec::new());
    // What the last instructions in a row have set.
    let mut set = Vec::new();
    let is_outside = |statement: &&Statement<'_>| {
        point.is_none_or(|point| {
            statement.span.end <= point.start || statement.span.start >= point.end
        })
    };
    for statement in body.statements.iter().filter(is_outside) {
        match &statement.kind {
            StatementKind::Declaration(of) if of.space == ".reg" => {
                let names = of.names.iter().map(|name| name.name);
                declared.extend(names.filter(|_| statement.scope == 0));
            }
            StatementKind::Declaration(of) if of.space == ".local" && point.is_some() => {}
            StatementKind::Declaration(of) => {
                if !is_slot(of) {
                    return Err(format!("memory in `{}` that is no slot", of.space));
                }
                slots.push(statement.span);
            }
            StatementKind::Instruction(of) if matches!(of.root(), "bar" | "barrier") => {
                let number = of.operand(0).map(|operand| operand.text);
                let is_alone = of.opcode == "bar.sync" && of.operands.len() == 1;
                let is_any = of.opcode == "bar.red.or.pred"
                    && of.operands.len() == 3
                    && of.operand(1).is_some_and(|number| number.text == LOOP_BARRIER);
                match number {
                    Some(LOOP_BARRIER) if is_alone => {}
                    Some(_) if is_any && point.is_some() => {}
                    Some(MARK) if is_alone && of.guard.is_none() && statement.scope == 0 => {
                        if !set.ends_with(&TASK_REGISTERS[..3]) {
                            return Err(
                                "a body that runs ahead of the index of its task".to_owned()
                            );
                        }
                        marks.push(statement.span);
                    }
                    _ => return Err(format!("a barrier `{}` that is not the loop's", of.opcode)),
                }
            }
            StatementKind::Instruction(of) if matches!(of.root(), "call" | "brx" | "exit") => {
                return Err(format!("`{}`, which it has no use for", of.opcode));
            }
            StatementKind::BranchTargets { .. } | StatementKind::CallTargets => {
                return Err("lists of targets".to_owned());
            }
            _ => {}
        }
        match &statement.kind {
            StatementKind::Instruction(of) if of.root() == "mov" && of.guard.is_none() => {
                set.extend(of.operand(0).and_then(|operand| operand.name()));
            }
            _ => set.clear(),
        }
    }
    for register in TASK_REGISTERS {
        if !declared.contains(&register) {
            return Err(format!("no register `{register}`"));
        }
    }
    Ok(Shape { marks, slots })
}

/// The statements of a body whose text is within a span.
fn within<'b, 'a>(
    body: &'b crate::tree::Body<'a>,
    span: Span,
) -> impl Iterator<Item = &'b Statement<'a>> {
    body.statements.iter().filter(move |of| span.start <= of.span.start && of.span.end <= span.end)
}

/// Where a comment is that starts with these words, if it is there once.
fn comment<'a>(module: &Module<'a>, part: Span, words: &str) -> Result<(Span, &'a str), String> {
    let text = &module.text[part.start..part.end];
    let mut found = Tokens::of(text)
        .filter(|token| token.kind == Kind::Blank && token.text.starts_with(words))
        .map(|token| {
            let start = part.start + token.start;
            (Span { start, end: start + token.text.len() }, token.text)
        });
    match (found.next(), found.next()) {
        (Some(comment), None) => Ok(comment),
        _ => Err(format!("not one mark `{words}`")),
    }
}

#[cfg(test)]
mod tests;
