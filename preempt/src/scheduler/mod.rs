//! The scheduler: threads, streams and handles around the engine.
//!
//! | folder | what is in it |
//! | --- | --- |
//! | `api` | what applications hold |
//! | `api/buffer` | arrays on devices |
//! | `api/slice` | ranges of them |
//! | `api/stream` | launches and copies, and the checks before they are taken in |
//! | `api/shape` | the shape of a launch on a device, and the checks of grid and block |
//! | `api/copies` | fills, copies of rows, copies with borrowed memory |
//! | `api/input`, `api/pinned` | memory of the host that kernels read, or that is copied where it lies |
//! | `api/footprint` | what blocks of a kernel take of an SM |
//! | `api/handle` | results |
//! | `api/event` | order between streams |
//! | `api/foreign` | kernels of other compilers |
//! | `api/verify` | both forms of a kernel, compared |
//! | `api/program` | launches and copies that are recorded once |
//! | `api/room` | room in streams, for code that must not block |
//! | `api/scope` | launches with borrowed arguments |
//! | `runtime` | the threads and what they share |
//! | `runtime/shared` | submitting threads, waiting threads and the poller, which run the core |
//! | `runtime/combiner` | the lock by which one thread at a time runs the core, and the inbox |
//! | `runtime/core` | the engine with its device: takes in messages and reports, acts, completes handles |
//! | `runtime/core/batching` | the steps of a turn: messages that it takes in, decisions, launches ahead |
//! | `runtime/core/execute` | the engine's actions on the device |
//! | `runtime/core/accounting` | entries in accounts, timeline and predictor |
//! | `runtime/completion` | the end of an operation, for the threads that wait for it |
//! | `runtime/armed` | whether an armed launch was released, or will not be |
//! | `runtime/priorities` | the priorities of the streams that there are |
//! | `runtime/credits` | how many operations of a stream can be outstanding |
//! | `runtime/memory` | the memory of a buffer, and the devices where its contents are valid |
//! | `runtime/moves` | moves of contents from one device to another |
//! | `runtime/program` | launches of programs, as the engine sees them |
//! | `runtime/opaque` | application code that puts work into a stream of the device's own |
//! | `runtime/external` | work outside the scheduler and its device, in the order of a stream |
//! | `runtime/warm_up` | urgent launches on a device where nothing runs, for warm caches |
//! | `runtime/interleavings` | the threads, tested by shuttle in many interleavings |
//! | `observed` | what launches did |
//! | `observed/accounts` | counts of launches, kept while they run |
//! | `observed/stats` | the counts, for users |
//! | `observed/trace` | a timeline of the SMs that launches had |
//! | `observed/telemetry` | events and counts for the crates `tracing` and `metrics` |
//! | `estimated` | what launches are expected to do |
//! | `estimated/forecast` | expected times of launches |
//! | `estimated/estimates` | how long kernels take to stop, and in which form they are faster |
//! | `estimated/mean` | means that follow what changes |
//! | `estimated/profile` | profiling runs for a predictor |

use crate::engine::LONGEST_PLAIN;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

#[cfg(doc)]
use preempt_device::host::Call;
use preempt_device::host::Preemption;
use preempt_device::kernel::KernelArg;

use crate::device::{Contents, Device, Patience, SignalPath, Sleep};
use crate::error::{ConfigurationError, Error, SchedulerError};
use crate::module::{DeviceCode, Module, Source};
use crate::policy::{Policy, Priority, StaticPriority};
use crate::predict::{Online, Predictor};
use crate::recording::Recording;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::vocabulary::Costs;

mod api;
mod estimated;
mod observed;
mod runtime;

pub use api::buffer::Buffer;
pub use api::copies::Copy2d;
pub use api::event::Event;
pub use api::foreign::{ForeignCall, ForeignKernel};
use api::foreign::{ForeignTexts, Texts};
pub use api::handle::{CancelOnDrop, Handle};
pub use api::input::ProgramInput;
pub use api::pinned::{Loan, LoanFuture, PinnedBuffer};
pub use api::program::{Program, ProgramBuilder, ProgramCall};
pub use api::room::{Room, TryLaunch};
pub use api::scope::Scope;
pub(crate) use api::shape::Shape;
pub use api::slice::{BufferSlice, BufferSliceMut, DeviceSlice, DeviceSliceMut};
pub use api::stream::Stream;
pub use api::suspension::Suspension;
pub use api::verify::{Difference, Verification};
pub use observed::stats;
use observed::stats::Stats;
pub(crate) use runtime::external::ExternalOperation;
#[cfg(all(test, shuttle))]
pub(crate) use runtime::interleavings::{Testbed, explore};
pub use runtime::opaque::Opaque;
pub(crate) use runtime::shared::Helper;
pub(crate) use runtime::shared::Shared;
use runtime::shared::{Closer, POLLER_SPIN, Settings};

/// Orders the launches and copies of all threads on one device.
///
/// Clones are the same scheduler. When the last clone is dropped, operations that have not started are dropped, and
/// running kernels stop at their next yield. Their handles give
/// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped); call
/// [`synchronize`](Scheduler::synchronize) before to let everything finish. Dropping waits for running block-tasks,
/// but at most ten seconds; after that the device stays taken until they have ended.
///
/// ```
/// use preempt::{Device, Priority, Scheduler};
///
/// let scheduler = Scheduler::builder().device(Device::cpu()?).build()?;
/// let batch = scheduler.stream(Priority(0));
/// let urgent = scheduler.stream(Priority(10));
/// # let _ = (batch, urgent);
/// # Ok::<(), preempt::Error>(())
/// ```
#[derive(Clone)]
pub struct Scheduler {
    closer: Arc<Closer>,
    /// Numbers for streams.
    streams: Arc<AtomicU32>,
    /// Sources of the builder's kernels, to tell one build of them from another.
    sources: Arc<[Source]>,
    foreign: Arc<ForeignTexts>,
}

/// Time: what follows from costs up to this can be computed.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// How long a program stays armed, and the longest that it can. Threads that wait for the device in the driver wait for
/// armed programs, too.
const ARMED_FOR: Duration = Duration::from_millis(1);
const LONGEST_ARMED: Duration = Duration::from_millis(100);

/// MiB for block-tasks that blocks leave at checkpoints. An eighth holds what all blocks of an H200 save whose 1024 threads
/// have states of 48 bytes and 48 KiB of shared memory, two blocks on an SM.
const CHECKPOINT_MEMORY: u32 = 256;

impl Scheduler {
    /// A builder, for a scheduler with settings of your choice.
    pub fn builder() -> SchedulerBuilder {
        SchedulerBuilder {
            device: None,
            policy: None,
            predictor: None,
            code: Vec::new(),
            texts: Vec::new(),
            settings: Settings {
                wait_spin: Duration::from_micros(50),
                poller_spin: POLLER_SPIN,
                preemption: Preemption::default(),
                longest_plain: LONGEST_PLAIN,
                armed_for: ARMED_FOR,
                costs: None,
                signal_path: SignalPath::default(),
                checkpoint_memory: CHECKPOINT_MEMORY,
                recording: false,
                patience: Patience { timeout: Duration::ZERO, most: MAX_WAITING },
                trace: None,
            },
        }
    }

    /// A stream, whose launches and copies run in the order of their submission. Launches of streams with a higher
    /// priority are more urgent.
    #[doc(alias = "cudaStreamCreateWithPriority")]
    pub fn stream(&self, priority: impl Into<Priority>) -> Stream {
        // Relaxed: only the number counts.
        let id = self.streams.fetch_add(1, Ordering::Relaxed);
        Stream::new(self.shared().clone(), id, priority.into())
    }

    /// A buffer of `len` elements whose bytes are all 0.
    ///
    /// An operation may keep its buffers for a moment after its handle is done, until the device needs them no more. So
    /// a thread that needs the memory of a buffer that it has dropped waits with
    /// [`zeroed_within`](Scheduler::zeroed_within).
    ///
    /// # Errors
    ///
    /// [`MemoryError::OutOfMemory`](crate::error::MemoryError::OutOfMemory), at once unless the builder was told to
    /// [wait](SchedulerBuilder::allocation_timeout); then as for [`zeroed_within`](Scheduler::zeroed_within).
    #[doc(alias("cudaMalloc", "alloc_zeros"))]
    pub fn zeroed<T: KernelArg>(&self, len: usize) -> Result<Buffer<T>, Error> {
        self.zeroed_within(len, self.shared().patience.timeout)
    }

    /// A buffer of `len` elements whose bytes are all 0. If the device has no room, waits until other buffers are
    /// dropped, at most for `timeout` (EffiSha section 6.4).
    ///
    /// Requests are served in order of arrival. While a request waits, smaller requests that would fit wait as well,
    /// because they would keep a large request waiting for ever. Requests without a timeout fail instead.
    ///
    /// A request that cannot succeed fails at once: if the device has no buffers that could be dropped, or if the
    /// request is larger than all memory that could become free. A thread that waits for memory that it holds itself
    /// waits until the timeout, because the scheduler cannot see that.
    ///
    /// ```
    /// use std::thread;
    /// use std::time::Duration;
    ///
    /// use preempt::{CpuLayout, Device, Scheduler};
    ///
    /// // A device with room for one of the buffers.
    /// let device = Device::cpu_with(CpuLayout::sms(2).memory(4096))?;
    /// let scheduler = Scheduler::builder().device(device).build()?;
    /// let first = scheduler.zeroed::<u8>(4096)?;
    /// assert!(scheduler.zeroed::<u8>(4096).is_err());
    ///
    /// let other = thread::spawn(move || drop(first));
    /// let second = scheduler.zeroed_within::<u8>(4096, Duration::from_secs(60))?;
    /// assert_eq!(second.len(), 4096);
    /// # other.join().expect("it does not panic");
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`MemoryError::OutOfMemory`](crate::error::MemoryError::OutOfMemory),
    /// [`MemoryError::Timeout`](crate::error::MemoryError::Timeout), or
    /// [`MemoryError::QueueFull`](crate::error::MemoryError::QueueFull).
    pub fn zeroed_within<T: KernelArg>(
        &self,
        len: usize,
        timeout: Duration,
    ) -> Result<Buffer<T>, Error> {
        self.with_patience(timeout, |patience, poll| {
            Buffer::new(self.device(), len, Contents::Zeros, patience, poll)
        })
    }

    /// A buffer of `len` elements that nothing has written yet. It saves the zeroing of [`zeroed`](Scheduler::zeroed): a
    /// gigabyte at the speed of a copy from the host while kernels run.
    ///
    /// A GPU's memory holds whatever bytes were there. The CPU device zeroes the memory all the same.
    ///
    /// ```
    /// let scheduler = preempt::Scheduler::builder().build()?;
    /// let stream = scheduler.stream(0);
    /// // SAFETY: it is filled before it is read.
    /// let mut squares = unsafe { scheduler.uninit::<u32>(3)? };
    /// stream.fill(&mut squares, 9)?;
    /// assert_eq!(stream.download(&squares)?.wait()?, [9; 3]);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`zeroed`](Scheduler::zeroed).
    ///
    /// # Safety
    ///
    /// Each element is written before it is read, by kernels and copies to the host alike, unless all bytes are a value
    /// of `T`, as they are for numbers: those are then unknown.
    #[doc(alias = "cudaMalloc")]
    pub unsafe fn uninit<T: KernelArg>(&self, len: usize) -> Result<Buffer<T>, Error> {
        self.with_patience(self.shared().patience.timeout, |patience, poll| {
            Buffer::new(self.device(), len, Contents::Any, patience, poll)
        })
    }

    /// A buffer that holds a copy of `data`.
    ///
    /// # Errors
    ///
    /// As for [`zeroed`](Scheduler::zeroed).
    #[doc(alias = "clone_htod")]
    pub fn buffer<T: KernelArg>(&self, data: &[T]) -> Result<Buffer<T>, Error> {
        self.buffer_within(data, self.shared().patience.timeout)
    }

    /// A buffer that holds a copy of `data`; waits for memory as [`zeroed_within`](Scheduler::zeroed_within) does.
    ///
    /// # Errors
    ///
    /// As for [`zeroed_within`](Scheduler::zeroed_within).
    pub fn buffer_within<T: KernelArg>(
        &self,
        data: &[T],
        timeout: Duration,
    ) -> Result<Buffer<T>, Error> {
        self.with_patience(timeout, |patience, poll| {
            Buffer::from_slice(self.device(), data, patience, poll)
        })
    }

    /// A zeroed buffer whose memory other processes can map, which waits for memory as [`zeroed_within`](Scheduler::zeroed_within)
    /// does.
    #[cfg(target_os = "linux")]
    pub(crate) fn shared_within<T: KernelArg>(
        &self,
        len: usize,
        timeout: Duration,
    ) -> Result<Buffer<T>, Error> {
        self.with_patience(timeout, |patience, poll| {
            Buffer::new(self.device(), len, Contents::Shared, patience, poll)
        })
    }

    fn with_patience<R>(
        &self,
        timeout: Duration,
        allocate: impl FnOnce(Patience, Option<Sleep<'_>>) -> R,
    ) -> R {
        let shared = self.shared();
        let patience = Patience { timeout, ..shared.patience };
        // A waker on the poller may allocate: no other thread would see operations end, and free their memory.
        let poll = |condition: &dyn Fn() -> bool| {
            shared.poll_instead(condition);
        };
        allocate(patience, shared.is_on_poller().then_some(&poll))
    }

    /// Waits until nothing is in flight, on any stream and of any thread, apart from launches of
    /// [suspended](Stream::suspend) streams and what waits for these.
    ///
    /// # Errors
    ///
    /// [`SchedulerError::PolicyReplaced`] if the policy ever gave an invalid plan, or else
    /// [`SchedulerError::PredictorDropped`] if the predictor panicked. Failures of single operations are reported
    /// through their handles.
    #[doc(alias = "cudaDeviceSynchronize")]
    pub fn synchronize(&self) -> Result<(), Error> {
        self.shared().wait_until_idle();
        self.policy_error().or_else(|| self.predictor_error()).map_or(Ok(()), Err)
    }

    /// Why the policy was replaced by [`Fifo`](crate::policy::Fifo), if it was.
    pub fn policy_error(&self) -> Option<Error> {
        self.shared().policy_error()
    }

    /// Why the predictor was dropped, if it was.
    pub fn predictor_error(&self) -> Option<Error> {
        self.shared().predictor_error()
    }

    /// The submissions, reports and decisions until now, if the builder [asked for them](SchedulerBuilder::recording).
    pub fn recording(&self) -> Option<Recording> {
        self.shared().recording()
    }

    /// Statistics since the scheduler was built: launches, their turnaround times and shares of the device, for each
    /// stream and priority, and the times of the scheduler's decisions.
    ///
    /// ```
    /// # use preempt_device::prelude::*;
    /// # #[preemptible(block = 32)]
    /// # fn squares(out: SliceMut<u32>) {}
    /// # let scheduler = preempt::Scheduler::builder().build()?;
    /// # let mut out = scheduler.zeroed::<u32>(1000)?;
    /// let (first, second) = (scheduler.stream(0), scheduler.stream(0));
    /// for stream in [&first, &first, &second] {
    ///     stream.launch(squares(&mut out).threads(1000))?.detach();
    /// }
    /// scheduler.synchronize()?;
    ///
    /// let stats = scheduler.stats();
    /// assert_eq!((stats.total.done, stats.total.failed), (3, 0));
    /// let of_first = stats.streams.iter().find(|of| of.stream == first.id());
    /// assert_eq!(of_first.map(|of| of.launches.done), Some(2));
    /// # Ok::<(), preempt::Error>(())
    /// ```
    pub fn stats(&self) -> Stats {
        self.shared().stats()
    }

    /// Writes the timeline that [`SchedulerBuilder::trace`] has kept; returns how many earlier entries were dropped.
    ///
    /// The file is for <https://ui.perfetto.dev> or `chrome://tracing`: JSON, with a track for each stream and for each
    /// range of SMs that launches had. A slice is a launch while it had the same SMs. Times count from the building of
    /// the scheduler. Submissions wait while the timeline is copied, about a millisecond if it is long, but not while
    /// it is written.
    ///
    /// ```
    /// # use preempt_device::prelude::*;
    /// # #[preemptible(block = 32)]
    /// # fn squares(out: SliceMut<u32>) {}
    /// let scheduler = preempt::Scheduler::builder().trace(10_000).build()?;
    /// # let (stream, mut out) = (scheduler.stream(0), scheduler.zeroed::<u32>(1000)?);
    /// stream.launch(squares(&mut out).threads(1000))?.wait()?;
    /// scheduler.synchronize()?;
    /// let path = std::env::temp_dir().join(format!("timeline-{}.json", std::process::id()));
    /// let dropped = scheduler.write_trace(&path)?;
    /// assert_eq!(dropped, 0);
    /// # let text = std::fs::read_to_string(&path).expect("written");
    /// # std::fs::remove_file(path).expect("there");
    /// # assert!(text.contains("squares"));
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SchedulerError::NoTrace`] if none is kept; [`SchedulerError::TraceNotWritten`].
    pub fn write_trace(&self, path: impl AsRef<Path>) -> Result<u64, Error> {
        let trace = self.shared().trace().ok_or(Error::Scheduler(SchedulerError::NoTrace))?;
        std::fs::write(path.as_ref(), trace.json()).map_err(|source| {
            let (path, source) = (path.as_ref().to_owned(), Arc::new(source));
            Error::Scheduler(SchedulerError::TraceNotWritten { path, source })
        })?;
        Ok(trace.dropped())
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.shared().device
    }

    /// The PTX of the kernels crate, or of the text, of this name, if the builder was given some.
    pub(crate) fn ptx(&self, name: &str) -> impl Iterator<Item = &str> {
        let sources = self.sources.iter().filter(move |source| source.name == name);
        sources.filter_map(Source::ptx).chain(self.foreign.text(name))
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.closer.shared
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler").field("device", self.device()).finish_non_exhaustive()
    }
}

/// Settings of a [`Scheduler`].
#[must_use = "settings do nothing until `build`"]
pub struct SchedulerBuilder {
    device: Option<Device>,
    policy: Option<Box<dyn Policy>>,
    predictor: Option<Box<dyn Predictor>>,
    code: Vec<DeviceCode>,
    texts: Texts,
    settings: Settings,
}

impl SchedulerBuilder {
    /// The device to run on. By default, [`Device::cpu`].
    pub fn device(mut self, device: Device) -> SchedulerBuilder {
        self.device = Some(device);
        self
    }

    /// The policy, which decides which launch runs on which SMs. By default, [`StaticPriority`] that
    /// [anticipates](StaticPriority::anticipating).
    pub fn policy(mut self, policy: impl Policy + 'static) -> SchedulerBuilder {
        self.policy = Some(Box::new(policy));
        self
    }

    /// The predictor of launches' times, for policies that look ahead. By default, [`Online`].
    pub fn predictor(mut self, predictor: impl Predictor + 'static) -> SchedulerBuilder {
        self.predictor = Some(Box::new(predictor));
        self
    }

    /// The device code of a kernels crate, from [`include_kernels!`](crate::include_kernels).
    /// A GPU needs it for every kernel that is launched; the CPU device does without.
    pub fn kernels(self, module: Module) -> SchedulerBuilder {
        self.add_code(DeviceCode::Embedded(module))
    }

    pub(crate) fn add_code(mut self, code: DeviceCode) -> SchedulerBuilder {
        self.code.push(code);
        self
    }

    /// The preemption of launches that do not [choose it](Call::preemption) themselves, and of
    /// [programs](crate::Program#preemption); by default, [`Preemption::Auto`].
    pub fn preemption(mut self, preemption: Preemption) -> SchedulerBuilder {
        self.settings.preemption = preemption;
        self
    }

    /// The longest launch that [`Preemption::Auto`] runs as a plain grid; 10 ms by default, and none with zero.
    ///
    /// No signal stops a plain grid: a cancelled one, and a scheduler that is closed, wait for its end. The device
    /// takes its SMs for more urgent launches all the same, at the ends of blocks. A stream can have a
    /// [limit](Stream::set_longest_plain) of its own.
    pub fn longest_plain(mut self, time: Duration) -> SchedulerBuilder {
        self.settings.longest_plain = time;
        self
    }

    /// How long an [armed](crate::Program::arm) program waits for its launch on the device; 1 ms by default, and 100 ms at
    /// most.
    ///
    /// Calls of the driver that wait for everything on the device (`cuMemFree`, `cuCtxSynchronize`, ..) wait for as long,
    /// whichever thread makes them, and so may the launch of an armed program where the scheduler is in such a call.
    pub fn armed_for(mut self, time: Duration) -> SchedulerBuilder {
        self.settings.armed_for = time.min(LONGEST_ARMED);
        self
    }

    /// What the device and its host take beside the kernels' work; by default, [what was measured](Device::costs) when the
    /// device was opened.
    ///
    /// Every rule of the scheduler that decides by time takes its times from here.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use preempt::{Costs, Scheduler};
    ///
    /// // A driver that launches blocks late: a decision waits for more messages.
    /// let costs = Costs { launch: Duration::from_micros(12), ..Costs::h200() };
    /// let scheduler = Scheduler::builder().costs(costs).build()?;
    /// # let _ = scheduler;
    /// # Ok::<(), preempt::Error>(())
    /// ```
    pub fn costs(mut self, costs: Costs) -> SchedulerBuilder {
        self.settings.costs = Some(costs);
        self
    }

    /// The path of signals that take SMs from running kernels; by default, [`SignalPath::Auto`].
    pub fn signal_path(mut self, path: SignalPath) -> SchedulerBuilder {
        self.settings.signal_path = path;
        self
    }

    /// Mebibytes of the GPU's memory for block-tasks that blocks leave at checkpoints, 256 by default;
    /// with 0, such kernels run to their end once they have started.
    ///
    /// The memory is reserved when the scheduler is built, and only if one of its [kernels](SchedulerBuilder::kernels) has
    /// a checkpoint. It has eight equal parts. A launch has one, from its start to its end, and a ninth such launch at the
    /// same time has none: its block-tasks run to their end, as do those that find the launch's part full. A block-task
    /// takes the threads of its block's warps times the size of a thread's state, rounded up to 16 bytes, plus 16, and the
    /// block's shared memory, until another block goes on with it. A launch whose block-tasks are larger than a part is
    /// refused with [`ConfigurationError::CheckpointMemory`](crate::error::ConfigurationError::CheckpointMemory).
    ///
    /// The CPU device takes the host's memory as it needs it, whatever is set here. 32760 MiB are the most that are used.
    ///
    /// ```
    /// let scheduler = preempt::Scheduler::builder().checkpoint_memory(64).build()?;
    /// # let _ = scheduler;
    /// # Ok::<(), preempt::Error>(())
    /// ```
    pub fn checkpoint_memory(mut self, mebibytes: u32) -> SchedulerBuilder {
        self.settings.checkpoint_memory = mebibytes;
        self
    }

    /// How long a thread in [`Handle::wait`] spins before it sleeps; 50 µs by default.
    ///
    /// A spinning thread drives the scheduler itself. This costs each waiting thread a processor for that time. In
    /// return, the thread learns of a launch that ends within it some ten microseconds earlier, because no thread has to
    /// wake it.
    pub fn wait_spin(mut self, time: Duration) -> SchedulerBuilder {
        self.settings.wait_spin = time;
        self
    }

    /// How long [`Scheduler::zeroed`] and [`Scheduler::buffer`] wait for memory; not at all by default.
    pub fn allocation_timeout(mut self, timeout: Duration) -> SchedulerBuilder {
        self.settings.patience.timeout = timeout;
        self
    }

    /// How many requests can wait for memory at the same time; 64 by default. A further request fails at once with
    /// [`MemoryError::QueueFull`](crate::error::MemoryError::QueueFull).
    pub fn allocation_queue(mut self, most: usize) -> SchedulerBuilder {
        self.settings.patience.most = most;
        self
    }

    /// Keeps a timeline for [`Scheduler::write_trace`]: the last `capacity` entries, of about 64 bytes each. A launch has
    /// four, and three more each time that SMs are taken from it and given back. By default, no timeline is kept.
    pub fn trace(mut self, capacity: usize) -> SchedulerBuilder {
        self.settings.trace = Some(capacity);
        self
    }

    /// How long the scheduler's poller thread spins after something happened, a launch or an end; a millisecond by default.
    /// Then it looks about every 50 µs while anything is in flight, and sleeps while nothing is. [`Duration::MAX`] is for as
    /// long as the scheduler lives.
    ///
    /// Spinning costs a processor for that time. In return, an urgent launch after a pause, be the GPU busy or idle, takes
    /// little more time than in a row: no thread has to be woken. Threads that come out of their sleep find cold caches, so the
    /// poller does their work, and it keeps its own caches warm: it goes through an urgent launch in the time of [a hundred
    /// decisions](Costs::decision), 100 µs, on a device where nothing runs. Without effect on the CPU device.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// // For requests that come a few times in a second, or more often.
    /// let scheduler = preempt::Scheduler::builder().poller_spin(Duration::from_secs(1)).build()?;
    /// # let _ = scheduler;
    /// # Ok::<(), preempt::Error>(())
    /// ```
    pub fn poller_spin(mut self, time: Duration) -> SchedulerBuilder {
        self.settings.poller_spin = time;
        self
    }

    /// Whether all submissions, reports and decisions are recorded, for [`Scheduler::recording`]; by default, none are.
    pub fn recording(mut self, records: bool) -> SchedulerBuilder {
        self.settings.recording = records;
        self
    }

    /// Builds the scheduler.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Taken`](crate::error::DeviceError::Taken) if the device has a scheduler, or
    /// [`DeviceError::Split`](crate::error::DeviceError::Split) if it has parts; [`ConfigurationError::Cost`] for a
    /// [cost](SchedulerBuilder::costs) of more than a day; [`CodeError`](crate::error::CodeError) for
    /// [kernels](SchedulerBuilder::kernels) that the GPU does not load, and for texts of [PTX](SchedulerBuilder::ptx);
    /// [`MemoryError::OutOfMemory`](crate::error::MemoryError::OutOfMemory) if there is no room for the
    /// [memory of checkpoints](SchedulerBuilder::checkpoint_memory); [`Error::Thread`] if the operating system gives no thread.
    /// On a GPU also errors of the driver.
    pub fn build(self) -> Result<Scheduler, Error> {
        if let Some(cost) =
            self.settings.costs.map(|costs| costs.longest()).filter(|&cost| cost > DAY)
        {
            return Err(Error::Configuration(ConfigurationError::Cost { cost }));
        }
        let foreign = Arc::new(ForeignTexts::new(self.texts)?);
        let device = match self.device {
            Some(device) => device,
            None => Device::cpu()?,
        };
        let policy = self.policy.unwrap_or_else(|| Box::new(StaticPriority::new().anticipating()));
        let predictor = self.predictor.unwrap_or_else(|| Box::new(Online::new()));
        let shared = Shared::start(device, policy, predictor, &self.code, self.settings)?;
        let sources = self.code.iter().map(DeviceCode::source).collect();
        let closer = Arc::new(Closer { shared });
        Ok(Scheduler { closer, streams: Arc::default(), sources, foreign })
    }
}

impl fmt::Debug for SchedulerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SchedulerBuilder")
            .field("device", &self.device)
            .field("kernels", &self.code)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Requests for memory, at most, that wait at the same time, unless the builder sets another bound.
const MAX_WAITING: usize = 64;
