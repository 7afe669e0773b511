//! From tokens to a [`Kernel`]: the attribute's options and the function's signature.

use proc_macro2::TokenStream;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    AttrStyle, Attribute, Block, Error, Expr, FnArg, GenericArgument, Ident, Item, ItemFn, Lit,
    Pat, PatType, Path, PathArguments, PointerMutability, Result, ReturnType, Safety, Signature,
    Token, Type, TypeFnPtr, TypePtr, TypeReference, TypeTraitObject, Visibility, parenthesized,
    parse_quote,
};

use crate::device_crate;
use crate::errors::{Errors, both};
use instances::Instances;
use rust_cuda::RustCuda;

pub mod instances;
pub mod rust_cuda;

/// What is known of block-tasks that run again from their start.
pub struct Proof {
    /// The variant of `Idempotence`.
    pub idempotence: &'static str,
    pub reason: String,
}

/// A function that `#[preemptible]` accepts.
pub struct Kernel {
    pub options: Options,
    pub attrs: Vec<Attribute>,
    pub vis: Visibility,
    pub ident: Ident,
    pub unsafety: Option<Token![unsafe]>,
    pub params: Vec<Param>,
    pub body: Block,
    /// Set if the kernel is generic.
    pub instances: Option<Instances>,
    /// Set if the function has rust-cuda's `#[kernel]`.
    pub rust_cuda: Option<RustCuda>,
    /// The type of each thread's state at the checkpoint, once that is found.
    pub state: Option<Type>,
    /// Of a kernel with yield points: what is known of its block-tasks that run again from their start.
    pub proof: Option<Proof>,
}

/// The options in the parentheses of `#[preemptible(..)]`.
pub struct Options {
    /// The extents of a block in x, y and z.
    pub block: Option<[Expr; 3]>,
    pub amortize: Option<Expr>,
    /// The list in the parentheses of `instances(..)`.
    pub instances: Option<TokenStream>,
    /// Whether a block-task may run again from its start.
    pub idempotent: bool,
    /// The option `yield_in_loops`, if it is given.
    pub yield_in_loops: Option<Ident>,
    /// The option `explain`, if it is given.
    pub explain: Option<Ident>,
    /// The path of `preempt_device`.
    pub krate: Path,
}

/// A parameter of a kernel, `mut ident: ty`.
pub struct Param {
    pub attrs: Vec<Attribute>,
    pub mutability: Option<Token![mut]>,
    pub ident: Ident,
    pub ty: Type,
    pub kind: ParamKind,
}

/// How a parameter is passed from the launch to the body.
pub enum ParamKind {
    /// By value.
    Value,
    /// As the address of a buffer, and its length if the body sees that.
    Buffer { form: Form, element: Box<Type> },
}

/// The type as which the body sees a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// `&[T]`
    Slice,
    /// `*const T`
    ConstPtr,
    /// `*mut T`
    MutPtr,
    /// `SliceMut<T>`
    SliceMut,
    /// `PerThread<T>`
    PerThread,
}

impl Form {
    pub fn writes(self) -> bool {
        matches!(self, Form::MutPtr | Form::SliceMut | Form::PerThread)
    }

    /// Whether the body sees the number of elements.
    pub fn has_length(self) -> bool {
        matches!(self, Form::Slice | Form::SliceMut | Form::PerThread)
    }
}

/// Threads: the most in a block, on every CUDA device so far (CUDA C++ programming guide, "Compute capabilities").
pub const MAX_THREADS: u32 = 1024;
/// Threads: the most in the z dimension of a block, on every CUDA device so far.
pub const MAX_THREADS_Z: u32 = 64;
pub const BLOCK_LIMITS: &str = "a block has 1 to 1024 threads in all, and at most 64 in z; give `block = 256` or `block = (16, 16)`";

/// The limits of the amortizing factor, as an error states them: a claim of 0 tasks would make no progress.
pub const AMORTIZE_LIMITS: &str =
    "the amortizing factor is the most block-tasks that a block claims at once: at least 1";

const FUNCTION_POINTER: &str = "a kernel gets no function pointers and no `dyn` objects, because the functions that they \
    point to are the host's; pass a number and `match` on it in the kernel, or write a kernel for each function";

const KNOWN_OPTIONS: &str = "`block = 256` or `block = (x, y, z)`, `amortize = 16` or `amortize = auto`, `idempotent`, \
    `yield_in_loops`, `explain`, `instances(8, 16)`, `crate = path::to::preempt_device`";

/// The options without a value.
const FLAGS: [&str; 3] = ["explain", "idempotent", "yield_in_loops"];

impl Kernel {
    pub fn parse(options: TokenStream, item: TokenStream) -> Result<Kernel> {
        let options = Options::parse.parse2(options);
        let function = parse_function(item).and_then(|mut function| {
            let rust_cuda = rust_cuda::take_attributes(&mut function);
            let instances = match &options {
                Ok(options) => instances::parse(options.instances.as_ref(), &function.sig.generics),
                Err(_) => Ok(None),
            };
            let (instances, params) = both(instances, check_function(&function))?;
            Ok((function, params, rust_cuda, instances))
        });
        let (options, (function, params, rust_cuda, instances)) = both(options, function)?;
        if let (Some(_), Some(form)) = (&instances, &rust_cuda) {
            let name = &form.item.sig.ident;
            return Err(Error::new_spanned(
                name,
                "a `#[kernel]` has no instances: its entry is one symbol; leave `#[kernel]` out",
            ));
        }
        Ok(Kernel {
            options,
            attrs: function.attrs,
            vis: function.vis,
            ident: function.sig.ident,
            unsafety: match function.sig.safety {
                Safety::Unsafe(unsafety) => Some(unsafety),
                Safety::Safe(_) | Safety::Default => None,
            },
            params,
            body: *function.block,
            instances,
            rust_cuda,
            state: None,
            proof: None,
        })
    }
}

impl Options {
    pub fn parse(input: ParseStream<'_>) -> Result<Options> {
        let mut errors = Errors::default();
        let (mut block, mut amortize, mut krate, mut instances) = (None, None, None, None);
        let (mut idempotent, mut yield_in_loops, mut explain) = (None, None, None);
        while !input.is_empty() {
            let name = input.call(Ident::parse_any)?;
            let equals = input.parse::<Option<Token![=]>>()?;
            let is_flag = FLAGS.iter().any(|flag| name == flag);
            let is_list = name == "instances";
            if equals.is_none() && !is_flag && !is_list {
                return Err(Error::new_spanned(
                    &name,
                    format!("expected `{name} = ..`; the options are {KNOWN_OPTIONS}"),
                ));
            }
            if is_flag && equals.is_some() {
                let value = input.parse::<Expr>()?;
                errors.push(
                    value,
                    format!(
                        "`{name}` takes no value; write `#[preemptible({name})]`, or leave it out"
                    ),
                );
            }
            let duplicate = if name == "idempotent" {
                idempotent.replace(()).is_some()
            } else if name == "yield_in_loops" {
                yield_in_loops.replace(name.clone()).is_some()
            } else if name == "explain" {
                explain.replace(name.clone()).is_some()
            } else if name == "block" {
                block.replace(input.parse::<Expr>()?).is_some()
            } else if name == "amortize" {
                let value = input.parse::<Expr>()?;
                let is_auto = matches!(&value, Expr::Path(path) if path.path.is_ident("auto"));
                amortize.replace((!is_auto).then_some(value)).is_some()
            } else if is_list {
                let list;
                parenthesized!(list in input);
                instances.replace(list.parse::<TokenStream>()?).is_some()
            } else if name == "crate" {
                krate.replace(input.call(Path::parse_mod_style)?).is_some()
            } else {
                input.parse::<Expr>()?;
                errors.push(
                    &name,
                    format!("unknown option `{name}`; the options are {KNOWN_OPTIONS}"),
                );
                false
            };
            if duplicate {
                errors.push(&name, format!("`{name}` is given twice; remove one of them"));
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        let amortize = amortize.flatten();
        if let Some(amortize) = &amortize
            && literal(amortize) == Some(0)
        {
            errors.push(amortize, AMORTIZE_LIMITS);
        }
        let block = block.and_then(|block| errors.take(parse_block(block)));
        errors.finish()?;
        Ok(Options {
            block,
            amortize,
            instances,
            idempotent: idempotent.is_some(),
            yield_in_loops,
            explain,
            krate: krate.map_or_else(device_crate::path, Ok)?,
        })
    }
}

/// Reads `256`, `(16, 16)` or `(8, 8, 4)` as three extents. The expansion checks extents that are not
/// literals.
fn parse_block(block: Expr) -> Result<[Expr; 3]> {
    let span = block.span();
    let mut extents = match block {
        Expr::Tuple(tuple) if (1..=3).contains(&tuple.elems.len()) => tuple.elems.into_iter(),
        Expr::Tuple(_) => return Err(Error::new(span, BLOCK_LIMITS)),
        one => syn::punctuated::Punctuated::<_, Token![,]>::from_iter([one]).into_iter(),
    };
    let extents: [Expr; 3] =
        std::array::from_fn(|_| extents.next().unwrap_or_else(|| parse_quote!(1)));
    if let [Some(x), Some(y), Some(z)] = extents.each_ref().map(literal) {
        let threads = x.saturating_mul(y).saturating_mul(z);
        if threads == 0 || threads > MAX_THREADS.into() || z > MAX_THREADS_Z.into() {
            return Err(Error::new(span, BLOCK_LIMITS));
        }
    } else if let Some(zero) = extents.iter().find(|extent| literal(extent) == Some(0)) {
        return Err(Error::new_spanned(zero, BLOCK_LIMITS));
    }
    Ok(extents)
}

/// The value of an integer literal, at most `u64::MAX`.
fn literal(expr: &Expr) -> Option<u64> {
    match expr {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Int(int) => Some(int.base10_parse().unwrap_or(u64::MAX)),
            _ => None,
        },
        Expr::Paren(paren) => literal(&paren.expr),
        Expr::Group(group) => literal(&group.expr),
        _ => None,
    }
}

fn parse_function(item: TokenStream) -> Result<ItemFn> {
    match syn::parse2(item)? {
        Item::Fn(mut function) => {
            // `#![..]` at the start of the body means the same as `#[..]` ahead of the function.
            for attr in &mut function.attrs {
                attr.style = AttrStyle::Outer;
            }
            Ok(function)
        }
        other => Err(Error::new_spanned(
            other,
            "`#[preemptible]` goes on a kernel: `pub fn name(..) { .. }`",
        )),
    }
}

/// The parameters of the function, or all errors of its attributes and signature.
fn check_function(function: &ItemFn) -> Result<Vec<Param>> {
    let mut errors = Errors::default();
    check_attributes(&function.attrs, &mut errors);
    check_signature(&function.sig, &mut errors);
    let params = function.sig.inputs.iter().filter_map(|input| match input {
        FnArg::Typed(param) => errors.take(parse_param(param)),
        FnArg::Receiver(receiver) => {
            errors.push(
                receiver,
                "a kernel has no receiver; make it a free function, and pass a struct with \
                 `#[derive(Clone, Copy, KernelArg)] #[repr(C)]` by value",
            );
            None
        }
    });
    let params = params.collect();
    let mut self_type = SelfType(&mut errors);
    self_type.visit_signature(&function.sig);
    self_type.visit_block(&function.block);
    errors.finish().map(|()| params)
}

/// Refuses `Self`, which the items of the expansion do not have.
struct SelfType<'a>(&'a mut Errors);

impl<'ast> Visit<'ast> for SelfType<'_> {
    fn visit_path(&mut self, path: &'ast Path) {
        if let Some(first) = path.segments.first().filter(|first| first.ident == "Self") {
            self.0.push(
                first,
                "there is no `Self` in a kernel, because its entries are functions of their own; name \
                 the type, which is not generic, or move the kernel out of the `impl`",
            );
        }
        visit::visit_path(self, path);
    }

    /// An `impl` in the body has its own.
    fn visit_item(&mut self, _: &'ast Item) {}
}

/// Refuses attributes that conflict with those of the expansion.
fn check_attributes(attrs: &[Attribute], errors: &mut Errors) {
    const REFUSED: [&str; 7] = [
        "export_name",
        "inline",
        "link_section",
        "naked",
        "no_mangle",
        "target_feature",
        "track_caller",
    ];
    for attr in attrs {
        // In `unsafe(..)`, the inner path is the attribute.
        let inner = attr.parse_args_with(|input: ParseStream<'_>| {
            let path = input.call(Path::parse_mod_style)?;
            input.parse::<TokenStream>().map(|_| path)
        });
        let path = match inner {
            Ok(inner) if attr.path().is_ident("unsafe") => inner,
            _ => attr.path().clone(),
        };
        if path.segments.last().is_some_and(|last| last.ident == "preemptible") {
            errors.push(
                attr,
                "`#[preemptible]` stands on this kernel twice; keep one of them, with the options of \
                 both, `#[preemptible(block = 256, idempotent)]`",
            );
        } else if let Some(refused) = REFUSED.iter().find(|refused| path.is_ident(refused)) {
            errors.push(
                attr,
                format!(
                    "`{refused}` does not go with `#[preemptible]`, which decides how the \
                     kernel's entries are named, called and compiled; remove it"
                ),
            );
        }
    }
}

fn check_signature(sig: &Signature, errors: &mut Errors) {
    if let Some(constness) = &sig.constness {
        errors.push(constness, "a kernel cannot be `const`: it runs on a device; remove it");
    }
    if let Some(asyncness) = &sig.asyncness {
        errors.push(
            asyncness,
            "a kernel cannot be `async`: remove it; the handle that a stream returns for the launch can be \
             awaited",
        );
    }
    if let Some(abi) = &sig.abi {
        errors.push(
            abi,
            "a kernel is a plain function, and the expansion adds the ABI of its entries; \
             remove `extern`",
        );
    }
    if let Safety::Safe(safe) = &sig.safety {
        errors.push(safe, "a kernel is safe unless it is `unsafe`; remove `safe`");
    }
    if let Some(variadic) = &sig.variadic {
        errors.push(
            variadic,
            "a kernel takes a fixed number of arguments; pass a slice `&[T]` instead",
        );
    }
    if let ReturnType::Type(_, ty) = &sig.output {
        errors.push(ty, "a kernel returns nothing; write results to a `SliceMut<T>` or `*mut T`");
    }
}

fn parse_param(param: &PatType) -> Result<Param> {
    let mut errors = Errors::default();
    for attr in &param.attrs {
        if attr.path().is_ident("cfg") || attr.path().is_ident("cfg_attr") {
            errors.push(
                attr,
                "host and device must agree about the parameters of a kernel; write two kernels \
                 and put `#[cfg(..)]` on them",
            );
        }
    }
    let name = match &*param.pat {
        Pat::Ident(pat) if pat.by_ref.is_none() && pat.subpat.is_none() => Ok(pat),
        pat => Err(Error::new_spanned(
            pat,
            "a parameter of a kernel is a plain name, `name: T` or `mut name: T`; take it apart \
             in the body",
        )),
    };
    let ((name, kind), ()) = both(both(name, parse_type(&param.ty)), errors.finish())?;
    Ok(Param {
        attrs: param.attrs.clone(),
        mutability: name.mutability,
        ident: name.ident.clone(),
        ty: (*param.ty).clone(),
        kind,
    })
}

fn parse_type(ty: &Type) -> Result<ParamKind> {
    match ty {
        // Types from `macro_rules!` are groups.
        Type::Group(group) => parse_type(&group.elem),
        Type::Paren(paren) => parse_type(&paren.elem),
        Type::Ptr(pointer) => {
            let form = match pointer.mutability {
                PointerMutability::Const(_) => Form::ConstPtr,
                PointerMutability::Mut(_) => Form::MutPtr,
            };
            buffer(form, &pointer.elem)
        }
        Type::Reference(reference) => parse_reference(reference),
        Type::ImplTrait(_) => Err(Error::new_spanned(
            ty,
            "a kernel cannot be generic, since each of its entries is one symbol; name the type",
        )),
        _ => {
            if let Some((form, element)) = named_slice(ty) {
                return buffer(form, &element);
            }
            refuse_addresses(ty).map(|()| ParamKind::Value)
        }
    }
}

fn buffer(form: Form, element: &Type) -> Result<ParamKind> {
    refuse_addresses(element)?;
    Ok(ParamKind::Buffer { form, element: Box::new(element.clone()) })
}

fn parse_reference(reference: &TypeReference) -> Result<ParamKind> {
    if reference.mutability.is_some() {
        return Err(Error::new_spanned(
            reference,
            "a kernel cannot take `&mut`: all threads would hold the same unique reference, and \
             the compiler would keep its target in registers across barriers; take \
             `SliceMut<T>` or `*mut T`",
        ));
    }
    if let Some(lifetime) = &reference.lifetime
        && lifetime.ident != "_"
    {
        return Err(Error::new_spanned(
            lifetime,
            "a slice is valid only while the launch runs; write `&[T]` without a lifetime",
        ));
    }
    match strip(&reference.elem) {
        Type::Slice(slice) => buffer(Form::Slice, &slice.elem),
        Type::Path(path) if path.path.is_ident("str") => Err(Error::new_spanned(
            reference,
            "a kernel cannot take `&str`; take the bytes, `&[u8]`",
        )),
        _ => Err(Error::new_spanned(
            reference,
            "a kernel takes references to slices only; take `T` by value, which must be \
             `KernelArg`, or a slice `&[T]`",
        )),
    }
}

/// The `T` of `SliceMut<T>` and of `PerThread<T>`, under any path.
fn named_slice(ty: &Type) -> Option<(Form, Type)> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last()?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
    let form = match () {
        () if last.ident == "SliceMut" => Form::SliceMut,
        () if last.ident == "PerThread" => Form::PerThread,
        () => return None,
    };
    match (arguments.args.first(), arguments.args.len()) {
        (Some(GenericArgument::Type(element)), 1) => Some((form, element.clone())),
        _ => None,
    }
}

fn strip(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => strip(&group.elem),
        Type::Paren(paren) => strip(&paren.elem),
        ty => ty,
    }
}

/// Refuses references and pointers inside of a value, or of an element of a buffer.
fn refuse_addresses(ty: &Type) -> Result<()> {
    let mut addresses = Addresses::default();
    addresses.visit_type(ty);
    addresses.0.finish()
}

#[derive(Default)]
struct Addresses(Errors);

impl<'ast> Visit<'ast> for Addresses {
    fn visit_type_reference(&mut self, reference: &'ast TypeReference) {
        self.0.push(
            reference,
            "a value that is passed to a kernel holds no references, since they would point into \
             host memory; pass slices as parameters of their own",
        );
    }

    fn visit_type_ptr(&mut self, pointer: &'ast TypePtr) {
        self.0.push(
            pointer,
            "a kernel gets no pointers inside of buffers or values, because a launch knows only the \
             buffers that are its arguments; put all rows into one buffer, and where each starts \
             into another, `rows: &[f32], starts: &[u32]`, or make each buffer a parameter",
        );
    }

    fn visit_type_fn_ptr(&mut self, function: &'ast TypeFnPtr) {
        self.0.push(function, FUNCTION_POINTER);
    }

    fn visit_type_trait_object(&mut self, object: &'ast TypeTraitObject) {
        self.0.push(object, FUNCTION_POINTER);
    }
}
