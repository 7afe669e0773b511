//! The hardware's block scheduler: pending blocks go to SMs with room, urgent grids first.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use preempt_device::abi::Cohort;
use preempt_device::host::{Dim3, Kernel};

use super::block::Resident;
use crate::device::{Grid, Properties};
use crate::engine::OpKey;

/// What a block takes of its SM.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    pub threads: u32,
    pub shared: u32,
}

impl Demand {
    pub fn of(kernel: &Kernel, block: Dim3) -> Demand {
        let threads = block.count().try_into().unwrap_or(u32::MAX);
        Demand { threads, shared: kernel.shared_bytes }
    }
}

/// A grid of which not all blocks are placed.
pub(super) struct PendingGrid {
    op: OpKey,
    grid: Arc<Grid>,
    cohort: Cohort,
    demand: Demand,
    /// Blocks that are not placed.
    left: u32,
    /// Whether a block of the grid went wrong; the others then run no more tasks.
    failed: Arc<AtomicBool>,
}

// SAFETY: the pointers in a cohort are to words that all threads share through atomics.
unsafe impl Send for PendingGrid {}

impl PendingGrid {
    pub fn new(op: OpKey, grid: Arc<Grid>, cohort: Cohort) -> PendingGrid {
        let demand = Demand::of(grid.kernel, grid.block);
        PendingGrid { op, grid, cohort, demand, left: cohort.blocks, failed: Arc::default() }
    }
}

/// What is free where, and who waits.
pub(super) struct Dispatch {
    /// Most urgent first, then in order of launch.
    pending: VecDeque<PendingGrid>,
    sms: Vec<Sm>,
}

struct Sm {
    free_slots: Vec<usize>,
    threads: u32,
    shared: u32,
}

impl Dispatch {
    pub fn new(properties: &Properties) -> Dispatch {
        let per_sm = properties.blocks_per_sm as usize;
        let sm = |sm: u32| Sm {
            free_slots: (sm as usize * per_sm..(sm as usize + 1) * per_sm).collect(),
            threads: properties.threads_per_sm,
            shared: properties.shared_per_sm,
        };
        Dispatch { pending: VecDeque::new(), sms: (0..properties.sms).map(sm).collect() }
    }

    pub fn queue(&mut self, grid: PendingGrid) {
        let urgency = grid.grid.priority;
        let place = self.pending.partition_point(|other| other.grid.priority >= urgency);
        self.pending.insert(place, grid);
    }

    /// Takes room for the next block, if there is any. Blocks spread over the SMs: each goes
    /// where most slots are free.
    pub fn next_block(&mut self) -> Option<(usize, Resident)> {
        let grid = self.pending.front_mut()?;
        let demand = grid.demand;
        let has_room = |sm: &Sm| {
            !sm.free_slots.is_empty() && sm.threads >= demand.threads && sm.shared >= demand.shared
        };
        let (id, sm) = self
            .sms
            .iter_mut()
            .enumerate()
            .rev()
            .filter(|(_, sm)| has_room(sm))
            .max_by_key(|(_, sm)| sm.free_slots.len())?;
        let slot = sm.free_slots.pop()?;
        sm.threads -= demand.threads;
        sm.shared -= demand.shared;
        grid.left -= 1;
        let resident = Resident {
            op: grid.op,
            grid: grid.grid.clone(),
            cohort: grid.cohort,
            failed: grid.failed.clone(),
            sm: id as u32,
            slot,
        };
        if grid.left == 0 {
            self.pending.pop_front();
        }
        Some((slot, resident))
    }

    /// Gives a block's room back.
    pub fn free(&mut self, sm: u32, slot: usize, demand: Demand) {
        let sm = &mut self.sms[sm as usize];
        sm.free_slots.push(slot);
        sm.threads += demand.threads;
        sm.shared += demand.shared;
    }
}
