use std::sync::Arc;

/// A pool that cannot be built, a task that it does not take, or how a task ended that gave no result.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A pool without a device.
    #[error(
        "a pool has one device at least; name it with `PoolBuilder::device` or `PoolBuilder::scheduler`"
    )]
    NoDevice,
    /// A policy that cannot decide.
    #[error("the policy of the pool: {reason}")]
    PolicyRefused {
        /// What is wrong, and what to do.
        reason: &'static str,
    },
    /// A number of outstanding tasks that lets none run.
    #[error(
        "no task runs where none may be outstanding; give `PoolBuilder::outstanding` at least 1"
    )]
    NoneOutstanding,
    /// A task that says it needs more memory than a device of the pool has.
    #[error(
        "task `{task}` needs {bytes} bytes, and a device of the pool has {limit}; split the task, or make a pool of the \
         larger devices"
    )]
    TooLarge {
        /// The task's name.
        task: Arc<str>,
        /// What it said it needs.
        bytes: u64,
        /// What the smallest device has, in bytes.
        limit: u64,
    },
    /// An opaque task of a user-facing application.
    #[error(
        "task `{task}` is opaque, and its application is user-facing: kernels of two processes share a device by time \
         slices; submit it to a batch application"
    )]
    Opaque {
        /// The task's name.
        task: Arc<str>,
    },
    /// An operation of a task that writes what the task has not made: it could not be done twice.
    #[error(
        "task `{task}`: `{operation}` writes a buffer that this run of the task has not made, so the task could not run \
         again; make it in the task, with `Run::zeroed` or `Run::buffer`, and copy there what it is to begin with"
    )]
    NotReplayable {
        /// The task's name.
        task: Arc<str>,
        /// The name of the kernel or program, or "copy", or "fill".
        operation: &'static str,
    },
    /// What the operations of a task give once it was told to leave its device. The pool runs the task again; its body returns
    /// this error, and nothing of it is seen.
    #[error(
        "task `{task}` has to leave its device, and runs again later; its body returns this error"
    )]
    Revoked {
        /// The task's name.
        task: Arc<str>,
    },
    /// The body of a task panicked.
    #[error("task `{task}` panicked: {message}")]
    Panicked {
        /// The task's name.
        task: Arc<str>,
        /// What the panic said.
        message: Arc<str>,
    },
    /// The result was awaited before.
    #[error(
        "the result of task `{task}` was taken before; keep what the handle gave when it was awaited"
    )]
    ResultTaken {
        /// The task's name.
        task: Arc<str>,
    },
    /// The task was cancelled.
    #[error("task `{task}` was cancelled")]
    Cancelled {
        /// The task's name.
        task: Arc<str>,
    },
    /// The pool was dropped before the task had ended, or before it was submitted.
    #[error("task `{task}`: the pool was dropped; keep it until the results are there")]
    PoolDropped {
        /// The task's name.
        task: Arc<str>,
    },
    /// Each device of the pool has failed.
    #[error(
        "task `{task}`: no device of the pool is left; start the process again, and see what its tasks' kernels access"
    )]
    NoDeviceLeft {
        /// The task's name.
        task: Arc<str>,
    },
    /// The policy panicked; the pool went on with [`FirstCome`](crate::pool::FirstCome).
    #[error("the policy of the pool was replaced by `FirstCome`: it panicked: {message}")]
    PolicyReplaced {
        /// What the panic said.
        message: Arc<str>,
    },
}
