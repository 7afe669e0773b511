//! Confined launches, beside others.

use preempt_device::abi::COHORT_SLOTS;

use super::races::{spec, submission};
use super::world::QUEUES;
use super::*;
use crate::policy::{Arrival, DeviceView, Fifo, Plan, Policy};
use crate::vocabulary::{CohortOrder, QueueCount, Vicinity, queue_bit};

/// A launch of `tasks` block-tasks; an SM holds four of its blocks.
fn four(tasks: u32) -> LaunchSpec {
    LaunchSpec { blocks_per_sm: 4, on_last_sm: 4, ..spec(tasks) }
}

/// The actions that follow when a cohort is out.
fn out(engine: &mut Engine, op: OpKey, slot: u8, done: u32) -> Vec<Action> {
    let (posted, mut actions) = (Posted { done, amortize: 1 }, Vec::new());
    engine.handle(Duration::ZERO, Event::CohortOut { op, slot, posted }, &mut actions);
    engine.settle(Duration::ZERO, &mut actions);
    actions
}

/// An engine for 4 SMs of 4 blocks, with a small urgent launch and a long one that is confined. Returns the engine,
/// their keys and the long one's cohort. Another long one is behind that in its stream, if `chain`.
fn beside_a_small_one(chain: bool) -> (Engine, Vec<OpKey>, CohortOrder) {
    beside(1, 1, chain)
}

/// The same with a launch of this many blocks and this priority.
fn beside(small: u32, priority: i32, chain: bool) -> (Engine, Vec<OpKey>, CohortOrder) {
    let mut engine = Engine::new(4, QUEUES, Costs::h200(), Box::new(StaticPriority::packed()));
    let mut actions = Vec::new();
    let mut submit = |stream: u32, priority: i32, tasks: u32| {
        let submission = submission(stream, priority, four(tasks));
        let op = engine.submit(Duration::ZERO, submission, &mut actions);
        engine.settle(Duration::ZERO, &mut actions);
        op
    };
    let mut ops = vec![submit(0, priority, small), submit(1, 0, 100)];
    if chain {
        ops.push(submit(1, 0, 100));
    }
    let order = launched(&actions, ops[1]).pop().expect("on the device");
    (engine, ops, order)
}

/// The cohorts of a launch that go to the device.
fn launched(actions: &[Action], of: OpKey) -> Vec<CohortOrder> {
    let order = |action: &Action| match action {
        Action::Launch(order) if order.op == of => Some(*order),
        _ => None,
    };
    actions.iter().filter_map(order).collect()
}

#[test]
fn a_long_launch_beside_another_one_is_confined() {
    let (engine, ops, order) = beside_a_small_one(false);
    let owners = engine.owners();
    assert!((0..4).all(|sm| {
        order.signal.range().contains(sm) == (owners[sm as usize] == Some(LaunchId(ops[1])))
    }));
    // Three SMs full, and the blocks that find room beside the small launch.
    assert_eq!((order.blocks, order.handed), (15, 0), "those outside leave at once");
}

#[test]
fn a_long_launch_is_not_confined_where_others_may_keep_its_blocks_out() {
    // Of two SMs, five blocks of another launch may be on both. Spare blocks would all go where they have to leave.
    let (_, _, order) = beside(5, 0, false);
    assert_eq!((order.signal.range(), order.blocks), (SmRange::ALL, 8));
    // Of three SMs, two of them leave one at least.
    let (_, _, order) = beside(2, 0, false);
    assert_ne!(order.signal.range(), SmRange::ALL);
    // Beside a more urgent one it is confined all the same: its blocks would keep others of that out. Of the room on the
    // other two SMs, half of the five blocks take their part.
    let (engine, ops, order) = beside(5, 1, false);
    assert_eq!((order.signal.range(), order.blocks), (SmRange::new(2, 4), 8 + 5));
    assert!(engine.ops[ops[1]].launch.as_ref().is_some_and(|launch| launch.thin));
}

/// Submits a launch that takes this multiple of a gap on the whole device. Returns its key, and the actions that follow.
fn submit(engine: &mut Engine, stream: u32, tasks: u32, gaps: u32) -> (OpKey, Vec<Action>) {
    let mut actions = Vec::new();
    let spec = LaunchSpec { predicted: Some(gaps * Costs::h200().gap()), ..four(tasks) };
    let op = engine.submit(Duration::ZERO, submission(stream, 0, spec), &mut actions);
    engine.settle(Duration::ZERO, &mut actions);
    while engine.may_go_ahead() {
        engine.go_ahead(Duration::ZERO, &mut actions);
    }
    (op, actions)
}

/// The last cohort of a launch in these actions.
fn cohort((op, actions): (OpKey, Vec<Action>)) -> (OpKey, CohortOrder) {
    (op, launched(&actions, op).pop().expect("on the device"))
}

/// The queue grants all SMs, since the blocks of its first launch had to wait for others to leave.
#[test]
fn a_long_launch_keeps_to_its_sms_in_a_queue_that_grants_all() {
    let mut engine = Engine::new(
        4,
        QUEUES,
        Costs::h200(),
        Box::new(Twos { has_four_alone: true, ..Twos::default() }),
    );
    let (batch, beside) = cohort(submit(&mut engine, 1, 100, 1000));
    let (first, order) = cohort(submit(&mut engine, 0, 8, 1));
    let queue = order.queue;
    assert_eq!(order.signal.range(), SmRange::ALL);
    let (long, order) = cohort(submit(&mut engine, 0, 100, 5));
    let own = SmRange::new(0, 2);
    assert_eq!((order.queue, order.signal.range(), order.blocks), (queue, own, 8));
    // A shorter one loses less among others than by spare blocks.
    let (_, behind) = cohort(submit(&mut engine, 0, 100, 4));
    assert_eq!((behind.queue, behind.signal.range()), (queue, SmRange::ALL));

    // Until its turn comes, blocks of the one before it may lie anywhere.
    assert_eq!(engine.queue_range(queue), SmRange::ALL);
    out(&mut engine, first, 0, 8);
    assert_eq!(engine.queue_range(queue), own);
    // It gets the other SMs, and loses them again. Its cohort here has not lost any, and the one behind it has.
    let grown = launched(&out(&mut engine, batch, beside.slot, 100), long);
    assert!(matches!(grown[..], [CohortOrder { blocks: 8, .. }]), "{grown:?}");
    let (_, actions) = submit(&mut engine, 1, 100, 1000);
    let told = actions.iter().find_map(|action| match action {
        Action::Signal { queue: of, signal } if *of == queue => Some(*signal),
        _ => None,
    });
    let told = told.expect("a word");
    assert_eq!((told.range(), told.is_newer(behind.signal)), (own, true));
    out(&mut engine, long, order.slot, 50);
    assert_eq!(engine.queue_range(queue), own, "of the one behind it, too");
}

/// Its spare blocks do not fit on its SMs, and its own word has told them to leave. Another one would be for those behind it, too.
#[test]
fn nothing_is_told_where_a_launch_with_a_word_of_its_own_has_its_turn() {
    let mut engine = Engine::new(
        4,
        QUEUES,
        Costs::h200(),
        Box::new(Twos { has_four_alone: true, ..Twos::default() }),
    );
    cohort(submit(&mut engine, 1, 6, 1000));
    let (first, _) = cohort(submit(&mut engine, 0, 8, 1));
    let (_, order) = cohort(submit(&mut engine, 0, 100, 5));
    assert_eq!(order.signal.range(), SmRange::new(0, 2));
    assert!(order.blocks > 8, "some of them find room beside the other launch");
    let (_, behind) = cohort(submit(&mut engine, 0, 100, 4));
    assert_eq!((behind.queue, behind.signal.range()), (order.queue, SmRange::ALL));
    let actions = out(&mut engine, first, 0, 8);
    let is_told = |action: &Action| matches!(action, Action::Signal { .. });
    assert!(!actions.iter().any(is_told), "{actions:?}");
}

/// Kernels whose blocks may meet on an SM have its memory divided alike: a block keeps those out that want it otherwise.
#[test]
fn blocks_may_meet_those_of_others_where_no_word_keeps_them_apart() {
    let mut actions = Vec::new();
    let mut engine = Engine::new(4, QUEUES, Costs::h200(), Box::new(StaticPriority::packed()));
    let mut submit = |stream: u32, priority: i32, tasks: u32| {
        let op =
            engine.submit(Duration::ZERO, submission(stream, priority, four(tasks)), &mut actions);
        engine.settle(Duration::ZERO, &mut actions);
        let order = launched(&actions, op).pop().expect("on the device");
        (order.signal.range() == SmRange::ALL, order.vicinity.meets, queue_bit(order.queue))
    };
    let (is_anywhere, meets, first) = submit(0, 1, 1);
    assert_eq!((is_anywhere, meets), (true, 0), "alone");
    let (is_anywhere, meets, second) = submit(1, 0, 100);
    assert_eq!((is_anywhere, meets), (false, first), "the first one has blocks anywhere");
    let (is_anywhere, meets, _) = submit(2, 2, 1);
    assert_eq!((is_anywhere, meets), (true, first | second), "it has blocks anywhere");
    assert_eq!(submit(3, 3, 100).1, 0, "it takes all SMs");

    // Once the other one is over, it has none beside it.
    let (mut engine, ops, first) = beside_a_small_one(false);
    let grown = launched(&out(&mut engine, ops[0], 0, 1), ops[1]);
    let met =
        [first].iter().chain(&grown).map(|order| order.vicinity.meets != 0).collect::<Vec<_>>();
    assert_eq!(met, [true, false]);
}

#[test]
fn an_sm_gets_as_many_blocks_of_a_cohort_as_are_for_it() {
    // Twelve for three SMs, and three that leave at once.
    let (_, _, order) = beside_a_small_one(false);
    assert_eq!((order.blocks, order.vicinity.on_sm), (15, 4));
    let mut actions = Vec::new();
    let mut engine = Engine::new(4, QUEUES, Costs::h200(), Box::new(StaticPriority::packed()));
    let mut submit = |stream: u32, tasks: u32| {
        let op = engine.submit(Duration::ZERO, submission(stream, 0, four(tasks)), &mut actions);
        engine.settle(Duration::ZERO, &mut actions);
        engine.go_ahead(Duration::ZERO, &mut actions);
        let order = launched(&actions, op).pop().expect("on the device");
        let Vicinity { on_sm, others, is_behind, .. } = order.vicinity;
        (queue_bit(order.queue), on_sm, others, is_behind)
    };
    let (first, on_sm, others, is_behind) = submit(0, 7);
    assert_eq!((on_sm, others, is_behind), (4, 0, false), "on two SMs");
    let (second, on_sm, others, _) = submit(1, 3);
    assert_eq!((on_sm, others), (3, first), "on the third one");
    let (behind, on_sm, others, is_behind) = submit(0, 5);
    assert_eq!((behind, on_sm, others, is_behind), (first, 3, second, true));
}

#[test]
fn blocks_meet_those_that_have_time_to_leave_the_same_sms() {
    let meets_first = |latency_limit: Option<Duration>| {
        let mut actions = Vec::new();
        let mut engine = Engine::new(4, QUEUES, Costs::h200(), Box::new(StaticPriority::new()));
        let first = engine.submit(Duration::ZERO, submission(0, 0, four(100)), &mut actions);
        engine.settle(Duration::ZERO, &mut actions);
        let mut urgent = submission(1, 1, four(100));
        urgent.urgency.latency_limit = latency_limit;
        let urgent = engine.submit(Duration::ZERO, urgent, &mut actions);
        engine.settle(Duration::ZERO, &mut actions);
        let [first, urgent] = [first, urgent].map(|op| launched(&actions, op)[0]);
        assert!(urgent.vicinity.meets & !queue_bit(first.queue) == 0, "{urgent:?}");
        urgent.vicinity.meets != 0
    };
    assert!(meets_first(Some(Duration::from_millis(1))) && meets_first(Some(Duration::ZERO)));
    assert!(!meets_first(None), "they leave as soon as possible");
}

/// The first stream has the first two SMs, and another one the next two.
#[derive(Default)]
struct Twos {
    launches: Vec<(u32, LaunchId)>,
    /// Whether a launch without another one has all four.
    has_four_alone: bool,
}

impl Policy for Twos {
    fn name(&self) -> &str {
        "two each"
    }

    fn arrived(&mut self, _: Duration, launch: Arrival) {
        self.launches.push((launch.stream, launch.id));
    }

    fn departed(&mut self, _: Duration, launch: LaunchId) {
        self.launches.retain(|of| of.1 != launch);
    }

    fn assign(&mut self, _: Duration, _: &dyn DeviceView, plan: &mut Plan) {
        let has_four = self.has_four_alone && self.launches.len() == 1;
        for &(stream, launch) in &self.launches {
            let from = if stream == 0 || has_four { 0 } else { 2 };
            plan.grant(launch, SmRange::new(from, from + if has_four { 4 } else { 2 }));
        }
    }
}

#[test]
fn blocks_of_launches_that_keep_to_their_sms_do_not_meet() {
    let mut actions = Vec::new();
    let mut engine = Engine::new(8, QUEUES, Costs::h200(), Box::new(Twos::default()));
    let mut submit = |engine: &mut Engine, stream: u32, tasks: u32| {
        let op = engine.submit(Duration::ZERO, submission(stream, 0, four(tasks)), &mut actions);
        engine.settle(Duration::ZERO, &mut actions);
        (op, launched(&actions, op).pop())
    };
    // Nothing keeps its block to its SMs, so the other launch begins beside it.
    let (small, _) = submit(&mut engine, 0, 1);
    let (_, other) = submit(&mut engine, 1, 100);
    let other = other.expect("on the device");
    assert!(other.signal.range() == SmRange::new(2, 4) && other.vicinity.meets != 0, "{other:?}");
    out(&mut engine, small, 0, 1);
    // Now both keep to their SMs, and so does what is queued behind one of them, whose own queue is none of another launch.
    let (_, first) = submit(&mut engine, 0, 100);
    let first = first.expect("on the device");
    assert_eq!((first.signal.range(), first.vicinity.meets), (SmRange::new(0, 2), 0));
    let (second, _) = submit(&mut engine, 0, 100);
    let mut actions = Vec::new();
    engine.go_ahead(Duration::ZERO, &mut actions);
    let ahead = launched(&actions, second);
    let [ahead] = ahead[..] else { panic!("{ahead:?}") };
    assert_eq!((ahead.after.is_some(), ahead.vicinity.meets), (true, 0));
}

#[test]
fn a_long_launch_of_few_blocks_beside_another_one_is_confined() {
    let few = |took| LaunchSpec { predicted: Some(Duration::from_micros(took)), ..four(2) };
    struct Case {
        first_micros: u64,
        next_micros: u64,
        blocks: u32,
        is_confined: bool,
        is_next_queued: bool,
    }
    let both_short = Case {
        first_micros: 99,
        next_micros: 99,
        blocks: 2,
        is_confined: false,
        is_next_queued: true,
    };
    let next_long = Case { next_micros: 100, is_next_queued: false, ..both_short };
    let first_long = Case {
        first_micros: 100,
        blocks: 4,
        is_confined: true,
        is_next_queued: false,
        ..both_short
    };
    for case in [both_short, next_long, first_long] {
        let mut engine = Engine::new(4, QUEUES, Costs::h200(), Box::new(Fifo::new()));
        let mut actions = Vec::new();
        let mut submit = |engine: &mut Engine, stream, spec| {
            engine.submit(Duration::ZERO, submission(stream, 0, spec), &mut actions)
        };
        let took = [case.first_micros, case.next_micros];
        let [first, next] = took.map(|took| submit(&mut engine, 0, few(took)));
        submit(&mut engine, 1, four(100));
        engine.settle(Duration::ZERO, &mut actions);
        let order = launched(&actions, first).pop().expect("on the device");
        assert_eq!(order.blocks, case.blocks);
        assert_eq!(order.signal.range() != SmRange::ALL, case.is_confined);
        // A long launch of few blocks is not queued either where its blocks could lie anywhere.
        engine.go_ahead(Duration::ZERO, &mut actions);
        assert_eq!(launched(&actions, next).len() == 1, case.is_next_queued);
    }
}

#[test]
fn a_long_launch_with_a_block_for_each_task_is_not_confined_where_one_could_lack_room() {
    let order_of = |tasks: u32, policy: StaticPriority| {
        let mut engine = Engine::new(4, QUEUES, Costs::h200(), Box::new(policy));
        let mut actions = Vec::new();
        // Nothing keeps its block to its SM.
        engine.submit(Duration::ZERO, submission(0, 0, four(1)), &mut actions);
        engine.settle(Duration::ZERO, &mut actions);
        let long = LaunchSpec { predicted: Some(Duration::from_micros(200)), ..four(tasks) };
        let op = engine.submit(Duration::ZERO, submission(1, 1, long), &mut actions);
        engine.settle(Duration::ZERO, &mut actions);
        launched(&actions, op).pop().expect("on the device")
    };
    // A block that left would have its task wait for the others' ends.
    let full = order_of(8, StaticPriority::packed());
    assert_eq!((full.signal.range(), full.blocks, full.handed), (SmRange::ALL, 8, 8));
    let spread = order_of(2, StaticPriority::new());
    assert_ne!(spread.signal.range(), SmRange::ALL, "one of its two SMs holds both");
}

#[test]
fn a_launch_that_finds_others_on_its_sms_is_not_confined_without_end() {
    // Beside a more urgent one it is two times more: that one's next kernel has its blocks elsewhere.
    for (priority, more) in [(0, 0), (1, 2)] {
        let (mut engine, ops, mut order) = beside(1, priority, false);
        for round in 0..=more {
            let again = launched(&out(&mut engine, ops[1], order.slot, 0), ops[1]);
            let [again] = again[..] else { panic!("{again:?}") };
            let expected =
                if round == more { (SmRange::ALL, 12) } else { (SmRange::new(1, 4), 15) };
            assert_eq!((again.signal.range(), again.blocks), expected);
            order = again;
        }
    }
    // Not if each of its cohorts does something.
    let (mut engine, ops, mut order) = beside(1, 1, false);
    for _ in 0..10 {
        let again = launched(&out(&mut engine, ops[1], order.slot, 1), ops[1]);
        let [again] = again[..] else { panic!("{again:?}") };
        assert_eq!(again.signal.range(), SmRange::new(1, 4));
        order = again;
    }
}

/// It has a cohort for each small launch that has ended, until no slot is free. Then the two that are for one SM each make room for
/// one, which is for the SM without blocks, too.
#[test]
fn a_launch_without_a_free_slot_has_its_smallest_cohorts_merged() {
    let small = COHORT_SLOTS as u32 + 1;
    let queues = QueueCount { normal: 2 * small, ..QUEUES };
    let policy = Box::new(StaticPriority::packed());
    let mut engine = Engine::new(small + 1, queues, Costs::h200(), policy);
    let mut actions = Vec::new();
    let mut submit = |stream, tasks| {
        let op = engine.submit(Duration::ZERO, submission(stream, 0, four(tasks)), &mut actions);
        engine.settle(Duration::ZERO, &mut actions);
        op
    };
    let others: Vec<_> = (0..small).map(|stream| submit(stream, 1)).collect();
    let long = submit(small, 1000);
    let state = |engine: &Engine| {
        let launch = engine.ops[long].launch.as_ref().expect("it is there");
        (launch.free_slot().is_some(), launch.thin)
    };
    let told = |actions: &[Action]| {
        let told = |action: &Action| match action {
            Action::Signal { queue, signal } if signal.range() == SmRange::EMPTY => Some(*queue),
            _ => None,
        };
        actions.iter().filter_map(told).collect::<Vec<_>>()
    };
    let smallest = |engine: &Engine| {
        let launch = engine.ops[long].launch.as_ref().expect("it is there");
        [0, 1].map(|slot| launch.cohorts[slot].expect("a cohort").queue).to_vec()
    };
    for (index, &other) in others.iter().enumerate() {
        let actions = out(&mut engine, other, 0, 1);
        let (is_free, merged) = match index + 1 {
            cohorts if cohorts < COHORT_SLOTS - 1 => (true, Vec::new()),
            cohorts if cohorts == COHORT_SLOTS - 1 => (false, Vec::new()),
            cohorts if cohorts == COHORT_SLOTS => (false, smallest(&engine)),
            // These are on their way out, and what comes then is for this SM, too.
            _ => (false, Vec::new()),
        };
        assert_eq!((state(&engine), told(&actions)), ((is_free, false), merged), "{index}");
    }
    let again = launched(&out(&mut engine, long, 0, 1), long);
    let [again] = again[..] else { panic!("{again:?}") };
    assert_eq!((again.slot, again.blocks), (0, 4 * 4), "two SMs of them, and two without");
    assert!(launched(&out(&mut engine, long, 1, 1), long).is_empty());
}

/// Blocks of the launch that loses these SMs have yet to leave. Until then confined blocks would start beside the more urgent
/// launch alone, and leave.
#[test]
fn a_launch_that_takes_its_sms_beside_a_more_urgent_one_is_not_confined() {
    let mut engine = Engine::new(4, QUEUES, Costs::h200(), Box::new(StaticPriority::packed()));
    let mut actions = Vec::new();
    let mut submit = |priority: i32, tasks: u32| {
        let submission = submission(priority as u32, priority, four(tasks));
        let op = engine.submit(Duration::ZERO, submission, &mut actions);
        engine.settle(Duration::ZERO, &mut actions);
        op
    };
    let [_, _, taking] =
        [(0, 100), (2, 1), (1, 100)].map(|(priority, tasks)| submit(priority, tasks));
    let order = launched(&actions, taking).pop().expect("on the device");
    assert_eq!((order.signal.range(), order.blocks), (SmRange::ALL, 12));
}

#[test]
fn a_launch_that_starts_over_is_not_thin_any_more() {
    let (mut engine, ops, order) = beside(5, 1, false);
    let thin = |engine: &Engine| engine.ops[ops[1]].launch.as_ref().is_some_and(|of| of.thin);
    assert!(thin(&engine));
    let mut actions = Vec::new();
    let urgent = engine.submit(Duration::ZERO, submission(2, 2, four(100)), &mut actions);
    engine.settle(Duration::ZERO, &mut actions);
    out(&mut engine, ops[1], order.slot, 10);
    out(&mut engine, ops[0], 0, 5);
    let again = launched(&out(&mut engine, urgent, 0, 100), ops[1]);
    assert!(matches!(again[..], [CohortOrder { blocks: 16, .. }]), "{again:?}");
    assert!(!thin(&engine));
}

#[test]
fn a_launch_that_was_told_to_leave_is_confined_when_it_resumes() {
    let (mut engine, ops, order) = beside_a_small_one(false);
    let mut actions = Vec::new();
    let urgent = engine.submit(Duration::ZERO, submission(2, 2, four(100)), &mut actions);
    engine.settle(Duration::ZERO, &mut actions);
    for (op, slot, done) in [(ops[0], 0, 0), (ops[1], order.slot, 10), (urgent, 0, 100)] {
        actions.extend(out(&mut engine, op, slot, done));
    }
    let again = launched(&actions, ops[1]);
    let [again] = again[..] else { panic!("{again:?}") };
    assert_eq!((again.signal.range(), again.blocks), (order.signal.range(), 15));
}

#[test]
fn a_launch_in_a_confined_queue_gets_the_other_sms_when_its_turn_comes() {
    let (mut engine, ops, order) = beside_a_small_one(true);
    let mut actions = Vec::new();
    engine.go_ahead(Duration::ZERO, &mut actions);
    let ahead = launched(&actions, ops[2]);
    assert!(matches!(ahead[..], [CohortOrder { after: Some(_), blocks: 15, .. }]), "{ahead:?}");
    let [small, long, next] = ops[..] else { panic!("{ops:?}") };
    let grown = launched(&out(&mut engine, small, 0, 1), long);
    let [more] = grown[..] else { panic!("{grown:?}") };
    assert_eq!((more.signal.range(), more.blocks), (SmRange::ALL, 4));
    out(&mut engine, long, more.slot, 40);
    let rest = launched(&out(&mut engine, long, order.slot, 60), next);
    assert!(matches!(rest[..], [CohortOrder { after: None, blocks: 4, .. }]), "{rest:?}");
}

#[test]
fn a_small_launch_is_not_queued_in_a_confined_queue() {
    let (mut engine, ops, _) = beside_a_small_one(false);
    let mut actions = Vec::new();
    let small = engine.submit(Duration::ZERO, submission(1, 0, four(12)), &mut actions);
    engine.go_ahead(Duration::ZERO, &mut actions);
    assert!(
        launched(&actions, small).is_empty(),
        "each block does one task, and those outside none"
    );
    assert_eq!(launched(&out(&mut engine, ops[1], 0, 100), small).len(), 1);
}
