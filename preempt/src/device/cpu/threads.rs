//! The threads of a block-task, one after the other on the block's host thread.
//!
//! Every emulated thread starts on the same coroutine stack, and keeps it only if it has to
//! wait for others: a kernel without barriers costs one stack. Nothing has to be known of the
//! kernel beforehand, so nothing can be wrong about it.

use std::cell::Cell;
use std::fmt::Write;
use std::ptr;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use preempt_device::abi::Cohort;
use preempt_device::host::{Args, Dim3, Kernel, Rendezvous, ThreadContext, with_thread};
use preempt_device::yields::Yields;

use crate::error::caught;

/// Bytes of each coroutine stack; pages that are not touched take no memory. A GPU gives a thread
/// at most 512 KiB of local memory, and unoptimised host code needs more than device code.
const STACK_BYTES: usize = 1 << 20;

/// Lanes of a warp.
const WARP: usize = 32;

/// What shared memory holds when a task starts: a value that nobody takes for a result.
const POISON: u128 = 0xAAAA_AAAA_AAAA_AAAA_AAAA_AAAA_AAAA_AAAA;

/// One block-task.
pub(super) struct Task<'a> {
    pub kernel: &'static Kernel,
    pub args: &'a Args,
    pub block_dim: Dim3,
    pub grid_dim: Dim3,
    pub block: Dim3,
    pub sm: u32,
    /// The cohort whose signal the task's yield points look at, unless it has to run to its end.
    pub droppable: Option<&'a Cohort>,
}

/// What one emulated thread runs: until it waits, or has ended, perhaps by a panic. In the end it
/// says whether it dropped its task.
type Thread = Coroutine<u64, Rendezvous, Result<bool, String>, DefaultStack>;

/// Where an emulated thread is.
enum Place {
    Waiting(Thread, Rendezvous),
    Ended,
}

/// Runs block-tasks; keeps stacks and shared memory between them.
#[derive(Default)]
pub(super) struct Emulator {
    stacks: Vec<DefaultStack>,
    places: Vec<Place>,
    shared: Vec<u128>,
    /// Whether a thread has dropped the task.
    dropped: bool,
}

thread_local! {
    /// How the emulated thread that runs now is suspended.
    static YIELDER: Cell<*const Yielder<u64, Rendezvous>> = const { Cell::new(ptr::null()) };
}

/// Suspends the emulated thread that runs now.
fn wait(rendezvous: Rendezvous) -> u64 {
    let yielder = YIELDER.get();
    // SAFETY: set by the coroutine that runs now, which owns it, when it started or went on.
    let answer = unsafe { (*yielder).suspend(rendezvous) };
    YIELDER.set(yielder);
    answer
}

impl Emulator {
    /// Runs every thread of a task to its end; whether any of them dropped it.
    ///
    /// # Errors
    ///
    /// What went wrong: a panic, or threads that wait for others that never come. The task's
    /// threads are then unwound.
    ///
    /// # Safety
    ///
    /// The arguments are those of the kernel.
    pub unsafe fn run(&mut self, task: &Task<'_>) -> Result<bool, String> {
        self.dropped = false;
        self.shared.clear();
        self.shared.resize((task.kernel.shared_bytes as usize).div_ceil(16), POISON);
        let result = self.start_all(task).and_then(|()| self.run_to_end(task));
        // After an error, threads may still wait. Dropping a coroutine unwinds it, and destructors
        // may ask where they are.
        for index in 0..self.places.len() {
            let place = std::mem::replace(&mut self.places[index], Place::Ended);
            if let Place::Waiting(thread, _) = place {
                // SAFETY: the thread is unwound to its end.
                unsafe { with_thread(&self.context(task, index), || drop(thread)) };
            }
        }
        self.places.clear();
        result.map(|()| self.dropped)
    }

    /// Where thread `index` of a task is.
    fn context(&mut self, task: &Task<'_>, index: usize) -> ThreadContext {
        ThreadContext {
            thread: position(index, task.block_dim),
            block: task.block,
            block_dim: task.block_dim,
            grid_dim: task.grid_dim,
            sm: task.sm,
            shared: self.shared.as_mut_ptr().cast(),
            yields: task.droppable.map_or(Yields::OFF, |cohort| {
                // SAFETY: lanes are never freed.
                unsafe { Yields::new(cohort, true) }
            }),
            wait,
        }
    }

    fn start_all(&mut self, task: &Task<'_>) -> Result<(), String> {
        for index in 0..task.block_dim.count() as usize {
            let stack = match self.stacks.pop() {
                Some(stack) => stack,
                None => DefaultStack::new(STACK_BYTES)
                    .map_err(|error| format!("no memory for a thread's stack: {error}"))?,
            };
            let kernel = task.kernel;
            let args: *const Args = task.args;
            // SAFETY: the coroutine is run to its end or dropped before `run` returns, and so
            // before the arguments go.
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
    ) -> Result<Place, String> {
        let context = self.context(task, index);
        // SAFETY: the coroutine ends or is suspended before this returns.
        match unsafe { with_thread(&context, || thread.resume(answer)) } {
            CoroutineResult::Yield(rendezvous) => Ok(Place::Waiting(thread, rendezvous)),
            CoroutineResult::Return(result) => {
                self.stacks.push(thread.into_stack());
                self.dropped |= result.map_err(|message| {
                    let Dim3 { x, y, z } = context.thread;
                    format!("thread ({x}, {y}, {z}) panicked: {message}")
                })?;
                Ok(Place::Ended)
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
            if self.places.iter().all(|place| matches!(place, Place::Ended)) {
                return Ok(());
            }
            progress |= self.meet(task, |rendezvous| match rendezvous {
                Rendezvous::Barrier { predicate } => Some(*predicate),
                _ => None,
            })?;
            progress |= self.meet(task, |rendezvous| match rendezvous {
                Rendezvous::YieldVote { taken } => Some(*taken),
                _ => None,
            })?;
            if !progress {
                return Err(self.disagreement(task));
            }
        }
    }

    /// Lets all threads go on, if all wait where `predicate` gives one, with the number of those that
    /// are true.
    fn meet(
        &mut self,
        task: &Task<'_>,
        predicate: impl Fn(&Rendezvous) -> Option<bool>,
    ) -> Result<bool, String> {
        let mut count = 0;
        for place in &self.places {
            let Place::Waiting(_, rendezvous) = place else { return Ok(false) };
            let Some(predicate) = predicate(rendezvous) else { return Ok(false) };
            count += u64::from(predicate);
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
            let Some((mask, votes)) = self.warp_operation(first + lane) else { continue };
            let members = (0..lanes).filter(|lane| mask >> lane & 1 == 1);
            // Lanes that are named but do not exist do not count.
            if mask >> lane & 1 == 0 {
                return Err(format!(
                    "thread {} calls a warp operation whose mask {mask:#010x} leaves it out",
                    first + lane
                ));
            }
            let here = |lane: usize| self.warp_operation(first + lane) == Some((mask, votes));
            if !members.clone().all(here) {
                continue;
            }
            let mut answers = [0; WARP];
            let mut ballot = 0;
            for lane in members.clone() {
                if let Place::Waiting(_, Rendezvous::WarpBallot { predicate, .. }) =
                    &self.places[first + lane]
                {
                    ballot |= u64::from(*predicate) << lane;
                }
            }
            for lane in members.clone() {
                answers[lane] = match &self.places[first + lane] {
                    Place::Waiting(_, Rendezvous::WarpShuffle(shuffle)) => {
                        self.offered(first, shuffle.source, mask)?
                    }
                    _ => ballot,
                };
            }
            for lane in members {
                self.go_on(task, first + lane, answers[lane])?;
            }
            progress = true;
        }
        Ok(progress)
    }

    /// What lane `source` offers in a shuffle.
    fn offered(&self, first: usize, source: u32, mask: u32) -> Result<u64, String> {
        match self.places.get(first + source as usize) {
            Some(Place::Waiting(_, Rendezvous::WarpShuffle(shuffle)))
                if source < 32 && mask >> source & 1 == 1 =>
            {
                Ok(shuffle.value.into())
            }
            _ => Err(format!(
                "a warp shuffle reads lane {source}, which is not in its mask {mask:#010x} or does \
                 not exist"
            )),
        }
    }

    /// The mask of the warp operation that a thread waits in, and whether that is a vote.
    fn warp_operation(&self, index: usize) -> Option<(u32, bool)> {
        match &self.places[index] {
            Place::Waiting(_, Rendezvous::WarpBallot { mask, .. }) => Some((*mask, true)),
            Place::Waiting(_, Rendezvous::WarpShuffle(shuffle)) => Some((shuffle.mask, false)),
            _ => None,
        }
    }

    fn go_on(&mut self, task: &Task<'_>, index: usize, answer: u64) -> Result<(), String> {
        if let Place::Waiting(thread, _) = std::mem::replace(&mut self.places[index], Place::Ended)
        {
            self.places[index] = self.resume(task, index, thread, answer)?;
        }
        Ok(())
    }

    /// Says who waits for whom.
    fn disagreement(&self, task: &Task<'_>) -> String {
        let mut waiting = [0usize; 3];
        let mut example = None;
        for (index, place) in self.places.iter().enumerate() {
            if let Place::Waiting(_, rendezvous) = place {
                let kind = match rendezvous {
                    Rendezvous::Barrier { .. } => 0,
                    Rendezvous::YieldVote { .. } => 1,
                    Rendezvous::WarpBallot { .. } | Rendezvous::WarpShuffle(_) => 2,
                };
                waiting[kind] += 1;
                example.get_or_insert(index);
            }
        }
        let [at_barrier, at_yield, in_warp] = waiting;
        let ended = self.places.len() - at_barrier - at_yield - in_warp;
        let mut message = String::from("the threads of the block disagree: ");
        let _ = write!(message, "{at_barrier} wait at a barrier, ");
        if at_yield > 0 {
            let _ = write!(message, "{at_yield} at a yield point, ");
        }
        let _ = write!(message, "{in_warp} in a warp operation, {ended} have returned");
        if let Some(index) = example {
            let Dim3 { x, y, z } = position(index, task.block_dim);
            let _ = write!(message, "; the first that waits is ({x}, {y}, {z})");
        }
        message += "; every thread has to reach each barrier, and every lane in its mask each warp \
                    operation (on a GPU this hangs)";
        message
    }
}

/// A thread's index from its number: x runs fastest.
fn position(index: usize, dim: Dim3) -> Dim3 {
    let index = index as u32;
    Dim3::new(index % dim.x, index / dim.x % dim.y, index / dim.x / dim.y)
}
