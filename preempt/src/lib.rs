//! Preemption on NVIDIA GPUs, in process.

mod buffer;
mod device;
mod engine;
mod error;
pub mod policy;
mod scheduler;

pub use buffer::Buffer;
pub use device::{Device, Properties};
pub use engine::{LaunchId, LaunchReport};
pub use error::Error;
pub use policy::Priority;
pub use preempt_device::host::{Call, Dim3};
pub use preempt_device::kernel::KernelArg;
pub use scheduler::{Handle, Output, Scheduler, SchedulerBuilder, Stream};
