//! A resident block: one host thread that runs the worker loop, and plays all of the block's
//! threads in turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use preempt_device::abi::Cohort;
use preempt_device::host::Dim3;
use preempt_device::worker::{self, Chunk};

use super::dispatch::Demand;
use super::threads::{Emulator, Task};
use super::{Shared, lock};
use crate::device::{Grid, Report};
use crate::engine::OpKey;
use crate::error::caught;

/// A block on its way to its SM.
pub(super) struct Resident {
    pub op: OpKey,
    pub grid: Arc<Grid>,
    pub cohort: Cohort,
    pub failed: Arc<AtomicBool>,
    pub sm: u32,
    pub slot: usize,
}

// SAFETY: the pointers in a cohort are to words that all threads share through atomics.
unsafe impl Send for Resident {}

/// The host thread stands for the whole block, so there is nobody to elect or to wait for.
struct CpuBlock {
    sm: u32,
}

impl worker::Block for CpuBlock {
    fn sm(&self) -> u32 {
        self.sm
    }

    fn elect(&mut self, decide: impl FnOnce() -> Chunk) -> Chunk {
        decide()
    }

    fn elect_last(&mut self, last: impl FnOnce()) {
        last()
    }

    fn barrier(&mut self) {}
}

impl Resident {
    pub fn run(self, emulator: &mut Emulator, shared: &Shared) {
        let Resident { op, grid, cohort, failed, sm, slot } = self;
        let [x, y, z] = cohort.grid;
        let run_task = |index: u32| {
            // A launch that went wrong has no result; the rest only has to be counted.
            // Relaxed, as below: a block that sees it late does work for nothing.
            if failed.load(Ordering::Relaxed) {
                return;
            }
            let row = index / x;
            let task = Task {
                kernel: grid.kernel,
                args: &grid.args,
                block_dim: grid.block,
                grid_dim: Dim3::new(x, y, z),
                block: Dim3::new(index % x, row % y, row / y),
                sm,
            };
            // SAFETY: the launch checked the arguments against the kernel's. Whatever happens, the
            // block goes on: a launch whose blocks do not leave never ends.
            let result = caught(|| unsafe { emulator.run(&task) });
            if let Err(message) = result.and_then(|result| result)
                && !failed.swap(true, Ordering::Relaxed)
            {
                let message = format!(
                    "block-task ({}, {}, {}): {message}",
                    task.block.x, task.block.y, task.block.z
                );
                shared.report(Report::Fault(op, message.into()));
            }
        };
        // SAFETY: control blocks and posts are never freed, and this block runs once.
        unsafe { worker::run(&mut CpuBlock { sm }, &cohort, run_task) };

        let demand = Demand::of(grid.kernel, grid.block);
        // The launch's arguments are not needed any more; whoever waits may want them gone.
        drop(grid);
        let mut dispatch = lock(&shared.dispatch);
        dispatch.free(sm, slot, demand);
        shared.place(&mut dispatch);
        drop(dispatch);
        shared.news.announce();
    }
}
