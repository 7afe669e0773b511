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

/// The runs of SMs that are not granted. A run that reaches the last SM goes on at SM 0.
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
            // Of equals, a window beside which the range of the others does not wrap around.
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
mod tests;
