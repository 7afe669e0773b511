//! From the policy's plan to signals and cohorts.

use std::time::Duration;

use preempt_device::abi::SmRange;
use slotmap::SlotMap;

use super::launch::{Launch, State};
use super::ledger::{Ledger, intersection};
use super::{Action, CohortOrder, Engine, LaunchId, Op, OpKey, Refusal, arrival};
use crate::error::caught;
use crate::policy::{DeviceView, Policy, StaticPriority};

impl Engine {
    /// Asks the policy who runs where, if something changed, and acts on it.
    pub fn settle(&mut self, now: Duration, actions: &mut Vec<Action>) {
        while std::mem::take(&mut self.unsettled) {
            if let Err(reason) = self.make_plan(now) {
                self.replace_policy(now, reason);
                continue;
            }
            self.follow_plan(actions);
        }
    }

    /// Tells the cohorts of a launch which SMs are left to them.
    pub(super) fn shrink(&mut self, key: OpKey, actions: &mut Vec<Action>) {
        let sms = self.ledger.sms();
        let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) else { return };
        let Some((control, _)) = launch.control else { return };
        let mut signalled = false;
        for (slot, cohort) in launch.cohorts.iter_mut().enumerate() {
            let Some(cohort) = cohort else { continue };
            let range = intersection(cohort.range, launch.range, sms);
            if range != cohort.range {
                cohort.range = range;
                let signal = self.controls.signal(control, range);
                actions.push(Action::Signal { control, slot: slot as u32, signal });
                signalled = true;
            }
        }
        if signalled {
            launch.count_yield();
        }
    }

    /// Launches blocks for the SMs of a launch that have none yet.
    fn cover(&mut self, key: OpKey, actions: &mut Vec<Action>) {
        let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) else { return };
        let uncovered = self.ledger.uncovered(launch.range);
        // Without a free slot the SMs stay uncovered until a cohort is out.
        let (true, Some(slot)) = (uncovered > 0, launch.free_slot()) else { return };
        let blocks_per_sm = launch.spec.blocks_per_sm;
        let (control, generation) = *launch.control.get_or_insert_with(|| self.controls.take());
        let remaining = launch.remaining();
        launch.cohort_in(slot);
        self.ledger.set_covered(launch.range, true);
        let slot = slot as u32;
        actions.push(Action::Launch(CohortOrder {
            op: key,
            control,
            generation,
            slot,
            ticket: self.controls.ticket(control, slot),
            // The range excludes and does not place, and there is room for exactly these blocks;
            // one that was told a range and came to lie outside would be lost.
            signal: self.controls.signal(control, SmRange::ALL),
            blocks: uncovered.saturating_mul(blocks_per_sm).min(remaining),
            workers: self.ledger.sms().saturating_mul(blocks_per_sm),
        }));
    }

    /// Asks the policy for a plan, and refuses one that cannot be.
    fn make_plan(&mut self, now: Duration) -> Result<(), String> {
        let mut plan = std::mem::take(&mut self.plan);
        plan.grants.clear();
        let view = View { ops: &self.ops, ledger: &self.ledger };
        let policy = &mut self.policy;
        let answer = caught(|| policy.assign(now, &view, &mut plan));
        self.plan = plan;
        answer.map_err(|message| format!("it panicked: {message}"))?;

        self.ledger.begin_plan();
        let sms = self.ledger.sms();
        let mut granted = 0;
        self.plans += 1;
        for &(id, range) in &self.plan.grants {
            let launch = self.ops.get_mut(id.0).and_then(|op| op.launch.as_mut());
            let Some(launch) = launch.filter(|launch| launch.arrival.is_some()) else {
                return Err(format!("it granted SMs to {id:?}, which is not waiting or running"));
            };
            if std::mem::replace(&mut launch.planned, self.plans) == self.plans {
                return Err(format!("it granted SMs to {id:?} twice"));
            }
            if range.hi() > sms || range.lo() >= sms && !range.is_empty() {
                return Err(format!("it granted SMs {range:?} of a device that has {sms}"));
            }
            if let Err(sm) = self.ledger.plan(id.0, range) {
                return Err(format!("it granted SM {sm} twice"));
            }
            granted += usize::from(!range.is_empty());
        }
        if granted == 0 && self.known > 0 {
            return Err(format!("it granted no SM to any of {} launches", self.known));
        }
        Ok(())
    }

    /// Makes the plan true: signals those that lose SMs, then launches blocks on the gained ones.
    fn follow_plan(&mut self, actions: &mut Vec<Action>) {
        let mut losers = std::mem::take(&mut self.losers);
        losers.clear();
        self.ledger.commit_plan(|loser| {
            if losers.last() != Some(&loser) {
                losers.push(loser);
            }
        });
        for &loser in &losers {
            if let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(loser) {
                launch.range = SmRange::EMPTY;
            }
        }
        let plan = std::mem::take(&mut self.plan);
        for &(id, range) in &plan.grants {
            if let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(id.0) {
                launch.range = range;
            }
        }
        // Ownership passes at the signal: it comes before the launch of whoever gained the SMs.
        for &loser in &losers {
            self.shrink(loser, actions);
        }
        for &(id, _) in &plan.grants {
            self.cover(id.0, actions);
        }
        self.plan = plan;
        self.losers = losers;
        debug_assert!(
            self.ops
                .values()
                .filter_map(|op| op.launch.as_ref())
                .all(|launch| { launch.state() != State::ToRun || launch.free_slot().is_none() }),
            "a launch has SMs and no blocks"
        );
    }

    /// Calls a hook of the policy.
    pub(super) fn ask(&mut self, now: Duration, hook: impl FnOnce(&mut dyn Policy)) {
        let policy = &mut *self.policy;
        if let Err(message) = caught(|| hook(policy)) {
            self.replace_policy(now, format!("it panicked: {message}"));
        }
    }

    /// Goes on with static priorities instead of a policy that answered nonsense.
    fn replace_policy(&mut self, now: Duration, reason: String) {
        // A policy that panics when it is dropped must not take the engine with it.
        let refused = std::mem::replace(&mut self.policy, Box::new(StaticPriority::new()));
        let _ = caught(|| drop(refused));
        let name = std::mem::replace(&mut self.policy_name, "static priority".into());
        assert!(self.refusal.is_none(), "static priorities were refused: {reason}");
        self.refusal = Some(Refusal { policy: name, reason });
        let mut known: Vec<(u64, OpKey)> = self
            .ops
            .iter()
            .filter_map(|(key, op)| Some((op.launch.as_ref()?.arrival?, key)))
            .collect();
        known.sort_unstable();
        for (_, key) in known {
            if let Some(launch) = &self.ops[key].launch {
                self.policy.arrived(now, arrival(key, launch));
            }
        }
        self.unsettled = true;
    }
}

/// What the policy sees of the engine.
struct View<'a> {
    ops: &'a SlotMap<OpKey, Op>,
    ledger: &'a Ledger,
}

impl View<'_> {
    fn launch(&self, id: LaunchId) -> Option<&Launch> {
        self.ops.get(id.0)?.launch.as_ref()
    }
}

impl DeviceView for View<'_> {
    fn sms(&self) -> u32 {
        self.ledger.sms()
    }

    fn need(&self, launch: LaunchId) -> u32 {
        self.launch(launch).map_or(0, |launch| launch.need(self.sms()))
    }

    fn range(&self, launch: LaunchId) -> SmRange {
        self.launch(launch).map_or(SmRange::EMPTY, |launch| launch.range)
    }

    fn owner(&self, sm: u32) -> Option<LaunchId> {
        self.ledger.owner(sm).map(LaunchId)
    }
}
