//! Tasks of many applications on a pool of devices: which one runs where, and which one makes room.
//!
//! A *task* is work that is stopped, and if need be run again, as a whole: copies in, launches, copies out. A
//! [user-facing](Class::UserFacing) one should be over within a service level (SLA); a [batch](Class::Batch) one may take as
//! long as it takes. This is what TReM (HPCC'20) decides. There, a stopped task is killed and starts anew. Here, a
//! stopped task *yields* where it can: it keeps its memory and what it did, and goes on when its device is free again. Other
//! tasks are *revoked*: they run again from their start.
//!
//! This module decides, and runs nothing: what each policy does with a workload and a number of devices,
//! [`sim::pool`](crate::sim::pool) says in virtual time.
//!
//! | policy | which goes first | source |
//! | --- | --- | --- |
//! | [`FirstCome`] | the oldest; no task is stopped | |
//! | [`UserFacingFirst`] | user-facing ones, on all devices | TReM IV, `Priority` |
//! | [`Elastic`] | user-facing ones, on as many devices as keep them within their SLA | TReM IV.A |
//!
//! A policy of an application implements [`PoolPolicy`].

use std::time::Duration;

mod dispatch;
mod policy;

pub(crate) use dispatch::{Dispatcher, Order, Rules, TaskNumber, Totals};
#[doc(inline)]
pub use dispatch::{PoolPlan, Victim};
pub use policy::{Elastic, FirstCome, PoolPolicy, UserFacingFirst};

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
