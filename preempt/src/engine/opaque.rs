//! Opaque work: work of others that the engine knows only the beginning and the end of.
//!
//! It takes SMs from nobody, so some of it has to have the device alone: no cohort is on the device when it starts,
//! and none is launched before it is over. The launches that were there are told to leave, and go on afterwards.

use std::time::Duration;

use super::{Action, Engine, Op, OpKey, Outcome, Phase};

/// What is known of opaque work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opaque {
    /// The first run of work of this name and variant has the device alone.
    pub name: &'static str,
    pub variant: u64,
    /// Whether every run has.
    pub exclusive: bool,
}

impl Engine {
    /// Whether launches have to leave the device, and to stay away.
    pub(super) fn is_draining(&self) -> bool {
        !self.draining.is_empty()
    }

    /// Starts opaque work whose turn has come, or has it wait until it can have the device alone.
    pub(super) fn release_opaque(&mut self, key: OpKey, opaque: Opaque, actions: &mut Vec<Action>) {
        if self.is_draining() || self.needs_all(opaque) {
            self.ops[key].phase = Phase::Blocked;
            self.draining.push_back(key);
            self.unsettled = true;
        } else {
            self.start_opaque(key, actions);
        }
    }

    fn needs_all(&self, Opaque { name, variant, exclusive }: Opaque) -> bool {
        exclusive || !self.known_opaque.contains(&(name, variant))
    }

    fn start_opaque(&mut self, key: OpKey, actions: &mut Vec<Action>) {
        self.ops[key].phase = Phase::Active;
        self.running_opaque += 1;
        actions.push(Action::Copy { op: key });
    }

    /// Takes all SMs from all launches.
    pub(super) fn drain(&mut self, now: Duration, actions: &mut Vec<Action>) {
        self.plan.grants.clear();
        self.ledger.begin_plan();
        self.follow_plan(now, actions);
        self.wake = None;
    }

    /// Starts what waits for the device to be drained, if it is.
    pub(super) fn start_drained(&mut self, actions: &mut Vec<Action>) {
        while let Some(&key) = self.draining.front() {
            let Some(Op { opaque: Some(opaque), phase, .. }) = self.ops.get(key) else { return };
            if *phase == Phase::Active {
                // It runs, alone.
                return;
            }
            if !self.needs_all(*opaque) {
                // The one before it was the first run of the same work.
                self.draining.pop_front();
                self.unsettled = true;
                self.start_opaque(key, actions);
                continue;
            }
            if self.running_opaque == 0 && self.lanes.all_free() {
                self.start_opaque(key, actions);
            }
            return;
        }
    }

    /// Opaque work that had started is over.
    pub(super) fn end_opaque(&mut self, key: OpKey, opaque: Opaque, outcome: Outcome) {
        if self.ops[key].phase != Phase::Active {
            return;
        }
        self.running_opaque -= 1;
        if self.draining.front() == Some(&key) {
            self.draining.pop_front();
        }
        self.unsettled = true;
        // One that went wrong may not have come to what it has to load.
        if matches!(outcome, Outcome::Done(_)) {
            self.known_opaque.insert((opaque.name, opaque.variant));
        }
    }

    /// Opaque work that waited for the device does so no more.
    pub(super) fn stop_draining(&mut self, key: OpKey) {
        if let Some(place) = self.draining.iter().position(|&other| other == key) {
            self.draining.remove(place);
            // It leaves the order as one that was cancelled before.
            self.released.push_back(key);
            self.unsettled = true;
        }
    }
}
