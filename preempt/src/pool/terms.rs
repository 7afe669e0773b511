//! What tasks are to users, how they are stopped, and what holds for all pools.

use std::time::Duration;

/// Whether users wait for a task's result.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// They do, and for no longer than an SLA. It is never stopped.
    UserFacing,
    /// It may take as long as it takes, and makes room.
    Batch,
}

/// How many tasks of one application are outstanding at most, in TReM's evaluation: the others wait to be, and their time does
/// not count.
pub const OUTSTANDING: usize = 8;

/// How often a task is revoked at most. After that it runs to its end, or each would lose its work for ever where user-facing
/// tasks keep coming. TReM has such a threshold and does not say its value.
pub const REVOCATIONS: u32 = 8;

/// What a pool counts on for the end of a [worker](crate::worker) that is killed: on an H200, other processes' launches are fast
/// again after this time.
pub(crate) const KILL: Duration = Duration::from_micros(7500);

/// How a batch task is stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// Not at all.
    Never,
    /// It leaves its device after this time, keeps its memory and what it did, and goes on there.
    Yield(Duration),
    /// It is killed, its device is free after this time, and it runs again from its start.
    Revoke(Duration),
}

impl Stop {
    /// From the decision to a device that is free.
    pub fn latency(self) -> Duration {
        match self {
            Stop::Never => Duration::ZERO,
            Stop::Yield(latency) | Stop::Revoke(latency) => latency,
        }
    }
}
