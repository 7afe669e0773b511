//! Operations that wait for others: inherited urgency, opaque work, and launches queued behind one.

use super::world::{Asked, Asks, World};
use super::*;
use crate::engine::opaque::MOST_KNOWN;
use crate::policy::ShortestRemaining;

fn effective(world: &World, op: OpKey) -> i32 {
    world.engine.ops[op].effective.priority.0
}

#[test]
fn an_urgent_launch_raises_what_it_waits_for_until_it_is_cancelled() {
    let write =
        [Use { buffer: BufferId::Own(0), bytes: WHOLE, access: Access::Write, overwrites: false }];
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
        // `check_alone` checks that nothing else is on the device then.
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
    assert!(!run(opaque(0, false)), "the second one needs no drain");
    assert!(run(opaque(1, false)), "another variant");
    assert!(run(opaque(0, true)), "exclusive work");
    world.run_out();
    let Some(Outcome::Done(report)) = world.op(launch).finished else { panic!("done") };
    assert_eq!(report.tasks, 1000);
}

#[test]
fn variants_of_opaque_work_without_end_are_forgotten() {
    let mut world = World::new(2, 1, StaticPriority::new());
    let opaque = |variant| Some(Opaque { name: "opaque", variant, exclusive: false });
    // As many as are known are all known, however often each comes.
    let all = MOST_KNOWN as u64;
    for variant in (0..all).chain([0, all]) {
        let op = world.ask(Asked { stream: 1, opaque: opaque(variant), ..Asked::default() });
        let copy = world.copies.iter().position(|copy| *copy == op).expect("nothing is in its way");
        world.step_copy(copy);
    }
    // The last one was new when the others were forgotten.
    for (variant, waits) in [(all, false), (0, true)] {
        world.submit(0, 0, 1000, &[]);
        world.step_cohort(0);
        let op = world.ask(Asked { stream: 1, opaque: opaque(variant), ..Asked::default() });
        assert_eq!(!world.copies.contains(&op), waits, "{variant}");
        world.run_out();
    }
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
fn opaque_work_waits_for_more_urgent_launches_unless_an_urgent_one_waits_for_it() {
    let opaque = Some(Opaque { name: "opaque", variant: 0, exclusive: true });
    let mut world = World::new(1, 1, StaticPriority::new());
    let launch = world.submit(0, 5, 1000, &[]);
    (0..3).for_each(|_| world.step_cohort(0));
    let low = world.ask(Asked { stream: 1, opaque, ..Asked::default() });
    (0..20).for_each(|_| world.step_cohort(0));
    assert!(world.copies.is_empty() && !world.cohorts.is_empty(), "no launch leaves");
    // A later launch that is as urgent goes first.
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
fn the_backlog_of_a_launch_counts_for_policies_by_stream() {
    let first = |policy: Box<dyn Policy>| {
        let mut world = World::with(1, 1, policy);
        let mut submit = |stream, predicted| {
            let predicted = Some(Duration::from_micros(predicted));
            world.submit_asking(stream, 1, &[], Asks { predicted, ..Asks::default() })
        };
        let ops = [submit(0, 1), submit(1, 30), submit(1, 60), submit(2, 50)];
        // The first launch is done: which is next?
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
