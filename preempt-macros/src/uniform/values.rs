//! Which values all threads of a block have alike.

use std::collections::{HashMap, HashSet};

use proc_macro2::{Ident, Span};
use syn::ext::IdentExt;
use syn::{Block, Expr, ExprMethodCall, Path, Stmt, Type, UnOp};

/// What is known so far; it only gets less.
#[derive(Default)]
pub struct Known {
    /// For each variable, whether it is uniform.
    pub variables: HashMap<String, bool>,
    /// Parameters that no method can change: not `mut`, and of a name that nothing else has.
    pub fixed: HashSet<String>,
    /// Loops and labelled blocks, by number, that some threads may leave, or begin anew, before others,
    /// and where.
    pub broken: HashMap<usize, Span>,
    /// Those in which some threads may end.
    pub ended: HashSet<usize>,
}

impl Known {
    /// How much is known to differ.
    pub fn size(&self) -> usize {
        let differing = self.variables.values().filter(|uniform| !**uniform).count();
        let changing = self.variables.len() - self.fixed.len();
        differing + changing + self.broken.len() + self.ended.len()
    }

    pub fn get(&self, name: &Ident) -> Option<bool> {
        self.variables.get(&key(name)).copied()
    }

    pub fn add(&mut self, name: &Ident, uniform: bool) {
        let known = self.variables.entry(key(name)).or_insert(true);
        *known &= uniform;
    }

    fn are_uniform<'a>(&self, exprs: impl IntoIterator<Item = &'a Expr>) -> bool {
        exprs.into_iter().all(|expr| self.is_uniform(expr))
    }

    /// Whether a block gives all threads the same value.
    fn is_uniform_block(&self, block: &Block) -> bool {
        matches!(block.stmts.last(), Some(Stmt::Expr(value, None)) if self.is_uniform(value))
    }

    /// Whether all threads have the same value.
    pub fn is_uniform(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Lit(_) => true,
            Expr::Path(path) => match path.path.get_ident() {
                // What is not a variable is a constant, or a function by name.
                Some(name) => self.get(name).unwrap_or(true),
                None => true,
            },
            Expr::Paren(inner) => self.is_uniform(&inner.expr),
            Expr::Group(inner) => self.is_uniform(&inner.expr),
            // Each thread has a stack of its own.
            Expr::Cast(cast) => !matches!(*cast.ty, Type::Ptr(_)) && self.is_uniform(&cast.expr),
            Expr::Field(inner) => self.is_uniform(&inner.base),
            Expr::Reference(inner) => inner.mutability.is_none() && self.is_uniform(&inner.expr),
            // What a pointer points to, others may write.
            Expr::Unary(unary) => {
                !matches!(unary.op, UnOp::Deref(_)) && self.is_uniform(&unary.expr)
            }
            Expr::Binary(binary) => self.is_uniform(&binary.left) && self.is_uniform(&binary.right),
            // Slices are read by all and written by nobody, and arrays are variables.
            Expr::Index(index) => self.is_uniform(&index.expr) && self.is_uniform(&index.index),
            Expr::Range(range) => {
                range.start.iter().chain(&range.end).all(|bound| self.is_uniform(bound))
            }
            Expr::Tuple(tuple) => self.are_uniform(&tuple.elems),
            Expr::Array(array) => self.are_uniform(&array.elems),
            Expr::Repeat(repeat) => self.is_uniform(&repeat.expr),
            Expr::Struct(parts) => {
                let fields = parts.fields.iter().map(|field| &field.expr);
                self.are_uniform(fields.chain(parts.rest.as_deref()))
            }
            Expr::Block(block) => block.label.is_none() && self.is_uniform_block(&block.block),
            Expr::If(choice) => {
                let otherwise = choice.else_branch.as_ref();
                self.is_uniform(&choice.cond)
                    && self.is_uniform_block(&choice.then_branch)
                    && otherwise.is_some_and(|(_, otherwise)| self.is_uniform(otherwise))
            }
            Expr::Call(call) => {
                let Expr::Path(function) = &*call.func else { return false };
                let is_own = function.path.get_ident().is_some_and(|name| self.get(name).is_some());
                !is_own
                    && (is_vote(&function.path)
                        || is_uniform_function(&function.path) && self.are_uniform(&call.args))
            }
            Expr::MethodCall(call) => {
                is_pure_method(call)
                    && self.is_uniform(&call.receiver)
                    && self.are_uniform(&call.args)
            }
            _ => false,
        }
    }
}

/// A name, however it is written.
pub fn key(name: &Ident) -> String {
    name.unraw().to_string()
}

/// Functions that give all threads of a block the same, whatever their arguments.
fn is_vote(path: &Path) -> bool {
    const VOTES: [&str; 3] = ["sync_threads_and", "sync_threads_count", "sync_threads_or"];
    path.segments.last().is_some_and(|last| VOTES.iter().any(|vote| last.ident == vote))
}

/// Functions that give all threads of a block the same, if their arguments are.
fn is_uniform_function(path: &Path) -> bool {
    const FUNCTIONS: [&str; 15] = [
        "Some",
        "block_dim",
        "block_dim_x",
        "block_dim_y",
        "block_dim_z",
        "block_idx",
        "block_idx_x",
        "block_idx_y",
        "block_idx_z",
        "grid_dim",
        "grid_dim_x",
        "grid_dim_y",
        "grid_dim_z",
        "size_of",
        "warp_size",
    ];
    const NUMBERS: [&str; 14] = [
        "f32", "f64", "i8", "i16", "i32", "i64", "i128", "isize", "u8", "u16", "u32", "u64",
        "u128", "usize",
    ];
    let names: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
    match &names[..] {
        [number, name] if NUMBERS.contains(&number.as_str()) => name == "from",
        [.., name] => FUNCTIONS.contains(&name.as_str()),
        [] => false,
    }
}

/// Methods of numbers, ranges and slices that change nothing and depend on nothing else.
pub fn is_pure_method(call: &ExprMethodCall) -> bool {
    const METHODS: [&str; 24] = [
        "abs",
        "abs_diff",
        "clamp",
        "clone",
        "count_ones",
        "div_ceil",
        "enumerate",
        "ilog2",
        "is_empty",
        "is_multiple_of",
        "is_power_of_two",
        "iter",
        "leading_zeros",
        "len",
        "max",
        "min",
        "next_multiple_of",
        "next_power_of_two",
        "pow",
        "rem_euclid",
        "rev",
        "skip",
        "step_by",
        "trailing_zeros",
    ];
    let name = call.method.to_string();
    METHODS.contains(&name.as_str())
        // Without a number it is that of `Option`, which leaves nothing behind.
        || name == "take" && call.args.len() == 1
        || ["wrapping_", "saturating_"].iter().any(|start| name.starts_with(start))
}
