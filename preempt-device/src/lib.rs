//! The device side of preempt: the primitives of kernels, and the worker loop that runs them.
//!
//! A kernels crate depends on this crate alone. It is compiled by the stock compiler, for the
//! GPU (`nvptx64-nvidia-cuda`) and for the host, from the same source:
//!
//! ```
//! use preempt_device::prelude::*;
//!
//! /// `out[i] = a[i] + b[i]`
//! #[preemptible(block = 256)]
//! pub fn add(a: &[f32], b: &[f32], out: PerThread<f32>) {
//!     if let Some(own) = out.own() {
//!         own.set(a[own.index()] + b[own.index()]);
//!     }
//! }
//! ```
//!
//! On the host, `add` is now a function that takes buffers and returns a `host::Call`. A stream of the
//! `preempt` crate launches that once it has a grid.
//!
//! | module | what is in it |
//! | --- | --- |
//! | [`thread`] | block and thread indices, barriers, fences |
//! | [`warp`] | shuffles, votes, matches and reductions |
//! | [`shared`] | [`shared_array!`], [`shared_slice!`] |
//! | [`yields`] | [`yield_point!`], [`checkpoint!`] |
//! | [`atomic`], [`math`] (also `float`, as `cuda_std` has it), [`time`] | atomics, floating-point functions, clocks |
//! | [`mod@kernel`] | the arguments of kernels |
//! | `host` | kernels seen from the host (not on the GPU) |
//!
//! The names are those of rust-cuda's `cuda_std`. A kernels crate for it needs one line, `extern crate
//! preempt_device as cuda_std;`, and [`kernel`](macro@kernel) for its attribute. The guide is
//! `preempt::guide::from_rust_cuda`.
//!
//! | feature | |
//! | --- | --- |
//! | `cust` | launches take `cust`'s buffers; `preempt`'s feature of this name turns it on |
//! | `half` | `f16` and `bf16` of the crate `half` in buffers and as arguments, and their conversions by the GPU's instructions |
//! | `cuda-std` | for kernels that rust-cuda's code generator compiles, beside `cuda_std` itself |
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    target_arch = "nvptx64",
    no_std,
    feature(asm_experimental_arch, link_llvm_intrinsics, stdarch_nvptx, stmt_expr_attributes),
    // Barriers, votes and shuffles are LLVM intrinsics: inline assembly would not be convergent.
    allow(internal_features)
)]
#![cfg_attr(
    all(target_arch = "nvptx64", not(feature = "cuda-std")),
    // `"unadjusted"`: LLVM's own types, as its intrinsics take them.
    feature(abi_unadjusted)
)]
#![deny(missing_docs, missing_debug_implementations, unsafe_op_in_unsafe_fn)]

#[doc(hidden)]
pub mod abi;
pub mod atomic;
mod atomic_shim;
#[cfg(not(target_arch = "nvptx64"))]
pub mod host;
pub mod kernel;
pub mod math;
pub mod shared;
mod target;
pub mod thread;
pub mod time;
pub mod warp;
#[doc(hidden)]
pub mod worker;
pub mod yields;

#[cfg(target_arch = "nvptx64")]
#[doc(hidden)]
pub mod entry;

/// The LLVM IR that every kernels crate is linked with; the build helper of `preempt` writes it
/// to a file.
#[cfg(not(target_arch = "nvptx64"))]
#[doc(hidden)]
pub const INTRINSICS_LL: &str =
    concat!(include_str!("target/intrinsics.ll"), include_str!("target/atomics.ll"));

pub use math as float;
/// The modules that `thread` and `warp` name in the body of a kernel for rust-cuda: those of this crate,
/// which know block-tasks. Where `cuda_std` is an alias of this crate, the names mean these already.
#[doc(hidden)]
pub mod __rust_cuda {
    #[cfg(feature = "cuda-std")]
    pub use crate::{thread, warp};
}

pub use math::GpuFloat;
pub use preempt_macros::{KernelArg, gpu_only, kernel, preemptible};

/// All names that a kernels crate needs.
pub mod prelude {
    pub use crate::kernel::{KernelArg, PerThread, SliceMut};
    pub use crate::math::GpuFloat;
    #[cfg(feature = "half")]
    pub use crate::math::HalfFloat;
    pub use crate::{
        KernelArg, checkpoint, kernel, preemptible, shared_array, shared_slice, thread, warp,
        yield_point,
    };
}
