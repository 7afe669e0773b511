//! What the body of a task has of its device while it runs there.

use std::any::Any;
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use preempt_device::host::{Call, HasGrid};
use preempt_device::kernel::KernelArg;

use super::resident::{Borrowed, Evict, Place, Resident, Used};
use super::runtime::Inner;
#[cfg(target_os = "linux")]
use super::shared::AnyBuffer;
use super::task::Ticket;
#[cfg(target_os = "linux")]
use crate::error::WorkerError;
use crate::error::{DeviceError, Error, LaunchError, MemoryError, PoolError};
use crate::scheduler::{
    Buffer, DeviceSlice, DeviceSliceMut, Handle, Program, ProgramBuilder, Scheduler, Stream,
};
use crate::sync::{Mutex, contain, lock};
use crate::vocabulary::BufferId;
#[cfg(target_os = "linux")]
use crate::worker::Shared;

/// Time that memory may take to come back after the task that had it has left: operations keep their buffers until the
/// device needs them no more.
const RETURN: Duration = Duration::from_secs(1);

/// Operations of a run from which on those that are over are looked for with each one.
const MANY: usize = 64;

/// One run of a task: its device, and the operations that it submits there, which run in their order.
///
/// Once the task was told to leave, each call gives [`PoolError::Revoked`], and what was submitted is cancelled. The pool
/// looks at the operations' results itself: a task has failed when one of them has, whatever the body returns.
pub struct Run {
    pub(super) inner: Arc<Inner>,
    pub(super) ticket: Ticket,
    pub(super) name: Arc<str>,
    pub(super) device: usize,
    #[cfg(target_os = "linux")]
    pub(super) is_opaque: bool,
    pub(super) scheduler: Scheduler,
    pub(super) stream: Stream,
    pub(super) progress: Arc<Progress>,
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("task", &self.name)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// What a run has under way. The pool has it, too, to stop the run.
#[derive(Default)]
pub(super) struct Progress {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Set when the run was told to leave.
    is_revoked: bool,
    /// Set when an operation was refused or cancelled for that.
    is_cut: bool,
    /// Operations that may not have ended, or whose errors were not seen.
    handles: Vec<Handle<()>>,
    /// The first error of an operation.
    error: Option<Error>,
    /// Buffers that the run may write.
    own: HashSet<BufferId>,
    /// Of these, those that it has made for itself.
    made: Vec<NamedBuffer>,
    /// What ends the calls of workers that are under way, by their numbers.
    end_calls: Vec<(u64, EndCall)>,
    calls: u64,
    /// What the run has for itself and does not use now.
    used: Vec<Box<dyn Used>>,
    /// The run's stream, while it has one.
    stream: Option<Stream>,
    /// Whether the run has yielded its device.
    has_yielded: bool,
}

/// A buffer by its name, with what tells whether it is there.
pub(super) type NamedBuffer = (BufferId, Weak<dyn Any + Send + Sync>);

/// What ends a call of a worker.
struct EndCall(Box<dyn FnOnce() + Send>);

/// How the operations of a run have ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// Whether the run has left because it was told to.
    pub is_cut: bool,
    pub error: Option<Error>,
}

impl Progress {
    /// Tells the run to leave, and cancels its operations.
    pub fn revoke(&self) {
        let (handles, end_calls): (Vec<_>, _) = {
            let mut state = lock(&self.state);
            state.is_revoked = true;
            let end_calls = std::mem::take(&mut state.end_calls);
            (state.handles.iter().map(Handle::untyped).collect(), end_calls)
        };
        end_calls.into_iter().for_each(|(_, EndCall(end))| end());
        // Without the lock: this may run code of the application. Nothing of the run counts: its buffers are its own, and
        // it is made anew in others, or not at all.
        Handle::revoke(&handles);
    }

    pub fn is_revoked(&self) -> bool {
        lock(&self.state).is_revoked
    }

    /// Suspends the run's stream, or resumes it, and gives it, to be [driven](Stream::drive). This runs no application code.
    pub fn set_yielded(&self, has_yielded: bool) -> Option<Stream> {
        let mut state = lock(&self.state);
        let changes = std::mem::replace(&mut state.has_yielded, has_yielded) != has_yielded;
        let stream = state.stream.clone().filter(|_| changes)?;
        // With the lock, so that the last one posts last.
        stream.post_suspended(has_yielded);
        Some(stream)
    }

    /// Notes the run's stream. Where the run has yielded before it began, that is suspended, and has to be driven; returns whether
    /// it has.
    pub fn begin(&self, stream: &Stream) -> bool {
        let mut state = lock(&self.state);
        state.stream = Some(stream.clone());
        if state.has_yielded {
            stream.post_suspended(true);
        }
        state.has_yielded
    }

    /// Forgets the run's stream, all of whose operations have ended.
    fn forget_stream(&self) {
        let mut state = lock(&self.state);
        let (stream, has_yielded) = (state.stream.take(), state.has_yielded);
        // Without the lock: to drive it may run code of the application. No other thread has the stream any more.
        drop(state);
        if let Some(stream) = stream.filter(|_| has_yielded) {
            stream.post_suspended(false);
            stream.drive();
        }
    }

    /// Gives back what the run has for itself; `is_right` says whether it has given its result.
    pub fn give_back(&self, is_right: bool) {
        let used = std::mem::take(&mut lock(&self.state).used);
        // Code of the application, where it is dropped.
        used.into_iter().for_each(|used| contain(move || used.end(is_right)));
    }

    /// Waits for all operations; the body has returned.
    pub fn end(&self) -> Ended {
        loop {
            // It stays there meanwhile, for `revoke`.
            let first = lock(&self.state).handles.first().map(Handle::untyped);
            let Some(handle) = first else { break };
            if let Err(error) = handle.wait() {
                self.note(error);
            }
            drop(lock(&self.state).handles.remove(0));
        }
        self.forget_stream();
        let mut state = lock(&self.state);
        Ended { is_cut: state.is_cut, error: state.error.take() }
    }

    fn note(&self, error: Error) {
        let mut state = lock(&self.state);
        let rank = rank(&error);
        if state.is_revoked
            && (rank == 0 || matches!(error, Error::Launch(LaunchError::Cancelled { .. })))
        {
            state.is_cut = true;
        } else if state.error.as_ref().is_none_or(|known| self::rank(known) < rank) {
            state.error = Some(error);
        }
    }
}

/// How much an error says: what was lost follows from another error, and so does the loss of the context, if one of the run's
/// kernels has panicked.
fn rank(error: &Error) -> u32 {
    match error {
        Error::Launch(LaunchError::InputLost { .. }) => 0,
        Error::Device(DeviceError::ContextLost { .. }) => 1,
        _ => 2,
    }
}

impl Run {
    /// The number of the device among those of the pool, from 0 on.
    pub fn device(&self) -> usize {
        self.device
    }

    /// A buffer of `len` elements whose bytes are all 0. Where a task that has yielded has the device's memory, it gives
    /// it up and runs again later, or this task waits, if it is the one that has yielded. Where a killed
    /// worker has not given its memory back, this task waits until it has.
    ///
    /// # Errors
    ///
    /// [`MemoryError::OutOfMemory`] where the task is alone on its device; [`PoolError::Revoked`].
    pub fn zeroed<T: KernelArg>(&self, len: usize) -> Result<Buffer<T>, Error> {
        self.with_room(|scheduler, timeout| scheduler.zeroed_within(len, timeout))
    }

    /// A buffer that holds a copy of `data`.
    ///
    /// # Errors
    ///
    /// As for [`zeroed`](Run::zeroed).
    pub fn buffer<T: KernelArg>(&self, data: &[T]) -> Result<Buffer<T>, Error> {
        self.with_room(|scheduler, timeout| scheduler.buffer_within(data, timeout))
    }

    /// A zeroed buffer that functions of workers can use where it lies ([`call_with`](Run::call_with)). It stays bound to this
    /// device.
    ///
    /// # Errors
    ///
    /// As for [`zeroed`](Run::zeroed), and [`DeviceError::Unsupported`] where the GPU's driver, or the operating system, does not
    /// let other processes have it.
    #[cfg(target_os = "linux")]
    pub fn shared<T: KernelArg>(&self, len: usize) -> Result<Buffer<T>, Error> {
        self.with_room(|scheduler, timeout| scheduler.shared_within(len, timeout))
    }

    /// Launches a kernel, which writes buffers of this run alone.
    ///
    /// # Errors
    ///
    /// As for [`Stream::launch`], [`PoolError::NotReplayable`], or [`PoolError::Revoked`].
    pub fn launch<G: HasGrid>(&self, call: Call<'static, G>) -> Result<(), Error> {
        let name = call.kernel().name;
        self.write(name, Stream::written_by(&call))?;
        let launched = match self.inner.has_workers() {
            true => self.submit(|| self.stream.launch(call.clone()))?,
            // A copy of the call would be for nothing.
            false => self.stream.launch(call)?,
        };
        self.keep(launched.untyped())
    }

    /// Copies `data` to a buffer of this run, or a range of one, of the same length.
    ///
    /// # Errors
    ///
    /// As for [`Stream::upload`], [`PoolError::NotReplayable`], or [`PoolError::Revoked`].
    pub fn upload<'a, T: KernelArg>(
        &self,
        data: impl Into<Cow<'a, [T]>>,
        to: &mut impl DeviceSliceMut<T>,
    ) -> Result<(), Error> {
        self.write("copy", [Some(to.as_slice().id())])?;
        self.keep(self.stream.upload(data, to)?)
    }

    /// Fills a buffer of this run, or a range of one, with a value.
    ///
    /// # Errors
    ///
    /// As for [`Stream::fill`], [`PoolError::NotReplayable`], or [`PoolError::Revoked`].
    pub fn fill<T: KernelArg>(
        &self,
        buffer: &mut impl DeviceSliceMut<T>,
        value: T,
    ) -> Result<(), Error> {
        self.write("fill", [Some(buffer.as_slice().id())])?;
        self.keep(self.stream.fill(buffer, value)?)
    }

    /// Copies a buffer, or a range of one, to a buffer of this run of the same length.
    ///
    /// # Errors
    ///
    /// As for [`Stream::copy_buffer`], [`PoolError::NotReplayable`], or [`PoolError::Revoked`].
    pub fn copy_buffer<T: KernelArg>(
        &self,
        from: &impl DeviceSlice<T>,
        to: &mut impl DeviceSliceMut<T>,
    ) -> Result<(), Error> {
        self.write("copy", [Some(to.as_slice().id())])?;
        self.keep(self.submit(|| self.stream.copy_buffer(from, to))?)
    }

    /// Copies a buffer, or a range of one, to the host, when all operations before it are done.
    ///
    /// # Errors
    ///
    /// As for [`Stream::download`] and its handle, or [`PoolError::Revoked`].
    pub fn download<T: KernelArg>(&self, from: &impl DeviceSlice<T>) -> Result<Vec<T>, Error> {
        self.check()?;
        let handle = self.submit(|| self.stream.download(from))?;
        self.keep(handle.untyped())?;
        // What came of it is noted with the other operations, at the latest at the end.
        handle.into_contents().map_err(|error| self.check().err().unwrap_or(error))
    }

    /// Records a program on this run's device, as [`Stream::program`] does. [`launch_program`](Run::launch_program) launches it,
    /// in this run or in a later one that has it by a [`Resident`].
    ///
    /// # Errors
    ///
    /// As for [`Stream::program`], or [`PoolError::Revoked`].
    pub fn program(
        &self,
        name: &'static str,
        record: impl FnOnce(&mut ProgramBuilder<'_>) -> Result<(), Error>,
    ) -> Result<Program, Error> {
        self.check()?;
        let mut program = self.stream.program(name, record)?;
        program.keep_to_runs();
        Ok(program)
    }

    /// Launches a program, which writes buffers of this run alone.
    ///
    /// # Errors
    ///
    /// As for [`Stream::launch_program`], [`PoolError::NotReplayable`], or [`PoolError::Revoked`].
    pub fn launch_program(&self, program: &Program) -> Result<(), Error> {
        self.write(program.name(), program.written())?;
        self.keep(self.submit(|| self.stream.launch_program(program))?.untyped())
    }

    /// Calls a function of a [worker](crate::worker) of this run's device, and waits for what it gives. Of an
    /// [opaque](super::Task::opaque) task alone. The worker is killed where the task is told to leave, and the call returns
    /// before it is gone: what it has by other ways than its [buffers](Run::call_with), it may write for some time.
    ///
    /// # Errors
    ///
    /// [`WorkerError`](crate::error::WorkerError), or [`PoolError::Revoked`].
    #[cfg(target_os = "linux")]
    pub fn call(&self, function: &str, input: &[u8]) -> Result<Vec<u8>, Error> {
        self.call_with(function, input, &mut [])
    }

    /// As [`call`](Run::call), where the function reads and writes buffers of this run where they lie, which
    /// [`shared`](Run::shared) has made. Waits until all operations of this run are over, and where the worker is killed, until it
    /// is gone. What the function leaves in a buffer is there for the next operations.
    ///
    /// ```no_run
    /// use preempt::pool::{Run, Task};
    /// use preempt::worker::{Functions, Job};
    ///
    /// # fn halve(_: u64, _: usize) {}
    /// # fn main() -> Result<(), preempt::Error> {
    /// // The worker's side.
    /// fn halves(job: &Job) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    ///     let device = preempt::Device::cuda(0)?;
    ///     // SAFETY: the task below gives floats, and `halve` returns when it is done with them.
    ///     let x = unsafe { job.buffers[0].open::<f32>(&device)? };
    ///     halve(x.address(), x.len());
    ///     Ok(Vec::new())
    /// }
    /// Functions::new().add("halves", halves).serve_if_worker();
    ///
    /// // The task's.
    /// let task = Task::new("halves", |run: &Run| {
    ///     let mut x = run.shared(1 << 20)?;
    ///     run.fill(&mut x, 3.0)?;
    ///     run.call_with("halves", &[], &mut [&mut x])?;
    ///     run.download(&x)
    /// });
    /// # let _ = task.opaque();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`call`](Run::call), the first error of an operation of this run, or [`PoolError::NotReplayable`] for a buffer that is
    /// not this run's.
    #[cfg(target_os = "linux")]
    pub fn call_with(
        &self,
        function: &str,
        input: &[u8],
        buffers: &mut [&mut dyn AnyBuffer],
    ) -> Result<Vec<u8>, Error> {
        self.check()?;
        if !self.is_opaque {
            return Err(WorkerError::NotOpaque { task: self.name.clone() }.into());
        }
        let workers = self.inner.workers(self.device);
        let workers = workers.ok_or(WorkerError::None { function: function.into() })?;
        let lent: Vec<_> = buffers.iter().map(|buffer| buffer.lent()).collect();
        self.write("a worker's function", lent.iter().map(|lent| Some(lent.id)))?;
        let is_gpu = self.scheduler.device().is_gpu();
        let shared = lent.into_iter().map(|lent| {
            let not_shared = WorkerError::NotShared { function: function.into() };
            let descriptor = lent.descriptor.ok_or(not_shared)?;
            Ok(Shared { descriptor, bytes: lent.bytes as u64, is_gpu })
        });
        let shared = shared.collect::<Result<Vec<_>, Error>>()?;
        let has_buffers = !shared.is_empty();
        if has_buffers {
            self.settle()?;
        }
        let number = {
            let mut state = lock(&self.progress.state);
            state.calls += 1;
            state.calls
        };
        let begins = |killer: crate::worker::Killer| {
            let mut state = lock(&self.progress.state);
            if !state.is_revoked {
                // Its kernels may write the buffers until it is gone. Where there are none, the next task need not wait.
                let end = move || if has_buffers { killer.kill() } else { killer.let_go() };
                state.end_calls.push((number, EndCall(Box::new(end))));
            }
            !state.is_revoked
        };
        let ends = || {
            let mut state = lock(&self.progress.state);
            state.end_calls.retain(|(of, _)| *of != number);
            state.is_revoked
        };
        let is_told = || self.progress.is_revoked();
        let called = workers.call(function, input, shared, begins, ends, is_told);
        self.check()?;
        called?.ok_or_else(|| self.revoked())
    }

    /// What stays on this device between tasks: of an earlier run, or made now.
    ///
    /// # Errors
    ///
    /// What makes it returns, or [`PoolError::Revoked`].
    pub fn resident<T: Send + 'static>(
        &self,
        resident: &Resident<T>,
    ) -> Result<Borrowed<'_, T>, Error> {
        self.check()?;
        resident.of_run(self)
    }

    /// Which pool and which of its devices this is.
    pub(super) fn place(&self) -> Place {
        Place { pool: self.inner.key(), device: self.device }
    }

    /// Lets the run write these buffers.
    pub(super) fn may_write(&self, buffers: impl IntoIterator<Item = BufferId>) {
        lock(&self.progress.state).own.extend(buffers);
    }

    /// Has something be evicted where the device has no room.
    pub(super) fn keeps(&self, resident: Weak<dyn Evict>) {
        self.inner.keep(resident);
    }

    /// How many buffers the run has made for itself.
    pub(super) fn made(&self) -> usize {
        lock(&self.progress.state).made.len()
    }

    /// The buffers that it has made since there were so many, which are another's from now on.
    pub(super) fn take_made(&self, since: usize) -> Vec<NamedBuffer> {
        let made = &mut lock(&self.progress.state).made;
        made.split_off(since.min(made.len()))
    }

    /// What the run has had for itself before, of this key.
    pub(super) fn take_used(&self, key: usize) -> Option<Box<dyn Used>> {
        let used = &mut lock(&self.progress.state).used;
        let at = used.iter().position(|used| used.key() == key)?;
        Some(used.swap_remove(at))
    }

    /// Keeps something that the run does not use now, until its operations are over: another run would see what becomes of them.
    pub(super) fn keep_used(&self, used: Box<dyn Used>) {
        lock(&self.progress.state).used.push(used);
    }

    /// Whether the task may go on: for bodies that compute on the host for a while.
    ///
    /// # Errors
    ///
    /// [`PoolError::Revoked`] if it was told to leave.
    pub fn check(&self) -> Result<(), Error> {
        let mut state = lock(&self.progress.state);
        if !state.is_revoked {
            return Ok(());
        }
        state.is_cut = true;
        Err(self.revoked())
    }

    fn revoked(&self) -> Error {
        PoolError::Revoked { task: self.name.clone() }.into()
    }

    /// Whether an operation may be submitted that writes these buffers; `None` is memory that no buffer has.
    fn write(
        &self,
        operation: &'static str,
        written: impl IntoIterator<Item = Option<BufferId>>,
    ) -> Result<(), Error> {
        self.check()?;
        let state = lock(&self.progress.state);
        let is_own = |id: Option<BufferId>| id.is_some_and(|id| state.own.contains(&id));
        if written.into_iter().all(is_own) {
            return Ok(());
        }
        Err(PoolError::NotReplayable { task: self.name.clone(), operation }.into())
    }

    /// Waits until what was submitted until now is over; its first error.
    #[cfg(target_os = "linux")]
    fn settle(&self) -> Result<(), Error> {
        let handles: Vec<_> =
            lock(&self.progress.state).handles.iter().map(Handle::untyped).collect();
        for handle in handles {
            // The pool sees it, too.
            handle.wait().map_err(|error| self.check().err().unwrap_or(error))?;
        }
        self.check()
    }

    /// Keeps an operation that was submitted, for its error and to cancel it.
    fn keep(&self, handle: Handle<()>) -> Result<(), Error> {
        let over: Vec<_> = {
            let mut state = lock(&self.progress.state);
            if state.is_revoked {
                drop(state);
                // `revoke` did not see it.
                Handle::revoke(std::slice::from_ref(&handle));
                lock(&self.progress.state).handles.push(handle);
                return self.check();
            }
            state.handles.push(handle);
            if state.handles.len() < MANY {
                return Ok(());
            }
            state.handles.extract_if(.., |handle| handle.is_done()).collect()
        };
        let errors = over.iter().filter_map(|handle: &Handle<()>| handle.wait().err());
        errors.for_each(|error| self.progress.note(error));
        Ok(())
    }

    /// Submits an operation; where it finds no memory, again once workers are gone that were killed.
    fn submit<T>(&self, mut submit: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        loop {
            match submit() {
                Err(Error::Memory(MemoryError::OutOfMemory { .. })) if self.await_workers() => {}
                submitted => return submitted,
            }
        }
    }

    fn await_workers(&self) -> bool {
        self.inner.await_workers(self.device, &self.progress) && !self.progress.is_revoked()
    }

    /// Allocates a buffer, and has other tasks make room for it if need be.
    fn with_room<T>(
        &self,
        allocate: impl Fn(&Scheduler, Duration) -> Result<Buffer<T>, Error>,
    ) -> Result<Buffer<T>, Error> {
        // At first without waiting: what waits in the device's own line is told of nothing.
        let (mut timeout, mut first, mut was_alone) = (Duration::ZERO, None, false);
        loop {
            self.check()?;
            match allocate(&self.scheduler, timeout) {
                Ok(buffer) => {
                    let mut state = lock(&self.progress.state);
                    let named = buffer.named();
                    state.own.insert(named.0);
                    state.made.push(named);
                    return Ok(buffer);
                }
                Err(
                    error @ Error::Memory(
                        MemoryError::OutOfMemory { .. }
                        | MemoryError::Timeout { .. }
                        | MemoryError::QueueFull { .. },
                    ),
                ) => _ = first.get_or_insert(error),
                Err(error) => return Err(error),
            }
            self.check()?;
            timeout = RETURN;
            let comes_free = self.await_workers()
                || self.inner.evict(self.place())
                || self.inner.await_room(self.ticket, self.device, &self.progress);
            match (comes_free, was_alone, &first) {
                // Another task may have left since, so one try is behind this.
                (false, true, Some(first)) => return Err(first.clone()),
                _ => was_alone = !comes_free,
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    /// As on a GPU, where a panic ends one operation with its name, and all others with that of the context.
    #[test]
    fn a_run_has_the_error_that_the_others_follow_from() {
        let panicked = || LaunchError::KernelFailed { kernel: "panics", message: "here".into() };
        let input_lost = || LaunchError::InputLost { kernel: "panics" };
        let lost = || DeviceError::ContextLost { message: "lost".into() };
        for errors in [
            [lost().into(), panicked().into(), input_lost().into()],
            [input_lost().into(), lost().into(), panicked().into()],
            [panicked().into(), input_lost().into(), lost().into()],
        ] {
            let progress = Progress::default();
            errors.into_iter().for_each(|error| progress.note(error));
            let Ended { is_cut, error } = progress.end();
            let is_panic = |error| {
                matches!(
                    error,
                    Some(Error::Launch(LaunchError::KernelFailed { kernel: "panics", .. }))
                )
            };
            assert!(is_panic(error) && !is_cut);
        }
    }

    #[test]
    fn what_follows_from_a_revocation_is_no_error() {
        let progress = Progress::default();
        progress.revoke();
        for error in [
            LaunchError::Cancelled { done: 1, tasks: 2 },
            LaunchError::InputLost { kernel: "cancelled" },
        ] {
            progress.note(error.into());
        }
        let Ended { is_cut, error } = progress.end();
        assert!(is_cut && error.is_none());
    }
}
