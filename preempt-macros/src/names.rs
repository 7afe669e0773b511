//! Names of the expansion, and of the macros that kernels call.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote};
use syn::Macro;
use syn::ext::IdentExt;

/// Ends the name of the preemptible entry of a kernel for rust-cuda; its plain entry has the kernel's own name.
pub const PREEMPTIBLE: &str = "__preemptible";

/// A local variable of the expansion. Its hygiene is its own, so it cannot clash with the user's parameters.
pub fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

/// The variable that holds the state of the body's yield points.
pub fn yields_variable() -> Ident {
    local("__preempt_yields")
}

/// Points at the user's code, but belongs to the expansion, so that lints leave it alone.
pub fn at(span: Span) -> Span {
    Span::mixed_site().located_at(span)
}

/// The constant that holds the offset of shared array `number`.
pub fn shared_start(number: usize) -> Ident {
    format_ident!("__PREEMPT_SHARED_{number}", span = Span::mixed_site())
}

/// The bytes of shared memory that the arrays before `number` take.
pub fn shared_end(number: usize) -> TokenStream {
    match number.checked_sub(1) {
        None => quote!(0),
        Some(last) => {
            let end = format_ident!("__PREEMPT_SHARED_{last}_END", span = Span::mixed_site());
            quote!(#end)
        }
    }
}

/// Stands in for a marker while the body is rewritten.
pub const MARKER: &str = "__preempt_marker";

/// The macros that give a body shared memory.
pub const SHARED_ARRAY: &str = "shared_array";
pub const SHARED_SLICE: &str = "shared_slice";

/// The function that computes where shared slices are.
pub fn slices_function() -> Ident {
    format_ident!("__preempt_slices", span = Span::mixed_site())
}

/// The parameter of the body that says where shared slice `number` is.
pub fn slice_variable(number: usize) -> Ident {
    local(&format!("slice_{number}"))
}

/// The constant that holds size and alignment of the elements of shared slice `number`.
pub fn slice_layout(number: usize) -> Ident {
    format_ident!("__PREEMPT_SLICE_{number}", span = Span::mixed_site())
}

/// The symbol of a kernel's plain entry.
pub fn plain_symbol(ident: &Ident) -> Ident {
    format_ident!("{}__plain", ident.unraw())
}

/// The symbol of the preemptible entry of a kernel for rust-cuda.
pub fn preemptible_symbol(ident: &Ident) -> Ident {
    format_ident!("{}{PREEMPTIBLE}", ident.unraw())
}

/// A name as text, the same with and without `r#`.
pub fn text_of(name: &Ident) -> String {
    name.unraw().to_string()
}

/// Whether the path of `mac` ends with `name`.
pub fn is_named(mac: &Macro, name: &str) -> bool {
    mac.path.segments.last().is_some_and(|last| last.ident == name)
}

/// The name at the end of the path of `mac`, if that is a yield point.
pub fn yield_point(mac: &Macro) -> Option<&Ident> {
    Some(&mac.path.segments.last()?.ident).filter(|name| *name == "yield_point")
}
