//! References without preemption, to compare policies with.

use std::collections::VecDeque;
use std::time::Duration;

use crate::policy::{Arrival, DeviceView, Plan, Policy, SmRange};
use crate::vocabulary::LaunchId;

/// Launches in the order in which they became ready, each with the whole device until it is done.
#[derive(Debug, Default)]
pub(super) struct OneAtATime {
    line: VecDeque<LaunchId>,
}

impl Policy for OneAtATime {
    fn name(&self) -> &str {
        "one at a time"
    }

    fn arrived(&mut self, _now: Duration, launch: Arrival) {
        self.line.push_back(launch.id);
    }

    // It keeps its place.
    fn changed(&mut self, _now: Duration, _launch: Arrival) {}

    fn departed(&mut self, _now: Duration, launch: LaunchId) {
        // It is the first one, unless it was cancelled.
        if let Some(place) = self.line.iter().position(|&id| id == launch) {
            self.line.remove(place);
        }
    }

    fn assign(&mut self, _now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        if let Some(&first) = self.line.front() {
            plan.grant(first, SmRange::new(0, device.sms()));
        }
    }
}
