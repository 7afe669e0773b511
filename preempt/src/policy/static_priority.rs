//! The most urgent launch first, with as many SMs as it can fill; the next ones share the rest.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use preempt_device::abi::SmRange;
use rustc_hash::FxHashMap;

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
    whole_device: bool,
    /// For each SM: whether the plan has granted it. Kept for its capacity.
    granted: Vec<bool>,
    /// For each SM: what it costs to take it. Kept, too.
    prices: Vec<u8>,
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
        let line = std::mem::take(&mut self.line);
        for &launch in line.values() {
            if left == 0 {
                break;
            }
            let wanted =
                if self.whole_device { device.sms() } else { device.need(launch).clamp(1, left) };
            let wanted = wanted as usize;
            let own = device.range(launch);
            let Some(start) = self
                .kept(own, wanted)
                .or_else(|| (own.is_empty() && line.len() == 1).then_some(0))
                .or_else(|| self.cheapest(device, own, wanted))
                .or_else(|| largest_gap(&self.granted))
            else {
                break;
            };
            let free = self.granted[start..].iter().take_while(|granted| !**granted).count();
            let length = free.min(wanted);
            self.granted[start..start + length].fill(true);
            left -= length as u32;
            plan.grant(launch, SmRange::new(start as u32, (start + length) as u32));
        }
        self.line = line;
    }
}

impl StaticPriority {
    /// Where a launch is, if it can stay as it is. Most can, so this comes before the search.
    fn kept(&self, own: SmRange, length: usize) -> Option<usize> {
        let window = own.lo() as usize..own.hi() as usize;
        let open = window.len() == length && !self.granted.get(window)?.contains(&true);
        open.then_some(own.lo() as usize)
    }

    /// Where the fewest and least urgent launches have to move for a launch.
    fn cheapest(&mut self, device: &dyn DeviceView, own: SmRange, length: usize) -> Option<usize> {
        // Neighbours mostly have the same owner, and there are many more SMs than owners.
        let runs = || device.owners().chunk_by(|a, b| a == b);
        let has = runs().filter_map(|run| run[0]);
        let least_urgent = has.max_by_key(|owner| self.places.get(owner));
        self.prices.clear();
        let mut lowest = TAKEN_FROM_OTHERS;
        for run in runs() {
            let price = match run[0] {
                None => FREE,
                owner if owner == least_urgent => TAKEN,
                _ => TAKEN_FROM_OTHERS,
            };
            self.prices.resize(self.prices.len() + run.len(), price);
            lowest = lowest.min(price);
        }
        if let Some(own) = self.prices.get_mut(own.lo() as usize..own.hi() as usize) {
            own.fill(0);
        }
        let lowest = if own.is_empty() { lowest } else { 0 };
        place(&self.granted, length, lowest.into(), |sm| self.prices[sm].into())
    }
}

/// The price of an SM that nobody has: blocks have to be launched there.
const FREE: u8 = 2;
/// The price of an SM that the least urgent launch has: it has to yield first.
const TAKEN: u8 = 4;
/// The price of an SM that another launch has.
const TAKEN_FROM_OTHERS: u8 = 6;
/// The price of a window that leaves free SMs on both sides: what is left is in two pieces.
const SPLIT: u32 = 1;

/// Where to put `length` SMs: the cheapest window of SMs that are not granted yet. No price is below
/// `lowest`.
fn place(
    granted: &[bool],
    length: usize,
    lowest: u32,
    price: impl Fn(usize) -> u32,
) -> Option<usize> {
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
                if total <= length as u32 * lowest {
                    break;
                }
            }
        }
    }
    best.map(|(_, start)| start)
}

/// Where the longest run of SMs that are not granted starts.
fn largest_gap(granted: &[bool]) -> Option<usize> {
    let (mut best, mut start) = (0..0, 0);
    for (sm, &taken) in granted.iter().enumerate() {
        if taken {
            start = sm + 1;
        } else if sm + 1 - start > best.len() {
            best = start..sm + 1;
        }
    }
    (!best.is_empty()).then_some(best.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_launch_goes_to_an_end() {
        assert_eq!(place(&[false; 8], 2, 0, |_| FREE.into()), Some(0));
    }

    #[test]
    fn a_launch_stays_where_it_is() {
        let own = SmRange::new(3, 5);
        let price = |sm: usize| if own.contains(sm as u32) { 0 } else { FREE.into() };
        assert_eq!(place(&[false; 8], 2, 0, price), Some(3));
        assert_eq!(place(&[false; 8], 3, 0, price), Some(2));
    }

    #[test]
    fn a_launch_takes_free_sms_first() {
        assert_eq!(
            place(&[false; 8], 2, 0, |sm| if sm < 3 { TAKEN.into() } else { FREE.into() }),
            Some(6)
        );
    }

    #[test]
    fn a_launch_avoids_what_more_urgent_ones_have() {
        let granted = [false, true, true, false, false, false, false, false];
        assert_eq!(place(&granted, 2, 0, |_| FREE.into()), Some(3));
        assert_eq!(place(&granted, 6, 0, |_| FREE.into()), None);
        assert_eq!(largest_gap(&granted), Some(3));
        assert_eq!(largest_gap(&[true; 4]), None);
    }
}
