//! Order between streams and events of others and the scheduler's streams.

use std::any::Any;
use std::error::Error as StdError;
use std::ffi::c_void;

use super::helper::{Helper, Task, Tasks, Work};
use crate::device::ForeignStreams;
use crate::error::Error;
use crate::scheduler::{ExternalOperation, Handle, Stream};

/// A handle of the driver, which any thread may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawHandle(pub *mut c_void);

// SAFETY: functions of the driver take handles on any thread.
unsafe impl Send for RawHandle {}

/// What keeps an object of another library from being destroyed.
pub(super) type Keeper = Box<dyn Any + Send>;

impl Stream {
    /// Makes later submissions to this stream wait for what is in a `CUstream` now. This call does not wait.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoContext`](crate::error::DeviceError::NoContext) on a device that is no GPU,
    /// [`DeviceError::Driver`](crate::error::DeviceError::Driver) if the stream is being captured or the driver refuses, or
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped).
    ///
    /// # Safety
    ///
    /// The stream is of the device's context, or a null one (`CU_STREAM_LEGACY`, `CU_STREAM_PER_THREAD`), and is not
    /// destroyed during the call.
    pub unsafe fn wait_for_raw(&self, stream: *mut c_void) -> Result<Handle<()>, Error> {
        let tasks = self.tasks()?;
        let external = ExternalOperation::new(|_| ());
        let over = tasks.over(external.clone(), Ok(()));
        // SAFETY: the caller's promise.
        unsafe { self.streams()?.call_after(stream, Box::new(over)) }?;
        self.submit_external("a wait for a CUDA stream", external)
    }

    /// Makes later submissions to this stream wait for a `CUevent`. An event that was not recorded has happened.
    ///
    /// The event is polled every 20 µs, once everything before in this stream is done.
    /// [`wait_for_raw`](Stream::wait_for_raw) polls nothing, and is faster.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoContext`](crate::error::DeviceError::NoContext) or
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped).
    ///
    /// # Safety
    ///
    /// The event is of the device's context, and is not destroyed before the handle is done, or the scheduler dropped.
    pub unsafe fn wait_for_raw_event(&self, event: *mut c_void) -> Result<Handle<()>, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.await_event(event, Box::new(())) }
    }

    /// Runs work of other code in the order of this stream. `work` is called when everything before is done, and puts its
    /// own work into `stream`, a `CUstream`; what follows starts when all of that is done.
    ///
    /// `work` is called on a thread of the scheduler, with the device's context current. Other work waits for that thread, so
    /// `work` should not wait for the device. Nor should it submit to a stream without credits left, because that
    /// waits. The scheduler does not know which buffers `work` uses, and orders nothing in other streams with it. What
    /// follows starts even if it failed.
    ///
    /// Where a stream of the scheduler's does as well as the application's own, [`opaque`](Stream::opaque) is safe, and knows
    /// the buffers.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoContext`](crate::error::DeviceError::NoContext) or
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped). The handle gives
    /// [`LaunchError::KernelFailed`](crate::error::LaunchError::KernelFailed) with what `work` returned, or with its
    /// panic.
    ///
    /// # Safety
    ///
    /// As for [`wait_for_raw`](Stream::wait_for_raw), until the handle is done, or the scheduler dropped.
    pub unsafe fn run_raw(
        &self,
        stream: *mut c_void,
        work: impl FnOnce() -> Result<(), Box<dyn StdError + Send + Sync>> + Send + 'static,
    ) -> Result<Handle<()>, Error> {
        let work = move || work().map_err(|error| error.to_string());
        // SAFETY: the caller's promise.
        unsafe { self.run_foreign((stream, Box::new(())), "work of a CUDA stream", Box::new(work)) }
    }

    /// As [`wait_for_raw_event`](Stream::wait_for_raw_event), for an event that is not destroyed before `keeper` is dropped.
    pub(crate) unsafe fn await_event(
        &self,
        event: *mut c_void,
        keeper: Keeper,
    ) -> Result<Handle<()>, Error> {
        let (event, device) = (RawHandle(event), self.shared().device.clone());
        let has_happened = move || {
            let (RawHandle(event), _) = (&event, &keeper);
            // SAFETY: the caller's promise.
            unsafe { device.inner.backend.streams()?.has_happened(*event) }
        };
        self.await_until(Box::new(move || has_happened().map_err(|error| error.to_string())))
    }

    /// Makes later submissions wait until `has_happened` says so, which is asked every 20 µs.
    pub(crate) fn await_until(
        &self,
        has_happened: Box<dyn FnMut() -> Result<bool, String> + Send>,
    ) -> Result<Handle<()>, Error> {
        let tasks = self.tasks()?;
        let external = ExternalOperation::new(move |external| {
            tasks.send(Task::Await { has_happened, external })
        });
        self.submit_external("a wait for a CUDA event", external)
    }

    /// As [`run_raw`](Stream::run_raw), with a stream that is not destroyed before what keeps it is dropped.
    pub(crate) unsafe fn run_foreign(
        &self,
        (stream, keeper): (*mut c_void, Keeper),
        name: &'static str,
        work: Work,
    ) -> Result<Handle<()>, Error> {
        let (tasks, stream) = (self.tasks()?, RawHandle(stream));
        let external = ExternalOperation::new(move |external| {
            tasks.send(Task::Run { stream, keeper, work, external })
        });
        self.submit_external(name, external)
    }

    fn streams(&self) -> Result<&dyn ForeignStreams, Error> {
        self.shared().device.inner.backend.streams()
    }

    fn tasks(&self) -> Result<Tasks, Error> {
        // First, because a device without streams needs no thread.
        self.streams()?;
        let shared = self.shared();
        Ok(shared.helper(|of| Helper::start(shared.device.clone(), of))?.tasks())
    }
}
