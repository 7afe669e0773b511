//! Streams that are suspended for a while.

use std::fmt;
use std::sync::Arc;

use super::stream::Stream;
use crate::engine::Change;
use crate::scheduler::Shared;
use crate::scheduler::runtime::core::Target;

/// Keeps the launches of a stream from the device until it is dropped. [`Stream::suspend`] makes it.
#[must_use = "the stream goes on when this is dropped"]
pub struct Suspension {
    shared: Arc<Shared>,
    stream: u32,
}

impl fmt::Debug for Suspension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suspension").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl Drop for Suspension {
    fn drop(&mut self) {
        self.shared.change(Target::Stream(self.stream), Change::Suspended(false));
    }
}

impl Stream {
    /// Keeps the launches of this stream from the device until what this returns is dropped: those that run yield, and go on
    /// afterwards where they were; later ones wait. The policy does not know of them meanwhile, so all SMs are for other streams,
    /// also where those are less urgent or have a moment between two launches. Does not wait until blocks have left, which takes
    /// as long as any yield.
    ///
    /// Plain grids that are on the device run to their end. Copies, events and opaque work take no SMs and go on. What waits for a
    /// suspended launch waits until it has ended. A thread that submits more than 64 operations to a suspended stream waits for
    /// it to be resumed. [`Scheduler::synchronize`](crate::Scheduler::synchronize) waits for neither. A launch can be cancelled
    /// while its stream is suspended. A stream that is suspended several times goes on when all of these are dropped.
    ///
    /// ```
    /// # use preempt_device::prelude::*;
    /// # #[preemptible(block = 32)]
    /// # fn squares(out: SliceMut<u32>) {}
    /// # let scheduler = preempt::Scheduler::builder().build()?;
    /// # let mut out = scheduler.zeroed::<u32>(1000)?;
    /// let nightly = scheduler.stream(0);
    /// let suspension = nightly.suspend();
    /// let batch = nightly.launch(squares(&mut out).threads(1000))?;
    /// assert!(!batch.is_done());
    /// drop(suspension);
    /// assert_eq!(batch.wait()?.tasks, 32);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    pub fn suspend(&self) -> Suspension {
        let (shared, stream) = (self.shared().clone(), self.id());
        shared.change(Target::Stream(stream), Change::Suspended(true));
        Suspension { shared, stream }
    }

    /// Suspends the stream, or resumes it, once it is [driven](Stream::drive). This runs no application code.
    pub(crate) fn post_suspended(&self, is_suspended: bool) {
        let of = Target::Stream(self.id());
        self.shared().post_change(of, Change::Suspended(is_suspended));
    }

    /// Has what was posted taken in.
    pub(crate) fn drive(&self) {
        self.shared().drive();
    }
}
