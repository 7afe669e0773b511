//! The worker loop as `preempt-ptx` compiled it, with a place for a body.

use crate::lex::{Kind, Tokens};
use crate::reader::read;
use crate::tree::{FunctionItem, Span, StatementKind};
use crate::verdict::COHORT_BYTES;

/// Of the crate in `worker/` beside `src/`, which `preempt-ptx` compiles.
const WORKER: &str = include_str!("worker.ptx");
const ENTRY: &str = "worker";
/// The loop's shared memory: words that the elected thread and all others exchange, and its notes.
const SLOT: &str = "preempt_slot";
pub(super) const SLOT_BYTES: u64 = 112;
/// The barriers of the crate's kernel: where the body goes, and the loop's own.
const MARK: &str = "0";
const LOOP_BARRIER: &str = "1";
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

/// The body of the loop's entry, cut to pieces.
#[derive(Debug)]
pub(super) struct Template {
    pieces: Vec<Piece>,
}

#[derive(PartialEq, Eq, Debug)]
enum Piece {
    Text(&'static str),
    /// The name of the parameter with the cohort.
    Cohort,
    /// The number of the loop's barrier.
    Barrier,
    /// The address of the loop's shared memory.
    Slot,
    /// Where the body goes.
    Body,
}

/// What a [`Template`] is filled with.
#[derive(Debug)]
pub(super) struct Filling<'a> {
    pub cohort: &'a str,
    pub barrier: u8,
    pub slot: &'a str,
    pub body: &'a str,
}

impl Template {
    /// The loop of this crate. What it says if it cannot be had is a test's concern: the text is compiled in.
    pub fn compiled() -> Result<Template, String> {
        Template::of(WORKER)
    }

    /// Cuts the entry of the loop, and checks that it is as the splicing takes it to be.
    fn of(text: &'static str) -> Result<Template, String> {
        let module = read(text).map_err(|error| error.to_string())?;
        if module.version() > VERSION || module.architecture() != Some(ARCHITECTURE) {
            return Err("another version or target than its constants say".to_owned());
        }
        if module.variables().next().is_some() {
            return Err("variables outside of the entry".to_owned());
        }
        let entry = module.functions().find(|f| f.is_entry && f.name == ENTRY);
        let entry = entry.ok_or("no entry")?;
        let parameter = parameter(entry)?;
        let (mark, slot) = shape(entry)?;
        let body = entry.body.as_ref().ok_or("no body")?;
        let inside = body.start + 1..body.end() - 1;
        let mut pieces = Vec::new();
        let mut text_from = inside.start;
        let mut after_barrier = false;
        for token in Tokens::of(&text[inside.clone()]) {
            let (start, end) = (inside.start + token.start, inside.start + token.end());
            let is_within = |span: Span| span.start <= start && end <= span.end;
            let is_comment = token.kind == Kind::Blank && token.text.starts_with('/');
            let piece = match token.kind {
                _ if is_within(mark) => (start == mark.start).then_some(Piece::Body),
                _ if is_within(slot) => None,
                _ if is_comment && !token.text.starts_with(KEPT_COMMENT) => None,
                Kind::Word if token.text == parameter => Some(Piece::Cohort),
                Kind::Word if token.text == SLOT => Some(Piece::Slot),
                Kind::Number if after_barrier => Some(Piece::Barrier),
                kind => {
                    if kind == Kind::Word {
                        after_barrier = token.text.starts_with("bar.");
                    }
                    continue;
                }
            };
            after_barrier = false;
            pieces.push(Piece::Text(&text[text_from..start]));
            pieces.extend(piece);
            text_from = end;
        }
        pieces.push(Piece::Text(&text[text_from..inside.end]));
        Ok(Template { pieces })
    }

    /// What is between the braces of an entry with this filling.
    pub fn filled(&self, with: &Filling<'_>) -> String {
        let mut text = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(part) => text.push_str(part),
                Piece::Cohort => text.push_str(with.cohort),
                Piece::Barrier => text.push_str(&with.barrier.to_string()),
                Piece::Slot => text.push_str(with.slot),
                Piece::Body => text.push_str(with.body),
            }
        }
        text
    }
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

/// Where the mark and the declaration of the slot are, if all else is as it should be.
fn shape(entry: &FunctionItem<'_>) -> Result<(Span, Span), String> {
    let body = entry.body.as_ref().ok_or("no body")?;
    let (mut marks, mut slots, mut declared) = (Vec::new(), Vec::new(), Vec::new());
    // What the last instructions in a row have set.
    let mut set = Vec::new();
    for statement in &body.statements {
        match &statement.kind {
            StatementKind::Declaration(of) if of.space == ".reg" => {
                let names = of.names.iter().map(|name| name.name);
                declared.extend(names.filter(|_| statement.scope == 0));
            }
            StatementKind::Declaration(of) => {
                let is_slot = of.space == ".shared"
                    && of.names.iter().all(|name| name.name == SLOT)
                    && of.bytes() == Some(SLOT_BYTES)
                    && of.alignment() == 16;
                if !is_slot {
                    return Err(format!("memory in `{}` that is no slot", of.space));
                }
                slots.push(statement.span);
            }
            StatementKind::Instruction(of) if matches!(of.root(), "bar" | "barrier") => {
                let number = of.operand(0).map(|operand| operand.text);
                let is_alone = of.opcode == "bar.sync" && of.operands.len() == 1;
                match number {
                    Some(LOOP_BARRIER) if is_alone => {}
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
    match (&marks[..], &slots[..]) {
        (&[mark], &[slot]) => Ok((mark, slot)),
        ([_], _) => Err(format!("{} slots", slots.len())),
        _ => Err(format!("{} places for a body", marks.len())),
    }
}

#[cfg(test)]
mod tests;
