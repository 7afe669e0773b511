//! The walk through a body: what each expression is, and what it does.

use std::collections::{HashMap, HashSet};

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::{
    BinOp, Block, Expr, ExprBinary, ExprCast, ExprClosure, ExprMatch, Ident, Item, Label, Local,
    Member, Pat, Path, PointerMutability, ReturnType, Stmt, Type, UnOp,
};

use super::findings::Findings;
use super::library::{ADDRESS, ASSERTIONS, is_assignment};
use super::types::Ty;
use crate::names::text_of;

/// Memory that threads of the kernel write.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Memory {
    /// The buffer of the parameter of this number.
    Global(usize),
    /// The shared array or slice of this number.
    Shared(usize),
}

/// How memory is reached; each has methods of its own.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Shape {
    /// `*mut T` or `*const T`
    Pointer,
    /// `SliceMut<T>`
    Slice,
    /// `PerThread<T>`
    PerThread,
}

/// What a name or an expression stands for.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    Data(Ty),
    Tuple(Vec<Value>),
    /// A slice of, or a pointer to, memory with elements of a type.
    Place(Memory, Shape, Ty),
    /// What `PerThread::own` returns, and that without its `Option`.
    MaybeOwn(usize, Ty),
    Own(usize, Ty),
    /// A closure or a function of the body, with its result.
    Function(Ty),
    /// Something that the body imports under its own name.
    Import,
}

impl Value {
    pub fn is_data(&self) -> bool {
        match self {
            Value::Data(_) => true,
            Value::Tuple(parts) => parts.iter().all(Value::is_data),
            _ => false,
        }
    }
}

pub const GIVEN_UP: Value = Value::Data(Ty::GivenUp);

pub struct Walk {
    pub found: Findings,
    /// What names stand for, in the blocks around, the outermost first.
    pub scopes: Vec<HashMap<String, Value>>,
    /// The shared arrays that the thread has written on each way to here.
    pub written: HashSet<usize>,
    pub shared_arrays: usize,
    pub yield_in_loops: bool,
    /// Whether the next expression is where the user names a number type.
    pub names_number: bool,
    /// The number of closures around.
    pub closures: usize,
    /// The type of the values that the closure around returns ahead of its end.
    pub returned: Option<Ty>,
    /// Whether this is an argument of a macro.
    pub in_macro: bool,
    /// Paths that stand for constants, and for functions of `preempt_device`, if they are what they seem.
    pub constants: Vec<Path>,
    pub functions: Vec<Path>,
}

impl Walk {
    pub fn lookup(&self, name: &Ident) -> Option<&Value> {
        let name = text_of(name);
        self.scopes.iter().rev().find_map(|scope| scope.get(&name))
    }

    pub fn declare(&mut self, name: &Ident, value: Value) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(text_of(name), value);
        }
    }

    /// Runs `walk` in a scope of its own.
    pub fn scoped<T>(&mut self, walk: impl FnOnce(&mut Self) -> T) -> T {
        self.scopes.push(HashMap::new());
        let result = walk(self);
        self.scopes.pop();
        result
    }

    /// Runs `walk` on code that may not run: what it writes to shared memory does not count afterwards.
    fn sometimes<T>(&mut self, walk: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.written.clone();
        let result = self.scoped(walk);
        self.written = before;
        result
    }

    fn in_loop(&mut self, walk: impl FnOnce(&mut Self)) {
        self.found.in_loop(true);
        self.sometimes(|inner| {
            if inner.yield_in_loops && inner.closures == 0 {
                inner.found.yield_point();
            }
            walk(inner);
        });
        self.found.in_loop(false);
    }

    /// The type of a value that is nothing but data. Memory that gets elsewhere is given up.
    pub fn data_of(&mut self, value: Value, span: Span) -> Ty {
        match value {
            Value::Data(ty) => ty,
            Value::Tuple(parts) => {
                Ty::Tuple(parts.into_iter().map(|part| self.data_of(part, span)).collect())
            }
            Value::Function(_) | Value::Import => {
                self.found.unrepeatable(
                    span,
                    "what becomes of this function is not seen; call it where it is",
                );
                Ty::GivenUp
            }
            value => {
                self.escape(&value, span);
                Ty::GivenUp
            }
        }
    }

    pub fn data(&mut self, expr: &Expr) -> Ty {
        let value = self.value(expr);
        self.data_of(value, expr.span())
    }

    /// The type of data at a place that names the type it needs.
    pub fn coerced(&mut self, expr: &Expr) -> Ty {
        let ty = self.data(expr);
        self.check_coercion(&ty, expr.span());
        ty
    }

    /// Refuses a reference that may become another one by a user's `Deref`.
    pub fn check_coercion(&mut self, ty: &Ty, span: Span) {
        if ty.has_address() && !ty.is_known() {
            self.operator(None, span);
        }
    }

    fn all_data<'e>(&mut self, exprs: impl IntoIterator<Item = &'e Expr>) -> Ty {
        let types = exprs.into_iter().map(|expr| self.data(expr));
        types.reduce(Ty::or).unwrap_or(Ty::GivenUp)
    }

    pub fn unknown(&mut self, span: Span) -> Value {
        self.found.unrepeatable(span, "what this does is not known; write it in another way");
        GIVEN_UP
    }

    /// The result of an operator, if it is the language's.
    pub fn operator(&mut self, result: Option<Ty>, span: Span) -> Value {
        Value::Data(result.unwrap_or_else(|| {
            self.found.unrepeatable(
                span,
                "this may run an operator of a type of your own, which is not seen; take numbers out of the value \
                 first, `let n: u32 = p.n;`",
            );
            Ty::GivenUp
        }))
    }

    pub fn block(&mut self, block: &Block) -> Value {
        self.scoped(|walk| walk.statements(&block.stmts))
    }

    pub fn statements(&mut self, stmts: &[Stmt]) -> Value {
        // Items are there in the whole block.
        self.items(stmts);
        let mut last = Value::Data(Ty::Number);
        for stmt in stmts {
            last = Value::Data(Ty::Number);
            let around = self.enter_statement(stmt);
            match stmt {
                Stmt::Item(_) => {}
                Stmt::Local(local) => self.local(local),
                Stmt::Expr(expr, None) => last = self.value(expr),
                // A value that is not used goes nowhere.
                Stmt::Expr(expr, Some(_)) => drop(self.value(expr)),
                Stmt::Macro(mac) => last = self.invocation(&mac.mac),
            }
            self.found.in_statement(around);
        }
        last
    }

    /// Declares the items of a block. Then functions are visited, which may name other items.
    fn items(&mut self, stmts: &[Stmt]) {
        let items = || {
            stmts.iter().filter_map(|stmt| match stmt {
                Stmt::Item(item) => Some(item),
                _ => None,
            })
        };
        for item in items() {
            match item {
                Item::Fn(function) => {
                    let result = match &function.sig.output {
                        ReturnType::Default => Ty::Number,
                        ReturnType::Type(_, ty) => Ty::of_type(ty),
                    };
                    self.declare(&function.sig.ident, Value::Function(result));
                }
                Item::Const(constant) => {
                    let ty = Ty::of_type(&constant.ty);
                    if !ty.is_known() {
                        self.operator(None, constant.ident.span());
                    }
                    self.declare(&constant.ident, Value::Data(ty));
                }
                Item::Use(import) if self.scopes.len() == 2 => self.import(&import.tree),
                Item::Static(variable) => self.found.unrepeatable(
                    variable.static_token.span,
                    "a `static` keeps what a block-task has left there; pass a buffer",
                ),
                item => self.found.unrepeatable(
                    item.span(),
                    "the code of this item is not seen; move it out of the kernel",
                ),
            }
        }
        for item in items() {
            match item {
                // In the body itself, where its names are those of the assertions, too.
                Item::Fn(function) if self.scopes.len() == 2 => self.function(function),
                Item::Fn(function) => self.found.unrepeatable(
                    function.sig.ident.span(),
                    "functions are seen only if they stand in the kernel's body itself; move it there",
                ),
                _ => {}
            }
        }
    }

    fn local(&mut self, local: &Local) {
        let Some(init) = &local.init else {
            let ty = match &local.pat {
                Pat::Type(typed) => Ty::of_type(&typed.ty),
                _ => Ty::User,
            };
            return self.bind(&local.pat, Value::Data(ty));
        };
        self.names_number =
            matches!(&local.pat, Pat::Type(typed) if Ty::of_type(&typed.ty) == Ty::Number);
        let value = self.value(&init.expr);
        if let Some((_, otherwise)) = &init.diverge {
            self.sometimes(|walk| drop(walk.value(otherwise)));
        }
        self.bind(&local.pat, value);
    }

    /// What an expression stands for. Its effects are recorded.
    pub fn value(&mut self, expr: &Expr) -> Value {
        let names_number = std::mem::take(&mut self.names_number);
        match expr {
            Expr::Lit(literal) => match literal.lit {
                syn::Lit::Str(_) | syn::Lit::ByteStr(_) => Value::Data(Ty::Number.many()),
                _ => Value::Data(Ty::Number),
            },
            Expr::Path(path) => match &path.qself {
                None => self.path(&path.path),
                Some(_) => self.unknown(path.span()),
            },
            Expr::Paren(inner) => self.value(&inner.expr),
            Expr::Group(inner) => self.value(&inner.expr),
            Expr::Block(block) => self.labelled(block.label.as_ref(), &block.block),
            Expr::Unsafe(block) => {
                self.names_number =
                    names_number && matches!(*block.block.stmts, [Stmt::Expr(_, None)]);
                self.block(&block.block)
            }
            Expr::Tuple(tuple) => {
                Value::Tuple(tuple.elems.iter().map(|part| self.value(part)).collect())
            }
            // Elements of any type.
            Expr::Array(array) if array.elems.is_empty() => Value::Data(Ty::User.many()),
            Expr::Array(array) => Value::Data(self.all_data(&array.elems).many()),
            Expr::Repeat(repeat) => {
                let ty = self.data(&repeat.expr);
                Value::Data(ty.many())
            }
            Expr::Range(range) => {
                let bounds = range.start.iter().chain(&range.end);
                let ty = self.all_data(bounds.map(|bound| &**bound));
                self.operator(ty.is_number().then(|| Ty::Number.many()), range.span())
            }
            Expr::Cast(cast) => self.cast(cast),
            Expr::Reference(reference) => {
                let value = match self.lent(&reference.expr) {
                    Some(place) => place,
                    None => self.value(&reference.expr),
                };
                Value::Data(self.data_of(value, reference.span()).by_ref())
            }
            Expr::Field(field) => match (self.value(&field.base), &field.member) {
                (Value::Tuple(parts), Member::Unnamed(number)) => {
                    parts.into_iter().nth(number.index as usize).unwrap_or(GIVEN_UP)
                }
                (value, member) => {
                    let ty = self.data_of(value, field.span());
                    Value::Data(match (ty.target(), member) {
                        (Ty::Indices, _) => Ty::Number,
                        (Ty::GivenUp, _) => Ty::GivenUp,
                        (Ty::Tuple(parts), Member::Unnamed(number)) => {
                            parts.get(number.index as usize).cloned().unwrap_or(Ty::User)
                        }
                        _ => Ty::User,
                    })
                }
            },
            Expr::Index(index) => {
                let (array, at) = (self.data(&index.expr), self.data(&index.index));
                self.check_given_up(&array, &at, index.span());
                self.operator(array.index(at.target()), index.span())
            }
            Expr::Unary(unary) => match (self.value(&unary.expr), unary.op) {
                (Value::Place(memory, Shape::Pointer, ty), UnOp::Deref(star)) => {
                    self.read(memory, ty, star.span)
                }
                (value, op) => {
                    let ty = self.data_of(value, unary.expr.span());
                    if matches!((&ty, op), (Ty::Ptr(_), UnOp::Deref(_))) {
                        self.found.data_read(unary.span());
                    }
                    let result = match op {
                        UnOp::Deref(_) => ty.deref(),
                        _ => ty.is_number().then_some(Ty::Number),
                    };
                    self.operator(result, unary.span())
                }
            },
            Expr::Binary(binary) => self.binary(binary),
            Expr::Assign(assign) => {
                let ty = self.coerced(&assign.right);
                if !matches!(*assign.left, Expr::Path(_)) {
                    self.stored(&ty, assign.right.span());
                }
                self.assign(&assign.left);
                Value::Data(Ty::Number)
            }
            Expr::Let(test) => {
                let value = self.value(&test.expr);
                self.bind(&test.pat, value);
                Value::Data(Ty::Number)
            }
            Expr::If(choice) => {
                let before = self.written.clone();
                // What a `let` in the condition declares is not there in `else`.
                let (then, tested) = self.scoped(|walk| {
                    walk.data(&choice.cond);
                    let tested = walk.written.clone();
                    (walk.block(&choice.then_branch), tested)
                });
                let Some((_, otherwise)) = &choice.else_branch else {
                    self.written = before;
                    return Value::Data(Ty::Number);
                };
                let written = std::mem::replace(&mut self.written, tested);
                let otherwise = self.value(otherwise);
                self.written.retain(|array| written.contains(array));
                self.either(then, otherwise, choice.span())
            }
            Expr::Match(choice) => self.choice(choice),
            Expr::Loop(expr) => {
                self.in_loop(|walk| drop(walk.block(&expr.body)));
                Value::Data(Ty::User)
            }
            Expr::While(expr) => {
                self.in_loop(|walk| {
                    walk.data(&expr.cond);
                    walk.block(&expr.body);
                });
                Value::Data(Ty::Number)
            }
            Expr::ForLoop(expr) => {
                let items = self.data(&expr.expr);
                let item = self.operator(items.item(), expr.expr.span());
                self.in_loop(|walk| {
                    walk.bind(&expr.pat, item);
                    walk.block(&expr.body);
                });
                Value::Data(Ty::Number)
            }
            Expr::Break(expr) => {
                expr.expr.iter().for_each(|value| drop(self.coerced(value)));
                GIVEN_UP
            }
            Expr::Return(expr) => {
                if let Some(value) = &expr.expr {
                    let ty = self.coerced(value);
                    let returned = self.returned.take();
                    self.returned = Some(returned.map_or(ty.clone(), |other| other.or(ty)));
                }
                GIVEN_UP
            }
            Expr::Continue(_) => GIVEN_UP,
            Expr::Closure(closure) => Value::Function(self.closure(closure, &[])),
            // Evaluated by the compiler.
            Expr::Const(constant) if is_statement(&constant.block) => Value::Data(Ty::Number),
            Expr::Const(constant) => {
                self.found.unrepeatable(
                    constant.const_token.span,
                    "what is done with a value of this type is not known; declare a constant, `const N: u32 = ..;`",
                );
                GIVEN_UP
            }
            Expr::Call(call) => self.call(call),
            Expr::MethodCall(call) => self.method_call(call, names_number),
            Expr::Macro(mac) => self.invocation(&mac.mac),
            Expr::Struct(parts) => {
                self.structure(parts);
                self.found.unrepeatable(
                    parts.path.span(),
                    "a value of this type may run code when it is dropped, which is not seen; use a tuple, or write the \
                     value where it is made, `out.write(i, S { .. })`",
                );
                GIVEN_UP
            }
            _ => self.unknown(expr.span()),
        }
    }

    /// The fields of a struct.
    pub fn structure(&mut self, parts: &syn::ExprStruct) -> Ty {
        let fields = parts.fields.iter().map(|field| &field.expr);
        for field in fields.chain(parts.rest.as_deref()) {
            let ty = self.coerced(field);
            self.stored(&ty, field.span());
        }
        Ty::User
    }

    fn labelled(&mut self, label: Option<&Label>, block: &Block) -> Value {
        match label {
            // A `break` may skip what is written in it.
            Some(_) => {
                let value = self.sometimes(|walk| walk.block(block));
                let ty = self.data_of(value, block.brace_token.span.open());
                Value::Data(ty.or(Ty::User))
            }
            None => self.block(block),
        }
    }

    /// One of two values.
    fn either(&mut self, a: Value, b: Value, span: Span) -> Value {
        match (a, b) {
            (a, b) if a == b => a,
            (a, b) => {
                let (a, b) = (self.data_of(a, span), self.data_of(b, span));
                Value::Data(a.or(b))
            }
        }
    }

    fn choice(&mut self, choice: &ExprMatch) -> Value {
        let value = self.value(&choice.expr);
        let before = self.written.clone();
        let mut written: Option<HashSet<usize>> = None;
        let mut result: Option<Value> = None;
        for arm in &choice.arms {
            self.written.clone_from(&before);
            let of_arm = self.scoped(|walk| {
                walk.bind(&arm.pat, value.clone());
                walk.value(&arm.body)
            });
            let in_arm = std::mem::take(&mut self.written);
            written = Some(match written {
                None => in_arm,
                Some(written) => &written & &in_arm,
            });
            result = Some(match result.take() {
                None => of_arm,
                Some(result) => self.either(result, of_arm, arm.body.span()),
            });
        }
        self.written = written.unwrap_or(before);
        result.unwrap_or(GIVEN_UP)
    }

    fn binary(&mut self, binary: &ExprBinary) -> Value {
        match binary.op {
            BinOp::And(_) | BinOp::Or(_) => {
                self.data(&binary.left);
                let before = self.written.clone();
                // Not in a scope of its own: a `let` on the right of `&&` is there afterwards.
                self.data(&binary.right);
                self.written = before;
                return Value::Data(Ty::Number);
            }
            _ => {}
        }
        let (left, right) = if is_assignment(binary.op) {
            let right = self.data(&binary.right);
            (self.assign_part(&binary.left, true), right)
        } else {
            (self.data(&binary.left), self.data(&binary.right))
        };
        let compares = matches!(
            binary.op,
            BinOp::Eq(_) | BinOp::Ne(_) | BinOp::Lt(_) | BinOp::Le(_) | BinOp::Gt(_) | BinOp::Ge(_)
        );
        let result = match (left.target(), right.target()) {
            (left, right) if left.is_number() && right.is_number() => Some(Ty::Number),
            (left, right) if compares && left.is_known() && right.is_known() => Some(Ty::Number),
            _ => None,
        };
        if compares && (left.has_pointer() || right.has_pointer()) {
            self.found.unrepeatable(binary.span(), ADDRESS);
        }
        self.operator(result, binary.span())
    }

    fn cast(&mut self, cast: &ExprCast) -> Value {
        let value = self.value(&cast.expr);
        let element = |target: &Type| match target {
            Type::Ptr(ptr) if !matches!(*ptr.elem, Type::Infer(_)) => Some(Ty::of_type(&ptr.elem)),
            _ => None,
        };
        let is_mut = matches!(&*cast.ty, Type::Ptr(ptr) if matches!(ptr.mutability, PointerMutability::Mut(_)));
        match (value, &*cast.ty) {
            (Value::Place(memory, Shape::Pointer, ty), target @ Type::Ptr(_)) => {
                Value::Place(memory, Shape::Pointer, element(target).unwrap_or(ty))
            }
            (Value::Data(_), Type::Ptr(_)) if is_mut => {
                self.found.effect(
                    cast.span(),
                    "through this pointer memory could be written that is only read; write through a parameter of type \
                     `SliceMut<T>` or `*mut T`",
                );
                GIVEN_UP
            }
            (Value::Data(ty), target @ Type::Ptr(_)) => {
                let of_value = ty.deref().unwrap_or(Ty::User);
                let element = element(target);
                if element.as_ref().is_some_and(|element| *element != of_value) {
                    self.check_reinterpreted(&of_value, cast.span());
                }
                Value::Data(Ty::Ptr(Box::new(element.unwrap_or(of_value))))
            }
            (value, target) => {
                let ty = self.data_of(value, cast.span());
                self.check_coercion(&ty, cast.span());
                match target {
                    // Perhaps to a pointer that writes.
                    Type::Infer(_) if ty.has_address() => drop(self.unknown(cast.span())),
                    target if ty.has_address() && Ty::of_type(target).is_number() => {
                        self.found.unrepeatable(cast.span(), ADDRESS);
                    }
                    _ => {}
                }
                Value::Data(match target {
                    Type::Infer(_) => ty,
                    target => Ty::of_type(target),
                })
            }
        }
    }

    /// The type of a closure's result. Its parameters that name no type are of these types.
    pub fn closure(&mut self, closure: &ExprClosure, types: &[Ty]) -> Ty {
        self.closures += 1;
        // It may run more than once, like the body of a loop.
        self.found.in_loop(true);
        let around = self.returned.take();
        let result = self.sometimes(|walk| {
            for (number, input) in closure.inputs.iter().enumerate() {
                let ty = types.get(number).cloned().unwrap_or(Ty::User);
                let ty = match input {
                    Pat::Type(typed) if types.is_empty() => Ty::of_type(&typed.ty),
                    _ => ty,
                };
                walk.bind(input, Value::Data(ty));
            }
            match closure.output {
                ReturnType::Default => walk.data(&closure.body),
                ReturnType::Type(..) => walk.coerced(&closure.body),
            }
        });
        let returned = std::mem::replace(&mut self.returned, around);
        let result = returned.map_or(result.clone(), |returned| returned.or(result));
        if closure.asyncness.is_some() || closure.constness.is_some() {
            self.unknown(closure.span());
        }
        self.found.in_loop(false);
        self.closures -= 1;
        result
    }
}

/// Whether the value of a block that the compiler evaluates is nothing.
fn is_statement(block: &Block) -> bool {
    let mac = match block.stmts.last() {
        Some(Stmt::Macro(mac)) => &mac.mac,
        Some(Stmt::Expr(Expr::Macro(mac), None)) => &mac.mac,
        Some(Stmt::Expr(_, None)) => return false,
        _ => return true,
    };
    ASSERTIONS.iter().any(|(known, _)| mac.path.is_ident(known))
}
