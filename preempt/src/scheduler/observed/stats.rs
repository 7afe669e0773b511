//! The statistics that a scheduler reports, counted by `accounts`.

use std::time::Duration;

use crate::policy::Priority;

/// What a scheduler has done since it was built; see [`Scheduler::stats`](crate::scheduler::Scheduler::stats).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// How long ago the scheduler was built.
    pub elapsed: Duration,
    /// How long anything was in flight since then, copies included.
    pub busy: Duration,
    /// All launches.
    pub total: Totals,
    /// The launches of each stream, in the order of their numbers.
    pub streams: Vec<StreamStats>,
    /// Launches of the streams that were idle for longest, once there were more than 256.
    pub other_streams: Totals,
    /// The launches of each priority at their submission, in the order of urgency, least urgent first.
    pub priorities: Vec<(Priority, Totals)>,
    /// Launches of further priorities, once there were 32.
    pub other_priorities: Totals,
    /// What the scheduler's own decisions took.
    pub decisions: Decisions,
}

/// Totals of the launches of one stream.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StreamStats {
    /// The stream's number: [`Stream::id`](crate::scheduler::Stream::id).
    pub stream: u32,
    /// The launches of this stream.
    pub launches: Totals,
}

/// Totals of launches: how many ended in which way, and in what time.
///
/// The time that a launch would have taken alone is the prediction at its submission ([`predict`](crate::predict)), or
/// else its own time, less its waiting. A launch for which neither is known is left out of `antt` and `stp`.
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
    /// These launches' part of the `sm_time` of all launches: 0 to 1.
    pub sm_share: f64,
    /// Average normalized turnaround time (Eyerman and Eeckhout, IEEE Micro 28(3), 2008): a launch's time from ready to
    /// done, divided by its time alone. The mean over launches that are done; 1 is the best.
    pub antt: Option<f64>,
    /// System throughput (Eyerman and Eeckhout, IEEE Micro 28(3), 2008): the time that finished launches would have
    /// taken alone, in sum, for each unit of [`busy`](Stats::busy) time. For a stream or priority it is its normalized
    /// progress; these add up to that of the total. More is better; 1 is what one program alone has.
    pub stp: Option<f64>,
}

/// What the scheduler's decisions took: asking the policy, and turning its plan into yields and launches. One decision
/// of 32 is timed.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct Decisions {
    /// Decisions made.
    pub count: u64,
    /// The mean time of a decision.
    pub mean: Duration,
    /// The 99th percentile of the times, at most an eighth too long.
    pub p99: Duration,
    /// The longest time of a decision that was timed.
    pub max: Duration,
    /// The time of all decisions, as a part of [`busy`](Stats::busy).
    pub overhead: f64,
}
