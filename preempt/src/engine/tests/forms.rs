//! Plain grids: levels, the form of a launch, and who is told to make room.

use std::time::Duration;

use super::world::{Asked, Cohort, QUEUES};
use super::*;
use crate::policy::{Ffs, Priority};

/// The form of a launch that may have either is chosen when its first blocks are launched.
#[test]
fn plain_grids_take_sms_from_one_another_by_levels() {
    let either = |priority| Asks {
        urgency: Urgency { priority: Priority(priority), ..Urgency::default() },
        hardware_stop: Some(Duration::from_micros(5)),
        predicted: Some(Duration::from_micros(100)),
        ..Asks::default()
    };
    let mut world = World::new(4, 1, StaticPriority::new());
    for priority in 0..4 {
        world.submit_asking(priority as u32, 100, &[], either(priority));
    }
    // The highest level is left to those that can be told to leave, and then no queue of a level is left.
    let levels: Vec<_> = world
        .cohorts
        .iter()
        .map(|cohort| (cohort.order.plain, QUEUES.level(cohort.order.queue)))
        .collect();
    assert_eq!(levels, [(true, 0), (true, 1), (false, 2), (false, 0)]);
    // On level 0 the hardware makes no room for the last one.
    let over: Vec<_> = world.cohorts.iter().map(|cohort| cohort.order.over.is_some()).collect();
    assert_eq!(over, [false, true, true, false]);
    world.run_out();
    // A policy that does not go by order.
    let mut world = World::new(4, 1, Ffs::new());
    let op = world.submit_asking(0, 100, &[], either(0));
    world.run_out();
    let Some(Outcome::Done(report)) = world.op(op).finished else { panic!("done") };
    assert!(!report.plain);
}

#[test]
fn a_launch_follows_the_form_of_its_predecessor_if_a_gap_costs_more() {
    let asks = |hardware_stop| Asks { hardware_stop, ..Asks::default() };
    let (either, loops) = (asks(Some(Duration::from_micros(5))), asks(None));
    let plain = |world: &World| -> Vec<bool> {
        world.cohorts.iter().map(|cohort| cohort.order.plain).collect()
    };
    let submit = |world: &mut World, all: &[Asks]| {
        all.iter().for_each(|&asks| _ = world.submit_asking(0, 10, &[], asks));
    };
    let mut world = World::new(4, 1, StaticPriority::new());
    submit(&mut world, &[loops, either, loops, either]);
    assert_eq!(plain(&world), [false; 4], "no gap in between");
    world.run_out();
    let mut world = World::new(4, 1, StaticPriority::new());
    submit(&mut world, &[loops, either, either, either]);
    assert_eq!(plain(&world), [false; 2], "one gap, before all the others");
    world.run_out();
    let mut world = World::new(4, 1, StaticPriority::new());
    let either = Asks { predicted: Some(Duration::from_micros(9)), ..either };
    submit(&mut world, &[either, either, either]);
    assert_eq!(plain(&world), [true; 3]);
    world.run_out();
}

/// Whether a preemptible launch was told to leave all SMs.
fn is_told(world: &World, op: OpKey) -> bool {
    let of = world.cohorts.iter().filter(|cohort| cohort.order.op == op);
    let mut words = of.map(|cohort| world.words.get(&cohort.order.queue));
    words.all(|word| word.is_some_and(|word| word.range().is_empty()))
}

#[test]
fn a_plain_grid_that_becomes_more_urgent_gets_its_sms_back() {
    let mut world = World::new(4, 1, StaticPriority::new());
    let plain = world.submit_as(0, 0, 100, &[], true);
    let urgent = world.submit(1, 5, 100, &[]);
    assert!(!is_told(&world, urgent));
    world.change(Whose::Launch(plain), Change::Priority(Priority(9)));
    assert!(is_told(&world, urgent), "it has blocks where it should have none");
    world.run_out();
}

/// A launch that is about to end keeps the SMs that the next one of its stream will fill.
#[test]
fn a_launch_that_was_not_told_is_told_when_another_gets_the_sms() {
    let mut world = World::new(4, 1, StaticPriority::new());
    let plain = world.submit_as(0, 0, 1000, &[], true);
    let us = Duration::from_micros;
    let urgency = Urgency { priority: Priority(5), ..Urgency::default() };
    let asks = Asks { urgency, predicted: Some(us(1)), yield_overhead: us(10), ..Asks::default() };
    let short = world.submit_asking(1, 2, &[], asks);
    world.submit(1, 5, 100, &[]);
    let has = |world: &World, op| {
        world.engine.owners().iter().filter(|owner| **owner == Some(LaunchId(op))).count()
    };
    world.change(Whose::Launch(plain), Change::Priority(Priority(-1)));
    assert_eq!((has(&world, short), has(&world, plain)), (4, 0));
    // It outlives its prediction, and is taken to need as much more.
    world.pass(us(200));
    world.change(Whose::Launch(plain), Change::Priority(Priority(-2)));
    assert_eq!((has(&world, short), has(&world, plain)), (2, 2));
    let grants = |world: &World, of: OpKey| {
        let owners = world.engine.owners().to_vec();
        let cohorts = world.cohorts.iter().filter(|cohort| cohort.order.op == short);
        let mut words = cohorts.map(|cohort| {
            let word = world.words.get(&cohort.order.queue).copied();
            word.unwrap_or(cohort.order.signal).range()
        });
        words.any(|word| {
            (0..4).any(|sm| owners[sm as usize] == Some(LaunchId(of)) && word.contains(sm))
        })
    };
    assert!(grants(&world, plain), "its blocks are no more than they should be");
    let other = world.submit(2, 3, 100, &[]);
    assert_eq!(has(&world, other), 2);
    assert!(!grants(&world, other), "the SMs are for blocks that can be nowhere else");
    world.run_out();
}

#[test]
fn an_urgent_chain_of_plain_grids_does_not_grow_behind_less_urgent_blocks() {
    let mut world = World::new(4, 1, StaticPriority::new());
    let urgent = |stream, priority, tasks| {
        let urgency = Urgency { priority: Priority(priority), ..Urgency::default() };
        let predicted = Some(Duration::from_micros(10));
        (stream, tasks, Asks { urgency, plain: true, predicted, ..Asks::default() })
    };
    let submit =
        |world: &mut World, (stream, tasks, asks)| world.submit_asking(stream, tasks, &[], asks);
    submit(&mut world, urgent(0, 5, 2));
    submit(&mut world, urgent(1, 0, 100));
    submit(&mut world, urgent(0, 5, 100));
    assert_eq!(world.queued_ahead, 0, "it would stand behind blocks that wait");
    world.run_out();
    let mut world = World::new(4, 1, StaticPriority::new());
    submit(&mut world, urgent(0, 0, 2));
    submit(&mut world, urgent(1, 0, 100));
    submit(&mut world, urgent(0, 0, 100));
    assert_eq!(world.queued_ahead, 1, "as urgent, and older");
    world.run_out();
}

/// Kernels that need fewer SMs each, as those of Needleman and Wunsch. On SMs that the next one is to have, blocks of a batch
/// launch could keep it out until that is over (H200).
#[test]
fn no_block_that_comes_back_stays_on_sms_of_a_more_urgent_launch() {
    for plain in [true, false] {
        let mut world = World::new(8, 1, StaticPriority::new());
        let batch = world.submit(0, 0, 100_000, &[]);
        (0..40).for_each(|_| world.step_cohort(0));
        let urgency = Urgency { priority: Priority(1), ..Urgency::default() };
        let predicted = Some(Duration::from_micros(10));
        let asks = Asks { urgency, predicted, plain, ..Asks::default() };
        let chain: Vec<_> =
            (1..=6).rev().map(|tasks| world.submit_asking(1, tasks, &[], asks)).collect();
        let mut beside = 0;
        for round in 0..20_000 {
            if chain.iter().all(|&op| world.is_finished(op)) {
                break;
            }
            world.step_cohort(round % world.cohorts.len());
            let has_sms = |op: &OpKey| {
                let launch = world.engine.ops.get(*op).and_then(|op| op.launch.as_ref());
                launch.is_some_and(|launch| !launch.range.is_empty())
            };
            if !chain.iter().any(has_sms) {
                continue;
            }
            let owners = world.engine.owners();
            for cohort in world.cohorts.iter().filter(|cohort| cohort.order.op == batch) {
                let word = world.words.get(&cohort.order.queue).copied();
                let word = word.unwrap_or(cohort.order.signal).range();
                let is_its = |sm: u32| owners[sm as usize] == Some(LaunchId(batch));
                assert!((0..8).all(|sm| is_its(sm) || !word.contains(sm)), "{:?}", cohort.order);
                beside += u32::from(!cohort.order.is_first && word != SmRange::EMPTY);
            }
        }
        assert!(beside > 0, "it gets SMs back beside the chain");
        world.handle(Event::Cancel { op: batch });
        world.run_out();
    }
}

/// Blocks for its SMs that left elsewhere come back once no more urgent launch is there, if what is left takes long enough.
#[test]
fn a_launch_with_too_few_blocks_is_filled_up_when_it_is_alone() {
    let (short, long) = (Duration::from_micros(10), Duration::from_millis(100));
    for (predicted, is_filled) in [(long, true), (short, false)] {
        let mut world = World::new(8, 1, StaticPriority::new());
        let asks = |priority, predicted| {
            let urgency = Urgency { priority: Priority(priority), ..Urgency::default() };
            Asks { urgency, predicted: Some(predicted), ..Asks::default() }
        };
        let batch = world.submit_asking(0, 100_000, &[], asks(0, predicted));
        let end = |world: &mut World, op, but: Option<OpKey>| {
            for _ in 0..2000 {
                let steps = |of: &Cohort| Some(of.order.op) != but;
                let Some(at) = world.cohorts.iter().position(|of| of.order.op == op) else { break };
                world.step_cohort(at);
                for at in 0..world.cohorts.len() {
                    if world.cohorts.get(at).is_some_and(steps) && !world.is_finished(op) {
                        world.step_cohort(at);
                    }
                }
            }
            assert!(world.is_finished(op));
        };
        let thin = |world: &World| {
            let launch = world.engine.ops.get(batch).and_then(|op| op.launch.as_ref());
            launch.is_some_and(|launch| launch.thin)
        };
        let disturb = |world: &mut World| {
            let [wide, narrow] = [(1, 4), (2, 2)]
                .map(|(stream, tasks)| world.submit_asking(stream, tasks, &[], asks(1, short)));
            assert!(!thin(world));
            end(world, wide, Some(narrow));
            assert!(thin(world), "SMs came back beside an urgent launch");
            end(world, narrow, None);
        };
        disturb(&mut world);
        let mut again =
            world.cohorts.iter().filter(|of| of.order.op == batch && !of.order.is_first);
        assert_eq!(again.any(|of| of.order.blocks == 8), is_filled, "for all SMs at once");
        assert_eq!(thin(&world), !is_filled);
        if is_filled {
            // Those that were told to leave do.
            (0..200).for_each(|step| world.step_cohort(step % world.cohorts.len()));
            disturb(&mut world);
            assert!(thin(&world), "it was filled up a moment ago");
            world.pass(10 * Costs::h200().gap());
            assert!(!thin(&world), "a tenth of the time is for that");
        }
        world.handle(Event::Cancel { op: batch });
        world.run_out();
    }
}

#[test]
fn plain_launches_are_queued_ahead_for_a_limited_time() {
    let asks = |micros| Asks {
        hardware_stop: Some(Duration::from_micros(5)),
        predicted: Some(Duration::from_micros(micros)),
        ..Asks::default()
    };
    for (micros, queued) in [(10, 6), (30, 4), (400, 2), (2000, 1)] {
        let mut world = World::new(4, 1, StaticPriority::new());
        (0..6).for_each(|_| _ = world.submit_asking(0, 10, &[], asks(micros)));
        assert_eq!(world.cohorts.len(), queued, "{micros} µs each");
        world.run_out();
    }
}

/// Launches of one stream that may have either form. Those of 2 ms are not queued ahead behind one another.
fn stream_of_either(world: &mut World, micros: u64, launches: usize) -> Vec<OpKey> {
    let asks = Asks {
        hardware_stop: Some(Duration::from_micros(5)),
        predicted: Some(Duration::from_micros(micros)),
        ..Asks::default()
    };
    let ops = (0..launches).map(|_| world.submit_asking(0, 10, &[], asks)).collect();
    (0..6).for_each(|_| world.step_cohort(0));
    ops
}

fn ran_plain(world: &mut World, op: OpKey) -> bool {
    let Some(Outcome::Done(report)) = world.op(op).finished else { return false };
    report.plain && report.tasks == 10
}

#[test]
fn a_cancelled_plain_grid_is_told_nothing_and_what_waits_behind_it_goes_on() {
    let mut world = World::new(4, 1, StaticPriority::new());
    let [running, waiting, behind] = stream_of_either(&mut world, 2000, 3)[..] else { panic!() };
    [running, waiting].into_iter().for_each(|op| world.handle(Event::Cancel { op }));
    assert_eq!(world.op(waiting).finished, Some(Outcome::Cancelled { done: 0 }));
    assert!(world.op(running).claimed > 0 && !world.is_finished(running));
    assert!(world.words.is_empty() && world.cohorts.len() == 1, "its blocks look at no signal");
    world.run_out();
    assert!(ran_plain(&mut world, running) && ran_plain(&mut world, behind));
    assert!(!world.op(waiting).started);
}

#[test]
fn a_closed_engine_ends_with_the_plain_grid_that_runs() {
    let mut world = World::new(4, 1, StaticPriority::new());
    let [running, waiting, behind] = stream_of_either(&mut world, 2000, 3)[..] else { panic!() };
    world.handle(Event::Close);
    for op in [waiting, behind] {
        assert_eq!(world.op(op).finished, Some(Outcome::Closed { done: 0 }));
    }
    assert!(world.engine.is_busy() && world.words.is_empty() && world.cohorts.len() == 1);
    world.run_out();
    assert!(ran_plain(&mut world, running));
    assert!(!world.op(waiting).started && !world.op(behind).started);
}

/// `check_alone` checks that nothing else is on the device when the opaque work starts.
#[test]
fn a_drain_waits_for_the_plain_grids_on_the_device_and_for_no_other() {
    for (micros, on_device) in [(2000, 1), (30, 4)] {
        for exclusive in [true, false] {
            let mut world = World::new(4, 1, StaticPriority::new());
            let ops = stream_of_either(&mut world, micros, 6);
            assert_eq!(world.cohorts.len(), on_device);
            let opaque = Some(Opaque { name: "opaque", variant: 0, exclusive });
            let alone = world.ask(Asked { stream: 1, opaque, ..Asked::default() });
            while !world.copies.contains(&alone) {
                world.step_cohort(0);
            }
            let started = ops.iter().filter(|&&op| world.op(op).started).count();
            assert_eq!((started, world.words.len()), (on_device, 0), "{micros} µs each");
            world.run_out();
            assert!(ops.iter().all(|&op| ran_plain(&mut world, op)));
        }
    }
}
