//! Whether a thread can end ahead of a barrier at which the others would wait for it.
//!
//! The analysis is syntactic. It sees the body, the functions and closures inside it, and the tokens of macro
//! calls, but no helper function elsewhere. A barrier that it does not see hangs on the GPU, and the CPU
//! device reports it.

use std::collections::HashSet;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{
    Block, Error, Expr, ExprAsync, ExprClosure, ExprForLoop, ExprLoop, ExprMethodCall, ExprPath,
    ExprReturn, ExprWhile, Item, ItemFn, Local, Macro, Pat, UseRename,
};

use super::uniform::Uniformity;
use super::uniform::kinds;
use crate::errors::Errors;
use crate::names::yield_point;
use crate::primitives::Primitive;

/// Refuses each `return` and each yield point that could leave other threads waiting. Returns what all
/// threads have alike, or `None` for a body in which threads never wait for each other.
pub fn check_barriers<'a>(
    body: &Block,
    params: impl IntoIterator<Item = (&'a Ident, bool, kinds::Kind)>,
    has_checkpoint: bool,
    errors: &mut Errors,
) -> Option<Uniformity> {
    let mut points = Walk::over(body, &Synchronizing::in_body(body)).points;
    // All threads of a block leave together at a checkpoint.
    let waits = has_checkpoint || points.iter().any(|point| point.barrier().is_some());
    let uniformity = waits.then(|| Uniformity::of(body, params));
    if let Some(uniformity) = &uniformity {
        // In such a body the whole block waits at a yield point, to decide together.
        for point in points.iter_mut().filter(|point| point.kind == Kind::Yield) {
            point.kind = Kind::Barrier("yield_point!".into());
        }
        check_yields(uniformity, errors);
    }
    check_returns(&points, errors);
    uniformity
}

fn check_returns(points: &[Point], errors: &mut Errors) {
    let mut barriers = Vec::new();
    for (at, point) in points.iter().enumerate().filter(|(_, point)| point.kind == Kind::Return) {
        let missed = |(index, other): &(usize, &Point)| {
            other.barrier().is_some() && (*index > at || point.shares_loop_with(other))
        };
        // The next barrier if there is one, else the first one in a loop around both.
        let mut missed = points.iter().enumerate().filter(missed);
        let Some((index, barrier)) =
            missed.clone().find(|(index, _)| *index > at).or_else(|| missed.next())
        else {
            continue;
        };
        let name = barrier.barrier().unwrap_or_default();
        let place = if index > at { "below" } else { "in the next round of the loop" };
        errors.add(Error::new(
            point.span,
            format!(
                "threads that return here never reach `{name}` {place}; make the rest of the body \
                 conditional (`if i < n {{ .. }}`) and keep the barrier outside of it, or return \
                 after the last barrier"
            ),
        ));
        if !barriers.contains(&index) {
            barriers.push(index);
        }
    }
    for index in barriers {
        let message = "every thread must reach this, but some may have returned";
        errors.add(Error::new(points[index].span, message));
    }
}

/// Refuses yield points that some threads may miss, in a body with barriers.
fn check_yields(uniformity: &Uniformity, errors: &mut Errors) {
    for (point, decides) in &uniformity.divergent_points {
        errors.add(Error::new(
            *point,
            "in a body with barriers or a checkpoint, all threads of a block have to reach a yield point together, and \
             that is not certain here; put it where only parameters, constants and block indices decide \
             whether it is reached, and take numbers out of types of your own first (`let n: u32 = p.n;`)",
        ));
        errors.add(Error::new(*decides, "this may differ between threads"));
    }
}

/// A barrier, `return` or yield point of the body.
struct Point {
    span: Span,
    kind: Kind,
    /// The numbers of the loops around it, outermost first.
    loops: Vec<usize>,
}

#[derive(PartialEq, Eq)]
enum Kind {
    Return,
    Yield,
    /// A call of the function of this name, which waits for other threads.
    Barrier(String),
}

impl Point {
    /// The function that waits for other threads here, if there is one.
    fn barrier(&self) -> Option<&str> {
        match &self.kind {
            Kind::Barrier(name) => Some(name),
            Kind::Return | Kind::Yield => None,
        }
    }

    fn shares_loop_with(&self, other: &Point) -> bool {
        // Loops nest: two points share a loop exactly if they share the outermost one.
        !self.loops.is_empty() && self.loops.first() == other.loops.first()
    }
}

/// The names of functions that wait for other threads: primitives, and functions of the body that call them.
#[derive(Default)]
struct Synchronizing {
    local: HashSet<String>,
}

impl Synchronizing {
    fn contains(&self, ident: &Ident) -> bool {
        let name = ident.to_string();
        Primitive::named(&name).is_some_and(|primitive| primitive.synchronizes)
            || self.local.contains(&name)
    }

    /// The primitives, and the functions, closures and imports in `body` that lead to a barrier. They can
    /// call each other, so the search is repeated until it finds no more.
    fn in_body(body: &Block) -> Synchronizing {
        let mut names = Synchronizing::default();
        loop {
            let before = names.local.len();
            Definitions { names: &mut names }.visit_block(body);
            if names.local.len() == before {
                return names;
            }
        }
    }
}

/// Adds the visited definitions that lead to a barrier to `names`.
struct Definitions<'a> {
    names: &'a mut Synchronizing,
}

impl Definitions<'_> {
    fn add(&mut self, ident: &Ident) {
        self.names.local.insert(ident.to_string());
    }
}

impl<'ast> Visit<'ast> for Definitions<'_> {
    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        if Walk::over(&function.block, self.names).has_barrier() {
            self.add(&function.sig.ident);
        }
        visit::visit_item_fn(self, function);
    }

    fn visit_local(&mut self, local: &'ast Local) {
        if let Pat::Ident(pat) = &local.pat
            && let Some(init) = &local.init
            && let Expr::Closure(_) | Expr::Path(_) = &*init.expr
        {
            let mut walk = Walk::new(self.names);
            walk.visit_expr(&init.expr);
            if walk.has_barrier() {
                self.add(&pat.ident);
            }
        }
        visit::visit_local(self, local);
    }

    fn visit_use_rename(&mut self, rename: &'ast UseRename) {
        if self.names.contains(&rename.ident) {
            self.add(&rename.rename);
        }
    }
}

/// Collects the points of a function's body, in the order of the text.
struct Walk<'a> {
    names: &'a Synchronizing,
    points: Vec<Point>,
    loops: Vec<usize>,
    loops_seen: usize,
    /// The number of closures and async blocks around. A `return` inside one is not the kernel's, and a yield
    /// point there is refused for another reason.
    inner_functions: usize,
}

impl<'a> Walk<'a> {
    fn new(names: &'a Synchronizing) -> Self {
        Walk { names, points: Vec::new(), loops: Vec::new(), loops_seen: 0, inner_functions: 0 }
    }

    fn over(body: &Block, names: &'a Synchronizing) -> Self {
        let mut walk = Walk::new(names);
        walk.visit_block(body);
        walk
    }

    fn has_barrier(&self) -> bool {
        self.points.iter().any(|point| point.barrier().is_some())
    }

    fn add(&mut self, span: Span, kind: Kind) {
        self.points.push(Point { span, kind, loops: self.loops.clone() });
    }

    /// Adds a point at which the thread ends.
    fn add_end(&mut self, span: Span, kind: Kind) {
        if self.inner_functions == 0 {
            self.add(span, kind);
        }
    }

    fn add_if_barrier(&mut self, ident: &Ident) {
        if self.names.contains(ident) {
            self.add(ident.span(), Kind::Barrier(ident.to_string()));
        }
    }

    fn in_loop(&mut self, visit: impl FnOnce(&mut Self)) {
        self.loops.push(self.loops_seen);
        self.loops_seen += 1;
        visit(self);
        self.loops.pop();
    }

    fn in_inner_function(&mut self, visit: impl FnOnce(&mut Self)) {
        self.inner_functions += 1;
        visit(self);
        self.inner_functions -= 1;
    }

    /// Visits the tokens of a macro. Its expansion is unknown, so each name in it counts.
    fn visit_tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.visit_tokens(group.stream()),
                TokenTree::Ident(ident) if ident == "return" => {
                    self.add_end(ident.span(), Kind::Return);
                }
                TokenTree::Ident(ident) => self.add_if_barrier(&ident),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Walk<'_> {
    fn visit_expr_return(&mut self, expr: &'ast ExprReturn) {
        visit::visit_expr_return(self, expr);
        self.add_end(expr.return_token.span, Kind::Return);
    }

    // Not only calls: a function that is passed on is called elsewhere.
    fn visit_expr_path(&mut self, expr: &'ast ExprPath) {
        if let Some(last) = expr.path.segments.last() {
            self.add_if_barrier(&last.ident);
        }
        visit::visit_expr_path(self, expr);
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        visit::visit_expr_method_call(self, call);
        self.add_if_barrier(&call.method);
    }

    fn visit_macro(&mut self, mac: &'ast Macro) {
        match yield_point(mac) {
            Some(name) => self.add_end(name.span(), Kind::Yield),
            None => self.visit_tokens(mac.tokens.clone()),
        }
    }

    fn visit_expr_loop(&mut self, expr: &'ast ExprLoop) {
        self.in_loop(|walk| visit::visit_expr_loop(walk, expr));
    }

    fn visit_expr_while(&mut self, expr: &'ast ExprWhile) {
        self.in_loop(|walk| visit::visit_expr_while(walk, expr));
    }

    fn visit_expr_for_loop(&mut self, expr: &'ast ExprForLoop) {
        self.visit_expr(&expr.expr);
        self.in_loop(|walk| walk.visit_block(&expr.body));
    }

    fn visit_expr_closure(&mut self, expr: &'ast ExprClosure) {
        self.in_inner_function(|walk| visit::visit_expr_closure(walk, expr));
    }

    fn visit_expr_async(&mut self, expr: &'ast ExprAsync) {
        self.in_inner_function(|walk| visit::visit_expr_async(walk, expr));
    }

    /// A function inside the body does not run where it is defined.
    fn visit_item(&mut self, _: &'ast Item) {}
}
