//! Which parts of a body all threads of a block run together.
//!
//! A yield point in a body with barriers is a vote of the whole block, so every thread has to come to
//! it. What cannot be shown is not assumed: a value is *uniform*, the same in all threads, only if it
//! is made of parameters, literals, constants and the block's own indices by operations that are known,
//! and a place is uniform only if all branches and loops around it are. Variables are known by name
//! alone, so those that share one are uniform together or not at all.

use std::collections::HashMap;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    BinOp, Block, Expr, ExprAssign, ExprAsync, ExprBinary, ExprBreak, ExprClosure, ExprContinue,
    ExprForLoop, ExprIf, ExprLoop, ExprMatch, ExprMethodCall, ExprReference, ExprWhile, Item,
    Local, Macro, Pat, PatGuard, Path, UnOp,
};

use crate::yields::yield_point;

/// What was found out about a body.
#[derive(Default)]
pub struct Uniformity {
    /// Yield points that not all threads may come to, each with what decides who does.
    pub divergent_points: Vec<(Span, Span)>,
    /// For each loop, in the order of the text, whether all threads run its body together; `None` for
    /// those in closures and the like.
    pub loops: Vec<Option<bool>>,
}

impl Uniformity {
    /// Of a body whose parameters have these names.
    pub fn of<'a>(body: &Block, params: impl IntoIterator<Item = &'a Ident>) -> Uniformity {
        let mut known = Known {
            variables: params.into_iter().map(|name| (name.to_string(), true)).collect(),
            broken_loops: HashMap::new(),
        };
        // What is found to differ may make more differ, so often until nothing is found.
        loop {
            let before = (known.differing(), known.broken_loops.len());
            let mut walk = Walk::new(&mut known);
            walk.visit_block(body);
            let found = walk.found;
            if (known.differing(), known.broken_loops.len()) == before {
                return found;
            }
        }
    }
}

/// What is known so far; it only gets less.
struct Known {
    /// For each variable, whether it is uniform.
    variables: HashMap<String, bool>,
    /// Loops that some threads may leave, or begin anew, before others, and where.
    broken_loops: HashMap<usize, Span>,
}

impl Known {
    fn differing(&self) -> usize {
        self.variables.values().filter(|uniform| !**uniform).count()
    }

    fn add(&mut self, name: &Ident, uniform: bool) {
        let known = self.variables.entry(name.to_string()).or_insert(true);
        *known &= uniform;
    }

    fn are_uniform<'a>(&self, exprs: impl IntoIterator<Item = &'a Expr>) -> bool {
        exprs.into_iter().all(|expr| self.is_uniform(expr))
    }

    /// Whether all threads have the same value.
    fn is_uniform(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Lit(_) => true,
            Expr::Path(path) => match path.path.get_ident() {
                // What is not a variable is a constant, or a function by name.
                Some(name) => self.variables.get(&name.to_string()).copied().unwrap_or(true),
                None => true,
            },
            Expr::Paren(inner) => self.is_uniform(&inner.expr),
            Expr::Group(inner) => self.is_uniform(&inner.expr),
            Expr::Cast(inner) => self.is_uniform(&inner.expr),
            Expr::Field(inner) => self.is_uniform(&inner.base),
            Expr::Reference(inner) => inner.mutability.is_none() && self.is_uniform(&inner.expr),
            // What a pointer points to, others may write.
            Expr::Unary(unary) => {
                !matches!(unary.op, UnOp::Deref(_)) && self.is_uniform(&unary.expr)
            }
            Expr::Binary(binary) => self.is_uniform(&binary.left) && self.is_uniform(&binary.right),
            // Slices are read by all and written by nobody, and arrays are variables.
            Expr::Index(index) => self.is_uniform(&index.expr) && self.is_uniform(&index.index),
            Expr::Range(range) => {
                range.start.iter().chain(&range.end).all(|bound| self.is_uniform(bound))
            }
            Expr::Tuple(tuple) => self.are_uniform(&tuple.elems),
            Expr::Array(array) => self.are_uniform(&array.elems),
            Expr::Repeat(repeat) => self.is_uniform(&repeat.expr),
            Expr::Call(call) => {
                let Expr::Path(function) = &*call.func else { return false };
                is_vote(&function.path)
                    || is_uniform_function(&function.path) && self.are_uniform(&call.args)
            }
            Expr::MethodCall(call) => {
                is_pure_method(&call.method)
                    && self.is_uniform(&call.receiver)
                    && self.are_uniform(&call.args)
            }
            _ => false,
        }
    }
}

/// Functions that give all threads of a block the same, whatever their arguments.
fn is_vote(path: &Path) -> bool {
    const VOTES: [&str; 3] = ["sync_threads_and", "sync_threads_count", "sync_threads_or"];
    path.segments.last().is_some_and(|last| VOTES.iter().any(|vote| last.ident == vote))
}

/// Functions that give all threads of a block the same, if their arguments are.
fn is_uniform_function(path: &Path) -> bool {
    const FUNCTIONS: [&str; 15] = [
        "Some",
        "block_dim",
        "block_dim_x",
        "block_dim_y",
        "block_dim_z",
        "block_idx",
        "block_idx_x",
        "block_idx_y",
        "block_idx_z",
        "grid_dim",
        "grid_dim_x",
        "grid_dim_y",
        "grid_dim_z",
        "size_of",
        "warp_size",
    ];
    const NUMBERS: [&str; 14] = [
        "f32", "f64", "i8", "i16", "i32", "i64", "i128", "isize", "u8", "u16", "u32", "u64",
        "u128", "usize",
    ];
    let names: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
    match &names[..] {
        [number, name] if NUMBERS.contains(&number.as_str()) => name == "from",
        [.., name] => FUNCTIONS.contains(&name.as_str()),
        [] => false,
    }
}

/// Methods of numbers, ranges and slices that change nothing and depend on nothing else.
fn is_pure_method(name: &Ident) -> bool {
    const METHODS: [&str; 25] = [
        "abs",
        "abs_diff",
        "clamp",
        "clone",
        "count_ones",
        "div_ceil",
        "enumerate",
        "ilog2",
        "into",
        "is_empty",
        "is_power_of_two",
        "iter",
        "leading_zeros",
        "len",
        "max",
        "min",
        "next_multiple_of",
        "next_power_of_two",
        "pow",
        "rem_euclid",
        "rev",
        "skip",
        "step_by",
        "take",
        "trailing_zeros",
    ];
    let name = name.to_string();
    METHODS.contains(&name.as_str())
        || ["wrapping_", "saturating_"].iter().any(|start| name.starts_with(start))
}

/// One look at the whole body.
struct Walk<'a> {
    known: &'a mut Known,
    found: Uniformity,
    /// What decides who comes here, if not all do.
    divergence: Option<Span>,
    /// The loops around, by number.
    loops: Vec<usize>,
    /// Whether a closure or the like is around, of which it is not known who runs it when.
    inner_functions: usize,
}

impl<'a> Walk<'a> {
    fn new(known: &'a mut Known) -> Self {
        let (found, loops) = (Uniformity::default(), Vec::new());
        Walk { known, found, divergence: None, loops, inner_functions: 0 }
    }

    /// Visits what runs only where `condition` says so.
    fn under(&mut self, condition: &Expr, visit: impl FnOnce(&mut Self)) {
        let uniform = self.is_uniform_condition(condition);
        self.with(uniform, condition.span(), visit);
    }

    fn with(&mut self, uniform: bool, decides: Span, visit: impl FnOnce(&mut Self)) {
        let before = self.divergence;
        if !uniform {
            self.divergence.get_or_insert(decides);
        }
        visit(self);
        self.divergence = before;
    }

    /// Whether a condition is uniform, `let` in it included, whose names it makes known.
    fn is_uniform_condition(&mut self, condition: &Expr) -> bool {
        match condition {
            Expr::Let(test) => {
                let uniform = self.known.is_uniform(&test.expr);
                self.bind(&test.pat, uniform);
                uniform
            }
            Expr::Binary(ExprBinary { left, op: BinOp::And(_), right, .. }) => {
                let left = self.is_uniform_condition(left);
                self.is_uniform_condition(right) && left
            }
            condition => self.known.is_uniform(condition),
        }
    }

    /// Makes the names in a pattern known.
    fn bind(&mut self, pat: &Pat, uniform: bool) {
        struct Names<'a>(&'a mut Known, bool);
        impl<'ast> Visit<'ast> for Names<'_> {
            fn visit_pat_ident(&mut self, pat: &'ast syn::PatIdent) {
                // A mutable reference to a part lets that be written under another name.
                self.0.add(&pat.ident, self.1 && pat.by_ref.is_none());
                visit::visit_pat_ident(self, pat);
            }
        }
        Names(self.known, uniform).visit_pat(pat);
    }

    /// Takes note that a place is written, with a value that is `uniform` or not.
    fn write(&mut self, place: &Expr, uniform: bool) {
        let mut place = place;
        let mut uniform = uniform && self.divergence.is_none() && self.inner_functions == 0;
        loop {
            match place {
                Expr::Path(path) => {
                    if let Some(name) = path.path.get_ident() {
                        self.known.add(name, uniform);
                    }
                    return;
                }
                Expr::Index(index) => {
                    uniform &= self.known.is_uniform(&index.index);
                    place = &index.expr;
                }
                Expr::Field(field) => place = &field.base,
                Expr::Paren(inner) => place = &inner.expr,
                Expr::Group(inner) => place = &inner.expr,
                Expr::Tuple(tuple) => {
                    tuple.elems.iter().for_each(|elem| self.write(elem, uniform));
                    return;
                }
                // What a pointer points to, which never is uniform.
                _ => return,
            }
        }
    }

    fn in_loop(&mut self, visit: impl FnOnce(&mut Self)) {
        let number = self.found.loops.len();
        self.found.loops.push(None);
        self.loops.push(number);
        let broken = self.known.broken_loops.get(&number).copied();
        self.with(broken.is_none(), broken.unwrap_or_else(Span::call_site), |walk| {
            if walk.inner_functions == 0 {
                walk.found.loops[number] = Some(walk.divergence.is_none());
            }
            visit(walk);
        });
        self.loops.pop();
    }

    /// A loop around is left, or begins anew, by whoever comes here.
    fn leave(&mut self, span: Span, is_labelled: bool) {
        if self.divergence.is_some() {
            // A label may name any of them.
            let count = if is_labelled { self.loops.len() } else { 1 };
            for number in self.loops.iter().rev().take(count) {
                self.known.broken_loops.entry(*number).or_insert(span);
            }
        }
    }

    fn in_inner_function(&mut self, visit: impl FnOnce(&mut Self)) {
        self.inner_functions += 1;
        let loops = std::mem::take(&mut self.loops);
        visit(self);
        self.loops = loops;
        self.inner_functions -= 1;
    }

    /// What a macro makes of its tokens is not known: it may write every variable that it names.
    fn visit_tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.visit_tokens(group.stream()),
                TokenTree::Ident(name) if self.known.variables.contains_key(&name.to_string()) => {
                    self.known.add(&name, false);
                }
                _ => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Walk<'_> {
    fn visit_local(&mut self, local: &'ast Local) {
        visit::visit_local(self, local);
        let uniform = match &local.init {
            Some(init) => self.known.is_uniform(&init.expr) || is_shared_array(&init.expr),
            // Whoever gives it a value says more.
            None => true,
        };
        self.bind(&local.pat, uniform);
    }

    fn visit_expr_assign(&mut self, expr: &'ast ExprAssign) {
        visit::visit_expr_assign(self, expr);
        let uniform = self.known.is_uniform(&expr.right);
        self.write(&expr.left, uniform);
    }

    fn visit_expr_binary(&mut self, expr: &'ast ExprBinary) {
        match expr.op {
            BinOp::And(_) | BinOp::Or(_) => {
                self.visit_expr(&expr.left);
                self.under(&expr.left, |walk| walk.visit_expr(&expr.right));
            }
            _ => visit::visit_expr_binary(self, expr),
        }
        // `+=` and the like, whose names end with it.
        if let BinOp::AddAssign(_)
        | BinOp::SubAssign(_)
        | BinOp::MulAssign(_)
        | BinOp::DivAssign(_)
        | BinOp::RemAssign(_)
        | BinOp::BitXorAssign(_)
        | BinOp::BitAndAssign(_)
        | BinOp::BitOrAssign(_)
        | BinOp::ShlAssign(_)
        | BinOp::ShrAssign(_) = expr.op
        {
            let uniform = self.known.is_uniform(&expr.right);
            self.write(&expr.left, uniform);
        }
    }

    fn visit_expr_reference(&mut self, expr: &'ast ExprReference) {
        visit::visit_expr_reference(self, expr);
        if expr.mutability.is_some() {
            self.write(&expr.expr, false);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        visit::visit_expr_method_call(self, call);
        if !is_pure_method(&call.method) {
            // It may take `&mut self`.
            self.write(&call.receiver, false);
        }
    }

    fn visit_expr_if(&mut self, expr: &'ast ExprIf) {
        self.visit_expr(&expr.cond);
        self.under(&expr.cond, |walk| {
            walk.visit_block(&expr.then_branch);
            if let Some((_, otherwise)) = &expr.else_branch {
                walk.visit_expr(otherwise);
            }
        });
    }

    fn visit_expr_match(&mut self, expr: &'ast ExprMatch) {
        self.visit_expr(&expr.expr);
        let mut uniform = self.known.is_uniform(&expr.expr);
        for arm in &expr.arms {
            self.bind(&arm.pat, uniform);
            if let Pat::Guard(PatGuard { guard, .. }) = &arm.pat {
                self.with(uniform, expr.expr.span(), |walk| walk.visit_expr(guard));
                // Whoever does not pass it goes on to the next arm.
                uniform &= self.is_uniform_condition(guard);
            }
            self.with(uniform, expr.expr.span(), |walk| walk.visit_expr(&arm.body));
        }
    }

    fn visit_expr_loop(&mut self, expr: &'ast ExprLoop) {
        self.in_loop(|walk| walk.visit_block(&expr.body));
    }

    fn visit_expr_while(&mut self, expr: &'ast ExprWhile) {
        // Not before the loop: it decides each time.
        self.under(&expr.cond, |walk| {
            walk.in_loop(|walk| {
                walk.visit_expr(&expr.cond);
                walk.visit_block(&expr.body);
            });
        });
    }

    fn visit_expr_for_loop(&mut self, expr: &'ast ExprForLoop) {
        self.visit_expr(&expr.expr);
        let uniform = self.known.is_uniform(&expr.expr);
        self.bind(&expr.pat, uniform);
        self.under(&expr.expr, |walk| {
            walk.in_loop(|walk| walk.visit_block(&expr.body));
        });
    }

    fn visit_expr_break(&mut self, expr: &'ast ExprBreak) {
        visit::visit_expr_break(self, expr);
        self.leave(expr.break_token.span, expr.label.is_some());
    }

    fn visit_expr_continue(&mut self, expr: &'ast ExprContinue) {
        visit::visit_expr_continue(self, expr);
        self.leave(expr.continue_token.span, expr.label.is_some());
    }

    fn visit_macro(&mut self, mac: &'ast Macro) {
        match yield_point(mac) {
            Some(name) => {
                // In closures they are refused anyway.
                if let Some(decides) = self.divergence {
                    self.found.divergent_points.push((name.span(), decides));
                }
            }
            None if is_harmless(mac) => {}
            None => self.visit_tokens(mac.tokens.clone()),
        }
    }

    fn visit_expr_closure(&mut self, expr: &'ast ExprClosure) {
        self.in_inner_function(|walk| visit::visit_expr_closure(walk, expr));
    }

    fn visit_expr_async(&mut self, expr: &'ast ExprAsync) {
        self.in_inner_function(|walk| visit::visit_expr_async(walk, expr));
    }

    /// Functions inside have variables of their own.
    fn visit_item(&mut self, _: &'ast Item) {}
}

/// `shared_array!`, the same pointer in all threads.
fn is_shared_array(expr: &Expr) -> bool {
    matches!(expr, Expr::Macro(mac) if is_named(&mac.mac, "shared_array"))
}

/// Macros that write no variable.
fn is_harmless(mac: &Macro) -> bool {
    const MACROS: [&str; 9] = [
        "assert",
        "assert_eq",
        "assert_ne",
        "debug_assert",
        "debug_assert_eq",
        "debug_assert_ne",
        "panic",
        "shared_array",
        "unreachable",
    ];
    MACROS.iter().any(|name| is_named(mac, name))
}

fn is_named(mac: &Macro, name: &str) -> bool {
    mac.path.segments.last().is_some_and(|last| last.ident == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many yield points of a body may be missed by some threads, of how many.
    fn missed(body: &str) -> usize {
        let body: Block = syn::parse_str(&format!("{{ {body} }}")).expect("a body");
        let names = ["n", "x", "out"].map(|name| Ident::new(name, Span::call_site()));
        Uniformity::of(&body, &names).divergent_points.len()
    }

    #[test]
    fn what_only_the_block_decides_is_reached_together() {
        for body in [
            "yield_point!();",
            "for i in 0..n { yield_point!(); }",
            "for (i, part) in x.iter().enumerate().skip(2) { if *N > 3 || i > 4 { yield_point!(); } }",
            "for tile in (0..n.div_ceil(TILE)).rev().step_by(2) { yield_point!(); }",
            "let rows = thread::grid_dim_x() as usize * 4; let mut i = 0; while i < rows { yield_point!(); i += 1; }",
            "let first = x[thread::block_idx_x() as usize]; if first > 3 { yield_point!(); } else { yield_point!() }",
            "let mut changed = 1; while changed != 0 { yield_point!(); changed = sync_threads_or(t()); }",
            "let mut i = 0; loop { yield_point!(); i += 1; if i == n { break; } }",
            "'outer: loop { loop { if n > 3 { break 'outer; } yield_point!(); } }",
            "match n { 0 => yield_point!(), k if k > 3 => yield_point!(), _ => {} }",
            "if let Some(k) = Some(n) { if k > 3 { yield_point!(); } }",
            "let (a, [b, c]) = (n, [1, 2]); if a > b + c { yield_point!(); }",
            "let tile = shared_array![f32; 3]; if tile.is_null() {} yield_point!();",
            // Threads leave the inner loop at different times, and meet behind it.
            "for i in 0..n { yield_point!(); for j in 0..i { if t() { break; } } }",
            "for i in 0..n { yield_point!(); while t() { continue; } }",
            "let a = u32::from(n).min(MAX).max(2u32.pow(3)); for _ in 0..a { yield_point!(); }",
            "let t = thread_idx_x(); let mut acc = [0; 4]; acc[1] = n; for _ in 0..acc[1] { yield_point!(); }",
            "assert!(n > 3); for _ in 0..n { yield_point!(); }",
            "let mut f = || { let own = t(); own }; for _ in 0..n { yield_point!(); }",
        ] {
            // `*N` is a pointer's, which others may write.
            let expected = usize::from(body.contains("*N"));
            assert_eq!(missed(body), expected, "{body}");
        }
    }

    #[test]
    fn what_a_thread_may_decide_is_not() {
        for body in [
            "if thread::thread_idx_x() == 0 { yield_point!(); }",
            "if thread_idx_x() == 0 {} else { yield_point!(); }",
            "let i = thread::index_1d(); if i < n { yield_point!(); }",
            "for _ in 0..unknown() { yield_point!(); }",
            "while *out > 3 { yield_point!(); }",
            "while out.read(0) > 3 { yield_point!(); }",
            "for i in 0..n { if t() { break; } yield_point!(); }",
            "for i in 0..n { yield_point!(); if t() { continue; } work(); }",
            "'outer: for i in 0..n { yield_point!(); loop { if t() { break 'outer; } } }",
            "let mut k = n; if t() { k = 3; } while k > 0 { yield_point!(); k -= 1; }",
            "let mut k = n; k += t(); while k > 0 { yield_point!(); }",
            "let mut k = n; let p = &mut k; *p = t(); while k > 0 { yield_point!(); }",
            "let mut k = n; k.set(t()); while k > 0 { yield_point!(); }",
            "let mut k = n; fill!(k); while k > 0 { yield_point!(); }",
            "let mut k = n; let mut f = || k = t(); f(); while k > 0 { yield_point!(); }",
            "let mut k; k = t(); if k > 0 { yield_point!(); }",
            "let mut a = [0; 4]; a[t()] = 1; if a[0] > 0 { yield_point!(); }",
            "let mut a = S { b: n }; a.b = t(); if a.b > 0 { yield_point!(); }",
            // What differs comes after what it makes differ, in a loop around both.
            "let mut k = n; loop { if k > 3 { yield_point!(); } k = l; let l = t(); }",
            "let (a, b) = (n, t()); if a > 3 { yield_point!(); }",
            "match t() { 0 => yield_point!(), _ => {} }",
            "match n { k if t() => {} _ => yield_point!() }",
            "if n > 3 && t() { yield_point!(); }",
            "t() && { yield_point!(); true };",
            "if let Some(k) = find() { yield_point!(); }",
            "let k = if t() { 1 } else { 2 }; if k > 1 { yield_point!(); }",
            "let n = t(); if n > 1 { yield_point!(); }",
            "(k, l) = (t(), n); if k > 1 { yield_point!(); }",
            "for i in 0..n { for ref mut k in a { *k = t(); } if k > 3 { yield_point!(); } }",
        ] {
            assert_eq!(missed(body), 1, "{body}");
        }
    }

    #[test]
    fn loops_are_told_in_the_order_of_the_text() {
        let body: Block = syn::parse_quote! {{
            for _ in 0..n {
                while t() {}
                loop { break; }
            }
            (0..n).for_each(|_| loop {});
            for _ in { loop { break 0..3; } } {}
        }};
        let names = [Ident::new("n", Span::call_site())];
        let loops = Uniformity::of(&body, &names).loops;
        assert_eq!(loops, [Some(true), Some(false), Some(true), None, Some(true), Some(false)]);
    }
}
