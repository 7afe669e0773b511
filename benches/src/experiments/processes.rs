//! Urgent requests beside a batch of another process, by time slices and by MPS, and beside one of the same process.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use preempt::policy::StaticPriority;
use preempt_driver::Gpu;
use preempt_report::microseconds;
use preempt_test_kit::Random;
use preempt_test_kit::storm::Tally;
use serde_json::{Value, json};

use super::requests::{BLOCKS, GAP, Requests};
use super::{Bench, Experiment, Outcome, Rows, line, with_tally};
use crate::progress::Progress;
use crate::samples::{Samples, show, show_percent};

mod mps;
mod neighbour;

use mps::Mps;
use neighbour::{
    Ask, Neighbour, OnThread, OurBatch, Role, keep_running, rate, times, with_raw_requests,
};
pub use neighbour::{Batch, RawBatch, serve_if_neighbour};

/// Microseconds that the blocks of a batch take.
const BLOCK_TIMES: [u64; 3] = [100, 1000, 10_000];
const QUICK_BLOCK_TIMES: [u64; 1] = [1000];

/// The block time of the summary.
const SHOWN: u64 = 1000;

/// Requests of each arm.
const REQUESTS: u32 = 200;
const QUICK_REQUESTS: u32 = 5;

/// Time for which the batch runs without requests.
const ALONE: Duration = Duration::from_millis(500);
const QUICK_ALONE: Duration = Duration::from_millis(5);

/// Time that `wait` spins.
const SPIN: Duration = Duration::from_millis(100);

/// The experiment `processes`.
#[derive(Debug)]
pub struct Processes;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
Requests beside a batch of another process on the same GPU, and beside one of their own, for a GPU
alone.

- A batch is grids that fill the GPU, two deep, of blocks that take `block`. Requests of 8 blocks of
  1024 threads come up to 4 ms apart; `p50`, `p99` and `max` are of the times from a request to its
  answer, `idle` (p50) of those with no batch.
- two processes: the batch is one process's, the requests are another's, both by plain calls of the
  driver. The driver gives the GPU to one after the other, for a time slice each.
- two processes, MPS: the same as clients of an MPS server, which the suite starts and ends; left
  out where `nvidia-cuda-mps-control` is not there, or no client comes up. Kernels of both run side
  by side where there is room. Requests are on a stream of the highest priority, the batch is on one
  of the lowest.
- one process, stream priorities: the same streams in one process.
- one process, preempt: launches of a scheduler, until `wait` returns; the batch has yield points.
- batch: grids of the batch in a second beside requests, to those without any.
- Each grid's block-tasks are counted, or their marks compared, at the end; `wrong` is how many were
  not as they should be.

`time_slices_over_ours_p50_1ms` and so on: how many times longer a request takes than with preempt,
beside blocks of a millisecond; `mps_..` is null without an MPS server.
";

impl Experiment for Processes {
    fn name(&self) -> &'static str {
        "processes"
    }

    fn about(&self) -> &'static str {
        "Urgent requests beside a batch of another process: time slices, and MPS."
    }

    fn meaning(&self) -> &'static [&'static str] {
        &[MEANING]
    }

    fn run(&self, bench: &Bench) -> Result<Outcome> {
        let gpu = bench.gpu.context("two processes share no emulated GPU: `--device cuda`")?;
        run(bench, gpu)
    }
}

/// Whose the batch is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Arm {
    Slices,
    Mps,
    Streams,
    Ours,
}

const ARMS: [Arm; 4] = [Arm::Slices, Arm::Mps, Arm::Streams, Arm::Ours];

impl Arm {
    fn name(self) -> &'static str {
        match self {
            Arm::Slices => "two processes",
            Arm::Mps => "two processes, MPS",
            Arm::Streams => "one process, stream priorities",
            Arm::Ours => "one process, preempt",
        }
    }
}

/// What was measured of an arm.
struct Found {
    idle: Samples,
    times: Samples,
    /// Grids of the batch in a second, without requests and beside them.
    rates: [f64; 2],
}

struct Row {
    arm: Arm,
    block: Duration,
    found: Found,
}

fn run(bench: &Bench, gpu: Gpu) -> Result<Outcome> {
    let blocks = bench.amount(&QUICK_BLOCK_TIMES[..], &BLOCK_TIMES);
    let progress = Progress::new("arms", (blocks.len() * ARMS.len()) as u64);
    let (mut tally, mut rows) = (Tally::default(), Vec::new());
    let mut mps = Mps::start()?;
    for &block in blocks {
        let block = Duration::from_micros(block);
        for arm in ARMS {
            let found = match arm {
                Arm::Slices => Some(of_processes(bench, block, None, &mut tally)?),
                Arm::Mps => {
                    match mps.as_ref().map(|mps| of_processes(bench, block, Some(mps), &mut tally))
                    {
                        Some(Err(error)) => {
                            eprintln!("without MPS: {error:#}");
                            mps = None;
                            None
                        }
                        found => found.transpose()?,
                    }
                }
                Arm::Streams => Some(with_raw_requests(|requests| {
                    on_thread(bench, || RawBatch::new(gpu, block), requests, &mut tally)
                })?),
                Arm::Ours => Some(ours(bench, gpu, block, &mut tally)?),
            };
            rows.extend(found.map(|found| Row { arm, block, found }));
            progress.step();
        }
    }
    Ok(outcome(&rows, &tally))
}

/// Measures an arm: requests without a batch and beside one, and the batch without requests.
fn measure<B: Ask>(
    bench: &Bench,
    mut request: impl FnMut() -> Result<Samples>,
    batch: impl FnOnce() -> Result<B>,
) -> Result<(Found, B)> {
    let idle = request()?;
    let mut batch = batch()?;
    thread::sleep(bench.amount(QUICK_ALONE, ALONE));
    let alone = rate(&batch.ask()?)?;
    let times = request()?;
    let beside = rate(&batch.ask()?)?;
    Ok((Found { idle, times, rates: [alone, beside] }, batch))
}

/// Requests and batch in a process each.
fn of_processes(
    bench: &Bench,
    block: Duration,
    mps: Option<&Mps>,
    tally: &mut Tally,
) -> Result<Found> {
    let count = bench.amount(QUICK_REQUESTS, REQUESTS);
    let requests = Role::Requests { count, seed: bench.seed };
    let mut requests = Neighbour::start(requests, mps)?;
    let batch = || Neighbour::start(Role::Batch(block), mps);
    let (found, batch) = measure(bench, || times(&requests.ask()?), batch)?;
    check(&batch.end()?, tally)?;
    Ok(found)
}

/// A batch on a thread of this process, which makes it.
fn on_thread<B: Batch>(
    bench: &Bench,
    batch: impl FnOnce() -> Result<B> + Send,
    requests: &mut Requests<'_>,
    tally: &mut Tally,
) -> Result<Found> {
    let mut random = Random(bench.seed);
    let count = bench.amount(QUICK_REQUESTS, REQUESTS);
    let ((questions, asked), (to, answers)) = (mpsc::channel(), mpsc::channel());
    thread::scope(|scope| {
        let mut running = None;
        let start = || {
            // It ends with the questions, also where an error drops them.
            let tell = move |answer| Ok(to.send(answer)?);
            running = Some(scope.spawn(move || keep_running(batch()?, &asked, tell)));
            let mut batch = OnThread { questions, answers };
            batch.answer()?;
            Ok(batch)
        };
        let found = measure(bench, || requests.some(count, &mut random), start);
        let found = found.and_then(|(found, OnThread { questions, answers })| {
            drop(questions);
            Ok((found, answers.recv()?))
        });
        // What the batch has failed with says more than that it does not answer.
        running.map_or(Ok(()), |running| {
            running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        let (found, last) = found?;
        check(&last, tally)?;
        Ok(found)
    })
}

fn ours(bench: &Bench, gpu: Gpu, block: Duration, tally: &mut Tally) -> Result<Found> {
    let scheduler = bench.spinning_scheduler(StaticPriority::new(), SPIN)?;
    let mut done = scheduler.zeroed(BLOCKS as usize)?;
    let mut requests = Requests::Ours { stream: scheduler.stream(10), done: &mut done };
    requests.request()?;
    on_thread(bench, || OurBatch::new(&scheduler, gpu, block), &mut requests, tally)
}

/// Takes in a batch's last answer.
fn check(answer: &Value, tally: &mut Tally) -> Result<()> {
    let wrong = answer["wrong"].as_u64().context("a batch does not tell what was wrong")?;
    if wrong > 0 {
        tally.lost += wrong;
        tally.mistake.get_or_insert_with(|| format!("{wrong} block-tasks of a batch are wrong"));
    }
    Ok(())
}

fn outcome(rows: &[Row], tally: &Tally) -> Outcome {
    let mut found = Rows::below(["block", "arm", "idle", "p50", "p99", "max", "batch"]);
    for Row { arm, block, found: Found { idle, times, rates: [alone, beside] } } in rows {
        let (idle, of) = (idle.p50(), times.summary());
        let batch = beside / alone;
        found.push(
            line([
                &show(*block),
                arm.name(),
                &show(idle),
                &show(of.p50),
                &show(of.p99),
                &show(of.max),
                &show_percent(Some(batch)),
            ]),
            json!({
                "arm": arm.name(),
                "block_us": microseconds(*block),
                "requests": times.len(),
                "idle_p50_us": microseconds(idle),
                "p50_us": microseconds(of.p50),
                "p99_us": microseconds(of.p99),
                "max_us": microseconds(of.max),
                "batch": batch,
            }),
        );
    }
    let shown = |arm| {
        let is_shown = |row: &&Row| row.arm == arm && row.block == Duration::from_micros(SHOWN);
        rows.iter().find(is_shown).map(|row| row.found.times.summary())
    };
    let over_ours = |arm, of: fn(crate::samples::Summary) -> Duration| {
        let (other, ours) = (of(shown(arm)?), of(shown(Arm::Ours)?));
        Some(other.as_secs_f64() / ours.as_secs_f64())
    };
    let summary = json!({
        "mps": rows.iter().any(|row| row.arm == Arm::Mps),
        "time_slices_over_ours_p50_1ms": over_ours(Arm::Slices, |times| times.p50),
        "time_slices_over_ours_p99_1ms": over_ours(Arm::Slices, |times| times.p99),
        "mps_over_ours_p50_1ms": over_ours(Arm::Mps, |times| times.p50),
        "mps_over_ours_p99_1ms": over_ours(Arm::Mps, |times| times.p99),
        "wrong": tally.lost,
    });
    Outcome {
        about: format!(
            "Requests of {BLOCKS} blocks, up to {} apart, beside a batch that fills the GPU, of another process or of the same: \
             the time from a request to its answer.",
            show(GAP),
        ),
        table: found.table,
        text_columns: 2,
        rows: found.json,
        summary: with_tally(summary, tally),
        mistake: tally.mistake.clone(),
    }
}
