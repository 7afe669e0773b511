//! What the two device entries of a kernel run. Public for expansions, and for entries with other loops to
//! compare with ([`with_loop`]).

use crate::abi::{Cohort, DeviceQueue};
use crate::target;
use crate::thread::UVec3;
use crate::worker::{self, Block, BlockNotes, Body, Chunk};
use crate::yields::{self, Switch, Yields};

const _: () =
    assert!(size_of::<BlockNotes>() <= 12 * size_of::<u64>() && align_of::<BlockNotes>() == 16);

/// Defines the function that holds a kernel's body. The compiler does not inline it: `preempt-build` has
/// LLVM optimise it on its own first, and inline it then.
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
    /// The tasks of the chunk that are left, times 2, and which of the two slot words the next claim has. All threads have it
    /// in a register while the kernel's body runs.
    left_and_turn: u32,
}

impl CudaBlock {
    #[inline(always)]
    fn new() -> CudaBlock {
        // The first thread of the last warp. Where warps have different work, as at the end of a reduction,
        // the first warp has the most. The next claim need not wait for it.
        let UVec3 { x, y, z } = crate::thread::block_dim();
        let elected = (x * y * z - 1) & !31;
        CudaBlock { elected: crate::thread::thread_number() == elected, left_and_turn: 0 }
    }

    /// Has the elected thread write a chunk to a word that all threads read after a barrier. The caller waits
    /// at that barrier.
    #[inline(always)]
    fn publish(&mut self, decide: impl FnOnce(&Self) -> Chunk) -> *const u64 {
        // Two words in turn, because a slow warp may still read the last claim while the elected thread
        // writes the next one. It cannot be two claims behind, because a barrier lies between.
        let slot = target::loop_slot().wrapping_add((self.left_and_turn & 1) as usize);
        self.left_and_turn ^= 1;
        if self.elected {
            let chunk = decide(self);
            // SAFETY: the slot is this block's, and no thread reads this word before the barrier.
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
    fn nanos(&self) -> u64 {
        target::global_timer()
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
        // On the elected thread this is 0, which the compiler does not see. With the same address in all
        // threads, the compiler would have one thread do an atomic operation for its warp. It would then
        // shuffle the result to the others at once.
        let zero = target::lane_id() as usize;
        // SAFETY: the same place.
        unsafe { &*core::ptr::from_ref(shared).byte_add(zero * align_of::<T>()) }
    }

    #[inline(always)]
    fn notes(&self) -> &BlockNotes {
        // SAFETY: the notes are the block's while the kernel runs.
        unsafe { &*notes() }
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

    /// The thread that has seen the revocation has told the block's watch, ahead of a barrier. Threads of a body without markers
    /// may not; their tasks may run again.
    #[inline(always)]
    unsafe fn is_revoked(&self, _: &Cohort) -> bool {
        yields::is_block_revoked()
    }

    #[inline(always)]
    fn set_left(&mut self, left: u32) {
        self.left_and_turn = left << 1 | self.left_and_turn & 1;
    }

    #[inline(always)]
    fn left(&self) -> u32 {
        self.left_and_turn >> 1
    }

    #[inline(always)]
    fn is_last(&self) -> bool {
        self.left_and_turn < 4
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
        // SAFETY: the word was written before the barrier, and is not written again before the next one.
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

/// The notes of the block, behind the two words of the slot, where no other code uses the memory.
#[inline(always)]
pub(crate) fn notes() -> *const BlockNotes {
    target::loop_slot().wrapping_add(2).cast()
}

/// The position of the block-task with this index in the grid that the kernel sees.
#[inline(always)]
fn position(cohort: &Cohort, index: u32) -> [u32; 3] {
    if cohort.more_rows == 0 {
        return [index, 0, 0];
    }
    let [x, y, z] = cohort.grid;
    let row = cohort.row.of(index);
    let layer = if z == 1 { 0 } else { cohort.layer.of(row) };
    [index - row * x, row - layer * y, layer]
}

/// A kernel's body as the worker loop runs it. `YIELDS` says whether it has yield points, and `SWITCHES` whether it has a
/// checkpoint.
#[expect(missing_debug_implementations, reason = "it holds a closure")]
pub struct Tasks<'a, F, const YIELDS: bool, const SWITCHES: bool = false> {
    cohort: &'a Cohort,
    index: u32,
    /// The slot, plus 1, that the selected task goes on from; 0 if it starts.
    resumes: u32,
    task: F,
}

impl<F: FnMut(&mut Yields), const YIELDS: bool, const SWITCHES: bool> Body
    for Tasks<'_, F, YIELDS, SWITCHES>
{
    const YIELDS: bool = YIELDS;
    const SWITCHES: bool = SWITCHES;

    #[inline(always)]
    fn resume(&mut self, slot: Option<u32>) {
        self.resumes = slot.map_or(0, |slot| slot + 1);
    }

    #[inline(always)]
    fn slot(&self) -> u32 {
        Switch::slot()
    }

    #[inline(always)]
    fn seek(&mut self, index: u32) {
        self.index = index;
    }

    #[inline(always)]
    fn index(&self) -> u32 {
        self.index
    }

    #[inline(always)]
    fn run(&mut self, requeues: u32) -> bool {
        target::mark_task(self.index);
        target::set_block_idx(position(self.cohort, self.index));
        // SAFETY: a queue is alive as long as any of its blocks.
        let mut yields = unsafe { Yields::new(self.cohort, requeues) }.of_task(self.index);
        if SWITCHES {
            // The next task of the chunk, if there is one, starts. So this is in no register while the body runs.
            let resumes = core::mem::take(&mut self.resumes);
            yields = yields.switched_by(self.cohort.requeue_list, resumes);
        }
        (self.task)(&mut yields);
        yields.requeued()
    }
}

/// Runs the preemptible entry of a kernel: the worker loop around its body.
///
/// # Safety
///
/// Every thread of a block that was launched with this cohort calls it once, before anything else.
#[inline(always)]
pub unsafe fn preemptible(cohort: &Cohort, mut task: impl FnMut()) {
    // SAFETY: the caller's promise.
    unsafe {
        work::<_, false, false, false>(
            cohort,
            #[inline(always)]
            |_| task(),
        )
    }
}

/// Runs the preemptible entry of a kernel with yield points.
///
/// # Safety
///
/// As [`preemptible`].
#[inline(always)]
pub unsafe fn preemptible_yielding(cohort: &Cohort, task: impl FnMut(&mut Yields)) {
    // SAFETY: the caller's promise.
    unsafe { work::<_, true, false, false>(cohort, task) }
}

/// Runs the preemptible entry of a kernel with yield points and markers, whose body has no barriers.
///
/// # Safety
///
/// As [`preemptible`].
#[inline(always)]
pub unsafe fn preemptible_marking(cohort: &Cohort, task: impl FnMut(&mut Yields)) {
    // SAFETY: the caller's promise.
    unsafe { work::<_, true, true, false>(cohort, task) }
}

/// Runs the preemptible entry of a kernel with a checkpoint, where all threads of a block vote.
///
/// # Safety
///
/// As [`preemptible`].
#[inline(always)]
pub unsafe fn preemptible_switching(cohort: &Cohort, task: impl FnMut(&mut Yields)) {
    target::declare_checkpoint();
    // SAFETY: the caller's promise.
    unsafe { work::<_, true, false, true>(cohort, task) }
}

/// # Safety
///
/// As [`preemptible`].
#[inline(always)]
unsafe fn work<
    F: FnMut(&mut Yields),
    const YIELDS: bool,
    const DECIDES: bool,
    const SWITCHES: bool,
>(
    cohort: &Cohort,
    task: F,
) {
    let cohort = &enter(cohort);
    let mut block = CudaBlock::new();
    // Where threads vote at checkpoints alone, none looks at the watch.
    if YIELDS && !SWITCHES && block.elected {
        // The barrier that `start_block` asks for is that of the first claim.
        yields::start_block();
    }
    if DECIDES && block.elected {
        yields::start_decisions();
    }
    let mut tasks = tasks::<F, YIELDS, SWITCHES>(cohort, task);
    // SAFETY: the caller's promise.
    unsafe { worker::run(&mut block, cohort, &mut tasks) };
}

#[inline(always)]
fn tasks<F, const YIELDS: bool, const SWITCHES: bool>(
    cohort: &Cohort,
    task: F,
) -> Tasks<'_, F, YIELDS, SWITCHES> {
    Tasks { cohort, index: 0, resumes: 0, task }
}

/// Runs a preemptible entry with another loop than the worker's. Yield points do nothing in it.
///
/// # Safety
///
/// As [`preemptible`]; and the contract of `run` is kept.
#[inline(always)]
pub unsafe fn with_loop<F: FnMut(&mut Yields)>(
    cohort: &Cohort,
    task: F,
    run: impl FnOnce(&mut CudaBlock, &Cohort, &mut Tasks<'_, F, false>),
) {
    let cohort = &enter(cohort);
    run(&mut CudaBlock::new(), cohort, &mut tasks::<F, false, false>(cohort, task));
}

/// The number of threads of a block with these extents, for [`declare_block`]. The host asserts that a block
/// may have that many.
pub const fn threads(x: u32, y: u32, z: u32) -> u32 {
    x.saturating_mul(y).saturating_mul(z)
}

/// Ends the kernel if the launch gives its shared arrays less than `bytes`. Then the launch fails, and no
/// array lies outside of the block's memory.
#[inline(always)]
pub fn require_shared(bytes: u32) {
    assert!(
        target::dynamic_shared_bytes() >= bytes,
        "the `cfg`s of host and device differ about shared arrays"
    );
}

/// Ends the kernel if the launch gives its shared slices less than `bytes`. Host and device compute their lengths by the
/// same expression, but that may call functions that give something else on the device.
#[inline(always)]
pub fn require_slices(bytes: u64) {
    assert!(
        u64::from(target::dynamic_shared_bytes()) >= bytes,
        "the length of a `shared_slice!` is another on the device than on the host"
    );
}

/// Records in the PTX that every block of this entry has `THREADS` threads. It is in the preemptible entry of
/// each kernel whose attribute fixes the block. The loader of the PTX limits the entry's registers
/// accordingly, so that an SM holds as many blocks as of the plain entry.
#[inline(always)]
pub fn declare_block<const THREADS: u32>() {
    target::declare_block::<THREADS>();
}

/// Declares the registers of a preemptible entry, and marks the pointers of its parameter as global memory.
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
        progress: target::global(cohort.progress),
        ..*cohort
    }
}

/// Runs the plain entry of a kernel: its body, once for each block of a plain grid.
///
/// # Safety
///
/// Every thread of a plain grid calls it once, before anything else.
#[inline(always)]
// `FnMut` as in `preemptible`: the call of a closure as `FnOnce` is a function of its own.
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

/// Runs the plain entry of a kernel with yield points, which do nothing in it.
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

// `cuda_std` defines the panic handler where it is compiled in.
#[cfg(not(feature = "cuda-std"))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the kernel with an error that the host sees.
    unsafe { core::arch::nvptx::trap() }
}
