//! Suspended streams: the policy does not know of their launches, which have no SMs.
//!
//! A launch that runs is told to leave, and goes on when its stream is resumed: until then it is *active*, as far as its turn has
//! come, and has not arrived. What is behind it in its queue leaves with it, apart from plain grids, which look at no signal.
//! Copies and opaque work take no SMs and go on.

use std::time::Duration;

use preempt_device::abi::{SmRange, StopLimit};

use super::{Action, Engine, Op, Phase, arrival};
use crate::vocabulary::{LaunchId, OpKey};

impl Engine {
    /// Takes all SMs from the launches of a stream, or gives them back to the policy. A stream is suspended until it was resumed as
    /// often as it was suspended.
    pub(super) fn suspend(
        &mut self,
        now: Duration,
        stream: u32,
        is_suspended: bool,
        actions: &mut Vec<Action>,
    ) {
        let count = self.suspended.entry(stream).or_default();
        let is_first_or_last = match is_suspended {
            true => std::mem::replace(count, *count + 1) == 0,
            false => std::mem::replace(count, count.saturating_sub(1)) == 1,
        };
        if !is_suspended && *count == 0 {
            self.suspended.remove(&stream);
        }
        if !is_first_or_last {
            return;
        }
        let is_of = |op: &Op| {
            op.stream == stream
                && op.launch.is_some()
                && op.phase == Phase::Active
                && op.verdict.is_none()
        };
        let launches = self.ops.iter().filter(|(_, op)| is_of(op));
        let mut launches: Vec<(u64, OpKey)> = launches.map(|(key, op)| (op.number, key)).collect();
        // In the order in which they came.
        launches.sort_unstable();
        for (_, key) in launches {
            match is_suspended {
                true => self.withdraw(now, key, actions),
                false => self.arrive_again(now, key),
            }
        }
        if is_suspended {
            // What a gate has let through would run before it could be told to leave.
            let is_of = |key: &&OpKey| self.ops.get(**key).is_some_and(|op| op.stream == stream);
            let armed = self.agenda.armed.iter().filter(is_of);
            actions.extend(armed.map(|&op| Action::Disarm { op }));
        }
    }

    /// Whether the launches of an operation's stream are to have no SMs.
    pub(super) fn is_suspended(&self, key: OpKey) -> bool {
        !self.suspended.is_empty()
            && self.ops.get(key).is_some_and(|op| self.suspended.contains_key(&op.stream))
    }

    /// Whether an operation is unfinished or still on the device, apart from those that wait for a stream to be resumed. What
    /// waits until nothing is in flight does not wait for these, and so may be what the stream is resumed after.
    pub fn is_in_flight(&self) -> bool {
        if self.suspended.is_empty() {
            return self.is_busy();
        }
        // Copies, events and external work that have begun, and opaque work, which may wait until the device is drained.
        let is_under_way = |op: &Op| {
            let has_turn = op.phase == Phase::Active || op.opaque.is_some() && op.blockers == 0;
            has_turn && op.launch.is_none() && op.program.is_none()
        };
        !self.queues.all_free()
            || self.launches.known > 0
            || !self.agenda.armed.is_empty()
            || self.ops.values().any(is_under_way)
    }

    /// Takes all SMs from a launch, and the launch from the policy.
    fn withdraw(&mut self, now: Duration, key: OpKey, actions: &mut Vec<Action>) {
        let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) else { return };
        if launch.arrival.take().is_none() {
            return;
        }
        launch.books(&mut self.ledger, &mut self.guests).release(launch.range);
        launch.set_range(now, SmRange::EMPTY, self.ledger.sms());
        (launch.shares, launch.is_guest, launch.early) = (false, false, false);
        self.note(key, now, SmRange::EMPTY, false);
        self.launches.known -= 1;
        self.agenda.unsettled = true;
        self.shrink(now, key, StopLimit::SOONEST, actions);
        self.ask(now, |policy| policy.withdrawn(now, LaunchId(key)));
    }

    /// The turn of a launch has come, whose stream is suspended. Blocks that it has, because it was queued behind another one or had
    /// a gate, leave.
    pub(super) fn keep_back(&mut self, now: Duration, key: OpKey, actions: &mut Vec<Action>) {
        let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) else { return };
        (launch.shares, launch.is_guest, launch.early) = (false, false, false);
        launch.handover = SmRange::EMPTY;
        self.shrink(now, key, StopLimit::SOONEST, actions);
    }

    /// Tells the policy of a launch whose stream is resumed.
    fn arrive_again(&mut self, now: Duration, key: OpKey) {
        let Some(arrival) = self.ops.get(key).and_then(|op| arrival(key, op)) else { return };
        self.count_arrival(key, true);
        // A plain grid has stayed on the device.
        let launch = self.ops.get(key).and_then(|op| op.launch.as_ref());
        let queue = launch.filter(|launch| !launch.is_out()).and_then(|launch| launch.queue);
        queue.into_iter().for_each(|queue| self.go_on_behind(queue));
        self.ask(now, |policy| policy.arrived(now, arrival));
    }
}
