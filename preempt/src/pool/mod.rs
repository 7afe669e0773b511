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

mod builder;
mod dispatch;
#[cfg(all(test, shuttle))]
mod interleavings;
mod policy;
mod run;
mod runtime;
mod task;
mod terms;

pub use builder::{Pool, PoolBuilder, PoolStats};
pub(crate) use dispatch::{Dispatcher, End, Order, Rules, TaskNumber, Totals};
#[doc(inline)]
pub use dispatch::{PoolPlan, PoolPolicy, Victim};
pub use policy::{Elastic, FirstCome, UserFacingFirst};
pub use run::Run;
pub use task::{Application, Task, TaskHandle};
pub use terms::{Class, OUTSTANDING, REVOCATIONS, Stop};
