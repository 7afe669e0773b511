//! Suspended streams.

use super::*;
use crate::policy::EarliestDeadline;

fn owners(world: &World) -> Vec<Option<OpKey>> {
    world.engine.owners().iter().map(|owner| owner.map(|id| id.0)).collect()
}

#[test]
fn a_suspended_stream_leaves_the_device_to_others_and_goes_on() {
    let mut world = World::new(4, 1, StaticPriority::new());
    // The second one is queued ahead, and bounces.
    let [first, second] = [0, 1].map(|_| world.submit(0, 5, 12, &[]));
    assert_eq!((world.queued_ahead, owners(&world)), (1, vec![Some(first); 4]));
    world.suspend(0, true);
    let behind = world.submit(0, 5, 2, &[]);
    let other = world.submit(1, 0, 12, &[]);
    // Less urgent, it has all SMs.
    assert_eq!(owners(&world), [Some(other); 4]);
    while !world.is_finished(other) {
        world.step_cohort(0);
    }
    assert_eq!(owners(&world), [None; 4]);
    assert!(world.cohorts.is_empty() && world.engine.wake().is_none());
    assert!(world.engine.is_busy() && !world.engine.is_in_flight());
    assert!([first, second, behind].iter().all(|&op| !world.is_finished(op)));
    world.suspend(0, false);
    assert_eq!(owners(&world), [Some(first); 4]);
    world.run_out();
}

#[test]
fn a_stream_goes_on_when_it_was_resumed_as_often_as_suspended() {
    let mut world = World::new(2, 1, StaticPriority::new());
    let launch = world.submit(0, 0, 4, &[]);
    // Once more than needed.
    world.suspend(0, false);
    assert_eq!(owners(&world), [Some(launch); 2]);
    world.suspend(0, true);
    world.suspend(0, true);
    world.suspend(0, false);
    assert_eq!(owners(&world), [None; 2]);
    world.suspend(0, false);
    assert_eq!(owners(&world), [Some(launch); 2]);
    world.run_out();
}

/// A stream whose next launch mostly comes 5 µs after the last one, beside a launch that takes 20 µs to yield.
#[test]
fn no_sms_stay_free_for_a_suspended_stream() {
    let mut world = World::with(4, 1, Box::new(StaticPriority::new().anticipating()));
    let micros = Duration::from_micros;
    let batch = Asks { yield_overhead: micros(20), ..Asks::default() };
    let batch = world.submit_asking(0, 1000, &[], batch);
    for _ in 0..3 {
        let launch = world.submit(1, 1, 4, &[]);
        while !world.is_finished(launch) {
            world.step_cohort(0);
        }
        world.pass(micros(5));
    }
    assert_eq!(owners(&world), [None; 4], "the next one is expected");
    let next = world.submit(1, 1, 4, &[]);
    assert_eq!(owners(&world), [Some(next); 4]);
    world.suspend(1, true);
    assert_eq!(owners(&world), [Some(batch); 4]);
    world.run_out();
}

#[test]
fn a_deadline_is_missed_once_however_often_a_launch_is_suspended() {
    let policy = EarliestDeadline::new();
    let missed = policy.missed();
    let mut world = World::new(1, 1, policy);
    let deadline = Some(Duration::from_micros(10));
    let urgency = Urgency { deadline, ..Urgency::default() };
    world.submit_asking(0, 4, &[], Asks { urgency, ..Asks::default() });
    world.pass(Duration::from_micros(20));
    for is_suspended in [true, false, true, false] {
        world.suspend(0, is_suspended);
    }
    assert_eq!(missed.count(), 0);
    world.run_out();
    assert_eq!(missed.count(), 1);
}

#[test]
fn suspended_launches_can_be_ended() {
    for event in [|op| Event::Cancel { op }, |op| Event::Revoke { op }, |_| Event::Close] {
        for is_out in [false, true] {
            let mut world = World::new(2, 1, StaticPriority::new());
            let [first, second] = [0, 1].map(|_| world.submit(0, 0, 6, &[]));
            world.suspend(0, true);
            while is_out && !world.cohorts.is_empty() {
                world.step_cohort(0);
            }
            [first, second].into_iter().for_each(|op| world.handle(event(op)));
            while !world.cohorts.is_empty() {
                world.step_cohort(0);
            }
            // It is not resumed.
            assert!([first, second].iter().all(|&op| world.is_finished(op)), "{:?}", world.engine);
            assert!(!world.engine.is_busy());
        }
    }
}

#[test]
fn an_armed_program_of_a_suspended_stream_has_no_gate() {
    for is_armed_before in [false, true] {
        let mut world = World::new(2, 1, StaticPriority::new());
        if !is_armed_before {
            world.suspend(0, true);
        }
        let asked = Asked { calls: &[4, 4], armed: true, ..Asked::default() };
        let program = world.ask(asked);
        assert_eq!(world.cohorts.len(), usize::from(is_armed_before));
        if is_armed_before {
            world.suspend(0, true);
            while !world.cohorts.is_empty() {
                world.step_cohort(0);
            }
        }
        assert!(world.is_finished(program), "it was disarmed");
        world.run_out();
    }
}
