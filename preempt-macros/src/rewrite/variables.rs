//! The variables that an expression names.

use std::collections::HashSet;

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::visit::{self, Visit};
use syn::{Block, Expr, ExprPath, Item, Macro, PatIdent};

/// The names of the variables in a body. A name in capitals can be a constant's in a pattern, and is left out.
#[derive(Default)]
pub struct Variables(HashSet<Ident>);

impl<'ast> Visit<'ast> for Variables {
    fn visit_pat_ident(&mut self, pat: &'ast PatIdent) {
        if pat.ident.to_string().contains(char::is_lowercase) {
            self.0.insert(pat.ident.unraw());
        }
        visit::visit_pat_ident(self, pat);
    }

    fn visit_item(&mut self, _: &'ast Item) {}
}

impl Variables {
    pub fn of(body: &Block) -> Variables {
        let mut variables = Variables::default();
        variables.visit_block(body);
        variables
    }

    /// Those names in `expr` for which `is_one` holds, without those that it declares itself, each with its place.
    pub fn named_in(expr: &Expr, is_one: impl Fn(&Ident) -> bool) -> Vec<Ident> {
        struct Names(Vec<Ident>);
        impl<'ast> Visit<'ast> for Names {
            fn visit_expr_path(&mut self, expr: &'ast ExprPath) {
                self.0.extend(expr.path.get_ident().cloned());
            }

            fn visit_macro(&mut self, mac: &'ast Macro) {
                push_names(mac.tokens.clone(), &mut self.0);
            }
        }
        let (mut own, mut names) = (Variables::default(), Names(Vec::new()));
        own.visit_expr(expr);
        names.visit_expr(expr);
        names.0.retain(|name| !own.contains(name) && is_one(name));
        names.0
    }

    pub fn contains(&self, name: &Ident) -> bool {
        self.0.contains(&name.unraw())
    }
}

/// Appends the names in the tokens of a macro, whatever they stand for.
pub fn push_names(tokens: TokenStream, names: &mut Vec<Ident>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => push_names(group.stream(), names),
            TokenTree::Ident(name) => names.push(name),
            _ => {}
        }
    }
}
