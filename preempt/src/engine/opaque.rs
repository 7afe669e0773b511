//! Opaque work: code of other libraries, of which the engine knows only the beginning and the end.
//!
//! It takes no SMs from launches, so some of it has to have the device alone. No cohort is on the device when it
//! starts, and none is launched before it is over. Running launches are told to leave, and go on afterwards. They are
//! not told to leave for less urgent work. Among equals, launches have the device for as long as the work had it,
//! before the next piece has it alone.

use std::collections::VecDeque;
use std::time::Duration;

use rustc_hash::FxHashSet;

use super::launch::Launch;
use super::{Action, Engine, Op, Outcome, Phase};
use crate::vocabulary::OpKey;

/// What is known of opaque work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opaque {
    /// The first run of work of this name and variant has the device alone.
    pub name: &'static str,
    pub variant: u64,
    /// Whether every run has.
    pub exclusive: bool,
}

/// Names and variants that are known at once.
pub(super) const MOST_KNOWN: usize = 4096;

/// Opaque work that runs, and that waits for the device.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// The pieces that wait. While the device is drained, the first one waits for that, or runs.
    waiting: VecDeque<OpKey>,
    /// Whether launches have to leave the device, and to stay away; and since when.
    drains: bool,
    since: Duration,
    /// When launches of the same urgency have had their turn.
    next: Duration,
    running: u32,
    /// Names and variants whose first run is over: at most [`MOST_KNOWN`], because an application may have a variant for each
    /// size. Beyond that all of them are new again, which costs each a run that has the device alone.
    known: FxHashSet<(&'static str, u64)>,
}

impl Pieces {
    fn needs_all(&self, Opaque { name, variant, exclusive }: Opaque) -> bool {
        exclusive || !self.known.contains(&(name, variant))
    }
}

impl Engine {
    /// Whether launches have to leave the device, and to stay away.
    pub(super) fn is_draining(&self) -> bool {
        self.opaque.drains
    }

    /// Starts opaque work whose turn has come, or has it wait until it can have the device alone.
    pub(super) fn release_opaque(&mut self, key: OpKey, opaque: Opaque, actions: &mut Vec<Action>) {
        if self.opaque.drains || self.opaque.needs_all(opaque) {
            self.ops[key].phase = Phase::Blocked;
            self.opaque.waiting.push_back(key);
            self.agenda.unsettled = true;
        } else {
            self.start_opaque(key, actions);
        }
    }

    fn start_opaque(&mut self, key: OpKey, actions: &mut Vec<Action>) {
        self.ops[key].phase = Phase::Active;
        self.opaque.running += 1;
        actions.push(Action::Copy { op: key });
    }

    /// Takes all SMs from all launches.
    pub(super) fn drain(&mut self, now: Duration, actions: &mut Vec<Action>) {
        self.decider.plan.clear();
        self.ledger.begin_plan();
        self.guests.begin_plan();
        self.follow_plan(now, actions);
        self.agenda.wake = None;
    }

    /// Has the device drained for opaque work that waits for it, if its turn has come, and starts it when it is.
    pub(super) fn advance_opaque(&mut self, now: Duration, actions: &mut Vec<Action>) {
        loop {
            if !self.opaque.drains && !self.choose_opaque(now) {
                return;
            }
            let Some(&key) = self.opaque.waiting.front() else { return };
            let Some(Op { opaque: Some(opaque), phase, .. }) = self.ops.get(key) else { return };
            if *phase == Phase::Active {
                // It runs, alone.
                return;
            }
            if !self.opaque.needs_all(*opaque) {
                // It waited while another piece had the device, which may have been the first run of the same name
                // and variant.
                self.opaque.waiting.pop_front();
                self.opaque.drains = false;
                self.start_opaque(key, actions);
                continue;
            }
            if !self.opaque.drains {
                self.opaque.drains = true;
                self.opaque.since = now;
                self.agenda.unsettled = true;
            }
            if self.opaque.running == 0 && self.queues.all_free() {
                self.start_opaque(key, actions);
            }
            return;
        }
    }

    /// Moves the piece that goes on next to the front; whether there is one.
    fn choose_opaque(&mut self, now: Duration) -> bool {
        let Pieces { waiting, next, .. } = &self.opaque;
        let opaque = |key: &OpKey| self.ops.get(*key).and_then(|op| op.opaque);
        let urgency = |key: &OpKey| self.ops.get(*key).map(|op| op.effective.priority);
        let needs_all = |key| opaque(key).is_some_and(|opaque| self.opaque.needs_all(opaque));
        let place = match waiting.iter().position(|key| !needs_all(key)) {
            Some(free) => free,
            None => {
                // The first of the most urgent ones.
                let rest = waiting.iter().map(urgency).enumerate().rev();
                let Some((place, own)) = rest.max_by_key(|&(_, urgency)| urgency) else {
                    return false;
                };
                let is_known = |launch: &Launch| launch.arrival.is_some();
                let known = self.ops.values().filter(|op| op.launch.as_ref().is_some_and(is_known));
                let most = known.map(|op| op.effective.priority).max();
                if most > own || most == own && now < *next {
                    return false;
                }
                place
            }
        };
        let chosen = self.opaque.waiting.remove(place);
        chosen.into_iter().for_each(|key| self.opaque.waiting.push_front(key));
        true
    }

    /// When waiting opaque work can have the device, because launches have had their turn.
    pub(super) fn opaque_wake(&self, now: Duration) -> Option<Duration> {
        let waits = !self.opaque.drains && !self.opaque.waiting.is_empty();
        (waits && self.opaque.next > now).then_some(self.opaque.next)
    }

    /// Opaque work that had started is over.
    pub(super) fn end_opaque(
        &mut self,
        now: Duration,
        key: OpKey,
        opaque: Opaque,
        outcome: Outcome,
    ) {
        if self.ops[key].phase != Phase::Active {
            return;
        }
        self.opaque.running -= 1;
        self.agenda.unsettled = true;
        if self.opaque.drains && self.opaque.waiting.front() == Some(&key) {
            self.opaque.waiting.pop_front();
            self.opaque.drains = false;
            self.opaque.next = now + now.saturating_sub(self.opaque.since);
        }
        // Failed work may not have loaded all that it has to load.
        if matches!(outcome, Outcome::Done(_)) {
            let known = (opaque.name, opaque.variant);
            if self.opaque.known.len() >= MOST_KNOWN && !self.opaque.known.contains(&known) {
                self.opaque.known.clear();
            }
            self.opaque.known.insert(known);
        }
    }

    /// Takes opaque work out that waited for the device.
    pub(super) fn withdraw_opaque(&mut self, key: OpKey) {
        let Some(place) = self.opaque.waiting.iter().position(|&other| other == key) else {
            return;
        };
        self.opaque.waiting.remove(place);
        self.opaque.drains &= place > 0;
        // It leaves the order like an operation that was cancelled before.
        self.agenda.released.push_back(key);
        self.agenda.unsettled = true;
    }

    /// Nothing runs on the device any more.
    pub(super) fn lose_opaque(&mut self) {
        self.opaque.running = 0;
    }
}
