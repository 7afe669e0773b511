//! Functions and methods of the language's library and of `preempt_device` that give the same again for the same
//! arguments, and write nothing.

use syn::{BinOp, Ident};

use super::types::Ty;
use crate::analyze::uniform::kinds::Kind;
use crate::primitives::{Primitive, PrimitiveResult};

pub const ADDRESS: &str =
    "the address of a variable may be another one when the block-task runs again; use indices";

/// Macros of `core` that evaluate their arguments, with the number of those that are evaluated without a panic.
pub const ASSERTIONS: [(&str, usize); 8] = [
    ("assert", 1),
    ("assert_eq", 2),
    ("assert_ne", 2),
    ("debug_assert", 1),
    ("debug_assert_eq", 2),
    ("debug_assert_ne", 2),
    ("panic", 0),
    ("unreachable", 0),
];

/// The methods of numbers that return numbers, by themselves or in tuples and `Option`s.
const OF_NUMBERS: &[&str] = &[
    "abs",
    "abs_diff",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "ceil",
    "clamp",
    "clone",
    "copysign",
    "cos",
    "cosh",
    "count_ones",
    "count_zeros",
    "div_ceil",
    "div_euclid",
    "exp",
    "exp2",
    "exp_m1",
    "floor",
    "fract",
    "from",
    "from_bits",
    "hypot",
    "ilog2",
    "is_finite",
    "is_infinite",
    "is_multiple_of",
    "is_nan",
    "is_negative",
    "is_positive",
    "is_power_of_two",
    "is_sign_negative",
    "is_sign_positive",
    "leading_zeros",
    "ln",
    "ln_1p",
    "log",
    "log10",
    "log2",
    "max",
    "min",
    "mul_add",
    "next_multiple_of",
    "next_power_of_two",
    "pow",
    "powf",
    "powi",
    "recip",
    "rem_euclid",
    "reverse_bits",
    "rotate_left",
    "rotate_right",
    "round",
    "round_ties_even",
    "saturating_add",
    "saturating_mul",
    "saturating_pow",
    "saturating_sub",
    "signum",
    "sin",
    "sinh",
    "sqrt",
    "swap_bytes",
    "tan",
    "tanh",
    "to_bits",
    "to_degrees",
    "to_radians",
    "total_cmp",
    "trailing_zeros",
    "trunc",
    "unsigned_abs",
    "wrapping_add",
    "wrapping_div",
    "wrapping_mul",
    "wrapping_neg",
    "wrapping_pow",
    "wrapping_rem",
    "wrapping_shl",
    "wrapping_shr",
    "wrapping_sub",
];

/// What follows `checked_` and `overflowing_` in names of methods.
const OPERATIONS: &[&str] = &[
    "abs",
    "add",
    "div",
    "div_euclid",
    "ilog10",
    "ilog2",
    "mul",
    "neg",
    "next_multiple_of",
    "next_power_of_two",
    "pow",
    "rem",
    "rem_euclid",
    "shl",
    "shr",
    "sub",
];

/// Whether `name` is an operation after `start`.
fn is_operation(name: &str, start: &str) -> bool {
    name.strip_prefix(start).is_some_and(|name| OPERATIONS.contains(&name))
}

/// Whether `name` is a function of number types, or of `GpuFloat`, that returns a number.
pub fn is_of_numbers(name: &Ident) -> bool {
    OF_NUMBERS.iter().any(|known| name == known)
}

/// The result of a primitive, if it is the same when the block-task runs again.
pub fn of_primitive(name: &str, arguments: &[Ty]) -> Option<Ty> {
    let primitive = Primitive::named(name)?;
    // The values of shuffles may be of a type of the user's.
    if !arguments.iter().all(Ty::is_known) {
        return None;
    }
    let value = || arguments.get(1).cloned().unwrap_or(Ty::User);
    let ty = match (name, primitive.result) {
        (_, PrimitiveResult::PerRun) => return None,
        ("thread_idx" | "index_2d" | "index_3d", _) | (_, PrimitiveResult::Indices) => Ty::Indices,
        ("warp_reduce", _) => value(),
        ("warp_match_all", _) => Ty::Number.many(),
        (name, _) if name.starts_with("warp_shuffle") => Ty::Tuple(vec![value(), Ty::Number]),
        _ => Ty::Number,
    };
    Some(ty)
}

/// The types of the parameters of a closure that is an argument of `receiver.name(..)`.
pub fn closure_parameters(receiver: &Ty, name: &str, first: Option<&Ty>) -> Vec<Ty> {
    let item = receiver.item().unwrap_or(Ty::User);
    match name {
        "all" | "any" | "for_each" | "map" | "map_or" | "position" | "is_some_and" => vec![item],
        "filter" | "inspect" | "skip_while" | "take_while" => vec![item.by_ref()],
        "fold" => vec![first.cloned().unwrap_or(Ty::User), item],
        _ => Vec::new(),
    }
}

/// The result of a method, if it is the library's. `arguments` are the types of the arguments, of closures those of
/// their results.
pub fn method(receiver: &Ty, name: &Ident, arguments: &[Ty]) -> Option<Ty> {
    let target = receiver.target();
    let text = name.to_string();
    let first = || arguments.first().cloned();
    match (target, text.as_str()) {
        (Ty::GivenUp, _) => Some(Ty::GivenUp),
        (Ty::Number, "sin_cos") => Some(Ty::Tuple(vec![Ty::Number, Ty::Number])),
        (Ty::Number, name) if is_operation(name, "checked_") => Some(Ty::Number.many()),
        (Ty::Number, name) if is_operation(name, "overflowing_") => {
            Some(Ty::Tuple(vec![Ty::Number, Ty::Number]))
        }
        (_, "from" | "from_bits") => None,
        (Ty::Number, _) => is_of_numbers(name).then_some(Ty::Number),
        (Ty::Constant, _) if is_of_numbers(name) => Some(Ty::Constant),
        (Ty::Constant, text) => of_many(receiver, target, text, first),
        // Of a type that is not `Copy`, this makes a value that is dropped.
        (Ty::Ptr(item), "read" | "read_unaligned" | "read_volatile") => {
            item.is_known().then(|| (**item).clone())
        }
        (Ty::Ptr(_), "add" | "offset" | "sub" | "wrapping_add" | "wrapping_sub" | "clone") => {
            Some(target.clone())
        }
        (Ty::Many(item), _) => of_many(receiver, item, &text, first),
        (Ty::Tuple(_), "clone") => target.is_known().then(|| target.clone()),
        _ => None,
    }
}

/// The result of a method of a slice, an array, an `Option`, a range or an iterator.
fn of_many(receiver: &Ty, item: &Ty, name: &str, first: impl Fn() -> Option<Ty>) -> Option<Ty> {
    let target = receiver.target().clone();
    let by_ref = || match item {
        Ty::Ref(_) => item.clone(),
        item => item.clone().by_ref(),
    };
    let ty = match name {
        "len" | "is_empty" | "count" | "is_some" | "is_none" => Ty::Number,
        "all" | "any" | "for_each" | "is_some_and" => Ty::Number,
        "position" => Ty::Number.many(),
        "as_ptr" => Ty::Ptr(Box::new(item.clone())),
        "get" if matches!(first(), Some(Ty::Many(_))) => target.many(),
        "first" | "get" | "last" | "iter" | "iter_mut" => by_ref().many(),
        "get_unchecked" | "get_unchecked_mut" => by_ref(),
        "chunks" | "chunks_exact" | "windows" => target.many(),
        "split_at" => Ty::Tuple(vec![target.clone(), target]),
        "next" | "nth" => item.clone().many(),
        "unwrap" | "expect" => item.clone(),
        "unwrap_or" => item.clone().or(first()?),
        "unwrap_or_default" if item.is_known() => item.clone(),
        "clone" if item.is_known() => target,
        "copied" | "cloned"
            if item.is_known() || matches!(item, Ty::Ref(_)) && name == "copied" =>
        {
            item.deref().unwrap_or_else(|| item.clone()).many()
        }
        "chain" | "or" => item.clone().or(first()?.item()?).many(),
        "by_ref" | "filter" | "inspect" | "into_iter" | "rev" | "skip" | "skip_while"
        | "step_by" | "take" | "take_while" => target,
        "enumerate" => Ty::Tuple(vec![Ty::Number, item.clone()]).many(),
        "zip" => Ty::Tuple(vec![item.clone(), first()?.item()?]).many(),
        "map" => first()?.many(),
        "fold" => first()?,
        "max" | "min" if item.is_known() && !item.has_pointer() => item.clone().many(),
        "product" | "sum" if item.is_number() => Ty::Number,
        "contains" if item.is_known() && !item.has_pointer() => Ty::Number,
        // Of arrays that are variables: those of parameters and shared memory are not writable this way.
        "fill" if item.is_known() => Ty::Number,
        "swap" | "reverse" => Ty::Number,
        _ => return None,
    };
    Some(ty)
}

/// Whether a type of this name is a number of the language.
pub fn is_number_type(name: &Ident) -> bool {
    Kind::of_number(&name.to_string()).is_primitive()
}

/// Whether an operator writes to its left side.
pub fn is_assignment(op: BinOp) -> bool {
    matches!(
        op,
        BinOp::AddAssign(_)
            | BinOp::SubAssign(_)
            | BinOp::MulAssign(_)
            | BinOp::DivAssign(_)
            | BinOp::RemAssign(_)
            | BinOp::BitXorAssign(_)
            | BinOp::BitAndAssign(_)
            | BinOp::BitOrAssign(_)
            | BinOp::ShlAssign(_)
            | BinOp::ShrAssign(_)
    )
}
