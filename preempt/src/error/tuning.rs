use std::path::PathBuf;
use std::sync::Arc;

use crate::vocabulary::Tuned;

/// The file of a [`Tuner`](crate::tune::Tuner) that cannot be read or written.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TuningError {
    /// The file of a [`Tuner`](crate::tune::Tuner) is there and cannot be read; nothing was launched.
    #[error(
        "tuned amortizing factors cannot be read from `{path}`: {source}; give `Tuner::cache` another \
         file, or remove this one"
    )]
    NotRead {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: Arc<std::io::Error>,
    },
    /// The file of a [`Tuner`](crate::tune::Tuner) cannot be written; what was found is here.
    #[error(
        "the amortizing factor is tuned to {}, and cannot be kept in `{path}`: {source}; give \
         `Tuner::cache` a file in a folder that is there and can be written to", tuned.amortize
    )]
    NotKept {
        /// The file.
        path: PathBuf,
        /// What would have been kept.
        tuned: Tuned,
        /// What the operating system said.
        source: Arc<std::io::Error>,
    },
}
