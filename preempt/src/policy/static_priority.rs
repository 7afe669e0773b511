//! The most urgent launch first, with as many SMs as it can fill; the next ones share the rest.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::placement::Placement;
use super::{Arrival, DeviceView, Plan, Policy, Priority};
use crate::engine::LaunchId;

/// Static priorities (EffiSha section 6.1), with spatial sharing (FLEP section 5.2).
///
/// A more urgent launch never waits for a less urgent one, except for the block-tasks that run
/// when it arrives. Launches of equal priority run in the order in which they became ready; a later
/// one yields to an earlier one only where that one had to make room itself. A launch takes no more
/// SMs than its block-tasks fill; the others stay with, or go to, the next in line.
///
/// A constant stream of urgent launches can keep a less urgent one waiting for ever.
#[derive(Debug, Default)]
pub struct StaticPriority {
    line: BTreeMap<(Reverse<Priority>, u64), LaunchId>,
    places: FxHashMap<LaunchId, (Reverse<Priority>, u64)>,
    arrivals: u64,
    placement: Placement,
}

impl StaticPriority {
    /// With spatial sharing.
    pub fn new() -> StaticPriority {
        StaticPriority::default()
    }

    /// Without spatial sharing: the most urgent launch has the whole device, as in EffiSha.
    pub fn whole_device() -> StaticPriority {
        StaticPriority { placement: Placement::whole_device(), ..StaticPriority::default() }
    }
}

impl Policy for StaticPriority {
    fn name(&self) -> &str {
        "static priority"
    }

    fn arrived(&mut self, _now: Duration, launch: Arrival) {
        self.arrivals += 1;
        let place = (Reverse(launch.priority), self.arrivals);
        self.line.insert(place, launch.id);
        self.places.insert(launch.id, place);
    }

    fn departed(&mut self, _now: Duration, launch: LaunchId) {
        if let Some(place) = self.places.remove(&launch) {
            self.line.remove(&place);
        }
    }

    fn assign(&mut self, _now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        let StaticPriority { line, places, placement, .. } = self;
        placement.share(line.values().copied(), |owner| places.get(&owner), device, plan);
    }
}
