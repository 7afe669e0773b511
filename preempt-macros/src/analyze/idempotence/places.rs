//! Places: what is read, what is written, and what gets out of sight.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::{Expr, Member, Stmt, UnOp};

use super::findings::{StatementId, statement_id};
use super::types::Ty;
use super::walk::{Memory, Shape, Value, Walk};

impl Walk {
    /// Makes a statement the innermost one around, if a thread could return ahead of it; returns what that was before.
    pub fn enter_statement(&mut self, stmt: &Stmt) -> Option<StatementId> {
        // A `return` in a closure or a function would leave that alone. What is in a macro is not rewritten.
        let is_own = self.closures == 0 && !self.in_macro && !self.found.is_in_function();
        let inner = is_own.then(|| statement_id(stmt)).or(self.found.statement());
        self.found.in_statement(inner)
    }

    pub fn read(&mut self, memory: Memory, ty: Ty, span: Span) -> Value {
        match memory {
            Memory::Global(param) => self.found.access(param, false, span),
            Memory::Shared(array) if self.written.contains(&array) => {}
            Memory::Shared(_) => {
                self.found.unrepeatable(
                    span,
                    "this may read from shared memory what a run that was dropped has left there; write the array first, \
                     outside of branches and of loops that may have no round",
                );
                self.found.spares_data();
            }
        }
        Value::Data(ty)
    }

    pub fn write(&mut self, memory: Memory, span: Span) {
        match memory {
            Memory::Global(param) => self.found.access(param, true, span),
            Memory::Shared(array) => drop(self.written.insert(array)),
        }
    }

    /// Gives up memory whose use is not seen from here on.
    pub fn escape(&mut self, value: &Value, span: Span) {
        match value {
            Value::Place(Memory::Global(param), ..)
            | Value::Own(param, _)
            | Value::MaybeOwn(param, _) => {
                self.found.effect(
                    span,
                    "what is done here with memory that the kernel writes is not seen; use `read` and `write`, or `*` \
                     on a pointer, in the body itself",
                );
                self.found.access(*param, false, span);
                self.found.access(*param, true, span);
            }
            Value::Place(Memory::Shared(_), ..) => self.found.unrepeatable(
                span,
                "what is done here with shared memory is not seen; use `read` and `write`, or `*` on the pointer, in \
                 the body itself",
            ),
            Value::Tuple(parts) => parts.iter().for_each(|part| self.escape(part, span)),
            Value::Data(_) | Value::Function(_) | Value::Import => {}
        }
    }

    /// The memory that a place is a part of, if it is behind a pointer to such.
    pub fn lent(&mut self, place: &Expr) -> Option<Value> {
        match place {
            Expr::Paren(inner) => self.lent(&inner.expr),
            Expr::Group(inner) => self.lent(&inner.expr),
            Expr::Field(field) => self.lent(&field.base),
            Expr::Index(index) => self.lent(&index.expr).inspect(|_| drop(self.data(&index.index))),
            Expr::Unary(unary) if matches!(unary.op, UnOp::Deref(_)) => {
                Some(self.value(&unary.expr)).filter(|value| matches!(value, Value::Place(..)))
            }
            _ => None,
        }
    }

    /// Records an assignment to a place, or to several.
    pub fn assign(&mut self, place: &Expr) {
        match place {
            Expr::Tuple(tuple) => tuple.elems.iter().for_each(|part| self.assign(part)),
            Expr::Array(array) => array.elems.iter().for_each(|part| self.assign(part)),
            Expr::Infer(_) => {}
            place => drop(self.assign_part(place, false)),
        }
    }

    /// Records a write to a place, and if it is `read` before that. Returns its type.
    pub fn assign_part(&mut self, place: &Expr, read: bool) -> Ty {
        match place {
            Expr::Paren(inner) => self.assign_part(&inner.expr, read),
            Expr::Group(inner) => self.assign_part(&inner.expr, read),
            Expr::Path(path) => match path.path.get_ident().and_then(|name| self.lookup(name)) {
                Some(Value::Data(ty)) => ty.clone(),
                Some(value) if value.is_data() => self.data_of(value.clone(), path.span()),
                _ => {
                    self.found.unrepeatable(
                        path.span(),
                        "only variables that hold numbers, or other values without memory that the kernel writes, can be \
                         assigned to here; declare another variable with `let`",
                    );
                    Ty::GivenUp
                }
            },
            Expr::Unary(unary) if matches!(unary.op, UnOp::Deref(_)) => {
                match self.value(&unary.expr) {
                    Value::Place(memory, Shape::Pointer, ty) => {
                        let span = unary.span();
                        if read {
                            self.read(memory, ty.clone(), span);
                        }
                        self.write(memory, span);
                        ty
                    }
                    Value::Data(Ty::Ref(target)) => *target,
                    Value::Data(Ty::GivenUp) => Ty::GivenUp,
                    value => {
                        self.data_of(value, unary.span());
                        self.found.effect(
                            unary.span(),
                            "where this writes is not seen; write through a parameter, `out.write(i, value)`",
                        );
                        Ty::GivenUp
                    }
                }
            }
            Expr::Index(_) | Expr::Field(_) => {
                let (base, at) = match place {
                    Expr::Index(index) => (&index.expr, Some(&index.index)),
                    Expr::Field(field) => (&field.base, None),
                    _ => return Ty::GivenUp,
                };
                let ty = self.assign_part(base, read);
                if let Some(at) = at {
                    let index = self.data(at);
                    if !index.is_known() {
                        self.operator(None, at.span());
                    }
                }
                match (place, ty.target()) {
                    (Expr::Index(_), Ty::Many(item)) => (**item).clone(),
                    (Expr::Index(index), Ty::User) => {
                        let value = self.operator(None, index.span());
                        self.data_of(value, index.span())
                    }
                    (Expr::Field(field), Ty::Tuple(parts)) => match &field.member {
                        Member::Unnamed(number) => {
                            parts.get(number.index as usize).cloned().unwrap_or(Ty::User)
                        }
                        Member::Named(_) => Ty::User,
                    },
                    (Expr::Field(_), Ty::Indices) => Ty::Number,
                    (_, Ty::GivenUp) => Ty::GivenUp,
                    _ => Ty::User,
                }
            }
            place => {
                // A temporary value, as a method returns it.
                match self.value(place) {
                    Value::Data(ty @ (Ty::Ref(_) | Ty::GivenUp)) => ty,
                    _ => {
                        self.unknown(place.span());
                        Ty::GivenUp
                    }
                }
            }
        }
    }
}
