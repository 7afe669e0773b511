//! How blocks have left SMs that were taken, in a part of a suite.

use std::time::Duration;

use preempt::Scheduler;

/// Stops of launches, as the scheduler counts them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stopped {
    pub count: u64,
    pub violations: u64,
    pub drained: u64,
    pub requeued: u64,
    pub switched: u64,
    pub lost: Duration,
    /// By the blocks that switched.
    pub saved_bytes: u64,
}

impl Stopped {
    /// All stops so far.
    pub fn of(scheduler: &Scheduler) -> Stopped {
        let stops = scheduler.stats().stops;
        Stopped {
            count: stops.count,
            violations: stops.violations,
            drained: stops.drained,
            requeued: stops.requeued,
            switched: stops.switched,
            lost: stops.lost,
            saved_bytes: stops.saved_bytes,
        }
    }

    /// Those since then.
    pub fn since(&self, before: &Stopped) -> Stopped {
        Stopped {
            count: self.count - before.count,
            violations: self.violations - before.violations,
            drained: self.drained - before.drained,
            requeued: self.requeued - before.requeued,
            switched: self.switched - before.switched,
            lost: self.lost.saturating_sub(before.lost),
            saved_bytes: self.saved_bytes - before.saved_bytes,
        }
    }

    pub fn add(&mut self, other: &Stopped) {
        self.count += other.count;
        self.violations += other.violations;
        self.drained += other.drained;
        self.requeued += other.requeued;
        self.switched += other.switched;
        self.lost += other.lost;
        self.saved_bytes += other.saved_bytes;
    }
}
