//! The worker loop: what a block of a preemptible grid does instead of being one block-task.
//!
//! One implementation runs on the GPU, on the CPU device and in the loom model; they differ in
//! [`Block`] and [`Body`] alone. States, counters and races are named in `README.md` beside this
//! file.

use crate::abi::{
    COHORT_SLOTS, Claims, Cohort, DeviceQueue, Halves, Post, Posted, REQUEUED, RequeueList,
    departures,
};
use crate::atomic_shim::{Ordering::Relaxed, fence_acq_rel_to_host, fence_release};
pub use block_notes::{BlockNotes, Note, SignalCopy};
use block_notes::{claimed, tasks_from};

mod block_notes;
#[cfg(all(test, loom))]
mod model;
#[cfg(test)]
mod one_thread;
mod requeue;
#[cfg(all(test, not(loom)))]
mod tests;

/// What the loop needs of the block that it runs in.
pub trait Block {
    /// The SM that the block is on.
    fn sm(&self) -> u32;

    /// The number of the block in its cohort, from 0.
    fn number(&self) -> u32;

    /// A clock that only grows; [`Cohort::pace`] says how much of it a chunk may take.
    fn clock(&self) -> u64;

    /// Waits until the grid before this one in its queue is over, where the device starts the next one
    /// early. On one thread, before it looks at what that grid left.
    fn await_previous(&self);

    /// Lets the grid after this one in its queue start, where the device starts grids early: this block
    /// runs no more tasks. On every thread.
    fn release_next(&self);

    /// The same reference, on the elected thread: for atomic operations whose result that thread does not need at
    /// once.
    fn own<'a, T>(&self, shared: &'a T) -> &'a T {
        shared
    }

    /// Where the elected thread keeps what it would otherwise need registers for, that all threads would have. It
    /// is written before it is read, and nobody else uses it.
    fn notes(&self) -> &BlockNotes;

    /// Asks for the signal of a queue, on the elected thread: `signal` in [`SignalCopy`] is what it was, after
    /// [`await_asked`](Block::await_asked).
    fn ask(&self, queue: &DeviceQueue) {
        self.notes().asked.signal.set(queue.signal.load(Relaxed));
    }

    /// Waits until what was asked for is there, on the elected thread.
    fn await_asked(&self) {}

    /// Runs `lead` on the elected thread, if this is it. Nobody waits.
    fn lead(&mut self, lead: impl FnOnce(&Self));

    /// Runs `decide` on the elected thread and gives its answer to every thread of the block.
    /// No thread returns before every thread has called.
    fn elect(&mut self, decide: impl FnOnce(&Self) -> Chunk) -> Chunk;

    /// As [`elect`](Block::elect); also whether any thread called with `true`.
    fn elect_any(&mut self, predicate: bool, decide: impl FnOnce(&Self) -> Chunk) -> (Chunk, bool);

    /// Runs `last` on the elected thread, after every thread of the block has called.
    fn elect_last(&mut self, last: impl FnOnce(&Self));

    /// Waits until every thread of the block has called. Not the barrier of the kernel's own
    /// code: a body in which threads disagree about a barrier must hang, not pair up with this one.
    fn barrier(&mut self);

    /// As [`barrier`](Block::barrier); whether any thread called with `true`.
    fn any(&mut self, predicate: bool) -> bool;
}

/// The kernel's body.
pub trait Body {
    /// Whether the body has yield points: whether it can be requeued.
    const YIELDS: bool;

    /// Goes to a block-task.
    fn seek(&mut self, index: u32);

    /// The block-task that it is at.
    fn index(&self) -> u32;

    /// Runs this thread's part of the block-task that it is at; whether the thread requeued it,
    /// which it may only if the task is `requeueable`.
    fn run(&mut self, requeueable: bool) -> bool;
}

/// Consecutive tasks that one block claimed; none when `len` is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// The first task.
    pub start: u32,
    /// How many tasks.
    pub len: u32,
    /// How often the first of them was requeued; none of the others was.
    pub requeues: u32,
}

impl Chunk {
    /// Nothing claimed: the block leaves.
    pub const NONE: Chunk = Chunk { start: 0, len: 0, requeues: 0 };

    /// In one word: `start` in the low half, `len` in 30 bits of the other one, `requeues` in 2. Zero is `NONE`.
    #[inline(always)]
    pub const fn pack(self) -> u64 {
        Halves { high: self.requeues << 30 | self.len, low: self.start }.pack()
    }

    /// The chunk in a word from [`pack`](Chunk::pack).
    #[inline(always)]
    pub const fn unpack(word: u64) -> Chunk {
        let Halves { high, low } = Halves::unpack(word);
        Chunk { start: low, len: high & ((1 << 30) - 1), requeues: high >> 30 }
    }
}

/// A task that was requeued this often runs to its end.
const MAX_REQUEUES: u32 = 2;

/// No task, and without [`REQUEUED`].
const NOTHING_LEFT: u32 = !REQUEUED;

/// Takes chunks of block-tasks and runs `body` on each, until the grid is used up or the signal
/// excludes this block's SM. Then leaves.
///
/// What lives while `body` runs costs registers in every thread of the kernel, so that is little: the rest is read
/// from the parameter again, or noted by the elected thread ([`BlockNotes`]).
///
/// Every thread of the block calls this.
///
/// # Safety
///
/// `cohort` describes a launch whose control block, post, drop list and, unless null, `after` are alive until the
/// post is written, and its queue until this block is over; of its `blocks` blocks this is one that has not run before.
#[inline(always)]
pub unsafe fn run<B: Block, T: Body>(block: &mut B, cohort: &Cohort, body: &mut T) {
    // SAFETY: the caller promises that they are alive until this block has left.
    let (claims, list) = unsafe { (&*cohort.claims, &*cohort.requeue_list) };
    // There is a block for each task, so none is claimed ahead. If a block was sent away before it took one, a
    // later cohort will.
    let is_alone = cohort.blocks >= cohort.tasks;
    // Where the last claim of the elected thread starts, counted as [`Claims::next`] is. It is not waited for, and
    // there when tasks end. If it is no task, there is nothing to claim any more, or [`REQUEUED`] is set.
    let mut ahead = if is_alone { NOTHING_LEFT } else { 0 };
    // SAFETY: the caller's promise.
    let mut chunk =
        block.elect(|block| unsafe { first(block, claims, list, cohort, is_alone, &mut ahead) });
    while chunk.len > 0 {
        if !is_alone {
            // SAFETY: the caller's promise.
            block.lead(|block| unsafe {
                look_ahead::<B, T>(block, claims, cohort, chunk, &mut ahead)
            });
        }
        let (mut left, mut requeues) = (chunk.len, chunk.requeues);
        body.seek(chunk.start);
        // The test is in the middle so that the first round is like every other: with one at
        // the top, the compiler peels that round off and the kernel's body is there twice.
        chunk = loop {
            let requeued = body.run(requeues < MAX_REQUEUES);
            let is_last = left == 1;
            let (then, requeued) = if is_last {
                let ready = |block: &B| ready(block, cohort, ahead);
                if T::YIELDS {
                    block.elect_any(requeued, ready)
                } else {
                    (block.elect(ready), false)
                }
            } else {
                (Chunk::NONE, T::YIELDS && block.any(requeued))
            };
            if T::YIELDS && requeued {
                let rest = Chunk { start: body.index(), len: left, requeues };
                if give_back(block, claims, list, cohort, ahead, rest) {
                    break Chunk::NONE;
                }
                // No room on the list, so the task runs again here and now.
                requeues = MAX_REQUEUES;
                continue;
            }
            if is_last {
                if then.len > 0 || is_alone {
                    break then;
                }
                // SAFETY: the caller's promise.
                break block.elect(|block| unsafe {
                    next::<B, T>(block, claims, list, cohort, &mut ahead)
                });
            }
            left -= 1;
            requeues = 0;
            body.seek(body.index() + 1);
            if cohort.barrier {
                // The next task may use the shared memory that slower threads still read.
                block.barrier();
            }
        };
    }
    block.release_next();
    // SAFETY: the caller promises that they are alive until the post is written.
    block.elect_last(|block| unsafe {
        leave(block.notes(), cohort);
        block.await_asked();
    });
}

/// The first chunk of a block, or [`Chunk::NONE`] if it has to leave.
///
/// # Safety
///
/// As [`run`].
#[inline(always)]
unsafe fn first<B: Block>(
    block: &B,
    claims: &Claims,
    list: &RequeueList,
    cohort: &Cohort,
    is_alone: bool,
    ahead: &mut u32,
) -> Chunk {
    // SAFETY: the caller's promise.
    let seen = unsafe { &*cohort.queue }.signal.load(Relaxed);
    let notes = block.notes();
    notes.asked.signal.set(seen);
    notes.seen.set(seen);
    notes.claimed.set(0);
    notes.batch.set(0);
    notes.most.set(0);
    notes.size.set(0);
    notes.done.set(0);
    notes.list_first.set(0);
    notes.is_listed.set(0);
    let chunk = if cohort.is_first {
        block.await_previous();
        let number = block.number();
        let own = Chunk { start: number, len: u32::from(number < cohort.handed), requeues: 0 };
        let goes_on = own.len == 0 || cohort.signal.grants_with(seen, block.sm());
        // Nobody else has its task. Without room on the list, it runs here and now.
        if goes_on || !requeue::put(list, own, Chunk::NONE) { own } else { Chunk::NONE }
    } else {
        // SAFETY: the caller's promise.
        unsafe { first_claimed(block, claims, list, cohort, seen, ahead) }
    };
    if is_alone {
        notes.done.set(chunk.len);
    }
    chunk
}

/// The first chunk of a block that has none of its own.
///
/// Claims are relaxed: they hand out an index and nothing else. What earlier tasks wrote reaches a
/// later cohort through leave, post and launch, or through the list.
///
/// # Safety
///
/// As [`run`].
#[inline(always)]
unsafe fn first_claimed<B: Block>(
    block: &B,
    claims: &Claims,
    list: &RequeueList,
    cohort: &Cohort,
    seen: u64,
    ahead: &mut u32,
) -> Chunk {
    // Ahead of the branches, here and below, so that the loads are under way at the same time. Nobody touches this
    // count before the grid before is over.
    let claimed = claims.next.load(Relaxed) & !REQUEUED;
    block.await_previous();
    let available = list.available.load(Relaxed);
    let after_word = if cohort.after.is_null() {
        cohort.after_word
    } else {
        // No acquire: the launch before was done by the grid before this one in the queue, and by grids
        // that the host knew to be out when it launched this one.
        // SAFETY: the caller's promise, as it is not null.
        unsafe { &*cohort.after }.load(Relaxed)
    };
    if !cohort.signal.grants_with(seen, block.sm()) || after_word != cohort.after_word {
        return Chunk::NONE;
    }
    // If there is more than one chunk for each block, it all comes before fresh tasks: a block that has to leave gives
    // back two, and takes one when it starts, so that the list would fill up in a storm of stops.
    block.notes().list_first.set(u32::from(available as i32 > cohort.blocks as i32));
    let chunk = requeue::take(list, available);
    let remaining = tasks_from(cohort, claimed, u32::MAX);
    if remaining == 0 {
        // Or else each block that starts would claim in vain, and the count would go round at last.
        *ahead = NOTHING_LEFT;
    }
    if chunk.len > 0 || remaining == 0 {
        return chunk;
    }
    // One at first, to see how long it takes.
    let most = if cohort.pace == 0 { cohort.amortize } else { 1 };
    let size = chunk_size(remaining, cohort.share_bits, 1, most);
    claim(claims, cohort, size)
}

/// Claims `size` tasks, and waits for them.
#[inline(always)]
fn claim(claims: &Claims, cohort: &Cohort, size: u32) -> Chunk {
    let start = claims.next.fetch_add(size, Relaxed) & !REQUEUED;
    Chunk { start: cohort.handed + start, len: tasks_from(cohort, start, size), requeues: 0 }
}

/// As long as tasks take less than so many times the time between two looks, the next ones are started on account
/// of what the block saw when these were: to look at the end of each would hold the block up.
const STALE_LOOKS: u32 = 3;

/// Where tasks can be requeued, nothing is claimed ahead of a task if the last one took longer than so many quarters of
/// the time between two looks.
const LONG_LOOKS: u32 = 6;

/// The most tasks until the next look: twice as many as the last ones if those took less than half of the time
/// for that, and half as many if they took longer than all of it; one at first.
#[inline(always)]
fn limit(cohort: &Cohort, took: u32, len: u32) -> u32 {
    if cohort.pace == 0 {
        return cohort.amortize;
    }
    let most = match took {
        took if took >= cohort.pace => len / 2,
        took if took >= cohort.pace / 2 => len,
        _ => 2 * len,
    };
    most.min(cohort.amortize).max(1)
}

/// Asks for the signal and, if `chunk`, which starts now, is the last that is claimed, for the next one.
///
/// # Safety
///
/// As [`run`].
#[inline(always)]
unsafe fn look_ahead<B: Block, T: Body>(
    block: &B,
    claims: &Claims,
    cohort: &Cohort,
    chunk: Chunk,
    ahead: &mut u32,
) {
    // SAFETY: the caller's promise.
    block.ask(unsafe { &*cohort.queue });
    let notes = block.notes();
    let Halves { high: before, low: len } = Halves::unpack(notes.batch.get());
    let Halves { high: rest, low: start } = Halves::unpack(notes.claimed.get());
    let done = notes.done.get();
    let now = block.clock() as u32;
    notes.batch.set(Halves { high: now, low: chunk.len }.pack());
    notes.done.set(done + chunk.len);
    if T::YIELDS {
        let is_listed = notes.is_listed.get() > 0;
        notes.is_listed.set(0);
        // Nothing of what is claimed runs, so it stays, and is enough.
        if is_listed && rest > 0 {
            return;
        }
    }
    if rest > chunk.len {
        let behind = Halves { high: rest - chunk.len, low: start + chunk.len };
        notes.claimed.set(behind.pack());
        return;
    }
    notes.claimed.set(0);
    if *ahead >= cohort.tasks - cohort.handed || notes.list_first.get() > 0 {
        notes.size.set(0);
        return;
    }
    let took = now.wrapping_sub(before);
    let most = limit(cohort, took, len);
    // Chunks whose claims come too often are claimed two or four at once.
    let claim = most << (u32::from(took < cohort.crowd) + u32::from(took < cohort.crowd / 2));
    // Below a quarter of the time between two looks, looking costs more than an even end gains.
    let least = if cohort.pace == 0 { 1 } else { most / 4 };
    let remaining = cohort.tasks.saturating_sub(chunk.start);
    let size = chunk_size(remaining, cohort.share_bits, least, claim);
    let is_long = len == 0 || took >= LONG_LOOKS * (cohort.pace / 4);
    // Of nothing, to know whether there is something left.
    let size = if T::YIELDS && cohort.pace > 0 && is_long { 0 } else { size };
    *ahead = block.own(&claims.next).fetch_add(size, Relaxed);
    notes.most.set(most);
    notes.size.set(size);
}

/// The chunk after the one that ends now, if that is claimed, the signal is the one that the block has seen, the claim
/// says of no requeued task, and the chunk did not take long; or else [`next`] has to find one.
#[inline(always)]
fn ready<B: Block>(block: &B, cohort: &Cohort, ahead: u32) -> Chunk {
    // It was asked for when the chunk started, and is there unless that took less than reading memory does.
    block.await_asked();
    let notes = block.notes();
    let (signal, seen) = (notes.asked.signal.get(), notes.seen.get());
    let most = notes.most.get();
    let Halves { high: rest, low: start } = claimed(notes, cohort, ahead);
    let is_ready = signal == seen && !is_stale(block, cohort);
    Chunk { start, len: if is_ready { rest.min(most) } else { 0 }, requeues: 0 }
}

/// Whether the chunk that ends now took so long that what the block saw when it started counts for nothing.
#[inline(always)]
fn is_stale<B: Block>(block: &B, cohort: &Cohort) -> bool {
    let Halves { high: before, .. } = Halves::unpack(block.notes().batch.get());
    (block.clock() as u32).wrapping_sub(before) >= STALE_LOOKS * cohort.pace
}

/// The chunk after the one that has just ended. If the block has to leave, all that it has claimed goes on the list;
/// if not, and the last chunk took long, what is more than it will run until the next look does, since that may take
/// as long.
///
/// # Safety
///
/// As [`run`].
#[inline(always)]
unsafe fn next<B: Block, T: Body>(
    block: &B,
    claims: &Claims,
    list: &RequeueList,
    cohort: &Cohort,
    ahead: &mut u32,
) -> Chunk {
    let notes = block.notes();
    let was_requeued = T::YIELDS && *ahead & REQUEUED > 0;
    *ahead &= !REQUEUED;
    let Halves { high: len, low: start } = claimed(notes, cohort, *ahead);
    // SAFETY: the caller's promise.
    let signal = unsafe { &*cohort.queue }.signal.load(Relaxed);
    let goes_on = cohort.signal.grants_with(signal, block.sm());
    if goes_on {
        notes.seen.set(signal);
    }
    // What was requeued comes before what is claimed: it was requeued for an SM that may be taken again and again, where
    // it would never come to its end, or would come to it while somebody waits.
    if goes_on && (T::YIELDS || len == 0) {
        let chunk = requeue::take(list, list.available.load(Relaxed));
        if was_requeued {
            requeue::withdraw(claims, list);
        }
        if chunk.len > 0 {
            notes.is_listed.set(1);
            return chunk;
        }
    }
    if len == 0 {
        if !goes_on || *ahead >= cohort.tasks - cohort.handed {
            return Chunk::NONE;
        }
        notes.list_first.set(0);
        return claim(claims, cohort, 1);
    }
    let most = len.min(notes.most.get());
    // Or else, with a requeued task, which brings all blocks here, each would put something on the list, which would
    // never be empty, so that they would come here for ever.
    if !goes_on || is_stale(block, cohort) {
        let kept = if goes_on { most } else { 0 };
        let given = Chunk { start: start + kept, len: len - kept, requeues: 0 };
        if given.len > 0 && requeue::put(list, given, Chunk::NONE) {
            notes.claimed.set(Halves { high: kept, low: start }.pack());
            return Chunk { start, len: kept, requeues: 0 };
        }
    }
    // Without room on the list, it all runs here, too.
    Chunk { start, len: most, requeues: 0 }
}

/// Puts `rest`, of which the first task was requeued once more, and all that the block has claimed on the list; `false`
/// if that is full.
///
/// Every thread of the block calls this, after all have ended the task.
#[inline(always)]
fn give_back<B: Block>(
    block: &mut B,
    claims: &Claims,
    list: &RequeueList,
    cohort: &Cohort,
    ahead: u32,
    rest: Chunk,
) -> bool {
    let requeued = Chunk { requeues: rest.requeues + 1, ..rest };
    let given = block.elect(|block| {
        let notes = block.notes();
        let Halves { high: len, low: start } = claimed(notes, cohort, ahead & !REQUEUED);
        if !requeue::put(list, requeued, Chunk { start, len, requeues: 0 }) {
            return Chunk::NONE;
        }
        requeue::announce(claims);
        notes.done.set(notes.done.get() - rest.len);
        Chunk { len: 1, ..Chunk::NONE }
    });
    given.len > 0
}

/// How many tasks to claim when `remaining` are left: half of an even share or less, so that blocks with
/// long tasks and blocks with short ones end together (guided self-scheduling, Polychronopoulos and
/// Kuck 1987), but from `least` to `most`, and one at least.
#[inline(always)]
fn chunk_size(remaining: u32, share_bits: u32, least: u32, most: u32) -> u32 {
    (remaining >> share_bits).max(least).min(most).max(1)
}

/// Counts this block and its tasks out of the cohort; the last block posts the cohort.
///
/// Runs on one thread, after a barrier of the whole block.
///
/// # Safety
///
/// As [`run`].
#[inline(always)]
unsafe fn leave(notes: &BlockNotes, cohort: &Cohort) {
    // SAFETY: the caller's promise.
    let (control, post) = unsafe { (&*cohort.control, &*cohort.post) };
    let done = notes.done.get();
    // In bounds, which the compiler sees.
    let left = &control.left[cohort.slot as usize % COHORT_SLOTS];
    // Read-modify-writes carry no ordering in PTX, so the orderings are fences.
    // Release: what this block wrote comes before its count below, which the next launch of the
    // stream may look at.
    fence_release();
    let before = left.fetch_add(departures(1, done), Relaxed);
    let before = Halves::unpack(before.wrapping_sub(cohort.left));
    if before.high + 1 == cohort.blocks {
        // Nobody uses the other one: the launch before on this control block is out, and the one after
        // comes when this one is out.
        let [one, other] = &control.claims;
        let unused = if core::ptr::eq(one, cohort.claims) { other } else { one };
        unused.next.store(0, Relaxed);
        // Acquire: the last block takes over what all other blocks of the cohort wrote. Release, to
        // the host: all of that comes before the post.
        fence_acq_rel_to_host();
        let amortize = notes.most.get().max(u32::from(done > 0));
        let all = Posted { done: before.low + done, amortize };
        post.0.store(Post::word(cohort.ticket, all), Relaxed);
    }
}
