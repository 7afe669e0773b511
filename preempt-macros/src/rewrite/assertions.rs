//! Assertions that functions known by name are the ones that they are taken for.

use std::collections::HashSet;

use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Block, Expr, Macro, Path, PathArguments, Stmt, parse_quote, parse_quote_spanned};

use crate::analyze::idempotence::{ASSERTIONS, Assumptions};
use crate::conditions::{self, ConditionalRewrite};
use crate::names::{at, text_of};
use crate::primitives::Primitive;

/// Adds an assertion for each call of a function with the name of a uniform primitive: that it is that primitive. A
/// user's own function of that name may give each thread something else. `names` are what the body defines; nothing
/// is assumed of those.
pub fn assert_known(krate: &Path, names: &HashSet<String>, body: &mut Block) {
    conditions::rewrite(body, &mut Asserter { krate, names, blocks: Vec::new() });
}

/// Adds what the proof that a block-task can run again assumes: that functions are those of `preempt_device`, and
/// constants numbers. Macros that look like `core`'s become these.
pub fn assert_repeatable(krate: &Path, assumptions: &Assumptions, body: &mut Block) {
    let mut seen = HashSet::new();
    let mut is_new = |path: &&Path| seen.insert(path.to_token_stream().to_string());
    let constants = assumptions
        .constants
        .iter()
        .filter(&mut is_new)
        .map(|path| quote_spanned!(at(path.span())=> #krate::yields::constant(#path)));
    let mut assertions: Vec<TokenStream> = constants.collect();
    let functions = assumptions.functions.iter().filter(&mut is_new);
    assertions.extend(functions.filter_map(|path| same_function(krate, path)));
    let assertions =
        assertions.iter().map(|assertion| -> Stmt { parse_quote!(const _: () = #assertion;) });
    body.stmts.splice(0..0, assertions.collect::<Vec<_>>());
    CoreMacros.visit_block_mut(body);
}

/// The assertion that a path names the function of `preempt_device` with the name at its end.
fn same_function(krate: &Path, path: &Path) -> Option<TokenStream> {
    let span = at(path.span());
    let last = path.segments.last()?;
    let (name, text) = (&last.ident, text_of(&last.ident));
    let mut owner = path.clone();
    owner.segments.pop();
    owner.segments.pop_punct();
    let functions = if owner.segments.last().is_some_and(|owner| owner.ident == "GpuFloat") {
        quote_spanned!(span=> &<f32 as #owner>::#name, &<f32 as #krate::GpuFloat>::#name)
    } else {
        let starts = ["warp_shuffle", "warp_match", "warp_reduce"];
        let is_generic = starts.iter().any(|start| text.starts_with(start));
        let arguments = match &last.arguments {
            PathArguments::None if is_generic => quote!(::<u32>),
            arguments => arguments.to_token_stream(),
        };
        let mut plain = path.clone();
        if let Some(last) = plain.segments.last_mut() {
            last.arguments = PathArguments::None;
        }
        let is_of_warp = is_generic
            || ["activemask", "lane_id", "sync_warp"].contains(&&*text)
            || text.starts_with("warp_vote");
        let module = if is_of_warp { quote!(warp) } else { quote!(thread) };
        quote_spanned!(span=> &#plain #arguments, &#krate::#module::#name #arguments)
    };
    Some(quote_spanned!(span=> #krate::yields::functions(#functions).assert_same()))
}

/// Gives the macros that the analysis takes for `core`'s their path.
struct CoreMacros;

impl VisitMut for CoreMacros {
    fn visit_macro_mut(&mut self, mac: &mut Macro) {
        if let Some(name) = mac.path.get_ident().cloned()
            && ASSERTIONS.iter().any(|(known, _)| name == known)
        {
            mac.path = parse_quote_spanned!(name.span()=> ::core::#name);
        }
        visit_mut::visit_macro_mut(self, mac);
    }
}

struct Asserter<'a> {
    krate: &'a Path,
    names: &'a HashSet<String>,
    /// The blocks around, outermost first.
    blocks: Vec<BlockAssertions>,
}

/// What is asserted at the start of a block.
struct BlockAssertions {
    /// How many `#[cfg]`s are around the block.
    conditions: usize,
    assertions: Vec<Stmt>,
}

impl Asserter<'_> {
    /// The function that a path is taken to name.
    fn known(&self, path: &Path) -> Option<TokenStream> {
        let (krate, last) = (self.krate, path.segments.last()?);
        let (name, arguments) = (&last.ident, &last.arguments);
        if path.get_ident().is_some_and(|name| self.names.contains(&text_of(name))) {
            return None;
        }
        if name == "size_of" {
            return Some(quote!(::core::mem::#name #arguments));
        }
        let primitive = Primitive::named(&name.to_string())?;
        primitive.is_uniform().then(|| quote!(#krate::thread::#name))
    }
}

impl ConditionalRewrite for Asserter<'_> {
    fn enter_block(&mut self, _: &Block, conditions: &[TokenStream]) {
        let (conditions, assertions) = (conditions.len(), Vec::new());
        self.blocks.push(BlockAssertions { conditions, assertions });
    }

    fn leave_block(&mut self, block: &mut Block) {
        let own = self.blocks.pop().map(|own| own.assertions);
        block.stmts.splice(0..0, own.into_iter().flatten());
    }

    fn leave_expr(&mut self, expr: &Expr, conditions: &[TokenStream]) {
        let Expr::Call(call) = expr else { return };
        let Expr::Path(path) = &*call.func else { return };
        let (Some(known), krate) = (self.known(&path.path), self.krate) else { return };
        let Some(block) = self.blocks.last_mut() else { return };
        let conditions = &conditions[block.conditions..];
        let cfg = (!conditions.is_empty()).then(|| quote!(#[cfg(all(#(#conditions),*))]));
        let assertion = quote_spanned! {at(path.span())=>
            #krate::yields::functions(&#path, &#known).assert_same()
        };
        block.assertions.push(parse_quote!(#cfg const _: () = #assertion;));
    }
}
