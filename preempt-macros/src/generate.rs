//! From a [`Kernel`] to the functions that host and device see.
//!
//! Both are one function under the kernel's name, with everything else as items inside it, so
//! that the user's attributes, and `#[cfg]` among them, apply to all of it.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;

use crate::analyze::SharedArray;
use crate::parse::{AMORTIZE_LIMITS, BLOCK_LIMITS, Kernel, Param, ParamKind};

/// The expansion of `kernel`, whose body refers to `arrays` in shared memory.
pub fn kernel(kernel: &Kernel, arrays: &[SharedArray]) -> TokenStream {
    let common = [shared_layout(kernel, arrays), bounds(kernel)].into_iter().collect();
    let host = host(kernel, &common, arrays.len());
    let device = device(kernel, &common);
    quote!(#host #device)
}

/// Locals get a hygiene of their own, and cannot meet the user's parameters.
fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

/// Points at the user's code, but is the expansion's: lints on what the user wrote stay silent.
pub fn at(span: Span) -> Span {
    Span::mixed_site().located_at(span)
}

/// The constant that holds where shared array `number` starts.
pub fn shared_start(number: usize) -> Ident {
    format_ident!("__PREEMPT_SHARED_{number}", span = Span::mixed_site())
}

/// Shared memory that the arrays before `number` take.
fn shared_end(number: usize) -> TokenStream {
    match number.checked_sub(1) {
        None => quote!(0),
        Some(last) => {
            let end = format_ident!("__PREEMPT_SHARED_{last}_END", span = Span::mixed_site());
            quote!(#end)
        }
    }
}

/// The layout of shared memory: one array after the other.
fn shared_layout(kernel: &Kernel, arrays: &[SharedArray]) -> TokenStream {
    let krate = &kernel.options.krate;
    let consts = arrays.iter().enumerate().map(|(number, SharedArray { element, len, span })| {
        let (start, used, end) = (shared_start(number), shared_end(number), shared_end(number + 1));
        quote_spanned! {at(*span)=>
            const #start: usize = #krate::shared::offset::<#element>(#used);
            #[allow(dead_code)]
            const #end: usize = #krate::shared::end::<#element, { #len }>(#used);
        }
    });
    consts.collect()
}

/// Asserts what the types of the parameters must be, at those types.
fn bounds(kernel: &Kernel) -> TokenStream {
    let krate = &kernel.options.krate;
    let types: Vec<_> = kernel
        .params
        .iter()
        .map(|param| match &param.kind {
            ParamKind::Slice(element)
            | ParamKind::ConstPtr(element)
            | ParamKind::MutPtr(element)
            | ParamKind::SliceMut(element) => {
                quote_spanned!(at(element.span())=> __preempt_element::<#element>();)
            }
            ParamKind::Value => {
                let ty = &param.ty;
                quote_spanned!(at(ty.span())=> __preempt_value::<#ty>();)
            }
        })
        .collect();
    if types.is_empty() {
        return TokenStream::new();
    }
    quote! {
        const _: () = {
            #[allow(dead_code)]
            const fn __preempt_element<T: #krate::kernel::KernelArg>() {}
            #[allow(dead_code)]
            const fn __preempt_value<T: #krate::kernel::KernelArg>() {
                assert!(size_of::<T>() != 0, "a kernel argument has at least one byte");
                assert!(align_of::<T>() <= 16, "a kernel argument is aligned to at most 16 bytes");
            }
            #(#types)*
        };
    }
}

/// The user's function under another name; nothing in it is changed but shared arrays.
fn body(kernel: &Kernel, attrs: TokenStream) -> TokenStream {
    let Kernel { unsafety, body, .. } = kernel;
    let params = kernel.params.iter().map(
        |Param { attrs, mutability, ident, ty, .. }| quote!(#(#attrs)* #mutability #ident: #ty),
    );
    quote! {
        #attrs
        #[allow(clippy::too_many_arguments)]
        #unsafety fn __preempt_body(#(#params),*) #body
    }
}

/// A call of the body. The user's code is `unsafe` only if the user said so.
fn call_body(kernel: &Kernel, arguments: &[TokenStream]) -> TokenStream {
    match kernel.unsafety {
        None => quote!(__preempt_body(#(#arguments),*)),
        Some(_) => quote!(unsafe { __preempt_body(#(#arguments),*) }),
    }
}

/// A buffer's pointer (`*mut T`) and length as what the body takes.
fn rebuild(kernel: &Kernel, kind: &ParamKind, ptr: TokenStream, len: TokenStream) -> TokenStream {
    let krate = &kernel.options.krate;
    match kind {
        ParamKind::Slice(element) => {
            quote!(unsafe { ::core::slice::from_raw_parts::<#element>(#ptr, #len) })
        }
        ParamKind::SliceMut(element) => {
            quote!(unsafe { #krate::kernel::SliceMut::<#element>::from_raw_parts(#ptr, #len) })
        }
        ParamKind::ConstPtr(_) | ParamKind::MutPtr(_) | ParamKind::Value => ptr,
    }
}

/// The launch function, with the body, the CPU entry and the kernel's description inside.
fn host(kernel: &Kernel, common: &TokenStream, arrays: usize) -> TokenStream {
    let Kernel { options, attrs, vis, ident, unsafety, params, .. } = kernel;
    let krate = &options.krate;
    let args = local("args");
    let body = body(kernel, TokenStream::new());
    let cpu = cpu_entry(kernel);
    let description = description(kernel, arrays);

    let launch_params = params.iter().map(|Param { ident, ty, kind, .. }| match kind {
        ParamKind::Slice(element) | ParamKind::ConstPtr(element) => {
            quote!(#ident: impl #krate::host::ReadArg<#element>)
        }
        ParamKind::MutPtr(element) | ParamKind::SliceMut(element) => {
            quote!(#ident: impl #krate::host::WriteArg<#element>)
        }
        ParamKind::Value => quote!(#ident: #ty),
    });
    let pushes = params.iter().map(|Param { ident, kind, .. }| match kind {
        ParamKind::Slice(element) | ParamKind::ConstPtr(element) => {
            quote!(#args.push_read::<#element>(#ident);)
        }
        ParamKind::MutPtr(element) | ParamKind::SliceMut(element) => {
            quote!(#args.push_write::<#element>(#ident);)
        }
        ParamKind::Value => quote!(#args.push_value(#ident);),
    });
    let mutable = (!params.is_empty()).then(|| quote!(mut));
    quote! {
        #[cfg(not(target_arch = "nvptx64"))]
        #(#attrs)*
        #[allow(clippy::too_many_arguments)]
        #vis #unsafety fn #ident(#(#launch_params),*) -> #krate::host::Call {
            #common
            #body
            #cpu
            #description
            let #mutable #args = <#krate::host::Args as ::core::default::Default>::default();
            #(#pushes)*
            unsafe { #krate::host::Call::new(&__PREEMPT_KERNEL, #args) }
        }
    }
}

/// Runs the body for one emulated thread, with the arguments of a call.
fn cpu_entry(kernel: &Kernel) -> TokenStream {
    let krate = &kernel.options.krate;
    let args = local("args");
    let mut position = 0usize;
    let arguments: Vec<_> = kernel
        .params
        .iter()
        .map(|param| {
            let first = position;
            let second = first + 1;
            position = second;
            match &param.kind {
                ParamKind::Value => {
                    let ty = &param.ty;
                    quote!(unsafe { #args.get::<#ty>(#first) })
                }
                ParamKind::Slice(element)
                | ParamKind::ConstPtr(element)
                | ParamKind::MutPtr(element)
                | ParamKind::SliceMut(element) => {
                    position += 1;
                    let ptr = quote!(#args.pointer::<#element>(#first));
                    let len = quote!(#args.get::<usize>(#second));
                    match &param.kind {
                        ParamKind::Slice(_) | ParamKind::SliceMut(_) => {
                            rebuild(kernel, &param.kind, ptr, len)
                        }
                        _ => quote!(unsafe { #ptr }),
                    }
                }
            }
        })
        .collect();
    let call = call_body(kernel, &arguments);
    quote! {
        #[allow(unused_variables)]
        unsafe fn __preempt_cpu(#args: &#krate::host::Args) {
            #call
        }
    }
}

/// The `static` that tells the host all about the kernel.
fn description(kernel: &Kernel, arrays: usize) -> TokenStream {
    let options = &kernel.options;
    let krate = &options.krate;
    let name = kernel.ident.unraw().to_string();
    let plain = plain_symbol(&kernel.ident).to_string();
    let block = match &options.block {
        None => quote!(::core::option::Option::None),
        Some([x, y, z]) => {
            let limits = quote_spanned! {at(x.span())=>
                const _: () = {
                    let block = #krate::host::Dim3::new(#x, #y, #z);
                    assert!(block.count() >= 1 && block.count() <= 1024 && block.z <= 64, #BLOCK_LIMITS);
                };
            };
            quote!({ #limits ::core::option::Option::Some(#krate::host::Dim3::new(#x, #y, #z)) })
        }
    };
    let amortize = match &options.amortize {
        None => quote!(::core::option::Option::None),
        Some(tasks) => {
            let limits = quote_spanned! {at(tasks.span())=>
                const _: () = {
                    let tasks: u32 = #tasks;
                    assert!(tasks >= 1, #AMORTIZE_LIMITS);
                };
            };
            quote!({ #limits ::core::option::Option::Some(#tasks) })
        }
    };
    let shared_bytes = shared_end(arrays);
    quote! {
        static __PREEMPT_KERNEL: #krate::host::Kernel = #krate::host::Kernel {
            name: #name,
            plain: #plain,
            module: ::core::module_path!(),
            block: #block,
            amortize: #amortize,
            shared_bytes: #krate::shared::total(#shared_bytes),
            cpu: __preempt_cpu,
        };
    }
}

fn plain_symbol(ident: &Ident) -> Ident {
    format_ident!("{}__plain", ident.unraw())
}

/// The preemptible entry, with the body and the plain entry inside.
///
/// It has the kernel's name, so that imports of the kernel resolve on the device too.
fn device(kernel: &Kernel, common: &TokenStream) -> TokenStream {
    let Kernel { options, attrs, vis, ident, params, .. } = kernel;
    let krate = &options.krate;
    let (cohort, task) = (local("cohort"), local("task"));
    let plain = plain_symbol(ident);
    // Every call of a primitive that reads the task's registers must end up in an entry.
    let body = body(kernel, quote!(#[inline(always)]));

    let mut entry_params = Vec::new();
    let mut arguments = Vec::new();
    for (number, Param { ident, ty, kind, .. }) in params.iter().enumerate() {
        let (ptr, len) = (local(&format!("ptr_{number}")), local(&format!("len_{number}")));
        let pointer = match kind {
            ParamKind::Slice(element) | ParamKind::ConstPtr(element) => quote!(*const #element),
            ParamKind::MutPtr(element) | ParamKind::SliceMut(element) => quote!(*mut #element),
            ParamKind::Value => {
                entry_params.push(quote!(#ident: #ty));
                arguments.push(quote!(#ident));
                continue;
            }
        };
        // Two parameters: a slice as one would arrive as an aggregate, with generic loads.
        entry_params.push(quote!(#ptr: #pointer));
        entry_params.push(quote!(#len: usize));
        arguments.push(rebuild(kernel, kind, quote!(#ptr), quote!(#len)));
    }
    let call = call_body(kernel, &arguments);
    let task_closure = quote!(let #task = || #call;);
    quote! {
        #[cfg(target_arch = "nvptx64")]
        #(#attrs)*
        #[allow(
            non_snake_case,
            unused_variables,
            improper_ctypes_definitions,
            clippy::missing_safety_doc,
            clippy::too_many_arguments
        )]
        #[unsafe(no_mangle)]
        #vis unsafe extern "ptx-kernel" fn #ident(
            #cohort: #krate::abi::Cohort,
            #(#entry_params),*
        ) {
            #common
            #body
            #[unsafe(no_mangle)]
            unsafe extern "ptx-kernel" fn #plain(#(#entry_params),*) {
                #task_closure
                unsafe { #krate::entry::plain(#task) }
            }
            #task_closure
            unsafe { #krate::entry::preemptible(&#cohort, #task) }
        }
    }
}
