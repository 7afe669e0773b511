//! How long urgent launches wait.

use anyhow::{Context, Result};
use serde::Deserialize;

use super::markdown::{Table, range, time_or_dash, times};
use super::results::{Folder, Results};
use crate::{digits, time};

/// An urgent launch beside a victim of known block-tasks on a GPU.
#[derive(Deserialize)]
pub struct Latency {
    pub arm: String,
    pub block_task_us: f64,
    pub yield_points: bool,
    pub p50_us: f64,
    p99_us: f64,
}

impl Latency {
    /// The arms of the suite that pages tell.
    pub const PREEMPT: &str = "preempt";
    pub const STREAM_PRIORITY: &str = "stream priority";
    const PROXY: &str = "preempt, by the proxy";
    const FLOOR: &str = "floor";
    const PLAIN: &str = "plain streams";
}

/// The row of an arm.
pub fn latency_of<'a>(
    rows: &'a [Latency],
    arm: &str,
    block_task_us: f64,
    yield_points: bool,
) -> Result<&'a Latency> {
    let mut rows = rows.iter();
    let found = rows.find(|row| {
        (row.arm.as_str(), row.block_task_us, row.yield_points)
            == (arm, block_task_us, yield_points)
    });
    found.with_context(|| format!("no row of `{arm}` has block-tasks of {block_task_us} µs"))
}

pub fn latency(folder: &Folder) -> Result<String> {
    let results = folder.get("latency-h200")?;
    let rows: Vec<Latency> = results.rows_with("block_task_us")?;
    let arms = [
        Latency::PREEMPT,
        Latency::PROXY,
        Latency::FLOOR,
        Latency::STREAM_PRIORITY,
        Latency::PLAIN,
    ];
    let mut table = Table::new([
        "block-tasks of the victim",
        "yield points",
        "preempt",
        "preempt, by the proxy",
        "floor",
        "CUDA stream priority",
        "plain streams",
    ]);
    let mut added = [Vec::new(), Vec::new()];
    for case in rows.iter().filter(|row| row.arm == Latency::PREEMPT) {
        let of = |arm| latency_of(&rows, arm, case.block_task_us, case.yield_points);
        let [preempt, proxy, floor, priority, plain] = arms.map(of);
        let (preempt, proxy, floor) = (preempt?, proxy?, floor?);
        let told = |row: &Latency| times(row.p50_us, row.p99_us);
        table.row([
            time(case.block_task_us),
            if case.yield_points { "yes" } else { "no" }.to_owned(),
            told(preempt),
            told(proxy),
            told(floor),
            told(priority?),
            told(plain?),
        ]);
        if case.yield_points {
            added[0].push(preempt.p50_us - floor.p50_us);
            added[1].push(proxy.p50_us - floor.p50_us);
        }
    }
    let [added, by_proxy] = added.map(|added| range(added).unwrap_or_default());
    Ok(format!(
        "The victim fills the GPU with blocks of a known length. The urgent kernel needs SMs that the victim has. Times \
         are from the call of `launch` until the host knows of the end, p50 / p99. *Floor* is a stream write and a raw \
         launch with the same victim, and nothing of the scheduler.\n\n{}\nWith yield points the scheduler adds {} to \
         {} µs to the floor (p50), and {} to {} µs by the proxy; below 0, the floor was the slower one. A part of it is \
         decisions, and the hand-over between threads. The rest is driver calls that were not made for a millisecond, \
         and the worker loop of the urgent kernel.\n\n{}",
        table.text(),
        digits(added.0),
        digits(added.1),
        digits(by_proxy.0),
        digits(by_proxy.1),
        results.source(),
    ))
}

#[derive(Deserialize)]
struct Stop {
    program: String,
    yield_points: bool,
    longest_task_us: f64,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

pub fn stops(folder: &Folder) -> Result<String> {
    let results = folder.get("latency-h200")?;
    let mut table =
        Table::new(["kernel", "yield points", "longest block-task", "p50", "p99", "max"]);
    for row in results.rows_with::<Stop>("program")? {
        table.row([
            row.program,
            if row.yield_points { "yes" } else { "no" }.to_owned(),
            time(row.longest_task_us),
            time(row.p50_us),
            time(row.p99_us),
            time(row.max_us),
        ]);
    }
    Ok(format!(
        "The dominating kernel of each program of the FLEP and EffiSha papers: from the signal until the host knows that \
         its last block has left. A kernel that looks at the signal every microsecond takes {}.\n\n{}\n{}",
        time(results.number("stop_floor_p50_us")?),
        table.text(),
        results.source(),
    ))
}

#[derive(Deserialize)]
struct OnCpu {
    arm: String,
    block_task_us: f64,
    urgent: String,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

pub fn latency_on_cpu(folder: &Folder) -> Result<String> {
    let results = folder.get("latency-cpu")?;
    let mut table =
        Table::new(["block-tasks of the batch", "urgent kernel", "arm", "p50", "p99", "max"]);
    for row in results.rows::<OnCpu>()? {
        let OnCpu { arm, block_task_us, urgent, p50_us, p99_us, max_us } = row;
        table.row([time(block_task_us), urgent, arm, time(p50_us), time(p99_us), time(max_us)]);
    }
    Ok(format!(
        "The CPU device shows what preemption does, and not how fast a GPU is. SMs share processors with each other and \
         with the thread that launches.\n\n{}\n{}",
        table.text(),
        results.source(),
    ))
}

/// Requests beside a batch job.
#[derive(Deserialize)]
pub struct Inference {
    pub name: String,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    max_us: Option<f64>,
    batch_us: Option<f64>,
    batch_slowdown: Option<f64>,
}

fn inference_table(results: &Results) -> Result<String> {
    let mut table = Table::new(["", "request p50", "p99", "max", "batch job", "to its time alone"]);
    for row in results.rows::<Inference>()? {
        table.row([
            row.name,
            time_or_dash(row.p50_us),
            time_or_dash(row.p99_us),
            time_or_dash(row.max_us),
            time_or_dash(row.batch_us),
            row.batch_slowdown.map_or_else(|| "-".to_owned(), |times| format!("{times:.2}x")),
        ]);
    }
    Ok(table.text())
}

pub fn inference(folder: &Folder) -> Result<String> {
    let (gpu, cpu) = (folder.get("urgent-inference-h200")?, folder.get("urgent-inference-cpu")?);
    Ok(format!(
        "Four threads send requests, one kernel each, while one batch kernel runs \
         ([the example](../examples/urgent-inference)). With stream priorities the batch kernel runs in its plain form, \
         which is the faster one here: it looks at no signal between the periods of a path.\n\n\
         ![Waiting times of requests](results/urgent-inference-h200.svg)\n\n{}\n{}\nOn the CPU device, where SMs and \
         requests share processors:\n\n{}\n{}",
        inference_table(&gpu)?,
        gpu.source(),
        inference_table(&cpu)?,
        cpu.source(),
    ))
}
