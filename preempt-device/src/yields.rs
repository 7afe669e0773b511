//! Yield points: the places where a block-task can be stopped and requeued.

use crate::abi::{Cohort, DeviceQueue, Signal, StopLimit};
use crate::atomic_shim::Ordering::Relaxed;
use crate::target;
use crate::worker::{MAX_REQUEUES, MAX_REQUEUES_FOR_LIMITS};
pub use checkpoint::*;
pub use functions::*;
pub use marker::*;

mod checkpoint;
mod functions;
mod marker;
#[cfg(any(target_arch = "nvptx64", all(test, not(loom))))]
mod watch;

/// Gives up the SM here, if the kernel has to leave it.
///
/// Write `yield_point!();` as a statement of a kernel. If the kernel has to leave the SM, the thread returns, and all
/// threads of its block-task run again later from the start. The kernel's
/// [documentation](crate::preemptible#yield-points) says which kernels can, and what `idempotent` promises.
#[macro_export]
macro_rules! yield_point {
    ($($tokens:tt)*) => {
        ::core::compile_error!(
            "`yield_point!` works directly in the body of a `#[preemptible]` kernel, \
             from which it returns; put it there, between the calls of this function"
        )
    };
}

/// Nanoseconds from the end of a block's tasks until it has left: it looks at the signal, which takes most of a microsecond,
/// and its threads meet. One was seen on an H200; as much again is for tasks that take a little longer than any before.
const LEAVING: u64 = 2000;

/// The part of the time a task has taken so far that is expected to be left of it, at least. With a larger part, blocks whose
/// tasks vary a little are dropped when they are nearly done. With a smaller one, tasks that take many times longer than others
/// are waited for until shortly ahead of the limit, and dropped all the same.
#[doc(hidden)]
pub const LATE: u32 = 8;

/// The state of one thread's yield points, in one block-task.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Yields {
    queue: *const DeviceQueue,
    granted: Signal,
    /// The cohort, for what is looked at when the SM was taken.
    cohort: *const Cohort,
    /// When the task began.
    #[cfg(not(target_arch = "nvptx64"))]
    began: Option<std::time::Instant>,
    /// Whether the task may be requeued.
    requeueable: bool,
    /// Whether the task may be requeued for signals with a limit alone. On a GPU the block's notes say that, because this would
    /// be a register of each thread.
    #[cfg(not(target_arch = "nvptx64"))]
    is_spent: bool,
    /// Whether this thread has requeued the task.
    requeued: bool,
    /// Whether the task runs to its end unless its launch is revoked, because this thread has passed a marker, or knows that
    /// another one has.
    marked: bool,
    /// The task's index, in kernels with markers and without barriers.
    task: u32,
    /// The block's decision about its tasks.
    #[cfg(not(target_arch = "nvptx64"))]
    decision: *const Decision,
    /// How the block leaves tasks at checkpoints.
    #[cfg(not(target_arch = "nvptx64"))]
    switch: *const Switch,
    /// The same.
    #[cfg(target_arch = "nvptx64")]
    switch: Switch,
    /// Set in entries that never requeue a task; a constant there, which the compiler sees.
    is_off: bool,
    /// The signal word, if this thread looks for its block. It is loaded at one yield point and tested at the
    /// next one, because the load takes as long as hundreds of instructions.
    asked: u64,
    /// Whether the word was loaded at the last yield point, in bodies without barriers.
    is_asked: bool,
}

/// The part of a thread's [`Yields`] that changes at yield points of bodies without markers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
// In this order: two that are alike side by side are accessed by one instruction, which the transformation of PTX does not take.
#[repr(C)]
pub struct Changing {
    requeued: bool,
    asked: u64,
    is_asked: bool,
}

impl Yields {
    /// What changes at yield points of bodies without markers.
    #[inline(always)]
    pub fn changing(&self) -> Changing {
        Changing { asked: self.asked, requeued: self.requeued, is_asked: self.is_asked }
    }

    /// The state with what has changed.
    #[inline(always)]
    pub fn with(self, Changing { asked, requeued, is_asked }: Changing) -> Yields {
        Yields { asked, requeued, is_asked, ..self }
    }

    /// The state in entries that never requeue a task.
    pub const OFF: Yields = Yields {
        queue: core::ptr::null(),
        granted: Signal::from_bits(0),
        cohort: core::ptr::null(),
        #[cfg(not(target_arch = "nvptx64"))]
        began: None,
        requeueable: false,
        #[cfg(not(target_arch = "nvptx64"))]
        is_spent: false,
        requeued: false,
        marked: false,
        task: 0,
        #[cfg(not(target_arch = "nvptx64"))]
        decision: core::ptr::null(),
        #[cfg(not(target_arch = "nvptx64"))]
        switch: core::ptr::null(),
        #[cfg(target_arch = "nvptx64")]
        switch: Switch::NONE,
        is_off: true,
        asked: 0,
        is_asked: false,
    };

    /// The state for a task of `cohort` that was requeued so often.
    ///
    /// # Safety
    ///
    /// The cohort and its queue are alive until the block has ended all use of the result and its copies.
    #[inline(always)]
    pub unsafe fn new(cohort: &Cohort, requeues: u32) -> Yields {
        let (queue, granted) = (cohort.queue, cohort.signal);
        let asked = granted.to_bits();
        let requeueable = requeues < MAX_REQUEUES_FOR_LIMITS;
        Yields {
            queue,
            granted,
            cohort,
            requeueable,
            #[cfg(not(target_arch = "nvptx64"))]
            is_spent: requeues >= MAX_REQUEUES,
            is_off: false,
            asked,
            ..Yields::OFF
        }
    }

    /// The state for a task that began at this time.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn begun(self, began: std::time::Instant) -> Yields {
        Yields { began: Some(began), ..self }
    }

    /// The state for the task of this index, about which the block decides by `decision`.
    ///
    /// # Safety
    ///
    /// `decision` is alive until the block has ended all use of the result and its copies.
    #[cfg(not(target_arch = "nvptx64"))]
    pub unsafe fn decided_by(self, decision: &Decision, task: u32) -> Yields {
        Yields { task, decision, ..self }
    }

    /// The state for the task of this index.
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    pub(crate) fn of_task(self, task: u32) -> Yields {
        Yields { task, ..self }
    }

    /// The state that the CPU device gave to the current emulated thread.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn of_thread() -> Yields {
        target::yields()
    }

    /// Whether the thread has to return at this yield point, in a body without barriers.
    #[inline(always)]
    pub fn poll(&mut self) -> bool {
        if self.requeueable {
            self.requeued = self.look();
        }
        self.requeued
    }

    /// Whether the thread has to return at this yield point, in a body with markers and without barriers.
    ///
    /// In a marked block-task only if its launch was revoked: then none of its effects count.
    #[inline(always)]
    pub fn poll_unless_marked(&mut self) -> bool {
        if self.requeueable && self.look() {
            if self.marked {
                self.requeued = true;
            } else {
                self.decide(true);
                // No thread drops it, so a revocation is to be looked for again.
                #[cfg(target_arch = "nvptx64")]
                if self.marked {
                    watch().resume(target::clock());
                }
            }
        }
        self.requeued
    }

    /// Whether the thread has to return at this marker, in a body without barriers, because its block-task was dropped.
    /// Otherwise no thread drops the block-task from now on.
    #[inline(always)]
    pub fn mark(&mut self) -> bool {
        if self.requeueable && !self.marked {
            self.decide(false);
        }
        self.requeued
    }

    #[inline(always)]
    fn decide(&mut self, drops: bool) {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the word is this block's while the kernel runs, and `start_decisions` has set it.
        let decision = unsafe { &*decision_word() };
        #[cfg(not(target_arch = "nvptx64"))]
        // SAFETY: the promise of `decided_by`.
        let Some(decision) = (unsafe { self.decision.as_ref() }) else {
            // What runs the thread knows nothing of markers, so it drops no block-task that has them.
            self.marked = true;
            return;
        };
        self.requeued = decision.decide(self.task, drops);
        self.marked = !self.requeued;
    }

    /// On the CPU device, a look at the word costs no more than a look at the clock.
    #[cfg(not(target_arch = "nvptx64"))]
    fn look(&mut self) -> bool {
        self.ask();
        self.has_to_leave(self.asked)
    }

    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    fn look(&mut self) -> bool {
        let watch = watch();
        let (clock, last) = (target::clock(), watch.last());
        let was_asked = core::mem::take(&mut self.is_asked);
        // One branch, which most yield points take.
        if last.is_recent(clock) & !was_asked {
            return false;
        }
        // What the last yield point asked for has arrived.
        let (mut word, mut is_known) = (self.asked, was_asked);
        if !last.is_recent(clock)
            && !last.is_end()
            && target::is_leader()
            && watch.takes_turn(last, clock)
        {
            self.ask();
            // The next yield point may come late or never, so after a long time without a look this one waits
            // for the word.
            let waits = last.is_old(clock);
            self.is_asked = !waits;
            if waits {
                (word, is_known) = (self.asked, true);
            }
        }
        // In one place, so that the choice is there once.
        if is_known && self.has_to_leave(word) {
            watch.end(is_revoked(word));
            return true;
        }
        last.is_end() && (!self.marked || last.is_revoked())
    }

    /// Loads the queue's word, without waiting for it.
    #[inline(always)]
    fn ask(&mut self) {
        // SAFETY: the promise of `new`: only its results are requeueable, and only for those this is called.
        self.asked = unsafe { &*self.queue }.signal.load(Relaxed);
    }

    /// Whether a word of the queue takes the SM from the cohort, and the block is not to end its tasks first. A marked
    /// block-task is not stopped by any word but that of a revocation.
    ///
    /// A word that is not newer than the cohort's own does not, and is what most yield points find. Blocks on SMs that the
    /// cohort itself was not granted leave before their first task. The one exception is a task for which the list has no
    /// room: it runs until a newer word comes, or to its end.
    #[inline(always)]
    fn has_to_leave(&self, word: u64) -> bool {
        let word = Signal::from_bits(word);
        word.is_newer(self.granted)
            && !word.range().contains(target::sm_id())
            && if self.marked { word.limit() == StopLimit::REVOKED } else { !self.drains(word) }
    }

    /// Whether the running tasks are expected to end within the limit of a signal, which counts from its arrival if that is
    /// known. Then the block loses nothing if it ends them.
    ///
    /// Without any state: as long as a task takes no longer than the longest before it, both its rest and what is left of the
    /// limit are shorter later, and what was expected to end in time still is. Of a longer task, a part of the time that it has
    /// taken is expected to be left ([`LATE`]). So it leaves ahead of the limit, and is not dropped for being a little longer
    /// than any before it when it is nearly done.
    #[inline(always)]
    fn drains(&self, signal: Signal) -> bool {
        let limit = match signal.limit() {
            StopLimit::SOONEST => return self.is_spent(),
            StopLimit::REVOKED => return false,
            // No technique keeps to nothing, so none is worth its costs.
            StopLimit::ZERO | StopLimit::NEVER => return true,
            limit => limit.nanos(),
        };
        // SAFETY: the promise of `new`, whose results alone have a signal with a limit.
        let (cohort, queue) = unsafe { (&*self.cohort, &*self.queue) };
        if cohort.longest == 0 {
            return false;
        }
        let elapsed = self.elapsed();
        let rest = cohort.longest.saturating_sub(elapsed).max(elapsed / LATE);
        let since = queue.since(signal, target::global_timer()).unwrap_or(0);
        let left = limit.saturating_sub(u64::from(since) + LEAVING);
        // 2³⁵ ns at most, and a clock of less than 16 GHz.
        u64::from(rest) <= (left * u64::from(cohort.clock)) >> 20
    }

    /// Units of the worker loop's clock: the time since the running tasks began.
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    fn elapsed(&self) -> u32 {
        // SAFETY: the notes are the block's while the kernel runs.
        let notes = unsafe { &*crate::entry::notes() };
        notes.elapsed(target::clock())
    }

    /// Whether a signal without a limit has the running tasks run to their end.
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    fn is_spent(&self) -> bool {
        // SAFETY: as above.
        unsafe { &*crate::entry::notes() }.is_spent()
    }

    #[cfg(not(target_arch = "nvptx64"))]
    fn is_spent(&self) -> bool {
        self.is_spent
    }

    #[cfg(not(target_arch = "nvptx64"))]
    fn elapsed(&self) -> u32 {
        // An unknown one counts as the longest.
        self.began
            .map_or(u32::MAX, |began| began.elapsed().as_nanos().try_into().unwrap_or(u32::MAX))
    }

    /// Whether all threads of the block have to return at this yield point, in a body with barriers. All of
    /// them call this.
    ///
    /// One thread looks, and tells the others at a barrier that nothing else uses, if the code generator has
    /// more than one. So threads that disagree hang, and cannot meet others at a barrier of the body or of
    /// the worker loop.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn vote(&mut self) -> bool {
        if self.requeueable {
            self.requeued = self.look_together();
        }
        self.requeued
    }

    /// Whether one thread of the block finds that the block has to leave its SM.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn look_together(&mut self) -> bool {
        let mut is_taken = false;
        // All work is in one branch, which every warp but one skips.
        if target::is_first_thread() && self.requeueable {
            is_taken = self.has_to_leave(self.asked);
            self.ask();
        }
        target::yield_vote(is_taken)
    }

    /// Votes as [`vote`](Yields::vote) does, after the barrier `wait` of the body. The vote is a barrier,
    /// too, so it replaces that one.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn vote_or_wait(&mut self, wait: impl FnOnce()) -> bool {
        if self.is_off {
            wait();
        } else {
            // Also for tasks that cannot be requeued: with one barrier for either case, the compiler would
            // turn the surrounding loop into two.
            self.requeued = self.look_together();
        }
        self.requeued
    }

    /// Whether all threads of the block have to return at this yield point, in a body with markers and barriers. All
    /// of them call this.
    ///
    /// They return only if none is marked, or if the launch was revoked. One reduction tells all: a thread that is not marked
    /// says yes, and the first thread, which looks, does so if the SM was taken, too. A thread that has passed a marker ahead
    /// of this yield point comes here as all others do, so none of them drops the block-task, and there is no decision to share
    /// before that. A marked thread says yes once the first thread has told it of a revocation. It may read that at this vote
    /// or at the next: all go by the one result.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn vote_unless_marked(&mut self) -> bool {
        if self.requeueable {
            self.requeued = self.look_together_unless_marked();
        }
        self.requeued
    }

    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn look_together_unless_marked(&mut self) -> bool {
        let mut drops = !self.marked || self.knows_of_revocation();
        if target::is_first_thread() {
            let mut is_taken = false;
            if self.requeueable {
                is_taken = self.has_to_leave(self.asked);
                #[cfg(target_arch = "nvptx64")]
                if is_taken && is_revoked(self.asked) {
                    watch().end(true);
                }
                self.ask();
            }
            drops = is_taken;
        }
        let drops = target::yield_vote_all(drops);
        #[cfg(not(any(target_arch = "nvptx64", all(test, loom))))]
        if drops && target::is_first_thread() && !self.marked {
            count(true);
        }
        drops
    }

    /// Whether the thread of the block that looks has found that the launch was revoked.
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    fn knows_of_revocation(&self) -> bool {
        is_block_revoked()
    }

    /// Whether the launch was revoked. On the CPU device each thread looks by itself.
    #[cfg(not(target_arch = "nvptx64"))]
    fn knows_of_revocation(&self) -> bool {
        // SAFETY: the promise of `new`: only its results are requeueable. The thread is marked, so no other word counts.
        self.requeueable && self.has_to_leave(unsafe { &*self.queue }.signal.load(Relaxed))
    }

    /// Votes as [`vote_unless_marked`](Yields::vote_unless_marked) does, after the barrier `wait` of the body.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn vote_or_wait_unless_marked(&mut self, wait: impl FnOnce()) -> bool {
        if self.is_off {
            wait();
        } else {
            // As in `vote_or_wait`.
            self.requeued = self.look_together_unless_marked();
        }
        self.requeued
    }

    /// Lets the block-task run to its end unless its launch is revoked, in a body with barriers. No thread returns here: all have
    /// come past the last yield point, which none of them does in a block-task that is dropped there.
    #[inline(always)]
    pub fn mark_together(&mut self) {
        #[cfg(not(any(target_arch = "nvptx64", all(test, loom))))]
        if self.requeueable && !self.marked {
            count(false);
        }
        self.marked = true;
    }

    /// Whether the thread requeued its task.
    #[inline(always)]
    pub fn requeued(&self) -> bool {
        self.requeued
    }
}

/// Asserts, in a constant, that `T` is the type of a number, or of an array of numbers, and that the value is a constant
/// or an immutable `static`: the compiler evaluates no other.
#[doc(hidden)]
pub const fn constant<T: Constant>(_: T) {}

/// Implemented for numbers, arrays of numbers, the operations of reductions, and orderings of atomic operations.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "a kernel with yield points names a value that is no number and no array of numbers",
    label = "what operators and methods of `{Self}` do is not known",
    note = "use constants that are numbers; or, if a block-task that runs again from its start gives the same result \
            wherever its threads stopped, declare it: `#[preemptible(idempotent)]`"
)]
pub trait Constant: Copy {}

macro_rules! constants {
    ($($ty:ty)*) => { $(impl Constant for $ty {})* };
}
constants!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64 bool char);

impl Constant for crate::warp::WarpReductionOp {}

impl Constant for crate::atomic::Ordering {}

impl<T: Constant, const N: usize> Constant for [T; N] {}

/// Starts the watch of a block. One thread calls this, before a barrier of the block. Threads may reach yield
/// points only after that barrier.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
pub(crate) fn start_block() {
    // SAFETY: the word is this block's, and no other thread uses it before the barrier.
    unsafe { target::yield_word().cast::<Watch>().write(Watch::new(target::clock())) }
}

/// Starts the decisions of a block of a kernel with markers, as [`start_block`] starts its watch.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
pub(crate) fn start_decisions() {
    // SAFETY: as in `start_block`.
    unsafe { decision_word().write(Decision::default()) }
}

/// The upper half of the word whose lower half is the watch.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
fn decision_word() -> *mut Decision {
    const { assert!(size_of::<Watch>() + size_of::<Decision>() == size_of::<u64>()) };
    target::yield_word().cast::<Decision>().wrapping_add(1)
}

/// The watch of the block.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
fn watch() -> &'static Watch {
    // SAFETY: the word is this block's while the kernel runs, and `start_block` has set it.
    unsafe { &*target::yield_word().cast::<Watch>() }
}

/// Whether a thread of the block has found that its launch was revoked, in bodies with yield points.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
pub(crate) fn is_block_revoked() -> bool {
    watch().last().is_revoked()
}

/// Whether a queue's word revokes what it stops.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
fn is_revoked(word: u64) -> bool {
    Signal::from_bits(word).limit() == StopLimit::REVOKED
}

#[cfg(target_arch = "nvptx64")]
use watch::Watch;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::watch::{OLD_PERIODS, PERIOD, Watch};
    use super::*;
    use crate::abi::SmRange;
    use crate::host::{Dim3, ThreadContext, with_thread};

    #[test]
    fn a_block_looks_once_in_a_period() {
        for start in [0, 7 * PERIOD, PERIOD.wrapping_neg()] {
            let watch = Watch::new(start + 5);
            let looks = |clock| {
                let last = watch.last();
                !last.is_recent(clock) && watch.takes_turn(last, clock)
            };
            assert!(!looks(start) && !looks(start | (PERIOD - 1)));
            let later = start.wrapping_add(PERIOD);
            assert!(looks(later));
            assert!(!looks(later.wrapping_add(PERIOD - 1)));
            assert!(looks(later.wrapping_add(9 * PERIOD)));
        }
    }

    #[test]
    fn a_look_grows_old() {
        for start in [0, PERIOD.wrapping_neg()] {
            let last = Watch::new(start).last();
            assert!(!last.is_old(start.wrapping_add(OLD_PERIODS * PERIOD)));
            assert!(last.is_old(start.wrapping_add((OLD_PERIODS + 1) * PERIOD)));
        }
    }

    #[test]
    fn of_two_concurrent_threads_one_looks() {
        let watch = Watch::new(0);
        let last = watch.last();
        assert!(watch.takes_turn(last, PERIOD) && !watch.takes_turn(last, PERIOD));
    }

    #[test]
    fn a_taken_sm_stays_taken() {
        let watch = Watch::new(7);
        assert!(!watch.last().is_end());
        watch.end(false);
        for clock in [PERIOD + 9, 2 * PERIOD, 3 * PERIOD, 1 << 30] {
            assert!(watch.last().is_end() && !watch.last().is_recent(clock));
        }
    }

    #[test]
    fn a_marked_block_looks_again_until_its_launch_is_revoked() {
        let watch = Watch::new(0);
        watch.end(false);
        watch.resume(2 * PERIOD + 9);
        assert!(!watch.last().is_end() && watch.last().is_recent(2 * PERIOD));
        watch.end(true);
        watch.resume(4 * PERIOD);
        assert!(watch.last().is_end() && watch.last().is_revoked());
        watch.end(false);
        assert!(watch.last().is_revoked(), "a thread with an older word hides nothing");
    }

    #[test]
    fn only_a_requeueable_task_on_a_taken_sm_is_requeued() {
        let queue = DeviceQueue::default();
        let taken_within = |limit: StopLimit| {
            let signal = Signal::within(2, SmRange::new(1, 4), limit);
            queue.signal.store(signal.to_bits(), Relaxed);
        };
        let requeues = |requeues: u32, epoch: u64, sm: u32| {
            // SAFETY: all zeros are a cohort; nothing follows its pointers.
            let cohort: Cohort = unsafe { std::mem::zeroed() };
            let cohort =
                Cohort { queue: &queue, signal: Signal::new(epoch, SmRange::ALL), ..cohort };
            let context = ThreadContext {
                thread: Dim3::from(0),
                block: Dim3::from(0),
                block_dim: Dim3::from(1),
                grid_dim: Dim3::from(1),
                sm,
                shared: std::ptr::null_mut(),
                // SAFETY: the queue is there until the end of this test.
                yields: unsafe { Yields::new(&cohort, requeues) },
                wait: |_| unreachable!(),
            };
            let body = || {
                let mut yields = Yields::of_thread();
                assert!(!yields.requeued());
                assert_eq!(yields.poll(), yields.requeued());
                let requeued = yields.requeued();
                // Of the same task, behind a marker.
                let decision = Decision::default();
                // SAFETY: the word is there until the end of this call.
                let mut yields = unsafe { Yields::of_thread().decided_by(&decision, 0) };
                assert!(!yields.mark());
                (requeued, yields.poll_unless_marked())
            };
            // SAFETY: the body ends before the context goes.
            unsafe { with_thread(&context, body) }
        };
        for (limit, most) in
            [(StopLimit::SOONEST, MAX_REQUEUES), (StopLimit::within(9000), MAX_REQUEUES_FOR_LIMITS)]
        {
            taken_within(limit);
            let (yes, no) = ((true, false), (false, false));
            assert_eq!((requeues(0, 1, 0), requeues(most - 1, 1, 0)), (yes, yes));
            assert_eq!(requeues(0, 1, 1), no, "the SM is granted");
            assert_eq!(requeues(0, 3, 0), no, "the word is older than the cohort");
            assert_eq!(requeues(most, 1, 0), no, "the task has to run to its end");
        }
        taken_within(StopLimit::REVOKED);
        for spent in [0, MAX_REQUEUES] {
            assert_eq!(requeues(spent, 1, 0), (true, true), "nothing of it counts");
        }
        assert_eq!((requeues(0, 1, 1), requeues(0, 3, 0)), ((false, false), (false, false)));
    }

    #[test]
    fn a_block_that_is_expected_to_end_in_time_is_not_left() {
        use std::time::{Duration, Instant};
        let queue = DeviceQueue::default();
        // SAFETY: all zeros are a cohort; nothing follows its other pointers.
        let cohort: Cohort = unsafe { std::mem::zeroed() };
        let signal = |epoch, limit| Signal::within(epoch, SmRange::EMPTY, limit);
        // Times in tenths of a second, on a clock of nanoseconds.
        let drains_for = |began: u64, longest: u64, signal: Signal| {
            let longest = (longest * 100_000_000) as u32;
            let cohort = Cohort { queue: &queue, longest, clock: 1 << 20, ..cohort };
            let began = Instant::now().checked_sub(Duration::from_millis(100 * began));
            let began = began.expect("the machine runs for longer");
            // SAFETY: the cohort is there until the end of this closure.
            unsafe { Yields::new(&cohort, 0) }.begun(began).drains(signal)
        };
        let drains = |began, longest, limit| drains_for(began, longest, signal(1, limit));
        // A task that begins only later has all of its time left. Its block has to leave within the limit, too.
        let later = Instant::now() + Duration::from_secs(1000);
        let begins = |longest: u64| {
            let cohort =
                Cohort { queue: &queue, longest: longest as u32, clock: 1 << 20, ..cohort };
            // SAFETY: the cohort is there until the end of this closure.
            let yields = unsafe { Yields::new(&cohort, 0) };
            yields.begun(later).drains(signal(1, StopLimit::within(16_384)))
        };
        assert!(begins(16_384 - LEAVING) && !begins(16_384 - LEAVING + 1));
        let limit = |tenths: u64| StopLimit::within(tenths * 100_000_000);
        assert!(drains(0, 30, limit(31 + 4)), "all of it fits");
        assert!(!drains(0, 30, limit(20)) && drains(20, 30, limit(20)), "the rest fits");
        assert!(!drains(0, 0, limit(20)), "nothing is known");
        // Limits are kept with four bits.
        let is_late =
            "an eighth of the time so far is left, although it takes longer than any before it";
        assert!(drains(40, 30, limit(7)) && !drains(40, 30, limit(4)), "{is_late}");
        assert!(!drains(20, 30, StopLimit::SOONEST) && !drains(20, 30, StopLimit::REVOKED));
        assert!(drains(0, 30, StopLimit::ZERO) && drains(0, 0, StopLimit::NEVER));
        // The first word came three tenths ago, of the second nothing is known.
        let (first, second) = (signal(2, limit(12)), signal(3, limit(12)));
        let came = target::global_timer().wrapping_sub(300_000_000);
        queue.arrived.store(DeviceQueue::arrival(first, came), Relaxed);
        assert!(!drains_for(20, 30, first) && drains_for(20, 30, second), "it counts from there");
        assert!(drains_for(24, 30, first));
    }
}
