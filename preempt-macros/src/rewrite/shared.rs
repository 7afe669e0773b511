//! Arrays in shared memory: each `shared_array!` of a body becomes an address.
//!
//! The layout is made of constants outside of the body, because the host needs it. So each array keeps the
//! `#[cfg]`s around it, and the body asserts that `T` and `N` mean the same inside and outside.

use std::collections::HashSet;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, Error, Expr, Item, Macro, Path, Stmt, Token, Type, UseTree};

use crate::conditions::{self, ConditionalRewrite, condition};
use crate::errors::Errors;
use crate::names::{at, is_named, shared_end, shared_start};

const SHADOWED: &str = "`T` and `N` of this `shared_array![T; N]` are something else outside of the kernel, where they are \
    looked up; move what the body declares of them out of the function";

/// `shared_array![element; len]`
pub struct SharedArray {
    pub element: Type,
    pub len: Expr,
    pub span: Span,
    /// The predicates of the `#[cfg]`s around it.
    pub conditions: Vec<TokenStream>,
}

/// Replaces each `shared_array!` in the body by its address.
pub fn place_arrays(krate: &Path, body: &mut Block, errors: &mut Errors) -> Vec<SharedArray> {
    let mut placer = ArrayPlacer { krate, arrays: Vec::new(), declared: Vec::new(), errors };
    conditions::rewrite(body, &mut placer);
    placer.arrays
}

struct ArrayPlacer<'a> {
    krate: &'a Path,
    arrays: Vec<SharedArray>,
    /// Names of the items of each block around.
    declared: Vec<HashSet<Ident>>,
    errors: &'a mut Errors,
}

impl ArrayPlacer<'_> {
    /// The expression that replaces `mac`, if it is a `shared_array!`.
    fn place(
        &mut self,
        attrs: &[Attribute],
        mac: &Macro,
        around: &[TokenStream],
    ) -> Option<TokenStream> {
        if !is_named(mac, "shared_array") {
            return None;
        }
        let conditions = around.iter().cloned().chain(attrs.iter().filter_map(condition)).collect();
        let parse = |input: ParseStream<'_>| {
            let element = input.parse()?;
            input.parse::<Token![;]>()?;
            Ok(SharedArray { element, len: input.parse()?, span: mac.span(), conditions })
        };
        let Ok(array) = parse.parse2(mac.tokens.clone()) else {
            self.errors.push(
                mac,
                "expected an element type and a constant length, `shared_array![f32; 256]`",
            );
            // An expression of any type, so that the error above is the only one.
            return Some(quote!(::core::unimplemented!()));
        };
        if let Some(name) = self.declared_name(&array) {
            self.errors.add(Error::new(
                name.span(),
                format!(
                    "`T` and `N` of `shared_array![T; N]` are looked up outside of the kernel, whose body \
                     declares `{name}`; move that out of the function"
                ),
            ));
            return Some(quote!(::core::unimplemented!()));
        }
        let (krate, SharedArray { element, len, .. }) = (self.krate, &array);
        let number = self.arrays.len();
        let (start, end) = (shared_start(number), shared_end(number + 1));
        let address = quote_spanned! {at(mac.span())=>
            #(#attrs)*
            #krate::shared::at::<#element>({
                const _: () = ::core::assert!(
                    #krate::shared::fits::<#element, { #len }>(#start, #end),
                    #SHADOWED
                );
                #start
            })
        };
        self.arrays.push(array);
        Some(address)
    }

    /// A name in `T` or `N` that the body declares.
    fn declared_name(&self, array: &SharedArray) -> Option<Ident> {
        struct Names(Vec<Ident>);
        impl Names {
            fn add(&mut self, tokens: TokenStream) {
                for token in tokens {
                    match token {
                        TokenTree::Group(group) => self.add(group.stream()),
                        TokenTree::Ident(name) => self.0.push(name),
                        _ => {}
                    }
                }
            }
        }
        impl<'ast> Visit<'ast> for Names {
            fn visit_path(&mut self, path: &'ast Path) {
                if path.leading_colon.is_none() {
                    self.0.extend(path.segments.first().map(|first| first.ident.clone()));
                }
                visit::visit_path(self, path);
            }

            fn visit_macro(&mut self, mac: &'ast Macro) {
                self.add(mac.tokens.clone());
                visit::visit_macro(self, mac);
            }
        }
        let mut names = Names(Vec::new());
        names.visit_type(&array.element);
        names.visit_expr(&array.len);
        let is_declared =
            |name: &Ident| self.declared.iter().any(|block| block.contains(&name.unraw()));
        names.0.into_iter().find(is_declared)
    }
}

/// The names that the items of a block have.
fn declared(block: &Block) -> HashSet<Ident> {
    fn imported(tree: &UseTree, parent: Option<&Ident>, names: &mut HashSet<Ident>) {
        match tree {
            UseTree::Path(path) => imported(&path.tree, Some(&path.ident), names),
            UseTree::Name(name) if name.ident == "self" => names.extend(parent.map(Ident::unraw)),
            UseTree::Name(name) => drop(names.insert(name.ident.unraw())),
            UseTree::Rename(rename) => drop(names.insert(rename.rename.unraw())),
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| imported(tree, parent, names));
            }
            // The names that a glob imports are unknown here; the assertion finds them.
            UseTree::Glob(_) => {}
        }
    }
    let mut names = HashSet::new();
    for stmt in &block.stmts {
        let Stmt::Item(item) = stmt else { continue };
        let name = match item {
            Item::Const(item) => Some(&item.ident),
            Item::Enum(item) => Some(&item.ident),
            Item::ExternCrate(item) => {
                Some(item.rename.as_ref().map_or(&item.ident, |(_, name)| name))
            }
            Item::Fn(item) => Some(&item.sig.ident),
            Item::Macro(item) => item.ident.as_ref(),
            Item::Mod(item) => Some(&item.ident),
            Item::Static(item) => Some(&item.ident),
            Item::Struct(item) => Some(&item.ident),
            Item::Trait(item) => Some(&item.ident),
            Item::Type(item) => Some(&item.ident),
            Item::Union(item) => Some(&item.ident),
            Item::Use(item) => {
                imported(&item.tree, None, &mut names);
                None
            }
            _ => None,
        };
        names.extend(name.map(Ident::unraw));
    }
    names
}

impl ConditionalRewrite for ArrayPlacer<'_> {
    fn enter_block(&mut self, block: &Block, _: &[TokenStream]) {
        self.declared.push(declared(block));
    }

    fn leave_block(&mut self, _: &mut Block) {
        self.declared.pop();
    }

    fn enter_expr(&mut self, expr: &mut Expr, conditions: &[TokenStream]) {
        if let Expr::Macro(mac) = expr
            && let Some(address) = self.place(&mac.attrs, &mac.mac, conditions)
        {
            *expr = Expr::Verbatim(address);
        }
    }

    fn enter_stmt(&mut self, stmt: &mut Stmt, conditions: &[TokenStream]) {
        if let Stmt::Macro(mac) = stmt
            && let Some(address) = self.place(&mac.attrs, &mac.mac, conditions)
        {
            *stmt = Stmt::Expr(Expr::Verbatim(address), mac.semi_token);
        }
    }
}
