//! `#[preemptible]` and `#[derive(KernelArg)]`; use them through `preempt_device`.

use errors::Errors;
use parse::Kernel;
use proc_macro::TokenStream;
use proc_macro2::TokenStream as TokenStream2;

mod analyze;
mod derive;
mod errors;
mod generate;
mod parse;
mod shared;
#[cfg(test)]
mod tests;

/// Makes a kernel preemptible.
#[proc_macro_attribute]
pub fn preemptible(options: TokenStream, item: TokenStream) -> TokenStream {
    expand_kernel(options.into(), item.into()).into()
}

/// Lets a struct be passed to kernels by value.
#[proc_macro_derive(KernelArg, attributes(kernel_arg))]
pub fn derive_kernel_arg(item: TokenStream) -> TokenStream {
    expand_derive(item.into()).into()
}

fn expand_kernel(options: TokenStream2, item: TokenStream2) -> TokenStream2 {
    let mut kernel = match Kernel::parse(options, item) {
        Ok(kernel) => kernel,
        Err(error) => return error.into_compile_error(),
    };
    let mut errors = Errors::default();
    analyze::check_returns(&kernel.body, &mut errors);
    let arrays = shared::place_arrays(&kernel.options.krate, &mut kernel.body, &mut errors);
    // The kernel is there even where its body is refused, so that its callers see no error.
    let mut expansion = generate::kernel(&kernel, &arrays);
    expansion.extend(errors.finish().err().map(syn::Error::into_compile_error));
    expansion
}

fn expand_derive(item: TokenStream2) -> TokenStream2 {
    derive::kernel_arg(item).unwrap_or_else(syn::Error::into_compile_error)
}
