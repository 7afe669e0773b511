//! Yield points: where a block-task can be requeued in its middle.

use core::marker::PhantomData;
use core::ops::Deref;

use crate::abi::{Cohort, DeviceQueue, Signal};
use crate::atomic_shim::Ordering::Relaxed;
use crate::target;

/// Gives the SM up here, if it was taken from the kernel.
///
/// `yield_point!();` as a statement of a kernel that is `#[preemptible(idempotent)]`. If the SM was
/// taken, the thread returns; its block-task runs again later from its start, in all threads.
/// The kernel's [documentation](crate::preemptible#yield-points) says what that asks of it.
#[macro_export]
macro_rules! yield_point {
    ($($tokens:tt)*) => {
        ::core::compile_error!(
            "`yield_point!` works directly in the body of a `#[preemptible(idempotent)]` kernel, \
             from which it returns; put it there, between the calls of this function"
        )
    };
}

/// What the yield points of one thread look at, in one block-task.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Yields {
    queue: *const DeviceQueue,
    granted: Signal,
    /// Whether the task may be requeued.
    requeueable: bool,
    /// Whether this thread has requeued it.
    requeued: bool,
    /// Whether nobody requeues tasks in this entry, which the compiler sees.
    is_off: bool,
    /// The queue's word, if this thread looks for its block: asked for at one yield point and looked at at the next one,
    /// since it takes as long as hundreds of instructions to come.
    asked: u64,
    /// Whether it was asked for at the last yield point, in bodies without barriers.
    #[cfg_attr(not(target_arch = "nvptx64"), expect(dead_code, reason = "nobody waits there"))]
    is_asked: bool,
}

impl Yields {
    /// For tasks that nobody requeues.
    pub const OFF: Yields = Yields {
        queue: core::ptr::null(),
        granted: Signal::from_bits(0),
        requeueable: false,
        requeued: false,
        is_off: true,
        asked: 0,
        is_asked: false,
    };

    /// For a task of `cohort`, which has to run to its end unless it is `requeueable`.
    ///
    /// # Safety
    ///
    /// The cohort's queue is alive until the block is over, for all that it asks of the result or of copies of it.
    #[inline(always)]
    pub unsafe fn new(cohort: &Cohort, requeueable: bool) -> Yields {
        let (queue, granted) = (cohort.queue, cohort.signal);
        let asked = granted.to_bits();
        Yields {
            queue,
            granted,
            requeueable,
            requeued: false,
            is_off: false,
            asked,
            is_asked: false,
        }
    }

    /// As the device gave them to the emulated thread that is current.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn of_thread() -> Yields {
        target::yields()
    }

    /// A yield point: whether the thread has to return now.
    #[inline(always)]
    pub fn poll(&mut self) -> bool {
        if self.requeueable {
            self.requeued = self.look();
        }
        self.requeued
    }

    /// On the CPU device, looking costs no more than a clock would.
    #[cfg(not(target_arch = "nvptx64"))]
    fn look(&mut self) -> bool {
        self.ask();
        self.is_taken()
    }

    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    fn look(&mut self) -> bool {
        // SAFETY: the word is this block's while the kernel runs, and `start_block` has set it.
        let watch = unsafe { &*target::yield_word().cast::<Watch>() };
        let clock = target::clock();
        if self.is_asked {
            self.is_asked = false;
            if self.is_taken() {
                watch.end(clock);
                return true;
            }
        }
        let last = watch.last();
        if last.is_recent(clock) {
            return false;
        }
        if !last.is_end() && target::is_leader() && watch.takes_turn(last, clock) {
            self.ask();
            // Where yield points are few, the next one may be none, or late: this one waits.
            self.is_asked = !last.is_old(clock);
            if !self.is_asked && self.is_taken() {
                watch.end(clock);
                return true;
            }
        }
        last.is_end()
    }

    /// Reads the queue's word. Nobody waits for it here.
    #[inline(always)]
    fn ask(&mut self) {
        // SAFETY: the promise of `new`, since only its result is requeueable, and others do not ask.
        self.asked = unsafe { &*self.queue }.signal.load(Relaxed);
    }

    /// Whether what was asked for takes the SM.
    #[inline(always)]
    fn is_taken(&self) -> bool {
        !self.granted.grants_with(self.asked, target::sm_id())
    }

    /// A yield point in a body with barriers: whether all threads of the block have to return now. All of
    /// them come here.
    ///
    /// One thread looks, and tells the others at a barrier that nothing else uses, where the code generator
    /// has more than one: threads that disagree then hang, and cannot meet others at a barrier of the body
    /// or of the worker loop.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn vote(&mut self) -> bool {
        // The same for all threads of the block.
        if self.requeueable {
            self.requeued = self.look_together();
        }
        self.requeued
    }

    /// Whether one thread of the block finds that all have to return.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn look_together(&mut self) -> bool {
        let mut is_taken = false;
        // All that there is to do in one branch: every other warp goes past it.
        if target::is_first_thread() && self.requeueable {
            is_taken = self.is_taken();
            self.ask();
        }
        target::yield_vote(is_taken)
    }

    /// [`vote`](Yields::vote) after the barrier of the body that `wait` is. The vote is one, too, so where there is
    /// one the other is left out.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn vote_or_wait(&mut self, wait: impl FnOnce()) -> bool {
        if self.is_off {
            wait();
        } else {
            // Also where the task is not requeueable: with a barrier for either case, the compiler would make two
            // loops of the one that they are in.
            self.requeued = self.look_together();
        }
        self.requeued
    }

    /// Whether the thread requeued its task.
    #[inline(always)]
    pub fn requeued(&self) -> bool {
        self.requeued
    }
}

/// The types of two functions. Each function has a type of its own, whatever path it is named by, so the two are
/// one function exactly if this is `Functions<F, F>`.
#[doc(hidden)]
#[derive(Debug)]
pub struct Functions<A, B>(PhantomData<(A, B)>);

/// See [`Functions`].
#[doc(hidden)]
#[inline(always)]
pub const fn functions<A, B>(_: &A, _: &B) -> Functions<A, B> {
    Functions(PhantomData)
}

impl<A, B> Functions<A, B> {
    /// Asserts that the two are one function.
    pub const fn assert_same(&self)
    where
        Functions<A, B>: Same,
    {
    }
}

impl<F> Functions<F, F> {
    /// A yield point behind a call of the first function, where the second one is `sync_threads`: the two are one
    /// barrier. For other functions, this means that of [`Different`].
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn vote_after(&self, yields: &mut Yields, call: impl FnOnce()) -> bool {
        yields.vote_or_wait(call)
    }
}

impl<A, B> Deref for Functions<A, B> {
    type Target = Different;

    #[inline(always)]
    fn deref(&self) -> &Different {
        &Different
    }
}

/// Implemented for [`Functions`] that are the same.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "this function goes by the name of one of `preempt_device::thread` or `core`, and is another",
    label = "another function of that name",
    note = "in a kernel with barriers, what is known of that function decides whether all threads of a block come to \
            a yield point together; give the other one another name"
)]
pub trait Same {}

impl<F> Same for Functions<F, F> {}

/// Two functions that are not the same.
#[doc(hidden)]
#[derive(Debug)]
pub struct Different;

impl Different {
    /// A yield point behind a call that is no barrier, or not known to be one.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn vote_after(&self, yields: &mut Yields, call: impl FnOnce()) -> bool {
        call();
        yields.vote()
    }
}

/// Starts the watch of a block. On one thread, before a barrier of the block, after which its threads may come to
/// yield points.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
pub(crate) fn start_block() {
    // SAFETY: the word is this block's, and nobody else uses it before the barrier.
    unsafe { target::yield_word().cast::<Watch>().write(Watch::new(target::clock())) }
}

#[cfg(target_arch = "nvptx64")]
use watch::Watch;

/// How the warps of a block without barriers look at their signal together.
#[cfg(any(target_arch = "nvptx64", all(test, not(loom))))]
mod watch {
    use crate::atomic_shim::{AtomicU32, Ordering::Relaxed};

    /// A block looks once in so many cycles, about 2 µs. All blocks of a queue look at the same word; if they did at
    /// each yield point, they would queue for it.
    pub const PERIOD: u32 = 1 << 12;

    /// When the block looked last: the clock, without the bits of a period; or [`TAKEN`], and then the clock is far
    /// from what it will be in the next second.
    ///
    /// Warps come as they will. The first one of a period exchanges the word, and looks; the others only compare the
    /// word with the clock.
    ///
    /// Relaxed: it says when to look, and that the SM was taken, and nothing else is read on its account.
    #[repr(transparent)]
    pub struct Watch(AtomicU32);

    /// After so many periods a look is old.
    pub const OLD_PERIODS: u32 = 4;

    /// The SM was taken from the cohort, which does not get it back.
    const TAKEN: u32 = 1;

    impl Watch {
        /// The watch of a block that has looked just now.
        #[inline(always)]
        pub fn new(clock: u32) -> Watch {
            Watch(AtomicU32::new(clock & !(PERIOD - 1)))
        }

        /// The last look.
        #[inline(always)]
        pub fn last(&self) -> Last {
            Last(self.0.load(Relaxed))
        }

        /// Whether this thread is to look, since nobody has looked after `last`. It is one thread that is.
        #[inline(always)]
        pub fn takes_turn(&self, last: Last, clock: u32) -> bool {
            self.0.compare_exchange(last.0, clock & !(PERIOD - 1), Relaxed, Relaxed).is_ok()
        }

        /// Tells the block that the SM was taken.
        #[inline(always)]
        pub fn end(&self, clock: u32) {
            // An exchange, since `racecheck` takes a store for a race with what others read meanwhile.
            self.0.swap((clock & !(PERIOD - 1)) ^ 1 << 31 | TAKEN, Relaxed);
        }
    }

    /// When a block looked last, as its watch said at some time.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Last(u32);

    impl Last {
        /// Whether that was in the period of `clock`.
        #[inline(always)]
        pub fn is_recent(self, clock: u32) -> bool {
            self.0 ^ clock < PERIOD
        }

        /// Whether that was many periods ago: whoever looks now may not come to a yield point again for long.
        #[inline(always)]
        pub fn is_old(self, clock: u32) -> bool {
            clock.wrapping_sub(self.0) > OLD_PERIODS * PERIOD
        }

        /// Whether it saw that the SM was taken.
        #[inline(always)]
        pub fn is_end(self) -> bool {
            self.0 & TAKEN > 0
        }
    }
}

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
    fn of_two_threads_that_come_at_the_same_time_one_looks() {
        let watch = Watch::new(0);
        let last = watch.last();
        assert!(watch.takes_turn(last, PERIOD) && !watch.takes_turn(last, PERIOD));
    }

    #[test]
    fn a_block_that_saw_the_end_knows_it_from_then_on() {
        let watch = Watch::new(7);
        assert!(!watch.last().is_end());
        watch.end(PERIOD + 9);
        for clock in [PERIOD + 9, 2 * PERIOD, 3 * PERIOD, 1 << 30] {
            assert!(watch.last().is_end() && !watch.last().is_recent(clock));
        }
    }

    #[test]
    fn only_a_droppable_task_on_a_taken_sm_is_dropped() {
        let queue = DeviceQueue::default();
        queue.signal.store(Signal::new(2, SmRange::new(1, 4)).to_bits(), Relaxed);
        let requeues = |requeueable: bool, epoch: u64, sm: u32| {
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
                yields: unsafe { Yields::new(&cohort, requeueable) },
                wait: |_| unreachable!(),
            };
            let body = || {
                let mut yields = Yields::of_thread();
                assert!(!yields.requeued());
                assert_eq!(yields.poll(), yields.requeued());
                yields.requeued()
            };
            // SAFETY: the body ends before the context goes.
            unsafe { with_thread(&context, body) }
        };
        assert!(requeues(true, 1, 0));
        assert!(!requeues(true, 1, 1), "the SM is granted");
        assert!(!requeues(true, 3, 0), "the word is older than the cohort");
        assert!(!requeues(false, 1, 0), "the task has to run to its end");
    }
}
