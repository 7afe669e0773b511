//! User-facing tasks that can be in time ahead of those that cannot.

use std::time::Duration;

use crate::pool::dispatch::{PoolPlan, PoolPolicy, Waiting};
use crate::pool::terms::Class;

/// User-facing tasks first, on all devices: those that can still be within the SLA ahead of those that cannot.
///
/// So more tasks are in time than in the order of [`UserFacingFirst`](crate::pool::UserFacingFirst). Where more comes than the
/// devices can do, a few tasks are very late instead of all a little. With four devices, eight tasks of 17 ms outstanding and an
/// SLA of 20 ms, all are late in that order, and here four of any number. A late task waits for as long as tasks come that can be
/// in time.
///
/// Moore and Hodgson (Management Science 15(1), 1968) have the largest number in time, by leaving out the longest tasks. Here a
/// task is left out when it can no longer be in time.
///
/// What a task takes is what tasks of its application took. A batch task that ends sooner than it could be stopped is left alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InTime {
    sla: Duration,
}

impl InTime {
    /// With this time from when a user-facing task is outstanding until its result is there. A pool refuses a time of zero.
    pub fn new(sla: Duration) -> InTime {
        InTime { sla }
    }

    /// Whether a task that starts now would be late. If nothing is known of its time, it is not known to be.
    fn is_late(&self, task: &Waiting) -> bool {
        task.waited.saturating_add(task.takes.unwrap_or_default()) > self.sla
    }

    /// The ages of the first tasks to start, no more than there are devices for.
    fn first(&self, plan: &PoolPlan<'_>) -> Vec<u64> {
        let of = |late: bool| {
            let tasks = plan.waiting_tasks(Class::UserFacing);
            tasks.filter(move |task| self.is_late(task) == late).map(|task| task.age)
        };
        of(false).chain(of(true)).take(plan.devices()).collect()
    }
}

impl PoolPolicy for InTime {
    fn decide(&mut self, plan: &mut PoolPlan<'_>) {
        if plan.idle().is_some() {
            for age in self.first(plan) {
                let Some(device) = plan.idle() else { break };
                if !plan.start_one(Class::UserFacing, age, device) {
                    break;
                }
            }
        }
        let missing = plan.waiting(Class::UserFacing).saturating_sub(plan.leaving());
        plan.stop_latest(missing);
        plan.serve(Class::Batch, plan.devices());
    }

    fn refused(&self) -> Option<&'static str> {
        self.sla.is_zero().then_some(
            "no task keeps an SLA of zero: give `InTime::new` the longest time that users are to wait",
        )
    }
}
