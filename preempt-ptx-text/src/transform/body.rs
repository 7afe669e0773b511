//! The body of an entry as the worker loop runs it.

use std::collections::BTreeSet;

use super::helpers::{COPY, POSITION_BYTES, position_words};
use super::meeting::{LEFT, Meeting};
use super::yielding::{YIELDING_BYTES, Yielding};
use crate::text::{Edit, edited};
use crate::tree::{FunctionItem, Instruction, Module, OperandKind, Statement, StatementKind};
use crate::verdict::{Accepted, Judged, Refusal, Rule, SLOT_BYTES};

/// Where threads go that have ended the block-task.
pub(super) const TAIL: &str = "$preempt_tail";

const CURE_MBARRIER: &str =
    "inline the function into the kernel, or launch the kernel without preemption";

/// Who reads what differs in the loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reader {
    /// The body of an entry, which sees the loop's registers.
    Entry,
    /// A copy of a function, which has registers of its own.
    Copy,
}

impl Reader {
    /// What the names of the registers start with.
    fn prefix(self) -> &'static str {
        match self {
            Reader::Entry => "%preempt",
            Reader::Copy => "%task",
        }
    }

    /// The registers that hold the index of the block-task and the grid, in the order of [`position_words`].
    pub fn registers(self) -> [String; 6] {
        let prefix = self.prefix();
        ["block_x", "block_y", "block_z", "grid_x", "grid_y", "grid_z"]
            .map(|name| format!("{prefix}_{name}"))
    }

    /// The register that holds the size of the entry's own dynamic shared memory.
    fn shared_size(self) -> String {
        format!("{}_shared_size", self.prefix())
    }

    /// Sets that register, which it declares.
    pub fn set_shared_size(self, added: u64) -> String {
        let size = self.shared_size();
        format!(
            "\n\t.reg .b32 {size};\n\tmov.u32 {size}, %dynamic_smem_size;\n\tsub.u32 {size}, {size}, {added};"
        )
    }

    /// What is read in the place of a special register.
    fn in_place_of(self, special: &str) -> Option<String> {
        if special == "%dynamic_smem_size" {
            return Some(self.shared_size());
        }
        let (stem, axis) = special.split_once('.')?;
        let place = match stem {
            "%ctaid" => 0,
            "%nctaid" => 3,
            _ => return None,
        };
        let axis = ["x", "y", "z"].iter().position(|name| *name == axis)?;
        self.registers().into_iter().nth(place + axis)
    }
}

/// Whether a function reads what differs in the loop.
pub(super) fn reads_task(of: &Instruction<'_>) -> bool {
    let mut names = of.operands.iter().flat_map(|operand| &operand.names);
    of.root() == "griddepcontrol" || names.any(|name| Reader::Entry.in_place_of(name).is_some())
}

/// The edits of one instruction that are the same in an entry and in a copy.
pub(super) fn edits(
    module: &Module<'_>,
    statement: &Statement<'_>,
    of: &Instruction<'_>,
    reader: Reader,
    copied: &BTreeSet<&str>,
) -> Vec<Edit> {
    let place = |piece: &str| {
        let start = module.offset(piece);
        start..start + piece.len()
    };
    if of.root() == "griddepcontrol" {
        // A label ahead of it may be followed by nothing else.
        let text = "{ }".to_owned();
        return vec![Edit { place: statement.span.start..statement.span.end, text }];
    }
    let mut edits = Vec::new();
    let called = callee(of).filter(|name| copied.contains(name));
    if let Some(name) = called {
        // Unique in the file, as offsets are.
        let argument = format!("preempt_in_{}", statement.span.start);
        let mut text = format!(".param .align 4 .b8 {argument}[{POSITION_BYTES}];");
        for (register, at) in reader.registers().iter().zip(position_words()) {
            text += &format!(" st.param.b32 [{argument}+{at}], {register};");
        }
        text += "\n\t";
        edits.push(Edit { place: statement.span.start..statement.span.start, text });
        let end = place(name).end;
        edits.push(Edit { place: end..end, text: COPY.to_owned() });
        let arguments = of.operands.last().filter(|operand| operand.kind == OperandKind::List);
        match arguments.filter(|operand| module.offset(operand.text) > end) {
            Some(list) => {
                let at = place(list.text).end - 1;
                let is_empty = list.text.trim_matches(['(', ')']).trim().is_empty();
                let comma = if is_empty { "" } else { ", " };
                edits.push(Edit { place: at..at, text: format!("{comma}{argument}") });
            }
            None => edits.push(Edit { place: end..end, text: format!(", ({argument})") }),
        }
    }
    for name in of.operands.iter().flat_map(|operand| &operand.names) {
        if let Some(text) = reader.in_place_of(name) {
            edits.push(Edit { place: place(name), text });
        }
    }
    edits
}

/// The function that a call names.
pub(super) fn callee<'a>(of: &Instruction<'a>) -> Option<&'a str> {
    let named = of.operands.iter().take(2).find_map(|operand| operand.name());
    named.filter(|_| of.root() == "call")
}

/// The body of an entry in a scope of its own, and the end of the block-task behind it.
pub(super) fn scope(
    module: &Module<'_>,
    entry: &FunctionItem<'_>,
    judged: &Judged<'_>,
    accepted: &Accepted,
    copied: &BTreeSet<&str>,
    yielding: Option<&Yielding<'_>>,
) -> Result<String, Refusal> {
    let Some(body) = &entry.body else { return Ok(String::new()) };
    let has = |rule| accepted.rules.contains(&rule);
    let meeting = Meeting::of(module, entry, body, judged, accepted)?;
    let leave = if meeting.is_some() { LEFT } else { TAIL };
    // First, because they are ahead of what may be changed where they are.
    let mut edits_of_body = yielding.map_or(Vec::new(), |yielding| yielding.edits(body));
    for statement in &body.statements {
        let StatementKind::Instruction(of) = &statement.kind else { continue };
        let mut edits = edits(module, statement, of, Reader::Entry, copied);
        match of.root() {
            "ret" | "exit" => {
                let start = module.offset(of.opcode);
                let place = start..start + of.opcode.len();
                edits.push(Edit { place, text: format!("bra {leave}") });
            }
            "mbarrier" if of.has("init") && has(Rule::MbarrierInit) => {
                let start = statement.span.start;
                edits.push(Edit { place: start..start, text: invalidated(of) });
            }
            _ => {}
        }
        edits_of_body.extend(edits);
    }
    let added = yielding.map_or(SLOT_BYTES, |_| YIELDING_BYTES);
    let mut start = String::new();
    if has(Rule::SharedSize) {
        start += &Reader::Entry.set_shared_size(added);
    }
    if let Some(yielding) = yielding {
        start += &yielding.start();
    }
    let mut end = String::new();
    if let Some(meeting) = meeting {
        edits_of_body.extend(meeting.edits);
        start += &meeting.start;
        end += &meeting.end;
    }
    let inside = body.start + 1..body.end() - 1;
    let text = part(module.text, inside, edits_of_body);
    let mut tail = format!("{TAIL}:\n\tbar.warp.sync -1;\n");
    if has(Rule::AsyncCopies) {
        tail += "\tcp.async.wait_all;\n";
    }
    if has(Rule::BulkCopies) {
        // The fence puts the stores of this block-task before the copies of the next one into the same place.
        tail += "\tcp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group 0;\n\tfence.proxy.async.shared::cta;\n";
    }
    if has(Rule::MbarrierInit) {
        tail += "\tmov.b32 %preempt_again, 1;\n";
    }
    if let Some(yielding) = yielding {
        tail += &yielding.end();
    }
    let ahead = yielding.map_or(String::new(), Yielding::ahead);
    Ok(format!("{ahead}{{{start}{}\n{end}\t}}\n{tail}", text.trim_end()))
}

/// A part of a text with its edits.
pub(super) fn part(text: &str, part: std::ops::Range<usize>, edits: Vec<Edit>) -> String {
    let moved = edits.into_iter().map(|edit| Edit {
        place: edit.place.start - part.start..edit.place.end - part.start,
        text: edit.text,
    });
    edited(&text[part.clone()], moved.collect())
}

/// Invalidates the barrier object that an instruction initialises, if a block-task came before.
fn invalidated(of: &Instruction<'_>) -> String {
    let opcode = of.opcode.replacen(".init", ".inval", 1);
    let place = of.operands.first().map_or("", |operand| operand.text);
    let guard = match of.guard {
        None => String::new(),
        Some(guard) => {
            let sense = if guard.is_negated { "not" } else { "mov" };
            format!(
                " {sense}.pred %preempt_guard, {}; and.pred %preempt_is, %preempt_is, %preempt_guard;",
                guard.register
            )
        }
    };
    format!(
        "{{ .reg .pred %preempt_is, %preempt_guard; setp.ne.u32 %preempt_is, %preempt_again, 0;{guard} @%preempt_is {opcode} {place}; }}\n\t"
    )
}

/// Refuses barrier objects that a function initialises which does not see the loop's registers.
pub(super) fn check_called(
    module: &Module<'_>,
    function: &FunctionItem<'_>,
) -> Result<(), Refusal> {
    let statements = function.body.iter().flat_map(|body| &body.statements);
    for statement in statements {
        if let StatementKind::Instruction(of) = &statement.kind
            && of.root() == "mbarrier"
            && of.has("init")
        {
            let place = module.place(statement.span.start);
            let what = format!("`{}` in a function that the entry calls", of.opcode);
            return Err(Refusal::new(function.name, place, what, CURE_MBARRIER));
        }
    }
    Ok(())
}
