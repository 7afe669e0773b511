use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::pool::{Elastic, FirstCome, InTime, UserFacingFirst};

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
    pool.yielded(11 * MS, long);
    assert_eq!(orders(&mut pool, 11 * MS), [Order::Start { task: short, device: 0 }]);
    let past = pool.ended(13 * MS, short, End::Finished).expect("it ran");
    assert_eq!((past.since, past.ran), (10 * MS, 2 * MS));
    assert_eq!(orders(&mut pool, 13 * MS), [Order::Resume { task: long, device: 0 }]);
    let past = Past { since: Duration::ZERO, ran: 18 * MS, yields: 1, revocations: 0 };
    assert_eq!(pool.ended(20 * MS, long, End::Finished), Some(past));
    let useful = 20 * MS;
    assert_eq!(pool.stats(), PoolStats { finished: 2, yields: 1, useful, ..PoolStats::default() });
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
        pool.revoked(start + MS, long);
        assert_eq!(orders(&mut pool, start + MS), [Order::Start { task: short, device: 0 }]);
        assert!(pool.ended(start + 2 * MS, short, End::Finished).is_some());
    }
    assert_eq!(orders(&mut pool, 30 * MS), [Order::Start { task: long, device: 0 }]);
    pool.submit(31 * MS, user);
    assert_eq!(orders(&mut pool, 31 * MS), [], "it was revoked three times");
    let past = Past { since: Duration::ZERO, ran: 10 * MS, yields: 0, revocations: 3 };
    assert_eq!(pool.ended(40 * MS, long, End::Finished), Some(past));
    let PoolStats { revocations, wasted, .. } = pool.stats();
    assert_eq!((revocations, wasted), (3, 3 * MS));
    assert!(matches!(orders(&mut pool, 40 * MS)[..], [Order::Start { task, .. }] if task != next));
}

#[test]
fn a_task_that_would_be_late_lets_those_go_first_that_would_not() {
    let mut pool = pool(1, Stop::Never, InTime::new(20 * MS));
    let [user, other] = [0, 1].map(|_| pool.application(Class::UserFacing));
    let start = |task| [Order::Start { task, device: 0 }];
    let first = pool.submit(Duration::ZERO, user);
    assert_eq!(orders(&mut pool, Duration::ZERO), start(first));
    assert!(pool.ended(10 * MS, first, End::Finished).is_some(), "its application's take 10 ms");
    let long = pool.submit(10 * MS, other);
    assert_eq!(orders(&mut pool, 10 * MS), start(long));
    let (late, in_time) = (pool.submit(11 * MS, user), pool.submit(15 * MS, user));
    assert!(pool.ended(25 * MS, long, End::Finished).is_some());
    assert_eq!(orders(&mut pool, 25 * MS), start(in_time), "the other one has waited for 14 ms");
    assert!(pool.ended(35 * MS, in_time, End::Finished).is_some());
    assert_eq!(orders(&mut pool, 35 * MS), start(late), "nothing else waits");
}

#[test]
fn elastic_stops_no_task_for_what_one_device_can_do_in_time() {
    let stop = Stop::Revoke(5 * MS);
    let mut pool = pool(2, stop, Elastic::new(100 * MS));
    let [batch, user] = [Class::Batch, Class::UserFacing].map(|class| pool.application(class));
    let others = pool.application(Class::UserFacing);
    // A user-facing task takes 20 ms.
    let known = pool.submit(Duration::ZERO, user);
    assert_eq!(orders(&mut pool, Duration::ZERO).len(), 1);
    assert!(pool.ended(20 * MS, known, End::Finished).is_some());
    let both = [0; 2].map(|_| pool.submit(30 * MS, batch));
    assert_eq!(orders(&mut pool, 30 * MS).len(), 2);
    let first = pool.submit(40 * MS, user);
    let late = both[1];
    assert_eq!(orders(&mut pool, 40 * MS), [Order::Stop { task: late, device: 1, stop }]);
    pool.revoked(45 * MS, late);
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
fn a_task_that_has_the_whole_device_has_all_of_its_parts() {
    let parts = vec![vec![1], vec![0], vec![]];
    let stop = Stop::Revoke(MS);
    let mut pool = Dispatcher::with_parts(parts, rules(stop), Box::new(UserFacingFirst));
    let [batch, user] = [Class::Batch, Class::UserFacing].map(|class| pool.application(class));
    let first = pool.submit(Duration::ZERO, batch);
    assert_eq!(settle(&mut pool, Duration::ZERO), [Order::Start { task: first, device: 0 }]);
    // The device that has no parts is all of itself.
    let [one, two] = [(); 2].map(|()| pool.application(Class::Batch));
    let wholes = [one, two].map(|of| pool.submit_with(MS, of, stop, true));
    assert_eq!(settle(&mut pool, MS), [Order::Start { task: wholes[0], device: 2 }]);
    let behind = pool.submit(2 * MS, batch);
    assert_eq!(settle(&mut pool, 2 * MS), [], "a part is idle, and kept for the one ahead");
    pool.ended(3 * MS, first, End::Finished);
    assert_eq!(settle(&mut pool, 3 * MS), [Order::Start { task: wholes[1], device: 0 }]);
    pool.ended(4 * MS, wholes[0], End::Finished);
    assert_eq!(settle(&mut pool, 4 * MS), [Order::Start { task: behind, device: 2 }]);
    // No part is idle, so a task is stopped, the one that started last: then the whole one.
    let users = [(); 2].map(|()| pool.submit(5 * MS, user));
    let stopped = settle(&mut pool, 5 * MS);
    let [Order::Stop { task: last, device: 2, .. }, Order::Stop { task: whole, device: 0, .. }] =
        stopped[..]
    else {
        panic!("{stopped:?}");
    };
    assert_eq!((last, whole), (behind, wholes[1]));
    pool.revoked(6 * MS, whole);
    let started = settle(&mut pool, 6 * MS);
    let [user_0, user_1] = [0, 1].map(|device| Order::Start { task: users[device], device });
    assert_eq!(started, [user_0, user_1], "on both parts");
}

#[test]
fn an_application_has_no_more_tasks_outstanding_than_it_may() {
    let mut pool = pool(4, Stop::Never, FirstCome);
    let application = pool.application(Class::UserFacing);
    let tasks = [0; 3].map(|_| pool.submit(Duration::ZERO, application));
    assert_eq!(orders(&mut pool, Duration::ZERO).len(), 2);
    assert!(pool.ended(5 * MS, tasks[0], End::Finished).is_some());
    assert_eq!(orders(&mut pool, 5 * MS), [Order::Start { task: tasks[2], device: 0 }]);
    let past = pool.ended(6 * MS, tasks[2], End::Finished).expect("it ran");
    assert_eq!(past.since, 5 * MS, "its time counts from there");
}

#[test]
fn a_task_that_has_yielded_gives_up_its_memory_to_the_one_that_runs() {
    let mut pool = pool(1, Stop::Yield(MS), UserFacingFirst);
    let [batch, user] = [Class::Batch, Class::UserFacing].map(|class| pool.application(class));
    let long = pool.submit(Duration::ZERO, batch);
    orders(&mut pool, Duration::ZERO);
    let mut asked = Vec::new();
    assert!(!pool.make_room(long, &mut asked), "it is alone");
    let short = pool.submit(10 * MS, user);
    orders(&mut pool, 10 * MS);
    pool.yielded(10 * MS, long);
    orders(&mut pool, 10 * MS);
    assert!(pool.make_room(long, &mut asked) && asked.is_empty(), "it waits for the other one");
    let stop = Stop::Revoke(Duration::ZERO);
    for _ in 0..2 {
        assert!(pool.make_room(short, &mut asked));
        assert_eq!(asked, [Order::Stop { task: long, device: 0, stop }], "it is told once");
    }
    pool.revoked(12 * MS, long);
    assert_eq!(orders(&mut pool, 12 * MS), [], "the device is taken");
    assert!(!pool.make_room(short, &mut asked), "nothing is left to be given up");
    pool.ended(13 * MS, short, End::Finished);
    assert_eq!(orders(&mut pool, 13 * MS), [Order::Start { task: long, device: 0 }]);
    assert_eq!(pool.stats().wasted, 10 * MS);
}

#[test]
fn nothing_starts_on_a_device_that_has_failed() {
    let mut pool = pool(2, Stop::Never, FirstCome);
    let application = pool.application(Class::Batch);
    let tasks = [0; 2].map(|_| pool.submit(Duration::ZERO, application));
    assert_eq!(orders(&mut pool, Duration::ZERO).len(), 2);
    pool.lose(0);
    pool.revoked(MS, tasks[0]);
    assert_eq!(orders(&mut pool, MS), []);
    pool.ended(2 * MS, tasks[1], End::Finished);
    assert_eq!(orders(&mut pool, 2 * MS), [Order::Start { task: tasks[0], device: 1 }]);
}

/// Decides as a pool does: tasks that are to yield have at once.
fn settle(pool: &mut Dispatcher, now: Duration) -> Vec<Order> {
    let mut all = Vec::new();
    for _ in 0..100 {
        let orders = orders(pool, now);
        if orders.is_empty() {
            return all;
        }
        for order in &orders {
            if let Order::Stop { task, stop: Stop::Yield(_), .. } = *order {
                pool.yielded(now, task);
            }
        }
        all.extend(orders);
    }
    panic!("it decides for ever: {all:?}");
}

#[test]
fn a_task_on_a_device_that_has_failed_is_no_reason_to_stop_others() {
    let mut pool = pool(2, Stop::Yield(MS), UserFacingFirst);
    let [batch, user] = [Class::Batch, Class::UserFacing].map(|class| pool.application(class));
    let long = [0; 2].map(|_| pool.submit(Duration::ZERO, batch));
    settle(&mut pool, Duration::ZERO);
    let first = pool.submit(MS, user);
    let yielded = settle(&mut pool, MS);
    let [Order::Stop { device, task, .. }, Order::Start { task: started, .. }] = yielded[..] else {
        panic!("{yielded:?}");
    };
    assert_eq!(started, first);
    // The task that has yielded sees first that the device has failed.
    pool.lose(device);
    pool.revoked(2 * MS, task);
    let second = pool.submit(2 * MS, user);
    let orders = settle(&mut pool, 2 * MS);
    let other = if long[0] == task { long[1] } else { long[0] };
    let stop = Stop::Yield(MS);
    let device = 1 - device;
    assert_eq!(
        orders,
        [Order::Stop { task: other, device, stop }, Order::Start { task: second, device }]
    );
    pool.revoked(3 * MS, first);
    assert_eq!(settle(&mut pool, 3 * MS), []);
    pool.ended(4 * MS, second, End::Finished);
    assert_eq!(settle(&mut pool, 4 * MS), [Order::Start { task: first, device }]);
}

/// Stops what runs whenever it is asked, and puts nothing in its place.
#[derive(Debug)]
struct Slices;

impl PoolPolicy for Slices {
    fn decide(&mut self, plan: &mut PoolPlan<'_>) {
        plan.serve(Class::Batch, plan.devices());
        let victims: Vec<_> = plan.victims().collect();
        victims.iter().for_each(|victim| assert!(plan.stop(victim.device)));
    }
}

#[test]
fn a_policy_that_stops_for_nothing_does_not_decide_for_ever() {
    let mut pool = pool(2, Stop::Yield(MS), Slices);
    let batch = pool.application(Class::Batch);
    let tasks = [0; 2].map(|_| pool.submit(Duration::ZERO, batch));
    for at in 0..10 {
        settle(&mut pool, at * MS);
    }
    for task in tasks {
        let past = pool.ended(10 * MS, task, End::Finished).expect("it was there");
        assert_eq!((past.ran, past.yields), (10 * MS, 10));
    }
}

#[test]
fn a_closed_application_is_forgotten_with_its_last_task() {
    let mut pool = pool(1, Stop::Never, FirstCome);
    let first = pool.application(Class::Batch);
    let tasks = [0; 3].map(|_| pool.submit(Duration::ZERO, first));
    orders(&mut pool, Duration::ZERO);
    pool.close(first);
    let second = pool.application(Class::Batch);
    assert_ne!(first, second);
    for task in [tasks[2], tasks[1]] {
        pool.ended(MS, task, End::Dropped);
    }
    assert_ne!(pool.application(Class::Batch), first, "a task of it runs");
    pool.ended(2 * MS, tasks[0], End::Finished);
    assert_eq!(pool.application(Class::UserFacing), first);
    let PoolStats { finished, dropped, .. } = pool.stats();
    assert_eq!((finished, dropped), (1, 2));
}

/// What tasks a pool of devices would do.
#[derive(Debug, Default)]
struct Model {
    runs: BTreeMap<usize, (TaskNumber, Option<Stop>)>,
    /// Whether it is giving up its memory.
    paused: BTreeMap<usize, (TaskNumber, bool)>,
    /// Tasks that are not over, by whether they are user-facing.
    live: BTreeMap<TaskNumber, bool>,
    revoked: BTreeMap<TaskNumber, u32>,
    lost: BTreeSet<usize>,
    /// Tasks that have all parts of a device, and of each device the other parts.
    whole: BTreeSet<TaskNumber>,
    others: Vec<Vec<usize>>,
}

impl Model {
    fn follow(&mut self, orders: &[Order]) {
        for order in orders {
            match *order {
                Order::Start { task, device } => {
                    assert!(self.live.contains_key(&task) && !self.lost.contains(&device));
                    let elsewhere = self.runs.values().map(|&(task, _)| task);
                    let mut elsewhere = elsewhere.chain(self.paused.values().map(|of| of.0));
                    assert!(!elsewhere.any(|of| of == task), "it runs twice");
                    assert!(self.runs.insert(device, (task, None)).is_none());
                    assert!(self.live[&task] || !self.paused.contains_key(&device));
                    for part in &self.others[device] {
                        let there = self.runs.get(part).map(|&(task, _)| task);
                        assert!(
                            there.is_none_or(|task| !self.whole.contains(&task)),
                            "beside a whole one"
                        );
                        let is_alone = there.is_none() && !self.paused.contains_key(part);
                        assert!(
                            is_alone || !self.whole.contains(&task) || self.lost.contains(part)
                        );
                    }
                }
                Order::Resume { task, device } => {
                    assert_eq!(self.paused.remove(&device), Some((task, false)));
                    assert!(!self.whole.contains(&task), "it shares its device");
                    assert!(self.runs.insert(device, (task, None)).is_none());
                }
                Order::Stop { task, device, stop } => {
                    assert!(!self.live[&task], "a user-facing task is stopped");
                    match self.paused.get_mut(&device).filter(|of| of.0 == task) {
                        Some((_, is_giving_up)) => {
                            assert!(matches!(stop, Stop::Revoke(_)) && !*is_giving_up);
                            *is_giving_up = true;
                        }
                        None => {
                            assert_ne!(stop, Stop::Never);
                            let running = self.runs.insert(device, (task, Some(stop)));
                            assert_eq!(running, Some((task, None)));
                        }
                    }
                }
            }
        }
    }

    /// The task of this number of those that run, or have yielded.
    fn there(&self, index: usize) -> Option<(usize, TaskNumber)> {
        let runs = self.runs.iter().map(|(&device, &(task, _))| (device, task));
        let paused = self.paused.iter().map(|(&device, &(task, _))| (device, task));
        let there: Vec<_> = runs.chain(paused).collect();
        (!there.is_empty()).then(|| there[index % there.len()])
    }

    /// Takes a task off where it is.
    fn leave(&mut self, (device, task): (usize, TaskNumber)) -> Option<Stop> {
        if let Some((_, is_giving_up)) = self.paused.get(&device).filter(|of| of.0 == task).copied()
        {
            self.paused.remove(&device);
            return is_giving_up.then_some(Stop::Revoke(Duration::ZERO));
        }
        self.runs.remove(&device).and_then(|(_, stop)| stop)
    }

    fn ends(&mut self, task: TaskNumber) {
        self.live.remove(&task);
        self.revoked.remove(&task);
        self.whole.remove(&task);
    }
}

fn policy(which: usize) -> Box<dyn PoolPolicy> {
    match which {
        0 => Box::new(FirstCome),
        1 => Box::new(UserFacingFirst),
        2 => Box::new(Elastic::new(20 * MS)),
        _ => Box::new(InTime::new(20 * MS)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_task_ends_once(
        devices in 1usize..5,
        which in 0usize..4,
        stop in prop::sample::select(vec![Stop::Never, Stop::Yield(MS), Stop::Revoke(MS)]),
        parts in 1usize..4,
        events in prop::collection::vec((0u8..12, any::<usize>()), 1..200),
    ) {
        let others: Vec<Vec<_>> = (0..devices)
            .map(|of| (0..devices).filter(|&part| part != of && part / parts == of / parts).collect())
            .collect();
        let mut pool = Dispatcher::with_parts(others.clone(), rules(stop), policy(which));
        let classes = [Class::UserFacing, Class::Batch, Class::Batch];
        let applications = classes.map(|class| (pool.application(class), class));
        let (mut model, mut now, mut submitted, mut ended) =
            (Model { others, ..Model::default() }, Duration::ZERO, 0, 0);
        const DRAIN: (u8, usize) = (u8::MAX, 0);
        for &(event, index) in events.iter().chain([DRAIN].iter().cycle()) {
            now += MS;
            match event {
                u8::MAX if model.live.is_empty() => break,
                0..4 => {
                    let (application, class) = applications[index % applications.len()];
                    let is_whole = class == Class::Batch && index % 5 == 0;
                    let task = pool.submit_with(now, application, stop, is_whole);
                    model.live.insert(task, class == Class::UserFacing);
                    if is_whole {
                        model.whole.insert(task);
                    }
                    submitted += 1;
                }
                // A task is given up, wherever it is.
                4 if !model.live.is_empty() => {
                    let task = *model.live.keys().nth(index % model.live.len()).expect("one");
                    let at = model.runs.iter().find(|(_, of)| of.0 == task).map(|(&at, _)| at);
                    let yielded = model.paused.iter().find(|(_, of)| of.0 == task);
                    if let Some(at) = at.or(yielded.map(|(&at, _)| at)) {
                        model.leave((at, task));
                    }
                    prop_assert!(pool.ended(now, task, End::Dropped).is_some());
                    model.ends(task);
                    ended += 1;
                }
                5 => {
                    let Some((_, task)) = model.there(index) else { continue };
                    let mut orders = Vec::new();
                    let is_alone = model.there(0).is_some_and(|(at, _)| {
                        let (one, other) = (model.runs.get(&at), model.paused.get(&at));
                        one.is_none() || other.is_none()
                    });
                    let comes_free = pool.make_room(task, &mut orders);
                    prop_assert!(comes_free || orders.is_empty());
                    prop_assert!(model.runs.len() + model.paused.len() > 1 || !comes_free || !is_alone);
                    model.follow(&orders);
                }
                // The last device stays.
                6 if model.lost.len() + 1 < devices && index % 8 == 0 => {
                    let device = index / 8 % devices;
                    pool.lose(device);
                    model.lost.insert(device);
                }
                _ => {
                    prop_assert!(event != u8::MAX || model.there(0).is_some(), "tasks wait, and nothing runs");
                    let Some(at) = model.there(index) else { continue };
                    let (device, task) = at;
                    let told = model.leave(at);
                    // A task that was told to leave may end first.
                    match told.filter(|_| event % 2 == 1) {
                        _ if model.lost.contains(&device) => {
                            pool.revoked(now, task);
                        }
                        Some(Stop::Yield(_)) => {
                            pool.yielded(now, task);
                            prop_assert!(model.paused.insert(device, (task, false)).is_none());
                        }
                        Some(_) => {
                            pool.revoked(now, task);
                            let revoked = model.revoked.entry(task).or_default();
                            *revoked += 1;
                            prop_assert!(*revoked <= 3);
                        }
                        None => {
                            prop_assert!(pool.ended(now, task, End::Finished).is_some());
                            model.ends(task);
                            ended += 1;
                        }
                    }
                }
            }
            model.follow(&orders(&mut pool, now));
        }
        let PoolStats { finished, dropped, .. } = pool.stats();
        prop_assert_eq!((finished + dropped, ended), (submitted, submitted));
        prop_assert!(model.paused.is_empty() && pool.wake().is_none());
    }
}
