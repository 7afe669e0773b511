//! Patterns: what the names stand for that they declare.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Pat, PatIdent, Type};

use super::types::Ty;
use super::walk::{Value, Walk};
use crate::names::text_of;

impl Walk {
    pub fn bind(&mut self, pat: &Pat, value: Value) {
        match (pat, value) {
            (
                Pat::Wild(_)
                | Pat::Rest(_)
                | Pat::Lit(_)
                | Pat::Path(_)
                | Pat::Range(_)
                | Pat::Const(_),
                _,
            ) => {}
            (Pat::Paren(inner), value) => self.bind(&inner.pat, value),
            (Pat::Ident(name), value) => self.bind_name(name, value),
            (Pat::Guard(guarded), value) => {
                self.bind(&guarded.pat, value);
                let before = self.written.clone();
                self.data(&guarded.guard);
                // The guard may not be evaluated.
                self.written = before;
            }
            (Pat::Type(typed), value) => {
                let value = self.annotated(value, Some(&typed.ty), typed.ty.span());
                self.bind(&typed.pat, value);
            }
            (Pat::Tuple(tuple), Value::Tuple(parts))
                if tuple.elems.len() == parts.len() && !tuple.elems.iter().any(is_rest) =>
            {
                tuple.elems.iter().zip(parts).for_each(|(part, value)| self.bind(part, value));
            }
            (Pat::TupleStruct(some), Value::MaybeOwn(param, ty)) if some.path.is_ident("Some") => {
                some.elems.iter().for_each(|part| self.bind(part, Value::Own(param, ty.clone())));
            }
            (pat, value) => {
                let ty = self.data_of(value, pat.span());
                self.bind_data(pat, ty);
            }
        }
    }

    /// A value that the user gives a type, if that is known. The parts of a tuple may be coerced, too.
    fn annotated(&mut self, value: Value, named: Option<&Type>, span: Span) -> Value {
        match (value, named) {
            (Value::Data(ty), Some(named)) => {
                let named = Ty::of_type(named);
                // An alias may stand for a reference.
                if named.has_address() || !named.is_known() {
                    self.check_coercion(&ty, span);
                }
                Value::Data(match named.has_address() {
                    true => ty,
                    false if ty == Ty::GivenUp => ty,
                    false => named,
                })
            }
            (Value::Data(ty), None) => {
                if ty.has_address() {
                    self.operator(None, span);
                }
                Value::Data(ty)
            }
            (Value::Tuple(parts), named) => {
                let named = match named {
                    Some(Type::Tuple(named)) if named.elems.len() == parts.len() => Some(named),
                    _ => None,
                };
                let types = (0..parts.len()).map(|part| named.map(|named| &named.elems[part]));
                let parts = parts.into_iter().zip(types);
                Value::Tuple(parts.map(|(part, ty)| self.annotated(part, ty, span)).collect())
            }
            (value, _) => value,
        }
    }

    fn bind_name(&mut self, name: &PatIdent, value: Value) {
        // No variable, and of a type that is another one elsewhere.
        if text_of(&name.ident) == "None" {
            return;
        }
        if name.by_ref.is_some() && name.mutability.is_some() {
            self.lends_mutably(name.span());
        }
        let value = match (&name.by_ref, &name.subpat) {
            (None, None) => value,
            (by_ref, subpat) => {
                let ty = self.data_of(value, name.span());
                if let Some((_, part)) = subpat {
                    self.bind(part, Value::Data(ty.clone()));
                }
                Value::Data(if by_ref.is_some() { ty.by_ref() } else { ty })
            }
        };
        self.declare(&name.ident, value);
    }

    fn bind_data(&mut self, pat: &Pat, ty: Ty) {
        // Through a reference, the parts are references.
        let part = |part: &Ty| match &ty {
            Ty::Ref(_) if !matches!(part, Ty::Ref(_)) => part.clone().by_ref(),
            _ => part.clone(),
        };
        match (pat, ty.target()) {
            (Pat::Reference(inner), _) => {
                let target = ty.deref().unwrap_or(Ty::User);
                self.bind(&inner.pat, Value::Data(target));
            }
            (Pat::Tuple(tuple), Ty::Tuple(parts))
                if tuple.elems.len() == parts.len() && !tuple.elems.iter().any(is_rest) =>
            {
                let parts: Vec<Ty> = parts.iter().map(part).collect();
                tuple.elems.iter().zip(parts).for_each(|(pat, ty)| self.bind(pat, Value::Data(ty)));
            }
            (Pat::TupleStruct(some), Ty::Many(item)) if some.path.is_ident("Some") => {
                let item = part(item);
                some.elems.iter().for_each(|pat| self.bind(pat, Value::Data(item.clone())));
            }
            (Pat::Slice(slice), Ty::Many(item)) => {
                let (item, rest) = (part(item), ty.clone());
                for pat in &slice.elems {
                    match pat {
                        Pat::Ident(name) if name.subpat.is_some() => {
                            self.bind_name(name, Value::Data(rest.clone()));
                        }
                        pat => self.bind(pat, Value::Data(item.clone())),
                    }
                }
            }
            (Pat::Or(choice), _) => {
                choice.cases.iter().for_each(|case| self.bind(case, Value::Data(ty.clone())));
            }
            // Of parts whose types are not known.
            (pat, known) => {
                let ty = if *known == Ty::GivenUp { Ty::GivenUp } else { Ty::User };
                let mut names = Names::default();
                names.visit_pat(pat);
                for (name, by_ref) in names.found {
                    if let Some(span) = by_ref {
                        self.lends_mutably(span);
                    }
                    self.declare(&name, Value::Data(ty.clone()));
                }
                if names.has_code {
                    self.found.unrepeatable(
                        pat.span(),
                        "what this pattern does is not known; write it in another way",
                    );
                }
            }
        }
    }

    fn lends_mutably(&mut self, span: Span) {
        self.found.effect(
            span,
            "what is written through this reference is not seen; write `name.write(i, value)`, or assign to the variable \
             itself",
        );
    }
}

fn is_rest(pat: &Pat) -> bool {
    matches!(pat, Pat::Rest(_))
}

/// The names that a pattern declares, with the places of those that are `ref mut`.
#[derive(Default)]
struct Names {
    found: Vec<(syn::Ident, Option<Span>)>,
    has_code: bool,
}

impl<'ast> Visit<'ast> for Names {
    fn visit_pat_ident(&mut self, name: &'ast PatIdent) {
        let lends = name.by_ref.is_some() && name.mutability.is_some();
        self.found.push((name.ident.clone(), lends.then(|| name.span())));
        visit::visit_pat_ident(self, name);
    }

    fn visit_macro(&mut self, _: &'ast syn::Macro) {
        self.has_code = true;
    }

    fn visit_pat_guard(&mut self, _: &'ast syn::PatGuard) {
        self.has_code = true;
    }
}
