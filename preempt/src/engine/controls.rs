//! Control blocks: which are free, and the counters that tell one use of them from the next.

use std::collections::VecDeque;

use crate::vocabulary::{ControlIndex, ControlUse};
use preempt_device::abi::{COHORT_SLOTS, MAX_TICKET, departures};

/// Counters of every control block.
#[derive(Debug, Default)]
pub(super) struct Controls {
    all: Vec<Counters>,
    /// FIFO: the control block released longest ago is reused first, so cohorts queued behind its last use can still
    /// observe completion.
    free: VecDeque<ControlIndex>,
}

#[derive(Clone, Debug, Default)]
struct Counters {
    parity: u8,
    tickets: [u32; COHORT_SLOTS],
    /// The value of each slot's word after the cohorts that have left.
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

    /// Releases a control block after every cohort is out. Cohorts that `ran` have zeroed the other claim; without
    /// any, it is still zero.
    pub fn give_back(&mut self, control: ControlIndex, ran: bool) {
        self.all[control as usize].parity ^= u8::from(ran);
        self.free.push_back(control);
    }

    /// The value of a slot's word while none of its cohorts is out.
    pub fn left(&self, control: ControlIndex, slot: usize) -> u64 {
        self.all[control as usize].left[slot]
    }

    /// Counts a cohort of `blocks` blocks that has left with `done` tasks done.
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
