//! Whether a call ahead of a vote is the barrier that the vote replaces: functions are compared by their types.

use core::marker::PhantomData;
use core::ops::Deref;

use super::{State, Yields};

/// The types of two functions. Each function has a type of its own, whatever path names it, so two functions
/// are the same exactly if this is `Functions<F, F>`.
#[doc(hidden)]
#[derive(Debug)]
pub struct Functions<A, B>(PhantomData<(A, B)>);

/// Compares two functions by their types; see [`Functions`].
#[doc(hidden)]
#[inline(always)]
pub const fn functions<A, B>(_: &A, _: &B) -> Functions<A, B> {
    Functions(PhantomData)
}

impl<A, B> Functions<A, B> {
    /// Asserts that both functions are the same.
    pub const fn assert_same(&self)
    where
        Functions<A, B>: Same,
    {
    }
}

impl<F> Functions<F, F> {
    /// Whether the block has to return at a yield point behind a call of the first function, if that is the
    /// second one, `sync_threads`. The call and the vote are one barrier. For other functions, the method of
    /// [`Different`] is called.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn vote_after(&self, yields: &mut Yields, call: impl FnOnce()) -> bool {
        yields.vote_or_wait(call)
    }

    /// As [`vote_after`](Functions::vote_after), in a body with markers.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn vote_after_unless_marked(&self, yields: &mut Yields, call: impl FnOnce()) -> bool {
        yields.vote_or_wait_unless_marked(call)
    }

    /// Whether the block leaves at a checkpoint whose rounds end with a call of the first function. As that is the second one,
    /// `sync_threads`, the call in the round before and the vote are one barrier.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn leaves_after<T: State, I: Copy>(
        &self,
        yields: &mut Yields,
        (state, place): (T, I),
        call: impl FnOnce(),
    ) -> bool {
        yields.leaves_or_waits(state, place, call)
    }

    /// The call at the end of such a round. The next vote does what it did.
    #[inline(always)]
    pub fn ends_round(&self, _call: impl FnOnce()) {}

    /// The call at the end of the last round, if no vote follows it.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn ends_rounds(&self, call: impl FnOnce()) {
        call();
    }
}

impl<A, B> Deref for Functions<A, B> {
    type Target = Different;

    #[inline(always)]
    fn deref(&self) -> &Different {
        &Different
    }
}

/// Implemented for the types of two functions that are the same.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "this function goes by the name of one of `preempt_device::thread` or `core`, and is another",
    label = "another function of that name",
    note = "that function's result decides whether a block-task with yield points can run again, and in a kernel with \
            barriers whether all threads of a block reach a yield point together; give the other function another name"
)]
pub trait Same {}

impl<F> Same for Functions<F, F> {}

/// Two functions that are not the same.
#[doc(hidden)]
#[derive(Debug)]
pub struct Different;

impl Different {
    /// Whether the block has to return at a yield point behind a call that is no barrier, or not known to be
    /// one.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn vote_after(&self, yields: &mut Yields, call: impl FnOnce()) -> bool {
        call();
        yields.vote()
    }

    /// As [`vote_after`](Different::vote_after), in a body with markers.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn vote_after_unless_marked(&self, yields: &mut Yields, call: impl FnOnce()) -> bool {
        call();
        yields.vote_unless_marked()
    }

    /// Whether the block leaves at a checkpoint.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn leaves_after<T: State, I: Copy>(
        &self,
        yields: &mut Yields,
        (state, place): (T, I),
        _call: impl FnOnce(),
    ) -> bool {
        yields.leaves(state, place)
    }

    /// The call at the end of a round of a checkpoint, if it is no barrier, or not known to be one.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn ends_round(&self, call: impl FnOnce()) {
        call();
    }

    /// The last round has made the call.
    #[inline(always)]
    pub fn ends_rounds(&self, _call: impl FnOnce()) {}
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_call_at_the_end_of_a_round_is_made_there_unless_it_is_the_barrier_of_the_vote() {
        fn waits() {}
        fn helps() {}
        let calls = |ends: &dyn Fn(&mut u32)| {
            let mut calls = 0;
            ends(&mut calls);
            calls
        };
        let (barrier, other) = (functions(&waits, &waits), functions(&helps, &waits));
        assert_eq!(calls(&|calls| barrier.ends_round(|| *calls += 1)), 0);
        assert_eq!(calls(&|calls| barrier.ends_rounds(|| *calls += 1)), 1);
        assert_eq!(calls(&|calls| other.ends_round(|| *calls += 1)), 1);
        assert_eq!(calls(&|calls| other.ends_rounds(|| *calls += 1)), 0);
        // In an entry that never leaves, the vote is no barrier.
        let off = Yields::OFF;
        assert_eq!(
            calls(&|calls| assert!(!barrier.leaves_after(&mut { off }, (0, 0), || *calls += 1))),
            1
        );
        assert_eq!(
            calls(&|calls| assert!(!other.leaves_after(&mut { off }, (0, 0), || *calls += 1))),
            0
        );
    }
}
