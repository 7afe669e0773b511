//! A resident block: one host thread that runs the worker loop, and plays all of the block's
//! threads in turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{self, Duration};

use preempt_device::abi::Cohort;
use preempt_device::host::Dim3;
use preempt_device::time::global_timer;
use preempt_device::worker::{self, BlockNotes, Chunk};
use preempt_device::yields::{Decision, Switch};

use super::Shared;
use super::dispatch::{Demand, Left, Waiting};
use super::program::QueuedCall;
use super::threads::{Emulator, Task};
use crate::device::control::PlainGrid;
use crate::device::{DeviceReport, KernelLaunch, lock};
use crate::error::caught;
use crate::sync::Instant;
use crate::vocabulary::OpKey;

/// A block on its way to its SM.
pub(super) struct Resident {
    pub op: OpKey,
    pub launch: Arc<KernelLaunch>,
    pub run: Run,
    pub failed: Arc<AtomicBool>,
    pub sm: u32,
    /// Its number in the grid.
    pub number: u32,
    pub slot: usize,
    pub queue: u32,
    /// The queue's level.
    pub level: u32,
}

/// The work of a block.
#[derive(Clone)]
pub(super) enum Run {
    /// The worker loop.
    Cohort(Cohort),
    /// Block-tasks of a plain grid, in the order of their indices, as hardware blocks follow each other. Between two of
    /// them, a block makes room for blocks of a higher level, as the hardware prefers these.
    Plain(Arc<PlainRun>),
}

// SAFETY: the pointers are to words that all threads share through atomics.
unsafe impl Send for Run {}

/// A plain grid while it runs.
pub(super) struct PlainRun {
    grid: PlainGrid,
    /// Its block-tasks.
    tasks: u32,
    /// The call of a program that it is, if it is one.
    call: Option<QueuedCall>,
    /// The next block-task.
    next: AtomicU64,
    /// Blocks that have not left.
    blocks: AtomicU32,
}

impl Run {
    pub fn plain(grid: PlainGrid, blocks: u32) -> Run {
        Run::of(grid, grid.tasks, blocks, None)
    }

    /// A call of a program, which posts if it is the last one.
    pub fn call(grid: PlainGrid, tasks: u32, blocks: u32, call: QueuedCall) -> Run {
        Run::of(grid, tasks, blocks, Some(call))
    }

    fn of(grid: PlainGrid, tasks: u32, blocks: u32, call: Option<QueuedCall>) -> Run {
        let (next, blocks) = (AtomicU64::new(0), AtomicU32::new(blocks));
        Run::Plain(Arc::new(PlainRun { grid, tasks, call, next, blocks }))
    }

    /// What a failed block-task is called, beside its index: the call of its program.
    fn describe(&self) -> String {
        match self {
            Run::Plain(run) => run.call.as_ref().map_or_else(String::new, QueuedCall::describe),
            Run::Cohort(_) => String::new(),
        }
    }

    fn extents(&self) -> [u32; 3] {
        match self {
            Run::Cohort(cohort) => cohort.grid,
            Run::Plain(run) => run.grid.extents,
        }
    }

    /// Its first block-task, where it is a call of a program.
    #[cfg(test)]
    pub fn first_task(&self) -> u32 {
        match self {
            Run::Plain(run) => run.call.as_ref().map_or(0, |call| call.first_task),
            Run::Cohort(_) => 0,
        }
    }

    /// The cohort, for yield points.
    pub fn cohort(&self) -> Option<&Cohort> {
        match self {
            Run::Cohort(cohort) => Some(cohort),
            Run::Plain(_) => None,
        }
    }
}

/// A block of the CPU device. One host thread is the whole block: it elects no thread and waits for none.
struct CpuBlock {
    sm: u32,
    number: u32,
    start: Instant,
    notes: BlockNotes,
    left: u32,
}

impl worker::Block for CpuBlock {
    fn sm(&self) -> u32 {
        self.sm
    }

    fn number(&self) -> u32 {
        self.number
    }

    fn clock(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn nanos(&self) -> u64 {
        global_timer()
    }

    fn await_previous(&self) {}

    fn release_next(&self) {}

    fn notes(&self) -> &BlockNotes {
        &self.notes
    }

    fn set_left(&mut self, left: u32) {
        self.left = left;
    }

    fn left(&self) -> u32 {
        self.left
    }

    fn lead(&mut self, lead: impl FnOnce(&Self)) {
        lead(self)
    }

    fn elect(&mut self, decide: impl FnOnce(&Self) -> Chunk) -> Chunk {
        decide(self)
    }

    fn elect_any(&mut self, predicate: bool, decide: impl FnOnce(&Self) -> Chunk) -> (Chunk, bool) {
        (decide(self), predicate)
    }

    fn elect_last(&mut self, last: impl FnOnce(&Self)) {
        last(self)
    }

    fn barrier(&mut self) {}

    fn any(&mut self, predicate: bool) -> bool {
        predicate
    }
}

/// A block's turn on its core. There are more blocks than cores, as a rule, and each would keep its core for as long as the
/// operating system lets it, some milliseconds: so long would a signal go unseen by blocks that wait for a core, and so
/// would the threads that launch and decide. Passing a core on takes some 2 µs.
struct Turn {
    since: time::Instant,
}

impl Turn {
    /// 4 or 5 % of the time go into passing cores on, and a block waits for 50 µs for each block that shares its core.
    const LONGEST: Duration = Duration::from_micros(50);

    fn new(since: time::Instant) -> Turn {
        Turn { since }
    }

    fn is_over(&self, now: time::Instant) -> bool {
        now.duration_since(self.since) >= Turn::LONGEST
    }

    /// Lets other threads have the core if the turn is over. Returns the time behind that.
    fn pass_on(&mut self) -> time::Instant {
        let now = time::Instant::now();
        if !self.is_over(now) {
            return now;
        }
        std::thread::yield_now();
        self.since = time::Instant::now();
        self.since
    }
}

/// The block-task's threads, one after the other. `YIELDS` and `SWITCHES` say whether the kernel has yield points, and a
/// checkpoint.
struct Tasks<'a, const YIELDS: bool, const SWITCHES: bool> {
    resident: &'a Resident,
    emulator: &'a mut Emulator,
    shared: &'a Shared,
    index: u32,
    turn: Turn,
    /// Of this block: as on a GPU, it outlives the block's tasks.
    decision: Decision,
    switch: Switch,
}

impl<'a, const YIELDS: bool, const SWITCHES: bool> Tasks<'a, YIELDS, SWITCHES> {
    fn new(resident: &'a Resident, emulator: &'a mut Emulator, shared: &'a Shared) -> Self {
        let cohort = resident.run.cohort().filter(|_| SWITCHES);
        let area = cohort.and_then(|cohort| {
            let slots = shared.slots.len() as u32;
            shared.words.save_area(cohort.requeue_list, &resident.launch, slots)
        });
        let switch = Switch::new(area, resident.number);
        Tasks {
            resident,
            emulator,
            shared,
            index: 0,
            turn: Turn::new(time::Instant::now()),
            decision: Decision::default(),
            switch,
        }
    }
}

impl<const YIELDS: bool, const SWITCHES: bool> worker::Body for Tasks<'_, YIELDS, SWITCHES> {
    const YIELDS: bool = YIELDS;
    const SWITCHES: bool = SWITCHES;

    fn resume(&mut self, slot: Option<u32>) {
        self.switch.resume(slot);
    }

    fn slot(&self) -> u32 {
        self.switch.slot().expect("a task that was left at a checkpoint has a slot")
    }

    fn seek(&mut self, index: u32) {
        self.index = index;
    }

    fn index(&self) -> u32 {
        self.index
    }

    fn run(&mut self, requeues: u32) -> bool {
        let Resident { op, launch, run, failed, sm, .. } = self.resident;
        // A failed launch has no result, so its other block-tasks are only counted. Relaxed, as below: a block that
        // sees the failure late does needless work.
        if failed.load(Ordering::Relaxed) {
            self.switch.give_back();
            return false;
        }
        let began = self.turn.pass_on();
        let [x, y, z] = run.extents();
        let row = self.index / x;
        let task = Task {
            launch,
            grid_dim: Dim3::new(x, y, z),
            block: Dim3::new(self.index % x, row % y, row / y),
            sm: *sm,
            index: self.index,
            began,
            decision: &self.decision,
            switch: &self.switch,
            cohort: run.cohort(),
            requeues,
        };
        // SAFETY: the launch checked the arguments against the kernel's. Whatever happens, the
        // block goes on: a launch whose blocks do not leave never ends.
        let result = caught(|| unsafe { self.emulator.run(&task) });
        // For a block-task that failed ahead of its checkpoint.
        self.switch.give_back();
        match result.and_then(|result| result) {
            Ok(requeued) => requeued,
            Err(message) => {
                if !failed.swap(true, Ordering::Relaxed) {
                    let Dim3 { x, y, z } = task.block;
                    let what = run.describe();
                    let message = format!("{what}block-task ({x}, {y}, {z}): {message}");
                    self.shared.report(DeviceReport::Fault(*op, message.into()));
                }
                false
            }
        }
    }
}

impl PlainRun {
    /// Runs block-tasks until none is left, or until `makes_room` says that the block is to leave before. `failed`:
    /// whether its launch has failed; `fails` is told if a call does that is no kernel.
    fn work(
        &self,
        body: &mut impl worker::Body,
        failed: &AtomicBool,
        makes_room: impl Fn() -> bool,
        fails: impl FnOnce(String),
    ) -> Left {
        let &PlainRun { grid: PlainGrid { post, .. }, tasks, ref call, .. } = self;
        loop {
            // Relaxed: the counter hands out an index and orders nothing else.
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= u64::from(tasks) {
                break;
            }
            body.seek(index as u32);
            body.run(worker::MAX_REQUEUES_FOR_LIMITS);
            // A grid whose last block-tasks run keeps nothing waiting.
            let has_more = self.next.load(Ordering::Relaxed) < u64::from(tasks);
            if has_more && makes_room() {
                return Left::MakesRoom;
            }
        }
        // Acquire and release: the last block passes on what the others wrote to the thread that reads the post. What a
        // block wrote before it made room is known where it goes on, by the lock under which it was placed again.
        if self.blocks.fetch_sub(1, Ordering::AcqRel) > 1 {
            return Left::Done;
        }
        // Relaxed: blocks of earlier calls have left, under the lock by which this block was placed.
        if let Some(call) = call.as_ref().filter(|_| !failed.load(Ordering::Relaxed)) {
            // SAFETY: the program has its turn, and in it this call.
            if let Err(message) = unsafe { call.act() } {
                failed.store(true, Ordering::Relaxed);
                fails(call.describe() + &message);
            }
        }
        if call.as_ref().is_none_or(|call| call.is_last) {
            // SAFETY: the block's thread holds the device's words while the block runs.
            unsafe { &*post }.word.store(self.grid.last_word(), Ordering::Release);
        }
        Left::Done
    }
}

impl Resident {
    pub fn run(self, emulator: &mut Emulator, shared: &Shared) {
        let waiting = &shared.waiting;
        let fails = |message: String| shared.report(DeviceReport::Fault(self.op, message.into()));
        let kernel = self.launch.kernel;
        let left = match (kernel.yields, kernel.state_bytes > 0) {
            (_, true) => {
                self.work(&mut Tasks::<true, true>::new(&self, emulator, shared), waiting, fails)
            }
            (true, false) => {
                self.work(&mut Tasks::<true, false>::new(&self, emulator, shared), waiting, fails)
            }
            (false, false) => {
                self.work(&mut Tasks::<false, false>::new(&self, emulator, shared), waiting, fails)
            }
        };

        let Resident { launch, run, sm, slot, queue, .. } = self;
        let demand = Demand::of(&launch);
        // The launch's arguments are not needed any more, and a waiting thread may need them freed.
        drop((launch, run));
        let mut dispatch = lock(&shared.dispatch);
        dispatch.free(sm, slot, demand, queue, left);
        shared.place(&mut dispatch);
        drop(dispatch);
        shared.news.announce();
    }

    /// Runs the cohort's or the plain grid's block-tasks until the block has to leave.
    pub fn work(
        &self,
        tasks: &mut impl worker::Body,
        waiting: &Waiting,
        fails: impl FnOnce(String),
    ) -> Left {
        match &self.run {
            Run::Cohort(cohort) => {
                let (sm, number) = (self.sm, self.number);
                let mut block = CpuBlock {
                    sm,
                    number,
                    start: Instant::now(),
                    notes: BlockNotes::default(),
                    left: 0,
                };
                // SAFETY: the block's thread holds what a cohort points to while the block runs, which it does once.
                unsafe { worker::run(&mut block, cohort, tasks) };
                Left::Done
            }
            Run::Plain(run) => {
                run.work(tasks, &self.failed, || waiting.is_above(self.level), fails)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_over_when_it_has_lasted_long_enough_and_a_new_one_begins_then() {
        let start = time::Instant::now();
        let mut turn = Turn::new(start);
        assert!(!turn.is_over(start + Turn::LONGEST - Duration::from_nanos(1)));
        assert!(turn.is_over(start + Turn::LONGEST));
        while !turn.is_over(time::Instant::now()) {}
        let passed_on = turn.pass_on();
        assert!(passed_on >= start + Turn::LONGEST);
        assert!(!turn.is_over(passed_on + Turn::LONGEST - Duration::from_nanos(1)));
    }
}
