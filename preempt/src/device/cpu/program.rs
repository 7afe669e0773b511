//! Programs on the CPU device: a grid for each call, one after the other in one queue.

use std::sync::{Arc, LazyLock, Weak};

use preempt_device::host::{Amortize, Args, Dim3, Idempotence, Kernel};

use super::dispatch::PendingGrid;
use crate::device::control::PlainGrid;
use crate::device::rows::copy_rows;
use crate::device::{Captured, Copy, KernelLaunch, ProgramLaunch, RawStream, Step};
use crate::vocabulary::OpKey;

/// A call of a program, in its place there.
pub(super) struct QueuedCall {
    step: QueuedStep,
    /// `None` if it is the only call, and its program says where it is.
    index: Option<usize>,
    /// Block-tasks of the calls before it.
    #[cfg_attr(not(test), allow(dead_code, reason = "the model counts them"))]
    pub first_task: u32,
    /// Whether the program is over with it.
    pub is_last: bool,
}

enum QueuedStep {
    /// Never captured work.
    Kept(Step),
    /// The program keeps it until the call is over. Code of the application must not be dropped with a grid.
    Captured(&'static str, Weak<Captured>),
}

impl QueuedStep {
    fn of(step: &Step) -> QueuedStep {
        match step {
            Step::Captured(captured) => {
                QueuedStep::Captured(captured.name, Arc::downgrade(captured))
            }
            step => QueuedStep::Kept(step.clone()),
        }
    }
}

/// A kernel without block-tasks, whose only block copies, or calls other code.
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
        idempotence: Idempotence::NotNeeded,
        reason: "",
        state_bytes: 0,
        cpu: |_| false,
    };
    Arc::new(KernelLaunch {
        kernel: &KERNEL,
        args: Args::default(),
        block: Dim3::new(1, 1, 1),
        grid: [0; 3],
        amortize: Amortize::Auto,
        leaves_place: false,
    })
});

impl QueuedCall {
    /// The kernel of its grid.
    pub fn launch(&self) -> Arc<KernelLaunch> {
        match &self.step {
            QueuedStep::Kept(Step::Launch { launch, .. }) => launch.clone(),
            _ => COPY.clone(),
        }
    }

    /// What comes before its errors.
    pub fn describe(&self) -> String {
        let Some(index) = self.index else { return String::new() };
        let what = match &self.step {
            QueuedStep::Kept(step) => step.describe(index),
            QueuedStep::Captured(name, _) => Captured::describe(name, index),
        };
        what + ": "
    }

    /// Does what is no kernel: a copy, or work of another library. Its error, if it has one.
    ///
    /// # Safety
    ///
    /// The call has its turn among the operations on its memory.
    pub unsafe fn act(&self) -> Result<(), String> {
        match &self.step {
            QueuedStep::Kept(Step::Copy(copy)) => {
                let Copy { from, to, rows, .. } = copy.copy;
                // SAFETY: the owners, which this keeps, keep both places.
                unsafe { copy_rows(from as *const u8, to as *mut u8, rows) };
                Ok(())
            }
            QueuedStep::Kept(_) => Ok(()),
            QueuedStep::Captured(_, captured) => match captured.upgrade() {
                Some(captured) => (captured.work)(RawStream::NONE),
                None => Err("its program is gone".into()),
            },
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
    let is_named = !program.is_call;
    program.steps.iter().enumerate().map(move |(index, step)| {
        let (step, first_task) = (QueuedStep::of(step), tasks);
        let (is_last, index) = (index == last, is_named.then_some(index));
        let call = QueuedCall { step, index, first_task, is_last };
        tasks += call.launch().tasks();
        PendingGrid::of_call(op, call, grid, slots, &failed)
    })
}
