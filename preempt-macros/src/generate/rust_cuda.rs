//! The device entries of a kernel that was written for rust-cuda.
//!
//! `cuda_std`'s attribute decides how an entry is compiled, for a code generator of its own. So both entries keep the
//! `#[kernel]` that the function has: the plain one is the user's function, and the preemptible one has the same
//! attribute. Nothing else depends on the code generator.

use proc_macro2::TokenStream;
use quote::quote;

use super::parts::{self, Yields};
use crate::names::{local, preemptible_symbol};
use crate::parse::Kernel;
use crate::parse::rust_cuda::RustCuda;
use crate::rewrite::rust_cuda::remove_yield_points;
use crate::rewrite::shared::SharedMemory;

/// The two entries: the plain one as the user wrote it, and the preemptible one.
pub fn device(
    kernel: &Kernel,
    RustCuda { item, attrs, abi }: &RustCuda,
    common: &TokenStream,
    memory: &SharedMemory,
    yields: Yields,
) -> TokenStream {
    let Kernel { options, attrs: others, vis, ident, .. } = kernel;
    let krate = &options.krate;
    let entry = preemptible_symbol(ident);
    let (cohort, task) = (local("cohort"), local("task"));
    let body = parts::body(kernel, &kernel.body, memory, yields);
    let shared_check = parts::shared_check(kernel, memory);
    let (params, arguments) = parts::entry_parameters(kernel);
    let (call, preemptible, _) = parts::entry_calls(&arguments, memory, krate, yields);
    let block = parts::block_declaration(options);
    let mut plain = item.clone();
    if yields.somewhere() {
        remove_yield_points(&mut plain.block);
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
