//! Queues of a device.

/// A queue of the device, by number.
pub(crate) type QueueIndex = u32;

/// Some of the device's queues, by their bits.
pub(crate) type QueueSet = u64;

/// The bit of a queue in a set. A device has fewer than 64; a queue beyond has none.
pub(crate) fn queue_bit(queue: QueueIndex) -> QueueSet {
    1u64.checked_shl(queue).unwrap_or(0)
}

/// Cohorts that a queue of the device holds. A driver takes a thousand launches in all; one more would make the call wait,
/// and the host with it.
pub(crate) const QUEUE_CAPACITY: usize = 64;

/// Calls of a program, at most, that the device takes together: two such rows have room in a queue behind a launch, so
/// that the second is queued while the first runs.
pub(crate) const MOST_TOGETHER: usize = (QUEUE_CAPACITY - 1) / 2;

/// How many queues a device has, and at which levels: where blocks of several queues wait for room, those of the
/// highest level go first. The first queues are those of level 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QueueCount {
    /// Queues of level 0.
    pub normal: u32,
    /// Queues of each level above.
    pub urgent: u32,
    /// The highest level.
    pub levels: u32,
    /// How many queues can hold more than one cohort at the same time. A GPU has few hardware queues, and a queue in
    /// which something waits behind a grid takes one. Without one, nothing else gets through.
    pub chains: u32,
}

impl QueueCount {
    /// Queues of all levels.
    pub const fn total(self) -> u32 {
        self.normal + self.urgent * self.levels
    }

    /// The highest level for plain grids. Above the blocks of the most urgent of them there is one for launches that are yet
    /// to come, unless the device has too few.
    pub const fn plain_level(self) -> u32 {
        if self.levels < 2 { self.levels } else { self.levels - 1 }
    }

    /// The level of a queue.
    pub const fn level(self, queue: QueueIndex) -> u32 {
        if queue < self.normal { 0 } else { 1 + (queue - self.normal) / self.urgent }
    }
}
