//! Arrays and slices in shared memory: each `shared_array!` of a body becomes an address, each `shared_slice!` a
//! `SliceMut`.
//!
//! The layout is made outside of the body, because the host needs it: of constants for arrays, and by a function of the
//! kernel's parameters for slices, which follow the arrays. So each array and slice keeps the `#[cfg]`s around it, and
//! the body asserts that `T` and `N` mean the same inside and outside.

use std::collections::HashSet;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Block, Error, Expr, ExprCall, Item, Macro, Path, Result, Stmt, Token, Type, UseTree,
};

use crate::conditions::{self, ConditionalRewrite, condition};
use crate::errors::Errors;
use crate::names::{
    SHARED_ARRAY, SHARED_SLICE, at, is_named, shared_end, shared_start, slice_layout,
    slice_variable, text_of,
};
use crate::parse::{Kernel, Options, Param, ParamKind};
use crate::primitives::Primitive;
use crate::rewrite::variables::{Variables, push_names};

const SHADOWED: &str = "`T` and `N` of this `shared_array![T; N]` are something else outside of the kernel, where they are \
    looked up; move what the body declares of them out of the function";

/// `shared_array![element; len]` or `shared_slice![element; len]`
pub struct SharedArray {
    pub element: Type,
    pub len: Expr,
    pub span: Span,
    /// The predicates of the `#[cfg]`s around it.
    pub conditions: Vec<TokenStream>,
}

/// The shared memory of a body.
#[derive(Default)]
pub struct SharedMemory {
    pub arrays: Vec<SharedArray>,
    /// The slices, whose lengths a launch computes.
    pub slices: Vec<SharedArray>,
}

impl SharedMemory {
    /// Whether the length of a slice names this parameter.
    pub fn is_measured_by(&self, param: &Ident) -> bool {
        let is_it = |name: &Ident| name.unraw() == param.unraw();
        self.slices.iter().any(|slice| !Variables::named_in(&slice.len, is_it).is_empty())
    }

    /// Refuses slices in a kernel for rust-cuda, where the application launches the plain entry by itself.
    pub fn refuse_slices(&self, errors: &mut Errors) {
        for slice in &self.slices {
            errors.add(Error::new(
                slice.span,
                "a `#[kernel]` has no `shared_slice!`, because its launches would have to tell its bytes; write \
                 `shared_array![T; N]` with the largest length that a launch needs, or leave `#[kernel]` out",
            ));
        }
    }
}

/// Replaces each `shared_array!` in the body of a kernel by its address, and each `shared_slice!` by a slice.
pub fn place_arrays(kernel: &mut Kernel, errors: &mut Errors) -> SharedMemory {
    let Kernel { options: Options { krate, .. }, params, body, .. } = kernel;
    let (variables, memory, declared) = (Variables::of(body), SharedMemory::default(), Vec::new());
    let mut placer = ArrayPlacer { krate, memory, declared, params, variables, errors };
    conditions::rewrite(body, &mut placer);
    placer.memory
}

struct ArrayPlacer<'a> {
    krate: &'a Path,
    memory: SharedMemory,
    /// Names of the items of each block around.
    declared: Vec<HashSet<Ident>>,
    params: &'a [Param],
    /// The variables of the body.
    variables: Variables,
    errors: &'a mut Errors,
}

impl ArrayPlacer<'_> {
    /// The expression that replaces `mac`, if it is a `shared_array!` or a `shared_slice!`.
    fn place(
        &mut self,
        attrs: &[Attribute],
        mac: &Macro,
        around: &[TokenStream],
    ) -> Option<TokenStream> {
        let is_slice = is_named(mac, SHARED_SLICE);
        if !is_slice && !is_named(mac, SHARED_ARRAY) {
            return None;
        }
        let conditions = around.iter().cloned().chain(attrs.iter().filter_map(condition)).collect();
        let parse = |input: ParseStream<'_>| {
            let element = input.parse()?;
            input.parse::<Token![;]>()?;
            Ok(SharedArray { element, len: input.parse()?, span: mac.span(), conditions })
        };
        let parsed = parse.parse2(mac.tokens.clone()).map_err(|_| {
            let expected = match is_slice {
                true => "expected an element type and a length, `shared_slice![f32; n]`",
                false => {
                    "expected an element type and a constant length, `shared_array![f32; 256]`"
                }
            };
            Error::new_spanned(mac, expected)
        });
        let checked = parsed.and_then(|array| match is_slice {
            true => self.check_slice(array),
            false => self.check_array(array),
        });
        let Some(array) = self.errors.take(checked) else {
            // An expression of any type, so that the error above is the only one.
            return Some(quote!(::core::unimplemented!()));
        };
        let krate = self.krate;
        let SharedArray { element, len, .. } = &array;
        let place = if is_slice {
            let number = self.memory.slices.len();
            let (slice, layout) = (slice_variable(number), slice_layout(number));
            let place = quote_spanned! {at(mac.span())=>
                #(#attrs)*
                #krate::shared::slice::<#element>({
                    const _: () = ::core::assert!(
                        #krate::shared::has_layout::<#element>(#layout),
                        #SHADOWED
                    );
                    #slice
                })
            };
            self.memory.slices.push(array);
            place
        } else {
            let number = self.memory.arrays.len();
            let (start, end) = (shared_start(number), shared_end(number + 1));
            let place = quote_spanned! {at(mac.span())=>
                #(#attrs)*
                #krate::shared::at::<#element>({
                    const _: () = ::core::assert!(
                        #krate::shared::fits::<#element, { #len }>(#start, #end),
                        #SHADOWED
                    );
                    #start
                })
            };
            self.memory.arrays.push(array);
            place
        };
        Some(place)
    }

    fn check_array(&self, array: SharedArray) -> Result<SharedArray> {
        self.check_names(&array)?;
        let is_variable =
            |name: &Ident| self.param(name).is_some() || self.variables.contains(name);
        let Some(name) = Variables::named_in(&array.len, is_variable).into_iter().next() else {
            return Ok(array);
        };
        let text = format!(
            "the length of a `shared_array![T; N]` is a constant, and `{name}` is a variable; write \
             `shared_slice![T; N]`, with `N` computed from the kernel's parameters, or the largest length that a \
             launch needs, `shared_array![f32; 256]`"
        );
        Err(Error::new(name.span(), text))
    }

    fn check_slice(&self, slice: SharedArray) -> Result<SharedArray> {
        self.check_names(&slice)?;
        let mut errors = Errors::default();
        for name in Variables::named_in(&slice.len, |_| true) {
            match self.param(&name).map(|param| &param.kind) {
                Some(ParamKind::Buffer { form, .. }) if !form.has_length() => errors.push(
                    &name,
                    format!(
                        "the length of a `shared_slice![T; n]` comes from the kernel's parameters, and \
                         the pointer `{name}` does not tell one; take a slice, or its length as a number"
                    ),
                ),
                None if self.variables.contains(&name) => errors.push(
                    &name,
                    format!(
                        "the launch computes the length of a `shared_slice![T; n]`, from the kernel's parameters \
                         and constants alone, and `{name}` is a variable of the body; write what it is \
                         computed from, or pass the length as a parameter"
                    ),
                ),
                _ => {}
            }
        }
        let mut calls = Calls(&mut errors);
        calls.visit_expr(&slice.len);
        errors.finish().map(|()| slice)
    }

    /// Refuses an array or slice of which the body declares a name in `T` or `N`.
    fn check_names(&self, array: &SharedArray) -> Result<()> {
        let Some(name) = self.declared_name(array) else { return Ok(()) };
        let text = format!(
            "`T` and `N` of `shared_array![T; N]` are looked up outside of the kernel, whose body declares `{name}`; \
             move that out of the function"
        );
        Err(Error::new(name.span(), text))
    }

    /// The parameter of this name.
    fn param(&self, name: &Ident) -> Option<&Param> {
        self.params.iter().find(|param| param.ident.unraw() == name.unraw())
    }

    /// A name in `T` or `N` that the body declares.
    fn declared_name(&self, array: &SharedArray) -> Option<Ident> {
        struct Names(Vec<Ident>);
        impl<'ast> Visit<'ast> for Names {
            fn visit_path(&mut self, path: &'ast Path) {
                if path.leading_colon.is_none() {
                    self.0.extend(path.segments.first().map(|first| first.ident.clone()));
                }
                visit::visit_path(self, path);
            }

            fn visit_macro(&mut self, mac: &'ast Macro) {
                push_names(mac.tokens.clone(), &mut self.0);
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

/// Refuses primitives in the length of a slice.
struct Calls<'a>(&'a mut Errors);

impl<'ast> Visit<'ast> for Calls<'_> {
    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if let Expr::Path(path) = &*call.func
            && let Some(last) = path.path.segments.last()
            && Primitive::named(&text_of(&last.ident)).is_some()
        {
            self.0.push(
                call,
                "the launch computes the length of a `shared_slice![T; n]` on the host, where there are no threads; \
                 pass the number as a parameter of the kernel, or fix the block, `#[preemptible(block = N)]`, \
                 and write `N`",
            );
        }
        visit::visit_expr_call(self, call);
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
