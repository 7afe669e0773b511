//! Blocks that drain, are dropped or switch, and pairs of programs in even parts.

use anyhow::Result;
use serde::Deserialize;

use super::markdown::{Table, percent};
use super::results::{Folder, Results};
use super::scheduling::compared;
use crate::pictures::distinct;
use crate::{digits, time};

/// The file, which a run on a GPU writes.
const FILE: &str = "chimera-gpu";

/// A program beside the periodic task, in one arm.
#[derive(Deserialize)]
struct Row {
    program: String,
    arm: String,
    limit_us: f64,
    form: String,
    violations: Option<f64>,
    late: Option<f64>,
    throughput_lost: Option<f64>,
    drained: Option<u64>,
    requeued: Option<u64>,
    switched: Option<u64>,
}

pub fn chimera(folder: &Folder) -> Result<String> {
    match folder.find(FILE)? {
        Some(results) => measured(&results),
        None => Ok("Not measured yet: `preempt-bench chimera --device cuda` does.".to_owned()),
    }
}

fn measured(results: &Results) -> Result<String> {
    let rows: Vec<Row> = results.rows_with("program")?;
    let of = |key| results.number(key);
    let limit = of("limit_us")?;
    Ok(format!(
        "A periodic task that takes half of the SMs for {} in every {} beside each of Chimera's programs, which stop it by \
         one technique or by choice. {} of the tasks with a limit of {limit:.0} µs were not over at their deadline; {} \
         were later than the floor, {}, and 5 µs. The longest stop took {} on the device's clock.\n\n{}\n{}\n\
         By program; the throughput lost is that of the arm, and the violations are those of the choice with \
         {limit:.0} µs.\n\n{}\n\
         Pairs of these programs in even parts, against one kernel at a time: {} pairs, of which the mean ANTT is {} times \
         lower, and the mean STP differs by {}. The mean that is furthest below its ceiling, \
         where preemption is free, reaches {} of it.\n\n{}",
        time(of("task_us")?),
        time(of("period_us")?),
        percent(of("end_to_end_late")?),
        percent(of("end_to_end_beyond_floor")?),
        time(of("floor_p998_us")?),
        time(of("longest_stop_us")?),
        compared(results)?,
        by_limit(&rows),
        by_program(&rows, limit),
        of("pairs")?,
        digits(of("antt_gain")?),
        percent(of("stp_gain")?),
        percent(of("over_ceiling")?),
        results.source(),
    ))
}

/// The mean of what rows have of it.
fn mean<'a>(rows: impl Iterator<Item = &'a Row>, of: fn(&Row) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = rows.filter_map(of).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn percent_or_dash(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), percent)
}

/// Means over the programs (figures 6 to 8).
fn by_limit(rows: &[Row]) -> String {
    let mut table = Table::new([
        "arm",
        "limit",
        "violations, mean",
        "late, mean",
        "lost, mean",
        "drained",
        "dropped",
        "switched",
    ]);
    for (arm, limit) in distinct(rows.iter().map(|row| (&row.arm, row.limit_us))) {
        let of = || rows.iter().filter(|row| row.arm == *arm && row.limit_us == limit);
        let blocks = |count: fn(&Row) -> Option<u64>| of().filter_map(count).sum::<u64>();
        let by =
            [blocks(|row| row.drained), blocks(|row| row.requeued), blocks(|row| row.switched)];
        let all: u64 = by.iter().sum();
        let part = |blocks: u64| percent_or_dash((all > 0).then(|| blocks as f64 / all as f64));
        let [drained, dropped, switched] = by.map(part);
        table.row([
            arm.clone(),
            if arm == "choice" { format!("{limit:.0} µs") } else { "-".to_owned() },
            percent_or_dash(mean(of(), |row| row.violations)),
            percent_or_dash(mean(of(), |row| row.late)),
            percent_or_dash(mean(of(), |row| row.throughput_lost)),
            drained,
            dropped,
            switched,
        ]);
    }
    table.text()
}

/// With the summary's limit, which rows without one have, too.
fn by_program(rows: &[Row], limit_us: f64) -> String {
    let mut table = Table::new([
        "program",
        "blocks leave at",
        "violations",
        "late",
        "lost, choice",
        "drain",
        "flush",
        "switch",
    ]);
    for program in distinct(rows.iter().map(|row| &row.program)) {
        let arm = |arm: &str| {
            let is_it = |row: &&Row| row.arm == arm && row.limit_us == limit_us;
            rows.iter().filter(|row| row.program == *program).find(is_it)
        };
        let lost = |name: &str| percent_or_dash(arm(name).and_then(|row| row.throughput_lost));
        let choice = arm("choice");
        table.row([
            program.clone(),
            choice.map_or_else(|| "-".to_owned(), |row| row.form.clone()),
            percent_or_dash(choice.and_then(|row| row.violations)),
            percent_or_dash(choice.and_then(|row| row.late)),
            lost("choice"),
            lost("drain"),
            lost("flush"),
            lost("switch"),
        ]);
    }
    table.text()
}
