//! For applications with CUDA contexts, streams, events and memory of their own: by the driver's handles, from whatever library.
//!
//! A program may have the CUDA runtime in it, a version of cudarc other than this crate's, or a framework that brings one, such
//! as candle. All of them live in a GPU's primary context, and so does [`Device`]. Their handles are plain numbers and pointers
//! here, so no type of a library is in this interface, and nearly everything is `unsafe`. For [`cust`](https://docs.rs/cust)
//! and [`cudarc`](https://docs.rs/cudarc) 0.19 there are the features of these names, which are safe.
//!
//! ```no_run
//! use std::ffi::c_void;
//!
//! use preempt::raw::{Lent, LentRead};
//! use preempt::{Device, Scheduler};
//!
//! # fn with(context: *mut c_void, theirs: *mut c_void, x: u64, y: u64) -> Result<(), Box<dyn std::error::Error>> {
//! // SAFETY: `context` is a `CUcontext` that exists.
//! let device = unsafe { Device::from_raw(context) }?;
//! let ptx = std::fs::read_to_string("softmax.ptx")?;
//! let scheduler = Scheduler::builder().device(device).ptx("layers", ptx).build()?;
//! let softmax = scheduler.foreign("layers", "softmax_f32")?;
//! let stream = scheduler.stream(0);
//! scheduler.scope(|scope| {
//!     // What `theirs` writes to `x` comes first.
//!     // SAFETY: `theirs` is a `CUstream` that exists until the wait is over.
//!     drop(unsafe { stream.wait_for_raw(theirs) }?);
//!     // SAFETY: both have 4096 rows of 1024 elements, which no other work uses during the scope.
//!     let (x, mut y) = unsafe { (LentRead::<f32>::new(x, 4096 * 1024), Lent::<f32>::new(y, 4096 * 1024)) };
//!     // SAFETY: `softmax_f32(const float *x, float *y, int columns)` stays within its rows.
//!     let call = unsafe { softmax.call() }.read(&x).write(&mut y).value(1024i32).block(256).grid(4096);
//!     scope.launch(&stream, call)?.wait()
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! # Memory
//!
//! It is *lent* to the launches of a [`scope`](crate::Scheduler::scope), as [`Lent`] or [`LentRead`], or handed over by
//! [`Scheduler::adopt_raw`](crate::Scheduler::adopt_raw) and taken back by [`Stream::to_raw`](crate::Stream::to_raw). A launch
//! checks that what it is lent lies in one allocation of the device's context.
//!
//! # Order
//!
//! A launch comes after what other code has started in no stream (the legacy stream). For all other streams it is ordered by
//! [`Stream::wait_for_raw`](crate::Stream::wait_for_raw), [`Stream::wait_for_raw_event`](crate::Stream::wait_for_raw_event) and
//! [`Stream::run_raw`](crate::Stream::run_raw). When a scope has returned, its launches are over, and other code uses the
//! memory without further ado.
//!
//! No CUDA stream is ever made to wait for a stream of this crate: a waiting stream takes one of the device's few hardware
//! queues, and what it waits for might need that queue. So other code's work that comes after a launch is put into its stream
//! when the launch is over: after its handle, after the scope, or by `run_raw`.

use std::ffi::c_void;

use crate::device::Device;
use crate::error::Error;

mod helper;
mod memory;
mod order;

pub use memory::{Lent, LentRead};

impl Device {
    /// The GPU whose primary context this is, a `CUcontext`: the same device as [`Device::cuda`] of its number.
    ///
    /// The primary context stays as long as the device, whether or not the application releases it.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OtherContext`](crate::error::DeviceError::OtherContext) for a context that is not a GPU's primary one;
    /// otherwise as for [`Device::cuda`].
    ///
    /// # Safety
    ///
    /// The context is one of this process that is not destroyed, or null, which is an error.
    pub unsafe fn from_raw(context: *mut c_void) -> Result<Device, Error> {
        // SAFETY: the caller's promise.
        unsafe { Device::of_context(context) }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;
    use crate::device::CpuLayout;
    use crate::error::{ArgumentError, DeviceError};
    use crate::scheduler::Scheduler;

    #[test]
    fn a_device_without_a_context_takes_and_gives_nothing() {
        let device = Device::cpu_with(CpuLayout::sms(1)).expect("a device");
        let scheduler = Scheduler::builder().device(device).build().expect("a scheduler");
        let stream = scheduler.stream(0);
        let buffer = scheduler.buffer(&[1u32]).expect("memory");
        let none = ptr::null_mut();
        // SAFETY: each is refused before it uses what it is given.
        let refused = unsafe {
            [
                stream.wait_for_raw(none).map(drop),
                stream.wait_for_raw_event(none).map(drop),
                stream.run_raw(none, || unreachable!()).map(drop),
                stream.to_raw(buffer).map(drop),
            ]
        };
        for refused in refused {
            let error = refused.expect_err("it has no context");
            assert!(matches!(error, Error::Device(DeviceError::NoContext)), "{error:?}");
            assert!(error.to_string().contains("Device::from_raw"), "{error}");
        }
        // SAFETY: as above.
        let refused = unsafe { scheduler.adopt_raw::<u32>(64, 1) }.map(drop);
        let is_told = matches!(
            refused,
            Err(Error::Argument(ArgumentError::NotAllocated { address: 64, .. }))
        );
        assert!(is_told, "{refused:?}");
    }
}
