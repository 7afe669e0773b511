//! Gates of the model device, and armed operations.

use super::*;

/// How far an armed operation has come, as the application and the scheduler see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Armed {
    Waits,
    /// The engine was not told yet.
    Released,
    Told,
    Disarmed,
}

/// The gate before a cohort.
#[derive(Clone, Debug)]
pub struct Gate {
    /// `None` while it is neither open nor closed.
    open: Option<bool>,
    /// Looks at it until its limit is over.
    patience: u32,
    /// What it tells when it is opened.
    hints: Vec<Hint>,
}

impl World {
    pub(super) fn gate(&mut self, op: OpKey) -> Gate {
        let whole = self.whole(op);
        let open = match self.armed[&whole] {
            Armed::Waits => None,
            // The order was on its way.
            Armed::Released | Armed::Told => Some(true),
            Armed::Disarmed => Some(false),
        };
        Gate { open, patience: 5, hints: Vec::new() }
    }

    /// Whether the gate before a cohort is open, once that is decided.
    pub(super) fn pass_gate(&mut self, index: usize) -> Option<bool> {
        let Some(gate) = &mut self.cohorts[index].gate else { return Some(true) };
        if gate.open.is_none() {
            gate.patience -= 1;
            if gate.patience == 0 {
                gate.open = Some(false);
            }
        }
        gate.open
    }

    /// Sets what the gates tell, as the engine foresees it.
    pub(super) fn foresee(&mut self) {
        if !self.engine.foresees() {
            return;
        }
        let mut hints = Vec::new();
        self.engine.hints(self.now, &mut hints);
        for cohort in &mut self.cohorts {
            let queue = cohort.order.queue;
            if let Some(gate) = &mut cohort.gate {
                gate.hints = hints.iter().filter(|hint| hint.gate == queue).copied().collect();
            }
        }
    }

    fn set_gate(&mut self, whole: OpKey, open: bool) {
        for index in 0..self.cohorts.len() {
            let op = self.cohorts[index].order.op;
            let is_its = self.whole(op) == whole;
            let Some(gate) = self.cohorts[index].gate.as_mut().filter(|_| is_its) else { continue };
            if gate.open.is_none() {
                gate.open = Some(open);
                let told = gate.hints.iter().filter(|_| open).map(|hint| (hint.queue, hint.signal));
                for (queue, signal) in told {
                    let last = self.told.entry(queue).or_insert(signal);
                    *last = if signal.is_newer(*last) { signal } else { *last };
                }
            }
        }
    }

    /// The application launches an armed operation: the gate hears of it before the engine does.
    pub fn release(&mut self, index: usize) {
        let waits = |(key, _): &&(OpKey, ModelOp)| self.armed.get(key) == Some(&Armed::Waits);
        let waiting: Vec<OpKey> = self.ops.iter().filter(waits).map(|(key, _)| *key).collect();
        if let Some(&key) = waiting.get(index % waiting.len().max(1)) {
            self.armed.insert(key, Armed::Released);
            self.set_gate(key, true);
        }
    }

    /// Tells the engine of one released operation; whether there was one.
    pub fn tell_released(&mut self) -> bool {
        let released = |(key, _): &&(OpKey, ModelOp)| self.armed.get(key) == Some(&Armed::Released);
        let key = self.ops.iter().find(released).map(|(key, _)| *key);
        if let Some(op) = key {
            self.armed.insert(op, Armed::Told);
            self.handle(Event::Release { op });
        }
        key.is_some()
    }

    /// Disarms an operation, unless it was released.
    pub(super) fn disarm(&mut self, op: OpKey) {
        if self.armed.get(&op) == Some(&Armed::Waits) {
            self.armed.insert(op, Armed::Disarmed);
            self.set_gate(op, false);
            self.engine.handle(self.now, Event::Disarmed { op }, &mut self.actions);
        }
    }

    /// Disarms one operation that waits; whether there was one.
    pub fn disarm_one(&mut self) -> bool {
        let waits = |(key, _): &&(OpKey, ModelOp)| self.armed.get(key) == Some(&Armed::Waits);
        let key = self.ops.iter().find(waits).map(|(key, _)| *key);
        if let Some(key) = key {
            self.disarm(key);
            self.act();
        }
        key.is_some()
    }

    /// Nothing of an armed operation runs before its release.
    pub(super) fn check_released(&mut self, op: OpKey) {
        let whole = self.whole(op);
        let armed = self.armed.get(&whole);
        assert!(!matches!(armed, Some(Armed::Waits | Armed::Disarmed)), "{armed:?}");
    }
}
