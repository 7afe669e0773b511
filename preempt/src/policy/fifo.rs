//! In the order in which launches became ready.

use std::collections::BTreeMap;
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::placement::Placement;
use super::{Arrival, DeviceView, Plan, Policy};
use crate::engine::LaunchId;

/// First come, first served, whatever the priorities; what the first launch leaves free goes to the next one.
///
/// No launch waits for ever, and none yields but SMs that it cannot fill any more. This is what the engine goes
/// on with when it has to refuse another policy.
#[derive(Debug, Default)]
pub struct Fifo {
    line: BTreeMap<u64, LaunchId>,
    places: FxHashMap<LaunchId, u64>,
    arrivals: u64,
    placement: Placement,
}

impl Fifo {
    /// With nothing in the line.
    pub fn new() -> Fifo {
        Fifo::default()
    }
}

impl Policy for Fifo {
    fn name(&self) -> &str {
        "fifo"
    }

    fn arrived(&mut self, _now: Duration, launch: Arrival) {
        self.arrivals += 1;
        self.line.insert(self.arrivals, launch.id);
        self.places.insert(launch.id, self.arrivals);
    }

    // It keeps its place.
    fn changed(&mut self, _now: Duration, _launch: Arrival) {}

    fn departed(&mut self, _now: Duration, launch: LaunchId) {
        if let Some(place) = self.places.remove(&launch) {
            self.line.remove(&place);
        }
    }

    fn assign(&mut self, _now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        let Fifo { line, places, placement, .. } = self;
        placement.share(line.values().copied(), |owner| places.get(&owner), device, plan);
    }
}
