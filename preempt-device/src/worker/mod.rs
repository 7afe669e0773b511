//! The worker loop: what a block of a preemptible grid does instead of being one block-task.
//!
//! One implementation runs on the GPU, on the CPU device and in the loom model; they differ in
//! [`Block`] alone. States, counters and races are named in `README.md` beside this file.

use crate::abi::{Cohort, ControlBlock, Halves, Post, Signal};
use crate::atomic_shim::{Ordering::Relaxed, fence_acquire, fence_release};

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;

/// What the loop needs of the block that it runs in.
pub trait Block {
    /// The SM that the block is on.
    fn sm(&self) -> u32;

    /// Runs `decide` on one elected thread and gives its answer to every thread of the block.
    /// No thread returns before every thread has called.
    fn elect(&mut self, decide: impl FnOnce() -> Chunk) -> Chunk;

    /// Runs `last` on one elected thread, after every thread of the block has called.
    fn elect_last(&mut self, last: impl FnOnce());

    /// Waits until every thread of the block has called. Not the barrier of the kernel's own
    /// code: a body in which threads disagree about a barrier must hang, not pair up with this one.
    fn barrier(&mut self);
}

/// Consecutive tasks that one block claimed; none when `len` is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// The first task.
    pub start: u32,
    /// How many tasks.
    pub len: u32,
}

impl Chunk {
    /// Nothing claimed: the block leaves.
    pub const NONE: Chunk = Chunk { start: 0, len: 0 };
}

/// Takes chunks of block-tasks and runs `task` on each, until the grid is used up or the
/// signal excludes this block's SM. Then leaves.
///
/// Every thread of the block calls this; `task` gets the task's linear index.
///
/// # Safety
///
/// `cohort` describes a launch whose control block and post are alive until the post is
/// written, and of whose `blocks` blocks this is one that has not run before.
#[inline(always)]
pub unsafe fn run<B: Block>(block: &mut B, cohort: &Cohort, mut task: impl FnMut(u32)) {
    // SAFETY: the caller promises that both are alive until this block has left.
    let (control, post) = unsafe { (&*cohort.control, &*cohort.post) };
    let mut done = 0;
    loop {
        let sm = block.sm();
        let chunk = block.elect(|| claim(control, cohort, sm));
        if chunk.len == 0 {
            break;
        }
        let (mut index, end) = (chunk.start, chunk.start + chunk.len);
        // The test is in the middle so that the first round is like every other: with one at
        // the top, the compiler peels that round off and the kernel's body is there twice.
        loop {
            task(index);
            index += 1;
            if index == end {
                break;
            }
            // The next task may use the shared memory that slower threads still read.
            block.barrier();
        }
        done += chunk.len;
    }
    block.elect_last(|| leave(control, post, cohort, done));
}

/// The next chunk for a block on SM `sm`, or [`Chunk::NONE`] if it has to leave.
///
/// Everything is relaxed: a claim hands out an index and nothing else. What earlier tasks
/// wrote reaches a later cohort through leave, post and launch.
#[inline(always)]
fn claim(control: &ControlBlock, cohort: &Cohort, sm: u32) -> Chunk {
    let slot = &control.slots[cohort.slot as usize];
    let in_memory = Signal::from_bits(slot.signal.load(Relaxed));
    let signal = if in_memory > cohort.signal { in_memory } else { cohort.signal };
    if !signal.range().contains(sm) {
        return Chunk::NONE;
    }

    let mut word = control.next.load(Relaxed);
    if Halves::unpack(word).high != cohort.generation {
        // The first claim of this launch finds what the last launch left. No block of another
        // generation is out, so whoever loses the exchange sees this generation.
        let first = Halves { high: cohort.generation, low: 0 }.pack();
        word = match control.next.compare_exchange(word, first, Relaxed, Relaxed) {
            Ok(_) => first,
            Err(current) => current,
        };
    }
    let claimed = Halves::unpack(word).low;
    if claimed >= cohort.tasks {
        return Chunk::NONE;
    }
    let size = chunk_size(cohort.tasks - claimed, cohort.workers, cohort.amortize);
    let start = Halves::unpack(control.next.fetch_add(size as u64, Relaxed)).low;
    if start >= cohort.tasks {
        return Chunk::NONE;
    }
    Chunk { start, len: size.min(cohort.tasks - start) }
}

/// How many tasks to claim when `remaining` are left: up to `amortize`, and at most half of an
/// even share, so that blocks with long tasks and blocks with short ones end together (guided
/// self-scheduling, Polychronopoulos and Kuck 1987).
#[inline(always)]
fn chunk_size(remaining: u32, workers: u32, amortize: u32) -> u32 {
    (remaining / (2 * workers)).min(amortize).max(1)
}

/// Counts this block and its `done` tasks out of the cohort; the last block posts the cohort.
///
/// Runs on one thread, after a barrier of the whole block.
#[inline(always)]
fn leave(control: &ControlBlock, post: &Post, cohort: &Cohort, done: u32) {
    let slot = &control.slots[cohort.slot as usize];
    // Read-modify-writes carry no ordering in PTX, so the orderings are fences.
    // Release: what this block's tasks wrote comes before its count below.
    fence_release();
    let count = Halves { high: 1, low: done };
    let before = Halves::unpack(slot.left.fetch_add(count.pack(), Relaxed));
    if before.high + 1 == cohort.blocks {
        // Acquire: the last block takes over what all other blocks of the cohort wrote.
        fence_acquire();
        // Nobody else of this cohort is left, and the slot's next cohort is launched after the
        // host has read the post.
        slot.left.store(0, Relaxed);
        let posted = Halves { high: cohort.ticket, low: before.low + done };
        // Release, at system scope: all of that, and the cleared slot, comes before the post.
        // The fence above does not cover what this block took over after it.
        fence_release();
        post.0.store(posted.pack(), Relaxed);
    }
}
