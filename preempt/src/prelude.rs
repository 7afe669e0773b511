//! What most applications use, and what kernels are written with.
//!
//! ```
//! use preempt::prelude::*;
//!
//! let scheduler = Scheduler::builder().device(Device::cpu()?).build()?;
//! let urgent: Stream = scheduler.stream(Priority(10));
//! # Ok::<(), preempt::Error>(())
//! ```
//!
//! `Error` is not in it, because applications have their own.

pub use crate::{
    Buffer, Device, Event, Handle, LaunchReport, Module, Priority, Scheduler, Stream,
    include_kernels,
};
pub use preempt_device::prelude::*;
