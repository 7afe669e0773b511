//! Turns of streams, with SMs in proportion to their weights.

use std::time::Duration;

use rustc_hash::FxHashMap;

use super::indexed_heap::IndexedHeap;
use super::placement::{length, runs};
use super::{Arrival, DeviceView, Packing, Plan, Policy, SmRange};
use crate::vocabulary::LaunchId;

/// The turns of [`Ffs`](super::Ffs) and [`FairShare`](super::FairShare).
///
/// Each stream has a *virtual time*: its time on SMs, summed over SMs and divided by its weight. Streams take turns
/// of the same length in virtual time. A turn ends one length after the end of the stream's last turn. So a stream
/// that had too much in one turn lacks it in the next (deficit round robin). The stream whose turn ends first goes
/// first, and of those with the same end, the one that has had its place for longest.
///
/// Time counts only while a launch has less than it can fill, or a stream may be about to go on with its turn. SMs that
/// no other stream wants cost nothing.
#[derive(Debug)]
pub(super) struct Shares {
    turn: Turn,
    /// Time within which the next launch of a stream has to arrive for the stream to keep its place.
    grace: Duration,
    queue: IndexedHeap<LaunchId, TurnKey>,
    launches: FxHashMap<LaunchId, LaunchAccount>,
    streams: FxHashMap<u32, StreamAccount>,
    /// Streams without a launch, by the time since when.
    idle: IndexedHeap<u32, (Duration, u32)>,
    /// Launches that arrived since the last plan.
    fresh: Vec<LaunchId>,
    /// The launches that the last plan granted SMs to.
    running: Vec<LaunchId>,
    /// Whether a launch has had less than it can fill since the last plan, or a stream may have been about to go on.
    contended: bool,
    /// Until when a stream may be about to go on.
    awaited: Duration,
    /// The virtual time at which new streams start.
    start: u128,
    /// The length of a turn in virtual time.
    length: u128,
    /// How far other streams can come while one keeps its place.
    absence: u128,
    /// Sums over all launches.
    overheads: Duration,
    weights: u64,
    places: u64,
    wake: Option<Duration>,
    packing: Packing,
}

/// How long turns are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Turn {
    /// On the whole device, for a weight of 1.
    Fixed(Duration),
    /// The shortest for which yields cost at most this fraction.
    Overhead(f64),
}

/// The end of the stream's turn, and the running numbers of that turn and of the launch.
type TurnKey = (u128, u64, u64);

#[derive(Debug)]
struct LaunchAccount {
    stream: u32,
    arrival: u64,
    /// The part of its time on SMs that was charged.
    counted: Duration,
    /// The SMs that it has, and since when they are not charged.
    has: u32,
    since: Duration,
    overhead: Duration,
    weight: u32,
}

#[derive(Debug)]
struct StreamAccount {
    time: u128,
    end: u128,
    place: u64,
    weight: u32,
    launches: Vec<LaunchId>,
    yields: Yields,
}

/// The cost of a yield of a stream: the mean of its last launches, weighted by their durations. If each launch
/// counted alone, turns would be as long as what happens to wait is expensive, and not as what runs.
#[derive(Clone, Copy, Debug, Default)]
struct Yields {
    /// Seconds that launches took, and the sum of their products with the seconds of a yield.
    time: f64,
    cost: f64,
}

impl Yields {
    /// Launches over which the mean is taken, about.
    const LAUNCHES: f64 = 16.0;

    /// Enters a launch; the mean cost.
    fn add(&mut self, overhead: Duration, took: Option<Duration>) -> Duration {
        // Launches of unknown duration, and those whose yields cost nothing, count a little.
        let took = took.unwrap_or(overhead).as_secs_f64().max(1e-9);
        let keep = 1.0 - 1.0 / Yields::LAUNCHES;
        self.time = keep * self.time + took;
        self.cost = keep * self.cost + took * overhead.as_secs_f64();
        Duration::try_from_secs_f64(self.cost / self.time).unwrap_or(overhead)
    }
}

/// Virtual time of a nanosecond on an SM, for a weight of 1. Larger weights need the digits.
const UNIT: u128 = 1 << 32;

/// The part of a turn of fixed length by which it may end later.
const LATEST_IF_FIXED: f64 = 0.1;

/// The same of a turn that follows from the cost of yields.
///
/// A block-task that is dropped is lost to all streams, and where it was one of the last of its launch, so are the SMs that no other
/// one fills when it runs again. A block-task that ends late delays the next stream, and what it does then is not charged. A
/// fixed turn is about as long as was asked for. Of the others nothing was asked but that little is lost, so they may end later
/// by more: by half, so that a stream never does more than half as much again as its share.
const LATEST_IF_COSTLY: f64 = 0.5;

/// The shortest turn; bounds how often the policy is asked.
const SHORTEST_TURN: Duration = Duration::from_micros(10);

/// Time without a launch after which a stream is forgotten, with what it had too much or too little.
const MEMORY: Duration = Duration::from_secs(1);

impl Shares {
    pub fn new(turn: Turn, grace: Duration) -> Shares {
        Shares {
            turn,
            grace,
            queue: IndexedHeap::default(),
            launches: FxHashMap::default(),
            streams: FxHashMap::default(),
            idle: IndexedHeap::default(),
            fresh: Vec::new(),
            running: Vec::new(),
            contended: false,
            awaited: Duration::ZERO,
            start: 0,
            length: 0,
            absence: 0,
            overheads: Duration::ZERO,
            weights: 0,
            places: 0,
            wake: None,
            packing: Packing::default(),
        }
    }

    /// Without spatial sharing: the stream whose turn it is has the whole device.
    pub fn whole_device(mut self) -> Shares {
        self.packing = Packing::WholeDevice;
        self
    }

    /// Charges streams for the time on SMs of their launches, as the device has counted it.
    fn charge_owners(&mut self, device: &dyn DeviceView) {
        for (launch, _) in runs(device) {
            let Some(account) = self.launches.get_mut(&launch) else { continue };
            let time = device.sm_time(launch);
            let more = time.saturating_sub(std::mem::replace(&mut account.counted, time));
            let stream = account.stream;
            self.charge(stream, more);
        }
    }

    /// Learns what it costs to make the launches yield that arrived since the last plan.
    fn learn_overheads(&mut self, device: &dyn DeviceView) {
        for launch in &self.fresh {
            let Some(account) = self.launches.get_mut(launch) else { continue };
            let Some(stream) = self.streams.get_mut(&account.stream) else { continue };
            self.overheads -= account.overhead;
            let overhead = device.yield_overhead(*launch);
            account.overhead = stream.yields.add(overhead, device.remaining(*launch));
            self.overheads += account.overhead;
        }
    }

    /// Sets the length of turns by what yields cost now, and ends the turns that are over.
    fn end_turns(&mut self, device: &dyn DeviceView) {
        let in_shares = |time: Duration| time.as_nanos() * u128::from(device.sms()) * UNIT;
        (self.length, self.absence) = (in_shares(self.turn_length()), in_shares(self.grace));
        let mut fresh = std::mem::take(&mut self.fresh);
        let owners = runs(device).map(|(owner, _)| owner);
        for launch in fresh.drain(..).chain(owners) {
            if let Some(account) = self.launches.get(&launch) {
                self.end_turn(account.stream);
            }
        }
        self.fresh = fresh;
    }

    /// Notes what launches have from now on. When the first turn of them ends, and the least key of a launch that is
    /// limited by its share, which the denied launch is.
    fn enter_grants(
        &mut self,
        now: Duration,
        device: &dyn DeviceView,
        grants: &[(LaunchId, SmRange)],
        denied: Option<TurnKey>,
    ) -> (Option<Duration>, Option<TurnKey>) {
        for launch in self.running.drain(..) {
            if let Some(account) = self.launches.get_mut(&launch) {
                account.has = 0;
            }
        }
        let (mut wake, mut limited) = (None, denied);
        for &(launch, range) in grants {
            let Some(account) = self.launches.get_mut(&launch) else { continue };
            (account.has, account.since) = (length(range, device.sms()), now);
            self.running.push(launch);
            let Some(stream) = self.streams.get(&account.stream) else { continue };
            // A launch that can fill its share is limited by that, although it may have all that it can fill now.
            if is_wide(device, launch, stream.weight, self.weights) {
                let key = self.queue.key(launch);
                limited = limited.min(key).or(key);
            }
            let left = stream.end.saturating_sub(stream.time) * u128::from(stream.weight) / UNIT;
            let left = left / u128::from(account.has.max(1)) + 1;
            let end = now.saturating_add(Duration::from_nanos(left.try_into().unwrap_or(u64::MAX)));
            wake = Some(wake.map_or(end, |wake: Duration| wake.min(end)));
        }
        (wake, limited)
    }

    /// Keeps streams that have all that they can fill, and less than their share, within a turn of the others.
    fn limit_savings(&mut self, device: &dyn DeviceView, grants: &[(LaunchId, SmRange)]) {
        for (launch, _) in grants {
            let Some(entry) = self.launches.get(launch) else { continue };
            let Some(share) = self.streams.get_mut(&entry.stream) else { continue };
            if entry.has < device.need(*launch)
                || is_wide(device, *launch, share.weight, self.weights)
            {
                continue;
            }
            share.time = share.time.max(self.start.saturating_sub(self.length));
            if share.end < self.start {
                share.end = self.start;
                Self::rekey(&mut self.queue, &self.launches, share);
            }
        }
    }

    fn turn_length(&self) -> Duration {
        let turn = match self.turn {
            Turn::Fixed(turn) => turn,
            Turn::Overhead(limit) => {
                let weights = self.weights.max(1) as f64;
                Duration::try_from_secs_f64(self.overheads.as_secs_f64() / (limit * weights))
                    .unwrap_or(MEMORY)
            }
        };
        turn.max(SHORTEST_TURN)
    }

    /// The time by which a turn may end later, so that block-tasks end instead of running again.
    fn latest(&self) -> Duration {
        let part = match self.turn {
            Turn::Fixed(_) => LATEST_IF_FIXED,
            Turn::Overhead(_) => LATEST_IF_COSTLY,
        };
        self.turn_length().mul_f64(part)
    }

    /// Counts the time since the last plan of a launch that was granted SMs then.
    fn charge_granted(&mut self, now: Duration, launch: LaunchId) {
        let Some(entry) = self.launches.get_mut(&launch) else { return };
        let more = now.saturating_sub(entry.since).saturating_mul(entry.has);
        entry.since = now;
        entry.counted += more;
        let stream = entry.stream;
        self.charge(stream, more);
    }

    fn charge(&mut self, stream: u32, time: Duration) {
        if self.contended
            && let Some(share) = self.streams.get_mut(&stream)
        {
            share.time += time.as_nanos() * UNIT / u128::from(share.weight);
        }
    }

    /// Starts the next turn of a stream whose turn is over.
    fn end_turn(&mut self, stream: u32) {
        let Some(share) = self.streams.get_mut(&stream) else { return };
        if share.time < share.end || self.length == 0 {
            return;
        }
        share.end += ((share.time - share.end) / self.length + 1) * self.length;
        self.places += 1;
        share.place = self.places;
        Self::rekey(&mut self.queue, &self.launches, share);
    }

    fn rekey(
        line: &mut IndexedHeap<LaunchId, TurnKey>,
        launches: &FxHashMap<LaunchId, LaunchAccount>,
        share: &StreamAccount,
    ) {
        for &launch in &share.launches {
            if let Some(entry) = launches.get(&launch) {
                line.put(launch, (share.end, share.place, entry.arrival));
            }
        }
    }

    /// Forgets streams that have had no launch for [`MEMORY`].
    fn forget(&mut self, now: Duration) {
        while let Some(((since, _), stream)) = self.idle.first()
            && now.saturating_sub(since) > MEMORY
        {
            self.idle.remove(stream);
            self.streams.remove(&stream);
        }
    }
}

impl Policy for Shares {
    fn name(&self) -> &str {
        "shares"
    }

    fn arrived(&mut self, now: Duration, launch: Arrival) {
        self.forget(now);
        self.places += 1;
        let (start, end, place) = (self.start, self.start + self.length, self.places);
        let newcomer = || StreamAccount {
            time: start,
            end,
            place,
            weight: launch.weight,
            launches: Vec::new(),
            yields: Yields::default(),
        };
        let share = self.streams.entry(launch.stream).or_insert_with(newcomer);
        if let Some((since, _)) = self.idle.remove(launch.stream) {
            // It may make up for a turn and an absence, and no more.
            let earliest = start.saturating_sub(self.absence);
            share.time = share.time.max(earliest.saturating_sub(self.length));
            share.end = share.end.max(earliest);
            if now.saturating_sub(since) > self.grace {
                share.end = share.end.max(end);
                share.place = place;
            }
        }
        if self.idle.is_empty() {
            self.awaited = Duration::ZERO;
        }
        share.weight = launch.weight.max(1);
        share.launches.push(launch.id);
        self.queue.put(launch.id, (share.end, share.place, place));
        let (stream, weight) = (launch.stream, share.weight);
        self.weights += u64::from(weight);
        let (counted, overhead, since) = (Duration::ZERO, Duration::ZERO, now);
        let entry =
            LaunchAccount { stream, arrival: place, counted, has: 0, since, overhead, weight };
        self.launches.insert(launch.id, entry);
        self.fresh.push(launch.id);
    }

    /// Counts another weight from now on; the place stays.
    fn changed(&mut self, now: Duration, launch: Arrival) {
        self.charge_granted(now, launch.id);
        let Some(entry) = self.launches.get_mut(&launch.id) else { return };
        let before = std::mem::replace(&mut entry.weight, launch.weight.max(1));
        self.weights = self.weights - u64::from(before) + u64::from(entry.weight);
        if let Some(share) = self.streams.get_mut(&entry.stream) {
            share.weight = entry.weight;
        }
    }

    fn departed(&mut self, now: Duration, launch: LaunchId) {
        self.charge_granted(now, launch);
        self.queue.remove(launch);
        let Some(entry) = self.launches.remove(&launch) else { return };
        self.overheads -= entry.overhead;
        self.weights -= u64::from(entry.weight);
        if let Some(share) = self.streams.get_mut(&entry.stream) {
            share.launches.retain(|&other| other != launch);
            if share.launches.is_empty() {
                self.idle.put(entry.stream, (now, entry.stream));
                self.awaited = now.saturating_add(self.grace);
            }
        }
        self.end_turn(entry.stream);
    }

    fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        self.forget(now);
        self.charge_owners(device);
        self.learn_overheads(device);
        self.end_turns(device);
        let first = plan.grants.len();
        let denied = plan.share_queue(&mut self.queue, self.packing, device);
        let grants = &plan.grants[first..];
        self.contended = denied.is_some() || now < self.awaited;
        let denied_key = denied.and_then(|launch| self.queue.key(launch));
        let (wake, limited) = self.enter_grants(now, device, grants, denied_key);
        self.wake = match denied {
            Some(_) => wake,
            None => Some(self.awaited).filter(|&until| now < until),
        };
        if let Some((end, ..)) = limited {
            self.start = self.start.max(end.saturating_sub(self.length));
        }
        // Launches that want less than their share have it, and save nothing up.
        if self.contended {
            self.limit_savings(device, grants);
        }
    }

    fn latency_limit(&self) -> Option<Duration> {
        Some(self.latest())
    }

    fn wake(&self) -> Option<Duration> {
        self.wake
    }
}

/// Whether a launch can fill its stream's share of the device.
fn is_wide(device: &dyn DeviceView, launch: LaunchId, weight: u32, weights: u64) -> bool {
    u128::from(device.need(launch)) * u128::from(weights)
        >= u128::from(device.sms()) * u128::from(weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_ends_late_by_a_part_of_it_so_that_block_tasks_end() {
        let millis = Duration::from_millis;
        let mut shares = Shares::new(Turn::Overhead(0.2), Duration::ZERO);
        (shares.overheads, shares.weights) = (millis(2), 2);
        assert_eq!(shares.turn_length(), millis(5));
        assert_eq!(shares.latency_limit(), Some(Duration::from_micros(2500)));
        let fixed = Shares::new(Turn::Fixed(millis(5)), Duration::ZERO);
        assert_eq!(fixed.latency_limit(), Some(Duration::from_micros(500)));
    }

    #[test]
    fn sms_that_wrap_around_count_as_others_do() {
        let mut device = crate::policy::ModelDevice::new(8);
        let launch = device.launch(4);
        device.set_range(launch.id, SmRange::new(6, 2));
        let mut shares = Shares::new(Turn::Fixed(Duration::from_millis(5)), Duration::ZERO);
        shares.arrived(Duration::ZERO, launch);
        let mut plan = Plan::default();
        shares.assign(Duration::ZERO, &device, &mut plan);
        assert_eq!(plan.grants(), [(launch.id, SmRange::new(6, 2))]);
        assert_eq!(shares.launches[&launch.id].has, 4);
    }

    #[test]
    fn a_stream_costs_what_its_long_launches_cost() {
        let micros = Duration::from_micros;
        let mut yields = Yields::default();
        let mut mean = Duration::ZERO;
        for _ in 0..100 {
            yields.add(micros(20), Some(micros(10)));
            mean = yields.add(micros(220), Some(micros(990)));
        }
        assert!((micros(215)..micros(220)).contains(&mean), "{mean:?}");
        assert_eq!(Yields::default().add(micros(20), None), micros(20));
        assert_eq!(Yields::default().add(Duration::ZERO, None), Duration::ZERO);
    }
}
