//! The earliest deadline first, with an admission test.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::demand::Demand;
use super::indexed_heap::IndexedHeap;
use super::placement::runs;
use super::{Arrival, DeviceView, Packing, Plan, Policy};
use crate::vocabulary::LaunchId;

/// Earliest deadline first (EDF; Liu and Layland, JACM 1973), with an admission test, and with spatial sharing.
///
/// A launch never waits for one with a later deadline, except for the block-tasks that run when it arrives. Of equal
/// deadlines, the launch that was ready first goes first. Launches without a deadline run after all others, in the
/// order in which they became ready. Priorities do not count. What a launch has left counts for admission alone: it yields to
/// an earlier deadline even if it would have ended sooner than it yields.
///
/// A launch is admitted if it and all admitted launches with later deadlines are in time when they run one after the
/// other. Each counts with its [remaining time](DeviceView::remaining) and one [yield
/// overhead](DeviceView::yield_overhead). So an admitted launch is in time, as far as the predictions are right.
/// Launches that do not fill the device run side by side, and would be in time more often than this test says.
///
/// A launch of unknown duration is refused only if its deadline is past, and does not count in the test of others. A
/// launch that is queued on the device behind another one of its stream may run before its test, and is then
/// admitted. A deadline that is changed is not tested again. [`missed`](EarliestDeadline::missed) counts where this
/// went wrong.
#[derive(Debug, Default)]
pub struct EarliestDeadline {
    queue: IndexedHeap<LaunchId, DeadlineKey>,
    demand: Demand,
    /// Launches whose remaining work is not what `demand` has.
    stale: Vec<LaunchId>,
    arrivals: u64,
    missed: Arc<AtomicU64>,
}

/// Whether there is no deadline, the deadline, and the running number of the arrival.
type DeadlineKey = (bool, Duration, u64);

/// The number of launches that departed after their deadlines.
#[derive(Clone, Debug)]
pub struct MissedDeadlines(Arc<AtomicU64>);

impl MissedDeadlines {
    /// Until now.
    pub fn count(&self) -> u64 {
        // Relaxed: only the number counts.
        self.0.load(Ordering::Relaxed)
    }
}

impl EarliestDeadline {
    /// An empty queue.
    pub fn new() -> EarliestDeadline {
        EarliestDeadline::default()
    }

    /// The count of admitted launches that were not done, cancelled or failed by their deadlines. Ask for it before the
    /// policy goes to the scheduler.
    ///
    /// ```
    /// use preempt::policy::EarliestDeadline;
    /// use preempt::{Device, Scheduler};
    ///
    /// let policy = EarliestDeadline::new();
    /// let missed = policy.missed();
    /// let scheduler = Scheduler::builder().device(Device::cpu()?).policy(policy).build()?;
    /// // ..
    /// assert_eq!(missed.count(), 0);
    /// # drop(scheduler);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    pub fn missed(&self) -> MissedDeadlines {
        MissedDeadlines(self.missed.clone())
    }

    /// Updates the remaining work of launches in the admission test.
    fn catch_up(&mut self, device: &dyn DeviceView) {
        let owners = runs(device).map(|(owner, _)| owner);
        for launch in self.stale.drain(..).chain(owners) {
            if let Some((false, deadline, arrival)) = self.queue.key(launch)
                && let Some(work) = work(device, launch)
            {
                self.demand.put(launch, (deadline, arrival), work);
            }
        }
    }
}

/// The time for which a launch keeps the device from others, if it is known.
fn work(device: &dyn DeviceView, launch: LaunchId) -> Option<Duration> {
    Some(device.remaining(launch)?.saturating_add(device.yield_overhead(launch)))
}

impl Policy for EarliestDeadline {
    fn name(&self) -> &str {
        "earliest deadline"
    }

    fn admits(&mut self, now: Duration, launch: &Arrival, device: &dyn DeviceView) -> bool {
        let Some(deadline) = launch.deadline else { return true };
        let Some(work) = work(device, launch.id) else { return now < deadline };
        self.catch_up(device);
        self.demand.has_time(now, deadline, work)
    }

    fn arrived(&mut self, _now: Duration, launch: Arrival) {
        self.arrivals += 1;
        let deadline = launch.deadline.unwrap_or_default();
        self.queue.put(launch.id, (launch.deadline.is_none(), deadline, self.arrivals));
        self.stale.push(launch.id);
    }

    fn changed(&mut self, _now: Duration, launch: Arrival) {
        let Some((_, _, arrival)) = self.queue.key(launch.id) else { return };
        let deadline = launch.deadline.unwrap_or_default();
        self.queue.put(launch.id, (launch.deadline.is_none(), deadline, arrival));
        self.demand.remove(launch.id);
        self.stale.push(launch.id);
    }

    fn yielded(&mut self, _now: Duration, launch: LaunchId) {
        self.stale.push(launch);
    }

    fn departed(&mut self, now: Duration, launch: LaunchId) {
        self.demand.remove(launch);
        if let Some((false, deadline, _)) = self.queue.remove(launch)
            && now > deadline
        {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    // Whether it is late shows when it ends.
    fn withdrawn(&mut self, _now: Duration, launch: LaunchId) {
        self.demand.remove(launch);
        self.queue.remove(launch);
    }

    fn goes_by_order(&self) -> bool {
        true
    }

    fn assign(&mut self, _now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        self.catch_up(device);
        // Launches with SMs are updated when they have lost them.
        self.stale.extend(runs(device).map(|(owner, _)| owner));
        plan.share_queue(&mut self.queue, Packing::Spread, device);
    }
}
