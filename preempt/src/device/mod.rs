//! Devices: what executes the engine's actions.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Duration;

use preempt_device::abi::{Cohort, ControlBlock, DropList, MAX_SMS, Post, Signal};
use preempt_device::host::{Args, Dim3, Kernel};

use crate::engine::OpKey;
use crate::error::Error;
use crate::module::DeviceCode;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

mod allocation;
mod cpu;
mod cuda;

pub(crate) use allocation::{Allocations, Patience, Sleep};
#[cfg(all(test, shuttle))]
pub(crate) use cpu::model;
#[cfg(feature = "fault-injection")]
pub use cuda::faults;

/// A device that a scheduler can run on. Clones are the same device.
#[derive(Clone)]
pub struct Device {
    pub(crate) inner: Arc<DeviceInner>,
}

pub(crate) struct DeviceInner {
    pub backend: Arc<dyn Backend>,
    pub properties: Properties,
    /// Who has its memory, and who waits for some.
    pub allocations: Arc<Allocations>,
    /// Tells buffers of one device from those of another.
    pub id: u64,
    /// Whether a scheduler has the device.
    taken: AtomicBool,
    /// The last scheduler that the device had; the layer above knows its type.
    pub scheduler: Mutex<Option<Weak<dyn Any + Send + Sync>>>,
    /// The application's context, if it uses `cust`.
    #[cfg(feature = "cust")]
    pub cust: std::sync::OnceLock<Arc<cust::context::Context>>,
}

/// What a device is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Properties {
    /// The device's name.
    pub name: String,
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

impl Device {
    /// An emulated GPU on host threads, with `sms` SMs that hold `blocks_per_sm` blocks each.
    ///
    /// It runs the same expanded kernels and the same worker loop as a GPU, and finds mistakes
    /// that a GPU hides: threads that disagree about a barrier or meet at different ones, and reads of
    /// shared memory that no thread wrote. Each resident block is one host thread; more blocks than processors only
    /// share these. A GPU thread has a stack of one mebibyte.
    ///
    /// ```
    /// let device = preempt::Device::cpu(4, 2)?;
    /// assert_eq!(device.properties().sms, 4);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::BadDevice`] for 0 or too many SMs or blocks; [`Error::Thread`] if the operating
    /// system gives no more threads.
    pub fn cpu(sms: u32, blocks_per_sm: u32) -> Result<Device, Error> {
        Device::cpu_with(sms, blocks_per_sm, None)
    }

    /// The same with so many bytes of memory for buffers, to try out what an application does when there is no more.
    ///
    /// # Errors
    ///
    /// As for [`cpu`](Device::cpu).
    pub fn cpu_with_memory(sms: u32, blocks_per_sm: u32, bytes: usize) -> Result<Device, Error> {
        Device::cpu_with(sms, blocks_per_sm, Some(bytes))
    }

    fn cpu_with(sms: u32, blocks_per_sm: u32, memory: Option<usize>) -> Result<Device, Error> {
        if !(1..=MAX_SMS).contains(&sms) || !(1..=32).contains(&blocks_per_sm) {
            return Err(Error::BadDevice { sms, blocks_per_sm, max_sms: MAX_SMS });
        }
        let properties = Properties {
            name: format!("CPU device, SMs: {sms}, blocks per SM: {blocks_per_sm}"),
            sms,
            blocks_per_sm,
            threads_per_sm: 2048,
            shared_per_sm: 228 << 10,
            shared_per_block: 227 << 10,
            driver: None,
        };
        let backend = Arc::new(cpu::CpuDevice::new(&properties, memory)?);
        Ok(Device::new(backend, properties))
    }

    /// The `ordinal`th NVIDIA GPU, as CUDA counts them (`CUDA_VISIBLE_DEVICES` hides some and orders
    /// the others).
    ///
    /// The driver is looked for at run time, so one binary runs with a GPU and without. The device
    /// lives in the GPU's primary context, as applications on the CUDA runtime, `cust` and `cudarc` do,
    /// and is the same one for everyone who asks for this ordinal while it lives. Kernels need their
    /// PTX, from [`SchedulerBuilder::kernels`](crate::SchedulerBuilder::kernels).
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
    ///         Device::cpu(4, 2)?
    ///     }
    /// };
    /// println!("{}", device.properties().name);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoDriver`], [`Error::DriverTooOld`] or [`Error::DriverStart`] if it is the driver;
    /// [`Error::NoGpu`] if there are fewer GPUs; [`Error::DeviceUnsupported`] for a GPU of before
    /// 2020, or a part of one whose SMs are numbered with gaps; [`Error::ContextLost`] after a fault
    /// on this GPU in this process; [`Error::Driver`] for what the driver refuses besides.
    pub fn cuda(ordinal: u32) -> Result<Device, Error> {
        cuda::open(ordinal)
    }

    fn new(backend: Arc<dyn Backend>, properties: Properties) -> Device {
        // Relaxed below: only the number counts.
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let taken = AtomicBool::new(false);
        Device {
            inner: Arc::new(DeviceInner {
                backend,
                properties,
                allocations: Arc::default(),
                id,
                taken,
                scheduler: Mutex::new(None),
                #[cfg(feature = "cust")]
                cust: std::sync::OnceLock::new(),
            }),
        }
    }

    /// What the device is made of.
    pub fn properties(&self) -> &Properties {
        &self.inner.properties
    }

    /// Takes the device for one scheduler.
    // Acquire, with the release in `give_back`: what the last scheduler did to the device is done.
    pub(crate) fn take(&self) -> Result<(), Error> {
        match self.inner.taken.swap(true, Ordering::Acquire) {
            true => Err(Error::DeviceTaken),
            false => Ok(()),
        }
    }

    /// Gives the device back.
    pub(crate) fn give_back(&self) {
        self.inner.taken.store(false, Ordering::Release);
    }
}

impl DeviceInner {
    /// Where the allocation starts that all these bytes lie in, if somebody else made one there.
    pub fn allocation(&self, address: u64, bytes: usize) -> Result<Option<u64>, Error> {
        let Some(foreign) = self.backend.foreign() else { return Ok(None) };
        let Some(allocation) = foreign.allocation(address)? else { return Ok(None) };
        let Some(end) = address.checked_add(bytes as u64) else { return Ok(None) };
        let is_inside = allocation.start <= address && end <= allocation.end;
        Ok(is_inside.then_some(allocation.start))
    }

    /// Waits for fills and copies of others that are under way although the calls have returned.
    pub fn await_unseen(&self) -> Result<(), Error> {
        self.backend.foreign().map_or(Ok(()), |foreign| foreign.await_unseen())
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.inner.properties.name).finish()
    }
}

/// What a device has to know of a launch, beside what is in each cohort.
#[derive(Clone, Debug)]
pub(crate) struct KernelLaunch {
    pub kernel: &'static Kernel,
    pub args: Args,
    pub block: Dim3,
}

/// How many blocks of a kernel an SM holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Occupancy {
    /// Not even one if it is 0.
    pub blocks_per_sm: u32,
    /// On the last SM of the device, where a block of the device's own may be, too.
    pub on_last_sm: u32,
}

/// How a running kernel is told that SMs were taken from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum SignalPath {
    /// By a write that a stream of the GPU does: about 5 µs, and nothing is resident.
    #[default]
    StreamWrite,
    /// By a resident warp that reads the host's memory and carries each word over (EffiSha section 4.1): 2 µs or
    /// so. It takes a block's place on one SM while anything is in flight, reads over the bus all the time, and the
    /// first launch after a pause waits 10 µs for it. Kernels whose one block fills an SM are refused. The CPU
    /// device needs neither.
    Proxy,
}

/// A launch as a plain grid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainLaunch {
    /// Block-tasks in x, y and z, and in all.
    pub extents: [u32; 3],
    pub tasks: u32,
    pub post: *const Post,
    pub ticket: u32,
}

/// A stream of the device's own API, for [opaque work](crate::Stream::opaque).
#[derive(Clone, Copy, Debug)]
pub struct RawStream(*mut c_void);

impl RawStream {
    /// Of a device whose API has no streams.
    const NONE: RawStream = RawStream(ptr::null_mut());

    fn new(stream: *mut c_void) -> RawStream {
        RawStream(stream)
    }

    /// The `CUstream` (a `cudaStream_t`, too), in the device's primary context; `None` on the CPU device. It is the
    /// scheduler's: do not destroy it, and use it only while the work is called.
    pub fn as_raw(self) -> Option<*mut c_void> {
        (!self.0.is_null()).then_some(self.0)
    }
}

/// Work of others: puts something into the stream that it is given. What went wrong, if something did; it does not
/// panic.
pub(crate) type OpaqueWork = Box<dyn FnOnce(RawStream) -> Result<(), String> + Send>;

/// A copy between the device and the host, or on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub kind: CopyKind,
    pub from: u64,
    pub to: u64,
    pub bytes: usize,
}

/// Which side of a copy is where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CopyKind {
    ToDevice,
    ToHost,
    OnDevice,
}

/// A launch's words in memory that the device keeps until it is loaded for its next scheduler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ControlMemory {
    pub control: *const ControlBlock,
    /// One post for each cohort slot.
    pub posts: *const [Post; preempt_device::abi::COHORT_SLOTS],
}

// SAFETY: the memory is shared between threads through atomics only.
unsafe impl Send for ControlMemory {}

/// What a device reports, beside the posts of cohorts.
#[derive(Debug)]
pub(crate) enum Report {
    /// A copy is over, or opaque work.
    CopyDone(OpKey),
    /// A launch, a copy or opaque work went wrong; it still ends.
    Fault(OpKey, Arc<str>),
    /// The device is lost to this process: nothing that it was given ends, or is reported, any more.
    Lost(Arc<str>),
}

/// How many queues a device has. The first ones are `normal`; the others are `urgent`: the device
/// prefers blocks in them to blocks in normal queues, where both wait for room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QueueCount {
    pub normal: u32,
    pub urgent: u32,
    /// How many queues can hold more than one cohort at the same time. A GPU has few hardware queues,
    /// and a queue in which something waits takes one; without one, nothing else gets through.
    pub chains: u32,
}

/// A list for dropped chunks, in memory that the device keeps until it has it back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drops(pub *const DropList);

// SAFETY: the memory is shared between threads through atomics only.
unsafe impl Send for Drops {}

/// Memory that others have allocated on a device, and what they do there.
pub(crate) trait ForeignMemory {
    /// The allocation that an address lies in, if somebody else made one there that kernels can use.
    fn allocation(&self, address: u64) -> Result<Option<Range<u64>>, Error>;

    /// Waits for work of others that they need not have waited for, and no launch would.
    fn await_unseen(&self) -> Result<(), Error>;

    /// From now on others have the memory that `allocate` gave at this address.
    #[cfg_attr(not(feature = "cust"), allow(dead_code, reason = "`cust` is given some"))]
    fn give_away(&self, address: u64);

    /// From now on they do not.
    #[cfg_attr(not(feature = "cust"), allow(dead_code, reason = "`cust` is given some"))]
    fn take_back(&self, address: u64);
}

/// The part of a device that differs between kinds. All methods can be called from any thread;
/// actions of one operation come in the engine's order.
pub(crate) trait Backend: Send + Sync {
    /// Makes kernels known, before anything runs.
    fn load(&self, code: &[DeviceCode]) -> Result<(), Error>;

    /// The queues that there are. Cohorts in one queue run one after the other, in the order in which
    /// they were launched; those in different queues run at the same time, as far as there is room.
    fn queues(&self) -> QueueCount;

    /// A time in units of the clock that blocks read.
    fn ticks(&self, time: Duration) -> u32;

    /// Blocks of this kernel that one SM holds.
    fn occupancy(&self, kernel: &'static Kernel, block: Dim3) -> Result<Occupancy, Error>;

    /// How signals get to the device, from now on. Nothing runs.
    fn set_signal_path(&self, path: SignalPath);

    /// Nothing is in flight.
    fn rest(&self);

    /// A zeroed control block and its posts.
    fn new_control(&self) -> Result<ControlMemory, Error>;

    /// An empty list for dropped chunks.
    fn take_drops(&self) -> Result<Drops, Error>;

    /// Takes a list back that no cohort uses any more, perhaps with chunks on it.
    fn give_back_drops(&self, drops: Drops, is_empty: bool);

    /// Queues a cohort in a queue, without waiting for anything. Fills in what only the device knows:
    /// [`Cohort::queue`], and [`Cohort::barrier`] where the kernel can do without.
    fn launch(
        &self,
        op: OpKey,
        queue: u32,
        grid: &Arc<KernelLaunch>,
        cohort: Cohort,
    ) -> Result<(), Error>;

    /// Queues a launch in a queue as a plain grid, without waiting for anything: it runs through, and
    /// posts then that all its block-tasks are done.
    fn launch_plain(
        &self,
        op: OpKey,
        queue: u32,
        grid: &Arc<KernelLaunch>,
        plain: PlainLaunch,
    ) -> Result<(), Error>;

    /// Writes a queue's signal word, without waiting for anything. Words of one queue arrive in order.
    fn signal(&self, queue: u32, signal: Signal);

    /// Starts a copy.
    ///
    /// # Safety
    ///
    /// Both places are valid for the copy until it is reported as over.
    unsafe fn copy(&self, op: OpKey, copy: Copy);

    /// Calls `work`. The operation is over, and reported as a copy, when everything is done that it has put into the
    /// stream. Only one thread calls this, which may wait; it is not called for an operation of a scheduler that is
    /// gone.
    fn opaque(&self, op: OpKey, work: OpaqueWork);

    /// Appends what was not reported yet. A fault comes before the post of its cohort can be
    /// read.
    fn poll(&self, reports: &mut Vec<Report>);

    /// Whether the host has to look at the device again and again to see what happens there.
    fn is_polled(&self) -> bool;

    /// Asks the device whether it still works; [`poll`](Backend::poll) says if it does not. `wait` does
    /// so by itself.
    fn check(&self);

    /// A mark to wait from: see [`Backend::wait`].
    fn mark(&self) -> u64;

    /// Waits until something may have happened since the `mark` was taken, or for `timeout`.
    fn wait(&self, mark: u64, timeout: Duration);

    /// Ends all waits: something happened that the device does not know of.
    fn announce(&self);

    /// Memory of others, if kernels can use some.
    fn foreign(&self) -> Option<&dyn ForeignMemory>;

    /// The most bytes that an allocation could have if everybody of this process freed its memory, of which buffers
    /// have `live`; no less than that, and `None` if nobody knows.
    fn memory_within_reach(&self, live: usize) -> Option<usize>;

    /// Zeroed memory on the device.
    fn allocate(&self, bytes: usize) -> Result<u64, Error>;

    /// Frees memory that no operation uses.
    ///
    /// # Safety
    ///
    /// `address` came from `allocate` with the same `bytes`, or starts an
    /// [`allocation`](ForeignMemory::allocation) of `bytes`; it is freed once.
    unsafe fn free(&self, address: u64, bytes: usize);

    /// Copies to memory that no operation uses.
    ///
    /// # Safety
    ///
    /// Both places are valid for `bytes`, and nobody else uses `address`.
    unsafe fn fill(&self, address: u64, data: *const u8, bytes: usize) -> Result<(), Error>;
}
