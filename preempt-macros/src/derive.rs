//! `#[derive(KernelArg)]`: a struct with the same layout on host and device.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Path, Result, Token};

use crate::device_crate;
use crate::errors::Errors;
use crate::names::at;

/// Generates `unsafe impl KernelArg`, and an assertion for each field, at its type.
pub fn kernel_arg(item: TokenStream) -> Result<TokenStream> {
    let input: DeriveInput = syn::parse2(item)?;
    let mut errors = Errors::default();
    let krate = errors.take(crate_path(&input));
    check_layout(&input, &mut errors);
    let fields: Vec<_> = match &input.data {
        Data::Struct(data) => data.fields.iter().map(|field| &field.ty).collect(),
        Data::Enum(data) => {
            errors.push(
                data.enum_token,
                "`KernelArg` is for structs: not every bit pattern is a value of an enum; pass \
                 its discriminant as a number",
            );
            Vec::new()
        }
        Data::Union(data) => {
            errors.push(
                data.union_token,
                "`KernelArg` is for structs; pass the bytes of a union as an array `[u8; N]`",
            );
            Vec::new()
        }
    };
    errors.finish()?;

    let ident = &input.ident;
    let checks = fields.iter().map(|ty| quote_spanned!(at(ty.span())=> __preempt_field::<#ty>();));
    Ok(quote! {
        const _: () = {
            // Here and not in `preempt_device`, so that the bound is the trait that is implemented below:
            // safe code chooses the path.
            const fn __preempt_field<T: #krate::kernel::KernelArg>() {}
            #(#checks)*
        };
        #[automatically_derived]
        unsafe impl #krate::kernel::KernelArg for #ident {}
    })
}

/// The path in `#[kernel_arg(crate = path)]`, or that of the dependency.
fn crate_path(input: &DeriveInput) -> Result<Path> {
    let mut krate = None;
    for attr in input.attrs.iter().filter(|attr| attr.path().is_ident("kernel_arg")) {
        attr.parse_nested_meta(|meta| {
            if !meta.path.is_ident("crate") {
                return Err(meta.error("unknown option; the only one is `crate = path`"));
            }
            meta.input.parse::<Token![=]>()?;
            krate = Some(meta.input.call(Path::parse_mod_style)?);
            Ok(())
        })?;
    }
    krate.map_or_else(device_crate::path, Ok)
}

fn check_layout(input: &DeriveInput, errors: &mut Errors) {
    let generics = &input.generics;
    if let Some(param) = generics.params.first() {
        errors.push(
            param,
            "`KernelArg` cannot be derived for a generic struct; write one struct for each type",
        );
    }
    let mut fixed = false;
    for attr in input.attrs.iter().filter(|attr| attr.path().is_ident("repr")) {
        // The compiler reports errors in `repr` better.
        let _ = attr.parse_nested_meta(|meta| {
            fixed |= meta.path.is_ident("C") || meta.path.is_ident("transparent");
            meta.input.step(|cursor| {
                // Skips the parentheses of `align(16)`.
                let rest = cursor.group(proc_macro2::Delimiter::Parenthesis);
                Ok(((), rest.map_or(*cursor, |(_, _, rest)| rest)))
            })
        });
    }
    if matches!(input.data, Data::Struct(_)) && !fixed {
        errors.push(
            &input.ident,
            "host and device code come from different compilers, which may lay out this struct \
             differently; put `#[repr(C)]` on it",
        );
    }
}
