//! Checkpoints: places where a block leaves a block-task with the state of its threads, and another block goes on with it.

use super::Yields;

/// Goes on in a loop where another block left it, and lets this block leave at the start of each round.
///
/// Write `checkpoint!(state: T = init => for i in a..b { .. });`, or with `while`, as a statement of a kernel's own body. The
/// kernel's [documentation](crate::preemptible#checkpoints) says what the loop may change.
#[macro_export]
macro_rules! checkpoint {
    ($($tokens:tt)*) => {
        ::core::compile_error!(
            "`checkpoint!` is a statement of the body of a `#[preemptible]` kernel, in no loop and no other block of it; put \
             it there"
        )
    };
}

/// The state of a thread at a checkpoint: what can be kept in memory while no block has the block-task.
///
/// Implemented for what kernels take by value, and for tuples of up to six such.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the state of a checkpoint",
    label = "not kept while no block has the block-task",
    note = "the state is a number, an array or a tuple of such, or a struct with `#[derive(Clone, Copy, KernelArg)] \
            #[repr(C)]`; it has no references and no pointers, because memory is elsewhere when the block-task goes on"
)]
pub trait State: Copy + 'static {}

impl<T: crate::kernel::KernelArg> State for T {}

macro_rules! tuples {
    ($($($part:ident)*;)*) => { $(impl<$($part: State),*> State for ($($part,)*) {})* };
}
tuples! { ; A; A B; A B C; A B C D; A B C D E; A B C D E F; }

/// Bytes that a save area holds for each thread of a kernel with state of type `T`: the state, and where the loop is.
#[doc(hidden)]
pub const fn state_bytes<T: State>() -> u32 {
    assert!(align_of::<T>() <= 16, "the state of a checkpoint is aligned to 16 bytes at most");
    assert!(
        size_of::<T>() <= 1 << 16,
        "the state of a checkpoint has 64 KiB at most for each thread"
    );
    size_of::<T>().next_multiple_of(16) as u32 + 16
}

/// Compiles for a closure that changes no variable around it.
#[doc(hidden)]
#[cfg(not(target_arch = "nvptx64"))]
pub fn changes_state_alone<T>(_: impl Fn(T)) {}

/// On a GPU, blocks end their block-tasks, because the host gives them no save area.
#[cfg(target_arch = "nvptx64")]
impl Yields {
    /// The state and the place in the loop that the thread goes on with, unless the block-task starts.
    #[inline(always)]
    pub fn resumed<T: State, I: Copy>(&mut self) -> Option<(T, I)> {
        None
    }

    /// Whether the block leaves here.
    #[inline(always)]
    pub fn leaves<T: State, I: Copy>(&mut self, _state: T, _place: I) -> bool {
        false
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use host::{SaveArea, Switch};

#[cfg(not(target_arch = "nvptx64"))]
mod host {
    use core::cell::{Cell, UnsafeCell};
    use std::sync::Arc;

    use super::{State, Yields};
    use crate::atomic_shim::AtomicU32;
    use crate::worker::save;
    use crate::{target, thread};

    /// Slots for block-tasks of one launch, each with the states of all threads and shared memory.
    #[doc(hidden)]
    #[derive(Debug)]
    pub struct SaveArea {
        used: Box<[AtomicU32]>,
        memory: Box<[UnsafeCell<u128>]>,
        /// Bytes of a thread's state, and of shared memory, rounded up to whole words.
        state: usize,
        shared: usize,
        threads: usize,
    }

    // SAFETY: a slot is accessed by its owner alone (`worker::save`), and within a block threads have parts of their own.
    unsafe impl Send for SaveArea {}
    // SAFETY: as above.
    unsafe impl Sync for SaveArea {}

    const WORD: usize = size_of::<u128>();

    /// What a slot holds that no block-task has: values that look like no state.
    const POISON: u128 = 0xA5A5_A5A5_A5A5_A5A5_A5A5_A5A5_A5A5_A5A5;

    impl SaveArea {
        /// An area of `slots` slots for blocks of `threads` threads, with `state` bytes for each and `shared` bytes of shared
        /// memory; `None` if there is no memory for it.
        pub fn new(slots: u32, threads: u32, state: u32, shared: u32) -> Option<SaveArea> {
            let slots = slots.min(crate::abi::MAX_SAVE_SLOTS as u32);
            let (state, shared) = (state as usize, shared as usize);
            let (state, shared) = (state.next_multiple_of(WORD), shared.next_multiple_of(WORD));
            let slot = (threads as usize).checked_mul(state)?.checked_add(shared)?;
            let words = (slots as usize).checked_mul(slot)? / WORD;
            let mut memory = Vec::new();
            memory.try_reserve_exact(words).ok()?;
            memory.resize_with(words, || UnsafeCell::new(POISON));
            Some(SaveArea {
                used: (0..slots).map(|_| AtomicU32::new(0)).collect(),
                memory: memory.into(),
                state,
                shared,
                threads: threads as usize,
            })
        }

        /// Whether the area is one for such blocks.
        pub fn is_for(&self, threads: u32, state: u32, shared: u32) -> bool {
            let rounded = |bytes: u32| (bytes as usize).next_multiple_of(WORD);
            (self.threads, self.state, self.shared)
                == (threads as usize, rounded(state), rounded(shared))
        }

        /// The words of a slot.
        fn words(&self, slot: u32) -> &[UnsafeCell<u128>] {
            let words = (self.threads * self.state + self.shared) / WORD;
            &self.memory[slot as usize * words..][..words]
        }

        fn poison(&self, slot: u32) {
            for word in self.words(slot) {
                // SAFETY: the caller is the slot's owner.
                unsafe { *word.get() = POISON };
            }
        }
    }

    /// What a block needs to leave its block-task and to go on with one.
    #[doc(hidden)]
    #[derive(Debug)]
    pub struct Switch {
        area: Option<Arc<SaveArea>>,
        /// The slot that the block tries first.
        first: u32,
        slot: Cell<Option<u32>>,
        /// Whether the block-task goes on from its slot.
        resumes: Cell<bool>,
    }

    impl Switch {
        /// For block `number` of its grid.
        pub fn new(area: Option<Arc<SaveArea>>, number: u32) -> Switch {
            Switch { area, first: number, slot: Cell::new(None), resumes: Cell::new(false) }
        }

        /// The block-task that runs next goes on from this slot, or starts.
        pub fn resume(&self, slot: Option<u32>) {
            self.slot.set(slot);
            self.resumes.set(slot.is_some());
        }

        /// The slot of the block-task.
        pub fn slot(&self) -> Option<u32> {
            self.slot.get()
        }

        /// Gives back the slot of the block-task, which has ended.
        pub fn give_back(&self) {
            if let (Some(area), Some(slot)) = (&self.area, self.slot.take()) {
                area.poison(slot);
                save::give_back(&area.used, slot);
            }
        }

        /// Takes a slot for the block-task, if it has none; whether it has one now.
        fn takes_slot(&self) -> bool {
            let Some(area) = &self.area else { return false };
            if self.slot.get().is_none() {
                self.slot.set(save::take(&area.used, self.first));
            }
            self.slot.get().is_some()
        }

        /// This thread's state in the slot, and its part of shared memory there and in the block, with its bytes.
        fn parts(&self) -> Option<(*mut u8, *mut u8, *mut u8, usize)> {
            let (area, slot) = (self.area.as_ref()?, self.slot.get()?);
            let number = thread::thread_number() as usize;
            let part = area.shared.div_ceil(area.threads);
            let (from, to) =
                ((number * part).min(area.shared), ((number + 1) * part).min(area.shared));
            let start: *mut u8 = UnsafeCell::raw_get(area.words(slot).as_ptr()).cast();
            let state = start.wrapping_add(number * area.state);
            let saved = start.wrapping_add(area.threads * area.state + from);
            Some((state, saved, target::shared_base().wrapping_add(from), to - from))
        }
    }

    impl Yields {
        /// The state of a thread in a block that leaves block-tasks by `switch`.
        ///
        /// # Safety
        ///
        /// `switch` is alive until the block has ended all use of the result and its copies, and its area is one for blocks
        /// of this size and shared memory, whose bytes are rounded up to 16.
        pub unsafe fn switched_by(self, switch: &Switch) -> Yields {
            Yields { switch, ..self }
        }

        fn switch(&self) -> Option<&Switch> {
            // SAFETY: the promise of `switched_by`.
            unsafe { self.switch.as_ref() }
        }

        /// The state and the place in the loop that the thread goes on with, unless the block-task starts. All threads of the
        /// block call this, and what shared memory was is there again.
        #[track_caller]
        pub fn resumed<T: State, I: Copy>(&mut self) -> Option<(T, I)> {
            let switch = self.switch().filter(|switch| switch.resumes.get())?;
            // All blocks of a launch have its save area, or none has one. From its start, the task would do rounds again.
            let parts =
                switch.parts().expect("a block that goes on with a saved task has the save area");
            let (state, saved, shared, bytes) = parts;
            // No thread writes to shared memory ahead of the loop any more, and then all of it is there.
            target::yield_vote(false);
            // SAFETY: the block has the slot, which holds a state of this type: only this kernel's threads write there.
            let state = unsafe {
                shared.copy_from_nonoverlapping(saved, bytes);
                state.cast::<(T, I)>().read()
            };
            target::yield_vote(false);
            Some(state)
        }

        /// Whether the block leaves here. Then each thread has saved its state, its place in the loop and its part of shared
        /// memory. All threads of the block call this.
        ///
        /// As the first vote of a run finds nothing, a block-task goes on for a round at least in each block, and ends.
        #[track_caller]
        pub fn leaves<T: State, I: Copy>(&mut self, state: T, place: I) -> bool {
            const {
                assert!(size_of::<I>() <= 16, "the number of a round has 16 bytes at most");
                assert!(size_of::<(T, I)>() <= super::state_bytes::<T>() as usize);
            }
            if !self.requeueable {
                return false;
            }
            let mut is_left = false;
            if target::is_first_thread() {
                is_left = self.is_taken() && self.switch().is_some_and(Switch::takes_slot);
                self.ask();
            }
            self.requeued = target::yield_vote(is_left);
            if self.requeued
                && let Some((saved_state, saved, shared, bytes)) =
                    self.switch().and_then(Switch::parts)
            {
                // SAFETY: the block has the slot, and no thread changes shared memory any more.
                unsafe {
                    saved_state.cast::<(T, I)>().write((state, place));
                    saved.copy_from_nonoverlapping(shared, bytes);
                }
            }
            self.requeued
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "has the save area")]
    fn a_saved_task_does_not_start_anew() {
        let switch = Switch::new(None, 0);
        switch.resume(Some(3));
        // SAFETY: the block's only thread ends all use of it ahead of `switch`.
        let mut yields = unsafe { Yields::OFF.switched_by(&switch) };
        let _ = yields.resumed::<u32, u32>();
    }

    #[test]
    fn a_fresh_task_starts() {
        let switch = Switch::new(None, 0);
        switch.resume(None);
        // SAFETY: as above.
        let mut yields = unsafe { Yields::OFF.switched_by(&switch) };
        assert_eq!(yields.resumed::<u32, u32>(), None);
    }
}
