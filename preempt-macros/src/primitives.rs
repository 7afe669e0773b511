//! The device primitives, as the analysis of a body knows them: by name.

/// A function of `preempt_device::thread` or `preempt_device::warp`.
#[derive(Debug)]
pub struct Primitive {
    pub name: &'static str,
    /// Whether a thread waits in it for other threads of its block or warp.
    pub synchronizes: bool,
    pub result: PrimitiveResult,
}

/// What the threads of one block get from a primitive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrimitiveResult {
    /// Nothing, or a value that may differ between threads.
    PerThread,
    /// A value that may differ between threads, and for one thread when its block-task runs again.
    PerRun,
    /// One number for all threads.
    Number,
    /// One index or extent in x, y and z for all threads.
    Indices,
    /// One number for all threads, also if their arguments differ.
    Vote,
}

impl Primitive {
    /// The primitive with this name.
    pub fn named(name: &str) -> Option<&'static Primitive> {
        PRIMITIVES.iter().find(|primitive| primitive.name == name)
    }

    /// Whether all threads of a block get the same.
    pub fn is_uniform(&self) -> bool {
        !matches!(self.result, PrimitiveResult::PerThread | PrimitiveResult::PerRun)
    }
}

macro_rules! primitives {
    ($($result:ident, $synchronizes:literal: $($name:ident)*;)*) => {
        /// Each public function of `thread` and `warp`, once.
        pub const PRIMITIVES: &[Primitive] = &[
            $($(Primitive {
                name: stringify!($name),
                synchronizes: $synchronizes,
                result: PrimitiveResult::$result,
            },)*)*
        ];
    };
}
primitives! {
    // What the threads of a block get, and whether they wait for each other.
    Number, false:
        block_idx_x block_idx_y block_idx_z
        block_dim_x block_dim_y block_dim_z
        grid_dim_x grid_dim_y grid_dim_z
        warp_size;
    Indices, false: block_idx block_dim grid_dim;
    Vote, true: sync_threads_count sync_threads_and sync_threads_or;
    PerThread, true:
        sync_threads
        sync_warp
        warp_shuffle_down warp_shuffle_up warp_shuffle_xor warp_shuffle_idx
        warp_vote_all warp_vote_any warp_vote_ballot
        warp_match_any warp_match_all warp_reduce
        // The name that `cuda_std` had for `sync_threads`.
        _syncthreads;
    PerThread, false:
        thread_idx_x thread_idx_y thread_idx_z thread_idx
        index_1d index_2d index_3d index
        thread_number first
        lane_id
        block_fence device_fence grid_fence system_fence
        nanosleep;
    PerRun, false: sm_id activemask;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::{fs, iter};

    use proc_macro2::{TokenStream, TokenTree};
    use quote::ToTokens;
    use syn::{Item, UseTree, Visibility};

    use super::*;

    /// The public functions of a module of `preempt-device`, and whether threads wait in them. Those that do are
    /// `#[track_caller]`, because the CPU device compares the places of their calls.
    fn public_functions(module: &str) -> BTreeMap<String, bool> {
        let path = format!("{}/../preempt-device/src/{module}.rs", env!("CARGO_MANIFEST_DIR"));
        let file = syn::parse_file(&fs::read_to_string(path).unwrap()).unwrap();
        let waits = |tokens: &dyn ToTokens| {
            let text = tokens.to_token_stream().to_string();
            text.contains("track_caller")
        };
        let mut templates = BTreeMap::new();
        let mut found = BTreeMap::new();
        for item in &file.items {
            match item {
                Item::Fn(function) if matches!(function.vis, Visibility::Public(_)) => {
                    let waits = function.attrs.iter().any(|attr| waits(attr));
                    found.insert(function.sig.ident.to_string(), waits);
                }
                Item::Use(item) if matches!(item.vis, Visibility::Public(_)) => {
                    found.insert(last_name(&item.tree), false);
                }
                Item::Macro(item) if item.ident.is_some() => {
                    templates.insert(item.ident.as_ref().unwrap().to_string(), waits(&item.mac));
                }
                Item::Macro(item) => {
                    let name = item.mac.path.get_ident().unwrap().to_string();
                    let waits = templates[&name];
                    let names = generated(&name, item.mac.tokens.clone());
                    found.extend(names.into_iter().zip(iter::repeat(waits)));
                }
                _ => {}
            }
        }
        found
    }

    fn last_name(tree: &UseTree) -> String {
        match tree {
            UseTree::Path(path) => last_name(&path.tree),
            UseTree::Name(name) => name.ident.to_string(),
            _ => panic!("write one name for each `pub use`"),
        }
    }

    /// The functions that a macro of `thread.rs` or `warp.rs` defines.
    fn generated(template: &str, tokens: TokenStream) -> Vec<String> {
        let first_ident = |line: &[TokenTree]| {
            line.iter().find_map(|token| match token {
                TokenTree::Ident(ident) => Some(ident.to_string()),
                _ => None,
            })
        };
        let tokens: Vec<_> = tokens.into_iter().collect();
        match template {
            // Names alone, of which each is a function.
            "registers" => tokens.chunks(1).filter_map(first_ident).collect(),
            // `name parameter;`
            "shuffles" => {
                let is_end = |token: &TokenTree| matches!(token, TokenTree::Punct(end) if end.as_char() == ';');
                tokens.split(is_end).filter_map(first_ident).collect()
            }
            "shuffle_values" | "reduce_values" => Vec::new(),
            name => panic!("which functions does `{name}!` define?"),
        }
    }

    #[test]
    fn the_table_has_each_public_function_of_thread_and_warp() {
        let mut functions = public_functions("thread");
        functions.extend(public_functions("warp"));
        functions.insert("_syncthreads".to_owned(), true);
        let table: BTreeMap<_, _> = PRIMITIVES
            .iter()
            .map(|primitive| (primitive.name.to_owned(), primitive.synchronizes))
            .collect();
        assert_eq!(table, functions);
        assert_eq!(table.len(), PRIMITIVES.len(), "a name is in the table twice");
    }

    #[test]
    fn a_vote_synchronizes() {
        let is_vote = |primitive: &&Primitive| primitive.result == PrimitiveResult::Vote;
        assert!(PRIMITIVES.iter().filter(is_vote).all(|vote| vote.synchronizes));
    }
}
