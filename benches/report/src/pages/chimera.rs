//! Blocks that drain, are dropped or switch, and pairs of programs in even parts.

use anyhow::Result;
use serde::Deserialize;

use super::markdown::{Table, percent, time_or_dash};
use super::results::{Folder, Results};
use super::scheduling::compared;
use crate::pictures::chimera::Estimate;
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
    /// In one arm.
    by_kernel: Option<Vec<Beside>>,
}

/// The tasks that came while a kernel ran.
#[derive(Deserialize)]
struct Beside {
    kernel: String,
    tasks: u64,
    beyond_floor: Option<f64>,
    latency_p50_us: Option<f64>,
    latency_p998_us: Option<f64>,
}

/// The share of tasks that are later than the floor on an idle device, by which the floor is defined. Kernels with more are shown.
const TOLD: f64 = 0.002;

pub fn chimera(folder: &Folder) -> Result<String> {
    match folder.find(FILE)? {
        Some(results) => measured(&results),
        None => Ok("Not measured yet: `preempt-bench chimera --device cuda` does.".to_owned()),
    }
}

fn measured(results: &Results) -> Result<String> {
    let rows: Vec<Row> = results.rows_with("program")?;
    let estimates: Vec<Estimate> = results.rows_with_any(Estimate::FIELD)?;
    let of = |key| results.number(key);
    let limit = of("limit_us")?;
    Ok(format!(
        "A periodic task that takes half of the SMs for {} in every {} beside each of Chimera's programs, which stop it by \
         one technique or by choice. {} of the tasks with a limit of {limit:.0} µs were not over at their deadline; {} \
         were later than the floor, {}, and 5 µs. The longest stop took {} on the device's clock.\n\n{}\n{}\n\
         By program; the throughput lost is that of the arm, and the violations are those of the choice with \
         {limit:.0} µs. {}\n\n{}\n\
         Tasks that were later than the floor and 5 µs, by the kernel that ran when they came, where they are more than \
         {} of those.\n\n{}\n{}\n\
         Pairs of these programs in even parts, against one kernel at a time: {} pairs, of which the mean ANTT is {} times \
         lower, and the mean STP differs by {}. The mean that is furthest below its ceiling, \
         where preemption is free, reaches {} of it.{}\n\n{}",
        time(of("task_us")?),
        time(of("period_us")?),
        percent(of("end_to_end_late")?),
        percent(of("end_to_end_beyond_floor")?),
        time(of("floor_p998_us")?),
        time(of("longest_stop_us")?),
        compared(results)?,
        by_limit(&rows),
        paused(&estimates),
        by_program(&rows, &estimates, limit),
        percent(TOLD),
        by_kernel(&rows),
        estimated(&rows, &estimates, limit),
        of("pairs")?,
        digits(of("antt_gain")?),
        percent(of("stp_gain")?),
        percent(of("over_ceiling")?),
        on_halves(results),
        results.source(),
    ))
}

/// What pairs do without any preemption; nothing where the device made no parts.
fn on_halves(results: &Results) -> String {
    let found = results.number("halves_over_ceiling").and_then(|halves| {
        Ok((halves, results.number("antt_halves")?, results.number("stp_halves")?))
    });
    found.map_or_else(
        |_| String::new(),
        |(halves, antt, stp)| {
            format!(
                " Two parts of the device, one for each program (green contexts), where nothing is preempted and both use \
                 the same memory, reach {} of it: ANTT {} times lower, STP {}.",
                percent(halves),
                digits(antt),
                percent(stp),
            )
        },
    )
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
        "worst",
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
            percent_or_dash(of().filter_map(|row| row.violations).reduce(f64::max)),
            percent_or_dash(mean(of(), |row| row.late)),
            percent_or_dash(mean(of(), |row| row.throughput_lost)),
            drained,
            dropped,
            switched,
        ]);
    }
    table.text()
}

fn in_arm<'a>(rows: &'a [Row], program: &str, arm: &str, limit_us: f64) -> Option<&'a Row> {
    let is_it = |row: &&Row| row.arm == arm && row.limit_us == limit_us && row.program == program;
    rows.iter().find(is_it)
}

fn paused(estimates: &[Estimate]) -> &'static str {
    match estimates.iter().any(|of| of.lost_to_pauses.is_some()) {
        true => {
            "*Paused* is what a device would lose that pauses the SMs at no cost, computed from the program's launches: those \
             of few waves of blocks end later than by the SMs that they lack."
        }
        false => {
            "*Paused*, what a device would lose that pauses the SMs at no cost, is not measured yet."
        }
    }
}

/// With the summary's limit, which rows without one have, too.
fn by_program(rows: &[Row], estimates: &[Estimate], limit_us: f64) -> String {
    let mut table = Table::new([
        "program",
        "blocks leave at",
        "violations",
        "late",
        "lost, choice",
        "drain",
        "flush",
        "switch",
        "paused",
    ]);
    for program in distinct(rows.iter().map(|row| &row.program)) {
        let estimate = estimates.iter().find(|of| of.program == *program);
        let arm = |arm: &str| in_arm(rows, program, arm, limit_us);
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
            percent_or_dash(estimate.and_then(|of| of.lost_to_pauses)),
        ]);
    }
    table.text()
}

fn by_kernel(rows: &[Row]) -> String {
    let mut table =
        Table::new(["program", "kernel", "tasks", "beyond the floor", "latency p50", "p99.8"]);
    for (row, of) in
        rows.iter().flat_map(|row| row.by_kernel.iter().flatten().map(move |of| (row, of)))
    {
        if of.beyond_floor > Some(TOLD) {
            table.row([
                row.program.clone(),
                format!("`{}`", of.kernel),
                of.tasks.to_string(),
                percent_or_dash(of.beyond_floor),
                time_or_dash(of.latency_p50_us),
                time_or_dash(of.latency_p998_us),
            ]);
        }
    }
    table.text()
}

/// What is estimated of each program, and its kernels by what may run again (figures 2, 3 and 9).
fn estimated(rows: &[Row], estimates: &[Estimate], limit_us: f64) -> String {
    if estimates.is_empty() {
        return "What each technique is estimated to take and to lose, and how many kernels of each program may be dropped, \
                is not measured yet.\n"
            .to_owned();
    }
    format!(
        "What the paper's estimates say of the kernel that takes the longest in each program: a block-task is left at any \
         moment, and an SM that switches has its part of the memory's bandwidth. To drop a block-task takes no time, and to \
         drain loses nothing.\n\n{}\n\
         Kernels by what is known of block-tasks that run again, and the tasks behind their deadline if only strictly \
         idempotent ones are dropped, or all that may be: the first is what `flush` has where all are strict, what \
         `drain` has where none is, and not known otherwise.\n\n{}",
        estimated_costs(estimates),
        idempotent(rows, estimates, limit_us),
    )
}

fn estimated_costs(estimates: &[Estimate]) -> String {
    let mut table = Table::new([
        "program",
        "kernel",
        "block-task",
        "blocks per SM",
        "bytes saved / in all",
        "drain",
        "switch",
        "with all registers",
        "lost, flush",
        "switch",
        "with all registers",
    ]);
    let bytes =
        |bytes: Option<f64>| bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
    for of in estimates {
        table.row([
            of.program.clone(),
            format!("`{}`", of.kernel),
            time(of.block_task_us),
            of.blocks_per_sm.to_string(),
            format!("{} / {}", bytes(of.saved_bytes), bytes(of.context_bytes)),
            time(of.drain_us),
            time_or_dash(of.switch_us),
            time_or_dash(of.context_us),
            percent_or_dash(of.flush_lost),
            percent_or_dash(of.switch_lost),
            percent_or_dash(of.context_lost),
        ]);
    }
    table.text()
}

fn idempotent(rows: &[Row], estimates: &[Estimate], limit_us: f64) -> String {
    let mut table = Table::new([
        "program",
        "strict",
        "relaxed",
        "declared",
        "no yield points",
        "late, strict",
        "late, all that may be",
    ]);
    for of in estimates {
        let late = |arm| in_arm(rows, &of.program, arm, limit_us).and_then(|row| row.late);
        table.row([
            of.program.clone(),
            of.kernels_strict.to_string(),
            of.kernels_relaxed.to_string(),
            of.kernels_declared.to_string(),
            of.kernels_without.to_string(),
            percent_or_dash(of.strict_arm().and_then(late)),
            percent_or_dash(late("flush")),
        ]);
    }
    table.text()
}
