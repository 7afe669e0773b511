//! Streams, and the checks before a launch or copy is taken in.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use preempt_device::abi::MAX_ARGUMENT_BYTES;
use preempt_device::host::{Access, Amortize, BufferArg, Call, Dim3, HasGrid, Preemption};
use preempt_device::kernel::KernelArg;

use super::handle::{Gives, Handle, HostMemory};
use super::input::InputMemory;
use super::shape::Shape;
use super::slice::{BufferSlice, DeviceSlice, DeviceSliceMut};
use crate::device::{Copy, CopyKind, KernelLaunch, Occupancy, OwnedCopy, Owner, Rows};
use crate::engine::{Change, LaunchReport, LaunchSpec, Leaving, Use};
use crate::error::{ArgumentError, ConfigurationError, Error, ProgramError};
use crate::foreign::{Foreign, is_plain_alone};
use crate::policy::{Priority, Urgency};
use crate::scheduler::Buffer;
use crate::scheduler::Shared;
use crate::scheduler::runtime::completion::Completion;
use crate::scheduler::runtime::core::{Job, Target, Work};
use crate::scheduler::runtime::credits::Credits;
use crate::scheduler::runtime::external::ExternalOperation;
use crate::scheduler::runtime::memory::Memory;
use crate::scheduler::runtime::moves;
use crate::scheduler::runtime::priorities::Priorities;
use crate::sync::{Mutex, lock};
use crate::vocabulary::{BufferId, ByteRange};

/// Launches and copies in order. Clones are the same stream; any thread can use it.
///
/// An operation runs when everything before it in the stream, and everything that uses the same [ranges](crate::Buffer#ranges)
/// of buffers, is done.
/// Operations that it waits for, there or behind an [event](Stream::wait_event), are as urgent as itself meanwhile. So
/// nothing in between delays it. Submitting does not wait for that, unless 64 operations of the stream are outstanding:
/// then it blocks until one of them has ended. Asynchronous code waits for [room](Stream::room) before.
///
/// [Buffers](crate::Buffer#several-devices) that another device's scheduler has written are moved first.
#[derive(Clone)]
pub struct Stream {
    shared: Arc<Shared>,
    id: u32,
    common: Arc<Common>,
    credits: Credits,
}

/// What clones of a stream share.
struct Common {
    terms: Mutex<Terms>,
    priorities: Arc<Priorities>,
}

impl Drop for Common {
    fn drop(&mut self) {
        self.priorities.leave(lock(&self.terms).priority);
    }
}

/// The urgency of a stream's launches, for the policy.
#[derive(Clone, Copy, Debug)]
struct Terms {
    priority: Priority,
    weight: u32,
    /// Time from a launch's submission to its deadline.
    due: Option<Duration>,
    latency_limit: Option<Duration>,
    longest_plain: Option<Duration>,
}

impl Stream {
    pub(in crate::scheduler) fn new(shared: Arc<Shared>, id: u32, priority: Priority) -> Stream {
        let (due, latency_limit, longest_plain) = (None, None, None);
        let terms = Terms { priority, weight: 1, due, latency_limit, longest_plain };
        let priorities = shared.priorities();
        priorities.enter(priority);
        let common = Arc::new(Common { terms: Mutex::new(terms), priorities });
        Stream { shared, id, common, credits: Credits::default() }
    }

    /// The same stream with these credits.
    pub(super) fn with(&self, credits: Credits) -> Stream {
        let (shared, common) = (self.shared.clone(), self.common.clone());
        Stream { shared, id: self.id, common, credits }
    }

    pub(super) fn credits(&self) -> &Credits {
        &self.credits
    }

    /// The stream's number in policies and reports. No other stream of the scheduler has it.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The priority of the stream's launches.
    pub fn priority(&self) -> Priority {
        lock(&self.common.terms).priority
    }

    /// Changes the priority of the stream's launches: of later launches, and at once of those that wait or run.
    pub fn set_priority(&self, priority: impl Into<Priority>) {
        let priority = priority.into();
        let mut terms = lock(&self.common.terms);
        let before = std::mem::replace(&mut terms.priority, priority);
        // Under the lock, so that another thread's change neither leaves before it has entered nor the other way round.
        self.common.priorities.enter(priority);
        self.common.priorities.leave(before);
        drop(terms);
        self.shared.change(Target::Stream(self.id), Change::Priority(priority));
    }

    /// The weight of the stream's launches, for policies that share by weight; 1 unless it was set.
    pub fn weight(&self) -> u32 {
        lock(&self.common.terms).weight
    }

    /// Changes the weight of the stream's launches: of later launches, and at once of those that wait or run. 0 counts
    /// as 1.
    ///
    /// ```
    /// use preempt::Scheduler;
    /// use preempt::policy::FairShare;
    ///
    /// let scheduler = Scheduler::builder().policy(FairShare::new()).build()?;
    /// let (paying, free) = (scheduler.stream(0), scheduler.stream(0));
    /// // Where both have work, three quarters of the device are the first one's.
    /// paying.set_weight(3);
    /// assert_eq!((paying.weight(), free.weight()), (3, 1));
    /// # Ok::<(), preempt::Error>(())
    /// ```
    pub fn set_weight(&self, weight: u32) {
        let weight = weight.max(1);
        lock(&self.common.terms).weight = weight;
        self.shared.change(Target::Stream(self.id), Change::Weight(weight));
    }

    /// Sets the deadline of later launches, as a time after their submission, for policies that use deadlines.
    ///
    /// ```
    /// # use preempt_device::prelude::*;
    /// # #[preemptible(block = 32)]
    /// # fn squares(out: SliceMut<u32>) {}
    /// use std::time::Duration;
    ///
    /// use preempt::error::LaunchError;
    /// use preempt::policy::EarliestDeadline;
    /// use preempt::{Error, Scheduler};
    ///
    /// let scheduler = Scheduler::builder().policy(EarliestDeadline::new()).build()?;
    /// # let mut out = scheduler.zeroed::<u32>(1000)?;
    /// let control = scheduler.stream(0);
    /// control.set_deadline(Some(Duration::from_millis(5)));
    /// match control.launch(squares(&mut out).threads(1000))?.wait() {
    ///     Ok(report) => assert_eq!(report.tasks, 32),
    ///     Err(Error::Launch(LaunchError::NotAdmitted { kernel, .. })) => println!("`{kernel}` would be late"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn set_deadline(&self, due: Option<Duration>) {
        lock(&self.common.terms).due = due;
    }

    /// Sets the time that blocks of other launches have to leave the SMs that this stream's launches are given: for later
    /// launches, and at once for those that wait.
    ///
    /// Without a limit, that of the policy counts ([`latency_limit`](crate::policy::Policy::latency_limit)), and without one
    /// there, blocks leave at their next [yield point or checkpoint](preempt_device::preemptible#yield-points), and work that
    /// they have to do again is lost. With one, each block chooses by itself, as in Chimera (Park et al., ASPLOS 2015): if the
    /// rest of its block-task is expected to fit the limit it ends the block-task, which costs nothing; otherwise it leaves at
    /// the next yield point or checkpoint. The rest is estimated by the kernel's longest block-task so far, and while none is
    /// known it does not fit. [`Stats::stops`](crate::stats::Stats::stops) counts stops that took longer, and the techniques.
    ///
    /// With a limit, a launch that does not need all SMs takes those where that costs least
    /// ([`sm_yield_overhead`](crate::policy::DeviceView::sm_yield_overhead)), which takes the host some 10 us to look up.
    ///
    /// A limit of zero fits nothing: blocks end their block-tasks, and each stop counts as a violation. So does
    /// `Duration::MAX` without violations.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let scheduler = preempt::Scheduler::builder().build()?;
    /// let control = scheduler.stream(10);
    /// control.set_latency_limit(Some(Duration::from_micros(15)));
    /// # Ok::<(), preempt::Error>(())
    /// ```
    pub fn set_latency_limit(&self, limit: Option<Duration>) {
        lock(&self.common.terms).latency_limit = limit;
        self.shared.change(Target::Stream(self.id), Change::LatencyLimit(limit));
    }

    /// Sets the longest launch of this stream that [`Preemption::Auto`] runs as a plain grid, where the
    /// [scheduler's limit](crate::SchedulerBuilder::longest_plain) is not shorter: for later launches and programs, and none
    /// with zero. It is for launches that are cancelled where something else needs the device: a plain grid runs to its end.
    pub fn set_longest_plain(&self, time: Option<Duration>) {
        lock(&self.common.terms).longest_plain = time;
    }

    /// The time that blocks of other launches have to leave the SMs that this stream's launches are given.
    pub fn latency_limit(&self) -> Option<Duration> {
        lock(&self.common.terms).latency_limit
    }

    /// Launches a kernel.
    ///
    /// The call says how many block-tasks: `.grid(n)`, or `.threads(n)` for as many as cover `n` threads.
    ///
    /// ```
    /// # use preempt_device::prelude::*;
    /// # #[preemptible(block = 32)]
    /// # fn squares(out: SliceMut<u32>) {}
    /// # let scheduler = preempt::Scheduler::builder().build()?;
    /// # let (stream, mut out) = (scheduler.stream(0), scheduler.zeroed::<u32>(1000)?);
    /// let report = stream.launch(squares(&mut out).threads(1000))?.wait()?;
    /// assert_eq!(report.tasks, 32);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// Without either it does not compile:
    ///
    /// ```compile_fail,E0277
    /// # use preempt_device::prelude::*;
    /// # #[preemptible(block = 32)]
    /// # fn squares(out: SliceMut<u32>) {}
    /// # let scheduler = preempt::Scheduler::builder().build()?;
    /// # let (stream, mut out) = (scheduler.stream(0), scheduler.zeroed::<u32>(1000)?);
    /// stream.launch(squares(&mut out))?;
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// What is wrong with the grid, the block, the arguments or the kernel's demands; nothing runs then. Where the contents of
    /// [buffers](crate::Buffer#several-devices) have to be moved to this device, also
    /// [`MemoryError::OutOfMemory`](crate::error::MemoryError::OutOfMemory) or [`ArgumentError::ContentsElsewhere`].
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped) if the scheduler is gone.
    pub fn launch<G: HasGrid>(
        &self,
        call: Call<'static, G>,
    ) -> Result<Handle<LaunchReport>, Error> {
        // SAFETY: a `Call` borrows nothing.
        unsafe { self.launch_borrowing(call.with_its_grid()) }
    }

    /// # Safety
    ///
    /// What the call borrows is borrowed until the launch is done.
    pub(in crate::scheduler) unsafe fn launch_borrowing(
        &self,
        call: Call<'_>,
    ) -> Result<Handle<LaunchReport>, Error> {
        let due = self.due();
        let preemption = match is_plain_alone(call.kernel()) {
            true => Preemption::Plain,
            false => call.preemption_mode().unwrap_or(self.shared.preemption),
        };
        let Checked { launch, uses, spec } = self.checked(call, None)?;
        let name = launch.kernel.name;
        let work = Work::Launch { spec, due, preemption, launch: Arc::new(launch) };
        self.submit(name, uses, work, Gives::REPORT)
    }

    /// Time from a submission to its deadline.
    pub(super) fn due(&self) -> Option<Duration> {
        lock(&self.common.terms).due
    }

    /// A call with everything that is known of it before it is submitted; with the number of the program that it is recorded in.
    pub(super) fn checked(&self, call: Call<'_>, program: Option<u64>) -> Result<Checked, Error> {
        let kernel = call.kernel();
        let name = kernel.name;
        let Shape { grid, tasks, block, occupancy } = Shape::of(&call, &self.shared.device)?;
        let Occupancy { blocks_per_sm, on_last_sm, leaves_place } = occupancy;
        let bytes = call.args().size();
        if let Some(foreign) = Foreign::of(kernel) {
            foreign.check(kernel, call.args(), block)?;
        } else if bytes > MAX_ARGUMENT_BYTES {
            return Err(Error::Configuration(ConfigurationError::ArgumentSize {
                kernel: name,
                bytes,
                limit: MAX_ARGUMENT_BYTES,
            }));
        }
        let amortize = call.amortizing_factor();
        if amortize == Amortize::Tasks(0) {
            return Err(Error::Configuration(ConfigurationError::NoAmortizing { kernel: name }));
        }
        let uses = self.buffer_uses(&call, program)?;
        let Dim3 { x, y, z } = grid;
        let (args, grid) = (call.into_args(), [x, y, z]);
        let spec = LaunchSpec {
            tasks,
            // Filled in when the core takes the launch in.
            predicted: None,
            yield_overhead: Duration::ZERO,
            requeued: Duration::ZERO,
            blocks_per_sm,
            on_last_sm,
            plain: false,
            hardware_stop: None,
            leaving: Leaving::AtEnd,
        };
        let launch = KernelLaunch { kernel, args, block, grid, amortize, leaves_place };
        Ok(Checked { launch, uses, spec })
    }

    /// Copies `data`, a slice, an array by reference or a `Vec`, to a buffer, or a range of one, of
    /// the same length.
    ///
    /// The copy runs in the order of the stream, so it may read `data` long after this call. A `Vec` is moved in. A
    /// slice stays with the caller, so its elements are copied into a `Vec` first. The GPU's copy engine reads pinned
    /// memory alone, so a thread of the scheduler copies them once more; these copies by the host remain:
    ///
    /// | | at the submission | at the copy |
    /// | --- | --- | --- |
    /// | `upload`, of a slice | 1 | 1 |
    /// | `upload`, of a `Vec` | | 1 |
    /// | [`Scope::upload`](crate::Scope::upload), of a slice | | 1 |
    /// | [`upload_pinned`](Stream::upload_pinned), and `Scope::upload` of pinned memory | | |
    ///
    /// ```
    /// let scheduler = preempt::Scheduler::builder().build()?;
    /// let stream = scheduler.stream(0);
    /// let mut buffer = scheduler.zeroed::<f32>(3)?;
    /// let mut data = [1.0, 2.0, 3.0];
    /// stream.upload(&data, &mut buffer)?;
    /// data[0] = 7.0; // the upload does not see it
    /// assert_eq!(stream.download(&buffer)?.wait()?, [1.0, 2.0, 3.0]);
    /// stream.upload(vec![4.0; 3], &mut buffer)?.wait()?;
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArgumentError::LengthMismatch`], [`ArgumentError::ForeignBuffer`], or
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped).
    #[doc(alias("cudaMemcpyAsync", "memcpy_htod"))]
    pub fn upload<'a, T: KernelArg>(
        &self,
        data: impl Into<Cow<'a, [T]>>,
        to: &mut impl DeviceSliceMut<T>,
    ) -> Result<Handle<()>, Error> {
        let (data, to) = (data.into(), to.as_slice_mut().target());
        check_lengths(data.len(), to.len())?;
        let data = data.into_owned();
        let from = (data.as_ptr() as u64, data.len(), Arc::new(data) as Owner);
        self.upload_side(from, to)
    }

    pub(in crate::scheduler) fn upload_side<T: KernelArg>(
        &self,
        from: CopySide,
        to: BufferSlice<'_, T>,
    ) -> Result<Handle<()>, Error> {
        let uses = vec![self.copy_use(to, Access::Write)?];
        self.copy::<T, _>(CopyKind::ToDevice, uses, from, side(to), Gives::NOTHING)
    }

    /// Copies a buffer, or a range of one, to the host.
    ///
    /// The host copies the elements twice: out of pinned memory, which alone the GPU's copy engine writes, and again for
    /// each `wait`. [`download_into`](Stream::download_into) does without the second copy.
    ///
    /// # Errors
    ///
    /// [`ArgumentError::ForeignBuffer`] or
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped).
    #[doc(alias("cudaMemcpyAsync", "clone_dtoh"))]
    pub fn download<T: KernelArg>(
        &self,
        from: &impl DeviceSlice<T>,
    ) -> Result<Handle<Vec<T>>, Error> {
        let from = from.as_slice();
        let uses = vec![self.copy_use(from, Access::Read)?];
        let memory = Arc::new(HostMemory::<T>::new(from.len()));
        let to = (memory.address(), from.len(), memory.clone() as Owner);
        self.copy::<T, _>(CopyKind::ToHost, uses, side(from), to, Gives::contents(memory))
    }

    /// Copies a buffer, or a range of one, to another one of the same length.
    ///
    /// # Errors
    ///
    /// [`ArgumentError::LengthMismatch`], [`ArgumentError::ForeignBuffer`], or
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped).
    #[doc(alias("cudaMemcpyAsync", "memcpy_dtod"))]
    pub fn copy_buffer<T: KernelArg>(
        &self,
        from: &impl DeviceSlice<T>,
        to: &mut impl DeviceSliceMut<T>,
    ) -> Result<Handle<()>, Error> {
        let (from, to) = (from.as_slice(), to.as_slice_mut().target());
        let uses = vec![self.copy_use(from, Access::Read)?, self.copy_use(to, Access::Write)?];
        self.copy::<T, _>(CopyKind::OnDevice, uses, side(from), side(to), Gives::NOTHING)
    }

    /// Submits an operation that ends after every use of the buffer.
    pub(crate) fn after_all_uses<T>(&self, buffer: &Buffer<T>) -> Result<Handle<()>, Error> {
        if buffer.memory.home() != self.shared.device.inner.id {
            return Err(Error::Argument(ArgumentError::ForeignBuffer { name: COPY }));
        }
        // Not overwriting, because the next owner must not find what a failed kernel left.
        let uses = vec![buffer.as_slice().used(Access::Write, false)];
        let external = ExternalOperation::new(|external| external.finish(Ok(())));
        let (job, handle) = self.job(COPY, uses, Work::ExternalOperation(external), Gives::NOTHING);
        // With the memory, which the job does not keep, because the contents may be on another device.
        buffer.memory.end_uses();
        moves::submit_using(&self.shared, job, std::slice::from_ref(&buffer.memory), true)
            .inspect_err(|_| self.credits.give_back())?;
        Ok(handle)
    }

    /// Submits work outside the scheduler and its device, in the order of the stream.
    pub(crate) fn submit_external(
        &self,
        name: &'static str,
        external: Arc<ExternalOperation>,
    ) -> Result<Handle<()>, Error> {
        self.submit(name, Vec::new(), Work::ExternalOperation(external), Gives::NOTHING)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(in crate::scheduler) fn copy_use<T>(
        &self,
        range: BufferSlice<'_, T>,
        access: Access,
    ) -> Result<Use, Error> {
        if !range.memory().may_be_on(self.shared.device.inner.id) {
            return Err(Error::Argument(ArgumentError::ForeignBuffer { name: COPY }));
        }
        Ok(range.used(access, access == Access::Write))
    }

    pub(in crate::scheduler) fn copy<T, O>(
        &self,
        kind: CopyKind,
        uses: Vec<Use>,
        (from, from_len, from_owner): CopySide,
        (to, to_len, to_owner): CopySide,
        gives: Gives<O>,
    ) -> Result<Handle<O>, Error> {
        check_lengths(from_len, to_len)?;
        let copy = Copy { kind, from, to, rows: Rows::one(from_len * size_of::<T>()) };
        // SAFETY: each owner keeps its place, and the engine orders operations on them by `uses`.
        let copy = unsafe { OwnedCopy::new(copy, [from_owner, to_owner]) };
        self.submit(COPY, uses, Work::Copy(copy), gives)
    }

    pub(in crate::scheduler) fn submit<O>(
        &self,
        name: &'static str,
        uses: Vec<Use>,
        work: Work,
        gives: Gives<O>,
    ) -> Result<Handle<O>, Error> {
        let (job, handle) = self.job(name, uses, work, gives);
        self.shared.submit(job).inspect_err(|_| self.credits.give_back())?;
        Ok(handle)
    }

    /// A job that holds a credit, and its handle.
    fn job<O>(
        &self,
        name: &'static str,
        uses: Vec<Use>,
        work: Work,
        gives: Gives<O>,
    ) -> (Job, Handle<O>) {
        let completion = Arc::new(Completion::new(self.credits.take(&self.shared)));
        let handle = Handle::new(self.shared.clone(), Arc::clone(&completion), gives);
        let Terms { priority, weight, latency_limit, longest_plain, .. } =
            *lock(&self.common.terms);
        let urgency = Urgency { priority, weight, deadline: None, latency_limit };
        (Job { completion, stream: self.id, name, uses, urgency, longest_plain, work }, handle)
    }

    /// The buffers of a call, or ranges of them. Elements that the kernel writes are passed once.
    fn buffer_uses(&self, call: &Call<'_>, program: Option<u64>) -> Result<Vec<Use>, Error> {
        let name = call.kernel().name;
        let mut uses: Vec<Use> = Vec::with_capacity(call.args().buffers().len());
        for (argument, access) in call.args().buffers() {
            let owner = argument.owner.as_ref();
            match owner.and_then(|owner| InputMemory::is_of(owner, program)) {
                // Its program alone reads it, and waits for that before it is written.
                Some(true) => continue,
                Some(false) => return Err(Error::Program(ProgramError::OtherInput { name })),
                None => {}
            }
            let Some((buffer, bytes)) = self.buffer_range(name, argument)? else { continue };
            let used = Use { buffer, bytes, access: *access, overwrites: false };
            if uses.iter().any(|other| other.conflicts(&used)) {
                return Err(Error::Argument(ArgumentError::BufferConflict { name }));
            }
            uses.push(used);
        }
        if uses.iter().any(|used| matches!(used.buffer, BufferId::Borrowed(_))) {
            self.shared.device.inner.await_unseen()?;
        }
        Ok(uses)
    }

    /// The buffers that a call writes; `None` for memory that no buffer has.
    pub(crate) fn written_by<G>(call: &Call<'_, G>) -> Vec<Option<BufferId>> {
        let written = call.args().buffers().iter().filter(|(_, access)| *access == Access::Write);
        let memory = |argument: &BufferArg| {
            let owner = argument.owner.as_ref().and_then(|owner| owner.downcast_ref::<Memory>());
            owner.map(|memory| memory.id)
        };
        written.map(|(argument, _)| memory(argument)).collect()
    }

    /// The buffer's name in the engine, and the bytes of it that are passed; `None` for borrowed memory without bytes.
    fn buffer_range(
        &self,
        name: &'static str,
        argument: &BufferArg,
    ) -> Result<Option<(BufferId, ByteRange)>, Error> {
        let BufferArg { address, bytes, .. } = *argument;
        let device = &self.shared.device.inner;
        match &argument.owner {
            Some(owner) => match owner.downcast_ref::<Memory>() {
                Some(memory) if memory.may_be_on(device.id) => {
                    Ok(Some((memory.id, memory.range(address, bytes))))
                }
                _ => Err(Error::Argument(ArgumentError::ForeignBuffer { name })),
            },
            None if bytes == 0 => Ok(None),
            None => match device.allocation(address, bytes)? {
                Some(start) => {
                    let (id, start) = (BufferId::Borrowed(start), address - start);
                    Ok(Some((id, ByteRange { start, end: start + bytes as u64 })))
                }
                None => Err(Error::Argument(ArgumentError::NotAllocated { name, address, bytes })),
            },
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("id", &self.id)
            .field("terms", &*lock(&self.common.terms))
            .finish()
    }
}

/// A call that was checked.
pub(super) struct Checked {
    pub launch: KernelLaunch,
    pub uses: Vec<Use>,
    pub spec: LaunchSpec,
}

/// The name of copies in errors.
pub(in crate::scheduler) const COPY: &str = "a copy";

/// Address, number of elements, and what keeps them.
pub(in crate::scheduler) type CopySide = (u64, usize, Owner);

pub(in crate::scheduler) fn side<T>(range: BufferSlice<'_, T>) -> CopySide {
    (range.address(), range.len(), range.memory().clone())
}

pub(super) fn check_lengths(from: usize, to: usize) -> Result<(), Error> {
    match from == to {
        true => Ok(()),
        false => Err(Error::Argument(ArgumentError::LengthMismatch { from, to })),
    }
}
