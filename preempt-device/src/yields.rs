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
    /// The cohort's lane is alive until the block is over, for all that it asks of the result or of copies of it.
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
            self.dropped = sm_is_taken(unsafe { &*self.lane }, self.granted);
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
        let taken = target::is_first_thread() && {
            // What this thread has asked for at the vote before is there.
            #[cfg(target_arch = "nvptx64")]
            target::await_copies();
            self.poll()
        };
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
fn sm_is_taken(lane: &Lane, granted: Signal) -> bool {
    !lane.grants(granted, target::sm_id())
}

#[cfg(target_arch = "nvptx64")]
#[inline(always)]
fn sm_is_taken(lane: &Lane, granted: Signal) -> bool {
    // SAFETY: the words are this block's while the kernel runs, `start_block` has set them, and all
    // accesses are atomic.
    let watch = unsafe { &*target::yield_words().cast::<Watch>() };
    let is_granted = |word| granted.grants_with(word, target::sm_id());
    // SAFETY: the lane's words are aligned to more than 16 bytes, and so is the watch; `end_block` waits.
    watch.is_taken(target::clock(), is_granted, |copy| unsafe { target::start_copy(lane, copy) })
}

/// Starts the watch of a block of `cohort`. On one thread, before a barrier of the block, after which its
/// threads may come to yield points.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
pub(crate) fn start_block(cohort: &Cohort) {
    let watch = Watch::new(target::clock(), cohort.signal);
    // SAFETY: the words are this block's, and nobody else uses them before the barrier.
    unsafe { target::yield_words().cast::<Watch>().write(watch) }
}

/// Ends the watch. On all threads, after their last yield point: what they asked for must not come when the shared
/// memory is another block's.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
pub(crate) fn end_block() {
    target::await_copies();
}

#[cfg(target_arch = "nvptx64")]
use watch::Watch;

/// How the warps of a block look at their signal together.
#[cfg(any(target_arch = "nvptx64", all(test, not(loom))))]
mod watch {
    use crate::abi::Signal;
    use crate::atomic_shim::{AtomicU32, AtomicU64, Ordering::Relaxed};

    /// Of the clock, the bits below count for nothing: a block looks once in 2048 cycles, about 1 µs. All blocks
    /// of a lane look at the same word; if they did at each yield point, they would queue for it.
    pub const PERIOD_BITS: u32 = 11;

    /// The block's copy of the signal, and when it looked last. To look is to start a copy that nobody waits for,
    /// since reading the word takes as long as hundreds of instructions: what it says is seen in the next period.
    /// Most yield points read one word and compare it with the clock.
    ///
    /// Warps look and write as they come: two may look in the same period, or one after another one has looked
    /// in the next, and one of them may write over `TAKEN` what it read before. All that costs no more than
    /// another look. A copy that is read while it comes says what was or what is, or, if half of it has come, asks
    /// for the SM too soon, or one look too late.
    #[repr(C, align(16))]
    pub struct Watch {
        copy: Copy,
        /// The last word that granted the SM.
        seen: AtomicU64,
        /// [`TAKEN`], or else the period in which the block looked last.
        period: AtomicU32,
    }

    /// What is copied: 16 bytes at least, of which the first 8 are the signal.
    #[repr(C, align(16))]
    pub struct Copy(AtomicU64, AtomicU64);

    impl Copy {
        /// As if this had been copied.
        #[cfg(test)]
        pub fn set(&self, signal: Signal) {
            self.0.store(signal.to_bits(), Relaxed);
        }
    }

    /// The SM was taken from the cohort, which does not get it back. No period has this number.
    const TAKEN: u32 = u32::MAX;

    impl Watch {
        /// The watch of a block that has looked just now, and seen `signal`.
        #[inline(always)]
        pub fn new(clock: u32, signal: Signal) -> Watch {
            let copy = Copy(AtomicU64::new(signal.to_bits()), AtomicU64::new(0));
            let seen = AtomicU64::new(signal.to_bits());
            Watch { copy, seen, period: AtomicU32::new(clock >> PERIOD_BITS) }
        }

        /// Whether the SM was taken: what the block knows already, or else, if the last look was in another period,
        /// what `is_granted` says of the word that it asked for then; it then starts the next look.
        #[inline(always)]
        pub fn is_taken(
            &self,
            clock: u32,
            is_granted: impl FnOnce(u64) -> bool,
            look: impl FnOnce(&Copy),
        ) -> bool {
            let (word, period) = (self.period.load(Relaxed), clock >> PERIOD_BITS);
            if word == period {
                return false;
            }
            if word == TAKEN {
                return true;
            }
            let signal = self.copy.0.load(Relaxed);
            if signal != self.seen.load(Relaxed) {
                if !is_granted(signal) {
                    self.period.store(TAKEN, Relaxed);
                    return true;
                }
                self.seen.store(signal, Relaxed);
            }
            self.period.store(period, Relaxed);
            look(&self.copy);
            false
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

    const GRANTED: Signal = Signal::new(1, SmRange::ALL);

    /// Whether the watch was asked to look at `clock`, and knows of no end; what it sees is `next`.
    fn looks(watch: &Watch, clock: u32, next: Signal) -> bool {
        let mut looked = false;
        assert!(!watch.is_taken(
            clock,
            |word| GRANTED.grants_with(word, 0),
            |copy| {
                looked = true;
                copy.set(next);
            }
        ));
        looked
    }

    #[test]
    fn a_block_looks_once_in_a_period() {
        const PERIOD: u32 = 1 << PERIOD_BITS;
        for start in [0, 7 * PERIOD, PERIOD.wrapping_neg()] {
            let watch = Watch::new(start + 5, GRANTED);
            let looks = |clock| looks(&watch, clock, GRANTED);
            assert!(!looks(start) && !looks(start | (PERIOD - 1)));
            let later = start.wrapping_add(PERIOD);
            assert!(looks(later));
            assert!(!looks(later.wrapping_add(PERIOD - 1)));
            assert!(looks(later.wrapping_add(9 * PERIOD)));
        }
    }

    #[test]
    fn a_block_sees_the_end_in_the_period_after_its_look_and_does_not_look_again() {
        let watch = Watch::new(7, GRANTED);
        assert!(looks(&watch, 1 << PERIOD_BITS, Signal::new(2, SmRange::EMPTY)));
        assert!(!looks(&watch, (1 << PERIOD_BITS) + 1, GRANTED));
        let is_taken =
            |clock| watch.is_taken(clock, |word| GRANTED.grants_with(word, 0), |_| unreachable!());
        assert!(is_taken(2 << PERIOD_BITS));
        for clock in [0, 7, 3 << PERIOD_BITS, u32::MAX] {
            assert!(is_taken(clock));
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
