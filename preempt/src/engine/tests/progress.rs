//! How far block-tasks are, as policies see it.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};

use preempt_device::abi::COHORT_SLOTS;

use super::races::{spec, submission};
use super::world::QUEUES;
use super::*;
use crate::policy::{Arrival, DeviceView, Plan, Policy};
use crate::vocabulary::{CohortOrder, QueueCount};

const SMS: u32 = 4;

/// What was seen of each SM in each decision.
type Seen = Arc<Mutex<Vec<Vec<u64>>>>;

/// Decides as another policy does, and notes what SMs cost.
struct Notes(StaticPriority, Seen);

impl Policy for Notes {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn arrived(&mut self, now: Duration, launch: Arrival) {
        self.0.arrived(now, launch);
    }

    fn departed(&mut self, now: Duration, launch: LaunchId) {
        self.0.departed(now, launch);
    }

    fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        let costs = (0..device.sms()).map(|sm| device.sm_yield_overhead(sm).as_micros() as u64);
        self.1.lock().expect("no panic").push(costs.collect());
        self.0.assign(now, device, plan);
    }
}

/// An engine in which a long launch runs on all SMs, with block-tasks of 500 us; with it, what its policy sees, and the launch's
/// first cohort.
fn engine(leaving: Leaving) -> (Engine, Seen, CohortOrder) {
    engine_of(SMS, QUEUES, LaunchSpec { leaving, ..spec(400) })
}

fn engine_of(sms: u32, queues: QueueCount, spec: LaunchSpec) -> (Engine, Seen, CohortOrder) {
    let seen = Seen::default();
    let policy = Notes(StaticPriority::default(), seen.clone());
    let mut engine = Engine::new(sms, queues, Costs::h200(), Box::new(policy));
    engine.record();
    let long = LaunchSpec { predicted: Some(Duration::from_millis(50)), ..spec };
    let actions = take_in(&mut engine, 0, 0, long);
    let order = actions.iter().find_map(|action| match action {
        Action::Launch(order) => Some(*order),
        _ => None,
    });
    (engine, seen, order.expect("a cohort"))
}

/// Submits a launch and decides.
fn take_in(engine: &mut Engine, stream: u32, priority: i32, spec: LaunchSpec) -> Vec<Action> {
    let mut actions = Vec::new();
    engine.submit(Duration::ZERO, submission(stream, priority, spec), &mut actions);
    engine.settle(Duration::ZERO, &mut actions);
    actions
}

/// Decides, where this can be read; the queues that were looked at.
fn decide(engine: &mut Engine, now: Duration, tasks: &[(u32, u64)]) -> Vec<QueueIndex> {
    let looked = RefCell::default();
    let look = |queues: &[QueueIndex]| -> Vec<Told> {
        looked.replace(queues.to_vec());
        queues.iter().map(|&queue| (queue, running(tasks))).collect()
    };
    engine.settle_by(now, &look, &mut Vec::new());
    looked.into_inner()
}

fn running(of: &[(u32, u64)]) -> Vec<Running> {
    let running =
        |&(sm, since)| Running { sm, since: Duration::from_micros(since), is_spent: false };
    of.iter().map(running).collect()
}

#[test]
fn what_is_known_of_block_tasks_is_a_cost_in_one_decision() {
    let cases = [
        // What is done is done again.
        (Leaving::Dropping, [150, 100, 200, 0]),
        // The last one on the SM ends; what is beyond the limit counts for each SM.
        (Leaving::AtEnd, [450 + 449 * 3, 400 + 399 * 3, 300 + 299 * 3, 0]),
        (Leaving::Switching, [0; 4]),
    ];
    for (leaving, expected) in cases {
        let (mut engine, seen, order) = engine(leaving);
        assert!(order.tells_progress);
        // With a limit that no rest fits, a look is due of all.
        let limit = Some(Duration::from_micros(1));
        let urgency = Urgency { priority: Priority(1), latency_limit: limit, ..Urgency::default() };
        let submission = Submission { urgency, ..submission(1, 1, spec(1)) };
        engine.submit(Duration::ZERO, submission, &mut Vec::new());
        // Two blocks on the first SM; of the last one nothing is known, and another is none of the device's.
        let tasks = [(0, 50), (0, 100), (1, 100), (2, 200), (7, 300)];
        assert_eq!(decide(&mut engine, Duration::ZERO, &tasks), [order.queue]);
        assert_eq!(seen.lock().expect("no panic").last(), Some(&expected.to_vec()), "{leaving:?}");

        take_in(&mut engine, 2, 2, spec(1));
        let seen = seen.lock().expect("no panic");
        assert_eq!((seen.len(), seen.last()), (3, Some(&vec![0; 4])), "not in the next one");
    }
}

#[test]
fn blocks_that_end_their_block_tasks_within_a_limit_cost_the_wait_for_the_last_one() {
    let (mut engine, seen, _) = engine(Leaving::Dropping);
    let limit = Some(Duration::from_micros(120));
    let urgency = Urgency { priority: Priority(1), latency_limit: limit, ..Urgency::default() };
    let submission = Submission { urgency, ..submission(1, 1, spec(1)) };
    engine.submit(Duration::ZERO, submission, &mut Vec::new());
    // Of 500 us, the rest of some is within the limit. In any order.
    let tasks = [(0, 450), (0, 400), (1, 100), (1, 420), (2, 420), (2, 100), (2, 430)];
    decide(&mut engine, Duration::ZERO, &tasks);
    assert_eq!(seen.lock().expect("no panic").last(), Some(&vec![100, 180, 180, 0]));
}

/// Submits an urgent launch that needs one SM; whether the running one is looked at.
fn is_watched(engine: &mut Engine, now: Duration, limit: Option<Duration>) -> bool {
    let urgency = Urgency { priority: Priority(1), latency_limit: limit, ..Urgency::default() };
    let submission = Submission { urgency, ..submission(1, 1, spec(1)) };
    engine.submit(now, submission, &mut Vec::new());
    !decide(engine, now, &[]).is_empty()
}

#[test]
fn a_look_is_due_where_a_launch_may_wait_for_an_end_or_has_a_limit() {
    let limit = Some(Duration::from_micros(30));
    let cases = [
        (Leaving::AtEnd, [true, true]),
        (Leaving::Dropping, [false, true]),
        (Leaving::Switching, [false, true]),
    ];
    for (leaving, expected) in cases {
        let with = |limit| is_watched(&mut engine(leaving).0, Duration::ZERO, limit);
        assert_eq!([with(None), with(limit)], expected, "{leaving:?}");
    }
}

#[test]
fn a_look_is_due_where_a_block_task_may_have_been_dropped_as_often_as_it_may() {
    // When SMs were taken, the time of a block-task being 500 us, and then a launch comes.
    let cases = [
        (vec![], 0, false),
        (vec![600], 700, false),
        (vec![600, 700], 800, true),
        (vec![600, 1500], 1600, true),
        (vec![600, 1500], 1601, false),
        (vec![100, 600, 1500], 1600, true),
        (vec![100, 200, 1500], 1600, false),
    ];
    for (taken, then, expected) in cases {
        let (mut engine, _, order) = engine(Leaving::Dropping);
        count_yields(&mut engine, &order, &taken);
        let then = Duration::from_micros(then);
        assert_eq!(is_watched(&mut engine, then, None), expected, "{taken:?}, {then:?}");
    }
}

/// Tells the engine that SMs were taken from its long launch at these microseconds.
fn count_yields(engine: &mut Engine, order: &CohortOrder, at: &[u64]) {
    let op = engine.queues.heads().find(|head| head.0 == order.queue).map(|head| head.1);
    let op = op.and_then(|op| engine.ops.get_mut(op)).and_then(|op| op.launch.as_mut());
    let launch = op.expect("it runs");
    at.iter().for_each(|&at| launch.count_yield(Duration::from_micros(at)));
}

/// Block-tasks that were dropped as often as they may be run to their ends, and the new launch waits for them.
#[test]
fn a_launch_waits_for_ends_only_where_that_saves_as_much_on_all_sms() {
    // Block-tasks of 500 us: SM, how long it has run, whether it is spent. With it, the SM that a launch without a limit gets.
    let cases = [
        ([(0, 400, true), (1, 250, false), (2, 350, false), (3, 410, true)], 1),
        ([(0, 400, true), (1, 250, false), (2, 350, false), (3, 440, true)], 3),
        ([(0, 400, true), (1, 100, true), (2, 410, true), (3, 100, true)], 2),
    ];
    for (tasks, expected) in cases {
        let (mut engine, _, order) = engine(Leaving::Dropping);
        count_yields(&mut engine, &order, &[600, 700]);
        let urgent = engine.submit(Duration::ZERO, submission(1, 1, spec(1)), &mut Vec::new());
        let look = |queues: &[QueueIndex]| -> Vec<Told> {
            let running = tasks.map(|(sm, since, is_spent)| Running {
                sm,
                since: Duration::from_micros(since),
                is_spent,
            });
            queues.iter().map(|&queue| (queue, running.to_vec())).collect()
        };
        engine.settle_by(Duration::from_micros(800), &look, &mut Vec::new());
        let has = |sm: &u32| engine.owners()[*sm as usize] == Some(LaunchId(urgent));
        assert_eq!((0..SMS).filter(has).collect::<Vec<_>>(), [expected], "{tasks:?}");
    }
}

#[test]
fn nothing_is_watched_that_decides_nothing() {
    let (mut engine, seen, order) = engine(Leaving::AtEnd);
    // It needs all SMs.
    engine.submit(Duration::ZERO, submission(1, 1, spec(SMS)), &mut Vec::new());
    assert!(decide(&mut engine, Duration::ZERO, &[(0, 1)]).is_empty());
    // Words of a queue that has no cohort, or that there is not.
    for queue in [order.queue + 1, u32::MAX] {
        engine.look(Duration::ZERO, queue, running(&[(0, 1)]));
    }
    take_in(&mut engine, 2, 2, spec(1));
    assert_eq!(seen.lock().expect("no panic").last(), Some(&vec![0; 4]));

    let costs = Costs::h200();
    let tells = |block_task: Duration| {
        let mut engine = Engine::new(SMS, QUEUES, costs, Box::new(StaticPriority::default()));
        let long = LaunchSpec { predicted: Some(block_task * 100), ..spec(400) };
        let actions = take_in(&mut engine, 0, 0, long);
        actions.iter().any(|action| matches!(action, Action::Launch(order) if order.tells_progress))
    };
    let least = 2 * costs.whole_stop();
    assert_eq!([least, least + Duration::from_micros(1)].map(tells), [false, true]);
}

#[test]
fn nothing_is_read_where_the_policy_does_not_ask() {
    let policy = Box::new(crate::policy::Fifo::default());
    let mut engine = Engine::new(SMS, QUEUES, Costs::h200(), policy);
    let long = LaunchSpec { predicted: Some(Duration::from_millis(50)), ..spec(400) };
    take_in(&mut engine, 0, 0, long);
    assert!(!is_watched(&mut engine, Duration::ZERO, None));
}

#[test]
fn what_was_looked_at_is_decided_again() {
    let (mut first, seen, order) = engine(Leaving::AtEnd);
    first.submit(Duration::ZERO, submission(1, 1, spec(1)), &mut Vec::new());
    let tasks = [(0, 90), (1, 80), (2, 70), (3, 60)];
    assert_eq!(decide(&mut first, Duration::ZERO, &tasks), [order.queue]);
    assert_eq!(
        seen.lock().expect("no panic").last(),
        Some(&[410, 420, 430, 440].map(|ends| ends * u64::from(SMS)).to_vec())
    );
    let steps = first.recorded().expect("a recording").steps.to_vec();

    let again = Seen::default();
    let policy = Notes(StaticPriority::default(), again.clone());
    let mut second = Engine::new(SMS, QUEUES, Costs::h200(), Box::new(policy));
    second.record();
    for step in &steps {
        assert_eq!(step.again(&mut second).as_ref(), Some(step));
    }
    assert_eq!(*again.lock().expect("no panic"), *seen.lock().expect("no panic"));
}

/// A launch has SMs again that it has lost, with a cohort more each time, until it can have no more. Then it costs most to
/// take an SM of the cohort that has others.
#[test]
fn sms_cost_a_merge_where_their_launch_has_no_further_cohorts() {
    const SMS: u32 = 12;
    let queues = QueueCount { normal: 2 * COHORT_SLOTS as u32, ..QUEUES };
    let yield_overhead = Duration::from_micros(40);
    let long = LaunchSpec { leaving: Leaving::Dropping, yield_overhead, ..spec(1200) };
    let (mut engine, seen, _) = engine_of(SMS, queues, long);
    // A limit that no rest fits, so that a look is due.
    let limit = Some(Duration::from_micros(1));
    let urgency = Urgency { priority: Priority(1), latency_limit: limit, ..Urgency::default() };
    // The next SM is the cheapest, since its blocks have done the least.
    let mut take = |cheapest: u32| {
        let submission = Submission { urgency, ..submission(1, 1, spec(1)) };
        let urgent = engine.submit(Duration::ZERO, submission, &mut Vec::new());
        let tasks: Vec<_> =
            (0..SMS).map(|sm| (sm, if sm == cheapest { 10 } else { 100 })).collect();
        decide(&mut engine, Duration::ZERO, &tasks);
        let posted = Posted { done: 1, amortize: 1 };
        let end = Event::CohortOut { op: urgent, slot: 0, posted };
        engine.handle(Duration::ZERO, end, &mut Vec::new());
        engine.settle(Duration::ZERO, &mut Vec::new());
        let seen = seen.lock().expect("no panic");
        seen.iter().rev().find(|costs| costs.iter().any(|&cost| cost > 0)).expect("seen").clone()
    };
    let told = |cheapest: u32| (0..SMS).map(move |sm| if sm == cheapest { 10 } else { 100 });
    let last = COHORT_SLOTS as u32 - 1;
    for sm in 0..last {
        assert_eq!(take(sm), told(sm).collect::<Vec<_>>(), "{sm}");
    }
    // Two cohorts of one SM each would stop for 40 us. To take theirs frees a slot.
    let merge = |sm| if sm < last { 0 } else { 2 * 40 };
    let expected: Vec<_> = (0..).zip(told(last)).map(|(sm, cost)| cost + merge(sm)).collect();
    assert_eq!(take(last), expected);
}

/// Blocks of one cohort may lie on SMs that another one of their launch is for.
#[test]
fn an_sm_costs_what_its_own_cohort_has_told_or_else_another_one() {
    let limit = Some(Duration::from_micros(1));
    let urgency = Urgency { priority: Priority(1), latency_limit: limit, ..Urgency::default() };
    let submit = |engine: &mut Engine| {
        let submission = Submission { urgency, ..submission(1, 1, spec(1)) };
        engine.submit(Duration::ZERO, submission, &mut Vec::new())
    };
    for (of_others, expected) in [(vec![(0, 20)], [20, 100, 0, 60]), (vec![], [50, 100, 0, 60])] {
        let (mut engine, seen, order) = engine(Leaving::Dropping);
        // Two SMs are taken in turns, and given back to cohorts of their own. When the second one is taken, the first cohort's
        // word grants the first one again.
        for taken in [0, 2] {
            let urgent = submit(&mut engine);
            let tasks: Vec<_> =
                (0..SMS).map(|sm| (sm, if sm == taken { 10 } else { 100 })).collect();
            decide(&mut engine, Duration::ZERO, &tasks);
            let posted = Posted { done: 1, amortize: 1 };
            let end = Event::CohortOut { op: urgent, slot: 0, posted };
            engine.handle(Duration::ZERO, end, &mut Vec::new());
            engine.settle(Duration::ZERO, &mut Vec::new());
        }

        submit(&mut engine);
        let look = |queues: &[QueueIndex]| -> Vec<Told> {
            let of_first = [(0, 50), (1, 100), (2, 70), (3, 60)];
            let of = |queue| if queue == order.queue { &of_first[..] } else { &of_others };
            queues.iter().map(|&queue| (queue, running(of(queue)))).collect()
        };
        engine.settle_by(Duration::ZERO, &look, &mut Vec::new());
        assert_eq!(seen.lock().expect("no panic").last(), Some(&expected.to_vec()));
    }
}
