//! What a submission returns: somebody to ask for the result.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::ptr;
use std::sync::{Arc, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use preempt_device::kernel::KernelArg;

use super::Shared;
use super::core::Target;
use super::credits::StreamCredits;
use crate::engine::{Change, LaunchReport};
use crate::error::{Error, LaunchError};
use crate::policy::Priority;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Instant, Mutex, hint, lock};
use crate::vocabulary::OpKey;

/// A launch or copy that was submitted.
///
/// Dropping the handle does not stop the operation: it runs as if it were waited for. If it fails,
/// what uses its buffers later fails with [`LaunchError::InputLost`], so waiting for the last operation
/// of a chain is enough. A handle can be waited for on any thread, by any number of calls, and as a
/// [`Future`] on any executor.
#[must_use = "errors are reported through the handle"]
pub struct Handle<T: Output> {
    shared: Arc<Shared>,
    completion: Arc<Completion>,
    keep: T::Keep,
}

/// What an operation gives when it is done: a [`LaunchReport`] for a launch, nothing for an
/// upload or a copy, a `Vec` for a download.
pub trait Output: sealed::Sealed {}

mod sealed {
    use crate::engine::LaunchReport;

    pub trait Sealed: Sized {
        type Keep: Clone;
        fn output(report: LaunchReport, keep: &Self::Keep) -> Self;
    }
}

impl Output for LaunchReport {}
impl sealed::Sealed for LaunchReport {
    type Keep = ();
    fn output(report: LaunchReport, (): &()) -> LaunchReport {
        report
    }
}

impl Output for () {}
impl sealed::Sealed for () {
    type Keep = ();
    fn output(_report: LaunchReport, (): &()) {}
}

impl<T: KernelArg> Output for Vec<T> {}
impl<T: KernelArg> sealed::Sealed for Vec<T> {
    type Keep = Arc<HostMemory<T>>;
    fn output(_report: LaunchReport, memory: &Arc<HostMemory<T>>) -> Vec<T> {
        memory.to_vec()
    }
}

/// Where a download goes. The device writes it until the operation is done; it is read after.
pub struct HostMemory<T> {
    ptr: *mut T,
    len: usize,
    owned: PhantomData<T>,
}

// SAFETY: plain data, written by the device before the operation is done and only read after.
unsafe impl<T: KernelArg> Send for HostMemory<T> {}
// SAFETY: as above.
unsafe impl<T: KernelArg> Sync for HostMemory<T> {}

impl<T: KernelArg> HostMemory<T> {
    pub(super) fn new(len: usize) -> HostMemory<T> {
        let memory = Box::into_raw(Box::<[T]>::new_uninit_slice(len));
        HostMemory { ptr: memory.cast(), len, owned: PhantomData }
    }

    pub(super) fn address(&self) -> u64 {
        self.ptr as u64
    }

    fn to_vec(&self) -> Vec<T> {
        // SAFETY: allocated for `len` elements; the copy that filled them is done, and device
        // memory holds valid values of `T`.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }.to_vec()
    }
}

impl<T> Drop for HostMemory<T> {
    fn drop(&mut self) {
        let memory = ptr::slice_from_raw_parts_mut(self.ptr.cast::<MaybeUninit<T>>(), self.len);
        // SAFETY: it came from a box of this length.
        drop(unsafe { Box::from_raw(memory) });
    }
}

impl<T> fmt::Debug for HostMemory<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostMemory[{}]", self.len)
    }
}

/// How an operation ended, once it has.
#[derive(Debug)]
pub(super) struct Completion {
    /// Where the operation holds a credit until it ends.
    credits: Arc<StreamCredits>,
    /// What the engine calls the operation, once it has taken it in.
    pub op: OnceLock<OpKey>,
    /// Set with `state`; lets those who wait look without a lock.
    done: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    result: Option<Result<LaunchReport, Error>>,
    waker: Option<Waker>,
}

impl Completion {
    /// Of an operation that has entered the credits of its stream.
    pub fn new(credits: Arc<StreamCredits>) -> Completion {
        Completion {
            credits,
            op: OnceLock::new(),
            done: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Ends the operation, wakes the threads that wait, and returns whom else to wake.
    pub fn complete(&self, result: Result<LaunchReport, Error>) -> Option<Waker> {
        let mut state = lock(&self.state);
        state.result = Some(result);
        let waker = state.waker.take();
        // Under the lock, so that whoever has the result finds it done. Release: pairs with the acquire in `is_done`.
        self.done.store(true, Ordering::Release);
        drop(state);
        self.changed.notify_all();
        self.credits.leave();
        waker
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    fn result(&self) -> Option<Result<LaunchReport, Error>> {
        lock(&self.state).result.clone()
    }

    /// The result, waiting for it until `deadline`.
    fn park(&self, deadline: Option<Instant>) -> Option<Result<LaunchReport, Error>> {
        let mut state = lock(&self.state);
        loop {
            if let Some(result) = &state.result {
                return Some(result.clone());
            }
            state = match deadline {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.checked_duration_since(Instant::now())?;
                    match self.changed.wait_timeout(state, left) {
                        Ok((state, _)) => state,
                        Err(poisoned) => poisoned.into_inner().0,
                    }
                }
            }
        }
    }
}

impl<T: Output> Handle<T> {
    pub(super) fn new(
        shared: Arc<Shared>,
        completion: Arc<Completion>,
        keep: T::Keep,
    ) -> Handle<T> {
        Handle { shared, completion, keep }
    }

    pub(super) fn completion(&self) -> &Arc<Completion> {
        &self.completion
    }

    /// Whether this scheduler has the operation.
    pub(super) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// Another handle for the same operation, without its result.
    pub(super) fn untyped(&self) -> Handle<()> {
        Handle::new(self.shared.clone(), self.completion.clone(), ())
    }

    /// Waits until the operation is done.
    ///
    /// The calling thread drives the scheduler itself for a while before it sleeps; see
    /// [`SchedulerBuilder::spin`](super::SchedulerBuilder::spin).
    ///
    /// # Errors
    ///
    /// [`LaunchError::Cancelled`], [`LaunchError::KernelFailed`], [`LaunchError::InputLost`] or
    /// [`LaunchError::SchedulerDropped`].
    pub fn wait(&self) -> Result<T, Error> {
        let result = self.spin(None).or_else(|| self.sleep(None));
        // Without a deadline `park` returns with a result only.
        self.output(
            result
                .unwrap_or(Err(Error::Launch(LaunchError::SchedulerDropped { done: 0, tasks: 0 }))),
        )
    }

    /// Waits until the operation is done, at most for `timeout`; `None` if it is not done then.
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

    /// Whether the operation is done, in whatever way.
    pub fn is_done(&self) -> bool {
        self.completion.is_done()
    }

    /// Says that the result is not wanted any more.
    ///
    /// What waits is dropped; a kernel that runs stops at its next yield. The handle then gives
    /// [`LaunchError::Cancelled`] with the number of block-tasks that are done, unless the operation was
    /// complete before. What it wrote until then stays in its buffers, and what comes after it goes
    /// on with that. A copy that has started is completed, and so is opaque work.
    pub fn cancel(&self) {
        if !self.completion.is_done() {
            self.shared.cancel(self.completion.clone());
        }
    }

    /// Drives the scheduler until the operation is done or the time to spin is over.
    fn spin(&self, deadline: Option<Instant>) -> Option<Result<LaunchReport, Error>> {
        let start = Instant::now();
        loop {
            if self.completion.is_done() {
                return self.completion.result();
            }
            self.shared.drive();
            let now = Instant::now();
            if now - start >= self.shared.spin || deadline.is_some_and(|end| now >= end) {
                return self.completion.is_done().then(|| self.completion.result())?;
            }
            hint::spin_loop();
        }
    }

    /// Waits without driving, unless this thread is the one that everybody else relies on.
    fn sleep(&self, deadline: Option<Instant>) -> Option<Result<LaunchReport, Error>> {
        if self.shared.is_poller() {
            let in_time = || deadline.is_none_or(|end| Instant::now() < end);
            self.shared.poll_while(|| !self.completion.is_done() && in_time());
            return self.completion.result();
        }
        self.completion.park(deadline)
    }

    fn output(&self, result: Result<LaunchReport, Error>) -> Result<T, Error> {
        result.map(|report| T::output(report, &self.keep))
    }
}

impl Handle<LaunchReport> {
    /// Changes the priority of this launch at once, whether it waits or runs. What it waits for inherits it.
    pub fn set_priority(&self, priority: impl Into<Priority>) {
        self.change(Change::Priority(priority.into()));
    }

    /// Changes its weight at once, for policies that share by it. 0 counts as 1.
    pub fn set_weight(&self, weight: u32) {
        self.change(Change::Weight(weight.max(1)));
    }

    /// Changes when it is due at once, for policies that look at deadlines: so long from now on, or never.
    pub fn set_deadline(&self, due: Option<Duration>) {
        self.change(Change::Deadline(due));
    }

    fn change(&self, change: Change) {
        if !self.completion.is_done() {
            self.shared.change(Target::Launch(self.completion.clone()), change);
        }
    }
}

impl<T: Output> Future for Handle<T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Wakers are code of others, and come and go without the lock.
        let waker = context.waker().clone();
        let mut state = lock(&self.completion.state);
        if let Some(result) = &state.result {
            let result = result.clone();
            drop(state);
            return Poll::Ready(self.output(result));
        }
        let before = state.waker.replace(waker);
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl<T: Output> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("done", &self.is_done()).finish_non_exhaustive()
    }
}
