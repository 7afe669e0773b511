//! Order between `cust`'s streams and events and the scheduler's streams.

use std::sync::Arc;

use cust::error::CudaResult;
use cust::event::Event;

use super::failed;
use super::helper::{Helper, Task};
use crate::error::Error;
use crate::scheduler::{ExternalOperation, Handle, Stream};

impl Stream {
    /// Makes later submissions to this stream wait for what is in a stream of `cust`'s now (feature `cust`). This call
    /// does not wait.
    ///
    /// Call it with the context current, as for any use of `cust`.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoCustContext`](crate::error::DeviceError::NoCustContext),
    /// [`DeviceError::Driver`](crate::error::DeviceError::Driver) if `cust` refuses, or
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped).
    pub fn wait_for_cust(&self, stream: &cust::stream::Stream) -> Result<Handle<()>, Error> {
        let helper = self.helper()?.tasks();
        let external = ExternalOperation::new(|_| ());
        let over = helper.over(external.clone(), Ok(()));
        stream.add_callback(Box::new(over)).map_err(|error| failed("add_callback", error))?;
        self.submit_external("a wait for a cust stream", external)
    }

    /// Makes later submissions to this stream wait for an event of `cust`'s (feature `cust`). An event that was not
    /// recorded has happened.
    ///
    /// The event is polled every 20 µs, once everything before in this stream is done.
    /// [`wait_for_cust`](Stream::wait_for_cust) polls nothing, and is faster.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoCustContext`](crate::error::DeviceError::NoCustContext) or
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped).
    pub fn wait_for_event(&self, event: Arc<Event>) -> Result<Handle<()>, Error> {
        let helper = self.helper()?.tasks();
        let external =
            ExternalOperation::new(move |external| helper.send(Task::Await { event, external }));
        self.submit_external("a wait for a cust event", external)
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
    /// [`DeviceError::NoCustContext`](crate::error::DeviceError::NoCustContext) or
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped). The handle gives
    /// [`LaunchError::KernelFailed`](crate::error::LaunchError::KernelFailed) with what `work` returned, or with its
    /// panic.
    pub fn run_cust(
        &self,
        stream: &Arc<cust::stream::Stream>,
        work: impl FnOnce(&cust::stream::Stream) -> CudaResult<()> + Send + 'static,
    ) -> Result<Handle<()>, Error> {
        let (helper, stream) = (self.helper()?.tasks(), stream.clone());
        let work = Box::new(work);
        let external = ExternalOperation::new(move |external| {
            helper.send(Task::Run { stream, work, external })
        });
        self.submit_external("work of cust", external)
    }

    fn helper(&self) -> Result<&Helper, Error> {
        let shared = self.shared();
        let context = shared.device.cust_context()?;
        shared.helper(|shared| Helper::start(context.clone(), shared))
    }
}
