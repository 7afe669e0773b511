//! For applications on [`cudarc`](https://docs.rs/cudarc) 0.19 (feature `cudarc`): they keep their context, streams, events, modules
//! and slices, and launch what has to be preemptible here.
//!
//! ```no_run
//! use cudarc::driver::CudaContext;
//! use cudarc::nvrtc::compile_ptx;
//! # const SOURCE: &str = "";
//!
//! // As before.
//! let context = CudaContext::new(0)?;
//! let theirs = context.new_stream()?;
//! let x = theirs.clone_htod(&[1.0f32; 1000])?;
//! let mut y = theirs.alloc_zeros::<f32>(1000)?;
//! let ptx = compile_ptx(SOURCE)?;
//!
//! // New.
//! let device = preempt::Device::from_cudarc(&context)?;
//! let scheduler = preempt::Scheduler::builder().device(device).ptx("mine", ptx.to_src()).build()?;
//! let scale = scheduler.foreign("mine", "scale")?;
//! let urgent = scheduler.stream(10);
//! let (from, mut to) = (scheduler.lend(&x)?, scheduler.lend_mut(&mut y)?);
//! scheduler.scope(|scope| {
//!     // SAFETY: `scale(const float *x, float *y, float by, int n)` writes `n` elements of `y`.
//!     let call = unsafe { scale.call() }.read(&from).write(&mut to).value(2.0f32).value(1000i32);
//!     scope.launch(&urgent, call.block(256).threads(1000))?.wait()
//! })?;
//!
//! // As before.
//! println!("{:?}", theirs.clone_dtoh(&y)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What NVRTC compiles enters a scheduler as text, by [`SchedulerBuilder::ptx`](crate::SchedulerBuilder::ptx) and
//! `Ptx::to_src`. Kernels in Rust take lent slices, too, in the same places. The [guide](crate::guide::from_cudarc) says what
//! becomes of each item of cudarc's.
//!
//! # Slices
//!
//! A launch goes on after its handle is dropped, so what it uses must stay in place although no thread waits. There are two
//! ways:
//!
//! - *Lend it.* A [`scope`](crate::Scheduler::scope) waits for its launches, which therefore take
//!   [lent](crate::Scheduler::lend) slices and views, to read or [to write](crate::Scheduler::lend_mut).
//! - *Hand it over.* [`Scheduler::adopt_cudarc`](crate::Scheduler::adopt_cudarc) makes a [`Buffer`](crate::Buffer) of it,
//!   without copying, and [`Stream::to_cudarc`](crate::Stream::to_cudarc) makes a `CudaSlice` of any buffer.
//!
//! Both wait, on the host, until what cudarc has put into streams for the slice is done, as cudarc's own calls do on the
//! device. It knows that by the events of the slice, of the last read and the last write; where it keeps none
//! (`disable_event_tracking`), by the stream of the slice. For a launch that writes, what is in that stream is waited for as
//! well, because the allocation itself, or the work of what had the memory before, may still be there. So memory of urgent
//! launches is best allocated in a stream that nothing long is in. Where the host must not wait, order launches by
//! [`Stream::wait_for_cudarc`](crate::Stream::wait_for_cudarc), and lend the memory [by its address](crate::raw).
//!
//! When the scope has returned, its launches are over, and cudarc may use the slice in any stream.
//!
//! # Streams and events
//!
//! cudarc's streams and this crate's do not know of each other. They are ordered by
//! [`Stream::wait_for_cudarc`](crate::Stream::wait_for_cudarc),
//! [`Stream::wait_for_cudarc_event`](crate::Stream::wait_for_cudarc_event) and
//! [`Stream::run_cudarc`](crate::Stream::run_cudarc). Kernels of cudarc's own take no SMs from others: beside a preemptible
//! kernel that fills the device they wait for its end. No CUDA stream is ever made to wait for a stream of this crate: a
//! waiting stream takes one of the device's few hardware queues, and what it waits for might need that queue.
//!
//! # Versions
//!
//! cudarc is this crate's binding of the driver whether or not the feature is on; the feature adds nothing to the build but this
//! module. Cargo takes one cudarc 0.19 for the whole program, with the features of all who use it. This crate does not choose how
//! cudarc finds the driver: it is loaded at run time, unless another crate has it linked, as candle does
//! ([an example](https://github.com/preempt-rs/preempt/tree/main/examples/candle-op)). A version other than 0.19 that the
//! application or a framework brings is another crate, whose types fit nothing here. Its handles do: see [`raw`](crate::raw).

use cudarc::driver::{CudaContext, DriverError};

use crate::device::Device;
use crate::error::{DeviceError, Error};

mod memory;
mod modules;
mod order;

pub use crate::raw::{Lent, LentRead};
pub use memory::{Slice, SliceMut};

impl Device {
    /// The GPU of an application on [`cudarc`](crate::cudarc), in that application's context (feature `cudarc`): the same
    /// device as [`Device::cuda`] of its number.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OtherContext`] for a context that is not a GPU's primary one, which `CudaContext::new` gives; otherwise
    /// as for [`Device::cuda`].
    pub fn from_cudarc(context: &CudaContext) -> Result<Device, Error> {
        // SAFETY: the context is borrowed.
        let device = unsafe { Device::from_raw(context.cu_ctx().cast()) }?;
        // Makes the stream for that while nothing runs that the driver might wait for.
        device.inner.backend.streams()?.await_events(&mut |_| Ok(()))?;
        Ok(device)
    }

    /// An error unless this is the device's context.
    fn check_cudarc(&self, context: &CudaContext) -> Result<(), Error> {
        self.inner.backend.streams()?.check_context(context.cu_ctx().cast())
    }
}

/// The error of a call of cudarc's that failed.
fn failed(what: &str, DriverError(code): DriverError) -> Error {
    let message = format!("{what}: {code:?}").into();
    Error::Device(DeviceError::Driver { code: code as u32, message })
}

#[cfg(test)]
mod tests {
    use cudarc::driver::sys::CUresult;

    use super::*;

    #[test]
    fn errors_can_be_printed_without_a_driver() {
        let error = failed("`load_function`", DriverError(CUresult::CUDA_ERROR_NOT_FOUND));
        assert!(error.to_string().contains("`load_function`: CUDA_ERROR_NOT_FOUND"), "{error}");
    }
}
