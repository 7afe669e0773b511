//! Counts what happened, for threads that wait for more.

use std::sync::PoisonError;
use std::time::Duration;

use super::lock;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex};

/// Counts what has happened on a device and around it.
///
/// No wake-up is lost: a thread takes a mark, then looks, and then waits from the mark. What is announced after the
/// mark ends that wait, or keeps it from beginning; the look sees what was announced before.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Written under the lock; release and acquire, so that a thread that sees the count sees what happened.
    count: AtomicU64,
    /// How many threads sleep. To wake none is a call of the system, too.
    sleepers: Mutex<u32>,
    changed: Condvar,
}

/// The count at some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark(u64);

impl News {
    /// Says that something happened.
    pub fn announce(&self) {
        // A thread that is about to sleep holds the lock from its look at the count until it sleeps.
        let sleepers = lock(&self.sleepers);
        self.count.fetch_add(1, Ordering::Release);
        let some_sleep = *sleepers > 0;
        drop(sleepers);
        if some_sleep {
            self.changed.notify_all();
        }
    }

    /// The count of what was announced so far.
    pub fn mark(&self) -> Mark {
        Mark(self.count.load(Ordering::Acquire))
    }

    /// Sleeps until more was announced than at the mark, or for `timeout`. Other threads go first even if that is zero,
    /// because a policy that wants to be asked at once would keep them from going on.
    pub fn wait(&self, since: Mark, timeout: Duration) {
        let is_old = |_: &mut u32| self.mark() == since;
        let mut sleepers = lock(&self.sleepers);
        *sleepers += 1;
        // Why the wait ended does not matter: the caller looks for itself.
        let woken = self.changed.wait_timeout_while(sleepers, timeout, is_old);
        *woken.unwrap_or_else(PoisonError::into_inner).0 -= 1;
    }
}
