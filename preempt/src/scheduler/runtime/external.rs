//! Work outside the scheduler and its device: its owner is told to begin, and reports the end.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::sync::{Mutex, lock};

/// A piece of external work, in the order of a stream.
pub(crate) struct ExternalOperation {
    begin: Mutex<Option<Begin>>,
    end: OnceLock<Result<(), Arc<str>>>,
    /// The kernel whose failure it passes on, if it does.
    cause: OnceLock<&'static str>,
    /// Whether a scheduler that is closed waits for its end.
    uses_memory: bool,
}

/// Tells the owner to begin. Runs while the combiner is held, so it neither waits nor runs application code.
type Begin = Box<dyn FnOnce(Arc<ExternalOperation>) + Send>;

impl ExternalOperation {
    pub fn new(
        begin: impl FnOnce(Arc<ExternalOperation>) + Send + 'static,
    ) -> Arc<ExternalOperation> {
        ExternalOperation::with(false, begin)
    }

    /// An operation that uses memory of the device from its start until its end, which is sure to come: the device has no
    /// other scheduler before that.
    pub fn on_memory(
        begin: impl FnOnce(Arc<ExternalOperation>) + Send + 'static,
    ) -> Arc<ExternalOperation> {
        ExternalOperation::with(true, begin)
    }

    fn with(
        uses_memory: bool,
        begin: impl FnOnce(Arc<ExternalOperation>) + Send + 'static,
    ) -> Arc<ExternalOperation> {
        Arc::new(ExternalOperation {
            uses_memory,
            begin: Mutex::new(Some(Box::new(begin))),
            end: OnceLock::new(),
            cause: OnceLock::new(),
        })
    }

    /// Tells the owner to begin; called when everything before it in its stream is done.
    pub fn start(self: &Arc<Self>) {
        let begin = lock(&self.begin).take();
        if let Some(begin) = begin {
            begin(self.clone());
        }
    }

    /// Reports the end, perhaps before the start; the first report counts. The caller has the scheduler look
    /// afterwards.
    pub fn finish(&self, result: Result<(), Arc<str>>) {
        let _ = self.end.set(result);
    }

    /// Reports an end by the failure of this kernel: its buffers are lost as if the kernel had written them.
    pub fn fail_with(&self, kernel: &'static str) {
        // Before the end, because the cause is read after it.
        let _ = self.cause.set(kernel);
        self.finish(Err("the contents are lost".into()));
    }

    /// Whether it uses memory of the device, so that a scheduler that is closed waits for its end.
    pub fn uses_memory(&self) -> bool {
        self.uses_memory
    }

    /// The kernel whose failure it passes on, if it does.
    pub fn cause(&self) -> Option<&'static str> {
        self.cause.get().copied()
    }

    /// How it ended, if it has.
    pub fn end(&self) -> Option<Result<(), Arc<str>>> {
        self.end.get().cloned()
    }
}

impl fmt::Debug for ExternalOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalOperation").field("end", &self.end).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use super::*;
    use crate::device::{CpuLayout, Device};
    use crate::error::{Error, LaunchError};
    use crate::scheduler::{Handle, Scheduler, Stream};

    /// Time in which an operation that is not held back ends.
    const WHILE: Duration = Duration::from_millis(50);

    fn stream() -> (Scheduler, Stream) {
        let device = Device::cpu_with(CpuLayout::sms(1)).expect("a device");
        let scheduler = Scheduler::builder().device(device).build().expect("a scheduler");
        let stream = scheduler.stream(0);
        (scheduler, stream)
    }

    fn submit(stream: &Stream) -> (Handle<()>, Receiver<Arc<ExternalOperation>>) {
        let (sender, started) = channel();
        let external = ExternalOperation::new(move |external| {
            sender.send(external).expect("the test listens")
        });
        (stream.submit_external("an external", external).expect("accepted"), started)
    }

    #[test]
    fn an_external_operation_keeps_the_order_of_its_stream() {
        let (scheduler, stream) = stream();
        let mut buffer = scheduler.zeroed::<u32>(1).expect("memory");
        let (first, first_started) = submit(&stream);
        let (second, second_started) = submit(&stream);
        let upload = stream.upload(vec![7], &mut buffer).expect("accepted");
        let external = first_started.recv().expect("started");
        assert!(second_started.recv_timeout(WHILE).is_err(), "the first one is not over");
        external.finish(Ok(()));
        stream.shared().announce();
        first.wait().expect("over");
        let external = second_started.recv().expect("started");
        assert!(upload.wait_timeout(WHILE).is_none() && !second.is_done());
        external.finish(Ok(()));
        external.finish(Err("the first word counts".into()));
        stream.shared().announce();
        second.wait().expect("over");
        upload.wait().expect("copied");
    }

    #[test]
    fn an_external_operation_may_end_before_it_starts() {
        let (_scheduler, stream) = stream();
        let (before, started) = submit(&stream);
        let external = ExternalOperation::new(|_| ());
        external.finish(Ok(()));
        let over = stream.submit_external("an external", external).expect("accepted");
        let at_once = ExternalOperation::new(|external| external.finish(Ok(())));
        let at_once = stream.submit_external("an external", at_once).expect("accepted");
        assert!(!over.is_done() && !at_once.is_done());
        started.recv().expect("started").finish(Ok(()));
        stream.shared().announce();
        // Only the waiting threads drive the core.
        for handle in [before, over, at_once] {
            handle.wait().expect("over");
        }
    }

    #[test]
    fn a_failure_is_reported_and_the_stream_goes_on() {
        let (scheduler, stream) = stream();
        let (handle, started) = submit(&stream);
        started.recv().expect("started").finish(Err("lost the way".into()));
        stream.shared().announce();
        let error = handle.wait().expect_err("it failed");
        assert!(
            matches!(&error, Error::Launch(LaunchError::KernelFailed { kernel: "an external", message }) if &**message == "lost the way"),
            "{error:?}"
        );
        let (handle, started) = submit(&stream);
        started.recv().expect("started").finish(Ok(()));
        scheduler.synchronize().expect("synchronized");
        handle.wait().expect("over");
    }

    #[test]
    fn a_scheduler_that_is_dropped_waits_for_no_external_operation() {
        let (scheduler, stream) = stream();
        let (started, listens) = submit(&stream);
        let (waiting, never) = submit(&stream);
        let external = listens.recv().expect("started");
        let device = scheduler.device().clone();
        drop(scheduler);
        for handle in [started, waiting] {
            let error = handle.wait().expect_err("the scheduler is dropped");
            assert!(
                matches!(error, Error::Launch(LaunchError::SchedulerDropped { .. })),
                "{error:?}"
            );
        }
        assert!(never.recv().is_err(), "it never starts");
        external.finish(Ok(()));
        stream.shared().announce();
        // The device can be taken at once.
        drop(Scheduler::builder().device(device).build().expect("a scheduler"));
    }

    #[test]
    fn a_panic_while_an_external_operation_is_dropped_is_contained() {
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("as intended");
            }
        }
        let (_scheduler, stream) = stream();
        let (first, started) = submit(&stream);
        let held = Panics;
        let external = ExternalOperation::new(move |external| {
            std::mem::forget(held);
            external.finish(Ok(()));
        });
        let cancelled = stream.submit_external("an external", external).expect("accepted");
        cancelled.cancel();
        started.recv().expect("started").finish(Ok(()));
        stream.shared().announce();
        first.wait().expect("over");
        // The poller still runs.
        let (last, started) = submit(&stream);
        started.recv().expect("started").finish(Ok(()));
        stream.shared().announce();
        last.wait().expect("over");
    }

    #[test]
    fn an_external_operation_cancelled_before_its_start_never_starts() {
        let (_scheduler, stream) = stream();
        let (first, first_started) = submit(&stream);
        let (second, second_started) = submit(&stream);
        second.cancel();
        let error = second.wait().expect_err("cancelled");
        assert!(matches!(error, Error::Launch(LaunchError::Cancelled { .. })), "{error:?}");
        first_started.recv().expect("started").finish(Ok(()));
        stream.shared().announce();
        first.wait().expect("over");
        assert!(second_started.recv_timeout(WHILE).is_err());
    }
}
