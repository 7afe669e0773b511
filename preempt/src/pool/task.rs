//! What applications hold of a pool's tasks: the tasks, the applications that submit them, and their results.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::dispatch::{ApplicationNumber, TaskNumber};
use super::run::Run;
use super::runtime::Inner;
use super::terms::Class;
use crate::error::{Error, PoolError, caught};
use crate::sync::{Condvar, Instant, Mutex, contain, lock};

type TaskBody<T> = dyn Fn(&Run) -> Result<T, Error> + Send + Sync;

/// Work that a pool runs on one of its devices, and again from its start if need be: copies in, launches, copies out.
///
/// The body is called on a thread of the pool with a [`Run`], which has the device. It is an `Fn`, because it may be called
/// again: what it captures is there each time. What it returns is its result, which is seen once, whichever
/// run it is of. Operations of a run that was told to leave its device give [`PoolError::Revoked`], which the body passes
/// on with `?`.
///
/// ```
/// # use preempt_device::prelude::*;
/// # #[preemptible(block = 32)]
/// # fn double(x: &[u32], out: SliceMut<u32>) {
/// #     let i = thread::index_1d() as usize;
/// #     if i < out.len() {
/// #         // SAFETY: each thread writes its own element.
/// #         unsafe { out.write(i, 2 * x[i]) }
/// #     }
/// # }
/// use preempt::pool::Task;
///
/// let data = vec![1, 2, 3];
/// let task = Task::new("double", move |run| {
///     let x = run.buffer(&data)?;
///     let mut out = run.zeroed::<u32>(data.len())?;
///     run.launch(double(&x, &mut out).threads(3))?;
///     run.download(&out)
/// });
/// # let _ = task;
/// ```
///
/// What could not be done twice does not compile, or is refused with [`PoolError::NotReplayable`]: kernels and copies
/// write buffers of their own run alone.
///
/// ```compile_fail,E0525
/// # use preempt::pool::Task;
/// let data = vec![1, 2, 3];
/// let task = Task::new("once", move |_| Ok(data)); // the second run would find none
/// ```
pub struct Task<T> {
    name: Arc<str>,
    memory: u64,
    is_opaque: bool,
    body: Arc<TaskBody<T>>,
}

impl<T: Send + 'static> Task<T> {
    /// A task of this name, which is for errors.
    pub fn new(
        name: impl Into<Arc<str>>,
        body: impl Fn(&Run) -> Result<T, Error> + Send + Sync + 'static,
    ) -> Task<T> {
        Task { name: name.into(), memory: 0, is_opaque: false, body: Arc::new(body) }
    }

    /// The device memory that it needs, in bytes. A pool refuses it at once if one of its devices has less in all.
    pub fn memory(mut self, bytes: u64) -> Task<T> {
        self.memory = bytes;
        self
    }

    /// Says that it calls a [worker](crate::worker): it has its device alone, with all [parts](crate::Device::split) of it that the
    /// pool has, and is revoked rather than to yield. Batch applications can have such tasks. As long as user-facing tasks
    /// leave no device idle with all of its parts, it does not start, nor do batch tasks behind it.
    pub fn opaque(mut self) -> Task<T> {
        self.is_opaque = true;
        self
    }

    /// The task's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl<T> Clone for Task<T> {
    fn clone(&self) -> Self {
        let &Task { ref name, memory, is_opaque, ref body } = self;
        Task { name: name.clone(), memory, is_opaque, body: body.clone() }
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("name", &self.name)
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

/// One that submits tasks which are alike, as those of one service or one job are: what its earlier tasks took says what
/// the next ones will take. [`Pool::application`](super::Pool::application) makes one; clones are the same application.
///
/// It does not keep the pool.
#[derive(Clone)]
pub struct Application(Arc<Registered>);

struct Registered {
    inner: Arc<Inner>,
    number: ApplicationNumber,
    class: Class,
}

impl Application {
    pub(super) fn new(inner: Arc<Inner>, number: ApplicationNumber, class: Class) -> Application {
        Application(Arc::new(Registered { inner, number, class }))
    }

    /// Whether users wait for its tasks.
    pub fn class(&self) -> Class {
        self.0.class
    }

    /// Submits a task, as often as one likes, and returns at once. The task waits while [as
    /// many](super::PoolBuilder::outstanding) of the application's are outstanding as may be.
    ///
    /// # Errors
    ///
    /// [`PoolError::TooLarge`], [`PoolError::Opaque`], [`PoolError::NoDeviceLeft`] or [`PoolError::PoolDropped`]. The handle gives what the body
    /// returns, the first error of an operation of the run, [`PoolError::Panicked`], [`PoolError::Cancelled`] or
    /// [`DeviceError::ContextLost`](crate::error::DeviceError::ContextLost) if a second device has failed while it ran the
    /// task.
    pub fn submit<T: Send + 'static>(&self, task: &Task<T>) -> Result<TaskHandle<T>, Error> {
        let Registered { inner, number, class } = &*self.0;
        if task.is_opaque && *class == Class::UserFacing {
            return Err(PoolError::Opaque { task: task.name.clone() }.into());
        }
        let answer = Arc::new(Answer::default());
        let body =
            Submitted { task: task.clone(), output: Mutex::default(), answer: answer.clone() };
        let number = inner.submit(*number, Arc::new(body), task.memory)?;
        let (inner, name, cancels) = (inner.clone(), task.name.clone(), false);
        Ok(TaskHandle { inner, name, number, answer, cancels })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.inner.close_application(self.number);
    }
}

impl fmt::Debug for Application {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Application").field("class", &self.class()).finish_non_exhaustive()
    }
}

/// A submitted task: its result, once, on any thread and as a [`Future`] on any executor.
///
/// Dropping it does not stop the task; [`cancel`](TaskHandle::cancel) does, and so does dropping it after
/// [`cancel_on_drop`](TaskHandle::cancel_on_drop).
#[must_use = "the result is in the handle: wait for it, or `detach` it"]
pub struct TaskHandle<T> {
    inner: Arc<Inner>,
    name: Arc<str>,
    number: Ticket,
    answer: Arc<Answer<T>>,
    /// Whether the task is cancelled where this is dropped before its end.
    cancels: bool,
}

/// How a task came to its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct TaskReport {
    /// The number of the device, among those of the pool, that gave the result.
    pub device: usize,
    /// From when the task was outstanding until its result was there.
    pub turnaround: Duration,
    /// Time that it had a device for, without what it lost, and without the time after a yield.
    pub ran: Duration,
    /// How often it yielded.
    pub yields: u32,
    /// How often it was revoked.
    pub revocations: u32,
}

/// A task's number, and which of the tasks that had it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ticket {
    pub number: TaskNumber,
    pub serial: u64,
}

impl<T> TaskHandle<T> {
    /// Waits for the result.
    ///
    /// # Errors
    ///
    /// As [`Application::submit`] says.
    pub fn wait(self) -> Result<T, Error> {
        self.wait_with_report().map(|(result, _)| result)
    }

    /// Waits for the result, and says how the task came to it.
    ///
    /// # Errors
    ///
    /// As [`Application::submit`] says.
    pub fn wait_with_report(self) -> Result<(T, TaskReport), Error> {
        let given = self.answer.wait(&self.name, None);
        given.unwrap_or_else(|| Err(PoolError::PoolDropped { task: self.name.clone() }.into()))
    }

    /// Waits for the result, at most for `timeout`; gives the handle back if it is not there then.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use preempt::Device;
    /// use preempt::pool::{Class, Pool, Task};
    ///
    /// let pool = Pool::builder().device(Device::cpu()?).build()?;
    /// let service = pool.application(Class::UserFacing);
    /// let sum = Task::new("sum", |run| {
    ///     let x = run.buffer(&[1, 2, 3])?;
    ///     Ok(run.download(&x)?.iter().sum::<u32>())
    /// });
    /// let answer = match service.submit(&sum)?.wait_timeout(Duration::from_millis(1)) {
    ///     Ok(answer) => answer?,
    ///     Err(handle) => {
    ///         let (answer, report) = handle.wait_with_report()?;
    ///         println!("it took {:?}", report.turnaround);
    ///         answer
    ///     }
    /// };
    /// assert_eq!(answer, 6);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Application::submit`] says.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Result<T, Error>, TaskHandle<T>> {
        let deadline = Instant::now().checked_add(timeout);
        let given = self.answer.wait(&self.name, deadline);
        given.map(|given| given.map(|(result, _)| result)).ok_or(self)
    }

    /// Whether the result is there.
    pub fn is_done(&self) -> bool {
        lock(&self.answer.state).is_given
    }

    /// Cancels the task: it does not start any more, or leaves its device as a revoked one does and does not come back.
    /// The handle gives [`PoolError::Cancelled`], unless the task has ended before.
    pub fn cancel(&self) {
        self.inner.cancel(self.number);
    }

    /// Lets the task run without a handle. Its result is dropped.
    pub fn detach(mut self) {
        self.cancels = false;
    }

    /// Ties the task to its handle: it is [cancelled](TaskHandle::cancel) where the handle is dropped before the task's end, as
    /// by `select!` or a timeout.
    pub fn cancel_on_drop(mut self) -> TaskHandle<T> {
        self.cancels = true;
        self
    }

    /// As the handle itself as a [`Future`], with how the task came to its result.
    ///
    /// # Errors
    ///
    /// As [`Application::submit`] says.
    pub async fn with_report(self) -> Result<(T, TaskReport), Error> {
        std::future::poll_fn(|context| self.poll_report(context)).await
    }

    fn poll_report(&self, context: &mut Context<'_>) -> Poll<Reported<T>> {
        // Wakers are code of the application, which may call the pool: cloned and dropped without the lock.
        let waker = context.waker().clone();
        let (given, _before) = {
            let mut state = lock(&self.answer.state);
            let given = state.take(&self.name);
            let before = if given.is_none() { state.waker.replace(waker) } else { Some(waker) };
            (given, before)
        };
        given.map_or(Poll::Pending, Poll::Ready)
    }
}

impl<T> Drop for TaskHandle<T> {
    fn drop(&mut self) {
        if self.cancels && !self.is_done() {
            self.cancel();
        }
    }
}

impl<T> Future for TaskHandle<T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_report(context).map_ok(|(result, _)| result)
    }
}

impl<T> fmt::Debug for TaskHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskHandle")
            .field("task", &self.name)
            .field("done", &self.is_done())
            .finish_non_exhaustive()
    }
}

type Reported<T> = Result<(T, TaskReport), Error>;

/// Where a result waits for its handle.
struct Answer<T> {
    state: Mutex<Answered<T>>,
    given: Condvar,
}

struct Answered<T> {
    result: Option<Reported<T>>,
    /// Whether it is there, or was taken.
    is_given: bool,
    waker: Option<Waker>,
}

impl<T> Answered<T> {
    fn take(&mut self, task: &Arc<str>) -> Option<Reported<T>> {
        let taken = || Err(PoolError::ResultTaken { task: task.clone() }.into());
        self.is_given.then(|| self.result.take().unwrap_or_else(taken))
    }
}

impl<T> Default for Answer<T> {
    fn default() -> Self {
        let state = Answered { result: None, is_given: false, waker: None };
        Answer { state: Mutex::new(state), given: Condvar::new() }
    }
}

impl<T> Answer<T> {
    fn give(&self, result: Reported<T>) {
        let waker = {
            let mut state = lock(&self.state);
            (state.result, state.is_given) = (Some(result), true);
            state.waker.take()
        };
        self.given.notify_all();
        if let Some(waker) = waker {
            contain(|| waker.wake());
        }
    }

    fn wait(&self, task: &Arc<str>, deadline: Option<Instant>) -> Option<Reported<T>> {
        let mut state = lock(&self.state);
        loop {
            if let Some(result) = state.take(task) {
                return Some(result);
            }
            state = match deadline {
                None => self.given.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    let waited = self.given.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// A submitted task, as the pool sees it.
pub(super) trait Body: Send + Sync {
    fn name(&self) -> &Arc<str>;

    fn is_opaque(&self) -> bool;

    /// Runs it from its start, and keeps what it returns.
    fn run(&self, run: &Run) -> Result<(), Error>;

    /// Drops what a run has returned that is not seen.
    fn discard(&self);

    /// Gives the handle what the last run has returned, or an error.
    fn answer(&self, ended: Result<TaskReport, Error>);
}

struct Submitted<T> {
    task: Task<T>,
    output: Mutex<Option<T>>,
    answer: Arc<Answer<T>>,
}

impl<T: Send + 'static> Body for Submitted<T> {
    fn name(&self) -> &Arc<str> {
        &self.task.name
    }

    fn is_opaque(&self) -> bool {
        self.task.is_opaque
    }

    fn run(&self, run: &Run) -> Result<(), Error> {
        let task = || self.task.name.clone();
        let returned = caught(|| (self.task.body)(run)).unwrap_or_else(|message| {
            let message = message.into();
            Err(PoolError::Panicked { task: task(), message }.into())
        });
        *lock(&self.output) = Some(returned?);
        Ok(())
    }

    fn discard(&self) {
        let output = lock(&self.output).take();
        // Code of the application.
        contain(|| drop(output));
    }

    fn answer(&self, ended: Result<TaskReport, Error>) {
        let output = lock(&self.output).take();
        let given = match (ended, output) {
            (Ok(report), Some(output)) => Ok((output, report)),
            (Ok(_), None) => Err(PoolError::PoolDropped { task: self.task.name.clone() }.into()),
            (Err(error), output) => {
                contain(|| drop(output));
                Err(error)
            }
        };
        self.answer.give(given);
    }
}
