use std::time::Duration;

use preempt_device::abi::MAX_TASKS;
use preempt_device::host::{Dim3, Extents};

/// A launch configuration that the kernel or the device does not allow: grid, block, arguments, shared memory.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigurationError {
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
    /// A [cost](crate::Costs) that nothing takes.
    #[error(
        "a cost of {cost:?} is longer than a day; costs are times of a driver and a device, microseconds mostly"
    )]
    Cost {
        /// The longest.
        cost: Duration,
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
    /// A kernel whose threads have elements by their index in x, with a grid or a block of more dimensions.
    #[error(
        "kernel `{kernel}` has a `PerThread` slice, so its grid and its block have one dimension, and not {grid} blocks \
         of {block}; launch it with numbers, or take `SliceMut`"
    )]
    NotOneDimensional {
        /// The kernel's name.
        kernel: &'static str,
        /// The grid.
        grid: Dim3,
        /// The block.
        block: Dim3,
    },
    /// A kernel whose threads have elements by their index, with more threads than there are indices.
    #[error(
        "kernel `{kernel}` has a `PerThread` slice, so a launch has at most 2^32 threads, and not {grid} blocks of \
         {block}; split the launch"
    )]
    TooManyThreads {
        /// The kernel's name.
        kernel: &'static str,
        /// The grid.
        grid: Dim3,
        /// The block.
        block: Dim3,
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
         `SignalPath::Auto`, or smaller blocks or fewer registers"
    )]
    NoRoomForProxy {
        /// The kernel.
        kernel: &'static str,
    },
    /// More shared memory than a block can have.
    #[error(
        "kernel `{kernel}` takes {bytes} bytes of shared memory; a block of this device has at \
         most {limit}; make its `shared_array!`s and `shared_slice!`s smaller"
    )]
    SharedMemory {
        /// The kernel's name.
        kernel: &'static str,
        /// What its arrays and slices take.
        bytes: u64,
        /// What a block can have.
        limit: u32,
    },
    /// A kernel with a checkpoint whose block-tasks do not fit where blocks leave them.
    #[error(
        "kernel `{kernel}` has {bytes} bytes in each block-task to save at its checkpoint, states of threads and shared \
         memory, and a launch has room for {limit}; give the scheduler more by `.checkpoint_memory({needed})`, in MiB, \
         or turn checkpoints off by `.checkpoint_memory(0)`"
    )]
    CheckpointMemory {
        /// The kernel's name.
        kernel: &'static str,
        /// Bytes of a block-task.
        bytes: u64,
        /// Bytes that a launch has for its block-tasks.
        limit: u64,
        /// MiB with which one block-task of the kernel fits.
        needed: u64,
    },
    /// A slice in shared memory with a negative length, or with more elements than can be counted.
    #[error(
        "kernel `{kernel}`: the length of a `shared_slice!` is negative or overflows; it is computed from the \
         arguments, and is 0 or more"
    )]
    SharedLength {
        /// The kernel's name.
        kernel: &'static str,
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
    /// A block with more threads than the SM has registers for.
    #[error(
        "kernel `{kernel}` takes {registers} registers in each thread; a block of this device has room \
         for {threads} such threads, and {block} are more: use a smaller block"
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
    /// A call of a foreign kernel with another number of arguments than its PTX has parameters.
    #[error(
        "kernel `{kernel}` has {takes} parameters in its PTX, and the call has {given} arguments: one `.read(..)`, \
         `.write(..)` or `.value(..)` for each, in their order"
    )]
    ArgumentCount {
        /// The kernel's name.
        kernel: &'static str,
        /// Arguments of the call.
        given: usize,
        /// Parameters of the entry.
        takes: usize,
    },
    /// An argument of a foreign kernel of another size than the parameter in its PTX.
    #[error(
        "kernel `{kernel}`: parameter {position}, counted from 0, takes {takes} bytes in the PTX, and the call gives {given}: \
         {what_to_do}"
    )]
    ArgumentBytes {
        /// The kernel's name.
        kernel: &'static str,
        /// The parameter, counted from 0.
        position: usize,
        /// Bytes of the argument.
        given: usize,
        /// Bytes of the parameter.
        takes: usize,
        /// What to do about it.
        what_to_do: &'static str,
    },
    /// A block with more threads than the PTX of a foreign kernel allows.
    #[error(
        "kernel `{kernel}` was compiled for blocks of at most {most} threads (`.maxntid`), and {block} are more; use a smaller \
         block, or compile it with another `__launch_bounds__`"
    )]
    BlockBound {
        /// The kernel's name.
        kernel: &'static str,
        /// The block that was asked for.
        block: Dim3,
        /// Threads, at most.
        most: u32,
    },
    /// A block whose warps have threads of several rows, where the verdict of a foreign kernel does not allow it.
    #[error(
        "kernel `{kernel}` is preemptible with blocks whose x is a multiple of 32, or of one row, and not with {block}: threads \
         return by their row, and others of their warp would wait for them; use such a block, or `ForeignKernel::plain`"
    )]
    BlockRows {
        /// The kernel's name.
        kernel: &'static str,
        /// The block that was asked for.
        block: Dim3,
    },
    /// More shared memory than a block of a foreign kernel can have.
    #[error(
        "kernel `{kernel}` takes {bytes} bytes of shared memory, {added} of them for preemption; a block of this device has \
         at most {limit}; ask for less by `.dynamic_shared(..)`, or use `ForeignKernel::plain`, which adds none"
    )]
    SharedOfEntry {
        /// The kernel's name.
        kernel: &'static str,
        /// What a block takes in all, static and dynamic.
        bytes: u64,
        /// What the worker loop takes of it.
        added: u32,
        /// What a block can have.
        limit: u32,
    },
}
