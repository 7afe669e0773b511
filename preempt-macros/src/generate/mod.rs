//! From a [`Kernel`] to the functions that host and device see.
//!
//! Each is one function under the kernel's name, with all else as items inside it. So the user's attributes,
//! and `#[cfg]` among them, apply to all of it.

use proc_macro2::{Ident, TokenStream};
use quote::quote;

use self::parts::Yields;
use crate::names::at;
use crate::parse::Kernel;
use crate::rewrite::shared::SharedMemory;

mod device;
mod host;
mod instances;
pub mod parts;
mod rust_cuda;

/// A warning at `option` with this text. The use of something deprecated is the one warning that a stable compiler lets a
/// macro word; the cause of none is that the kernel is wrong.
pub fn note(option: &Ident, text: &str) -> TokenStream {
    let name = Ident::new("IDEMPOTENCE", at(option.span()));
    quote! {
        #[cfg(not(target_arch = "nvptx64"))]
        const _: () = {
            #[deprecated(note = #text)]
            const #name: () = ();
            #name
        };
    }
}

/// The expansion of `kernel`. Its body refers to `memory`, and to the state of yield points if it `yields`.
pub fn kernel(kernel: &Kernel, memory: &SharedMemory, yields: Yields) -> TokenStream {
    let common = [Some(parts::shared_layout(kernel, memory)), parts::bounds(kernel)]
        .into_iter()
        .flatten()
        .collect();
    let host = host::host(kernel, &common, memory, yields);
    let device = match &kernel.rust_cuda {
        Some(form) => rust_cuda::device(kernel, form, &common, memory, yields),
        None => device::device(kernel, &common, memory, yields),
    };
    quote!(#host #device)
}
