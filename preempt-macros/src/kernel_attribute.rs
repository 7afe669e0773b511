//! The `#[kernel]` that replaces rust-cuda's where the stock compiler compiles the kernels.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::{ParseStream, Parser};
use syn::{Attribute, ItemFn, Meta, Path, Result, Token, parse_quote};

use crate::analyze;
use crate::device_crate;
use crate::errors::Errors;
use crate::generate::parts::{self, Yields};
use crate::names::{PREEMPTIBLE, local};
use crate::parse::Kernel;
use crate::rewrite::shared;

/// Expands `#[kernel]` into an entry by the stock compiler, with the parameters that rust-cuda gives it.
pub fn kernel(options: TokenStream, item: TokenStream) -> TokenStream {
    expand(options, item).unwrap_or_else(syn::Error::into_compile_error)
}

fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let function: ItemFn = syn::parse2(item.clone())?;
    if let Some(above) = below_preemptible(&options, &function)? {
        return Ok(above);
    }
    if function.sig.ident.to_string().ends_with(PREEMPTIBLE) {
        // The preemptible entry in the expansion of `#[preemptible]`.
        let ItemFn { attrs, vis, mut sig, block, .. } = function;
        sig.abi = Some(parse_quote!(extern "ptx-kernel"));
        return Ok(quote!(#[unsafe(no_mangle)] #(#attrs)* #vis #sig #block));
    }
    plain(&crate_of(options)?, item, &function)
}

/// The path of `crate = path` among the options, or that of the dependency.
fn crate_of(options: TokenStream) -> Result<Path> {
    let parse = |input: ParseStream<'_>| {
        while !input.is_empty() {
            if input.parse::<Option<Token![crate]>>()?.is_some() {
                input.parse::<Token![=]>()?;
                let path = input.call(Path::parse_mod_style)?;
                input.parse::<TokenStream>()?;
                return Ok(path);
            }
            input.parse::<proc_macro2::TokenTree>()?;
        }
        Err(input.error("no `crate = path`"))
    };
    parse.parse2(options).or_else(|_| device_crate::path())
}

/// The function with the two attributes swapped, if `#[preemptible]` is below.
fn below_preemptible(options: &TokenStream, function: &ItemFn) -> Result<Option<TokenStream>> {
    let is_preemptible = |attr: &Attribute| {
        attr.path().segments.last().is_some_and(|last| last.ident == "preemptible")
    };
    let mut function = function.clone();
    let Some(at) = function.attrs.iter().position(is_preemptible) else { return Ok(None) };
    let preemptible = function.attrs.remove(at);
    let tokens = match &preemptible.meta {
        Meta::List(list) => list.tokens.clone(),
        _ => TokenStream::new(),
    };
    let krate = crate_of(tokens)?;
    Ok(Some(quote!(#preemptible #[#krate::kernel(crate = #krate, #options)] #function)))
}

/// The expansion of a kernel that is not preemptible.
fn plain(krate: &Path, item: TokenStream, function: &ItemFn) -> Result<TokenStream> {
    let mut kernel = Kernel::parse(quote!(crate = #krate), item)?;
    let mut errors = Errors::default();
    if kernel.unsafety.is_none() {
        errors.push(
            function.sig.fn_token,
            "a `#[kernel]` is `unsafe`: the caller of its launch vouches for its arguments",
        );
    }
    analyze::rust_cuda::check_shared_memory(&kernel.body, &mut errors);
    let memory = shared::place_arrays(&mut kernel, &mut errors);
    memory.refuse_slices(&mut errors);
    let layout = parts::shared_layout(&kernel, &memory);
    let shared_check = parts::shared_check(&kernel, &memory);
    let body = parts::body(&kernel, &kernel.body, &memory, Yields::Nowhere);
    let (params, arguments) = parts::entry_parameters(&kernel);
    let (call, _, plain_entry) = parts::entry_calls(&arguments, &memory, krate, Yields::Nowhere);
    let Kernel { attrs, vis, ident, .. } = &kernel;
    let (inputs, host) = (&function.sig.inputs, &kernel.body.stmts);
    let task = local("task");
    let errors = errors.finish().err().map(syn::Error::into_compile_error);
    Ok(quote! {
        #[cfg(not(target_arch = "nvptx64"))]
        #(#attrs)*
        #[allow(dead_code)]
        #vis unsafe fn #ident(#inputs) {
            #layout
            #(#host)*
        }
        #[cfg(target_arch = "nvptx64")]
        #[unsafe(no_mangle)]
        #(#attrs)*
        #[allow(improper_ctypes_definitions)]
        #vis unsafe extern "ptx-kernel" fn #ident(#(#params),*) {
            #layout
            #krate::kernel_body! { #body }
            #shared_check
            let #task = #call;
            unsafe { #krate::entry::#plain_entry(#task) }
        }
        #errors
    })
}
