//! The cost of a launch: on an idle device, and in a long stream of launches.

use std::time::Instant;

use anyhow::{Context, Result};
use preempt::policy::StaticPriority;
use preempt::{Preemption, Scheduler, Stream};
use preempt_microkernels::{count, empty};
use preempt_report::microseconds;
use preempt_test_kit::storm::Tally;
use serde_json::json;

use super::counted::Counted;
use super::{Bench, Experiment, Outcome, Rows, line, with_tally};
use crate::progress::Progress;
use crate::samples::{Samples, ratio, show};

/// Kernels in the long stream.
const STREAM: u32 = 1000;

/// Kernels of the program.
const CALLS: u32 = 50;

/// Launches on an idle device, long streams, and launches of the program.
const FULL: (u64, u64, u64) = (20_000, 50, 1000);
/// The same with `--quick`.
const QUICK: (u64, u64, u64) = (200, 2, 10);

/// The experiment `launch`.
#[derive(Debug)]
pub struct Launch;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
The time inside `launch`, the time to the end of a small kernel, a stream of 1,000 kernels, and a
program of 50 kernels; on a GPU against the driver's own launches and its graph.

`Submit` is the time inside `launch` for the thread that calls it, which hands the kernel to a free
device itself; on a GPU that is in use, it leaves that to the scheduler's thread, which is awake. In
a stream, the time per kernel is from the first launch to the end of the last kernel, divided by
1,000; kernels of one stream run one after the other. On a GPU, `driver` is the plain entry with the
same arguments by `cuLaunchKernel`, in turn with ours; `added_us_p50` is the difference of the
medians of `submit`, and `small_kernels_over_plain` the larger ratio of the two streams of kernels
of 10 µs. `launch_to_done_over_driver` is the ratio of the medians from a launch to the end of a
kernel of one thread.

A program is recorded once and launched as one operation. Here it has 50 kernels of 2 µs on a GPU,
and 50 tiny ones on the CPU device. Its time is from the launch to the end of the last kernel, and
so is that of 50 launches one by one. `program_over_graph` is the median of the plain program
against that of the CUDA graph of the same kernels, `preemptible_program_over_graph` that of the
preemptible one, and `program_over_launches` that of the plain one against 50 launches of ours.
";

/// What the suite does beyond that on a GPU.
const GPU_MEANING: &str = "\
Further rows on a GPU:

- instantiate, upload, update, destroy: the driver's calls for a graph of those 50 kernels:
  `cuGraphInstantiateWithFlags`, `cuGraphUpload`, `cuGraphExecKernelNodeSetParams` for one of its
  kernels, `cuGraphExecDestroy`. `upload, to done` is until the stream of the upload is idle.
- record, set, drop: the same of our programs: `Stream::program`, `Program::set` for one launch, and
  dropping a program. `record, behind 64 that were dropped` destroys their graphs.
- Each call is timed on an idle GPU and beside a kernel of 20 ms that has all SMs: a plain one by
  the driver, or a preemptible one of the scheduler. It begins in the first half of that time.
  `waited` are the calls that returned after the end of the kernel. Then there are no more beside
  that one, so a call that always waits has few samples. `graph_calls_waited` and
  `program_calls_waited` are those of all rows of a side. `graph_.._beside_us` and
  `program_.._beside_us` are medians beside the kernel, of plain programs.
- launch to done, as before, and with all arguments set: a plain program of the 50 launches on an
  idle GPU. The difference of the medians, `program_update_us`, is the change of its graph. Beside a
  kernel it cannot be told, because a launch takes the SMs.
- guard: a kernel of one block on an idle GPU, from the call to the return of `wait`: a plain launch,
  a preemptible launch, an unarmed program, and a program that was armed 50 to 600 µs before.
  `guard_preemptible_us` and `guard_armed_us` are the medians of the preemptible launch and the
  armed program less that of the plain launch; below 0, they are sooner. The armed rows are of the
  programs that began armed, `guard_began_armed`.
- guard, set until idle, and disarmed until idle: from `Program::set` to the return of
  `Scheduler::synchronize`, of an unarmed program and of an armed one. The difference of
  the medians, `guard_disarm_us`, is how long an armed program has the device once it is disarmed.

`calibration_ms` is the time for which the costs of the device were measured when it was opened, and
`costs_us` has all of `Device::costs`: `graph`, `take_in`, `decision` and `absence` are an H200's.
";

impl Experiment for Launch {
    fn name(&self) -> &'static str {
        "launch"
    }

    fn about(&self) -> &'static str {
        "The cost of a launch on an idle device, and in a long stream of launches."
    }

    fn meaning(&self) -> &'static [&'static str] {
        &[MEANING, GPU_MEANING]
    }

    fn run(&self, bench: &Bench) -> Result<Outcome> {
        match bench.gpu {
            Some(gpu) => super::cuda::launch::run(bench, gpu),
            None => run(bench),
        }
    }
}

/// Times of single launches and of streams of launches.
#[derive(Default)]
struct Times {
    submit: Samples,
    done: Samples,
    stream_submit: Samples,
    per_kernel: Samples,
    program: Samples,
    preemptible: Samples,
    singly: Samples,
}

/// Measures launches.
fn run(bench: &Bench) -> Result<Outcome> {
    let (launches, streams, programs) = bench.amount(QUICK, FULL);
    let scheduler =
        bench.builder(StaticPriority::new())?.kernels(preempt_test_kit::KERNELS).build()?;
    let stream = scheduler.stream(0);
    let (mut times, mut tally) = (Times::default(), Tally::default());
    measure_single(&scheduler, &stream, launches, &mut times, &mut tally)?;
    measure_streams(&scheduler, &stream, streams, &mut times, &mut tally)?;
    measure_programs(&scheduler, &stream, programs, &mut times, &mut tally)?;
    scheduler.synchronize()?;
    Ok(outcome(&times, tally))
}

/// Empty kernels on an idle device, one by one.
fn measure_single(
    scheduler: &Scheduler,
    stream: &Stream,
    launches: u64,
    times: &mut Times,
    tally: &mut Tally,
) -> Result<()> {
    let progress = Progress::new("idle device", launches);
    for _ in 0..launches {
        // `wait` returns before the last block has left its SM.
        scheduler.synchronize()?;
        let call = empty().grid(1).block(1);
        let start = Instant::now();
        let handle = stream.launch(call)?;
        let submitted = start.elapsed();
        let report = handle.wait()?;
        times.done.push(start.elapsed());
        times.submit.push(submitted);
        tally.report(&report);
        // An empty kernel leaves nothing to check but its report.
        tally.count("an empty kernel's report", &[report.tasks], &[1]);
        progress.step();
    }
    Ok(())
}

/// Tiny kernels, many in a stream at a time.
fn measure_streams(
    scheduler: &Scheduler,
    stream: &Stream,
    streams: u64,
    times: &mut Times,
    tally: &mut Tally,
) -> Result<()> {
    let mut tiny = Counted::new("tiny kernels", scheduler, 1)?;
    let progress = Progress::new("stream of kernels", streams);
    for _ in 0..streams {
        scheduler.synchronize()?;
        let mut handles = Vec::with_capacity(STREAM as usize);
        let start = Instant::now();
        let mut last = start;
        for _ in 0..STREAM {
            handles.push(tiny.launch(stream, |counts| count(counts))?);
            let now = Instant::now();
            times.stream_submit.push(now - last);
            last = now;
        }
        for handle in handles.iter().rev() {
            handle.wait()?;
        }
        times.per_kernel.push(start.elapsed() / STREAM);
        progress.step();
    }
    tiny.check(stream, tally)
}

/// Tiny kernels as a plain program and as a preemptible one, and one by one.
fn measure_programs(
    scheduler: &Scheduler,
    stream: &Stream,
    launches: u64,
    times: &mut Times,
    tally: &mut Tally,
) -> Result<()> {
    let mut counts = scheduler.zeroed::<u32>(1)?;
    let mut record = |preemption| {
        stream.program("tiny", |program| {
            program.preemption(preemption);
            (0..CALLS)
                .try_for_each(|_| program.launch(count(&mut counts).grid(1).block(1)).map(drop))
        })
    };
    let programs = [record(Preemption::Plain)?, record(Preemption::Preemptible)?];
    let progress = Progress::new("program", launches);
    for _ in 0..launches {
        for (program, samples) in programs.iter().zip([&mut times.program, &mut times.preemptible])
        {
            scheduler.synchronize()?;
            let start = Instant::now();
            stream.launch_program(program)?.wait()?;
            samples.push(start.elapsed());
        }
        scheduler.synchronize()?;
        let start = Instant::now();
        let mut last = None;
        for _ in 0..CALLS {
            last = Some(stream.launch(count(&mut counts).grid(1).block(1))?);
        }
        last.context("a program without kernels")?.wait()?;
        times.singly.push(start.elapsed());
        progress.step();
    }
    let kernels = 3 * u64::from(CALLS) * launches;
    tally.kernels += kernels;
    tally.block_tasks += kernels;
    let found = stream.download(&counts)?.wait()?;
    tally.count("programs and launches", &found, &[kernels as u32]);
    Ok(())
}

fn outcome(times: &Times, tally: Tally) -> Outcome {
    let Times { submit, done, stream_submit, per_kernel, program, preemptible, singly } = times;
    let mut rows = Rows::below(["time", "kernel", "samples", "p50", "p99", "max"]);
    for (name, kernel, samples) in [
        ("submit, idle device", "empty", submit),
        ("launch to done, idle device", "empty", done),
        ("submit, stream of 1,000", "tiny", stream_submit),
        ("stream of 1,000, per kernel", "tiny", per_kernel),
        ("program of 50 to done", "tiny", program),
        ("preemptible program of 50 to done", "tiny", preemptible),
        ("50 launches to done", "tiny", singly),
    ] {
        let summary = samples.summary();
        let count = samples.len().to_string();
        let (p50, p99, max) = (show(summary.p50), show(summary.p99), show(summary.max));
        let json = json!({
            "name": name,
            "kernel": kernel,
            "samples": samples.len(),
            "p50_us": microseconds(summary.p50),
            "p99_us": microseconds(summary.p99),
            "max_us": microseconds(summary.max),
        });
        rows.push(line([name, kernel, &count, &p50, &p99, &max]), json);
    }
    Outcome {
        about: "Submit is the time inside `launch`. Kernels have one block-task of one thread."
            .to_owned(),
        table: rows.table,
        text_columns: 2,
        rows: rows.json,
        summary: with_tally(
            json!({
                "submit_p50_us": microseconds(submit.summary().p50),
                "submit_p99_us": microseconds(submit.summary().p99),
                "done_p50_us": microseconds(done.summary().p50),
                "done_p99_us": microseconds(done.summary().p99),
                "stream_submit_p50_us": microseconds(stream_submit.summary().p50),
                "stream_per_kernel_p50_us": microseconds(per_kernel.summary().p50),
                "program_over_launches": ratio(program.p50(), singly.p50()),
            }),
            &tally,
        ),
        mistake: tally.mistake,
    }
}
