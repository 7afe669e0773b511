//! Device queues: the cohorts in each, and the signal word of each.

use std::collections::VecDeque;

use preempt_device::abi::{Signal, SmRange, StopLimit};

use crate::vocabulary::{OpKey, QUEUE_CAPACITY, QueueCount, QueueIndex};

#[derive(Debug)]
pub(super) struct DeviceQueues {
    all: Vec<DeviceQueue>,
    /// How many there are, and may be in use.
    count: QueueCount,
    /// Queues with more than one cohort, or with a gate.
    chains: u32,
}

#[derive(Debug)]
struct DeviceQueue {
    /// Twice the number of signal words that were made for this queue: the word of a gate has the odd number between two.
    epoch: u64,
    /// The range and the limit in the last word, and the range in the one that it took SMs from.
    range: SmRange,
    limit: StopLimit,
    before: SmRange,
    /// The cohorts on the device, first to run first.
    cohorts: VecDeque<(OpKey, usize)>,
    /// Whether the first of these is behind a gate.
    gated: bool,
}

impl DeviceQueues {
    pub fn new(count: QueueCount) -> DeviceQueues {
        let queue = |_| DeviceQueue {
            epoch: 0,
            range: SmRange::default(),
            limit: StopLimit::SOONEST,
            before: SmRange::default(),
            cohorts: VecDeque::new(),
            gated: false,
        };
        DeviceQueues { all: (0..count.total()).map(queue).collect(), count, chains: 0 }
    }

    /// How many there are.
    pub fn count(&self) -> QueueCount {
        self.count
    }

    /// An empty queue of this level, or of the next one above that has any, up to the `highest`. If there is none, one of
    /// the level below that is nearest. Queues above level 0 are left to cohorts that need them.
    pub fn free(&self, level: u32, highest: u32) -> Option<QueueIndex> {
        let is_free = |&queue: &QueueIndex| self.is_free(queue);
        let QueueCount { normal, urgent, levels, .. } = self.count;
        let at_zero = || (0..normal).find(is_free);
        let Some(above) = level.checked_sub(1) else { return at_zero() };
        let start = normal + urgent * above.min(levels);
        let end = normal + urgent * highest.min(levels);
        let from_here_up = (start..end).find(is_free);
        let below = || (normal..start).rev().find(is_free);
        from_here_up.or_else(below).or_else(at_zero)
    }

    /// The level of a queue.
    pub fn level(&self, queue: QueueIndex) -> u32 {
        self.count.level(queue)
    }

    /// Puts a cohort at the end of a queue. Returns the word for its parameter, which grants `range` if the queue was
    /// empty.
    pub fn enter(
        &mut self,
        queue: QueueIndex,
        (op, slot): (OpKey, usize),
        range: SmRange,
    ) -> Signal {
        if self.is_free(queue) {
            self.signal(queue, range, StopLimit::SOONEST);
        }
        self.change(queue, |queue| queue.cohorts.push_back((op, slot)));
        let queue = &mut self.all[queue as usize];
        Signal::new(queue.epoch, queue.range)
    }

    /// Notes that the cohort which was put into a queue last, the only one there, is behind a gate.
    pub fn gate(&mut self, queue: QueueIndex) {
        self.change(queue, |queue| queue.gated = true);
    }

    /// The first cohort of each queue that was put behind a gate there.
    pub fn gated(&self) -> impl Iterator<Item = OpKey> {
        let gated = self.all.iter().filter(|queue| queue.gated);
        gated.filter_map(|queue| queue.cohorts.front().map(|&(op, _)| op))
    }

    /// Whether one queue more can hold something behind something else.
    pub fn may_chain(&self) -> bool {
        self.chains < self.count.chains
    }

    /// A word for a gate to tell: newer than all words that were [signalled](DeviceQueues::signal), and older than those
    /// that will be, so that it never hides one.
    pub fn next_word(&self, queue: QueueIndex, range: SmRange, limit: StopLimit) -> Signal {
        Signal::within(self.all[queue as usize].epoch + 1, range, limit)
    }

    /// Takes a cohort out that has left.
    pub fn leave(&mut self, queue: QueueIndex, op: OpKey, slot: usize) {
        self.change(queue, |queue| {
            let first = queue.cohorts.front().copied();
            queue.cohorts.retain(|&cohort| cohort != (op, slot));
            queue.gated &= first == queue.cohorts.front().copied();
        });
    }

    /// Changes the cohorts of a queue, and counts the chains.
    fn change(&mut self, queue: QueueIndex, change: impl FnOnce(&mut DeviceQueue)) {
        let queue = &mut self.all[queue as usize];
        let is_chain = |queue: &DeviceQueue| u32::from(queue.gated || queue.cohorts.len() > 1);
        let before = is_chain(queue);
        change(queue);
        self.chains = self.chains + is_chain(queue) - before;
    }

    /// Takes everything out.
    pub fn clear(&mut self) {
        for queue in &mut self.all {
            queue.cohorts.clear();
            queue.gated = false;
        }
        self.chains = 0;
    }

    /// Makes a word that is newer than all before it, whose blocks leave other SMs within `limit`.
    pub fn signal(&mut self, queue: QueueIndex, range: SmRange, limit: StopLimit) -> Signal {
        let queue = &mut self.all[queue as usize];
        queue.epoch += 2;
        if queue.range != range {
            queue.before = queue.range;
        }
        (queue.range, queue.limit) = (range, limit);
        Signal::within(queue.epoch, range, limit)
    }

    /// Whether blocks of a queue that leave SMs have more time for it than `limit`.
    pub fn is_slower(&self, queue: QueueIndex, limit: StopLimit) -> bool {
        let DeviceQueue { limit: now, ref cohorts, .. } = self.all[queue as usize];
        !cohorts.is_empty() && now != limit && limit.or_stricter(now) == limit
    }

    /// Whether the last word of a queue took this SM.
    pub fn has_lost(&self, queue: QueueIndex, sm: u32) -> bool {
        let DeviceQueue { range, before, .. } = self.all[queue as usize];
        before.contains(sm) && !range.contains(sm)
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

    /// The launches behind the first one.
    pub fn behind_first(&self, queue: QueueIndex) -> impl Iterator<Item = OpKey> {
        self.all[queue as usize].cohorts.iter().skip(1).map(|&(op, _)| op)
    }

    /// The launches with cohorts in a queue.
    pub fn launches(&self, queue: QueueIndex) -> impl Iterator<Item = OpKey> {
        self.all[queue as usize].cohorts.iter().map(|&(op, _)| op)
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
        let DeviceQueue { cohorts, gated, .. } = &self.all[queue as usize];
        let has_room = match cohorts.len() {
            1 if !gated => self.may_chain(),
            length => length < QUEUE_CAPACITY,
        };
        cohorts.back().filter(|_| has_room).copied()
    }
}
