//! From an order of launches to SMs: the first one has as many as it can fill, the next ones share the rest.

use std::cmp::Reverse;
use std::ops::Range;

use preempt_device::abi::SmRange;

use super::indexed_heap::IndexedHeap;
use super::{DeviceView, Plan};
use crate::vocabulary::{LaunchId, SmSet};

/// Places launches on SMs in a given order, such that as few as possible have to move.
#[derive(Debug, Default)]
pub(super) struct Placement {
    space: Space,
    /// The SMs that the plan has granted. Kept for its capacity.
    granted: SmSet,
    /// For each SM, the price of taking it, once it was asked for. Kept for its capacity.
    prices: Vec<u8>,
}

/// The SMs that a launch gets, as long as there are any.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Space {
    /// As many as it can use: it is as fast as alone.
    #[default]
    Spread,
    /// Just as many as its block-tasks fill.
    Packed,
    Whole,
}

impl Placement {
    /// Without spatial sharing: the first launch has the whole device.
    pub fn whole_device() -> Placement {
        Placement { space: Space::Whole, ..Placement::default() }
    }

    /// With as much of it as possible: each launch has just enough SMs.
    pub fn packed() -> Placement {
        Placement { space: Space::Packed, ..Placement::default() }
    }

    /// Grants SMs to the launches of a queue until there are none left.
    ///
    /// An SM stays without an owner only if each launch has one, and no launch beside it can fill one more. Returns
    /// the first launch that has less than it can fill.
    pub fn share<K: Copy + Ord>(
        &mut self,
        queue: &mut IndexedHeap<LaunchId, K>,
        device: &dyn DeviceView,
        plan: &mut Plan,
    ) -> Option<LaunchId> {
        let is_alone = queue.len() == 1;
        let (order, keys) = queue.in_order();
        self.share_in(order.map(|(_, id)| id), is_alone, |id| keys.get(id), device, plan)
    }

    /// Grants SMs to launches in the order of an iterator. Of launches with SMs, the one whose `rank` is greatest
    /// gives some up first.
    pub fn share_in<R: Ord>(
        &mut self,
        order: impl Iterator<Item = LaunchId>,
        is_alone: bool,
        rank: impl Fn(LaunchId) -> R,
        device: &dyn DeviceView,
        plan: &mut Plan,
    ) -> Option<LaunchId> {
        let sms = device.sms() as usize;
        self.granted.clear(sms);
        self.prices.clear();
        let mut left = device.sms();
        let mut denied = None;
        // Each launch in the loop takes at least one SM, so it is short however long the line.
        for launch in order {
            if left == 0 {
                denied = denied.or(Some(launch));
                break;
            }
            let need = match self.space {
                Space::Spread => device.spread(launch).max(1),
                Space::Packed => device.need(launch).max(1),
                Space::Whole => device.sms(),
            };
            let wanted = need.min(left) as usize;
            let own = device.range(launch);
            let Some(start) = self
                .kept(own, wanted)
                .or_else(|| (own.is_empty() && is_alone).then_some(0))
                .or_else(|| self.cheapest(device, &rank, own, wanted))
                .or_else(|| largest_gap(self.granted.gaps(0..sms)))
            else {
                break;
            };
            let wanted = start..sms.min(start + wanted);
            let end = self.granted.first(wanted.clone()).unwrap_or(wanted.end);
            self.granted.insert(start..end);
            let length = (end - start) as u32;
            left -= length;
            plan.grant(launch, SmRange::new(start as u32, end as u32));
            if length < need {
                denied = denied.or(Some(launch));
            }
        }
        denied
    }

    /// The first SM of a launch that can stay as it is. Most can, so this comes before the search.
    fn kept(&self, own: SmRange, length: usize) -> Option<usize> {
        let window = own.lo() as usize..own.hi() as usize;
        let open = window.len() == length && self.granted.first(window).is_none();
        open.then_some(own.lo() as usize)
    }

    /// The first SM of the window where the fewest and least urgent launches have to move.
    fn cheapest<R: Ord>(
        &mut self,
        device: &dyn DeviceView,
        rank: impl Fn(LaunchId) -> R,
        own: SmRange,
        length: usize,
    ) -> Option<usize> {
        let sms = device.sms() as usize;
        if length == sms {
            return Some(0);
        }
        if self.prices.is_empty() {
            self.ask_prices(device, rank);
        }
        // Its own SMs cost nothing; if they wrap around, it has to move anyway.
        let own = own.lo().min(own.hi()) as usize..own.hi() as usize;
        let price = self.prices.get(own.start).copied().unwrap_or(FREE);
        self.prices[own.clone()].fill(0);
        let place = place(self.granted.gaps(0..sms), length, &self.prices);
        self.prices[own].fill(price);
        place
    }

    /// Sets the price of each SM.
    fn ask_prices<R: Ord>(&mut self, device: &dyn DeviceView, rank: impl Fn(LaunchId) -> R) {
        let has = runs(device).map(|(owner, _)| owner);
        let least_urgent = has.max_by_key(|&owner| rank(owner));
        self.prices.resize(device.sms() as usize, FREE);
        for (owner, run) in runs(device) {
            let price = if Some(owner) == least_urgent { TAKEN } else { TAKEN_FROM_OTHERS };
            self.prices[run].fill(price);
        }
    }
}

/// The runs of SMs that have an owner, in order; a launch whose SMs wrap around comes twice.
pub(super) fn runs(device: &dyn DeviceView) -> impl Iterator<Item = (LaunchId, Range<usize>)> {
    let owners = device.owners();
    let mut end = 0;
    std::iter::from_fn(move || {
        let start = end + owners[end..].iter().position(Option::is_some)?;
        let owner = owners[start]?;
        // There are many more SMs than owners, so not each SM is looked at.
        let hi = device.range(owner).hi() as usize;
        end = if hi > start { hi } else { owners.len() };
        Some((owner, start..end))
    })
}

/// The price of a free SM: blocks have to be launched there.
const FREE: u8 = 2;
/// The price of an SM that the least urgent launch has: it has to yield first.
const TAKEN: u8 = 4;
/// The price of an SM that another launch has.
const TAKEN_FROM_OTHERS: u8 = 6;
/// The price of a window with free SMs on both sides, which would be left in two pieces.
const SPLIT: u32 = 1;

/// The first SM of the cheapest window of `length` SMs in the gaps between granted SMs.
fn place(gaps: impl Iterator<Item = Range<usize>>, length: usize, prices: &[u8]) -> Option<usize> {
    let price = |sm: usize| u32::from(prices[sm]);
    let lowest = prices.iter().min().map_or(0, |&lowest| length as u32 * u32::from(lowest));
    let mut best = None;
    for gap in gaps.filter(|gap| gap.len() >= length) {
        let mut cost = gap.clone().take(length).map(price).sum::<u32>();
        for (start, end) in (gap.start..).zip(gap.start + length..=gap.end) {
            let splits = gap.start < start && end < gap.end;
            let total = cost + if splits { SPLIT } else { 0 };
            if best.is_none_or(|(least, _)| total < least) {
                best = Some((total, start));
                if total <= lowest {
                    return Some(start);
                }
            }
            if end < gap.end {
                cost = cost + price(end) - price(start);
            }
        }
    }
    best.map(|(_, start)| start)
}

/// The start of the first of the longest gaps.
fn largest_gap(gaps: impl Iterator<Item = Range<usize>>) -> Option<usize> {
    // Of equals, `max_by_key` has the last one.
    gaps.max_by_key(|gap| (gap.len(), Reverse(gap.start))).map(|gap| gap.start)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slotmap::SlotMap;

    use super::*;

    /// Launches on eight SMs: the SMs of each, and how many it can fill.
    struct Device {
        owners: Vec<Option<LaunchId>>,
        launches: Vec<(LaunchId, SmRange, u32)>,
    }

    impl Device {
        fn new(launches: &[(LaunchId, SmRange, u32)]) -> Device {
            let has = |sm| launches.iter().find(|launch| launch.1.contains(sm));
            let owners = (0..8).map(|sm| has(sm).map(|launch| launch.0)).collect();
            Device { owners, launches: launches.to_vec() }
        }

        fn of(&self, id: LaunchId) -> (LaunchId, SmRange, u32) {
            *self.launches.iter().find(|launch| launch.0 == id).expect("a launch")
        }
    }

    impl DeviceView for Device {
        fn sms(&self) -> u32 {
            8
        }

        fn need(&self, launch: LaunchId) -> u32 {
            self.of(launch).2
        }

        fn spread(&self, launch: LaunchId) -> u32 {
            self.of(launch).2
        }

        fn range(&self, launch: LaunchId) -> SmRange {
            self.of(launch).1
        }

        fn owners(&self) -> &[Option<LaunchId>] {
            &self.owners
        }

        fn backlog(&self, _: LaunchId) -> Duration {
            Duration::ZERO
        }

        fn remaining(&self, _: LaunchId) -> Option<Duration> {
            None
        }

        fn yield_overhead(&self, _: LaunchId) -> Duration {
            Duration::ZERO
        }

        fn requeued(&self, _launch: LaunchId) -> Duration {
            unreachable!()
        }

        fn sm_time(&self, _: LaunchId) -> Duration {
            Duration::ZERO
        }
    }

    #[test]
    fn what_one_launch_has_costs_others_something_and_each_plan_asks_anew() {
        let mut ids = SlotMap::with_key();
        let [first, second] = [0, 1].map(|_| LaunchId(ids.insert(())));
        let mut placement = Placement::default();
        let mut place = |has| {
            let device = Device::new(&[(first, has, 2), (second, SmRange::EMPTY, 2)]);
            let mut plan = Plan::default();
            placement.share_in([first, second].into_iter(), false, |id| id, &device, &mut plan);
            plan.grants.iter().map(|grant| grant.1).collect::<Vec<_>>()
        };
        // The first launch cannot fill all its SMs any more; the second one gets free SMs.
        assert_eq!(place(SmRange::new(0, 4)), [SmRange::new(0, 2), SmRange::new(6, 8)]);
        assert_eq!(place(SmRange::new(4, 8)), [SmRange::new(6, 8), SmRange::new(0, 2)]);
    }

    #[test]
    fn owners_are_found_wherever_their_sms_are() {
        let mut ids = SlotMap::with_key();
        let [first, second] = [0, 1].map(|_| LaunchId(ids.insert(())));
        let (wrapped, inner) = (SmRange::new(6, 2), SmRange::new(3, 5));
        let device = Device::new(&[(first, wrapped, 4), (second, inner, 2)]);
        assert!(runs(&device).eq([(first, 0..2), (second, 3..5), (first, 6..8)]));
    }

    /// The gap that is a device of eight SMs.
    fn all() -> impl Iterator<Item = Range<usize>> {
        std::iter::once(0..8)
    }

    #[test]
    fn a_small_launch_goes_to_an_end() {
        assert_eq!(place(all(), 2, &[FREE; 8]), Some(0));
    }

    #[test]
    fn a_launch_stays_where_it_is() {
        let prices = [FREE, FREE, FREE, 0, 0, FREE, FREE, FREE];
        assert_eq!(place(all(), 2, &prices), Some(3));
        assert_eq!(place(all(), 3, &prices), Some(2));
    }

    #[test]
    fn a_launch_takes_free_sms_first() {
        let prices = [TAKEN, TAKEN, TAKEN, FREE, FREE, FREE, FREE, FREE];
        assert_eq!(place(all(), 2, &prices), Some(6));
    }

    #[test]
    fn a_launch_avoids_sms_of_more_urgent_ones() {
        let gaps = || [0..1, 3..8].into_iter();
        assert_eq!(place(gaps(), 2, &[FREE; 8]), Some(3));
        assert_eq!(place(gaps(), 6, &[FREE; 8]), None);
        assert_eq!(largest_gap(gaps()), Some(3));
        assert_eq!(largest_gap([1..3, 5..7].into_iter()), Some(1));
        assert_eq!(largest_gap(std::iter::empty()), None);
    }
}
