//! Launches, queues and cohorts: races, case by case.

use preempt_device::abi::{Signal, StopLimit};

use super::world::{QUEUES, World};
use super::*;
use crate::policy::{EarliestDeadline, Ffs, Priority};
use crate::vocabulary::Timestamp;

/// A launch of `tasks` block-tasks and unknown duration; an SM holds one block.
pub(super) fn spec(tasks: u32) -> LaunchSpec {
    LaunchSpec {
        tasks,
        predicted: None,
        yield_overhead: Duration::ZERO,
        requeued: Duration::ZERO,
        blocks_per_sm: 1,
        on_last_sm: 1,
        plain: false,
        hardware_stop: None,
        leaving: Leaving::AtEnd,
    }
}

pub(super) fn submission(stream: u32, priority: i32, spec: LaunchSpec) -> Submission<'static> {
    Submission {
        stream,
        name: "model",
        uses: &[],
        after: None,
        urgency: Urgency { priority: Priority(priority), ..Urgency::default() },
        launch: Some(spec),
        opaque: None,
        calls: &[],
        armed: false,
    }
}

#[test]
fn an_urgent_launch_takes_what_it_needs_and_gives_it_back() {
    let mut world = World::new(8, 1, StaticPriority::new());
    let batch = world.submit(0, 0, 1000, &[]);
    world.submit(1, 5, 2, &[]);
    let range = |world: &World, op| world.engine.ops[op].launch.as_ref().map(|launch| launch.range);
    assert_eq!(range(&world, batch), Some(SmRange::new(2, 8)), "spatial: two SMs of eight");
    // The urgent cohort came second.
    while world.cohorts.iter().any(|cohort| cohort.order.op != batch) {
        for index in (0..world.cohorts.len()).rev() {
            world.step_cohort(index);
        }
    }
    assert_eq!(range(&world, batch), Some(SmRange::new(0, 8)), "it grew back");
    world.run_out();
    let Some(Outcome::Done(report)) = world.op(batch).finished else { panic!("done") };
    assert_eq!((report.tasks, report.yields), (1000, 1));
    assert!(report.resumes > 0);
}

#[test]
fn a_signal_has_the_strictest_limit_of_those_that_gain() {
    let us = Duration::from_micros;
    let cases = [
        ([None, None], StopLimit::SOONEST),
        ([Some(us(50)), Some(us(20))], StopLimit::within(20_000)),
        ([Some(us(50)), None], StopLimit::SOONEST),
        ([Some(Duration::MAX), Some(us(9))], StopLimit::within(9000)),
        ([Some(Duration::ZERO), Some(us(9))], StopLimit::within(9000)),
    ];
    for (limits, expected) in cases {
        let policy = Box::new(StaticPriority::new());
        let (mut engine, mut actions) = (Engine::new(8, QUEUES, Costs::h200(), policy), Vec::new());
        engine.submit(Duration::ZERO, submission(0, 0, spec(1000)), &mut actions);
        engine.settle(Duration::ZERO, &mut actions);
        actions.clear();
        for (stream, latency_limit) in (1..).zip(limits) {
            let mut submission = submission(stream, 5, spec(2));
            submission.urgency.latency_limit = latency_limit;
            engine.submit(Duration::ZERO, submission, &mut actions);
        }
        engine.settle(Duration::ZERO, &mut actions);
        let [signal] = signals(&actions)[..] else { panic!("{actions:?}") };
        assert_eq!(signal.limit(), expected, "{limits:?}");
    }
}

/// An engine with a long launch that has lost two of eight SMs with a limit, the keys of both, and the signals that follow
/// an event.
fn with_a_limit(limit: Duration) -> (Engine, [OpKey; 2], Vec<Action>) {
    let policy = Box::new(StaticPriority::new());
    let (mut engine, mut actions) = (Engine::new(8, QUEUES, Costs::h200(), policy), Vec::new());
    let batch = engine.submit(Duration::ZERO, submission(0, 0, spec(1000)), &mut actions);
    engine.settle(Duration::ZERO, &mut actions);
    let mut urgent = submission(1, 5, spec(8));
    urgent.urgency.latency_limit = Some(limit);
    let urgent = engine.submit(Duration::ZERO, urgent, &mut actions);
    engine.settle(Duration::ZERO, &mut actions);
    let limits = signals(&actions);
    assert_eq!(limits.len(), 1);
    assert!(limits[0].range().is_empty() && limits[0].limit() != StopLimit::SOONEST);
    actions.clear();
    (engine, [batch, urgent], actions)
}

fn signals(actions: &[Action]) -> Vec<Signal> {
    let signal = |action: &Action| match action {
        Action::Signal { signal, .. } => Some(*signal),
        _ => None,
    };
    actions.iter().filter_map(signal).collect()
}

#[test]
fn a_cancelled_launch_has_no_time_left() {
    let (mut engine, [batch, _], mut actions) = with_a_limit(Duration::MAX);
    engine.handle(Duration::ZERO, Event::Cancel { op: batch }, &mut actions);
    engine.settle(Duration::ZERO, &mut actions);
    let [signal] = signals(&actions)[..] else { panic!("{actions:?}") };
    assert_eq!((signal.range(), signal.limit()), (SmRange::EMPTY, StopLimit::SOONEST));
}

/// A signal stops what runs in its queue, whichever launch it is of: the revoked one may have left already.
#[test]
fn what_counts_is_not_stopped_with_a_revoked_launch() {
    let policy = Box::new(StaticPriority::new());
    let (mut engine, mut actions) = (Engine::new(8, QUEUES, Costs::h200(), policy), Vec::new());
    let mut submit = || {
        let op = engine.submit(Duration::ZERO, submission(0, 0, spec(1000)), &mut actions);
        engine.settle(Duration::ZERO, &mut actions);
        engine.go_ahead(Duration::ZERO, &mut actions);
        op
    };
    let [first, second] = [submit(), submit()];
    let queues: Vec<_> = actions.iter().filter_map(queue_of).collect();
    assert!(queues.len() == 2 && queues[0] == queues[1], "the second is queued behind the first");
    for (op, limit) in [(first, StopLimit::SOONEST), (second, StopLimit::REVOKED)] {
        actions.clear();
        engine.handle(Duration::ZERO, Event::Revoke { op }, &mut actions);
        engine.settle(Duration::ZERO, &mut actions);
        let [signal] = signals(&actions)[..] else { panic!("{actions:?}") };
        assert_eq!((signal.range(), signal.limit()), (SmRange::EMPTY, limit));
    }
}

fn queue_of(action: &Action) -> Option<QueueIndex> {
    match action {
        Action::Launch(order) => Some(order.queue),
        _ => None,
    }
}

#[test]
fn a_launch_in_more_of_a_hurry_hastens_blocks_that_leave() {
    let us = Duration::from_micros;
    for (limit, told) in [(Some(us(20)), true), (None, true), (Some(us(500)), false)] {
        let (mut engine, _, mut actions) = with_a_limit(us(100));
        let mut next = submission(2, 9, spec(8));
        next.urgency.latency_limit = limit;
        engine.submit(Duration::ZERO, next, &mut actions);
        engine.settle(Duration::ZERO, &mut actions);
        // The second launch loses its SMs, too.
        assert_eq!(signals(&actions).len(), 1 + usize::from(told), "{limit:?}: {actions:?}");
    }
}

#[test]
fn a_bystander_in_a_hurry_hastens_none() {
    let policy = Box::new(StaticPriority::new());
    let (mut engine, mut actions) = (Engine::new(8, QUEUES, Costs::h200(), policy), Vec::new());
    for (stream, priority, tasks) in [(0, 9, 4), (1, 0, 1000)] {
        engine.submit(Duration::ZERO, submission(stream, priority, spec(tasks)), &mut actions);
        engine.settle(Duration::ZERO, &mut actions);
    }
    actions.clear();
    let mut urgent = submission(2, 5, spec(4));
    urgent.urgency.latency_limit = Some(Duration::from_micros(500));
    engine.submit(Duration::ZERO, urgent, &mut actions);
    engine.settle(Duration::ZERO, &mut actions);
    let [signal] = signals(&actions)[..] else { panic!("{actions:?}") };
    assert_eq!(signal.limit(), StopLimit::within(500_000));
}

#[test]
fn a_cancelled_launch_stops_at_its_next_yield() {
    let mut world = World::new(2, 1, StaticPriority::new());
    let op = world.submit(0, 0, 1000, &[]);
    (0..10).for_each(|_| world.step_cohort(0));
    world.handle(Event::Cancel { op });
    world.run_out();
    let Some(Outcome::Cancelled { done }) = world.op(op).finished else { panic!("cancelled") };
    assert!((1..20).contains(&done), "{done}");
}

#[test]
fn a_launch_with_every_slot_in_use_grows_when_one_is_free() {
    let mut world = World::new(2, 1, StaticPriority::new());
    let batch = world.submit(0, 0, 1000, &[]);
    (0..2).for_each(|_| world.step_cohort(0));
    // Each urgent launch takes SM 0 or 1 before the blocks that resume the batch get there.
    let uncovered = |world: &World| {
        let launch = world.engine.ops[batch].launch.as_ref().expect("a launch");
        world.engine.ledger.uncovered(launch.range)
    };
    while uncovered(&world) == 0 {
        let urgent = world.submit(1, 1, 1, &[]);
        while world.op(urgent).finished.is_none() {
            world.step_cohort(0);
            if let Some(index) = world.cohorts.iter().position(|c| c.order.op == urgent) {
                world.step_cohort(index);
            }
        }
    }
    let resumed = world.cohorts.len();
    while world.cohorts.len() == resumed {
        world.step_cohort(1);
    }
    assert_eq!(uncovered(&world), 0);
    world.run_out();
}

#[test]
fn the_least_urgent_launch_yields() {
    let mut world = World::new(2, 1, StaticPriority::new());
    let middle = world.submit(0, 5, 1, &[]);
    let low = world.submit(1, 0, 1, &[]);
    world.submit(2, 9, 1, &[]);
    let range = |op| world.engine.ops[op].launch.as_ref().map(|launch| launch.range);
    assert_eq!(range(middle), Some(SmRange::new(0, 1)), "it stays where it is");
    assert_eq!(range(low), Some(SmRange::EMPTY));
    world.run_out();
}

#[test]
fn launches_of_equal_priority_run_in_order() {
    let mut world = World::new(4, 1, StaticPriority::new());
    let first = world.submit(0, 1, 100, &[]);
    let second = world.submit(1, 1, 100, &[]);
    assert!(world.op(first).started && !world.op(second).started);
    world.run_out();
}

#[test]
fn what_a_failed_kernel_wrote_is_lost_until_it_is_overwritten() {
    let write = |overwrites| Use {
        buffer: BufferId::Own(0),
        bytes: WHOLE,
        access: Access::Write,
        overwrites,
    };
    let read =
        Use { buffer: BufferId::Own(0), bytes: WHOLE, access: Access::Read, overwrites: false };
    let mut world = World::new(1, 1, StaticPriority::new());
    let failing = world.submit(0, 0, 1, &[write(false)]);
    let before = world.submit(1, 0, 1, &[read]);
    world.op(failing).failed = true;
    world.handle(Event::Fault { op: failing });
    world.run_out();
    let after = world.submit(2, 0, 1, &[read]);
    let upload = world.submit(2, 0, 0, &[write(true)]);
    let fine = world.submit(1, 0, 1, &[read]);
    world.run_out();
    let lost = Some(Outcome::InputLost { kernel: "model" });
    assert_eq!(world.op(failing).finished, Some(Outcome::Failed));
    assert_eq!((world.op(before).finished, world.op(after).finished), (lost, lost));
    assert!(matches!(world.op(upload).finished, Some(Outcome::Done(_))));
    assert!(matches!(world.op(fine).finished, Some(Outcome::Done(_))));
}

#[test]
fn a_cancelled_launch_keeps_its_place_in_the_stream() {
    let mut world = World::new(2, 1, StaticPriority::new());
    world.submit(0, 0, 10, &[]);
    // A copy, so that what comes after it is not queued on the device.
    world.submit(0, 0, 0, &[]);
    let cancelled = world.submit(0, 0, 10, &[]);
    let last = world.submit(0, 0, 10, &[]);
    world.handle(Event::Cancel { op: cancelled });
    assert_eq!(world.op(cancelled).finished, Some(Outcome::Cancelled { done: 0 }));
    // `start` checks that the first one is over.
    world.run_out();
    assert!(world.op(last).started && !world.op(cancelled).started);
}

#[test]
fn launches_of_a_stream_are_queued_behind_one_another() {
    let mut world = World::new(2, 1, StaticPriority::new());
    let ops: Vec<OpKey> = (0..40).map(|_| world.submit(0, 0, 4, &[])).collect();
    // What is known of them is how long they take to follow one another.
    let Costs { follow, absence, .. } = Costs::h200();
    assert_eq!(world.queued_ahead as u128, absence.as_nanos().div_ceil(follow.as_nanos()));
    assert!(world.cohorts.iter().all(|cohort| cohort.order.queue == 0));
    world.run_out();
    assert_eq!((world.queued_ahead, world.bounced), (39, 0));
    for op in ops {
        let Some(Outcome::Done(report)) = world.op(op).finished else { panic!("done") };
        assert_eq!((report.tasks, report.yields, report.resumes), (4, 0, 0));
    }
}

#[test]
fn a_cohort_queued_behind_a_launch_that_yields_leaves_and_is_launched_again() {
    let mut world = World::new(1, 1, StaticPriority::new());
    let first = world.submit(0, 0, 4, &[]);
    let second = world.submit(0, 0, 4, &[]);
    world.step_cohort(0);
    let urgent = world.submit(1, 1, 1, &[]);
    world.run_out();
    assert!(world.bounced > 0);
    for op in [first, second, urgent] {
        assert!(matches!(world.op(op).finished, Some(Outcome::Done(_))));
    }
}

#[test]
fn a_launch_behind_one_that_two_cohorts_ran_gets_blocks_for_all_of_its_sms() {
    const SMS: u32 = 4;
    let mut world = World::new(SMS, 1, StaticPriority::new());
    let first = world.submit(0, 0, 100, &[]);
    let second = world.submit(0, 0, 100, &[]);
    (0..10).for_each(|_| world.step_cohort(0));
    // It takes an SM, which the first launch gets back, with a cohort of its own.
    let urgent = world.submit(1, 1, 1, &[]);
    while !world.is_finished(first) {
        (0..world.cohorts.len()).rev().for_each(|index| world.step_cohort(index));
    }
    assert!(world.is_finished(urgent));
    // The second one was queued behind the first cohort alone, which did not do all that was left.
    while world.bounced == 0 {
        assert!(!world.is_finished(second));
        (0..world.cohorts.len()).rev().for_each(|index| world.step_cohort(index));
    }
    let blocks = |world: &World| {
        let of = world.cohorts.iter().filter(|cohort| cohort.order.op == second);
        of.map(|cohort| cohort.order.blocks).sum::<u32>()
    };
    assert_eq!(blocks(&world), SMS);
    world.run_out();
}

#[test]
fn a_launch_behind_one_of_another_stream_is_not_queued_ahead() {
    let write =
        [Use { buffer: BufferId::Own(0), bytes: WHOLE, access: Access::Write, overwrites: false }];
    let mut world = World::new(2, 1, StaticPriority::new());
    world.submit(0, 0, 1, &write);
    world.submit(1, 0, 1, &[]);
    world.submit(1, 0, 1, &write);
    assert_eq!(world.queued_ahead, 0);
    world.run_out();
}

#[test]
fn a_launch_that_is_queued_ahead_and_cancelled_leaves_at_once() {
    let mut world = World::new(2, 1, StaticPriority::new());
    let first = world.submit(0, 0, 1000, &[]);
    let cancelled = world.submit(0, 0, 10, &[]);
    (0..10).for_each(|_| world.step_cohort(0));
    world.handle(Event::Cancel { op: cancelled });
    while world.op(cancelled).finished.is_none() {
        // What was there first gets room first.
        (0..world.cohorts.len()).for_each(|_| world.step_cohort(0));
    }
    assert_eq!(world.op(cancelled).finished, Some(Outcome::Cancelled { done: 0 }));
    assert!(world.op(first).finished.is_none(), "it did not wait for the first one");
    world.run_out();
    assert!(matches!(world.op(first).finished, Some(Outcome::Done(_))));
}

#[test]
fn a_small_launch_leaves_the_rest_of_the_device_to_others() {
    let mut world = World::new(4, 1, StaticPriority::new());
    world.submit(0, 1, 4, &[]);
    let small = world.submit(0, 1, 1, &[]);
    let other = world.submit(1, 0, 100, &[]);
    let is_known = |world: &World| {
        world.engine.ops[small].launch.as_ref().is_some_and(|launch| launch.arrival.is_some())
    };
    while !is_known(&world) {
        world.step_cohort(0);
    }
    let owners = world.engine.ledger.owners();
    let count = |op| owners.iter().filter(|owner| **owner == Some(LaunchId(op))).count();
    assert_eq!((count(small), count(other)), (1, 3));
    world.run_out();
}

#[test]
fn a_lost_device_ends_everything() {
    let mut world = World::new(2, 1, StaticPriority::new());
    for stream in 0..3 {
        world.submit(stream, stream as i32, 10, &[]);
        world.submit(stream, 0, 0, &[]);
        world.submit(stream, 0, 3, &[]);
    }
    (0..5).for_each(|_| world.step_cohort(0));
    let before = world.ops.len();
    world.cohorts.clear();
    world.copies.clear();
    world.ops.iter_mut().for_each(|(_, op)| op.failed |= op.finished.is_none());
    world.engine.handle(world.now, Event::Lost, &mut world.actions);
    world.act();
    assert!(!world.engine.is_busy());
    let late = world.engine.submit(
        world.now,
        Submission {
            stream: 0,
            name: "late",
            uses: &[],
            after: None,
            urgency: Urgency::default(),
            launch: None,
            opaque: None,
            calls: &[],
            armed: false,
        },
        &mut world.actions,
    );
    let refused = |action: &Action| matches!(action, Action::Finish { op, outcome: Outcome::Failed } if *op == late);
    assert!(world.actions.iter().any(refused), "{:?}", world.actions);
    assert_eq!(world.retired.len(), before);
}

/// Grants the first launch one range after the other.
struct Script(Vec<SmRange>, Option<LaunchId>);

impl Policy for Script {
    fn name(&self) -> &str {
        "script"
    }

    fn arrived(&mut self, _: Duration, launch: Arrival) {
        self.1.get_or_insert(launch.id);
    }

    fn departed(&mut self, _: Duration, _: LaunchId) {}

    fn assign(&mut self, _: Duration, _: &dyn DeviceView, plan: &mut Plan) {
        let range = if self.0.len() > 1 { self.0.remove(0) } else { self.0[0] };
        self.1.into_iter().for_each(|launch| plan.grant(launch, range));
    }
}

#[test]
fn a_launch_whose_blocks_came_to_lie_elsewhere_starts_over() {
    let misplaced = |chance| {
        let script = vec![SmRange::new(0, 2), SmRange::new(0, 1)];
        let mut world = World::new(3, 1, Script(script, None));
        world.chance = chance;
        world.submit(0, 0, 100, &[]);
        (0..2).for_each(|_| world.step_cohort(0));
        let outside = !world.cohorts[0].resident.contains(&0);
        // Something else arrives, and the script goes on: all blocks have to leave.
        world.submit(1, 0, 1, &[]);
        let first = world.ops[0].0;
        for _ in 0..1000 {
            if !world.cohorts.is_empty() {
                world.step_cohort(0);
            }
        }
        assert!(world.op(first).finished.is_some(), "SM 0 is idle");
        outside
    };
    assert!((0..20).any(|seed| misplaced(seed * 0x9E3_779B)));
}

#[test]
fn waiting_launches_use_a_limited_number_of_queues() {
    let mut world = World::new(3, 1, StaticPriority::new());
    for stream in 0..3 {
        world.submit(stream, 0, 1, &[]);
        world.submit(stream, 0, 1, &[]);
    }
    assert_eq!(world.queued_ahead, QUEUES.chains as usize);
    world.run_out();
}

#[test]
fn a_plain_launch_is_told_nothing_and_does_not_grow() {
    let mut world = World::new(4, 1, StaticPriority::new());
    let plain = world.submit_as(0, 0, 100, &[], true);
    world.submit(1, 5, 2, &[]);
    assert!(
        world.words.values().all(|word| !word.range().is_empty()),
        "no signal tells it to leave"
    );
    world.run_out();
    let Some(Outcome::Done(report)) = world.op(plain).finished else { panic!("done") };
    assert_eq!((report.tasks, report.yields, report.resumes), (100, 0, 0));
    assert!(report.plain);
}

#[test]
fn plain_launches_queue_behind_one_another_and_behind_no_others() {
    let mut world = World::new(4, 1, StaticPriority::new());
    world.submit_as(0, 0, 10, &[], true);
    world.submit_as(0, 0, 10, &[], true);
    assert_eq!((world.cohorts.len(), world.queued_ahead), (2, 1));
    world.submit(0, 0, 10, &[]);
    world.submit_as(0, 0, 10, &[], true);
    assert_eq!(world.queued_ahead, 1, "neither behind the other kind");
    world.run_out();
}

#[test]
fn a_report_has_the_times_of_a_launch() {
    let at = Duration::from_millis;
    let mut engine = Engine::new(4, QUEUES, Costs::h200(), Box::new(StaticPriority::new()));
    let mut actions = Vec::new();
    let submission = submission(0, 0, spec(2));
    let first = engine.submit(at(1), submission, &mut actions);
    engine.settle(at(1), &mut actions);
    let second = engine.submit(at(2), submission, &mut actions);
    engine.go_ahead(at(2), &mut actions);
    let posted = Posted { done: 2, amortize: 1 };
    // Both are done on the device before the host looks.
    for op in [second, first] {
        engine.handle(at(5), Event::CohortOut { op, slot: 0, posted }, &mut actions);
    }
    let reports: Vec<LaunchReport> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Finish { outcome: Outcome::Done(report), .. } => Some(*report),
            _ => None,
        })
        .collect();
    let times = |report: &LaunchReport| {
        let moments = [report.queued, report.ready, report.started, report.done];
        (moments.map(Timestamp::since_start), report.sm_time)
    };
    assert_eq!(times(&reports[0]), ([at(1), at(1), at(1), at(5)], at(8)));
    assert_eq!(
        times(&reports[1]),
        ([at(2), at(5), at(5), at(5)], at(0)),
        "the time on SMs is not known"
    );
}

#[test]
fn a_short_launch_keeps_the_sms_that_the_one_behind_it_fills() {
    struct Case {
        overhead: u64,
        requeued: u64,
    }
    let has = |Case { overhead, requeued }: Case| {
        let mut engine = Engine::new(4, QUEUES, Costs::h200(), Box::new(StaticPriority::new()));
        let mut actions = Vec::new();
        let us = Duration::from_micros;
        let mut submit = |stream: u32, priority: i32, tasks: u32| {
            let spec = LaunchSpec {
                predicted: Some(us(20)),
                yield_overhead: us(overhead),
                requeued: us(requeued),
                ..spec(tasks)
            };
            let submission = submission(stream, priority, spec);
            let op = engine.submit(Duration::ZERO, submission, &mut actions);
            engine.settle(Duration::ZERO, &mut actions);
            op
        };
        let [first, second] = [1, 4].map(|tasks| submit(0, 1, tasks));
        let low = submit(1, 0, 4);
        let of = |op: OpKey| engine.ops[op].launch.as_ref().map(|launch| launch.range);
        assert_eq!(of(second), Some(SmRange::EMPTY), "it is behind the first one");
        let count =
            |op| (0..4).filter(|&sm| of(op).is_some_and(|range| range.contains(sm))).count();
        [first, low].map(count)
    };
    assert_eq!(has(Case { overhead: 20, requeued: 0 }), [4, 0]);
    assert_eq!(
        has(Case { overhead: 1, requeued: 0 }),
        [1, 3],
        "another one can be there and gone before the first one ends"
    );
    assert_eq!(
        has(Case { overhead: 20, requeued: 19 }),
        [1, 3],
        "it leaves as soon, and only has more to do again"
    );
}

/// How many SMs a launch has.
fn count(world: &World, op: OpKey) -> u32 {
    let launch = world.engine.ops[op].launch.as_ref();
    launch.map_or(0, |launch| ledger::count(launch.range, world.sms))
}

#[test]
fn a_launch_of_few_tasks_is_spread_unless_the_policy_packs() {
    let has = |policy: StaticPriority| {
        let mut world = World::new(4, 4, policy);
        let long = world.submit(0, 0, 1000, &[]);
        let few = world.submit(1, 1, 3, &[]);
        let has = [few, long].map(|op| count(&world, op));
        world.run_out();
        has
    };
    assert_eq!(has(StaticPriority::new()), [3, 1]);
    assert_eq!(has(StaticPriority::packed()), [1, 3]);
    assert_eq!(has(StaticPriority::whole_device()), [4, 0]);
}

#[test]
fn a_stream_whose_turn_it_is_has_all_of_a_device_that_is_not_shared() {
    let has = |policy: Ffs| {
        let mut world = World::new(4, 1, policy);
        let ops = [0, 1].map(|stream| world.submit(stream, 0, 1, &[]));
        let has = ops.map(|op| count(&world, op));
        world.run_out();
        has
    };
    assert_eq!(has(Ffs::new()), [1, 1]);
    assert_eq!(has(Ffs::new().whole_device()), [4, 0]);
}

#[test]
fn a_launch_whose_blocks_are_all_there_gets_no_more_of_them() {
    let mut world = World::new(4, 1, StaticPriority::whole_device());
    let [first, second] = [4, 1].map(|tasks| world.submit(0, 0, tasks, &[]));
    let cohorts = |world: &World| {
        let of = world.cohorts.iter().filter(|cohort| cohort.order.op == second);
        of.count()
    };
    assert_eq!(cohorts(&world), 1, "it is queued ahead");
    while !world.is_finished(first) {
        world.step_cohort(0);
    }
    assert_eq!((count(&world, second), cohorts(&world)), (4, 1), "one block does its one task");
    world.run_out();
}

#[test]
fn one_launch_is_queued_ahead_at_a_time_and_none_by_a_submission() {
    let mut engine = Engine::new(1, QUEUES, Costs::h200(), Box::new(StaticPriority::new()));
    let mut actions = Vec::new();
    for _ in 0..3 {
        engine.submit(Duration::ZERO, submission(0, 0, spec(10)), &mut actions);
        engine.settle(Duration::ZERO, &mut actions);
    }
    let mut launched = || {
        let launches = actions.iter().filter(|action| matches!(action, Action::Launch(_))).count();
        engine.go_ahead(Duration::ZERO, &mut actions);
        launches
    };
    assert_eq!([(); 5].map(|()| launched()), [1, 2, 3, 3, 3]);
}

#[test]
fn a_launch_that_has_begun_is_admitted_without_a_question() {
    for done in [0, 3] {
        let mut engine = Engine::new(1, QUEUES, Costs::h200(), Box::new(EarliestDeadline::new()));
        let mut actions = Vec::new();
        let first = engine.submit(Duration::ZERO, submission(0, 0, spec(10)), &mut actions);
        let late = Urgency { deadline: Some(Duration::ZERO), ..Urgency::default() };
        let late = Submission { urgency: late, ..submission(0, 0, spec(10)) };
        let second = engine.submit(Duration::ZERO, late, &mut actions);
        engine.settle(Duration::ZERO, &mut actions);
        engine.go_ahead(Duration::ZERO, &mut actions);
        // The last one of a queue is reported first.
        for (op, done) in [(second, done), (first, 10)] {
            let posted = Posted { done, amortize: 1 };
            engine.handle(Duration::ZERO, Event::CohortOut { op, slot: 0, posted }, &mut actions);
        }
        let is_refused = |action: &Action| {
            let Action::Finish { op, outcome } = action else { return false };
            *op == second && *outcome == Outcome::NotAdmitted
        };
        assert_eq!(actions.iter().any(is_refused), done == 0);
    }
}
