//! Preemptible programs: their calls one after the other, as one operation of the order.

use super::world::{Asked, Asks, World};
use super::*;
use crate::policy::{Fifo, Policy};

fn writes() -> Use {
    let (buffer, access) = (BufferId::Own(0), Access::Write);
    Use { buffer, bytes: WHOLE, access, overwrites: false }
}

fn program(world: &mut World, stream: u32, calls: &[i32], uses: &[Use]) -> OpKey {
    world.ask(Asked { stream, calls, uses, ..Asked::default() })
}

fn report(world: &mut World, op: OpKey) -> LaunchReport {
    let Some(Outcome::Done(report)) = world.op(op).finished else { panic!("it is not done") };
    report
}

/// Cohorts of a program on the device, and those behind them.
fn on_device(world: &World) -> Vec<OpKey> {
    world.cohorts.iter().map(|cohort| cohort.order.op).collect()
}

#[test]
fn calls_follow_each_other_on_the_device() {
    let mut world = World::new(2, 1, StaticPriority::new());
    let before = world.submit(0, 0, 10, &[writes()]);
    let first = program(&mut world, 0, &[10, 5, 20], &[writes()]);
    let second = program(&mut world, 0, &[7], &[writes()]);
    let after = world.submit(0, 0, 10, &[writes()]);
    let mut expected = vec![before];
    expected.extend(world.engine.calls(first));
    expected.extend(world.engine.calls(second));
    expected.push(after);
    // `go_ahead` queues one at a time, or those that the device takes together.
    for _ in 0..10 {
        world.act();
    }
    assert_eq!(on_device(&world), expected);
    world.run_out();
    assert_eq!(world.bounced, 0);
    assert_eq!(report(&mut world, first).tasks, 35);
    assert_eq!(report(&mut world, second).tasks, 7);
}

#[test]
fn calls_that_the_device_takes_together_are_queued_at_once() {
    let mut world = World::new(2, 1, StaticPriority::new());
    // It goes ahead once.
    let op = program(&mut world, 0, &[10, 5, 20, 4, 6, 3, 1, 1], &[]);
    let calls = world.engine.calls(op).to_vec();
    assert_eq!(on_device(&world), calls[..4]);
    world.act();
    assert_eq!(on_device(&world), calls[..7]);
    world.act();
    assert_eq!(on_device(&world), calls);
    world.run_out();
    assert_eq!(report(&mut world, op).tasks, 50);
}

#[test]
fn a_copy_in_a_program_has_its_turn() {
    let mut world = World::new(2, 1, StaticPriority::new());
    let op = program(&mut world, 0, &[0, 5, 0, 0, 6], &[]);
    let [first, .., last] = world.engine.calls(op)[..] else { panic!("five calls") };
    assert_eq!((&world.copies[..], world.cohorts.len()), (&[first][..], 0));
    world.step_copy(0);
    assert!(!on_device(&world).contains(&last), "there are copies before it");
    world.run_out();
    assert_eq!(report(&mut world, op).tasks, 11);
}

#[test]
fn an_urgent_launch_takes_the_sms_of_each_call_and_only_the_rest_runs() {
    for at in 0..60 {
        let mut world = World::new(2, 1, StaticPriority::new());
        let op = program(&mut world, 0, &[10, 5, 20, 1, 10], &[writes()]);
        for step in 0..at {
            world.step_cohort(step % world.cohorts.len().max(1));
        }
        let urgent = world.submit(1, 5, 6, &[]);
        // It has the device at once, whichever call runs.
        let owners = world.engine.ledger.owners();
        assert!(owners.iter().all(|owner| *owner == Some(LaunchId(urgent))), "step {at}");
        let claimed = world.op(op).claimed;
        while world.op(urgent).finished.is_none() {
            for index in (0..world.cohorts.len()).rev() {
                if index < world.cohorts.len() {
                    world.step_cohort(index);
                }
            }
        }
        assert!(world.op(op).claimed <= claimed + 2, "a block-task of each block at most");
        world.run_out();
        let report = report(&mut world, op);
        assert_eq!(report.tasks, 46);
        // Each call may grow once.
        assert!(report.yields >= 1 && report.resumes <= report.yields + 5, "{report:?}");
    }
}

#[test]
fn a_cancelled_program_ends_with_what_it_has_done() {
    for at in 0..80 {
        let mut world = World::new(2, 1, StaticPriority::new());
        let op = program(&mut world, 0, &[10, 0, 20], &[writes()]);
        let after = world.submit(1, 0, 3, &[writes()]);
        for step in 0..at {
            match world.cohorts.len() {
                0 if world.copies.is_empty() => break,
                0 => world.step_copy(0),
                cohorts => world.step_cohort(step % cohorts),
            }
        }
        let claimed = world.op(op).claimed;
        world.handle(Event::Cancel { op });
        world.run_out();
        match world.op(op).finished {
            Some(Outcome::Done(report)) => assert_eq!((report.tasks, at > 30), (30, true)),
            Some(Outcome::Cancelled { done }) => {
                assert!((claimed..=claimed + 2).contains(&done), "{done} of {claimed}");
                assert!(done < 30);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(report(&mut world, after).tasks, 3, "it waited for the program alone");
    }
}

#[test]
fn a_program_that_waits_is_cancelled_at_once_and_keeps_its_place() {
    let mut world = World::new(2, 1, StaticPriority::new());
    let holds = world.submit(1, 0, 10, &[writes()]);
    let op = program(&mut world, 0, &[10, 0], &[writes()]);
    let after = world.submit(0, 0, 3, &[]);
    world.handle(Event::Cancel { op });
    assert_eq!(world.op(op).finished, Some(Outcome::Cancelled { done: 0 }));
    assert!(!world.op(after).started && world.op(holds).finished.is_none());
    world.run_out();
    assert_eq!(world.op(op).claimed, 0);
}

/// A call that was queued behind the launch before it may run, so the program is not reported before it has left.
#[test]
fn a_program_that_is_queued_ahead_is_reported_when_its_calls_have_left() {
    let mut world = World::new(2, 1, StaticPriority::new());
    let before = world.submit(0, 0, 100, &[]);
    let op = program(&mut world, 0, &[10, 20], &[]);
    for _ in 0..5 {
        world.act();
    }
    assert_eq!(world.cohorts.len(), 3);
    world.handle(Event::Cancel { op });
    assert!(world.op(op).finished.is_none(), "its calls are on the device");
    let signals = world.words.len();
    assert_eq!(signals, 1, "one word is enough for all of them");
    while world.op(op).finished.is_none() {
        for index in (0..world.cohorts.len()).rev() {
            if index < world.cohorts.len() {
                world.step_cohort(index);
            }
        }
    }
    assert_eq!(world.op(op).finished, Some(Outcome::Cancelled { done: 0 }));
    world.run_out();
    assert_eq!(report(&mut world, before).tasks, 100);
}

#[test]
fn a_call_that_fails_ends_the_program_and_loses_what_it_writes() {
    let mut world = World::new(2, 1, StaticPriority::new());
    let op = program(&mut world, 0, &[10, 4, 0, 20], &[writes()]);
    let reads = world.submit(1, 0, 3, &[Use { access: Access::Read, ..writes() }]);
    let [_, second, copy, last] = world.engine.calls(op)[..] else { panic!("four calls") };
    while !world.op(second).started {
        world.step_cohort(0);
    }
    world.op(second).failed = true;
    world.op(op).failed = true;
    world.handle(Event::Fault { op: second });
    world.run_out();
    assert_eq!(world.op(op).finished, Some(Outcome::Failed));
    assert!(!world.op(copy).started && !world.op(last).started, "they are behind it");
    assert_eq!(world.op(reads).finished, Some(Outcome::InputLost { kernel: "model" }));
}

#[test]
fn a_program_whose_input_is_lost_does_not_run() {
    let mut world = World::new(2, 1, StaticPriority::new());
    let fails = world.submit(0, 0, 10, &[writes()]);
    let op = program(&mut world, 0, &[10, 5], &[writes()]);
    for _ in 0..5 {
        world.act();
    }
    assert_eq!(world.cohorts.len(), 3, "queued ahead");
    world.op(fails).failed = true;
    world.handle(Event::Fault { op: fails });
    world.run_out();
    assert_eq!(world.op(op).finished, Some(Outcome::InputLost { kernel: "model" }));
}

#[test]
fn a_program_whose_input_is_known_to_be_lost_is_not_queued_ahead() {
    let mut world = World::new(2, 1, StaticPriority::new());
    let fails = world.submit(1, 0, 1, &[writes()]);
    world.op(fails).failed = true;
    world.handle(Event::Fault { op: fails });
    world.run_out();
    let before = world.submit(0, 0, 10, &[]);
    let op = program(&mut world, 0, &[10, 5], &[writes()]);
    for _ in 0..5 {
        world.act();
    }
    assert_eq!(on_device(&world), [before]);
    world.run_out();
    assert_eq!(world.op(op).finished, Some(Outcome::InputLost { kernel: "model" }));
}

#[test]
fn calls_inherit_the_urgency_of_what_waits_for_the_program() {
    let mut world = World::new(2, 1, StaticPriority::new());
    let op = program(&mut world, 0, &[10, 5, 20], &[writes()]);
    let calls = world.engine.calls(op).to_vec();
    let priority = |world: &World, of: OpKey| world.engine.ops[of].effective.priority;
    world.change(Whose::Launch(op), Change::Priority(Priority(3)));
    assert!(calls.iter().all(|&call| priority(&world, call) == Priority(3)));
    let urgent = world.submit(1, 7, 1, &[writes()]);
    assert!(calls.iter().all(|&call| priority(&world, call) == Priority(7)));
    world.handle(Event::Cancel { op: urgent });
    world.change(Whose::Stream(0), Change::Priority(Priority(-2)));
    assert!(calls.iter().all(|&call| priority(&world, call) == Priority(-2)));
    world.change(Whose::Launch(op), Change::Weight(5));
    assert!(calls.iter().all(|&call| world.engine.ops[call].effective.weight == 5));
    world.run_out();
}

#[test]
fn a_lost_device_ends_programs_in_every_state() {
    for at in 0..40 {
        let mut world = World::new(2, 1, StaticPriority::new());
        for stream in 0..3 {
            program(&mut world, stream, &[0, 6, 0, 6, 6, 0], &[writes()]);
        }
        for step in 0..at {
            match world.cohorts.len() {
                0 if world.copies.is_empty() => break,
                0 => world.step_copy(0),
                cohorts => world.step_cohort(step % cohorts),
            }
        }
        world.cohorts.clear();
        world.copies.clear();
        world.ops.iter_mut().for_each(|(_, op)| op.failed |= op.finished.is_none());
        world.engine.handle(world.now, Event::Lost, &mut world.actions);
        for action in std::mem::take(&mut world.actions) {
            match action {
                Action::Finish { op, outcome } => {
                    assert!(world.op(op).finished.replace(outcome).is_none(), "{at}");
                }
                Action::Retire { op } => assert!(world.retired.insert(op)),
                other => panic!("{other:?}"),
            }
        }
        assert!(!world.engine.is_busy(), "{at}: {:?}", world.engine);
        assert!(world.ops.iter().all(|(key, _)| world.retired.contains(key)));
    }
}

#[test]
fn plain_calls_run_to_their_end_and_do_not_count() {
    let mut world = World::new(2, 1, StaticPriority::new());
    let op = program(&mut world, 0, &[6, -4, -4, 6], &[]);
    let [_, plain, ..] = world.engine.calls(op)[..] else { panic!("four calls") };
    while !world.op(plain).started {
        world.step_cohort(0);
    }
    world.submit(1, 5, 2, &[]);
    world.run_out();
    assert_eq!(world.op(plain).claimed, 4);
    assert_eq!(report(&mut world, op).tasks, 12);
}

/// Admits nothing.
struct Refuses(Fifo, u32);

impl Policy for Refuses {
    fn name(&self) -> &str {
        "refuses"
    }
    fn admits(&mut self, _: Duration, _: &Arrival, _: &dyn DeviceView) -> bool {
        self.1 += 1;
        assert_eq!(self.1, 1, "a program is one question");
        false
    }
    fn arrived(&mut self, now: Duration, launch: Arrival) {
        self.0.arrived(now, launch);
    }
    fn departed(&mut self, now: Duration, launch: LaunchId) {
        self.0.departed(now, launch);
    }
    fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        self.0.assign(now, device, plan);
    }
}

#[test]
fn a_program_is_refused_as_a_whole() {
    let mut world = World::new(2, 1, Refuses(Fifo::new(), 0));
    let op = program(&mut world, 0, &[10, 0, 20], &[]);
    world.run_out();
    assert_eq!(world.op(op).finished, Some(Outcome::NotAdmitted));
    assert_eq!(world.engine.refusal(), None);
}

#[test]
fn its_report_is_the_sum_of_its_calls() {
    let mut world = World::new(2, 1, StaticPriority::new());
    let second = Duration::from_secs(1);
    let asks = Asks::default();
    let op = world.ask(Asked { asks, calls: &[2, 2], ..Asked::default() });
    world.pass(second);
    while world.op(op).done < 2 {
        world.step_cohort(0);
    }
    world.pass(second);
    world.run_out();
    let report = report(&mut world, op);
    assert_eq!((report.tasks, report.plain), (4, false));
    assert_eq!(report.sm_time, 4 * second);
    assert_eq!(report.turnaround(), 2 * second);
    assert_eq!(report.running(), 2 * second);
}

#[test]
fn its_own_time_has_that_of_its_copies() {
    let second = Duration::from_secs(1);
    let own_time = |calls: &[i32]| {
        let mut world = World::new(2, 1, StaticPriority::new());
        let op = program(&mut world, 0, calls, &[]);
        while world.op(op).finished.is_none() {
            world.pass(second);
            match world.copies.is_empty() {
                true => world.run_out(),
                false => world.step_copy(0),
            }
        }
        report(&mut world, op).own_time
    };
    assert_eq!(own_time(&[0, 0]), 2 * second, "copies alone");
    assert!(own_time(&[0, 2]) > own_time(&[2]));
}
