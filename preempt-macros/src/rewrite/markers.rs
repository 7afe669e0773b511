//! Markers: where a thread tells its block that the block-task runs to its end from now on.

use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Block, Expr, Item, Path, Stmt, parse_quote_spanned};

use crate::analyze::idempotence::{Markers, statement_id};
use crate::names::{MARKER, at, is_named, yields_variable};

/// Stands in for markers ahead of the statements that have to have one, until their code can be told. This comes before
/// all that adds statements to the body, or removes some. Returns whether each has its marker.
pub fn reserve(body: &mut Block, markers: &Markers) -> bool {
    let mut placer = Reserver { markers, reserved: 0 };
    placer.visit_block_mut(body);
    placer.reserved == markers.0.len()
}

struct Reserver<'a> {
    markers: &'a Markers,
    reserved: usize,
}

impl VisitMut for Reserver<'_> {
    fn visit_block_mut(&mut self, block: &mut Block) {
        // Before anything is added to this block, which would move its statements. Those of other blocks are elsewhere.
        let marked = |stmt: &Stmt| self.markers.0.contains(&statement_id(stmt));
        let marked: Vec<bool> = block.stmts.iter().map(marked).collect();
        visit_mut::visit_block_mut(self, block);
        let stmts = std::mem::take(&mut block.stmts);
        for (stmt, is_marked) in stmts.into_iter().zip(marked) {
            if is_marked {
                let name = syn::Ident::new(MARKER, at(stmt.span()));
                block.stmts.push(parse_quote_spanned!(at(stmt.span())=> #name!();));
                self.reserved += 1;
            }
            block.stmts.push(stmt);
        }
    }

    /// A thread does not return from the kernel in there.
    fn visit_item_mut(&mut self, _: &mut Item) {}
}

/// Replaces what stands in for markers by their code, in a body with yield points. `votes`: whether all threads of the
/// block decide together there.
pub fn place(krate: &Path, body: &mut Block, votes: Option<bool>) {
    struct Placer<'a>(&'a Path, Option<bool>);
    impl VisitMut for Placer<'_> {
        fn visit_stmt_mut(&mut self, stmt: &mut Stmt) {
            if let Stmt::Macro(mac) = stmt
                && is_named(&mac.mac, MARKER)
            {
                let (Placer(krate, votes), yields) = (&*self, yields_variable());
                let code = match votes {
                    Some(true) => quote_spanned! {mac.mac.path.span()=>
                        #krate::yields::Yields::mark_together(#yields);
                    },
                    Some(false) => quote_spanned! {mac.mac.path.span()=>
                        if #krate::yields::Yields::mark(#yields) {
                            return;
                        }
                    },
                    None => quote!(),
                };
                *stmt = Stmt::Expr(Expr::Verbatim(code), None);
            }
            visit_mut::visit_stmt_mut(self, stmt);
        }
    }
    Placer(krate, votes).visit_block_mut(body);
}

#[cfg(test)]
mod tests;
