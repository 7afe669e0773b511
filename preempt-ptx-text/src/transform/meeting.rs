//! Where threads of a block meet again that part: those that have ended the block-task, and those that wait at barriers.
//!
//! Where whole warps return, those come to each barrier of the others. Where lanes of a warp return, more is needed:
//!
//! The hardware takes a thread that has returned for arrived at every barrier. In a worker loop it has not returned, so all
//! places where threads wait become one, the meeting: it is a barrier by one instruction, because lanes of a warp that wait at
//! different ones hang. In each round, every thread of the block comes there, from the place that `%preempt_site` numbers
//! or because it has ended the block-task, and goes back to its place when all that it waits for are there.
//!
//! One instruction in the text is not one in the machine's code by itself: the assembler gives a place that it knows, or from which
//! it comes first, a copy of the barrier. So the numbers of places have a part that it does not know (`%preempt_nought`), and the
//! body starts at a place too, which makes the branch back to the places, and not the barrier, the head of the loop. And the
//! barrier is `.aligned`, since the lanes of the warp have met: without that there are two, one for lanes that come alone.
//!
//! Instructions that wait for lanes in a mask (`shfl.sync` and others) become such places too where lanes may have returned.
//! The lanes of a warp come together first. Those whose mask has no lane that is elsewhere go on, with the lanes that have
//! returned taken out of the mask. If none are at such an instruction, the warp comes to the barrier of the block.

use crate::text::Edit;
use crate::tree::{Body, FunctionItem, Instruction, Module, Place, Statement, StatementKind};
use crate::verdict::{Accepted, Judged, Refusal, Rule};

use super::body::TAIL;

/// Where threads go that have ended the block-task, while others may wait for them.
pub(super) const LEFT: &str = "$preempt_left";

/// All lanes of a warp, as a member mask.
const ALL_LANES: i64 = u32::MAX as i64;

const CURE: &str = "write the wait outside of braces, or let all threads come to it, or launch the kernel without preemption";

/// What an entry needs so that its threads meet.
#[derive(Debug)]
pub(super) struct Meeting {
    /// Make places of the instructions that wait.
    pub edits: Vec<Edit>,
    /// At the start of the body's scope.
    pub start: String,
    /// At the end of it.
    pub end: String,
}

impl Meeting {
    /// `None` if no thread waits for others after some have returned.
    pub fn of(
        module: &Module<'_>,
        entry: &FunctionItem<'_>,
        body: &Body<'_>,
        judged: &Judged<'_>,
        accepted: &Accepted,
    ) -> Result<Option<Meeting>, Refusal> {
        let has = |rule| accepted.rules.contains(&rule);
        if !has(Rule::EarlyExit) && !has(Rule::ReturnedLanes) {
            return Ok(None);
        }
        let refuse = |statement: &Statement<'_>, what: &str| {
            let place = module.place(statement.span.start);
            Refusal::new(entry.name, place, what.to_owned(), CURE)
        };
        let instructions = || {
            body.statements.iter().filter_map(|statement| match &statement.kind {
                StatementKind::Instruction(of) => Some((statement, of)),
                _ => None,
            })
        };
        let mut edits = Vec::new();
        if !has(Rule::ReturnedLanes) && !judged.lanes_part {
            for (statement, of) in instructions().filter(|(_, of)| is_barrier(of)) {
                let place = statement.span.start..statement.span.end;
                edits.push(Edit { place, text: reduction(of) });
            }
            let (start, end) = (String::new(), warps_that_left());
            return Ok(Some(Meeting { edits, start, end }));
        }
        let aligned = ["mma", "wmma", "wgmma", "ldmatrix", "stmatrix", "movmatrix"];
        if let Some((statement, of)) = instructions().find(|(_, of)| aligned.contains(&of.root())) {
            let what = format!(
                "`{}` needs all lanes of a warp, some of which may have returned",
                of.opcode
            );
            return Err(refuse(statement, &what));
        }
        let masks = instructions().filter(|(_, of)| of.has_member_mask());
        let is_partial = |of: &Instruction<'_>| {
            let mask = of.operands.last().and_then(|mask| mask.integer());
            mask.is_none_or(|mask| mask & ALL_LANES != ALL_LANES)
        };
        // By such a mask lanes wait for a part of their warp alone. At the meeting they wait for all of it.
        let has_parts = has(Rule::ReturnedLanes) && masks.into_iter().any(|(_, of)| is_partial(of));
        let mut sites = 0;
        if has_parts
            && let Some((place, what)) =
                judged.called.iter().find_map(|function| barrier_in(module, function))
        {
            return Err(Refusal::new(entry.name, place, what, CURE));
        }
        for (statement, of) in instructions().filter(|_| has_parts) {
            if is_look(of) {
                let what = format!(
                    "`{}` may wait for lanes that wait for a part of their warp, some of which may have returned",
                    of.opcode
                );
                return Err(refuse(statement, &what));
            }
        }
        let at_barriers = has(Rule::EarlyExit) || has_parts;
        for (statement, of) in instructions().filter(|(_, of)| at_barriers && is_barrier(of)) {
            let is_plain = of.has("sync")
                && matches!(&of.operands[..], [number] if number.integer() == Some(0));
            let what = match (statement.scope, is_plain || has(Rule::EarlyExit)) {
                (0, true) => None,
                (0, false) => Some("a barrier that is not all of the block's by number 0"),
                _ => Some("a barrier in braces"),
            };
            if let Some(what) = what {
                let what = format!("{what}, which threads may not come to because they returned");
                return Err(refuse(statement, &what));
            }
            let text = place(sites, of, "");
            edits.push(Edit { place: statement.span.start..statement.span.end, text });
            sites += 1;
        }
        let barriers = sites;
        let (mut last, scopes) = (None, scopes(body));
        let masked =
            instructions().filter(|(_, of)| has(Rule::ReturnedLanes) && of.has_member_mask());
        for (statement, of) in masked {
            let Some(mask) = of.operands.last() else { continue };
            let set = format!("mov.b32 %preempt_mask, {}; ", mask.text);
            let start = module.offset(mask.text);
            edits.push(Edit {
                place: start..start + mask.text.len(),
                text: "%preempt_mask".to_owned(),
            });
            if statement.scope == 0 {
                let text = place(sites, of, &set) + "\n\t";
                let at = statement.span.start;
                edits.push(Edit { place: at..at, text });
                sites += 1;
                continue;
            }
            // Labels in braces are not seen from outside, so the place is ahead of them.
            let (opens, closes) = scopes[outermost(body, statement.scope)];
            if last == Some((opens, mask.text)) && of.guard.is_none() {
                continue;
            }
            if last.is_some_and(|(before, _)| before == opens) {
                return Err(refuse(statement, "lanes of a warp wait in braces by several masks"));
            }
            let scope = &body.statements[opens..=closes];
            if of.guard.is_some() || !is_straight(scope) || !is_given(scope, mask.name()) {
                return Err(refuse(
                    statement,
                    "lanes of a warp wait in braces for lanes that may have returned",
                ));
            }
            let text = place(sites, of, &set) + "\n\t";
            let at = body.statements[opens].span.start;
            edits.push(Edit { place: at..at, text });
            sites += 1;
            last = Some((opens, mask.text));
        }
        let (start, end) = (declared(sites), meeting(barriers, sites));
        Ok(Some(Meeting { edits, start, end }))
    }
}

/// The first barrier of the block in a function that the entry calls.
fn barrier_in(module: &Module<'_>, function: &FunctionItem<'_>) -> Option<(Place, String)> {
    let statements = function.body.iter().flat_map(|body| &body.statements);
    let mut instructions = statements.filter_map(|statement| match &statement.kind {
        StatementKind::Instruction(of) => Some((statement, of)),
        _ => None,
    });
    let (statement, of) = instructions.find(|(_, of)| is_barrier(of))?;
    let what = format!(
        "`{}` in `{}`, which threads may not come to because they returned",
        of.opcode, function.name
    );
    Some((module.place(statement.span.start), what))
}

/// Whether a loop around it could wait for other threads of the block.
fn is_look(of: &Instruction<'_>) -> bool {
    let is_strong = of.has_any(&["volatile", "relaxed", "acquire", "mmio"]);
    match of.root() {
        "mbarrier" => of.has_any(&["test_wait", "try_wait"]),
        "ld" => is_strong && !of.has("global"),
        "atom" => !of.has("global"),
        _ => false,
    }
}

fn is_barrier(of: &Instruction<'_>) -> bool {
    matches!(of.root(), "bar" | "barrier") && !of.has_any(&["warp", "cluster"])
}

/// A barrier at which threads that have left can be told from others.
fn reduction(of: &Instruction<'_>) -> String {
    let guard = of.guard.map_or(String::new(), |guard| {
        format!("@{}{} ", if guard.is_negated { "!" } else { "" }, guard.register)
    });
    // As the instruction was: without `.aligned`, lanes may come one after the other.
    let root = if of.root() == "bar" || of.has("aligned") { "bar" } else { "barrier" };
    format!(
        "{{ .reg .pred %preempt_is_left, %preempt_all; setp.ne.u32 %preempt_is_left, 0, 0; \
        {guard}{root}.red.and.pred %preempt_all, 0, %preempt_is_left; }}"
    )
}

/// Warps that have left come to each barrier of the others, until all have left. Barriers pair by their number, not by where they
/// are. The lanes of a warp come together before, because they may leave at different places.
fn warps_that_left() -> String {
    format!(
        "{LEFT}:
\tbar.warp.sync -1;
$preempt_leaving:
\t{{
\t.reg .pred %preempt_is_left, %preempt_all;
\tsetp.eq.u32 %preempt_is_left, 0, 0;
\tbar.red.and.pred %preempt_all, 0, %preempt_is_left;
\t@!%preempt_all bra $preempt_leaving;
\t}}
"
    )
}

/// A place: a thread leaves it for the meeting, and comes back behind it.
fn place(site: usize, of: &Instruction<'_>, set: &str) -> String {
    let skip = of.guard.map_or(String::new(), |guard| {
        let negated = if guard.is_negated { "" } else { "!" };
        format!("@{negated}{} bra $preempt_site_{site}; ", guard.register)
    });
    format!(
        "{skip}{set}add.u32 %preempt_site, %preempt_nought, {site}; bra $preempt_meeting;\n$preempt_site_{site}:"
    )
}

/// What the places need. Behind the last of them are the meeting itself, and the start of the body.
fn declared(sites: usize) -> String {
    let list: Vec<_> = (0..sites).map(|site| format!("$preempt_site_{site}, ")).collect();
    format!(
        "
\t.reg .pred %preempt_is_left, %preempt_is_still, %preempt_is_ready, %preempt_all;
\t.reg .b32 %preempt_site, %preempt_mask, %preempt_left, %preempt_still, %preempt_lanes, %preempt_nought;
\tmov.u32 %preempt_nought, %nsmid;
\tshr.u32 %preempt_nought, %preempt_nought, 16;
\tmov.b32 %preempt_mask, 0;
$preempt_sites: .branchtargets {}$preempt_meeting, $preempt_begin;
\tadd.u32 %preempt_site, %preempt_nought, {};
\tbra $preempt_on;
$preempt_begin:",
        list.concat(),
        sites + 1
    )
}

/// The first `barriers` of the `sites` are barriers of the block. A thread that has left has the number behind the last.
fn meeting(barriers: usize, sites: usize) -> String {
    let mut text = format!(
        "{LEFT}:
\tadd.u32 %preempt_site, %preempt_nought, {sites};
$preempt_meeting:
\tbar.warp.sync -1;
\tsetp.eq.u32 %preempt_is_left, %preempt_site, {sites};
"
    );
    if sites > barriers {
        text += &format!(
            "\tsetp.lt.or.u32 %preempt_is_still, %preempt_site, {barriers}, %preempt_is_left;
\tvote.sync.ballot.b32 %preempt_left, %preempt_is_left, -1;
\tvote.sync.ballot.b32 %preempt_still, %preempt_is_still, -1;
\tvote.sync.all.pred %preempt_all, %preempt_is_still, -1;
\tnot.b32 %preempt_left, %preempt_left;
\tand.b32 %preempt_lanes, %preempt_mask, %preempt_left;
\tand.b32 %preempt_still, %preempt_lanes, %preempt_still;
\tnot.pred %preempt_is_still, %preempt_is_still;
\tsetp.eq.and.u32 %preempt_is_ready, %preempt_still, 0, %preempt_is_still;
\t@%preempt_is_ready mov.b32 %preempt_mask, %preempt_lanes;
\t@%preempt_is_ready bra $preempt_on;
\t@!%preempt_all bra $preempt_meeting;
"
        );
    }
    if barriers > 0 {
        text += &format!(
            "\tbar.red.and.pred %preempt_all, 0, %preempt_is_left;\n\t@%preempt_all bra {TAIL};\n"
        );
    } else {
        // All lanes of the warp have left.
        text += &format!("\tbra {TAIL};\n");
    }
    text + "$preempt_on:\n\tbrx.idx %preempt_site, $preempt_sites;\n"
}

/// The outermost scope around another one, within the body's own.
fn outermost(body: &Body<'_>, mut scope: usize) -> usize {
    while let Some(around) = body.scopes.get(scope).copied().flatten().filter(|&of| of != 0) {
        scope = around;
    }
    scope
}

/// The statements that open and close each scope.
fn scopes(body: &Body<'_>) -> Vec<(usize, usize)> {
    let mut scopes = vec![(0, 0); body.scopes.len()];
    for (at, statement) in body.statements.iter().enumerate() {
        match statement.kind {
            StatementKind::Open => scopes[statement.scope].0 = at,
            StatementKind::Close => scopes[statement.scope].1 = at,
            _ => {}
        }
    }
    scopes
}

/// Whether all threads that come in run it from the start to the end.
fn is_straight(scope: &[Statement<'_>]) -> bool {
    scope.iter().all(|statement| match &statement.kind {
        StatementKind::Label(_) | StatementKind::BranchTargets { .. } => false,
        StatementKind::Instruction(of) => {
            !matches!(of.root(), "bra" | "brx" | "ret" | "exit" | "call") && !is_barrier(of)
        }
        _ => true,
    })
}

/// Whether what a scope takes for a mask is there ahead of it: a number, or a register that it does not write.
fn is_given(scope: &[Statement<'_>], mask: Option<&str>) -> bool {
    let Some(name) = mask else { return true };
    scope.iter().all(|statement| match &statement.kind {
        StatementKind::Declaration(of) => of.names.iter().all(|declared| {
            declared.name != name && !(declared.count.is_some() && name.starts_with(declared.name))
        }),
        StatementKind::Instruction(of) => {
            of.operands.first().is_none_or(|first| !first.names.contains(&name))
                || of.operands.len() == 1
        }
        _ => true,
    })
}
