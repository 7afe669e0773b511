//! Kernels whose tokens were changed: each is expanded or refused, and what comes out is Rust.
//!
//! `PROPTEST_CASES` is the number of changed kernels.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use proc_macro2::{Group, TokenStream, TokenTree};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use quote::ToTokens;
use syn::visit::{self, Visit};

/// Far above what any of these takes.
const SOON: Duration = Duration::from_secs(10);

/// What the macros look for.
const WORDS: [&str; 40] = [
    "yield_point!();",
    "checkpoint!(s: u32 = 0 => for i in 0..3 { s += i; });",
    "thread::sync_threads();",
    "let a = shared_array![u32; 32];",
    "let a = shared_slice![u32; n];",
    "return;",
    "return",
    "break",
    "continue 'a",
    "loop { yield_point!(); }",
    "if x { return; }",
    "while let Some(x) = y.next() {}",
    "match x { 0 => return, _ => {} }",
    "|x| x + 1",
    "move || { return }",
    "async {}",
    "unsafe { out.write(0, out.read(0)) }",
    "AtomicU32::from_ptr(p).fetch_add(1, Relaxed)",
    "*p = 3;",
    "#[cfg(a)]",
    "#[kernel]",
    "#[preemptible(block = 3)]",
    "idempotent",
    "block = (1, 2)",
    "instances(1, 2)",
    "const N: usize",
    "<const N: usize>",
    "SliceMut<u32>",
    "PerThread<f32>",
    "&[T]",
    "&mut x",
    "*mut u32",
    "self",
    "macro_rules! m { () => {} }",
    "mod m { fn f() {} }",
    "fn f() { yield_point!() }",
    "impl X { fn f() {} }",
    "1_000_000_000_000",
    "-",
    "'a",
];

/// Attributes' arguments with their items, as token trees.
#[derive(Clone, Debug)]
struct Input {
    options: TokenStream,
    item: TokenStream,
}

/// The kernels, and the structs that they take, of a file.
#[derive(Default)]
struct Found {
    kernels: Vec<Input>,
    structs: Vec<TokenStream>,
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        let mut item = function.clone();
        let is_ours = |attr: &syn::Attribute| {
            attr.path().segments.last().is_some_and(|last| last.ident == "preemptible")
        };
        if let Some(at) = item.attrs.iter().position(is_ours) {
            let options = match item.attrs.remove(at).meta {
                syn::Meta::List(list) => list.tokens,
                _ => TokenStream::new(),
            };
            self.kernels.push(Input { options, item: item.to_token_stream() });
        }
        visit::visit_item_fn(self, function);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.structs.push(item.to_token_stream());
    }
}

/// What this repository's kernels are.
fn found() -> Found {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Found::default();
    for folder in ["benches/workloads/kernels/src", "tests/kernels/src"] {
        let files = fs::read_dir(workspace.join(folder)).unwrap();
        let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        for file in files.iter().filter(|file| file.extension().is_some_and(|ext| ext == "rs")) {
            found.visit_file(&syn::parse_file(&fs::read_to_string(file).unwrap()).unwrap());
        }
    }
    found
}

/// A change at a place that `path` leads to.
#[derive(Clone, Debug)]
struct Edit {
    path: Vec<u16>,
    number: u32,
}

fn edits() -> impl Strategy<Value = (u16, Vec<Edit>)> {
    let path = prop::collection::vec(any::<u16>(), 1..9);
    let edit = (path, any::<u32>()).prop_map(|(path, number)| Edit { path, number });
    (any::<u16>(), prop::collection::vec(edit, 1..3))
}

/// Changes the token that a path ends at.
fn apply(tokens: TokenStream, path: &[u16], number: u32) -> TokenStream {
    let mut all: Vec<TokenTree> = tokens.into_iter().collect();
    let [first, rest @ ..] = path else { return all.into_iter().collect() };
    let groups: Vec<usize> =
        (0..all.len()).filter(|&at| matches!(all[at], TokenTree::Group(_))).collect();
    // Mostly deeper, because most of what is changed at the top is no function any more.
    let at = match first % 4 {
        0 => usize::from(*first) / 4 % (all.len() + 1),
        _ if groups.is_empty() => usize::from(*first) / 4 % (all.len() + 1),
        _ => groups[usize::from(*first) / 4 % groups.len()],
    };
    let other = number as usize >> 8;
    let to = other % all.len().max(1);
    match (all.get(at), number % 4) {
        (Some(TokenTree::Group(group)), _) if !rest.is_empty() => {
            let inner = apply(group.stream(), rest, number);
            all[at] = Group::new(group.delimiter(), inner).into();
        }
        (Some(_), 0) => drop(all.remove(at)),
        (Some(token), 1) => all.insert(to, token.clone()),
        (Some(_), 2) => all.swap(at, to),
        _ => {
            let word = TokenStream::from_str(WORDS[other % WORDS.len()]).unwrap();
            all.splice(at..at, word);
        }
    }
    all.into_iter().collect()
}

/// Whether an expansion refuses its kernel.
#[track_caller]
fn is_refused(expansion: TokenStream) -> Result<bool, TestCaseError> {
    let text = expansion.to_string();
    match syn::parse2::<syn::File>(expansion) {
        Ok(_) => Ok(text.contains("compile_error")),
        Err(error) => Err(TestCaseError::fail(format!("{error} in {text}"))),
    }
}

fn each_changed(judge: impl Fn(u16, &[Edit]) -> Result<bool, TestCaseError>) {
    let counts = [const { std::cell::Cell::new(0_u64) }; 2];
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    let result = runner.run(&edits(), |(which, edits)| {
        let start = Instant::now();
        let count = &counts[usize::from(judge(which, &edits)?)];
        count.set(count.get() + 1);
        prop_assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        Ok(())
    });
    result.unwrap();
    let [expanded, refused] = counts.map(|count| count.get());
    println!("{expanded} expanded, {refused} refused");
    assert!(expanded > 0 && refused > 0);
}

#[test]
fn changed_kernels_are_expanded_or_refused() {
    let kernels = found().kernels;
    assert!(kernels.len() > 80, "{}", kernels.len());
    each_changed(|which, edits| {
        let Input { mut options, mut item } = kernels[usize::from(which) % kernels.len()].clone();
        for Edit { path, number } in edits {
            if number >> 29 == 0 {
                options = apply(options, path, *number);
            } else {
                item = apply(item, path, *number);
            }
        }
        is_refused(crate::kernel_attribute::kernel(TokenStream::new(), item.clone()))?;
        is_refused(crate::expand_kernel(options, item))
    });
}

#[test]
fn changed_structs_are_expanded_or_refused() {
    let structs = found().structs;
    assert!(structs.len() > 5, "{}", structs.len());
    each_changed(|which, edits| {
        let item = structs[usize::from(which) % structs.len()].clone();
        let change = |item, edit: &Edit| apply(item, &edit.path, edit.number);
        is_refused(crate::expand_derive(edits.iter().fold(item, change)))
    });
}
