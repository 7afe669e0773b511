//! For applications on rust-cuda's [`cust`](https://docs.rs/cust) (feature `cust`): they keep their context, streams, events, modules and
//! buffers, and launch what has to be preemptible here.
//!
//! ```no_run
//! use cust::prelude::*;
//! # use preempt_device::prelude::*;
//! # #[preemptible(block = 256)]
//! # fn add(a: &[f32], b: &[f32], out: SliceMut<f32>) {}
//!
//! // As before.
//! let context = cust::quick_init()?;
//! let (a, b) = (DeviceBuffer::from_slice(&[1.0f32; 1000])?, DeviceBuffer::from_slice(&[2.0f32; 1000])?);
//! let mut sum = DeviceBuffer::from_slice(&[0.0f32; 1000])?;
//!
//! // New.
//! # const KERNELS: preempt::Module = preempt::Module::new("kernels", None);
//! let device = preempt::Device::from_cust(&context)?;
//! let scheduler = preempt::Scheduler::builder().device(device).kernels(KERNELS).build()?;
//! let urgent = scheduler.stream(10);
//! scheduler.scope(|scope| scope.launch(&urgent, add(&a, &b, &mut sum).grid(4))?.wait())?;
//!
//! // As before.
//! let mut host = [0.0f32; 1000];
//! sum.copy_to(&mut host)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The [guide](crate::guide::from_rust_cuda) goes through an application step by step, and says what becomes of each
//! item of `cust`.
//!
//! # Buffers
//!
//! A launch goes on after its handle is dropped, so what it uses must stay in place although
//! no thread waits. There are two ways:
//!
//! - *Lend it.* A [`scope`](crate::Scheduler::scope) waits for its launches, which therefore take
//!   `&DeviceBuffer` and `&mut DeviceBuffer` as they are. [`lend`] is for a buffer that several launches
//!   of a scope use. The constructors for a [`DeviceSlice`] ([`Lent::slice`]) and a
//!   [`DevicePointer`] ([`Lent::pointer`]) are `unsafe`, because any code could free that memory.
//! - *Hand it over.* [`Scheduler::adopt`](crate::Scheduler::adopt) makes a [`Buffer`](crate::Buffer) of it, without copying, and
//!   [`Stream::to_cust`](crate::Stream::to_cust) makes a `DeviceBuffer` of any buffer.
//!
//! Fills and copies that `cust` has started in no stream are done before a launch that borrows memory, or
//! an adoption: `DeviceBuffer::zeroed` returns before the memory is zero. What is started in a stream of
//! `cust`'s is ordered as below.
//!
//! **Dropping a `DeviceBuffer` (`cuMemFree`) waits until nothing runs on the device. Meanwhile no
//! thread of the process can launch, urgent kernels included.** Give the buffer to
//! [`Scheduler::release`](crate::Scheduler::release) instead, which frees it in stream order. `cust`'s other synchronous calls, such
//! as `copy_from` and `copy_to` with ordinary memory or [`Module::from_ptx`](cust::module::Module::from_ptx), may wait for what runs, too.
//!
//! # Streams and events
//!
//! `cust`'s streams and this crate's do not know of each other, whatever buffers they use. They are
//! ordered by [`Stream::wait_for_cust`](crate::Stream::wait_for_cust), [`Stream::wait_for_event`](crate::Stream::wait_for_event) and
//! [`Stream::run_cust`](crate::Stream::run_cust). Kernels of `cust`'s own take no SMs from others: beside a
//! preemptible kernel that fills the device they wait for its end. No CUDA stream is ever made to wait for a stream of
//! this crate: a waiting stream takes one of the device's few hardware queues, and what it waits for might need that queue.
//!
//! # Building
//!
//! - With a CUDA toolkit: nothing to do, or `export CUDA_LIBRARY_PATH=/path/of/the/toolkit` if it is in an
//!   unusual place.
//! - Without one: `export CUDA_LIBRARY_PATH=$(preempt-cuda-stub)`, after
//!   `cargo install preempt-build`. What is built that way runs wherever there is a driver.
//!
//! Unlike the rest of this crate, `cust` is linked with the driver's library: a program that uses it does
//! not start without a driver.
//!
//! [`DeviceSlice`]: cust::memory::DeviceSlice
//! [`DevicePointer`]: cust::memory::DevicePointer

use std::fmt::Write;

use cust::context::Context;
use cust::error::CudaError;

use crate::device::Device;
use crate::error::{DeviceError, Error};

mod memory;
mod modules;
mod order;

pub use crate::raw::Lent;
pub use memory::lend;

impl Device {
    /// The GPU of an application on [`cust`], in that application's context (feature `cust`): the same
    /// device as [`Device::cuda`] of its number.
    ///
    /// The context stays alive as long as the device, whether or not the application drops it.
    ///
    /// # Errors
    ///
    /// As for [`Device::cuda`].
    pub fn from_cust(context: &Context) -> Result<Device, Error> {
        // SAFETY: the context is borrowed.
        unsafe { Device::from_raw(context.as_raw().cast()) }
    }
}

/// The error of a `cust` call that failed.
fn failed(what: &str, error: CudaError) -> Error {
    Error::Device(DeviceError::Driver {
        code: error as u32,
        message: format!("{what}: {}", words(error)).into(),
    })
}

/// The error in words. `cust` asks the driver for them, and says that it cannot print the error where
/// the driver has none.
fn words(error: CudaError) -> String {
    let mut words = String::new();
    match write!(words, "{error}") {
        Ok(()) => words,
        Err(_) => format!("{error:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_can_be_printed_without_a_driver() {
        let error = failed("`get_function`", CudaError::NotFound);
        assert!(error.to_string().contains("`get_function`: "), "{error}");
    }
}
