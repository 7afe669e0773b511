//! Control memory in the host's own memory, for devices whose blocks are threads of the host.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use preempt_device::abi::{
    COHORT_SLOTS, ControlBlock, DeviceQueue, MAX_PROGRESS, Post, Progress, RequeueList, Signal,
};
use preempt_device::time::global_timer;
use preempt_device::yields::SaveArea;

use super::{ControlMemory, ControlSource, LentList};
use crate::device::{Gate, KernelLaunch, lock};
use crate::error::Error;
use crate::sync::Mutex;
use crate::sync::atomic::Ordering;
use crate::vocabulary::QueueCount;

/// A control block and its posts.
type Control = (Arc<ControlBlock>, Arc<[Post; COHORT_SLOTS]>);

/// The words that cohorts point to. Threads that run blocks hold them, so they outlive every block that uses them, even
/// after the device is dropped.
pub(in crate::device) struct HostWords {
    queues: Box<[DeviceQueue]>,
    /// For each queue: the ticket of the gate that was opened last.
    opened: Box<[AtomicU64]>,
    /// For each queue: what its blocks tell of how far they are.
    progress: Box<[Box<[Progress]>]>,
    /// One for each launch that one scheduler had in flight at the same time.
    controls: Mutex<Vec<Control>>,
    /// Empty lists. Lent and present ones together are as many as one scheduler had launches in flight at the same
    /// time.
    requeue_lists: Mutex<Vec<Arc<RequeueList>>>,
    /// Where launches of kernels with a checkpoint keep block-tasks that blocks have left, by the addresses of their lists;
    /// `None` for those that there was no memory for.
    save_areas: Mutex<HashMap<usize, Option<Arc<SaveArea>>>>,
}

impl HostWords {
    pub fn new(queues: QueueCount) -> HostWords {
        HostWords {
            queues: (0..queues.total()).map(|_| DeviceQueue::default()).collect(),
            opened: (0..queues.total()).map(|_| AtomicU64::new(0)).collect(),
            progress: (0..queues.total())
                .map(|_| (0..MAX_PROGRESS).map(|_| Progress::default()).collect())
                .collect(),
            controls: Mutex::default(),
            requeue_lists: Mutex::default(),
            save_areas: Mutex::default(),
        }
    }

    /// A queue's signal word.
    pub fn queue(&self, queue: u32) -> &DeviceQueue {
        &self.queues[queue as usize]
    }

    // Relaxed: a signal is advice to stop, and nothing else is read on its account.
    pub fn signal(&self, queue: u32, signal: Signal) {
        // Relaxed: a time for statistics, of which blocks see that it is another word's.
        let arrived = DeviceQueue::arrival(signal, global_timer());
        self.queue(queue).arrived.store(arrived, Ordering::Relaxed);
        self.queue(queue).signal.store(signal.to_bits(), Ordering::Relaxed);
    }

    /// The word of a queue that has the ticket of the gate that was opened last.
    pub fn opened(&self, queue: u32) -> &AtomicU64 {
        &self.opened[queue as usize]
    }

    /// Notes that a gate is open, which tells other queues' cohorts this.
    // Relaxed: the device's lock orders the ticket before the blocks that look at it; signals are advice, as above. A
    // newer signal, which has the greater number, stays.
    pub fn open(&self, Gate { queue, ticket }: Gate, words: &[(u32, Signal)]) {
        for &(queue, signal) in words {
            self.queue(queue).signal.fetch_max(signal.to_bits(), Ordering::Relaxed);
        }
        self.opened(queue).store(ticket, Ordering::Relaxed);
    }

    /// Forgets all signals, tickets and progress, because the next scheduler counts epochs and marks from the start and would
    /// take the previous ones for its own.
    pub fn forget_signals(&self) {
        for queue in 0..self.queues.len() as u32 {
            self.signal(queue, Signal::default());
            self.opened(queue).store(0, Ordering::Relaxed);
            self.progress[queue as usize].iter().for_each(Progress::clear);
        }
    }

    /// The save area of the launch that this list was lent to, with this many slots; `None` if there was no memory for it when
    /// the first of its blocks came, and then its blocks end their block-tasks. All blocks of a launch get the same: what one
    /// of them has left, each of the others can go on with.
    pub fn save_area(
        &self,
        list: *const RequeueList,
        launch: &KernelLaunch,
        slots: u32,
    ) -> Option<Arc<SaveArea>> {
        let threads = launch.block.count() as u32;
        let (state, shared) = (launch.kernel.state_bytes, launch.shared_bytes());
        let mut areas = lock(&self.save_areas);
        let area = areas
            .entry(list.addr())
            .or_insert_with(|| SaveArea::new(slots, threads, state, shared).map(Arc::new));
        let is_for = |area: &Arc<SaveArea>| area.is_for(threads, state, shared);
        debug_assert!(area.as_ref().is_none_or(is_for), "the list is lent to another launch");
        area.clone()
    }

    /// Frees the control blocks. No block of a grid is resident.
    pub fn free_controls(&self) {
        lock(&self.controls).clear();
    }
}

impl ControlSource for HostWords {
    fn new_control(&self) -> Result<ControlMemory, Error> {
        let words = Control::default();
        let memory = ControlMemory { control: Arc::as_ptr(&words.0), posts: Arc::as_ptr(&words.1) };
        lock(&self.controls).push(words);
        Ok(memory)
    }

    fn take_requeue_list(&self, _saves: bool) -> Result<LentList, Error> {
        let empty = lock(&self.requeue_lists).pop();
        Ok(LentList(Arc::into_raw(empty.unwrap_or_else(empty_list))))
    }

    fn progress(&self, queue: u32) -> *const Progress {
        self.progress[queue as usize].as_ptr()
    }

    fn give_back_requeue_list(&self, LentList(list): LentList, is_empty: bool) {
        // With the block-tasks that a cancelled launch has left there.
        lock(&self.save_areas).remove(&list.addr());
        // SAFETY: `take_requeue_list` gave this list out, and it comes back once.
        let list = unsafe { Arc::from_raw(list) };
        if !is_empty {
            // The lock orders this before the next use.
            list.clear();
        }
        lock(&self.requeue_lists).push(list);
    }
}

/// A list, made where it stays: its entries would take an eighth of a thread's stack, and without optimisation there would
/// be several copies of them.
fn empty_list() -> Arc<RequeueList> {
    let mut list = Arc::new_uninit();
    if let Some(place) = Arc::get_mut(&mut list) {
        // SAFETY: the place has the size of a list.
        unsafe { std::ptr::from_mut(place).cast::<RequeueList>().write_bytes(0, 1) };
    }
    // SAFETY: nothing else had the list, so it was written; it consists of atomics, and an empty one of zeros, as on a GPU.
    unsafe { list.assume_init() }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use preempt_device::abi::REQUEUE_CAPACITY;
    use preempt_device::host::{Amortize, Args, Dim3, Idempotence, Kernel};

    use super::*;

    /// A launch of a kernel with this state.
    fn launch(state_bytes: u32) -> KernelLaunch {
        let kernel = Kernel {
            name: "k",
            entry: "",
            plain: "",
            module: "",
            block: None,
            amortize: None,
            shared_bytes: 0,
            yields: true,
            idempotence: Idempotence::NotNeeded,
            reason: "",
            state_bytes,
            cpu: |_| false,
        };
        KernelLaunch {
            kernel: Box::leak(Box::new(kernel)),
            args: Args::default(),
            block: Dim3::new(1024, 1, 1),
            grid: [1; 3],
            amortize: Amortize::Auto,
            leaves_place: false,
        }
    }

    #[test]
    fn all_blocks_of_a_launch_get_the_same_save_area() {
        let words = HostWords::new(QueueCount { normal: 1, urgent: 0, levels: 0, chains: 1 });
        let LentList(list) = words.take_requeue_list(false).expect("a list");
        // More than there are addresses for.
        assert!(words.save_area(list, &launch(u32::MAX - 15), u32::MAX).is_none());
        // Memory that has become free since then comes too late.
        assert!(words.save_area(list, &launch(16), 1).is_none());
        words.give_back_requeue_list(LentList(list), true);

        let LentList(list) = words.take_requeue_list(false).expect("a list");
        let first = words.save_area(list, &launch(16), 1).expect("memory");
        let second = words.save_area(list, &launch(16), 1).expect("memory");
        assert!(Arc::ptr_eq(&first, &second));
        words.give_back_requeue_list(LentList(list), true);
    }

    #[test]
    fn a_list_needs_no_stack() {
        // Less than its entries take.
        let small = thread::Builder::new().stack_size(4 * REQUEUE_CAPACITY);
        let list = small.spawn(empty_list).expect("a thread").join().expect("no panic");
        let is_zero = |word: &AtomicU64| word.load(Ordering::Relaxed) == 0;
        assert!(list.entries.iter().all(is_zero));
        let numbers = [&list.available, &list.put, &list.taken];
        assert!(numbers.iter().all(|number| number.load(Ordering::Relaxed) == 0));
    }
}
