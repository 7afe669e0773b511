use std::sync::Arc;

/// How a launch, a copy or opaque work ended that did not succeed.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
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
    /// A kernel went wrong while it ran. The message says where it panicked: "block-task (5, 0, 0): thread (3, 0, 0)
    /// panicked". On the CPU device the panic's own message follows. On a GPU the context is lost with the launch, and
    /// all others end with [`DeviceError::ContextLost`](super::DeviceError::ContextLost).
    #[error("kernel `{kernel}` failed: {message}")]
    KernelFailed {
        /// The kernel's name.
        kernel: &'static str,
        /// What happened, where.
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
}
