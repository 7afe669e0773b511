//! The engine against a model device that does everything in its own time.

mod apart;
mod armed;
mod forms;
mod loops;
mod policies;
mod programs;
mod progress;
mod races;
mod ranges;
mod refused;
mod sharing;
mod suspend;
mod waiting;
mod world;

use preempt_device::host::Access;
use proptest::prelude::*;

use self::world::{Asked, Asks, World};
use super::*;
use crate::policy::{Arrival, DeviceView, Plan, Priority, StaticPriority, Urgency};
use crate::vocabulary::ByteRange;

/// Bytes of each buffer, and all of them.
const BYTES: u64 = 8;
const WHOLE: ByteRange = ByteRange { start: 0, end: BYTES };

/// A buffer, two bounds of a range in any order, and whether it is written.
type AskedUse = (u64, (u64, u64), bool);

#[derive(Clone, Debug)]
enum Step {
    Launch {
        stream: u32,
        priority: i32,
        tasks: u32,
        uses: Vec<AskedUse>,
        form: (bool, Option<Duration>),
    },
    Copy {
        stream: u32,
        priority: i32,
        uses: Vec<AskedUse>,
    },
    /// An event that waits for any operation, in a stream that may be otherwise empty.
    Wait {
        stream: u32,
        priority: i32,
        after: usize,
    },
    Opaque {
        stream: u32,
        variant: u64,
        uses: Vec<AskedUse>,
        exclusive: bool,
    },
    /// Launches, and copies of 0 block-tasks, as one operation. Plain ones have less.
    Program {
        stream: u32,
        priority: i32,
        calls: Vec<i32>,
        uses: Vec<AskedUse>,
        armed: bool,
    },
    /// An armed program is launched: its gate hears of it, and later the engine.
    Release(usize),
    Told,
    Priority {
        stream: Option<u32>,
        op: usize,
        priority: i32,
    },
    Deadline {
        op: usize,
        due: Option<u64>,
    },
    Suspend {
        stream: u32,
        is_suspended: bool,
    },
    Cohort(usize),
    CopyDone(usize),
    Cancel(usize),
    Revoke(usize),
    Fault(usize),
}

fn bounds() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![Just((0, BYTES)), (0..=BYTES, 0..=BYTES)]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let uses = || prop::collection::vec((0u64..4, bounds(), any::<bool>()), 0..4);
    let step = prop_oneof![
        3 => (0u32..4, 0i32..3, 1u32..30, uses(), 0..4)
            .prop_map(|(stream, priority, tasks, uses, kind)| {
                let form = (kind == 0, (kind == 1).then_some(Duration::from_micros(10)));
                Step::Launch { stream, priority, tasks, uses, form }
            }),
        1 => (0u32..4, 0i32..3, uses())
            .prop_map(|(stream, priority, uses)| Step::Copy { stream, priority, uses }),
        1 => (0u32..6, 0i32..5, any::<usize>())
            .prop_map(|(stream, priority, after)| Step::Wait { stream, priority, after }),
        1 => (0u32..4, 0u64..3, uses(), 0..4).prop_map(|(stream, variant, uses, kind)| {
            Step::Opaque { stream, variant, uses, exclusive: kind == 0 }
        }),
        1 => (0u32..4, 0i32..3, prop::collection::vec(-6i32..20, 1..6), uses(), any::<bool>()).prop_map(
            |(stream, priority, calls, uses, armed)| Step::Program { stream, priority, calls, uses, armed }),
        1 => any::<usize>().prop_map(Step::Release),
        1 => Just(Step::Told),
        1 => (prop::option::of(0u32..4), any::<usize>(), -3i32..9)
            .prop_map(|(stream, op, priority)| Step::Priority { stream, op, priority }),
        1 => (any::<usize>(), prop::option::of(0u64..9))
            .prop_map(|(op, due)| Step::Deadline { op, due }),
        1 => (0u32..4, any::<bool>())
            .prop_map(|(stream, is_suspended)| Step::Suspend { stream, is_suspended }),
        20 => any::<usize>().prop_map(Step::Cohort),
        1 => any::<usize>().prop_map(Step::CopyDone),
        1 => any::<usize>().prop_map(Step::Cancel),
        1 => any::<usize>().prop_map(Step::Revoke),
        1 => any::<usize>().prop_map(Step::Fault),
    ];
    prop::collection::vec(step, 0..200)
}

/// Uses without conflicts; a launch that has one is refused before the engine.
fn distinct(asked: Vec<AskedUse>) -> Vec<Use> {
    let mut uses: Vec<Use> = Vec::new();
    for (buffer, (a, b), write) in asked {
        let access = if write { Access::Write } else { Access::Read };
        let (buffer, bytes) = (BufferId::Own(buffer), ByteRange { start: a.min(b), end: a.max(b) });
        let used = Use { buffer, bytes, access, overwrites: false };
        if !uses.iter().any(|other| used.conflicts(other)) {
            uses.push(used);
        }
    }
    uses
}

fn run(world: &mut World, steps: Vec<Step>) {
    for step in steps {
        match step {
            Step::Launch { stream, priority, tasks, uses, form: (plain, hardware_stop) } => {
                let urgency = Urgency { priority: Priority(priority), ..Urgency::default() };
                // Some are known to be long.
                let predicted = (tasks % 2 == 0).then_some(Duration::from_millis(10));
                let asks = Asks { urgency, predicted, plain, hardware_stop, ..Asks::default() };
                world.submit_asking(stream, tasks, &distinct(uses), asks);
            }
            Step::Copy { stream, priority, uses } => {
                world.submit(stream, priority, 0, &distinct(uses));
            }
            Step::Wait { stream, priority, after } => {
                let count = world.ops.len().max(1);
                let after = world.ops.get(after % count).map(|(op, _)| *op);
                let after = after.map(|op| world.whole(op));
                let urgency = Urgency { priority: Priority(priority), ..Urgency::default() };
                let asks = Asks { urgency, ..Asks::default() };
                world.ask(Asked { stream, asks, after, ..Asked::default() });
            }
            Step::Opaque { stream, variant, uses, exclusive } => {
                let opaque = Some(Opaque { name: "opaque", variant, exclusive });
                world.ask(Asked { stream, uses: &distinct(uses), opaque, ..Asked::default() });
            }
            Step::Program { stream, priority, calls, uses, armed } => {
                let urgency = Urgency { priority: Priority(priority), ..Urgency::default() };
                let (uses, asks) = (distinct(uses), Asks { urgency, ..Asks::default() });
                let (uses, calls) = (&uses[..], &calls[..]);
                world.ask(Asked { stream, asks, uses, calls, armed, ..Asked::default() });
            }
            Step::Release(index) => world.release(index),
            Step::Told => {
                world.tell_released();
            }
            Step::Priority { stream: Some(stream), priority, .. } => {
                world.change(Whose::Stream(stream), Change::Priority(Priority(priority)));
            }
            Step::Priority { op, priority, .. } if !world.ops.is_empty() => {
                let op = world.whole(world.ops[op % world.ops.len()].0);
                world.change(Whose::Launch(op), Change::Priority(Priority(priority)));
            }
            Step::Deadline { op, due } if !world.ops.is_empty() => {
                let op = world.whole(world.ops[op % world.ops.len()].0);
                let due = due.map(Duration::from_secs);
                world.change(Whose::Launch(op), Change::Deadline(due));
            }
            Step::Suspend { stream, is_suspended } => world.suspend(stream, is_suspended),
            Step::Cohort(index) if !world.cohorts.is_empty() => {
                world.step_cohort(index % world.cohorts.len());
            }
            Step::CopyDone(index) if !world.copies.is_empty() => {
                world.step_copy(index % world.copies.len());
            }
            Step::Cancel(index) if !world.ops.is_empty() => {
                let op = world.whole(world.ops[index % world.ops.len()].0);
                world.handle(Event::Cancel { op });
            }
            Step::Revoke(index) if !world.ops.is_empty() => {
                let op = world.whole(world.ops[index % world.ops.len()].0);
                world.handle(Event::Revoke { op });
            }
            Step::Fault(index) if !world.cohorts.is_empty() => {
                let op = world.cohorts[index % world.cohorts.len()].order.op;
                let model = world.op(op);
                // A late cohort of a launch that is done changes nothing.
                let fails = model.finished.is_none();
                model.failed |= fails;
                let whole = world.whole(op);
                let model = world.op(whole);
                model.failed |= fails && model.finished.is_none();
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
    fn arbitrary_plans_are_refused_and_nothing_is_lost(
        sms in 1u32..6, answers in prop::collection::vec((0usize..4, 0u32..9, 0u32..9), 1..40), steps in steps(),
    ) {
        let mut world = World::new(sms, 1, Nonsense { known: Vec::new(), answers });
        run(&mut world, steps);
        world.run_out();
    }
}

/// Grants arbitrary ranges, to launches that may be gone.
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
