//! The worker loop around a place for a body. `preempt-ptx` compiles it to the text that `preempt_ptx_text::transform` puts the
//! bodies of foreign kernels into: once without yield points, and once for each kind of them.

#![cfg_attr(target_arch = "nvptx64", feature(asm_experimental_arch))]

use preempt_device::prelude::*;

/// The barrier is where a body goes. The compiler can neither duplicate it nor move accesses to memory past it, as it
/// could with an empty body.
#[preemptible]
pub fn worker() {
    thread::sync_threads();
}

/// The worker loop around a yield point. Between two marks is what the transformation puts at each yield point of a body, and
/// the body goes where they are.
#[cfg(target_arch = "nvptx64")]
mod yielding {
    use core::arch::asm;

    use preempt_device::abi::Cohort;
    use preempt_device::entry::preemptible_yielding;
    use preempt_device::thread;
    use preempt_device::yields::{Changing, Yields, functions};

    /// Runs a yield point between the marks.
    ///
    /// Both have the address of what changes there, so that the compiler has that in memory at each of them. What stays as it
    /// is is used by value: an address of it would have the compiler copy the cohort to local memory, which the loop would
    /// read. The second mark has whether the thread returns.
    #[inline(always)]
    fn between_marks(yields: &mut Yields, point: impl FnOnce(&mut Yields) -> bool) {
        let mut changing = yields.changing();
        let place: *mut Changing = &raw mut changing;
        // SAFETY: a comment.
        unsafe { asm!("// preempt.yields {}", in(reg64) place, options(nostack)) }
        let mut now = yields.with(changing);
        let leaves = u32::from(point(&mut now));
        changing = now.changing();
        // SAFETY: as above.
        unsafe {
            asm!("// preempt.leaves {} {}", in(reg32) leaves, in(reg64) place, options(nostack))
        }
        *yields = yields.with(changing);
    }

    /// Of bodies without barriers: each thread looks.
    #[unsafe(no_mangle)]
    unsafe extern "ptx-kernel" fn polling(cohort: Cohort) {
        let poll = |yields: &mut Yields| between_marks(yields, Yields::poll);
        // SAFETY: each thread of a block calls it, before anything else.
        unsafe { preemptible_yielding(&cohort, poll) }
    }

    /// Of bodies with barriers: all threads of the block are told at one of them, which the vote replaces.
    #[unsafe(no_mangle)]
    unsafe extern "ptx-kernel" fn voting(cohort: Cohort) {
        let barrier = functions(&thread::sync_threads, &thread::sync_threads);
        let vote = |yields: &mut Yields| {
            between_marks(yields, |yields| barrier.vote_after(yields, || ()));
        };
        // SAFETY: as in `polling`.
        unsafe { preemptible_yielding(&cohort, vote) }
    }
}
