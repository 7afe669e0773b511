//! Whether a block-task may be dropped at a yield point and run again from its start (*idempotence*; section 3.4 of
//! Chimera, Park et al., ASPLOS 2015).
//!
//! A block-task runs again from the same state if nothing that it reads has changed, and then it writes the same elements
//! again. So the walk looks for what could change: elements that are written and read, atomic operations, shared memory
//! that is read before it is written, values that are not the same in each run, and code that it does not see. Nothing
//! is assumed that cannot be shown:
//!
//! - Memory that threads write is followed by name through `let`, tuples and pointers (`walk::Value`). Wherever it gets
//!   elsewhere, it is given up.
//! - Functions are known by name (`library`), and the expansion asserts by their types that they are what they seem.
//!   It asserts of constants that they are numbers, or arrays of numbers, and no `static` that changes.
//! - Operators and methods of what may be a user's type are unknown, as in `uniform`.
//!
//! Assumptions remain. Fields are the type's own. No trait of the user's gives numbers, `()`, slices, `Option`s, iterators,
//! `Own` and `WarpReductionOp` a method that the library has for others of them. `Some` and `None` are the library's.
//! Number types have their own names. Pointers stay within their buffers. Shared arrays have no initial contents, so a
//! block-task that reads an element reads one that it has written, if it has written the array.

use std::collections::{HashMap, HashSet};

use proc_macro2::Span;
use syn::visit::{self, Visit};
use syn::{Attribute, Error, Expr, ExprMacro, Path, StmtMacro};

use self::findings::{Findings, Obstacle};
pub use self::findings::{StatementId, statement_id};
pub use self::library::ASSERTIONS;
use self::types::Ty;
use self::walk::{Memory, Shape, Value, Walk};
use crate::names::{text_of, yield_point};
use crate::parse::{Form, Kernel, ParamKind, Proof};

mod calls;
mod findings;
mod library;
mod patterns;
mod places;
#[cfg(test)]
mod tests;
mod types;
mod walk;

/// When block-tasks of a kernel may be dropped.
pub enum Verdict {
    /// At each yield point.
    Strict(Assumptions),
    /// Until a thread gets to the obstacle.
    Relaxed(Relaxed),
    /// At none.
    Never(Obstacle),
}

pub struct Relaxed {
    /// The first of them.
    obstacle: Obstacle,
    carried_back: CarriedBack,
    /// Where threads say that they come to an obstacle. Without that, the block-task cannot be dropped.
    markers: Result<Markers, Unmarked>,
    assumptions: Assumptions,
}

/// Why a kernel with an obstacle has no markers.
enum Unmarked {
    /// No yield point is ahead of the obstacle, so all of them would be without effect.
    NothingAhead,
    /// There is an obstacle in a function inside the body.
    InFunction,
}

/// The statements ahead of which markers stand: those with an obstacle, the innermost ones. A thread comes to each
/// obstacle past the start of its statement.
#[derive(Default)]
pub struct Markers(pub HashSet<StatementId>);

/// Whether a loop leads from the obstacle to a yield point ahead of it.
pub struct CarriedBack(pub bool);

/// Paths whose meaning the expansion asserts.
pub struct Assumptions {
    /// Functions of `preempt_device`.
    pub functions: Vec<Path>,
    /// Constants that are numbers, or arrays of numbers.
    pub constants: Vec<Path>,
}

/// What the proof assumes that a kernel can run again up to statement `position`, its checkpoint, when it has run on behind
/// that; or why it cannot.
pub fn start(kernel: &Kernel, position: usize) -> Result<Assumptions, Error> {
    let (mut walk, names) = prepared(kernel);
    let (start, rest) = kernel.body.stmts.split_at(position);
    let mut assumptions = Assumptions { functions: Vec::new(), constants: Vec::new() };
    let mut count = 0;
    walk.scoped(|walk| {
        walk.statements(start);
        count = walk.found.count();
        assumptions.functions.clone_from(&walk.functions);
        assumptions.constants.clone_from(&walk.constants);
        walk.statements(rest);
    });
    let Some(obstacle) = walk.found.start_obstacle(count, &names) else { return Ok(assumptions) };
    let mut error = Error::new(
        obstacle.span,
        format!(
            "{}. What is ahead of a checkpoint runs again when a block-task goes on from there; move it into the loop or \
             behind it. If it gives the same again, declare it: `#[preemptible(idempotent)]`",
            obstacle.message
        ),
    );
    if let Some((span, message)) = obstacle.other {
        error.combine(Error::new(span, message));
    }
    Err(error)
}

/// The verdict about a kernel with yield points, where the whole block `votes` or each thread decides for itself.
pub fn verdict(kernel: &Kernel, votes: bool) -> Verdict {
    let (mut walk, names) = prepared(kernel);
    walk.block(&kernel.body);
    let Walk { found, functions, constants, .. } = walk;
    let assumptions = Assumptions { functions, constants };
    match found.obstacle(&names, votes) {
        None => Verdict::Strict(assumptions),
        Some(obstacle) if obstacle.until_here => {
            let carried_back = CarriedBack(found.is_carried_back(&obstacle));
            let markers = match found.marked(&names, votes) {
                None => Err(Unmarked::InFunction),
                Some(_) if !found.yields_ahead_of(&obstacle) => Err(Unmarked::NothingAhead),
                Some(statements) => Ok(Markers(statements)),
            };
            Verdict::Relaxed(Relaxed { obstacle, carried_back, markers, assumptions })
        }
        Some(obstacle) => Verdict::Never(obstacle),
    }
}

/// A walk that has seen the attributes of the body, and the names of the parameters.
fn prepared(kernel: &Kernel) -> (Walk, Vec<String>) {
    let mut names = Vec::new();
    let mut scope = HashMap::new();
    for (number, param) in kernel.params.iter().enumerate() {
        let value = match &param.kind {
            ParamKind::Value => Value::Data(Ty::of_type(&param.ty)),
            ParamKind::Buffer { form, element } => match form {
                Form::Slice => Value::Data(Ty::of_type(element).many().by_ref()),
                Form::ConstPtr => Value::Data(Ty::Ptr(Box::new(Ty::of_type(element)))),
                Form::MutPtr | Form::SliceMut | Form::PerThread => {
                    let shape = match form {
                        Form::SliceMut => Shape::Slice,
                        Form::PerThread => Shape::PerThread,
                        _ => Shape::Pointer,
                    };
                    Value::Place(Memory::Global(number), shape, Ty::of_type(element))
                }
            },
        };
        names.push(param.ident.to_string());
        scope.insert(text_of(&param.ident), value);
    }
    let mut walk = Walk {
        found: Findings::default(),
        scopes: vec![scope],
        written: HashSet::new(),
        shared_arrays: 0,
        yield_in_loops: kernel.options.yield_in_loops.is_some(),
        names_number: false,
        closures: 0,
        returned: None,
        in_macro: false,
        constants: Vec::new(),
        functions: Vec::new(),
    };
    let mut attributes = Attributes(&mut walk.found);
    attributes.visit_block(&kernel.body);
    (walk, names)
}

/// What is said of a kernel that is declared where the proof would have found nothing.
const NOTHING_AGAINST: &str = "declared; the analysis finds nothing against it";

impl Verdict {
    /// What the proof assumes that the kernel can be dropped, with its markers, if there is one.
    pub fn proof(&self) -> Option<(&Assumptions, Option<&Markers>)> {
        match self {
            Verdict::Strict(assumptions) => Some((assumptions, None)),
            Verdict::Relaxed(Relaxed { markers: Ok(markers), assumptions, .. }) => {
                Some((assumptions, Some(markers)))
            }
            _ => None,
        }
    }

    /// The reason why a kernel without markers needs the word `idempotent`, if it does.
    pub fn error(&self) -> Option<Error> {
        let (obstacle, when) = match self {
            Verdict::Strict(_) => return None,
            Verdict::Relaxed(Relaxed { obstacle, carried_back, markers, .. }) => {
                let back = if carried_back.0 { ", also where the loop leads back" } else { "" };
                let ahead = match markers {
                    Err(Unmarked::NothingAhead) => {
                        ", and no yield point is ahead of that; put one there"
                    }
                    _ => "",
                };
                let from = from(obstacle.span);
                (
                    obstacle,
                    format!(
                        "may stop at a yield point and run again from its start, but not{from}{back}{ahead}"
                    ),
                )
            }
            Verdict::Never(obstacle) => (
                obstacle,
                "that stops at a yield point may give another result when it runs again".to_owned(),
            ),
        };
        let mut error = Error::new(
            obstacle.span,
            format!(
                "{}. A block-task {when}. If it gives the same result wherever its threads stopped, declare it: \
                 `#[preemptible(idempotent)]`",
                obstacle.message
            ),
        );
        if let Some((span, message)) = &obstacle.other {
            error.combine(Error::new(*span, message));
        }
        Some(error)
    }

    /// What the host is told of it. `declared`: by the word `idempotent`.
    pub fn proof_of(&self, declared: bool) -> Proof {
        let idempotence = match self {
            // What a proof assumes of names is not checked where it is not needed.
            _ if declared => "Declared",
            Verdict::Strict(_) => "Strict",
            Verdict::Relaxed(_) => "Relaxed",
            Verdict::Never(_) => "Declared",
        };
        let reason = match self {
            Verdict::Strict(_) if declared => NOTHING_AGAINST.to_owned(),
            Verdict::Relaxed(Relaxed { obstacle, .. }) if declared => {
                format!("declared, and not proved{}: {}", from(obstacle.span), obstacle.message)
            }
            Verdict::Never(obstacle) => {
                format!("declared, and not proved{}: {}", at(obstacle.span), obstacle.message)
            }
            _ => self.explanation(declared),
        };
        Proof { idempotence, reason }
    }

    /// The verdict in a sentence for the kernel's documentation, with its reason.
    pub fn summary(&self, declared: bool) -> String {
        let known = match self {
            Verdict::Strict(_) if declared => format!("This is {NOTHING_AGAINST}"),
            Verdict::Strict(_) => "This is proved".to_owned(),
            Verdict::Relaxed(Relaxed { obstacle, markers: Ok(_), .. }) if !declared => {
                let until = until(obstacle.span);
                format!(
                    "This is proved {until}; from then on it runs to its end: {}",
                    obstacle.message
                )
            }
            Verdict::Relaxed(Relaxed { obstacle, .. }) => {
                let from = from(obstacle.span);
                format!("This is declared, and not proved{from}: {}", obstacle.message)
            }
            Verdict::Never(obstacle) => {
                let at = at(obstacle.span);
                format!("This is declared, and not proved{at}: {}", obstacle.message)
            }
        };
        format!(" A block-task that stops at a yield point may run again from its start. {known}.")
    }

    /// The verdict, with its reason.
    pub fn explanation(&self, declared: bool) -> String {
        match self {
            Verdict::Strict(_) => {
                "a block-task may be dropped at each of its yield points (strict)".to_owned()
            }
            Verdict::Relaxed(Relaxed { obstacle, carried_back, markers: Ok(_), .. })
                if !declared =>
            {
                let back = match carried_back.0 {
                    true => ", also not where the loop leads back",
                    false => "",
                };
                format!(
                    "a block-task may be dropped at its yield points {}; from then on it runs to its end{back} \
                     (relaxed): {}",
                    until(obstacle.span),
                    obstacle.message
                )
            }
            Verdict::Relaxed(Relaxed { obstacle, .. }) => format!(
                "a block-task may be dropped at its yield points, but not{} (relaxed): {}",
                from(obstacle.span),
                obstacle.message
            ),
            Verdict::Never(obstacle) => format!(
                "that a block-task may be dropped at its yield points is not proved{}: {}",
                at(obstacle.span),
                obstacle.message
            ),
        }
    }
}

/// The line of a token. Unit tests have no lines.
fn line(span: Span) -> Option<usize> {
    proc_macro::is_available().then(|| span.unwrap().line())
}

fn from(span: Span) -> String {
    line(span).map_or_else(|| " from here on".to_owned(), |line| format!(" from line {line} on"))
}

fn until(span: Span) -> String {
    let place = line(span).map_or_else(|| "this place".to_owned(), |line| format!("line {line}"));
    format!("until one of its threads gets to {place}")
}

fn at(span: Span) -> String {
    line(span).map_or_else(String::new, |line| format!(" because of line {line}"))
}

impl Walk {
    /// The attributes in an argument of a macro.
    fn attributes_of(&mut self, expr: &Expr) {
        Attributes(&mut self.found).visit_expr(expr);
    }
}

/// Looks for attributes that may change the body. Those of yield points may only remove them.
struct Attributes<'a>(&'a mut Findings);

impl<'ast> Visit<'ast> for Attributes<'_> {
    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        const HARMLESS: [&str; 7] = ["allow", "deny", "doc", "expect", "forbid", "inline", "warn"];
        if !HARMLESS.iter().any(|name| attribute.path().is_ident(name)) {
            self.0.in_function(true);
            self.0.unrepeatable(
                attribute.bracket_token.span.open(),
                "what this attribute makes of the body is not seen; write two kernels and put the attribute on them",
            );
            self.0.in_function(false);
        }
    }

    fn visit_stmt_macro(&mut self, stmt: &'ast StmtMacro) {
        if yield_point(&stmt.mac).is_none() {
            visit::visit_stmt_macro(self, stmt);
        }
    }

    fn visit_expr_macro(&mut self, expr: &'ast ExprMacro) {
        if yield_point(&expr.mac).is_none() {
            visit::visit_expr_macro(self, expr);
        }
    }
}
