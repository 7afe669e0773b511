//! The evaluation in virtual time.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use preempt::pool::{Elastic, FirstCome, InTime, PoolPolicy, Stop, UserFacingFirst};
use preempt::sim::pool::{JobMix, PoolResults, PoolSimulation, PoolWorkload, SLA};
use preempt_report::{digits, microseconds};
use serde_json::{Value, json};

use super::{DEVICES, JOBS, MIXES, PERIOD, median, without_stops};
use crate::experiments::{Bench, Outcome, Rows, line};
use crate::progress::Progress;

const LOADS: [f64; 4] = [0.25, 0.5, 1.0, 2.0];
/// Workloads of each mix and load, and with `--quick`.
const SEEDS: (u64, u64) = (5, 1);
/// A kill and the start of a process on standby took 22 ms in the paper: a tenth of that.
const TREM: Stop = Stop::Revoke(Duration::from_micros(2200));
/// What yields of kernels with yield points take on an H200, rounded up (suite `latency`).
const OURS: Stop = Stop::Yield(Duration::from_micros(50));
const FREE: Stop = Stop::Yield(Duration::ZERO);

/// Figure 11: numbers of devices, and revocation latencies.
const POOLS: [usize; 5] = [2, 4, 8, 16, 1000];
const LATENCIES: [Duration; 6] = [
    Duration::from_micros(10),
    Duration::from_micros(100),
    Duration::from_millis(1),
    Duration::from_millis(10),
    Duration::from_millis(100),
    Duration::from_millis(1000),
];
/// Further ones for each further device.
const JOBS_EACH: usize = 8;
/// Jobs of W2 with a million tasks, about.
const MANY_JOBS: (usize, usize) = (22_000, 2_000);

/// A policy and how it stops tasks.
#[derive(Clone, Copy)]
struct Arm {
    name: &'static str,
    policy: fn() -> Box<dyn PoolPolicy>,
    stop: Stop,
}

fn first_come() -> Box<dyn PoolPolicy> {
    Box::new(FirstCome)
}

fn priority() -> Box<dyn PoolPolicy> {
    Box::new(UserFacingFirst)
}

fn elastic() -> Box<dyn PoolPolicy> {
    Box::new(Elastic::new(SLA).period(PERIOD))
}

fn in_time() -> Box<dyn PoolPolicy> {
    Box::new(InTime::new(SLA))
}

const fn arm(name: &'static str, policy: fn() -> Box<dyn PoolPolicy>, stop: Stop) -> Arm {
    Arm { name, policy, stop }
}

const ARMS: [Arm; 9] = [
    arm("first come", first_come, Stop::Never),
    arm("priority", priority, Stop::Never),
    arm("elastic", elastic, Stop::Never),
    arm("priority, killed", priority, TREM),
    arm("elastic, killed", elastic, TREM),
    arm("priority, yielding", priority, OURS),
    arm("elastic, yielding", elastic, OURS),
    arm("elastic, for free", elastic, FREE),
    arm("in time, yielding", in_time, OURS),
];

/// The means of several workloads.
#[derive(Clone, Copy, Default)]
struct Means {
    late: f64,
    revocations: f64,
    yields: f64,
    wasted: f64,
    batch_median: f64,
    utilization: f64,
}

impl Means {
    fn of(all: &[PoolResults]) -> Means {
        let mean = |value: &dyn Fn(&PoolResults) -> f64| {
            all.iter().map(value).sum::<f64>() / all.len() as f64
        };
        Means {
            late: mean(&|of| of.late(SLA)),
            revocations: mean(&|of| of.revocations() as f64),
            yields: mean(&|of| of.yields() as f64),
            wasted: mean(&|of| of.wasted()),
            batch_median: mean(&|of| median(of.batch_jobs())),
            utilization: mean(&|of| of.utilization()),
        }
    }
}

fn simulate(devices: usize, arm: &Arm, workload: &PoolWorkload) -> Result<PoolResults> {
    Ok(PoolSimulation::boxed(devices, (arm.policy)()).stop(arm.stop).run(workload)?)
}

/// All of it in virtual time.
pub fn run(bench: &Bench) -> Result<Outcome> {
    let seeds = bench.amount(SEEDS.1, SEEDS.0);
    let of_seeds = |mix, jobs, devices, load| -> Vec<PoolWorkload> {
        let seed = |of: u64| bench.seed.wrapping_add(of);
        (0..seeds).map(|of| PoolWorkload::jobs_of(mix, jobs, devices, load, seed(of))).collect()
    };
    let mut rows = Rows::below([
        "figure", "mix", "arm", "devices", "load", "late", "revoked", "yields", "wasted", "batch",
        "used",
    ]);
    let mut all = Vec::new();
    let progress =
        Progress::new("pool", (MIXES.len() * LOADS.len() + POOLS.len() + LATENCIES.len()) as u64);
    for (mix_name, mix) in MIXES {
        for load in LOADS {
            let workloads = of_seeds(mix, JOBS, DEVICES, load);
            for arm in &ARMS {
                let results: Result<Vec<_>> =
                    workloads.iter().map(|workload| simulate(DEVICES, arm, workload)).collect();
                all.push((mix_name, load, arm.name, Means::of(&results?)));
            }
            progress.step();
        }
    }
    for &(mix, load, arm, means) in &all {
        let base = find(&all, mix, load, without_stops(arm));
        let batch = Some(means.batch_median / base.batch_median);
        push(&mut rows, &Row { figure: "7-9", mix, arm, devices: DEVICES, load, means, batch });
    }
    for devices in POOLS.into_iter().filter(|&devices| !bench.quick || devices < 1000) {
        let jobs = JOBS.max(JOBS_EACH * devices);
        let workloads: Vec<_> =
            MIXES.iter().flat_map(|&(_, mix)| of_seeds(mix, jobs, devices, 1.0)).collect();
        for arm in ["elastic", "elastic, killed", "elastic, yielding"] {
            let arm = ARMS.iter().find(|of| of.name == arm).expect("it is there");
            let results: Result<Vec<_>> =
                workloads.iter().map(|workload| simulate(devices, arm, workload)).collect();
            let (means, arm) = (Means::of(&results?), arm.name);
            push(&mut rows, &Row { devices, ..Row::of_both("11a", arm, means) });
        }
        progress.step();
    }
    let workloads: Vec<_> =
        MIXES.iter().flat_map(|&(_, mix)| of_seeds(mix, JOBS, DEVICES, 1.0)).collect();
    for latency in LATENCIES {
        let arm = Arm { name: "elastic, killed", policy: elastic, stop: Stop::Revoke(latency) };
        let results: Result<Vec<_>> =
            workloads.iter().map(|workload| simulate(DEVICES, &arm, workload)).collect();
        let means = Means::of(&results?);
        let name = format!("elastic, killed in {} µs", latency.as_micros());
        push(&mut rows, &Row::of_both("11b", &name, means));
        let row = rows.json.last_mut().expect("just pushed");
        row["latency_us"] = json!(microseconds(latency));
        progress.step();
    }
    drop(progress);
    let many = bench.amount(MANY_JOBS.1, MANY_JOBS.0);
    let workload = PoolWorkload::jobs_of(JobMix::W2, many, 1000, 1.0, bench.seed);
    let start = Instant::now();
    let elastic = ARMS.iter().find(|arm| arm.name == "elastic, killed").expect("it is there");
    let results = simulate(1000, elastic, &workload)?;
    ensure!(!results.responses().is_empty(), "no task came to its end");
    let seconds = start.elapsed().as_secs_f64();
    let mut summary = summary(&all);
    summary["million"] = json!({ "tasks": workload.tasks(), "devices": 1000, "seconds": seconds });
    Ok(Outcome {
        about: format!(
            "TReM's evaluation in virtual time, a tenth of its times: an SLA of 20 ms. {} tasks on 1,000 devices \
             took {} s to simulate.",
            workload.tasks(),
            digits(seconds)
        ),
        table: rows.table,
        text_columns: 3,
        rows: rows.json,
        summary,
        mistake: None,
    })
}

type Cell = (&'static str, f64, &'static str, Means);

fn find(all: &[Cell], mix: &str, load: f64, arm: &str) -> Means {
    let is_it = |row: &&Cell| row.0 == mix && row.1 == load && row.2 == arm;
    all.iter().find(is_it).map(|row| row.3).unwrap_or_default()
}

/// A row of the table.
struct Row<'a> {
    figure: &'a str,
    mix: &'a str,
    arm: &'a str,
    devices: usize,
    load: f64,
    means: Means,
    /// The time of batch jobs by that without stops.
    batch: Option<f64>,
}

impl<'a> Row<'a> {
    /// Of both mixes on four devices, at load 1.
    fn of_both(figure: &'a str, arm: &'a str, means: Means) -> Row<'a> {
        Row { figure, mix: "both", arm, devices: DEVICES, load: 1.0, means, batch: None }
    }
}

fn push(rows: &mut Rows, row: &Row<'_>) {
    let &Row { figure, mix, arm, devices, load, means, batch } = row;
    let percent = |part: f64| digits(100.0 * part) + " %";
    let cells = line([
        figure,
        mix,
        arm,
        &devices.to_string(),
        &load.to_string(),
        &percent(means.late),
        &digits(means.revocations),
        &digits(means.yields),
        &percent(means.wasted),
        &batch.map_or("-".into(), digits),
        &percent(means.utilization),
    ]);
    let json = json!({
        "figure": figure,
        "mix": mix,
        "arm": arm,
        "devices": devices,
        "load": load,
        "late": means.late,
        "revocations": means.revocations,
        "yields": means.yields,
        "wasted": means.wasted,
        "batch_over_no_stop": batch,
        "utilization": means.utilization,
    });
    rows.push(cells, json);
}

/// The summary, by its keys.
fn summary(all: &[Cell]) -> Value {
    let at = |mix: &str, load, arm| find(all, mix, load, arm);
    let late =
        |arm| MIXES.iter().map(|(mix, _)| at(mix, 1.0, arm).late).sum::<f64>() / MIXES.len() as f64;
    let over_priority = MIXES.iter().flat_map(|(mix, _)| {
        LOADS.map(|load| {
            let revoked = |arm| at(mix, load, arm).revocations.max(f64::MIN_POSITIVE);
            revoked("elastic, killed") / revoked("priority, killed")
        })
    });
    let batch = |arm| {
        let of = |mix: &str| at(mix, 2.0, arm).batch_median / at(mix, 2.0, "elastic").batch_median;
        MIXES.iter().map(|(mix, _)| of(mix)).fold(0.0, f64::max)
    };
    let most_wasted = |arm| {
        let wasted = MIXES.iter().flat_map(|(mix, _)| LOADS.map(|load| at(mix, load, arm).wasted));
        wasted.fold(0.0, f64::max)
    };
    json!({
        "late_first_come": late("first come"),
        "late_elastic": late("elastic"),
        "late_elastic_killed": late("elastic, killed"),
        "late_elastic_yielding": late("elastic, yielding"),
        "late_in_time_yielding": late("in time, yielding"),
        "late_over_free_points": 100.0 * (late("elastic, yielding") - late("elastic, for free")),
        "late_over_trem_arm": late("in time, yielding") / late("elastic, killed"),
        "wasted_killed": most_wasted("elastic, killed"),
        "wasted_yielding": most_wasted("elastic, yielding"),
        "batch_over_no_stop_killed": batch("elastic, killed"),
        "batch_over_no_stop_yielding": batch("elastic, yielding"),
        "elastic_over_priority_revocations_max": over_priority.fold(0.0, f64::max),
        "utilization": at("W1", 1.0, "elastic, yielding").utilization,
    })
}
