//! What can be read from the text of a PTX file of any compiler, and what is written into it.
//!
//! A part of [`preempt`](https://docs.rs/preempt) and of [`preempt-build`](https://docs.rs/preempt-build), which share it. What
//! is listed here is a part of their interface. The rest is for these two alone, and changes with them.

mod check;
mod code;
mod divergence;
mod drops;
mod flow;
mod lex;
mod panics;
mod reader;
mod select;
mod sm_numbers;
mod text;
mod transform;
mod tree;
mod verdict;
mod waits;

#[doc(hidden)]
pub use check::check_functions;
pub use check::{KernelFault, Report, check};
pub use drops::{Droppable, ParameterUse};
#[doc(hidden)]
pub use panics::{
    CohortLayout, PANIC_VARIABLE, PANIC_WORDS, Panic, PanicSource, panic_sources,
    with_panic_records,
};
pub use reader::{PtxError, read};
pub use select::{EntryShape, LaunchNeed};
#[doc(hidden)]
pub use sm_numbers::{MOST_SM_NUMBERS, SM_NUMBERS, with_sm_numbers};
#[doc(hidden)]
pub use text::{
    EARLY_CAPABILITY, Function, Functions, Kernel, blanked, block_threads, bound_registers,
    cooperates, first_parameter_bytes, functions, kernels, waits, with_waits,
};
pub use transform::{
    Options, Parameter, PreemptibleEntry, TransformError, Transformed, TransformedKernel,
    YieldingEntry, transform, transform_with,
};
pub use tree::{Module, Place};
pub use verdict::{Accepted, Note, Refusal, Rule, Verdict};
