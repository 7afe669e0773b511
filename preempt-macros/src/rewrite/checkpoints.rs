//! Checkpoints: `checkpoint!(state: T = init => loop)` becomes a loop that starts where a block left it, and that a block can
//! leave at the start of each round.

use std::collections::HashSet;

use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::quote_spanned;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::visit::{self, Visit};
use syn::{
    Attribute, Block, Error, Expr, ExprCall, ExprForLoop, ExprMacro, ExprRange, ExprWhile, Macro,
    Pat, PatIdent, Path, RangeLimits, Result, Stmt, StmtMacro, Token, Type, parse_quote_spanned,
};

use crate::errors::Errors;
use crate::names::{SHARED_ARRAY, SHARED_SLICE, at, is_named, local, yields_variable};
use crate::parse::Kernel;
use crate::rewrite::yields::possible_barrier;

/// The macro's name.
const CHECKPOINT: &str = "checkpoint";

/// The checkpoint of a body.
pub struct Checkpoint {
    /// The number of its statement.
    pub position: usize,
    /// The type of the state.
    pub ty: Type,
    state: Ident,
    init: Expr,
    rounds: Rounds,
    body: Block,
    name: Ident,
}

/// What decides how many rounds there are.
enum Rounds {
    /// `for pat in start..end`
    Range { pat: Box<Pat>, start: Box<Expr>, end: Box<Expr> },
    /// `while cond`
    While(Box<Expr>),
}

/// Takes the checkpoint out of the body, if it has one, and puts a loop with a yield point in its place, as which it is
/// analysed.
pub fn take(kernel: &mut Kernel, errors: &mut Errors) -> Option<Checkpoint> {
    let numbered = kernel.body.stmts.iter().enumerate();
    let mut found = numbered.filter_map(|(number, stmt)| Some((number, checkpoint_of(stmt)?)));
    let (position, (mac, attrs)) = found.next()?;
    if let Some((_, (other, _))) = found.next() {
        errors.push(other, "a kernel has one checkpoint; make one loop of both");
    }
    if let Some(attr) = attrs.first() {
        errors.push(
            attr,
            "a checkpoint has no attributes; write two kernels and put the attribute on them",
        );
    }
    if let Some(option) = &kernel.options.yield_in_loops {
        errors.push(
            option,
            "a kernel with a checkpoint stops there and nowhere else; leave the option out",
        );
    }
    if kernel.rust_cuda.is_some() {
        errors.push(&mac.path, "kernels for rust-cuda have no checkpoints; use `yield_point!()`");
    }
    let checkpoint = errors.take(parse(mac, position))?;
    let seen = checkpoint.seen();
    kernel.body.stmts.splice(position..=position, seen);
    kernel.body.stmts.retain(|stmt| checkpoint_of(stmt).is_none());
    Some(checkpoint)
}

/// The macro and the attributes of a statement that is a checkpoint. In parentheses and without `;`, the last statement of a
/// body is an expression.
fn checkpoint_of(stmt: &Stmt) -> Option<(&Macro, &[Attribute])> {
    let (mac, attrs) = match stmt {
        Stmt::Macro(StmtMacro { mac, attrs, .. })
        | Stmt::Expr(Expr::Macro(ExprMacro { mac, attrs }), _) => (mac, attrs),
        _ => return None,
    };
    is_named(mac, CHECKPOINT).then_some((mac, attrs))
}

/// Refuses attributes, which the loop that takes the place of this one would not have.
fn check_attributes(attrs: &[Attribute]) -> Result<()> {
    let refuse = |attr| {
        Err(Error::new_spanned(
            attr,
            "the loop of a checkpoint has no attributes, because another loop takes its place; put the attribute on the \
             kernel, or on statements in the loop",
        ))
    };
    attrs.first().map_or(Ok(()), refuse)
}

fn parse(mac: &Macro, position: usize) -> Result<Checkpoint> {
    let name =
        mac.path.segments.last().map_or_else(|| local(CHECKPOINT), |last| last.ident.clone());
    let form = |input: ParseStream<'_>| {
        let state = input.parse::<Ident>()?;
        if !input.peek(Token![:]) {
            return Err(input.error("the state has a type, by which its size is known: `checkpoint!(sum: f32 = 0.0 => for ..)`"));
        }
        input.parse::<Token![:]>()?;
        let ty = input.parse::<Type>()?;
        input.parse::<Token![=]>()?;
        let init = input.parse::<Expr>()?;
        input.parse::<Token![=>]>()?;
        let looped = input.parse::<Expr>()?;
        input.parse::<Option<Token![;]>>()?;
        if !input.is_empty() {
            return Err(input
                .error("a checkpoint has one loop; what follows it stands behind the checkpoint"));
        }
        Ok((state, ty, init, looped))
    };
    let (state, ty, init, looped) = form.parse2(mac.tokens.clone())?;
    if let Some(array) = shared_in(mac.tokens.clone()) {
        return Err(Error::new(array.span(), "declare shared memory ahead of the checkpoint"));
    }
    let (rounds, body) = match looped {
        Expr::While(ExprWhile { attrs, cond, body, label: None, .. }) => {
            check_attributes(&attrs)?;
            if matches!(*cond, Expr::Let(_)) {
                return Err(Error::new_spanned(
                    cond,
                    "a `while let` cannot go on where it was left; test numbers",
                ));
            }
            (Rounds::While(cond), body)
        }
        Expr::ForLoop(ExprForLoop { attrs, pat, expr, body, label: None, .. }) => match *expr {
            Expr::Range(ExprRange {
                attrs: of_range,
                start: Some(start),
                limits: RangeLimits::HalfOpen(_),
                end: Some(end),
            }) => {
                check_attributes(&attrs)?;
                check_attributes(&of_range)?;
                (Rounds::Range { pat, start, end }, body)
            }
            other => {
                return Err(Error::new_spanned(
                    other,
                    "the loop of a checkpoint goes over a range, `for i in a..b { .. }`, whose next number can be saved",
                ));
            }
        },
        other => {
            return Err(Error::new_spanned(
                other,
                "a checkpoint has a loop without label, `for i in a..b { .. }` or `while cond { .. }`",
            ));
        }
    };
    Ok(Checkpoint { position, ty, state, init, rounds, body, name })
}

/// Whether the function of the call that ends a round may be another one outside of the loop's body: what the loop or a
/// statement of the body binds, imports or may define has that name.
fn may_name_another(call: &ExprCall, rounds: &Rounds, body: &[Stmt]) -> bool {
    let Expr::Path(path) = &*call.func else { return true };
    let Some(first) = path.path.segments.first() else { return true };
    let mut names = Names(HashSet::new());
    if let Rounds::Range { pat, .. } = rounds {
        names.visit_pat(pat);
    }
    let is_open = |stmt: &Stmt| matches!(stmt, Stmt::Item(_) | Stmt::Macro(_));
    for stmt in body {
        if let Stmt::Local(local) = stmt {
            names.visit_pat(&local.pat);
        }
    }
    names.0.contains(&first.ident.unraw()) || body.iter().any(is_open)
}

/// The names that patterns bind.
struct Names(HashSet<Ident>);

impl<'ast> Visit<'ast> for Names {
    fn visit_pat_ident(&mut self, pat: &'ast PatIdent) {
        self.0.insert(pat.ident.unraw());
        visit::visit_pat_ident(self, pat);
    }
}

/// A shared array that is declared in the tokens.
fn shared_in(tokens: TokenStream) -> Option<Ident> {
    tokens.into_iter().find_map(|token| match token {
        TokenTree::Group(group) => shared_in(group.stream()),
        TokenTree::Ident(name) => {
            [SHARED_ARRAY, SHARED_SLICE].iter().any(|shared| name == shared).then_some(name)
        }
        _ => None,
    })
}

impl Checkpoint {
    /// The loop as it is analysed: all threads of the block come to a yield point in each round.
    fn seen(&self) -> [Stmt; 2] {
        let Checkpoint { ty, state, init, rounds, body, .. } = self;
        // The place of messages.
        let point = Ident::new("yield_point", self.name.span());
        let stmts = &body.stmts;
        let at = at(self.name.span());
        let looped = match rounds {
            Rounds::Range { pat, start, end } => {
                parse_quote_spanned!(at=> for #pat in #start..#end { #point!(); #(#stmts)* })
            }
            Rounds::While(cond) => parse_quote_spanned!(at=> while #cond { #point!(); #(#stmts)* }),
        };
        [parse_quote_spanned!(at=> let mut #state: #ty = #init;), Stmt::Expr(looped, None)]
    }

    /// Replaces the loop that was analysed by the one that is compiled.
    pub fn place(self, krate: &Path, body: &mut Block) {
        let Checkpoint { position, ty, state, init, rounds, body: round, name } = self;
        let (at, yields) = (at(name.span()), yields_variable());
        let (first, last, place) = (local("first"), local("last"), local("place"));
        let bounds = local("bounds");
        let stmts = &round.stmts;
        // A barrier at the end of a round and the vote ahead of the next one are one barrier. Compared by type, because a name
        // may stand for any function: the same one at the start of the round and behind the loop, where the call is repeated.
        // A `while` loop ends with a vote, and a range without one.
        let last_call = stmts.last().and_then(possible_barrier);
        let last_call = last_call.filter(|call| !may_name_another(call, &rounds, stmts));
        let compared = last_call.map(|call| {
            let function = &call.func;
            quote_spanned!(at=> #krate::yields::functions(&#function, &#krate::thread::sync_threads))
        });
        let leaves = |place: TokenStream| -> Stmt {
            let leaves = match (&compared, last_call) {
                (Some(compared), Some(call)) => {
                    quote_spanned!(at=> #compared.leaves_after(#yields, (#state, #place), || { #call; }))
                }
                _ => quote_spanned!(at=> #krate::yields::Yields::leaves(#yields, #state, #place)),
            };
            parse_quote_spanned!(at=> if #leaves { return; })
        };
        let ends = |what: &str| -> Option<Stmt> {
            let (compared, call, method) = (compared.as_ref()?, last_call?, Ident::new(what, at));
            Some(parse_quote_spanned!(at=> #compared.#method(|| { #call; });))
        };
        let ends_round = ends("ends_round");
        let round_stmts = &stmts[..stmts.len() - usize::from(ends_round.is_some())];
        let ends_rounds = match &rounds {
            Rounds::Range { .. } => ends("ends_rounds"),
            Rounds::While(_) => None,
        };
        // Bounds are saved and not computed again, and a condition is tested once for each round.
        let (start, looped, plain): (TokenStream, Stmt, TokenStream) = match &rounds {
            Rounds::Range { pat, start, end } => {
                let leaves = leaves(quote_spanned!(at=> (#place, #last)));
                (
                    quote_spanned!(at=> (#start, #end)),
                    parse_quote_spanned! {at=>
                        for #place in #first..#last { #leaves let #pat = #place; #(#round_stmts)* #ends_round }
                    },
                    quote_spanned!(at=> for #pat in #first..#last { #(#stmts)* }),
                )
            }
            Rounds::While(cond) => {
                let leaves = leaves(quote_spanned!(at=> ((), ())));
                (
                    quote_spanned!(at=> ((), ())),
                    parse_quote_spanned!(at=> loop { #leaves if !(#cond) { break; } #(#round_stmts)* #ends_round }),
                    quote_spanned!(at=> while #cond { #(#stmts)* }),
                )
            }
        };
        let resumed: Stmt = parse_quote_spanned! {at=>
            #[allow(unused_variables)]
            let (mut #state, (#first, #last)): (#ty, (_, _)) = match #krate::yields::Yields::resumed(#yields) {
                ::core::option::Option::Some(saved) => saved,
                ::core::option::Option::None => {
                    #[allow(unused_mut)]
                    let mut #state: #ty = #init;
                    let #bounds = #start;
                    (#state, #bounds)
                }
            };
        };
        let took_over: Stmt =
            parse_quote_spanned!(at=> #krate::yields::Yields::took_over(#yields););
        // A closure that is never called, and does not compile if the checkpoint changes a variable other than the state: what
        // it starts with is not computed again where a block-task goes on, and what the loop has done is not done again. It
        // stands ahead of the state, whose name may be that of a variable that the state starts with.
        let check = Stmt::Expr(
            Expr::Verbatim(quote_spanned! {at=>
                #[cfg(not(target_arch = "nvptx64"))]
                #[allow(unused, clippy::all)]
                {
                    #krate::yields::changes_state_alone(|_: ()| {
                        let mut #state: #ty = #init;
                        let (#first, #last) = #start;
                        #plain
                    });
                }
            }),
            None,
        );
        let placed = [check, resumed, took_over, looped].into_iter().chain(ends_rounds);
        body.stmts.splice(position..position + 2, placed);
    }
}
