use std::path::PathBuf;
use std::sync::Arc;

/// A file of trained durations that cannot be read or written.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PredictionError {
    /// A file of trained durations cannot be read.
    #[error(
        "trained durations cannot be read from `{path}`: {source}; give `Ridge::load` a file that \
         `Ridge::save` of this version wrote, or train anew"
    )]
    NotRead {
        /// The file.
        path: PathBuf,
        /// What the operating system said, or what is wrong with the file.
        source: Arc<std::io::Error>,
    },
    /// A file of trained durations cannot be written.
    #[error(
        "trained durations cannot be kept in `{path}`: {source}; give `Ridge::save` a file in a folder that \
         is there and can be written to"
    )]
    NotKept {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: Arc<std::io::Error>,
    },
}
