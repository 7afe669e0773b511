//! Kernels that were written for rust-cuda: `#[kernel]` of `cuda_std` above or below `#[preemptible]`,
//! and our own `#[kernel]`, which takes its place where the stock compiler compiles them.
//!
//! `cuda_std`'s attribute decides how an entry is compiled, for a code generator of its own. So both
//! entries are left to whichever `#[kernel]` the function has: the plain one is the user's function, and
//! the preemptible one has the same attribute. Nothing else depends on the code generator.

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, format_ident, quote};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};
use syn::{
    Abi, Attribute, Block, ExprPath, Item, ItemFn, ItemStatic, Macro, Meta, Path, Stmt, Token,
    parse_quote,
};

use crate::errors::Errors;
use crate::generate;
use crate::parse::Kernel;
use crate::shared;
use crate::yields::yield_point;

/// Ends the name of the preemptible entry; the plain one has the kernel's own.
const PREEMPTIBLE: &str = "__preemptible";

/// What makes a function an entry for rust-cuda.
pub struct RustCuda {
    /// The function as it was written, or as `#[kernel]` left it.
    item: ItemFn,
    /// `#[kernel]`, or what it left.
    attrs: Vec<Attribute>,
    abi: Option<Abi>,
}

/// Takes off what `#[kernel]` of `cuda_std` is or has left, if it was there.
pub fn take_attributes(function: &mut ItemFn) -> Option<RustCuda> {
    let item = function.clone();
    let is_expanded = is_expanded(function);
    let of_kernel = |attr: &mut Attribute| match is_expanded {
        // It pushes `#[no_mangle]`, and the word to its code generator.
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

/// Whether `#[kernel]` of `cuda_std` was above. The word to its code generator is there on the GPU alone;
/// elsewhere, only the check that it puts into the body tells.
fn is_expanded(function: &ItemFn) -> bool {
    let is_check = |stmt: &Stmt| match stmt {
        Stmt::Item(Item::Fn(check)) => check.sig.ident == "assert_kernel_parameter_is_copy",
        _ => false,
    };
    function.attrs.iter().any(is_internal) || function.block.stmts.iter().any(is_check)
}

/// `#[no_mangle]` or `#[unsafe(no_mangle)]`.
fn is_no_mangle(attr: &Attribute) -> bool {
    let inside = || attr.parse_args::<Path>().is_ok_and(|path| path.is_ident("no_mangle"));
    attr.path().is_ident("no_mangle") || attr.path().is_ident("unsafe") && inside()
}

fn is_kernel(attr: &Attribute) -> bool {
    attr.path().segments.last().is_some_and(|last| last.ident == "kernel")
}

/// `#[nvvm_internal(kernel(..))]`, in whichever of the forms that it had, perhaps in a `cfg_attr`.
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

/// Refuses what is shared memory to rust-cuda's code generator alone.
pub fn check_shared_memory(body: &Block, errors: &mut Errors) {
    struct Finder<'a>(&'a mut Errors);
    impl<'ast> Visit<'ast> for Finder<'_> {
        fn visit_item_static(&mut self, item: &'ast ItemStatic) {
            let is_place = |attr: &&Attribute| {
                attr.path().segments.last().is_some_and(|last| last.ident == "address_space")
                    && attr.parse_args::<Ident>().is_ok_and(|space| space == "shared")
            };
            if let Some(attr) = item.attrs.iter().find(is_place) {
                self.0.push(
                    attr,
                    "this is shared memory to rust-cuda's code generator alone, and one variable \
                     for all block-tasks on the CPU device and to the stock compiler; write \
                     `let name = shared_array![T; N];`, a pointer to `N` elements",
                );
            }
        }

        fn visit_expr_path(&mut self, expr: &'ast ExprPath) {
            if let Some(last) = expr.path.segments.last()
                && last.ident == "dynamic_shared_mem"
            {
                self.0.push(
                    expr,
                    "a launch gives a preemptible kernel the shared memory that its \
                     `shared_array!`s take, and no other; write `shared_array![T; N]`, with the \
                     largest `N` that a launch needs",
                );
            }
            visit::visit_expr_path(self, expr);
        }
    }
    Finder(errors).visit_block(body);
}

/// The name of the preemptible entry.
pub fn entry_symbol(ident: &Ident) -> Ident {
    format_ident!("{}{PREEMPTIBLE}", ident.unraw())
}

impl RustCuda {
    /// `#[kernel]` is not used on the host, and whoever has imported it is not to blame.
    pub fn use_of_attribute(&self) -> Option<TokenStream> {
        let path = self.attrs.iter().find(|attr| is_kernel(attr)).map(Attribute::path)?;
        Some(quote! {
            #[allow(unused_imports)]
            use #path as _;
        })
    }
}

/// The body of a kernel for rust-cuda, where `cuda_std` is ours. What is imported in the body goes before.
pub fn with_names(krate: &Path, stmts: &[Stmt]) -> TokenStream {
    quote!({
        #[allow(unused_imports)]
        use #krate::{self as cuda_std, __rust_cuda::*};
        { #(#stmts)* }
    })
}

/// The body for the host, where `cuda_std`'s macros would call functions that exist on a GPU alone.
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

/// The two entries: the plain one as the user wrote it, and the preemptible one.
pub fn device(
    kernel: &Kernel,
    RustCuda { item, attrs, abi }: &RustCuda,
    common: &TokenStream,
    shared_check: Option<TokenStream>,
    yields: bool,
) -> TokenStream {
    let Kernel { options, attrs: others, vis, ident, .. } = kernel;
    let krate = &options.krate;
    let entry = entry_symbol(ident);
    let (cohort, task) = (generate::local("cohort"), generate::local("task"));
    let body = generate::body(kernel, &kernel.body, yields);
    let (params, arguments) = generate::entry_parameters(kernel);
    let (call, preemptible, _) = generate::entry_calls(&arguments, krate, yields);
    let block = generate::block_declaration(options);
    let mut plain = item.clone();
    if yields {
        WithoutYieldPoints.visit_block_mut(&mut plain.block);
    }
    quote! {
        #[cfg(target_arch = "nvptx64")]
        #plain
        #[cfg(target_arch = "nvptx64")]
        #(#attrs)*
        #(#others)*
        #[doc(hidden)]
        #[allow(non_snake_case, improper_ctypes_definitions, clippy::too_many_arguments)]
        #vis unsafe #abi fn #entry(#cohort: #krate::abi::Cohort, #(#params),*) {
            #common
            #krate::kernel_body! { #body }
            #block
            #shared_check
            let #task = #call;
            unsafe { #krate::entry::#preemptible(&#cohort, #task) }
        }
    }
}

/// In the plain entry, yield points do nothing.
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

    fn visit_expr_mut(&mut self, expr: &mut syn::Expr) {
        if let syn::Expr::Macro(mac) = expr
            && yield_point(&mac.mac).is_some()
        {
            *expr = parse_quote!({});
        }
        visit_mut::visit_expr_mut(self, expr);
    }
}

/// Our `#[kernel]`: an entry by the stock compiler, with the parameters that rust-cuda gives it.
pub fn kernel(options: TokenStream, item: TokenStream) -> TokenStream {
    let function = match syn::parse2::<ItemFn>(item.clone()) {
        Ok(function) => function,
        Err(error) => return error.into_compile_error(),
    };
    if let Some(above) = below_preemptible(&options, &function) {
        return above;
    }
    if function.sig.ident.to_string().ends_with(PREEMPTIBLE) {
        // One that `device` above has written.
        let ItemFn { attrs, vis, mut sig, block, .. } = function;
        sig.abi = Some(parse_quote!(extern "ptx-kernel"));
        return quote!(#[unsafe(no_mangle)] #(#attrs)* #vis #sig #block);
    }
    native(crate_of(options), &item, function)
}

/// What `crate = path` says among the options, or else where `preempt_device` is.
fn crate_of(options: TokenStream) -> Path {
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
    parse.parse2(options).unwrap_or_else(|_| parse_quote!(::preempt_device))
}

/// With the two attributes in the other order, if `#[preemptible]` is below.
fn below_preemptible(options: &TokenStream, function: &ItemFn) -> Option<TokenStream> {
    let is_preemptible = |attr: &Attribute| {
        attr.path().segments.last().is_some_and(|last| last.ident == "preemptible")
    };
    let mut function = function.clone();
    let at = function.attrs.iter().position(is_preemptible)?;
    let preemptible = function.attrs.remove(at);
    let tokens = match &preemptible.meta {
        Meta::List(list) => list.tokens.clone(),
        _ => TokenStream::new(),
    };
    let krate = crate_of(tokens);
    Some(quote!(#preemptible #[#krate::kernel(crate = #krate, #options)] #function))
}

/// A kernel that is not preemptible.
fn native(krate: Path, item: &TokenStream, function: ItemFn) -> TokenStream {
    let mut kernel = match Kernel::parse(TokenStream::new(), item.clone()) {
        Ok(kernel) => kernel,
        Err(error) => return error.into_compile_error(),
    };
    let mut errors = Errors::default();
    if kernel.unsafety.is_none() {
        errors.push(
            function.sig.fn_token,
            "a `#[kernel]` is `unsafe`: whoever launches it vouches for its arguments",
        );
    }
    kernel.options.krate = krate.clone();
    check_shared_memory(&kernel.body, &mut errors);
    let arrays = shared::place_arrays(&krate, &mut kernel.body, &mut errors);
    let layout = generate::shared_layout(&kernel, &arrays);
    let shared_check = generate::shared_check(&kernel, &arrays);
    let body = generate::body(&kernel, &kernel.body, false);
    let (params, arguments) = generate::entry_parameters(&kernel);
    let (call, _, plain) = generate::entry_calls(&arguments, &krate, false);
    let Kernel { attrs, vis, ident, .. } = &kernel;
    let (inputs, host) = (&function.sig.inputs, &kernel.body.stmts);
    let task = generate::local("task");
    let errors = errors.finish().err().map(syn::Error::into_compile_error);
    quote! {
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
            unsafe { #krate::entry::#plain(#task) }
        }
        #errors
    }
}
