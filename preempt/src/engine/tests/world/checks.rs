//! The invariants that hold after every event.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::*;
use crate::engine::urgency::patience;
use crate::policy::{Arrival, DeviceView, Plan, Priority};

impl World {
    /// Opaque work that needs the device alone has it.
    pub(super) fn check_alone(&mut self, key: OpKey) {
        let Some(opaque) = self.op(key).opaque else { return };
        let is_opaque =
            |(op, model): &&(OpKey, ModelOp)| model.opaque.is_some() && self.copies.contains(op);
        let beside = self.ops.iter().filter(is_opaque).count();
        if self.needs_all(opaque) {
            assert!(self.cohorts.is_empty() && beside == 0, "{opaque:?} has the device alone");
        }
    }

    /// Each operation in the order is as urgent as the most urgent of all that wait for it, and the policy knows.
    pub(super) fn check_inheritance(&self) {
        if self.engine.intake.over.is_some() {
            return;
        }
        // In reverse order, so that the successors of each are done.
        let mut waiting: Vec<(&ModelOp, Urgency)> = Vec::new();
        for (key, op) in self.ops.iter().rev().filter(|(key, _)| self.engine.is_in_order(*key)) {
            if let Some(program) = op.part_of {
                // A call is as urgent as its program.
                let [call, whole] = [*key, program].map(|key| self.engine.ops[key].effective);
                assert_eq!(Urgency { weight: call.weight, ..whole }, call, "{key:?}, {op:?}");
                continue;
            }
            let mut expected = match op.finished {
                Some(_) => Urgency { priority: Priority(i32::MIN), ..Urgency::default() },
                None => op.urgency,
            };
            for (model, urgency) in &waiting {
                let shares = op.uses.iter().any(|a| model.uses.iter().any(|b| conflict(a, b)));
                if shares || model.stream == op.stream || model.after == Some(*key) {
                    if expected.priority == urgency.priority {
                        let terms = |of: &Urgency| (patience(*of), of.latency_limit);
                        expected.latency_limit = terms(&expected).min(terms(urgency)).1;
                    } else if expected.priority < urgency.priority {
                        expected.priority = urgency.priority;
                        expected.latency_limit = urgency.latency_limit;
                    }
                    let deadlines = [expected.deadline, urgency.deadline];
                    expected.deadline = deadlines.into_iter().flatten().min();
                }
            }
            // Weights are not inherited.
            let engine = &self.engine.ops[*key];
            expected.weight = engine.urgency.weight;
            assert_eq!(engine.effective, expected, "{key:?}, {op:?}");
            if engine.launch.as_ref().is_some_and(|launch| launch.arrival.is_some())
                && self.engine.refusal().is_none()
            {
                let heard = self.heard.with(|heard| heard.get(&LaunchId(*key)).copied());
                let heard = heard.map(|arrival| {
                    let Arrival { priority, weight, deadline, .. } = arrival;
                    // Policies are not told of limits.
                    Urgency { priority, weight, deadline, ..expected }
                });
                assert_eq!(heard, Some(expected), "{key:?}");
            }
            waiting.push((op, expected));
        }
    }

    /// A cohort is above the plain grids that others have taken SMs from, if there are levels and queues.
    pub(super) fn check_level(&self, order: &CohortOrder) {
        if order.after.is_some() {
            return;
        }
        let launch = |op: OpKey| self.engine.ops.get(op)?.launch.as_ref();
        let is_deprived = |cohort: &&Cohort| {
            let lost = launch(cohort.order.op).is_some_and(|launch| launch.is_deprived(self.sms));
            cohort.order.plain && cohort.at_head && cohort.order.op != order.op && lost
        };
        let below = self.cohorts.iter().filter(is_deprived);
        let below = below.map(|cohort| QUEUES.level(cohort.order.queue)).max();
        let highest = if order.plain { QUEUES.plain_level() } else { QUEUES.levels };
        let wanted = below.map_or(0, |level| (level + 1).min(highest));
        let in_use = |queue| self.cohorts.iter().any(|cohort| cohort.order.queue == queue);
        let is_above = |&queue: &QueueIndex| (wanted..=highest).contains(&QUEUES.level(queue));
        let above = (0..QUEUES.total()).filter(is_above);
        let has_level = is_above(&order.queue);
        assert!(
            has_level || above.into_iter().all(in_use),
            "{order:?} is not above level {below:?}"
        );
    }

    /// The order keeps no more than the uses of operations that are in it.
    pub(super) fn check_order(&self) {
        let (kept, _) = self.engine.order.kept();
        let in_order = self.engine.ops.iter().filter(|(key, _)| self.engine.is_in_order(*key));
        let uses: usize = in_order.map(|(_, op)| op.uses.len()).sum();
        assert!(kept <= uses, "{kept} of {uses} uses");
    }

    /// A launch that lost an SM and is not finished was told to leave it, in the first cohorts.
    pub(super) fn check_signals(&mut self, on_device: usize) {
        let now = self.engine.ledger.owners().iter().map(|owner| owner.map(|id| id.0)).collect();
        let before = std::mem::replace(&mut self.owners, now);
        for (sm, (before, now)) in before.into_iter().zip(self.owners.clone()).enumerate() {
            let Some(loser) = before.filter(|_| before != now) else { continue };
            // Blocks of a plain grid that wait go wherever there is room.
            let goes_anywhere = |owner: OpKey| {
                let mut cohorts = self.cohorts[..on_device].iter();
                cohorts.any(|cohort| cohort.order.op == owner && cohort.order.plain)
            };
            let launch = self.engine.ops.get(loser).and_then(|op| op.launch.as_ref());
            let has_enough = launch.is_some_and(|launch| !launch.is_deprived(self.sms));
            if has_enough && now.is_some_and(goes_anywhere) {
                continue;
            }
            if self.op(loser).finished.is_none() {
                let cohorts = self.cohorts[..on_device].iter();
                let obeys = |cohort: &&Cohort| cohort.order.op == loser && !cohort.order.plain;
                for cohort in cohorts.filter(obeys) {
                    let range = self.word(cohort).range();
                    assert!(!range.contains(sm as u32), "{cohort:?} keeps SM {sm}");
                }
            }
        }
    }

    /// Each SM has at most one owner in some books, whose range has it, and ranges have no other SM. Of two launches that
    /// share, each has all SMs. No SM is free while a launch has none, or could fill one more beside its own.
    pub(super) fn check_books(&self) {
        let engine = &self.engine;
        let owners = engine.ledger.owners();
        for (key, launch) in
            engine.ops.iter().filter_map(|(key, op)| Some((key, op.launch.as_ref()?)))
        {
            for sm in 0..self.sms {
                let owns = self.owners_of(launch)[sm as usize] == Some(LaunchId(key));
                assert_eq!(launch.range.contains(sm), owns, "{key:?} and SM {sm}: {launch:?}");
            }
            let has = ledger::count(launch.range, self.sms);
            assert!(has == 0 || has == self.sms || !launch.shares, "{launch:?}");
            assert!(has == 0 || launch.shares || !launch.is_guest, "{launch:?}");
            if self.is_suspended(engine.ops[key].stream) {
                assert!(has == 0 && launch.arrival.is_none(), "suspended: {launch:?}");
                let of = self.cohorts.iter().filter(|cohort| cohort.order.op == key);
                let has_turn = engine.ops[key].phase == Phase::Active;
                for cohort in of.filter(|cohort| has_turn && !cohort.order.plain) {
                    assert_eq!(self.word(cohort).range(), SmRange::EMPTY, "suspended: {cohort:?}");
                }
            }
        }
        let is_built_in = engine.refusal().is_some() || self.work_conserving;
        // Opaque work may wait for the device, or have it alone.
        let is_exempt = !is_built_in || engine.is_draining();
        if is_exempt || owners.iter().all(Option::is_some) {
            return;
        }
        for launch in engine.ops.values().filter_map(|op| op.launch.as_ref()) {
            if launch.arrival.is_none() {
                continue;
            }
            let has = ledger::count(launch.range, self.sms);
            assert!(has > 0, "an SM is idle, and {launch:?} waits");
            if has < launch.need(self.sms) {
                let (lo, hi) = (launch.range.lo() as usize, launch.range.hi() as usize);
                // The first SM is beside the last one.
                let count = owners.len();
                let beside = [owners[(lo + count - 1) % count], owners[hi % count]];
                assert!(!beside.contains(&None), "an idle SM beside {launch:?}: {owners:?}");
            }
        }
    }

    /// With static priorities, the most urgent launch has all that it can fill.
    pub(super) fn check_urgency(&self) {
        let launches =
            self.engine.ops.values().filter_map(|op| Some((op.launch.as_ref()?, op.effective)));
        let known = launches.filter(|(launch, _)| launch.arrival.is_some());
        let most = known.clone().map(|(_, urgency)| urgency.priority).max();
        // Of equally urgent launches, only the policy knows which one is first.
        let mut first = known.filter(|(_, urgency)| Some(urgency.priority) == most);
        if let (Some((launch, _)), None) = (first.next(), first.next())
            && !self.engine.is_draining()
            && self.engine.policy_name() == "static priority"
        {
            let has = (0..self.sms).filter(|&sm| launch.range.contains(sm)).count() as u32;
            assert!(has >= launch.need(self.sms), "{launch:?}");
        }
    }
}

/// What a policy was told of the launches that it knows.
#[derive(Clone, Debug, Default)]
pub struct Heard(Arc<Mutex<HashMap<LaunchId, Arrival>>>);

impl Heard {
    fn with<R>(&self, look: impl FnOnce(&mut HashMap<LaunchId, Arrival>) -> R) -> R {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A policy, and what it is told.
pub(super) struct Listening {
    pub policy: Box<dyn Policy>,
    pub heard: Heard,
}

impl Policy for Listening {
    fn name(&self) -> &str {
        self.policy.name()
    }

    fn admits(&mut self, now: Duration, launch: &Arrival, device: &dyn DeviceView) -> bool {
        self.policy.admits(now, launch, device)
    }

    fn arrived(&mut self, now: Duration, launch: Arrival) {
        let before = self.heard.with(|heard| heard.insert(launch.id, launch));
        assert!(before.is_none(), "it arrives once");
        self.policy.arrived(now, launch);
    }

    fn changed(&mut self, now: Duration, launch: Arrival) {
        let before = self.heard.with(|heard| heard.insert(launch.id, launch));
        assert!(before.is_some(), "it has arrived");
        self.policy.changed(now, launch);
    }

    fn yielded(&mut self, now: Duration, launch: LaunchId) {
        self.policy.yielded(now, launch);
    }

    fn departed(&mut self, now: Duration, launch: LaunchId) {
        assert!(self.heard.with(|heard| heard.remove(&launch)).is_some(), "it has arrived");
        self.policy.departed(now, launch);
    }

    fn withdrawn(&mut self, now: Duration, launch: LaunchId) {
        assert!(self.heard.with(|heard| heard.remove(&launch)).is_some(), "it has arrived");
        self.policy.withdrawn(now, launch);
    }

    fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        self.policy.assign(now, device, plan);
    }

    fn goes_by_order(&self) -> bool {
        self.policy.goes_by_order()
    }

    fn may_preempt(&self, by: Priority, of: Priority) -> bool {
        self.policy.may_preempt(by, of)
    }

    fn wake(&self) -> Option<Duration> {
        self.policy.wake()
    }
}
