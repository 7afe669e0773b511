//! The hardware's block scheduler: pending blocks go to SMs with room, those in queues of higher levels first.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use preempt_device::abi::{Cohort, DeviceQueue, Signal};
use preempt_device::host::Dim3;

use super::block::{Resident, Run};
use super::program::QueuedCall;
use crate::device::control::{Grid, PlainGrid};
use crate::device::{Gate, KernelLaunch, Properties};
use crate::vocabulary::{OpKey, QueueCount};

/// The share of its SM that a block takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    pub threads: u32,
    pub shared: u32,
}

impl Demand {
    pub fn new(block: Dim3, shared: u32) -> Demand {
        Demand { threads: block.count().try_into().unwrap_or(u32::MAX), shared }
    }

    pub fn of(launch: &KernelLaunch) -> Demand {
        Demand::new(launch.block, launch.shared_bytes())
    }
}

/// A grid of which some blocks are not placed yet.
pub(super) struct PendingGrid {
    op: OpKey,
    launch: Arc<KernelLaunch>,
    run: Run,
    blocks: u32,
    demand: Demand,
    /// Blocks that are not placed.
    left: u32,
    /// Set when a block of the grid has failed; the other blocks then run no further tasks.
    failed: Arc<AtomicBool>,
    /// The ticket of the gate that it waits for.
    gate: Option<u64>,
}

impl PendingGrid {
    /// The blocks of a cohort, or of a plain grid. A plain grid has at most `slots` blocks, as many as the device
    /// holds, because further ones would only run after them. `word` is the queue's.
    pub fn new(
        op: OpKey,
        launch: Arc<KernelLaunch>,
        grid: Grid,
        word: *const DeviceQueue,
        slots: u32,
    ) -> PendingGrid {
        let (run, blocks) = match grid {
            Grid::Cohort(cohort) => (Run::Cohort(Cohort { queue: word, ..cohort }), cohort.blocks),
            Grid::Plain(plain) => {
                let blocks = plain.tasks.min(slots);
                (Run::plain(plain, blocks), blocks)
            }
        };
        PendingGrid::with(op, launch, run, blocks, Arc::default())
    }

    /// The blocks of a call of a program. `failed` is the program's.
    pub fn of_call(
        op: OpKey,
        call: QueuedCall,
        grid: PlainGrid,
        slots: u32,
        failed: &Arc<AtomicBool>,
    ) -> PendingGrid {
        let launch = call.launch();
        // A copy has no block-task, and a block all the same.
        let tasks = launch.tasks();
        let blocks = tasks.clamp(1, slots);
        let run = Run::call(PlainGrid { extents: launch.grid, ..grid }, tasks, blocks, call);
        PendingGrid::with(op, launch, run, blocks, failed.clone())
    }

    fn with(
        op: OpKey,
        launch: Arc<KernelLaunch>,
        run: Run,
        blocks: u32,
        failed: Arc<AtomicBool>,
    ) -> PendingGrid {
        let demand = Demand::of(&launch);
        PendingGrid { op, launch, run, blocks, demand, left: blocks, failed, gate: None }
    }
}

/// How a block left its SM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Left {
    /// It will not come back.
    Done,
    /// Blocks of a higher level wait for room, and its grid has block-tasks left.
    MakesRoom,
}

/// The free slots of each SM, and the grids that wait for them.
pub(super) struct Dispatch {
    queues: Vec<QueuedGrids>,
    /// The queues whose first grid has blocks to place: those of the highest level first, then in order of launch.
    pending: VecDeque<u32>,
    count: QueueCount,
    /// What waits for room, for blocks that look without the lock.
    waiting: Arc<Waiting>,
    sms: Vec<Sm>,
}

/// The level of the grid whose blocks are placed next.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// The level and 1; 0 if no block waits for room.
    level: AtomicU32,
}

impl Waiting {
    /// Whether blocks of a higher level wait for room.
    // Relaxed: the block that makes room takes the lock to do it, and a late look costs one more block-task.
    pub fn is_above(&self, level: u32) -> bool {
        self.level.load(Ordering::Relaxed) > level + 1
    }
}

/// Grids that run one after the other.
#[derive(Default)]
struct QueuedGrids {
    /// The first grid runs.
    grids: VecDeque<PendingGrid>,
    /// Blocks of the first grid that have not left.
    out: u32,
    /// The ticket of the gate that was put there last, until a grid is behind it.
    gate: Option<u64>,
    /// What the queue's gate tells others when it is opened.
    hints: Vec<(u32, Signal)>,
}

struct Sm {
    free_slots: Vec<usize>,
    threads: u32,
    shared: u32,
}

impl Dispatch {
    pub fn new(properties: &Properties, queues: QueueCount) -> Dispatch {
        let per_sm = properties.blocks_per_sm as usize;
        let sm = |sm: u32| Sm {
            free_slots: (sm as usize * per_sm..(sm as usize + 1) * per_sm).collect(),
            threads: properties.threads_per_sm,
            shared: properties.shared_per_sm,
        };
        Dispatch {
            queues: (0..queues.total()).map(|_| QueuedGrids::default()).collect(),
            pending: VecDeque::new(),
            count: queues,
            waiting: Arc::default(),
            sms: (0..properties.sms).map(sm).collect(),
        }
    }

    pub fn queue(&mut self, queue: u32, grid: PendingGrid) {
        let of = &mut self.queues[queue as usize];
        let gate = of.gate.take();
        of.grids.push_back(PendingGrid { gate, ..grid });
        if of.grids.len() == 1 {
            self.start(queue);
        }
    }

    /// Puts a gate into a queue, before the next grid there.
    pub fn gate(&mut self, Gate { queue, ticket }: Gate) {
        self.queues[queue as usize].gate = Some(ticket);
        self.queues[queue as usize].hints.clear();
    }

    /// Sets what a queue's gate tells others.
    pub fn hint(&mut self, queue: u32, words: &[(u32, Signal)]) {
        let hints = &mut self.queues[queue as usize].hints;
        hints.clear();
        hints.extend_from_slice(words);
    }

    /// Opens or closes a gate that is there: `leave` gets what it tells others, and then what is behind it starts.
    pub fn pass_gate(&mut self, gate: Gate, leave: impl FnOnce(&[(u32, Signal)])) {
        let of = &mut self.queues[gate.queue as usize];
        let behind = of.grids.iter().position(|grid| grid.gate == Some(gate.ticket));
        match behind {
            Some(at) => of.grids[at].gate = None,
            None if of.gate == Some(gate.ticket) => of.gate = None,
            None => return,
        }
        leave(&of.hints);
        if behind == Some(0) {
            self.start(gate.queue);
        }
    }

    /// Whether every block has left.
    pub fn is_idle(&self) -> bool {
        self.queues.iter().all(|queue| queue.grids.is_empty())
    }

    /// Starts the first grid of a queue.
    fn start(&mut self, queue: u32) {
        let first = self.queues[queue as usize].grids.front();
        let Some(grid) = first.filter(|grid| grid.gate.is_none()) else { return };
        self.queues[queue as usize].out = grid.blocks;
        let level = |queue: u32| self.count.level(queue);
        let place = self.pending.partition_point(|&other| level(other) >= level(queue));
        self.pending.insert(place, queue);
        self.tell();
    }

    /// Says what waits for room.
    fn tell(&self) {
        let level = self.pending.front().map_or(0, |&queue| self.count.level(queue) + 1);
        self.waiting.level.store(level, Ordering::Relaxed);
    }

    pub fn waiting(&self) -> Arc<Waiting> {
        self.waiting.clone()
    }

    /// Takes room for the next block, if there is any. Blocks spread over the SMs: each goes
    /// where most slots are free.
    pub fn next_block(&mut self) -> Option<(usize, Resident)> {
        let &queue = self.pending.front()?;
        let grid = self.queues[queue as usize].grids.front_mut()?;
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
            launch: grid.launch.clone(),
            run: grid.run.clone(),
            failed: grid.failed.clone(),
            sm: id as u32,
            number: grid.blocks - 1 - grid.left,
            slot,
            queue,
            level: self.count.level(queue),
        };
        if grid.left == 0 {
            self.pending.pop_front();
            self.tell();
        }
        Some((slot, resident))
    }

    /// Gives a block's room back, and lets the next grid of its queue start after the last block. After a block that
    /// [`MakesRoom`](Left::MakesRoom), another one of its grid waits for room, before those of younger grids.
    pub fn free(&mut self, sm: u32, slot: usize, demand: Demand, queue: u32, left: Left) {
        let sm = &mut self.sms[sm as usize];
        sm.free_slots.push(slot);
        sm.threads += demand.threads;
        sm.shared += demand.shared;
        let QueuedGrids { grids, out, .. } = &mut self.queues[queue as usize];
        if let (Left::MakesRoom, Some(grid)) = (left, grids.front_mut()) {
            grid.left += 1;
            if grid.left == 1 {
                let level = |queue: u32| self.count.level(queue);
                let place = self.pending.partition_point(|&other| level(other) > level(queue));
                self.pending.insert(place, queue);
                self.tell();
            }
            return;
        }
        *out -= 1;
        if *out == 0 {
            grids.pop_front();
            self.start(queue);
        }
    }
}
