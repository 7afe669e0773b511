//! Programs on the CPU device: a grid for each call, one after the other in one queue.

use std::sync::{Arc, LazyLock};

use preempt_device::host::{Amortize, Args, Dim3, Kernel};

use super::dispatch::PendingGrid;
use crate::device::control::PlainGrid;
use crate::device::rows::copy_rows;
use crate::device::{Copy, KernelLaunch, ProgramLaunch, Step};
use crate::vocabulary::OpKey;

/// A call of a program, in its place there.
pub(super) struct QueuedCall {
    step: Step,
    index: usize,
    /// Block-tasks of the calls before it.
    #[cfg_attr(not(all(test, not(loom))), allow(dead_code, reason = "the model counts them"))]
    pub first_task: u32,
    /// Whether the program is over with it.
    pub is_last: bool,
}

/// A kernel without block-tasks, whose only block copies.
static COPY: LazyLock<Arc<KernelLaunch>> = LazyLock::new(|| {
    static KERNEL: Kernel = Kernel {
        name: "a copy",
        entry: "",
        plain: "",
        module: "",
        block: None,
        amortize: None,
        shared_bytes: 0,
        yields: false,
        cpu: |_| false,
    };
    Arc::new(KernelLaunch {
        kernel: &KERNEL,
        args: Args::default(),
        block: Dim3::new(1, 1, 1),
        grid: [0; 3],
        amortize: Amortize::Auto,
    })
});

impl QueuedCall {
    /// The kernel of its grid.
    pub fn launch(&self) -> Arc<KernelLaunch> {
        match &self.step {
            Step::Launch { launch, .. } => launch.clone(),
            Step::Copy(_) => COPY.clone(),
        }
    }

    /// What it is called in errors.
    pub fn describe(&self) -> String {
        self.step.describe(self.index)
    }

    /// Copies, if the call is a copy.
    ///
    /// # Safety
    ///
    /// The copy has its turn among the operations on its memory.
    pub unsafe fn copy(&self) {
        if let Step::Copy(copy) = &self.step {
            let Copy { from, to, rows, .. } = copy.copy;
            // SAFETY: the owners, which this keeps, keep both places.
            unsafe { copy_rows(from as *const u8, to as *mut u8, rows) };
        }
    }
}

/// The grids of a program on a device with room for `slots` blocks.
pub(super) fn grids(
    op: OpKey,
    program: &ProgramLaunch,
    grid: PlainGrid,
    slots: u32,
) -> impl Iterator<Item = PendingGrid> {
    let (failed, last, mut tasks) = (Arc::default(), program.steps.len() - 1, 0);
    program.steps.iter().enumerate().map(move |(index, step)| {
        let (step, first_task) = (step.clone(), tasks);
        let call = QueuedCall { step, index, first_task, is_last: index == last };
        tasks += call.launch().tasks();
        PendingGrid::of_call(op, call, grid, slots, &failed)
    })
}
