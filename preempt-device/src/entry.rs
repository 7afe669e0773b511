//! What the two device entries of a kernel run. Public for expansions, and for entries with other loops
//! ([`with_loop`]), to compare with.

use crate::abi::{Cohort, DeviceQueue};
use crate::target;
use crate::thread::UVec3;
use crate::worker::{self, Block, BlockNotes, Body, Chunk};
use crate::yields::{self, Yields};

const _: () =
    assert!(size_of::<BlockNotes>() <= 8 * size_of::<u64>() && align_of::<BlockNotes>() == 16);

/// Defines the function that holds a kernel's body. Not inlined by the compiler: `preempt::build` has LLVM optimise it on
/// its own, and inline it then.
#[cfg(not(feature = "cuda-std"))]
#[doc(hidden)]
#[macro_export]
macro_rules! kernel_body {
    ($($function:tt)*) => {
        #[inline(never)]
        $($function)*
    };
}

/// Defines the function that holds a kernel's body.
#[cfg(feature = "cuda-std")]
#[doc(hidden)]
#[macro_export]
macro_rules! kernel_body {
    ($($function:tt)*) => {
        #[inline(always)]
        $($function)*
    };
}

/// A block of a GPU grid.
#[derive(Debug)]
pub struct CudaBlock {
    /// Whether this thread is the elected one.
    elected: bool,
    /// Where, from the first of the two slot words, the next claim goes through, in bytes.
    turn: u32,
}

impl CudaBlock {
    #[inline(always)]
    fn new() -> CudaBlock {
        // The first thread of the last warp: where warps of a block have different work to do, as at the end of
        // a reduction, the first one has most, and the next claim need not wait for it.
        let UVec3 { x, y, z } = crate::thread::block_dim();
        let elected = (x * y * z - 1) & !31;
        CudaBlock { elected: crate::thread::thread_number() == elected, turn: 0 }
    }

    /// Has the elected thread write a chunk where all threads read it after the barrier that has to follow.
    #[inline(always)]
    fn publish(&mut self, decide: impl FnOnce(&Self) -> Chunk) -> *const u64 {
        // Two words in turn: a slow warp may still read the last claim while the elected thread
        // writes the next one. It cannot be two claims behind, since a barrier lies between.
        let slot = target::loop_slot().wrapping_byte_add(self.turn as usize);
        self.turn ^= size_of::<u64>() as u32;
        if self.elected {
            let chunk = decide(self);
            // SAFETY: the slot is this block's, and nobody reads this word before the barrier.
            unsafe { slot.write(chunk.pack()) };
        }
        slot
    }
}

impl Block for CudaBlock {
    #[inline(always)]
    fn sm(&self) -> u32 {
        target::sm_id()
    }

    #[inline(always)]
    fn number(&self) -> u32 {
        target::block_number()
    }

    #[inline(always)]
    fn clock(&self) -> u64 {
        target::clock64()
    }

    #[inline(always)]
    fn await_previous(&self) {
        target::await_previous();
    }

    #[inline(always)]
    fn release_next(&self) {
        target::release_next();
    }

    #[inline(always)]
    fn own<'a, T>(&self, shared: &'a T) -> &'a T {
        // Of the elected thread this is 0, which the compiler does not see: if an atomic operation had the same
        // address in all threads, it would have one thread do it for those of the warp that come along, and
        // shuffle the result to them at once.
        let zero = target::lane_id() as usize;
        // SAFETY: the same place.
        unsafe { &*core::ptr::from_ref(shared).byte_add(zero * align_of::<T>()) }
    }

    #[inline(always)]
    fn notes(&self) -> &BlockNotes {
        // SAFETY: after the two words of the slot there is room for them, which nobody else uses.
        unsafe { &*target::loop_slot().wrapping_add(2).cast() }
    }

    #[inline(always)]
    fn ask(&self, queue: &DeviceQueue) {
        // SAFETY: both are aligned to 16 bytes or more, and alive until `await_asked`, which the loop ends with.
        unsafe { target::start_copy(queue, &self.notes().asked) }
    }

    #[inline(always)]
    fn await_asked(&self) {
        target::await_copies();
    }

    #[inline(always)]
    fn lead(&mut self, lead: impl FnOnce(&Self)) {
        if self.elected {
            lead(self);
        }
    }

    #[inline(always)]
    fn elect(&mut self, decide: impl FnOnce(&Self) -> Chunk) -> Chunk {
        let slot = self.publish(decide);
        target::loop_barrier();
        // SAFETY: written before the barrier, and not again before the next one.
        Chunk::unpack(unsafe { slot.read() })
    }

    #[inline(always)]
    fn elect_any(&mut self, predicate: bool, decide: impl FnOnce(&Self) -> Chunk) -> (Chunk, bool) {
        let slot = self.publish(decide);
        let any = target::loop_barrier_or(predicate);
        // SAFETY: as above.
        (Chunk::unpack(unsafe { slot.read() }), any)
    }

    #[inline(always)]
    fn elect_last(&mut self, last: impl FnOnce(&Self)) {
        target::loop_barrier();
        if self.elected {
            last(self);
        }
    }

    #[inline(always)]
    fn barrier(&mut self) {
        target::loop_barrier();
    }

    #[inline(always)]
    fn any(&mut self, predicate: bool) -> bool {
        target::loop_barrier_or(predicate)
    }
}

/// Where the block-task with this index is in the grid that the kernel sees.
#[inline(always)]
fn position(cohort: &Cohort, index: u32) -> [u32; 3] {
    let [x, y, z] = cohort.grid;
    if y == 1 && z == 1 {
        return [index, 0, 0];
    }
    let row = cohort.row.of(index);
    let layer = if z == 1 { 0 } else { cohort.layer.of(row) };
    [index - row * x, row - layer * y, layer]
}

/// A kernel's body; `YIELDS` says whether it has yield points.
#[expect(missing_debug_implementations, reason = "it holds a closure")]
pub struct Tasks<'a, F, const YIELDS: bool> {
    cohort: &'a Cohort,
    index: u32,
    task: F,
}

impl<F: FnMut(&mut Yields), const YIELDS: bool> Body for Tasks<'_, F, YIELDS> {
    const YIELDS: bool = YIELDS;

    #[inline(always)]
    fn seek(&mut self, index: u32) {
        self.index = index;
    }

    #[inline(always)]
    fn index(&self) -> u32 {
        self.index
    }

    #[inline(always)]
    fn run(&mut self, requeueable: bool) -> bool {
        target::set_block_idx(position(self.cohort, self.index));
        // SAFETY: queues are alive as long as any block of theirs.
        let mut yields = unsafe { Yields::new(self.cohort, requeueable) };
        (self.task)(&mut yields);
        yields.requeued()
    }
}

/// The preemptible entry: the worker loop around the kernel's body.
///
/// # Safety
///
/// Called once, first, by every thread of a block that was launched with this cohort.
#[inline(always)]
pub unsafe fn preemptible(cohort: &Cohort, mut task: impl FnMut()) {
    // SAFETY: the caller's promise.
    unsafe {
        work::<_, false>(
            cohort,
            #[inline(always)]
            |_| task(),
        )
    }
}

/// The preemptible entry of a kernel with yield points.
///
/// # Safety
///
/// As [`preemptible`].
#[inline(always)]
pub unsafe fn preemptible_yielding(cohort: &Cohort, task: impl FnMut(&mut Yields)) {
    // SAFETY: the caller's promise.
    unsafe { work::<_, true>(cohort, task) }
}

/// # Safety
///
/// As [`preemptible`].
#[inline(always)]
unsafe fn work<F: FnMut(&mut Yields), const YIELDS: bool>(cohort: &Cohort, task: F) {
    let cohort = &enter(cohort);
    let mut block = CudaBlock::new();
    if YIELDS && block.elected {
        // The barrier that has to follow is that of the first claim.
        yields::start_block();
    }
    let mut tasks = tasks::<F, YIELDS>(cohort, task);
    // SAFETY: the caller's promise.
    unsafe { worker::run(&mut block, cohort, &mut tasks) };
}

#[inline(always)]
fn tasks<F, const YIELDS: bool>(cohort: &Cohort, task: F) -> Tasks<'_, F, YIELDS> {
    Tasks { cohort, index: 0, task }
}

/// A preemptible entry with another loop than the worker's. Yield points do nothing in it.
///
/// # Safety
///
/// As [`preemptible`], and what `run` asks for.
#[inline(always)]
pub unsafe fn with_loop<F: FnMut(&mut Yields)>(
    cohort: &Cohort,
    task: F,
    run: impl FnOnce(&mut CudaBlock, &Cohort, &mut Tasks<'_, F, false>),
) {
    let cohort = &enter(cohort);
    run(&mut CudaBlock::new(), cohort, &mut tasks::<F, false>(cohort, task));
}

/// The threads of a block with these extents, for [`declare_block`]. That a block may have so many is
/// asserted on the host.
pub const fn threads(x: u32, y: u32, z: u32) -> u32 {
    x.saturating_mul(y).saturating_mul(z)
}

/// Ends the kernel if the launch gives its shared arrays fewer than `bytes`. The launch fails, and no array lies
/// where there is no memory.
#[inline(always)]
pub fn require_shared(bytes: u32) {
    assert!(
        target::dynamic_shared_bytes() >= bytes,
        "the `cfg`s of host and device differ about shared arrays"
    );
}

/// Says in the PTX that every block of this entry has so many `THREADS`. In the preemptible entry of each
/// kernel whose attribute fixes the block, so that a loader knows how many registers leave an SM as many
/// blocks as it holds of the plain entry.
#[inline(always)]
pub fn declare_block<const THREADS: u32>() {
    target::declare_block::<THREADS>();
}

/// What comes first in a preemptible entry.
#[inline(always)]
fn enter(cohort: &Cohort) -> Cohort {
    target::declare_task_registers(cohort.grid);
    Cohort {
        control: target::global(cohort.control),
        claims: target::global(cohort.claims),
        queue: target::global(cohort.queue),
        post: target::global(cohort.post),
        requeue_list: target::global(cohort.requeue_list),
        after: target::global(cohort.after),
        ..*cohort
    }
}

/// The plain entry: the kernel's body, once for each block of an ordinary grid.
///
/// # Safety
///
/// Called once, first, by every thread of an ordinary grid.
#[inline(always)]
// `FnMut` like the other: the call of a closure as `FnOnce` is a function of its own.
pub unsafe fn plain(mut task: impl FnMut()) {
    let grid = [target::hardware_grid_x(), target::hardware_grid_y(), target::hardware_grid_z()];
    target::declare_task_registers(grid);
    target::set_block_idx([
        target::hardware_block_x(),
        target::hardware_block_y(),
        target::hardware_block_z(),
    ]);
    task();
}

/// The plain entry of a kernel with yield points, which do nothing here.
///
/// # Safety
///
/// As [`plain`].
#[inline(always)]
pub unsafe fn plain_yielding(mut task: impl FnMut(&mut Yields)) {
    // SAFETY: the caller's promise.
    unsafe {
        plain(
            #[inline(always)]
            || task(&mut { Yields::OFF }),
        )
    }
}

// `cuda_std` has one.
#[cfg(not(feature = "cuda-std"))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the kernel with an error that the host sees.
    unsafe { core::arch::nvptx::trap() }
}
