//! Every policy of the library in the same storm, each held to its own rule. Which launch precedes which is stated once
//! more in the plainest way, and compared at every plan.

use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use super::world::{Asks, World};
use super::*;
use crate::policy::{
    DeviceView, DynamicPriority, EarliestDeadline, FairShare, Ffs, Fifo, Hpf, Priority,
    ShortestRemaining, StaticPriority, Urgency,
};

pub(super) fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// Whether one launch comes before another one, which is true for one of two that differ.
type Precedes = fn(&Known, &Known, &Rule, Duration, &dyn DeviceView) -> bool;

/// A launch that waits or runs.
#[derive(Clone, Copy, Debug)]
struct Known {
    arrival: Arrival,
    /// Its number in the order of arrival.
    number: u64,
    dynamic: Dynamic,
}

/// A launch under dynamic priorities.
#[derive(Clone, Copy, Default, Debug)]
struct Dynamic {
    inactive: bool,
    runs: bool,
    /// How long it has waited in the active queue, and until when that is counted.
    waited: Duration,
    until: Duration,
}

/// What a stream has used of its quota in an era, and whether that was all.
#[derive(Clone, Copy, Default)]
struct Used {
    era: u64,
    time: Duration,
    is_over: bool,
}

/// The rule that a policy is held to.
struct Rule {
    precedes: Option<Precedes>,
    is_dynamic: bool,
    known: Vec<Known>,
    arrivals: u64,
    /// Under dynamic priorities: the number of the era, the last plan, and what each stream has used in which era.
    era: u64,
    asked: Duration,
    used: std::collections::HashMap<u32, Used>,
}

/// A policy and its rule. A broken rule panics, so that the engine refuses the policy, which the tests see.
struct Held {
    policy: Box<dyn Policy>,
    rule: Rule,
    /// Whether it may leave SMs free, if it says until when.
    anticipates: bool,
}

impl Held {
    fn to(policy: impl Policy + 'static, precedes: Option<Precedes>) -> Held {
        let is_dynamic = policy.name() == "dynamic priority";
        let (known, used) = (Vec::new(), Default::default());
        let (arrivals, era, asked) = (0, 0, Duration::ZERO);
        let rule = Rule { precedes, is_dynamic, known, arrivals, era, asked, used };
        Held { policy: Box::new(policy), rule, anticipates: false }
    }

    fn anticipating(policy: StaticPriority) -> Held {
        Held { anticipates: true, ..Held::to(policy.anticipating(), Some(by_priority)) }
    }
}

impl Policy for Held {
    fn name(&self) -> &str {
        self.policy.name()
    }

    fn admits(&mut self, now: Duration, launch: &Arrival, device: &dyn DeviceView) -> bool {
        let admits = self.policy.admits(now, launch, device);
        if self.name() == "earliest deadline" {
            assert_eq!(admits, self.rule.has_time(now, launch, device), "{launch:?} at {now:?}");
        }
        admits
    }

    fn arrived(&mut self, now: Duration, launch: Arrival) {
        self.policy.arrived(now, launch);
        self.rule.arrivals += 1;
        let inactive = self.rule.is_dynamic && self.rule.is_over(launch.stream);
        let dynamic = Dynamic { inactive, until: now, ..Dynamic::default() };
        self.rule.known.push(Known { arrival: launch, number: self.rule.arrivals, dynamic });
    }

    fn changed(&mut self, now: Duration, launch: Arrival) {
        self.policy.changed(now, launch);
        let known = self.rule.known.iter_mut().find(|known| known.arrival.id == launch.id);
        known.expect("a known launch").arrival = launch;
    }

    fn yielded(&mut self, now: Duration, launch: LaunchId) {
        self.policy.yielded(now, launch);
    }

    fn departed(&mut self, now: Duration, launch: LaunchId) {
        self.policy.departed(now, launch);
        self.rule.forget(now, launch);
    }

    fn withdrawn(&mut self, now: Duration, launch: LaunchId) {
        self.policy.withdrawn(now, launch);
        self.rule.forget(now, launch);
    }

    fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        if self.rule.is_dynamic {
            self.rule.pass(now, device);
        }
        self.policy.assign(now, device, plan);
        let leaves_free = self.anticipates && self.policy.wake().is_some();
        self.rule.check(now, device, plan, leaves_free);
        for known in self.rule.known.iter_mut().filter(|known| !known.dynamic.inactive) {
            let is_granted = plan.grants.iter().any(|(id, _)| *id == known.arrival.id);
            known.dynamic.runs = is_granted;
        }
    }

    fn goes_by_order(&self) -> bool {
        self.policy.goes_by_order()
    }

    fn may_preempt(&self, by: Priority, of: Priority) -> bool {
        self.policy.may_preempt(by, of)
    }

    fn wake(&self) -> Option<Duration> {
        self.policy.wake()
    }
}

impl Rule {
    /// The policy does not know of a launch any more.
    fn forget(&mut self, now: Duration, launch: LaunchId) {
        let place = self.known.iter().position(|known| known.arrival.id == launch);
        let known = self.known.remove(place.expect("a known launch"));
        if known.dynamic.runs {
            self.use_up(&known.arrival, now - self.asked);
        }
    }

    /// The launches with SMs are the first ones in the order, and the first of them has all that it can fill, unless the policy
    /// `leaves_free` SMs.
    fn check(&self, now: Duration, device: &dyn DeviceView, plan: &Plan, leaves_free: bool) {
        let granted: Vec<&Known> = plan
            .grants
            .iter()
            .map(|(id, _)| self.known.iter().find(|known| known.arrival.id == *id).expect("known"))
            .collect();
        let has = |range: SmRange| (0..device.sms()).filter(|&sm| range.contains(sm)).count();
        let total: usize = plan.grants.iter().map(|(_, range)| has(*range)).sum();
        let all_granted = granted.len() == self.known.len();
        let is_full = total == device.sms() as usize;
        assert!(all_granted || is_full || leaves_free, "an SM is idle, and others wait");
        if let Some((first, range)) = plan.grants.first() {
            let has_all = has(*range) >= device.need(*first) as usize;
            assert!(has_all || leaves_free, "the first one lacks SMs");
        }
        let Some(precedes) = self.precedes else { return };
        for (place, has) in granted.iter().enumerate() {
            let is_granted =
                |other: &&Known| granted.iter().any(|g| g.arrival.id == other.arrival.id);
            let waiting = self.known.iter().filter(|other| !is_granted(other));
            for later in granted[place + 1..].iter().copied().chain(waiting) {
                assert!(!precedes(later, has, self, now, device), "{later:?} before {has:?}");
            }
        }
    }

    /// Whether all launches are in time, one after the other, with one more.
    fn has_time(&self, now: Duration, new: &Arrival, device: &dyn DeviceView) -> bool {
        let work = |id| Some(device.remaining(id)? + device.yield_overhead(id));
        let Some(deadline) = new.deadline else { return true };
        let Some(more) = work(new.id) else { return now < deadline };
        let mut all: Vec<(Duration, Duration)> = self
            .known
            .iter()
            .filter_map(|known| Some((known.arrival.deadline?, work(known.arrival.id)?)))
            .collect();
        all.push((deadline, more));
        let by = |due| -> Duration { all.iter().filter(|one| one.0 <= due).map(|one| one.1).sum() };
        all.iter().filter(|one| one.0 > deadline).all(|one| now + by(one.0) <= one.0)
            && now + by(deadline) <= deadline
    }
}

/// Dynamic priorities, as EffiSha has them in section 7.
impl Rule {
    fn quota(priority: Priority) -> Duration {
        micros(500) * (priority.0.max(0) as u32 + 1)
    }

    fn use_up(&mut self, launch: &Arrival, time: Duration) {
        let era = self.era;
        let used = self.used.entry(launch.stream).or_default();
        if used.era != era {
            *used = Used { era, ..Used::default() };
        }
        used.time += time;
        used.is_over |= used.time >= Rule::quota(launch.priority);
    }

    fn is_over(&self, stream: u32) -> bool {
        self.used.get(&stream).is_some_and(|used| used.era == self.era && used.is_over)
    }

    fn turn_over(&mut self, now: Duration) {
        if self.known.iter().all(|known| known.dynamic.inactive) {
            self.era += 1;
            for known in &mut self.known {
                known.dynamic = Dynamic { until: now, ..Dynamic::default() };
            }
        }
    }

    /// Lets the time since the last plan pass.
    fn pass(&mut self, now: Duration, device: &dyn DeviceView) {
        for index in 0..self.known.len() {
            if self.known[index].dynamic.runs {
                let arrival = self.known[index].arrival;
                self.use_up(&arrival, now - self.asked);
            }
        }
        self.asked = now;
        for index in 0..self.known.len() {
            let Known { arrival, dynamic, .. } = self.known[index];
            if dynamic.runs && self.is_over(arrival.stream) {
                self.known[index].dynamic =
                    Dynamic { inactive: true, until: now, ..Dynamic::default() };
            }
        }
        self.turn_over(now);
        for known in self.known.iter_mut().filter(|known| !known.dynamic.inactive) {
            let dynamic = &mut known.dynamic;
            if !dynamic.runs {
                dynamic.waited = (dynamic.waited + (now - dynamic.until)).min(micros(20_000));
            }
            dynamic.until = now;
            dynamic.runs |= !device.range(known.arrival.id).is_empty();
        }
    }
}

fn first_come(a: &Known, b: &Known, _: &Rule, _: Duration, _: &dyn DeviceView) -> bool {
    a.number < b.number
}

fn by_priority(a: &Known, b: &Known, _: &Rule, _: Duration, _: &dyn DeviceView) -> bool {
    (b.arrival.priority, a.number) < (a.arrival.priority, b.number)
}

/// Of two launches of equal priority, a waiting one precedes only if the other's rest is longer by more than its yield
/// costs.
fn by_remaining(a: &Known, b: &Known, _: &Rule, _: Duration, device: &dyn DeviceView) -> bool {
    let left = |known: &Known| device.remaining(known.arrival.id).unwrap_or(Duration::MAX);
    let overhead = |known: &Known| device.yield_overhead(known.arrival.id);
    let has = |known: &Known| !device.range(known.arrival.id).is_empty();
    match (has(a), has(b)) {
        (false, true) => left(b) > left(a).saturating_add(overhead(b)),
        (true, false) => left(a) <= left(b).saturating_add(overhead(a)),
        (false, false) => (left(a), a.number) < (left(b), b.number),
        // Between two that run, less what it costs each.
        (true, true) => {
            let less = |known| (left(known).saturating_sub(overhead(known)), known.number);
            less(a) < less(b)
        }
    }
}

fn hpf(a: &Known, b: &Known, rule: &Rule, now: Duration, device: &dyn DeviceView) -> bool {
    let (first, second) = (a.arrival.priority, b.arrival.priority);
    first > second || first == second && by_remaining(a, b, rule, now, device)
}

fn by_deadline(a: &Known, b: &Known, _: &Rule, _: Duration, _: &dyn DeviceView) -> bool {
    let due = |known: &Known| (known.arrival.deadline.is_none(), known.arrival.deadline);
    (due(a), a.number) < (due(b), b.number)
}

/// More urgent by a whole step than a running launch; among waiting launches, parts of a millisecond count.
fn dynamic(a: &Known, b: &Known, _: &Rule, _: Duration, _: &dyn DeviceView) -> bool {
    let value = |known: &Known| {
        let Known { arrival, dynamic, .. } = known;
        let waited = match dynamic.runs {
            true => dynamic.waited.as_millis() * 1_000_000 + 999_999,
            false => dynamic.waited.as_nanos(),
        };
        i128::from(arrival.priority.0) * 1_000_000 + waited as i128
    };
    match (a.dynamic.inactive, b.dynamic.inactive) {
        (true, true) => (b.arrival.priority, a.number) < (a.arrival.priority, b.number),
        (false, false) => (value(b), a.number) < (value(a), b.number),
        (a_is_inactive, _) => !a_is_inactive,
    }
}

fn policies() -> Vec<Held> {
    vec![
        Held::to(Fifo::new(), Some(first_come)),
        Held::to(StaticPriority::new(), Some(by_priority)),
        Held::to(StaticPriority::whole_device(), Some(by_priority)),
        Held::anticipating(StaticPriority::new()),
        Held::anticipating(StaticPriority::whole_device()),
        Held::to(Hpf::new(), Some(hpf)),
        Held::to(ShortestRemaining::new(), Some(by_remaining)),
        Held::to(EarliestDeadline::new(), Some(by_deadline)),
        Held::to(DynamicPriority::new(), Some(dynamic)),
        Held::to(DynamicPriority::whole_device(), Some(dynamic)),
        Held::to(Ffs::new(), None),
        Held::to(FairShare::new(), None),
    ]
}

#[derive(Clone, Debug)]
enum Happening {
    Launch { stream: u32, tasks: u32, asks: Asks, due: Option<u64>, uses: Vec<AskedUse> },
    Copy { stream: u32, uses: Vec<AskedUse> },
    Cohort(usize),
    CopyDone,
    Cancel(usize),
    Fault(usize),
    Change(usize, Change),
    ChangeStream(u32, Change),
    Suspend(u32, bool),
    Pass(u64),
}

const STREAMS: u32 = 12;

fn happening() -> impl Strategy<Value = Happening> {
    let uses = || prop::collection::vec((0u64..40, bounds(), prop::bool::weighted(0.3)), 0..2);
    let due = || prop::option::of(0u64..5000);
    let asks = (-2i32..12, 1u32..5, prop::option::weighted(0.8, 0u64..3000), 0u64..200, 0..8)
        .prop_map(|(priority, weight, predicted, overhead, kind)| Asks {
            urgency: Urgency { priority: Priority(priority), weight, ..Urgency::default() },
            predicted: predicted.map(micros),
            yield_overhead: micros(overhead),
            plain: kind == 0,
            hardware_stop: (kind == 1).then_some(micros(overhead / 2)),
        });
    let change = || {
        prop_oneof![
            (-2i32..12).prop_map(|priority| Change::Priority(Priority(priority))),
            (1u32..5).prop_map(Change::Weight),
            due().prop_map(|due| Change::Deadline(due.map(micros))),
            due().prop_map(|limit| Change::LatencyLimit(limit.map(micros))),
        ]
    };
    prop_oneof![
        4 => (0..STREAMS, 1u32..20, asks, due(), uses()).prop_map(
            |(stream, tasks, asks, due, uses)| Happening::Launch { stream, tasks, asks, due, uses }
        ),
        1 => (0..STREAMS, uses()).prop_map(|(stream, uses)| Happening::Copy { stream, uses }),
        60 => any::<usize>().prop_map(Happening::Cohort),
        2 => Just(Happening::CopyDone),
        1 => any::<usize>().prop_map(Happening::Cancel),
        1 => any::<usize>().prop_map(Happening::Fault),
        2 => (any::<usize>(), change()).prop_map(|(of, change)| Happening::Change(of, change)),
        1 => (0..STREAMS, change()).prop_map(|(of, change)| Happening::ChangeStream(of, change)),
        1 => (0..STREAMS, any::<bool>()).prop_map(|(of, is)| Happening::Suspend(of, is)),
        20 => (0u64..100).prop_map(Happening::Pass),
    ]
}

/// `count` of them, from a seed: a failure that prints them all is of no use.
fn happenings(count: usize, seed: u128) -> impl Iterator<Item = Happening> {
    let rng = TestRng::from_seed(RngAlgorithm::XorShift, &seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config(1), rng);
    let happening = happening();
    (0..count).map(move |_| happening.new_tree(&mut runner).expect("a value").current())
}

/// A change as the scheduler would pass it on.
fn due(change: Change, now: Duration) -> Change {
    match change {
        Change::Deadline(due) => Change::Deadline(due.map(|due| now + due)),
        other => other,
    }
}

fn happen(world: &mut World, happenings: impl Iterator<Item = Happening>) {
    for happening in happenings {
        match happening {
            Happening::Launch { stream, tasks, mut asks, due, uses } => {
                asks.urgency.deadline = due.map(|due| world.now + micros(due));
                world.submit_asking(stream, tasks, &distinct(uses), asks);
            }
            Happening::Copy { stream, uses } => {
                world.submit(stream, 0, 0, &distinct(uses));
            }
            Happening::Cohort(index) if !world.cohorts.is_empty() => {
                world.step_cohort(index % world.cohorts.len());
            }
            Happening::CopyDone if !world.copies.is_empty() => world.step_copy(0),
            Happening::Cancel(index) if !world.ops.is_empty() => {
                let latest = world.ops.len().saturating_sub(40);
                let op = world.ops[latest + index % (world.ops.len() - latest)].0;
                world.handle(Event::Cancel { op });
            }
            Happening::Fault(index) if !world.cohorts.is_empty() && index % 8 == 0 => {
                let op = world.cohorts[index % world.cohorts.len()].order.op;
                let model = world.op(op);
                model.failed |= model.finished.is_none();
                world.handle(Event::Fault { op });
            }
            Happening::Change(index, change) if !world.ops.is_empty() => {
                let latest = world.ops.len().saturating_sub(40);
                let op = world.ops[latest + index % (world.ops.len() - latest)].0;
                let (of, change) = (Whose::Launch(op), due(change, world.now));
                world.change(of, change);
            }
            Happening::ChangeStream(stream, change) => {
                let (of, change) = (Whose::Stream(stream), due(change, world.now));
                world.change(of, change);
            }
            Happening::Suspend(stream, is_suspended) => world.suspend(stream, is_suspended),
            Happening::Pass(time) => world.pass(micros(time)),
            _ => {}
        }
    }
}

/// Few cases of many events each.
pub(super) fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, max_shrink_iters: 0, failure_persistence: None, ..Default::default() }
}

proptest! {
    #![proptest_config(config(20))]

    /// The world checks that no task is lost or runs twice, that ranges do not overlap, and that no SM is idle in
    /// vain.
    #[test]
    fn every_policy_keeps_its_rule_in_a_storm(sms in 1u32..7, seed in any::<u128>()) {
        for policy in policies() {
            let work_conserving = !policy.anticipates;
            let mut world = World::new(sms, 1, policy);
            world.work_conserving = work_conserving;
            happen(&mut world, happenings(10_000, seed));
            world.run_out();
            prop_assert_eq!(world.engine.refusal(), None);
        }
    }
}

proptest! {
    #![proptest_config(config(500))]

    /// The same in short orders of events: there can be ten million of these in an hour.
    #[test]
    fn every_policy_keeps_its_rule_in_any_short_order(
        sms in 1u32..7, count in 1usize..200, which in any::<prop::sample::Index>(), seed in any::<u128>(),
    ) {
        let mut policies = policies();
        let policy = policies.swap_remove(which.index(policies.len()));
        let work_conserving = !policy.anticipates;
        let mut world = World::new(sms, 1, policy);
        world.work_conserving = work_conserving;
        happen(&mut world, happenings(count, seed));
        world.run_out();
        prop_assert_eq!(world.engine.refusal(), None);
    }
}

/// An urgent stream beside a batch launch that takes 20 µs to yield. Its launches need all SMs, and each comes 5 µs after the end
/// of the one before it.
#[test]
fn all_sms_can_be_left_free_for_a_moment() {
    let policy = Box::new(StaticPriority::new().anticipating());
    let mut world = World::with(4, 1, policy);
    let batch = Asks { yield_overhead: micros(20), ..Asks::default() };
    let batch = world.submit_asking(0, 1000, &[], batch);
    let urgent = Asks {
        urgency: Urgency { priority: Priority(1), ..Urgency::default() },
        ..Asks::default()
    };
    let mut yields = Vec::new();
    for _ in 0..5 {
        let launch = world.submit_asking(1, 4, &[], urgent);
        while world.op(launch).finished.is_none() {
            world.step_cohort(0);
        }
        world.pass(micros(5));
        let batch = world.engine.ops[batch].launch.as_ref().expect("it is there");
        yields.push(batch.report().yields);
    }
    // The second gap is the first one with what to expect.
    assert_eq!(yields, [1, 2, 2, 2, 2]);
    // The SMs go to the batch launch when the wait is over.
    world.pass(micros(20));
    let has = world.engine.ops[batch].launch.as_ref().expect("it is there").range;
    assert_eq!(has, SmRange::new(0, 4));
    world.run_out();
    assert_eq!(world.engine.refusal(), None);
}

/// A launch with 30 µs left, whose yield takes 50 µs, and a later launch, which needs 20 µs.
#[test]
fn a_launch_yields_at_a_loss_where_the_policy_does_not_go_by_what_is_left() {
    let takes_its_sms = |policy: Box<dyn Policy>, priority, yield_overhead| {
        let mut world = World::with(4, 1, policy);
        let asks = |priority, deadline, predicted| {
            let (priority, deadline) = (Priority(priority), Some(micros(deadline)));
            let urgency = Urgency { priority, deadline, ..Urgency::default() };
            let (predicted, yield_overhead) = (Some(micros(predicted)), micros(yield_overhead));
            Asks { urgency, predicted, yield_overhead, ..Asks::default() }
        };
        let first = world.submit_asking(0, 100, &[], asks(0, 1_000_000, 30));
        (0..10).for_each(|_| world.step_cohort(0));
        let later = world.submit_asking(1, 100, &[], asks(priority, 500_000, 20));
        let owners = world.engine.owners().to_vec();
        world.run_out();
        assert_eq!(world.engine.refusal(), None);
        let has_all = |op| owners.iter().all(|owner| *owner == Some(LaunchId(op)));
        assert!(has_all(first) || has_all(later));
        has_all(later)
    };
    let by_order: [fn() -> Box<dyn Policy>; 6] = [
        || Box::new(StaticPriority::new()),
        || Box::new(StaticPriority::whole_device()),
        || Box::new(EarliestDeadline::new()),
        || Box::new(DynamicPriority::new()),
        || Box::new(DynamicPriority::whole_device()),
        || Box::new(Hpf::new()),
    ];
    for policy in by_order {
        assert!(takes_its_sms(policy(), 1, 50), "{}", policy().name());
    }
    let by_what_is_left: [fn() -> Box<dyn Policy>; 2] =
        [|| Box::new(Hpf::new()), || Box::new(ShortestRemaining::new())];
    for policy in by_what_is_left {
        assert!(!takes_its_sms(policy(), 0, 50), "{}", policy().name());
        assert!(takes_its_sms(policy(), 0, 1), "{}: it pays", policy().name());
    }
}
