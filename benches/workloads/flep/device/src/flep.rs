//! The loops of others. Which one a launch runs is in its [`Cohort`], whose other fields they use in their own
//! ways.

use core::sync::atomic::Ordering::Relaxed;

use preempt_device::abi::{COHORT_SLOTS, Cohort};
use preempt_device::worker::{Block, Body, Chunk, MAX_REQUEUES_FOR_LIMITS};

/// In [`Cohort::flags`]: FLEP's loop (its figure 4). One thread of each block looks at the flag, the lane's word
/// in memory of the host, before each `amortize` block-tasks, and the block leaves if it is not 0. Each
/// block-task is claimed by an atomic addition.
pub const FLEP: u8 = 0;

/// In [`Cohort::flags`]: as [`FLEP`] without looking, and the longest time of a block-task, in the blocks'
/// clock, goes to the last [`ControlBlock::left`](preempt_device::abi::ControlBlock::left).
pub const LONGEST: u8 = 1;

const ONE: Chunk = Chunk { start: 0, len: 1, requeues: 0 };

/// Runs block-tasks as the cohort's slot says.
///
/// # Safety
///
/// Every thread of the block calls this. The cohort's control block is there until the grid is over and, for
/// [`FLEP`], so is its device queue.
#[inline(always)]
pub unsafe fn run<B: Block, T: Body>(block: &mut B, cohort: &Cohort, body: &mut T) {
    // SAFETY: the caller's promise.
    let control = unsafe { &*cohort.control };
    let claims = &control.claims[0].next;
    // The block-tasks until the next look.
    let mut left = 0;
    loop {
        if left == 0 && cohort.flags.slot() == FLEP {
            let goes_on = block.elect(|_| {
                // SAFETY: the caller's promise.
                let flag = unsafe { &(*cohort.queue).signal };
                if flag.load(Relaxed) == 0 { ONE } else { Chunk::NONE }
            });
            if goes_on.len == 0 {
                return;
            }
            left = cohort.amortize;
        }
        left = left.wrapping_sub(1);
        let claimed = block.elect(|_| {
            let task = claims.fetch_add(1, Relaxed);
            let is_task = task < cohort.tasks;
            if is_task { Chunk { start: task, ..ONE } } else { Chunk::NONE }
        });
        if claimed.len == 0 {
            return;
        }
        let start = block.clock();
        body.seek(claimed.start);
        body.run(MAX_REQUEUES_FOR_LIMITS);
        if cohort.flags.slot() == LONGEST {
            block.elect(|block| {
                let took = block.clock().wrapping_sub(start);
                control.left[COHORT_SLOTS - 1].fetch_max(took, Relaxed);
                ONE
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering::Relaxed;

    use preempt_device::abi::{ControlBlock, DeviceQueue, Signal};
    use preempt_device::worker::BlockNotes;

    use super::*;

    /// A block of one thread, whose clock counts the looks at it.
    struct OneThread(core::cell::Cell<u64>);

    impl Block for OneThread {
        fn sm(&self) -> u32 {
            0
        }
        fn number(&self) -> u32 {
            0
        }
        fn clock(&self) -> u64 {
            self.0.set(self.0.get() + 1);
            self.0.get()
        }
        fn await_previous(&self) {}
        fn release_next(&self) {}
        fn notes(&self) -> &BlockNotes {
            unreachable!("only preempt's loop has any")
        }
        fn set_left(&mut self, _: u32) {
            unreachable!("only preempt's loop counts them")
        }
        fn left(&self) -> u32 {
            unreachable!("only preempt's loop counts them")
        }

        fn lead(&mut self, lead: impl FnOnce(&Self)) {
            lead(self)
        }

        fn elect(&mut self, decide: impl FnOnce(&Self) -> Chunk) -> Chunk {
            decide(self)
        }
        fn elect_any(
            &mut self,
            predicate: bool,
            decide: impl FnOnce(&Self) -> Chunk,
        ) -> (Chunk, bool) {
            (decide(self), predicate)
        }

        fn elect_last(&mut self, last: impl FnOnce(&Self)) {
            last(self)
        }
        fn barrier(&mut self) {}
        fn any(&mut self, predicate: bool) -> bool {
            predicate
        }
    }

    struct Tasks<F>(u32, F);

    impl<F: FnMut(u32)> Body for Tasks<F> {
        const YIELDS: bool = false;
        fn seek(&mut self, index: u32) {
            self.0 = index;
        }
        fn index(&self) -> u32 {
            self.0
        }
        fn run(&mut self, _: u32) -> bool {
            (self.1)(self.0);
            false
        }
    }

    fn tasks(slot: u8, control: &ControlBlock, queue: &DeviceQueue, stop_at: u32) -> Vec<u32> {
        // SAFETY: all zeros are a cohort.
        let cohort: Cohort = unsafe { std::mem::zeroed() };
        let cohort = Cohort {
            control,
            queue,
            flags: cohort.flags.at(slot),
            tasks: 10,
            amortize: 4,
            ..cohort
        };
        let mut ran = Vec::new();
        let body = |task| {
            ran.push(task);
            if task == stop_at {
                queue.signal.store(Signal::new(1, Default::default()).to_bits(), Relaxed);
            }
        };
        // SAFETY: everything outlives the call.
        unsafe { run(&mut OneThread(Default::default()), &cohort, &mut Tasks(0, body)) };
        ran
    }

    #[test]
    fn flep_looks_once_in_so_many_tasks() {
        let (control, queue) = (ControlBlock::default(), DeviceQueue::default());
        assert_eq!(tasks(FLEP, &control, &queue, 5), (0..8).collect::<Vec<_>>());
        assert_eq!(tasks(FLEP, &control, &queue, 5), [], "it was told to stop");
        queue.signal.store(0, Relaxed);
        assert_eq!(tasks(FLEP, &control, &queue, 99), [8, 9]);
    }

    #[test]
    fn the_longest_task_is_kept() {
        let (control, queue) = (ControlBlock::default(), DeviceQueue::default());
        assert_eq!(tasks(LONGEST, &control, &queue, 0).len(), 10);
        assert_eq!(control.left[COHORT_SLOTS - 1].load(Relaxed), 1);
    }
}
