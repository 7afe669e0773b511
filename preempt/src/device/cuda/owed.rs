//! The post of the last plain grid that was launched, as long as it is open what writes it.
//!
//! A plain grid of few blocks posts by itself. Of another one, the next grid of its queue writes the post when it starts,
//! which costs the device little. If there is none once the grid is the first of its queue, a write of the stream does it.
//! That takes the driver microseconds, and the stream as many before it goes on. Until then the end of the grid ahead of it
//! brings the scheduler back, which may have another grid for the queue.

use std::sync::Mutex;

use super::lock;
use crate::device::control::PlainGrid;

/// A word that is to be written behind what is in a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OwedPost {
    pub queue: u32,
    pub address: u64,
    pub word: u64,
}

impl OwedPost {
    pub fn of(queue: u32, plain: PlainGrid) -> OwedPost {
        OwedPost { queue, address: plain.post as u64, word: plain.last_word() }
    }
}

/// The posts that are owed, at most one for each queue. The thread that runs the core uses this.
#[derive(Debug, Default)]
pub(super) struct Owed(Mutex<Vec<OwedPost>>);

impl Owed {
    /// Takes the post that is owed in this queue.
    pub fn take(&self, queue: u32) -> Option<OwedPost> {
        let mut all = lock(&self.0);
        let at = all.iter().position(|owed| owed.queue == queue)?;
        Some(all.swap_remove(at))
    }

    /// Takes one that is owed in a queue of which this holds.
    pub fn take_where(&self, holds: impl Fn(u32) -> bool) -> Option<OwedPost> {
        let mut all = lock(&self.0);
        let at = all.iter().position(|owed| holds(owed.queue))?;
        Some(all.swap_remove(at))
    }

    /// None is owed in its queue.
    pub fn add(&self, owed: OwedPost) {
        let mut all = lock(&self.0);
        debug_assert!(all.iter().all(|other| other.queue != owed.queue), "one is owed already");
        all.push(owed);
    }

    pub fn clear(&self) {
        lock(&self.0).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_owes_its_own_post() {
        let owed = Owed::default();
        let post = |queue| OwedPost { queue, address: 8 * u64::from(queue), word: 1 };
        [3, 1, 2].into_iter().for_each(|queue| owed.add(post(queue)));
        assert_eq!(owed.take(1), Some(post(1)));
        assert_eq!(owed.take(1), None);
        assert_eq!(owed.take_where(|queue| queue == 2), Some(post(2)));
        assert_eq!(owed.take_where(|queue| queue == 2), None);
        owed.clear();
        assert_eq!(owed.take(3), None);
    }
}
