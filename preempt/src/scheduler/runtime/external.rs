//! Work that neither the scheduler nor its device does: its owner is told to begin, and says when it is
//! over.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::sync::{Mutex, lock};

/// A piece of such work, as it is in the stream.
pub(crate) struct ExternalOperation {
    begin: Mutex<Option<Begin>>,
    end: OnceLock<Result<(), Arc<str>>>,
    /// The kernel whose failure it passes on.
    cause: OnceLock<&'static str>,
}

/// Called with the core, so it does not wait for anything and calls no code of others.
type Begin = Box<dyn FnOnce(Arc<ExternalOperation>) + Send>;

impl ExternalOperation {
    pub fn new(
        begin: impl FnOnce(Arc<ExternalOperation>) + Send + 'static,
    ) -> Arc<ExternalOperation> {
        Arc::new(ExternalOperation {
            begin: Mutex::new(Some(Box::new(begin))),
            end: OnceLock::new(),
            cause: OnceLock::new(),
        })
    }

    /// Everything before it in its stream is done.
    pub fn start(self: &Arc<Self>) {
        let begin = lock(&self.begin).take();
        if let Some(begin) = begin {
            begin(self.clone());
        }
    }

    /// Says that it is over, perhaps before it was started; the first word counts. The caller
    /// has the scheduler look afterwards.
    pub fn finish(&self, result: Result<(), Arc<str>>) {
        let _ = self.end.set(result);
    }

    /// Says that it is over because this kernel failed: its buffers are lost as if the kernel had written them.
    pub fn fail_with(&self, kernel: &'static str) {
        // Before the end: it is read after that.
        let _ = self.cause.set(kernel);
        self.finish(Err("the contents are lost".into()));
    }

    /// The kernel whose failure it passes on, if it does.
    pub fn cause(&self) -> Option<&'static str> {
        self.cause.get().copied()
    }

    /// How it ended, if it is over.
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
    use crate::device::Device;
    use crate::error::{Error, LaunchError};
    use crate::scheduler::{Handle, Scheduler, Stream};

    /// Long enough for what is not held back to be done.
    const WHILE: Duration = Duration::from_millis(50);

    fn stream() -> (Scheduler, Stream) {
        let device = Device::cpu(1, 1).expect("a device");
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
    fn an_external_operation_starts_after_what_is_before_and_holds_back_what_is_behind() {
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
    fn an_external_operation_may_be_over_before_it_starts() {
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
        // Only the threads that wait drive.
        for handle in [before, over, at_once] {
            handle.wait().expect("over");
        }
    }

    #[test]
    fn what_goes_wrong_is_told_and_the_stream_goes_on() {
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
        // The device is free at once.
        drop(Scheduler::builder().device(device).build().expect("a scheduler"));
    }

    #[test]
    fn what_an_external_operation_holds_may_panic_when_it_is_dropped() {
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
        // The poller is still there.
        let (last, started) = submit(&stream);
        started.recv().expect("started").finish(Ok(()));
        stream.shared().announce();
        last.wait().expect("over");
    }

    #[test]
    fn one_that_is_cancelled_before_it_starts_never_does() {
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
