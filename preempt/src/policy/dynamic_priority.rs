//! Priorities that grow while launches wait, and quotas for those that run.

use std::cmp::Reverse;
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::indexed_heap::IndexedHeap;
use super::placement::runs;
use super::{Arrival, DeviceView, Packing, Plan, Policy, Priority, SmRange};
use crate::vocabulary::LaunchId;

/// Milliseconds of waiting that count for a launch, which bounds how much more urgent it can become (EffiSha section
/// 7): one for each [`STEP`].
const CAP: Duration = STEP.saturating_mul(20);
const STEP: Duration = Duration::from_millis(1);

/// Dynamic priorities (EffiSha section 7), with spatial sharing.
///
/// There are two queues. A launch starts in the active one, with its own priority. It becomes more urgent by one for
/// each millisecond that it waits there, by 20 at most. The most urgent launch runs; a launch that becomes more
/// urgent than a running one takes SMs from it. A stream of priority p has a quota of (p + 1) / 2 ms, and at least
/// 0.5 ms: negative priorities have what 0 has. When its launches have had SMs for that long, its launch goes to the
/// inactive queue, with its own priority again. When the active queue is empty, the two change places, and every
/// stream has a new quota.
///
/// A request of EffiSha is a stream here. If a launch ends before the quota does, the next one of the stream goes on
/// with the rest. So no stream runs for longer than its quota while other streams wait in the active queue, except for
/// block-tasks that do not yield. What a launch has left does not count: it yields to a more urgent one even if it would have
/// ended sooner than it yields. No launch waits for ever behind a given number of streams; new streams that keep
/// coming can delay the inactive queue. SMs that the active queue does not fill go to the inactive one, most urgent
/// first.
#[derive(Debug, Default)]
pub struct DynamicPriority {
    /// The active queue, part one: launches that arrived in this era, or were preempted, and wait.
    aging: IndexedHeap<LaunchId, Rank>,
    /// Part two: launches with SMs, or that have waited long enough.
    fixed: IndexedHeap<LaunchId, Rank>,
    /// Part three: launches that were inactive in the era before.
    inherited: IndexedHeap<LaunchId, Rank>,
    inactive: IndexedHeap<LaunchId, Rank>,
    /// When launches in `aging` have waited long enough.
    caps: IndexedHeap<LaunchId, (Duration, u64)>,
    launches: FxHashMap<LaunchId, Request>,
    streams: FxHashMap<u32, Quota>,
    /// Streams that have had no launch at some time in this era.
    idle: Vec<u32>,
    /// The number of times that the queues have changed places, and the last time.
    era: u64,
    era_start: Duration,
    /// The launches of the active queue that have SMs.
    running: Vec<LaunchId>,
    asked: Duration,
    plans: u64,
    arrivals: u64,
    wake: Option<Duration>,
    packing: Packing,
}

/// A dynamic priority in nanoseconds of waiting; the most urgent is first in each queue. In `fixed` it is absolute. In
/// `aging` the time is to be added. In the other two it is the time since the queues changed places, which is the same
/// for all.
type Rank = (Reverse<i64>, u64);

#[derive(Debug)]
struct Request {
    stream: u32,
    priority: Priority,
    arrival: u64,
    /// For how long it waited in the active queue before `since`; at most [`CAP`].
    waited: Duration,
    since: Duration,
    /// The last plan that granted SMs to it.
    planned: u64,
}

/// The part of its quota that a stream has used in an era.
#[derive(Debug, Default)]
struct Quota {
    era: u64,
    used: Duration,
    is_over: bool,
    launches: u32,
}

impl Quota {
    /// Starts anew in another era.
    fn renew(&mut self, era: u64) {
        if self.era != era {
            *self = Quota { era, launches: self.launches, ..Quota::default() };
        }
    }
}

impl DynamicPriority {
    /// With spatial sharing.
    pub fn new() -> DynamicPriority {
        DynamicPriority::default()
    }

    /// Without spatial sharing: the most urgent launch has the whole device, as in EffiSha.
    pub fn whole_device() -> DynamicPriority {
        DynamicPriority { packing: Packing::WholeDevice, ..DynamicPriority::default() }
    }

    /// Puts a launch into the queue of its stream.
    fn enter(&mut self, now: Duration, launch: LaunchId) {
        let Some(request) = self.launches.get(&launch) else { return };
        let (priority, arrival) = (request.priority, request.arrival);
        if self.is_over(request) {
            self.inactive.put(launch, (Reverse(base(priority)), arrival));
        } else {
            self.wait(now, launch, Duration::ZERO);
        }
    }

    /// Puts a launch into the active queue, where it has waited for `waited` already.
    fn wait(&mut self, now: Duration, launch: LaunchId, waited: Duration) {
        let Some(request) = self.launches.get_mut(&launch) else { return };
        (request.waited, request.since) = (waited, now);
        let (value, arrival) = (base(request.priority) + nanos(waited), request.arrival);
        if waited < CAP {
            self.aging.put(launch, (Reverse(value - nanos(now)), arrival));
            self.caps.put(launch, (now + CAP - waited, arrival));
        } else {
            self.fixed.put(launch, (Reverse(value), arrival));
        }
    }

    /// Fixes the priority of a launch of the active queue that runs.
    fn run(&mut self, launch: LaunchId, waited: Duration) {
        let Some(request) = self.launches.get_mut(&launch) else { return };
        request.waited = waited;
        let whole = nanos(waited) / nanos(STEP) * nanos(STEP);
        // A waiting launch has to be more urgent by a whole step, or the two would take turns within nanoseconds.
        let value = base(request.priority) + whole + nanos(STEP) - 1;
        self.fixed.put(launch, (Reverse(value), request.arrival));
    }

    /// Takes a launch out of the active queue; the time that it has waited there.
    fn leave(&mut self, now: Duration, launch: LaunchId) -> Option<Duration> {
        let request = self.launches.get(&launch)?;
        if self.fixed.remove(launch).is_some() {
            return Some(request.waited);
        }
        if self.aging.remove(launch).is_some() {
            self.caps.remove(launch);
            return Some((request.waited + now.saturating_sub(request.since)).min(CAP));
        }
        self.inherited.remove(launch).map(|_| now.saturating_sub(self.era_start).min(CAP))
    }

    /// Charges the stream of a launch that had SMs until now.
    fn charge(&mut self, now: Duration, launch: LaunchId) {
        let Some(request) = self.launches.get(&launch) else { return };
        let Some(quota) = self.streams.get_mut(&request.stream) else { return };
        quota.renew(self.era);
        quota.used += now.saturating_sub(self.asked);
        quota.is_over |= quota.used >= self::quota(request.priority);
    }

    /// Whether the stream of a launch has used up its quota.
    fn is_over(&self, request: &Request) -> bool {
        let quota = self.streams.get(&request.stream);
        quota.is_some_and(|quota| quota.is_over && quota.era == self.era)
    }

    /// Lets the two queues change places if nothing is in the active one.
    fn turn_over(&mut self, now: Duration) {
        if self.aging.is_empty() && self.fixed.is_empty() && self.inherited.is_empty() {
            std::mem::swap(&mut self.inherited, &mut self.inactive);
            self.era += 1;
            self.era_start = now;
            for stream in self.idle.drain(..) {
                if self.streams.get(&stream).is_some_and(|quota| quota.launches == 0) {
                    self.streams.remove(&stream);
                }
            }
        }
    }

    /// Charges the launches that have had SMs since the last plan.
    fn charge_running(&mut self, now: Duration) {
        for index in 0..self.running.len() {
            self.charge(now, self.running[index]);
        }
        self.asked = now;
    }

    /// Moves running launches whose stream has used up its quota to the inactive queue.
    fn retire_spent(&mut self, now: Duration) {
        let mut running = std::mem::take(&mut self.running);
        running.retain(|&launch| {
            let Some(request) = self.launches.get(&launch) else { return false };
            let is_over = self.is_over(request);
            let rank = (Reverse(base(request.priority)), request.arrival);
            if is_over {
                self.leave(now, launch);
                self.inactive.put(launch, rank);
            }
            !is_over
        });
        self.running = running;
    }

    /// Starts launches of the active queue that have SMs: they were inactive in the era before.
    fn adopt_owners(&mut self, now: Duration, device: &dyn DeviceView) {
        for (launch, _) in runs(device) {
            self.start(now, launch);
        }
    }

    /// Starts a launch that does not run, if it is in the active queue.
    fn start(&mut self, now: Duration, launch: LaunchId) {
        if !self.running.contains(&launch)
            && let Some(waited) = self.leave(now, launch)
        {
            self.run(launch, waited);
            self.running.push(launch);
        }
    }

    /// Fixes the priority of launches that have waited long enough.
    fn cap_waiting(&mut self, now: Duration) {
        while let Some(((at, _), launch)) = self.caps.first()
            && at <= now
        {
            self.leave(now, launch);
            self.wait(now, launch, CAP);
        }
    }

    /// Grants SMs to the active queue, and the rest to the inactive one. Returns the first launch that has less than
    /// it can fill.
    fn share(
        &mut self,
        now: Duration,
        device: &dyn DeviceView,
        plan: &mut Plan,
    ) -> Option<LaunchId> {
        let (known, era_start) = (self.launches.len(), self.era_start);
        let DynamicPriority { aging, fixed, inherited, inactive, packing, .. } = self;
        let ((aging, aging_keys), (fixed, fixed_keys)) = (aging.in_order(), fixed.in_order());
        let (inherited, inherited_keys) = inherited.in_order();
        let (inactive, inactive_keys) = inactive.in_order();
        let age = nanos(now.saturating_sub(era_start).min(CAP));
        let active = Merged {
            queues: [
                (fixed.peekable(), 0),
                (inherited.peekable(), age),
                (aging.peekable(), nanos(now)),
            ],
        };
        let rank = |owner| {
            let value = fixed_keys.get(owner).map(|(Reverse(value), _)| value);
            let value = value
                .or_else(|| inherited_keys.get(owner).map(|(Reverse(value), _)| value + age))
                .or_else(|| aging_keys.get(owner).map(|(Reverse(value), _)| value + nanos(now)));
            (value.is_none(), Reverse(value), inactive_keys.get(owner))
        };
        let order = active.chain(inactive.map(|(_, launch)| launch));
        plan.share_ranked(order, known == 1, rank, *packing, device)
    }

    /// Returns launches that lost all SMs to the queue, and starts those that gained some.
    fn enter_grants(&mut self, now: Duration, grants: &[(LaunchId, SmRange)]) {
        self.plans += 1;
        for (launch, _) in grants {
            if let Some(request) = self.launches.get_mut(launch) {
                request.planned = self.plans;
            }
        }
        let mut running = std::mem::take(&mut self.running);
        running.retain(|&launch| {
            let request = self.launches.get(&launch);
            let stays = request.is_some_and(|request| request.planned == self.plans);
            if !stays && let Some(waited) = self.leave(now, launch) {
                self.wait(now, launch, waited);
            }
            stays
        });
        self.running = running;
        for &(launch, _) in grants {
            self.start(now, launch);
        }
    }

    /// The next time at which there is something to decide if nothing happens before.
    fn next_change(&self, now: Duration) -> Option<Duration> {
        let left = |launch: &LaunchId| {
            let request = self.launches.get(launch)?;
            let quota = self.streams.get(&request.stream)?;
            let used = if quota.era == self.era { quota.used } else { Duration::ZERO };
            Some(now + self::quota(request.priority).saturating_sub(used))
        };
        let quota_ends = self.running.iter().filter_map(left).min();
        let lowest = self.running.iter().filter_map(|&launch| self.fixed.key(launch)).max();
        let overtakes = lowest.and_then(|(Reverse(lowest), _)| {
            let reaches = |value: i64, start: Duration, cap: Duration| {
                let after = u64::try_from(lowest + 1 - value).ok()?;
                Some((start + Duration::from_nanos(after)).min(cap))
            };
            let aging = self.aging.first().and_then(|((Reverse(value), _), launch)| {
                reaches(value, Duration::ZERO, self.caps.key(launch)?.0)
            });
            let inherited = self.inherited.first().and_then(|((Reverse(value), _), _)| {
                reaches(value, self.era_start, self.era_start + CAP)
            });
            aging.into_iter().chain(inherited).filter(|at| *at > now).min()
        });
        quota_ends.into_iter().chain(overtakes).min()
    }
}

impl Policy for DynamicPriority {
    fn name(&self) -> &str {
        "dynamic priority"
    }

    fn arrived(&mut self, now: Duration, launch: Arrival) {
        self.arrivals += 1;
        let stream = launch.stream;
        let quota = self.streams.entry(stream).or_default();
        quota.renew(self.era);
        quota.launches += 1;
        let request = Request {
            stream,
            priority: launch.priority,
            arrival: self.arrivals,
            waited: Duration::ZERO,
            since: now,
            planned: 0,
        };
        self.launches.insert(launch.id, request);
        self.enter(now, launch.id);
    }

    fn changed(&mut self, now: Duration, launch: Arrival) {
        let waited = self.leave(now, launch.id);
        let Some(request) = self.launches.get_mut(&launch.id) else { return };
        request.priority = launch.priority;
        let arrival = request.arrival;
        match waited {
            None => self.inactive.put(launch.id, (Reverse(base(launch.priority)), arrival)),
            Some(waited) if self.running.contains(&launch.id) => self.run(launch.id, waited),
            Some(waited) => self.wait(now, launch.id, waited),
        }
    }

    fn departed(&mut self, now: Duration, launch: LaunchId) {
        if let Some(place) = self.running.iter().position(|&other| other == launch) {
            self.charge(now, launch);
            self.running.swap_remove(place);
        }
        if self.leave(now, launch).is_none() {
            self.inactive.remove(launch);
        }
        let Some(request) = self.launches.remove(&launch) else { return };
        if let Some(quota) = self.streams.get_mut(&request.stream) {
            quota.launches -= 1;
            if quota.launches == 0 {
                self.idle.push(request.stream);
            }
        }
        // The queues change places at the next plan: the next launch of the stream may come before that, and belongs
        // to this era.
    }

    fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        self.charge_running(now);
        self.retire_spent(now);
        self.turn_over(now);
        self.adopt_owners(now, device);
        self.cap_waiting(now);
        let first = plan.grants.len();
        let denied = self.share(now, device, plan);
        self.enter_grants(now, &plan.grants[first..]);
        self.wake = denied.and_then(|_| self.next_change(now));
    }

    fn wake(&self) -> Option<Duration> {
        self.wake
    }
}

/// Several queues as one, the most urgent first; with each, the number to add to its ranks.
struct Merged<L: Iterator> {
    queues: [(std::iter::Peekable<L>, i64); 3],
}

impl<L: Iterator<Item = (Rank, LaunchId)>> Iterator for Merged<L> {
    type Item = LaunchId;

    fn next(&mut self) -> Option<LaunchId> {
        let mut best: Option<(Rank, usize)> = None;
        for (index, (queue, add)) in self.queues.iter_mut().enumerate() {
            if let Some(&((Reverse(value), arrival), _)) = queue.peek() {
                let rank = (Reverse(value + *add), arrival);
                if best.is_none_or(|(most, _)| rank < most) {
                    best = Some((rank, index));
                }
            }
        }
        self.queues[best?.1].0.next().map(|(_, launch)| launch)
    }
}

fn quota(priority: Priority) -> Duration {
    (STEP / 2).saturating_mul(u32::try_from(priority.0).unwrap_or(0).saturating_add(1))
}

fn base(priority: Priority) -> i64 {
    i64::from(priority.0) * nanos(STEP)
}

/// Nanoseconds; three hundred years fit.
fn nanos(time: Duration) -> i64 {
    time.as_nanos() as i64
}
