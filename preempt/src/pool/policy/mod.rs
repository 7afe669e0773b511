//! The policies of a pool.

use std::fmt::Debug;
use std::time::Duration;

use super::PoolPlan;

mod elastic;
mod first_come;
mod user_facing_first;

pub use elastic::Elastic;
pub use first_come::FirstCome;
pub use user_facing_first::UserFacingFirst;

/// Decides which tasks start where, and which are stopped.
pub trait PoolPolicy: Debug + Send {
    /// Decides, whenever a task has come, has ended or was stopped, and at each [wake](PoolPolicy::wake).
    fn decide(&mut self, plan: &mut PoolPlan<'_>);

    /// Says why a pool cannot have it, and what to do, if so.
    fn refused(&self) -> Option<&'static str> {
        None
    }

    /// After which time it is to be asked again at the latest, while tasks are outstanding.
    fn wake(&self) -> Option<Duration> {
        None
    }
}
