//! Handles: what a submission returns, to wait for the operation and to steer it.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use preempt_device::kernel::KernelArg;

use crate::engine::{Change, LaunchReport};
use crate::error::{Error, LaunchError};
use crate::policy::Priority;
use crate::scheduler::Shared;
use crate::scheduler::runtime::completion::{Completion, Ending};
use crate::scheduler::runtime::core::Target;
use crate::sync::{Instant, hint};

/// A launch or copy that was submitted: it gives a [`LaunchReport`] for a launch, nothing for an upload or a copy, and a
/// `Vec` for a download.
///
/// A handle can be waited for on any thread, by any number of calls, and as a [`Future`] on any executor.
///
/// Dropping the handle does not stop the operation: it runs as if it were waited for. If it fails, what uses its buffers
/// later fails with [`LaunchError::InputLost`], so waiting for the last operation of a chain is enough. The other
/// handles of the chain say so with [`detach`](Handle::detach). An operation that is to stop with its handle has
/// [`cancel_on_drop`](Handle::cancel_on_drop).
#[must_use = "the result is in the handle: wait for it, or `detach` it"]
pub struct Handle<T> {
    shared: Arc<Shared>,
    completion: Arc<Completion>,
    /// Its number as a future, once it was polled.
    number: Option<u64>,
    gives: Gives<T>,
}

/// What the handle gives of a finished operation: the report of a launch, or what a download has filled.
pub(in crate::scheduler) struct Gives<T> {
    make: fn(LaunchReport, Option<&Kept>) -> T,
    kept: Option<Arc<Kept>>,
}

type Kept = dyn Any + Send + Sync;

impl Gives<LaunchReport> {
    pub const REPORT: Gives<LaunchReport> = Gives { make: |report, _| report, kept: None };
}

impl Gives<()> {
    pub const NOTHING: Gives<()> = Gives { make: |_, _| (), kept: None };
}

impl<T: KernelArg> Gives<Vec<T>> {
    pub fn contents(of: Arc<HostMemory<T>>) -> Gives<Vec<T>> {
        let make = |_, kept: Option<&Kept>| {
            let memory = kept.and_then(|kept| kept.downcast_ref::<HostMemory<T>>());
            memory.map(HostMemory::to_vec).unwrap_or_default()
        };
        Gives { make, kept: Some(of) }
    }
}

/// Where a download goes. The device writes it until the operation is done; the host reads it afterwards.
pub struct HostMemory<T> {
    /// Null once the contents are taken. What the threads that use it in turn have to see of each other, they see by the
    /// operation's end and by the count of references; so all accesses are relaxed.
    ptr: AtomicPtr<T>,
    len: usize,
    owned: PhantomData<T>,
}

// SAFETY: plain data, written by the device before the operation is done. Afterwards one handle alone reaches it, which reads it
// by any number of calls, or moves it out by the call that consumes the handle.
unsafe impl<T: KernelArg> Send for HostMemory<T> {}
// SAFETY: as above.
unsafe impl<T: KernelArg> Sync for HostMemory<T> {}

impl<T: KernelArg> HostMemory<T> {
    pub(in crate::scheduler) fn new(len: usize) -> HostMemory<T> {
        let memory = Box::into_raw(Box::<[T]>::new_uninit_slice(len));
        HostMemory { ptr: AtomicPtr::new(memory.cast()), len, owned: PhantomData }
    }

    pub(in crate::scheduler) fn address(&self) -> u64 {
        self.ptr.load(Relaxed) as u64
    }

    fn to_vec(&self) -> Vec<T> {
        let ptr = self.ptr.load(Relaxed);
        if ptr.is_null() {
            return Vec::new();
        }
        // SAFETY: allocated for `len` elements; the copy that filled them is done, and device
        // memory holds valid values of `T`.
        unsafe { std::slice::from_raw_parts(ptr, self.len) }.to_vec()
    }

    /// The contents, of which nothing is left here. For the one handle that reaches them, at its end: no `to_vec` is under way.
    fn take(&self) -> Vec<T> {
        let ptr = self.ptr.swap(ptr::null_mut(), Relaxed);
        if ptr.is_null() {
            return Vec::new();
        }
        // SAFETY: a box of `len` elements, which nothing else frees, since it is not here any more; they are filled as above.
        unsafe { Vec::from_raw_parts(ptr, self.len, self.len) }
    }
}

impl<T> Drop for HostMemory<T> {
    fn drop(&mut self) {
        let ptr = *self.ptr.get_mut();
        if ptr.is_null() {
            return;
        }
        let memory = ptr::slice_from_raw_parts_mut(ptr.cast::<MaybeUninit<T>>(), self.len);
        // SAFETY: it came from a box of this length.
        drop(unsafe { Box::from_raw(memory) });
    }
}

impl<T> fmt::Debug for HostMemory<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostMemory[{}]", self.len)
    }
}

impl<T> Handle<T> {
    pub(in crate::scheduler) fn new(
        shared: Arc<Shared>,
        completion: Arc<Completion>,
        gives: Gives<T>,
    ) -> Handle<T> {
        Handle { shared, completion, number: None, gives }
    }

    pub(in crate::scheduler) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(in crate::scheduler) fn completion(&self) -> &Arc<Completion> {
        &self.completion
    }

    /// Whether the operation is this scheduler's.
    pub(in crate::scheduler) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// Another handle for the same operation, without its result.
    pub(crate) fn untyped(&self) -> Handle<()> {
        Handle::new(self.shared.clone(), self.completion.clone(), Gives::NOTHING)
    }

    /// Waits until the operation is done.
    ///
    /// The calling thread drives the scheduler itself for a while before it sleeps; see
    /// [`SchedulerBuilder::wait_spin`](crate::scheduler::SchedulerBuilder::wait_spin).
    ///
    /// # Errors
    ///
    /// [`LaunchError::Cancelled`], [`LaunchError::KernelFailed`], [`LaunchError::InputLost`], [`LaunchError::NotAdmitted`],
    /// [`LaunchError::SchedulerDropped`], or [`DeviceError::ContextLost`](crate::error::DeviceError::ContextLost).
    pub fn wait(&self) -> Result<T, Error> {
        self.output(self.ending())
    }

    /// Waits until the operation is done, at most for `timeout`; `None` if it is not done then.
    ///
    /// ```
    /// # use preempt_device::prelude::*;
    /// # #[preemptible(block = 32)]
    /// # fn squares(out: SliceMut<u32>) {}
    /// use std::time::Duration;
    ///
    /// # let scheduler = preempt::Scheduler::builder().build()?;
    /// # let (stream, mut out) = (scheduler.stream(0), scheduler.zeroed::<u32>(1000)?);
    /// let launch = stream.launch(squares(&mut out).threads(1000))?;
    /// match launch.wait_timeout(Duration::from_millis(10)) {
    ///     Some(ended) => assert_eq!(ended?.tasks, 32),
    ///     // It takes too long, and goes on unless it is told to stop.
    ///     None => launch.cancel(),
    /// }
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`wait`](Handle::wait).
    pub fn wait_timeout(&self, timeout: Duration) -> Option<Result<T, Error>> {
        let deadline = Instant::now().checked_add(timeout);
        let result = self.spin(deadline).or_else(|| self.sleep(deadline))?;
        Some(self.output(result))
    }

    /// The result, if the operation is done.
    ///
    /// # Errors
    ///
    /// As for [`wait`](Handle::wait).
    pub fn try_wait(&self) -> Option<Result<T, Error>> {
        if !self.completion.is_done() {
            self.shared.drive();
        }
        self.completion.result().map(|result| self.output(result))
    }

    /// Whether the operation has ended: done, failed or cancelled.
    pub fn is_done(&self) -> bool {
        self.completion.is_done()
    }

    /// Cancels the operation, because its result is not wanted any more.
    ///
    /// An operation that waits is dropped; a running kernel stops at its next yield. A plain grid has none, and runs to its
    /// end: known to be near, unless the launch asked for the form ([`Preemption`](crate::Preemption)). The handle then gives
    /// [`LaunchError::Cancelled`] with the number of finished block-tasks, unless the operation was complete before.
    /// What it wrote until then stays in its buffers, and later operations go on with that. An operation that was to
    /// replace the contents of a buffer on another device loses them instead
    /// ([`InputLost`](LaunchError::InputLost)). A copy that has started is completed, and so is opaque work.
    ///
    /// ```
    /// # use preempt_device::prelude::*;
    /// # #[preemptible(block = 32)]
    /// # fn squares(out: SliceMut<u32>) {}
    /// use preempt::Error;
    /// use preempt::error::LaunchError;
    ///
    /// # let scheduler = preempt::Scheduler::builder().build()?;
    /// # let (stream, mut out) = (scheduler.stream(0), scheduler.zeroed::<u32>(32_000)?);
    /// let launch = stream.launch(squares(&mut out).threads(32_000))?;
    /// launch.cancel();
    /// match launch.wait() {
    ///     Err(Error::Launch(LaunchError::Cancelled { done, tasks })) => println!("{done} of {tasks} block-tasks ran"),
    ///     // It was complete before.
    ///     ended => assert_eq!(ended?.tasks, 1000),
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn cancel(&self) {
        if !self.completion.is_done() {
            self.shared.cancel(self.completion.clone());
        }
    }

    /// Cancels operations of one scheduler, as [`cancel`](Handle::cancel) does, where nothing that they have written is looked at
    /// any more. So their blocks may leave behind markers, too.
    pub(crate) fn revoke(handles: &[Handle<T>]) {
        let waiting = handles.iter().filter(|handle| !handle.completion.is_done());
        let completions: Vec<_> = waiting.map(|handle| handle.completion.clone()).collect();
        if let Some(first) = handles.first().filter(|_| !completions.is_empty()) {
            first.shared.revoke(completions);
        }
    }

    /// Lets the operation run without a handle. Its result is not looked at.
    pub fn detach(self) {}

    /// Ties the operation to its handle: it is [cancelled](Handle::cancel) when the guard is dropped before its end.
    ///
    /// For requests that may be given up, by `select!` or a timeout:
    ///
    /// ```
    /// # use preempt::{Error, Handle, LaunchReport};
    /// # use std::time::Duration;
    /// # async fn sleep(_: Duration) {}
    /// # macro_rules! select { ($a:pat = $b:expr => $c:expr, $d:pat = $e:expr => $f:expr $(,)?) => {{ let $d = $e.await; $f }} }
    /// async fn within(time: Duration, launch: Handle<LaunchReport>) -> Option<Result<LaunchReport, Error>> {
    ///     select! { // tokio's
    ///         result = launch.cancel_on_drop() => Some(result),
    ///         () = sleep(time) => None, // the launch stops at its next yield
    ///     }
    /// }
    /// ```
    pub fn cancel_on_drop(self) -> CancelOnDrop<T> {
        let (shared, completion) = (self.shared.clone(), self.completion.clone());
        CancelOnDrop { handle: self, cancels: Cancels { shared, completion, is_armed: true } }
    }

    /// Waits for the end of the operation.
    fn ending(&self) -> Ending {
        let result = self.spin(None).or_else(|| self.sleep(None));
        // Without a deadline `park` returns with a result only.
        let dropped = LaunchError::SchedulerDropped { done: 0, tasks: 0 };
        result.unwrap_or(Err(Error::Launch(dropped)))
    }

    /// Drives the scheduler until the operation is done or the time to spin is over.
    fn spin(&self, deadline: Option<Instant>) -> Option<Ending> {
        let start = Instant::now();
        loop {
            if self.completion.is_done() {
                return self.completion.result();
            }
            self.shared.drive();
            let now = Instant::now();
            if now - start >= self.shared.wait_spin || deadline.is_some_and(|end| now >= end) {
                return self.completion.is_done().then(|| self.completion.result())?;
            }
            hint::spin_loop();
        }
    }

    /// Waits without driving, unless this thread is a poller, on which all other threads rely.
    fn sleep(&self, deadline: Option<Instant>) -> Option<Ending> {
        let in_time = || deadline.is_none_or(|end| Instant::now() < end);
        match self.shared.poll_instead(|| !self.completion.is_done() && in_time()) {
            true => self.completion.result(),
            false => self.completion.park(deadline),
        }
    }

    fn output(&self, result: Ending) -> Result<T, Error> {
        result.map(|report| (self.gives.make)(report, self.gives.kept.as_deref()))
    }
}

impl<T: KernelArg> Handle<Vec<T>> {
    /// Waits, and moves the contents out. [`wait`](Handle::wait), which can be called again, copies them.
    pub(crate) fn into_contents(self) -> Result<Vec<T>, Error> {
        self.ending()?;
        let memory = self.gives.kept.as_deref().and_then(|kept| kept.downcast_ref());
        Ok(memory.map(HostMemory::take).unwrap_or_default())
    }
}

impl Handle<LaunchReport> {
    /// Another handle for the same launch.
    #[cfg(all(test, shuttle))]
    pub(in crate::scheduler) fn another(&self) -> Handle<LaunchReport> {
        Handle::new(self.shared.clone(), self.completion.clone(), Gives::REPORT)
    }

    /// Changes the priority of this launch at once, whether it waits or runs. Operations that it waits for inherit it.
    pub fn set_priority(&self, priority: impl Into<Priority>) {
        self.change(Change::Priority(priority.into()));
    }

    /// Changes the weight of this launch at once, for policies that share by weight. 0 counts as 1.
    pub fn set_weight(&self, weight: u32) {
        self.change(Change::Weight(weight.max(1)));
    }

    /// Changes the deadline of this launch at once, for policies that use deadlines: `due` from now, or never.
    pub fn set_deadline(&self, due: Option<Duration>) {
        self.change(Change::Deadline(due));
    }

    fn change(&self, change: Change) {
        if !self.completion.is_done() {
            self.shared.change(Target::Launch(self.completion.clone()), change);
        }
    }
}

impl<T> Future for Handle<T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let polled = this.completion.poll(&mut this.number, context.waker());
        polled.map(|result| this.output(result))
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.completion.forget(number);
        }
    }
}

/// A handle whose operation is cancelled when this guard is dropped before the operation's end.
///
/// It comes from [`Handle::cancel_on_drop`], is its [`Handle`] otherwise, and a [`Future`] as well.
#[must_use = "dropping it cancels the operation"]
pub struct CancelOnDrop<T> {
    handle: Handle<T>,
    cancels: Cancels,
}

struct Cancels {
    shared: Arc<Shared>,
    completion: Arc<Completion>,
    is_armed: bool,
}

impl Drop for Cancels {
    fn drop(&mut self) {
        if self.is_armed && !self.completion.is_done() {
            self.shared.cancel(self.completion.clone());
        }
    }
}

impl<T> CancelOnDrop<T> {
    /// The handle, whose operation goes on when the handle is dropped.
    pub fn into_handle(self) -> Handle<T> {
        let CancelOnDrop { handle, mut cancels } = self;
        cancels.is_armed = false;
        handle
    }
}

impl<T> Deref for CancelOnDrop<T> {
    type Target = Handle<T>;

    fn deref(&self) -> &Handle<T> {
        &self.handle
    }
}

impl<T> Future for CancelOnDrop<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.handle).poll(context)
    }
}

impl<T> fmt::Debug for CancelOnDrop<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelOnDrop").field(&self.handle).finish()
    }
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("done", &self.is_done()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_copied_until_they_are_moved_out() {
        let memory = HostMemory::<u32>::new(3);
        let address = memory.address();
        // SAFETY: it has three elements, which nothing else uses.
        unsafe { (address as *mut [u32; 3]).write([1, 2, 3]) };
        assert_eq!([memory.to_vec(), memory.to_vec()], [[1, 2, 3], [1, 2, 3]]);
        let taken = memory.take();
        assert_eq!((&taken[..], taken.as_ptr() as u64), (&[1, 2, 3][..], address));
        assert!(memory.take().is_empty() && memory.to_vec().is_empty());
        drop(memory);
        assert_eq!(taken, [1, 2, 3], "freed once");
    }
}
