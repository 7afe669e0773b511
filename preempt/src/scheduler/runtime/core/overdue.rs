//! Tells of launches that do not leave the device.

use std::time::Duration;

use super::Core;
use crate::device::Overdue as OnDevice;
use crate::scheduler::observed::stats::Overdue;

/// Time after which a launch that has not left the device is told of, and the time between two looks for such launches: with a
/// sleep of the poller, 100 ms at most, a second at most. Block-tasks that take as long are told of, too: an urgent launch waits for them.
const LIMIT: Duration = Duration::from_millis(700);
const LOOKS: Duration = Duration::from_millis(200);

impl Core {
    /// Tells of each launch once that has not left the device for long.
    pub(super) fn watch(&mut self, now: Duration) {
        if now < self.watched + LOOKS {
            return;
        }
        self.watched = now;
        let overdue: Vec<OnDevice> = self.session.overdue(now, LIMIT).collect();
        for found in overdue {
            let is_new = self.told_overdue.insert(found.op, ()).is_none();
            if let Some(of) = self.described(found).filter(|_| is_new) {
                self.accounts.overdue(&of);
            }
        }
    }

    /// The launches that were told of, and have not left the device since.
    pub(super) fn overdue(&self, now: Duration) -> Vec<Overdue> {
        let overdue = self.session.overdue(now, LIMIT);
        let told = overdue.filter(|found| self.told_overdue.contains_key(found.op));
        told.filter_map(|found| self.described(found)).collect()
    }

    fn described(&self, OnDevice { op, time, was_told }: OnDevice) -> Option<Overdue> {
        let (launch, _) = self.kernel(op)?;
        let whole = self.calls.get(op).map_or(op, |call| call.program);
        let stream = self.jobs.get(whole)?.entry.as_ref()?.stream;
        Some(Overdue { kernel: launch.kernel.name, stream, time, was_told })
    }
}
