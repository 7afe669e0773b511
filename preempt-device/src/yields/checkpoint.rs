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
    /// Where a state is that is not interleaved.
    #[inline(always)]
    fn own<T: State, I>(&self) -> *mut (T, I) {
        let offset = thread::thread_number() as usize * state_bytes::<T>() as usize;
        self.start.wrapping_add(offset).cast()
    }

    /// Copies an interleaved state into the slot, or out of it: the first words of a warp's threads are side by side, then
    /// their second ones, and so on.
    ///
    /// # Safety
    ///
    /// The slot holds states of type `T` for the threads of the block, and no other thread accesses this thread's part.
    #[inline(always)]
    unsafe fn copy_words<T: State, I>(&self, state: &mut MaybeUninit<(T, I)>, into_slot: bool) {
        let number = thread::thread_number() as usize;
        let (warp, lane) = (number / LANES, number % LANES);
        let start = self.start.wrapping_add(warp * LANES * state_bytes::<T>() as usize);
        let saved = |index: usize| start.cast::<StateWord>().wrapping_add(index * LANES + lane);
        let (state, words) = (state.as_mut_ptr(), size_of::<(T, I)>() / size_of::<StateWord>());
        // SAFETY: the slot has room for as many words of each thread, and one more for the bytes at the end, as the size of a
        // state there is a multiple of 16.
        unsafe {
            for index in 0..words {
                let own = state.cast::<StateWord>().add(index);
                if into_slot {
                    saved(index).write(own.read_unaligned());
                } else {
                    own.write_unaligned(saved(index).read());
                }
            }
            for byte in words * size_of::<StateWord>()..size_of::<(T, I)>() {
                let own = state.cast::<Byte>().add(byte);
                let saved = saved(words).cast::<Byte>().add(byte % size_of::<StateWord>());
                let (from, to) = if into_slot { (own, saved) } else { (saved, own) };
                to.write(from.read());
            }
        }
    }

    /// Copies this thread's part of shared memory into the slot, or out of it: every so many words, so that the threads of
    /// a warp access neighbours, and then single bytes at the end, where there may be no whole word.
    ///
    /// # Safety
    ///
    /// The slot holds states of type `T` for the threads of the block, and no other thread accesses the part.
    #[inline(always)]
    unsafe fn copy_shared<T: State>(&self, into_slot: bool) {
        let UVec3 { x, y, z } = thread::block_dim();
        let (number, threads) = (thread::thread_number() as usize, (x * y * z) as usize);
        let states = threads.next_multiple_of(LANES) * state_bytes::<T>() as usize;
        let saved = self.start.wrapping_add(states);
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
type StateWord = MaybeUninit<u32>;
type Byte = MaybeUninit<u8>;

/// Threads whose states are interleaved: a warp.
const LANES: usize = 32;

/// Whether the states of a warp's threads are interleaved. Then few accesses copy them, because the threads of a warp access
/// neighbours. Up to 128 bytes, because the compiler unrolls the loop over so few words. In a loop that it does not unroll, the
/// state would have an address, and be in local memory all the time.
#[inline(always)]
const fn is_interleaved<T, I>() -> bool {
    size_of::<(T, I)>() <= 128
}

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
        // SAFETY: the block has the slot, which holds states of this type: only this kernel's threads write there, each its
        // own words, all of them. The barriers keep other accesses to shared memory away.
        unsafe {
            slot.copy_shared::<T>(false);
            if is_interleaved::<T, I>() {
                let mut saved = MaybeUninit::uninit();
                slot.copy_words::<T, I>(&mut saved, false);
                Some(saved.assume_init())
            } else {
                Some(slot.own::<T, I>().read())
            }
        }
    }

    /// Ends what [`resumed`](Yields::resumed) has begun, if the thread goes on. This is not done there: with fences between the
    /// read of a large state and its return, the compiler would keep a second one in local memory.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn took_over(&mut self) {
        if self.switch().is_some_and(|switch| switch.resumes()) {
            // All of it is there when the first thread goes on, and no thread reads the slot any more.
            target::yield_vote(false);
            if target::is_first_thread()
                && let Some(switch) = self.switch()
            {
                switch.give_back();
            }
        }
    }

    /// Whether the block leaves here. Then each thread has saved its state, its place in the loop and its part of shared
    /// memory.
    ///
    /// As the first vote of a run finds nothing, a block-task goes on for a round at least in each block, and ends.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub fn leaves<T: State, I: Copy>(&mut self, state: T, place: I) -> bool {
        // The same in all threads of the block.
        self.requeueable && self.leaves_together(state, place)
    }

    /// The same behind the barrier `wait` of the body, which the vote replaces, as it is a barrier, too. So the first round has
    /// a barrier ahead of it that the body has not.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub(super) fn leaves_or_waits<T: State, I: Copy>(
        &mut self,
        state: T,
        place: I,
        wait: impl FnOnce(),
    ) -> bool {
        if self.is_off {
            wait();
            return false;
        }
        // Also for tasks that cannot be requeued, as in `vote_or_wait`.
        self.leaves_together(state, place)
    }

    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    fn leaves_together<T: State, I: Copy>(&mut self, state: T, place: I) -> bool {
        const {
            assert!(size_of::<I>() <= 16, "the number of a round has 16 bytes at most");
            assert!(size_of::<(T, I)>() <= state_bytes::<T>() as usize);
        }
        let mut is_left = false;
        // All work is in one branch, which every warp but one skips.
        if target::is_first_thread() && self.requeueable {
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
                if is_interleaved::<T, I>() {
                    slot.copy_words::<T, I>(&mut MaybeUninit::new((state, place)), true);
                } else {
                    slot.own::<T, I>().write((state, place));
                }
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
    use crate::abi::{RequeueList, SAVE_WORDS, save_slots, slot_bytes};
    use crate::atomic_shim::{AtomicU32, Ordering::Relaxed};
    use crate::target;
    use crate::thread::{self, UVec3};
    use crate::worker::save;

    /// How a block leaves block-tasks at checkpoints, and goes on with them. The slot that it takes is in shared memory, because a
    /// register would be one in all threads.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Switch {
        /// The launch's requeue list, which says where the save area is.
        list: *const RequeueList,
        /// The slot, plus 1, that the block-task goes on from; 0 if it starts. All threads use it ahead of their loop alone.
        resumes: u32,
    }

    /// The slot that the block leaves its block-task in. Kernels without votes have a decision there.
    ///
    /// The first thread writes it when it takes a slot. The other threads read it behind the vote that the first one takes part
    /// in after that, and the block runs no other block-task any more.
    #[inline(always)]
    fn word() -> *mut u32 {
        target::yield_word().cast::<u32>().wrapping_add(1)
    }

    /// Volatile, because the compiler does not see that a barrier lets other threads write.
    #[inline(always)]
    fn slot_of_block() -> u32 {
        // SAFETY: the word is this block's, and was written when it took the slot.
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
        unsafe {
            core::slice::from_raw_parts(memory(list).cast(), SAVE_WORDS / size_of::<AtomicU32>())
        }
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

        /// The launch's list. That it is in global memory is said here once more: far from where the cohort says it, ptxas has made
        /// a generic access of one.
        ///
        /// # Safety
        ///
        /// The switch is that of a launch, which lasts while the result is used.
        #[inline(always)]
        unsafe fn list<'a>(self) -> &'a RequeueList {
            // SAFETY: the caller's promise; the list is alive as long as its launch.
            unsafe { &*target::global(self.list) }
        }

        /// The slot of this number.
        #[inline(always)]
        fn at<T: State>(self, number: u32) -> Slot {
            // SAFETY: the list is the launch's, and has a save area, because a slot was taken there.
            let start = memory(unsafe { self.list() });
            let offset = SAVE_WORDS + number as usize * bytes::<T>() as usize;
            Slot {
                start: start.wrapping_add(offset),
                shared: target::dynamic_shared_bytes() as usize,
            }
        }

        /// Whether the block-task goes on from a slot.
        #[inline(always)]
        pub fn resumes(self) -> bool {
            self.resumes > 0
        }

        /// The slot that the block-task goes on from, unless it starts.
        #[inline(always)]
        pub fn resumed<T: State>(self) -> Option<Slot> {
            Some(self.at::<T>(self.resumes.checked_sub(1)?))
        }

        /// The block-task's slot, behind a vote in which the first thread has taken it.
        #[inline(always)]
        pub fn current<T: State>(self) -> Option<Slot> {
            Some(self.at::<T>(slot_of_block()))
        }

        /// Takes a slot for the block-task; whether there is one. The first thread calls this.
        #[inline(always)]
        pub fn takes_slot<T: State>(self) -> bool {
            // SAFETY: the list is the launch's.
            let list = unsafe { self.list() };
            let slots = save_slots(list.save.bytes.load(Relaxed), bytes::<T>());
            // Without a slot, the block ends its block-task.
            if slots == 0 {
                return false;
            }
            match save::take(words(list), slots, target::block_number()) {
                Some(slot) => {
                    set_slot_of_block(slot);
                    true
                }
                None => false,
            }
        }

        /// The slot of the block-task that the block has left, behind a barrier.
        #[inline(always)]
        pub fn slot() -> u32 {
            slot_of_block()
        }

        /// Gives back the slot that the block-task goes on from, behind a barrier of the whole block: no thread reads it any
        /// more. The first thread calls this.
        #[inline(always)]
        pub fn give_back(self) {
            if let Some(slot) = self.resumes.checked_sub(1) {
                // SAFETY: the list is the launch's, and has a save area, because a slot was taken there.
                save::give_back(words(unsafe { self.list() }), slot);
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

    use super::{LANES, Slot, State, Yields};
    use crate::atomic_shim::AtomicU32;
    use crate::worker::save;

    /// Slots for block-tasks of one launch, each with the states of all threads and shared memory.
    #[doc(hidden)]
    #[derive(Debug)]
    pub struct SaveArea {
        used: Box<[AtomicU32]>,
        slots: u32,
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
            let threads = (threads as usize).next_multiple_of(LANES);
            let slot = threads.checked_mul(state)?.checked_add(shared)?;
            let words = (slots as usize).checked_mul(slot)? / WORD;
            let mut memory = Vec::new();
            memory.try_reserve_exact(words).ok()?;
            memory.resize_with(words, || UnsafeCell::new(POISON));
            Some(SaveArea {
                used: (0..slots.div_ceil(u32::BITS)).map(|_| AtomicU32::new(0)).collect(),
                slots,
                memory: memory.into(),
                state,
                shared,
                threads,
            })
        }

        /// Whether the area is one for such blocks.
        pub fn is_for(&self, threads: u32, state: u32, shared: u32) -> bool {
            let rounded = |bytes: u32| (bytes as usize).next_multiple_of(WORD);
            let threads = (threads as usize).next_multiple_of(LANES);
            (self.threads, self.state, self.shared) == (threads, rounded(state), rounded(shared))
        }

        /// The words of a slot.
        fn words(&self, slot: u32) -> &[UnsafeCell<u128>] {
            let words = (self.threads * self.state + self.shared) / WORD;
            &self.memory[slot as usize * words..][..words]
        }

        fn at(&self, slot: u32) -> Slot {
            let start = UnsafeCell::raw_get(self.words(slot).as_ptr()).cast();
            Slot { start, shared: self.shared }
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
        /// The block's number.
        number: u32,
        /// The slot that the block-task goes on from, and the slot in which the block leaves it.
        resumes: Cell<Option<u32>>,
        left: Cell<Option<u32>>,
    }

    impl Switch {
        /// For block `number` of its grid.
        pub fn new(area: Option<Arc<SaveArea>>, number: u32) -> Switch {
            Switch { area, number, resumes: Cell::new(None), left: Cell::new(None) }
        }

        /// The block-task that runs next goes on from this slot, or starts.
        pub fn resume(&self, slot: Option<u32>) {
            self.resumes.set(slot);
        }

        /// Whether the block-task goes on from a slot, which it still has.
        pub(super) fn resumes(&self) -> bool {
            self.resumes.get().is_some()
        }

        /// The slot of the block-task that the block has left.
        pub fn slot(&self) -> Option<u32> {
            self.left.get()
        }

        /// Gives back the slot that the block-task goes on from, if it still has that.
        pub fn give_back(&self) {
            if let (Some(area), Some(slot)) = (&self.area, self.resumes.take()) {
                area.poison(slot);
                save::give_back(&area.used, slot);
            }
        }

        /// Takes a slot for the block-task; whether there is one.
        #[expect(clippy::extra_unused_type_parameters, reason = "the size of a slot, on a GPU")]
        pub(super) fn takes_slot<T: State>(&self) -> bool {
            let area = self.area.as_ref();
            self.left.set(area.and_then(|area| save::take(&area.used, area.slots, self.number)));
            self.left.get().is_some()
        }

        /// The slot that the block leaves the block-task in.
        #[expect(clippy::extra_unused_type_parameters, reason = "the size of a slot, on a GPU")]
        pub(super) fn current<T: State>(&self) -> Option<Slot> {
            Some(self.area.as_ref()?.at(self.left.get()?))
        }

        /// The slot that the block-task goes on from, unless it starts.
        #[expect(clippy::extra_unused_type_parameters, reason = "the size of a slot, on a GPU")]
        pub(super) fn resumed<T: State>(&self) -> Option<Slot> {
            let slot = self.resumes.get()?;
            // All blocks of a launch have its save area, or none has one. From its start, the task would do rounds again.
            let area = self.area.as_ref();
            Some(area.expect("a block that goes on with a saved task has the save area").at(slot))
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
