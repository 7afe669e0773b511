//! Tasks of many applications on a pool of devices: which one runs where, and which one makes room.
//!
//! A *task* is work that is stopped, and if need be run again, as a whole: copies in, launches, copies out. A
//! [user-facing](Class::UserFacing) one should be over within a service level (SLA); a [batch](Class::Batch) one may take as
//! long as it takes. This is what TReM (HPCC'20) decides. There, a stopped task is killed and starts anew. Here, a
//! stopped task *yields* where it can: it keeps its memory and what it did, and goes on when its device is free again. Other
//! tasks are *revoked*: they run again from their start.
//!
//! A [`Pool`] has devices, each with a scheduler of its own, and applications submit [`Task`]s to it. What a policy does with a
//! workload and a number of devices, [`sim::pool`](crate::sim::pool) says in virtual time.
//!
//! | | |
//! | --- | --- |
//! | [`Pool`], [`PoolBuilder`] | devices, and the policy that says which task runs where |
//! | [`Application`] | submits tasks that are alike, and says whether users wait for them |
//! | [`Task`], [`Run`], [`TaskHandle`] | the work, what it has of its device while it runs, and its result |
//! | [`Resident`] | what stays on a device between tasks: weights, programs |
//! | [`worker`](crate::worker) | work of which nothing but input and output is known, in processes that are killed |
//!
//! # When a task makes room
//!
//! | a batch task | and a user-facing one comes |
//! | --- | --- |
//! | runs our kernels | it yields: its launches [leave the device](crate::Stream::suspend) to the other one, and go on afterwards |
//! | has yielded, and has memory that the other one needs | it is revoked |
//! | is [opaque](Task::opaque) | it is revoked: its worker is killed |
//! | of a pool that [revokes](PoolBuilder::stop) | it is revoked: its operations are cancelled, and a kernel leaves at its next yield, also behind [markers](preempt_device::preemptible#markers); a plain grid of the default form ends, as is expected within the time that the pool [counts on](Stop::Revoke) |
//! | was revoked [as often](REVOCATIONS) as may be | it runs to its end |
//!
//! Devices may be [parts](crate::Device::split) of one: each runs tasks beside the others, and an opaque task has all of them that
//! the pool has.
//!
//! A device that fails costs the pool that device. Tasks that were there run again on others, once: with a task that makes
//! devices fail, the second device is the last that it gets.
//!
//! # Policies
//!
//! | policy | which goes first | source |
//! | --- | --- | --- |
//! | [`FirstCome`] | the oldest; no task is stopped | |
//! | [`UserFacingFirst`] | user-facing ones, on all devices | TReM IV, `Priority` |
//! | [`Elastic`] | user-facing ones, on as many devices as keep them within their SLA | TReM IV.A |
//! | [`InTime`] | user-facing ones, on all devices: those that can be within their SLA ahead of those that cannot | after Moore and Hodgson, 1968 |
//!
//! A policy of an application implements [`PoolPolicy`].

mod builder;
mod dispatch;
#[cfg(all(test, shuttle))]
mod interleavings;
mod policy;
mod resident;
mod run;
mod runtime;
#[cfg(target_os = "linux")]
mod shared;
mod task;
mod terms;

pub use builder::{Pool, PoolBuilder};
pub(crate) use dispatch::{Dispatcher, End, Order, Past, Rules, TaskNumber};
#[doc(inline)]
pub use dispatch::{PoolPlan, PoolPolicy, PoolStats, Victim, Waiting};
pub use policy::{Elastic, FirstCome, InTime, UserFacingFirst};
pub use resident::{Borrowed, Resident};
pub use run::Run;
#[cfg(target_os = "linux")]
pub use shared::AnyBuffer;
pub use task::{Application, Task, TaskHandle, TaskReport};
pub use terms::{Class, OUTSTANDING, REVOCATIONS, Stop};
