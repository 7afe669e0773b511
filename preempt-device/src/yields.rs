//! Yield points: where a block-task can be dropped in its middle.

use crate::abi::{Cohort, Lane, Signal};
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
    lane: *const Lane,
    granted: Signal,
    /// Whether the task may be dropped.
    droppable: bool,
    /// Whether this thread has dropped it.
    dropped: bool,
    /// Whether nobody drops tasks in this entry, which the compiler sees.
    is_off: bool,
}

impl Yields {
    /// For tasks that nobody drops.
    pub const OFF: Yields = Yields {
        lane: core::ptr::null(),
        granted: Signal::from_bits(0),
        droppable: false,
        dropped: false,
        is_off: true,
    };

    /// For a task of `cohort`, which has to run to its end unless it is `droppable`.
    ///
    /// # Safety
    ///
    /// The cohort's lane is alive while the result or a copy of it is used.
    #[inline(always)]
    pub unsafe fn new(cohort: &Cohort, droppable: bool) -> Yields {
        let (lane, granted) = (cohort.lane, cohort.signal);
        Yields { lane, granted, droppable, dropped: false, is_off: false }
    }

    /// As the device gave them to the emulated thread that is current.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn of_thread() -> Yields {
        target::yields()
    }

    /// A yield point: whether the thread has to return now.
    #[inline(always)]
    pub fn poll(&mut self) -> bool {
        if self.droppable {
            // SAFETY: the promise of `new`, since only its result is droppable.
            let lane = unsafe { &*self.lane };
            self.dropped = sm_is_taken(|| !lane.grants(self.granted, target::sm_id()));
        }
        self.dropped
    }

    /// A yield point in a body with barriers: whether all threads of the block have to return now. All of
    /// them come here.
    ///
    /// One thread looks, and tells the others at a barrier that nothing else uses, where the code generator
    /// has more than one: threads that disagree then hang, and cannot meet others at a barrier of the body
    /// or of the worker loop.
    #[inline(always)]
    pub fn vote(&mut self) -> bool {
        // The same for all threads of the block.
        if self.droppable {
            self.dropped = self.look_together();
        }
        self.dropped
    }

    /// Whether one thread of the block finds that all have to return.
    #[inline(always)]
    fn look_together(&mut self) -> bool {
        let looks = crate::thread::thread_number() == 0;
        let taken = looks && self.poll();
        target::yield_vote(taken)
    }

    /// [`vote`](Yields::vote) after the barrier of the body that `wait` is. The vote is one, too, so where there is
    /// one the other is left out.
    #[inline(always)]
    pub fn vote_or_wait(&mut self, wait: impl FnOnce()) -> bool {
        if self.is_off {
            wait();
        } else {
            // Also where the task is not droppable: with a barrier for either case, the compiler would make two
            // loops of the one that they are in.
            self.dropped = self.look_together();
        }
        self.dropped
    }

    /// Whether the thread dropped its task.
    #[inline(always)]
    pub fn dropped(&self) -> bool {
        self.dropped
    }
}

/// On the CPU device, looking costs no more than a clock would.
#[cfg(not(target_arch = "nvptx64"))]
fn sm_is_taken(look: impl FnOnce() -> bool) -> bool {
    look()
}

#[cfg(target_arch = "nvptx64")]
#[inline(always)]
fn sm_is_taken(look: impl FnOnce() -> bool) -> bool {
    // SAFETY: the word is this block's while the kernel runs, `start_block` has set it, and all
    // accesses are atomic.
    let watch = unsafe { &*target::yield_word().cast::<Watch>() };
    watch.is_taken(target::clock(), look)
}

/// Starts the watch of a block. On one thread, before a barrier of the block, after which its
/// threads may come to yield points.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
pub(crate) fn start_block() {
    // SAFETY: the word is this block's, and nobody else uses it before the barrier.
    unsafe { target::yield_word().cast::<Watch>().write(Watch::new(target::clock())) }
}

#[cfg(target_arch = "nvptx64")]
use watch::Watch;

/// How the warps of a block look at their signal together.
#[cfg(any(target_arch = "nvptx64", all(test, not(loom))))]
mod watch {
    use crate::atomic_shim::{AtomicU32, Ordering::Relaxed};

    /// Of the clock, the bits below count for nothing: a block looks once in 2048 cycles, about 1 µs. All blocks
    /// of a lane look at the same word; if they did at each yield point, they would queue for it.
    pub const PERIOD_BITS: u32 = 11;

    /// [`TAKEN`], or else the period in which the block looked last. So what most yield points do is to read two
    /// words and compare them.
    ///
    /// Warps look and write as they come: two may look in the same period, or one after another one has looked
    /// in the next, and one of them may write over `TAKEN` what it read before. All that costs no more than
    /// another look.
    #[repr(transparent)]
    pub struct Watch(AtomicU32);

    /// The SM was taken from the cohort, which does not get it back. No period has this number.
    const TAKEN: u32 = u32::MAX;

    impl Watch {
        /// The watch of a block that has looked just now.
        #[inline(always)]
        pub fn new(clock: u32) -> Watch {
            Watch(AtomicU32::new(clock >> PERIOD_BITS))
        }

        /// Whether the SM was taken: what the block knows already, or else what `look` says, if the
        /// last look was in another period.
        #[inline(always)]
        pub fn is_taken(&self, clock: u32, look: impl FnOnce() -> bool) -> bool {
            let (word, period) = (self.0.load(Relaxed), clock >> PERIOD_BITS);
            if word == period {
                return false;
            }
            if word == TAKEN {
                return true;
            }
            // Before the look, which takes a while, so that few other warps look as well.
            self.0.store(period, Relaxed);
            let taken = look();
            if taken {
                self.0.store(TAKEN, Relaxed);
            }
            taken
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::watch::{PERIOD_BITS, Watch};
    use super::*;
    use crate::abi::SmRange;
    use crate::atomic_shim::Ordering::Relaxed;
    use crate::host::{Dim3, ThreadContext, with_thread};

    /// Whether the watch was asked to look at `clock`, and found the SM still there.
    fn looks(watch: &Watch, clock: u32) -> bool {
        let mut looked = false;
        assert!(!watch.is_taken(clock, || {
            looked = true;
            false
        }));
        looked
    }

    #[test]
    fn a_block_looks_once_in_a_period() {
        const PERIOD: u32 = 1 << PERIOD_BITS;
        for start in [0, 7 * PERIOD, PERIOD.wrapping_neg()] {
            let watch = Watch::new(start + 5);
            assert!(!looks(&watch, start) && !looks(&watch, start | (PERIOD - 1)));
            let later = start.wrapping_add(PERIOD);
            assert!(looks(&watch, later));
            assert!(!looks(&watch, later.wrapping_add(PERIOD - 1)));
            assert!(looks(&watch, later.wrapping_add(9 * PERIOD)));
        }
    }

    #[test]
    fn a_block_that_has_seen_the_end_does_not_look_again() {
        let watch = Watch::new(7);
        assert!(watch.is_taken(7 << PERIOD_BITS, || true));
        for clock in [0, 7, 3 << PERIOD_BITS, u32::MAX] {
            assert!(watch.is_taken(clock, || unreachable!()));
        }
    }

    #[test]
    fn only_a_droppable_task_on_a_taken_sm_is_dropped() {
        let lane = Lane::default();
        lane.signal.store(Signal::new(2, SmRange::new(1, 4)).to_bits(), Relaxed);
        let drops = |droppable: bool, epoch: u64, sm: u32| {
            // SAFETY: all zeros are a cohort; nothing follows its pointers.
            let cohort: Cohort = unsafe { std::mem::zeroed() };
            let cohort = Cohort { lane: &lane, signal: Signal::new(epoch, SmRange::ALL), ..cohort };
            let context = ThreadContext {
                thread: Dim3::from(0),
                block: Dim3::from(0),
                block_dim: Dim3::from(1),
                grid_dim: Dim3::from(1),
                sm,
                shared: std::ptr::null_mut(),
                // SAFETY: the lane is there until the end of this test.
                yields: unsafe { Yields::new(&cohort, droppable) },
                wait: |_| unreachable!(),
            };
            let body = || {
                let mut yields = Yields::of_thread();
                assert!(!yields.dropped());
                assert_eq!(yields.poll(), yields.dropped());
                yields.dropped()
            };
            // SAFETY: the body ends before the context goes.
            unsafe { with_thread(&context, body) }
        };
        assert!(drops(true, 1, 0));
        assert!(!drops(true, 1, 1), "the SM is granted");
        assert!(!drops(true, 3, 0), "the word is older than the cohort");
        assert!(!drops(false, 1, 0), "the task has to run to its end");
    }
}
