//! The test kernel with a checkpoint, whose block-tasks are kept where the device layer says.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use preempt_device::abi::{Cohort, DeviceQueue, SAVE_WORDS, save_slots, slot_bytes};
use preempt_device::worker;

use super::kernels::Slice;
use super::memory::{Kind, state};
use super::panics::failed;

/// Bytes that `rotate_saving` saves for each thread, and of shared memory.
const STATE: u32 = 32;
const SHARED: u32 = 1024;

/// `rotate_saving` with its arguments.
#[derive(Clone, Copy)]
pub struct Saves {
    pub ends: Slice,
    pub starts: Slice,
    pub rounds: u32,
    pub out: Slice,
    pub done: Slice,
}

impl Saves {
    pub fn slices(self) -> [Slice; 4] {
        [self.ends, self.starts, self.out, self.done]
    }

    /// Runs a block-task from this round on, until `leaves` says that it is left ahead of one, which is returned.
    pub fn task(
        self,
        task: u32,
        threads: u32,
        first: u32,
        mut leaves: impl FnMut() -> bool,
    ) -> Option<u32> {
        self.starts.at(task as usize).fetch_add(1, Ordering::Relaxed);
        for round in first..self.rounds {
            if round > first && leaves() {
                return Some(round);
            }
            // Blocks of a context that has failed do nothing more, and never post.
            while failed().is_some() {
                thread::park();
            }
            thread::sleep(Duration::from_micros(50));
            for x in task * threads..(task + 1) * threads {
                self.done.at(x as usize).fetch_add(1, Ordering::Relaxed);
            }
        }
        self.ends.at(task as usize).fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// The block-tasks of a block.
pub struct SavedTasks<'a> {
    pub saves: Saves,
    pub cohort: &'a Cohort,
    pub threads: u32,
    pub sm: u32,
    pub index: u32,
    /// The slot that the block-task goes on from, or is left in.
    pub slot: Option<u32>,
}

impl SavedTasks<'_> {
    /// The words of the launch's save area, and the number of its slots; `None` if it has none.
    fn area(&self) -> Option<(&'static [AtomicU32], u32)> {
        // SAFETY: the device layer keeps the list.
        let save = unsafe { &(*self.cohort.requeue_list).save };
        let (memory, bytes) =
            (save.memory.load(Ordering::Relaxed), save.bytes.load(Ordering::Relaxed));
        let (start, bytes) = (memory as usize, bytes as usize);
        if bytes == 0 || !state().check(&(start..start + bytes), Some(Kind::Device), "a save area")
        {
            return None;
        }
        // SAFETY: they are there, as was just seen.
        let words =
            unsafe { std::slice::from_raw_parts(start as *const AtomicU32, SAVE_WORDS / 4) };
        Some((words, save_slots(bytes as u32, slot_bytes(self.threads, STATE, SHARED))))
    }

    /// Checks that a launch that begins has all slots of its save area.
    pub fn check_free(&self) {
        let used = self.area().map(|(words, _)| {
            words.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum::<u32>()
        });
        // Another cohort of the launch may have begun before the first one, and has claimed block-tasks then.
        // SAFETY: the device layer keeps the control block.
        let is_begun = unsafe { &*self.cohort.claims }.next.load(Ordering::Acquire) > 0;
        if self.cohort.flags.is_first() && !is_begun && used.is_some_and(|used| used > 0) {
            state().violation(format!("{used:?} slots are in use before a launch"));
        }
    }

    /// The block-task in a slot, plus 1, and its next round.
    fn saved(&self, slot: u32) -> Option<[&'static AtomicU32; 2]> {
        let (words, _) = self.area()?;
        let bytes = slot_bytes(self.threads, STATE, SHARED) as usize;
        let start = words.as_ptr().addr() + SAVE_WORDS + slot as usize * bytes;
        // SAFETY: in the slot, whose owner is this block.
        Some([0, 4].map(|offset| unsafe { &*((start + offset) as *const AtomicU32) }))
    }

    /// Takes a slot, if one is free.
    fn takes_slot(&mut self) -> bool {
        self.slot = self.area().and_then(|(words, slots)| {
            (0..slots).find(|slot| {
                let bit = 1 << (slot % 32);
                words[*slot as usize / 32].fetch_or(bit, Ordering::AcqRel) & bit == 0
            })
        });
        self.slot.is_some()
    }

    /// Gives back the slot that the block-task goes on from.
    fn gives_slot_back(&mut self) {
        if let (Some(slot), Some((words, _))) = (self.slot.take(), self.area()) {
            words[slot as usize / 32].fetch_and(!(1 << (slot % 32)), Ordering::Release);
        }
    }
}

impl worker::Body for SavedTasks<'_> {
    const YIELDS: bool = true;
    const SWITCHES: bool = true;

    fn seek(&mut self, index: u32) {
        self.index = index;
    }

    fn index(&self) -> u32 {
        self.index
    }

    fn resume(&mut self, slot: Option<u32>) {
        self.slot = slot;
    }

    fn slot(&self) -> u32 {
        self.slot.unwrap_or_default()
    }

    fn run(&mut self, _: u32) -> bool {
        let mut first = 0;
        if let Some([task, round]) = self.slot.and_then(|slot| self.saved(slot)) {
            if task.load(Ordering::Relaxed) != 1 + self.index {
                state().violation(format!("block-task {} is in no slot", self.index));
            }
            first = round.load(Ordering::Relaxed);
        }
        self.gives_slot_back();
        let (saves, index, threads) = (self.saves, self.index, self.threads);
        let Cohort { queue, signal, .. } = *self.cohort;
        // SAFETY: the device layer keeps the device queue.
        let queue: &DeviceQueue = unsafe { &*queue };
        let sm = self.sm;
        let leaves = || !queue.grants(signal, sm) && self.takes_slot();
        let Some(left) = saves.task(index, threads, first, leaves) else { return false };
        if let Some([task, round]) = self.slot.and_then(|slot| self.saved(slot)) {
            task.store(1 + index, Ordering::Relaxed);
            round.store(left, Ordering::Relaxed);
        }
        true
    }
}
