use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::pool::{Elastic, FirstCome, UserFacingFirst};

const MS: Duration = Duration::from_millis(1);

fn rules(stop: Stop) -> Rules {
    Rules { stop, outstanding: 2, revocations: 3 }
}

fn pool(devices: usize, stop: Stop, policy: impl PoolPolicy + 'static) -> Dispatcher {
    Dispatcher::new(devices, rules(stop), Box::new(policy))
}

fn orders(pool: &mut Dispatcher, now: Duration) -> Vec<Order> {
    let mut orders = Vec::new();
    pool.decide(now, &mut orders);
    orders
}

#[test]
fn a_batch_task_yields_to_a_user_facing_one_and_goes_on() {
    let stop = Stop::Yield(MS);
    let mut pool = pool(1, stop, UserFacingFirst);
    let [batch, user] = [Class::Batch, Class::UserFacing].map(|class| pool.application(class));
    let long = pool.submit(Duration::ZERO, batch);
    assert_eq!(orders(&mut pool, Duration::ZERO), [Order::Start { task: long, device: 0 }]);
    let short = pool.submit(10 * MS, user);
    assert_eq!(orders(&mut pool, 10 * MS), [Order::Stop { task: long, device: 0, stop }]);
    assert_eq!(orders(&mut pool, 10 * MS), [], "it is told once");
    pool.stopped(11 * MS, 0);
    assert_eq!(orders(&mut pool, 11 * MS), [Order::Start { task: short, device: 0 }]);
    assert_eq!(pool.finished(13 * MS, 0), Some((short, 10 * MS)));
    assert_eq!(orders(&mut pool, 13 * MS), [Order::Resume { task: long, device: 0 }]);
    assert_eq!(pool.finished(20 * MS, 0), Some((long, Duration::ZERO)));
    let useful = 20 * MS;
    assert_eq!(pool.totals(), Totals { finished: 2, yields: 1, useful, ..Totals::default() });
}

#[test]
fn a_task_that_is_revoked_starts_anew_ahead_of_younger_ones_and_not_for_ever() {
    let stop = Stop::Revoke(MS);
    let mut pool = pool(1, stop, UserFacingFirst);
    let [batch, user] = [Class::Batch, Class::UserFacing].map(|class| pool.application(class));
    let (long, next) = (pool.submit(Duration::ZERO, batch), pool.submit(Duration::ZERO, batch));
    for round in 0..3 {
        let start = 10 * round * MS;
        assert_eq!(orders(&mut pool, start), [Order::Start { task: long, device: 0 }]);
        let short = pool.submit(start, user);
        assert_eq!(orders(&mut pool, start), [Order::Stop { task: long, device: 0, stop }]);
        pool.stopped(start + MS, 0);
        assert_eq!(orders(&mut pool, start + MS), [Order::Start { task: short, device: 0 }]);
        assert!(pool.finished(start + 2 * MS, 0).is_some());
    }
    assert_eq!(orders(&mut pool, 30 * MS), [Order::Start { task: long, device: 0 }]);
    pool.submit(31 * MS, user);
    assert_eq!(orders(&mut pool, 31 * MS), [], "it was revoked three times");
    assert_eq!(pool.finished(40 * MS, 0), Some((long, Duration::ZERO)));
    let Totals { revocations, wasted, .. } = pool.totals();
    assert_eq!((revocations, wasted), (3, 3 * MS));
    assert!(matches!(orders(&mut pool, 40 * MS)[..], [Order::Start { task, .. }] if task != next));
}

#[test]
fn elastic_stops_no_task_for_what_one_device_can_do_in_time() {
    let stop = Stop::Revoke(5 * MS);
    let mut pool = pool(2, stop, Elastic::new(100 * MS));
    let [batch, user] = [Class::Batch, Class::UserFacing].map(|class| pool.application(class));
    let others = pool.application(Class::UserFacing);
    // A user-facing task takes 20 ms.
    pool.submit(Duration::ZERO, user);
    assert_eq!(orders(&mut pool, Duration::ZERO).len(), 1);
    assert!(pool.finished(20 * MS, 0).is_some());
    let both = [0; 2].map(|_| pool.submit(30 * MS, batch));
    assert_eq!(orders(&mut pool, 30 * MS).len(), 2);
    let first = pool.submit(40 * MS, user);
    let late = both[1];
    assert_eq!(orders(&mut pool, 40 * MS), [Order::Stop { task: late, device: 1, stop }]);
    pool.stopped(45 * MS, 1);
    assert_eq!(orders(&mut pool, 45 * MS), [Order::Start { task: first, device: 1 }]);
    // Four of them need one device, six need two.
    for application in [user, others, others] {
        pool.submit(50 * MS, application);
    }
    assert_eq!(orders(&mut pool, 50 * MS), []);
    let more = pool.application(Class::UserFacing);
    for _ in 0..2 {
        pool.submit(51 * MS, more);
    }
    assert_eq!(orders(&mut pool, 51 * MS), [Order::Stop { task: both[0], device: 0, stop }]);
}

#[test]
fn an_application_has_no_more_tasks_outstanding_than_it_may() {
    let mut pool = pool(4, Stop::Never, FirstCome);
    let application = pool.application(Class::UserFacing);
    let tasks = [0; 3].map(|_| pool.submit(Duration::ZERO, application));
    assert_eq!(orders(&mut pool, Duration::ZERO).len(), 2);
    assert!(pool.finished(5 * MS, 0).is_some());
    assert_eq!(orders(&mut pool, 5 * MS), [Order::Start { task: tasks[2], device: 0 }]);
    assert_eq!(pool.finished(6 * MS, 0), Some((tasks[2], 5 * MS)), "its time counts from there");
}

/// What tasks a pool of devices would do.
#[derive(Debug, Default)]
struct Model {
    runs: BTreeMap<usize, (TaskNumber, bool)>,
    paused: BTreeMap<usize, TaskNumber>,
    /// Tasks that are somewhere, by whether they are user-facing.
    live: BTreeMap<TaskNumber, bool>,
    revoked: BTreeMap<TaskNumber, u32>,
}

impl Model {
    fn follow(&mut self, orders: &[Order]) {
        for order in orders {
            match *order {
                Order::Start { task, device } => {
                    assert!(self.live.contains_key(&task));
                    let elsewhere = self.runs.values().map(|&(task, _)| task);
                    let mut elsewhere = elsewhere.chain(self.paused.values().copied());
                    assert!(!elsewhere.any(|of| of == task), "it runs twice");
                    assert!(self.runs.insert(device, (task, false)).is_none());
                    assert!(self.live[&task] || !self.paused.contains_key(&device));
                }
                Order::Resume { task, device } => {
                    assert_eq!(self.paused.remove(&device), Some(task));
                    assert!(self.runs.insert(device, (task, false)).is_none());
                }
                Order::Stop { task, device, stop } => {
                    assert_ne!(stop, Stop::Never);
                    assert_eq!(self.runs.insert(device, (task, true)), Some((task, false)));
                    assert!(!self.live[&task], "a user-facing task is stopped");
                }
            }
        }
    }
}

fn policy(which: usize) -> Box<dyn PoolPolicy> {
    match which {
        0 => Box::new(FirstCome),
        1 => Box::new(UserFacingFirst),
        _ => Box::new(Elastic::new(20 * MS)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_task_finishes_once(
        devices in 1usize..5,
        which in 0usize..3,
        stop in prop::sample::select(vec![Stop::Never, Stop::Yield(MS), Stop::Revoke(MS)]),
        events in prop::collection::vec((0u8..4, any::<usize>()), 1..200),
    ) {
        let mut pool = Dispatcher::new(devices, rules(stop), policy(which));
        let classes = [Class::UserFacing, Class::Batch, Class::Batch];
        let applications = classes.map(|class| (pool.application(class), class));
        let (mut model, mut now, mut submitted) = (Model::default(), Duration::ZERO, 0);
        let ending = [(9, 0)];
        for (event, index) in events.iter().chain(ending.iter().cycle()) {
            now += MS;
            let at = |len: usize| index % len;
            match event {
                9 if model.live.is_empty() => break,
                0 | 1 => {
                    let (application, class) = applications[at(applications.len())];
                    let task = pool.submit(now, application);
                    model.live.insert(task, class == Class::UserFacing);
                    submitted += 1;
                }
                _ if model.runs.is_empty() => {
                    prop_assert!(*event != 9 || !model.live.is_empty());
                    prop_assert!(*event != 9, "tasks wait, and nothing runs");
                }
                _ => {
                    let device = *model.runs.keys().nth(at(model.runs.len())).expect("one");
                    let (task, is_leaving) = model.runs.remove(&device).expect("it runs");
                    // A task that was told to leave may end first.
                    if is_leaving && *event == 2 {
                        pool.stopped(now, device);
                        match stop {
                            Stop::Yield(_) => drop(model.paused.insert(device, task)),
                            _ => {
                                let revoked = model.revoked.entry(task).or_default();
                                *revoked += 1;
                                prop_assert!(*revoked <= 3);
                            }
                        }
                    } else {
                        let finished = pool.finished(now, device).map(|(task, _)| task);
                        prop_assert_eq!(finished, Some(task));
                        model.live.remove(&task);
                        model.revoked.remove(&task);
                    }
                }
            }
            model.follow(&orders(&mut pool, now));
        }
        prop_assert_eq!(pool.totals().finished, submitted);
        prop_assert!(model.paused.is_empty() && pool.wake().is_none());
    }
}
