//! Which SMs launches get, by cases and against a search of all windows.

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
    let (mut device, [last, other, urgent]) = device([(low, 3), (high, 3), (SmRange::EMPTY, 2)]);
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

fn place(gaps: impl Iterator<Item = Range<usize>>, length: usize, prices: &[u8]) -> Option<usize> {
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
