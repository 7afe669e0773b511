//! Checkpoints: places where a block leaves a block-task with the state of its threads, and another block goes on with it.

use core::mem::MaybeUninit;

use super::Yields;
use crate::target;
use crate::thread::{self, UVec3};

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

/// The slot of a block-task in a save area, whose owner is the block of this thread: first the states of all threads, and
/// behind these what shared memory holds.
struct Slot {
    start: *mut u8,
    /// Bytes of shared memory that are kept.
    shared: usize,
}

impl Slot {
    /// Where this thread's state of type `T` and its place in the loop are.
    #[inline(always)]
    fn state<T: State, I>(&self) -> *mut (T, I) {
        let offset = thread::thread_number() as usize * state_bytes::<T>() as usize;
        self.start.wrapping_add(offset).cast()
    }

    /// Copies this thread's part of shared memory into the slot, or out of it: every so many words, so that the threads of
    /// a warp access neighbours, and then single bytes at the end, where there may be no whole word.
    ///
    /// # Safety
    ///
    /// The slot is one for states of type `T` of so many threads, and no other thread accesses the part.
    #[inline(always)]
    unsafe fn copy_shared<T: State>(&self, into_slot: bool) {
        let UVec3 { x, y, z } = thread::block_dim();
        let (number, threads) = (thread::thread_number() as usize, (x * y * z) as usize);
        let saved = self.start.wrapping_add(threads * state_bytes::<T>() as usize);
        let shared = target::shared_base();
        let (from, to) = if into_slot { (shared, saved) } else { (saved, shared) };
        let words = self.shared / size_of::<Word>();
        let (mut word, mut byte) = (number, words * size_of::<Word>() + number);
        // SAFETY: both places have so many bytes, and are aligned to words.
        unsafe {
            while word < words {
                to.cast::<Word>().add(word).write(from.cast::<Word>().add(word).read());
                word += threads;
            }
            while byte < self.shared {
                to.cast::<Byte>().add(byte).write(from.cast::<Byte>().add(byte).read());
                byte += threads;
            }
        }
    }
}

/// What is copied may have been written by no thread.
type Word = MaybeUninit<u128>;
type Byte = MaybeUninit<u8>;

/// All threads of the block call each of these functions.
impl Yields {
    /// The state and the place in the loop that the thread goes on with, unless the block-task starts. What shared memory
    /// was is there again.
    ///
    /// The block that left the block-task wrote the slot, and the one that takes the entry reads it, each with all its
    /// threads. In between, in this order: the barrier with which the first block's threads end the block-task, the release
    /// fence of its elected thread and the entry (`requeue::put_saved`), the exchange and the acquire fence of this block's
    /// elected thread (`requeue::take`), and the barrier at which that tells the block what it took. On a GPU both fences are
    /// those of one thread for the whole device, and a barrier makes what precedes it in one thread precede what follows it
    /// in all of its block, so they order the accesses of the other threads, too.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn resumed<T: State, I: Copy>(&mut self) -> Option<(T, I)> {
        let slot = self.switch()?.resumed::<T>()?;
        // No thread accesses shared memory ahead of the loop any more when the first one writes what was saved there.
        target::yield_vote(false);
        // SAFETY: the block has the slot, which holds states of this type: only this kernel's threads write there. The
        // barriers keep other accesses to shared memory away.
        let saved = unsafe {
            slot.copy_shared::<T>(false);
            slot.state::<T, I>().read()
        };
        // All of it is there when the first thread goes on.
        target::yield_vote(false);
        Some(saved)
    }

    /// Whether the block leaves here. Then each thread has saved its state, its place in the loop and its part of shared
    /// memory.
    ///
    /// As the first vote of a run finds nothing, a block-task goes on for a round at least in each block, and ends.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn leaves<T: State, I: Copy>(&mut self, state: T, place: I) -> bool {
        const {
            assert!(size_of::<I>() <= 16, "the number of a round has 16 bytes at most");
            assert!(size_of::<(T, I)>() <= state_bytes::<T>() as usize);
        }
        // The same in all threads of the block.
        if !self.requeueable {
            return false;
        }
        let mut is_left = false;
        // All work is in one branch, which every warp but one skips.
        if target::is_first_thread() {
            is_left = self.has_to_leave(self.asked)
                && self.switch().is_some_and(|switch| switch.takes_slot::<T>());
            self.ask();
        }
        // The barrier tells the threads the answer and the slot. All of them have ended the round, and with it their
        // accesses to shared memory, and none goes on before it has saved its part, as all return.
        self.requeued = target::yield_vote(is_left);
        if self.requeued
            && let Some(slot) = self.switch().and_then(|switch| switch.current::<T>())
        {
            // SAFETY: the block has the slot, and no thread changes shared memory any more.
            unsafe {
                slot.state::<T, I>().write((state, place));
                slot.copy_shared::<T>(true);
            }
        }
        self.requeued
    }
}

#[cfg(target_arch = "nvptx64")]
pub(crate) use device::Switch;

#[cfg(target_arch = "nvptx64")]
mod device {
    use super::{Slot, State, Yields, state_bytes};
    use crate::abi::{MAX_SAVE_SLOTS, RequeueList, SAVE_WORDS, save_slots, slot_bytes};
    use crate::atomic_shim::{AtomicU32, Ordering::Relaxed};
    use crate::target;
    use crate::thread::{self, UVec3};
    use crate::worker::save;

    /// How a block leaves block-tasks at checkpoints, and goes on with them. The slot of the block-task that the block runs
    /// is in shared memory, because a register would be one in all threads.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Switch {
        /// The launch's requeue list, which says where the save area is.
        list: *const RequeueList,
        /// The slot, plus 1, that the block-task goes on from; 0 if it starts. All threads use it ahead of their loop alone.
        resumes: u32,
    }

    /// The slot, plus 1, of the block-task that the block runs, or 0. Kernels without votes have a decision there.
    ///
    /// The first thread writes it, when a block-task is selected and when it takes a slot, and reads it, so it needs no
    /// barrier for that. The other threads read it behind the vote that the first one takes part in after it has written,
    /// and the block runs no other block-task after that.
    #[inline(always)]
    fn word() -> *mut u32 {
        target::yield_word().cast::<u32>().wrapping_add(1)
    }

    /// Volatile, because the compiler does not see that a barrier lets other threads write.
    #[inline(always)]
    fn slot_of_block() -> u32 {
        // SAFETY: the word is this block's, and was written when it selected its block-task.
        unsafe { word().read_volatile() }
    }

    #[inline(always)]
    fn set_slot_of_block(slot: u32) {
        // SAFETY: as above; see `word` for who else accesses it.
        unsafe { word().write_volatile(slot) }
    }

    /// The save area of a list that has one.
    #[inline(always)]
    fn memory(list: &RequeueList) -> *mut u8 {
        let address = list.save.memory.load(Relaxed) as usize;
        target::global(core::ptr::with_exposed_provenance::<u8>(address)).cast_mut()
    }

    /// The words of the save area of a list that has one.
    #[inline(always)]
    fn words(list: &RequeueList) -> &[AtomicU32] {
        // SAFETY: the host has reserved so many there, which live as long as the list.
        unsafe { core::slice::from_raw_parts(memory(list).cast(), MAX_SAVE_SLOTS) }
    }

    /// Bytes of a slot for this block.
    #[inline(always)]
    fn bytes<T: State>() -> u32 {
        let UVec3 { x, y, z } = thread::block_dim();
        slot_bytes(x * y * z, state_bytes::<T>(), target::dynamic_shared_bytes())
    }

    impl Switch {
        /// For entries whose kernels have no checkpoint, or never leave there.
        pub const NONE: Switch = Switch { list: core::ptr::null(), resumes: 0 };

        /// The slot of this number, plus 1.
        #[inline(always)]
        fn at<T: State>(self, number: u32) -> Slot {
            // SAFETY: the list is the launch's, and has a save area, because a slot was taken there.
            let start = memory(unsafe { &*self.list });
            let offset = SAVE_WORDS + (number - 1) as usize * bytes::<T>() as usize;
            Slot {
                start: start.wrapping_add(offset),
                shared: target::dynamic_shared_bytes() as usize,
            }
        }

        /// The slot that the block-task goes on from, unless it starts.
        #[inline(always)]
        pub fn resumed<T: State>(self) -> Option<Slot> {
            if self.resumes == 0 { None } else { Some(self.at::<T>(self.resumes)) }
        }

        /// The block-task's slot, behind a vote in which the first thread has found or taken it.
        #[inline(always)]
        pub fn current<T: State>(self) -> Option<Slot> {
            Some(self.at::<T>(slot_of_block()))
        }

        /// Takes a slot for the block-task, if it has none; whether it has one now. The first thread calls this.
        #[inline(always)]
        pub fn takes_slot<T: State>(self) -> bool {
            if slot_of_block() > 0 {
                return true;
            }
            // SAFETY: the list is the launch's.
            let list = unsafe { &*self.list };
            let slots = save_slots(list.save.bytes.load(Relaxed), bytes::<T>());
            // Without a slot, the block ends its block-task.
            if slots == 0 {
                return false;
            }
            let Some(used) = words(list).get(..slots as usize) else { return false };
            // Blocks begin at different slots, so that they seldom want the same one.
            match save::take(used, target::block_number()) {
                Some(slot) => {
                    set_slot_of_block(slot + 1);
                    true
                }
                None => false,
            }
        }

        /// The block selects a block-task next that is saved in this slot, or starts. Every thread calls this.
        #[inline(always)]
        pub fn select(slot: Option<u32>) -> u32 {
            let number = slot.map_or(0, |slot| slot + 1);
            if target::is_first_thread() {
                set_slot_of_block(number);
            }
            number
        }

        /// The slot of the block-task that the block has left, behind a barrier.
        #[inline(always)]
        pub fn slot() -> u32 {
            slot_of_block() - 1
        }

        /// Gives back the slot of the block-task, which has ended, if it has one. Every thread calls this, behind a barrier
        /// of the whole block: no thread reads the slot any more.
        #[inline(always)]
        pub fn give_back(list: *const RequeueList) {
            // The first thread, because that alone may read the word here: it is the one that writes it next.
            if target::is_first_thread() {
                let number = slot_of_block();
                if number > 0 {
                    // SAFETY: the list is the launch's, and has a save area, because a slot was taken there.
                    save::give_back(words(unsafe { &*list }), number - 1);
                }
            }
        }
    }

    impl Yields {
        /// The state of a thread in a launch with this list, for a block-task that goes on from the slot of this number,
        /// plus 1, or starts if that is 0.
        #[inline(always)]
        pub(crate) fn switched_by(self, list: *const RequeueList, resumes: u32) -> Yields {
            Yields { switch: Switch { list, resumes }, ..self }
        }

        #[inline(always)]
        pub(super) fn switch(&self) -> Option<Switch> {
            Some(self.switch)
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use host::{SaveArea, Switch};

#[cfg(not(target_arch = "nvptx64"))]
mod host {
    use core::cell::{Cell, UnsafeCell};
    use std::sync::Arc;

    use super::{Slot, State, Yields};
    use crate::atomic_shim::AtomicU32;
    use crate::worker::save;

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
        #[expect(clippy::extra_unused_type_parameters, reason = "the size of a slot, on a GPU")]
        pub(super) fn takes_slot<T: State>(&self) -> bool {
            let Some(area) = &self.area else { return false };
            if self.slot.get().is_none() {
                self.slot.set(save::take(&area.used, self.first));
            }
            self.slot.get().is_some()
        }

        /// The slot of the block-task.
        #[expect(clippy::extra_unused_type_parameters, reason = "the size of a slot, on a GPU")]
        pub(super) fn current<T: State>(&self) -> Option<Slot> {
            let (area, slot) = (self.area.as_ref()?, self.slot.get()?);
            let start = UnsafeCell::raw_get(area.words(slot).as_ptr()).cast();
            Some(Slot { start, shared: area.shared })
        }

        /// The slot that the block-task goes on from, unless it starts.
        pub(super) fn resumed<T: State>(&self) -> Option<Slot> {
            if !self.resumes.get() {
                return None;
            }
            // All blocks of a launch have its save area, or none has one. From its start, the task would do rounds again.
            let slot = self.current::<T>();
            Some(slot.expect("a block that goes on with a saved task has the save area"))
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

        pub(super) fn switch(&self) -> Option<&Switch> {
            // SAFETY: the promise of `switched_by`.
            unsafe { self.switch.as_ref() }
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
