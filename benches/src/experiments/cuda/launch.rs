//! The cost of a launch against the driver's own call, on an idle GPU and in a long stream of launches, and of what
//! launches rest on: graphs, guards, and the costs that were measured when the device was opened.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use preempt::policy::StaticPriority;
use preempt::{Buffer, Call, Costs, Preemption, Scheduler, Stream};
use preempt_driver::{Array, Gpu, Graph, Launch, Level, Module};
use preempt_microkernels::{busy, count};
use preempt_report::microseconds;
use preempt_test_kit::storm::Tally;
use serde_json::{Value, json};

use super::super::{Bench, Outcome, line, with_tally};
use super::{beside, guard, ptx};
use crate::progress::Progress;
use crate::samples::{Samples, ratio, show, show_ratio};

/// Kernels in the long stream.
const STREAM: u32 = 1000;
/// Time that each of them takes.
const LENGTH: Duration = Duration::from_micros(10);
/// Threads of their blocks.
pub const THREADS: u32 = 128;

/// Kernels of the program, and the time that each of them takes.
pub const CALLS: u32 = 50;
pub const CALL: Duration = Duration::from_micros(2);

/// Launches on an idle device, long streams, and launches of the program.
const FULL: (u64, u64, u64) = (20_000, 30, 2000);
/// The same with `--quick`.
const QUICK: (u64, u64, u64) = (200, 2, 20);

/// Time that `wait` spins; the raw side spins, too.
const SPIN: Duration = Duration::from_millis(50);

/// A quantity measured on both sides.
struct Row {
    name: &'static str,
    kernel: String,
    ours: Samples,
    raw: Samples,
}

/// Measures launches.
pub fn run(bench: &Bench, gpu: Gpu) -> Result<Outcome> {
    let (launches, streams, programs) = bench.amount(QUICK, FULL);
    let scheduler = bench.spinning_builder(StaticPriority::new(), SPIN)?.build()?;
    let mut tally = Tally::default();

    let [submit, done] = idle(&scheduler, launches, &mut tally)?;
    let sms = gpu.sms()?;
    let full = sms * scheduler.device().properties().threads_per_sm / THREADS;
    let few = stream(&scheduler, gpu, sms, streams, &mut tally)?;
    let many = stream(&scheduler, gpu, full, streams, &mut tally)?;
    let [program, preemptible, singly] = program(&scheduler, gpu, sms, programs, &mut tally)?;
    let beside = beside::measure(bench, gpu, &scheduler, &mut tally)?;
    let guard = guard::measure(bench, &scheduler, &mut tally)?;
    scheduler.synchronize()?;

    let added = submit.ours.p50().as_secs_f64() - submit.raw.p50().as_secs_f64();
    let device = scheduler.device();
    let over = |row: &Row| ratio(row.ours.p50(), row.raw.p50());
    let mut summary = json!({
        "added_us_p50": 1e6 * added,
        "small_kernels_over_plain": over(&few).into_iter().chain(over(&many)).reduce(f64::max),
        "program_over_graph": over(&program),
        "preemptible_program_over_graph": over(&preemptible),
        "program_over_launches": ratio(program.ours.p50(), singly.ours.p50()),
        "launch_to_done_over_driver": over(&done),
        "submit_p50_us": microseconds(submit.ours.p50()),
        "raw_submit_p50_us": microseconds(submit.raw.p50()),
        "calibration_ms": device.measuring_costs().map(|took| microseconds(took) / 1e3),
        "costs_us": in_microseconds(device.costs()),
    });
    for more in [beside::summary(&beside), guard.summary()] {
        if let (Some(all), Value::Object(more)) = (summary.as_object_mut(), more) {
            all.extend(more);
        }
    }
    let rows = [submit, done, few, many, program, preemptible, singly];
    let mut table =
        vec![line(["", "kernel", "side", "samples", "p50", "p99", "max", "p50 / driver"])];
    table.extend(rows.iter().flat_map(Row::lines));
    table.extend(beside.iter().map(beside::Row::line));
    table.extend(guard.lines());
    let rows = rows.iter().flat_map(Row::json).chain(beside.iter().map(beside::Row::json));
    Ok(Outcome {
        about: format!(
            "Submit is the time inside `launch`, against that inside `cuLaunchKernel`. A stream of \
             {STREAM} kernels is given as the time for one of them; {CALLS} kernels are given as the \
             time for all of them. All threads that wait spin."
        ),
        table,
        text_columns: 3,
        rows: rows.chain(guard.json()).collect(),
        summary: with_tally(summary, &tally),
        mistake: tally.mistake,
    })
}

/// Launches of one block on an idle device, ours and the driver's in turn: the call, and until the
/// kernel is done.
fn idle(scheduler: &Scheduler, launches: u64, tally: &mut Tally) -> Result<[Row; 2]> {
    let row = |name| Row::new(name, "count, 1 block of 1 thread".to_owned());
    let (mut submit, mut done) = (row("submit"), row("launch to done"));
    let stream = scheduler.stream(0);
    let raw_stream = preempt_driver::Stream::new(Level::Lowest)?;
    let mut counts = scheduler.zeroed::<u32>(1)?;
    let mut raw_counts = Array::zeroed(1)?;
    let call = count(&mut raw_counts).grid(1).block(1);
    let module = Module::load(ptx()?, &[])?;
    let raw = Launch::plain(module.plain(call.kernel())?, call);

    let progress = Progress::new("idle device", launches);
    for _ in 0..launches {
        // `wait` returns before the last block has left its SM.
        scheduler.synchronize()?;
        let call = count(&mut counts).grid(1).block(1);
        let start = Instant::now();
        let handle = stream.launch(call)?;
        submit.ours.push(start.elapsed());
        let report = handle.wait()?;
        done.ours.push(start.elapsed());
        tally.report(&report);
        scheduler.synchronize()?;

        let start = Instant::now();
        // SAFETY: no other work uses the counter.
        unsafe { raw.on(&raw_stream)? };
        submit.raw.push(start.elapsed());
        raw_stream.spin()?;
        done.raw.push(start.elapsed());
        progress.step();
    }
    let launches = launches as u32;
    tally.count("our launches", &stream.download(&counts)?.wait()?, &[launches]);
    tally.count("the driver's launches", &raw_counts.read()?, &[launches]);
    Ok([submit, done])
}

/// Streams of kernels of `blocks` blocks, ours and the driver's in turn.
fn stream(
    scheduler: &Scheduler,
    gpu: Gpu,
    blocks: u32,
    streams: u64,
    tally: &mut Tally,
) -> Result<Row> {
    let name = format!("busy {}, {blocks} blocks of {THREADS} threads", show(LENGTH));
    let mut row = Row::new("stream of kernels", name.clone());
    let ticks = gpu.ticks(LENGTH)?;
    let stream = scheduler.stream(0);
    let raw_stream = preempt_driver::Stream::new(Level::Lowest)?;
    let mut counts = scheduler.zeroed::<u32>(blocks as usize)?;
    let mut raw_counts = Array::zeroed(blocks as usize)?;
    let call = busy(ticks, &mut raw_counts).grid(blocks).block(THREADS);
    let module = Module::load(ptx()?, &[])?;
    let raw = Launch::plain(module.plain(call.kernel())?, call);

    let progress = Progress::new(name, streams);
    for _ in 0..streams {
        let time = our_stream(scheduler, &stream, &mut counts, |counts| {
            busy(ticks, counts).grid(blocks).block(THREADS)
        })?;
        row.ours.push(time / STREAM);

        let start = Instant::now();
        for _ in 0..STREAM {
            // SAFETY: no other work uses the counters.
            unsafe { raw.on(&raw_stream)? };
        }
        raw_stream.spin()?;
        row.raw.push(start.elapsed() / STREAM);
        tally.kernels += u64::from(STREAM);
        tally.block_tasks += u64::from(STREAM * blocks);
        progress.step();
    }
    let expected = vec![STREAM * streams as u32; blocks as usize];
    tally.count("our stream", &stream.download(&counts)?.wait()?, &expected);
    tally.count("the driver's stream", &raw_counts.read()?, &expected);
    Ok(row)
}

/// Short kernels as a plain program, as a preemptible one and as a CUDA graph, and launched one by one on both sides: from
/// the first call to the end of the last kernel.
fn program(
    scheduler: &Scheduler,
    gpu: Gpu,
    blocks: u32,
    launches: u64,
    tally: &mut Tally,
) -> Result<[Row; 3]> {
    let kernel = |how| format!("{CALLS} x busy {}, {blocks} blocks, {how}", show(CALL));
    let mut whole = Row::new("program to done", kernel("as one"));
    let mut preemptible = Row::new("program to done", kernel("preemptible"));
    let mut singly = Row::new("launches to done", kernel("one by one"));
    let ticks = gpu.ticks(CALL)?;
    let stream = scheduler.stream(0);
    let raw_stream = preempt_driver::Stream::new(Level::Lowest)?;
    let mut counts = scheduler.zeroed::<u32>(blocks as usize)?;
    let mut raw_counts = Array::zeroed(blocks as usize)?;
    let call = busy(ticks, &mut raw_counts).grid(blocks).block(THREADS);
    let module = Module::load(ptx()?, &[])?;
    let raw = Launch::plain(module.plain(call.kernel())?, call);
    let graph = Graph::of(std::iter::repeat_n(&raw, CALLS as usize), &raw_stream)?;
    let mut record = |preemption| {
        stream.program("busy", |program| {
            program.preemption(preemption);
            (0..CALLS).try_for_each(|_| {
                program.launch(busy(ticks, &mut counts).grid(blocks).block(THREADS)).map(drop)
            })
        })
    };
    let programs = [record(Preemption::Plain)?, record(Preemption::Preemptible)?];

    let progress = Progress::new("program", launches);
    for _ in 0..launches {
        for (program, row) in programs.iter().zip([&mut whole, &mut preemptible]) {
            scheduler.synchronize()?;
            let start = Instant::now();
            stream.launch_program(program)?.wait()?;
            row.ours.push(start.elapsed());
            scheduler.synchronize()?;

            let start = Instant::now();
            // SAFETY: no other work uses the counters.
            unsafe { graph.on(&raw_stream)? };
            raw_stream.spin()?;
            row.raw.push(start.elapsed());
        }

        let start = Instant::now();
        let mut last = None;
        for _ in 0..CALLS {
            last = Some(stream.launch(busy(ticks, &mut counts).grid(blocks).block(THREADS))?);
        }
        last.context("a program without kernels")?.wait()?;
        singly.ours.push(start.elapsed());
        scheduler.synchronize()?;

        let start = Instant::now();
        for _ in 0..CALLS {
            // SAFETY: no other work uses the counters.
            unsafe { raw.on(&raw_stream)? };
        }
        raw_stream.spin()?;
        singly.raw.push(start.elapsed());
        progress.step();
    }
    // Each side has two programs' worth of kernels, and the launches one by one.
    let kernels = 3 * u64::from(CALLS) * launches;
    tally.kernels += kernels;
    tally.block_tasks += kernels * u64::from(blocks);
    let expected = vec![kernels as u32; blocks as usize];
    tally.count("our programs", &stream.download(&counts)?.wait()?, &expected);
    tally.count("the driver's graph", &raw_counts.read()?, &expected);
    Ok([whole, preemptible, singly])
}

/// The costs of a device, by their names.
fn in_microseconds(costs: Costs) -> Value {
    let Costs { call, launch, follow, graph, stop, report, take_in, decision, claim, absence } =
        costs;
    json!({
        "call": microseconds(call),
        "launch": microseconds(launch),
        "follow": microseconds(follow),
        "graph": microseconds(graph),
        "stop": microseconds(stop),
        "report": microseconds(report),
        "take_in": microseconds(take_in),
        "decision": microseconds(decision),
        "claim": microseconds(claim),
        "absence": microseconds(absence),
    })
}

/// From the first launch to the end of the last one.
fn our_stream(
    scheduler: &Scheduler,
    stream: &Stream,
    counts: &mut Buffer<u32>,
    call: impl Fn(&mut Buffer<u32>) -> Call<'static>,
) -> Result<Duration> {
    scheduler.synchronize()?;
    let mut last = None;
    let start = Instant::now();
    for _ in 0..STREAM {
        // An error of a launch that is not waited for makes the next launches fail, up to the last.
        last = Some(stream.launch(call(counts))?);
    }
    last.context("a stream without kernels")?.wait()?;
    let time = start.elapsed();
    scheduler.synchronize()?;
    Ok(time)
}

impl Row {
    fn new(name: &'static str, kernel: String) -> Row {
        Row { name, kernel, ours: Samples::default(), raw: Samples::default() }
    }

    fn sides(&self) -> [(&'static str, &Samples); 2] {
        [("preempt", &self.ours), ("driver", &self.raw)]
    }

    fn lines(&self) -> Vec<Vec<String>> {
        let line = |(side, samples): (&str, &Samples)| {
            let summary = samples.summary();
            line([
                self.name,
                &self.kernel,
                side,
                &samples.len().to_string(),
                &show(summary.p50),
                &show(summary.p99),
                &show(summary.max),
                &show_ratio(ratio(summary.p50, self.raw.p50())),
            ])
        };
        self.sides().into_iter().map(line).collect()
    }

    fn json(&self) -> Vec<Value> {
        let row = |(side, samples): (&str, &Samples)| {
            let summary = samples.summary();
            json!({
                "name": self.name,
                "kernel": self.kernel,
                "side": side,
                "samples": samples.len(),
                "p50_us": microseconds(summary.p50),
                "p99_us": microseconds(summary.p99),
                "max_us": microseconds(summary.max),
                "p50_to_driver": ratio(summary.p50, self.raw.p50()),
            })
        };
        self.sides().into_iter().map(row).collect()
    }
}
