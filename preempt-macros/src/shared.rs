//! Arrays in shared memory: each `shared_array!` of a body becomes an address.
//!
//! The layout is made of constants outside of the body, because the host needs it. So each array keeps the `#[cfg]`s
//! around it, and the body asserts that `T` and `N` mean there what they mean outside.

use std::collections::HashSet;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};
use syn::{
    Arm, Attribute, Block, Error, Expr, FieldValue, Item, Macro, Meta, Path, Stmt, Token, Type,
    UseTree,
};

use crate::errors::Errors;
use crate::generate;

const SHADOWED: &str = "`T` and `N` of this `shared_array![T; N]` are something else outside of the kernel, where they are \
    looked up; move what the body declares of them out of the function";

/// `shared_array![element; len]`
pub struct SharedArray {
    pub element: Type,
    pub len: Expr,
    pub span: Span,
    /// What the `#[cfg]`s around it ask for.
    pub conditions: Vec<TokenStream>,
}

/// Replaces each `shared_array!` in the body by its address.
pub fn place_arrays(krate: &Path, body: &mut Block, errors: &mut Errors) -> Vec<SharedArray> {
    let mut placer =
        Placer { krate, arrays: Vec::new(), conditions: Vec::new(), declared: Vec::new(), errors };
    placer.visit_block_mut(body);
    placer.arrays
}

struct Placer<'a> {
    krate: &'a Path,
    arrays: Vec<SharedArray>,
    /// What the `#[cfg]`s around ask for.
    conditions: Vec<TokenStream>,
    /// Names of the items of each block around.
    declared: Vec<HashSet<Ident>>,
    errors: &'a mut Errors,
}

impl Placer<'_> {
    /// The expression that replaces `mac`, if it is a `shared_array!`.
    fn place(&mut self, attrs: &[Attribute], mac: &Macro) -> Option<TokenStream> {
        if mac.path.segments.last()?.ident != "shared_array" {
            return None;
        }
        self.conditions.extend(attrs.iter().filter_map(condition));
        let conditions = self.conditions.clone();
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
            // Of any type, so that the error above is the only one.
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
        let (start, end) = (generate::shared_start(number), generate::shared_end(number + 1));
        let address = quote_spanned! {generate::at(mac.span())=>
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

    /// A name in `T` or `N` that an item of the body has.
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

    /// Visits what may have attributes of its own.
    fn within(&mut self, visit: impl FnOnce(&mut Self)) {
        let around = self.conditions.len();
        visit(self);
        self.conditions.truncate(around);
    }
}

/// What an attribute asks for, if it is a `#[cfg]`, or may become one.
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
            // What it brings is not known here: the assertion finds it.
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

impl VisitMut for Placer<'_> {
    fn visit_attributes_mut(&mut self, attrs: &mut Vec<Attribute>) {
        self.conditions.extend(attrs.iter().filter_map(condition));
    }

    fn visit_block_mut(&mut self, block: &mut Block) {
        self.declared.push(declared(block));
        visit_mut::visit_block_mut(self, block);
        self.declared.pop();
    }

    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        self.within(|placer| {
            if let Expr::Macro(mac) = expr
                && let Some(address) = placer.place(&mac.attrs, &mac.mac)
            {
                *expr = Expr::Verbatim(address);
            }
            visit_mut::visit_expr_mut(placer, expr);
        });
    }

    fn visit_stmt_mut(&mut self, stmt: &mut Stmt) {
        self.within(|placer| {
            if let Stmt::Macro(mac) = stmt
                && let Some(address) = placer.place(&mac.attrs, &mac.mac)
            {
                *stmt = Stmt::Expr(Expr::Verbatim(address), mac.semi_token);
            }
            visit_mut::visit_stmt_mut(placer, stmt);
        });
    }

    fn visit_arm_mut(&mut self, arm: &mut Arm) {
        self.within(|placer| visit_mut::visit_arm_mut(placer, arm));
    }

    fn visit_field_value_mut(&mut self, field: &mut FieldValue) {
        self.within(|placer| visit_mut::visit_field_value_mut(placer, field));
    }

    /// The kernel's shared memory is not that of a function inside it.
    fn visit_item_mut(&mut self, _: &mut Item) {}
}
