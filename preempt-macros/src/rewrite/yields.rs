//! Yield points: each `yield_point!` of a body becomes a test and a `return`.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{quote, quote_spanned};
use syn::visit::Visit;
use syn::visit_mut::{self, VisitMut};
use syn::{
    AngleBracketedGenericArguments, Attribute, Block, Expr, ExprAsync, ExprCall, ExprClosure,
    ExprConst, ExprForLoop, ExprLoop, ExprWhile, Item, Macro, Pat, Stmt, Type, parse_quote_spanned,
};

use crate::analyze::uniform::Uniformity;
use crate::errors::Errors;
use crate::names::{at, yield_point, yields_variable};
use crate::parse::Options;

/// Adds a yield point to the start of each loop of the body, if the options ask for it. In a body whose
/// threads wait for each other, only to loops that all of them run together.
pub fn add_to_loops(
    options: &Options,
    body: &mut Block,
    uniformity: Option<&Uniformity>,
    errors: &mut Errors,
) {
    let Some(option) = &options.yield_in_loops else { return };
    let mut adder = Adder { uniformity, loops: 0, inner_functions: 0, added: false };
    adder.visit_block_mut(body);
    if !adder.added {
        errors.push(
            option,
            match uniformity {
                None => "this kernel has no loop; leave the option out",
                Some(_) => {
                    "no loop of this kernel is certain to be run by all threads of a block together, which a \
                     yield point in a body with barriers needs; leave the option out, or write \
                     `yield_point!()` where only parameters, constants and block indices decide"
                }
            },
        );
    }
}

/// Replaces each `yield_point!` in the body by a test, or by a vote of the block if its threads wait for each
/// other. If the body has `markers`, these heed them. Returns whether there are any.
pub fn place_points(
    options: &Options,
    body: &mut Block,
    votes: bool,
    markers: bool,
    errors: &mut Errors,
) -> bool {
    let mut placer =
        PointPlacer { options, votes, markers, placed: false, inner_functions: 0, errors };
    placer.visit_block_mut(body);
    placer.placed
}

/// The name of the first `yield_point!` in the body, of those that would be placed.
pub fn first_point(body: &Block) -> Option<Ident> {
    struct Finder(Option<Ident>);
    impl<'ast> Visit<'ast> for Finder {
        fn visit_macro(&mut self, mac: &'ast Macro) {
            self.0 = self.0.take().or_else(|| yield_point(mac).cloned());
        }

        fn visit_item(&mut self, _: &'ast Item) {}
    }
    let mut finder = Finder(None);
    finder.visit_block(body);
    finder.0
}

struct Adder<'a> {
    /// The loops that all threads run together, in a body with barriers.
    uniformity: Option<&'a Uniformity>,
    /// The number of loops so far, in the order of `uniformity`.
    loops: usize,
    inner_functions: usize,
    added: bool,
}

impl Adder<'_> {
    fn add(&mut self, body: &mut Block) {
        let number = self.loops;
        self.loops += 1;
        let together = self
            .uniformity
            .is_none_or(|uniformity| uniformity.loops.get(number) == Some(&Some(true)));
        if together && self.inner_functions == 0 {
            let span = body.brace_token.span.open();
            body.stmts.insert(0, parse_quote_spanned!(span=> yield_point!();));
            self.added = true;
        }
    }

    fn in_inner_function(&mut self, visit: impl FnOnce(&mut Self)) {
        self.inner_functions += 1;
        visit(self);
        self.inner_functions -= 1;
    }
}

impl VisitMut for Adder<'_> {
    fn visit_expr_loop_mut(&mut self, expr: &mut ExprLoop) {
        self.add(&mut expr.body);
        visit_mut::visit_expr_loop_mut(self, expr);
    }

    fn visit_expr_while_mut(&mut self, expr: &mut ExprWhile) {
        self.add(&mut expr.body);
        visit_mut::visit_expr_while_mut(self, expr);
    }

    fn visit_expr_for_loop_mut(&mut self, expr: &mut ExprForLoop) {
        self.visit_expr_mut(&mut expr.expr);
        self.add(&mut expr.body);
        self.visit_block_mut(&mut expr.body);
    }

    fn visit_expr_closure_mut(&mut self, expr: &mut ExprClosure) {
        self.in_inner_function(|adder| visit_mut::visit_expr_closure_mut(adder, expr));
    }

    fn visit_expr_async_mut(&mut self, expr: &mut ExprAsync) {
        self.in_inner_function(|adder| visit_mut::visit_expr_async_mut(adder, expr));
    }

    fn visit_expr_const_mut(&mut self, expr: &mut ExprConst) {
        self.in_inner_function(|adder| visit_mut::visit_expr_const_mut(adder, expr));
    }

    fn visit_item_mut(&mut self, _: &mut Item) {}

    fn visit_pat_mut(&mut self, pat: &mut Pat) {
        // The only part of a pattern that threads run.
        if let Pat::Guard(pat) = pat {
            self.visit_expr_mut(&mut pat.guard);
        }
    }

    fn visit_type_mut(&mut self, _: &mut Type) {}

    fn visit_angle_bracketed_generic_arguments_mut(
        &mut self,
        _: &mut AngleBracketedGenericArguments,
    ) {
    }
}

struct PointPlacer<'a> {
    options: &'a Options,
    /// Whether all threads of the block decide together.
    votes: bool,
    /// Whether the body has markers.
    markers: bool,
    /// Whether there was a yield point.
    placed: bool,
    /// The number of closures and other blocks around that `return` would not leave.
    inner_functions: usize,
    errors: &'a mut Errors,
}

impl PointPlacer<'_> {
    /// The expression that replaces `mac`, if it is a yield point. `call` is the statement before it, if that
    /// may be a barrier; it is replaced as well.
    fn place(
        &mut self,
        attrs: &[Attribute],
        mac: &Macro,
        call: Option<&ExprCall>,
    ) -> Option<TokenStream> {
        let span = yield_point(mac)?.span();
        if !mac.tokens.is_empty() {
            self.errors.push(&mac.tokens, "a yield point takes no arguments: `yield_point!()`");
        }
        if self.inner_functions > 0 {
            self.errors.push(
                mac,
                "a yield point ends the kernel's own body, which it cannot do from inside a closure \
                 or block of another kind; put it where the closure is called",
            );
            // An expression without effect, so that the error above is the only one.
            return Some(quote!({}));
        }
        self.placed = true;
        let (krate, yields) = (&self.options.krate, yields_variable());
        let at = at(span);
        let method = |name: &str| {
            let name = if self.markers { format!("{name}_unless_marked") } else { name.to_owned() };
            Ident::new(&name, at)
        };
        let stops = match call {
            Some(call) => {
                let (function, vote_after) = (&call.func, method("vote_after"));
                // Compared by type, because a name may stand for any function.
                quote_spanned! {at=>
                    #krate::yields::functions(&#function, &#krate::thread::sync_threads)
                        .#vote_after(#yields, || { #call; })
                }
            }
            None => {
                let looks = method(if self.votes { "vote" } else { "poll" });
                quote_spanned!(at=> #krate::yields::Yields::#looks(#yields))
            }
        };
        let stops = called_at(span, stops);
        Some(quote_spanned! {at=>
            #(#attrs)*
            if #stops {
                return;
            }
        })
    }

    fn in_inner_function(&mut self, visit: impl FnOnce(&mut Self)) {
        self.inner_functions += 1;
        visit(self);
        self.inner_functions -= 1;
    }
}

/// Gives the tokens of a call the position `span` in the user's code. Otherwise
/// [`Location::caller`](std::panic::Location::caller) would be the attribute, the same position for all yield
/// points.
fn called_at(span: Span, call: TokenStream) -> TokenStream {
    let at = |mut token: TokenTree| {
        // Only the delimiters of a group: arguments keep their hygiene.
        token.set_span(span);
        token
    };
    call.into_iter().map(at).collect()
}

/// The call in a statement that is nothing but a call, and may be a barrier.
pub(super) fn possible_barrier(stmt: &Stmt) -> Option<&ExprCall> {
    let Stmt::Expr(Expr::Call(call), Some(_)) = stmt else { return None };
    let is_function = matches!(&*call.func, Expr::Path(path) if path.attrs.is_empty());
    (is_function && call.attrs.is_empty() && call.args.is_empty()).then_some(call)
}

impl VisitMut for PointPlacer<'_> {
    fn visit_block_mut(&mut self, block: &mut Block) {
        // A barrier and a yield point after it are one barrier.
        let mut at = 1;
        while self.votes && at < block.stmts.len() {
            if let Some(call) = possible_barrier(&block.stmts[at - 1])
                && let Stmt::Macro(mac) = &block.stmts[at]
                // An attribute may remove the yield point, and the barrier has to stay.
                && mac.attrs.is_empty()
                && let Some(vote) = self.place(&[], &mac.mac, Some(call))
            {
                block.stmts[at] = Stmt::Expr(Expr::Verbatim(vote), None);
                block.stmts.remove(at - 1);
            }
            at += 1;
        }
        visit_mut::visit_block_mut(self, block);
    }

    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        if let Expr::Macro(mac) = expr
            && let Some(poll) = self.place(&mac.attrs, &mac.mac, None)
        {
            // In braces, so that it is one expression in any context.
            *expr = Expr::Verbatim(quote!({ #poll }));
        }
        visit_mut::visit_expr_mut(self, expr);
    }

    fn visit_stmt_mut(&mut self, stmt: &mut Stmt) {
        if let Stmt::Macro(mac) = stmt
            && let Some(poll) = self.place(&mac.attrs, &mac.mac, None)
        {
            *stmt = Stmt::Expr(Expr::Verbatim(poll), None);
        }
        visit_mut::visit_stmt_mut(self, stmt);
    }

    fn visit_expr_closure_mut(&mut self, expr: &mut ExprClosure) {
        self.in_inner_function(|placer| visit_mut::visit_expr_closure_mut(placer, expr));
    }

    fn visit_expr_async_mut(&mut self, expr: &mut ExprAsync) {
        self.in_inner_function(|placer| visit_mut::visit_expr_async_mut(placer, expr));
    }

    fn visit_expr_const_mut(&mut self, expr: &mut ExprConst) {
        self.in_inner_function(|placer| visit_mut::visit_expr_const_mut(placer, expr));
    }

    /// A yield point in a function inside the body stays a call of the macro, which is an error.
    fn visit_item_mut(&mut self, _: &mut Item) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_are_counted_as_the_analysis_counts_them() {
        let mut body: Block = syn::parse_quote! {{
            for i in loop { break 0..n } { while loop { break t() } {} }
            let Some(a) = (loop { break t() }) else { loop {} };
            let b: [u32; { loop { break 3 } }] = of::<{ loop { break 3 } }>(loop { break 4 });
            match loop { break n } {
                N::<{ loop { break 3 } }> if loop { break true } => loop {},
                _ => assert!(loop { break true }),
            }
            let c = async { loop {} };
            let d = |x: [u32; { loop { break 3 } }]| loop {};
            const { loop { break } }
            fn inner() { loop {} }
            'block: { a.b::<{ loop { break 3 } }>(loop { break 4 }) }
        }};
        let found = Uniformity::of(&body, []).loops.len();
        let mut adder = Adder { uniformity: None, loops: 0, inner_functions: 0, added: false };
        adder.visit_block_mut(&mut body);
        assert_eq!((adder.loops, found), (14, 14));
    }
}
