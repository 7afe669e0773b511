//! How many operations of a stream can be outstanding.

use std::sync::{Arc, PoisonError};

use super::shared::Shared;
use crate::sync::{Condvar, Instant, Mutex, hint, lock};

/// Operations, at most, of one stream that are submitted and have not ended.
pub(in crate::scheduler) const MAX_OUTSTANDING: usize =
    if cfg!(all(test, shuttle)) { 2 } else { 64 };

/// Counts a stream's outstanding operations.
#[derive(Debug, Default)]
pub(in crate::scheduler) struct StreamCredits {
    outstanding: Mutex<usize>,
    freed: Condvar,
}

impl StreamCredits {
    /// Credits of a stream whose only operation holds its credit already.
    pub fn of_one() -> Arc<StreamCredits> {
        Arc::new(StreamCredits { outstanding: Mutex::new(1), ..StreamCredits::default() })
    }

    /// Takes a credit for one more operation; waits until there is one.
    pub fn enter(&self, shared: &Shared) {
        if self.try_enter() {
            return;
        }
        let start = Instant::now();
        while start.elapsed() < shared.wait_spin {
            shared.drive();
            if self.try_enter() {
                return;
            }
            hint::spin_loop();
        }
        // A waker on a poller may submit here: no other thread would look after the device meanwhile.
        while shared.poll_instead(|| *lock(&self.outstanding) >= MAX_OUTSTANDING) {
            if self.try_enter() {
                return;
            }
        }
        let full = |outstanding: &mut usize| *outstanding >= MAX_OUTSTANDING;
        let outstanding = self.freed.wait_while(lock(&self.outstanding), full);
        *outstanding.unwrap_or_else(PoisonError::into_inner) += 1;
    }

    fn try_enter(&self) -> bool {
        let mut outstanding = lock(&self.outstanding);
        let has_room = *outstanding < MAX_OUTSTANDING;
        *outstanding += usize::from(has_room);
        has_room
    }

    /// Returns a credit.
    pub fn leave(&self) {
        let mut outstanding = lock(&self.outstanding);
        *outstanding -= 1;
        let was_full = *outstanding + 1 == MAX_OUTSTANDING;
        drop(outstanding);
        if was_full {
            self.freed.notify_all();
        }
    }
}
