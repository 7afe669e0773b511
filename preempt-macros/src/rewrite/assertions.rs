//! Assertions that functions known by name are the ones that they are taken for.

use std::collections::HashSet;

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Block, Expr, Path, Stmt, parse_quote};

use crate::conditions::{self, ConditionalRewrite};
use crate::names::{at, text_of};
use crate::primitives::Primitive;

/// Adds an assertion for each call of a function with the name of a uniform primitive: that it is that primitive. A
/// user's own function of that name may give each thread something else. `names` are what the body defines; nothing
/// is assumed of those.
pub fn assert_known(krate: &Path, names: &HashSet<String>, body: &mut Block) {
    conditions::rewrite(body, &mut Asserter { krate, names, blocks: Vec::new() });
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
