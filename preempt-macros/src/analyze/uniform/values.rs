//! The values that all threads of a block have alike.

use std::collections::{HashMap, HashSet};

use proc_macro2::{Ident, Span};
use syn::{BinOp, Block, Expr, ExprMethodCall, Member, Path, Stmt, Type, UnOp};

use super::kinds::Kind;
use crate::names::{SHARED_SLICE, is_named, text_of};
use crate::primitives::{Primitive, PrimitiveResult};

/// The facts that are assumed about a body. A walk only withdraws facts.
#[derive(Default)]
pub struct Known {
    /// For each variable, whether it is uniform.
    pub variables: HashMap<String, bool>,
    /// For each variable, its kind.
    pub kinds: HashMap<String, Kind>,
    /// How often the kind of a variable became less specific.
    pub widened: usize,
    /// Parameters that no method can change: they are not `mut`, and their names are declared once.
    pub fixed: HashSet<String>,
    /// The loops and labelled blocks, by number, that threads may leave or repeat at different times; and the
    /// expression that makes them.
    pub broken: HashMap<usize, Span>,
    /// The numbers of loops and labelled blocks in which some threads may end.
    pub ended: HashSet<usize>,
}

impl Known {
    /// The number of withdrawn facts.
    pub fn size(&self) -> usize {
        let differing = self.variables.values().filter(|uniform| !**uniform).count();
        let changing = self.variables.len() - self.fixed.len();
        differing + changing + self.widened + self.broken.len() + self.ended.len()
    }

    pub fn get(&self, name: &Ident) -> Option<bool> {
        self.variables.get(&text_of(name)).copied()
    }

    pub fn add(&mut self, name: &Ident, uniform: bool) {
        let known = self.variables.entry(text_of(name)).or_insert(true);
        *known &= uniform;
    }

    /// Adds the kind of a variable.
    pub fn add_kind(&mut self, name: &Ident, kind: Kind) {
        let known = self.kinds.entry(text_of(name)).or_insert_with(|| kind.clone());
        let both = known.and(&kind);
        if both != *known {
            *known = both;
            self.widened += 1;
        }
    }

    fn are_uniform<'a>(&self, exprs: impl IntoIterator<Item = &'a Expr>) -> bool {
        exprs.into_iter().all(|expr| self.is_uniform(expr))
    }

    /// The kind of a value.
    pub fn kind(&self, expr: &Expr) -> Kind {
        match expr {
            Expr::Lit(literal) => Kind::of_literal(&literal.lit),
            Expr::Path(path) => match path.path.get_ident() {
                Some(name) if self.get(name).is_some() => {
                    self.kinds.get(&text_of(name)).cloned().unwrap_or(Kind::Unknown)
                }
                Some(_) => Kind::Primitive,
                // `u32::MAX`
                None => {
                    let first = path.path.segments.first().map(|first| first.ident.to_string());
                    Kind::Primitive.or(Kind::of_number(&first.unwrap_or_default()))
                }
            },
            Expr::Macro(mac) if is_named(&mac.mac, SHARED_SLICE) => Kind::SliceMut,
            Expr::Paren(inner) => self.kind(&inner.expr),
            Expr::Group(inner) => self.kind(&inner.expr),
            Expr::Cast(cast) => Kind::Primitive.or(Kind::of_type(&cast.ty)),
            Expr::Field(field) => match (self.kind(&field.base), &field.member) {
                (Kind::Tuple(kinds), Member::Unnamed(number)) => {
                    kinds.get(number.index as usize).cloned().unwrap_or(Kind::Unknown)
                }
                (Kind::Indices, _) => Kind::Integer,
                (Kind::Primitive, _) => Kind::Primitive,
                _ => Kind::Unknown,
            },
            Expr::Reference(inner) => self.kind(&inner.expr),
            Expr::Unary(unary) => match self.kind(&unary.expr) {
                kind if kind.is_primitive() => kind,
                _ => Kind::Unknown,
            },
            Expr::Binary(binary) => match binary.op {
                BinOp::And(_) | BinOp::Or(_) => Kind::Primitive,
                op => Kind::of_operation(op, self.kind(&binary.left), self.kind(&binary.right)),
            },
            Expr::Index(index) => {
                self.kind(&index.expr).index(&self.kind(&index.index)).unwrap_or(Kind::Unknown)
            }
            Expr::Range(range) => {
                let bounds = range.start.iter().chain(&range.end).map(|bound| self.kind(bound));
                match bounds.fold(Kind::Unknown, Kind::or) {
                    kind if kind.is_primitive() => Kind::Iterator(Box::new(kind)),
                    _ if range.start.is_none() && range.end.is_none() => {
                        Kind::Iterator(Box::new(Kind::Unknown))
                    }
                    _ => Kind::Unknown,
                }
            }
            Expr::Tuple(tuple) => {
                Kind::Tuple(tuple.elems.iter().map(|part| self.kind(part)).collect())
            }
            Expr::Array(array) => {
                let kinds = array.elems.iter().map(|element| self.kind(element));
                Kind::Slice(Box::new(kinds.fold(Kind::Unknown, Kind::or)))
            }
            Expr::Repeat(repeat) => Kind::Slice(Box::new(self.kind(&repeat.expr))),
            Expr::Block(block) => self.kind_of_block(&block.block),
            Expr::If(choice) => {
                let otherwise = choice.else_branch.as_ref();
                self.kind_of_block(&choice.then_branch)
                    .or(otherwise.map_or(Kind::Unknown, |(_, otherwise)| self.kind(otherwise)))
            }
            Expr::Call(call) => match &*call.func {
                Expr::Path(function) => {
                    let arguments = call.args.iter().map(|argument| self.kind(argument));
                    uniform_function(&function.path, arguments.collect()).unwrap_or(Kind::Unknown)
                }
                _ => Kind::Unknown,
            },
            Expr::MethodCall(call) => self.method(call).unwrap_or(Kind::Unknown),
            _ => Kind::Unknown,
        }
    }

    fn kind_of_block(&self, block: &Block) -> Kind {
        match block.stmts.last() {
            Some(Stmt::Expr(value, None)) => self.kind(value),
            _ => Kind::Unknown,
        }
    }

    /// The kind of a method's result, if the method changes nothing and depends only on receiver and
    /// arguments.
    pub fn method(&self, call: &ExprMethodCall) -> Option<Kind> {
        self.kind(&call.receiver).method(&call.method.to_string(), call.args.len())
    }

    /// The kind of the items of a `for` loop, if all threads get the same ones.
    pub fn item(&self, iterable: &Expr) -> Option<Kind> {
        match iterable {
            Expr::Paren(inner) => self.item(&inner.expr),
            Expr::Group(inner) => self.item(&inner.expr),
            // A range of a user's type is no iterator.
            Expr::Range(_) => Some(self.kind(iterable).item().unwrap_or(Kind::Primitive)),
            _ => self.kind(iterable).item(),
        }
        .filter(|_| self.is_uniform(iterable))
    }

    /// Whether operators on the value are the language's.
    pub fn is_primitive(&self, expr: &Expr) -> bool {
        self.kind(expr).is_primitive()
    }

    /// Whether a block has the same value in all threads.
    fn is_uniform_block(&self, block: &Block) -> bool {
        matches!(block.stmts.last(), Some(Stmt::Expr(value, None)) if self.is_uniform(value))
    }

    /// Whether all threads have the same value.
    pub fn is_uniform(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Lit(_) => true,
            Expr::Path(path) => match path.path.get_ident() {
                // A name that is no variable is a constant or a function.
                Some(name) => self.get(name).unwrap_or(true),
                None => true,
            },
            Expr::Paren(inner) => self.is_uniform(&inner.expr),
            Expr::Group(inner) => self.is_uniform(&inner.expr),
            // Each thread has a stack of its own.
            Expr::Cast(cast) => !matches!(*cast.ty, Type::Ptr(_)) && self.is_uniform(&cast.expr),
            Expr::Field(inner) => self.is_uniform(&inner.base),
            Expr::Reference(inner) => inner.mutability.is_none() && self.is_uniform(&inner.expr),
            // Other threads may write the target of a pointer.
            Expr::Unary(unary) => {
                !matches!(unary.op, UnOp::Deref(_))
                    && self.is_primitive(&unary.expr)
                    && self.is_uniform(&unary.expr)
            }
            Expr::Binary(binary) => {
                self.kind(expr).is_primitive()
                    && self.is_uniform(&binary.left)
                    && self.is_uniform(&binary.right)
            }
            // No thread writes slices, and arrays are variables.
            Expr::Index(index) => {
                self.kind(&index.expr).index(&self.kind(&index.index)).is_some()
                    && self.is_uniform(&index.expr)
                    && self.is_uniform(&index.index)
            }
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
                let arguments = || call.args.iter().map(|argument| self.kind(argument)).collect();
                !is_own
                    && (is_vote(&function.path)
                        || uniform_function(&function.path, arguments()).is_some()
                            && self.are_uniform(&call.args))
            }
            Expr::MethodCall(call) => {
                self.method(call).is_some()
                    && self.is_uniform(&call.receiver)
                    && self.are_uniform(&call.args)
            }
            _ => false,
        }
    }
}

/// The kind of a function's result, if all threads of a block get the same result from the same arguments.
fn uniform_function(path: &Path, arguments: Vec<Kind>) -> Option<Kind> {
    let names: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
    match &names[..] {
        [number, name] if name == "from" => {
            // A conversion from another type is a user's.
            let is_known = arguments.iter().all(Kind::is_primitive);
            Some(Kind::of_number(number)).filter(|kind| is_known && *kind != Kind::Unknown)
        }
        [.., name] => match name.as_str() {
            "Some" => Some(Kind::Tuple(arguments)),
            "size_of" => Some(Kind::Integer),
            name => match Primitive::named(name)?.result {
                PrimitiveResult::Number | PrimitiveResult::Vote => Some(Kind::Integer),
                PrimitiveResult::Indices => Some(Kind::Indices),
                PrimitiveResult::PerThread | PrimitiveResult::PerRun => None,
            },
        },
        [] => None,
    }
}

/// Whether a path names a vote: all threads of a block get the same, whatever its arguments.
fn is_vote(path: &Path) -> bool {
    let primitive = path.segments.last().and_then(|last| Primitive::named(&last.ident.to_string()));
    primitive.is_some_and(|primitive| primitive.result == PrimitiveResult::Vote)
}
