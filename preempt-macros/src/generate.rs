//! From a [`Kernel`] to the functions that host and device see.
//!
//! Both are one function under the kernel's name, with everything else as items inside it, so
//! that the user's attributes, and `#[cfg]` among them, apply to all of it.

use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Block, Lifetime, Path, Token};

use crate::parse::{
    AMORTIZE_LIMITS, BLOCK_LIMITS, Form, Kernel, MAX_THREADS, MAX_THREADS_Z, Options, Param,
    ParamKind,
};
use crate::rust_cuda::{self, RustCuda};
use crate::shared::SharedArray;

/// The expansion of `kernel`, whose body refers to `arrays` in shared memory, and to what its yield
/// points look at if it `yields`.
pub fn kernel(kernel: &Kernel, arrays: &[SharedArray], yields: bool) -> TokenStream {
    let common =
        [Some(shared_layout(kernel, arrays)), bounds(kernel)].into_iter().flatten().collect();
    let host = host(kernel, &common, arrays.len(), yields);
    let check = shared_check(kernel, arrays);
    let device = match &kernel.rust_cuda {
        Some(form) => rust_cuda::device(kernel, form, &common, check, yields),
        None => device(kernel, &common, check.as_ref(), yields),
    };
    quote!(#host #device)
}

/// Locals get a hygiene of their own, and cannot meet the user's parameters.
pub fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

/// What the yield points of the body look at.
pub fn yields() -> Ident {
    local("__preempt_yields")
}

/// Points at the user's code, but belongs to the expansion, so that lints leave it alone.
pub fn at(span: Span) -> Span {
    Span::mixed_site().located_at(span)
}

/// The constant that holds where shared array `number` starts.
pub fn shared_start(number: usize) -> Ident {
    format_ident!("__PREEMPT_SHARED_{number}", span = Span::mixed_site())
}

/// Shared memory that the arrays before `number` take.
pub fn shared_end(number: usize) -> TokenStream {
    match number.checked_sub(1) {
        None => quote!(0),
        Some(last) => {
            let end = format_ident!("__PREEMPT_SHARED_{last}_END", span = Span::mixed_site());
            quote!(#end)
        }
    }
}

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

/// Ends an entry on the device that needs more shared memory than the host has found, where `#[cfg]`s that may
/// differ between the two decide about arrays.
pub fn shared_check(kernel: &Kernel, arrays: &[SharedArray]) -> Option<TokenStream> {
    let (krate, end) = (&kernel.options.krate, shared_end(arrays.len()));
    let may_differ = arrays.iter().any(|array| !array.conditions.is_empty());
    may_differ.then(|| quote!(#krate::entry::require_shared(#krate::shared::total(#end));))
}

/// Asserts what the types of the parameters must be, at those types.
fn bounds(kernel: &Kernel) -> Option<TokenStream> {
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

/// The user's function under another name, with this `body`; nothing in it is changed but shared
/// arrays and yield points.
pub fn body(kernel: &Kernel, body: &Block, yields: bool) -> TokenStream {
    let Kernel { options: Options { krate, .. }, unsafety, .. } = kernel;
    let params = kernel.params.iter().map(
        |Param { attrs, mutability, ident, ty, .. }| quote!(#(#attrs)* #mutability #ident: #ty),
    );
    let first = yields.then(|| {
        let yields = self::yields();
        quote!(#yields: &mut #krate::yields::Yields)
    });
    let params = first.into_iter().chain(params);
    let block = match &kernel.rust_cuda {
        Some(_) => rust_cuda::with_names(krate, &body.stmts),
        None => body.to_token_stream(),
    };
    quote!(#unsafety fn __preempt_body(#(#params),*) #block)
}

/// What the body takes, made of a buffer's address, and its length for slices. The caller puts `unsafe` around.
fn rebuild(krate: &Path, form: Form, ptr: TokenStream, len: TokenStream) -> TokenStream {
    match form {
        Form::Slice => quote!(::core::slice::from_raw_parts(#ptr, #len)),
        Form::SliceMut => quote!(#krate::kernel::SliceMut::from_raw_parts(#ptr, #len)),
        Form::ConstPtr | Form::MutPtr => ptr,
    }
}

/// The launch function, with the body, the CPU entry and the kernel's description inside.
fn host(kernel: &Kernel, common: &TokenStream, arrays: usize, yields: bool) -> TokenStream {
    let Kernel { options, attrs, vis, ident, unsafety, params, .. } = kernel;
    let krate = &options.krate;
    let args = local("args");
    let body = match &kernel.rust_cuda {
        Some(_) => {
            let block = rust_cuda::with_host_macros(krate, kernel.body.clone());
            body(kernel, &block, yields)
        }
        None => body(kernel, &kernel.body, yields),
    };
    let cpu = cpu_entry(kernel, yields);
    let description = description(kernel, arrays, yields);

    let borrow = Lifetime::new("'__preempt", Span::mixed_site());
    let borrows = params.iter().any(|param| matches!(param.kind, ParamKind::Buffer { .. }));
    let (generics, call) = match borrows {
        true => (quote!(<#borrow>), quote!(BorrowingCall<#borrow, #krate::host::NoGrid>)),
        false => (quote!(), quote!(Call<#krate::host::NoGrid>)),
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
            unsafe { #krate::host::BorrowingCall::new(&__PREEMPT_KERNEL, #args) }
        }
    }
}

/// Runs the body for one emulated thread, with the arguments of a call.
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
        let yields = self::yields();
        quote! {
            let mut #yields = #krate::yields::Yields::of_thread();
            unsafe { __preempt_body(&mut #yields, #(#arguments),*) }
            #yields.dropped()
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

/// The `static` that tells the host all about the kernel.
fn description(kernel: &Kernel, arrays: usize, yields: bool) -> TokenStream {
    let Kernel { options: Options { block, amortize, krate, .. }, ident, .. } = kernel;
    let name = ident.unraw().to_string();
    let (entry, plain) = match &kernel.rust_cuda {
        Some(_) => (rust_cuda::entry_symbol(ident).to_string(), name.clone()),
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

fn plain_symbol(ident: &Ident) -> Ident {
    format_ident!("{}__plain", ident.unraw())
}

/// The preemptible entry, with the body and the plain entry inside.
///
/// It has the kernel's name, so that imports of the kernel resolve on the device too.
fn device(
    kernel: &Kernel,
    common: &TokenStream,
    shared_check: Option<&TokenStream>,
    yields: bool,
) -> TokenStream {
    let Kernel { options, attrs, vis, ident, .. } = kernel;
    let krate = &options.krate;
    let (cohort, task) = (local("cohort"), local("task"));
    let plain = plain_symbol(ident);
    let body = body(kernel, &kernel.body, yields);
    let (entry_params, arguments) = entry_parameters(kernel);
    let (call, preemptible, plain_entry) = entry_calls(&arguments, krate, yields);
    let block = block_declaration(options);
    quote! {
        #[cfg(target_arch = "nvptx64")]
        #(#attrs)*
        #[allow(non_snake_case, improper_ctypes_definitions, clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        #vis unsafe extern "ptx-kernel" fn #ident(
            #cohort: #krate::abi::Cohort,
            #(#entry_params),*
        ) {
            #common
            #krate::kernel_body! { #body }
            #[unsafe(no_mangle)]
            unsafe extern "ptx-kernel" fn #plain(#(#entry_params),*) {
                #shared_check
                let #task = #call;
                unsafe { #krate::entry::#plain_entry(#task) }
            }
            #block
            #shared_check
            let #task = #call;
            unsafe { #krate::entry::#preemptible(&#cohort, #task) }
        }
    }
}

/// Says in the preemptible entry how many threads a block has, if the attribute fixes that.
pub fn block_declaration(Options { block, krate, .. }: &Options) -> Option<TokenStream> {
    let [x, y, z] = block.as_ref()?;
    Some(quote_spanned! {at(x.span())=>
        #krate::entry::declare_block::<{ #krate::entry::threads(#x, #y, #z) }>();
    })
}

/// The parameters of an entry, and what its body takes, made of them. They are those that rust-cuda gives
/// an entry, since a launch passes the same ones to its plain entries.
pub fn entry_parameters(kernel: &Kernel) -> (Vec<TokenStream>, Vec<TokenStream>) {
    let krate = &kernel.options.krate;
    let (mut entry_params, mut arguments) = (Vec::new(), Vec::new());
    for (number, Param { ident, ty, kind, .. }) in kernel.params.iter().enumerate() {
        let ParamKind::Buffer { form, element } = kind else {
            entry_params.push(quote!(#ident: #ty));
            arguments.push(quote!(#ident));
            continue;
        };
        // A slice is two: as one parameter it would arrive as an aggregate, with generic loads.
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

/// What calls the body, and the functions of `entry` that call that in the two entries.
pub fn entry_calls(
    arguments: &[TokenStream],
    krate: &Path,
    yields: bool,
) -> (TokenStream, TokenStream, TokenStream) {
    // Every primitive that reads the task's registers must end up in an entry, so the body does,
    // and so does what calls it, however long it is.
    if yields {
        let yields = self::yields();
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
