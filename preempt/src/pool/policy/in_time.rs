//! User-facing tasks that can be in time ahead of those that cannot.

use std::time::Duration;

use crate::pool::dispatch::{PoolPlan, PoolPolicy, Waiting};
use crate::pool::terms::Class;

/// More user-facing tasks within an SLA than in the order in which they come. They get all devices, as with
/// [`UserFacingFirst`](crate::pool::UserFacingFirst), but a task that would be late even if it started at once lets those go first
/// that would not. (Moore and Hodgson, Management Science 15(1), 1968, have the largest number in time, by leaving out the longest
/// ones; here a task is left out when it can no longer be in time.) Where more comes than the devices can do, a few tasks are very
/// late instead of all a little: with eight tasks of 17 ms outstanding, four devices and an SLA of 20 ms, all are late in the order
/// in which they came, and here four of any number. Those wait for as long as tasks come that can be in time.
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
        let pays = |rest: Option<Duration>, latency| rest.is_none_or(|rest| rest > latency);
        let victims = plan.victims().filter(|victim| pays(victim.rest, victim.latency));
        let victims: Vec<_> = victims.take(missing).collect();
        for victim in victims {
            plan.stop(victim.device);
        }
        plan.serve(Class::Batch, plan.devices());
    }

    fn refused(&self) -> Option<&'static str> {
        self.sla.is_zero().then_some(
            "no task keeps an SLA of zero: give `InTime::new` the longest time that users are to wait",
        )
    }
}
