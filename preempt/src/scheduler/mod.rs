//! The scheduler: threads, streams and handles around the engine.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `core` | the engine with its device: takes messages and reports in, acts, completes handles |
//! | `core/batching` | what it takes in, and when it decides meanwhile |
//! | `core/execute` | what it does on the device |
//! | `core/accounting` | what it enters into accounts, timeline and predictor |
//! | `completion` | the end of an operation, for the threads that wait for it |
//! | `memory` | the memory of a buffer, and the devices where its contents are valid |
//! | `moves` | contents that go from one device to another |
//! | `observed/accounts` | launches as they are counted |
//! | `observed/stats` | the counts, for users |
//! | `observed/trace` | a timeline of the SMs that launches had |
//! | `observed/telemetry` | the same for `tracing` and `metrics` |
//! | `combiner` | how one thread at a time runs it, and nothing is left behind |
//! | `shared` | who runs it when: submitting threads, waiting threads, the poller |
//! | `api/buffer` | arrays on devices |
//! | `api/stream` | launches and copies, and what is checked before they are taken in |
//! | `credits` | how many operations of a stream can be outstanding |
//! | `api/scope` | launches with borrowed arguments |
//! | `api/event` | order between streams |
//! | `opaque` | code of others that puts work into a stream of the device's own |
//! | `external` | work outside the scheduler and its device, in the order of a stream |
//! | `api/handle` | results |
//! | `estimated/forecast` | what launches are expected to take, and to take to yield |
//! | `estimated/estimates` | whether launches are over before they could be interrupted |
//! | `estimated/profile` | runs that are recorded for a predictor |
//! | `interleavings` | all of it, tested by shuttle in many interleavings |

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

#[cfg(doc)]
use preempt_device::host::BorrowingCall;
use preempt_device::host::Preemption;
use preempt_device::kernel::KernelArg;

use crate::device::{Device, Patience, SignalPath, Sleep};
use crate::error::{Error, SchedulerError};
use crate::module::{DeviceCode, Module, Source};
use crate::policy::{Policy, Priority, StaticPriority};
use crate::predict::{Online, Predictor};
use crate::recording::Recording;
use crate::sync::atomic::{AtomicU32, Ordering};

mod api;
mod estimated;
mod observed;
mod runtime;

pub use api::buffer::Buffer;
pub use api::event::Event;
pub use api::handle::{Handle, Output};
pub use api::scope::Scope;
pub use api::stream::Stream;
pub use observed::stats::{Decisions, Stats, StreamStats, Totals};
#[cfg(feature = "cust")]
pub(crate) use runtime::external::ExternalOperation;
pub use runtime::opaque::Opaque;
#[cfg(feature = "cust")]
pub(crate) use runtime::shared::Helper;
pub(crate) use runtime::shared::Shared;
use runtime::shared::{Closer, Settings};

/// Orders the launches and copies of all threads on one device.
///
/// Clones are the same scheduler. When the last one is dropped, what has not started is dropped, running kernels stop
/// at their next yield, and handles give
/// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped); call
/// [`synchronize`](Scheduler::synchronize) before to let everything finish. Dropping waits for the block-tasks that
/// run, but at most ten seconds; after that the device stays taken until they have ended.
///
/// ```
/// use preempt::{Device, Priority, Scheduler};
///
/// let scheduler = Scheduler::builder().device(Device::cpu(2, 1)?).build()?;
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
    /// Of the kernels that the builder was given, to know one build of them from another.
    sources: Arc<[Source]>,
}

impl Scheduler {
    /// A scheduler with settings to choose.
    pub fn builder() -> SchedulerBuilder {
        SchedulerBuilder {
            device: None,
            policy: None,
            predictor: None,
            code: Vec::new(),
            settings: Settings {
                spin: Duration::from_micros(50),
                busy_poll: false,
                preemption: Preemption::default(),
                signal_path: SignalPath::default(),
                record: false,
                patience: Patience { timeout: Duration::ZERO, most: MAX_WAITING },
                trace: None,
            },
        }
    }

    /// A stream: its launches and copies run in the order in which they are submitted. Launches
    /// of streams with a higher priority are more urgent.
    pub fn stream(&self, priority: impl Into<Priority>) -> Stream {
        // Relaxed: only the number counts.
        let id = self.streams.fetch_add(1, Ordering::Relaxed);
        Stream::new(self.shared().clone(), id, priority.into())
    }

    /// A buffer of `len` elements whose bytes are all 0.
    ///
    /// An operation may keep its buffers for a moment after its handle is done: until the device needs them no more.
    /// A thread that needs the memory of a buffer which it has dropped waits for it with
    /// [`zeroed_within`](Scheduler::zeroed_within).
    ///
    /// # Errors
    ///
    /// [`MemoryError::OutOfMemory`](crate::error::MemoryError::OutOfMemory), at once unless the builder was told to
    /// [wait](SchedulerBuilder::allocation_timeout); then as for [`zeroed_within`](Scheduler::zeroed_within).
    pub fn zeroed<T: KernelArg>(&self, len: usize) -> Result<Buffer<T>, Error> {
        self.zeroed_within(len, self.shared().patience.timeout)
    }

    /// A buffer of `len` elements whose bytes are all 0. If the device has no room for it, waits until others have
    /// dropped theirs, at most for `timeout` (EffiSha section 6.4).
    ///
    /// Requests are served in the order in which they came. While one waits, smaller ones that would fit have to wait
    /// as well, or fail if they do not wait, since they would keep a large one waiting for ever.
    ///
    /// A request that cannot succeed fails at once: one on a device without buffers that could be dropped, or one larger
    /// than all memory that could become free. A thread that waits for memory which it holds itself waits until the
    /// timeout: the scheduler cannot see that.
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
            Buffer::zeroed(self.device(), len, patience, poll)
        })
    }

    /// A buffer that holds a copy of `data`.
    ///
    /// # Errors
    ///
    /// As for [`zeroed`](Scheduler::zeroed).
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

    fn with_patience<R>(
        &self,
        timeout: Duration,
        allocate: impl FnOnce(Patience, Option<Sleep<'_>>) -> R,
    ) -> R {
        let shared = self.shared();
        let patience = Patience { timeout, ..shared.patience };
        // A waker that the poller calls may allocate: no other thread would see operations end, and free their memory.
        let poll = |condition: &dyn Fn() -> bool| shared.poll_while(condition);
        allocate(patience, shared.is_poller().then_some(&poll))
    }

    /// Waits until nothing is in flight, on any stream and of any thread.
    ///
    /// # Errors
    ///
    /// [`SchedulerError::PolicyReplaced`] if the policy answered nonsense at any time, or else
    /// [`SchedulerError::PredictorDropped`] if the predictor panicked. What went wrong
    /// with single operations is reported through their handles.
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

    /// What was submitted, reported and decided until now, if the builder [asked for it](SchedulerBuilder::record).
    pub fn recording(&self) -> Option<Recording> {
        self.shared().recording()
    }

    /// What was done since the scheduler was built: launches, their turnaround times and shares of the device, for
    /// each stream and priority, and what the scheduler's decisions took.
    pub fn stats(&self) -> Stats {
        self.shared().stats()
    }

    /// Writes the timeline that [`SchedulerBuilder::trace`] has kept, and says how many entries it had to drop before.
    ///
    /// The file is for <https://ui.perfetto.dev> or `chrome://tracing`: JSON, with a track for each stream and for each
    /// range of SMs that launches had. A slice is a launch while it had the same SMs. Times count from when the
    /// scheduler was built. What is submitted meanwhile waits while the timeline is copied, for a millisecond or so if
    /// it is long, and not while it is written.
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

    /// The PTX of the kernels crate of this name, if the builder was given some.
    pub(crate) fn ptx(&self, name: &str) -> impl Iterator<Item = &str> {
        self.sources.iter().filter(move |source| source.name == name).filter_map(Source::ptx)
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
    settings: Settings,
}

impl SchedulerBuilder {
    /// The device to run on. By default, a CPU device with one SM for each processor.
    pub fn device(mut self, device: Device) -> SchedulerBuilder {
        self.device = Some(device);
        self
    }

    /// Who runs on which SMs. By default, [`StaticPriority`].
    pub fn policy(mut self, policy: impl Policy + 'static) -> SchedulerBuilder {
        self.policy = Some(Box::new(policy));
        self
    }

    /// Who says how long launches take, for policies that look ahead. By default, [`Online`].
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

    /// How launches share the device that do not [say it](BorrowingCall::preemption) themselves; by default,
    /// all can be interrupted.
    pub fn preemption(mut self, preemption: Preemption) -> SchedulerBuilder {
        self.settings.preemption = preemption;
        self
    }

    /// How running kernels are told that SMs were taken from them; by stream writes if this is not called.
    pub fn signal_path(mut self, path: SignalPath) -> SchedulerBuilder {
        self.settings.signal_path = path;
        self
    }

    /// How long [`Handle::wait`] drives the scheduler itself before it sleeps; 50 µs by default.
    pub fn spin(mut self, time: Duration) -> SchedulerBuilder {
        self.settings.spin = time;
        self
    }

    /// How long [`Scheduler::zeroed`] and [`Scheduler::buffer`] wait for memory; not at all by default.
    pub fn allocation_timeout(mut self, timeout: Duration) -> SchedulerBuilder {
        self.settings.patience.timeout = timeout;
        self
    }

    /// How many requests can wait for memory at the same time; 64 by default. One more fails at once with
    /// [`MemoryError::QueueFull`](crate::error::MemoryError::QueueFull).
    pub fn allocation_queue(mut self, most: usize) -> SchedulerBuilder {
        self.settings.patience.most = most;
        self
    }

    /// Keeps a timeline for [`Scheduler::write_trace`]: its last `capacity` entries, of about 64 bytes each. A launch
    /// has four, and three more for each time that SMs are taken from it and given back. By default, none is kept.
    pub fn trace(mut self, capacity: usize) -> SchedulerBuilder {
        self.settings.trace = Some(capacity);
        self
    }

    /// Whether one thread of the scheduler spins as long as anything is in flight; by default it does
    /// so for a millisecond after something happened, and then looks every 50 µs or so.
    ///
    /// It costs a processor beside every long kernel. An urgent launch then takes as long after a
    /// pause as in a row: the threads that come out of their sleep find cold caches, and this one does
    /// their work. Without effect on the CPU device.
    pub fn busy_poll(mut self, spins: bool) -> SchedulerBuilder {
        self.settings.busy_poll = spins;
        self
    }

    /// Whether everything is recorded that is submitted, reported and decided, for
    /// [`Scheduler::recording`]; by default nothing is.
    pub fn record(mut self, records: bool) -> SchedulerBuilder {
        self.settings.record = records;
        self
    }

    /// The scheduler.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Taken`](crate::error::DeviceError::Taken) if the device has a scheduler; [`Error::Thread`] if
    /// the operating system gives no thread.
    pub fn build(self) -> Result<Scheduler, Error> {
        let device = match self.device {
            Some(device) => device,
            None => {
                let processors = std::thread::available_parallelism().map_or(1, usize::from);
                Device::cpu(processors.min(1024) as u32, 1)?
            }
        };
        let policy = self.policy.unwrap_or_else(|| Box::new(StaticPriority::new()));
        let predictor = self.predictor.unwrap_or_else(|| Box::new(Online::new()));
        let shared = Shared::start(device, policy, predictor, &self.code, self.settings)?;
        let sources = self.code.iter().map(DeviceCode::source).collect();
        Ok(Scheduler { closer: Arc::new(Closer { shared }), streams: Arc::default(), sources })
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

/// The most requests for memory that wait, unless the builder says otherwise.
const MAX_WAITING: usize = 64;
