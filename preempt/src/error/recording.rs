use std::path::PathBuf;
use std::sync::Arc;

/// A recording that cannot be kept, read or replayed.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// A recording that this version cannot replay.
    #[error("not a recording that this version can replay: {reason}")]
    Invalid {
        /// What is wrong with it.
        reason: String,
    },
    /// A recording's file cannot be read or written.
    #[error("the recording `{}`: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        source: Arc<std::io::Error>,
    },
}
