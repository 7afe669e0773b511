//! Cohorts that stay on the device for longer than can be expected of them.

use std::time::Duration;

use super::{OutCohort, Runs, Session};
use crate::foreign::Foreign;
use crate::vocabulary::OpKey;

/// A cohort that has been on the device for long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Overdue {
    pub op: OpKey,
    /// How long ago it was told to leave all its SMs, or else began.
    pub time: Duration,
    pub was_told: bool,
}

/// How long a cohort has been on the device at `now`, if that is at least `limit`, and whether it was told to leave: since the
/// signal that told it to, or else since its launch, where that is given.
fn overdue(
    now: Duration,
    limit: Duration,
    stopped: Option<Duration>,
    launched: Option<Duration>,
) -> Option<(Duration, bool)> {
    let time = now.checked_sub(stopped.or(launched)?)?;
    (time >= limit).then_some((time, stopped.is_some()))
}

impl Session {
    /// The cohorts that have been told to leave all their SMs this long ago, and those of kernels of other compilers that
    /// have begun so long ago: in the worker loop, block-tasks that wait for each other may never end, and the analysis of their
    /// text may have missed that.
    pub fn overdue(&self, now: Duration, limit: Duration) -> impl Iterator<Item = Overdue> {
        let is_first = |index: usize, out: &OutCohort| {
            self.out[..index].iter().all(|before| before.order.queue != out.order.queue)
        };
        self.out.iter().enumerate().filter_map(move |(index, out)| {
            let Runs::Kernel(kernel) = out.runs else { return None };
            let may_wait = Foreign::of(kernel).is_some();
            let launched = may_wait.then_some(out.launched);
            let (time, was_told) = overdue(now, limit, out.stopped, launched)?;
            let waits_itself = out.order.plain || out.order.gated || !is_first(index, out);
            (!waits_itself).then_some(Overdue { op: out.order.op, time, was_told })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cohort_is_overdue_some_time_after_the_signal_or_else_its_launch() {
        let at = Duration::from_millis;
        let (now, limit) = (at(1000), at(700));
        for (stopped, launched, expected) in [
            (None, None, None),
            (None, Some(200), Some((800, false))),
            (None, Some(301), None),
            (Some(300), None, Some((700, true))),
            (Some(301), None, None),
            // The signal counts.
            (Some(400), Some(100), None),
            (Some(200), Some(100), Some((800, true))),
            // A turn may have begun before the launch.
            (None, Some(1001), None),
        ] {
            let found = overdue(now, limit, stopped.map(at), launched.map(at));
            let expected = expected.map(|(time, was_told)| (at(time), was_told));
            assert_eq!(found, expected, "{stopped:?}, {launched:?}");
        }
    }
}
