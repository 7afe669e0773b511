//! Types, as far as they tell operators and methods of the language and its library from a user's own, whose code is
//! not seen.

use syn::{PointerMutability, Type};

use crate::analyze::uniform::kinds::Kind;

/// The type of a value through which nothing is written but variables.
#[derive(Clone, PartialEq, Debug)]
pub enum Ty {
    /// A number, a `bool`, a `char`, or nothing at all.
    Number,
    /// A number, or an array of numbers. The expansion asserts that constants are.
    Constant,
    /// Indices or extents in x, y and z.
    Indices,
    /// A slice, an array, an `Option`, a range, or an iterator of the library.
    Many(Box<Ty>),
    Tuple(Vec<Ty>),
    Ref(Box<Ty>),
    /// A pointer to memory that no thread writes during the launch.
    Ptr(Box<Ty>),
    /// Perhaps a user's type: its operators and methods are not known.
    User,
    /// Of a value that the analysis gave up on, and has reported.
    GivenUp,
}

impl Ty {
    pub fn many(self) -> Ty {
        Ty::Many(Box::new(self))
    }

    pub fn by_ref(self) -> Ty {
        Ty::Ref(Box::new(self))
    }

    pub fn of_type(ty: &Type) -> Ty {
        match ty {
            Type::Group(inner) => Ty::of_type(&inner.elem),
            Type::Paren(inner) => Ty::of_type(&inner.elem),
            Type::Reference(inner) => Ty::of_type(&inner.elem).by_ref(),
            Type::Slice(slice) => Ty::of_type(&slice.elem).many(),
            Type::Array(array) => Ty::of_type(&array.elem).many(),
            Type::Tuple(tuple) => Ty::Tuple(tuple.elems.iter().map(Ty::of_type).collect()),
            Type::Ptr(ptr) if matches!(ptr.mutability, PointerMutability::Const(_)) => {
                Ty::Ptr(Box::new(Ty::of_type(&ptr.elem)))
            }
            _ if Kind::of_type(ty).is_primitive() => Ty::Number,
            _ => Ty::User,
        }
    }

    /// Whether a reference or pointer is a part of the type, so that `let name: T` may call a user's `Deref`.
    pub fn has_address(&self) -> bool {
        match self {
            Ty::Ref(_) | Ty::Ptr(_) => true,
            Ty::Many(item) => item.has_address(),
            Ty::Tuple(parts) => parts.iter().any(Ty::has_address),
            _ => false,
        }
    }

    /// Whether a pointer is a part of the type, which is compared by its address.
    pub fn has_pointer(&self) -> bool {
        match self {
            Ty::Ptr(_) => true,
            Ty::Many(item) | Ty::Ref(item) => item.has_pointer(),
            Ty::Tuple(parts) => parts.iter().any(Ty::has_pointer),
            _ => false,
        }
    }

    /// Without the references around it.
    pub fn target(&self) -> &Ty {
        match self {
            Ty::Ref(target) => target.target(),
            ty => ty,
        }
    }

    pub fn is_number(&self) -> bool {
        matches!(self.target(), Ty::Number | Ty::Constant | Ty::GivenUp)
    }

    /// Whether operators on the value run no code of the user's.
    pub fn is_known(&self) -> bool {
        match self {
            Ty::User => false,
            Ty::Many(inner) | Ty::Ref(inner) => inner.is_known(),
            Ty::Tuple(parts) => parts.iter().all(Ty::is_known),
            Ty::Number | Ty::Constant | Ty::Indices | Ty::Ptr(_) | Ty::GivenUp => true,
        }
    }

    /// The type of two values of one type.
    pub fn or(self, other: Ty) -> Ty {
        match (self, other) {
            (Ty::GivenUp, ty) | (ty, Ty::GivenUp) => ty,
            (Ty::Constant, ty) | (ty, Ty::Constant) => ty,
            (a, b) if a == b => a,
            (Ty::Many(a), Ty::Many(b)) => a.or(*b).many(),
            // May be coerced to a reference by a user's `Deref`.
            (a, b) if a.has_address() || b.has_address() => Ty::User.by_ref(),
            _ => Ty::User,
        }
    }

    /// What a `for` loop takes out of the value, if the iterator is the library's.
    pub fn item(&self) -> Option<Ty> {
        match self {
            Ty::Many(item) => Some((**item).clone()),
            Ty::Ref(target) => target.item().map(|item| match item {
                Ty::Ref(_) => item,
                item => item.by_ref(),
            }),
            Ty::Constant | Ty::GivenUp => Some(self.clone()),
            _ => None,
        }
    }

    /// The result of `[..]`, if that is the language's.
    pub fn index(&self, index: &Ty) -> Option<Ty> {
        match (self.target(), index) {
            (Ty::GivenUp, _) | (_, Ty::GivenUp) => Some(Ty::GivenUp),
            (Ty::Constant, Ty::Number | Ty::Constant | Ty::Many(_)) => Some(Ty::Constant),
            (Ty::Many(item), Ty::Number | Ty::Constant) => Some((**item).clone()),
            (Ty::Many(_), Ty::Many(_)) => Some(self.target().clone()),
            _ => None,
        }
    }

    /// The result of `*`, if that is the language's.
    pub fn deref(&self) -> Option<Ty> {
        match self {
            Ty::Ref(target) | Ty::Ptr(target) => Some((**target).clone()),
            Ty::GivenUp => Some(Ty::GivenUp),
            _ => None,
        }
    }
}
