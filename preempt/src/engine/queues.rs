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
    cohorts: VecDeque<Queued>,
    /// Whether the first of these is behind a gate.
    gated: bool,
}

/// A cohort in a queue.
#[derive(Clone, Copy, Debug)]
struct Queued {
    op: OpKey,
    slot: usize,
    /// The SMs that the word in its parameter grants where these are fewer than those of the queue's, which is older.
    own: Option<SmRange>,
}

impl DeviceQueue {
    /// The SMs that a cohort there may use.
    fn granted(&self, cohort: &Queued) -> SmRange {
        cohort.own.unwrap_or(self.range)
    }
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

    /// Puts a cohort at the end of a queue. Returns the word for its parameter, which grants `range`: that of an empty queue
    /// becomes the queue's, and another one is the cohort's alone. A later word of the queue takes its place.
    pub fn enter(
        &mut self,
        queue: QueueIndex,
        (op, slot): (OpKey, usize),
        range: SmRange,
    ) -> Signal {
        if self.is_free(queue) {
            self.signal(queue, range, StopLimit::SOONEST);
        }
        let of = &mut self.all[queue as usize];
        let own = (range != of.range).then_some(range);
        // The newer word counts.
        of.epoch += 2 * u64::from(own.is_some());
        let word = Signal::new(of.epoch, range);
        self.change(queue, |queue| queue.cohorts.push_back(Queued { op, slot, own }));
        word
    }

    /// Notes that the cohort which was put into a queue last, the only one there, is behind a gate.
    pub fn gate(&mut self, queue: QueueIndex) {
        self.change(queue, |queue| queue.gated = true);
    }

    /// The first cohort of each queue that was put behind a gate there.
    pub fn gated(&self) -> impl Iterator<Item = OpKey> {
        let gated = self.all.iter().filter(|queue| queue.gated);
        gated.filter_map(|queue| queue.cohorts.front().map(|cohort| cohort.op))
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
            let is_it = |cohort: &Queued| (cohort.op, cohort.slot) == (op, slot);
            queue.gated &= !queue.cohorts.front().is_some_and(is_it);
            queue.cohorts.retain(|cohort| !is_it(cohort));
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
        let before = self.range(queue);
        let queue = &mut self.all[queue as usize];
        queue.epoch += 2;
        if before != range {
            queue.before = before;
        }
        (queue.range, queue.limit) = (range, limit);
        queue.cohorts.iter_mut().for_each(|cohort| cohort.own = None);
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

    /// The SMs that the first cohort of a queue may use.
    pub fn range(&self, queue: QueueIndex) -> SmRange {
        let queue = &self.all[queue as usize];
        queue.cohorts.front().map_or(queue.range, |cohort| queue.granted(cohort))
    }

    /// The SMs that a launch's cohorts in a queue may use.
    pub fn range_of(&self, queue: QueueIndex, op: OpKey) -> SmRange {
        let queue = &self.all[queue as usize];
        let of = queue.cohorts.iter().find(|cohort| cohort.op == op);
        of.map_or(queue.range, |cohort| queue.granted(cohort))
    }

    /// The SMs that the last word of a queue grants: to all of its cohorts but those whose own word is newer.
    pub fn word(&self, queue: QueueIndex) -> SmRange {
        self.all[queue as usize].range
    }

    /// The first cohort in each queue that has any.
    pub fn heads(&self) -> impl Iterator<Item = (QueueIndex, OpKey, usize)> {
        let head = |(queue, of): (QueueIndex, &DeviceQueue)| {
            of.cohorts.front().map(|cohort| (queue, cohort.op, cohort.slot))
        };
        (0..).zip(&self.all).filter_map(head)
    }

    /// The launches behind the first one.
    pub fn behind_first(&self, queue: QueueIndex) -> impl Iterator<Item = OpKey> {
        self.all[queue as usize].cohorts.iter().skip(1).map(|cohort| cohort.op)
    }

    /// The launches with cohorts in a queue.
    pub fn launches(&self, queue: QueueIndex) -> impl Iterator<Item = OpKey> {
        self.all[queue as usize].cohorts.iter().map(|cohort| cohort.op)
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
        cohorts.back().filter(|_| has_room).map(|cohort| (cohort.op, cohort.slot))
    }
}

#[cfg(test)]
mod tests {
    use slotmap::KeyData;

    use super::*;

    #[test]
    fn a_cohorts_own_word_counts_until_there_is_a_newer_one() {
        let count = QueueCount { normal: 1, urgent: 0, levels: 0, chains: 1 };
        let mut queues = DeviceQueues::new(count);
        let [first, second, third] = [1, 2, 3].map(|key| OpKey::from(KeyData::from_ffi(key)));
        let (own, less) = (SmRange::new(2, 6), SmRange::new(2, 4));
        let all = queues.enter(0, (first, 0), SmRange::ALL);
        let gate = queues.next_word(0, SmRange::ALL, StopLimit::SOONEST);
        let word = queues.enter(0, (second, 0), own);
        assert_eq!((all.range(), word.range()), (SmRange::ALL, own));
        assert!(word.is_newer(gate), "whatever was to be told before");
        assert!(queues.next_word(0, less, StopLimit::SOONEST).is_newer(word));
        assert_eq!(queues.enter(0, (third, 0), SmRange::ALL).range(), SmRange::ALL);
        let granted = |queues: &DeviceQueues| {
            (queues.range(0), [first, second, third].map(|op| queues.range_of(0, op)))
        };
        assert_eq!(granted(&queues), (SmRange::ALL, [SmRange::ALL, own, SmRange::ALL]));
        queues.leave(0, first, 0);
        assert_eq!((queues.range(0), queues.word(0)), (own, SmRange::ALL));
        assert!(queues.signal(0, less, StopLimit::SOONEST).is_newer(word));
        assert_eq!(granted(&queues), (less, [less; 3]));
        assert_eq!([3, 5, 7].map(|sm| queues.has_lost(0, sm)), [false, true, false]);
    }
}
