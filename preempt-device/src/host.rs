//! The host side of a kernel: its description by `#[preemptible]`, and its typed launch.
//!
//! The expansion builds these; the `preempt` crate consumes them. An application meets
//! [`Call`], which the launch function of a kernel returns and a stream launches.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::Arc;

use crate::kernel::KernelArg;
use extents::GridRequest;

#[cfg(feature = "cust")]
mod cust;
mod extents;

/// Macros for the bodies of kernels on the host, also where the kernels crate has no `std`.
#[doc(hidden)]
pub use std::{assert_eq, assert_ne, print, println};

pub use extents::{Dim3, Extent, Extents, Grid, HasGrid, IntoExtents, NoGrid};

#[doc(hidden)]
pub use crate::target::host_context::{
    Operation, Rendezvous, ThreadContext, WarpShuffle, with_thread,
};

/// The description of a kernel: one `static` for each `#[preemptible]` function.
#[derive(Clone, Copy)]
pub struct Kernel {
    /// The function's name.
    pub name: &'static str,
    /// The PTX symbol of the preemptible entry.
    #[doc(hidden)]
    pub entry: &'static str,
    /// The PTX symbol of the plain entry.
    #[doc(hidden)]
    pub plain: &'static str,
    /// The module that the kernel was written in, from `module_path!`.
    pub module: &'static str,
    /// Threads in a block, where the attribute fixes them.
    pub block: Option<Dim3>,
    /// The amortizing factor, where the attribute sets it.
    pub amortize: Option<u32>,
    /// Bytes of shared memory that the body's `shared_array!`s take. Its `shared_slice!`s come on top
    /// ([`Call::shared_bytes`]).
    pub shared_bytes: u32,
    /// Whether the body has yield points, or a checkpoint.
    pub yields: bool,
    /// Whether its block-tasks may run again from their start.
    pub idempotence: Idempotence,
    /// What that rests on, in words; empty if it is not needed.
    pub reason: &'static str,
    /// Bytes of each thread's state at the checkpoint; 0 without one.
    #[doc(hidden)]
    pub state_bytes: u32,
    /// Runs the body for the emulated thread that is current on this host thread. Returns whether that thread
    /// requeued its task at a yield point.
    ///
    /// # Safety
    ///
    /// The arguments are those of a [`Call`] of this kernel, and [`with_thread`] has set a
    /// thread.
    #[doc(hidden)]
    pub cpu: unsafe fn(args: &Args) -> bool,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("name", &self.name)
            .field("module", &self.module)
            .field("block", &self.block)
            .field("amortize", &self.amortize)
            .field("shared_bytes", &self.shared_bytes)
            .field("yields", &self.yields)
            .field("idempotence", &self.idempotence)
            .finish_non_exhaustive()
    }
}

/// Whether block-tasks of a kernel may run again from their start, as they do when they stop at a yield point: what the
/// analysis of [`#[preemptible]`](crate::preemptible#yield-points) found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Idempotence {
    /// It is not needed: the kernel has no yield points, or a checkpoint, from which block-tasks go on.
    #[default]
    NotNeeded,
    /// Proved, at each yield point.
    Strict,
    /// Proved until one of its threads comes to what cannot be repeated. From then on the block-task runs to its end.
    Relaxed,
    /// Declared by `idempotent`. Whether the analysis finds something against it, the [reason](Kernel::reason) says.
    Declared,
}

/// What a launch may do with a buffer.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The buffer is not written during the launch.
    Read,
    /// The launch writes the buffer.
    Write,
}

/// A buffer, or a range of one, as a launch argument: what keeps it alive, and where it was made.
#[derive(Clone, Debug)]
pub struct BufferArg {
    /// Address of the first element on the device that the memory was made on. A launch on another device
    /// [resolves](Args::resolve) it anew.
    pub address: u64,
    /// Number of elements.
    pub len: usize,
    /// Bytes that they take from `address` on. Launches are ordered by them, and refused if they overlap.
    pub bytes: usize,
    /// Keeps the memory alive until the launch is done. The `preempt` crate knows its type. `None` for
    /// borrowed memory, whose lender waits for the launch.
    pub owner: Option<Arc<dyn Any + Send + Sync>>,
}

/// A device buffer that a kernel can read as `&[T]` or `*const T`.
///
/// # Safety
///
/// The address is valid for reads of `len` elements of `T` on the owner's device. It stays valid while the owner
/// lives, or, where there is none, during `'a`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be passed where the kernel reads `&[{T}]`",
    note = "pass `&Buffer<{T}>`, or a range of it, `buffer.slice(a..b)?`; `Scheduler::buffer` makes a buffer of a slice"
)]
pub unsafe trait ReadArg<'a, T> {
    /// The buffer.
    fn read_arg(self) -> BufferArg;
}

/// A device buffer that a kernel can write as `*mut T`, `SliceMut<T>` or `PerThread<T>`.
///
/// # Safety
///
/// The address is valid for reads and writes of `len` elements of `T` on the owner's device. It stays valid while
/// the owner lives, or, where there is none, during `'a`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be passed where the kernel writes `SliceMut<{T}>`, `PerThread<{T}>` or `*mut {T}`",
    note = "pass `&mut Buffer<{T}>`, or a range of it, `buffer.slice_mut(a..b)?`; `Scheduler::zeroed` makes a buffer"
)]
pub unsafe trait WriteArg<'a, T> {
    /// The buffer.
    fn write_arg(self) -> BufferArg;
}

/// The arguments of a launch, as the driver takes them: one pointer to a value for each
/// parameter of the entry.
///
/// A slice is two parameters, pointer and length (`u64` each), and a pointer is one.
#[doc(hidden)]
#[derive(Clone, Default)]
pub struct Args {
    /// The values, each from a multiple of 16 bytes on. Padding is copied as it is.
    words: Vec<MaybeUninit<u128>>,
    /// Where each value is in `words`.
    values: Vec<Value>,
    /// Buffers in use, and how.
    buffers: Vec<(BufferArg, Access)>,
    /// For each of these the position of its address among the values.
    addresses: Vec<u32>,
    /// Bytes of shared memory of a block; 0 if the kernel has no shared slices.
    shared_bytes: u64,
    /// Whether a buffer has an element for each thread, by its index in x.
    per_thread: bool,
}

/// The place of an argument's value.
#[derive(Clone, Copy, Debug)]
struct Value {
    /// In words of 16 bytes.
    start: u32,
    bytes: u32,
}

impl Args {
    /// Appends a value.
    pub fn push_value<T: KernelArg>(&mut self, value: T) {
        let start = self.words.len();
        self.words.resize(start + size_of::<T>().div_ceil(16), MaybeUninit::zeroed());
        self.values.push(Value { start: start as u32, bytes: size_of::<T>() as u32 });
        const { assert!(align_of::<T>() <= 16, "kernel arguments are aligned to at most 16 bytes") };
        // SAFETY: the words from `start` on are large enough for a `T` and aligned to 16.
        unsafe { self.words.as_mut_ptr().add(start).cast::<T>().write(value) }
    }

    /// Appends a buffer's address and length (a slice), reading it during the launch.
    pub fn push_read<'a, T>(&mut self, arg: impl ReadArg<'a, T>) {
        self.push_slice::<T>(arg.read_arg(), Access::Read);
    }

    /// Appends a buffer's address and length (a slice), writing it during the launch.
    pub fn push_write<'a, T>(&mut self, arg: impl WriteArg<'a, T>) {
        self.push_slice::<T>(arg.write_arg(), Access::Write);
    }

    /// Appends a buffer's address and length, each element of which one thread writes: that with its index in x.
    /// Grid and block of the launch have to have one dimension.
    pub fn push_per_thread<'a, T>(&mut self, arg: impl WriteArg<'a, T>) {
        self.push_write(arg);
        self.per_thread = true;
    }

    /// Whether grid and block have to have one dimension.
    pub fn needs_one_dimension(&self) -> bool {
        self.per_thread
    }

    /// Appends a buffer's address (a pointer), reading it during the launch.
    pub fn push_read_pointer<'a, T>(&mut self, arg: impl ReadArg<'a, T>) {
        self.push_pointer(arg.read_arg(), Access::Read);
    }

    /// Appends a buffer's address (a pointer), writing it during the launch.
    pub fn push_write_pointer<'a, T>(&mut self, arg: impl WriteArg<'a, T>) {
        self.push_pointer(arg.write_arg(), Access::Write);
    }

    fn push_slice<T>(&mut self, buffer: BufferArg, access: Access) {
        self.addresses.push(self.values.len() as u32);
        // A slice without elements still needs an aligned address that is not null.
        self.push_value(if buffer.len == 0 { align_of::<T>() as u64 } else { buffer.address });
        self.push_value(buffer.len as u64);
        self.buffers.push((buffer, access));
    }

    fn push_pointer(&mut self, buffer: BufferArg, access: Access) {
        self.addresses.push(self.values.len() as u32);
        // Null, as from `cudaMalloc` of no bytes: kernels test for it.
        self.push_value(if buffer.len == 0 { 0 } else { buffer.address });
        self.buffers.push((buffer, access));
    }

    /// Replaces the address of each buffer that has elements by what `address` gives, if anything: the address
    /// of the same contents on the device that runs the launch.
    pub fn resolve(&mut self, mut address: impl FnMut(&BufferArg) -> Option<u64>) {
        for ((buffer, _), &position) in self.buffers.iter().zip(&self.addresses) {
            let resolved = if buffer.len == 0 { None } else { address(buffer) };
            if let Some(resolved) = resolved {
                let start = self.values[position as usize].start as usize;
                // SAFETY: the value at this position is a `u64`, pushed with the buffer.
                unsafe { self.words.as_mut_ptr().add(start).cast::<u64>().write(resolved) }
            }
        }
    }

    /// Replaces each buffer by what `other` gives: memory of the same length, which is used in the same way.
    pub fn replace_buffers(&mut self, mut other: impl FnMut(&BufferArg, Access) -> BufferArg) {
        for (buffer, access) in &mut self.buffers {
            *buffer = other(buffer, *access);
        }
        self.resolve(|buffer| Some(buffer.address));
    }

    /// Bytes of each value, and whether it is the address of a buffer.
    pub fn sizes(&self) -> impl ExactSizeIterator<Item = (usize, bool)> + '_ {
        let values = self.values.iter().enumerate();
        // In the order of the values.
        values.map(|(at, value)| {
            (value.bytes as usize, self.addresses.binary_search(&(at as u32)).is_ok())
        })
    }

    /// Sets the bytes of shared memory of a block, up to the end of its slices.
    pub fn set_shared_bytes(&mut self, bytes: u64) {
        self.shared_bytes = bytes;
    }

    /// Bytes of shared memory that a block of `kernel` takes in a launch with these arguments; `u64::MAX` if the length of
    /// a slice is negative.
    pub fn shared_bytes(&self, kernel: &Kernel) -> u64 {
        self.shared_bytes.max(kernel.shared_bytes.into())
    }

    /// Checks in a kernel that a block has `bytes` of shared memory.
    ///
    /// # Panics
    ///
    /// If the launch computed less.
    pub fn require_shared_bytes(&self, bytes: u64) {
        assert!(
            self.shared_bytes >= bytes,
            "the length of a `shared_slice!` is another in the kernel than it was at the launch; compute it from \
             parameters and constants alone"
        );
    }

    /// The value at `position`.
    ///
    /// # Safety
    ///
    /// The value pushed at `position` is a `T`, or has its layout.
    pub unsafe fn get<T: Copy>(&self, position: usize) -> T {
        // SAFETY: the caller says that a `T` was pushed here.
        unsafe { self.words.as_ptr().add(self.values[position].start as usize).cast::<T>().read() }
    }

    /// The address at `position`, as a pointer.
    ///
    /// # Safety
    ///
    /// The value pushed at `position` is the address of a buffer.
    pub unsafe fn pointer<T>(&self, position: usize) -> *mut T {
        // SAFETY: the address of a buffer was pushed as a `u64`.
        let address: u64 = unsafe { self.get(position) };
        std::ptr::with_exposed_provenance_mut(address as usize)
    }

    /// A pointer to each value in order, as a driver's launch call takes them.
    pub fn pointers(&self) -> impl Iterator<Item = *const u8> + '_ {
        // SAFETY: every value lies within `words`; that of a value without bytes may lie at the end.
        self.values.iter().map(|at| unsafe { self.words.as_ptr().add(at.start as usize).cast() })
    }

    /// Bytes that the values take, each rounded up to 16.
    pub fn size(&self) -> usize {
        self.words.len() * 16
    }

    /// The buffers in use, and how.
    pub fn buffers(&self) -> &[(BufferArg, Access)] {
        &self.buffers
    }
}

impl fmt::Debug for Args {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Args")
            .field("values", &self.values.len())
            .field("buffers", &self.buffers)
            .finish()
    }
}

/// How a launch shares the device with other launches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Preemption {
    /// The launch can be preempted at any block-task and yield point: its preemptible entry runs, a persistent loop that
    /// pulls block-tasks.
    Preemptible,
    /// The launch runs to its end once it has started: its plain entry runs, a plain grid. More urgent launches overtake
    /// blocks of it that wait for an SM, by priorities of the hardware, and wait for those that run. It cannot be
    /// cancelled.
    Plain,
    /// The form that costs less and is preempted as soon, judging by earlier launches of the kernel that could choose it,
    /// too.
    ///
    /// That is a plain grid where the hardware makes room as soon as the preemptible entry does: its blocks are short, or
    /// the kernel has no yield points. The launch must be known to take no longer than a limit of the scheduler. The policy
    /// must go by order, without time slices and SM ranges. A kernel that is faster in its preemptible entry keeps it, if a
    /// launch saves more time than it leaves later, and more than a change of forms costs: behind a launch of the other
    /// form, the host launches what follows.
    ///
    /// A launch that the policy preempts for none of the scheduler's streams may be plain whatever its blocks take. A stream
    /// that comes to be later, or a launch whose own priority is raised, then waits for blocks to end.
    ///
    /// A kernel's first three such launches are preemptible, and the next three that may be are plain, which tells what each
    /// form costs. So the price of learning is what three launches take longer in the slower form.
    #[default]
    Auto,
}

/// The amortizing factor: how many block-tasks a block claims at once, between two looks at the signal (FLEP
/// section 4.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amortize {
    /// The number that takes two thirds of the time of a stop or less, 6.6 µs on an H200, judging by the times of the
    /// block's last tasks (after EffiSha section 4.2).
    Auto,
    /// At most this number, however long they take; at least 1.
    Tasks(u32),
}

impl From<u32> for Amortize {
    fn from(tasks: u32) -> Amortize {
        Amortize::Tasks(tasks)
    }
}

/// A kernel with its arguments and its grid, ready to be launched on a stream.
///
/// The launch function of each kernel returns a `Call<NoGrid>`: `G` is [`NoGrid`] until [`grid`](Call::grid) or
/// [`threads`](Call::threads) sets the grid, and [`Grid`] from then on. Without a grid, a launch does not compile.
/// Nothing runs before a stream launches the call.
///
/// The arguments may point to memory that is borrowed for `'a`. A `Call<'static>` borrows nothing: the memory of its
/// arguments is counted, as that of a `Buffer` is.
///
/// ```
/// use preempt_device::host::Call;
/// use preempt_device::prelude::*;
///
/// #[preemptible(block = 256)]
/// fn nothing() {}
///
/// let call: Call<'static> = nothing().threads(1000);
/// assert_eq!(call.grid_dim().x, 4);
/// ```
#[derive(Clone, Debug)]
#[must_use = "a call does nothing until a stream launches it"]
pub struct Call<'a, G = Grid> {
    kernel: &'static Kernel,
    args: Args,
    grid: G,
    block: Option<Extents>,
    amortize: Option<Amortize>,
    preemption: Option<Preemption>,
    borrows: PhantomData<&'a ()>,
}

impl<'a> Call<'a, NoGrid> {
    /// A call of `kernel`.
    ///
    /// # Safety
    ///
    /// `args` holds what the kernel's entry takes, in order, and the bytes of its shared slices. Borrowed arguments are
    /// borrowed for `'a`.
    #[doc(hidden)]
    pub unsafe fn new(kernel: &'static Kernel, args: Args) -> Call<'a, NoGrid> {
        let (grid, borrows) = (NoGrid, PhantomData);
        let (block, amortize, preemption) = (None, None, None);
        Call { kernel, args, grid, block, amortize, preemption, borrows }
    }
}

impl<'a, G> Call<'a, G> {
    /// Sets the grid, in block-tasks.
    pub fn grid(self, grid: impl IntoExtents) -> Call<'a> {
        self.with(Grid(GridRequest::Tasks(grid.into_extents())))
    }

    /// Sets the grid to the block-tasks that cover `threads`, in x or in each dimension that is given.
    ///
    /// The last block may have threads beyond that number: the kernel compares its index with the length.
    /// [`block`](Call::block) may be called before or after this.
    pub fn threads(self, threads: impl IntoExtents) -> Call<'a> {
        self.with(Grid(GridRequest::Threads(threads.into_extents())))
    }

    /// Sets the block, in threads. A kernel whose attribute fixes the block accepts no other.
    pub fn block(mut self, block: impl IntoExtents) -> Call<'a, G> {
        self.block = Some(block.into_extents());
        self
    }

    /// Sets the amortizing factor for this launch: a number, or [`Amortize::Auto`]. Otherwise it is the
    /// attribute's, and automatic unless the attribute sets it.
    pub fn amortize(mut self, amortize: impl Into<Amortize>) -> Call<'a, G> {
        self.amortize = Some(amortize.into());
        self
    }

    /// Sets how this launch shares the device; otherwise it is the scheduler's setting.
    ///
    /// ```
    /// # use preempt_device::prelude::*;
    /// # #[preemptible(block = 256)]
    /// # fn nothing() {}
    /// use preempt_device::host::Preemption;
    ///
    /// // It may be cancelled: its blocks then leave at the ends of their block-tasks. Those of a plain grid do not.
    /// let call = nothing().threads(1000).preemption(Preemption::Preemptible);
    /// assert_eq!(call.preemption_mode(), Some(Preemption::Preemptible));
    /// ```
    pub fn preemption(mut self, preemption: Preemption) -> Call<'a, G> {
        self.preemption = Some(preemption);
        self
    }

    fn with(self, grid: Grid) -> Call<'a> {
        let Call { kernel, args, grid: _, block, amortize, preemption, borrows } = self;
        Call { kernel, args, grid, block, amortize, preemption, borrows }
    }

    /// This call as a `Call<'a, Grid>`, the type of all calls with a grid.
    #[doc(hidden)]
    pub fn with_its_grid(self) -> Call<'a>
    where
        G: HasGrid,
    {
        let grid = self.grid.into();
        self.with(grid)
    }

    /// The kernel.
    pub fn kernel(&self) -> &'static Kernel {
        self.kernel
    }

    /// The arguments.
    #[doc(hidden)]
    pub fn args(&self) -> &Args {
        &self.args
    }

    /// This call with other arguments.
    ///
    /// # Safety
    ///
    /// As for [`new`](Call::new).
    #[doc(hidden)]
    pub unsafe fn with_args(self, args: Args) -> Call<'a, G> {
        Call { args, ..self }
    }

    /// Takes the arguments out of the call.
    #[doc(hidden)]
    pub fn into_args(self) -> Args {
        self.args
    }

    /// Bytes of shared memory that each block takes; `u64::MAX` if the length of a `shared_slice!` is negative.
    pub fn shared_bytes(&self) -> u64 {
        self.args.shared_bytes(self.kernel)
    }

    /// The requested block, [clamped](Extents::clamped).
    pub fn block_dim(&self) -> Option<Dim3> {
        self.block.map(Extents::clamped)
    }

    /// The requested block, whether or not a device supports it.
    #[doc(hidden)]
    pub fn asked_block(&self) -> Option<Extents> {
        self.block
    }

    /// The requested amortizing factor, or else the attribute's.
    pub fn amortizing_factor(&self) -> Amortize {
        let attribute = || self.kernel.amortize.map_or(Amortize::Auto, Amortize::Tasks);
        self.amortize.unwrap_or_else(attribute)
    }

    /// How the launch is to share the device; `None` for the scheduler's setting.
    pub fn preemption_mode(&self) -> Option<Preemption> {
        self.preemption
    }
}

impl Call<'_> {
    /// The grid in block-tasks, [clamped](Extents::clamped). It is empty if
    /// [`threads`](Call::threads) was called and the block is unknown.
    pub fn grid_dim(&self) -> Dim3 {
        self.asked_grid().map_or(Dim3::new(0, 0, 0), Extents::clamped)
    }

    /// The grid in block-tasks, whether or not a device supports it. `None` if
    /// [`threads`](Call::threads) was called and the block is unknown or has no threads.
    #[doc(hidden)]
    pub fn asked_grid(&self) -> Option<Extents> {
        match self.grid {
            Grid(GridRequest::Tasks(grid)) => Some(grid),
            Grid(GridRequest::Threads(threads)) => {
                threads.in_blocks_of(self.kernel.block.or(self.block_dim())?)
            }
        }
    }
}
