//! The test kernels that the fake driver knows, and the blocks that run them.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use preempt_device::abi::{Cohort, DeviceQueue};
use preempt_device::worker::{self, BlockNotes, Chunk};

use super::panics::failed;
use super::saves::{SavedTasks, Saves};

pub const SMS: u32 = 4;
/// Blocks that an SM holds.
pub const SLOTS: u32 = 2;

/// Rounds of `spin_yielding` between two yield points that the fake looks at.
const ROUNDS: usize = 50_000;

/// Whether block-tasks of `spin_yielding` stay in their first rounds. Relaxed: it says nothing about other memory.
static HELD: AtomicBool = AtomicBool::new(false);

/// Keeps block-tasks of `spin_yielding` from ending, or lets them.
pub fn hold_spinning(is_held: bool) {
    HELD.store(is_held, Ordering::Relaxed);
}

/// A slice argument of a kernel.
#[derive(Clone, Copy)]
pub struct Slice {
    start: usize,
    len: usize,
}

impl Slice {
    pub fn range(self) -> Range<usize> {
        self.start..self.start + 4 * self.len
    }

    pub fn at(self, index: usize) -> &'static AtomicU32 {
        assert!(index < self.len, "{index} of {}", self.len);
        // SAFETY: the driver has checked the slice, which the launch keeps.
        unsafe { &*((self.start + 4 * index) as *const AtomicU32) }
    }
}

/// A kernel and its arguments.
#[derive(Clone, Copy)]
pub enum FakeKernel {
    Count { nanoseconds: u64, counts: [usize; 2], writes: [usize; 2] },
    Spin { starts: [usize; 2], rounds: usize, out: [usize; 2] },
    Saves(Saves),
}

impl FakeKernel {
    /// The kernel of this name; `parameter(index, whether it is a word)` gives its arguments.
    pub fn new(name: &str, parameter: impl Fn(usize, bool) -> usize) -> Option<FakeKernel> {
        let slice = |at| [parameter(at, true), parameter(at + 1, true)];
        match name {
            "count_1d" => {
                Some(FakeKernel::Count { nanoseconds: 0, counts: slice(0), writes: slice(2) })
            }
            "paced_1d" => Some(FakeKernel::Count {
                nanoseconds: parameter(0, true) as u64,
                counts: slice(1),
                writes: slice(3),
            }),
            "spin_yielding" => Some(FakeKernel::Spin {
                starts: slice(0),
                rounds: parameter(2, false),
                out: slice(3),
            }),
            "rotate_saving" => {
                let slice = |at| Slice { start: parameter(at, true), len: parameter(at + 1, true) };
                let rounds = parameter(4, false) as u32;
                let (ends, starts, out, done) = (slice(0), slice(2), slice(5), slice(7));
                Some(FakeKernel::Saves(Saves { ends, starts, rounds, out, done }))
            }
            _ => None,
        }
    }

    pub fn ranges(&self) -> Vec<Range<usize>> {
        let (a, b) = match self {
            FakeKernel::Count { counts, writes, .. } => (counts, writes),
            FakeKernel::Spin { starts, out, .. } => (starts, out),
            FakeKernel::Saves(saves) => return saves.slices().map(Slice::range).to_vec(),
        };
        [a, b].map(|&[start, len]| Slice { start, len }.range()).to_vec()
    }

    /// Runs a block-task; returns whether it was requeued at a yield point, where `is_sent_away`.
    fn task(&self, task: u32, threads: u32, is_sent_away: impl Fn() -> bool) -> bool {
        let (a, b) = match *self {
            FakeKernel::Count { counts, writes, .. } => (counts, writes),
            FakeKernel::Spin { starts, out, .. } => (starts, out),
            FakeKernel::Saves(saves) => return saves.task(task, threads, 0, || false).is_some(),
        };
        let [first, second] = [a, b].map(|[start, len]| Slice { start, len });
        first.at(task as usize).fetch_add(1, Ordering::Relaxed);
        let numbers = task * threads..(task + 1) * threads;
        match *self {
            FakeKernel::Count { nanoseconds, .. } => {
                if nanoseconds > 0 {
                    thread::sleep(Duration::from_nanos(nanoseconds));
                }
                numbers.for_each(|x| _ = second.at(x as usize).fetch_add(1, Ordering::Relaxed));
            }
            FakeKernel::Saves(_) => {}
            FakeKernel::Spin { rounds, .. } => {
                let mut round = 0;
                while round < rounds {
                    if is_sent_away() {
                        return true;
                    }
                    // Blocks of a context that has failed do nothing more, and never post.
                    while failed().is_some() {
                        thread::park();
                    }
                    thread::sleep(Duration::from_micros(50));
                    if !HELD.load(Ordering::Relaxed) {
                        round += ROUNDS;
                    }
                }
                let value = crate::spun(rounds as u32);
                numbers.for_each(|x| second.at(x as usize).store(value(x), Ordering::Relaxed));
            }
        }
        false
    }

    pub fn run_plain(&self, tasks: u32, threads: u32) {
        for task in 0..tasks {
            self.task(task, threads, || false);
        }
    }

    /// All blocks of a cohort, one after the other, on SMs that have these numbers in its code.
    pub fn run_cohort(&self, cohort: &Cohort, threads: u32, sms: &[u32]) {
        // The hardware is free to place blocks; here they are dealt to SMs in turn.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        for number in 0..cohort.blocks {
            let sm = sms[NEXT.fetch_add(1, Ordering::Relaxed) as usize % sms.len()];
            let mut block =
                Block { sm, number, start: Instant::now(), notes: BlockNotes::default(), left: 0 };
            let tasks = Tasks { entry: self, cohort, threads, sm, index: 0 };
            // SAFETY: the device layer keeps what a cohort points to, and each block runs once.
            unsafe {
                match self {
                    FakeKernel::Saves(saves) => {
                        let mut tasks =
                            SavedTasks { saves: *saves, cohort, threads, sm, index: 0, slot: None };
                        if number == 0 {
                            tasks.check_free();
                        }
                        worker::run(&mut block, cohort, &mut tasks)
                    }
                    FakeKernel::Count { .. } => {
                        worker::run(&mut block, cohort, &mut OfKernel::<false>(tasks))
                    }
                    FakeKernel::Spin { .. } => {
                        worker::run(&mut block, cohort, &mut OfKernel::<true>(tasks))
                    }
                }
            }
        }
    }
}

struct Tasks<'a> {
    entry: &'a FakeKernel,
    cohort: &'a Cohort,
    threads: u32,
    sm: u32,
    index: u32,
}

/// `YIELDS`: whether the kernel has yield points.
struct OfKernel<'a, const YIELDS: bool>(Tasks<'a>);

impl<const YIELDS: bool> worker::Body for OfKernel<'_, YIELDS> {
    const YIELDS: bool = YIELDS;

    fn seek(&mut self, index: u32) {
        self.0.index = index;
    }

    fn index(&self) -> u32 {
        self.0.index
    }

    fn run(&mut self, requeues: u32) -> bool {
        let requeueable = requeues < worker::MAX_REQUEUES;
        let Tasks { entry, cohort, threads, sm, index } = self.0;
        // SAFETY: the device layer keeps the device queue.
        let queue: &DeviceQueue = unsafe { &*cohort.queue };
        entry.task(index, threads, || requeueable && !queue.grants(cohort.signal, sm))
    }
}

/// One thread stands for the whole block.
struct Block {
    sm: u32,
    number: u32,
    start: Instant,
    notes: BlockNotes,
    left: u32,
}

impl worker::Block for Block {
    fn sm(&self) -> u32 {
        self.sm
    }
    fn number(&self) -> u32 {
        self.number
    }
    fn clock(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
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
