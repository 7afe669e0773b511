//! Two launches that share all SMs.

use super::world::World;
use super::*;

const SMS: u32 = 4;

/// Grants what it is told to, to the launches that are there, in their order.
struct Told {
    known: Vec<LaunchId>,
    /// For each plan from the last to the first; the last one stays.
    plans: Vec<Granted>,
}

#[derive(Clone, Copy, Debug)]
enum Granted {
    /// All SMs to the launch of this number.
    One(usize),
    /// All SMs to two launches, from this one on.
    Both(usize),
    /// Halves of the SMs to two launches, from this one on.
    Halves(usize),
}

impl Told {
    fn new(plans: impl IntoIterator<Item = Granted, IntoIter: DoubleEndedIterator>) -> Told {
        Told { known: Vec::new(), plans: plans.into_iter().rev().collect() }
    }
}

impl Policy for Told {
    fn name(&self) -> &str {
        "as told"
    }

    fn arrived(&mut self, _: Duration, launch: Arrival) {
        self.known.push(launch.id);
    }

    fn changed(&mut self, _: Duration, _: Arrival) {}

    fn departed(&mut self, _: Duration, launch: LaunchId) {
        self.known.retain(|&other| other != launch);
    }

    fn assign(&mut self, _: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        let last = self.plans.len() > 1;
        let granted = if last { self.plans.pop() } else { self.plans.last().copied() };
        let Some(count) = self.known.len().checked_sub(1) else { return };
        let all = SmRange::new(0, device.sms());
        let pair = |from: usize| [from, from + 1].map(|at| self.known[at % (count + 1)]);
        match granted {
            Some(Granted::Both(from)) if count > 0 => plan.grant_both(pair(from), device),
            Some(Granted::Halves(from)) if count > 0 && device.sms() > 1 => {
                let [first, second] = pair(from);
                let half = device.sms() / 2;
                plan.grant(first, SmRange::new(0, half));
                plan.grant(second, SmRange::new(half, device.sms()));
            }
            Some(Granted::One(of) | Granted::Both(of) | Granted::Halves(of)) => {
                plan.grant(self.known[of % (count + 1)], all);
            }
            None => {}
        }
    }
}

/// The blocks of each cohort that is to stay, in the order of launches.
fn blocks(world: &World) -> Vec<(OpKey, u32)> {
    let stays = |cohort: &&world::Cohort| {
        !world
            .words
            .get(&cohort.order.queue)
            .is_some_and(|word| word.is_newer(cohort.order.signal) && word.range().is_empty())
    };
    world
        .cohorts
        .iter()
        .filter(stays)
        .map(|cohort| (cohort.order.op, cohort.order.blocks))
        .collect()
}

#[test]
fn two_launches_have_half_of_the_room_on_all_sms() {
    use Granted::{Both, One};
    // The first launch is alone, then beside the second one, then gone.
    let mut world = World::new(SMS, 4, Told::new([One(0), Both(0)]));
    let first = world.submit(0, 0, 1000, &[]);
    assert_eq!(blocks(&world), [(first, 16)]);
    let second = world.submit(1, 0, 40, &[]);
    assert_eq!(blocks(&world), [(first, 8), (second, 8)], "launched anew with half of the blocks");
    let third = world.submit(2, 0, 40, &[]);
    assert_eq!(blocks(&world), [(first, 8), (second, 8)], "the plan is as it was");
    while !world.is_finished(second) {
        let at = world.cohorts.iter().position(|cohort| cohort.order.op != first);
        world.step_cohort(at.unwrap_or(0));
        world.step_cohort(0);
    }
    assert_eq!(blocks(&world), [(first, 8), (third, 8)], "the first one goes on as it was");
    while !world.is_finished(third) {
        let at = world.cohorts.iter().position(|cohort| cohort.order.op == third);
        world.step_cohort(at.unwrap_or(0));
    }
    assert_eq!(blocks(&world), [(first, 8), (first, 8)], "it has the other half, too");
    world.run_out();
    assert_eq!(world.engine.refusal(), None);
}

#[test]
fn the_second_launch_goes_on_when_the_first_is_done() {
    use Granted::{Both, One};
    let mut world = World::new(SMS, 2, Told::new([One(0), Both(0)]));
    let first = world.submit(0, 0, 10, &[]);
    let second = world.submit(1, 0, 1000, &[]);
    while !world.is_finished(first) {
        world.step_cohort(0);
    }
    assert_eq!(blocks(&world), [(second, 4), (second, 4)]);
    // It is the first now, and stays where it is beside another one.
    let third = world.submit(2, 0, 1000, &[]);
    // Until its blocks have left, there is no queue for the other one.
    while blocks(&world).len() < 2 {
        world.step_cohort(0);
    }
    assert_eq!(blocks(&world), [(second, 4), (third, 4)]);
    world.run_out();
    assert_eq!(world.engine.refusal(), None);
}

#[test]
fn a_block_for_the_whole_sm_waits_for_the_other_one() {
    let mut world = World::new(SMS, 1, Told::new([Granted::Both(0)]));
    let ops = [0, 1].map(|stream| world.submit(stream, 0, 50, &[]));
    assert_eq!(blocks(&world), ops.map(|op| (op, SMS)));
    world.run_out();
    assert_eq!(world.engine.refusal(), None);
}

/// It is told to leave, although the plan names it.
#[test]
fn an_empty_grant_beside_two_launches_is_none() {
    struct Third(Vec<LaunchId>);
    impl Policy for Third {
        fn name(&self) -> &str {
            "third"
        }

        fn arrived(&mut self, _: Duration, launch: Arrival) {
            self.0.push(launch.id);
        }

        fn departed(&mut self, _: Duration, launch: LaunchId) {
            self.0.retain(|&other| other != launch);
        }

        fn assign(&mut self, _: Duration, device: &dyn DeviceView, plan: &mut Plan) {
            match self.0[..] {
                [first, second, third] => {
                    plan.grant_both([third, first], device);
                    plan.grant(second, SmRange::EMPTY);
                }
                [first, second] => plan.grant_both([first, second], device),
                [first, ..] => plan.grant(first, SmRange::new(0, device.sms())),
                [] => {}
            }
        }
    }
    let mut world = World::new(SMS, 2, Third(Vec::new()));
    let [first, second, third] = [0, 1, 2].map(|stream| world.submit(stream, 0, 500, &[]));
    (0..40).for_each(|at| world.step_cohort(at % world.cohorts.len()));
    assert!(!blocks(&world).iter().any(|&(op, _)| op == second), "{:?}", blocks(&world));
    let of = |op: OpKey| world.engine.ops[op].launch.as_ref().expect("a launch");
    assert!(!of(second).shares && of(first).shares && of(third).shares);
    world.run_out();
    assert_eq!(world.engine.refusal(), None);
}

#[test]
fn what_it_had_of_shared_sms_says_nothing_of_its_time() {
    let mut world = World::new(SMS, 2, Told::new([Granted::Both(0)]));
    let asks = Asks { predicted: Some(Duration::from_secs(100)), ..Asks::default() };
    let ops = [0, 1].map(|stream| world.submit_asking(stream, 1000, &[], asks));
    world.pass(Duration::from_secs(10));
    for op in ops {
        let launch = world.engine.ops[op].launch.as_ref().expect("a launch");
        assert_eq!(launch.time_left(world.now, SMS), Some(Duration::from_secs(95)), "half of them");
        assert_eq!(launch.sm_time(world.now, SMS), Duration::from_secs(20));
    }
    world.run_out();
    assert!(
        ops.into_iter().all(|op| has_shared(&mut world, op)),
        "also that which was alone at last"
    );
}

fn has_shared(world: &mut World, op: OpKey) -> bool {
    matches!(world.op(op).finished, Some(Outcome::Done(report)) if report.has_shared)
}

#[test]
fn a_launch_that_is_queued_behind_one_that_shares_has_half_of_the_room_and_shares() {
    let mut world = World::new(SMS, 4, Told::new([Granted::Both(0)]));
    let first = world.submit(0, 0, 20, &[]);
    let next = world.submit(0, 0, 1000, &[]);
    let other = world.submit(1, 0, 1000, &[]);
    // What was queued with the whole room has to leave, and is queued again.
    for round in 0.. {
        let of = |op| world.engine.ops.get(op).and_then(|op| op.launch.as_ref());
        if of(next).is_some_and(|launch| !launch.range.is_empty()) {
            break;
        }
        world.step_cohort(round % world.cohorts.len());
    }
    let of_next = blocks(&world).into_iter().filter(|&(op, _)| op == next);
    assert!(of_next.clone().count() > 0 && of_next.clone().all(|(_, blocks)| blocks == 8));
    world.run_out();
    for op in [first, next, other] {
        assert!(has_shared(&mut world, op));
    }
    // A launch that was alone all the time has not.
    let alone = world.submit(0, 0, 20, &[]);
    world.run_out();
    assert!(!has_shared(&mut world, alone));
}

#[test]
fn a_plan_that_shares_and_grants_more_is_refused() {
    struct TooMany(Vec<LaunchId>, bool);
    impl Policy for TooMany {
        fn name(&self) -> &str {
            "too many"
        }

        fn arrived(&mut self, _: Duration, launch: Arrival) {
            self.0.push(launch.id);
        }

        fn departed(&mut self, _: Duration, _: LaunchId) {}

        fn assign(&mut self, _: Duration, device: &dyn DeviceView, plan: &mut Plan) {
            match self.0[..] {
                [first, second, third] => {
                    plan.grant_both([first, second], device);
                    let range = SmRange::new(0, 1);
                    if self.1 {
                        plan.grant(third, range)
                    } else {
                        plan.grant_both([third, first], device)
                    }
                }
                [first, ..] => plan.grant(first, SmRange::new(0, SMS)),
                [] => {}
            }
        }
    }
    for ranges in [true, false] {
        let mut world = World::new(SMS, 2, TooMany(Vec::new(), ranges));
        (0..3).for_each(|stream| _ = world.submit(stream, 0, 50, &[]));
        let refusal = world.engine.refusal().expect("refused");
        assert!(refusal.reason.contains("granted"), "{}", refusal.reason);
        world.run_out();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_task_runs_once_however_launches_share(
        sms in 1u32..6, blocks_per_sm in 1u32..5, less in 0u32..2,
        plans in prop::collection::vec((0..3, 0usize..5), 1..120), steps in steps(),
    ) {
        let plans = plans.into_iter().map(|(kind, which)| match kind {
            0 => Granted::One(which),
            1 => Granted::Both(which),
            _ => Granted::Halves(which),
        });
        let policy = Told::new(plans.collect::<Vec<_>>());
        let mut world = World::new(sms, blocks_per_sm, policy).with_less_on_the_last(less);
        run(&mut world, steps);
        world.run_out();
        prop_assert_eq!(world.engine.refusal(), None);
    }
}
