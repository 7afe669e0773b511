//! Events: order between streams.

use std::fmt;
use std::sync::Arc;

use super::handle::{Gives, Handle};
use super::stream::Stream;
use crate::error::{ArgumentError, Error};
use crate::scheduler::runtime::core::Work;

/// A point in a stream that the host and other streams can wait for: it happens when everything before it in the stream
/// is done.
///
/// Unlike an event of CUDA's, it stands for one moment: [`Stream::record_event`] makes a new event each time. Clones are the
/// same event; any thread can use it.
///
/// An event can be awaited, by any number of tasks: `event.await?`.
///
/// A kernel that failed, or was cancelled, counts as done: an event orders, and says nothing of results.
#[derive(Clone)]
#[must_use = "an event orders only what waits for it"]
pub struct Event {
    handle: Arc<Handle<()>>,
}

impl Event {
    /// Whether the event has happened (`cudaEventQuery`).
    pub fn is_done(&self) -> bool {
        matches!(self.handle.try_wait(), Some(Ok(())))
    }

    /// Waits until the event has happened (`cudaEventSynchronize`).
    ///
    /// # Errors
    ///
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped) or
    /// [`DeviceError::ContextLost`](crate::error::DeviceError::ContextLost) if it never will.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.handle.wait()
    }
}

impl IntoFuture for &Event {
    type Output = Result<(), Error>;
    type IntoFuture = Handle<()>;

    /// Waits until the event has happened, with the errors of [`synchronize`](Event::synchronize).
    fn into_future(self) -> Handle<()> {
        self.handle.untyped()
    }
}

impl IntoFuture for Event {
    type Output = Result<(), Error>;
    type IntoFuture = Handle<()>;

    /// Waits until the event has happened, with the errors of [`synchronize`](Event::synchronize).
    fn into_future(self) -> Handle<()> {
        self.handle.untyped()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("is_done", &self.handle.is_done()).finish()
    }
}

/// The operations' name in errors.
const RECORD: &str = "an event";
const WAIT: &str = "a wait for an event";
const SYNCHRONIZE: &str = "a synchronization";

impl Stream {
    /// Records an event, which happens when everything that is in the stream now is done.
    ///
    /// ```
    /// # let scheduler = preempt::Scheduler::builder().build()?;
    /// # let (first, second) = (scheduler.stream(0), scheduler.stream(5));
    /// let event = first.record_event()?;
    /// second.wait_event(&event)?; // does not wait itself; what comes after in `second` does
    /// # second.synchronize()?;
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// An event counts as one of the stream's outstanding operations until it happens.
    ///
    /// # Errors
    ///
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped).
    #[doc(alias = "cudaEventRecord")]
    pub fn record_event(&self) -> Result<Event, Error> {
        let handle =
            self.submit(RECORD, Vec::new(), Work::Event { after: None }, Gives::NOTHING)?;
        Ok(Event { handle: Arc::new(handle) })
    }

    /// Makes later submissions to this stream wait for an event. This call does not wait.
    ///
    /// Operations before the event become as urgent as the launches that wait for it, until it happens. A launch in
    /// between, neither as urgent nor waited for, does not delay them (priority inheritance; Sha, Rajkumar and Lehoczky
    /// 1990).
    ///
    /// # Errors
    ///
    /// [`ArgumentError::ForeignEvent`] if the event is another scheduler's, or
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped).
    #[doc(alias = "cudaStreamWaitEvent")]
    pub fn wait_event(&self, event: &Event) -> Result<(), Error> {
        if !event.handle.is_of(self.shared()) {
            return Err(Error::Argument(ArgumentError::ForeignEvent));
        }
        let after = Some(event.handle.completion().clone());
        // The handles of later operations say as much.
        self.submit(WAIT, Vec::new(), Work::Event { after }, Gives::NOTHING).map(drop)
    }

    /// Waits until everything that is in the stream now is done. Failures of single operations are reported through
    /// their handles.
    ///
    /// # Errors
    ///
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped) or
    /// [`DeviceError::ContextLost`](crate::error::DeviceError::ContextLost).
    #[doc(alias = "cudaStreamSynchronize")]
    pub fn synchronize(&self) -> Result<(), Error> {
        self.submit(SYNCHRONIZE, Vec::new(), Work::Event { after: None }, Gives::NOTHING)?.wait()
    }

    /// Waits until everything that was in the stream at the first poll is done, as [`synchronize`](Stream::synchronize),
    /// but blocks no thread.
    ///
    /// # Errors
    ///
    /// As for [`synchronize`](Stream::synchronize).
    pub async fn synchronize_async(&self) -> Result<(), Error> {
        self.room().await.record_event()?.await
    }
}

#[cfg(test)]
mod tests {
    use crate::error::{ArgumentError, Error};
    use crate::scheduler::Scheduler;

    #[test]
    fn an_event_of_another_scheduler_is_refused() {
        let scheduler = || {
            let device = crate::Device::cpu_with(crate::CpuLayout::sms(1)).expect("a device");
            Scheduler::builder().device(device).build().expect("a scheduler")
        };
        let (one, other) = (scheduler(), scheduler());
        let event = one.stream(0).record_event().expect("recorded");
        let error = other.stream(0).wait_event(&event).expect_err("not its own");
        assert!(matches!(error, Error::Argument(ArgumentError::ForeignEvent)), "{error:?}");
        assert!(error.to_string().contains("synchronize"), "{error}");
        event.synchronize().expect("nothing is before it");
        assert!(event.clone().is_done());
    }

    #[test]
    fn events_go_to_other_threads() {
        fn is_shared<T: Send + Sync + Clone>() {}
        is_shared::<crate::scheduler::Event>();
    }
}
