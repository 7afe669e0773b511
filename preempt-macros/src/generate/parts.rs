//! Parts that several generated functions share.

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Block, ConstParam, Path, Stmt};

use crate::names::{
    at, local, shared_end, shared_start, slice_layout, slice_variable, slices_function,
    yields_variable,
};
use crate::parse::instances::Instance;
use crate::parse::{Form, Kernel, Options, Param, ParamKind};
use crate::rewrite::shared::{SharedArray, SharedMemory};

/// Whether block-tasks of a kernel can be dropped at yield points.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Yields {
    /// The body has no yield points.
    Nowhere,
    /// The body has yield points, and perhaps markers that the block needs no word for.
    Anywhere,
    /// Until a thread gets to a marker, of which a word of the block tells the others.
    UntilMarked,
    /// The body has a checkpoint, where the state of the threads is saved.
    AtCheckpoint,
}

impl Yields {
    pub fn somewhere(self) -> bool {
        self != Yields::Nowhere
    }
}

/// The constants of an instance, under the names that the kernel's parameters have.
pub fn constants(params: &[ConstParam], Instance { values, .. }: &Instance) -> TokenStream {
    let constants = params.iter().zip(values).map(|(ConstParam { ident, ty, .. }, value)| {
        quote! {
            #[allow(dead_code)]
            const #ident: #ty = #value;
        }
    });
    constants.collect()
}

/// The attributes of what is there under `conditions`, and of what stands in for it otherwise.
fn there_or_not(conditions: &[TokenStream]) -> Option<[TokenStream; 2]> {
    (!conditions.is_empty()).then(|| {
        [quote!(#[cfg(all(#(#conditions),*))]), quote!(#[cfg(not(all(#(#conditions),*)))])]
    })
}

/// The layout of shared memory: one array after the other, and behind them the slices.
pub fn shared_layout(kernel: &Kernel, memory: &SharedMemory) -> TokenStream {
    let krate = &kernel.options.krate;
    let consts = memory.arrays.iter().enumerate().map(|(number, array)| {
        let SharedArray { element, len, span, conditions } = array;
        let (start, used, end) = (shared_start(number), shared_end(number), shared_end(number + 1));
        let cfgs = there_or_not(conditions);
        let there = cfgs.as_ref().map(|[there, _]| there);
        let absent = cfgs.as_ref().map(|[_, not]| quote!(#not const #end: usize = #used;));
        quote_spanned! {at(*span)=>
            #there
            const #start: usize = #krate::shared::offset::<#element>(#used);
            #there
            #[allow(dead_code)]
            const #end: usize = #krate::shared::end::<#element, { #len }>(#used);
            #absent
        }
    });
    consts.chain(slices(kernel, memory)).collect()
}

/// The function that computes where shared slices are, and the layouts of their elements.
fn slices(kernel: &Kernel, memory: &SharedMemory) -> Option<TokenStream> {
    let SharedMemory { arrays, slices } = memory;
    if slices.is_empty() {
        return None;
    }
    let (krate, name, used) = (&kernel.options.krate, slices_function(), local("used"));
    // Only those that decide, because arrays and structs would be copied.
    let params = kernel.params.iter().filter(|param| memory.is_measured_by(&param.ident));
    let params = params.map(|Param { ident, ty, kind, .. }| match kind {
        ParamKind::Value => quote!(#ident: #ty),
        ParamKind::Buffer { .. } => quote!(#ident: #krate::shared::Elements),
    });
    let (mut layouts, mut places) = (TokenStream::new(), TokenStream::new());
    for (number, slice) in slices.iter().enumerate() {
        let SharedArray { element, len, span, conditions } = slice;
        let (variable, layout) = (slice_variable(number), slice_layout(number));
        let cfgs = there_or_not(conditions);
        let there = cfgs.as_ref().map(|[there, _]| there);
        layouts.extend(quote_spanned! {at(*span)=>
            #there
            const #layout: [usize; 2] = #krate::shared::layout::<#element>();
        });
        places.extend(quote_spanned! {at(*span)=>
            #there
            let (#variable, #used) = #krate::shared::place::<#element>(#used, #len);
        });
        places.extend(cfgs.map(|[_, not]| {
            quote!(#not let (#variable, #used) = (#krate::shared::Place::NOWHERE, #used);)
        }));
    }
    let (count, first) = (slices.len(), shared_end(arrays.len()));
    let variables = (0..count).map(slice_variable);
    Some(quote! {
        #layouts
        #[inline(always)]
        #[allow(clippy::too_many_arguments)]
        fn #name(#(#params),*) -> ([#krate::shared::Place; #count], u64) {
            let #used = #first as u64;
            #places
            ([#(#variables),*], #used)
        }
    })
}

/// The variables that hold the places of shared slices, and the bytes up to their end.
pub fn slices_variables() -> (Ident, Ident) {
    (local("slices"), local("shared_bytes"))
}

/// The places of shared slices, computed from the parameters. `value` and `len` are the expressions for a parameter
/// that is passed by value, and for the length of a slice, by the parameter's number.
pub fn computed_slices(
    kernel: &Kernel,
    memory: &SharedMemory,
    value: impl Fn(usize) -> TokenStream,
    len: impl Fn(usize) -> TokenStream,
) -> Option<TokenStream> {
    let (krate, name) = (&kernel.options.krate, slices_function());
    let params = kernel.params.iter().enumerate();
    let arguments =
        params.filter(|(_, param)| memory.is_measured_by(&param.ident)).map(|(number, param)| {
            match &param.kind {
                ParamKind::Value => value(number),
                ParamKind::Buffer { .. } => {
                    let len = len(number);
                    quote!(#krate::shared::Elements::new(#len))
                }
            }
        });
    (!memory.slices.is_empty()).then(|| quote!(#name(#(#arguments),*)))
}

/// A check in an entry on the device that the launch gives it enough shared memory. It is needed where
/// `#[cfg]`s decide about arrays, because those may differ between host and device; and for slices, because the
/// expressions of their lengths may.
pub fn shared_check(kernel: &Kernel, memory: &SharedMemory) -> Option<TokenStream> {
    let krate = &kernel.options.krate;
    let value = |number: usize| kernel.params[number].ident.to_token_stream();
    let len = |number: usize| length_parameter(number).into_token_stream();
    if let Some(computed) = computed_slices(kernel, memory, value, len) {
        let (slices, bytes) = slices_variables();
        return Some(quote! {
            let (#slices, #bytes) = #computed;
            #krate::entry::require_slices(#bytes);
        });
    }
    let end = shared_end(memory.arrays.len());
    let may_differ = memory.arrays.iter().any(|array| !array.conditions.is_empty());
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
    let bytes = kernel.params.iter().map(|Param { ty, kind, .. }| match kind {
        ParamKind::Value => quote!(+ __preempt_check::bytes::<#ty>()),
        ParamKind::Buffer { form, .. } if form.has_length() => quote!(+ 2 * __preempt_check::WORD),
        ParamKind::Buffer { .. } => quote!(+ __preempt_check::WORD),
    });
    let room = quote_spanned!(at(kernel.ident.span())=> __preempt_check::arguments(0 #(#bytes)*););
    (!kernel.params.is_empty()).then(|| {
        quote! {
            const _: () = {
                use #krate::kernel::check as __preempt_check;
                #(#checks)*
                #room
            };
        }
    })
}

/// The user's function under another name, with this `body`. Only shared memory and yield points are changed
/// in it.
pub fn body(kernel: &Kernel, body: &Block, memory: &SharedMemory, yields: Yields) -> TokenStream {
    let Kernel { options: Options { krate, .. }, unsafety, .. } = kernel;
    let params = kernel.params.iter().map(|Param { attrs, mutability, ident, ty, .. }| {
        // Used, though not here.
        let used = memory.is_measured_by(ident).then(|| quote!(#[allow(unused_variables)]));
        quote!(#(#attrs)* #used #mutability #ident: #ty)
    });
    let first = yields.somewhere().then(|| {
        let yields = yields_variable();
        quote!(#yields: &mut #krate::yields::Yields)
    });
    let slices = (0..memory.slices.len()).map(|number| {
        let variable = slice_variable(number);
        quote!(#[allow(unused_variables)] #variable: #krate::shared::Place)
    });
    let params = first.into_iter().chain(slices).chain(params);
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
        let len = length_parameter(number);
        if form.has_length() {
            entry_params.push(quote!(#len: usize));
        }
        arguments.push(rebuild(krate, *form, ptr.into_token_stream(), len.into_token_stream()));
    }
    (entry_params, arguments)
}

/// The parameter of an entry that is the length of a slice.
fn length_parameter(number: usize) -> Ident {
    local(&format!("len_{number}"))
}

/// The arguments of the body that say where shared slices are.
pub fn slice_arguments(memory: &SharedMemory) -> impl Iterator<Item = TokenStream> {
    let (slices, _) = slices_variables();
    (0..memory.slices.len()).map(move |number| quote!(#slices[#number]))
}

/// A closure that calls the body, and the functions of `entry` that run it in the preemptible and in the
/// plain entry.
pub fn entry_calls(
    arguments: &[TokenStream],
    memory: &SharedMemory,
    krate: &Path,
    yields: Yields,
) -> (TokenStream, TokenStream, TokenStream) {
    // Primitives that read the task's registers must be inlined into an entry. So the body is, and so is the
    // closure that calls it, however long it is.
    let arguments: Vec<_> = slice_arguments(memory).chain(arguments.iter().cloned()).collect();
    let entry = match yields {
        Yields::Nowhere => quote!(preemptible),
        Yields::AtCheckpoint => quote!(preemptible_switching),
        Yields::Anywhere => quote!(preemptible_yielding),
        Yields::UntilMarked => quote!(preemptible_marking),
    };
    if yields.somewhere() {
        let yields = yields_variable();
        let call = quote! {
            #[inline(always)]
            |#yields: &mut #krate::yields::Yields| unsafe { __preempt_body(#yields, #(#arguments),*) }
        };
        (call, entry, quote!(plain_yielding))
    } else {
        let call = quote!(#[inline(always)] || unsafe { __preempt_body(#(#arguments),*) });
        (call, entry, quote!(plain))
    }
}
