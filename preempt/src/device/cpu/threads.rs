//! The threads of a block-task, one after the other on the block's host thread.
//!
//! Every emulated thread starts on the same coroutine stack, and keeps it only if it has to wait for others: a kernel
//! without barriers costs one stack. Nothing has to be known of the kernel beforehand.

use std::cell::Cell;
use std::fmt::Write;
use std::panic::{Location, resume_unwind};
use std::sync::Arc;
use std::{mem, ptr};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use preempt_device::abi::Cohort;
use preempt_device::host::{Args, Dim3, Operation, Rendezvous, ThreadContext, with_thread};
use preempt_device::warp::Reduction;
use preempt_device::yields::{Decision, Switch, Yields};

use crate::device::KernelLaunch;
use crate::error::caught;

/// Bytes of each coroutine stack; pages that are not touched take no memory. A GPU gives a thread
/// at most 512 KiB of local memory, and unoptimised host code needs more than device code.
const STACK_BYTES: usize = 1 << 20;

/// Lanes of a warp.
const WARP: usize = 32;

/// The contents of shared memory when a task starts: a value that looks like no result.
const POISON: u128 = 0xAAAA_AAAA_AAAA_AAAA_AAAA_AAAA_AAAA_AAAA;

/// Times that an abandoned thread is unwound, in case its kernel catches the unwinding and waits again.
const UNWINDS: u32 = 16;

/// Places that a message names at most.
const PLACES: usize = 4;

/// One block-task.
pub(super) struct Task<'a> {
    pub launch: &'a Arc<KernelLaunch>,
    pub grid_dim: Dim3,
    pub block: Dim3,
    pub sm: u32,
    /// The task's index.
    pub index: u32,
    /// When the block-task began.
    pub began: std::time::Instant,
    /// What the block has decided about its tasks.
    pub decision: &'a Decision,
    /// How the block leaves tasks at checkpoints.
    pub switch: &'a Switch,
    /// The cohort whose signal the task's yield points look at.
    pub cohort: Option<&'a Cohort>,
    /// How often the task was requeued.
    pub requeues: u32,
}

/// An emulated thread, which runs until it waits or ends, perhaps by a panic. It resumes with the others' answer to the
/// rendezvous, or with nothing if it is given up. In the end it says whether it requeued its task.
type Thread = Coroutine<Option<u64>, Rendezvous, Result<bool, String>, DefaultStack>;

/// The state of an emulated thread.
enum ThreadState {
    Waiting(Thread, Rendezvous),
    Ended,
}

/// Runs block-tasks; keeps stacks and shared memory between them.
#[derive(Default)]
pub(super) struct Emulator {
    stacks: Vec<DefaultStack>,
    places: Vec<ThreadState>,
    shared: Vec<u128>,
    /// Set when a thread has requeued the task.
    requeued: bool,
}

thread_local! {
    /// Suspends the emulated thread that runs now.
    static YIELDER: Cell<*const Yielder<Option<u64>, Rendezvous>> =
        const { Cell::new(ptr::null()) };
    /// Whether a thread of the task did not wait, because it unwinds.
    static SKIPPED: Cell<bool> = const { Cell::new(false) };
}

/// The panic payload that unwinds an abandoned thread.
struct GivenUp;

/// Suspends the emulated thread that runs now.
fn wait(rendezvous: Rendezvous) -> u64 {
    // A destructor waits while its thread unwinds: the launch fails. It cannot be suspended, because panics are
    // counted for the host thread: until it goes on, every emulated thread would be taken for an unwinding one.
    if std::thread::panicking() {
        SKIPPED.set(true);
        return 0;
    }
    let yielder = YIELDER.get();
    // SAFETY: set by the coroutine that runs now, which owns it, when it started or went on. Nothing unwinds
    // out of `suspend`, because suspended coroutines are resumed or forgotten, and never dropped.
    let answer = unsafe { (*yielder).suspend(rendezvous) };
    YIELDER.set(yielder);
    answer.unwrap_or_else(|| resume_unwind(Box::new(GivenUp)))
}

impl Emulator {
    /// Runs every thread of a task to its end; returns whether any of them requeued it.
    ///
    /// # Errors
    ///
    /// The panic, or the threads that wait for others that never come. The task's threads are then unwound.
    ///
    /// # Safety
    ///
    /// The arguments are those of the kernel.
    pub unsafe fn run(&mut self, task: &Task<'_>) -> Result<bool, String> {
        self.requeued = false;
        self.shared.clear();
        self.shared.resize((task.launch.shared_bytes() as usize).div_ceil(16), POISON);
        SKIPPED.set(false);
        let result = self.start_all(task).and_then(|()| self.run_to_end(task));
        let result = result.and_then(|()| match SKIPPED.get() {
            true => Err("a thread waits for others in a destructor while it unwinds, and catches the panic; \
                         let it end by the panic, or do not wait there"
                .into()),
            false => Ok(()),
        });
        self.give_up(task);
        result.map(|()| self.requeued)
    }

    /// Unwinds the threads that wait after an error. Destructors may ask where they are.
    fn give_up(&mut self, task: &Task<'_>) {
        let mut left = Vec::new();
        for index in 0..self.places.len() {
            let place = mem::replace(&mut self.places[index], ThreadState::Ended);
            let ThreadState::Waiting(mut thread, _) = place else { continue };
            let context = self.context(task, index);
            for _ in 0..UNWINDS {
                // SAFETY: the coroutine ends or is suspended before this returns.
                let result = unsafe { with_thread(&context, || thread.resume(None)) };
                if let CoroutineResult::Return(_) = result {
                    break;
                }
            }
            if thread.done() {
                self.stacks.push(thread.into_stack());
            } else {
                left.push(thread);
            }
        }
        self.places.clear();
        if !left.is_empty() {
            // These threads catch the unwinding and wait again, perhaps for ever. They stay suspended, with all that
            // they may have lent to others: stacks, arguments and shared memory.
            mem::forget((left, task.launch.clone(), mem::take(&mut self.shared)));
        }
    }

    /// The position of thread `index` of a task.
    fn context(&mut self, task: &Task<'_>, index: usize) -> ThreadContext {
        ThreadContext {
            thread: position(index, task.launch.block),
            block: task.block,
            block_dim: task.launch.block,
            grid_dim: task.grid_dim,
            sm: task.sm,
            shared: self.shared.as_mut_ptr().cast(),
            yields: task.cohort.map_or(Yields::OFF, |cohort| {
                // SAFETY: the block's thread holds the device's queues while the block runs, and the others are the
                // block's. The save area is the launch's.
                unsafe {
                    let yields = Yields::new(cohort, task.requeues);
                    let yields = yields.decided_by(task.decision, task.index);
                    yields.begun(task.began).switched_by(task.switch)
                }
            }),
            wait,
        }
    }

    fn start_all(&mut self, task: &Task<'_>) -> Result<(), String> {
        for index in 0..task.launch.block.count() as usize {
            let stack = match self.stacks.pop() {
                Some(stack) => stack,
                None => DefaultStack::new(STACK_BYTES)
                    .map_err(|error| format!("no memory for a thread's stack: {error}"))?,
            };
            let kernel = task.launch.kernel;
            let args: *const Args = &task.launch.args;
            // SAFETY: the coroutine is run to its end before `run` returns, and so before the arguments go;
            // or else it is forgotten, and the arguments with it.
            let thread = unsafe {
                Thread::with_stack_unchecked(stack, move |yielder, _| {
                    YIELDER.set(yielder);
                    caught(|| (kernel.cpu)(&*args))
                })
            };
            let place = self.resume(task, index, thread, 0)?;
            self.places.push(place);
        }
        Ok(())
    }

    /// Lets thread `index` run until it waits or ends.
    fn resume(
        &mut self,
        task: &Task<'_>,
        index: usize,
        mut thread: Thread,
        answer: u64,
    ) -> Result<ThreadState, String> {
        let context = self.context(task, index);
        // SAFETY: the coroutine ends or is suspended before this returns.
        match unsafe { with_thread(&context, || thread.resume(Some(answer))) } {
            CoroutineResult::Yield(rendezvous) => Ok(ThreadState::Waiting(thread, rendezvous)),
            CoroutineResult::Return(result) => {
                self.stacks.push(thread.into_stack());
                self.requeued |= result.map_err(|message| {
                    let Dim3 { x, y, z } = context.thread;
                    format!("thread ({x}, {y}, {z}) panicked: {message}")
                })?;
                Ok(ThreadState::Ended)
            }
        }
    }

    /// Brings waiting threads together until all have ended.
    fn run_to_end(&mut self, task: &Task<'_>) -> Result<(), String> {
        loop {
            let mut progress = false;
            for first in (0..self.places.len()).step_by(WARP) {
                progress |= self.meet_in_warp(task, first)?;
            }
            if self.places.iter().all(|place| matches!(place, ThreadState::Ended)) {
                return Ok(());
            }
            progress |= self.meet(task, |operation| match operation {
                Operation::Barrier { predicate } => Some(*predicate),
                _ => None,
            })?;
            progress |= self.meet(task, |operation| match operation {
                Operation::YieldVote { taken } => Some(*taken),
                _ => None,
            })?;
            if !progress {
                return Err(self.disagreement(task));
            }
        }
    }

    /// Resumes all threads if all wait at one place for which `predicate` has a value. Each gets the number of threads
    /// whose value is true.
    fn meet(
        &mut self,
        task: &Task<'_>,
        predicate: impl Fn(&Operation) -> Option<bool>,
    ) -> Result<bool, String> {
        let mut count = 0;
        let mut first = None;
        let mut is_one_place = true;
        for place in &self.places {
            let ThreadState::Waiting(_, Rendezvous { operation, site }) = place else {
                return Ok(false);
            };
            let Some(predicate) = predicate(operation) else { return Ok(false) };
            count += u64::from(predicate);
            is_one_place &= is_same(site, first.get_or_insert(*site));
        }
        if !is_one_place {
            return Err(self.disagreement(task));
        }
        for index in 0..self.places.len() {
            self.go_on(task, index, count)?;
        }
        Ok(true)
    }

    /// Resolves the warp operations whose lanes have all come, in the warp of thread `first`.
    fn meet_in_warp(&mut self, task: &Task<'_>, first: usize) -> Result<bool, String> {
        let lanes = WARP.min(self.places.len() - first);
        let mut progress = false;
        for lane in 0..lanes {
            let Some(operation) = self.warp_operation(first + lane) else { continue };
            let mask = operation.mask;
            let members = (0..lanes).filter(|lane| mask >> lane & 1 == 1);
            // Lanes that are named but do not exist do not count.
            if mask >> lane & 1 == 0 {
                return Err(format!(
                    "thread {} calls a warp operation whose mask {mask:#010x} leaves it out",
                    first + lane
                ));
            }
            let mut are_here = true;
            for lane in members.clone() {
                match self.warp_operation(first + lane) {
                    Some(other) if operation.is_same(&other) => {}
                    // Both threads wait for each other.
                    Some(other) if other.mask == mask => return Err(self.disagreement(task)),
                    _ => are_here = false,
                }
            }
            if !are_here {
                continue;
            }
            let mut answers = [0; WARP];
            for lane in members.clone() {
                answers[lane] = self.warp_answer(first, lane, mask)?;
            }
            for lane in members {
                self.go_on(task, first + lane, answers[lane])?;
            }
            progress = true;
        }
        Ok(progress)
    }

    /// What a lane gets from its warp operation, once all lanes in its mask are there.
    fn warp_answer(&self, first: usize, lane: usize, mask: u32) -> Result<u64, String> {
        let all = (0..WARP).filter(|lane| mask >> lane & 1 == 1);
        // Lanes that do not exist have no operation.
        let others = all.filter_map(|lane| Some((lane, self.operation(first + lane)?)));
        let lanes = |is_in: &dyn Fn(&Operation) -> bool| {
            let those = others.clone().filter(|(_, operation)| is_in(operation));
            those.fold(0u64, |lanes, (lane, _)| lanes | 1 << lane)
        };
        Ok(match self.operation(first + lane) {
            Some(Operation::WarpShuffle(shuffle)) => self.offered(first, shuffle.source, mask)?,
            Some(Operation::WarpMatch { value: own, all, .. }) => {
                let same = |operation: &Operation| matches!(operation, Operation::WarpMatch { value, .. } if value == own);
                let (same, existing) = (lanes(&same), lanes(&|_| true));
                if *all && same != existing { 0 } else { same }
            }
            Some(Operation::WarpReduce { reduction, .. }) => {
                let values = others.filter_map(|(_, operation)| match operation {
                    Operation::WarpReduce { value, .. } => Some(*value),
                    _ => None,
                });
                values.reduce(|a, b| reduction.of(a, b)).unwrap_or_default().into()
            }
            _ => lanes(&|operation| {
                matches!(operation, Operation::WarpBallot { predicate: true, .. })
            }),
        })
    }

    /// The value that lane `source` offers in a shuffle.
    fn offered(&self, first: usize, source: u32, mask: u32) -> Result<u64, String> {
        match self.operation(first + source as usize) {
            Some(Operation::WarpShuffle(shuffle)) if source < 32 && mask >> source & 1 == 1 => {
                Ok(shuffle.value.into())
            }
            _ => Err(format!(
                "a warp shuffle reads lane {source}, which is not in its mask {mask:#010x} or does \
                 not exist"
            )),
        }
    }

    /// The operation that a thread waits in, if it waits.
    fn operation(&self, index: usize) -> Option<&Operation> {
        match self.places.get(index)? {
            ThreadState::Waiting(_, rendezvous) => Some(&rendezvous.operation),
            ThreadState::Ended => None,
        }
    }

    /// The warp operation that a thread waits in.
    fn warp_operation(&self, index: usize) -> Option<WarpOperation> {
        let ThreadState::Waiting(_, Rendezvous { operation, site }) = &self.places[index] else {
            return None;
        };
        let (mask, kind) = match operation {
            Operation::WarpBallot { mask, .. } => (mask, WarpKind::Vote),
            Operation::WarpShuffle(shuffle) => (&shuffle.mask, WarpKind::Shuffle),
            Operation::WarpMatch { mask, all, .. } => (mask, WarpKind::Match { all: *all }),
            Operation::WarpReduce { mask, reduction, .. } => (mask, WarpKind::Reduce(*reduction)),
            Operation::Barrier { .. } | Operation::YieldVote { .. } => return None,
        };
        Some(WarpOperation { mask: *mask, kind, site })
    }

    fn go_on(&mut self, task: &Task<'_>, index: usize, answer: u64) -> Result<(), String> {
        if let ThreadState::Waiting(thread, _) =
            mem::replace(&mut self.places[index], ThreadState::Ended)
        {
            self.places[index] = self.resume(task, index, thread, answer)?;
        }
        Ok(())
    }

    /// Describes which threads wait for which others, and at which source lines.
    fn disagreement(&self, task: &Task<'_>) -> String {
        let mut waiting = [0usize; 3];
        // The first thread at each place.
        let mut places: Vec<(usize, &'static Location<'static>)> = Vec::new();
        for (index, place) in self.places.iter().enumerate() {
            if let ThreadState::Waiting(_, Rendezvous { operation, site }) = place {
                let kind = match operation {
                    Operation::Barrier { .. } => 0,
                    Operation::YieldVote { .. } => 1,
                    Operation::WarpBallot { .. }
                    | Operation::WarpMatch { .. }
                    | Operation::WarpReduce { .. }
                    | Operation::WarpShuffle(_) => 2,
                };
                waiting[kind] += 1;
                if places.len() < PLACES && !places.iter().any(|(_, other)| is_same(site, other)) {
                    places.push((index, site));
                }
            }
        }
        let [at_barrier, at_yield, in_warp] = waiting;
        let ended = self.places.len() - at_barrier - at_yield - in_warp;
        let mut message = String::from("the threads of the block disagree: ");
        let _ = write!(message, "{at_barrier} wait at a barrier, ");
        if at_yield > 0 {
            let _ = write!(message, "{at_yield} at a yield point, ");
        }
        let _ = write!(message, "{in_warp} in a warp operation, {ended} have returned; ");
        for (index, site) in places {
            let Dim3 { x, y, z } = position(index, task.launch.block);
            let _ = write!(message, "thread ({x}, {y}, {z}) waits at {site}; ");
        }
        message += "every thread has to reach each barrier, and every lane in its mask each warp \
                    operation, at the same place in the source (on a GPU this hangs or gives wrong results)";
        message
    }
}

/// What lanes have to do alike to meet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WarpKind {
    Vote,
    Shuffle,
    Match { all: bool },
    Reduce(Reduction),
}

/// A warp operation that a thread waits in.
#[derive(Clone, Copy)]
struct WarpOperation {
    mask: u32,
    kind: WarpKind,
    site: &'static Location<'static>,
}

impl WarpOperation {
    /// Whether threads in the two operations meet.
    fn is_same(&self, other: &WarpOperation) -> bool {
        (self.mask, self.kind) == (other.mask, other.kind) && is_same(self.site, other.site)
    }
}

/// Whether both are one place in the source. Most often their addresses are equal, too.
fn is_same(a: &'static Location<'static>, b: &'static Location<'static>) -> bool {
    ptr::eq(a, b) || a == b
}

/// A thread's index from its number: x runs fastest.
fn position(index: usize, dim: Dim3) -> Dim3 {
    let index = index as u32;
    Dim3::new(index % dim.x, index / dim.x % dim.y, index / dim.x / dim.y)
}
