//! Shared memory that only rust-cuda's code generator knows.

use proc_macro2::Ident;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, ExprPath, ItemStatic};

use crate::errors::Errors;

/// Refuses variables and functions that are shared memory only to rust-cuda's code generator.
pub fn check_shared_memory(body: &Block, errors: &mut Errors) {
    struct Finder<'a>(&'a mut Errors);
    impl<'ast> Visit<'ast> for Finder<'_> {
        fn visit_item_static(&mut self, item: &'ast ItemStatic) {
            let is_place = |attr: &&Attribute| {
                attr.path().segments.last().is_some_and(|last| last.ident == "address_space")
                    && attr.parse_args::<Ident>().is_ok_and(|space| space == "shared")
            };
            if let Some(attr) = item.attrs.iter().find(is_place) {
                self.0.push(
                    attr,
                    "only rust-cuda's code generator makes this shared memory; it is one variable \
                     for all block-tasks on the CPU device and to the stock compiler; write \
                     `let name = shared_array![T; N];`, a pointer to `N` elements",
                );
            }
        }

        fn visit_expr_path(&mut self, expr: &'ast ExprPath) {
            if let Some(last) = expr.path.segments.last()
                && last.ident == "dynamic_shared_mem"
            {
                self.0.push(
                    expr,
                    "a launch gives a preemptible kernel only the shared memory of its \
                     `shared_array!`s and `shared_slice!`s; write `shared_array![T; N]`, with the \
                     largest `N` that a launch needs, or `shared_slice![T; n]`, with `n` from the parameters, in a \
                     kernel without `#[kernel]`",
                );
            }
            visit::visit_expr_path(self, expr);
        }
    }
    Finder(errors).visit_block(body);
}
