//! The numbers that a scheduler tells of itself; `accounts` counts them.

use std::time::Duration;

use crate::policy::Priority;

/// What a scheduler has done since it was built; see [`Scheduler::stats`](crate::scheduler::Scheduler::stats).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// How long ago the scheduler was built.
    pub elapsed: Duration,
    /// For how long of it anything was in flight, copies included.
    pub busy: Duration,
    /// All launches.
    pub total: Totals,
    /// The launches of each stream, in the order of their numbers.
    pub streams: Vec<StreamStats>,
    /// Those of streams that were idle for longest when there were more than 256.
    pub other_streams: Totals,
    /// The launches of each priority, as it was when they were submitted, the least urgent ones first.
    pub priorities: Vec<(Priority, Totals)>,
    /// Those of further priorities, when there were 32.
    pub other_priorities: Totals,
    /// What the scheduler itself took.
    pub decisions: Decisions,
}

/// Totals of the launches of one stream.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StreamStats {
    /// The stream's number: [`Stream::id`](crate::scheduler::Stream::id).
    pub stream: u32,
    /// Its launches.
    pub launches: Totals,
}

/// Totals of launches: how many ended in which way, and in what time.
///
/// The time that a launch would have taken alone is what was predicted when it was submitted
/// ([`predict`](crate::predict)), or else what it took in the end, less its waiting; where neither is known, it is not
/// in `antt` and `stp`.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct Totals {
    /// Launches that are done.
    pub done: u64,
    /// Launches that failed, or were not started because their input was lost.
    pub failed: u64,
    /// Launches that were cancelled, by their handle or because the scheduler was dropped.
    pub cancelled: u64,
    /// Launches that the policy did not admit.
    pub refused: u64,
    /// How often SMs were taken from a launch: evictions, and yields of some SMs only.
    pub yields: u64,
    /// How long launches had SMs, summed over SMs; those that run now included.
    pub sm_time: Duration,
    /// That as a part of what all launches had: 0 to 1.
    pub sm_share: f64,
    /// Average normalized turnaround time (Eyerman and Eeckhout, IEEE Micro 28(3), 2008): how many times as long as
    /// alone a launch took, from when it was ready until it was done; the mean over launches that are done. 1 is the
    /// best.
    pub antt: Option<f64>,
    /// System throughput (as above): what the launches that are done would have taken alone, one after the other, for
    /// each unit of [`busy`](Stats::busy) time. Those of a stream or priority are its normalized progress; together
    /// they give that of the total. More is better; 1 is what one program alone has.
    pub stp: Option<f64>,
}

/// What the scheduler's decisions took: asking the policy, and turning its plan into yields and launches. One of 32 is
/// timed.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct Decisions {
    /// Decisions made.
    pub count: u64,
    /// The mean of their times.
    pub mean: Duration,
    /// 99 of 100 take no longer, as far as it is known: up to an eighth more than that.
    pub p99: Duration,
    /// The longest that was timed.
    pub max: Duration,
    /// What all of them took, as a part of [`busy`](Stats::busy).
    pub overhead: f64,
}
