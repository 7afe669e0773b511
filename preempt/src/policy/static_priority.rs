//! The most urgent launch first, with as many SMs as it can fill; the next ones share the rest.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use preempt_device::abi::SmRange;

use super::{Arrival, DeviceView, Plan, Policy, Priority};
use crate::engine::LaunchId;

/// Static priorities (EffiSha section 6.1), with spatial sharing (FLEP section 5.2).
///
/// A more urgent launch never waits for a less urgent one, except for the block-tasks that run
/// when it arrives. Launches of equal priority run in the order in which they became ready, and
/// do not preempt each other. A launch takes no more SMs than its block-tasks fill; the others
/// stay with, or go to, the next in line.
///
/// A constant stream of urgent launches can keep a less urgent one waiting for ever.
#[derive(Debug, Default)]
pub struct StaticPriority {
    line: BTreeMap<(Reverse<Priority>, u64), LaunchId>,
    places: HashMap<LaunchId, (Reverse<Priority>, u64)>,
    arrivals: u64,
    whole_device: bool,
    /// For each SM: whether the plan has granted it. Kept for its capacity.
    granted: Vec<bool>,
}

impl StaticPriority {
    /// With spatial sharing.
    pub fn new() -> StaticPriority {
        StaticPriority::default()
    }

    /// Without spatial sharing: the most urgent launch has the whole device, as in EffiSha.
    pub fn whole_device() -> StaticPriority {
        StaticPriority { whole_device: true, ..StaticPriority::default() }
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
        self.granted.clear();
        self.granted.resize(device.sms() as usize, false);
        let mut left = device.sms();
        // Each launch in the loop takes at least one SM, so it is short however long the line.
        for &launch in self.line.values() {
            if left == 0 {
                break;
            }
            let wanted =
                if self.whole_device { device.sms() } else { device.need(launch).clamp(1, left) };
            let own = device.range(launch);
            let price = |sm: usize| match sm as u32 {
                sm if own.contains(sm) => 0,
                sm if device.is_free(sm) => FREE,
                _ => TAKEN,
            };
            let Some(start) =
                place(&self.granted, wanted as usize, price).or_else(|| largest_gap(&self.granted))
            else {
                break;
            };
            let free = self.granted[start..].iter().take_while(|granted| !**granted).count();
            let length = free.min(wanted as usize);
            self.granted[start..start + length].fill(true);
            left -= length as u32;
            plan.grant(launch, SmRange::new(start as u32, (start + length) as u32));
        }
    }
}

/// The price of an SM that nobody has: blocks have to be launched there.
const FREE: u32 = 2;
/// The price of an SM that a less urgent launch has: it has to yield first.
const TAKEN: u32 = 4;
/// The price of a window that leaves free SMs on both sides: what is left is in two pieces.
const SPLIT: u32 = 1;

/// Where to put `length` SMs: the cheapest window of SMs that are not granted yet.
fn place(granted: &[bool], length: usize, price: impl Fn(usize) -> u32) -> Option<usize> {
    let is_open = |sm: Option<usize>| sm.and_then(|sm| granted.get(sm)).is_some_and(|taken| !taken);
    let (mut best, mut run, mut cost) = (None, 0, 0);
    for (last, &taken) in granted.iter().enumerate() {
        if taken {
            (run, cost) = (0, 0);
            continue;
        }
        (run, cost) = (run + 1, cost + price(last));
        if run > length {
            cost -= price(last - length);
        }
        if run >= length {
            let start = last + 1 - length;
            let splits = is_open(start.checked_sub(1)) && is_open(Some(last + 1));
            let total = cost + if splits { SPLIT } else { 0 };
            if best.is_none_or(|(least, _)| total < least) {
                best = Some((total, start));
            }
        }
    }
    best.map(|(_, start)| start)
}

fn largest_gap(granted: &[bool]) -> Option<usize> {
    let gap = |start: usize| granted[start..].iter().take_while(|granted| !**granted).count();
    // The first of equal gaps: the last one would be the tail of itself.
    (0..granted.len()).rev().max_by_key(|&start| gap(start)).filter(|&start| gap(start) > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_launch_goes_to_an_end() {
        assert_eq!(place(&[false; 8], 2, |_| FREE), Some(0));
    }

    #[test]
    fn a_launch_stays_where_it_is() {
        let own = SmRange::new(3, 5);
        let price = |sm: usize| if own.contains(sm as u32) { 0 } else { FREE };
        assert_eq!(place(&[false; 8], 2, price), Some(3));
        assert_eq!(place(&[false; 8], 3, price), Some(2));
    }

    #[test]
    fn a_launch_takes_free_sms_first() {
        assert_eq!(place(&[false; 8], 2, |sm| if sm < 3 { TAKEN } else { FREE }), Some(6));
    }

    #[test]
    fn a_launch_avoids_what_more_urgent_ones_have() {
        let granted = [false, true, true, false, false, false, false, false];
        assert_eq!(place(&granted, 2, |_| FREE), Some(3));
        assert_eq!(place(&granted, 6, |_| FREE), None);
        assert_eq!(largest_gap(&granted), Some(3));
        assert_eq!(largest_gap(&[true; 4]), None);
    }
}
