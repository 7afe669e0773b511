//! What can go wrong, and what to do about it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use preempt_device::abi::MAX_TASKS;
use preempt_device::host::{Dim3, Extents};

use crate::ptx::KernelFault;
use crate::tune::Tuned;

/// Why a call was refused, or what became of an operation that did not succeed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A grid without block-tasks.
    #[error(
        "kernel `{kernel}`: a grid of {grid} has no block-task; each extent is at least 1: leave \
         the launch out where there is nothing to do"
    )]
    EmptyGrid {
        /// The kernel's name.
        kernel: &'static str,
        /// The grid that was asked for.
        grid: Extents,
    },
    /// A grid beyond the limits of the programming model.
    #[error(
        "kernel `{kernel}`: a grid of {grid} is too large; x and the product are at most \
         {MAX_TASKS}, y and z at most 65535; split the launch"
    )]
    GridTooLarge {
        /// The kernel's name.
        kernel: &'static str,
        /// The grid that was asked for.
        grid: Extents,
    },
    /// Neither the kernel nor the launch says how many threads a block has.
    #[error(
        "kernel `{kernel}` has no block size; write `#[preemptible(block = ..)]` or call `.block(..)`"
    )]
    NoBlock {
        /// The kernel's name.
        kernel: &'static str,
    },
    /// A launch asks for another block than the kernel was written for.
    #[error(
        "kernel `{kernel}` is written for blocks of {fixed}, not {asked}; leave out `.block(..)`"
    )]
    OtherBlock {
        /// The kernel's name.
        kernel: &'static str,
        /// The block in the attribute.
        fixed: Dim3,
        /// The block that was asked for.
        asked: Extents,
    },
    /// A block without threads, or with more than the device can hold.
    #[error(
        "kernel `{kernel}`: a block of {block} threads; a block has 1 to 1024 threads, at most 64 \
         of them in z"
    )]
    BadBlock {
        /// The kernel's name.
        kernel: &'static str,
        /// The block that was asked for.
        block: Extents,
    },
    /// A block of the kernel fills an SM, and the proxy that carries signals needs room beside it.
    #[error(
        "kernel `{kernel}` leaves no room on an SM for the proxy that carries signals; use \
         `SignalPath::StreamWrite`, or smaller blocks or fewer registers"
    )]
    NoRoomForProxy {
        /// The kernel.
        kernel: &'static str,
    },
    /// More shared memory than a block can have.
    #[error(
        "kernel `{kernel}` takes {bytes} bytes of shared memory; a block of this device has at \
         most {limit}; make its `shared_array!`s smaller"
    )]
    SharedMemory {
        /// The kernel's name.
        kernel: &'static str,
        /// What its arrays take.
        bytes: u32,
        /// What a block can have.
        limit: u32,
    },
    /// More argument bytes than a launch can carry.
    #[error(
        "kernel `{kernel}`: {bytes} bytes of arguments; at most {limit}; pass a buffer instead"
    )]
    ArgumentSize {
        /// The kernel's name.
        kernel: &'static str,
        /// What the arguments take.
        bytes: usize,
        /// What a launch can carry.
        limit: usize,
    },
    /// An amortizing factor of 0.
    #[error("kernel `{kernel}`: an amortizing factor is at least 1")]
    NoAmortizing {
        /// The kernel's name.
        kernel: &'static str,
    },
    /// The policy did not admit a launch.
    #[error(
        "kernel `{kernel}` was not started: the policy `{policy}` did not admit it; submit it again with a later \
         deadline, or when less is under way"
    )]
    NotAdmitted {
        /// The kernel's name.
        kernel: &'static str,
        /// The policy's name.
        policy: Arc<str>,
    },
    /// What was to be simulated makes no sense, or did not come to an end.
    #[error("the simulation was given up: {reason}")]
    BadSimulation {
        /// What is wrong, and what would not be.
        reason: String,
    },
    /// What was recorded cannot be replayed.
    #[error("not a recording that this version can replay: {reason}")]
    BadRecording {
        /// What is wrong with it.
        reason: String,
    },
    /// A recording's file cannot be read or written.
    #[error("the recording `{}`: {source}", path.display())]
    RecordingFile {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        source: Arc<std::io::Error>,
    },
    /// One buffer is written and passed a second time.
    #[error(
        "`{name}` is passed a buffer that it writes more than once; a kernel may assume that \
         nobody else touches what it writes: pass a copy, or one `SliceMut` for both uses"
    )]
    BufferConflict {
        /// The kernel's name, or what the copy is called.
        name: &'static str,
    },
    /// Memory that is bound to another device: a buffer that was adopted there, or is used there by its address.
    #[error(
        "`{name}` is passed memory that is bound to another device; use it on that one, or allocate it \
         through this scheduler: other buffers are moved by launches and copies"
    )]
    ForeignBuffer {
        /// The kernel's name, or what the copy is called.
        name: &'static str,
    },
    /// A buffer whose contents are on another device, which has no scheduler to copy them.
    #[error(
        "`{name}` uses a buffer whose contents are on another device without a scheduler ({device}); keep \
         that device's scheduler until the contents are copied, or build another one for it"
    )]
    ContentsElsewhere {
        /// The kernel's name, or what the copy is called.
        name: &'static str,
        /// The other device's name.
        device: Arc<str>,
    },
    /// An event of another scheduler.
    #[error(
        "the event was recorded in a stream of another scheduler, which orders only its own streams; have the host \
         wait for it with `Event::synchronize`"
    )]
    ForeignEvent,
    /// Memory that was passed by its address, and is not there.
    #[error(
        "`{name}` is passed {bytes} bytes at {address:#x}, which do not lie in one allocation of this \
         device's context; pass what was allocated there and is not freed yet, and a `Buffer` as itself"
    )]
    NotAllocated {
        /// The kernel's name, or what was to be done.
        name: &'static str,
        /// Where the memory starts.
        address: u64,
        /// How many bytes were passed.
        bytes: usize,
    },
    /// A copy between places of different lengths.
    #[error("a copy of {from} elements into {to}; both sides have the same length")]
    LengthMismatch {
        /// Elements in the source.
        from: usize,
        /// Elements in the target.
        to: usize,
    },
    /// A device that cannot be.
    #[error(
        "a CPU device of {sms} SMs with {blocks_per_sm} blocks each; 1 to {max_sms} SMs, 1 to 32 blocks"
    )]
    BadDevice {
        /// SMs asked for.
        sms: u32,
        /// Blocks per SM asked for.
        blocks_per_sm: u32,
        /// The most SMs that a device can have.
        max_sms: u32,
    },
    /// The driver of the GPU is not installed.
    #[error(
        "no NVIDIA driver: the library `{library}` was not found; install the GPU's driver, start a \
         container with access to it (`--gpus all`), or use `Device::cpu`"
    )]
    NoDriver {
        /// What was looked for.
        library: &'static str,
    },
    /// A driver that lacks what is used.
    #[error("the NVIDIA driver is {found}; CUDA 12.0 (driver 525) or a later one is needed")]
    DriverTooOld {
        /// What is installed.
        found: Arc<str>,
    },
    /// The driver is installed and does not work.
    #[error("the NVIDIA driver does not start: {message}; see what `nvidia-smi` says")]
    DriverStart {
        /// The driver's number for the reason (`CUresult`).
        code: u32,
        /// What the driver said.
        message: Arc<str>,
    },
    /// No GPU, or none of this number.
    #[error(
        "there is no GPU {ordinal}: {found}; see what `nvidia-smi` lists, and whether \
         `CUDA_VISIBLE_DEVICES` hides GPUs; without one, use `Device::cpu`"
    )]
    NoGpu {
        /// The GPU that was asked for.
        ordinal: u32,
        /// What there is.
        found: Arc<str>,
    },
    /// A GPU that lacks what is used.
    #[error("this GPU cannot be used: {reason}")]
    DeviceUnsupported {
        /// What is missing.
        reason: Arc<str>,
    },
    /// Something of `cust`'s for a device that was not made of its context.
    #[error(
        "the scheduler's device does not know the application's `cust` context; make the device by \
         `Device::from_cust(&context)`"
    )]
    NoCustContext,
    /// The driver refused a call.
    #[error("the NVIDIA driver refused {message}")]
    Driver {
        /// The driver's number for the reason (`CUresult`).
        code: u32,
        /// The call, and the reason in the driver's words.
        message: Arc<str>,
    },
    /// The driver does not take the PTX of a kernels crate.
    #[error(
        "the NVIDIA driver does not load the PTX of `{module}`: {message}; a newer driver may, or PTX \
         for this GPU (`preempt::build::Kernels::target_cpu`)"
    )]
    DeviceCode {
        /// The kernels crate.
        module: Arc<str>,
        /// What the driver said.
        message: Arc<str>,
    },
    /// A kernel that would not compute what it does in a plain grid.
    #[error("the PTX of `{module}` is refused: {fault}")]
    RefusedKernel {
        /// The kernels crate.
        module: &'static str,
        /// What is wrong with it.
        #[source]
        fault: KernelFault,
    },
    /// PTX that was compiled with another `preempt-device`.
    #[error(
        "the PTX of `{module}` was compiled with another version of `preempt-device`; compile it anew \
         with the version that this application has"
    )]
    StaleDeviceCode {
        /// The kernels crate.
        module: &'static str,
    },
    /// A kernel that a GPU cannot run, because its PTX is not there.
    #[error("kernel `{kernel}` of the crate `{module}` has no device code here: {what_to_do}")]
    NoDeviceCode {
        /// The kernel's name.
        kernel: &'static str,
        /// The kernels crate.
        module: &'static str,
        /// What to do about it.
        what_to_do: &'static str,
    },
    /// A block with more threads than the SM has registers for.
    #[error(
        "kernel `{kernel}` takes {registers} registers in each thread; a block of this device has at \
         most {threads} threads with so many, and {block} are more: use a smaller block"
    )]
    Registers {
        /// The kernel's name.
        kernel: &'static str,
        /// What each thread takes.
        registers: u32,
        /// The block that was asked for.
        block: Dim3,
        /// Threads that a block can have.
        threads: u32,
    },
    /// A second scheduler on a device.
    #[error(
        "the device already has a scheduler; clone that one and share it, or drop it first: two \
         schedulers cannot order each other's launches"
    )]
    DeviceTaken,
    /// The device has no memory left, or none that requests do not wait for which came before.
    #[error("the device has no room for {bytes} bytes; drop buffers or use smaller ones")]
    OutOfMemory {
        /// The bytes asked for.
        bytes: usize,
    },
    /// No memory was freed in time.
    #[error(
        "the device still has no room for {bytes} bytes after {} ms; wait longer, drop buffers or use smaller ones",
        waited.as_millis()
    )]
    AllocationTimeout {
        /// The bytes asked for.
        bytes: usize,
        /// How long it took.
        waited: Duration,
    },
    /// Too many requests wait for memory.
    #[error(
        "the device has no room for {bytes} bytes, and {waiting} requests wait for memory already; let more of them \
         wait with `SchedulerBuilder::allocation_queue`, or allocate in fewer threads"
    )]
    AllocationQueueFull {
        /// The bytes asked for.
        bytes: usize,
        /// Requests that wait.
        waiting: usize,
    },
    /// The operating system gave no thread.
    #[error("a thread for {what} could not be started: {source}")]
    Thread {
        /// What the thread was for.
        what: &'static str,
        /// What the operating system said.
        source: Arc<std::io::Error>,
    },
    /// The operation was cancelled.
    #[error("cancelled, with {done} of {tasks} block-tasks done")]
    Cancelled {
        /// Block-tasks that ran.
        done: u32,
        /// Block-tasks in the grid; 0 for a copy.
        tasks: u32,
    },
    /// The scheduler was dropped before the operation was done.
    #[error(
        "the scheduler was dropped, with {done} of {tasks} block-tasks done; keep it until the \
         handles are waited for, or call `synchronize` first"
    )]
    SchedulerDropped {
        /// Block-tasks that ran.
        done: u32,
        /// Block-tasks in the grid; 0 for a copy.
        tasks: u32,
    },
    /// A kernel went wrong while it ran.
    #[error("kernel `{kernel}` failed: {message}")]
    KernelFailed {
        /// The kernel's name.
        kernel: &'static str,
        /// What happened, where.
        message: Arc<str>,
    },
    /// The device is lost to this process, with everything that was on it.
    #[error(
        "the GPU's context is lost: {message}; nothing runs on it any more, and what was in its \
         memory is gone: start the process anew"
    )]
    ContextLost {
        /// What the driver said first.
        message: Arc<str>,
    },
    /// An operation would have used what a failed kernel left.
    #[error(
        "kernel `{kernel}` failed earlier and left a buffer that this operation uses in an unknown \
         state; upload the buffer anew"
    )]
    InputLost {
        /// The kernel that failed.
        kernel: &'static str,
    },
    /// The file of a [`Tuner`](crate::tune::Tuner) is there and cannot be read; nothing was launched.
    #[error(
        "tuned amortizing factors cannot be read from `{path}`: {source}; give `Tuner::cache` another \
         file, or remove this one"
    )]
    TuningNotRead {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: Arc<std::io::Error>,
    },
    /// The file of a [`Tuner`](crate::tune::Tuner) cannot be written; what was found is here.
    #[error(
        "the amortizing factor is tuned to {}, and cannot be kept in `{path}`: {source}; give \
         `Tuner::cache` a file in a folder that is there and can be written to", tuned.amortize
    )]
    TuningNotKept {
        /// The file.
        path: PathBuf,
        /// What would have been kept.
        tuned: Tuned,
        /// What the operating system said.
        source: Arc<std::io::Error>,
    },
    /// A file of trained durations cannot be read.
    #[error(
        "trained durations cannot be read from `{path}`: {source}; give `Ridge::load` a file that \
         `Ridge::save` of this version wrote, or train anew"
    )]
    PredictorNotRead {
        /// The file.
        path: PathBuf,
        /// What the operating system said, or what is wrong with the file.
        source: Arc<std::io::Error>,
    },
    /// A file of trained durations cannot be written.
    #[error(
        "trained durations cannot be kept in `{path}`: {source}; give `Ridge::save` a file in a folder that \
         is there and can be written to"
    )]
    PredictorNotKept {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: Arc<std::io::Error>,
    },
    /// A timeline was asked for that nobody kept.
    #[error("no timeline was kept; build the scheduler with `SchedulerBuilder::trace`")]
    NoTrace,
    /// A timeline cannot be written.
    #[error(
        "the timeline cannot be written to `{path}`: {source}; give `Scheduler::write_trace` a file in a folder \
         that is there and can be written to"
    )]
    TraceNotWritten {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: Arc<std::io::Error>,
    },
    /// A predictor panicked; the scheduler went on without one.
    #[error(
        "the predictor was dropped, and no duration is predicted any more: it panicked: {message}"
    )]
    PredictorDropped {
        /// What the panic said.
        message: Arc<str>,
    },
    /// A policy answered nonsense; the scheduler went on with [`Fifo`](crate::policy::Fifo).
    #[error("policy `{policy}` was replaced by `fifo`: {reason}")]
    PolicyReplaced {
        /// The policy's name.
        policy: Arc<str>,
        /// What it did.
        reason: Arc<str>,
    },
}

/// Calls code of others; what its panic said, if it panics.
pub(crate) fn caught<R>(call: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let message = text.unwrap_or("without a message").to_owned();
        if text.is_none() {
            // Dropping what was thrown is code of others, too, and may panic again.
            std::mem::forget(panic);
        }
        message
    })
}
