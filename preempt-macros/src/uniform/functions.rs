//! Functions that give all threads of a block the same. They are known by name, so the body asserts which they are.

use std::collections::HashSet;

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Arm, Attribute, Block, Expr, ExprCall, FieldValue, Item, Path, Stmt, parse_quote};

use super::values::key;
use crate::generate;
use crate::shared::condition;

/// Of `thread`: what threads make of their predicates together.
const VOTES: [&str; 3] = ["sync_threads_and", "sync_threads_count", "sync_threads_or"];

/// Of `thread`: indices and extents of the block, all of them and each.
pub const INDICES: [&str; 13] = [
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
    "warp_size",
];

/// Whether the function gives all threads of a block the same, whatever its arguments.
pub fn is_vote(path: &Path) -> bool {
    path.segments.last().is_some_and(|last| VOTES.iter().any(|vote| last.ident == vote))
}

/// Has the body assert, beside each call of a function that goes by one of these names, that it is that function:
/// a user's own of that name may give each thread something else. `names` are what the body defines, of which
/// nothing is assumed.
pub fn assert_known(krate: &Path, names: &HashSet<String>, body: &mut Block) {
    Asserter { krate, names, conditions: Vec::new(), assertions: Vec::new() }.visit_block_mut(body);
}

struct Asserter<'a> {
    krate: &'a Path,
    names: &'a HashSet<String>,
    /// What the `#[cfg]`s between the block around and here ask for.
    conditions: Vec<TokenStream>,
    /// For the start of the block around.
    assertions: Vec<Stmt>,
}

impl Asserter<'_> {
    /// The function that a path is taken to name.
    fn known(&self, path: &Path) -> Option<TokenStream> {
        let (krate, last) = (self.krate, path.segments.last()?);
        let (name, arguments) = (&last.ident, &last.arguments);
        if path.get_ident().is_some_and(|name| self.names.contains(&key(name))) {
            return None;
        }
        if name == "size_of" {
            return Some(quote!(::core::mem::#name #arguments));
        }
        let is_known = VOTES.iter().chain(&INDICES).any(|known| name == known);
        is_known.then(|| quote!(#krate::thread::#name))
    }

    fn within(&mut self, visit: impl FnOnce(&mut Self)) {
        let around = self.conditions.len();
        visit(self);
        self.conditions.truncate(around);
    }
}

impl VisitMut for Asserter<'_> {
    fn visit_attributes_mut(&mut self, attrs: &mut Vec<Attribute>) {
        self.conditions.extend(attrs.iter().filter_map(condition));
    }

    fn visit_block_mut(&mut self, block: &mut Block) {
        let conditions = std::mem::take(&mut self.conditions);
        let assertions = std::mem::take(&mut self.assertions);
        visit_mut::visit_block_mut(self, block);
        self.conditions = conditions;
        let own = std::mem::replace(&mut self.assertions, assertions);
        block.stmts.splice(0..0, own);
    }

    fn visit_expr_call_mut(&mut self, call: &mut ExprCall) {
        visit_mut::visit_expr_call_mut(self, call);
        let Expr::Path(path) = &*call.func else { return };
        let Some(known) = self.known(&path.path) else { return };
        let (krate, conditions) = (self.krate, &self.conditions);
        let cfg = (!conditions.is_empty()).then(|| quote!(#[cfg(all(#(#conditions),*))]));
        let assertion = quote_spanned! {generate::at(path.span())=>
            #krate::yields::functions(&#path, &#known).assert_same()
        };
        self.assertions.push(parse_quote!(#cfg const _: () = #assertion;));
    }

    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        self.within(|asserter| visit_mut::visit_expr_mut(asserter, expr));
    }

    fn visit_stmt_mut(&mut self, stmt: &mut Stmt) {
        self.within(|asserter| visit_mut::visit_stmt_mut(asserter, stmt));
    }

    fn visit_arm_mut(&mut self, arm: &mut Arm) {
        self.within(|asserter| visit_mut::visit_arm_mut(asserter, arm));
    }

    fn visit_field_value_mut(&mut self, field: &mut FieldValue) {
        self.within(|asserter| visit_mut::visit_field_value_mut(asserter, field));
    }

    fn visit_item_mut(&mut self, _: &mut Item) {}
}
