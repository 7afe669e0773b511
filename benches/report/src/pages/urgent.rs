//! How long urgent launches wait.

use std::collections::HashMap;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::markdown::{Table, count, range, time_or_dash, times};
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
    pub const ARMED: &str = "preempt, armed";
    pub const STREAM_PRIORITY: &str = "stream priority";
    const PROXY: &str = "preempt, by the proxy";
    const STREAM_WRITES: &str = "preempt, by stream writes";
    const FLOOR: &str = "floor";
    const IDLE: &str = "idle GPU";
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
    let results = folder.get("latency-gpu")?;
    let rows: Vec<Latency> = results.rows_with("block_task_us")?;
    // Results of before an arm was measured have no column of it.
    let has = |arm: &&str| rows.iter().any(|row| row.arm == *arm);
    let more = [Latency::STREAM_WRITES].into_iter().filter(has);
    let arms: Vec<&str> = [Latency::PREEMPT, Latency::ARMED, Latency::PROXY]
        .into_iter()
        .chain(more)
        .chain([Latency::FLOOR, Latency::STREAM_PRIORITY, Latency::PLAIN, Latency::IDLE])
        .collect();
    let heading = |&arm: &&str| match arm {
        Latency::STREAM_PRIORITY => "CUDA stream priority".to_owned(),
        arm => arm.to_owned(),
    };
    let first = ["block-tasks of the victim", "yield points"].map(str::to_owned);
    let mut lines = vec![first.into_iter().chain(arms.iter().map(heading)).collect::<Vec<_>>()];
    let mut added: HashMap<&str, Vec<f64>> = HashMap::new();
    for case in rows.iter().filter(|row| row.arm == Latency::PREEMPT) {
        let of = |arm| latency_of(&rows, arm, case.block_task_us, case.yield_points);
        let yields = if case.yield_points { "yes" } else { "no" };
        let mut line = vec![time(case.block_task_us), yields.to_owned()];
        let floor = of(Latency::FLOOR)?;
        for &arm in &arms {
            let row = of(arm)?;
            line.push(times(row.p50_us, row.p99_us));
            if case.yield_points {
                added.entry(arm).or_default().push(row.p50_us - floor.p50_us);
            }
        }
        lines.push(line);
    }
    let added = |arm| range(added.get(arm).into_iter().flatten().copied());
    let by_writes = added(Latency::STREAM_WRITES).map_or_else(String::new, |(least, most)| {
        format!(", {} to {} µs by stream writes alone", digits(least), digits(most))
    });
    let arms = [Latency::PREEMPT, Latency::ARMED, Latency::PROXY];
    let [added, if_armed, by_proxy] = arms.map(|arm| added(arm).unwrap_or_default());
    Ok(format!(
        "The victim fills the GPU with blocks of a known length. The urgent kernel needs SMs that the victim has. Times \
         are from the call of `launch` until the host knows of the end, p50 / p99. *Floor* is a stream write and a raw \
         launch with the same victim, and nothing of the scheduler. An *armed* program of the urgent kernel was announced 50 \
         to 600 µs before. *Idle GPU* is a raw launch without a victim.\n\n\
         ![An urgent launch beside a kernel that fills the GPU](results/latency-gpu.svg)\n\n{}\nWith yield points the scheduler adds {} to \
         {} µs to the floor (p50), {} to {} µs if the launch was announced, and {} to {} µs by the \
         proxy{by_writes}; below 0, the floor was the slower one. A part of it is decisions, and the hand-over between threads. The rest is driver calls \
         that were not made for a millisecond, and the worker loop of the urgent kernel. An armed launch has neither \
         decisions nor driver calls before it. It takes the way of a store to its gate, the time until the victim's \
         blocks have left, and its own loop and post.\n\n{}",
        Table::of(lines).text(),
        digits(added.0),
        digits(added.1),
        digits(if_armed.0),
        digits(if_armed.1),
        digits(by_proxy.0),
        digits(by_proxy.1),
        results.measured(),
    ))
}

#[derive(Deserialize)]
struct InDriver {
    call: String,
    samples: u64,
    p50_us: f64,
    max_us: f64,
}

#[derive(Deserialize)]
struct Beside {
    what: String,
    armed: u64,
    p50_us: f64,
    over_none: f64,
}

pub fn armed(folder: &Folder) -> Result<String> {
    let results = folder.get("armed-gpu")?;
    let mut calls = Table::new(["calls of other threads", "samples", "p50", "longest"]);
    for row in results.rows_with::<InDriver>("call")? {
        calls.row([row.call, row.samples.to_string(), time(row.p50_us), time(row.max_us)]);
    }
    let mut beside = Table::new(["", "armed programs beside it", "p50", "to that beside none"]);
    for row in results.rows_with::<Beside>("armed")? {
        let over = format!("{:.2}x", row.over_none);
        beside.row([row.what, row.armed.to_string(), time(row.p50_us), over]);
    }
    Ok(format!(
        "A program was armed {} times at random beside threads that call what waits for the whole device in the driver; \
         {} of these launches began without a call of the driver, {} block-tasks were lost, and {} were repeated. A \
         program stays armed for a millisecond.\n\n{}\nWhat armed programs that are not launched cost others:\n\n{}\n{}",
        count(results.number("tries")?),
        count(results.number("began_armed")?),
        count(results.number("lost")?),
        count(results.number("repeated")?),
        calls.text(),
        beside.text(),
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
    let results = folder.get("latency-gpu")?;
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
    let (gpu, cpu) = (folder.get("urgent-inference-gpu")?, folder.get("urgent-inference-cpu")?);
    Ok(format!(
        "Four threads send requests, one kernel each, while one batch kernel runs \
         ([the example](../examples/urgent-inference)). With stream priorities the batch kernel runs in its plain form, \
         which is the faster one here: it looks at no signal between the periods of a path.\n\n\
         ![Waiting times of requests](results/urgent-inference-gpu.svg)\n\n{}\n{}\nOn the CPU device, where SMs and \
         requests share processors:\n\n{}\n{}",
        inference_table(&gpu)?,
        gpu.measured(),
        inference_table(&cpu)?,
        cpu.source(),
    ))
}
