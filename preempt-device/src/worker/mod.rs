//! The worker loop: a block of a preemptible grid runs block-tasks in it until it has to leave.
//!
//! One implementation runs on the GPU, on the CPU device and in the loom model, which differ in [`Block`] and
//! [`Body`] alone. `README.md` beside this file names states, counters and races.

use crate::abi::{
    Begun, COHORT_SLOTS, Claims, Cohort, DeviceQueue, Halves, Post, Posted, REQUEUED, RequeueList,
    StopLimit, Technique, departures,
};
use crate::atomic_shim::{Ordering::Relaxed, fence_acq_rel_to_host, fence_release};
use crate::target;
pub use block_notes::{BlockNotes, Note, SignalCopy};
use block_notes::{claimable, claimed, tasks_from};
pub use chunk::Chunk;
use stops::{note_chunk, note_stop, note_stop_by, signal_and_arrival, tell_stop};

mod block_notes;
mod chunk;
#[cfg(all(test, loom))]
mod model;
#[cfg(test)]
mod one_thread;
mod requeue;
pub(crate) mod save;
mod stops;
#[cfg(all(test, not(loom)))]
mod tests;

/// The block that a worker loop runs in.
pub trait Block {
    /// The SM that the block is on.
    fn sm(&self) -> u32;

    /// The number of the block in its cohort, from 0.
    fn number(&self) -> u32;

    /// A clock that only grows, in the unit of [`Cohort::pace`].
    fn clock(&self) -> u64;

    /// The device's time in nanoseconds, as in [`DeviceQueue::arrived`], if it has one.
    fn nanos(&self) -> u64 {
        0
    }

    /// Waits until the preceding grid of the queue has ended, where the device starts grids early. One thread
    /// calls this, before it reads what that grid wrote.
    fn await_previous(&self);

    /// Lets the following grid of the queue start, where the device starts grids early, because this block
    /// runs no more tasks. Every thread calls this.
    fn release_next(&self);

    /// Returns `shared`, on the elected thread, for atomic operations whose result that thread does not need
    /// at once.
    fn own<'a, T>(&self, shared: &'a T) -> &'a T {
        shared
    }

    /// The elected thread's state, in memory and not in registers, which all threads would have. It is
    /// written before it is read, and no other code uses it.
    fn notes(&self) -> &BlockNotes;

    /// Starts to copy the signal of a queue, on the elected thread. `signal` in [`SignalCopy`] holds it after
    /// [`await_asked`](Block::await_asked).
    fn ask(&self, queue: &DeviceQueue) {
        self.notes().asked.signal.set(queue.signal.load(Relaxed));
    }

    /// Waits until the copies of [`ask`](Block::ask) have arrived, on the elected thread.
    fn await_asked(&self) {}

    /// Whether the block leaves because its launch was revoked, at yield points of a task behind its marker in any case.
    ///
    /// # Safety
    ///
    /// The cohort's queue is alive.
    unsafe fn is_revoked(&self, cohort: &Cohort) -> bool {
        // SAFETY: the caller's promise.
        let word = unsafe { &*cohort.queue }.signal.load(Relaxed);
        cohort.signal.or_newer(word).limit() == StopLimit::REVOKED
    }

    /// Notes how many tasks of its chunk a block has not ended; every thread calls it.
    fn set_left(&mut self, left: u32);

    /// What was noted last.
    fn left(&self) -> u32;

    /// Whether that was one, or none.
    fn is_last(&self) -> bool {
        self.left() <= 1
    }

    /// Runs `lead` on the elected thread. No thread waits.
    fn lead(&mut self, lead: impl FnOnce(&Self));

    /// Runs `decide` on the elected thread and returns its answer in every thread of the block. No thread
    /// returns before every thread has called.
    fn elect(&mut self, decide: impl FnOnce(&Self) -> Chunk) -> Chunk;

    /// Runs `decide` as [`elect`](Block::elect) does, and also returns whether any thread called with `true`.
    fn elect_any(&mut self, predicate: bool, decide: impl FnOnce(&Self) -> Chunk) -> (Chunk, bool);

    /// Runs `last` on the elected thread, after every thread of the block has called.
    fn elect_last(&mut self, last: impl FnOnce(&Self));

    /// Waits until every thread of the block has called. This is not the barrier of the kernel's own code: a
    /// body in which threads disagree about a barrier must hang, not meet this one.
    fn barrier(&mut self);

    /// Waits as [`barrier`](Block::barrier) does, and returns whether any thread called with `true`.
    fn any(&mut self, predicate: bool) -> bool;
}

/// The body of a kernel, as a worker loop runs it.
pub trait Body {
    /// Whether the body has yield points, at which a task can be requeued.
    const YIELDS: bool;

    /// Selects the block-task with this index.
    fn seek(&mut self, index: u32);

    /// The index of the selected block-task.
    fn index(&self) -> u32;

    /// Runs this thread's part of the selected block-task, which was requeued so often. Returns whether the thread requeued it,
    /// which it may only if that was less than [`MAX_REQUEUES`], or [`MAX_REQUEUES_FOR_LIMITS`] for a signal with a limit.
    fn run(&mut self, requeues: u32) -> bool;

    /// Whether the body has a checkpoint: a thread that requeues the task has saved its state, and so have all others of
    /// the block. Such a body has yield points in the sense of [`YIELDS`](Body::YIELDS).
    const SWITCHES: bool = false;

    /// Sets the slot of the task that is selected next, which is saved there, or none. Every thread calls this.
    fn resume(&mut self, _slot: Option<u32>) {}

    /// The slot that the selected task was saved in when the threads requeued it. Every thread calls this, behind a
    /// barrier of the whole block.
    fn slot(&self) -> u32 {
        0
    }
}

/// Requeues of one task: after this number it runs to its end, however often its SM is taken.
pub const MAX_REQUEUES: u32 = 2;

/// The same for signals with a limit. A task that runs to its end makes its block leave late, which such a signal does not
/// want; each requeue makes the task's work up to then void. No more than six, because the number has three bits in a chunk, and
/// a task whose SM is taken for ever ends all the same.
pub const MAX_REQUEUES_FOR_LIMITS: u32 = 6;

/// A start for claims that is no task, and has no bit [`REQUEUED`].
const NOTHING_LEFT: u32 = !REQUEUED;

/// Runs `body` on chunks of block-tasks, until no task is left or the signal excludes this block's SM. Then
/// the block leaves.
///
/// Values that live while `body` runs occupy registers in every thread of the kernel. So they are few: the
/// others are read again from the parameter, or kept by the elected thread ([`BlockNotes`]).
///
/// Every thread of the block calls this.
///
/// # Safety
///
/// `cohort` describes a launch. Its control block, post, requeue list and, unless null, `after` and the words of `progress`,
/// one for each block, are alive until the post is written, and its queue until this block has ended. This is one of the
/// cohort's `blocks` blocks, and it has not run before.
#[inline(always)]
pub unsafe fn run<B: Block, T: Body>(block: &mut B, cohort: &Cohort, body: &mut T) {
    // SAFETY: the caller promises that both are alive until this block has left.
    let (claims, list) = unsafe { (&*cohort.claims, &*cohort.requeue_list) };
    // With a block for each task, none is claimed ahead. A task whose block had to leave before taking it is
    // left to a later cohort.
    let is_alone = cohort.blocks >= cohort.tasks;
    // The start of the elected thread's last claim, counted as [`Claims::next`] is. The claim is not waited
    // for, and has returned when the tasks end. If the start is no task, all tasks are claimed, or the bit
    // [`REQUEUED`] is set.
    let mut ahead = if is_alone { NOTHING_LEFT } else { 0 };
    // SAFETY: the caller's promise.
    let mut chunk = block
        .elect(|block| unsafe { first::<B, T>(block, claims, list, cohort, is_alone, &mut ahead) });
    while chunk.len > 0 {
        if T::SWITCHES {
            let slot;
            (chunk, slot) = chunk.with_slot();
            body.resume(slot);
        }
        if !is_alone {
            // SAFETY: the caller's promise.
            block.lead(|block| unsafe {
                look_ahead::<B, T>(block, claims, cohort, chunk, &mut ahead)
            });
        } else {
            block.lead(|block| {
                if T::YIELDS {
                    block.notes().begin(block.clock() as u32, chunk.requeues);
                }
                // SAFETY: the caller's promise.
                unsafe { tell_progress::<B, T>(block, cohort, chunk.requeues) };
            });
        }
        let mut requeues = chunk.requeues;
        block.set_left(chunk.len);
        body.seek(chunk.start);
        // The test is in the middle so that the first round is like every other one. With a test at the top,
        // the compiler would peel off the first round and duplicate the kernel's body.
        chunk = loop {
            // A task that was saved goes on, and is not repeated, so it may be left as often as the block has to leave.
            let requeued = body.run(if T::SWITCHES { 0 } else { requeues });
            let is_last = block.is_last();
            let (then, requeued) = if is_last {
                let ready = |block: &B| {
                    if T::YIELDS {
                        note_chunk(block);
                    }
                    ready(block, cohort, ahead)
                };
                if T::YIELDS {
                    block.elect_any(requeued, ready)
                } else {
                    (block.elect(ready), false)
                }
            } else {
                (Chunk::NONE, T::YIELDS && block.any(requeued))
            };
            if T::SWITCHES && requeued {
                // Nothing else of this block is on its way: it claims one task at a time.
                debug_assert_eq!(block.left(), 1);
                let saved = Chunk::saved(body.index(), body.slot());
                block.elect(|block| {
                    requeue::put_saved(list, saved);
                    requeue::announce(claims);
                    // SAFETY: the caller's promise.
                    unsafe { note_stop(block, cohort, Technique::Switch) };
                    block.notes().done.set(block.notes().done.get() - 1);
                    Chunk::NONE
                });
                break Chunk::NONE;
            }
            if T::YIELDS && requeued {
                let rest = Chunk { start: body.index(), len: block.left(), requeues };
                // SAFETY: the caller's promise.
                if unsafe { give_back(block, claims, list, cohort, ahead, rest) } {
                    break Chunk::NONE;
                }
                // No room on the list, so this block runs the task again now.
                requeues = MAX_REQUEUES_FOR_LIMITS;
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
            block.set_left(block.left() - 1);
            requeues = 0;
            body.seek(body.index() + 1);
            if target::opaque(cohort.barrier) > 0 {
                // The next task may write shared memory that slower threads still read.
                block.barrier();
            }
        };
    }
    block.release_next();
    // SAFETY: the caller promises that the words are alive until the post is written.
    block.elect_last(|block| unsafe {
        leave::<B, T>(block, cohort, is_alone);
        block.await_asked();
    });
}

/// The first chunk of a block, or [`Chunk::NONE`] if it has to leave.
///
/// # Safety
///
/// As [`run`].
#[inline(always)]
unsafe fn first<B: Block, T: Body>(
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
    notes.technique.set(0);
    if T::YIELDS {
        notes.longest.set(0);
    }
    let chunk = if cohort.flags.is_first() {
        block.await_previous();
        let number = block.number();
        let own = Chunk { start: number, len: u32::from(number < cohort.handed), requeues: 0 };
        let goes_on = own.len == 0 || cohort.signal.grants_with(seen, block.sm());
        // No other block has this task. Without room on the list, this block runs it now.
        if goes_on || !requeue::put(list, own, Chunk::NONE) { own } else { Chunk::NONE }
    } else {
        // SAFETY: the caller's promise.
        unsafe { first_claimed::<B, T>(block, claims, list, cohort, seen, ahead) }
    };
    if is_alone {
        notes.done.set(if T::SWITCHES { chunk.with_slot().0.len } else { chunk.len });
    }
    chunk
}

/// The first chunk of a block that was handed no task.
///
/// Claims are relaxed: they hand out an index and nothing else. Writes of earlier tasks reach a later cohort
/// through leave, post and launch, or through the list.
///
/// # Safety
///
/// As [`run`].
#[inline(always)]
unsafe fn first_claimed<B: Block, T: Body>(
    block: &B,
    claims: &Claims,
    list: &RequeueList,
    cohort: &Cohort,
    seen: u64,
    ahead: &mut u32,
) -> Chunk {
    // Ahead of the branches, here and below, so that the loads overlap. No block writes this counter before
    // the preceding grid has ended.
    let claimed = claims.next.load(Relaxed) & !REQUEUED;
    block.await_previous();
    let available = list.available.load(Relaxed);
    let after_word = if cohort.after.is_null() {
        cohort.after_word
    } else {
        // No acquire: the preceding launch ran in the preceding grid of the queue, and in grids whose end the
        // host saw before it launched this one. SAFETY: the caller's promise, as it is not null.
        unsafe { &*cohort.after }.load(Relaxed)
    };
    if !cohort.signal.grants_with(seen, block.sm()) || after_word != cohort.after_word {
        return Chunk::NONE;
    }
    // With more than one chunk for each block on the list, all of it comes before fresh tasks. A block that
    // has to leave gives back two chunks, and takes one when it starts. So the list would otherwise fill up
    // in a storm of stops.
    block.notes().list_first.set(u32::from(available as i32 > cohort.blocks as i32));
    let chunk = requeue::take(list, available);
    let remaining = tasks_from(cohort, claimed, u32::MAX);
    if remaining == 0 {
        // Each block that starts would otherwise claim in vain, and the counter would wrap eventually.
        *ahead = NOTHING_LEFT;
    }
    if chunk.len > 0 || remaining == 0 {
        return chunk;
    }
    // One task at first, to measure its time.
    let most = if cohort.pace == 0 && !T::SWITCHES { cohort.amortize } else { 1 };
    let size = chunk_size(remaining, cohort.share_bits, 1, most);
    claim(claims, cohort, size)
}

/// Claims `size` tasks, and waits for the answer.
#[inline(always)]
fn claim(claims: &Claims, cohort: &Cohort, size: u32) -> Chunk {
    let start = claims.next.fetch_add(size, Relaxed) & !REQUEUED;
    Chunk { start: cohort.handed + start, len: tasks_from(cohort, start, size), requeues: 0 }
}

/// Times between two looks. After shorter tasks, the next ones start on the signal that the block saw at the
/// start of the last ones. A look at the end of each would delay the block.
const STALE_LOOKS: u32 = 3;

/// Quarters of the time between two looks: where tasks can be requeued, nothing is claimed ahead if the last
/// task took longer.
const LONG_LOOKS: u32 = 6;

/// The most tasks until the next look; one at first. Twice as many as the last ones if those took less than
/// half of the available time. Half as many if they took all of it or longer.
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

/// Starts to copy the signal. If `chunk`, which starts now, is the last claimed one, claims the next one,
/// too.
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
    if T::YIELDS {
        notes.begin(now, chunk.requeues);
    }
    notes.done.set(done + chunk.len);
    // SAFETY: the caller's promise.
    unsafe { tell_progress::<B, T>(block, cohort, chunk.requeues) };
    if T::YIELDS {
        let is_listed = notes.is_listed.get() > 0;
        notes.is_listed.set(0);
        // No claimed task starts now, so the claimed ones remain, and are enough.
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
    if *ahead >= claimable(cohort) || notes.list_first.get() > 0 {
        notes.size.set(0);
        return;
    }
    let took = now.wrapping_sub(before);
    let most = limit(cohort, took, len);
    // Where claims are too frequent, two or four chunks are claimed at once.
    let claim = most << (u32::from(took < cohort.crowd) + u32::from(took < cohort.crowd / 2));
    // Below a quarter of the time between two looks, looking costs more than an even end gains.
    let least = if cohort.pace == 0 { 1 } else { most / 4 };
    let remaining = cohort.tasks.saturating_sub(chunk.start);
    let size = chunk_size(remaining, cohort.share_bits, least, claim);
    let is_long = len == 0 || took >= LONG_LOOKS * (cohort.pace / 4);
    // A claim of 0 tasks still reads whether tasks are left.
    let size = if T::YIELDS && cohort.pace > 0 && is_long { 0 } else { size };
    // A block that leaves at a checkpoint holds the task that it saves, and no other one.
    let size = if T::SWITCHES { 0 } else { size };
    *ahead = block.own(&claims.next).fetch_add(size, Relaxed);
    notes.most.set(most);
    notes.size.set(size);
}

/// Tells the host that a chunk begins whose first task was requeued so often, where the host wants to know.
///
/// # Safety
///
/// As [`run`]. Unless its mark is 0, the cohort has a word of `progress` for each of its blocks.
#[inline(always)]
unsafe fn tell_progress<B: Block, T: Body>(block: &B, cohort: &Cohort, requeues: u32) {
    let mark = cohort.flags.anew().mark();
    if mark > 0 {
        // SAFETY: the caller's promise.
        let word = unsafe { &*cohort.progress.add(block.number() as usize) };
        let is_spent = T::YIELDS && requeues >= MAX_REQUEUES;
        word.begin(mark, Begun { sm: block.sm(), at: block.nanos(), is_spent });
    }
}

/// The next chunk, if four conditions hold. It is claimed, the block has seen the current signal, the claim
/// announces no requeued task, and the last chunk was short. Otherwise none, and [`next`] looks for one.
#[inline(always)]
fn ready<B: Block>(block: &B, cohort: &Cohort, ahead: u32) -> Chunk {
    // The copy started with the chunk, and has arrived unless the chunk was shorter than a read of memory.
    block.await_asked();
    let notes = block.notes();
    let (signal, seen) = (notes.asked.signal.get(), notes.seen.get());
    let most = notes.most.get();
    let Halves { high: rest, low: start } = claimed(notes, cohort, ahead);
    let is_ready = signal == seen && !is_stale(block, cohort);
    Chunk { start, len: if is_ready { rest.min(most) } else { 0 }, requeues: 0 }
}

/// Whether the chunk that ends now took so long that the signal from its start is stale.
#[inline(always)]
fn is_stale<B: Block>(block: &B, cohort: &Cohort) -> bool {
    let Halves { high: before, .. } = Halves::unpack(block.notes().batch.get());
    (block.clock() as u32).wrapping_sub(before) >= STALE_LOOKS * cohort.pace
}

/// The next chunk, from the list or from claims. If the block has to leave, it puts all claimed tasks on the
/// list. If it stays and the last chunk was long, it keeps only the tasks that it starts before its next
/// look: those may be long, too.
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
    // Hidden from the compiler, which would otherwise take the bit out ahead of the kernel's body, for both places that need
    // that, and so wait there for the claim.
    let end = target::opaque(*ahead);
    let was_requeued = T::YIELDS && end & REQUEUED > 0;
    *ahead = end & !REQUEUED;
    let Halves { high: len, low: start } = claimed(notes, cohort, *ahead);
    // SAFETY: the caller's promise.
    let (signal, arrived) = unsafe { signal_and_arrival(cohort) };
    let goes_on = cohort.signal.grants_with(signal, block.sm());
    if goes_on {
        notes.seen.set(signal);
    }
    // Requeued tasks come before claimed ones. They were requeued for an SM that may be taken again and
    // again. There they would never end, or end while an urgent launch waits.
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
    // A block that begins when its SM is long taken has stopped nothing.
    if !goes_on && notes.done.get() > 0 {
        note_stop_by(block, cohort, (signal, arrived), Technique::Drain);
    }
    if len == 0 {
        if !goes_on || *ahead >= claimable(cohort) {
            return Chunk::NONE;
        }
        notes.list_first.set(0);
        return claim(claims, cohort, 1);
    }
    let most = len.min(notes.most.get());
    // Only then, because a requeued task brings all blocks here. If each put tasks on the list, it would
    // never be empty, and bring them here for ever.
    if !goes_on || is_stale(block, cohort) {
        let kept = if goes_on { most } else { 0 };
        let given = Chunk { start: start + kept, len: len - kept, requeues: 0 };
        if given.len > 0 && requeue::put(list, given, Chunk::NONE) {
            notes.claimed.set(Halves { high: kept, low: start }.pack());
            return Chunk { start, len: kept, requeues: 0 };
        }
    }
    // Without room on the list, this block runs all claimed tasks.
    Chunk { start, len: most, requeues: 0 }
}

/// Puts `rest`, whose first task was requeued once more, and all claimed tasks on the list; `false` if that
/// is full.
///
/// Every thread of the block calls this, after all have ended the task.
///
/// # Safety
///
/// As [`run`].
#[inline(always)]
unsafe fn give_back<B: Block>(
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
        // As in `next`.
        let ahead = target::opaque(ahead) & !REQUEUED;
        let Halves { high: len, low: start } = claimed(notes, cohort, ahead);
        // What was stopped behind its marker must not run again, not even where it counts for nothing: on a block that has not
        // seen the signal yet, in another queue perhaps, it would add and append twice. So the launch does not end as done.
        // SAFETY: the caller's promise.
        if !unsafe { block.is_revoked(cohort) } {
            if !requeue::put(list, requeued, Chunk { start, len, requeues: 0 }) {
                return Chunk::NONE;
            }
            requeue::announce(claims);
        }
        // SAFETY: the caller's promise.
        unsafe { note_stop(block, cohort, Technique::Requeue) };
        notes.done.set(notes.done.get() - rest.len);
        Chunk { len: 1, ..Chunk::NONE }
    });
    given.len > 0
}

/// How many tasks to claim when `remaining` are left: half of an even share or less. So blocks with long
/// tasks and blocks with short ones end together (guided self-scheduling, Polychronopoulos and Kuck 1987).
/// The result is between `least` and `most`, and at least one.
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
unsafe fn leave<B: Block, T: Body>(block: &B, cohort: &Cohort, is_alone: bool) {
    // SAFETY: the caller's promise.
    let (control, post) = unsafe { (&*cohort.control, &*cohort.post) };
    let notes = block.notes();
    let done = notes.done.get();
    // A block for each task has not looked since its task ended. Now it does so for what it tells, and the loads overlap the fence
    // below.
    let looks = is_alone && done > 0 && !cfg!(all(test, loom));
    // SAFETY: as above.
    let words = looks.then(|| unsafe { signal_and_arrival(cohort) });
    // The remainder shows the compiler that the index is in bounds.
    let left = &control.left[usize::from(cohort.flags.slot()) % COHORT_SLOTS];
    let [one, other] = &control.claims;
    let is_one = core::ptr::eq(one, cohort.claims);
    let stops = &control.stops[usize::from(!is_one)];
    // Blocks pay for it when they stop, and those of kernels that may stop within their tasks while no chunk of them is known.
    let mut tells = tell_stop::<T>(notes, cohort, stops);
    // Read-modify-writes carry no ordering in PTX, so the orderings are fences. Release: the writes of this
    // block come before its count below, which the next launch of the stream may look at.
    fence_release();
    if let Some((signal, arrived)) = words
        && notes.technique.get() == 0
        && !cohort.signal.grants_with(signal, block.sm())
    {
        note_stop_by(block, cohort, (signal, arrived), Technique::Drain);
        tells |= tell_stop::<T>(notes, cohort, stops);
        // So that the last block of the cohort finds it, if it can (`StopWords::post`).
        fence_release();
    }
    let before = left.fetch_add(departures(1, done), Relaxed);
    let before = Halves::unpack(before.wrapping_sub(cohort.left));
    if before.high + 1 == cohort.blocks {
        // No block uses the other counter: the preceding launch on this control block has ended, and the
        // following one starts after this one.
        let unused = if is_one { other } else { one };
        unused.next.store(0, Relaxed);
        // Blocks may have told something in a cohort that was signalled, and in one of unknown times. Otherwise reading it
        // would only delay the post.
        let seen = words.map_or_else(|| notes.seen.get(), |(signal, _)| signal);
        let was_signalled = cohort.signal.or_newer(seen) != cohort.signal;
        let is_new = T::YIELDS && cohort.longest == 0;
        if tells || was_signalled || is_new || before.low + done != cohort.tasks {
            stops.post(post);
        }
        // Acquire: the last block takes over the writes of all other blocks of the cohort. Release, to the
        // host: all of them come before the post.
        fence_acq_rel_to_host();
        let amortize = notes.most.get().max(u32::from(done > 0));
        let all = Posted { done: before.low + done, amortize };
        post.word.store(Post::word(cohort.ticket, all), Relaxed);
    }
}
