//! From an order of launches to SMs: the first one has as many as it can fill, the next ones share the rest.

use preempt_device::abi::SmRange;

use super::line::Line;
use super::{DeviceView, Plan};
use crate::engine::LaunchId;

/// Places launches on SMs in a given order, such that as few as possible have to move.
#[derive(Debug, Default)]
pub(super) struct Placement {
    space: Space,
    /// For each SM: whether the plan has granted it. Kept for its capacity.
    granted: Vec<bool>,
    /// For each SM: what it costs to take it. Kept, too.
    prices: Vec<u8>,
}

/// How many SMs a launch gets, as long as there are any.
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

    /// Grants SMs to the launches of a line until there are none left.
    ///
    /// An SM stays without an owner only if each launch has one, and no launch beside it can fill one more. The
    /// first launch that has less than it can fill.
    pub fn share<K: Copy + Ord>(
        &mut self,
        line: &mut Line<LaunchId, K>,
        device: &dyn DeviceView,
        plan: &mut Plan,
    ) -> Option<LaunchId> {
        let is_alone = line.len() == 1;
        let (order, keys) = line.in_order();
        self.share_in(order.map(|(_, id)| id), is_alone, |id| keys.get(id), device, plan)
    }

    /// The same for launches in the order of an iterator. Of those that have SMs, the one whose `rank` is greatest
    /// gives some up first.
    pub fn share_in<R: Ord>(
        &mut self,
        order: impl Iterator<Item = LaunchId>,
        is_alone: bool,
        rank: impl Fn(LaunchId) -> R,
        device: &dyn DeviceView,
        plan: &mut Plan,
    ) -> Option<LaunchId> {
        self.granted.clear();
        self.granted.resize(device.sms() as usize, false);
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
                .or_else(|| largest_gap(&self.granted))
            else {
                break;
            };
            let free = self.granted[start..].iter().take_while(|granted| !**granted).count();
            let length = free.min(wanted);
            self.granted[start..start + length].fill(true);
            left -= length as u32;
            plan.grant(launch, SmRange::new(start as u32, (start + length) as u32));
            if (length as u32) < need {
                denied = denied.or(Some(launch));
            }
        }
        denied
    }

    /// Where a launch is, if it can stay as it is. Most can, so this comes before the search.
    fn kept(&self, own: SmRange, length: usize) -> Option<usize> {
        let window = own.lo() as usize..own.hi() as usize;
        let open = window.len() == length && !self.granted.get(window)?.contains(&true);
        open.then_some(own.lo() as usize)
    }

    /// Where the fewest and least urgent launches have to move for a launch.
    fn cheapest<R: Ord>(
        &mut self,
        device: &dyn DeviceView,
        rank: impl Fn(LaunchId) -> R,
        own: SmRange,
        length: usize,
    ) -> Option<usize> {
        if length == device.sms() as usize {
            return Some(0);
        }
        // Neighbours mostly have the same owner, and there are many more SMs than owners.
        let runs = || device.owners().chunk_by(|a, b| a == b);
        let has = runs().filter_map(|run| run[0]);
        let least_urgent = has.max_by_key(|&owner| rank(owner));
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
