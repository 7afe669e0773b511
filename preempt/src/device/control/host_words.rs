//! Control memory in the host's own memory, for devices whose blocks are threads of the host.

use std::sync::Arc;

use preempt_device::abi::{COHORT_SLOTS, ControlBlock, DeviceQueue, Post, RequeueList, Signal};

use super::{ControlMemory, ControlSource, LentList};
use crate::device::lock;
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
    /// One for each launch that one scheduler had in flight at the same time.
    controls: Mutex<Vec<Control>>,
    /// Empty lists. Lent and present ones together are as many as one scheduler had launches in flight at the same
    /// time.
    requeue_lists: Mutex<Vec<Arc<RequeueList>>>,
}

impl HostWords {
    pub fn new(queues: QueueCount) -> HostWords {
        HostWords {
            queues: (0..queues.total()).map(|_| DeviceQueue::default()).collect(),
            controls: Mutex::default(),
            requeue_lists: Mutex::default(),
        }
    }

    /// A queue's signal word.
    pub fn queue(&self, queue: u32) -> &DeviceQueue {
        &self.queues[queue as usize]
    }

    // Relaxed: a signal is advice to stop, and nothing else is read on its account.
    pub fn signal(&self, queue: u32, signal: Signal) {
        self.queue(queue).signal.store(signal.to_bits(), Ordering::Relaxed);
    }

    /// Forgets all signals, because the next scheduler counts epochs from the start and would take the previous signals
    /// for newer ones.
    pub fn forget_signals(&self) {
        (0..self.queues.len()).for_each(|queue| self.signal(queue as u32, Signal::default()));
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

    fn take_requeue_list(&self) -> Result<LentList, Error> {
        let empty = lock(&self.requeue_lists).pop();
        Ok(LentList(Arc::into_raw(empty.unwrap_or_default())))
    }

    fn give_back_requeue_list(&self, LentList(list): LentList, is_empty: bool) {
        // SAFETY: `take_requeue_list` gave this list out, and it comes back once.
        let list = unsafe { Arc::from_raw(list) };
        if !is_empty {
            // The lock orders this before the next use.
            list.clear();
        }
        lock(&self.requeue_lists).push(list);
    }
}
