//! The engine against a model device that does everything in its own time.

mod policies;
mod world;

use std::collections::HashSet;

use preempt_device::host::Access;
use proptest::prelude::*;

use self::world::{Asked, Asks, LANES, World};
use super::*;
use crate::policy::{DeviceView, ShortestRemaining, StaticPriority};

#[derive(Clone, Debug)]
enum Step {
    Launch {
        stream: u32,
        priority: i32,
        tasks: u32,
        uses: Vec<(u64, bool)>,
        native: bool,
    },
    Copy {
        stream: u32,
        priority: i32,
        uses: Vec<(u64, bool)>,
    },
    /// Waits for any operation, in a stream where nothing else may be.
    Wait {
        stream: u32,
        priority: i32,
        after: usize,
    },
    Opaque {
        stream: u32,
        variant: u64,
        uses: Vec<(u64, bool)>,
        exclusive: bool,
    },
    Priority {
        stream: Option<u32>,
        op: usize,
        priority: i32,
    },
    Deadline {
        op: usize,
        due: Option<u64>,
    },
    Cohort(usize),
    CopyDone(usize),
    Cancel(usize),
    Fault(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let uses = || prop::collection::vec((0u64..4, any::<bool>()), 0..3);
    let step = prop_oneof![
        3 => (0u32..4, 0i32..3, 1u32..30, uses(), 0..4)
            .prop_map(|(stream, priority, tasks, uses, kind)| {
                Step::Launch { stream, priority, tasks, uses, native: kind == 0 }
            }),
        1 => (0u32..4, 0i32..3, uses())
            .prop_map(|(stream, priority, uses)| Step::Copy { stream, priority, uses }),
        1 => (0u32..6, 0i32..5, any::<usize>())
            .prop_map(|(stream, priority, after)| Step::Wait { stream, priority, after }),
        1 => (0u32..4, 0u64..3, uses(), 0..4).prop_map(|(stream, variant, uses, kind)| {
            Step::Opaque { stream, variant, uses, exclusive: kind == 0 }
        }),
        1 => (prop::option::of(0u32..4), any::<usize>(), -3i32..9)
            .prop_map(|(stream, op, priority)| Step::Priority { stream, op, priority }),
        1 => (any::<usize>(), prop::option::of(0u64..9))
            .prop_map(|(op, due)| Step::Deadline { op, due }),
        20 => any::<usize>().prop_map(Step::Cohort),
        1 => any::<usize>().prop_map(Step::CopyDone),
        1 => any::<usize>().prop_map(Step::Cancel),
        1 => any::<usize>().prop_map(Step::Fault),
    ];
    prop::collection::vec(step, 0..200)
}

/// One use for each buffer; a launch that names one twice is refused before the engine.
fn distinct(uses: Vec<(u64, bool)>) -> Vec<Use> {
    let mut seen = HashSet::new();
    let uses = uses.into_iter().filter(|(buffer, _)| seen.insert(*buffer));
    let access = |write| if write { Access::Write } else { Access::Read };
    uses.map(|(buffer, write)| Use {
        buffer: BufferId::Own(buffer),
        access: access(write),
        overwrites: false,
    })
    .collect()
}

fn run(world: &mut World, steps: Vec<Step>) {
    for step in steps {
        match step {
            Step::Launch { stream, priority, tasks, uses, native } => {
                world.submit_as(stream, priority, tasks, &distinct(uses), native);
            }
            Step::Copy { stream, priority, uses } => {
                world.submit(stream, priority, 0, &distinct(uses));
            }
            Step::Wait { stream, priority, after } => {
                let count = world.ops.len().max(1);
                let after = world.ops.get(after % count).map(|(op, _)| *op);
                let urgency = Urgency { priority: Priority(priority), ..Urgency::default() };
                let asks = Asks { urgency, ..Asks::default() };
                world.ask(Asked { stream, asks, after, ..Asked::default() });
            }
            Step::Opaque { stream, variant, uses, exclusive } => {
                let opaque = Some(Opaque { name: "opaque", variant, exclusive });
                world.ask(Asked { stream, uses: &distinct(uses), opaque, ..Asked::default() });
            }
            Step::Priority { stream: Some(stream), priority, .. } => {
                world.change(Whose::Stream(stream), Change::Priority(Priority(priority)));
            }
            Step::Priority { op, priority, .. } if !world.ops.is_empty() => {
                let op = world.ops[op % world.ops.len()].0;
                world.change(Whose::Launch(op), Change::Priority(Priority(priority)));
            }
            Step::Deadline { op, due } if !world.ops.is_empty() => {
                let op = world.ops[op % world.ops.len()].0;
                let due = due.map(Duration::from_secs);
                world.change(Whose::Launch(op), Change::Deadline(due));
            }
            Step::Cohort(index) if !world.cohorts.is_empty() => {
                world.step_cohort(index % world.cohorts.len());
            }
            Step::CopyDone(index) if !world.copies.is_empty() => {
                world.step_copy(index % world.copies.len());
            }
            Step::Cancel(index) if !world.ops.is_empty() => {
                let op = world.ops[index % world.ops.len()].0;
                world.handle(Event::Cancel { op });
            }
            Step::Fault(index) if !world.cohorts.is_empty() => {
                let op = world.cohorts[index % world.cohorts.len()].order.op;
                let model = world.op(op);
                model.failed |= model.finished.is_none();
                world.handle(Event::Fault { op });
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_task_runs_once_and_everything_ends(
        sms in 1u32..6, blocks_per_sm in 1u32..3, less in 0u32..2, whole in any::<bool>(), steps in steps(),
    ) {
        let policy = if whole { StaticPriority::whole_device() } else { StaticPriority::new() };
        let mut world = World::new(sms, blocks_per_sm, policy).with_less_on_the_last(less);
        run(&mut world, steps);
        world.run_out();
        prop_assert_eq!(world.engine.refusal(), None);
    }

    #[test]
    fn a_closed_engine_ends_everything(sms in 1u32..6, steps in steps(), more in steps()) {
        let mut world = World::new(sms, 2, StaticPriority::new());
        run(&mut world, steps);
        world.handle(Event::Close);
        run(&mut world, more);
        world.run_out();
    }

    #[test]
    fn nonsense_from_a_policy_is_refused_and_nothing_is_lost(
        sms in 1u32..6, answers in prop::collection::vec((0usize..4, 0u32..9, 0u32..9), 1..40), steps in steps(),
    ) {
        let mut world = World::new(sms, 1, Nonsense { known: Vec::new(), answers });
        run(&mut world, steps);
        world.run_out();
    }
}

/// Grants whatever it was told to, to launches that may be gone.
struct Nonsense {
    known: Vec<LaunchId>,
    answers: Vec<(usize, u32, u32)>,
}

impl Policy for Nonsense {
    fn name(&self) -> &str {
        "nonsense"
    }

    fn arrived(&mut self, _: Duration, launch: Arrival) {
        self.known.push(launch.id);
    }

    fn departed(&mut self, _: Duration, _: LaunchId) {}

    fn assign(&mut self, _: Duration, _: &dyn DeviceView, plan: &mut Plan) {
        let (which, lo, hi) = self.answers.pop().expect("an answer (this panic is part of a test)");
        if let Some(&launch) = self.known.iter().rev().nth(which) {
            plan.grant(launch, SmRange::new(lo, hi));
        }
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
    let write = |overwrites| Use { buffer: BufferId::Own(0), access: Access::Write, overwrites };
    let read = Use { buffer: BufferId::Own(0), access: Access::Read, overwrites: false };
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
    let ops: Vec<OpKey> = (0..20).map(|_| world.submit(0, 0, 4, &[])).collect();
    assert_eq!(world.queued_ahead, lanes::QUEUED_AHEAD - 1);
    assert!(world.cohorts.iter().all(|cohort| cohort.order.lane == 0));
    world.run_out();
    assert_eq!((world.queued_ahead, world.bounced), (19, 0));
    for op in ops {
        let Some(Outcome::Done(report)) = world.op(op).finished else { panic!("done") };
        assert_eq!((report.tasks, report.yields, report.resumes), (4, 0, 0));
    }
}

#[test]
fn what_is_queued_behind_a_launch_that_yields_leaves_and_comes_again() {
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
fn a_launch_behind_one_of_another_stream_is_not_queued_ahead() {
    let write = [Use { buffer: BufferId::Own(0), access: Access::Write, overwrites: false }];
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
fn a_policy_that_panics_is_named() {
    let mut world = World::new(2, 1, Nonsense { known: Vec::new(), answers: Vec::new() });
    world.submit(0, 0, 10, &[]);
    world.run_out();
    let refusal = world.engine.refusal().expect("refused");
    assert_eq!(refusal.policy, "nonsense");
    assert!(refusal.reason.contains("an answer"), "{}", refusal.reason);
}

/// Static priorities that panic, once, in one of the hooks.
struct Panics(StaticPriority, Hook);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hook {
    Name,
    Admits,
    Arrived,
    Changed,
    Yielded,
    Departed,
    Assign,
    Wake,
    Drop,
}

impl Panics {
    fn at(&self, hook: Hook) {
        assert!(self.1 != hook, "in {hook:?} (this panic is part of a test)");
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        self.at(Hook::Drop);
    }
}

impl Policy for Panics {
    fn name(&self) -> &str {
        self.at(Hook::Name);
        "panics"
    }

    fn admits(&mut self, _: Duration, _: &Arrival, _: &dyn DeviceView) -> bool {
        self.at(Hook::Admits);
        true
    }

    fn arrived(&mut self, now: Duration, launch: Arrival) {
        self.at(Hook::Arrived);
        self.0.arrived(now, launch);
    }

    fn changed(&mut self, now: Duration, launch: Arrival) {
        self.at(Hook::Changed);
        self.0.changed(now, launch);
    }

    fn yielded(&mut self, _: Duration, _: LaunchId) {
        self.at(Hook::Yielded);
    }

    fn departed(&mut self, now: Duration, launch: LaunchId) {
        self.at(Hook::Departed);
        self.0.departed(now, launch);
    }

    fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        self.at(Hook::Assign);
        self.0.assign(now, device, plan);
        if self.1 == Hook::Drop {
            plan.grants.clear();
        }
    }

    fn wake(&self) -> Option<Duration> {
        self.at(Hook::Wake);
        Some(Duration::ZERO)
    }
}

#[test]
fn a_policy_that_panics_in_any_hook_is_replaced_and_nothing_is_lost() {
    use Hook::*;
    for hook in [Name, Admits, Arrived, Changed, Yielded, Departed, Assign, Wake, Drop] {
        let mut world = World::new(2, 1, Panics(StaticPriority::new(), hook));
        let running = world.submit(0, 0, 20, &[]);
        world.submit(0, 0, 20, &[]);
        world.submit(1, 0, 20, &[]);
        (0..5).for_each(|_| world.step_cohort(0));
        let change = Change::Priority(Priority(1));
        world.change(Whose::Launch(running), change);
        world.submit(2, 3, 20, &[]);
        world.pass(Duration::from_millis(1));
        world.run_out();
        assert!(world.ops.iter().all(|(_, op)| op.claimed == 20), "{hook:?}");
        let refusal = world.engine.refusal().cloned();
        let Some(Refusal { policy, reason }) = refusal else {
            // The name is only asked for once, before anything else.
            assert_eq!(hook, Name);
            assert_eq!(world.engine.policy_name(), "a policy that cannot say its name");
            continue;
        };
        assert_eq!((policy.as_str(), world.engine.policy_name()), ("panics", "fifo"));
        let said = if hook == Drop { "granted no SM".into() } else { format!("in {hook:?}") };
        assert!(reason.contains(&said), "{reason}");
    }
}

#[test]
fn a_launch_that_is_not_admitted_ends_so_and_its_stream_goes_on() {
    struct Refuses(StaticPriority);
    impl Policy for Refuses {
        fn name(&self) -> &str {
            "refuses"
        }
        fn admits(&mut self, _: Duration, launch: &Arrival, device: &dyn DeviceView) -> bool {
            assert!(device.need(launch.id) > 0, "it can ask about the launch");
            launch.priority >= Priority(0)
        }
        fn arrived(&mut self, now: Duration, launch: Arrival) {
            assert!(launch.priority >= Priority(0), "it hears no more of it");
            self.0.arrived(now, launch);
        }
        fn departed(&mut self, now: Duration, launch: LaunchId) {
            self.0.departed(now, launch);
        }
        fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
            self.0.assign(now, device, plan);
        }
    }
    let write = [Use { buffer: BufferId::Own(0), access: Access::Write, overwrites: false }];
    let mut world = World::new(2, 1, Refuses(StaticPriority::new()));
    let refused = world.submit(0, -1, 5, &write);
    let after = world.submit(0, 0, 5, &[]);
    let reads = world.submit(1, 0, 5, &write);
    world.run_out();
    assert_eq!(world.op(refused).finished, Some(Outcome::NotAdmitted));
    assert!(matches!(world.op(after).finished, Some(Outcome::Done(_))));
    assert_eq!(world.op(reads).finished, Some(Outcome::InputLost { kernel: "model" }));
    assert_eq!(world.engine.refusal(), None);
}

#[test]
fn only_so_many_lanes_hold_launches_that_wait() {
    let mut world = World::new(3, 1, StaticPriority::new());
    for stream in 0..3 {
        world.submit(stream, 0, 1, &[]);
        world.submit(stream, 0, 1, &[]);
    }
    assert_eq!(world.queued_ahead, LANES.chains as usize);
    world.run_out();
}

#[test]
fn a_native_launch_is_told_nothing_and_does_not_grow() {
    let mut world = World::new(4, 1, StaticPriority::new());
    let native = world.submit_as(0, 0, 100, &[], true);
    world.submit(1, 5, 2, &[]);
    assert!(world.words.values().all(|word| !word.range().is_empty()), "nobody was sent away");
    world.run_out();
    let Some(Outcome::Done(report)) = world.op(native).finished else { panic!("done") };
    assert_eq!((report.tasks, report.yields, report.resumes), (100, 0, 0));
    assert!(report.native);
}

#[test]
fn native_launches_queue_behind_one_another_and_behind_no_others() {
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
fn a_report_tells_when_what_happened() {
    let at = Duration::from_millis;
    let mut engine = Engine::new(4, LANES, Box::new(StaticPriority::new()));
    let mut actions = Vec::new();
    let spec = LaunchSpec {
        tasks: 2,
        predicted: None,
        yield_overhead: Duration::ZERO,
        blocks_per_sm: 1,
        on_last_sm: 1,
        native: false,
    };
    let submission = Submission {
        stream: 0,
        name: "model",
        uses: &[],
        after: None,
        urgency: Urgency::default(),
        launch: Some(spec),
        opaque: None,
    };
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
        [report.queued, report.ready, report.started, report.done, report.sm_time]
    };
    assert_eq!(times(&reports[0]), [at(1), at(1), at(1), at(5), at(8)]);
    assert_eq!(
        times(&reports[1]),
        [at(2), at(5), at(5), at(5), at(0)],
        "nobody knows for how long"
    );
}

fn effective(world: &World, op: OpKey) -> i32 {
    world.engine.ops[op].effective.priority.0
}

#[test]
fn what_an_urgent_launch_waits_for_is_as_urgent_until_that_one_is_cancelled() {
    let write = [Use { buffer: BufferId::Own(0), access: Access::Write, overwrites: false }];
    let mut world = World::new(2, 1, StaticPriority::new());
    let low = world.submit(0, 0, 1000, &write);
    let behind = world.submit(0, 0, 10, &[]);
    let medium = world.submit(1, 5, 1000, &[]);
    let range = |world: &World, op| world.engine.ops[op].launch.as_ref().map(|launch| launch.range);
    assert_eq!(range(&world, low), Some(SmRange::EMPTY));
    // Through an event, opaque work and a buffer.
    let opaque = Opaque { name: "opaque", variant: 0, exclusive: false };
    let event = world.ask(Asked { stream: 2, after: Some(low), ..Asked::default() });
    world.ask(Asked { stream: 2, opaque: Some(opaque), uses: &write, ..Asked::default() });
    let urgent = world.submit(3, 9, 1, &write);
    assert_eq!([low, event, behind].map(|op| effective(&world, op)), [9, 9, 0]);
    assert!(range(&world, low) != Some(SmRange::EMPTY), "it goes on, before the other one");
    world.handle(Event::Cancel { op: urgent });
    assert_eq!([low, event, medium].map(|op| effective(&world, op)), [0, 0, 5]);
    assert_eq!(range(&world, low), Some(SmRange::EMPTY), "it has given it back");
    world.run_out();
}

#[test]
fn a_launch_that_becomes_urgent_makes_those_before_it_urgent() {
    let mut world = World::new(1, 1, StaticPriority::new());
    let first = world.submit(0, 0, 10, &[]);
    let second = world.submit(0, 0, 10, &[]);
    let third = world.submit(0, 0, 10, &[]);
    world.change(Whose::Launch(second), Change::Priority(Priority(7)));
    world.change(Whose::Launch(second), Change::Deadline(Some(Duration::from_secs(1))));
    assert_eq!([first, second, third].map(|op| effective(&world, op)), [7, 7, 0]);
    assert_eq!(world.engine.ops[first].effective.deadline, Some(Duration::from_secs(1)));
    world.change(Whose::Stream(0), Change::Priority(Priority(3)));
    assert_eq!([first, second, third].map(|op| effective(&world, op)), [3, 3, 3]);
    world.run_out();
}

#[test]
fn the_first_run_of_opaque_work_has_the_device_alone() {
    let opaque = |variant, exclusive| Some(Opaque { name: "opaque", variant, exclusive });
    let mut world = World::new(2, 1, StaticPriority::new());
    let launch = world.submit(0, 0, 1000, &[]);
    (0..10).for_each(|_| world.step_cohort(0));
    let mut run = |opaque| {
        let op = world.ask(Asked { stream: 1, opaque, ..Asked::default() });
        let urgent = world.submit(2, 9, 1, &[]);
        // `check_alone` sees to it that nothing else is on the device then.
        let mut left = 0;
        while !world.copies.contains(&op) {
            world.step_cohort(0);
            left += 1;
        }
        let copy = world.copies.iter().position(|copy| *copy == op).expect("it runs");
        if left > 0 {
            assert!(!world.op(urgent).started && world.op(launch).finished.is_none());
        }
        world.step_copy(copy);
        while world.op(urgent).finished.is_none() {
            (0..world.cohorts.len()).rev().for_each(|index| world.step_cohort(index));
        }
        left > 0
    };
    assert!(run(opaque(0, false)), "the first one");
    assert!(!run(opaque(0, false)), "nobody leaves for the second one");
    assert!(run(opaque(1, false)), "another variant");
    assert!(run(opaque(0, true)), "one that is always alone");
    world.run_out();
    let Some(Outcome::Done(report)) = world.op(launch).finished else { panic!("done") };
    assert_eq!(report.tasks, 1000);
}

#[test]
fn opaque_work_that_is_cancelled_while_launches_leave_lets_them_stay() {
    let opaque = Some(Opaque { name: "opaque", variant: 0, exclusive: false });
    let mut world = World::new(2, 1, StaticPriority::new());
    let launch = world.submit(0, 0, 100, &[]);
    (0..10).for_each(|_| world.step_cohort(0));
    let cancelled = world.ask(Asked { stream: 1, opaque, ..Asked::default() });
    let behind = world.submit(1, 0, 1, &[]);
    world.handle(Event::Cancel { op: cancelled });
    world.run_out();
    assert_eq!(world.op(cancelled).finished, Some(Outcome::Cancelled { done: 0 }));
    for op in [launch, behind] {
        assert!(matches!(world.op(op).finished, Some(Outcome::Done(_))));
    }
}

#[test]
fn opaque_work_that_failed_has_not_had_its_first_run() {
    let opaque = Some(Opaque { name: "opaque", variant: 0, exclusive: false });
    let mut world = World::new(1, 1, StaticPriority::new());
    let op = world.ask(Asked { stream: 0, opaque, ..Asked::default() });
    world.op(op).failed = true;
    world.handle(Event::Fault { op });
    world.step_copy(0);
    assert_eq!(world.op(op).finished, Some(Outcome::Failed));
    world.submit(1, 0, 100, &[]);
    (0..3).for_each(|_| world.step_cohort(0));
    world.ask(Asked { stream: 0, opaque, ..Asked::default() });
    assert!(world.copies.is_empty(), "it waits for the launch to leave");
    world.run_out();
}

#[test]
fn a_short_launch_keeps_the_sms_that_the_one_behind_it_fills() {
    let has = |overhead: u64| {
        let mut engine = Engine::new(4, LANES, Box::new(StaticPriority::new()));
        let mut actions = Vec::new();
        let us = Duration::from_micros;
        let mut submit = |stream: u32, priority: i32, tasks: u32| {
            let spec = LaunchSpec {
                tasks,
                predicted: Some(us(5)),
                yield_overhead: us(overhead),
                blocks_per_sm: 1,
                on_last_sm: 1,
                native: false,
            };
            let submission = Submission {
                stream,
                name: "model",
                uses: &[],
                after: None,
                urgency: Urgency { priority: Priority(priority), ..Urgency::default() },
                launch: Some(spec),
                opaque: None,
            };
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
    assert_eq!(has(20), [4, 0]);
    assert_eq!(has(1), [1, 3], "another one can be there and gone before the first one ends");
}

#[test]
fn opaque_work_waits_for_launches_that_are_more_urgent_unless_somebody_urgent_waits_for_it() {
    let opaque = Some(Opaque { name: "opaque", variant: 0, exclusive: true });
    let mut world = World::new(1, 1, StaticPriority::new());
    let launch = world.submit(0, 5, 1000, &[]);
    (0..3).for_each(|_| world.step_cohort(0));
    let low = world.ask(Asked { stream: 1, opaque, ..Asked::default() });
    (0..20).for_each(|_| world.step_cohort(0));
    assert!(world.copies.is_empty() && !world.cohorts.is_empty(), "nobody leaves");
    // One that comes later and is as urgent goes first.
    let urgency = Urgency { priority: Priority(5), ..Urgency::default() };
    let asks = Asks { urgency, ..Asks::default() };
    let equal = world.ask(Asked { stream: 2, asks, opaque, ..Asked::default() });
    world.step_cohort(0);
    assert_eq!(world.copies, [equal]);
    world.step_copy(0);
    assert!(!world.cohorts.is_empty(), "the launch goes on");
    let urgent = world.submit(1, 9, 1, &[]);
    while world.op(urgent).finished.is_none() {
        match world.copies.first() {
            Some(copy) => {
                assert_eq!(*copy, low);
                world.step_copy(0);
            }
            None => world.step_cohort(0),
        }
    }
    assert!(world.op(launch).finished.is_none());
    world.run_out();
}

#[test]
fn opaque_work_that_always_has_the_device_alone_leaves_half_of_the_time_to_launches() {
    let opaque = Some(Opaque { name: "opaque", variant: 0, exclusive: true });
    let mut world = World::new(1, 1, StaticPriority::new());
    let launch = world.submit(0, 0, 1000, &[]);
    for _ in 0..3 {
        world.ask(Asked { stream: 1, opaque, ..Asked::default() });
    }
    for _ in 0..2 {
        while world.copies.is_empty() {
            world.step_cohort(0);
        }
        world.now += Duration::from_millis(7);
        world.step_copy(0);
        assert_eq!(world.engine.wake(), Some(world.now + Duration::from_millis(7)));
        (0..5).for_each(|_| world.step_cohort(0));
        assert!(world.copies.is_empty() && !world.cohorts.is_empty(), "its turn");
        world.now += Duration::from_millis(7);
        world.act();
    }
    world.handle(Event::Cancel { op: launch });
    world.run_out();
}

#[test]
fn what_is_queued_behind_a_launch_counts_where_the_policy_looks_at_streams() {
    let first = |policy: Box<dyn Policy>| {
        let mut world = World::with(1, 1, policy);
        let mut submit = |stream, predicted| {
            let predicted = Some(Duration::from_micros(predicted));
            world.submit_asking(stream, 1, &[], Asks { predicted, ..Asks::default() })
        };
        let ops = [submit(0, 1), submit(1, 30), submit(1, 60), submit(2, 50)];
        // The first launch is done: who is next?
        world.step_cohort(0);
        world.step_cohort(0);
        world.step_cohort(0);
        assert!(world.is_finished(ops[0]));
        let owner = world.engine.ledger.owners()[0].map(|id| id.0);
        world.run_out();
        ops.iter().position(|op| Some(*op) == owner)
    };
    assert_eq!(first(Box::new(ShortestRemaining::new())), Some(1));
    assert_eq!(
        first(Box::new(ShortestRemaining::by_stream())),
        Some(3),
        "50 are less than 30 and 60"
    );
}
