//! Preemption on NVIDIA GPUs, in process: an urgent kernel gets the SMs that it needs from running kernels,
//! between two of their block-tasks or at a yield point within one. The preempted kernel goes on afterwards
//! as if nothing had happened.
//!
//! # Quick start
//!
//! A kernel is an ordinary Rust function, written per thread, with `#[preemptible]`. Streams have priorities, and
//! any thread can launch on any stream.
//!
//! ```
//! use preempt::prelude::*;
//!
//! /// `out[i] = a * x[i] + y[i]`
//! #[preemptible(block = 128)]
//! pub fn saxpy(a: f32, x: &[f32], y: &[f32], out: PerThread<f32>) {
//!     if let Some(own) = out.own() {
//!         own.set(a * x[own.index()] + y[own.index()]);
//!     }
//! }
//!
//! let scheduler = Scheduler::builder().device(Device::cpu()?).build()?;
//! let batch = scheduler.stream(Priority(0));
//! let urgent = scheduler.stream(Priority(10));
//!
//! let x = scheduler.buffer(&vec![1.0f32; 100_000])?;
//! let y = scheduler.buffer(&vec![2.0f32; 100_000])?;
//! let mut large = scheduler.zeroed::<f32>(100_000)?;
//! let mut small = scheduler.zeroed::<f32>(100)?;
//!
//! let long = batch.launch(saxpy(3.0, &x, &y, &mut large).threads(100_000))?;
//! urgent.launch(saxpy(4.0, &x, &y, &mut small).threads(100))?.wait()?; // does not wait for `long`
//! assert_eq!(urgent.download(&small)?.wait()?, vec![6.0; 100]);
//!
//! let report = long.wait()?;
//! println!("{} block-tasks, {} yields", report.tasks, report.yields);
//! assert_eq!(batch.download(&large)?.wait()?, vec![5.0; 100_000]);
//! # Ok::<(), preempt::Error>(())
//! ```
//!
//! # What is where
//!
//! | | |
//! | --- | --- |
//! | [`guide`] | topic by topic, each with a program; also for those who come from CUDA C++, rust-cuda or cudarc |
//! | [`Scheduler`], [`Stream`], [`Handle`] | launches and copies from any thread, and their results |
//! | [`Event`], [`Suspension`] | order between streams; a stream that leaves the device to others for a while |
//! | [`Room`], [`CancelOnDrop`] | asynchronous code: launches that block no executor, and end with their handle ([an example](https://github.com/preempt-rs/preempt/tree/main/examples/tokio-service)) |
//! | [`Program`], [`Stream::program`] | launches and copies that are recorded once and launched as one: CUDA graphs |
//! | [`ProgramInput`] | memory of the host that the kernels of a program read where it lies, written until its launch |
//! | [`Opaque`], [`Stream::opaque`] | work of other libraries, in the order of a stream |
//! | [`Device`], [`Buffer`] | what they run on, and memory there and [ranges](Buffer#ranges) of it, [waited for](Scheduler::zeroed_within) if need be |
//! | [`Stream::upload`], [`Scope`], [`PinnedBuffer`] | copies of slices, of borrowed slices, and of memory that a GPU copies itself; [fills](Stream::fill), [rectangles](Copy2d) |
//! | [`policy`] | which launch runs on which SMs: by priority, by deadline, in shares, or by your own rule |
//! | [`recording`] | what was submitted to a scheduler and decided, to decide again |
//! | [`pool`] | tasks of many applications on several devices: which runs where, and which makes room |
//! | [`worker`] | work of other libraries, in processes of its own that are killed where their device is needed |
//! | [`sim`] | policies in virtual time, with workloads and a device that are models |
//! | [`predict`] | how long launches take, for policies that look ahead |
//! | [`coschedule`] | which kernels to run two at a time, and when: the shortest schedule with few preemptions |
//! | [`stats`], [`Scheduler::write_trace`], [`LaunchReport`] | how launches ran, as numbers and as a timeline |
//! | [`tune`] | the amortizing factor of a launch, found by measuring |
//! | [`Error`], [`mod@error`] | what went wrong and what to do; one enum for each area |
//! | [`Module`], [`include_kernels!`] | the PTX of a kernels crate, embedded by its build script |
//! | [`SchedulerBuilder::ptx`], [`ForeignKernel`], [`mod@ptx`] | kernels that nvcc, NVRTC or Triton compiled, and what their PTX says |
//! | [`Scheduler::verify`] | both forms of a kernel, run and compared |
//! | [`prelude`] | the names that most applications use |
//! | [`preempt_device`] | what kernels are written with; a crate of kernels depends on it alone |
//! | [`preempt-build`](https://docs.rs/preempt-build) | for build scripts: compiles a kernels crate to PTX |
//! | [`raw`] | for applications with CUDA contexts, streams and memory of their own, from whatever library |
//!
//! | feature | |
//! | --- | --- |
//! | `half` | `f16` and `bf16` of the crate `half` in buffers and as arguments of kernels |
//! | `cust` | `preempt::cust`, for applications on rust-cuda's `cust`: their context, buffers, streams, events and modules |
//! | `cudarc` | `preempt::cudarc`, the same for applications on `cudarc` 0.19 |
//! | `tracing` | an event of the crate `tracing` (target `preempt`, level debug) when a launch is submitted, starts, yields and ends; and one of level warn when it does not [leave](stats::Overdue) the device |
//! | `metrics` | counters and a histogram of the crate `metrics`: `preempt_launches_submitted_total`, `preempt_launches_total`, `preempt_yields_total`, `preempt_overdue_total`, `preempt_turnaround_seconds` |
//! | `cuda-std`, of `preempt-device` | kernels that rust-cuda's own code generator compiles; the stock compiler does without |
//!
//! The thread that drives the scheduler calls subscribers of `tracing` and recorders of `metrics`. It waits
//! for them, so they must not wait for the scheduler. A subscriber that panics is ignored.
//!
//! # What a kernel promises
//!
//! Block-tasks run in any order, each exactly once, and must not wait for one another: no look-back scans and
//! no barriers across the grid. A kernel yields between block-tasks, and within them at yield points if it
//! has any. Without yield points, an urgent launch waits for the block-tasks that run: for a millisecond if
//! they take a millisecond.
//!
//! # When a kernel panics
//!
//! A panic, such as that of an `assert!` or of an index out of bounds, ends the launch with
//! [`LaunchError::KernelFailed`](error::LaunchError::KernelFailed), which names the block-task and the thread. On the CPU device
//! the rest goes on. On a GPU the driver gives up the process's context: every other operation ends with
//! [`DeviceError::ContextLost`](error::DeviceError::ContextLost), which names the kernel that panicked and the place. The text of
//! the panic is not on the GPU; run the launch on the CPU device to read it. What leaves no place: other faults, such as
//! an address out of bounds; code that a `cust` application has loaded itself.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod coschedule;
#[cfg(feature = "cudarc")]
pub mod cudarc;
#[cfg(feature = "cust")]
pub mod cust;
mod device;
mod engine;
pub mod error;
mod foreign;
pub mod guide;
mod module;
pub mod policy;
pub mod pool;
pub mod predict;
pub mod prelude;
pub mod ptx;
pub mod raw;
pub mod recording;
mod scheduler;
pub mod sim;
mod sync;
mod text;
pub mod tune;
mod vocabulary;
#[cfg(target_os = "linux")]
pub mod worker;

pub use device::{
    CpuLayout, Device, Footprint, FormFootprint, MemoryInfo, Properties, RawStream, SignalPath,
};
#[cfg(feature = "fault-injection")]
#[doc(hidden)]
pub use device::{conformance, faults};
pub use engine::LaunchReport;
pub use error::Error;
pub use module::Module;
pub use policy::Priority;
pub use preempt_device;
#[doc(inline)]
pub use preempt_device::host::{
    Amortize, Call, Dim3, Extents, Idempotence, NoGrid, Preemption, ReadArg, WriteArg,
};
#[doc(inline)]
pub use preempt_device::kernel::KernelArg;
#[doc(inline)]
pub use preempt_ptx_text::KernelFault;
#[doc(inline)]
pub use scheduler::stats;
pub use scheduler::{
    Buffer, BufferSlice, BufferSliceMut, CancelOnDrop, Copy2d, DeviceSlice, DeviceSliceMut,
    Difference, Event, ForeignCall, ForeignKernel, Handle, Loan, LoanFuture, Opaque, PinnedBuffer,
    Program, ProgramBuilder, ProgramCall, ProgramInput, Room, Scheduler, SchedulerBuilder, Scope,
    Stream, Suspension, TryLaunch, Verification,
};
pub use vocabulary::{Costs, LaunchId, Timestamp};
