//! The yield point between the marks of the crate's entries, which is put at several places of a body.

use std::collections::{BTreeMap, BTreeSet};

use super::{Filling, Form, Piece, TASK_REGISTERS, VOTE_BARRIER, comment, within};
use crate::code::{Code, Id};
use crate::tree::{Body, FunctionItem, Instruction, Module, Span, StatementKind};

const FIRST_MARK: &str = "// preempt.yields %";
const SECOND_MARK: &str = "// preempt.leaves %";
/// What the names of the loop's registers start with, so that the body's own do not hide them.
const PREFIX: &str = "%preempt_";
/// What the state of the thread that changes at yield points is kept in, by its offset in the state.
const STATE: &str = "%preempt_state_";
/// The stack of the loop.
const STACK: &str = "__local_depot";

/// What a body has at each yield point.
#[derive(Debug)]
pub(in crate::transform) struct Point {
    pieces: Vec<Piece>,
    /// The register that is not 0 if the thread returns.
    leaves: String,
    /// The state that changes at yield points.
    state: Vec<State>,
}

/// A part of the state, which is in memory where the loop starts and ends a block-task, and in a register between.
#[derive(Clone, PartialEq, Eq, Debug)]
struct State {
    /// As `b64`.
    ty: &'static str,
    /// The type of the register.
    register_ty: &'static str,
    register: String,
    place: String,
}

impl Point {
    /// Ahead of a body.
    pub fn start(&self) -> String {
        self.state.iter().map(State::load).chain(["\n\t".to_owned()]).collect()
    }

    /// At the end of a block-task.
    pub fn end(&self) -> String {
        self.state.iter().map(State::store).collect()
    }

    /// A yield point in a scope of its own, from which threads that return branch to `tail`.
    pub fn text(&self, with: &Filling<'_>, tail: &str) -> String {
        let point = with.of(&self.pieces);
        let lines: Vec<_> = point.lines().filter(|line| !line.trim().is_empty()).collect();
        let (point, leaves) = (lines.join("\n"), &self.leaves);
        format!(
            "{{\n\t.reg .pred %preempt_leaves;\n{point}\n\tsetp.ne.b32 %preempt_leaves, {leaves}, 0;\n\t@%preempt_leaves bra {tail};\n\t}}\n\t"
        )
    }
}

impl State {
    fn load(&self) -> String {
        let State { ty, register_ty, register, place } = self;
        format!("\n\t.reg .{register_ty} {register};\n\tld.local.{ty} {register}, {place};")
    }

    fn store(&self) -> String {
        let State { ty, register, place, .. } = self;
        format!("\tst.local.{ty} {place}, {register};\n")
    }
}

/// A yield point in the text of the loop.
pub(super) struct Found<'a> {
    /// From the first mark to the second.
    pub span: Span,
    leaves: &'a str,
    /// Registers by the start of their names, or by name.
    counted: BTreeSet<&'a str>,
    single: BTreeSet<&'a str>,
    state: Vec<State>,
    /// Accesses to that state, with what is there instead, in the order of the text.
    pub replaced: Vec<(Span, String)>,
}

impl<'a> Found<'a> {
    pub fn of(
        module: &'a Module<'a>,
        entry: &'a FunctionItem<'a>,
        body: &'a Body<'a>,
        form: Form,
    ) -> Result<Found<'a>, String> {
        let whole = Span { start: body.start, end: body.end() };
        let (first, state) = comment(module, whole, FIRST_MARK)?;
        let (second, words) = comment(module, whole, SECOND_MARK)?;
        let registers: Vec<_> = words.split_whitespace().skip(2).collect();
        let (&[leaves, state_behind], Some(state)) =
            (&registers[..], state.split_whitespace().nth(2))
        else {
            return Err("marks with other registers than their own".to_owned());
        };
        let span = Span { start: first.start, end: second.end };
        if first.start > second.start || state != state_behind {
            return Err("marks in another order, or of another state".to_owned());
        }
        is_behind_index(body, span)?;
        is_closed(module, body, span)?;
        barriers(body, span, form)?;
        let (mut counted, mut single) = (BTreeSet::new(), BTreeSet::new());
        for statement in &body.statements {
            let StatementKind::Declaration(of) = &statement.kind else { continue };
            if of.space != ".reg" || statement.scope != 0 {
                continue;
            }
            for name in of.names.iter().filter(|name| !name.name.starts_with(PREFIX)) {
                match name.count {
                    Some(_) => counted.insert(name.name),
                    None => single.insert(name.name),
                };
            }
        }
        let mut found =
            Found { span, leaves, counted, single, state: Vec::new(), replaced: Vec::new() };
        found.is_private(module, entry, body)?;
        found.keep_state(body)?;
        Ok(found)
    }

    pub fn point(&self, pieces: Vec<Piece>) -> Point {
        Point { pieces, leaves: self.name(self.leaves), state: self.state.clone() }
    }

    /// The name that the loop's registers and its stack have around a body.
    pub fn renamed(&self, name: &str) -> Option<String> {
        if name.starts_with(STACK) {
            return Some("preempt_stack".to_owned());
        }
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let is_own = self.single.contains(name) || self.counted.contains(stem);
        is_own.then(|| format!("{PREFIX}{}", &name[1..]))
    }

    fn name(&self, name: &str) -> String {
        self.renamed(name).unwrap_or_else(|| name.to_owned())
    }

    /// Checks that what the yield point computes is used in it alone, but for whether the thread returns, and that each of its
    /// registers that is written before it is written once, ahead of it: so it computes the same wherever it is.
    fn is_private(
        &self,
        module: &Module<'a>,
        entry: &'a FunctionItem<'a>,
        body: &'a Body<'a>,
    ) -> Result<(), String> {
        let code = Code::of(module, entry, body).map_err(|refusal| refusal.to_string())?;
        let is_inside =
            |at: usize| self.span.start <= code.steps[at].at && code.steps[at].at < self.span.end;
        let inside: BTreeSet<Id> = (0..code.steps.len())
            .filter(|&at| is_inside(at))
            .flat_map(|at| code.steps[at].defs.clone())
            .collect();
        for at in (0..code.steps.len()).filter(|&at| !is_inside(at)) {
            let step = &code.steps[at];
            let mut names = step.defs.iter().chain(&step.uses);
            if let Some(id) = names.find(|id| inside.contains(id)) {
                return Err(format!(
                    "`{}`, which a yield point computes, elsewhere",
                    code.names[*id]
                ));
            }
        }
        for at in (0..code.steps.len()).filter(|&at| is_inside(at)) {
            for &id in code.steps[at].uses.iter().filter(|id| !inside.contains(id)) {
                let is_index = TASK_REGISTERS.contains(&code.names[id]);
                let is_register = code.names[id].starts_with('%') && code.special(id).is_none();
                if is_register && (is_index || code.defs[id].len() != 1) {
                    return Err(format!(
                        "`{}`, which a yield point reads, not written once",
                        code.names[id]
                    ));
                }
            }
        }
        Ok(())
    }

    /// Finds the state that changes, and puts it into registers.
    fn keep_state(&mut self, body: &Body<'a>) -> Result<(), String> {
        let mut accesses: BTreeMap<u64, Vec<(Span, &Instruction<'a>, bool)>> = BTreeMap::new();
        let mut base = None;
        for statement in within(body, self.span) {
            let StatementKind::Instruction(of) = &statement.kind else { continue };
            if !of.has("local") {
                continue;
            }
            let is_store = of.root() == "st";
            let place = of.operand(usize::from(!is_store)).map_or("", |place| place.text);
            let inside = place.trim_matches(['[', ']']);
            let (register, offset) = inside.split_once('+').unwrap_or((inside, "0"));
            let offset = offset.parse().map_err(|_| format!("an access to `{place}`"))?;
            if of.guard.is_some() || *base.get_or_insert(register) != register {
                return Err(format!("an access to `{place}` that is no part of the state"));
            }
            accesses.entry(offset).or_default().push((statement.span, of, is_store));
        }
        for (offset, accesses) in accesses {
            if !accesses.iter().any(|&(_, _, is_store)| is_store) {
                continue;
            }
            let (_, first, is_store) = accesses[0];
            let (ty, register_ty) = match first.opcode.rsplit('.').next() {
                Some("b8") => ("b8", "b16"),
                Some("b32") => ("b32", "b32"),
                Some("b64") => ("b64", "b64"),
                _ => return Err(format!("state by `{}`", first.opcode)),
            };
            let place = first.operand(usize::from(!is_store)).map_or("", |place| place.text);
            let base = base.unwrap_or_default();
            let place = place.replacen(base, &self.name(base), 1);
            let register = format!("{STATE}{offset}");
            for (span, of, is_store) in accesses {
                let own =
                    if is_store { format!("st.local.{ty}") } else { format!("ld.local.{ty}") };
                let value = of.operand(usize::from(is_store)).filter(|_| of.opcode == own);
                let value = value.ok_or_else(|| format!("state by `{}`", of.opcode))?;
                let text = match (is_store, value.name()) {
                    (false, Some(value)) => {
                        format!("mov.{register_ty} {}, {register};", self.name(value))
                    }
                    // A store keeps the lowest bits.
                    (true, Some(value)) if ty == "b8" => {
                        format!("and.b16 {register}, {}, 255;", self.name(value))
                    }
                    (true, Some(value)) => {
                        format!("mov.{register_ty} {register}, {};", self.name(value))
                    }
                    (true, None) if value.integer().is_some_and(|n| (0..256).contains(&n)) => {
                        format!("mov.{register_ty} {register}, {};", value.text)
                    }
                    _ => return Err(format!("state by `{}`", value.text)),
                };
                self.replaced.push((span, text));
            }
            self.state.push(State { ty, register_ty, register, place });
        }
        self.replaced.sort_by_key(|(span, _)| span.start);
        Ok(())
    }
}

/// Checks that the index of the block-task is set ahead of the yield point, in instructions that lead to it alone.
fn is_behind_index(body: &Body<'_>, span: Span) -> Result<(), String> {
    let mut missing: Vec<_> = TASK_REGISTERS[..3].to_vec();
    for statement in body.statements.iter().rev().filter(|of| of.span.end <= span.start) {
        match &statement.kind {
            StatementKind::Instruction(of) if matches!(of.root(), "bra" | "ret") => break,
            StatementKind::Instruction(of) if of.root() == "mov" && of.guard.is_none() => {
                let set = of.operand(0).and_then(|operand| operand.name());
                missing.retain(|name| Some(*name) != set);
            }
            StatementKind::Label(_) => break,
            _ => {}
        }
    }
    match missing[..] {
        [] => Ok(()),
        _ => Err("a body that runs ahead of the index of its task".to_owned()),
    }
}

/// Checks that control comes into the yield point by its first instruction and leaves it behind its last.
fn is_closed(module: &Module<'_>, body: &Body<'_>, span: Span) -> Result<(), String> {
    let mut labels = BTreeSet::new();
    for statement in within(body, span) {
        match &statement.kind {
            StatementKind::Label(name) => drop(labels.insert(*name)),
            StatementKind::Instruction(of)
                if matches!(of.root(), "ret" | "exit" | "call" | "brx" | "trap") =>
            {
                return Err(format!("`{}` in a yield point", of.opcode));
            }
            StatementKind::Declaration(_) if statement.scope == 0 => {
                return Err("a declaration in a yield point".to_owned());
            }
            _ => {}
        }
    }
    for statement in &body.statements {
        let StatementKind::Instruction(of) = &statement.kind else { continue };
        let target = of.operands.last().and_then(|operand| operand.name());
        let Some(target) = target.filter(|_| of.root() == "bra") else { continue };
        let is_inside = span.start <= statement.span.start && statement.span.end <= span.end;
        if labels.contains(target) != is_inside {
            let line = module.place(statement.span.start).line;
            return Err(format!("a branch into or out of a yield point in line {line}"));
        }
    }
    Ok(())
}

/// Checks the barriers of the yield point: the vote of all threads, if they vote.
fn barriers(body: &Body<'_>, span: Span, form: Form) -> Result<(), String> {
    let mut votes = 0;
    for statement in within(body, span) {
        let StatementKind::Instruction(of) = &statement.kind else { continue };
        if !matches!(of.root(), "bar" | "barrier") {
            continue;
        }
        let number = of.operand(1).map(|number| number.text);
        let is_vote = of.opcode == "bar.red.or.pred" && number == Some(VOTE_BARRIER);
        if !is_vote || of.operands.len() != 3 || of.guard.is_some() {
            return Err(format!("a barrier `{}` in a yield point that is no vote", of.opcode));
        }
        votes += 1;
    }
    match (form, votes) {
        (Form::Polling, 0) | (Form::Voting, 1) => Ok(()),
        _ => Err(format!("{votes} votes in a yield point")),
    }
}
