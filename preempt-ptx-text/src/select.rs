//! What a launch has to know of an entry, and the part of a file that an entry needs.

use std::collections::{BTreeMap, BTreeSet};

use crate::lex::{Kind, Tokens};
use crate::transform::{Parameter, place_parameters};
use crate::tree::{FunctionItem, ItemKind, Module, Span};

/// What the text of an entry says of its launches, whether it is accepted or refused.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct EntryShape {
    /// The parameters, in their order.
    pub parameters: Vec<Parameter>,
    /// The block that each launch has to have, in threads: `.reqntid`.
    pub block: Option<[u32; 3]>,
    /// Threads, at most, of a block: `.maxntid`.
    pub most_threads: Option<u32>,
    /// What a launch has to say for the entry to work, if it has to say anything.
    pub needs: Option<LaunchNeed>,
}

/// What no text says and an entry relies on: an attribute of the launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LaunchNeed {
    /// A cooperative launch, all of whose blocks are resident: the entry reads `%envreg`, as a barrier of the grid does.
    Cooperative,
    /// A size of clusters: the entry has `.explicitcluster` and does not say how large they are.
    ClusterSize,
}

impl<'a> Module<'a> {
    /// What launches of an entry have to know; `None` if there is no such entry.
    pub fn shape(&self, entry: &str) -> Option<EntryShape> {
        let function =
            self.functions().find(|f| f.name == entry && f.is_entry && f.body.is_some())?;
        let (parameters, _) = place_parameters(function);
        let extents = |name: &str| {
            let (_, numbers) = function.directives.iter().find(|(of, _)| *of == name)?;
            let mut extents = [1; 3];
            for (extent, number) in extents.iter_mut().zip(numbers) {
                *extent = number.parse().ok()?;
            }
            Some(extents)
        };
        let most = extents(".maxntid").map(|most| most.into_iter().fold(1, u32::saturating_mul));
        let has = |name: &str| function.directives.iter().any(|(of, _)| *of == name);
        let words = self.reached(&Words::of(self), function);
        let needs = if words.iter().any(|word| word.starts_with("%envreg")) {
            Some(LaunchNeed::Cooperative)
        } else if has(".explicitcluster") && !has(".reqnctapercluster") {
            Some(LaunchNeed::ClusterSize)
        } else {
            None
        };
        Some(EntryShape { parameters, block: extents(".reqntid"), most_threads: most, needs })
    }

    /// The entries that have to be in one loaded module with this one, itself among them, in the order of the file: those
    /// that share variables in global memory with it, directly or by others. Each loaded module has its own variables.
    pub fn together(&self, entry: &str) -> Vec<&'a str> {
        let words = Words::of(self);
        let globals: BTreeSet<&str> = self
            .variables()
            .filter(|variable| variable.space == ".global")
            .flat_map(|variable| variable.names.iter().map(|declared| declared.name))
            .collect();
        let mut uses: BTreeMap<&'a str, BTreeSet<&'a str>> = BTreeMap::new();
        for function in self.functions().filter(|f| f.is_entry && f.body.is_some()) {
            let mut used = self.reached(&words, function);
            used.retain(|word| globals.contains(word));
            uses.insert(function.name, used);
        }
        let mut shared = uses.get(entry).cloned().unwrap_or_default();
        let mut group = BTreeSet::from([entry]);
        loop {
            let joins = |(name, used): &(&&'a str, &BTreeSet<&'a str>)| {
                !group.contains(**name) && !used.is_disjoint(&shared)
            };
            let Some((name, used)) = uses.iter().find(joins) else { break };
            group.insert(name);
            shared.extend(used);
        }
        self.entries().filter(|name| group.contains(name)).collect()
    }

    /// The text with blanks in the place of all entries but these, so that what is left keeps its line and column. The
    /// whole text, if what is left names what would be gone: debug information, or a launch from the device.
    pub fn only(&self, entries: &[&str]) -> String {
        let is_left_out =
            |function: &FunctionItem<'_>| function.is_entry && !entries.contains(&function.name);
        let mut left_out: Vec<Span> = Vec::new();
        let mut gone = BTreeSet::new();
        for item in &self.items {
            match &item.kind {
                ItemKind::Section => return self.text.to_owned(),
                ItemKind::Function(function) if is_left_out(function) => {
                    left_out.push(item.span);
                    gone.insert(function.name);
                }
                _ => {}
            }
        }
        let mut text = String::with_capacity(self.text.len());
        let mut at = 0;
        for span in left_out {
            text.push_str(&self.text[at..span.start]);
            let blank = |c: char| if c == '\n' { '\n' } else { ' ' };
            text.extend(self.text[span.start..span.end].chars().map(blank));
            at = span.end;
        }
        text.push_str(&self.text[at..]);
        let names_what_is_gone = names(&text).any(|name| gone.contains(name));
        if names_what_is_gone { self.text.to_owned() } else { text }
    }

    /// All names in a function, and in the functions and variables that it names.
    fn reached(&self, words: &Words<'a>, function: &FunctionItem<'a>) -> BTreeSet<&'a str> {
        let mut reached = BTreeSet::new();
        let mut waiting = vec![function.name];
        while let Some(name) = waiting.pop() {
            for &word in words.0.get(name).into_iter().flatten() {
                if reached.insert(word) && word != function.name {
                    waiting.push(word);
                }
            }
        }
        reached
    }
}

/// The names in each function and variable of a file.
struct Words<'a>(BTreeMap<&'a str, BTreeSet<&'a str>>);

impl<'a> Words<'a> {
    fn of(module: &Module<'a>) -> Words<'a> {
        let mut words: BTreeMap<&'a str, BTreeSet<&'a str>> = BTreeMap::new();
        for item in &module.items {
            let found = || names(&module.text[item.span.start..item.span.end]);
            match &item.kind {
                // A declaration and the definition have the same name.
                ItemKind::Function(function) => {
                    words.entry(function.name).or_default().extend(found());
                }
                ItemKind::Variable(variable) => {
                    for declared in &variable.names {
                        words.entry(declared.name).or_default().extend(found());
                    }
                }
                _ => {}
            }
        }
        Words(words)
    }
}

fn names(text: &str) -> impl Iterator<Item = &str> {
    Tokens::of(text).filter(|token| token.kind == Kind::Word).map(|token| token.text)
}

#[cfg(test)]
mod tests {
    use crate::read;
    use crate::select::LaunchNeed;

    const HEAD: &str = ".version 8.0\n.target sm_90\n.address_size 64\n";

    fn module(text: &str) -> String {
        format!("{HEAD}{text}")
    }

    #[test]
    fn a_shape_has_the_parameters_and_the_block() {
        let text = module(
            ".entry k(.param .u64 p, .param .u8 b, .param .align 16 .b8 s[40]) .reqntid 8, 4 { ret; }
             .entry m(.param .f32 x) .maxntid 128, 2 { ret; }
             .entry none() { ret; }",
        );
        let module = read(&text).unwrap();
        let shape = module.shape("k").unwrap();
        let places: Vec<_> = shape.parameters.iter().map(|of| (of.offset, of.bytes)).collect();
        assert_eq!(places, [(0, 8), (8, 1), (16, 40)]);
        assert_eq!((shape.block, shape.most_threads), (Some([8, 4, 1]), None));
        let shape = module.shape("m").unwrap();
        assert_eq!((shape.block, shape.most_threads, shape.needs), (None, Some(256), None));
        let shape = module.shape("none").unwrap();
        assert!(shape.parameters.is_empty() && shape.block.is_none());
        assert_eq!(module.shape("x"), None);
    }

    #[test]
    fn a_shape_says_what_the_launch_has_to_say() {
        let text = module(
            ".func meet() { .reg .b32 %r; mov.u32 %r, %envreg1; ret; }
             .entry grid() { call meet; ret; }
             .entry clustered() .explicitcluster { ret; }
             .entry sized() .explicitcluster .reqnctapercluster 2 { ret; }",
        );
        let module = read(&text).unwrap();
        let needs = |entry| module.shape(entry).unwrap().needs;
        assert_eq!(needs("grid"), Some(LaunchNeed::Cooperative));
        assert_eq!(needs("clustered"), Some(LaunchNeed::ClusterSize));
        assert_eq!(needs("sized"), None);
    }

    #[test]
    fn entries_that_share_variables_stay_together() {
        let text = module(
            ".global .u32 counter; .global .u32 other; .const .u32 table[2] = {1, 2};
             .global .u64 to_other = other;
             .func count() { .reg .b32 %r; ld.global.u32 %r, [counter]; ret; }
             .entry a() { call count; ret; }
             .entry b() { .reg .b64 %a; mov.u64 %a, counter; mov.u64 %a, to_other; ret; }
             .entry c() { .reg .b64 %a; mov.u64 %a, other; ret; }
             .entry d() { .reg .b32 %r; ld.const.u32 %r, [table]; ret; }
             .entry e() { .reg .b32 %r; ld.const.u32 %r, [table]; ret; }",
        );
        let module = read(&text).unwrap();
        assert_eq!(module.together("a"), ["a", "b", "c"], "c by what b has in common with both");
        assert_eq!(module.together("c"), ["a", "b", "c"]);
        assert_eq!(module.together("d"), ["d"], "constants are the same in each module");
        assert!(module.together("x").is_empty());
    }

    #[test]
    fn what_is_left_out_leaves_its_place() {
        let text = module(".entry a() {\n ret;\n} .entry b() { ret; }\n.entry c() { ret; }\n");
        let module = read(&text).unwrap();
        let only = module.only(&["b"]);
        assert_eq!(only.find(".entry b"), text.find(".entry b"));
        assert_eq!(read(&only).unwrap().entries().collect::<Vec<_>>(), ["b"]);
        assert_eq!(only.lines().count(), text.lines().count());
        assert_eq!(module.only(&["a", "b", "c"]), text);
    }

    #[test]
    fn what_is_named_elsewhere_is_not_left_out() {
        let text =
            module(".entry a() { ret; }\n.entry b() { ret; }\n.global .u64 launched[1] = {a};\n");
        assert_eq!(read(&text).unwrap().only(&["b"]), text);
        let debug =
            module(".entry a() { ret; }\n.entry b() { ret; }\n.section .debug_info { .b8 1 }\n");
        assert_eq!(read(&debug).unwrap().only(&["b"]), debug);
    }
}
