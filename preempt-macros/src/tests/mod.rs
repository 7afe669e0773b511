//! Expansions, and the messages of refused kernels.

use proc_macro2::TokenStream;
use syn::visit::{self, Visit};

mod changed;
mod errors;
mod expansions;
mod guide;

/// The messages of all `compile_error!`s in an expansion.
fn messages(expansion: TokenStream) -> Vec<String> {
    #[derive(Default)]
    struct Messages(Vec<String>);
    impl<'ast> Visit<'ast> for Messages {
        fn visit_macro(&mut self, mac: &'ast syn::Macro) {
            if mac.path.segments.last().unwrap().ident == "compile_error" {
                self.0.push(mac.parse_body::<syn::LitStr>().unwrap().value());
            }
            visit::visit_macro(self, mac);
        }
    }
    let mut messages = Messages::default();
    messages.visit_file(&syn::parse2(expansion).unwrap());
    messages.0
}

/// The expansion of `#[preemptible(options)] item`.
fn expand(options: &str, item: &str) -> TokenStream {
    crate::expand_kernel(options.parse().unwrap(), item.parse().unwrap())
}

/// The expansion of `#[kernel(options)] item`.
fn expand_kernel(options: &str, item: &str) -> TokenStream {
    crate::kernel_attribute::kernel(options.parse().unwrap(), item.parse().unwrap())
}

/// The expansion of `#[derive(KernelArg)] item`.
fn derive(item: &str) -> TokenStream {
    crate::expand_derive(item.parse().unwrap())
}
