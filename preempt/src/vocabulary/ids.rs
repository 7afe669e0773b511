//! What names an operation, a launch and a buffer.

use std::fmt;

use slotmap::{KeyData, new_key_type};

new_key_type! {
    /// An operation: a launch, a copy, or opaque work.
    pub(crate) struct OpKey;
}

/// A launch, as policies know it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaunchId(pub(crate) OpKey);

impl LaunchId {
    /// An id for tests of policies: the same for the same number. A scheduler has ids of its own.
    pub fn numbered(number: u32) -> LaunchId {
        // Slot maps count versions in the upper half; the version of a key that is in use is odd.
        LaunchId(KeyData::from_ffi(1 << 32 | u64::from(number)).into())
    }
}

impl fmt::Debug for LaunchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LaunchId({:?})", self.0.0)
    }
}

/// A buffer, by a number that no other buffer has at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum BufferId {
    /// By a number that no other buffer of the process ever has.
    Own(u64),
    /// Borrowed memory, by the address at which its allocation starts. A later allocation may start there, too.
    Borrowed(u64),
}
