//! Arrays in shared memory: each `shared_array!` of a body becomes an address.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::parse::{ParseStream, Parser};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Block, Expr, Item, Macro, Path, Stmt, Token, Type};

use crate::errors::Errors;
use crate::generate;

/// `shared_array![element; len]`
pub struct SharedArray {
    pub element: Type,
    pub len: Expr,
    pub span: Span,
}

/// Replaces each `shared_array!` in the body by its address.
pub fn place_arrays(krate: &Path, body: &mut Block, errors: &mut Errors) -> Vec<SharedArray> {
    let mut placer = Placer { krate, arrays: Vec::new(), errors };
    placer.visit_block_mut(body);
    placer.arrays
}

struct Placer<'a> {
    krate: &'a Path,
    arrays: Vec<SharedArray>,
    errors: &'a mut Errors,
}

impl Placer<'_> {
    /// The expression that replaces `mac`, if it is a `shared_array!`.
    fn place(&mut self, mac: &Macro) -> Option<TokenStream> {
        if mac.path.segments.last()?.ident != "shared_array" {
            return None;
        }
        let parse = |input: ParseStream<'_>| {
            let element = input.parse()?;
            input.parse::<Token![;]>()?;
            Ok(SharedArray { element, len: input.parse()?, span: mac.span() })
        };
        let Ok(array) = parse.parse2(mac.tokens.clone()) else {
            self.errors.push(
                mac,
                "expected an element type and a constant length, `shared_array![f32; 256]`",
            );
            // Of any type, so that the error above is the only one.
            return Some(quote!(::core::unimplemented!()));
        };
        let (krate, element) = (self.krate, &array.element);
        let start = generate::shared_start(self.arrays.len());
        let address = quote_spanned! {generate::at(mac.span())=>
            #krate::shared::at::<#element>(#start)
        };
        self.arrays.push(array);
        Some(address)
    }
}

impl VisitMut for Placer<'_> {
    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        if let Expr::Macro(mac) = expr
            && let Some(address) = self.place(&mac.mac)
        {
            *expr = Expr::Verbatim(address);
        }
        visit_mut::visit_expr_mut(self, expr);
    }

    fn visit_stmt_mut(&mut self, stmt: &mut Stmt) {
        if let Stmt::Macro(mac) = stmt
            && let Some(address) = self.place(&mac.mac)
        {
            *stmt = Stmt::Expr(Expr::Verbatim(address), mac.semi_token);
        }
        visit_mut::visit_stmt_mut(self, stmt);
    }

    /// The kernel's shared memory is not that of a function inside it.
    fn visit_item_mut(&mut self, _: &mut Item) {}
}
