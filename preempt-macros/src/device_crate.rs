//! Where the package that is compiled has `preempt-device`: the path that expansions refer to.

use proc_macro_crate::{Error, FoundCrate, crate_name};
use proc_macro2::Span;
use quote::format_ident;
use syn::{Path, Result, parse_quote};
use toml_edit::{DocumentMut, Item};

/// The path of `preempt-device` in the package that is compiled: a dependency of its own, by whatever name, or else
/// a part of `preempt`.
///
/// # Errors
///
/// If `Cargo.toml` names neither.
pub fn path() -> Result<Path> {
    path_among(crate_name("preempt-device"), || crate_name("preempt"))
}

type Found = std::result::Result<FoundCrate, Error>;

fn path_among(device: Found, host: impl FnOnce() -> Found) -> Result<Path> {
    let missing = match device {
        Ok(found) => return Ok(root(found, "preempt_device")),
        Err(Error::CrateNotFound { path, .. }) if stands_in(&path) => {
            return Ok(parse_quote!(::preempt_device));
        }
        Err(Error::CrateNotFound { path, .. }) => path,
        // Built without cargo, so names are what they are.
        Err(_) => return Ok(parse_quote!(::preempt_device)),
    };
    if let Ok(found) = host() {
        let host = root(found, "preempt");
        return Ok(parse_quote!(#host::preempt_device));
    }
    let message = format!(
        "the expansion refers to `preempt-device`, and `{}` names neither that nor `preempt`: run `cargo add preempt`, or, \
         for a crate of kernels, `cargo add preempt-device`; where another crate exports it, give its path with \
         `crate = path::to::preempt_device` (for the derive, `#[kernel_arg(crate = ..)]`)",
        missing.display()
    );
    Err(syn::Error::new(Span::call_site(), message))
}

/// Whether another package is a dependency under the name `preempt-device`, which `crate_name` does not look for.
fn stands_in(manifest: &std::path::Path) -> bool {
    let text = std::fs::read_to_string(manifest).unwrap_or_default();
    let manifest = text.parse::<DocumentMut>().unwrap_or_default();
    let dependencies = manifest.get("dependencies").and_then(Item::as_table_like);
    dependencies.is_some_and(|dependencies| dependencies.contains_key("preempt-device"))
}

/// The root of a crate. Within the package of this name, its tests and examples know it by it.
fn root(found: FoundCrate, own: &str) -> Path {
    let name = match found {
        FoundCrate::Itself => own.to_owned(),
        FoundCrate::Name(name) => name,
    };
    let name = format_ident!("{name}");
    parse_quote!(::#name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quote::ToTokens;

    fn named(name: &str) -> Found {
        Ok(FoundCrate::Name(name.to_owned()))
    }

    fn missing(name: &str) -> Found {
        Err(Error::CrateNotFound { crate_name: name.to_owned(), path: "/w/Cargo.toml".into() })
    }

    fn found(device: Found, host: Found) -> String {
        path_among(device, || host).unwrap().to_token_stream().to_string().replace(' ', "")
    }

    #[test]
    fn a_dependency_of_its_own_comes_first_by_whatever_name() {
        assert_eq!(found(named("preempt_device"), missing("preempt")), "::preempt_device");
        assert_eq!(found(named("gpu"), named("preempt")), "::gpu");
        assert_eq!(found(Ok(FoundCrate::Itself), missing("preempt")), "::preempt_device");
    }

    #[test]
    fn the_host_library_has_it_by_whatever_name() {
        let device = || missing("preempt-device");
        assert_eq!(found(device(), named("preempt")), "::preempt::preempt_device");
        assert_eq!(found(device(), named("sched")), "::sched::preempt_device");
    }

    #[test]
    fn another_package_under_its_name_stands_in_for_it() {
        let path =
            std::env::temp_dir().join(format!("preempt-stand-in-{}.toml", std::process::id()));
        let found = |dependencies: &str| {
            std::fs::write(&path, format!("[dependencies]\n{dependencies}\n")).unwrap();
            let device =
                Error::CrateNotFound { crate_name: "preempt-device".into(), path: path.clone() };
            path_among(Err(device), || missing("preempt"))
        };
        let stood_in = found("preempt-device = { package = \"other\", path = \"other\" }");
        assert_eq!(stood_in.unwrap().to_token_stream().to_string(), ":: preempt_device");
        assert!(found("other = \"1\"").is_err());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn without_cargo_it_has_its_own_name() {
        assert_eq!(
            found(Err(Error::CargoManifestDirNotSet), missing("preempt")),
            "::preempt_device"
        );
    }

    #[test]
    fn without_either_the_message_says_what_to_add() {
        let error = path_among(missing("preempt-device"), || missing("preempt")).err().unwrap();
        let error = error.to_string();
        for part in ["/w/Cargo.toml", "cargo add preempt`", "crate = path::to::preempt_device"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
