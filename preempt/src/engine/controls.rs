//! Control blocks: which are free, and the counters that tell one use of them from the next.

use preempt_device::abi::{COHORT_SLOTS, MAX_EPOCH, Signal, SmRange};

/// A control block of the device, by number.
pub(crate) type ControlIndex = u32;

/// Counters of every control block. They only grow, from one launch to the next too.
#[derive(Debug, Default)]
pub(super) struct Controls {
    all: Vec<Counters>,
    free: Vec<ControlIndex>,
}

#[derive(Clone, Debug, Default)]
struct Counters {
    epoch: u64,
    generation: u32,
    tickets: [u32; COHORT_SLOTS],
}

impl Controls {
    /// A control block for a new launch, and its generation.
    pub fn take(&mut self) -> (ControlIndex, u32) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.all.push(Counters::default());
            self.all.len() as ControlIndex - 1
        });
        let counters = &mut self.all[index as usize];
        counters.generation += 1;
        (index, counters.generation)
    }

    /// Gives a control block back after every cohort is out.
    pub fn give_back(&mut self, index: ControlIndex) {
        let counters = &self.all[index as usize];
        // A block whose counters come near their end is not used again. No launch sends a
        // billion signals.
        if counters.epoch < MAX_EPOCH - (1 << 30) && counters.generation < u32::MAX {
            self.free.push(index);
        }
    }

    /// A signal that is newer than all before it.
    pub fn signal(&mut self, index: ControlIndex, range: SmRange) -> Signal {
        let epoch = &mut self.all[index as usize].epoch;
        *epoch += 1;
        Signal::new(*epoch, range)
    }

    /// The ticket of the next cohort in a slot; never 0, which is what a fresh post holds.
    pub fn ticket(&mut self, index: ControlIndex, slot: u32) -> u32 {
        let ticket = &mut self.all[index as usize].tickets[slot as usize];
        *ticket = ticket.wrapping_add(1).max(1);
        *ticket
    }
}
