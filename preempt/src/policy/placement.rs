//! From an order of launches to SMs: the first one has as many as it can fill, the next ones share the rest.

use std::cmp::Reverse;
use std::iter;
use std::ops::Range;
use std::time::Duration;

use preempt_device::abi::{MAX_SMS, SmRange};

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
    /// For each SM, its [yield overhead](DeviceView::sm_yield_overhead) in nanoseconds, once prices left a choice.
    overheads: Vec<u64>,
}

impl Plan {
    /// Grants SMs to launches in this order until none is left, such that as few launches as possible have to move.
    ///
    /// All built-in policies place launches so, and differ in the order. A launch keeps its SMs if it can. Otherwise
    /// it gets free ones, then those of the last launch in the order that has any, and of these the ones that are
    /// [cheapest to take](DeviceView::sm_yield_overhead). SMs that the plan has granted before stay as they are, and
    /// launches that have some get no others. Returns the first launch that has less than it can fill.
    ///
    /// SMs are a circle: the first one lies beside the last one, and a range can [wrap around](SmRange). What later
    /// launches can have stays in one piece, where that takes no more SMs from others.
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
            let is_first = is_alone && before == 0 && free.is_empty();
            let found = scratch.find(launch, need, left, is_first, &least_urgent, device);
            let Some(window) = found else { break };
            let length = window.len() as u32;
            left -= length;
            grants.push((launch, rolled(window, device.sms())));
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
pub(super) fn length(range: SmRange, sms: u32) -> u32 {
    unrolled(range, sms as usize).len() as u32
}

/// The `count` SMs in a row of a range whose overheads are least together, the first ones of equals.
pub(super) fn cheapest_part(
    range: SmRange,
    count: u32,
    sms: u32,
    overhead: impl Fn(u32) -> Duration,
) -> SmRange {
    let (run, count) = (unrolled(range, sms as usize), count as usize);
    if count >= run.len() {
        return range;
    }
    let weight = |sm| nanos(overhead(sm as u32 % sms));
    let cheapest = windows(run, count, weight).min_by_key(|&(sum, _)| sum);
    cheapest.map_or(SmRange::EMPTY, |(_, start)| rolled(start..start + count, sms))
}

/// A range as a run in which SM 0 comes as SM `sms` behind the last one.
fn unrolled(range: SmRange, sms: usize) -> Range<usize> {
    let (lo, hi) = (range.lo() as usize, range.hi() as usize);
    lo.min(sms)..hi.min(sms) + if lo <= hi { 0 } else { sms }
}

/// The range of such a run.
fn rolled(run: Range<usize>, sms: u32) -> SmRange {
    if run.is_empty() {
        return SmRange::EMPTY;
    }
    SmRange::new(run.start as u32 % sms, (run.end as u32 - 1) % sms + 1)
}

/// Such a run up to the last SM, and from SM 0 on.
fn parts(run: &Range<usize>, sms: usize) -> [Range<usize>; 2] {
    [run.start..run.end.min(sms), 0..run.end.saturating_sub(sms)]
}

/// The runs of SMs that are not granted. One that reaches the last SM goes on at SM 0.
fn gaps(granted: &SmSet, sms: usize) -> impl Iterator<Item = Range<usize>> {
    // What lies before the first granted SM belongs to the last gap, if there is one at the last SM.
    let head = granted.first(0..sms).filter(|_| granted.first(sms - 1..sms).is_none()).unwrap_or(0);
    granted.gaps(head..sms).map(move |gap| {
        let end = if gap.end == sms { sms + head } else { gap.end };
        gap.start..end
    })
}

impl Scratch {
    /// Enters what the plan has granted before, or leaves free; the number of SMs that are left.
    fn begin(&mut self, kept: impl Iterator<Item = SmRange>, sms: u32) -> u32 {
        let sms = sms as usize;
        self.granted.clear(sms);
        self.prices.clear();
        self.overheads.clear();
        for range in kept {
            self.enter(&unrolled(range, sms), sms);
        }
        sms as u32 - self.granted.count(0..sms)
    }

    /// Marks SMs as granted.
    fn enter(&mut self, run: &Range<usize>, sms: usize) {
        parts(run, sms).into_iter().for_each(|part| self.granted.insert(part));
    }

    /// Finds SMs for a launch, at most as many as it needs of those that are left, and marks them as granted.
    fn find(
        &mut self,
        launch: LaunchId,
        need: u32,
        left: u32,
        is_first: bool,
        least_urgent: impl Fn() -> Option<LaunchId>,
        device: &dyn DeviceView,
    ) -> Option<Range<usize>> {
        let sms = device.sms() as usize;
        let own = unrolled(device.range(launch), sms);
        let wanted = need.min(left) as usize;
        let start = match self.kept(&own, wanted, sms) {
            Some(start) => Some(start),
            None if own.is_empty() && is_first => Some(0),
            // It gets all that is left, if that lies side by side.
            None if need >= left => None,
            None => self.cheapest(device, least_urgent, &own, wanted),
        };
        let window = match start {
            Some(start) => start..start + wanted,
            None => largest_gap(gaps(&self.granted, sms))?,
        };
        self.enter(&window, sms);
        Some(window)
    }

    /// The first SM of a launch that can stay as it is. Most can, so this comes before the search.
    fn kept(&self, own: &Range<usize>, length: usize, sms: usize) -> Option<usize> {
        let is_open = |part| self.granted.first(part).is_none();
        let stays = own.len() == length && parts(own, sms).into_iter().all(is_open);
        stays.then_some(own.start)
    }

    /// The first SM of the window where the fewest and least urgent launches have to move, and lose the least by it.
    fn cheapest(
        &mut self,
        device: &dyn DeviceView,
        least_urgent: impl Fn() -> Option<LaunchId>,
        own: &Range<usize>,
        length: usize,
    ) -> Option<usize> {
        let sms = device.sms() as usize;
        if self.prices.is_empty() {
            self.ask_prices(device, least_urgent());
        }
        let Scratch { granted, prices, overheads } = self;
        // Its own SMs cost nothing.
        let price = prices.get(own.start).copied().unwrap_or(FREE);
        parts(own, sms).into_iter().for_each(|part| prices[part].fill(0));
        let mut found = place(gaps(granted, sms), length, prices, &[]);
        if found.is_some_and(|(_, has_choice)| has_choice) {
            if overheads.is_empty() {
                let overhead = |sm| nanos(device.sm_yield_overhead(sm));
                overheads.extend((0..device.sms()).map(overhead));
            }
            if overheads.iter().any(|&overhead| overhead > 0) {
                found = place(gaps(granted, sms), length, prices, overheads);
            }
        }
        parts(own, sms).into_iter().for_each(|part| prices[part].fill(price));
        found.map(|(start, _)| start)
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
/// The price of a window that leaves what is open in two pieces. Each launch has one range, so the next one loses a piece.
const SPLIT: u64 = TIER;
/// What a price weighs: more than the overheads of all SMs that a device can have, so prices come first.
const TIER: u64 = MOST_OVERHEAD * (MAX_SMS as u64 + 1);
/// The most that an overhead weighs: nine minutes, in nanoseconds.
const MOST_OVERHEAD: u64 = 1 << 39;

/// What an overhead weighs.
fn nanos(overhead: Duration) -> u64 {
    overhead.as_nanos().min(MOST_OVERHEAD.into()) as u64
}

/// The first SM of the cheapest window of `length` SMs in the gaps between granted SMs, and whether yield overheads may choose
/// another one. They count between windows of equal prices, and only those of SMs that are taken.
fn place(
    gaps: impl Iterator<Item = Range<usize>>,
    length: usize,
    prices: &[u8],
    overheads: &[u64],
) -> Option<(usize, bool)> {
    let sms = prices.len();
    let at = |sm: usize| if sm < sms { sm } else { sm - sms };
    let is_taken = |sm: usize| prices[at(sm)] >= TAKEN;
    let is_others = |sm: usize| prices[at(sm)] == TAKEN_FROM_OTHERS;
    let weight = |sm: usize| {
        let overhead = overheads.get(at(sm)).filter(|_| is_taken(sm));
        u64::from(prices[at(sm)]) * TIER + overhead.copied().unwrap_or(0)
    };
    let lowest = prices.iter().min().map_or(0, |&lowest| length as u64 * u64::from(lowest));
    let mut best: Option<(u64, bool, usize)> = None;
    let mut is_tied = false;
    for gap in gaps {
        // Where nothing is granted, a window can start at any SM, and leaves one piece. Other launches that have SMs will
        // probably keep them, later in the plan.
        let is_circle = gap.len() == sms;
        let is_cut = !is_circle || prices.contains(&TAKEN_FROM_OTHERS);
        let run = gap.start..gap.end + if is_circle { length - 1 } else { 0 };
        for (sum, start) in windows(run, length, weight) {
            let end = start + length;
            let is_at_end = !is_circle && (start == gap.start || end == gap.end);
            let before = start.checked_sub(1).unwrap_or(sms - 1);
            let splits = is_cut && !is_at_end && !is_others(before) && !is_others(end);
            let total = sum + if splits { SPLIT } else { 0 };
            // Of equals, one that leaves the others a range that does not wrap around.
            let is_inner = !is_at_end && at(start) > 0 && at(end) > 0;
            is_tied = match best {
                Some((least, ..)) if total >= least => is_tied || total == least,
                _ => false,
            };
            if best.is_none_or(|(least, inner, _)| (total, is_inner) < (least, inner)) {
                best = Some((total, is_inner, start));
                // None has a lower price. Of taken ones, others probably have the same.
                if !is_inner && total <= lowest * TIER {
                    return Some((at(start), is_taken(start)));
                }
            }
        }
    }
    let (.., start) = best?;
    Some((at(start), is_tied && (start..start + length).any(is_taken)))
}

/// The windows of `length` SMs in a run, each with the sum of what its SMs weigh, and its first SM.
fn windows(
    run: Range<usize>,
    length: usize,
    weight: impl Fn(usize) -> u64,
) -> impl Iterator<Item = (u64, usize)> {
    let mut next: u64 = run.clone().take(length).map(&weight).sum();
    let starts = run.start..(run.end + 1).saturating_sub(length);
    starts.map(move |start| {
        let sum = next;
        let end = start + length;
        if end < run.end {
            next = next + weight(end) - weight(start);
        }
        (sum, start)
    })
}

/// The first of the longest gaps.
fn largest_gap(gaps: impl Iterator<Item = Range<usize>>) -> Option<Range<usize>> {
    // Of equals, `max_by_key` has the last one.
    gaps.max_by_key(|gap| (gap.len(), Reverse(gap.start)))
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

    fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    /// What the launches get in this order.
    fn share<const N: usize>(device: &ModelDevice, order: [LaunchId; N]) -> Vec<SmRange> {
        let mut plan = Plan::default();
        plan.share(order, Packing::Spread, device);
        ranges(&plan)
    }

    #[test]
    fn sms_of_a_launch_are_taken_where_it_costs_the_least() {
        let (mut device, [batch, urgent]) = device([(SmRange::new(0, 8), 8), (SmRange::EMPTY, 2)]);
        // Each plan asks anew.
        let mut plan = Plan::default();
        let mut place = |overheads: [u64; 8]| {
            (0..).zip(overheads).for_each(|(sm, time)| device.set_sm_yield_overhead(sm, us(time)));
            plan.clear();
            plan.share([urgent, batch], Packing::Spread, &device);
            (plan.grants()[0].1, plan.grants()[1].1)
        };
        let expected = |urgent: (u32, u32), batch: (u32, u32)| {
            (SmRange::new(urgent.0, urgent.1), SmRange::new(batch.0, batch.1))
        };
        assert_eq!(place([0; 8]), expected((0, 2), (2, 8)));
        assert_eq!(place([9; 8]), expected((0, 2), (2, 8)));
        assert_eq!(place([9, 9, 9, 2, 9, 1, 1, 9]), expected((5, 7), (7, 5)));
        assert_eq!(place([9, 9, 9, 9, 2, 9, 1, 2]), expected((6, 8), (0, 6)));
        assert_eq!(place([1, 9, 9, 9, 5, 5, 9, 1]), expected((7, 1), (1, 7)));
        assert_eq!(place([9, 9, 1, 1, 9, 1, 1, 9]), expected((2, 4), (4, 2)));
        let longest = Duration::MAX.as_micros().try_into().unwrap_or(u64::MAX);
        assert_eq!(place([longest, longest, 9, 9, 9, 8, 8, longest]), expected((5, 7), (7, 5)));
    }

    #[test]
    fn to_move_fewer_launches_is_worth_any_overhead() {
        let [low, high] = [SmRange::new(0, 3), SmRange::new(3, 6)];
        let (mut device, [last, other, urgent]) =
            device([(low, 3), (high, 3), (SmRange::EMPTY, 2)]);
        (0..3).for_each(|sm| device.set_sm_yield_overhead(sm, us(9)));
        assert_eq!(share(&device, [urgent, other, last]), [SmRange::new(6, 8), high, low]);
        // Not those of the other launch.
        device.set_range(other, SmRange::new(3, 8));
        assert_eq!(share(&device, [urgent, other, last])[0], SmRange::new(0, 2));
        // Not the middle of what the next launch can have.
        device.set_range(last, SmRange::new(0, 5));
        device.set_range(other, SmRange::new(5, 8));
        device.set_sm_yield_overhead(4, us(8));
        (1..4).for_each(|sm| device.set_sm_yield_overhead(sm, us(1)));
        assert_eq!(share(&device, [urgent, other, last])[0], SmRange::new(3, 5));
    }

    #[test]
    fn urgent_launches_lie_side_by_side_and_the_rest_is_one_range() {
        let (mut device, [batch, a, b]) =
            device([(SmRange::new(0, 8), 8), (SmRange::EMPTY, 1), (SmRange::EMPTY, 1)]);
        for (sm, time) in (0..).zip([9, 2, 9, 9, 4, 1, 3, 9]) {
            device.set_sm_yield_overhead(sm, us(time));
        }
        let mut plan = Plan::default();
        let mut follow = |device: &mut ModelDevice, order: &[LaunchId]| {
            plan.clear();
            plan.share(order.iter().copied(), Packing::Spread, device);
            device.follow(&plan);
            ranges(&plan)
        };
        let at_5 = SmRange::new(5, 6);
        assert_eq!(follow(&mut device, &[a, batch]), [at_5, SmRange::new(6, 5)]);
        assert_eq!(follow(&mut device, &[a, batch]), [at_5, SmRange::new(6, 5)], "all are kept");
        let beside = [SmRange::new(6, 7), at_5, SmRange::new(7, 5)];
        assert_eq!(follow(&mut device, &[b, a, batch]), beside);
        assert_eq!(follow(&mut device, &[b, batch]), [SmRange::new(6, 7), SmRange::new(7, 6)]);
        assert_eq!(follow(&mut device, &[batch]), [SmRange::new(0, 8)]);
    }

    #[test]
    fn a_launch_whose_sms_wrap_around_keeps_them_when_it_grows_or_shrinks() {
        let wrapped = SmRange::new(6, 2);
        let place = |fills| {
            let (device, [launch, _]) = device([(wrapped, fills), (SmRange::new(2, 3), 1)]);
            share(&device, [launch])[0]
        };
        assert_eq!(place(4), wrapped);
        assert_eq!(place(3), SmRange::new(7, 2));
        assert_eq!(place(6), SmRange::new(4, 2));
        assert_eq!(place(8), SmRange::new(0, 8));
        // What was granted before is none of its SMs.
        let (device, [launch, other]) = device([(wrapped, 4), (SmRange::EMPTY, 1)]);
        let mut plan = Plan::default();
        plan.grant(other, SmRange::new(0, 1));
        plan.share([launch], Packing::Spread, &device);
        assert_eq!(ranges(&plan)[1], SmRange::new(4, 8));
    }

    #[test]
    fn a_gap_that_fits_is_not_taken_for_the_cheapest_one() {
        let (mut device, [batch, urgent, a, b]) = device([
            (SmRange::new(0, 8), 8),
            (SmRange::EMPTY, 1),
            (SmRange::EMPTY, 1),
            (SmRange::EMPTY, 1),
        ]);
        (0..8).for_each(|sm| device.set_sm_yield_overhead(sm, us(9)));
        device.set_sm_yield_overhead(0, us(1));
        let mut plan = Plan::default();
        plan.grant(a, SmRange::new(1, 2));
        plan.grant(b, SmRange::new(3, 4));
        plan.share([urgent, batch], Packing::Spread, &device);
        assert_eq!(ranges(&plan)[2..], [SmRange::new(0, 1), SmRange::new(4, 8)]);
    }

    #[test]
    fn overheads_of_free_sms_and_its_own_do_not_count() {
        let [own, low, high] = [SmRange::EMPTY, SmRange::new(1, 4), SmRange::new(5, 8)];
        let (mut device, [urgent, last, other]) = device([(own, 2), (low, 3), (high, 3)]);
        for (sm, time) in [(0, 9), (1, 2), (3, 3), (4, 0)] {
            device.set_sm_yield_overhead(sm, us(time));
        }
        // One of the SMs is free here and there.
        assert_eq!(share(&device, [urgent, other, last])[0], SmRange::new(0, 2));
        device.set_range(urgent, SmRange::new(0, 1));
        assert_eq!(share(&device, [urgent, other, last])[0], SmRange::new(0, 2));
    }

    #[test]
    fn no_overhead_is_asked_for_where_none_matters() {
        let asks = |urgent: (SmRange, u32), batch: SmRange| {
            let at_end = SmRange::new(7, 8);
            let (device, [first, urgent, batch]) = device([(at_end, 1), urgent, (batch, 8)]);
            let mut plan = Plan::default();
            plan.share([first, urgent, batch], Packing::Spread, &device);
            !plan.scratch.overheads.is_empty()
        };
        let none = SmRange::EMPTY;
        assert!(asks((none, 2), SmRange::new(0, 7)));
        assert!(!asks((none, 7), SmRange::new(0, 7)), "all are taken");
        assert!(!asks((none, 2), none), "all are free");
        assert!(!asks((none, 2), SmRange::new(0, 4)), "enough are free");
        let own = SmRange::new(3, 4);
        assert!(!asks((own, 2), SmRange::new(5, 7)), "free on either side");
        assert!(!asks((SmRange::new(0, 1), 2), SmRange::new(1, 7)), "on one side");
    }

    /// A launch of a random device: its key in the order, the SMs that it can fill, those that it has, and the free SMs
    /// behind these.
    type RandomLaunch = (u8, u32, u32, u32);

    /// What a window of SMs costs, looked at one SM at a time: prices, whether it splits, overheads, whether the rest wraps.
    fn cost(
        open: &[bool],
        prices: &[u32],
        overheads: &[u64],
        start: usize,
        length: usize,
    ) -> Option<(u32, bool, u64, bool)> {
        let sms = open.len();
        let window = || (start..start + length).map(|sm| sm % sms);
        let [before, after] = [(start + sms - 1) % sms, (start + length) % sms];
        let is_wall = |sm: usize| !open[sm] || prices[sm] == 6;
        let splits = (0..sms).any(is_wall) && !is_wall(before) && !is_wall(after);
        let overhead = window().filter(|&sm| prices[sm] >= 4).map(|sm| overheads[sm]).sum();
        let wraps = open[before] && open[after] && start > 0 && after > 0;
        let is_open = window().all(|sm| open[sm]);
        is_open.then(|| (window().map(|sm| prices[sm]).sum(), splits, overhead, wraps))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn each_launch_gets_the_cheapest_sms_that_are_left(
            sms in 1u32..14,
            launches in prop::collection::vec(any::<RandomLaunch>(), 1..6),
            overheads in prop::collection::vec(0u64..4, 14),
            (lo, free) in (any::<u32>(), prop_oneof![2 => Just(0), 1 => 1u32..4]),
        ) {
            let mut device = ModelDevice::new(sms);
            for (sm, &overhead) in (0..).zip(&overheads) {
                device.set_sm_yield_overhead(sm, us(overhead));
            }
            let range = |lo: u32, count: u32| match count {
                0 => SmRange::EMPTY,
                _ if count == sms => SmRange::new(0, sms),
                _ => SmRange::new(lo % sms, (lo + count - 1) % sms + 1),
            };
            let (mut end, mut left) = (lo % sms, sms);
            let mut order: Vec<_> = launches
                .into_iter()
                .map(|(key, fills, has, behind)| {
                    let id = device.launch(fills % (sms + 2)).id;
                    let has = (has % (sms + 1)).min(left);
                    device.set_range(id, range(end, has));
                    let behind = (behind % 3).min(left - has);
                    (end, left) = (end + has + behind, left - has - behind);
                    (key, id)
                })
                .collect();
            order.sort_unstable();
            let order: Vec<_> = order.into_iter().map(|(_, id)| id).collect();
            let mut plan = Plan::default();
            let free = range(lo / 7, free.min(sms));
            plan.leave_free(free);
            plan.share(order.iter().copied(), Packing::Spread, &device);

            let is_in = |range: SmRange, sm: usize| !range.is_empty() && range.contains(sm as u32);
            let mut open: Vec<bool> = (0..sms as usize).map(|sm| !is_in(free, sm)).collect();
            let owners = device.owners();
            let last = order.iter().rev().find(|&&id| !device.range(id).is_empty());
            let mut grants = plan.grants().iter();
            for &id in &order {
                let left = open.iter().filter(|&&open| open).count();
                if left == 0 {
                    break;
                }
                let prices: Vec<u32> = owners
                    .iter()
                    .map(|&owner| match owner {
                        Some(owner) if owner == id => 0,
                        None => 2,
                        Some(owner) if Some(&owner) == last => 4,
                        Some(_) => 6,
                    })
                    .collect();
                let wanted = (device.spread(id) as usize).min(left);
                let costs = |length: usize| -> Vec<_> {
                    let cost = |start| cost(&open, &prices, &overheads, start, length);
                    (0..sms as usize).map(cost).collect()
                };
                let length = (1..=wanted).rev().find(|&length| costs(length).iter().any(Option::is_some));
                let length = length.expect("one SM is open");
                let &(granted, got) = grants.next().expect("an SM is left");
                prop_assert_eq!(granted, id);
                prop_assert!(got.lo() < sms && got.hi() <= sms && got.hi() > 0, "{:?}", got);
                let window: Vec<usize> = (0..sms as usize).filter(|&sm| is_in(got, sm)).collect();
                prop_assert_eq!(window.len(), length, "{:?} of {} for {:?}", got, wanted, id);
                prop_assert!(window.iter().all(|&sm| open[sm]), "{:?} overlaps", got);
                let own = device.range(id);
                let own_sms: Vec<usize> = (0..sms as usize).filter(|&sm| is_in(own, sm)).collect();
                if own_sms.len() == wanted && own_sms.iter().all(|&sm| open[sm]) {
                    prop_assert_eq!(got, own);
                } else if length == sms as usize {
                    prop_assert_eq!(got, SmRange::new(0, sms));
                } else if length == wanted && (order.len() > 1 || !free.is_empty()) {
                    let costs = costs(length);
                    let least = costs.iter().flatten().min();
                    prop_assert_eq!(costs[got.lo() as usize].as_ref(), least);
                }
                window.iter().for_each(|&sm| open[sm] = false);
            }
            prop_assert_eq!(grants.next(), None);
        }

        #[test]
        fn the_cheapest_sms_of_a_launch_are_no_dearer_than_any_others(
            sms in 1u32..14, lo in 0u32..14, has in 0u32..14, count in 0u32..14,
            overheads in prop::collection::vec(0u64..4, 14),
        ) {
            let mut device = ModelDevice::new(sms);
            let (lo, has) = (lo % sms, has % sms);
            let id = device.launch(1).id;
            let range = |lo: u32, count: u32| match count {
                0 => SmRange::EMPTY,
                _ => SmRange::new(lo % sms, (lo + count - 1) % sms + 1),
            };
            device.set_range(id, range(lo, has));
            for (sm, &overhead) in (0..).zip(&overheads) {
                device.set_sm_yield_overhead(sm, us(overhead));
            }
            let windows = (lo..=(lo + has).saturating_sub(count)).map(|start| {
                let window = (start..start + count).map(|sm| overheads[(sm % sms) as usize]);
                (window.sum::<u64>(), start)
            });
            let expected = match windows.min() {
                Some((_, start)) if count < has => range(start, count),
                _ => range(lo, has),
            };
            prop_assert_eq!(device.cheapest_sms(id, count), expected);
            device.remove(id);
            prop_assert_eq!(device.cheapest_sms(id, count), SmRange::EMPTY);
        }
    }

    fn place(
        gaps: impl Iterator<Item = Range<usize>>,
        length: usize,
        prices: &[u8],
    ) -> Option<usize> {
        super::place(gaps, length, prices, &[]).map(|(start, _)| start)
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
        assert_eq!(largest_gap(gaps()), Some(3..8));
        assert_eq!(largest_gap([1..3, 5..7].into_iter()), Some(1..3));
        assert_eq!(largest_gap(std::iter::empty()), None);
    }
}
