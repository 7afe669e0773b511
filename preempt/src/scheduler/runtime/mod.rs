//! The threads and what they share: the combiner and the core that it runs, operations on their way, and the memory of
//! buffers.

pub(in crate::scheduler) mod armed;
pub(in crate::scheduler) mod combiner;
pub(in crate::scheduler) mod completion;
pub(in crate::scheduler) mod core;
pub(in crate::scheduler) mod credits;
pub(in crate::scheduler) mod external;
#[cfg(all(test, shuttle))]
pub(in crate::scheduler) mod interleavings;
pub(in crate::scheduler) mod memory;
pub(in crate::scheduler) mod moves;
pub(in crate::scheduler) mod opaque;
pub(in crate::scheduler) mod priorities;
pub(in crate::scheduler) mod program;
pub(in crate::scheduler) mod shared;
mod warm_up;
