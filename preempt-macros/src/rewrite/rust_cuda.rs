//! The body of a kernel for rust-cuda, as its host function and its plain entry have it.

use syn::visit_mut::{self, VisitMut};
use syn::{Block, Expr, Macro, Path, Stmt, parse_quote};

use crate::names::yield_point;

/// The body for the host, with the host's macros in place of `cuda_std`'s, which call functions of the GPU.
pub fn with_host_macros(krate: &Path, mut body: Block) -> Block {
    struct Renamer<'a>(&'a Path);
    impl VisitMut for Renamer<'_> {
        fn visit_macro_mut(&mut self, mac: &mut Macro) {
            const MACROS: [&str; 4] = ["print", "println", "assert_eq", "assert_ne"];
            let segments = &mac.path.segments;
            let is_ours = match segments.len() {
                1 => true,
                2 => segments[0].ident == "cuda_std",
                _ => false,
            };
            if let Some(last) = segments.last()
                && is_ours
                && MACROS.iter().any(|name| last.ident == name)
            {
                let name = last.ident.clone();
                let krate = self.0;
                mac.path = parse_quote!(#krate::host::#name);
            }
            visit_mut::visit_macro_mut(self, mac);
        }
    }
    Renamer(krate).visit_block_mut(&mut body);
    body
}

/// Takes the yield points out of a plain entry, in which they do nothing.
pub fn remove_yield_points(body: &mut Block) {
    WithoutYieldPoints.visit_block_mut(body);
}

struct WithoutYieldPoints;

impl VisitMut for WithoutYieldPoints {
    fn visit_stmt_mut(&mut self, stmt: &mut Stmt) {
        if let Stmt::Macro(mac) = stmt
            && yield_point(&mac.mac).is_some()
        {
            *stmt = parse_quote!({});
        }
        visit_mut::visit_stmt_mut(self, stmt);
    }

    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        if let Expr::Macro(mac) = expr
            && yield_point(&mac.mac).is_some()
        {
            *expr = parse_quote!({});
        }
        visit_mut::visit_expr_mut(self, expr);
    }
}
