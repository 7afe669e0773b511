//! The worker loop: what a block of a preemptible grid does instead of being one block-task.
//!
//! One implementation runs on the GPU, on the CPU device and in the loom model; they differ in
//! [`Block`] and [`Body`] alone. States, counters and races are named in `README.md` beside this
//! file.

use crate::abi::{
    COHORT_SLOTS, Claims, Cohort, ControlBlock, DropList, Halves, Post, Posted, departures,
};
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

    /// Runs `lead` on the elected thread, if this is it. Nobody waits.
    fn lead(&mut self, lead: impl FnOnce(&Self));

    /// Runs `decide` on the elected thread and gives its answer to every thread of the block.
    /// No thread returns before every thread has called.
    fn elect(&mut self, decide: impl FnOnce(&Self) -> Chunk) -> Chunk;

    /// Runs `last` on the elected thread, after every thread of the block has called.
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
/// alive until the post is written, and of whose `blocks` blocks this is one that has not run before.
#[inline(always)]
pub unsafe fn run<B: Block, T: Body>(block: &mut B, cohort: &Cohort, body: &mut T) {
    // SAFETY: the caller promises that they are alive until this block has left.
    let (control, post, list) = unsafe { (&*cohort.control, &*cohort.post, &*cohort.drops) };
    let claims = &control.claims[cohort.turn()];
    let sm = block.sm();
    // There is a block for each task, so none is claimed ahead. If a block was sent away before it took one, a
    // later cohort will.
    let is_alone = cohort.blocks >= cohort.tasks;
    let mut lead = Lead::default();
    let mut done = 0;
    // SAFETY: the caller's promise.
    let mut chunk = block.elect(|block| unsafe { first(block, claims, list, cohort, sm) });
    let amortize = loop {
        if chunk.len == 0 {
            break chunk.start;
        }
        if !is_alone {
            // SAFETY: the caller's promise.
            block.lead(|block| unsafe { lead.look_ahead(block, claims, cohort, chunk) });
        }
        let (mut left, mut drops) = (chunk.len, chunk.drops);
        body.seek(chunk.start);
        // The test is in the middle so that the first round is like every other: with one at
        // the top, the compiler peels that round off and the kernel's body is there twice.
        loop {
            let dropped = body.run(drops < MAX_DROPS);
            if T::YIELDS && block.any(dropped) {
                let rest = Chunk { start: chunk.start + (chunk.len - left), len: left, drops };
                if drops::put_back(block, list, rest) {
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
        if left == 0 && is_alone {
            break chunk.len;
        }
        // SAFETY: the caller's promise.
        chunk = block.elect(|block| unsafe { lead.next(block, list, cohort, sm, left > 0) });
    };
    block.release_next();
    block.elect_last(|| leave(control, post, cohort, Posted { done, amortize }));
}

/// The first chunk of a block on SM `sm`, or [`Chunk::NONE`] if it has to leave.
///
/// Claims are relaxed: they hand out an index and nothing else. What earlier tasks wrote reaches a
/// later cohort through leave, post and launch, or through the list.
///
/// # Safety
///
/// As [`run`].
#[inline(always)]
unsafe fn first<B: Block>(
    block: &B,
    claims: &Claims,
    list: &DropList,
    cohort: &Cohort,
    sm: u32,
) -> Chunk {
    // SAFETY: the caller's promise.
    let lane = unsafe { &*cohort.lane };
    // Ahead of the branches, so that the loads are under way at the same time. Nobody touches this
    // count before the grid before is over.
    let claimed = claims.next.load(Relaxed);
    let is_granted = lane.grants(cohort.signal, sm);
    block.await_previous();
    if !is_granted {
        return Chunk::NONE;
    }
    if !cohort.after.is_null() {
        // SAFETY: the caller's promise, as it is not null.
        let after = unsafe { &*cohort.after };
        // No acquire: the launch before was done by the grid before this one in the lane, and by grids
        // that the host knew to be out when it launched this one.
        if after.load(Relaxed) != cohort.after_word {
            return Chunk::NONE;
        }
    }
    let chunk = drops::take(list);
    let tasks = u64::from(cohort.tasks);
    if chunk.len > 0 || claimed >= tasks {
        return chunk;
    }
    // One at first, to see how long it takes.
    let most = if cohort.pace == 0 { cohort.amortize } else { 1 };
    let size = chunk_size((tasks - claimed) as u32, cohort.workers, 1, most);
    let start = claims.next.fetch_add(u64::from(size), Relaxed);
    claimed_chunk(cohort, start, size)
}

/// What is there of `size` tasks from `start` on.
#[inline(always)]
fn claimed_chunk(cohort: &Cohort, start: u64, size: u32) -> Chunk {
    match u64::from(cohort.tasks).saturating_sub(start).min(u64::from(size)) {
        0 => Chunk::NONE,
        len => Chunk { start: start as u32, len: len as u32, drops: 0 },
    }
}

/// What the elected thread of a block has in hand while a chunk runs.
///
/// The next chunk is claimed, and the signal is read, when a chunk starts: neither is waited for, and both are
/// there when it ends.
#[derive(Clone, Copy, Default)]
struct Lead {
    /// When the chunk that runs was started, and its tasks; none before the first one.
    clock: u32,
    len: u32,
    /// The most tasks that fit into the time for a chunk.
    most: u32,
    /// The next chunk: so many tasks from `start` on, as far as there are any. No tasks if none was claimed.
    start: u64,
    size: u32,
    /// The lane's word when the chunk was started.
    signal: u64,
}

impl Lead {
    /// The most tasks to claim now: as many as would have fitted into the time for a chunk, judging
    /// by the last one; one at first.
    #[inline(always)]
    fn limit(&self, cohort: &Cohort, now: u32) -> u32 {
        if cohort.pace == 0 {
            return cohort.amortize;
        }
        let took = now.wrapping_sub(self.clock).max(1);
        (cohort.pace.saturating_mul(self.len) / took).clamp(1, cohort.amortize)
    }

    /// Claims the chunk after `chunk`, which starts now.
    ///
    /// # Safety
    ///
    /// As [`run`].
    #[inline(always)]
    unsafe fn look_ahead<B: Block>(
        &mut self,
        block: &B,
        claims: &Claims,
        cohort: &Cohort,
        chunk: Chunk,
    ) {
        let now = block.clock() as u32;
        self.most = self.limit(cohort, now);
        (self.clock, self.len) = (now, chunk.len);
        // Since this chunk was claimed, each block has claimed about as much.
        let claimed = chunk.start.saturating_add(cohort.workers.saturating_mul(chunk.len));
        let remaining = cohort.tasks.saturating_sub(claimed);
        // Below a quarter of a chunk's time, looking costs more than an even end gains.
        let least = if cohort.pace == 0 { 1 } else { self.most / 4 };
        self.size = chunk_size(remaining, cohort.workers, least, self.most);
        // SAFETY: the caller's promise.
        self.signal = unsafe { &*cohort.lane }.signal.load(Relaxed);
        self.start = claims.next.fetch_add(u64::from(self.size), Relaxed);
    }

    /// The chunk after the one that has just ended, `dropped` if in its middle. If the block has to leave, what
    /// was claimed ahead goes on the list.
    ///
    /// # Safety
    ///
    /// As [`run`].
    #[inline(always)]
    unsafe fn next<B: Block>(
        &mut self,
        block: &B,
        list: &DropList,
        cohort: &Cohort,
        sm: u32,
        dropped: bool,
    ) -> Chunk {
        let took = (block.clock() as u32).wrapping_sub(self.clock);
        if took >= cohort.pace {
            // It may have changed long ago; and what looking costs is little beside such a chunk.
            // SAFETY: the caller's promise.
            self.signal = unsafe { &*cohort.lane }.signal.load(Relaxed);
        }
        let goes_on = !dropped && cohort.signal.grants_with(self.signal, sm);
        let ahead = claimed_chunk(cohort, self.start, self.size);
        self.size = 0;
        if ahead.len > 0 {
            // Without room on the list, the chunk runs here and now.
            return if goes_on || !drops::put(list, ahead) { ahead } else { Chunk::NONE };
        }
        let chunk = if goes_on { drops::take(list) } else { Chunk::NONE };
        if chunk.len > 0 { chunk } else { Chunk::over(self.most) }
    }
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
