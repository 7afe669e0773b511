//! The modules of a crate, and which paths each of them names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, LitStr, Macro, UseTree};

/// A path of a module in its crate, without `crate`: empty for the root.
pub type ModulePath = Vec<String>;

/// A crate's modules by their paths. Code that only tests have is left out.
#[derive(Debug, Default)]
pub struct Sources {
    pub modules: BTreeMap<ModulePath, Module>,
}

/// What one module declares and names.
#[derive(Debug, Default)]
pub struct Module {
    /// The paths of `use` declarations, of expressions, types and macro calls, as they are written.
    pub paths: BTreeSet<Vec<String>>,
    /// The names that `use` declarations bring, and the paths behind them.
    pub imports: BTreeMap<String, Vec<String>>,
    /// The paths whose names are all imported, `path::*`.
    pub globs: Vec<Vec<String>>,
    /// The names of items other than modules.
    pub items: BTreeSet<String>,
}

impl Sources {
    /// Reads the crate whose `lib.rs` is in the folder `src`.
    pub fn read(src: &Path) -> Result<Sources, String> {
        let mut sources = Sources::default();
        sources.read_file(&src.join("lib.rs"), src, ModulePath::new())?;
        Ok(sources)
    }

    /// Reads the file of a module, whose submodules have their files in `folder`.
    fn read_file(&mut self, file: &Path, folder: &Path, path: ModulePath) -> Result<(), String> {
        let fault = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
        let text = fs::read_to_string(file).map_err(|error| fault(&error))?;
        let parsed = syn::parse_file(&text).map_err(|error| fault(&error))?;
        if !is_for_tests(&parsed.attrs) {
            self.read_items(&parsed.items, folder, path)?;
        }
        Ok(())
    }

    fn read_items(
        &mut self,
        items: &[Item],
        folder: &Path,
        path: ModulePath,
    ) -> Result<(), String> {
        let mut reader = ModuleReader::default();
        for item in items.iter().filter(|item| !is_for_tests(attributes(item))) {
            match item {
                Item::Mod(inner) => self.read_submodule(inner, folder, &path)?,
                item => {
                    reader.module.items.extend(name_of(item));
                    reader.visit_item(item);
                }
            }
        }
        // A module that is declared twice, under opposite conditions, is one.
        let module = self.modules.entry(path).or_default();
        module.paths.extend(reader.module.paths);
        module.imports.extend(reader.module.imports);
        module.globs.extend(reader.module.globs);
        module.items.extend(reader.module.items);
        Ok(())
    }

    fn read_submodule(
        &mut self,
        inner: &ItemMod,
        folder: &Path,
        path: &ModulePath,
    ) -> Result<(), String> {
        let name = inner.ident.to_string();
        let path = path.iter().cloned().chain([name.clone()]).collect();
        let own_folder = folder.join(&name);
        if let Some((_, items)) = &inner.content {
            return self.read_items(items, &own_folder, path);
        }
        let (flat, nested) = (folder.join(format!("{name}.rs")), own_folder.join("mod.rs"));
        match path_attribute(inner) {
            Some(named) => {
                let file = folder.join(named);
                self.read_file(&file, file.parent().unwrap_or(folder), path)
            }
            None if flat.exists() => self.read_file(&flat, &own_folder, path),
            None => self.read_file(&nested, &own_folder, path),
        }
    }
}

/// `#[path = ".."]`
fn path_attribute(module: &ItemMod) -> Option<PathBuf> {
    let attr = module.attrs.iter().find(|attr| attr.path().is_ident("path"))?;
    let syn::Meta::NameValue(value) = &attr.meta else { return None };
    let syn::Expr::Lit(literal) = &value.value else { return None };
    let syn::Lit::Str(text) = &literal.lit else { return None };
    Some(PathBuf::from(LitStr::value(text)))
}

/// Whether a `#[cfg]` asks for tests, alone or among other conditions.
fn is_for_tests(attrs: &[Attribute]) -> bool {
    attrs.iter().filter(|attr| attr.path().is_ident("cfg")).any(|attr| {
        let Ok(condition) = attr.parse_args::<syn::Meta>() else { return false };
        asks_for_tests(&condition)
    })
}

fn asks_for_tests(condition: &syn::Meta) -> bool {
    let syn::Meta::List(list) = condition else { return condition.path().is_ident("test") };
    let parse = syn::punctuated::Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated;
    list.path.is_ident("all")
        && list.parse_args_with(parse).is_ok_and(|parts| parts.iter().any(asks_for_tests))
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name_of(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// Collects what the items of one module name.
#[derive(Default)]
struct ModuleReader {
    module: Module,
}

impl ModuleReader {
    fn add_use(&mut self, tree: &UseTree, before: &[String]) {
        let with = |name: &syn::Ident| {
            before.iter().cloned().chain([name.to_string()]).collect::<Vec<_>>()
        };
        match tree {
            UseTree::Path(path) => self.add_use(&path.tree, &with(&path.ident)),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_use(tree, before)),
            UseTree::Glob(_) => {
                self.module.paths.insert(before.to_vec());
                self.module.globs.push(before.to_vec());
            }
            UseTree::Name(name) if name.ident == "self" => {
                self.module
                    .imports
                    .extend(before.last().map(|last| (last.clone(), before.to_vec())));
                self.module.paths.insert(before.to_vec());
            }
            UseTree::Name(name) => self.add_import(&name.ident, with(&name.ident)),
            UseTree::Rename(rename) if rename.ident == "self" => {
                self.add_import(&rename.rename, before.to_vec());
            }
            UseTree::Rename(rename) => self.add_import(&rename.rename, with(&rename.ident)),
        }
    }

    fn add_import(&mut self, name: &syn::Ident, path: Vec<String>) {
        self.module.paths.insert(path.clone());
        self.module.imports.insert(name.to_string(), path);
    }

    /// The paths among the tokens of a macro, from `crate`, `self` or `super` on.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) => self.add_tokens(group.stream()),
                TokenTree::Ident(start)
                    if ["crate", "self", "super"].iter().any(|s| start == s) =>
                {
                    let path = path_of_tokens(&tokens[at..]);
                    if path.len() > 1 {
                        self.module.paths.insert(path);
                    }
                }
                _ => {}
            }
        }
    }
}

/// The path that these tokens start with.
fn path_of_tokens(mut tokens: &[TokenTree]) -> Vec<String> {
    let is_colon =
        |token: &TokenTree| matches!(token, TokenTree::Punct(colon) if colon.as_char() == ':');
    let mut path = Vec::new();
    while let [TokenTree::Ident(name), rest @ ..] = tokens {
        path.push(name.to_string());
        match rest {
            [first, second, rest @ ..] if is_colon(first) && is_colon(second) => tokens = rest,
            _ => break,
        }
    }
    path
}

impl<'ast> Visit<'ast> for ModuleReader {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if item.leading_colon.is_none() {
            self.add_use(&item.tree, &[]);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        // One name alone was imported, or belongs to the module.
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            let names = path.segments.iter().map(|segment| segment.ident.to_string());
            self.module.paths.insert(names.collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, mac: &'ast Macro) {
        visit::visit_macro(self, mac);
        self.add_tokens(mac.tokens.clone());
    }

    /// Text of documentation is not code.
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}
