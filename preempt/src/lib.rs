//! Preemption on NVIDIA GPUs, in process.
//!
//! | feature | |
//! | --- | --- |
//! | `build` | `preempt::build`, for build scripts that compile kernels to PTX |

mod buffer;
#[cfg(feature = "build")]
pub mod build;
mod device;
mod engine;
mod error;
mod module;
pub mod policy;
mod scheduler;

pub use buffer::Buffer;
pub use device::{Device, Properties};
pub use engine::{LaunchId, LaunchReport};
pub use error::Error;
pub use module::Module;
pub use policy::Priority;
pub use preempt_device::host::{Call, Dim3};
pub use preempt_device::kernel::KernelArg;
pub use scheduler::{Handle, Output, Scheduler, SchedulerBuilder, Stream};
