//! Control blocks: which are free, and the counters that tell one use of them from the next.

use std::collections::VecDeque;

use crate::vocabulary::{ControlIndex, ControlUse};
use preempt_device::abi::{COHORT_SLOTS, MAX_TICKET, departures};

/// Counters of every control block.
#[derive(Debug, Default)]
pub(super) struct Controls {
    all: Vec<Counters>,
    /// The first one was given back first, so that launches behind its last use can still see that
    /// that is done.
    free: VecDeque<ControlIndex>,
}

#[derive(Clone, Debug, Default)]
struct Counters {
    parity: u8,
    tickets: [u32; COHORT_SLOTS],
    /// What the cohorts that are out have left in the slots' words.
    left: [u64; COHORT_SLOTS],
}

impl Controls {
    /// A control block for a new launch.
    pub fn take(&mut self) -> ControlUse {
        let control = self.free.pop_front().unwrap_or_else(|| {
            self.all.push(Counters::default());
            self.all.len() as ControlIndex - 1
        });
        ControlUse { control, parity: self.all[control as usize].parity }
    }

    /// Gives a control block back after every cohort is out. The cohorts that `ran` have zeroed the
    /// other claims; without any, these are still zero.
    pub fn give_back(&mut self, control: ControlIndex, ran: bool) {
        self.all[control as usize].parity ^= u8::from(ran);
        self.free.push_back(control);
    }

    /// What is in a slot's word while no cohort of the slot is out.
    pub fn left(&self, control: ControlIndex, slot: usize) -> u64 {
        self.all[control as usize].left[slot]
    }

    /// A cohort of `blocks` blocks has left, with `done` tasks done.
    pub fn depart(&mut self, control: ControlIndex, slot: usize, blocks: u32, done: u32) {
        let left = &mut self.all[control as usize].left[slot];
        *left = left.wrapping_add(departures(blocks, done));
    }

    /// The ticket of the next cohort in a slot; never 0, which is what a fresh post holds.
    pub fn ticket(&mut self, control: ControlIndex, slot: usize) -> u32 {
        let ticket = &mut self.all[control as usize].tickets[slot];
        *ticket = *ticket % MAX_TICKET + 1;
        *ticket
    }
}
