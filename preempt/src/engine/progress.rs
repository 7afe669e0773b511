//! How far block-tasks are, and what it costs by that to take SMs from a launch.
//!
//! Chimera's estimates (Park, Park and Mahlke, ASPLOS 2015, section 3.2): to end a block-task takes the SM for what is left of it,
//! and to drop it costs what it has done. Blocks of long block-tasks post when each begins. Where a launch has come that does not
//! need all SMs, the host reads these words ahead of the decision, if they may be worth the time that the launch loses by that.

use std::time::Duration;

use preempt_device::abi::StopLimit;
use preempt_device::worker::MAX_REQUEUES;
use preempt_device::yields::LATE;
use serde::{Deserialize, Serialize};

use super::{Engine, Launch, Op};
use crate::vocabulary::{LaunchId, OpKey, QueueIndex};

/// How blocks of a launch leave SMs that are taken from it as soon as possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) enum Leaving {
    /// At the ends of their block-tasks.
    #[default]
    AtEnd,
    /// Within block-tasks, which run again from their start.
    Dropping,
    /// Within block-tasks, which go on from there.
    Switching,
}

/// A block-task that runs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Running {
    pub sm: u32,
    /// From its beginning to that of the latest block-task. It has run for longer by the time since then, as all others have.
    pub since: Duration,
    /// Whether it is not dropped for a signal without a limit.
    pub is_spent: bool,
}

/// What is known of block-tasks that run, for one decision.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The launch that has come since the last decision, and does not need all SMs.
    newcomer: Option<OpKey>,
    /// What it costs to take each SM. Empty if nothing is known.
    costs: Vec<Cost>,
}

/// What it costs to take an SM.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    /// The time until the block-tasks have ended that blocks end first.
    ends: Duration,
    /// The work that blocks do again, summed up.
    drops: Duration,
}

impl Progress {
    /// Notes that the policy was told of a launch.
    pub fn came(&mut self, launch: OpKey) {
        self.newcomer = Some(launch);
    }

    /// Forgets what is known, because a decision was made.
    pub fn forget(&mut self) {
        self.newcomer = None;
        self.costs.clear();
    }

    /// What it costs to take an SM, as far as that is known.
    pub fn cost(&self, sm: u32) -> Duration {
        self.costs.get(sm as usize).map_or(Duration::ZERO, |cost| cost.ends + cost.drops)
    }
}

impl Engine {
    /// The queues whose blocks tell how far they are, if the next decision is to depend on that.
    pub fn watched(&self, now: Duration) -> impl Iterator<Item = QueueIndex> {
        let newcomer = self.progress.newcomer.filter(|_| self.agenda.unsettled);
        let limit = newcomer.map(|newcomer| self.limit(newcomer));
        let heads = limit.map(|limit| self.queues.heads().map(move |head| (head, limit)));
        heads.into_iter().flatten().filter_map(move |((queue, op, slot), limit)| {
            let launch = self.ops.get(op)?.launch.as_ref()?;
            let tells = launch.cohorts[slot].as_ref().is_some_and(|cohort| cohort.tells_progress);
            let task = launch.spec.block_task(self.ledger.sms())?;
            let is_watched = tells && !launch.range.is_empty();
            (is_watched && is_look_due(launch, task, limit, now)).then_some(queue)
        })
    }

    /// Takes in what the first cohort of a queue runs, for the next decision.
    pub fn look(&mut self, now: Duration, queue: QueueIndex, running: &[Running]) {
        let sms = self.ledger.sms();
        let head = self.queues.heads().find(|&(other, ..)| other == queue);
        if let Some((_, key, _)) = head
            && let Some(Op { launch: Some(launch), .. }) = self.ops.get(key)
            && let Some(task) = launch.spec.block_task(sms)
        {
            let leaving = launch.spec.leaving;
            let limit = self.progress.newcomer.map_or(StopLimit::SOONEST, |of| self.limit(of));
            let (range, owners) = (self.queues.range(queue), self.ledger.owners());
            let costs = &mut self.progress.costs;
            costs.resize(sms as usize, Cost::default());
            for &Running { sm, since, is_spent } in running {
                // What blocks on other SMs have told is of block-tasks that they have left.
                if range.contains(sm) && owners.get(sm as usize) == Some(&Some(LaunchId(key))) {
                    let Cost { ends, drops } = &mut costs[sm as usize];
                    match stop_of(leaving, task, (since, is_spent), limit) {
                        // Blocks wait at the same time.
                        Stop::Ends(rest) => *ends = rest.max(*ends),
                        Stop::Drops(work) => *drops += work,
                    }
                }
            }
        }
        if let Some(recorder) = &mut self.observers.recorder {
            recorder.looked(now, queue, running);
        }
    }
}

/// Whether a launch that is to have SMs of this one within `limit` waits for a look at its block-tasks. The look takes 10 us (one of
/// 264 blocks, on an H200's host), in which the launch does not start. It gains the launch up to half of a block-task where it would
/// have to wait for ends. Where blocks drop or save what they do, it gains the other launch some work, and a limit says how long
/// the new one may wait for that.
fn is_look_due(launch: &Launch, task: Duration, limit: StopLimit, now: Duration) -> bool {
    match launch.spec.leaving {
        _ if limit != StopLimit::SOONEST => true,
        Leaving::AtEnd => true,
        // What was dropped as often as it may be runs to its end.
        Leaving::Dropping => launch.yields_since(now.saturating_sub(2 * task)) >= MAX_REQUEUES,
        Leaving::Switching => false,
    }
}

/// What it costs that a block leaves.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Stop {
    /// It keeps its SM for so long.
    Ends(Duration),
    /// It does so much work again.
    Drops(Duration),
}

/// What a block does whose block-task has run for `since` of the time that such a `task` takes, and is spent or not, if it has
/// to leave within `limit`.
fn stop_of(
    leaving: Leaving,
    task: Duration,
    (since, is_spent): (Duration, bool),
    limit: StopLimit,
) -> Stop {
    let rest = task.saturating_sub(since).max(since / LATE);
    let ends = match limit {
        StopLimit::SOONEST => is_spent,
        StopLimit::ZERO | StopLimit::NEVER => true,
        limit => rest <= Duration::from_nanos(limit.nanos()),
    };
    match leaving {
        Leaving::Dropping if !ends => Stop::Drops(since),
        // To save and load its state takes all alike.
        Leaving::Switching if !ends => Stop::Drops(Duration::ZERO),
        _ => Stop::Ends(rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_leaves_by_what_its_kernel_and_the_limit_allow() {
        let us = Duration::from_micros;
        let (soonest, within) = (StopLimit::SOONEST, StopLimit::within(30_000));
        let cases = [
            (Leaving::AtEnd, 20, soonest, Stop::Ends(us(80))),
            (Leaving::AtEnd, 20, within, Stop::Ends(us(80))),
            // Longer than expected.
            (Leaving::AtEnd, 160, soonest, Stop::Ends(us(20))),
            (Leaving::Dropping, 20, soonest, Stop::Drops(us(20))),
            (Leaving::Dropping, 20, within, Stop::Drops(us(20))),
            (Leaving::Dropping, 75, within, Stop::Ends(us(25))),
            (Leaving::Dropping, 75, soonest, Stop::Drops(us(75))),
            (Leaving::Dropping, 20, StopLimit::NEVER, Stop::Ends(us(80))),
            (Leaving::Switching, 20, soonest, Stop::Drops(us(0))),
            (Leaving::Switching, 75, within, Stop::Ends(us(25))),
        ];
        for (leaving, since, limit, expected) in cases {
            let stop = stop_of(leaving, us(100), (us(since), false), limit);
            assert_eq!(stop, expected, "{leaving:?} after {since} us, {limit:?}");
        }
        // What was dropped as often as it may be runs to its end, unless there is a limit.
        let spent = |limit| stop_of(Leaving::Dropping, us(100), (us(20), true), limit);
        assert_eq!(spent(soonest), Stop::Ends(us(80)));
        assert_eq!(spent(within), Stop::Drops(us(20)));
    }
}
