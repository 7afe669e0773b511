//! `#[kernel]` of rust-cuda on a function with `#[preemptible]`, before or after its expansion.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{Abi, Attribute, Item, ItemFn, Path, Stmt};

/// The attributes that make a function an entry for rust-cuda.
pub struct RustCuda {
    /// The function as it was written, or as `#[kernel]` left it.
    pub item: ItemFn,
    /// `#[kernel]`, or the attributes that it left.
    pub attrs: Vec<Attribute>,
    pub abi: Option<Abi>,
}

/// Takes `#[kernel]` of `cuda_std`, or the attributes that it left, off a function that has them.
pub fn take_attributes(function: &mut ItemFn) -> Option<RustCuda> {
    let item = function.clone();
    let is_expanded = is_expanded(function);
    let of_kernel = |attr: &mut Attribute| match is_expanded {
        // It adds `#[no_mangle]`, and an attribute for its code generator.
        true => is_internal(attr) || is_no_mangle(attr),
        false => is_kernel(attr),
    };
    let attrs: Vec<_> = function.attrs.extract_if(.., of_kernel).collect();
    if attrs.is_empty() {
        return None;
    }
    let abi = if is_expanded { function.sig.abi.take() } else { None };
    Some(RustCuda { item, attrs, abi })
}

/// Whether `#[kernel]` of `cuda_std` was above. It leaves the attribute for its code generator on the GPU
/// alone. Elsewhere, only the check that it adds to the body shows it.
fn is_expanded(function: &ItemFn) -> bool {
    let is_check = |stmt: &Stmt| match stmt {
        Stmt::Item(Item::Fn(check)) => check.sig.ident == "assert_kernel_parameter_is_copy",
        _ => false,
    };
    function.attrs.iter().any(is_internal) || function.block.stmts.iter().any(is_check)
}

/// Whether the attribute is `#[no_mangle]` or `#[unsafe(no_mangle)]`.
fn is_no_mangle(attr: &Attribute) -> bool {
    let inside = || attr.parse_args::<Path>().is_ok_and(|path| path.is_ident("no_mangle"));
    attr.path().is_ident("no_mangle") || attr.path().is_ident("unsafe") && inside()
}

fn is_kernel(attr: &Attribute) -> bool {
    attr.path().segments.last().is_some_and(|last| last.ident == "kernel")
}

/// Whether the attribute is `#[nvvm_internal(kernel(..))]`, in any of its forms, perhaps in a `cfg_attr`.
fn is_internal(attr: &Attribute) -> bool {
    fn names_it(tokens: TokenStream) -> bool {
        tokens.into_iter().any(|token| match token {
            proc_macro2::TokenTree::Ident(ident) => ident == "nvvm_internal",
            proc_macro2::TokenTree::Group(group) => names_it(group.stream()),
            _ => false,
        })
    }
    names_it(attr.meta.to_token_stream())
}

impl RustCuda {
    /// A use of the `#[kernel]` that the host function does not have, so that its import causes no warning.
    pub fn use_of_attribute(&self) -> Option<TokenStream> {
        let path = self.attrs.iter().find(|attr| is_kernel(attr)).map(Attribute::path)?;
        Some(quote! {
            #[allow(unused_imports)]
            use #path as _;
        })
    }
}
