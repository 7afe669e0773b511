//! The parts of a body that all threads of a block run together.
//!
//! A yield point in a body with barriers is a vote of the whole block, so every thread has to reach it.
//! Nothing is assumed that cannot be shown.
//!
//! - A value is *uniform*, the same in all threads, only if known operations make it of parameters, literals,
//!   constants and the block's own indices.
//! - A point is uniform only if all branches and loops around it are.
//! - Variables are known by name alone, so variables of one name are uniform together or not at all.
//! - Little is known of types (`kinds`): methods and operators of what may be a user's type are assumed to
//!   depend on the thread.
//!
//! Three assumptions remain. Names that the body does not define are those of numbers or arrays of numbers.
//! Fields are the type's own. No trait of the user's gives numbers, ranges and slices a method that the
//! library has for others of them.

pub mod kinds;
mod values;

use std::collections::HashSet;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    AngleBracketedGenericArguments, BinOp, Block, Expr, ExprAssign, ExprAsync, ExprBinary,
    ExprBlock, ExprBreak, ExprClosure, ExprConst, ExprContinue, ExprForLoop, ExprIf, ExprLoop,
    ExprMatch, ExprMethodCall, ExprRawAddr, ExprReference, ExprReturn, ExprWhile, Item, Local,
    Macro, Pat, PatGuard, PointerMutability, Token, Type,
};

use self::kinds::Kind;
use self::values::Known;
use crate::names::{SHARED_ARRAY, SHARED_SLICE, is_named, text_of, yield_point};

/// The uniform parts of a body.
#[derive(Default)]
pub struct Uniformity {
    /// Yield points that some threads may miss, each with the expression that decides it.
    pub divergent_points: Vec<(Span, Span)>,
    /// For each loop, in the order of the text, whether all threads run its body together; `None` for loops
    /// in closures and the like.
    pub loops: Vec<Option<bool>>,
    /// The names that the body defines.
    pub names: HashSet<String>,
}

impl Uniformity {
    /// Analyzes a body whose parameters have these names, are `mut` or not, and are of these kinds.
    pub fn of<'a>(
        body: &Block,
        params: impl IntoIterator<Item = (&'a Ident, bool, Kind)>,
    ) -> Uniformity {
        let mut known = Known::default();
        for (name, is_mut, kind) in params {
            known.add(name, true);
            known.add_kind(name, kind);
            if !is_mut {
                known.fixed.insert(text_of(name));
            }
        }
        // A value that differs may make others differ, so the walk is repeated until it finds no more.
        loop {
            let before = known.size();
            let mut walk = Walk::new(&mut known);
            walk.visit_block(body);
            let found = walk.found;
            if known.size() == before {
                return Uniformity { names: known.variables.into_keys().collect(), ..found };
            }
        }
    }
}

/// One walk through the whole body.
struct Walk<'a> {
    known: &'a mut Known,
    found: Uniformity,
    /// The expression that decides which threads get here, if not all do.
    divergence: Option<Span>,
    /// The numbers of the loops and labelled blocks around.
    around: Vec<usize>,
    /// The number of loops and labelled blocks so far.
    numbers: usize,
    /// Whether some threads may have ended.
    ended: bool,
    /// The number of closures and the like around, which may run at any time, on any thread.
    inner_functions: usize,
}

impl<'a> Walk<'a> {
    fn new(known: &'a mut Known) -> Self {
        Walk {
            known,
            found: Uniformity::default(),
            divergence: None,
            around: Vec::new(),
            numbers: 0,
            ended: false,
            inner_functions: 0,
        }
    }

    /// Visits code that runs only if `condition` holds.
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

    /// Whether a condition is uniform. Adds the names that a `let` in it declares.
    fn is_uniform_condition(&mut self, condition: &Expr) -> bool {
        match condition {
            Expr::Let(test) => {
                let uniform = self.known.is_uniform(&test.expr);
                let kind = self.known.kind(&test.expr);
                self.bind(&test.pat, Some(&test.expr), uniform, kind);
                uniform
            }
            Expr::Binary(ExprBinary { left, op: BinOp::And(_), right, .. }) => {
                let left = self.is_uniform_condition(left);
                self.is_uniform_condition(right) && left
            }
            condition => self.known.is_uniform(condition),
        }
    }

    /// Adds the names in a pattern that takes a value of this `kind`. They may refer to parts of `value`.
    fn bind(&mut self, pat: &Pat, value: Option<&Expr>, uniform: bool, kind: Kind) {
        struct Names<'a> {
            known: &'a mut Known,
            kinds: Vec<(Ident, Kind)>,
            uniform: bool,
            lends_mutably: bool,
        }
        impl<'ast> Visit<'ast> for Names<'_> {
            fn visit_pat_ident(&mut self, pat: &'ast syn::PatIdent) {
                self.known.add(&pat.ident, self.uniform && pat.by_ref.is_none());
                self.known.fixed.remove(&text_of(&pat.ident));
                let found = self.kinds.iter().find(|(name, _)| *name == pat.ident);
                let kind = found.map_or(Kind::Unknown, |(_, kind)| kind.clone());
                self.known.add_kind(&pat.ident, kind);
                self.lends_mutably |= pat.by_ref.is_some() && pat.mutability.is_some();
                visit::visit_pat_ident(self, pat);
            }
        }
        let mut kinds: Vec<(Ident, Kind)> = Vec::new();
        kinds::parts(pat, kind, &mut |name, kind| kinds.push((name.clone(), kind)));
        let mut names = Names { known: self.known, kinds, uniform, lends_mutably: false };
        names.visit_pat(pat);
        if let Some(value) = value.filter(|_| names.lends_mutably) {
            self.write(value, false);
        }
    }

    /// Records a write to a variable or a part of it, with a value that is `uniform` or not.
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
                    let (array, at) = (self.known.kind(&index.expr), self.known.kind(&index.index));
                    uniform &= array.index(&at).is_some() && self.known.is_uniform(&index.index);
                    place = &index.expr;
                }
                Expr::Field(field) => place = &field.base,
                Expr::Paren(inner) => place = &inner.expr,
                Expr::Group(inner) => place = &inner.expr,
                // A temporary value, or the target of a pointer, which never is uniform.
                _ => return,
            }
        }
    }

    /// Whether no method can change this variable, or this part of one.
    fn is_fixed(&self, place: &Expr) -> bool {
        match place {
            Expr::Path(path) => {
                path.path.get_ident().is_some_and(|name| self.known.fixed.contains(&text_of(name)))
            }
            Expr::Index(index) => self.is_fixed(&index.expr),
            Expr::Field(field) => self.is_fixed(&field.base),
            _ => false,
        }
    }

    /// Records writes to the left side of an assignment, which may take the value apart.
    fn assign(&mut self, places: &Expr, uniform: bool) {
        match places {
            Expr::Tuple(tuple) => self.assign_all(&tuple.elems, uniform),
            Expr::Array(array) => self.assign_all(&array.elems, uniform),
            Expr::Call(call) => self.assign_all(&call.args, uniform),
            Expr::Struct(parts) => {
                self.assign_all(parts.fields.iter().map(|field| &field.expr), uniform);
            }
            place => self.write(place, uniform),
        }
    }

    fn assign_all<'e>(&mut self, places: impl IntoIterator<Item = &'e Expr>, uniform: bool) {
        places.into_iter().for_each(|place| self.assign(place, uniform));
    }

    fn in_loop(&mut self, visit: impl FnOnce(&mut Self)) {
        let index = self.found.loops.len();
        self.found.loops.push(None);
        self.ended |= self.known.ended.contains(&self.numbers);
        self.in_breakable(|walk| {
            if walk.inner_functions == 0 {
                walk.found.loops[index] = Some(walk.divergence.is_none() && !walk.ended);
            }
            visit(walk);
        });
    }

    /// Visits a loop or a labelled block, which `break` can leave.
    fn in_breakable(&mut self, visit: impl FnOnce(&mut Self)) {
        let number = self.numbers;
        self.numbers += 1;
        self.around.push(number);
        let broken = self.known.broken.get(&number).copied();
        self.with(broken.is_none(), broken.unwrap_or_else(Span::call_site), visit);
        self.around.pop();
    }

    /// Records that the threads that get here leave a loop or labelled block around, or start its next round.
    fn leave(&mut self, span: Span, is_labelled: bool) {
        if self.divergence.is_some() {
            self.leave_apart(span, is_labelled);
        }
    }

    /// Records that some of the threads that get here leave a loop or labelled block around, or start its
    /// next round.
    fn leave_apart(&mut self, span: Span, is_labelled: bool) {
        // A label may name any of them.
        let count = if is_labelled { self.around.len() } else { 1 };
        for number in self.around.iter().rev().take(count) {
            self.known.broken.entry(*number).or_insert(span);
        }
    }

    /// Records that some of the threads that get here end.
    fn end_apart(&mut self) {
        if self.inner_functions == 0 {
            self.ended = true;
            self.known.ended.extend(&self.around);
        }
    }

    fn in_inner_function(&mut self, visit: impl FnOnce(&mut Self)) {
        self.inner_functions += 1;
        let around = std::mem::take(&mut self.around);
        visit(self);
        self.around = around;
        self.inner_functions -= 1;
    }

    /// Visits the tokens of a macro. Its expansion is unknown: it may write, or declare, each variable that
    /// it names.
    fn visit_tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.visit_tokens(group.stream()),
                TokenTree::Ident(name) => {
                    self.known.add(&name, false);
                    self.known.fixed.remove(&text_of(&name));
                }
                _ => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Walk<'_> {
    fn visit_local(&mut self, local: &'ast Local) {
        let Some(init) = &local.init else {
            // An assignment that follows decides.
            return self.bind(&local.pat, None, true, Kind::Unknown);
        };
        self.visit_expr(&init.expr);
        let uniform = self.known.is_uniform(&init.expr) || is_shared_memory(&init.expr);
        if let Some((_, otherwise)) = &init.diverge {
            self.with(uniform, init.expr.span(), |walk| walk.visit_expr(otherwise));
        }
        let kind = self.known.kind(&init.expr);
        self.bind(&local.pat, Some(&init.expr), uniform, kind);
    }

    fn visit_expr_assign(&mut self, expr: &'ast ExprAssign) {
        visit::visit_expr_assign(self, expr);
        let uniform = self.known.is_uniform(&expr.right);
        self.assign(&expr.left, uniform);
    }

    fn visit_expr_binary(&mut self, expr: &'ast ExprBinary) {
        match expr.op {
            BinOp::And(_) | BinOp::Or(_) => {
                self.visit_expr(&expr.left);
                self.under(&expr.left, |walk| walk.visit_expr(&expr.right));
            }
            _ => visit::visit_expr_binary(self, expr),
        }
        // `+=` and the like.
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
            let is_known =
                self.known.is_primitive(&expr.left) && self.known.is_primitive(&expr.right);
            let uniform = is_known && self.known.is_uniform(&expr.right);
            self.write(&expr.left, uniform);
        }
    }

    fn visit_expr_reference(&mut self, expr: &'ast ExprReference) {
        visit::visit_expr_reference(self, expr);
        if expr.mutability.is_some() {
            self.write(&expr.expr, false);
        }
    }

    fn visit_expr_raw_addr(&mut self, expr: &'ast ExprRawAddr) {
        visit::visit_expr_raw_addr(self, expr);
        if let PointerMutability::Mut(_) = expr.mutability {
            self.write(&expr.expr, false);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        visit::visit_expr_method_call(self, call);
        if self.known.method(call).is_none() && !self.is_fixed(&call.receiver) {
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
            let kind = self.known.kind(&expr.expr);
            self.bind(&arm.pat, Some(&expr.expr), uniform, kind);
            if let Pat::Guard(PatGuard { guard, .. }) = &arm.pat {
                self.with(uniform, expr.expr.span(), |walk| walk.visit_expr(guard));
                // Threads that do not pass the guard go on to the next arm.
                uniform &= self.is_uniform_condition(guard);
            }
            self.with(uniform, expr.expr.span(), |walk| walk.visit_expr(&arm.body));
        }
    }

    fn visit_expr_loop(&mut self, expr: &'ast ExprLoop) {
        self.in_loop(|walk| walk.visit_block(&expr.body));
    }

    fn visit_expr_while(&mut self, expr: &'ast ExprWhile) {
        // In the loop and not before it, because the condition is evaluated in each round.
        self.under(&expr.cond, |walk| {
            walk.in_loop(|walk| {
                walk.visit_expr(&expr.cond);
                walk.visit_block(&expr.body);
            });
        });
    }

    fn visit_expr_for_loop(&mut self, expr: &'ast ExprForLoop) {
        self.visit_expr(&expr.expr);
        let item = self.known.item(&expr.expr);
        let uniform = item.is_some();
        self.bind(&expr.pat, Some(&expr.expr), uniform, item.unwrap_or(Kind::Unknown));
        self.with(uniform, expr.expr.span(), |walk| {
            walk.in_loop(|walk| walk.visit_block(&expr.body));
        });
    }

    fn visit_expr_block(&mut self, expr: &'ast ExprBlock) {
        match &expr.label {
            Some(_) => self.in_breakable(|walk| walk.visit_block(&expr.block)),
            None => self.visit_block(&expr.block),
        }
    }

    fn visit_expr_break(&mut self, expr: &'ast ExprBreak) {
        visit::visit_expr_break(self, expr);
        self.leave(expr.break_token.span, expr.label.is_some());
    }

    fn visit_expr_continue(&mut self, expr: &'ast ExprContinue) {
        visit::visit_expr_continue(self, expr);
        self.leave(expr.continue_token.span, expr.label.is_some());
    }

    fn visit_expr_return(&mut self, expr: &'ast ExprReturn) {
        visit::visit_expr_return(self, expr);
        if self.divergence.is_some() {
            self.end_apart();
        }
    }

    fn visit_macro(&mut self, mac: &'ast Macro) {
        match yield_point(mac) {
            Some(name) => {
                // Yield points in closures are refused elsewhere.
                if let Some(decides) = self.divergence {
                    self.found.divergent_points.push((name.span(), decides));
                }
            }
            None if is_named(mac, SHARED_ARRAY) || is_named(mac, SHARED_SLICE) => {}
            None => match checked(mac) {
                // Loops in these arguments get no yield points.
                Some(exprs) => {
                    let loops = self.found.loops.len();
                    exprs.iter().for_each(|expr| self.visit_expr(expr));
                    self.found.loops.truncate(loops);
                }
                None => {
                    self.visit_tokens(mac.tokens.clone());
                    // The macro may hold a `break` or a `return`.
                    self.leave_apart(mac.span(), true);
                    self.end_apart();
                }
            },
        }
    }

    fn visit_expr_closure(&mut self, expr: &'ast ExprClosure) {
        self.in_inner_function(|walk| visit::visit_expr_closure(walk, expr));
    }

    fn visit_expr_async(&mut self, expr: &'ast ExprAsync) {
        self.in_inner_function(|walk| visit::visit_expr_async(walk, expr));
    }

    fn visit_expr_const(&mut self, expr: &'ast ExprConst) {
        self.in_inner_function(|walk| visit::visit_expr_const(walk, expr));
    }

    /// Functions inside the body have variables of their own; macros inside it see those of the body.
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Fn(function) => self.known.add(&function.sig.ident, false),
            Item::Macro(item) => self.visit_tokens(item.mac.tokens.clone()),
            Item::Static(variable) => self.known.add(&variable.ident, false),
            Item::Use(names) => self.visit_tokens(names.tree.to_token_stream()),
            _ => {}
        }
    }

    // Constants in patterns and types are the same in all threads, and their loops are not run by threads.
    fn visit_pat(&mut self, _: &'ast Pat) {}

    fn visit_type(&mut self, _: &'ast Type) {}

    fn visit_angle_bracketed_generic_arguments(&mut self, _: &'ast AngleBracketedGenericArguments) {
    }
}

/// Whether this is a `shared_array!` or a `shared_slice!`, the same place in all threads.
fn is_shared_memory(expr: &Expr) -> bool {
    let is = |name| matches!(expr, Expr::Macro(mac) if is_named(&mac.mac, name));
    is(SHARED_ARRAY) || is(SHARED_SLICE)
}

/// The arguments of a macro that only evaluates them, and may end the kernel.
fn checked(mac: &Macro) -> Option<Punctuated<Expr, Token![,]>> {
    const MACROS: [&str; 8] = [
        "assert",
        "assert_eq",
        "assert_ne",
        "debug_assert",
        "debug_assert_eq",
        "debug_assert_ne",
        "panic",
        "unreachable",
    ];
    let is_known = MACROS.iter().any(|name| is_named(mac, name));
    is_known.then(|| mac.parse_body_with(Punctuated::parse_terminated).ok()).flatten()
}

#[cfg(test)]
mod tests;
