//! The expansion of `#[preemptible]`, one stage after the other.

use proc_macro2::TokenStream;

use crate::analyze::idempotence::Verdict;
use crate::analyze::uniform::Uniformity;
use crate::analyze::uniform::kinds::Kind;
use crate::analyze::{self, barriers, idempotence};
use crate::errors::Errors;
use crate::generate;
use crate::generate::parts::Yields;
use crate::parse::Kernel;
use crate::rewrite::{assertions, checkpoints, markers, shared, yields};

pub fn expand_kernel(options: TokenStream, item: TokenStream) -> TokenStream {
    let mut kernel = match Kernel::parse(options, item) {
        Ok(kernel) => kernel,
        Err(error) => return error.into_compile_error(),
    };
    let mut errors = Errors::default();
    let checkpoint = checkpoints::take(&mut kernel, &mut errors);
    let params = kernel
        .params
        .iter()
        .map(|param| (&param.ident, param.mutability.is_some(), Kind::of_param(param)));
    let uniformity =
        barriers::check_barriers(&kernel.body, params, checkpoint.is_some(), &mut errors);
    if let Some(checkpoint) = checkpoint {
        return expand_with_checkpoint(kernel, checkpoint, uniformity, errors);
    }
    let verdict = idempotence::verdict(&kernel, uniformity.is_some());
    analyze::rust_cuda::check_shared_memory(&kernel.body, &mut errors);
    let votes = uniformity.is_some();
    // Ahead of all that rewrites the body.
    let proof = verdict.proof().filter(|_| !kernel.options.idempotent);
    let markers = proof.and_then(|(_, markers)| markers);
    let is_marked = markers.is_none_or(|markers| markers::reserve(&mut kernel.body, markers));
    let memory = shared::place_arrays(&mut kernel, &mut errors);
    if kernel.rust_cuda.is_some() {
        memory.refuse_slices(&mut errors);
    }
    let Kernel { options, body, .. } = &mut kernel;
    yields::add_to_loops(options, body, uniformity.as_ref(), &mut errors);
    let yields = yields::place_points(options, body, votes, markers.is_some(), &mut errors);
    markers::place(&options.krate, body, yields.then_some(votes));
    if yields && let Some(uniformity) = &uniformity {
        assertions::assert_known(&options.krate, &uniformity.names, body);
    }
    let mut explanation = None;
    if yields {
        describe(&mut kernel, &verdict);
        let declared = kernel.options.idempotent;
        kernel.proof = Some(verdict.proof_of(declared));
        explanation = kernel
            .options
            .explain
            .as_ref()
            .map(|option| generate::note(option, &verdict.explanation(declared)));
        match proof {
            _ if declared => {}
            Some((assumptions, _)) if is_marked => {
                assertions::assert_repeatable(&kernel.options.krate, assumptions, &mut kernel.body);
            }
            _ => verdict.error().into_iter().for_each(|error| errors.add(error)),
        }
    } else if let Some(option) = &kernel.options.explain {
        errors.push(
            option,
            "a kernel without yield points runs no block-task again; leave the option out",
        );
    }
    let yields = match (yields, markers) {
        (false, _) => Yields::Nowhere,
        (true, Some(_)) if !votes => Yields::UntilMarked,
        (true, _) => Yields::Anywhere,
    };
    // A kernel whose body is refused is still generated, so that its callers have no errors.
    let mut expansion = generate::kernel(&kernel, &memory, yields);
    expansion.extend(explanation);
    expansion.extend(errors.finish().err().map(syn::Error::into_compile_error));
    expansion
}

/// The expansion of a kernel with a checkpoint, whose body has a plain loop in its place so far.
fn expand_with_checkpoint(
    mut kernel: Kernel,
    checkpoint: checkpoints::Checkpoint,
    uniformity: Option<Uniformity>,
    mut errors: Errors,
) -> TokenStream {
    let start = idempotence::start(&kernel, checkpoint.position);
    kernel.state = Some(checkpoint.ty.clone());
    let Kernel { options, body, .. } = &mut kernel;
    checkpoint.place(&options.krate, body);
    let ahead = match options.idempotent {
        true => "is declared",
        false => "is proved",
    };
    let explanation = options.explain.as_ref().map(|option| {
        let text = format!(
            "a block-task that stops goes on at its checkpoint; that what stands ahead of that may run again {ahead}"
        );
        generate::note(option, &text)
    });
    if let Some(point) = yields::first_point(body) {
        errors.push(
            point,
            "a kernel with a checkpoint stops there and nowhere else; leave the yield point out",
        );
    }
    if let Some(uniformity) = &uniformity {
        assertions::assert_known(&options.krate, &uniformity.names, body);
    }
    match start {
        _ if options.idempotent => {}
        Ok(assumptions) => assertions::assert_repeatable(&options.krate, &assumptions, body),
        Err(error) => errors.add(error),
    }
    let memory = shared::place_arrays(&mut kernel, &mut errors);
    let mut expansion = generate::kernel(&kernel, &memory, Yields::AtCheckpoint);
    expansion.extend(explanation);
    expansion.extend(errors.finish().err().map(syn::Error::into_compile_error));
    expansion
}

/// Adds the verdict to the documentation of a kernel that has one.
fn describe(kernel: &mut Kernel, verdict: &Verdict) {
    if kernel.attrs.iter().any(|attr| attr.path().is_ident("doc")) {
        let summary = verdict.summary(kernel.options.idempotent);
        kernel.attrs.extend::<[syn::Attribute; 2]>([
            syn::parse_quote!(#[doc = ""]),
            syn::parse_quote!(#[doc = #summary]),
        ]);
    }
}
