//! The post of the last plain grid that was launched, as long as it is open what writes it.
//!
//! A plain grid of few blocks posts by itself. Of another one, the next grid of its queue writes the post when it starts,
//! which costs the device nothing. If there is none when the scheduler has nothing more to launch, a write of the stream
//! does it. That takes the driver microseconds, and the stream as many before it goes on.

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

/// At most one post is owed at a time. The thread that runs the core uses this.
#[derive(Debug, Default)]
pub(super) struct Owed(Mutex<Option<OwedPost>>);

impl Owed {
    /// Takes the post that is owed, if it is of this queue.
    pub fn take(&self, queue: u32) -> Option<OwedPost> {
        lock(&self.0).take_if(|owed| owed.queue == queue)
    }

    pub fn is_any(&self) -> bool {
        lock(&self.0).is_some()
    }

    pub fn take_any(&self) -> Option<OwedPost> {
        lock(&self.0).take()
    }

    /// None is owed.
    pub fn set(&self, owed: OwedPost) {
        let before = lock(&self.0).replace(owed);
        debug_assert_eq!(before, None, "its grid would never be known to be over");
    }
}
