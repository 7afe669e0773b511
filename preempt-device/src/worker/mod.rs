//! The worker loop: what a block of a preemptible grid does instead of being one block-task.
//!
//! One implementation runs on the GPU, on the CPU device and in the loom model; they differ in
//! [`Block`] and [`Body`] alone. States, counters and races are named in `README.md` beside this
//! file.

use crate::abi::{COHORT_SLOTS, Claims, Cohort, ControlBlock, Halves, Post, Posted, departures};
use crate::atomic_shim::{Ordering::Relaxed, fence_acq_rel_to_host, fence_release};

mod drops;
#[cfg(all(test, loom))]
mod model;
#[cfg(test)]
mod one_thread;
#[cfg(all(test, not(loom)))]
mod tests;

/// What the loop needs of the block that it runs in.
pub trait Block {
    /// The SM that the block is on.
    fn sm(&self) -> u32;

    /// A clock that only grows; [`Cohort::pace`] says how much of it a chunk may take.
    fn clock(&self) -> u64;

    /// Waits until the grid before this one in its lane is over, where the device starts the next one
    /// early. On one thread, before it looks at what that grid left.
    fn await_previous(&self);

    /// Lets the grid after this one in its lane start, where the device starts grids early: this block
    /// runs no more tasks. On every thread.
    fn release_next(&self);

    /// Runs `decide` on one elected thread and gives its answer to every thread of the block.
    /// No thread returns before every thread has called.
    fn elect(&mut self, decide: impl FnOnce(&Self) -> Chunk) -> Chunk;

    /// Runs `last` on one elected thread, after every thread of the block has called.
    fn elect_last(&mut self, last: impl FnOnce());

    /// Waits until every thread of the block has called. Not the barrier of the kernel's own
    /// code: a body in which threads disagree about a barrier must hang, not pair up with this one.
    fn barrier(&mut self);

    /// As [`barrier`](Block::barrier); whether any thread called with `true`.
    fn any(&mut self, predicate: bool) -> bool;
}

/// The kernel's body.
pub trait Body {
    /// Whether the body has yield points: whether it can be dropped.
    const YIELDS: bool;

    /// Goes to a block-task.
    fn seek(&mut self, index: u32);

    /// Goes to the block-task after this one.
    fn advance(&mut self);

    /// Runs this thread's part of the block-task that it is at; whether the thread dropped it,
    /// which it may only if the task is `droppable`.
    fn run(&mut self, droppable: bool) -> bool;
}

/// Consecutive tasks that one block claimed; none when `len` is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// The first task.
    pub start: u32,
    /// How many tasks.
    pub len: u32,
    /// How often the first of them was dropped; none of the others was.
    pub drops: u32,
}

impl Chunk {
    /// Nothing claimed: the block leaves.
    pub const NONE: Chunk = Chunk { start: 0, len: 0, drops: 0 };

    /// As [`NONE`](Chunk::NONE), since there is no task left: what the block would have claimed at most.
    #[inline(always)]
    const fn over(most: u32) -> Chunk {
        Chunk { start: most, len: 0, drops: 0 }
    }

    /// In one word: 31 bits for each of `start` and `len`, 2 for `drops`. Zero is `NONE`.
    #[inline(always)]
    pub const fn pack(self) -> u64 {
        (self.drops as u64) << 62 | (self.start as u64) << 31 | self.len as u64
    }

    /// The chunk in a word from [`pack`](Chunk::pack).
    #[inline(always)]
    pub const fn unpack(word: u64) -> Chunk {
        let mask = (1 << 31) - 1;
        Chunk {
            start: (word >> 31 & mask) as u32,
            len: (word & mask) as u32,
            drops: (word >> 62) as u32,
        }
    }
}

/// A task that was dropped this often runs to its end.
const MAX_DROPS: u32 = 2;

/// Takes chunks of block-tasks and runs `body` on each, until the grid is used up or the signal
/// excludes this block's SM. Then leaves.
///
/// Every thread of the block calls this.
///
/// # Safety
///
/// `cohort` describes a launch whose control block, lane, post, drop list and, unless null, `after` are
/// alive until the post is written, and of whose `blocks` blocks this is one that has not run before. There
/// is a drop list if the body has yield points.
#[inline(always)]
pub unsafe fn run<B: Block, T: Body>(block: &mut B, cohort: &Cohort, body: &mut T) {
    // SAFETY: the caller promises that both are alive until this block has left.
    let (control, post) = unsafe { (&*cohort.control, &*cohort.post) };
    let claims = &control.claims[cohort.turn()];
    let sm = block.sm();
    let mut pace = Pace::default();
    let mut done = 0;
    let amortize = loop {
        let clock = block.clock();
        let chunk = block.elect(|block| {
            // SAFETY: the caller's promise.
            let chunk = unsafe { claim::<B, T>(block, claims, cohort, sm, pace, clock) };
            pace = Pace { clock, len: chunk.len };
            chunk
        });
        if chunk.len == 0 {
            break chunk.start;
        }
        let (mut left, mut drops) = (chunk.len, chunk.drops);
        body.seek(chunk.start);
        // The test is in the middle so that the first round is like every other: with one at
        // the top, the compiler peels that round off and the kernel's body is there twice.
        loop {
            let dropped = body.run(drops < MAX_DROPS);
            if T::YIELDS && block.any(dropped) {
                let rest = Chunk { start: chunk.start + (chunk.len - left), len: left, drops };
                // SAFETY: the caller's promise; there is a list since the body has yield points.
                if unsafe { drops::put_back(block, &*cohort.drops, rest) } {
                    break;
                }
                // No room on the list, so the task runs again here and now.
                drops = MAX_DROPS;
                continue;
            }
            left -= 1;
            if left == 0 {
                break;
            }
            drops = 0;
            body.advance();
            if cohort.barrier {
                // The next task may use the shared memory that slower threads still read.
                block.barrier();
            }
        }
        done += chunk.len - left;
        if left == 0 && cohort.blocks >= cohort.tasks {
            // There is a block for each task, so another look is not worth its time. If a block was
            // sent away before it took one, a later cohort will.
            break chunk.len;
        }
    };
    block.release_next();
    block.elect_last(|| leave(control, post, cohort, Posted { done, amortize }));
}

/// When the block claimed last, and how many tasks.
#[derive(Clone, Copy, Default)]
struct Pace {
    clock: u64,
    len: u32,
}

impl Pace {
    #[inline(always)]
    fn is_first(self) -> bool {
        self.len == 0
    }

    /// The most tasks to claim now: as many as would have fitted into the time for a chunk, judging
    /// by the last one; one at first.
    #[inline(always)]
    fn limit(self, cohort: &Cohort, now: u64) -> u32 {
        if cohort.pace == 0 {
            return cohort.amortize;
        }
        let took = (now - self.clock).clamp(1, 1 << 31) as u32;
        (cohort.pace.saturating_mul(self.len) / took).clamp(1, cohort.amortize)
    }
}

/// The next chunk for a block on SM `sm`, or [`Chunk::NONE`] if it has to leave.
///
/// Claims are relaxed: they hand out an index and nothing else. What earlier tasks wrote reaches a
/// later cohort through leave, post and launch, or through the list of dropped chunks.
///
/// # Safety
///
/// As [`run`].
#[inline(always)]
unsafe fn claim<B: Block, T: Body>(
    block: &B,
    claims: &Claims,
    cohort: &Cohort,
    sm: u32,
    pace: Pace,
    now: u64,
) -> Chunk {
    // SAFETY: the caller's promise.
    let lane = unsafe { &*cohort.lane };
    // Ahead of the branches, so that the loads are under way at the same time. Nobody touches this
    // count before the grid before is over.
    let claimed = claims.next.load(Relaxed);
    let is_granted = lane.grants(cohort.signal, sm);
    if pace.is_first() {
        block.await_previous();
    }
    if !is_granted {
        return Chunk::NONE;
    }
    if pace.is_first() && !cohort.after.is_null() {
        // SAFETY: the caller's promise, as it is not null.
        let after = unsafe { &*cohort.after };
        // No acquire: the launch before was done by the grid before this one in the lane, and by grids
        // that the host knew to be out when it launched this one.
        if after.load(Relaxed) != cohort.after_word {
            return Chunk::NONE;
        }
    }
    if T::YIELDS {
        // SAFETY: there is a list since the body has yield points.
        let chunk = drops::take(unsafe { &*cohort.drops });
        if chunk.len > 0 {
            return chunk;
        }
    }
    let tasks = u64::from(cohort.tasks);
    let most = pace.limit(cohort, now);
    let over = Chunk::over(if pace.is_first() { 0 } else { most });
    if claimed >= tasks {
        return over;
    }
    // Below a quarter of a chunk's time, looking costs more than an even end gains.
    let least = if cohort.pace == 0 { 1 } else { most / 4 };
    let size = chunk_size((tasks - claimed) as u32, cohort.workers, least, most);
    let start = claims.next.fetch_add(u64::from(size), Relaxed);
    if start >= tasks {
        return over;
    }
    let len = u64::from(size).min(tasks - start) as u32;
    Chunk { start: start as u32, len, drops: 0 }
}

/// How many tasks to claim when `remaining` are left: half of an even share, so that blocks with
/// long tasks and blocks with short ones end together (guided self-scheduling, Polychronopoulos and
/// Kuck 1987), but from `least` to `most`, and one at least.
#[inline(always)]
fn chunk_size(remaining: u32, workers: u32, least: u32, most: u32) -> u32 {
    (remaining / (2 * workers).max(1)).max(least).min(most).max(1)
}

/// Counts this block and its tasks out of the cohort; the last block posts the cohort.
///
/// Runs on one thread, after a barrier of the whole block.
#[inline(always)]
fn leave(control: &ControlBlock, post: &Post, cohort: &Cohort, own: Posted) {
    // Nobody uses the other one: the launch before on this control block is out, and the one after
    // comes when this one is out.
    control.claims[1 - cohort.turn()].next.store(0, Relaxed);
    // In bounds, which the compiler sees.
    let left = &control.left[cohort.slot as usize % COHORT_SLOTS];
    // Read-modify-writes carry no ordering in PTX, so the orderings are fences.
    // Release: what this block wrote comes before its count below, which the next launch of the
    // stream may look at.
    fence_release();
    let before = left.fetch_add(departures(1, own.done), Relaxed);
    let before = Halves::unpack(before.wrapping_sub(cohort.left));
    if before.high + 1 == cohort.blocks {
        // Acquire: the last block takes over what all other blocks of the cohort wrote. Release, to
        // the host: all of that comes before the post.
        fence_acq_rel_to_host();
        let all = Posted { done: before.low + own.done, ..own };
        post.0.store(Post::word(cohort.ticket, all), Relaxed);
    }
}
