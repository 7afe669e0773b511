//! Parts that several generated functions share.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Block, Path, Stmt};

use crate::names::{at, local, shared_end, shared_start, yields_variable};
use crate::parse::{Form, Kernel, Options, Param, ParamKind};
use crate::rewrite::shared::SharedArray;

/// The layout of shared memory: one array after the other.
pub fn shared_layout(kernel: &Kernel, arrays: &[SharedArray]) -> TokenStream {
    let krate = &kernel.options.krate;
    let consts = arrays.iter().enumerate().map(|(number, array)| {
        let SharedArray { element, len, span, conditions } = array;
        let (start, used, end) = (shared_start(number), shared_end(number), shared_end(number + 1));
        let (there, absent) = if conditions.is_empty() {
            (None, None)
        } else {
            let absent = quote! {
                #[cfg(not(all(#(#conditions),*)))]
                const #end: usize = #used;
            };
            (Some(quote!(#[cfg(all(#(#conditions),*))])), Some(absent))
        };
        quote_spanned! {at(*span)=>
            #there
            const #start: usize = #krate::shared::offset::<#element>(#used);
            #there
            #[allow(dead_code)]
            const #end: usize = #krate::shared::end::<#element, { #len }>(#used);
            #absent
        }
    });
    consts.collect()
}

/// A check in an entry on the device that the launch gives it enough shared memory. It is needed where
/// `#[cfg]`s decide about arrays, because those may differ between host and device.
pub fn shared_check(kernel: &Kernel, arrays: &[SharedArray]) -> Option<TokenStream> {
    let (krate, end) = (&kernel.options.krate, shared_end(arrays.len()));
    let may_differ = arrays.iter().any(|array| !array.conditions.is_empty());
    may_differ.then(|| quote!(#krate::entry::require_shared(#krate::shared::total(#end));))
}

/// Assertions about the types of the parameters, with errors at those types.
pub fn bounds(kernel: &Kernel) -> Option<TokenStream> {
    let krate = &kernel.options.krate;
    let checks = kernel.params.iter().map(|param| match &param.kind {
        ParamKind::Buffer { element, .. } => {
            quote_spanned!(at(element.span())=> __preempt_check::element::<#element>();)
        }
        ParamKind::Value => {
            let ty = &param.ty;
            quote_spanned!(at(ty.span())=> __preempt_check::value::<#ty>();)
        }
    });
    (!kernel.params.is_empty()).then(|| {
        quote! {
            const _: () = {
                use #krate::kernel::check as __preempt_check;
                #(#checks)*
            };
        }
    })
}

/// The user's function under another name, with this `body`. Only shared arrays and yield points are changed
/// in it.
pub fn body(kernel: &Kernel, body: &Block, yields: bool) -> TokenStream {
    let Kernel { options: Options { krate, .. }, unsafety, .. } = kernel;
    let params = kernel.params.iter().map(
        |Param { attrs, mutability, ident, ty, .. }| quote!(#(#attrs)* #mutability #ident: #ty),
    );
    let first = yields.then(|| {
        let yields = yields_variable();
        quote!(#yields: &mut #krate::yields::Yields)
    });
    let params = first.into_iter().chain(params);
    let block = match &kernel.rust_cuda {
        Some(_) => with_names(krate, &body.stmts),
        None => body.to_token_stream(),
    };
    quote!(#unsafety fn __preempt_body(#(#params),*) #block)
}

/// The argument of the body, made of a buffer's address, and its length for slices. The caller puts `unsafe`
/// around.
pub fn rebuild(krate: &Path, form: Form, ptr: TokenStream, len: TokenStream) -> TokenStream {
    match form {
        Form::Slice => quote!(::core::slice::from_raw_parts(#ptr, #len)),
        Form::SliceMut => quote!(#krate::kernel::SliceMut::from_raw_parts(#ptr, #len)),
        Form::PerThread => quote!(#krate::kernel::PerThread::from_raw_parts(#ptr, #len)),
        Form::ConstPtr | Form::MutPtr => ptr,
    }
}

/// The body of a kernel for rust-cuda, in which `cuda_std` is `preempt_device`. Imports of the body take
/// precedence.
fn with_names(krate: &Path, stmts: &[Stmt]) -> TokenStream {
    quote!({
        #[allow(unused_imports)]
        use #krate::{self as cuda_std, __rust_cuda::*};
        { #(#stmts)* }
    })
}

/// A declaration of the number of threads of a block in the preemptible entry, if the attribute fixes it.
pub fn block_declaration(Options { block, krate, .. }: &Options) -> Option<TokenStream> {
    let [x, y, z] = block.as_ref()?;
    Some(quote_spanned! {at(x.span())=>
        #krate::entry::declare_block::<{ #krate::entry::threads(#x, #y, #z) }>();
    })
}

/// The parameters of an entry, and the arguments of its body, made of them. They are the parameters that
/// rust-cuda gives an entry, because a launch passes the same ones to its plain entries.
pub fn entry_parameters(kernel: &Kernel) -> (Vec<TokenStream>, Vec<TokenStream>) {
    let krate = &kernel.options.krate;
    let (mut entry_params, mut arguments) = (Vec::new(), Vec::new());
    for (number, Param { ident, ty, kind, .. }) in kernel.params.iter().enumerate() {
        let ParamKind::Buffer { form, element } = kind else {
            entry_params.push(quote!(#ident: #ty));
            arguments.push(quote!(#ident));
            continue;
        };
        // A slice is two parameters: as one it would arrive as an aggregate, with generic loads.
        let ptr = local(&format!("ptr_{number}"));
        let mutability = if form.writes() { quote!(mut) } else { quote!(const) };
        entry_params.push(quote!(#ptr: *#mutability #element));
        let len = local(&format!("len_{number}"));
        if form.has_length() {
            entry_params.push(quote!(#len: usize));
        }
        arguments.push(rebuild(krate, *form, ptr.into_token_stream(), len.into_token_stream()));
    }
    (entry_params, arguments)
}

/// A closure that calls the body, and the functions of `entry` that run it in the preemptible and in the
/// plain entry.
pub fn entry_calls(
    arguments: &[TokenStream],
    krate: &Path,
    yields: bool,
) -> (TokenStream, TokenStream, TokenStream) {
    // Primitives that read the task's registers must be inlined into an entry. So the body is, and so is the
    // closure that calls it, however long it is.
    if yields {
        let yields = yields_variable();
        let call = quote! {
            #[inline(always)]
            |#yields: &mut #krate::yields::Yields| unsafe { __preempt_body(#yields, #(#arguments),*) }
        };
        (call, quote!(preemptible_yielding), quote!(plain_yielding))
    } else {
        let call = quote!(#[inline(always)] || unsafe { __preempt_body(#(#arguments),*) });
        (call, quote!(preemptible), quote!(plain))
    }
}
