//! Device queues: the cohorts in each, and the signal word of each.

use std::collections::VecDeque;

use preempt_device::abi::{Signal, SmRange};

use crate::vocabulary::{OpKey, QueueCount, QueueIndex};

/// Cohorts in a queue at most: one runs, and the others wait for their predecessor to end. Enough to keep the device
/// busy while the host looks elsewhere, and few enough to be gone quickly when the queue is told to leave.
pub(super) const QUEUED_AHEAD: usize = 16;

#[derive(Debug)]
pub(super) struct DeviceQueues {
    all: Vec<DeviceQueue>,
    normal: usize,
    /// Queues with more than one cohort: the most that there may be, and how many there are.
    most_chains: u32,
    chains: u32,
}

#[derive(Debug, Default)]
struct DeviceQueue {
    /// Signal words that were ever made for this queue.
    epoch: u64,
    /// The range in the last word.
    range: SmRange,
    /// The cohorts on the device, first to run first.
    cohorts: VecDeque<(OpKey, usize)>,
}

impl DeviceQueues {
    pub fn new(count: QueueCount) -> DeviceQueues {
        let queue = |_| DeviceQueue::default();
        DeviceQueues {
            all: (0..count.normal + count.urgent).map(queue).collect(),
            normal: count.normal as usize,
            most_chains: count.chains,
            chains: 0,
        }
    }

    /// How many there are.
    pub fn count(&self) -> QueueCount {
        let normal = self.normal as u32;
        QueueCount { normal, urgent: self.all.len() as u32 - normal, chains: self.most_chains }
    }

    /// An empty queue. The urgent queues are left to urgent cohorts.
    pub fn free(&self, urgent: bool) -> Option<QueueIndex> {
        let is_free = |&queue: &usize| self.all[queue].cohorts.is_empty();
        let normal = (0..self.normal).find(is_free);
        let queue = match urgent {
            true => (self.normal..self.all.len()).find(is_free).or(normal),
            false => normal,
        };
        queue.map(|queue| queue as QueueIndex)
    }

    /// Puts a cohort at the end of a queue. Returns the word for its parameter, which grants `range` if the queue was
    /// empty.
    pub fn enter(&mut self, queue: QueueIndex, op: OpKey, slot: usize, range: SmRange) -> Signal {
        if self.is_free(queue) {
            self.signal(queue, range);
        }
        let queue = &mut self.all[queue as usize];
        queue.cohorts.push_back((op, slot));
        self.chains += u32::from(queue.cohorts.len() == 2);
        Signal::new(queue.epoch, queue.range)
    }

    /// Takes a cohort out that has left.
    pub fn leave(&mut self, queue: QueueIndex, op: OpKey, slot: usize) {
        let cohorts = &mut self.all[queue as usize].cohorts;
        let was_chain = cohorts.len() > 1;
        cohorts.retain(|&cohort| cohort != (op, slot));
        self.chains -= u32::from(was_chain && cohorts.len() <= 1);
    }

    /// Takes everything out.
    pub fn clear(&mut self) {
        self.all.iter_mut().for_each(|queue| queue.cohorts.clear());
        self.chains = 0;
    }

    /// Makes a word that is newer than all before it.
    pub fn signal(&mut self, queue: QueueIndex, range: SmRange) -> Signal {
        let queue = &mut self.all[queue as usize];
        queue.epoch += 1;
        queue.range = range;
        Signal::new(queue.epoch, range)
    }

    /// The SMs that the queue's cohorts may use.
    pub fn range(&self, queue: QueueIndex) -> SmRange {
        self.all[queue as usize].range
    }

    /// The first cohort in each queue that has any.
    pub fn heads(&self) -> impl Iterator<Item = (QueueIndex, OpKey, usize)> {
        let head = |(queue, of): (QueueIndex, &DeviceQueue)| {
            of.cohorts.front().map(|&(op, slot)| (queue, op, slot))
        };
        (0..).zip(&self.all).filter_map(head)
    }

    /// How many cohorts are behind the first one.
    pub fn waiting(&self, queue: QueueIndex) -> usize {
        self.all[queue as usize].cohorts.len().saturating_sub(1)
    }

    pub fn is_free(&self, queue: QueueIndex) -> bool {
        self.all[queue as usize].cohorts.is_empty()
    }

    pub fn all_free(&self) -> bool {
        self.all.iter().all(|queue| queue.cohorts.is_empty())
    }

    /// The last cohort, if there is room behind it.
    pub fn tail(&self, queue: QueueIndex) -> Option<(OpKey, usize)> {
        let cohorts = &self.all[queue as usize].cohorts;
        let has_room = match cohorts.len() {
            1 => self.chains < self.most_chains,
            length => length < QUEUED_AHEAD,
        };
        cohorts.back().filter(|_| has_room).copied()
    }
}
