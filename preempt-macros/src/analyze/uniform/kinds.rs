//! Kinds of types. They tell operators and methods of the language and its library from a user's own, which
//! may give each thread another result.

use syn::{BinOp, Ident, Lit, Pat, Type};

use crate::parse::{Form, Param, ParamKind};

/// The kind of a value. A reference has the kind of its target.
#[derive(Clone, PartialEq, Debug)]
pub enum Kind {
    Integer,
    Float,
    /// A `bool`, or a number of unknown type. Constants are assumed to be such, or arrays of such.
    Primitive,
    /// A slice or an array.
    Slice(Box<Kind>),
    /// A `SliceMut` or `PerThread`.
    SliceMut,
    /// A range, or an iterator over one or over a slice.
    Iterator(Box<Kind>),
    /// A tuple, or the contents of `Some`.
    Tuple(Vec<Kind>),
    /// Indices or extents in x, y and z.
    Indices,
    /// Perhaps a user's own type.
    Unknown,
}

/// The integers of the language.
const INTEGERS: [&str; 12] =
    ["i8", "i16", "i32", "i64", "i128", "isize", "u8", "u16", "u32", "u64", "u128", "usize"];

impl Kind {
    pub fn of_param(param: &Param) -> Kind {
        match &param.kind {
            ParamKind::Buffer { form: Form::Slice, element } => {
                Kind::Slice(Box::new(Kind::of_type(element)))
            }
            ParamKind::Buffer { form: Form::SliceMut | Form::PerThread, .. } => Kind::SliceMut,
            ParamKind::Buffer { form: Form::ConstPtr | Form::MutPtr, .. } => Kind::Unknown,
            ParamKind::Value => Kind::of_type(&param.ty),
        }
    }

    pub fn of_type(ty: &Type) -> Kind {
        match ty {
            Type::Group(inner) => Kind::of_type(&inner.elem),
            Type::Paren(inner) => Kind::of_type(&inner.elem),
            Type::Reference(inner) => Kind::of_type(&inner.elem),
            Type::Slice(slice) => Kind::Slice(Box::new(Kind::of_type(&slice.elem))),
            Type::Array(array) => Kind::Slice(Box::new(Kind::of_type(&array.elem))),
            Type::Tuple(tuple) => Kind::Tuple(tuple.elems.iter().map(Kind::of_type).collect()),
            Type::Path(path) => match path.path.get_ident() {
                Some(name) => Kind::of_number(&name.to_string()),
                None => Kind::Unknown,
            },
            _ => Kind::Unknown,
        }
    }

    /// The kind of a primitive type, by its name.
    pub fn of_number(name: &str) -> Kind {
        match name {
            "f32" | "f64" => Kind::Float,
            "bool" | "char" => Kind::Primitive,
            name if INTEGERS.contains(&name) => Kind::Integer,
            _ => Kind::Unknown,
        }
    }

    pub fn of_literal(literal: &Lit) -> Kind {
        match literal {
            Lit::Int(number) if number.suffix().starts_with('f') => Kind::Float,
            Lit::Int(_) | Lit::Byte(_) => Kind::Integer,
            Lit::Float(_) => Kind::Float,
            Lit::Bool(_) | Lit::Char(_) => Kind::Primitive,
            _ => Kind::Unknown,
        }
    }

    /// The kind of the result of a binary operator.
    pub fn of_operation(op: BinOp, left: Kind, right: Kind) -> Kind {
        if !left.is_primitive() || !right.is_primitive() {
            return Kind::Unknown;
        }
        match op {
            BinOp::Add(_)
            | BinOp::Sub(_)
            | BinOp::Mul(_)
            | BinOp::Div(_)
            | BinOp::Rem(_)
            | BinOp::BitXor(_)
            | BinOp::BitAnd(_)
            | BinOp::BitOr(_) => left.or(right),
            BinOp::Shl(_) | BinOp::Shr(_) => left,
            BinOp::Eq(_)
            | BinOp::Lt(_)
            | BinOp::Le(_)
            | BinOp::Ne(_)
            | BinOp::Ge(_)
            | BinOp::Gt(_) => Kind::Primitive,
            _ => Kind::Unknown,
        }
    }

    /// The most specific kind that both values have.
    pub fn and(&self, other: &Kind) -> Kind {
        match (self, other) {
            (Kind::Slice(a), Kind::Slice(b)) => Kind::Slice(Box::new(a.and(b))),
            (Kind::Iterator(a), Kind::Iterator(b)) => Kind::Iterator(Box::new(a.and(b))),
            (Kind::Tuple(a), Kind::Tuple(b)) if a.len() == b.len() => {
                Kind::Tuple(a.iter().zip(b).map(|(a, b)| a.and(b)).collect())
            }
            (a, b) if a == b => a.clone(),
            (a, b) if a.is_primitive() && b.is_primitive() => Kind::Primitive,
            _ => Kind::Unknown,
        }
    }

    /// The kind of two values that have the same type, or of their sum.
    pub fn or(self, other: Kind) -> Kind {
        match self {
            Kind::Primitive | Kind::Unknown if other != Kind::Unknown => other,
            kind => kind,
        }
    }

    /// Whether operators on the value are the language's.
    pub fn is_primitive(&self) -> bool {
        matches!(self, Kind::Integer | Kind::Float | Kind::Primitive)
    }

    /// The kind of the result of `[..]`, which is the language's own for numbers and ranges.
    pub fn index(&self, index: &Kind) -> Option<Kind> {
        match (self, index) {
            (Kind::Slice(_) | Kind::Primitive, Kind::Iterator(_)) => Some(self.clone()),
            (Kind::Slice(element), index) if index.is_primitive() => Some((**element).clone()),
            (Kind::Primitive, index) if index.is_primitive() => Some(Kind::Primitive),
            _ => None,
        }
    }

    /// The kind of the items of a `for` loop, if the iterator is the library's.
    pub fn item(&self) -> Option<Kind> {
        match self {
            Kind::Slice(item) | Kind::Iterator(item) => Some((**item).clone()),
            _ => None,
        }
    }

    /// The kind of a method's result, if the method is the library's, changes nothing, and depends only on
    /// receiver and arguments.
    pub fn method(&self, name: &str, arguments: usize) -> Option<Kind> {
        let kind = match (self, name) {
            (Kind::Integer, "is_multiple_of" | "is_power_of_two") => Kind::Primitive,
            (Kind::Integer, name) if is_integer_method(name) => Kind::Integer,
            (Kind::Float, "abs" | "clamp" | "clone" | "max" | "min") => Kind::Float,
            (Kind::Slice(_) | Kind::SliceMut | Kind::Iterator(_), "len") => Kind::Integer,
            (Kind::Slice(_) | Kind::SliceMut | Kind::Iterator(_), "is_empty") => Kind::Primitive,
            (Kind::Slice(item), "iter") => Kind::Iterator(item.clone()),
            (Kind::Slice(item), "clone") if item.is_primitive() => self.clone(),
            (Kind::Iterator(item), "enumerate") => {
                Kind::Iterator(Box::new(Kind::Tuple(vec![Kind::Integer, (**item).clone()])))
            }
            (Kind::Iterator(_), "clone" | "rev" | "skip" | "step_by") => self.clone(),
            (Kind::Iterator(_), "take") if arguments == 1 => self.clone(),
            _ => return None,
        };
        Some(kind)
    }
}

/// Whether an integer's method of this name returns an integer.
fn is_integer_method(name: &str) -> bool {
    const METHODS: [&str; 15] = [
        "abs",
        "abs_diff",
        "clamp",
        "clone",
        "count_ones",
        "div_ceil",
        "ilog2",
        "leading_zeros",
        "max",
        "min",
        "next_multiple_of",
        "next_power_of_two",
        "pow",
        "rem_euclid",
        "trailing_zeros",
    ];
    const OPERATIONS: [&str; 11] =
        ["abs", "add", "div", "div_euclid", "mul", "neg", "pow", "rem", "shl", "shr", "sub"];
    let operation = ["wrapping_", "saturating_"].iter().find_map(|start| name.strip_prefix(start));
    METHODS.contains(&name) || operation.is_some_and(|name| OPERATIONS.contains(&name))
}

/// Calls `add` with each name in a pattern whose part of the value is known, and with the kind of that part.
pub fn parts(pat: &Pat, kind: Kind, add: &mut impl FnMut(&Ident, Kind)) {
    match (pat, kind) {
        (Pat::Ident(pat), kind) => {
            if let Some((_, part)) = &pat.subpat {
                parts(part, kind.clone(), add);
            }
            add(&pat.ident, kind);
        }
        // A coercion to a reference may call a user's `Deref`.
        (Pat::Type(typed), kind) if matches!(*typed.ty, Type::Reference(_)) => {
            parts(&typed.pat, kind, add);
        }
        (Pat::Type(typed), kind) => parts(&typed.pat, Kind::of_type(&typed.ty).or(kind), add),
        (Pat::Paren(pat), kind) => parts(&pat.pat, kind, add),
        (Pat::Reference(pat), kind) => parts(&pat.pat, kind, add),
        (Pat::Or(pat), kind) => pat.cases.iter().for_each(|case| parts(case, kind.clone(), add)),
        (Pat::Guard(pat), kind) => parts(&pat.pat, kind, add),
        (Pat::Tuple(pat), Kind::Tuple(kinds)) if pat.elems.len() == kinds.len() => {
            pat.elems.iter().zip(kinds).for_each(|(part, kind)| parts(part, kind, add));
        }
        (Pat::TupleStruct(pat), Kind::Tuple(kinds))
            if pat.path.is_ident("Some") && pat.elems.len() == kinds.len() =>
        {
            pat.elems.iter().zip(kinds).for_each(|(part, kind)| parts(part, kind, add));
        }
        (Pat::Slice(pat), Kind::Slice(item)) => pat.elems.iter().for_each(|part| match part {
            Pat::Ident(rest) if rest.subpat.is_some() => {}
            part => parts(part, (*item).clone(), add),
        }),
        _ => {}
    }
}
