//! The device entries of a kernel: a preemptible and a plain one.

use proc_macro2::{Ident, TokenStream};
use quote::quote;

use super::parts::{self, Yields};
use crate::names::{local, plain_symbol};
use crate::parse::Kernel;
use crate::parse::instances::Instances;
use crate::rewrite::shared::SharedMemory;

/// The preemptible entry, with the body and the plain entry inside; or the entries of all instances.
///
/// What is outermost has the kernel's name, so that imports of the kernel resolve on the device too.
pub fn device(
    kernel: &Kernel,
    common: &TokenStream,
    memory: &SharedMemory,
    yields: Yields,
) -> TokenStream {
    let Kernel { attrs, vis, ident, instances, .. } = kernel;
    let Some(Instances { params, all }) = instances else {
        let entries = entries(kernel, ident, common, memory, yields);
        return quote! {
            #[cfg(target_arch = "nvptx64")]
            #(#attrs)*
            #[allow(non_snake_case, improper_ctypes_definitions, clippy::too_many_arguments)]
            #[unsafe(no_mangle)]
            #vis #entries
        };
    };
    let of_instances = all.iter().map(|instance| {
        let constants = parts::constants(params, instance);
        let entries = entries(kernel, &instance.symbol(ident), common, memory, yields);
        quote! {
            const _: () = {
                #constants
                #[allow(non_snake_case, improper_ctypes_definitions, clippy::too_many_arguments)]
                #[unsafe(no_mangle)]
                #entries
            };
        }
    });
    quote! {
        #[cfg(target_arch = "nvptx64")]
        #(#attrs)*
        #vis fn #ident<#(#params),*>() {
            #(#of_instances)*
        }
    }
}

/// The preemptible entry with this name, with the body and the plain entry inside.
fn entries(
    kernel: &Kernel,
    ident: &Ident,
    common: &TokenStream,
    memory: &SharedMemory,
    yields: Yields,
) -> TokenStream {
    let options = &kernel.options;
    let krate = &options.krate;
    let (cohort, task) = (local("cohort"), local("task"));
    let plain = plain_symbol(ident);
    let body = parts::body(kernel, &kernel.body, memory, yields);
    let shared_check = parts::shared_check(kernel, memory);
    let (entry_params, arguments) = parts::entry_parameters(kernel);
    let (call, preemptible, plain_entry) = parts::entry_calls(&arguments, memory, krate, yields);
    let block = parts::block_declaration(options);
    quote! {
        unsafe extern "ptx-kernel" fn #ident(
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
