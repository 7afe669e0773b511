//! `#[preemptible]` and `#[derive(KernelArg)]`; use them through `preempt_device`.

use proc_macro::TokenStream;

/// Makes a kernel preemptible. Not implemented yet.
#[proc_macro_attribute]
pub fn preemptible(_options: TokenStream, _item: TokenStream) -> TokenStream {
    quote::quote!(::core::compile_error!("#[preemptible] is not implemented yet");).into()
}

/// Lets a struct be passed to kernels by value. Not implemented yet.
#[proc_macro_derive(KernelArg)]
pub fn derive_kernel_arg(_item: TokenStream) -> TokenStream {
    quote::quote!(::core::compile_error!("#[derive(KernelArg)] is not implemented yet");).into()
}
