//! What the two device entries of a kernel run.

use crate::abi::Cohort;
use crate::target;
use crate::worker::{self, Block, Chunk};

/// A block of a GPU grid.
struct CudaBlock {
    /// Which of the two slot words the next claim goes through.
    turn: usize,
}

fn elected() -> bool {
    crate::thread::thread_number() == 0
}

impl Block for CudaBlock {
    #[inline(always)]
    fn sm(&self) -> u32 {
        target::sm_id()
    }

    #[inline(always)]
    fn elect(&mut self, decide: impl FnOnce() -> Chunk) -> Chunk {
        // Two words in turn: a slow warp may still read the last claim while the elected thread
        // writes the next one. It cannot be two claims behind, since a barrier lies between.
        let slot = target::loop_slot().wrapping_add(self.turn);
        self.turn ^= 1;
        if elected() {
            let chunk = decide();
            // SAFETY: the slot is this block's, and nobody reads this word before the barrier.
            unsafe { slot.write((chunk.start as u64) << 32 | chunk.len as u64) };
        }
        target::loop_barrier();
        // SAFETY: written before the barrier, and not again before the next one.
        let word = unsafe { slot.read() };
        Chunk { start: (word >> 32) as u32, len: word as u32 }
    }

    #[inline(always)]
    fn elect_last(&mut self, last: impl FnOnce()) {
        target::loop_barrier();
        if elected() {
            last();
        }
    }

    #[inline(always)]
    fn barrier(&mut self) {
        target::loop_barrier();
    }
}

/// The preemptible entry: the worker loop around the kernel's body.
///
/// # Safety
///
/// Called once, first, by every thread of a block that was launched with this cohort.
#[inline(always)]
pub unsafe fn preemptible(cohort: &Cohort, mut task: impl FnMut()) {
    let cohort = &Cohort {
        control: target::global(cohort.control),
        post: target::global(cohort.post),
        ..*cohort
    };
    let [x, y, _] = cohort.grid;
    target::declare_task_registers(cohort.grid);
    // Inlined however long the body is: it reads registers that this entry declares.
    let run_task = #[inline(always)]
    |index: u32| {
        let row = index / x;
        target::set_block_idx([index - row * x, row % y, row / y]);
        task();
    };
    // SAFETY: the caller's promise.
    unsafe { worker::run(&mut CudaBlock { turn: 0 }, cohort, run_task) }
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

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the kernel with an error that the host sees.
    unsafe { core::arch::nvptx::trap() }
}
