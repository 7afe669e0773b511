//! Plans against code that knows their intervals only.

use super::super::kit::Random;
use super::*;

pub(in super::super) fn jobs(durations: &[f64]) -> Vec<Job> {
    durations
        .iter()
        .enumerate()
        .map(|(task, &seconds)| Job::new(format!("job {task}"), seconds))
        .collect()
}

/// Checks a plan that is never idle.
pub(in super::super) fn check(durations: &[f64], speeds: &Speeds, plan: &CoSchedule) {
    assert!(check_intervals(durations, speeds, plan) <= 1e-9 * plan.makespan());
}

/// Checks a plan from its intervals, and returns its idle seconds: each job done, at most two at a time, at the speeds of the matrix, contiguous but
/// for the preemptions that the plan counts.
pub(in super::super) fn check_intervals(
    durations: &[f64],
    speeds: &Speeds,
    plan: &CoSchedule,
) -> f64 {
    let rounding = 1e-12 * plan.makespan();
    let (mut now, mut idle) = (0.0, 0.0);
    let mut done = vec![0.0; durations.len()];
    let mut spans: Vec<Vec<(f64, f64)>> = vec![Vec::new(); durations.len()];
    for &Interval { start, duration, running } in plan.intervals() {
        assert!(start >= now - rounding, "no overlap");
        idle += start - now;
        assert!(duration > 0.0, "{duration}");
        now = start + duration;
        let progress = match running {
            Running::Alone { task } => vec![(task, 1.0)],
            Running::Pair { tasks: [i, j], sharing, .. } => {
                let way = speeds.ways().position(|way| way == sharing).expect("a way of theirs");
                assert_ne!(i, j);
                vec![(i, speeds.speed(way, i, j)), (j, speeds.speed(way, j, i))]
            }
        };
        assert_eq!(
            running.tasks().collect::<Vec<_>>(),
            progress.iter().map(|of| of.0).collect::<Vec<_>>()
        );
        for (task, speed) in progress {
            assert_eq!(running.speed_of(task), speed);
            done[task] += speed * duration;
            match spans[task].last_mut() {
                Some((_, end)) if (*end - start).abs() <= rounding => *end = now,
                _ => spans[task].push((start, now)),
            }
        }
    }
    assert_eq!(plan.makespan(), now);
    let order = plan.order();
    let begin = |&task: &usize| spans[task].first().map_or(f64::INFINITY, |&(begin, _)| begin);
    assert!(order.is_sorted_by_key(begin) && order.len() == durations.len(), "{order:?}");
    for (task, &seconds) in durations.iter().enumerate() {
        assert!(
            (done[task] - seconds).abs() <= 1e-8 * seconds,
            "job {task}: {} of {seconds}",
            done[task]
        );
        assert_eq!(plan.preemptions_of(task), spans[task].len().saturating_sub(1), "job {task}");
    }
    assert_eq!(
        plan.preemptions(),
        (0..durations.len()).map(|task| plan.preemptions_of(task)).sum::<usize>()
    );
    idle
}

#[test]
fn plans_are_valid_and_never_longer_than_the_baselines() {
    let mut random = Random(31);
    for round in 0..1500 {
        let (durations, speeds) = random.instance(round);
        let jobs = jobs(&durations);
        let plan = CoSchedule::plan(&jobs, &speeds).expect("a plan");
        check(&durations, &speeds, &plan);
        let max_pair = CoSchedule::max_pair(&jobs, &speeds).expect("a plan");
        check(&durations, &speeds, &max_pair);
        let sequential = CoSchedule::sequential(&jobs, &speeds).expect("a plan");
        check(&durations, &speeds, &sequential);
        assert_eq!((max_pair.preemptions(), sequential.preemptions()), (0, 0));
        assert!(plan.makespan() <= max_pair.makespan() * (1.0 + 1e-7));
        assert!(max_pair.makespan() <= sequential.makespan() * (1.0 + 1e-12));
        let total: f64 = durations.iter().sum();
        assert!((sequential.makespan() - total).abs() <= 1e-12 * total);
    }
}

#[test]
fn plans_of_many_jobs_are_valid() {
    let mut random = Random(32);
    for round in 0..40 {
        let tasks = 20 + random.below(60);
        let (ways, zeros) = (1 + round % 3, [0.0, 0.5][round % 2]);
        let speeds = random.speeds(tasks, ways, zeros);
        let durations: Vec<f64> =
            (0..tasks).map(|_| 10f64.powf(random.unit() * (round % 10) as f64)).collect();
        let plan = CoSchedule::plan(&jobs(&durations), &speeds).expect("a plan");
        check(&durations, &speeds, &plan);
        let bound = plan.lower_bound().expect("a bound");
        assert!(plan.makespan() <= bound * (1.0 + 1e-6));
    }
}

/// PLP with `>=`: an optimal solution lets the first task overrun where both have full speed (section IV-A).
#[test]
fn what_a_task_would_do_beyond_its_duration_is_cut_off() {
    let speeds = Speeds::from_fn(Sharing::AllSms, 2, |_, _| 1.0).expect("speeds");
    let pair = Column { tasks: [0, 1], way: 0, speeds: [1.0, 1.0] };
    let jobs = jobs(&[1.0, 3.0]);
    let mut columns = vec![(pair, 3.0)];
    cut_overruns(&[1.0, 3.0], &mut columns);
    let plan = CoSchedule::from_columns(&jobs, &speeds, columns, None);
    check(&[1.0, 3.0], &speeds, &plan);
    assert_eq!(plan.intervals().len(), 2);
    assert_eq!((plan.makespan(), plan.preemptions()), (3.0, 0));
}

/// A task that overruns in two intervals is cut in the last one first, and a cut never lengthens the plan.
#[test]
fn overruns_are_cut_from_the_end() {
    let speeds = Speeds::from_fn(Sharing::AllSms, 3, |i, _| [1.0, 0.5, 1.0][i]).expect("speeds");
    let pair = |i: usize, j: usize, a, b| Column { tasks: [i, j], way: 0, speeds: [a, b] };
    let mut columns = vec![(pair(0, 1, 1.0, 0.5), 4.0), (pair(0, 2, 1.0, 1.0), 3.0)];
    let durations = [2.0, 2.0, 3.0];
    cut_overruns(&durations, &mut columns);
    let plan = CoSchedule::from_columns(&jobs(&durations), &speeds, columns, None);
    check(&durations, &speeds, &plan);
    assert!(plan.makespan() <= 7.0);
    assert_eq!(plan.preemptions(), 0);
}

#[test]
fn trivial_inputs_have_their_plans() {
    let none = Speeds::new(Sharing::AllSms, Vec::new()).expect("speeds");
    let plan = CoSchedule::plan(&[], &none).expect("a plan");
    assert_eq!((plan.makespan(), plan.intervals().len(), plan.preemptions()), (0.0, 0, 0));
    assert_eq!(CoSchedule::max_pair(&[], &none).expect("a plan").makespan(), 0.0);

    let one = Speeds::new(Sharing::AllSms, vec![vec![1.0]]).expect("speeds");
    let plan = CoSchedule::plan(&jobs(&[2.5]), &one).expect("a plan");
    assert_eq!(
        plan.intervals(),
        [Interval { start: 0.0, duration: 2.5, running: Running::Alone { task: 0 } }]
    );

    // All pairs incompatible: some not at all, some gain nothing.
    let speeds =
        Speeds::from_fn(Sharing::AllSms, 5, |i, j| if (i + j) % 2 == 0 { 0.0 } else { 0.5 })
            .expect("speeds");
    let durations = [1.0, 2.0, 0.0, 4.0, 5.0];
    let plan = CoSchedule::plan(&jobs(&durations), &speeds).expect("a plan");
    check(&durations, &speeds, &plan);
    assert!((plan.makespan() - 12.0).abs() < 1e-9);
    assert!(plan.intervals().iter().all(|of| matches!(of.running, Running::Alone { .. })));

    let plan = CoSchedule::plan(&jobs(&[0.0; 5]), &speeds).expect("a plan");
    assert_eq!(plan.makespan(), 0.0);
}

#[test]
fn ways_of_one_pair_are_neighbours() {
    let way = |a, b| vec![vec![1.0, a], vec![b, 1.0]];
    let speeds = Speeds::new(Sharing::AllSms, way(0.9, 0.5))
        .and_then(|of| of.with(Sharing::split(1, 2), way(0.5, 0.9)));
    let speeds = speeds.expect("speeds");
    let plan = CoSchedule::plan(&jobs(&[7.0, 7.0]), &speeds).expect("a plan");
    check(&[7.0, 7.0], &speeds, &plan);
    assert_eq!((plan.intervals().len(), plan.preemptions()), (2, 0));
    assert!((plan.makespan() - 10.0).abs() < 1e-9);
}

#[test]
fn bad_input_is_refused_with_what_to_do() {
    let speeds = |rows: Vec<Vec<f64>>| Speeds::new(Sharing::AllSms, rows).map(|_| ());
    let two = Speeds::new(Sharing::AllSms, vec![vec![1.0, 0.5], vec![0.5, 1.0]]).expect("speeds");
    let plan = |durations: &[f64]| CoSchedule::plan(&jobs(durations), &two).map(|_| ());
    let max_pair = |durations: &[f64]| CoSchedule::max_pair(&jobs(durations), &two).map(|_| ());
    let sequential = |durations: &[f64]| CoSchedule::sequential(&jobs(durations), &two).map(|_| ());
    for (result, says) in [
        (plan(&[1.0, -1.0]), "the duration of job 1 `job 1` is -1 s; give"),
        (plan(&[f64::NAN, 1.0]), "the duration of job 0 `job 0` is NaN s; give"),
        (plan(&[1.0, f64::INFINITY]), "is inf s; give"),
        (max_pair(&[1.0, -1.0]), "the duration of job 1"),
        (sequential(&[1.0, f64::NAN]), "the duration of job 1"),
        (plan(&[1.0]), "1 jobs, and speeds of 2 tasks; give one job for each row"),
        (max_pair(&[]), "0 jobs, and speeds of 2 tasks"),
        (sequential(&[1.0; 3]), "3 jobs, and speeds of 2 tasks"),
        (speeds(vec![vec![1.0, 0.5]]), "has 1 rows, and row 0 has 2 entries; give 1"),
        (speeds(vec![vec![1.0, 0.5], vec![0.5]]), "has 2 rows, and row 1 has 1 entries; give 2"),
        (speeds(vec![vec![1.0, 1.5], vec![0.5, 1.0]]), "task 0 beside task 1 is 1.5"),
        (speeds(vec![vec![1.0, 0.5], vec![-0.1, 1.0]]), "task 1 beside task 0 is -0.1"),
        (speeds(vec![vec![1.0, f64::NAN], vec![0.5, 1.0]]), "is NaN in `all SMs`; a speed is"),
        (speeds(vec![vec![0.9]]), "the speed of task 0 alone is 0.9 in `all SMs`; write 1"),
        (
            two.clone().with(Sharing::split(1, 2), vec![vec![1.0]]).map(|_| ()),
            "measure the same tasks",
        ),
    ] {
        let error = result.expect_err(says);
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn a_plan_prints_as_a_table_and_draws_as_a_chart() {
    let way = |a, b| vec![vec![1.0, a], vec![b, 1.0]];
    let speeds = Speeds::new(Sharing::AllSms, way(1.0, 1.0)).expect("speeds");
    let jobs = [Job::new("sort <&>", 0.5), Job::new("fft", 2.0)];
    let plan = CoSchedule::plan(&jobs, &speeds).expect("a plan");
    let table = plan.to_string();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 4, "{table}");
    assert!(
        lines[1..3].iter().any(|line| line.contains("sort <&> + fft") && line.ends_with("all SMs"))
    );
    assert!(
        lines[1..3].iter().any(|line| line.contains("fft") && line.ends_with("alone")),
        "{table}"
    );
    assert_eq!(lines[3], "makespan 2.000 s, 0 preemptions");

    let svg = plan.svg();
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    // One box for each span of a job, and no markup in names.
    assert_eq!(svg.matches("<rect").count(), 2, "{svg}");
    assert!(svg.contains("sort &lt;&amp;&gt;") && !svg.contains("sort <"));
}
