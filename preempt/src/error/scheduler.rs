use std::path::PathBuf;
use std::sync::Arc;

/// What a scheduler lost or never had: the application's policy or predictor, a timeline.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SchedulerError {
    /// The policy broke its contract; the scheduler went on with [`Fifo`](crate::policy::Fifo).
    #[error("policy `{policy}` was replaced by `fifo`: {reason}")]
    PolicyReplaced {
        /// The policy's name.
        policy: Arc<str>,
        /// What it did.
        reason: Arc<str>,
    },
    /// A predictor panicked; the scheduler went on without one.
    #[error(
        "the predictor was dropped, and no duration is predicted any more: it panicked: {message}"
    )]
    PredictorDropped {
        /// What the panic said.
        message: Arc<str>,
    },
    /// A timeline was asked for, and none was kept.
    #[error("no timeline was kept; build the scheduler with `SchedulerBuilder::trace`")]
    NoTrace,
    /// A timeline cannot be written.
    #[error(
        "the timeline cannot be written to `{path}`: {source}; give `Scheduler::write_trace` a file in a folder \
         that is there and can be written to"
    )]
    TraceNotWritten {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: Arc<std::io::Error>,
    },
}
