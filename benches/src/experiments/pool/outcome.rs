//! What was measured on pools of devices: rows and summary.

use std::time::Duration;

use preempt::pool::Class;
use preempt::sim::pool::{PoolResults, SLA};
use preempt_report::microseconds;
use serde_json::{Value, json};

use super::devices::{All, JOB_SCALES, Measured};
use super::inversion::Inversion;
use super::isolation::{Isolation, NEIGHBOURS};
use super::opaque::Kills;
use super::replay::{Answers, Replayed, SAMPLE};
use super::tasks::{BATCH_SCALE, Kind, USER_FACING_SCALE};
use super::{median, without_stops};
use crate::experiments::{Bench, Outcome, Rows, line};
use crate::samples::{Samples, Summary, mean, ratio, show, show_number, show_percent, show_ratio};

/// The arm that the summary is about, TReM's policy with yields and without stops, and TReM's.
const OURS: &str = "in time, yielding";
const ELASTIC: &str = "elastic, yielding";
const WITHOUT: &str = "elastic";
const TREM: &str = "elastic, killed";
const TREM_PRIORITY: &str = "priority, killed";
/// The run whose devices' use over time is in the results (figure 10).
const OVER_TIME: (&str, f64) = ("W1", 1.0);

/// Everything, as the suite returns it.
pub fn outcome(bench: &Bench, all: &All) -> Outcome {
    let mut rows = Rows::below([
        "figure",
        "of",
        "arm",
        "load",
        "late",
        "simulated",
        "revoked",
        "yields",
        "wasted",
        "batch",
        "used",
        "response",
    ]);
    for kind in &all.kinds {
        push_task(&mut rows, kind);
    }
    for inversion in &all.inversions {
        push_inversion(&mut rows, inversion);
    }
    for isolation in &all.isolation {
        push_isolation(&mut rows, isolation);
    }
    for run in &all.runs {
        push_run(&mut rows, all, run);
    }
    let Answers { tasks, lost, twice, wrong, first } = &all.answers;
    let is_right = lost + twice + wrong == 0;
    Outcome {
        about: format!(
            "TReM's evaluation on pools of {} devices, with an SLA of {}. {tasks} tasks: {lost} lost, {twice} answered \
             twice, {wrong} wrong.",
            all.devices,
            show(SLA)
        ),
        table: rows.table,
        text_columns: 3,
        rows: rows.json,
        summary: summary(bench, all),
        mistake: (!is_right)
            .then(|| first.clone().unwrap_or_else(|| "answers were counted twice".into())),
    }
}

fn push_task(rows: &mut Rows, kind: &Kind) {
    let class = match kind.class {
        Class::UserFacing => "user-facing",
        Class::Batch => "batch",
    };
    let of = format!("{} ({})", kind.name, kind.stands_for);
    let cells =
        line(["tasks", &of, class, "-", "-", "-", "-", "-", "-", "-", "-", &show(kind.alone)]);
    let json = json!({
        "figure": "tasks",
        "task": kind.name,
        "stands_for": kind.stands_for,
        "class": class,
        "wanted_us": microseconds(kind.wanted),
        "alone_us": microseconds(kind.alone),
        "repeats": kind.repeats(),
    });
    rows.push(cells, json);
}

fn push_inversion(rows: &mut Rows, inversion: &Inversion) {
    let &Inversion { name, yields, batch, response, alone, delays_batch } = inversion;
    let arm = if yields { "yielding" } else { "no stop" };
    let of = format!("{name} beside {}", show(batch));
    let to_alone = ratio(response, alone);
    let shown = show_ratio(to_alone);
    let cells = line(["6", &of, arm, "-", "-", "-", "-", "-", "-", "-", "-", &shown]);
    let json = json!({
        "figure": "6",
        "task": name,
        "arm": arm,
        "batch_us": microseconds(batch),
        "response_us": microseconds(response),
        "alone_us": microseconds(alone),
        "response_over_alone": to_alone,
        "batch_delayed_us": delays_batch.map(microseconds),
    });
    rows.push(cells, json);
}

/// A row for each neighbour.
fn push_isolation(rows: &mut Rows, isolation: &Isolation) {
    let [idle, ..] = isolation.times.each_ref().map(Samples::summary);
    for (neighbour, times) in NEIGHBOURS.iter().zip(&isolation.times) {
        let summary = times.summary();
        let to_idle = ratio(summary.p50, idle.p50);
        let of = format!("{} beside {neighbour}", isolation.name);
        let shown = show_ratio(to_idle);
        let cells = line(["isolation", &of, "-", "-", "-", "-", "-", "-", "-", "-", "-", &shown]);
        let json = json!({
            "figure": "isolation",
            "task": isolation.name,
            "neighbours": neighbour,
            "p50_us": microseconds(summary.p50),
            "p99_us": microseconds(summary.p99),
            "p50_over_idle": to_idle,
            "p99_over_idle": ratio(summary.p99, idle.p99),
        });
        rows.push(cells, json);
    }
}

fn push_run(rows: &mut Rows, all: &All, run: &Measured) {
    let Measured { mix, load, arm, real, simulated, undisturbed } = run;
    let over_no_stop = over_no_stop(all, run);
    let response = percentiles(&real.responses);
    let cells = line([
        "7-9",
        mix,
        arm,
        &load.to_string(),
        &show_percent(Some(real.late())),
        &show_percent(Some(simulated.late(SLA))),
        &real.stats.revocations.to_string(),
        &real.stats.yields.to_string(),
        &show_percent(Some(real.wasted())),
        &show_number(over_no_stop),
        &show_percent(real.used),
        &show(response.p50),
    ]);
    let mut json = json!({
        "figure": "7-9",
        "mix": mix,
        "load": load,
        "arm": arm,
        "devices": all.devices,
        "user_facing_tasks": real.responses.len(),
        "batch_jobs": real.batch_jobs.len(),
        "late": real.late(),
        "late_tasks": real.late_tasks(),
        "late_simulated": simulated.late(SLA),
        "late_simulated_undisturbed": undisturbed.late(SLA),
        "slowed": real.slowed,
        "response_p50_us": microseconds(response.p50),
        "response_p99_us": microseconds(response.p99),
        "revocations": real.stats.revocations,
        "revocations_simulated": simulated.revocations(),
        "yields": real.stats.yields,
        "yields_simulated": simulated.yields(),
        "wasted": real.wasted(),
        "wasted_simulated": simulated.wasted(),
        "batch_p50_us": 1e6 * median(&real.batch_jobs),
        "batch_simulated_p50_us": 1e6 * median(simulated.batch_jobs()),
        "batch_us": real.batch_jobs.iter().map(|&time| microseconds(time)).collect::<Vec<_>>(),
        "batch_over_no_stop": over_no_stop,
        "utilization": real.used,
        "utilization_simulated": simulated.utilization(),
    });
    if (*mix, *load, *arm) == (OVER_TIME.0, OVER_TIME.1, OURS) {
        let of_class = |user_facing: bool| -> Vec<u32> {
            let devices = real.samples.iter();
            devices.map(|used| if user_facing { used.user_facing } else { used.batch }).collect()
        };
        json["over_time"] = json!({
            "period_us": microseconds(SAMPLE),
            "devices_user_facing": of_class(true),
            "devices_batch": of_class(false),
        });
    }
    rows.push(cells, json);
}

fn percentiles(times: &[Duration]) -> Summary {
    let mut samples = Samples::default();
    times.iter().for_each(|&time| samples.push(time));
    samples.summary()
}

/// The median time of batch jobs, by that without stops.
fn over_no_stop(all: &All, run: &Measured) -> Option<f64> {
    let without = without_stops(run.arm);
    let base =
        all.runs.iter().find(|of| (of.mix, of.load, of.arm) == (run.mix, run.load, without))?;
    let base = median(&base.real.batch_jobs);
    (base > 0.0).then(|| median(&run.real.batch_jobs) / base)
}

/// Runs of an arm, of all mixes, at a load.
fn at<'a>(all: &'a All, load: f64, arm: &'a str) -> impl Iterator<Item = &'a Measured> {
    all.runs.iter().filter(move |run| run.load == load && run.arm == arm)
}

/// The mean over the mixes at load 1.
fn mean_at_full(all: &All, arm: &str, of: impl Fn(&Measured) -> Option<f64>) -> Option<f64> {
    mean(&at(all, 1.0, arm).filter_map(of).collect::<Vec<_>>())
}

fn most(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.reduce(f64::max)
}

/// The summary, by its keys.
fn summary(bench: &Bench, all: &All) -> Value {
    let late = |arm, of: &dyn Fn(&Replayed, &PoolResults) -> f64| {
        mean_at_full(all, arm, |run| Some(of(&run.real, &run.simulated)))
    };
    let real = |arm| late(arm, &|real, _| real.late());
    let simulated = |arm| late(arm, &|_, simulated| simulated.late(SLA));
    let late_tasks = |arm| -> Option<usize> {
        let runs: Vec<_> = at(all, 1.0, arm).map(|run| run.real.late_tasks()).collect();
        (!runs.is_empty()).then(|| runs.iter().sum())
    };
    let over_trem = late_tasks(OURS).zip(late_tasks(TREM));
    let over_trem = over_trem.map(|(ours, trem)| ours as f64 / trem.max(1) as f64);
    let over_priority = all.runs.iter().filter(|run| run.arm == TREM).filter_map(|run| {
        let priority = at(all, run.load, TREM_PRIORITY).find(|of| of.mix == run.mix)?;
        let [elastic, priority] = [run, priority].map(|of| of.real.stats.revocations);
        (priority > 0).then(|| elastic as f64 / priority as f64)
    });
    let arms = all.runs.iter().map(|run| run.arm);
    let errors = arms.filter_map(|arm| Some(100.0 * (real(arm)? - simulated(arm)?).abs()));
    let batch = at(all, 2.0, OURS).filter_map(|run| over_no_stop(all, run));
    let wasted = |arm: &'static str| {
        most(all.runs.iter().filter(|run| run.arm == arm).map(|run| run.real.wasted()))
    };
    let figure_6 = |yields: bool| {
        let of_arm = all.inversions.iter().filter(|of| of.yields == yields);
        most(of_arm.filter_map(|of| ratio(of.response, of.alone)))
    };
    let delayed = all
        .inversions
        .iter()
        .filter_map(|of| Some(of.delays_batch?.as_secs_f64() / of.batch.as_secs_f64()));
    let isolation = all.isolation.first().and_then(|compute| {
        let [idle, beside, ..] = &compute.times;
        ratio(beside.p50(), idle.p50())
    });
    let [leaves, passes_on] =
        [&all.revocations.leaves, &all.revocations.passes_on].map(Samples::summary);
    let Kills { begins, first_kernel, memory, standby } = &all.kills;
    let [begins, first_kernel] = [begins, first_kernel].map(Samples::summary);
    let memory = standby.map(|_| memory.summary());
    let milliseconds = |time| microseconds(time) / 1e3;
    let Answers { tasks, lost, twice, wrong, .. } = all.answers;
    json!({
        "devices": all.devices,
        "seed": bench.seed,
        "scale_user_facing": USER_FACING_SCALE,
        "scale_user_facing_jobs": JOB_SCALES[0],
        "scale_batch": BATCH_SCALE,
        "sla_us": microseconds(SLA),
        "late_first_come": real("first come"),
        "late_elastic": real(WITHOUT),
        "late_elastic_killed": real(TREM),
        "late_elastic_yielding": real(ELASTIC),
        "late_in_time_yielding": real(OURS),
        "late_over_simulated_points": real(OURS)
            .zip(simulated(OURS))
            .map(|(real, simulated)| 100.0 * (real - simulated)),
        "late_over_trem_arm": over_trem.filter(|_| !all.are_gpus),
        "late_two_gpus_over_trem_arm": over_trem.filter(|_| all.are_gpus && all.devices == 2),
        "offered_time_run": mean_at_full(all, OURS, |run| run.real.used),
        "wasted": wasted(OURS),
        "wasted_killed": wasted(TREM),
        "revocation_p50_us": microseconds(leaves.p50),
        "revocation_p99_us": microseconds(leaves.p99),
        "revocation_to_next_p50_us": microseconds(passes_on.p50),
        "revocation_to_next_p99_us": microseconds(passes_on.p99),
        "opaque_revocation_p50_ms": milliseconds(first_kernel.p50),
        "opaque_revocation_p99_ms": milliseconds(first_kernel.p99),
        "opaque_begins_p50_ms": milliseconds(begins.p50),
        "opaque_begins_p99_ms": milliseconds(begins.p99),
        "opaque_memory_free_p50_ms": memory.map(|memory| milliseconds(memory.p50)),
        "opaque_memory_free_p99_ms": memory.map(|memory| milliseconds(memory.p99)),
        "opaque_standby_mib": standby.map(|bytes| bytes >> 20),
        "batch_over_no_revocation": most(batch),
        "elastic_over_priority_revocations_max": most(over_priority),
        "sim_late_error_points": most(errors),
        "isolation_compute_p50": isolation,
        "response_over_alone_no_stop_max": figure_6(false),
        "response_over_alone_yielding_max": figure_6(true),
        "batch_delayed_over_alone_max": most(delayed),
        "tasks": tasks,
        "tasks_lost": lost,
        "tasks_twice": twice,
        "tasks_wrong": wrong,
    })
}
