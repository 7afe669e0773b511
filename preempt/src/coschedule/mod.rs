//! Co-scheduling.

mod speeds;
mod split;

pub use speeds::{CoRun, Speeds};
pub use split::{Caterpillar, caterpillars};
