//! `#[cfg]`s inside a body: which conditions hold at an expression, and the walk that keeps track of them.

use proc_macro2::{TokenStream, TokenTree};
use quote::quote;
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::visit_mut::{self, VisitMut};
use syn::{Arm, Attribute, Block, Expr, FieldValue, Item, Meta, Stmt, Token};

/// The predicate of an attribute that is a `#[cfg]`, or may become one.
pub fn condition(attr: &Attribute) -> Option<TokenStream> {
    fn of_meta(meta: &Meta) -> Option<TokenStream> {
        let Meta::List(list) = meta else { return None };
        if list.path.is_ident("cfg") {
            let mut tokens: Vec<_> = list.tokens.clone().into_iter().collect();
            tokens.pop_if(|last| matches!(last, TokenTree::Punct(comma) if comma.as_char() == ','));
            return Some(tokens.into_iter().collect());
        }
        if !list.path.is_ident("cfg_attr") {
            return None;
        }
        let parse = Punctuated::<Meta, Token![,]>::parse_terminated;
        let mut metas = parse.parse2(list.tokens.clone()).ok()?.into_iter();
        let predicate = metas.next()?;
        let conditions: Vec<_> = metas.filter_map(|meta| of_meta(&meta)).collect();
        (!conditions.is_empty()).then(|| quote!(any(not(#predicate), all(#(#conditions),*))))
    }
    of_meta(&attr.meta)
}

/// A change to a body that depends on the `#[cfg]`s around each expression. In each call, `conditions` are those
/// between the start of the body and there, outermost first.
pub trait ConditionalRewrite {
    /// Before the parts of a block.
    fn enter_block(&mut self, _block: &Block, _conditions: &[TokenStream]) {}

    /// After the parts of a block.
    fn leave_block(&mut self, _block: &mut Block) {}

    /// Before the parts of an expression, without the conditions of its own attributes.
    fn enter_expr(&mut self, _expr: &mut Expr, _conditions: &[TokenStream]) {}

    /// After the parts of an expression, with the conditions of its own attributes.
    fn leave_expr(&mut self, _expr: &Expr, _conditions: &[TokenStream]) {}

    /// Before the parts of a statement, without the conditions of its own attributes.
    fn enter_stmt(&mut self, _stmt: &mut Stmt, _conditions: &[TokenStream]) {}
}

/// Walks through `body`, but not through the items inside it, which are not part of the kernel.
pub fn rewrite(body: &mut Block, rewrite: &mut impl ConditionalRewrite) {
    Walk { rewrite, conditions: Vec::new() }.visit_block_mut(body);
}

struct Walk<'a, R> {
    rewrite: &'a mut R,
    conditions: Vec<TokenStream>,
}

impl<R> Walk<'_, R> {
    /// Visits a node that may have attributes of its own.
    fn within(&mut self, visit: impl FnOnce(&mut Self)) {
        let around = self.conditions.len();
        visit(self);
        self.conditions.truncate(around);
    }
}

impl<R: ConditionalRewrite> VisitMut for Walk<'_, R> {
    fn visit_attributes_mut(&mut self, attrs: &mut Vec<Attribute>) {
        self.conditions.extend(attrs.iter().filter_map(condition));
    }

    fn visit_block_mut(&mut self, block: &mut Block) {
        self.rewrite.enter_block(block, &self.conditions);
        visit_mut::visit_block_mut(self, block);
        self.rewrite.leave_block(block);
    }

    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        self.within(|walk| {
            walk.rewrite.enter_expr(expr, &walk.conditions);
            visit_mut::visit_expr_mut(walk, expr);
            walk.rewrite.leave_expr(expr, &walk.conditions);
        });
    }

    fn visit_stmt_mut(&mut self, stmt: &mut Stmt) {
        self.within(|walk| {
            walk.rewrite.enter_stmt(stmt, &walk.conditions);
            visit_mut::visit_stmt_mut(walk, stmt);
        });
    }

    fn visit_arm_mut(&mut self, arm: &mut Arm) {
        self.within(|walk| visit_mut::visit_arm_mut(walk, arm));
    }

    fn visit_field_value_mut(&mut self, field: &mut FieldValue) {
        self.within(|walk| visit_mut::visit_field_value_mut(walk, field));
    }

    fn visit_item_mut(&mut self, _: &mut Item) {}
}
