//! How far block-tasks are, and what it costs by that to take SMs from a launch.
//!
//! Chimera's estimates (Park, Park and Mahlke, ASPLOS 2015, section 3.2): to end a block-task takes the SM for what is left of it,
//! and to drop it costs what it has done. Blocks of long block-tasks post when each begins. Where a launch has come that does not
//! need all SMs, and the policy asks what they cost, the host reads these words, if they may be worth the time that the launch
//! loses by that.

use std::cell::OnceCell;
use std::time::Duration;

use preempt_device::abi::StopLimit;
use preempt_device::worker::MAX_REQUEUES;
use preempt_device::yields::LATE;
use serde::{Deserialize, Serialize};
use slotmap::SlotMap;

use super::ledger::Ledger;
use super::queues::DeviceQueues;
use super::{Engine, Launch, Op};
use crate::vocabulary::{LaunchId, OpKey, QueueIndex, SmSet};

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

/// Reads what the blocks of the first cohorts in these queues have told of the block-tasks that they run.
pub(crate) type Look<'a> = dyn Fn(&[QueueIndex]) -> Vec<Told> + 'a;

/// What the first cohort of a queue runs.
pub(crate) type Told = (QueueIndex, Vec<Running>);

/// What it costs to take SMs, for one decision.
#[derive(Debug, Default)]
pub(super) struct SmCosts {
    /// The launch that has come since the last decision, and does not need all SMs.
    newcomer: Option<OpKey>,
    /// What blocks have told, once the policy has asked for what that makes SMs cost.
    told: OnceCell<Vec<Told>>,
    /// Whether that is in the recording.
    is_recorded: bool,
    /// The cost of each SM, once the policy has asked. Empty if nothing is known.
    costs: OnceCell<Vec<Cost>>,
}

/// What it costs to take an SM.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    /// The time until the block-tasks have ended that blocks end first.
    ends: Duration,
    /// The work that blocks do again, summed up.
    drops: Duration,
}

impl Cost {
    /// Both as one time, of work. The wait for ends costs the SM; where it is longer than the newcomer's limit, the newcomer waits, too,
    /// and that counts as work of all `sms` SMs. It is the more urgent launch, so it waits only where that saves the other one as
    /// much: an SM whose block-tasks are spent comes after those where some are dropped.
    fn weighed(self, limit: StopLimit, sms: u32) -> Duration {
        let Cost { ends, drops } = self;
        let late = ends.saturating_sub(Duration::from_nanos(limit.nanos()));
        ends + drops + late.saturating_mul(sms.saturating_sub(1))
    }
}

impl SmCosts {
    /// Notes that the policy was told of a launch.
    pub fn came(&mut self, launch: OpKey) {
        self.newcomer = Some(launch);
    }

    pub fn newcomer(&self) -> Option<OpKey> {
        self.newcomer
    }

    /// Forgets what is known, because a decision was made. Returns what blocks have told and no recording has.
    pub fn forget(&mut self) -> Vec<Told> {
        let SmCosts { told, is_recorded, .. } = std::mem::take(self);
        told.into_inner().filter(|_| !is_recorded).unwrap_or_default()
    }
}

/// The costs of SMs, as a policy asks for them in a decision: what blocks have told is read when it first asks, and not where SMs
/// are free or it goes by something else.
pub(super) struct Looks<'a> {
    pub known: &'a SmCosts,
    pub queues: &'a DeviceQueues,
    pub look: &'a Look<'a>,
    /// The time in which blocks leave SMs for the newcomer.
    pub limit: StopLimit,
}

impl Looks<'_> {
    /// What it costs to take an SM, as far as that is known.
    pub fn cost(
        &self,
        now: Duration,
        ops: &SlotMap<OpKey, Op>,
        ledger: &Ledger,
        sm: u32,
    ) -> Duration {
        let costs = self.known.costs.get_or_init(|| {
            let told = self.known.told.get_or_init(|| {
                let queues = self.watched(now, ops, ledger.sms());
                if queues.is_empty() { Vec::new() } else { (self.look)(&queues) }
            });
            self.costs(told, ops, ledger)
        });
        costs.get(sm as usize).map_or(Duration::ZERO, |cost| cost.weighed(self.limit, ledger.sms()))
    }

    /// The queues whose blocks tell how far they are, if the decision is to depend on that.
    fn watched(&self, now: Duration, ops: &SlotMap<OpKey, Op>, sms: u32) -> Vec<QueueIndex> {
        let heads = self.known.newcomer.map(|_| self.queues.heads());
        let is_watched = |(queue, op, slot): (QueueIndex, OpKey, usize)| {
            let launch = ops.get(op)?.launch.as_ref()?;
            let tells = launch.cohorts[slot].as_ref().is_some_and(|cohort| cohort.tells_progress);
            let task = launch.spec.block_task(sms)?;
            let is_watched = tells && !launch.range.is_empty();
            (is_watched && is_look_due(launch, task, self.limit, now)).then_some(queue)
        };
        heads.into_iter().flatten().filter_map(is_watched).collect()
    }

    fn costs(&self, told: &[Told], ops: &SlotMap<OpKey, Op>, ledger: &Ledger) -> Vec<Cost> {
        let sms = ledger.sms();
        let mut costs = vec![Cost::default(); if told.is_empty() { 0 } else { sms as usize }];
        // By what cohorts that were launched for other SMs have told: mostly of what blocks did there before they left. It
        // counts where the SM's own cohort has told nothing, because its blocks may lie elsewhere.
        let mut strays = costs.clone();
        let mut has_own = SmSet::new(costs.len());
        for (queue, running) in told {
            if let Some((_, key, slot)) = self.queues.heads().find(|head| head.0 == *queue)
                && let Some(Op { launch: Some(launch), .. }) = ops.get(key)
                && let Some(task) = launch.spec.block_task(sms)
            {
                let leaving = launch.spec.leaving;
                let (range, owners) = (self.queues.range(*queue), ledger.owners());
                for &Running { sm, since, is_spent } in running {
                    // What blocks on other SMs have told is of block-tasks that they have left.
                    let has = owners.get(sm as usize) == Some(&Some(LaunchId(key)));
                    if range.contains(sm) && has {
                        let at = sm as usize;
                        let is_own = ledger.may_be_of(sm, slot);
                        if is_own {
                            has_own.insert(at..at + 1);
                        }
                        let of = if is_own { &mut costs[at] } else { &mut strays[at] };
                        let Cost { ends, drops } = of;
                        match stop_of(leaving, task, (since, is_spent), self.limit) {
                            // Blocks wait at the same time.
                            Stop::Ends(rest) => *ends = rest.max(*ends),
                            Stop::Drops(work) => *drops += work,
                        }
                    }
                }
            }
        }
        for gap in has_own.gaps(0..costs.len()) {
            costs[gap.clone()].copy_from_slice(&strays[gap]);
        }
        let mut launches: Vec<_> = self
            .queues
            .heads()
            .filter(|head| told.iter().any(|of| of.0 == head.0))
            .map(|(_, key, _)| key)
            .collect();
        launches.sort_unstable();
        launches.dedup();
        for launch in launches.into_iter().filter_map(|key| ops.get(key)?.launch.as_ref()) {
            add_merges(launch, ledger, &mut costs);
        }
        costs
    }
}

/// Adds what [merging](Engine::merge_if_worth) two cohorts costs, where it comes to that if the launch has these SMs again: no slot is
/// free, and the cohort of an SM has others, so it stays.
fn add_merges(launch: &Launch, ledger: &Ledger, costs: &mut [Cost]) {
    // These are in other books.
    if launch.is_guest || launch.free_slot().is_some() {
        return;
    }
    let counts = launch.covered_by_slot(ledger);
    let mut smallest: Vec<_> = counts.iter().copied().filter(|&sms| sms > 0).collect();
    smallest.sort_unstable();
    let blocks = smallest.iter().take(2).sum::<u32>() * launch.spec.blocks_per_sm;
    let merge = launch.spec.overhead() * blocks;
    for (sm, cost) in (0..).zip(costs).filter(|&(sm, _)| launch.range.contains(sm)) {
        if ledger.slot(sm).is_none_or(|slot| counts[usize::from(slot)] > 1) {
            cost.drops += merge;
        }
    }
}

impl Engine {
    /// Takes in what the first cohort of a queue runs, as it was read for the next decision.
    pub fn look(&mut self, now: Duration, queue: QueueIndex, running: Vec<Running>) {
        if let Some(recorder) = &mut self.observers.recorder {
            recorder.looked(now, queue, &running);
        }
        let mut told = self.sm_costs.told.take().unwrap_or_default();
        told.push((queue, running));
        self.sm_costs.told = OnceCell::from(told);
        self.sm_costs.is_recorded = true;
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
