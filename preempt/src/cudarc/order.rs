//! Order between cudarc's streams and events and the scheduler's streams.

use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaStream, DriverError};

use super::failed;
use crate::error::Error;
use crate::scheduler::{Handle, Stream};

impl Stream {
    /// Makes later submissions to this stream wait for what is in a stream of cudarc's now (feature `cudarc`). This call
    /// does not wait.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OtherContext`](crate::error::DeviceError::OtherContext) for a stream of another context or device;
    /// otherwise as for [`wait_for_raw`](Stream::wait_for_raw).
    pub fn wait_for_cudarc(&self, stream: &CudaStream) -> Result<Handle<()>, Error> {
        self.shared().device.check_cudarc(stream.context())?;
        // SAFETY: the stream is borrowed, and of the device's context.
        unsafe { self.wait_for_raw(stream.cu_stream().cast()) }
    }

    /// Makes later submissions to this stream wait for an event of cudarc's (feature `cudarc`). An event that was not
    /// recorded has happened.
    ///
    /// The event is polled every 20 µs, once everything before in this stream is done.
    /// [`wait_for_cudarc`](Stream::wait_for_cudarc) polls nothing, and is faster.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OtherContext`](crate::error::DeviceError::OtherContext) for an event of another context or device;
    /// otherwise as for [`wait_for_raw_event`](Stream::wait_for_raw_event).
    pub fn wait_for_cudarc_event(&self, event: Arc<CudaEvent>) -> Result<Handle<()>, Error> {
        self.shared().device.check_cudarc(event.context())?;
        // SAFETY: what is boxed keeps the event, which is of the device's context.
        unsafe { self.await_event(event.cu_event().cast(), Box::new(event)) }
    }

    /// Runs work of cudarc's in the order of this stream (feature `cudarc`). `work` is called when everything before is
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
    /// # use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
    /// # fn work(ours: &preempt::Stream, theirs: Arc<CudaStream>, scale: CudaFunction) -> Result<(), preempt::Error> {
    /// ours.run_cudarc(&theirs, move |stream| {
    ///     // SAFETY: `scale` takes no arguments.
    ///     unsafe { stream.launch_builder(&scale).launch(LaunchConfig::for_num_elems(32)) }.map(drop)
    /// })?
    /// .wait()
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`DeviceError::OtherContext`](crate::error::DeviceError::OtherContext) for a stream of another context or device;
    /// otherwise as for [`run_raw`](Stream::run_raw).
    pub fn run_cudarc(
        &self,
        stream: &Arc<CudaStream>,
        work: impl FnOnce(&Arc<CudaStream>) -> Result<(), DriverError> + Send + 'static,
    ) -> Result<Handle<()>, Error> {
        self.shared().device.check_cudarc(stream.context())?;
        let (raw, own) = (stream.cu_stream().cast(), stream.clone());
        let work = move || work(&own).map_err(|error| failed("work", error).to_string());
        let keeper = Box::new(stream.clone());
        // SAFETY: the clone keeps the stream, which is of the device's context.
        unsafe { self.run_foreign((raw, keeper), "work of cudarc", Box::new(work)) }
    }
}
