//! Optima against their certificates, and against one program with all columns.

use super::super::kit::Random;
use super::super::sharing::Sharing;
use super::*;

/// Checks, with nothing of the solver, that the solution does each task and that its prices prove it the shortest.
pub(in super::super) fn check(durations: &[f64], speeds: &Speeds, optimum: &Optimum) {
    let mut done = vec![0.0; durations.len()];
    let mut makespan = 0.0;
    for &(column, seconds) in &optimum.columns {
        assert!(seconds > 0.0);
        makespan += seconds;
        let [i, j] = column.tasks;
        if i == j {
            done[i] += seconds;
        } else {
            assert!(speeds.gain(column.way, i, j) > 0.0);
            done[i] += seconds * speeds.speed(column.way, i, j);
            done[j] += seconds * speeds.speed(column.way, j, i);
        }
    }
    for (task, &duration) in durations.iter().enumerate() {
        assert!(done[task] >= duration * (1.0 - 1e-8), "task {task}: {} of {duration}", done[task]);
    }
    if durations.iter().all(|&duration| duration == 0.0) {
        return assert_eq!((makespan, optimum.bound), (0.0, 0.0));
    }
    let prices = &optimum.prices;
    assert!(prices.iter().all(|price| (0.0..=1.0).contains(price)));
    for i in 0..durations.len() {
        for j in i + 1..durations.len() {
            for way in 0..speeds.ways().len() {
                let value =
                    prices[i] * speeds.speed(way, i, j) + prices[j] * speeds.speed(way, j, i);
                assert!(value <= 1.0 + 1e-12, "pair ({i}, {j}) is worth {value}");
            }
        }
    }
    let bound: f64 = prices.iter().zip(durations).map(|(price, duration)| price * duration).sum();
    assert!(makespan <= bound * (1.0 + 1e-6), "{makespan} and {bound}");
    assert!((optimum.bound / bound - 1.0).abs() < 1e-12 || bound == 0.0);
    assert!(forest::is_pseudo_forest(
        durations.len(),
        optimum.columns.iter().map(|(column, _)| column)
    ));
}

/// The optimum of PLP as it is written, with all columns at once.
fn with_all_columns(durations: &[f64], speeds: &Speeds) -> f64 {
    let mut program = Problem::new(OptimizationDirection::Minimize);
    let mut rows = vec![Vec::new(); durations.len()];
    for i in 0..durations.len() {
        let alone = program.add_var(1.0, (0.0, f64::INFINITY));
        rows[i].push((alone, 1.0));
        for j in i + 1..durations.len() {
            for way in 0..speeds.ways().len() {
                let pair = program.add_var(1.0, (0.0, f64::INFINITY));
                rows[i].push((pair, speeds.speed(way, i, j)));
                rows[j].push((pair, speeds.speed(way, j, i)));
            }
        }
    }
    for (row, &duration) in rows.iter().zip(durations) {
        program.add_constraint(row, ComparisonOp::Ge, duration);
    }
    program.solve().expect("solved").into_solution().expect("a solution").objective()
}

#[test]
fn a_thousand_optima_are_those_of_the_program_with_all_columns() {
    let mut random = Random(11);
    for round in 0..1000 {
        let (durations, speeds) = random.instance(round);
        let optimum = solve(&durations, &speeds).expect("solved");
        check(&durations, &speeds, &optimum);
        let makespan: f64 = optimum.columns.iter().map(|(_, seconds)| seconds).sum();
        let expected = with_all_columns(&durations, &speeds);
        assert!(
            (makespan - expected).abs() <= 1e-6 * expected,
            "{makespan}, {expected}, {durations:?}"
        );
    }
}

#[test]
fn durations_over_nine_orders_of_magnitude_are_solved() {
    let mut random = Random(12);
    for round in 0..300 {
        let tasks = 2 + random.below(40);
        let durations: Vec<f64> = (0..tasks)
            .map(|_| 10f64.powf(9.0 * random.unit() - 3.0 * (round % 3) as f64))
            .collect();
        let speeds = random.speeds(tasks, 1 + round % 2, 0.5);
        let optimum = solve(&durations, &speeds).expect("solved");
        check(&durations, &speeds, &optimum);
    }
}

#[test]
fn tasks_that_are_all_alike_are_solved() {
    for tasks in 1..40 {
        for speed in [1.0, 0.9, 0.75, 0.500001] {
            let speeds = Speeds::from_fn(Sharing::AllSms, tasks, |_, _| speed).expect("speeds");
            let durations = vec![3.0; tasks];
            let optimum = solve(&durations, &speeds).expect("solved");
            check(&durations, &speeds, &optimum);
            // Half of the time at twice the speed, if there are two tasks.
            let expected = if tasks == 1 { 3.0 } else { 1.5 * tasks as f64 / speed };
            let makespan: f64 = optimum.columns.iter().map(|(_, seconds)| seconds).sum();
            assert!(
                (makespan / expected - 1.0).abs() < 1e-6,
                "{tasks} tasks: {makespan}, {expected}"
            );
        }
    }
}

/// The steps over the graph find the optimum also without the solver's solution, from each task alone.
#[test]
fn the_simplex_method_needs_no_start() {
    let mut random = Random(13);
    for round in 0..400 {
        let (durations, speeds) = random.instance(round);
        let tasks: Vec<usize> =
            (0..durations.len()).filter(|&task| durations[task] > 0.0).collect();
        let mut basis = Basis::new(&durations, &[]);
        Columns::new(&tasks, &speeds).pivot(&mut basis);
        let used = basis.used().into_iter().filter(|(column, _)| !column.is_surplus());
        let makespan: f64 = used.map(|(_, seconds)| seconds).sum();
        let expected = with_all_columns(&durations, &speeds);
        assert!(
            (makespan - expected).abs() <= 1e-6 * expected,
            "{makespan}, {expected}, {durations:?}"
        );
    }
}

/// Which columns are generated: by gain, and then by price; and the bound of the ones that are not.
#[test]
fn the_best_partners_are_kept() {
    let mut kept = Vec::new();
    for worth in [3.0, 1.0, 5.0, 4.0, 2.0] {
        offer(&mut kept, (worth, 0, Column::alone(worth as usize)));
    }
    assert_eq!(kept.iter().map(|of| of.0).collect::<Vec<_>>(), [5.0, 4.0, 3.0]);
}

#[test]
fn two_ways_of_one_pair_are_both_used_if_neither_is_enough() {
    // Task 0 is fast in the first way, task 1 in the second; both have the same work.
    let speeds =
        Speeds::new(Sharing::AllSms, vec![vec![1.0, 0.5], vec![0.5, 1.0]]).expect("speeds");
    let first = vec![vec![1.0, 0.9], vec![0.5, 1.0]];
    let second = vec![vec![1.0, 0.5], vec![0.9, 1.0]];
    let speeds = speeds
        .with(Sharing::split(1, 4), first)
        .and_then(|of| of.with(Sharing::split(3, 4), second))
        .expect("speeds");
    let optimum = solve(&[7.0, 7.0], &speeds).expect("solved");
    check(&[7.0, 7.0], &speeds, &optimum);
    let ways: Vec<usize> = optimum.columns.iter().map(|(column, _)| column.way).collect();
    assert_eq!(ways.len(), 2);
    assert!(ways.contains(&1) && ways.contains(&2), "{ways:?}");
}
/// Speeds from 10⁻⁹ to 1, gains of a millionth, cycles that nearly cancel out, durations over 18 orders of magnitude.
#[test]
fn ill_conditioned_instances_are_solved() {
    let mut random = Random(77);
    for round in 0..2000 {
        let tasks = 2 + random.below(if round % 10 == 0 { 80 } else { 20 });
        let mut speed = || match round % 8 {
            0 => random.unit(),
            1 => 1.0 - 1e-6 * random.unit(),
            2 => [1.0, 10f64.powf(-9.0 * random.unit())][random.below(2)],
            3 => 0.5 + 1e-7 * random.unit(),
            4 => [0.0, 1.0, 0.5, 1e-3][random.below(4)],
            5 => 1.0 - 10f64.powf(-12.0 * random.unit()),
            6 => [1.0, 0.0, 0.0, 0.0][random.below(4)],
            _ => 0.5 + 0.5 * random.unit(),
        };
        let speeds = Speeds::from_fn(Sharing::AllSms, tasks, |_, _| speed()).expect("speeds");
        let mut duration = |task: usize| match round / 8 % 5 {
            0 => 1.0,
            1 => 10f64.powf(18.0 * random.unit() - 12.0),
            2 => {
                if task == 0 {
                    1e9
                } else {
                    1.0 + random.unit()
                }
            }
            3 => [1e-9, 1.0][random.below(2)],
            _ => 10f64.powf(9.0 * random.unit()),
        };
        let durations: Vec<f64> = (0..tasks).map(&mut duration).collect();
        let optimum = solve(&durations, &speeds).expect("solved");
        check(&durations, &speeds, &optimum);
    }
}

/// Instances whose optima are in `highs.json`: all kinds of the kit, tasks of kernels, and up to a hundred tasks.
fn instances() -> impl Iterator<Item = (Vec<f64>, Speeds)> {
    let mut random = Random(14);
    (0..1000).map(move |round| {
        if round % 4 < 2 {
            return random.instance(round / 4);
        }
        let tasks = if round % 250 == 2 { 100 } else { 1 + random.below(40) };
        let ways = 1 + random.below(3);
        let speeds = match round % 3 {
            0 => random.speeds(tasks, ways, 0.5),
            1 => random.speeds(tasks, ways, 0.0),
            _ => {
                let of: Vec<usize> = (0..tasks).map(|_| random.below(6)).collect();
                random.of_kernels(6, &of, 1 + ways / 3)
            }
        };
        let kind = random.below(3);
        let durations = (0..tasks).map(|_| match kind {
            0 => 10.0 * random.unit(),
            1 => (1 + random.below(5)) as f64,
            _ => 10f64.powf(3.0 * random.unit()),
        });
        (durations.collect(), speeds)
    })
}

/// The instance as `highs.py` reads it, and a number that changes if anything of it does.
fn printed(durations: &[f64], speeds: &Speeds) -> (u32, String) {
    let tasks = durations.len();
    let ways: Vec<Vec<Vec<f64>>> = (0..speeds.ways().len())
        .map(|way| {
            (0..tasks).map(|i| (0..tasks).map(|j| speeds.speed(way, i, j)).collect()).collect()
        })
        .collect();
    let text = serde_json::json!({ "durations": durations, "ways": ways }).to_string();
    // FNV-1a.
    let checksum = text
        .bytes()
        .fold(0x811C_9DC5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (checksum, text)
}

#[test]
#[ignore = "prints what `highs.py` reads"]
fn instances_are_printed() {
    for (durations, speeds) in instances() {
        let (checksum, text) = printed(&durations, &speeds);
        println!("{{\"checksum\":{checksum},{}", &text[1..]);
    }
}

/// An independent solver (see `highs.py`), with all columns at once.
#[test]
fn optima_are_those_of_highs() {
    let expected: Vec<(u32, f64)> =
        serde_json::from_str(include_str!("highs.json")).expect("checksums and optima");
    assert_eq!(expected.len(), instances().count());
    for (at, ((durations, speeds), (checksum, expected))) in instances().zip(expected).enumerate() {
        assert_eq!(printed(&durations, &speeds).0, checksum, "another instance {at}");
        let makespan = solve(&durations, &speeds).expect("solved").makespan();
        assert!(
            (makespan - expected).abs() <= 1e-6 * expected,
            "instance {at}: {makespan}, {expected}"
        );
    }
}
