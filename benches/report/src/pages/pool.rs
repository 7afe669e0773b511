//! User-facing and batch tasks on pools of devices.

use anyhow::Result;
use serde::Deserialize;

use super::markdown::{Table, percent};
use super::results::{Folder, Results};
use crate::digits;
use crate::papers::{TREM, trem};
use crate::pictures::distinct;

const FILE: &str = "pool-sim";
/// Of four parts of one GPU, and of two GPUs.
const ON_DEVICES: [&str; 2] = ["pool-gpu", "pool-two-gpus"];

/// A policy with a workload, on devices.
#[derive(Deserialize)]
struct Replayed {
    mix: String,
    arm: String,
    load: f64,
    late: f64,
    late_simulated: f64,
    late_simulated_undisturbed: f64,
    slowed: Option<f64>,
    revocations: u64,
    yields: u64,
    wasted: f64,
    batch_over_no_stop: Option<f64>,
    utilization: Option<f64>,
}

/// A user-facing task beside a batch task.
#[derive(Deserialize)]
struct Beside {
    task: String,
    arm: String,
    batch_us: f64,
    response_over_alone: f64,
}

/// A policy with a workload.
#[derive(Deserialize)]
struct Row {
    figure: String,
    mix: String,
    arm: String,
    devices: u32,
    load: f64,
    late: f64,
    revocations: f64,
    wasted: f64,
    batch_over_no_stop: Option<f64>,
}

pub fn pool(folder: &Folder) -> Result<String> {
    let mut text = match folder.find(FILE)? {
        Some(results) => simulated(&results)?,
        None => "Not simulated yet: `preempt-bench pool --device sim` does.".to_owned(),
    };
    for file in ON_DEVICES {
        if let Some(results) = folder.find(file)? {
            text = format!("{}\n\n{}", text.trim_end(), on_devices(&results)?);
        }
    }
    Ok(text)
}

fn on_devices(results: &Results) -> Result<String> {
    let of = |key| results.number(key);
    let devices = of("devices")?;
    let is_split = results.number("late_two_gpus_over_trem_arm").is_err();
    let (what, over_trem) = match is_split {
        true => (format!("{devices} parts of one GPU"), of("late_over_trem_arm")?),
        false => (format!("{devices} GPUs"), of("late_two_gpus_over_trem_arm")?),
    };
    let over_simulated = of("late_over_simulated_points")?;
    Ok(format!(
        "On {what}, {} tasks in all: {} lost, {} answered twice, {} wrong. The kernel of a cancelled batch task has left all \
         SMs {} µs after the call (p99 {} µs), as a thread sees it that asks all the time. The body of the next task begins \
         after {} µs (p99 {} µs).{} With `InTime`, where batch tasks yield, {} of the user-facing tasks are late at load 1 \
         (the mean of both workloads); in number they are {} times those of `Elastic` with kills, TReM's. Against virtual \
         time with yields that take none, that is {} points {}. `slowed`: what user-facing tasks took, by their time \
         alone{}. The simulation has the jobs' arrivals and what each task took; undisturbed, it has the tasks' times alone.\n\n{}\n\
         The response of a user-facing task that comes to a device with a batch task, by its time alone (figure 6):\n\n{}\n{}",
        of("tasks")?,
        of("tasks_lost")?,
        of("tasks_twice")?,
        of("tasks_wrong")?,
        digits(of("revocation_p50_us")?),
        digits(of("revocation_p99_us")?),
        digits(of("revocation_to_next_p50_us")?),
        digits(of("revocation_to_next_p99_us")?),
        killed(results),
        percent(of("late_in_time_yielding")?),
        digits(over_trem),
        digits(over_simulated.abs()),
        if over_simulated < 0.0 { "fewer" } else { "more" },
        if is_split { "; parts of one GPU share its memory" } else { "" },
        replayed(&results.rows_of("7-9")?),
        beside(&results.rows_of("6")?),
        results.source(),
    ))
}

/// What it takes to kill a worker; nothing, where that was not measured.
fn killed(results: &Results) -> String {
    let of = |key: &str| results.number(key).ok().map(digits);
    let all = ["opaque_revocation_p50_ms", "opaque_revocation_p99_ms", "opaque_memory_free_p50_ms"];
    let [Some(p50), Some(p99), Some(memory)] = all.map(of) else { return String::new() };
    format!(
        " Where the batch task's worker is killed, which fills the GPU and has 20 GiB of its memory, the next tasks' first \
         kernels have run {p50} ms after these are submitted (p99 {p99} ms), and the memory is free after {memory} ms."
    )
}

fn replayed(rows: &[Replayed]) -> String {
    let mut table = Table::new([
        "workload",
        "load",
        "policy",
        "late",
        "simulated",
        "undisturbed",
        "slowed",
        "revoked",
        "yields",
        "wasted",
        "batch jobs",
        "used",
    ]);
    let number = |of: Option<f64>| of.map_or_else(|| "-".to_owned(), digits);
    for row in rows {
        table.row([
            row.mix.clone(),
            row.load.to_string(),
            row.arm.clone(),
            percent(row.late),
            percent(row.late_simulated),
            percent(row.late_simulated_undisturbed),
            number(row.slowed),
            row.revocations.to_string(),
            row.yields.to_string(),
            percent(row.wasted),
            number(row.batch_over_no_stop),
            row.utilization.map_or_else(|| "-".to_owned(), percent),
        ]);
    }
    table.text()
}

/// Figure 6, of the longest batch tasks.
fn beside(rows: &[Beside]) -> String {
    let longest = rows.iter().map(|row| row.batch_us).fold(0.0, f64::max);
    let rows = || rows.iter().filter(|row| row.batch_us == longest);
    let batch = format!("beside {} ms, no stop", digits(longest / 1e3));
    let mut table = Table::new(["task", &batch, "yielding"]);
    for task in distinct(rows().map(|row| &row.task)) {
        let of = |arm| {
            let row = rows().find(|row| row.task == *task && row.arm == arm);
            row.map_or_else(|| "-".to_owned(), |row| digits(row.response_over_alone))
        };
        table.row([task.clone(), of("no stop"), of("yielding")]);
    }
    table.text()
}

fn simulated(results: &Results) -> Result<String> {
    let rows: Vec<Row> = results.rows()?;
    let of = |key| results.number(key);
    Ok(format!(
        "In virtual time, with a tenth of TReM's times: tasks that users wait for should be over within 20 ms. On four \
         devices at load 1, {} of them are late with `Elastic` where batch tasks yield in 50 µs, {} where these are killed in \
         2.2 ms and start anew, and {} where they are never stopped. With yields at no cost it would be {} points fewer. Kills \
         waste up to {} of what tasks run for, and yields nothing. At load 2, the median batch job takes {} times as long with \
         kills as without, and {} times with yields. `Elastic` kills at most {} times as often as `UserFacingFirst`.\n\n\
         Late tasks on four devices, and in brackets those of {TREM}, as its text says them.\n\n{}\n\
         With `Elastic`, at load 1 (figure 11): the mean of both workloads.\n\n{}\n{}",
        percent(of("late_elastic_yielding")?),
        percent(of("late_elastic_killed")?),
        percent(of("late_elastic")?),
        digits(of("late_over_free_points")?),
        percent(of("wasted_killed")?),
        digits(of("batch_over_no_stop_killed")?),
        digits(of("batch_over_no_stop_yielding")?),
        digits(of("elastic_over_priority_revocations_max")?),
        by_load(&rows),
        by_pool(&rows),
        results.source(),
    ))
}

/// Figures 7 to 9.
fn by_load(rows: &[Row]) -> String {
    let mut table = Table::new([
        "workload",
        "policy",
        "load 0.25",
        "0.5",
        "1",
        "2",
        "killed",
        "wasted",
        "batch jobs",
    ]);
    let of_figure = || rows.iter().filter(|row| row.figure == "7-9");
    for (mix, arm) in distinct(of_figure().map(|row| (&row.mix, &row.arm))) {
        let of = |load: f64| {
            of_figure().find(|row| row.mix == *mix && row.arm == *arm && row.load == load)
        };
        let late = |load| {
            let ours = of(load).map_or_else(|| "-".to_owned(), |row| percent(row.late));
            match trem::late(mix, arm, load) {
                Some(paper) => format!("{ours} ({})", percent(paper)),
                None => ours,
            }
        };
        let last = of(2.0);
        let text = |value: fn(&Row) -> String| last.map_or_else(|| "-".to_owned(), value);
        table.row([
            mix.clone(),
            arm.clone(),
            late(0.25),
            late(0.5),
            late(1.0),
            late(2.0),
            text(|row| digits(row.revocations)),
            text(|row| percent(row.wasted)),
            text(|row| row.batch_over_no_stop.map_or_else(|| "-".to_owned(), digits)),
        ]);
    }
    table.text()
}

/// Figure 11.
fn by_pool(rows: &[Row]) -> String {
    let mut table = Table::new(["policy", "devices", "late", "killed", "wasted"]);
    for row in rows.iter().filter(|row| row.figure.starts_with("11")) {
        table.row([
            row.arm.clone(),
            row.devices.to_string(),
            percent(row.late),
            digits(row.revocations),
            percent(row.wasted),
        ]);
    }
    table.text()
}
