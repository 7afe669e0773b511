//! Names, calls, and macros.

use proc_macro2::Span;
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{
    AngleBracketedGenericArguments, Expr, ExprCall, ExprMethodCall, FnArg, GenericArgument, Ident,
    ItemFn, Macro, Path, Token, Type, UseName, UseRename, UseTree,
};

use super::library::{self, ADDRESS, ASSERTIONS};
use super::types::Ty;
use super::walk::{GIVEN_UP, Memory, Shape, Value, Walk};
use crate::names::{SHARED_ARRAY, SHARED_SLICE, is_named, text_of, yield_point};
use crate::primitives::{Primitive, PrimitiveResult};

const HELPER: &str =
    "what this function does is not seen; move it into the kernel's body as a function inside it";

const HELPER_WITH_MEMORY: &str = "what this function does with memory that the kernel writes is not seen; write it out in the \
    kernel's body";

const ATOMIC: &str = "an atomic operation takes effect again when the block-task runs again, and what it returns depends \
    on the order of threads; write each thread's result to its own element, and sum up in another kernel";

impl Walk {
    /// What a path stands for that is not called.
    pub fn path(&mut self, path: &Path) -> Value {
        match path.get_ident().and_then(|name| self.lookup(name)) {
            Some(Value::Import) => {}
            Some(value) => return value.clone(),
            None if path.is_ident("None") => return Value::Data(Ty::User.many()),
            None => {}
        }
        self.constants.push(path.clone());
        Value::Data(Ty::Constant)
    }

    pub fn call(&mut self, call: &ExprCall) -> Value {
        let Expr::Path(function) = &*call.func else {
            return match self.value(&call.func) {
                Value::Function(result) => {
                    call.args.iter().for_each(|argument| drop(self.coerced(argument)));
                    Value::Data(result)
                }
                value => {
                    self.data_of(value, call.func.span());
                    self.call_unknown(call, HELPER)
                }
            };
        };
        let path = &function.path;
        match path.get_ident().and_then(|name| self.lookup(name)).cloned() {
            Some(Value::Function(result)) => {
                call.args.iter().for_each(|argument| drop(self.coerced(argument)));
                return Value::Data(result);
            }
            None | Some(Value::Import) => {}
            Some(_) => return self.call_unknown(call, HELPER),
        }
        if function.qself.is_some() {
            return self.call_unknown(call, HELPER);
        }
        let Some(last) = path.segments.last() else { return GIVEN_UP };
        let name = text_of(&last.ident);
        let is_atomic = path.segments.iter().any(|part| text_of(&part.ident).starts_with("Atomic"));
        if is_atomic {
            return self.call_unknown(call, ATOMIC);
        }
        if let Some(Primitive { result: PrimitiveResult::PerRun, .. }) = Primitive::named(&name) {
            return self.call_unknown(
                call,
                "what this returns may be something else when the block-task runs again, on another SM; compute the result \
                 from parameters and indices",
            );
        }
        if path.is_ident("Some") {
            let items = call.args.iter().map(|argument| self.coerced(argument)).reduce(Ty::or);
            return Value::Data(items.unwrap_or(Ty::User).many());
        }
        if self.is_known(path, &last.ident, &name) {
            let types: Vec<Ty> = call.args.iter().map(|argument| self.data(argument)).collect();
            let result = match Primitive::named(&name) {
                Some(_) => library::of_primitive(&name, &types),
                None => types.iter().all(Ty::is_number).then(|| match &*name {
                    "sin_cos" => Ty::Tuple(vec![Ty::Number, Ty::Number]),
                    _ => Ty::Number,
                }),
            };
            return match result {
                Some(ty) => Value::Data(ty),
                None => {
                    self.found.unrepeatable(call.span(), HELPER);
                    GIVEN_UP
                }
            };
        }
        self.call_unknown(call, HELPER)
    }

    /// Whether a path names a function of number types, of `GpuFloat`, or a primitive. The expansion asserts what its
    /// names alone do not tell.
    fn is_known(&mut self, path: &Path, last: &Ident, name: &str) -> bool {
        let owner = path.segments.iter().rev().nth(1).map(|owner| &owner.ident);
        let of_type = path.segments.len() == 2
            && owner.is_some_and(|owner| {
                library::is_number_type(owner) && self.lookup(owner).is_none()
            });
        let of_numbers = library::is_of_numbers(last) || last == "sin_cos";
        if of_type {
            return of_numbers;
        }
        let of_floats = owner.is_some_and(|owner| owner == "GpuFloat");
        // That name of `cuda_std` is no function of its own here.
        let is_primitive = Primitive::named(name).is_some() && name != "_syncthreads";
        let is_known = of_floats && of_numbers && last != "from" || !of_floats && is_primitive;
        if is_known {
            self.functions.push(path.clone());
        }
        is_known
    }

    /// A call of which nothing is known but its arguments.
    fn call_unknown(&mut self, call: &ExprCall, message: &str) -> Value {
        self.unknown_arguments(call.args.iter(), call.func.span(), message);
        GIVEN_UP
    }

    fn unknown_arguments<'e>(
        &mut self,
        arguments: impl Iterator<Item = &'e Expr>,
        span: Span,
        message: &str,
    ) {
        let mut memory = Vec::new();
        let mut writes_data = false;
        for argument in arguments {
            let mut values = vec![self.value(argument)];
            while let Some(value) = values.pop() {
                match value {
                    Value::Place(Memory::Global(param), ..)
                    | Value::Own(param, _)
                    | Value::MaybeOwn(param, _) => memory.push(param),
                    Value::Tuple(parts) => values.extend(parts),
                    Value::Data(ty) => writes_data |= ty.has_address() || !ty.is_known(),
                    Value::Function(_) => writes_data = true,
                    Value::Place(Memory::Shared(_), ..) | Value::Import => {}
                }
            }
        }
        match memory.is_empty() {
            true => self.found.unrepeatable(span, message),
            false if message == HELPER => self.found.effect(span, HELPER_WITH_MEMORY),
            false => self.found.effect(span, message),
        }
        if !writes_data {
            self.found.spares_data();
        }
        for param in memory {
            self.found.access(param, false, span);
            self.found.access(param, true, span);
        }
    }

    /// A method call. If its result is not said to be a number, it may be one of a type of the user's.
    pub fn method_call(&mut self, call: &ExprMethodCall, names_number: bool) -> Value {
        let receiver = match self.lent(&call.receiver) {
            // A method that takes the target by value only reads it.
            Some(Value::Place(memory, _, ty))
                if ty.is_number() && is_place_itself(&call.receiver) =>
            {
                self.read(memory, ty, call.receiver.span())
            }
            Some(place) => Value::Data(self.data_of(place, call.receiver.span())),
            None => self.value(&call.receiver),
        };
        let name = text_of(&call.method);
        let span = call.method.span();
        match (receiver, &*name) {
            (Value::Place(_, Shape::Slice | Shape::PerThread, _), "len" | "is_empty") => {
                Value::Data(Ty::Number)
            }
            (place @ Value::Place(..), "clone") => place,
            (Value::Place(memory, Shape::Slice, ty), "as_mut_ptr") => {
                Value::Place(memory, Shape::Pointer, ty)
            }
            (Value::Place(memory, Shape::Slice, ty), "read")
            | (
                Value::Place(memory, Shape::Pointer, ty),
                "read" | "read_volatile" | "read_unaligned",
            ) => {
                call.args.iter().for_each(|argument| drop(self.data(argument)));
                // Of a type that is not `Copy`, a pointer's makes a value that is dropped.
                if name != "read" || call.args.is_empty() {
                    self.check_copied(&ty, span);
                }
                self.read(memory, ty, span)
            }
            (Value::Place(memory, Shape::Slice, ty), "write")
            | (
                Value::Place(memory, Shape::Pointer, ty),
                "write" | "write_volatile" | "write_unaligned",
            ) => {
                self.names_number = ty.is_number();
                self.written_values(call);
                self.write(memory, span);
                Value::Data(Ty::Number)
            }
            (
                place @ Value::Place(_, Shape::Pointer, _),
                "add" | "sub" | "offset" | "wrapping_add" | "wrapping_sub",
            ) => {
                call.args.iter().for_each(|argument| drop(self.data(argument)));
                place
            }
            (Value::Place(memory, Shape::Pointer, _), "cast") => {
                Value::Place(memory, Shape::Pointer, self.named_type(call))
            }
            (Value::Place(Memory::Global(param), Shape::PerThread, ty), "own") => {
                Value::MaybeOwn(param, ty)
            }
            (Value::MaybeOwn(param, ty), "unwrap" | "expect") => {
                call.args.iter().for_each(|argument| drop(self.data(argument)));
                Value::Own(param, ty)
            }
            (Value::MaybeOwn(..), "is_some" | "is_none") => Value::Data(Ty::Number),
            (Value::Own(..), "index") => Value::Data(Ty::Number),
            (Value::Own(param, ty), "get") => self.read(Memory::Global(param), ty, span),
            (Value::Own(param, ty), "set") => {
                self.names_number = ty.is_number();
                self.written_values(call);
                self.write(Memory::Global(param), span);
                Value::Data(Ty::Number)
            }
            (receiver @ (Value::Place(..) | Value::Own(..) | Value::MaybeOwn(..)), _) => {
                self.escape(&receiver, span);
                call.args.iter().for_each(|argument| drop(self.data(argument)));
                GIVEN_UP
            }
            (receiver, _) => {
                let ty = self.data_of(receiver, call.receiver.span());
                if let (Ty::Ptr(target), "cast") = (ty.target(), &*name) {
                    self.check_reinterpreted(target, span);
                    return Value::Data(Ty::Ptr(Box::new(self.named_type(call))));
                }
                let mut types: Vec<Ty> = Vec::new();
                for argument in &call.args {
                    let parameters = library::closure_parameters(&ty, &name, types.first());
                    types.push(match argument {
                        Expr::Closure(closure) => self.closure(closure, &parameters),
                        argument => match self.value(argument) {
                            Value::Function(result) => result,
                            Value::Data(Ty::Constant) if !parameters.is_empty() => {
                                self.found.unrepeatable(argument.span(), HELPER);
                                Ty::GivenUp
                            }
                            value => {
                                let ty = self.data_of(value, argument.span());
                                // These take any type, so nothing is coerced to it.
                                if !matches!(&*name, "chain" | "fold" | "zip") {
                                    self.check_coercion(&ty, argument.span());
                                }
                                ty
                            }
                        },
                    });
                }
                let names_number =
                    names_number || call.turbofish.as_ref().is_some_and(names_number_type);
                if matches!(&*name, "sum" | "product") && !names_number {
                    self.found.unrepeatable(
                        span,
                        "this may be a sum of a type of your own, whose code is not seen; name the type, `sum::<u32>()`",
                    );
                }
                if let (Ty::Ptr(_), "read" | "read_unaligned" | "read_volatile") =
                    (ty.target(), &*name)
                {
                    self.found.data_read(span);
                }
                types.iter().for_each(|argument| self.check_given_up(&ty, argument, span));
                Value::Data(library::method(&ty, &call.method, &types).unwrap_or_else(|| {
                    self.found.unrepeatable(
                        span,
                        "what this method does is not known; write it out, or take numbers out of types of your own first, \
                         `let n: u32 = p.n;`",
                    );
                    Ty::GivenUp
                }))
            }
        }
    }

    /// The arguments of a write. A struct that is made there is dropped nowhere, because elements are `Copy`.
    fn written_values(&mut self, call: &ExprMethodCall) {
        let names_number = std::mem::take(&mut self.names_number);
        let last = call.args.len().saturating_sub(1);
        for (number, argument) in call.args.iter().enumerate() {
            self.names_number = names_number && number == last;
            match argument {
                Expr::Struct(parts) => drop(self.structure(parts)),
                argument => {
                    let ty = self.data(argument);
                    self.stored(&ty, argument.span());
                }
            }
        }
    }

    /// Refuses the result of a pointer's `read` if it may run code when it is dropped.
    fn check_copied(&mut self, ty: &Ty, span: Span) {
        if !ty.is_known() {
            self.found.unrepeatable(
                span,
                "a value of this type may run code when it is dropped, which is not seen; read it with `*`",
            );
        }
    }

    /// Refuses to take a value for one of another type if an address may be a part of it.
    pub fn check_reinterpreted(&mut self, ty: &Ty, span: Span) {
        if ty.has_address() || !ty.is_known() {
            self.found.unrepeatable(span, ADDRESS);
        }
    }

    /// Refuses an argument of a method, or an index, that may have an address, if the method's own type is not known: such a
    /// value comes from code that is not seen, and so does what becomes of the address.
    pub fn check_given_up(&mut self, receiver: &Ty, argument: &Ty, span: Span) {
        if *receiver.target() == Ty::GivenUp && argument.has_address() {
            self.found.effect(span, HELPER);
        }
    }

    /// Refuses what is written if it has an address, which may be that of a variable.
    pub fn stored(&mut self, ty: &Ty, span: Span) {
        if ty.has_address() {
            self.found.unrepeatable(span, ADDRESS);
        }
    }

    /// The type in `cast::<T>()`.
    fn named_type(&self, call: &ExprMethodCall) -> Ty {
        let arguments = call.turbofish.as_ref().and_then(|turbofish| turbofish.args.first());
        match arguments {
            Some(GenericArgument::Type(ty)) => Ty::of_type(ty),
            _ => Ty::User,
        }
    }

    pub fn invocation(&mut self, mac: &Macro) -> Value {
        // Elsewhere these are calls of macros that may be a user's.
        let is_placed = !self.in_macro && !self.found.is_in_function();
        if yield_point(mac).is_some() && is_placed {
            self.found.yield_point();
            return Value::Data(Ty::Number);
        }
        if is_placed && (is_named(mac, SHARED_ARRAY) || is_named(mac, SHARED_SLICE)) {
            return self.shared(mac);
        }
        let arguments = mac.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated);
        // The expansion makes them those of `core`, whatever the names stand for here; but not within other macros.
        let name = mac.path.get_ident().filter(|_| !self.in_macro);
        let compared = name
            .and_then(|name| ASSERTIONS.iter().find(|(known, _)| name == known))
            .map(|known| known.1);
        let (Ok(arguments), Some(compared)) = (arguments, compared) else {
            self.found.unrepeatable(
                mac.path.span(),
                "what this macro expands to is not seen; write it out in the kernel's body",
            );
            return GIVEN_UP;
        };
        let before = self.written.clone();
        self.in_macro = true;
        for (number, argument) in arguments.iter().enumerate() {
            self.attributes_of(argument);
            let ty = self.data(argument);
            // The others are for the message of a panic.
            if number < compared && !ty.is_known() {
                self.found.unrepeatable(
                    argument.span(),
                    "this may run code of a type of your own, which is not seen; take numbers out of the value first, \
                     `let n: u32 = p.n;`",
                );
            }
        }
        self.in_macro = false;
        self.written = before;
        Value::Data(Ty::Number)
    }

    fn shared(&mut self, mac: &Macro) -> Value {
        // `T; N`, of which only the type is needed.
        let parse = |input: syn::parse::ParseStream<'_>| {
            let element = input.parse::<Type>();
            input.parse::<proc_macro2::TokenStream>().and(element)
        };
        let element = parse.parse2(mac.tokens.clone());
        let array = self.shared_arrays;
        self.shared_arrays += 1;
        let element = element.map_or(Ty::User, |element| Ty::of_type(&element));
        let shape = if is_named(mac, SHARED_SLICE) { Shape::Slice } else { Shape::Pointer };
        Value::Place(Memory::Shared(array), shape, element)
    }

    /// Declares the names that a `use` imports.
    pub fn import(&mut self, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => self.import(&path.tree),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree)),
            UseTree::Name(UseName { ident: name })
            | UseTree::Rename(UseRename { rename: name, .. }) => {
                if library::is_number_type(name) || name == "Some" || name == "None" {
                    self.found.unrepeatable(name.span(), "this hides a name of the language; give it another name");
                }
                self.declare(name, Value::Import);
            }
            tree => self.found.unrepeatable(
                tree.span(),
                "which names this imports is not seen; name them, or import them outside of the kernel",
            ),
        }
    }

    /// A function inside the body, which sees none of its variables.
    pub fn function(&mut self, function: &ItemFn) {
        let sig = &function.sig;
        let scopes = std::mem::take(&mut self.scopes);
        let written = std::mem::take(&mut self.written);
        self.found.in_function(true);
        // Of the names around it sees items alone.
        let is_item = |value: &Value| matches!(value, Value::Function(_) | Value::Import);
        for scope in &scopes {
            let items = scope.iter().filter(|(_, value)| is_item(value));
            self.scopes.push(items.map(|(name, value)| (name.clone(), value.clone())).collect());
        }
        self.scopes.push(Default::default());
        if !sig.generics.params.is_empty() || sig.asyncness.is_some() {
            self.found.unrepeatable(sig.ident.span(), HELPER);
        }
        for input in &sig.inputs {
            match input {
                FnArg::Typed(param) => self.bind(&param.pat, Value::Data(Ty::of_type(&param.ty))),
                FnArg::Receiver(receiver) => self.found.unrepeatable(receiver.span(), HELPER),
            }
        }
        let value = self.block(&function.block);
        let ty = self.data_of(value, sig.ident.span());
        self.check_coercion(&ty, sig.ident.span());
        self.found.in_function(false);
        (self.scopes, self.written) = (scopes, written);
    }
}

fn names_number_type(arguments: &AngleBracketedGenericArguments) -> bool {
    let is_number = |argument: &GenericArgument| matches!(argument, GenericArgument::Type(ty) if Ty::of_type(ty) == Ty::Number);
    arguments.args.first().is_some_and(is_number)
}

/// Whether a place is the target of a pointer, and not a part of it.
fn is_place_itself(place: &Expr) -> bool {
    match place {
        Expr::Paren(inner) => is_place_itself(&inner.expr),
        Expr::Group(inner) => is_place_itself(&inner.expr),
        Expr::Unary(_) => true,
        _ => false,
    }
}
