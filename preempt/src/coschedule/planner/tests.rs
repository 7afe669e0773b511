//! Plans with costs and with releases, against the checks of plans without.

use super::super::kit::Random;
use super::super::plan::tests::{check, check_intervals, jobs};
use super::super::sharing::Sharing;
use super::*;

#[test]
fn a_plan_with_costs_is_never_longer_than_those_without_or_without_preemptions() {
    let mut random = Random(61);
    let mut fewer = 0;
    for round in 0..600 {
        let (durations, speeds) = random.instance(round);
        let total: f64 = durations.iter().sum();
        let cost = [0.01, 0.2, 0.5, 5.0][round % 4] * total / durations.len() as f64;
        let jobs = jobs(&durations);
        let free = CoSchedule::plan(&jobs, &speeds).expect("a plan");
        let plan = Planner::new().preemption_cost(cost).plan(&jobs, &speeds).expect("a plan");
        check(&durations, &speeds, &plan);
        let max_pair = CoSchedule::max_pair(&jobs, &speeds).expect("a plan");
        let limit = free.makespan_with(cost).min(max_pair.makespan());
        assert!(
            plan.makespan_with(cost) <= limit * (1.0 + 1e-7),
            "{} {limit}",
            plan.makespan_with(cost)
        );
        assert!(plan.makespan() >= free.makespan() * (1.0 - 1e-6));
        fewer += usize::from(plan.preemptions() < free.preemptions());
    }
    assert!(fewer > 20, "{fewer} plans with fewer preemptions");
}

/// Between the optimum and MaxPair: one of several preemptions is worth its cost.
#[test]
fn preemptions_that_gain_more_than_they_cost_stay() {
    let mut random = Random(62);
    let (mut between, mut shorter) = (0, 0);
    for _ in 0..40 {
        let speeds = random.speeds(40, 1, 0.5);
        let durations: Vec<f64> = (0..40).map(|_| 10.0 * random.unit()).collect();
        let jobs = jobs(&durations);
        let free = CoSchedule::plan(&jobs, &speeds).expect("a plan");
        let plan = Planner::new().preemption_cost(1.0).plan(&jobs, &speeds).expect("a plan");
        let max_pair = CoSchedule::max_pair(&jobs, &speeds).expect("a plan").makespan();
        check(&durations, &speeds, &plan);
        between += usize::from(plan.preemptions() > 0 && plan.preemptions() < free.preemptions());
        shorter += usize::from(plan.makespan_with(1.0) < free.makespan_with(1.0).min(max_pair));
    }
    assert!(between > 10 && shorter > 20, "{between} between, {shorter} shorter than either");
}

#[test]
fn released_jobs_run_after_their_release() {
    let mut random = Random(63);
    for round in 0..300 {
        let (durations, speeds) = random.instance(round);
        let total: f64 = durations.iter().sum();
        let releases: Vec<f64> = durations
            .iter()
            .map(|_| match round % 3 {
                0 => 0.0,
                1 => total * random.unit(),
                _ => (3 * random.below(3)) as f64 * total / 4.0,
            })
            .collect();
        let jobs = jobs(&durations);
        let planner = Planner::new().preemption_cost(if round % 2 == 0 { 0.0 } else { 0.3 });
        let plan = planner.plan_released(&jobs, &releases, &speeds).expect("a plan");
        check_intervals(&durations, &speeds, &plan);
        for Interval { start, running, .. } in plan.intervals() {
            assert!(running.tasks().all(|task| releases[task] <= start * (1.0 + 1e-12)));
        }
        let latest = releases.iter().copied().fold(0.0, f64::max);
        let at_once = planner.plan(&jobs, &speeds).expect("a plan");
        assert!(plan.makespan() <= (latest + at_once.makespan()) * (1.0 + 1e-6));
        if round % 3 == 0 {
            assert!((plan.makespan() - at_once.makespan()).abs() <= 1e-9 * total);
            assert_eq!(plan.preemptions(), at_once.preemptions());
        }
    }
}

#[test]
fn the_plan_is_idle_only_while_no_job_is_there() {
    let speeds = Speeds::from_fn(Sharing::AllSms, 3, |_, _| 1.0).expect("speeds");
    let durations = [1.0, 1.0, 4.0];
    let plan =
        Planner::new().plan_released(&jobs(&durations), &[1.0, 4.0, 4.0], &speeds).expect("a plan");
    assert!((check_intervals(&durations, &speeds, &plan) - 3.0).abs() < 1e-12);
    assert_eq!(plan.intervals()[0].start, 1.0);
    assert!((plan.makespan() - 8.0).abs() < 1e-12);
}

/// A new plan begins with the job that runs, from whichever end of its caterpillar.
#[test]
fn a_release_does_not_preempt_what_can_go_on() {
    let mut random = Random(64);
    let mut interrupted = 0;
    for _ in 0..200 {
        let durations = [1.0 + random.unit(), 1.0 + random.unit(), 1.0];
        let speeds = Speeds::from_fn(Sharing::AllSms, 3, |i, j| if i + j == 1 { 0.0 } else { 0.9 })
            .expect("speeds");
        let plan = Planner::new().plan_released(&jobs(&durations), &[0.0, 0.0, 0.5], &speeds);
        interrupted += plan.expect("a plan").preemptions();
    }
    assert_eq!(interrupted, 0);
}

#[test]
fn the_caterpillar_with_the_running_job_comes_first_and_from_that_end() {
    let pair = |i: usize, j: usize| (Column { tasks: [i, j], way: 0, speeds: [0.9, 0.9] }, 1.0);
    let parts =
        || vec![vec![pair(5, 6)], vec![pair(0, 1), pair(1, 2), pair(2, 3)], vec![pair(7, 8)]];
    let begin = |running: &[usize]| -> Vec<[usize; 2]> {
        beginning_with(running, parts()).iter().map(|(column, _)| column.tasks).collect()
    };
    assert_eq!(begin(&[]), [[5, 6], [0, 1], [1, 2], [2, 3], [7, 8]]);
    assert_eq!(begin(&[0]), [[0, 1], [1, 2], [2, 3], [5, 6], [7, 8]]);
    assert_eq!(begin(&[3]), [[2, 3], [1, 2], [0, 1], [5, 6], [7, 8]]);
    assert_eq!(begin(&[5, 7, 8]), [[7, 8], [5, 6], [0, 1], [1, 2], [2, 3]]);
}

#[test]
fn times_that_are_none_are_refused() {
    let one = Speeds::new(Sharing::AllSms, vec![vec![1.0]]).expect("speeds");
    let jobs = jobs(&[1.0]);
    let cost = |seconds| Planner::new().preemption_cost(seconds).plan(&jobs, &one).map(|_| ());
    let released =
        |releases: &[f64]| Planner::new().plan_released(&jobs, releases, &one).map(|_| ());
    for (result, says) in [
        (cost(-1.0), "the cost of a preemption is -1 s; give"),
        (cost(f64::NAN), "the cost of a preemption is NaN s"),
        (released(&[-1.0]), "the release time of job 0 `job 0` is -1 s"),
        (released(&[f64::INFINITY]), "is inf s"),
        (released(&[]), "0 release times for 1 jobs; give one for each"),
    ] {
        let error = result.expect_err(says).to_string();
        assert!(error.contains(says), "{error}");
    }
}
