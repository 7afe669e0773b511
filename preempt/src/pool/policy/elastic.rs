//! As many devices for user-facing tasks as keep them within their SLA.

use std::time::Duration;

use crate::pool::dispatch::{PoolPlan, PoolPolicy};
use crate::pool::terms::Class;

/// TReM's period between two estimates, beside those at the end of each task.
const PERIOD: Duration = Duration::from_millis(100);

/// Of `n` devices, user-facing tasks have `⌈l q / (SLA - l)⌉`, where `q` of them are outstanding and take `l` each in the mean,
/// by what tasks of their applications took; batch tasks have the others. TReM's equation 2 has the whole SLA below the line,
/// which leaves nothing for the time that the last of them takes itself, and the mean of all that ended: the more devices there
/// are, the more tasks are late then. Short user-facing tasks wait for each other rather than to have batch tasks stopped. The
/// victim is the batch task that started last. A task that ends sooner than it could be stopped is left alone.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Elastic {
    sla: Duration,
    period: Duration,
}

impl Elastic {
    /// With this time from when a user-facing task is outstanding until its result is there. A
    /// pool refuses a time of zero.
    pub fn new(sla: Duration) -> Elastic {
        Elastic { sla, period: PERIOD }
    }

    /// The time between two estimates; 100 ms if this is not called.
    pub fn period(mut self, period: Duration) -> Elastic {
        self.period = period;
        self
    }

    /// Devices that keep this number of outstanding tasks within the SLA, which take so long together. Before any task has ended,
    /// one for each.
    fn needed(&self, outstanding: usize, work: Option<Duration>) -> usize {
        let Some(work) = work.filter(|_| outstanding > 0) else { return outstanding };
        let mean = work.as_nanos() / outstanding as u128;
        match self.sla.as_nanos().saturating_sub(mean) {
            0 => outstanding,
            within => {
                let needed = work.as_nanos().div_ceil(within);
                needed.try_into().unwrap_or(usize::MAX).min(outstanding)
            }
        }
    }
}

impl PoolPolicy for Elastic {
    fn decide(&mut self, plan: &mut PoolPlan<'_>) {
        let outstanding = plan.outstanding(Class::UserFacing);
        let needed = self.needed(outstanding, plan.work(Class::UserFacing)).min(plan.devices());
        plan.serve(Class::UserFacing, needed);
        let have = plan.running(Class::UserFacing) + plan.leaving();
        let missing = needed.saturating_sub(have).min(plan.waiting(Class::UserFacing));
        plan.stop_latest(missing);
        plan.serve(Class::Batch, plan.devices());
        // Rather than to leave a device idle; but a task that has yielded goes on.
        while let Some(device) = plan.spare()
            && plan.start(Class::UserFacing, device)
        {}
    }

    fn refused(&self) -> Option<&'static str> {
        let no_time = self.sla.is_zero().then_some(
            "no task keeps an SLA of zero: give `Elastic::new` the longest time that users are to wait",
        );
        let no_period = self.period.is_zero().then_some(
            "a period of zero is no period: give `Elastic::period` the time between two estimates",
        );
        no_time.or(no_period)
    }

    fn wake(&self) -> Option<Duration> {
        Some(self.period)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_outstanding_is_spread_over_the_sla() {
        let ms = Duration::from_millis;
        let elastic = Elastic::new(ms(200));
        assert_eq!(elastic.needed(0, Some(ms(0))), 0);
        // The last of them ends after 150 ms of waiting and 50 of its own.
        assert_eq!(elastic.needed(3, Some(ms(150))), 1);
        assert_eq!(elastic.needed(4, Some(ms(200))), 2);
        assert_eq!(elastic.needed(3, None), 3, "nothing is known of them");
        assert_eq!(elastic.needed(3, Some(ms(570))), 3, "no more than there are");
        assert_eq!(elastic.needed(3, Some(ms(750))), 3, "none can be in time");
        assert!(Elastic::new(Duration::ZERO).refused().is_some());
        assert!(elastic.period(Duration::ZERO).refused().is_some() && elastic.refused().is_none());
        assert_eq!(elastic.needed(usize::MAX, Some(Duration::MAX)), usize::MAX);
    }
}
