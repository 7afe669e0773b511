//! Queues of a device.

/// A queue of the device, by number.
pub(crate) type QueueIndex = u32;

/// How many queues a device has. The first ones are `normal`; the others are `urgent`: the device
/// prefers blocks in them to blocks in normal queues, where both wait for room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QueueCount {
    pub normal: u32,
    pub urgent: u32,
    /// How many queues can hold more than one cohort at the same time. A GPU has few hardware queues,
    /// and a queue in which something waits takes one; without one, nothing else gets through.
    pub chains: u32,
}
