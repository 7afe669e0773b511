//! Order between `cust`'s streams and events and the scheduler's streams.

use std::sync::Arc;

use cust::error::CudaResult;
use cust::event::{Event, EventStatus};

use super::words;
use crate::error::Error;
use crate::scheduler::{Handle, Stream};

impl Stream {
    /// Makes later submissions to this stream wait for what is in a stream of `cust`'s now (feature `cust`). This call
    /// does not wait.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoContext`](crate::error::DeviceError::NoContext),
    /// [`DeviceError::Driver`](crate::error::DeviceError::Driver) if the driver refuses, or
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped).
    pub fn wait_for_cust(&self, stream: &cust::stream::Stream) -> Result<Handle<()>, Error> {
        // SAFETY: the stream is borrowed.
        unsafe { self.wait_for_raw(stream.as_inner().cast()) }
    }

    /// Makes later submissions to this stream wait for an event of `cust`'s (feature `cust`). An event that was not
    /// recorded has happened.
    ///
    /// The event is polled every 20 µs, once everything before in this stream is done.
    /// [`wait_for_cust`](Stream::wait_for_cust) polls nothing, and is faster.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoContext`](crate::error::DeviceError::NoContext) or
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped).
    pub fn wait_for_event(&self, event: Arc<Event>) -> Result<Handle<()>, Error> {
        self.await_until(Box::new(move || match event.query() {
            Ok(status) => Ok(status == EventStatus::Ready),
            Err(error) => Err(words(error)),
        }))
    }

    /// Runs work of `cust`'s in the order of this stream (feature `cust`). `work` is called when everything before is
    /// done; what follows starts when all that it has put into `stream` is done. So `|stream| event.record(stream)`
    /// records an event here.
    ///
    /// `work` is called on a thread of the scheduler, with the context current. Other work waits for that thread, so
    /// `work` should not wait for the device. Nor should it submit to a stream without credits left, because that
    /// waits. The scheduler does not know which buffers `work` uses, and orders nothing in other streams with it. What
    /// follows starts even if it failed.
    ///
    /// Load what it launches before. CUDA loads a function at its first launch, unless `CUDA_MODULE_LOADING=EAGER` is
    /// in the environment, and loading waits for all that runs.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # fn work(ours: &preempt::Stream, theirs: Arc<cust::stream::Stream>, module: Arc<cust::module::Module>) -> Result<(), preempt::Error> {
    /// ours.run_cust(&theirs, move |stream| {
    ///     let function = module.get_function("scale")?;
    ///     // SAFETY: `scale` takes no arguments.
    ///     unsafe { cust::launch!(function<<<1, 32, 0, stream>>>()) }
    /// })?
    /// .wait()
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoContext`](crate::error::DeviceError::NoContext) or
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped). The handle gives
    /// [`LaunchError::KernelFailed`](crate::error::LaunchError::KernelFailed) with what `work` returned, or with its
    /// panic.
    pub fn run_cust(
        &self,
        stream: &Arc<cust::stream::Stream>,
        work: impl FnOnce(&cust::stream::Stream) -> CudaResult<()> + Send + 'static,
    ) -> Result<Handle<()>, Error> {
        let (raw, own) = (stream.as_inner().cast(), stream.clone());
        let work = move || work(&own).map_err(words);
        // SAFETY: the clone keeps the stream.
        unsafe { self.run_foreign((raw, Box::new(stream.clone())), "work of cust", Box::new(work)) }
    }
}
