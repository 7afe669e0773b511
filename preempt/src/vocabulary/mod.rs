//! The ground floor: ids and plain values that several layers speak of. Nothing here decides anything, and nothing
//! here uses another module of the crate.

mod byte_range;
mod cohort;
mod costs;
mod ids;
mod queues;
mod sm_set;
mod timestamp;
mod tuned;

pub(crate) use byte_range::ByteRange;
pub(crate) use cohort::{After, CohortOrder, ControlIndex, ControlUse, Vicinity};
pub(crate) use costs::Bare;
pub use costs::Costs;
pub use ids::LaunchId;
pub(crate) use ids::{BufferId, OpKey};
pub(crate) use queues::{
    MOST_TOGETHER, QUEUE_CAPACITY, QueueCount, QueueIndex, QueueSet, queue_bit,
};
pub(crate) use sm_set::SmSet;
pub use timestamp::Timestamp;
pub use tuned::Tuned;
