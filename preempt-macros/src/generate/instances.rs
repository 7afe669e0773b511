//! What tells a generic launch function which instances there are: a trait with the kernel's constants as parameters, which
//! `()` implements for each instance.

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};
use syn::ext::IdentExt;

use super::parts;
use crate::conditions::condition;
use crate::parse::Kernel;
use crate::parse::instances::{Instance, Instances};

fn trait_name(kernel: &Kernel) -> Ident {
    format_ident!("__preempt_instance_of_{}", kernel.ident.unraw(), span = kernel.ident.span())
}

/// The trait with the parameters of the launch function.
pub fn instance_of(kernel: &Kernel, Instances { params, .. }: &Instances) -> TokenStream {
    let (name, constants) = (trait_name(kernel), params.iter().map(|param| &param.ident));
    quote!(#name<#(#constants),*>)
}

/// The trait. It stands beside the launch function, whose signature names it.
pub fn declaration(kernel: &Kernel, Instances { params, all }: &Instances) -> TokenStream {
    let (name, vis, krate) = (trait_name(kernel), &kernel.vis, &kernel.options.krate);
    let conditions: Vec<_> = kernel.attrs.iter().filter_map(condition).collect();
    let ident = kernel.ident.unraw();
    let listed: Vec<_> =
        all.iter().map(|instance| format!("`{ident}::<{}>`", instance.text())).collect();
    let message = format!("the kernel `{ident}` is not compiled for these constants");
    let note = format!(
        "it is compiled for {}; add the constants to the list in its attribute, `#[preemptible(instances(..))]`",
        listed.join(", ")
    );
    quote! {
        #[cfg(all(not(target_arch = "nvptx64"), #(#conditions),*))]
        #[doc(hidden)]
        #[allow(non_camel_case_types)]
        #[diagnostic::on_unimplemented(message = #message, label = "no such instance", note = #note)]
        #vis unsafe trait #name<#(#params),*> {
            fn kernel() -> &'static #krate::host::Kernel;
            unsafe fn shared_bytes(args: &#krate::host::Args) -> ::core::primitive::u64;
        }
    }
}

/// The implementation for an instance, with the `items` that describe it.
pub fn implementation(
    kernel: &Kernel,
    instance: &Instance,
    items: TokenStream,
    has_slices: bool,
) -> TokenStream {
    let (name, krate) = (trait_name(kernel), &kernel.options.krate);
    let Some(Instances { params, .. }) = &kernel.instances else { return TokenStream::new() };
    let constants = parts::constants(params, instance);
    let names = params.iter().map(|param| &param.ident);
    let bytes = match has_slices {
        true => quote!(unsafe { __preempt_shared_bytes(args) }),
        false => quote!(args.shared_bytes(&__PREEMPT_KERNEL)),
    };
    quote! {
        #[allow(non_local_definitions)]
        const _: () = {
            #constants
            #items
            unsafe impl #name<#({ #names }),*> for () {
                fn kernel() -> &'static #krate::host::Kernel {
                    &__PREEMPT_KERNEL
                }

                unsafe fn shared_bytes(args: &#krate::host::Args) -> ::core::primitive::u64 {
                    #bytes
                }
            }
        };
    }
}
