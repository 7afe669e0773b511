//! User-facing and batch tasks on pools of devices.

use anyhow::Result;
use serde::Deserialize;

use super::markdown::{Table, percent};
use super::results::{Folder, Results};
use crate::digits;
use crate::papers::{TREM, trem};
use crate::pictures::distinct;

const FILE: &str = "pool-sim";

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
    match folder.find(FILE)? {
        Some(results) => simulated(&results),
        None => Ok("Not simulated yet: `preempt-bench pool --device sim` does.".to_owned()),
    }
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
