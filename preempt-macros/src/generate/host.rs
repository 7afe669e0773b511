//! The launch function of a kernel, and the function that the CPU device runs.

use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Lifetime, Token};

use super::instances;
use super::parts::{self, Yields, rebuild};
use crate::names::{at, local, plain_symbol, preemptible_symbol, shared_end, yields_variable};
use crate::parse::instances::Instance;
use crate::parse::rust_cuda::RustCuda;
use crate::parse::{
    AMORTIZE_LIMITS, BLOCK_LIMITS, Form, Kernel, MAX_THREADS, MAX_THREADS_Z, Options, Param,
    ParamKind, Proof,
};
use crate::rewrite::rust_cuda::with_host_macros;
use crate::rewrite::shared::SharedMemory;

/// The launch function, with the body, the CPU entry and the kernel's description inside.
pub fn host(
    kernel: &Kernel,
    common: &TokenStream,
    memory: &SharedMemory,
    yields: Yields,
) -> TokenStream {
    let Kernel { options, attrs, vis, ident, unsafety, params, .. } = kernel;
    let krate = &options.krate;
    let args = local("args");
    let body = match &kernel.rust_cuda {
        Some(_) => {
            let block = with_host_macros(krate, kernel.body.clone());
            parts::body(kernel, &block, memory, yields)
        }
        None => parts::body(kernel, &kernel.body, memory, yields),
    };
    let cpu = cpu_entry(kernel, memory, yields);
    let items = |description| quote!(#common #body #cpu #description);

    let borrow = Lifetime::new("'__preempt", Span::mixed_site());
    let borrows = params.iter().any(|param| matches!(param.kind, ParamKind::Buffer { .. }));
    let constants = kernel.instances.iter().flat_map(|instances| &instances.params);
    let generics = borrows.then(|| quote!(#borrow));
    let generics = generics.into_iter().chain(constants.map(ToTokens::to_token_stream));
    let (generics, call) = match borrows {
        true => (quote!(<#(#generics),*>), quote!(Call<#borrow, #krate::host::NoGrid>)),
        false if kernel.instances.is_some() => {
            (quote!(<#(#generics),*>), quote!(Call<'static, #krate::host::NoGrid>))
        }
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
    let slices = !memory.slices.is_empty();
    let is_changed = !params.is_empty() || slices;
    let mutability = is_changed.then(<Token![mut]>::default);
    let use_of_attribute = kernel.rust_cuda.as_ref().and_then(RustCuda::use_of_attribute);
    let (declared, bound, items, described, computed) = match &kernel.instances {
        None => {
            let items = items(description(kernel, None, memory, yields));
            (None, None, items, quote!(&__PREEMPT_KERNEL), quote!(__preempt_shared_bytes))
        }
        Some(instances) => {
            let of_instances = instances.all.iter().map(|instance| {
                instances::implementation(
                    kernel,
                    instance,
                    items(description(kernel, Some(instance), memory, yields)),
                    slices,
                )
            });
            let instance = instances::instance_of(kernel, instances);
            (
                Some(instances::declaration(kernel, instances)),
                Some(quote!(where (): #instance)),
                of_instances.collect(),
                quote!(<() as #instance>::kernel()),
                quote!(<() as #instance>::shared_bytes),
            )
        }
    };
    let computed = slices.then(|| {
        let bytes = local("bytes");
        quote! {
            let #bytes = unsafe { #computed(&#args) };
            #args.set_shared_bytes(#bytes);
        }
    });
    quote! {
        #declared
        #[cfg(not(target_arch = "nvptx64"))]
        #(#attrs)*
        #[allow(clippy::too_many_arguments)]
        #vis #unsafety fn #ident #generics(#(#launch_params),*) -> #krate::host::#call #bound {
            #use_of_attribute
            #items
            let #mutability #args = <#krate::host::Args as ::core::default::Default>::default();
            #(#pushes)*
            #computed
            unsafe { #krate::host::Call::new(#described, #args) }
        }
    }
}

/// The function that runs the body for one emulated thread, with the arguments of a call.
fn cpu_entry(kernel: &Kernel, memory: &SharedMemory, yields: Yields) -> TokenStream {
    let krate = &kernel.options.krate;
    let args = local("args");
    // The position of each parameter's first value among the arguments.
    let positions = kernel.params.iter().scan(0usize, |pushed, param| {
        let position = *pushed;
        let has_length = matches!(&param.kind, ParamKind::Buffer { form, .. } if form.has_length());
        *pushed += 1 + usize::from(has_length);
        Some(position)
    });
    let positions: Vec<_> = positions.collect();
    let value = |number: usize| {
        let (ty, position) = (&kernel.params[number].ty, positions[number]);
        quote_spanned!(at(ty.span())=> #args.get::<#ty>(#position))
    };
    let len = |number: usize| {
        let position = positions[number] + 1;
        quote!(#args.get::<u64>(#position) as usize)
    };
    let computed = parts::computed_slices(kernel, memory, value, len);
    let slices = computed.as_ref().map(|computed| {
        let (slices, bytes) = parts::slices_variables();
        quote! {
            #[allow(unused_unsafe)]
            let (#slices, #bytes) = unsafe { #computed };
            #args.require_shared_bytes(#bytes);
        }
    });
    let shared_bytes = computed.map(|computed| {
        quote! {
            #[allow(unused_unsafe, unused_variables)]
            unsafe fn __preempt_shared_bytes(#args: &#krate::host::Args) -> ::core::primitive::u64 {
                unsafe { #computed.1 }
            }
        }
    });
    let of_params = kernel.params.iter().enumerate().map(|(number, param)| match &param.kind {
        ParamKind::Value => value(number),
        ParamKind::Buffer { form, element } => {
            let position = positions[number];
            let ptr = quote!(#args.pointer::<#element>(#position));
            let len = form.has_length().then(|| len(number));
            rebuild(krate, *form, ptr, len.into_token_stream())
        }
    });
    let arguments: Vec<_> = parts::slice_arguments(memory).chain(of_params).collect();
    let is_used = !kernel.params.is_empty() || slices.is_some();
    let args = if is_used { quote!(#args) } else { quote!(_) };
    let run = if yields.somewhere() {
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
        #shared_bytes
        unsafe fn __preempt_cpu(#args: &#krate::host::Args) -> ::core::primitive::bool {
            #slices
            #run
        }
    }
}

/// The `static` that describes the kernel, or an instance of it, to the host.
fn description(
    kernel: &Kernel,
    instance: Option<&Instance>,
    memory: &SharedMemory,
    yields: Yields,
) -> TokenStream {
    let Kernel { options: Options { block, amortize, krate, .. }, ident, .. } = kernel;
    let name = ident.unraw().to_string();
    let (entry, plain) = match &kernel.rust_cuda {
        Some(_) => (preemptible_symbol(ident).to_string(), name.clone()),
        None => {
            let symbol = instance.map_or(ident.unraw(), |instance| instance.symbol(ident));
            (symbol.to_string(), plain_symbol(&symbol).to_string())
        }
    };
    let name = match instance {
        Some(instance) => format!("{name}::<{}>", instance.text()),
        None => name,
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
    let shared_bytes = shared_end(memory.arrays.len());
    let yields = yields.somewhere();
    let state_bytes = match &kernel.state {
        Some(ty) => quote_spanned!(at(ty.span())=> #krate::yields::state_bytes::<#ty>()),
        None => quote!(0),
    };
    let (idempotence, reason) = match &kernel.proof {
        Some(Proof { idempotence, reason }) => (*idempotence, reason.as_str()),
        None => ("NotNeeded", ""),
    };
    let idempotence = Ident::new(idempotence, Span::call_site());
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
            idempotence: #krate::host::Idempotence::#idempotence,
            reason: #reason,
            state_bytes: #state_bytes,
            cpu: __preempt_cpu,
        };
    }
}
