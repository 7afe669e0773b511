//! The statistics that a scheduler reports, counted by `accounts`.

use std::time::Duration;

use preempt_device::abi::Stops as Posted;

use crate::policy::{Priority, on_device};

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
    /// How blocks have left SMs that were taken from their launches.
    pub stops: Stops,
    /// Launches that have not left the device for long, as far as a warning has told of them.
    pub overdue: Vec<Overdue>,
    /// What the scheduler's own decisions took.
    pub decisions: Decisions,
}

/// A launch that has not left the device 700 ms after it was told to leave all its SMs; or, of a kernel that
/// [another compiler](crate::scheduler::ForeignKernel) made, after it began. The feature `tracing` warns of each once.
///
/// Its block-tasks take that long, or they wait for each other, and those that they wait for have no SM. Such a kernel ends as a
/// plain grid ([`ForeignKernel::plain`](crate::scheduler::ForeignKernel::plain)) if the device holds all its blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Overdue {
    /// The kernel's name.
    pub kernel: &'static str,
    /// The number of its stream.
    pub stream: u32,
    /// How long ago it was told to leave, or began.
    pub time: Duration,
    /// Whether it was told to leave.
    pub was_told: bool,
}

/// How blocks have left SMs that were taken from their launches, and how long that took where the stream or the policy
/// has a [limit](crate::Stream::set_latency_limit).
///
/// A stop is the end of all blocks that were launched together. On a GPU its time counts from the arrival of the signal until
/// the last block is out, by the clock of the GPU, if the signal came by the [proxy](crate::SignalPath); otherwise from the
/// host's signal until the host knows of the end, which is some microseconds longer. Of stops of some of a launch's SMs, the
/// clock tells times of up to 4 s. Where the signal is a write by a stream, whose arrival it does not show, these are not counted on
/// a GPU.
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct Stops {
    /// Stops with a limit.
    pub count: u64,
    /// Those of them that took longer than the limit.
    pub violations: u64,
    /// The longest of them.
    pub longest: Duration,
    /// Blocks that ended their block-tasks. They lose nothing.
    pub drained: u64,
    /// Blocks that requeued a block-task at a yield point.
    pub requeued: u64,
    /// Blocks that left a block-task at a checkpoint.
    pub switched: u64,
    /// The time that requeued block-tasks had run in vain, summed over blocks.
    pub lost: Duration,
    /// Bytes of the save area that block-tasks took which were left at checkpoints: of each its slot, padding included.
    pub saved_bytes: u64,
    /// The stops with each limit; of more than 16 limits, the first ones.
    pub limits: Vec<LimitStops>,
}

/// Stops with one limit. In signals limits are rounded down, by up to an eighth. Below 8 ns they are zero there, and from 26 s on every
/// stop keeps them. Stops with limits that are then the same count with the shortest of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LimitStops {
    /// The limit that was asked for.
    pub limit: Duration,
    /// Stops with this limit.
    pub count: u64,
    /// Those of them that took longer.
    pub violations: u64,
    /// The longest of them.
    pub longest: Duration,
}

/// Limits, at most, with counts of their own.
const MOST_LIMITS: usize = 16;

impl Stops {
    /// Counts blocks, the time of dropped work, and the bytes of slots of this size.
    pub(super) fn count_blocks(&mut self, posted: &Posted, lost: Duration, slot: u32) {
        self.drained += u64::from(posted.drained);
        self.requeued += u64::from(posted.requeued);
        self.switched += u64::from(posted.switched);
        self.lost += lost;
        self.saved_bytes += u64::from(posted.switched) * u64::from(slot);
    }

    /// Counts a stop that took so long.
    pub(super) fn count(&mut self, limit: Duration, took: Duration) {
        let is_late = u64::from(took > limit);
        self.count += 1;
        self.violations += is_late;
        self.longest = self.longest.max(took);
        let code = on_device(limit);
        let known = self.limits.iter().position(|of| on_device(of.limit) == code);
        let index = known.unwrap_or(self.limits.len());
        if index == self.limits.len() && index < MOST_LIMITS {
            let (count, violations, longest) = (0, 0, Duration::ZERO);
            self.limits.push(LimitStops { limit, count, violations, longest });
        }
        if let Some(of) = self.limits.get_mut(index) {
            of.limit = of.limit.min(limit);
            of.count += 1;
            of.violations += is_late;
            of.longest = of.longest.max(took);
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_are_counted_for_each_limit_and_these_are_bounded() {
        let us = Duration::from_micros;
        let mut stops = Stops::default();
        for (limit, took) in [(15, 15), (15, 16), (30, 20)] {
            stops.count(us(limit), us(took));
        }
        assert_eq!((stops.count, stops.violations, stops.longest), (3, 1, us(20)));
        let of = |stops: &Stops, index: usize| {
            (stops.limits[index].count, stops.limits[index].violations)
        };
        assert_eq!((of(&stops, 0), of(&stops, 1)), ((2, 1), (1, 0)));
        // What is the same to signals.
        stops.count(us(29), us(30));
        assert_eq!((of(&stops, 1), stops.limits[1].limit), ((2, 1), us(29)));
        (0..18).for_each(|doubled| stops.count(us(100 << doubled), Duration::MAX));
        assert_eq!((stops.count, stops.violations, stops.limits.len()), (22, 20, MOST_LIMITS));
    }
}
