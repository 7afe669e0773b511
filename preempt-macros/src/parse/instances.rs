//! The instances of a const-generic kernel: which constants it is compiled for.

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, format_ident};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{ConstParam, Error, Expr, GenericParam, Generics, Result, Token};

use crate::errors::Errors;

const GENERIC: &str = "a kernel is generic over constants only, since each of its entries is one symbol; put the code in a \
    generic function with `#[inline(always)]`, and call it from one kernel for each type";

/// The constants of a generic kernel.
pub struct Instances {
    /// The constant parameters.
    pub params: Vec<ConstParam>,
    pub all: Vec<Instance>,
}

/// A value for each constant parameter.
pub struct Instance {
    pub values: Vec<Expr>,
    /// The values as a part of a symbol.
    suffix: String,
}

impl Instance {
    /// The name of the kernel's preemptible entry for these constants.
    pub fn symbol(&self, kernel: &Ident) -> Ident {
        format_ident!("{}__{}", kernel.unraw(), self.suffix, span = kernel.span())
    }

    /// The values as a user writes them behind the kernel's name.
    pub fn text(&self) -> String {
        self.values.iter().map(text_of).collect::<Vec<_>>().join(", ")
    }
}

/// A value as a user writes it, without the blank that tokens have behind a sign.
fn text_of(value: &Expr) -> String {
    value.to_token_stream().to_string().replace("- ", "-")
}

/// The instances that the option lists, for the generics of the kernel; `None` for a kernel without.
pub fn parse(option: Option<&TokenStream>, generics: &Generics) -> Result<Option<Instances>> {
    let mut errors = Errors::default();
    let mut params = Vec::new();
    for param in &generics.params {
        match param {
            GenericParam::Lifetime(lifetime) => errors.push(
                lifetime,
                "a kernel has no lifetime parameters; write `&[T]` without a lifetime",
            ),
            GenericParam::Const(param) => params.push(param.clone()),
            GenericParam::Type(param) => errors.push(param, GENERIC),
        }
    }
    if let Some(clause) = &generics.where_clause {
        errors
            .push(clause, "a kernel has no types as parameters, so it needs no `where`; remove it");
    }
    let all = match option {
        Some(list) if params.is_empty() && generics.params.is_empty() => {
            errors.push(list, "this kernel has no constants as parameters, so it has no instances; remove the option");
            Vec::new()
        }
        // Refused for another reason.
        Some(_) if params.is_empty() => Vec::new(),
        Some(list) => {
            let parse = |input: ParseStream<'_>| parse_all(input, params.len());
            errors.take(parse.parse2(list.clone())).unwrap_or_default()
        }
        None => {
            if let Some(first) = params.first() {
                errors.push(
                    first,
                    "a kernel is compiled for each constant that it is launched with, since each of its entries is one \
                     symbol; list them, `#[preemptible(instances(8, 16))]`",
                );
            }
            Vec::new()
        }
    };
    for (number, instance) in all.iter().enumerate() {
        if all[..number].iter().any(|before| before.suffix == instance.suffix) {
            let text = format!(
                "`{}` is listed twice, or an instance that looks alike in a symbol",
                instance.text()
            );
            errors.push(&instance.values[0], text);
        }
    }
    errors.finish()?;
    Ok((!params.is_empty()).then_some(Instances { params, all }))
}

/// `8, 16`, or `(8, true), (16, false)` for more than one parameter.
fn parse_all(input: ParseStream<'_>, params: usize) -> Result<Vec<Instance>> {
    let list = Punctuated::<Expr, Token![,]>::parse_terminated(input)?;
    if list.is_empty() {
        let text = "list the constants that the kernel is compiled for, `instances(8, 16)`";
        return Err(Error::new(input.span(), text));
    }
    list.into_iter().map(|value| instance(value, params)).collect()
}

fn instance(value: Expr, params: usize) -> Result<Instance> {
    let span = value.span();
    let values: Vec<_> = match value {
        Expr::Tuple(tuple) => tuple.elems.into_iter().collect(),
        Expr::Paren(one) => vec![*one.expr],
        one => vec![one],
    };
    if values.len() != params {
        let text = match params {
            1 => "this kernel has one constant parameter; list a value of it, `instances(8, 16)`"
                .to_owned(),
            _ => format!(
                "this kernel has {params} constant parameters; list a value of each in parentheses, \
                 `instances((8, 16), (32, 64))`"
            ),
        };
        return Err(Error::new(span, text));
    }
    let in_symbol = |c: char| match c {
        '-' => 'm',
        c if c.is_ascii_alphanumeric() => c,
        _ => '_',
    };
    let text = |value: &Expr| text_of(value).chars().map(in_symbol).collect::<String>();
    let suffix = values.iter().map(text).collect::<Vec<_>>().join("_");
    Ok(Instance { values, suffix })
}
