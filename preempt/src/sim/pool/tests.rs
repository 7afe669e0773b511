use super::*;
use crate::pool::{Elastic, FirstCome, InTime, UserFacingFirst};

const MS: Duration = Duration::from_millis(1);

fn job(class: Class, arrival: u32, task: u32, tasks: u32) -> PoolJob {
    PoolJob { class, arrival: arrival * MS, task: task * MS, tasks }
}

/// A batch task of 100 ms, and at 10 ms a user-facing one of 5 ms.
fn workload() -> PoolWorkload {
    PoolWorkload::new([job(Class::Batch, 0, 100, 1), job(Class::UserFacing, 10, 5, 1)])
}

#[test]
fn times_are_those_of_the_model() {
    let run = |stop| {
        let results = PoolSimulation::new(1, UserFacingFirst).stop(stop).run(&workload()).unwrap();
        let wasted = MS.mul_f64(105.0 * results.wasted()).as_millis();
        (results.responses()[0], results.batch_jobs()[0], wasted)
    };
    assert_eq!(run(Stop::Never), (95 * MS, 100 * MS, 0));
    assert_eq!(run(Stop::Yield(2 * MS)), (7 * MS, 105 * MS, 0));
    // It has run for 12 ms when it is gone, of 105 that are not lost.
    assert_eq!(run(Stop::Revoke(2 * MS)), (7 * MS, 117 * MS, 12));
}

#[test]
fn a_task_that_ends_before_it_has_left_is_not_stopped() {
    let results = PoolSimulation::new(1, UserFacingFirst).stop(Stop::Revoke(95 * MS));
    let results = results.run(&workload()).unwrap();
    assert_eq!((results.revocations(), results.batch_jobs()[0]), (0, 100 * MS));
    // Elastic does not tell it to: its rest is shorter.
    let jobs = [job(Class::Batch, 0, 100, 2), job(Class::UserFacing, 110, 5, 1)];
    let elastic = PoolSimulation::new(1, Elastic::new(20 * MS)).stop(Stop::Revoke(95 * MS));
    let results = elastic.run(&PoolWorkload::new(jobs)).unwrap();
    assert_eq!((results.revocations(), results.responses()[0]), (0, 95 * MS));
}

/// Eight are outstanding, and four devices do four of them in time.
#[test]
fn where_more_comes_than_can_be_done_a_few_are_very_late_instead_of_all_a_little() {
    let workload = PoolWorkload::new([job(Class::UserFacing, 0, 17, 100)]);
    let late = |policy: Box<dyn PoolPolicy>| {
        let results = PoolSimulation::boxed(4, policy).run(&workload).unwrap();
        results.responses().iter().filter(|&&response| response > 20 * MS).count()
    };
    assert_eq!(late(Box::new(UserFacingFirst)), 96);
    assert_eq!(late(Box::new(InTime::new(20 * MS))), 4);
}

#[test]
fn tasks_have_the_times_that_they_are_given() {
    let workload = workload().with_times(vec![vec![90 * MS], Vec::new()]);
    let results = PoolSimulation::new(1, FirstCome).run(&workload).unwrap();
    assert_eq!((results.batch_jobs()[0], results.responses()[0]), (90 * MS, 85 * MS));
    // Revoked at 12 ms, and from its start again at 17.
    let revoked = PoolSimulation::new(1, UserFacingFirst).stop(Stop::Revoke(2 * MS));
    assert_eq!(revoked.run(&workload).unwrap().batch_jobs()[0], 107 * MS);
    // It has run for 10 ms when it yields, and the other one waits for 2 of its 7.
    let yields = |workload: &PoolWorkload| {
        let results = PoolSimulation::new(1, UserFacingFirst).stop(Stop::Yield(2 * MS));
        let results = results.run(workload).unwrap();
        (results.responses()[0], results.batch_jobs()[0])
    };
    assert_eq!(yields(&workload), (7 * MS, 97 * MS));
    assert_eq!(yields(&workload.with_times(vec![vec![90 * MS], vec![6 * MS]])), (6 * MS, 96 * MS));
}

#[test]
fn what_cannot_be_is_refused() {
    let says = |simulation: PoolSimulation| simulation.run(&workload()).unwrap_err().to_string();
    assert!(says(PoolSimulation::new(0, FirstCome)).contains("a pool of no device"));
    assert!(says(PoolSimulation::new(1, Elastic::new(Duration::ZERO))).contains("SLA of zero"));
    assert!(says(PoolSimulation::new(1, InTime::new(Duration::ZERO))).contains("SLA of zero"));
    #[derive(Debug)]
    struct Idle;
    impl PoolPolicy for Idle {
        fn decide(&mut self, _: &mut crate::pool::PoolPlan<'_>) {}
        fn wake(&self) -> Option<Duration> {
            Some(MS)
        }
    }
    assert!(says(PoolSimulation::new(1, Idle)).contains("see that it starts all"));
    let none = PoolSimulation::new(1, FirstCome).run(&PoolWorkload::default()).unwrap();
    assert_eq!((none.late(MS), none.utilization()), (0.0, 1.0));
}

#[test]
fn a_workload_is_determined_and_as_heavy_as_asked_for() {
    let of = |seed| PoolWorkload::datacenter(JobMix::W2, 4, 0.5, seed);
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
    let user_facing = |job: &&PoolJob| job.class == Class::UserFacing;
    assert_eq!(of(3).jobs().iter().filter(user_facing).count(), 24);
    let many = PoolWorkload::jobs_of(JobMix::W1, 3000, 4, 0.5, 1);
    let last = many.jobs().last().unwrap().arrival.as_secs_f64();
    let load = many.work().as_secs_f64() / last / 4.0;
    assert!((0.45..0.55).contains(&load), "{load}");
}

#[test]
fn jobs_of_other_times_come_in_the_same_order() {
    let scaled = |divisor: u32| {
        let ms = |millis: u64| Duration::from_millis(millis) / divisor;
        let times = JobTimes {
            user_facing: [1, 8, 38, 50, 60, 68, 81, 150, 170].map(ms).into(),
            batch: [46_000, 130_696, 311_000].map(ms).into(),
            user_facing_job: ms(5_000),
            batch_job: ms(600_000),
        };
        PoolWorkload::drawn(&times, JobMix::W1, 30, 4, 1.0, 3)
    };
    assert_eq!(scaled(10), PoolWorkload::datacenter(JobMix::W1, 4, 1.0, 3));
    let [some, others] = [10, 100].map(scaled);
    let counts = |of: &PoolWorkload| of.jobs().iter().map(|job| job.tasks).collect::<Vec<_>>();
    assert_eq!(counts(&some), counts(&others));
    let none = PoolWorkload::drawn(&JobTimes::default(), JobMix::W1, 30, 4, 1.0, 3);
    assert_eq!(none, PoolWorkload::default());
}

/// Figure 7's order, and that yields lose nothing.
#[test]
fn stopping_keeps_user_facing_tasks_in_time() {
    let sla = 20 * MS;
    for mix in [JobMix::W1, JobMix::W2] {
        let workload = PoolWorkload::datacenter(mix, 4, 1.0, 1);
        let run = |policy: Box<dyn PoolPolicy>, stop| {
            PoolSimulation::boxed(4, policy).stop(stop).run(&workload).unwrap()
        };
        let never = run(Box::new(Elastic::new(sla)), Stop::Never);
        let killed = run(Box::new(Elastic::new(sla)), Stop::Revoke(22 * MS / 10));
        let ours = run(Box::new(Elastic::new(sla)), Stop::Yield(MS / 20));
        let all = run(Box::new(UserFacingFirst), Stop::Revoke(22 * MS / 10));
        let late = [&never, &killed, &ours].map(|results| results.late(sla));
        assert!(late[0] > late[1] && late[1] >= late[2], "{late:?}");
        assert!(killed.revocations() <= all.revocations(), "{all:?}");
        assert!(ours.wasted() == 0.0 && killed.wasted() > 0.0);
        assert_eq!(ours.responses().len(), killed.responses().len());
    }
}
