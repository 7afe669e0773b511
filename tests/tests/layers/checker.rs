//! Checks the arrows between modules against their layers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::sources::{ModulePath, Sources};

/// Layers of modules, the lowest one first.
pub type Layers<'a> = &'a [&'a [&'a str]];

/// A fault of a crate's modules, or of the list of its layers.
#[derive(Debug, PartialEq, Eq)]
pub enum Fault {
    /// A module in no layer.
    Unlisted { module: String },
    /// A module that is listed and does not exist, or is listed twice.
    Misnamed { module: String },
    /// A module that uses a module in a layer above its own.
    Upward { from: String, to: String, path: String },
    /// Modules of one layer that use each other in a ring.
    Cycle { modules: Vec<String> },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Unlisted { module } => write!(f, "`{module}` is in no layer; add it to one"),
            Fault::Misnamed { module } => {
                write!(f, "`{module}` is listed as a module, and is none, or is listed twice")
            }
            Fault::Upward { from, to, path } => {
                write!(f, "`{from}` uses `{to}` in a layer above its own: `{path}`")
            }
            Fault::Cycle { modules } => {
                write!(f, "modules of one layer use each other: `{}`", modules.join("` -> `"))
            }
        }
    }
}

/// All faults of the crate, unlisted and misnamed modules first.
pub fn check(sources: &Sources, layers: Layers<'_>) -> Vec<Fault> {
    let (mut faults, mut heights) = (Vec::new(), BTreeMap::new());
    for (height, layer) in layers.iter().enumerate() {
        for module in *layer {
            let is_there = sources.modules.contains_key(&path_of(module));
            if heights.insert(path_of(module), height).is_some() || !is_there {
                faults.push(Fault::Misnamed { module: (*module).to_owned() });
            }
        }
    }
    // Arrows between listed modules, each with one path that shows it.
    let mut arrows: BTreeMap<(ModulePath, ModulePath), Vec<String>> = BTreeMap::new();
    for (at, module) in &sources.modules {
        let Some(from) = listed(at, &heights) else {
            faults.push(Fault::Unlisted { module: name_of(at) });
            continue;
        };
        for path in &module.paths {
            let to = sources.resolve(at, path).and_then(|to| listed(&to, &heights));
            if let Some(to) = to.filter(|to| *to != from) {
                arrows.entry((from.clone(), to)).or_insert_with(|| path.clone());
            }
        }
    }
    let mut beside: BTreeMap<ModulePath, BTreeSet<ModulePath>> = BTreeMap::new();
    for ((from, to), path) in arrows {
        if heights[&to] > heights[&from] {
            let (from, to) = (name_of(&from), name_of(&to));
            faults.push(Fault::Upward { from, to, path: path.join("::") });
        } else if heights[&to] == heights[&from] {
            beside.entry(from).or_default().insert(to);
        }
    }
    faults.extend(cycles(&beside));
    faults
}

/// The nearest module around `path`, itself included, that is in a layer. The root is around none but itself:
/// otherwise, no module would ever be missing.
fn listed(path: &ModulePath, heights: &BTreeMap<ModulePath, usize>) -> Option<ModulePath> {
    let least = path.len().min(1);
    (least..=path.len())
        .rev()
        .map(|len| path[..len].to_vec())
        .find(|around| heights.contains_key(around))
}

/// A cycle through each module that lies on one and on no cycle found before.
fn cycles(arrows: &BTreeMap<ModulePath, BTreeSet<ModulePath>>) -> Vec<Fault> {
    let mut found: Vec<Vec<ModulePath>> = Vec::new();
    for start in arrows.keys() {
        if found.iter().any(|cycle| cycle.contains(start)) {
            continue;
        }
        // The shortest way from `start` to itself.
        let mut ways = vec![vec![start.clone()]];
        let mut seen = BTreeSet::new();
        let mut at = 0;
        while at < ways.len() {
            let way = ways[at].clone();
            at += 1;
            let next = way.last().and_then(|last| arrows.get(last)).into_iter().flatten();
            if next.clone().any(|module| module == start) {
                found.push(way);
                break;
            }
            for module in next.filter(|module| seen.insert((*module).clone())) {
                ways.push(way.iter().cloned().chain([module.clone()]).collect());
            }
        }
    }
    let named = |cycle: &Vec<ModulePath>| {
        let modules = cycle.iter().chain(cycle.first()).map(name_of).collect();
        Fault::Cycle { modules }
    };
    found.iter().map(named).collect()
}

impl Sources {
    /// The module that holds the item of `path` in the module `at`; `None` if the item is of another crate.
    fn resolve(&self, at: &ModulePath, path: &[String]) -> Option<ModulePath> {
        // Imports lead to other imports; those of a ring lead nowhere.
        self.resolve_within(at, path, 16)
    }

    fn resolve_within(&self, at: &ModulePath, path: &[String], imports: u32) -> Option<ModulePath> {
        let imports = imports.checked_sub(1)?;
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => self.descend(ModulePath::new(), rest, imports),
            "self" => self.descend(at.clone(), rest, imports),
            "super" => {
                let above = at[..at.len().checked_sub(1)?].to_vec();
                match rest.first().is_some_and(|next| next == "super") {
                    true => self.resolve_within(&above, rest, imports),
                    false => self.descend(above, rest, imports),
                }
            }
            _ => {
                let module = self.modules.get(at)?;
                let child: ModulePath = at.iter().cloned().chain([first.clone()]).collect();
                if self.modules.contains_key(&child) {
                    return self.descend(child, rest, imports);
                }
                // An external crate may have the name of an item imported from it.
                let import = module.imports.get(first).filter(|import| *import != path)?;
                let path: Vec<_> = import.iter().chain(rest).cloned().collect();
                self.resolve_within(at, &path, imports)
            }
        }
    }

    /// The module that the rest of a path leads to from the module `at`.
    fn descend(&self, at: ModulePath, rest: &[String], imports: u32) -> Option<ModulePath> {
        let Some((first, behind)) = rest.split_first() else { return Some(at) };
        let child: ModulePath = at.iter().cloned().chain([first.clone()]).collect();
        if self.modules.contains_key(&child) {
            return self.descend(child, behind, imports);
        }
        let module = self.modules.get(&at)?;
        if module.items.contains(first) {
            return Some(at);
        }
        if let Some(import) = module.imports.get(first) {
            let path: Vec<_> = import.iter().chain(behind).cloned().collect();
            return self.resolve_within(&at, &path, imports);
        }
        // The first glob that leads to an item of this crate with the name.
        let through_glob = module.globs.iter().find_map(|glob| {
            let to = self.resolve_within(&at, glob, imports)?;
            let has_name = self.modules.get(&to).is_some_and(|module| {
                module.items.contains(first) || module.imports.contains_key(first)
            });
            has_name.then(|| self.descend(to, rest, imports)).flatten()
        });
        // An item declared by a macro is the module's own.
        through_glob.or(Some(at))
    }
}

/// The name of a module in a list of layers.
fn name_of(path: &ModulePath) -> String {
    if path.is_empty() { "crate".to_owned() } else { path.join("::") }
}

fn path_of(name: &str) -> ModulePath {
    if name == "crate" { ModulePath::new() } else { name.split("::").map(str::to_owned).collect() }
}

#[cfg(test)]
mod tests {
    use std::{env, fs, process};

    use super::*;

    /// The faults of a crate with these files.
    fn faults(name: &str, files: &[(&str, &str)], layers: Layers<'_>) -> Vec<String> {
        let dir = env::temp_dir().join(format!("preempt-layers-{name}-{}", process::id()));
        for (file, text) in files {
            let path = dir.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let sources = Sources::read(&dir).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        check(&sources, layers).iter().map(Fault::to_string).collect()
    }

    const ROOT: (&str, &str) = ("lib.rs", "mod low; mod high; pub use high::run;");
    const LAYERS: Layers<'_> = &[&["low"], &["high"], &["crate"]];

    #[test]
    fn a_tree_whose_arrows_point_down_has_no_fault() {
        let files = [
            ROOT,
            ("low.rs", "pub struct Id; #[cfg(test)] mod tests { use crate::high::run; }"),
            ("high/mod.rs", "mod part; use crate::low::Id; pub fn run() { part::run() }"),
            ("high/part.rs", "use super::Id; pub fn run() {}"),
        ];
        assert_eq!(faults("down", &files, LAYERS), [""; 0]);
    }

    #[test]
    fn an_arrow_that_points_up_is_a_fault_wherever_it_is_written() {
        for (number, low) in [
            "use crate::high::run;",
            "use super::high::{self, run as go};",
            "fn f() { crate::high::run() }",
            "fn f(x: crate::high::Run) {}",
            "fn f() { println!(\"{}\", crate::high::run()) }",
            "macro_rules! m { () => { $crate::high::run() } }",
            "impl crate::high::Run for u8 {}",
            "mod inner { use super::super::high::run; }",
            "pub use crate::high::*;",
            // Through a name that the root imports from there.
            "use crate::run;",
            "use super::*; fn f() { super::run() }",
        ]
        .into_iter()
        .enumerate()
        {
            let files = [ROOT, ("low.rs", low), ("high.rs", "pub fn run() {} pub trait Run {}")];
            let found = faults(&format!("up{number}"), &files, LAYERS);
            let is_upward = |fault: &String| fault.contains("`low` uses `high` in a layer above");
            assert!(found.iter().any(is_upward), "{low}: {found:?}");
        }
    }

    #[test]
    fn a_name_of_another_crate_is_no_arrow() {
        let low = "use std::high; use high_tide::run; use ::high::run as other; fn f() { std::mem::swap() }";
        let files = [ROOT, ("low.rs", low), ("high.rs", "pub fn run() {}")];
        assert_eq!(faults("extern", &files, LAYERS), [""; 0]);
    }

    #[test]
    fn a_cycle_in_one_layer_is_a_fault() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", "use crate::c::C; pub struct B;"),
            ("c.rs", "fn f() { crate::a::A; } pub struct C;"),
            ("d.rs", "use crate::a::A;"),
        ];
        let found = faults("cycle", &files, &[&["a", "b", "c", "d"], &["crate"]]);
        assert_eq!(found, ["modules of one layer use each other: `a` -> `b` -> `c` -> `a`"]);
    }

    #[test]
    fn a_module_that_is_not_listed_is_a_fault_and_so_is_one_that_is_not_there() {
        let files = [ROOT, ("low.rs", ""), ("high.rs", "pub fn run() {}")];
        let found = faults("listed", &files, &[&["low", "gone"], &["crate"]]);
        let expected = ["`gone` is listed as a module", "`high` is in no layer"];
        assert!(
            found.len() == 2 && found.iter().zip(expected).all(|(f, e)| f.contains(e)),
            "{found:?}"
        );
    }

    #[test]
    fn a_part_of_a_module_can_have_a_layer_of_its_own() {
        let files = [
            ("lib.rs", "mod low; mod high;"),
            ("low.rs", "use crate::high::ids::Id;"),
            ("high/mod.rs", "pub mod ids; pub use ids::Id; use crate::low;"),
            ("high/ids.rs", "pub struct Id;"),
        ];
        assert_eq!(
            faults("part", &files, &[&["high::ids"], &["low"], &["high"], &["crate"]]),
            [""; 0]
        );
        let found = faults("whole", &files, LAYERS);
        assert!(found[0].contains("`low` uses `high` in a layer above its own"), "{found:?}");
    }
}
