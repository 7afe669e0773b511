//! Policies that break their contract, panic, or refuse a launch.

use super::world::World;
use super::*;
use crate::policy::Fifo;

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
    let write =
        [Use { buffer: BufferId::Own(0), bytes: WHOLE, access: Access::Write, overwrites: false }];
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

/// Grants nothing before a time, and wants to be asked each millisecond.
struct LeavesAll(Fifo, Duration, Duration);

impl Policy for LeavesAll {
    fn name(&self) -> &str {
        "leaves all"
    }

    fn arrived(&mut self, now: Duration, launch: Arrival) {
        self.0.arrived(now, launch);
    }

    fn departed(&mut self, now: Duration, launch: LaunchId) {
        self.0.departed(now, launch);
    }

    fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        self.2 = now + Duration::from_millis(1);
        if now >= self.1 {
            self.0.assign(now, device, plan);
        }
    }

    fn wake(&self) -> Option<Duration> {
        Some(self.2)
    }
}

#[test]
fn a_policy_may_leave_all_sms_free_for_a_second_and_not_for_ever() {
    for (until, is_refused) in [(900, false), (1100, true)] {
        let policy = LeavesAll(Fifo::new(), Duration::from_millis(until), Duration::ZERO);
        let mut world = World::new(2, 1, policy);
        world.submit(0, 0, 20, &[]);
        assert!(world.cohorts.is_empty());
        world.pass(Duration::from_millis(1050));
        assert_eq!(world.engine.refusal().is_some(), is_refused);
        world.run_out();
    }
}
