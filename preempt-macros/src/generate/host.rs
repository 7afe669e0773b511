//! The launch function of a kernel, and the function that the CPU device runs.

use proc_macro2::{Literal, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Lifetime, Token};

use super::parts::{self, rebuild};
use crate::names::{at, local, plain_symbol, preemptible_symbol, shared_end, yields_variable};
use crate::parse::rust_cuda::RustCuda;
use crate::parse::{
    AMORTIZE_LIMITS, BLOCK_LIMITS, Form, Kernel, MAX_THREADS, MAX_THREADS_Z, Options, Param,
    ParamKind,
};
use crate::rewrite::rust_cuda::with_host_macros;

/// The launch function, with the body, the CPU entry and the kernel's description inside.
pub fn host(kernel: &Kernel, common: &TokenStream, arrays: usize, yields: bool) -> TokenStream {
    let Kernel { options, attrs, vis, ident, unsafety, params, .. } = kernel;
    let krate = &options.krate;
    let args = local("args");
    let body = match &kernel.rust_cuda {
        Some(_) => {
            let block = with_host_macros(krate, kernel.body.clone());
            parts::body(kernel, &block, yields)
        }
        None => parts::body(kernel, &kernel.body, yields),
    };
    let cpu = cpu_entry(kernel, yields);
    let description = description(kernel, arrays, yields);

    let borrow = Lifetime::new("'__preempt", Span::mixed_site());
    let borrows = params.iter().any(|param| matches!(param.kind, ParamKind::Buffer { .. }));
    let (generics, call) = match borrows {
        true => (quote!(<#borrow>), quote!(Call<#borrow, #krate::host::NoGrid>)),
        false => (quote!(), quote!(Call<'static, #krate::host::NoGrid>)),
    };
    let launch_params = params.iter().map(|Param { ident, ty, kind, .. }| match kind {
        ParamKind::Buffer { form, element } if form.writes() => {
            quote!(#ident: impl #krate::host::WriteArg<#borrow, #element>)
        }
        ParamKind::Buffer { element, .. } => {
            quote!(#ident: impl #krate::host::ReadArg<#borrow, #element>)
        }
        ParamKind::Value => quote!(#ident: #ty),
    });
    let pushes = params.iter().map(|Param { ident, ty, kind, .. }| match kind {
        ParamKind::Buffer { form, element } => {
            let push = match form {
                Form::Slice => quote!(push_read),
                Form::SliceMut => quote!(push_write),
                Form::PerThread => quote!(push_per_thread),
                Form::ConstPtr => quote!(push_read_pointer),
                Form::MutPtr => quote!(push_write_pointer),
            };
            quote!(#args.#push::<#element>(#ident);)
        }
        ParamKind::Value => quote_spanned!(at(ty.span())=> #args.push_value(#ident);),
    });
    let mutability = (!params.is_empty()).then(<Token![mut]>::default);
    let use_of_attribute = kernel.rust_cuda.as_ref().and_then(RustCuda::use_of_attribute);
    quote! {
        #[cfg(not(target_arch = "nvptx64"))]
        #(#attrs)*
        #[allow(clippy::too_many_arguments)]
        #vis #unsafety fn #ident #generics(#(#launch_params),*) -> #krate::host::#call {
            #use_of_attribute
            #common
            #body
            #cpu
            #description
            let #mutability #args = <#krate::host::Args as ::core::default::Default>::default();
            #(#pushes)*
            unsafe { #krate::host::Call::new(&__PREEMPT_KERNEL, #args) }
        }
    }
}

/// The function that runs the body for one emulated thread, with the arguments of a call.
fn cpu_entry(kernel: &Kernel, yields: bool) -> TokenStream {
    let krate = &kernel.options.krate;
    let args = local("args");
    let mut pushed = 0usize;
    let mut position = || {
        pushed += 1;
        pushed - 1
    };
    let arguments: Vec<_> = kernel
        .params
        .iter()
        .map(|Param { ty, kind, .. }| {
            let first = position();
            match kind {
                ParamKind::Value => {
                    quote_spanned!(at(ty.span())=> #args.get::<#ty>(#first))
                }
                ParamKind::Buffer { form, element } => {
                    let ptr = quote!(#args.pointer::<#element>(#first));
                    let len = form.has_length().then(|| {
                        let second = position();
                        quote!(#args.get::<u64>(#second) as usize)
                    });
                    rebuild(krate, *form, ptr, len.into_token_stream())
                }
            }
        })
        .collect();
    let args = if kernel.params.is_empty() { quote!(_) } else { quote!(#args) };
    let run = if yields {
        let yields = yields_variable();
        quote! {
            let mut #yields = #krate::yields::Yields::of_thread();
            unsafe { __preempt_body(&mut #yields, #(#arguments),*) }
            #yields.requeued()
        }
    } else {
        quote! {
            unsafe { __preempt_body(#(#arguments),*) }
            false
        }
    };
    quote! {
        unsafe fn __preempt_cpu(#args: &#krate::host::Args) -> ::core::primitive::bool {
            #run
        }
    }
}

/// The `static` that describes the kernel to the host.
fn description(kernel: &Kernel, arrays: usize, yields: bool) -> TokenStream {
    let Kernel { options: Options { block, amortize, krate, .. }, ident, .. } = kernel;
    let name = ident.unraw().to_string();
    let (entry, plain) = match &kernel.rust_cuda {
        Some(_) => (preemptible_symbol(ident).to_string(), name.clone()),
        None => (name.clone(), plain_symbol(ident).to_string()),
    };
    let max_threads = Literal::u32_unsuffixed(MAX_THREADS);
    let max_threads_z = Literal::u32_unsuffixed(MAX_THREADS_Z);
    let none = quote!(::core::option::Option::None);
    let block = block.as_ref().map_or(none.clone(), |[x, y, z]| {
        quote_spanned! {at(x.span())=>
            ::core::option::Option::Some({
                let block = #krate::host::Dim3::new(#x, #y, #z);
                ::core::assert!(
                    block.count() >= 1
                        && block.count() <= #max_threads
                        && block.z <= #max_threads_z,
                    #BLOCK_LIMITS
                );
                block
            })
        }
    });
    let amortize = amortize.as_ref().map_or(none, |tasks| {
        quote_spanned! {at(tasks.span())=>
            ::core::option::Option::Some({
                let tasks: u32 = #tasks;
                ::core::assert!(tasks >= 1, #AMORTIZE_LIMITS);
                tasks
            })
        }
    });
    let shared_bytes = shared_end(arrays);
    quote! {
        static __PREEMPT_KERNEL: #krate::host::Kernel = #krate::host::Kernel {
            name: #name,
            entry: #entry,
            plain: #plain,
            module: ::core::module_path!(),
            block: #block,
            amortize: #amortize,
            shared_bytes: #krate::shared::total(#shared_bytes),
            yields: #yields,
            cpu: __preempt_cpu,
        };
    }
}
