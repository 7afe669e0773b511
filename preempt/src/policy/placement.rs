//! From an order of launches to SMs: the first one has as many as it can fill, the next ones share the rest.

use std::cmp::Reverse;
use std::iter;
use std::ops::Range;

use preempt_device::abi::SmRange;

use super::indexed_heap::IndexedHeap;
use super::{DeviceView, Plan};
use crate::vocabulary::{LaunchId, SmSet};

/// The SMs that [`Plan::share`] gives a launch, as long as there are any.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Packing {
    /// As many as it can use, with one block-task on each ([`DeviceView::spread`]): it is as fast as alone.
    #[default]
    Spread,
    /// Just as many as its block-tasks fill ([`DeviceView::need`]), and more for the others.
    Packed,
    /// All: the first launch has the device, without spatial sharing.
    WholeDevice,
}

/// What a plan knows while SMs are shared. Kept for its capacity.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// The SMs that the plan has granted.
    granted: SmSet,
    /// For each SM, the price of taking it, once it was asked for.
    prices: Vec<u8>,
}

impl Plan {
    /// Grants SMs to launches in this order until none is left, such that as few launches as possible have to move.
    ///
    /// All built-in policies place launches so, and differ in the order. A launch keeps its SMs if it can. Otherwise
    /// it gets free ones, then those of the last launch in the order that has any. SMs that the plan has granted
    /// before stay as they are, and launches that have some get no others. Returns the first launch that has less
    /// than it can fill.
    ///
    /// The order is looked at as far as there are SMs to share, and as far as launches have some.
    ///
    /// ```
    /// use preempt::policy::{ModelDevice, Packing, Plan, SmRange};
    ///
    /// let mut device = ModelDevice::new(8);
    /// let (large, small) = (device.launch(1000).id, device.launch(3).id);
    /// let mut plan = Plan::default();
    /// let denied = plan.share([small, large], Packing::Spread, &device);
    /// assert_eq!(plan.grants(), [(small, SmRange::new(0, 3)), (large, SmRange::new(3, 8))]);
    /// assert_eq!(denied, Some(large)); // it could fill eight
    /// ```
    pub fn share<I>(
        &mut self,
        order: I,
        packing: Packing,
        device: &dyn DeviceView,
    ) -> Option<LaunchId>
    where
        I: IntoIterator<Item = LaunchId, IntoIter: Clone>,
    {
        let order = order.into_iter();
        let mut first = order.clone();
        let is_alone = first.next().is_some() && first.next().is_none();
        let least_urgent = || last_owner(order.clone(), device);
        self.place(order.clone(), is_alone, least_urgent, packing, device)
    }

    /// Has these SMs left free by what is shared from now on.
    pub(super) fn leave_free(&mut self, range: SmRange) {
        self.free.push(range);
    }

    /// Like [`Plan::share`], in the order of a queue.
    pub(super) fn share_queue<K: Copy + Ord>(
        &mut self,
        queue: &mut IndexedHeap<LaunchId, K>,
        packing: Packing,
        device: &dyn DeviceView,
    ) -> Option<LaunchId> {
        let is_alone = queue.len() == 1;
        let (order, keys) = queue.in_order();
        self.share_ranked(order.map(|(_, id)| id), is_alone, |id| keys.get(id), packing, device)
    }

    /// Like [`Plan::share`]. Of launches with SMs, the one whose `rank` is greatest gives some up first.
    pub(super) fn share_ranked<R: Ord>(
        &mut self,
        order: impl Iterator<Item = LaunchId>,
        is_alone: bool,
        rank: impl Fn(LaunchId) -> R,
        packing: Packing,
        device: &dyn DeviceView,
    ) -> Option<LaunchId> {
        let least_urgent = || runs(device).map(|(owner, _)| owner).max_by_key(|&owner| rank(owner));
        self.place(order, is_alone, least_urgent, packing, device)
    }

    fn place(
        &mut self,
        order: impl Iterator<Item = LaunchId>,
        is_alone: bool,
        least_urgent: impl Fn() -> Option<LaunchId>,
        packing: Packing,
        device: &dyn DeviceView,
    ) -> Option<LaunchId> {
        let Plan { grants, scratch, free, .. } = self;
        let before = grants.len();
        let kept = grants.iter().map(|grant| grant.1).chain(free.iter().copied());
        let mut left = scratch.begin(kept, device.sms());
        let mut denied = None;
        // Each launch in the loop takes at least one SM, so it is short however long the line.
        for launch in order {
            if grants[..before].iter().any(|(granted, _)| *granted == launch) {
                continue;
            }
            if left == 0 {
                denied = denied.or(Some(launch));
                break;
            }
            let need = match packing {
                Packing::Spread => device.spread(launch).max(1),
                Packing::Packed => device.need(launch).max(1),
                Packing::WholeDevice => device.sms(),
            };
            let wanted = need.min(left) as usize;
            let is_first = is_alone && before == 0 && free.is_empty();
            let Some(range) = scratch.find(launch, wanted, is_first, &least_urgent, device) else {
                break;
            };
            let length = range.len() as u32;
            left -= length;
            grants.push((launch, SmRange::new(range.start as u32, range.end as u32)));
            if length < need {
                denied = denied.or(Some(launch));
            }
        }
        denied
    }
}

/// The last launch of an order that has SMs.
fn last_owner(order: impl Iterator<Item = LaunchId>, device: &dyn DeviceView) -> Option<LaunchId> {
    // Launches have SMs because they came early in the last order, so the end of this one is seldom looked at.
    let mut left: u32 = runs(device).map(|(_, run)| run.len() as u32).sum();
    let mut last = None;
    for launch in order {
        if left == 0 {
            break;
        }
        let has = length(device.range(launch), device.sms());
        if has > 0 {
            left = left.saturating_sub(has);
            last = Some(launch);
        }
    }
    last
}

/// The SMs in a range, which can wrap around.
fn length(range: SmRange, sms: u32) -> u32 {
    let (lo, hi) = (range.lo(), range.hi());
    if lo <= hi { hi - lo } else { sms.saturating_sub(lo) + hi }
}

impl Scratch {
    /// Enters what the plan has granted before, or leaves free; the number of SMs that are left.
    fn begin(&mut self, kept: impl Iterator<Item = SmRange>, sms: u32) -> u32 {
        self.granted.clear(sms as usize);
        self.prices.clear();
        for range in kept {
            let (lo, hi) = (range.lo().min(sms) as usize, range.hi().min(sms) as usize);
            if lo <= hi {
                self.granted.insert(lo..hi);
            } else {
                // It wraps around.
                self.granted.insert(lo..sms as usize);
                self.granted.insert(0..hi);
            }
        }
        sms - self.granted.count(0..sms as usize)
    }

    /// Finds SMs for a launch, at most as many as it wants, and marks them as granted.
    fn find(
        &mut self,
        launch: LaunchId,
        wanted: usize,
        is_first: bool,
        least_urgent: impl Fn() -> Option<LaunchId>,
        device: &dyn DeviceView,
    ) -> Option<Range<usize>> {
        let sms = device.sms() as usize;
        let own = device.range(launch);
        let start = self
            .kept(own, wanted)
            .or_else(|| (own.is_empty() && is_first).then_some(0))
            .or_else(|| self.cheapest(device, least_urgent, own, wanted))
            .or_else(|| largest_gap(self.granted.gaps(0..sms)))?;
        let window = start..sms.min(start + wanted);
        let end = self.granted.first(window.clone()).unwrap_or(window.end);
        self.granted.insert(start..end);
        Some(start..end)
    }

    /// The first SM of a launch that can stay as it is. Most can, so this comes before the search.
    fn kept(&self, own: SmRange, length: usize) -> Option<usize> {
        let window = own.lo() as usize..own.hi() as usize;
        let open = window.len() == length && self.granted.first(window).is_none();
        open.then_some(own.lo() as usize)
    }

    /// The first SM of the window where the fewest and least urgent launches have to move.
    fn cheapest(
        &mut self,
        device: &dyn DeviceView,
        least_urgent: impl Fn() -> Option<LaunchId>,
        own: SmRange,
        length: usize,
    ) -> Option<usize> {
        let sms = device.sms() as usize;
        if length == sms {
            return Some(0);
        }
        if self.prices.is_empty() {
            self.ask_prices(device, least_urgent());
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
    fn ask_prices(&mut self, device: &dyn DeviceView, least_urgent: Option<LaunchId>) {
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
    iter::from_fn(move || {
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
    use proptest::prelude::*;

    use super::*;
    use crate::policy::{ModelDevice, Policy, StaticPriority};

    /// Launches on eight SMs: the SMs of each, and how many it can fill.
    fn device<const N: usize>(launches: [(SmRange, u32); N]) -> (ModelDevice, [LaunchId; N]) {
        let mut device = ModelDevice::new(8);
        let ids = launches.map(|(range, fills)| {
            let id = device.launch(fills).id;
            device.set_range(id, range);
            id
        });
        (device, ids)
    }

    fn ranges(plan: &Plan) -> Vec<SmRange> {
        plan.grants().iter().map(|grant| grant.1).collect()
    }

    #[test]
    fn what_one_launch_has_costs_others_something_and_each_plan_asks_anew() {
        let mut plan = Plan::default();
        let mut place = |has| {
            let (device, [first, second]) = device([(has, 2), (SmRange::EMPTY, 2)]);
            plan.grants.clear();
            plan.share([first, second], Packing::Spread, &device);
            ranges(&plan)
        };
        // The first launch cannot fill all its SMs any more; the second one gets free SMs.
        assert_eq!(place(SmRange::new(0, 4)), [SmRange::new(0, 2), SmRange::new(6, 8)]);
        assert_eq!(place(SmRange::new(4, 8)), [SmRange::new(6, 8), SmRange::new(0, 2)]);
    }

    #[test]
    fn the_last_launch_with_sms_gives_some_up_first() {
        let halves = [(SmRange::new(0, 4), 4), (SmRange::new(4, 8), 4), (SmRange::EMPTY, 2)];
        let (device, [left, right, newest]) = device(halves);
        let share = |order: [LaunchId; 3]| {
            let mut plan = Plan::default();
            let denied = plan.share(order, Packing::Spread, &device);
            (plan.grants().to_vec(), denied)
        };
        let (grants, denied) = share([newest, left, right]);
        assert_eq!(grants[..2], [(newest, SmRange::new(6, 8)), (left, SmRange::new(0, 4))]);
        assert_eq!((grants[2], denied), ((right, SmRange::new(4, 6)), Some(right)));
        let (grants, denied) = share([newest, right, left]);
        assert_eq!(grants[..2], [(newest, SmRange::new(0, 2)), (right, SmRange::new(4, 8))]);
        assert_eq!((grants[2], denied), ((left, SmRange::new(2, 4)), Some(left)));
    }

    #[test]
    fn what_the_plan_granted_before_stays() {
        let (device, [own, other]) = device([(SmRange::EMPTY, 8), (SmRange::EMPTY, 8)]);
        let mut plan = Plan::default();
        // It wraps around.
        plan.grant(own, SmRange::new(6, 1));
        let denied = plan.share([own, other], Packing::Spread, &device);
        assert_eq!(ranges(&plan), [SmRange::new(6, 1), SmRange::new(1, 6)]);
        assert_eq!(denied, Some(other));
        let mut plan = Plan::default();
        plan.grant(own, SmRange::new(0, 8));
        assert_eq!(plan.share([other, own], Packing::Spread, &device), Some(other));
        assert_eq!(ranges(&plan), [SmRange::new(0, 8)]);
    }

    #[test]
    fn what_the_plan_leaves_free_is_given_to_none() {
        // A launch that is alone starts at the first SM otherwise.
        let (device, [only]) = device([(SmRange::EMPTY, 100)]);
        let mut plan = Plan::default();
        plan.leave_free(SmRange::new(0, 3));
        assert_eq!(plan.share([only], Packing::Spread, &device), Some(only));
        assert_eq!(ranges(&plan), [SmRange::new(3, 8)]);
        plan.clear();
        plan.share([only], Packing::Spread, &device);
        assert_eq!(ranges(&plan), [SmRange::new(0, 8)], "for one plan");
    }

    #[test]
    fn packings_give_what_can_be_used_what_is_filled_or_all() {
        let mut device = ModelDevice::new(8);
        let (first, second) = (device.launch(4).id, device.launch(100).id);
        device.set_blocks_per_sm(first, 2);
        let share = |packing| {
            let mut plan = Plan::default();
            plan.share([first, second], packing, &device);
            ranges(&plan)
        };
        assert_eq!(share(Packing::Spread), [SmRange::new(0, 4), SmRange::new(4, 8)]);
        assert_eq!(share(Packing::Packed), [SmRange::new(0, 2), SmRange::new(2, 8)]);
        assert_eq!(share(Packing::WholeDevice), [SmRange::new(0, 8)]);
    }

    proptest! {
        /// The order alone says what the queue of a built-in policy says.
        #[test]
        fn an_order_is_shared_as_a_policy_shares_its_queue(
            launches in prop::collection::vec((1u32..12, 0i32..4), 1..12), gone in any::<u16>(),
        ) {
            let mut device = ModelDevice::new(16);
            let mut policy = StaticPriority::new();
            let mut plan = Plan::default();
            let mut order = Vec::new();
            let now = std::time::Duration::ZERO;
            for (index, (fills, priority)) in launches.into_iter().enumerate() {
                let arrival = device.launch(fills).priority(priority);
                policy.arrived(now, arrival);
                order.push((Reverse(priority), index, arrival.id));
                order.sort_unstable();
                if gone >> index & 1 == 1 {
                    let (.., id) = order.remove(index % order.len());
                    policy.departed(now, id);
                    device.remove(id);
                }
                plan.grants.clear();
                policy.assign(now, &device, &mut plan);
                let mut shared = Plan::default();
                shared.share(order.iter().map(|launch| launch.2), Packing::Spread, &device);
                prop_assert_eq!(shared.grants(), plan.grants());
                device.follow(&plan);
            }
        }
    }

    #[test]
    fn owners_are_found_wherever_their_sms_are() {
        let (wrapped, inner) = (SmRange::new(6, 2), SmRange::new(3, 5));
        let (device, [first, second]) = device([(wrapped, 4), (inner, 2)]);
        assert!(runs(&device).eq([(first, 0..2), (second, 3..5), (first, 6..8)]));
        assert_eq!(last_owner([second, first].into_iter(), &device), Some(first));
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
