//! `#[preemptible]` and `#[derive(KernelArg)]`; use them through `preempt_device`.

use proc_macro::TokenStream;

mod analyze;
mod derive;
mod errors;
mod generate;
mod parse;

/// Makes a kernel preemptible.
#[proc_macro_attribute]
pub fn preemptible(options: TokenStream, item: TokenStream) -> TokenStream {
    expand_kernel(options.into(), item.into()).into()
}

/// Lets a struct be passed to kernels by value.
#[proc_macro_derive(KernelArg, attributes(kernel_arg))]
pub fn derive_kernel_arg(item: TokenStream) -> TokenStream {
    derive::kernel_arg(item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

fn expand_kernel(
    options: proc_macro2::TokenStream,
    item: proc_macro2::TokenStream,
) -> proc_macro2::TokenStream {
    let expand = || {
        let mut kernel = parse::Kernel::parse(options, item)?;
        let arrays = analyze::place_shared_arrays(&kernel.options.krate, &mut kernel.body)?;
        Ok(generate::kernel(&kernel, &arrays))
    };
    expand().unwrap_or_else(|error: syn::Error| error.into_compile_error())
}
