//! Devices: what executes the engine's actions.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use preempt_device::abi::{Cohort, ControlBlock, MAX_SMS, Post, Signal};
use preempt_device::host::{Args, Dim3, Kernel};

use crate::engine::OpKey;
use crate::error::Error;
use crate::module::Module;
use crate::policy::Priority;

mod cpu;

/// A device that a scheduler can run on. Clones are the same device.
#[derive(Clone)]
pub struct Device {
    pub(crate) inner: Arc<DeviceInner>,
}

pub(crate) struct DeviceInner {
    pub backend: Arc<dyn Backend>,
    pub properties: Properties,
    /// Tells buffers of one device from those of another.
    pub id: u64,
    /// Whether a scheduler has the device.
    taken: AtomicBool,
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
}

impl Device {
    /// An emulated GPU on host threads, with `sms` SMs that hold `blocks_per_sm` blocks each.
    ///
    /// It runs the same expanded kernels and the same worker loop as a GPU, and finds mistakes
    /// that a GPU hides: threads that disagree about a barrier, and reads of shared memory that
    /// nobody wrote. Each resident block is one host thread; more blocks than processors only
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
        };
        let backend = Arc::new(cpu::CpuDevice::new(&properties)?);
        // Relaxed below: only the number counts.
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let taken = AtomicBool::new(false);
        Ok(Device { inner: Arc::new(DeviceInner { backend, properties, id, taken }) })
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

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.inner.properties.name).finish()
    }
}

/// What a device has to know of a launch, beside what is in each cohort.
#[derive(Debug)]
pub(crate) struct Grid {
    pub kernel: &'static Kernel,
    pub args: Args,
    pub block: Dim3,
    pub priority: Priority,
}

/// A copy between the device and the host, or on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub from: u64,
    pub to: u64,
    pub bytes: usize,
}

/// A launch's words in memory that the device keeps as long as it lives.
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
    /// A copy is over.
    CopyDone(OpKey),
    /// A launch went wrong; its cohorts still post.
    Fault(OpKey, Arc<str>),
}

/// The part of a device that differs between kinds. All methods can be called from any thread;
/// actions of one operation come in the engine's order.
pub(crate) trait Backend: Send + Sync {
    /// Makes kernels known, before anything runs.
    fn load(&self, modules: &[Module]) -> Result<(), Error>;

    /// Blocks of this kernel that one SM holds; 0 if not even one.
    fn occupancy(&self, kernel: &Kernel, block: Dim3) -> u32;

    /// A zeroed control block and its posts.
    fn new_control(&self) -> Result<ControlMemory, Error>;

    /// Queues a cohort. It starts when there is room, more urgent ones first.
    fn launch(&self, op: OpKey, grid: &Arc<Grid>, cohort: Cohort) -> Result<(), Error>;

    /// Writes a cohort's signal word.
    fn signal(&self, control: ControlMemory, slot: u32, signal: Signal);

    /// Starts a copy.
    ///
    /// # Safety
    ///
    /// Both places are valid for the copy until it is reported as over.
    unsafe fn copy(&self, op: OpKey, copy: Copy);

    /// Appends what was not reported yet. A fault comes before the post of its cohort can be
    /// read.
    fn poll(&self, reports: &mut Vec<Report>);

    /// A mark to wait from: see [`Backend::wait`].
    fn mark(&self) -> u64;

    /// Waits until something may have happened since the `mark` was taken, or for `timeout`.
    fn wait(&self, mark: u64, timeout: Duration);

    /// Zeroed memory on the device.
    fn allocate(&self, bytes: usize) -> Result<u64, Error>;

    /// Frees memory that no operation uses.
    ///
    /// # Safety
    ///
    /// `address` came from `allocate` with the same `bytes`, and is freed once.
    unsafe fn free(&self, address: u64, bytes: usize);

    /// Copies to memory that no operation uses.
    ///
    /// # Safety
    ///
    /// Both places are valid for `bytes`, and nobody else uses `address`.
    unsafe fn fill(&self, address: u64, data: *const u8, bytes: usize);
}
