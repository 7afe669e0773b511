//! Devices: what executes the engine's actions.
//!
//! An order of the engine goes down with its launch, and a report comes up with what was posted:
//!
//! ```text
//!   core (safe Rust)         orders, launches, signals, copies          reports
//!                                        │                                 ▲
//!   control                  Session: control blocks, posts, tickets, requeue lists, cohorts
//!                                        │ grids                           │ posts, faults, ends of copies
//!   back end                 cpu::CpuDevice      cuda::CudaDevice      cpu::model::Model (tests)
//! ```
//!
//! | file | |
//! | --- | --- |
//! | `backend` | the traits of a back end, and the types in them |
//! | `control` | what all back ends share: orders become grids, posts become reports |
//! | `news` | counts what happened, for threads that wait |
//! | `allocation` | waiting for memory, first come, first served |
//! | `rows` | the shape of a copy: rows of bytes, with gaps or without |
//! | `program` | calls that run one after the other as one launch |
//! | `cpu`, `cuda` | the back ends |
//! | `null` | a back end on which nothing runs, for decisions alone |
//! | `conformance` | checks of the contract below, on any of them |
//!
//! # The contract of a back end
//!
//! A new back end implements [`Backend`](backend::Backend), [`ControlSource`](control::ControlSource) and
//! [`DeviceMemory`](backend::DeviceMemory), says what it can do in [`Capabilities`](backend::Capabilities), and passes
//! `conformance`. It knows nothing of policies, streams of the application or handles.
//!
//! **Queues.** A device has the queues that its capabilities name, and no others are used. Grids of one queue run one
//! after the other, in the order in which they were launched. Those of different queues run at the same time as far as
//! there is room. Where blocks wait for room, blocks of queues of higher levels go first; no running block makes room for
//! another. How many blocks of a kernel an SM holds is [`occupancy`](backend::Backend::occupancy), and it must not
//! change while the device is loaded. Where blocks lie is the device's choice: a grant excludes SMs, it places nothing.
//!
//! **Cohorts and plain grids.** A cohort is a grid of the kernel's preemptible entry, one of whose parameters
//! [`control`] makes: before the kernel's own, or behind them where another compiler placed those. The back end fills in
//! two fields: where the queue's signal word is, and whether block-tasks of the kernel need a barrier between them. A plain
//! grid is the launch's own grid; behind its last block the back end posts that all block-tasks are done. A launch that is
//! refused leaves nothing in the queue, and later launches work.
//!
//! **Programs.** A program is a sequence of plain grids and copies on the device. [`prepare`](backend::Backend::prepare)
//! makes all that launching it takes. Launched, its calls run one after the other in the queue, each behind everything
//! that the one before it wrote. Behind the last one the back end posts. A call that fails is named in the fault, and the
//! calls behind it have no effect, or are lost with the device. Work of other libraries is called by `prepare` where it
//! can be captured, and otherwise at each launch. Of a preemptible program, the back end sees cohorts and copies alone, and
//! programs of one call where that is such work.
//!
//! **Signals.** A queue has one signal word, which its blocks read before each chunk and at yield points. Words of one queue
//! arrive in the order in which they were written. A word may arrive late, even after its cohort is out: words have
//! epochs, blocks ignore a word that is older than the one they were launched with, and so does the next cohort of the
//! queue. Nothing orders a signal and a launch in different queues; ownership of an SM passes when the signal is written,
//! and blocks that wait for room there are the reason why that is enough.
//!
//! **Gates.** A gate goes into an empty queue, before a cohort. That cohort, and those behind it, do not run before the
//! gate has left: because it was [opened](backend::Backend::open_gate), or [closed](backend::Backend::close_gate), or
//! has been there for its limit, whatever the host does. An open gate writes its ticket to the queue's word, which the
//! cohort looks at. Behind a gate that left otherwise, the cohort posts 0 block-tasks. Tickets of a queue grow. A call
//! for a gate that is gone does nothing to later ones, and each gate is either opened or closed: by [`control`], if the
//! cohort behind it is refused. An open gate also writes what it was to [tell](backend::Backend::hint), in the signal words
//! of other queues, where no newer word is. A gate needs no SM, but room for a block. Without room it leaves late, and what
//! is behind it waits for as long.
//!
//! **Posts.** The last block of a cohort writes its post, behind everything that the cohort's block-tasks wrote. Once the
//! host reads the ticket in the post, all of that is visible to the host's copies and to every later launch. A fault is
//! reported no later than the post of its cohort can be read, so [`control`] reads posts first and asks for faults
//! then. A post is read again and again until it shows its ticket; back ends never interpret it. A post may be
//! readable before that of an earlier grid of its queue, since a back end may write those of plain grids late. So [`control`]
//! reports no end before all earlier grids of its queue were seen to be over. Of ends that it sees together, the last one of a
//! queue comes first.
//!
//! **Which calls may block.** [`load`](backend::Backend::load), which runs before anything is in flight, and
//! [`opaque`](backend::Backend::opaque), which has a thread of its own. So may
//! [`allocate_host`](backend::DeviceMemory::allocate_host), [`fill`](backend::DeviceMemory::fill),
//! [`prepare`](backend::Backend::prepare), [`prepare_chains`](backend::Backend::prepare_chains),
//! [`split`](backend::Backend::split), [`await_unseen`](backend::ForeignMemory::await_unseen) and
//! [`await_events`](backend::ForeignStreams::await_events), which threads of the application call without the core, and
//! [`load_foreign`](backend::Backend::load_foreign), which holds the core while nothing is in flight.
//! [`wait`](backend::Backend::wait) waits for as long as it is told. No other method waits for work on the device:
//! they are called by a thread that holds the core, and all other threads would wait with it. There are three exceptions.
//! [`new_control`](control::ControlSource::new_control) may wait for kernels that end by themselves, once the control blocks
//! of the start are used up. [`expect_signals`](backend::Backend::expect_signals) may wait for the device's own block, for a
//! tenth of a second at most, and [`signal`](backend::Backend::signal) for a tenth of a millisecond. `launch`, `signal` and
//! `poll` allocate nothing once their books have grown, and take no lock that a waiting thread holds for longer than a look.
//!
//! **Waiting.** One count of news belongs to the device ([`News`](news::News)). A thread takes a mark, has a turn of
//! the core look at everything, and waits from the mark. A back end announces its reports and posts after it has made
//! them; a polled one looks for posts itself, inside `wait`. No wake-up is lost: the look sees what came before it, and
//! what comes after the mark ends the wait. `wait` also asks a device that does not announce its faults; no other call
//! has that duty.
//!
//! **Who frees what.** Control blocks and posts are the back end's. They stay valid and in place until it is loaded
//! for the next scheduler, because late blocks of a cohort that has posted may still read them. `load` zeroes them and
//! the signal words, because the next scheduler counts epochs and tickets from the start. Requeue lists are lent to
//! one launch and come back when it has retired, with or without chunks on them; a list is lent again only when it is
//! empty. Memory of buffers is freed once, when no operation uses it, and its contents are zeroed before it is lent
//! again, unless the request takes any. Host memory is freed in the same way, and always zeroed. What a copy reads and
//! writes is kept by [`Session`] until the end of the copy is reported.
//!
//! **Peers.** A device may read what another one has allocated ([`reads`](backend::DeviceMemory::reads)). The device that
//! gets the contents carries out that copy, and reports it like any other.
//!
//! **Loss.** When the device is lost, the back end reports that once, and nothing afterwards: no post, no end of a copy.
//! A panic that ended it is a part of the report, with the launch that it was in as far as the device knows.
//! Calls fail with [`DeviceError::ContextLost`] and touch no memory of operations from the report on. Nothing is freed that
//! the device may still use.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Duration;

use preempt_device::abi::MAX_SMS;

use crate::error::{DeviceError, Error};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock};
use crate::vocabulary::Costs;

mod allocation;
mod backend;
#[cfg(any(all(test, not(shuttle)), feature = "fault-injection"))]
pub mod conformance;
mod control;
mod cpu;
mod cpu_layout;
mod cuda;
mod news;
mod null;
mod program;
mod rows;

pub(crate) use allocation::{Allocations, Patience, Sleep};
pub(crate) use backend::{
    Backend, Contents, Copy, CopyKind, ForeignStreams, Gate, KernelLaunch, Occupancy, OpaqueWork,
    OwnedCopy, Owner,
};
use backend::{
    Capabilities, DeviceMemory, DeviceReport, ForeignMemory, KernelPanic, Loss, Piece, Place,
    spares_a_place,
};
pub use backend::{RawStream, SignalPath};
pub(crate) use control::{CohortEnd, Overdue, Report, Session, shown_by};
#[cfg(test)]
pub(crate) use cpu::model;
pub use cpu_layout::CpuLayout;
#[cfg(feature = "fault-injection")]
pub use cuda::faults;
pub(crate) use news::{Mark, News};
pub(crate) use null::NullBackend;
pub(crate) use program::{Captured, Chains, ProgramLaunch, Step};
pub(crate) use rows::Rows;

/// A device that a scheduler can run on. Clones are the same device.
#[derive(Clone)]
pub struct Device {
    pub(crate) inner: Arc<DeviceInner>,
}

pub(crate) struct DeviceInner {
    pub backend: Arc<dyn Backend>,
    pub properties: Properties,
    pub capabilities: Capabilities,
    /// Counts what happened on the device, and around it.
    pub news: Arc<News>,
    /// The use of its memory, and the requests that wait for some.
    pub allocations: Arc<Allocations>,
    /// Tells buffers of one device from those of another.
    pub id: u64,
    /// Whether a scheduler has the device, or its parts.
    taken: AtomicBool,
    /// Whether the parts have it, or had it last.
    is_split: AtomicBool,
    /// The device's last scheduler; the layer above knows its type.
    pub scheduler: Mutex<Option<Weak<dyn Any + Send + Sync>>>,
    /// The device that it is a part of. The back end keeps that, too, since buffers can outlive this.
    whole: Option<Arc<Whole>>,
}

/// The longest that a split device is waited for: threads of schedulers that were dropped may have its parts a moment longer.
const LAST_PARTS: Duration = Duration::from_millis(500);

/// A device that was split. It is given back when its last part is dropped.
struct Whole(Device);

impl Drop for Whole {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

/// The properties of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Properties {
    /// The device's name.
    pub name: String,
    /// The GPU's compute capability, major and minor number; `None` for the CPU device.
    pub compute_capability: Option<(u32, u32)>,
    /// Kilohertz: the greatest clock rate of the SMs. Threads of the CPU device read a clock of 1 GHz, whatever runs them.
    pub clock_khz: u32,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Blocks that an SM can hold, if they are small enough.
    pub blocks_per_sm: u32,
    /// Threads that an SM can hold.
    pub threads_per_sm: u32,
    /// Bytes of shared memory of an SM.
    pub shared_per_sm: u32,
    /// Bytes of shared memory that one block can have.
    pub shared_per_block: u32,
    /// The version of the GPU's driver; `None` for a device without one.
    pub driver: Option<String>,
}

/// Bytes of a device's memory; see [`Device::memory`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MemoryInfo {
    /// Bytes that new buffers can have at this moment. A single buffer may have less, because free memory is in pieces.
    pub free: usize,
    /// Bytes in all.
    pub total: usize,
}

/// What blocks of a kernel take of an SM, in each of its forms; see [`Scheduler::footprint`](crate::Scheduler::footprint).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Footprint {
    /// As a plain grid.
    pub plain: FormFootprint,
    /// In the preemptible form; the same for a kernel without one.
    pub preemptible: FormFootprint,
}

/// What blocks of a kernel take of an SM in one form. On the CPU device all but the number of blocks is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct FormFootprint {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of local memory of a thread: its stack, and registers that were spilled.
    pub local_bytes: u32,
    /// Bytes of shared memory of a block.
    pub shared_bytes: u32,
    /// Blocks that an SM holds.
    pub blocks_per_sm: u32,
}

impl Device {
    /// An emulated GPU on host threads, with one SM for each processor, which holds one block.
    ///
    /// It runs the same expanded kernels and the same worker loop as a GPU, and finds mistakes
    /// that a GPU hides: threads that disagree about a barrier or meet at different ones, and reads of
    /// shared memory that no thread wrote. Each resident block is one host thread; more blocks than processors only
    /// share these. A GPU thread has a stack of one mebibyte.
    ///
    /// ```
    /// let device = preempt::Device::cpu()?;
    /// assert!(device.properties().sms >= 1);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] if the operating system gives no more threads.
    pub fn cpu() -> Result<Device, Error> {
        Device::cpu_with(CpuLayout::default())
    }

    /// An emulated GPU like [`cpu`](Device::cpu)'s, of another layout.
    ///
    /// ```
    /// use preempt::{CpuLayout, Device};
    ///
    /// let device = Device::cpu_with(CpuLayout::sms(4).blocks_per_sm(2))?;
    /// assert_eq!(device.properties().sms, 4);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`DeviceError::BadDevice`] for 0 or too many SMs or blocks; [`Error::Thread`] if the operating system gives no
    /// more threads.
    pub fn cpu_with(layout: CpuLayout) -> Result<Device, Error> {
        let CpuLayout { sms, blocks_per_sm, memory, has_peers } = layout;
        if !(1..=MAX_SMS).contains(&sms) || !(1..=32).contains(&blocks_per_sm) {
            return Err(Error::Device(DeviceError::BadDevice {
                sms,
                blocks_per_sm,
                max_sms: MAX_SMS,
            }));
        }
        let properties = cpu::properties(sms, blocks_per_sm);
        Ok(Device::new(cpu::piece(properties, memory, has_peers)?, None))
    }

    /// The `ordinal`th NVIDIA GPU, as CUDA counts them (`CUDA_VISIBLE_DEVICES` hides some and orders
    /// the others).
    ///
    /// The driver is looked for at run time, so one binary runs with a GPU and without. The device lives in the GPU's
    /// primary context, as applications on the CUDA runtime, `cust` and `cudarc` do. While it lives, further calls for
    /// this ordinal return the same device. Kernels need their PTX, from
    /// [`SchedulerBuilder::kernels`](crate::SchedulerBuilder::kernels).
    ///
    /// Ask for it before the application launches kernels of its own that stay on the GPU: setting up a
    /// device waits for those.
    ///
    /// ```
    /// use preempt::{Device, Error};
    ///
    /// let device = match Device::cuda(0) {
    ///     Ok(gpu) => gpu,
    ///     Err(error) => {
    ///         eprintln!("{error}; going on without a GPU");
    ///         Device::cpu()?
    ///     }
    /// };
    /// println!("{}", device.properties().name);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoDriver`], [`DeviceError::DriverTooOld`] or [`DeviceError::DriverStart`] for faults of the
    /// driver; [`DeviceError::NoGpu`] if there are fewer GPUs; [`DeviceError::Unsupported`] for a GPU of before 2020,
    /// or a part of a GPU whose SMs are numbered with gaps; [`DeviceError::ContextLost`] after a fault on this GPU in
    /// this process; [`DeviceError::Driver`] for other refusals of the driver.
    pub fn cuda(ordinal: u32) -> Result<Device, Error> {
        cuda::open(ordinal)
    }

    /// The GPU whose primary context this is.
    ///
    /// # Safety
    ///
    /// It is a `CUcontext` of this process that is not destroyed.
    pub(crate) unsafe fn of_context(context: *mut c_void) -> Result<Device, Error> {
        // SAFETY: the caller's promise.
        unsafe { cuda::open_context(context) }
    }

    /// The number of NVIDIA GPUs that [`Device::cuda`] can open, 0 without a driver.
    ///
    /// The driver is asked. No device is set up, and kernels that run are not waited for.
    ///
    /// ```
    /// use preempt::Device;
    ///
    /// for ordinal in 0..Device::count()? {
    ///     let gpu = Device::cuda(ordinal)?;
    ///     println!("{ordinal}: {}", gpu.properties().name);
    /// }
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`DeviceError::DriverTooOld`], [`DeviceError::DriverStart`] or [`DeviceError::Driver`] for a driver that does
    /// not work.
    #[doc(alias = "cudaGetDeviceCount")]
    pub fn count() -> Result<u32, Error> {
        cuda::count()
    }

    /// The free memory of the device, and all of it.
    ///
    /// On a GPU this is the driver's answer (`cuMemGetInfo`), plus memory of dropped buffers, which the device keeps for
    /// new ones. Other processes change it at any time. The call takes the driver microseconds, and it waits for no
    /// kernel. On the CPU device it is the limit of its [layout](CpuLayout::memory), or the host's memory
    /// where the operating system tells (Linux), or else all that can be addressed.
    ///
    /// ```
    /// use preempt::{CpuLayout, Device, Scheduler};
    ///
    /// let device = Device::cpu_with(CpuLayout::sms(2).memory(4096))?;
    /// let scheduler = Scheduler::builder().device(device.clone()).build()?;
    /// let _buffer = scheduler.zeroed::<u8>(1000)?;
    /// let memory = device.memory()?;
    /// assert_eq!((memory.free, memory.total), (3096, 4096));
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`DeviceError::Driver`] or [`DeviceError::ContextLost`].
    #[doc(alias = "cudaMemGetInfo")]
    pub fn memory(&self) -> Result<MemoryInfo, Error> {
        self.inner.backend.memory().info()
    }

    /// Whether contents of buffers come from `peer` directly, not through the host's memory.
    ///
    /// GPUs read each other's memory where the driver can, over NVLink or PCIe. The driver lets them when the later
    /// one is opened, or when a scheduler starts on either, and nothing runs on both: it might wait for kernels. The first
    /// use is a copy whose result is compared. CPU devices read each other's memory, unless their
    /// [layout](CpuLayout::without_peers) says otherwise.
    ///
    /// ```
    /// use preempt::{CpuLayout, Device};
    ///
    /// let (one, other) = (Device::cpu()?, Device::cpu()?);
    /// assert!(one.can_access_peer(&other));
    /// let apart = Device::cpu_with(CpuLayout::sms(1).without_peers())?;
    /// assert!(!one.can_access_peer(&apart));
    /// # Ok::<(), preempt::Error>(())
    /// ```
    #[doc(alias = "cudaDeviceCanAccessPeer")]
    pub fn can_access_peer(&self, peer: &Device) -> bool {
        self.inner.backend.memory().reads(peer.inner.backend.memory().place())
    }

    /// Splits the device into this number of equal parts, each a device of its own: with its own scheduler and policy, with
    /// its own part of the SMs, and with an equal share of the memory. Until the last of the parts is dropped, the whole device
    /// has no scheduler.
    ///
    /// What is launched on a part stays on its SMs, also plain grids, programs and opaque work of other libraries. On a GPU,
    /// parts are CUDA's green contexts, which come in steps of SMs (8 on an H200, which makes four parts of 32 of its 132);
    /// SMs that are left over are not used. Of two parts, one does not delay the other's launches, but both use the same
    /// caches, memory and copy engines. A fault in a kernel ends all of them. Streams, events and memory of other libraries
    /// belong to the whole device, and are refused on a part. Signals are [stream writes](SignalPath::Auto) there.
    ///
    /// Ask for the parts' schedulers together, and drop them together: on a GPU, to build one waits for kernels of the others, and
    /// so does the drop of a part. A buffer keeps its part, and that the whole device.
    ///
    /// ```
    /// use preempt::{CpuLayout, Device, Scheduler};
    ///
    /// let device = Device::cpu_with(CpuLayout::sms(4).memory(1 << 20))?;
    /// let parts = device.split(2)?;
    /// for part in &parts {
    ///     assert_eq!((part.properties().sms, part.memory()?.total), (2, 1 << 19));
    ///     let scheduler = Scheduler::builder().device(part.clone()).build()?;
    /// #   let _ = scheduler;
    /// }
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`DeviceError::NotSplit`] for no part, for more than the device makes, for a driver before CUDA 12.4, and for a part;
    /// [`DeviceError::Taken`] or [`DeviceError::Split`] while it has a scheduler or parts; as [`Device::cuda`]. A scheduler on a
    /// part of a GPU refuses PTX that asks for its SM in another way than `mov` from `%smid`
    /// ([`CodeError::NotLoaded`](crate::error::CodeError::NotLoaded)).
    pub fn split(&self, parts: u32) -> Result<Vec<Device>, Error> {
        if self.inner.whole.is_some() {
            let reason = "it is a part already: split the whole device into more".into();
            return Err(Error::Device(DeviceError::NotSplit { parts, reason }));
        }
        self.take()?;
        let whole = Arc::new(Whole(self.clone()));
        let pieces = self.inner.backend.split(&self.inner.properties, parts)?;
        // Relaxed, here and in `take`: it says how long `take` waits, and how its error is worded. The parts themselves are
        // ordered by `taken`.
        self.inner.is_split.store(true, Ordering::Relaxed);
        Ok(pieces.into_iter().map(|piece| Device::new(piece, Some(whole.clone()))).collect())
    }

    /// The device that this is a [part](Device::split) of, if it is one.
    pub fn whole(&self) -> Option<&Device> {
        self.inner.whole.as_deref().map(|Whole(whole)| whole)
    }

    fn new(piece: Piece, whole: Option<Arc<Whole>>) -> Device {
        // Relaxed below: only the number counts.
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let Piece { backend, properties, capabilities, news } = piece;
        if let Some(whole) = &whole {
            backend.keep(whole.clone());
        }
        Device {
            inner: Arc::new(DeviceInner {
                backend,
                properties,
                capabilities,
                news,
                allocations: Arc::default(),
                id,
                taken: AtomicBool::new(false),
                is_split: AtomicBool::new(false),
                scheduler: Mutex::new(None),
                whole,
            }),
        }
    }

    /// The properties of the device.
    #[doc(alias = "cudaGetDeviceProperties")]
    pub fn properties(&self) -> &Properties {
        &self.inner.properties
    }

    /// Whether it is a GPU, or a part of one.
    #[cfg(target_os = "linux")]
    pub(crate) fn is_gpu(&self) -> bool {
        self.inner.properties.compute_capability.is_some()
    }

    /// What the device and its host take beside the kernels' work. On a GPU, what launches, stops, reports and claims take
    /// was measured when it was opened, within [milliseconds](Device::measuring_costs). What the host alone decides
    /// ([`decision`](Costs::decision), [`absence`](Costs::absence)), and everything of the CPU device, is [as on an H200](Costs::h200).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use preempt::{Costs, Device, Scheduler};
    ///
    /// let device = Device::cpu()?;
    /// // The host is often busy elsewhere: more work is queued ahead.
    /// let costs = Costs { absence: Duration::from_micros(200), ..device.costs() };
    /// let scheduler = Scheduler::builder().device(device).costs(costs).build()?;
    /// # let _ = scheduler;
    /// # Ok::<(), preempt::Error>(())
    /// ```
    pub fn costs(&self) -> Costs {
        self.inner.capabilities.costs
    }

    /// How long it took to measure the [costs](Device::costs) when the device was opened; `None` of the CPU device, where
    /// nothing is measured. A part of a split GPU measures its own.
    ///
    /// ```
    /// assert_eq!(preempt::Device::cpu()?.measuring_costs(), None);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    pub fn measuring_costs(&self) -> Option<Duration> {
        self.inner.capabilities.measuring
    }

    /// Takes the device for one scheduler.
    // Acquire, with the release in `give_back`: what the last scheduler did to the device is done.
    pub(crate) fn take(&self) -> Result<(), Error> {
        let start = std::time::Instant::now();
        while self.inner.taken.swap(true, Ordering::Acquire) {
            if !self.inner.is_split.load(Ordering::Relaxed) {
                return Err(Error::Device(DeviceError::Taken));
            }
            if start.elapsed() > LAST_PARTS {
                return Err(Error::Device(DeviceError::Split));
            }
            std::thread::sleep(LAST_PARTS / 500);
        }
        self.inner.is_split.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Gives the device back.
    pub(crate) fn give_back(&self) {
        self.inner.taken.store(false, Ordering::Release);
    }
}

impl DeviceInner {
    /// The start of another library's allocation that contains all these bytes, if there is one.
    pub fn allocation(&self, address: u64, bytes: usize) -> Result<Option<u64>, Error> {
        let Some(foreign) = self.backend.memory().foreign() else { return Ok(None) };
        let Some(allocation) = foreign.allocation(address)? else { return Ok(None) };
        let Some(end) = address.checked_add(bytes as u64) else { return Ok(None) };
        let is_inside = allocation.start <= address && end <= allocation.end;
        Ok(is_inside.then_some(allocation.start))
    }

    /// A mark to [wait](DeviceInner::wait) from.
    pub fn mark(&self) -> Mark {
        self.news.mark()
    }

    /// Ends all waits: something happened that the device does not know of.
    pub fn announce(&self) {
        self.news.announce();
    }

    /// Waits until something may have happened since the mark, or for `timeout`; looks for faults meanwhile.
    pub fn wait(&self, since: Mark, timeout: Duration) {
        self.backend.wait(since, timeout);
    }

    /// Waits for fills and copies of other libraries that still run although their calls have returned.
    pub fn await_unseen(&self) -> Result<(), Error> {
        self.backend.memory().foreign().map_or(Ok(()), |foreign| foreign.await_unseen())
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.inner.properties.name).finish()
    }
}
