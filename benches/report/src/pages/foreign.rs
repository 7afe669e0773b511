//! Kernels of other compilers, and requests beside them.

use anyhow::Result;
use serde::Deserialize;

use super::markdown::{Table, count, percent, times};
use super::results::{Folder, Results};
use crate::time;

/// The file, which a run on a GPU writes.
const FILE: &str = "foreign-gpu";

/// A kernel.
#[derive(Deserialize)]
struct Kernel {
    kernel: String,
    group: String,
    task_us: f64,
    original_p50_us: f64,
    ratio: f64,
    ratio_to_original: f64,
    ratio_default: f64,
    ratio_yielding: Option<f64>,
    yield_points: u32,
    registers: [u32; 2],
    blocks_per_sm: [u32; 2],
    stops: u32,
    urgent_p50_us: f64,
    urgent_p99_us: f64,
    stops_yielding: Option<u32>,
    urgent_yielding_p50_us: Option<f64>,
    urgent_yielding_p99_us: Option<f64>,
    equal: bool,
}

/// Requests beside a batch, in one arm.
#[derive(Deserialize)]
struct Beside {
    batch: String,
    arm: String,
    task_us: f64,
    p50_us: f64,
    p99_us: f64,
    slowdown: Option<f64>,
}

pub fn foreign(folder: &Folder) -> Result<String> {
    match folder.find(FILE)? {
        Some(results) => measured(&results),
        None => Ok("Not measured yet: `preempt-bench foreign --device cuda` does.".to_owned()),
    }
}

fn measured(results: &Results) -> Result<String> {
    let kernels: Vec<Kernel> = results.rows_with("kernel")?;
    let of = |key| results.number(key);
    Ok(format!(
        "Kernels that nvcc and Triton compiled, their block-tasks put into the worker loop: {} of {} wrote the same bits \
         as the original in all runs, {} stops in mid-kernel among them. Of all entries of candle's kernels {} are accepted, of ggml's {}. \
         The preemptible form takes {:.3} times as long as the plain one in the geometric mean, {:.3} above 150 µs, and \
         the form that is chosen by default {:.3}. *To original* has the cost of the scheduler in it. *Urgent*: a launch that takes \
         the whole device from the kernel, p50 / p99.\n\n{}\n\
         {} of them have loops in which their block-tasks may be dropped, and get yield points there on request. These cost what the table \
         says, in kernels of short block-tasks most, and shorten the wait behind long ones. {} of the stops are of that form.\n\n{}\n\
         Requests of 8 blocks beside a batch, from the launch to the end, p50 / p99. Without yield points kernels \
         give way at the ends of their block-tasks, as plain grids do to a stream of higher priority. Armed requests are announced 50 to 600 µs before, and the batch has yield \
         points then where its kernels have some. *block* is a transformer's block \
         of Triton's kernels. *Slowdown*: the time of a run of the batch, less that of the requests, to that without requests in the same form.\n\n{}\n{}",
        of("kernels_equal")?,
        of("kernels")?,
        count(of("stops_mid_kernel")?),
        percent(of("candle_accepted")?),
        percent(of("ggml_accepted")?),
        of("geomean_ratio")?,
        of("geomean_ratio_over_150us")?,
        of("geomean_ratio_auto")?,
        by_kernel(&kernels),
        of("kernels_with_yield_points")?,
        count(of("stops_with_yield_points")?),
        with_points(&kernels),
        beside(&results.rows_with("batch")?),
        results.source(),
    ))
}

fn by_kernel(kernels: &[Kernel]) -> String {
    let mut table = Table::new([
        "kernel",
        "of",
        "original",
        "block-task",
        "preemptible to plain",
        "to original",
        "default to plain",
        "registers, plain / preemptible",
        "blocks per SM",
        "stops",
        "urgent",
        "equal",
    ]);
    for row in kernels {
        let [plain, preemptible] = row.registers;
        let [blocks, left] = row.blocks_per_sm;
        table.row([
            row.kernel.clone(),
            row.group.clone(),
            time(row.original_p50_us),
            time(row.task_us),
            format!("{:.3}", row.ratio),
            format!("{:.3}", row.ratio_to_original),
            format!("{:.3}", row.ratio_default),
            format!("{plain} / {preemptible}"),
            if blocks == left { blocks.to_string() } else { format!("{blocks} / {left}") },
            row.stops.to_string(),
            times(row.urgent_p50_us, row.urgent_p99_us),
            if row.equal { "yes" } else { "**no**" }.to_owned(),
        ]);
    }
    table.text()
}

fn with_points(kernels: &[Kernel]) -> String {
    let mut table = Table::new([
        "kernel",
        "of",
        "block-task",
        "yield points",
        "to plain, without / with",
        "stops",
        "urgent, without",
        "urgent, with",
    ]);
    for row in kernels.iter().filter(|row| row.yield_points > 0) {
        let urgent = row.urgent_yielding_p50_us.zip(row.urgent_yielding_p99_us);
        let with = row.ratio_yielding.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"));
        table.row([
            row.kernel.clone(),
            row.group.clone(),
            time(row.task_us),
            row.yield_points.to_string(),
            format!("{:.3} / {with}", row.ratio),
            row.stops_yielding.unwrap_or_default().to_string(),
            times(row.urgent_p50_us, row.urgent_p99_us),
            urgent.map_or_else(|| "-".to_owned(), |(p50, p99)| times(p50, p99)),
        ]);
    }
    table.text()
}

fn beside(rows: &[Beside]) -> String {
    let mut table = Table::new(["batch", "block-task", "arm", "request", "slowdown"]);
    for row in rows {
        table.row([
            row.batch.clone(),
            time(row.task_us),
            row.arm.clone(),
            times(row.p50_us, row.p99_us),
            row.slowdown.map_or_else(|| "-".to_owned(), |slowdown| format!("{slowdown:.3}")),
        ]);
    }
    table.text()
}
