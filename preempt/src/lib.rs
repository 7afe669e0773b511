//! Preemption on NVIDIA GPUs, in process.
//!
//! | feature | |
//! | --- | --- |
//! | `build` | `preempt::build`, for build scripts that compile kernels to PTX |

#[cfg(feature = "build")]
pub mod build;
mod module;

pub use module::Module;
