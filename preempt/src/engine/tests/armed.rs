//! Armed programs: a gate before their first launch, and what it tells when it is opened.

use std::cell::Cell;

use super::world::{Asked, Asks, QUEUES, World};
use super::*;
use crate::policy::{Arrival, DeviceView, FairShare, Fifo};

const SMS: u32 = 4;

/// An urgent program of a stream.
fn arm(world: &mut World, stream: u32, calls: &[i32], uses: &[Use]) -> OpKey {
    let asks = Asks {
        urgency: Urgency { priority: Priority(5), ..Urgency::default() },
        ..Asks::default()
    };
    let op = world.ask(Asked { stream, asks, calls, uses, armed: true, ..Asked::default() });
    // One launch goes to the device at a time.
    (0..calls.len() + 1).for_each(|_| world.act());
    op
}

fn writes(buffer: u64) -> Use {
    let (buffer, access) = (BufferId::Own(buffer), Access::Write);
    Use { buffer, bytes: WHOLE, access, overwrites: false }
}

/// The launches on the device, those of a queue one after the other.
fn on_device(world: &World) -> Vec<OpKey> {
    world.cohorts.iter().map(|cohort| cohort.order.op).collect()
}

fn report(world: &mut World, op: OpKey) -> Option<LaunchReport> {
    match world.op(op).finished? {
        Outcome::Done(report) => Some(report),
        _ => None,
    }
}

fn tasks_done(world: &mut World, op: OpKey) -> Option<u32> {
    Some(report(world, op)?.tasks)
}

/// A world with a long launch that has all SMs and runs, and its operation.
fn with_victim() -> (World, OpKey) {
    let mut world = World::new(SMS, 1, StaticPriority::new());
    let victim = world.submit(0, 0, 1000, &[]);
    (0..20).for_each(|_| world.step_cohort(0));
    (world, victim)
}

#[test]
fn what_a_gate_tells_is_what_the_policy_decides_after_the_release() {
    // The program fills the device, or a part of it.
    for tasks in [100, 2] {
        let (mut world, victim) = with_victim();
        let op = arm(&mut world, 1, &[tasks], &[]);
        let call = world.engine.calls(op)[0];
        assert_eq!(on_device(&world), [victim, call]);
        assert!(world.cohorts[1].order.gated);
        let queue = world.cohorts[0].order.queue;
        assert_eq!(world.words.get(&queue), None, "the victim keeps what it has");
        world.release(0);
        let told = world.told[&queue];
        world.tell_released();
        let word = world.words[&queue];
        assert!(word.is_newer(told) && word.range() == told.range());
        let range = world.engine.ops[call].launch.as_ref().expect("a launch").range;
        assert_eq!(count(range, SMS), SMS.min(tasks.unsigned_abs()));
        assert_eq!(on_device(&world), [victim, call], "no other grid is launched for it");
        world.run_out();
        assert!(report(&mut world, op).is_some_and(|report| report.armed));
        assert_eq!(tasks_done(&mut world, op), Some(tasks.unsigned_abs()));
        assert_eq!(tasks_done(&mut world, victim), Some(1000));
    }
}

#[test]
fn what_a_gate_has_told_is_not_decided_anew_by_how_far_block_tasks_are() {
    let mut world = World::new(SMS, 1, StaticPriority::new());
    let predicted = Some(Duration::from_millis(100));
    let victim = world.submit_asking(0, 1000, &[], Asks { predicted, ..Asks::default() });
    assert!(world.cohorts[0].order.tells_progress);
    let op = arm(&mut world, 1, &[2], &[]);
    world.release(0);
    world.engine.handle(world.now, Event::Release { op }, &mut world.actions);
    let is_read = Cell::new(false);
    let look = |_: &[QueueIndex]| -> Vec<Told> {
        is_read.set(true);
        Vec::new()
    };
    world.engine.settle_by(world.now, &look, &mut world.actions);
    assert!(!is_read.get());
    world.act();
    world.run_out();
    assert!(report(&mut world, op).is_some_and(|report| report.armed));
    assert_eq!(tasks_done(&mut world, victim), Some(1000));
}

#[test]
fn a_released_program_may_be_over_before_the_engine_hears_of_it() {
    let (mut world, victim) = with_victim();
    let op = arm(&mut world, 1, &[3, 2, 4], &[]);
    assert_eq!(world.cohorts.len(), 4, "its calls are behind the gate");
    world.release(0);
    // The victim leaves because the gate has told it to, and starts anew.
    for round in 0.. {
        let calls = world.engine.calls(op).to_vec();
        if calls.into_iter().all(|call| world.op(call).claimed == world.op(call).tasks) {
            break;
        }
        world.step_cohort(round % world.cohorts.len());
    }
    assert!(world.op(op).finished.is_none() && world.op(victim).finished.is_none());
    world.tell_released();
    world.run_out();
    assert_eq!(tasks_done(&mut world, op), Some(9));
    assert_eq!(tasks_done(&mut world, victim), Some(1000));
    assert_eq!(world.bounced, 0);
}

#[test]
fn a_program_whose_gate_has_left_does_nothing() {
    let (mut world, victim) = with_victim();
    let op = arm(&mut world, 1, &[3, 2], &[writes(0)]);
    world.disarm_one();
    assert_eq!(world.op(op).finished, Some(Outcome::Cancelled { done: 0 }));
    // Its blocks wait for room to leave, and nothing waits for them.
    assert_eq!(world.cohorts.len(), 3);
    let next = world.submit(2, 9, 5, &[writes(0)]);
    assert!(world.cohorts.iter().any(|cohort| cohort.order.op == next));
    world.run_out();
    assert_eq!(tasks_done(&mut world, victim), Some(1000));
    assert_eq!(tasks_done(&mut world, next), Some(5));
}

/// A launch of the program again, which waits for the end of the one before.
#[test]
fn a_program_runs_while_blocks_of_its_disarmed_launch_wait_for_room() {
    let (mut world, victim) = with_victim();
    let reads = Use { access: Access::Read, ..writes(0) };
    let disarmed = arm(&mut world, 1, &[3, 2], &[reads]);
    world.disarm_one();
    let asks = Asks {
        urgency: Urgency { priority: Priority(9), ..Urgency::default() },
        ..Asks::default()
    };
    let (calls, uses): (&[i32], &[Use]) = (&[3, 2], &[reads]);
    let after = Some(disarmed);
    let next = world.ask(Asked { stream: 2, asks, calls, uses, after, ..Asked::default() });
    let of = |world: &World, op| {
        let calls = world.engine.calls(op).to_vec();
        on_device(world).iter().filter(|of| calls.contains(of)).count()
    };
    assert!(of(&world, next) > 0, "it has its turn");
    // What the disarmed launch has on the device gets no room at all.
    let mut round = 0;
    while world.op(next).finished.is_none() {
        round += 1;
        assert!(round < 10_000, "it waits for blocks that need room: {:?}", world.engine);
        let is_of_others = |cohort: &usize| {
            let op = world.cohorts[*cohort].order.op;
            op == victim || world.engine.calls(next).contains(&op)
        };
        let others: Vec<usize> = (0..world.cohorts.len()).filter(is_of_others).collect();
        world.step_cohort(others[round % others.len()]);
    }
    assert_eq!(of(&world, disarmed), 2);
    assert_eq!(tasks_done(&mut world, next), Some(5));
    world.run_out();
    assert_eq!(tasks_done(&mut world, victim), Some(1000));
}

#[test]
fn a_program_gets_its_gate_when_another_gate_has_left() {
    let mut world = World::new(SMS, 1, StaticPriority::new());
    let ops = [1, 2, 3].map(|stream| arm(&mut world, stream, &[1], &[]));
    let gated = |world: &World| world.cohorts.iter().filter(|cohort| cohort.order.gated).count();
    assert_eq!(gated(&world), QUEUES.chains as usize, "one has to wait");
    // Nothing happens but that their limits end.
    world.run_out();
    for op in ops {
        assert_eq!(world.op(op).finished, Some(Outcome::Cancelled { done: 0 }));
    }
}

#[test]
fn none_gets_a_gate_while_a_gate_that_was_disarmed_waits_for_room_to_leave() {
    let (mut world, victim) = with_victim();
    let late = arm(&mut world, 1, &[3], &[]);
    let call = world.engine.calls(late)[0];
    world.disarm_one();
    let next = arm(&mut world, 2, &[2], &[]);
    let nexts_call = world.engine.calls(next)[0];
    assert_eq!(on_device(&world), [victim, call], "it would wait, too");
    // The victim ends, and leaves room.
    while on_device(&world).contains(&victim) {
        world.step_cohort(0);
    }
    for _ in 0..100 {
        if !on_device(&world).contains(&call) {
            break;
        }
        world.step_cohort(0);
    }
    world.act();
    assert_eq!(on_device(&world), [nexts_call]);
    world.release(0);
    world.tell_released();
    world.run_out();
    assert!(report(&mut world, next).is_some_and(|report| report.armed && report.tasks == 2));
}

#[test]
fn a_release_that_comes_late_is_a_launch_like_any_other() {
    let (mut world, _) = with_victim();
    let op = arm(&mut world, 1, &[3, 2], &[]);
    // The gate leaves, and its cohort is not out yet.
    (0..5).for_each(|_| world.step_cohort(1));
    world.release(0);
    world.tell_released();
    world.run_out();
    assert!(report(&mut world, op).is_some_and(|report| !report.armed && report.tasks == 5));
    assert!(world.bounced > 0, "what was queued behind it did nothing");
}

#[test]
fn other_operations_on_its_stream_or_its_buffers_disarm_it() {
    // A stream and a buffer, and whether they are those of the program.
    for (stream, buffer, disarms) in [(1, 7, true), (2, 0, true), (2, 7, false)] {
        let (mut world, _) = with_victim();
        let op = arm(&mut world, 1, &[3], &[writes(0)]);
        let other = world.submit(stream, 0, 2, &[writes(buffer)]);
        let out = |world: &mut World| {
            (0..200).for_each(|round| world.step_cohort(round % world.cohorts.len().max(1)));
        };
        out(&mut world);
        let ended = world.op(op).finished;
        assert_eq!(ended, disarms.then_some(Outcome::Cancelled { done: 0 }), "{stream} {buffer}");
        world.run_out();
        assert_eq!(tasks_done(&mut world, other), Some(2));
    }
}

#[test]
fn it_is_armed_once_what_it_waits_for_is_over() {
    let mut world = World::new(SMS, 1, StaticPriority::new());
    let before = world.submit(1, 0, 8, &[writes(0)]);
    let op = arm(&mut world, 1, &[3], &[writes(0)]);
    assert_eq!(on_device(&world), [before], "it is not queued behind another launch");
    while world.op(before).finished.is_none() {
        world.step_cohort(0);
    }
    world.act();
    assert_eq!(on_device(&world), world.engine.calls(op));
    world.release(0);
    world.run_out();
    assert_eq!(tasks_done(&mut world, op), Some(3));
}

#[test]
fn no_gate_is_put_before_what_would_not_have_its_turn() {
    let mut world = World::new(SMS, 1, StaticPriority::new());
    let urgent = world.submit(0, 9, 40, &[]);
    let op = arm(&mut world, 1, &[40], &[]);
    assert_eq!(on_device(&world), [urgent]);
    while world.op(urgent).finished.is_none() {
        world.step_cohort(0);
    }
    world.act();
    assert_eq!(on_device(&world), world.engine.calls(op));
    world.run_out();
}

#[test]
fn a_launch_that_comes_between_keeps_its_turn() {
    let (mut world, _) = with_victim();
    let op = arm(&mut world, 1, &[40], &[]);
    let more_urgent = world.submit(2, 9, 400, &[]);
    world.release(0);
    world.tell_released();
    let call = world.engine.calls(op)[0];
    let launch = world.engine.ops[call].launch.as_ref().expect("a launch");
    assert!(launch.range.is_empty());
    let of = world.cohorts.iter().find(|cohort| cohort.order.op == call).expect("on the device");
    assert_eq!(world.words[&of.order.queue].range(), SmRange::EMPTY, "it is told to leave");
    world.run_out();
    assert_eq!(tasks_done(&mut world, op), Some(40));
    assert_eq!(tasks_done(&mut world, more_urgent), Some(400));
}

#[test]
fn what_cannot_be_guarded_or_foreseen_is_not_armed() {
    let mut world = World::new(SMS, 1, StaticPriority::new());
    for calls in [&[-3, 2][..], &[0, 3]] {
        // A plain launch, and a copy, would run whether the gate was opened or not.
        let op = arm(&mut world, 1, calls, &[]);
        assert_eq!(world.op(op).finished, Some(Outcome::Cancelled { done: 0 }));
    }
    let mut world = World::new(SMS, 1, FairShare::new());
    let op = arm(&mut world, 1, &[3], &[]);
    assert_eq!(world.op(op).finished, Some(Outcome::Cancelled { done: 0 }));
}

/// The SMs that a gate tells a victim to keep, when something else has happened after it was armed.
fn told_after(change: impl FnOnce(&mut World, OpKey)) -> Option<u32> {
    let (mut world, victim) = with_victim();
    arm(&mut world, 1, &[2], &[]);
    let queue = world.cohorts[0].order.queue;
    change(&mut world, victim);
    world.release(0);
    let told = world.told.get(&queue).map(|told| told.range());
    world.tell_released();
    if told.is_some() {
        let decided = world.words.get(&queue).map(|word| word.range());
        assert_eq!(decided, told, "what the policy decides after the release");
    }
    world.run_out();
    told.map(|told| count(told, SMS))
}

/// Not what was right when it was armed.
#[test]
fn a_gate_tells_what_is_right_when_it_is_opened() {
    assert_eq!(told_after(|_, _| {}), Some(SMS - 2));
    let one_sm_is_taken = told_after(|world, _| {
        world.submit(2, 3, 1, &[]);
        (0..40).for_each(|_| world.step_cohort(0));
    });
    assert_eq!(one_sm_is_taken, Some(SMS - 3));
    let all_are_taken = told_after(|world, _| {
        world.submit(2, 9, 400, &[]);
    });
    assert_eq!(all_are_taken, None, "the program would not have its turn");
    let victim_is_raised = told_after(|world, victim| {
        world.change(Whose::Launch(victim), Change::Priority(Priority(9)));
    });
    assert_eq!(victim_is_raised, None);
    let victim_ends = told_after(|world, victim| world.handle(Event::Cancel { op: victim }));
    assert_eq!(victim_ends, None, "its blocks have been told to leave");
}

struct AdmitsNone(Fifo);

impl Policy for AdmitsNone {
    fn name(&self) -> &str {
        "admits none"
    }

    fn goes_by_order(&self) -> bool {
        true
    }

    fn admits(&mut self, _: Duration, _: &Arrival, _: &dyn DeviceView) -> bool {
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
fn what_would_fail_is_not_armed() {
    let mut world = World::new(SMS, 1, StaticPriority::new());
    let fails = world.submit(0, 0, 4, &[writes(0)]);
    world.op(fails).failed = true;
    world.handle(Event::Fault { op: fails });
    world.run_out();
    let reads = Use { access: Access::Read, ..writes(0) };
    let op = arm(&mut world, 1, &[3], &[reads]);
    assert_eq!(world.op(op).finished, Some(Outcome::Cancelled { done: 0 }));
    let mut world = World::new(SMS, 1, AdmitsNone(Fifo::new()));
    let op = arm(&mut world, 1, &[3], &[]);
    assert_eq!(world.op(op).finished, Some(Outcome::Cancelled { done: 0 }));
}

#[test]
fn a_gate_takes_the_place_of_a_chain() {
    let mut world = World::new(SMS, 1, StaticPriority::new());
    let ops = [1, 2, 3].map(|stream| arm(&mut world, stream, &[2], &[]));
    let gates = world.cohorts.iter().filter(|cohort| cohort.order.gated).count();
    assert_eq!(gates, super::world::QUEUES.chains as usize);
    world.release(0);
    world.tell_released();
    while world.op(ops[0]).finished.is_none() {
        world.step_cohort(0);
    }
    world.act();
    assert_eq!(on_device(&world).len(), 2, "the third one has a gate now");
    world.run_out();
}

#[test]
fn what_a_gate_has_told_hides_no_later_word() {
    let (mut world, victim) = with_victim();
    arm(&mut world, 1, &[2], &[]);
    let queue = world.cohorts[0].order.queue;
    world.release(0);
    assert!(!world.told[&queue].range().is_empty(), "it keeps a part");
    // The engine stops the victim before it hears of the release.
    world.handle(Event::Cancel { op: victim });
    let claimed = world.op(victim).claimed;
    world.run_out();
    assert_eq!(world.op(victim).claimed, claimed, "its blocks have left");
}
