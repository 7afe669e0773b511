//! One device with a batch task: how soon it is free, and what a user waits for (figure 6).

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use preempt::error::{LaunchError, PoolError};
use preempt::pool::{Class, Pool, Stop, Task, TaskHandle};
use preempt::{Error, Handle, LaunchReport, Scheduler};

use super::devices::{Policy, pool_of};
use super::occupancy::Occupancy;
use super::replay::{Answers, LOST, await_batch};
use super::tasks::{Answer, Hold, Kind, Ticket};
use crate::experiments::Bench;
use crate::samples::Samples;

/// Durations of batch tasks in milliseconds, and with `--quick`.
const BATCH_MILLIS: [u64; 4] = [100, 200, 400, 800];
const QUICK_BATCH_MILLIS: [u64; 2] = [5, 10];
/// Responses beside each batch task that yields, and with `--quick`. Without stops one tells as much.
const SAMPLES: (u32, u32) = (5, 1);
/// Revocations, and with `--quick`.
const REVOCATIONS: (u32, u32) = (100, 3);
/// From a launch, or the start of a batch task's body, until the kernel is sure to run.
pub const SETTLED: Duration = Duration::from_millis(3);

/// The response of a user-facing task that comes to a device with a batch task.
#[derive(Clone, Copy, Debug)]
pub struct Inversion {
    /// The user-facing task.
    pub name: &'static str,
    /// Whether the batch task yields.
    pub yields: bool,
    /// Time of the batch task alone.
    pub batch: Duration,
    /// The median.
    pub response: Duration,
    /// The task's time alone.
    pub alone: Duration,
    /// What the batch task takes more than its time alone and the response together, of the shortest that yields; the median.
    pub delays_batch: Option<Duration>,
}

fn batch_of(kinds: &[Kind]) -> Result<&Kind> {
    let longest = kinds.iter().rfind(|kind| kind.class == Class::Batch);
    longest.context("a workload without batch tasks")
}

/// The launch of its batch tasks.
pub fn hold_of(kinds: &[Kind]) -> Result<Hold> {
    batch_of(kinds)?.hold().context("a batch task that is no launch")
}

/// Starts a batch task, and returns when its kernel runs.
fn start(pool: &Pool, kind: &Kind) -> Result<TaskHandle<Answer>> {
    let occupancy = Arc::new(Occupancy::new(pool.devices()));
    let task = kind.task(Ticket::default(), &occupancy, Duration::ZERO);
    let handle = pool.application(Class::Batch).submit(&task)?;
    await_batch(&occupancy)?;
    thread::sleep(SETTLED);
    Ok(handle)
}

/// Cancels a task, which leaves its device as a revoked one does.
fn cancel(running: TaskHandle<Answer>) -> Result<()> {
    running.cancel();
    let ended = running.wait();
    ensure!(
        matches!(ended, Ok(_) | Err(Error::Pool(PoolError::Cancelled { .. }))),
        "a cancelled batch task: {ended:?}"
    );
    Ok(())
}

/// How long it takes to take a device from a batch task. The pool says how often it does and not how long that takes. A task that
/// is cancelled leaves in the same way, at the call; its thread then gives the answer before it goes on, which a revoked task does
/// not have.
#[derive(Clone, Debug, Default)]
pub struct Revocations {
    /// From the call that cancels a batch task's launch until its kernel has left all SMs, seen by a thread that asks all the
    /// time.
    pub leaves: Samples,
    /// From the call that cancels a batch task until the body of the next one begins, which waits in the pool.
    pub passes_on: Samples,
}

/// Takes one device from batch tasks.
pub fn revocations(bench: &Bench, one: &[Scheduler], kinds: &[Kind]) -> Result<Revocations> {
    let mut times = Revocations::default();
    let samples = bench.amount(REVOCATIONS.1, REVOCATIONS.0);
    let kind = batch_of(kinds)?;
    let (scheduler, hold) = (one.first().context("a pool of no device")?, hold_of(kinds)?);
    let mut counts = scheduler.zeroed(hold.block_tasks() as usize)?;
    for _ in 0..samples {
        times.leaves.push(leave(scheduler.stream(0).launch(hold.call(&mut counts))?)?);
    }
    let pool = pool_of(one, Policy::Priority, Stop::Never)?;
    let next = Task::new("next", |_| Ok(Instant::now()));
    for _ in 0..samples {
        let running = start(&pool, kind)?;
        let next = pool.application(Class::Batch).submit(&next)?;
        let decided = Instant::now();
        cancel(running)?;
        let took = next.wait()?.checked_duration_since(decided);
        times.passes_on.push(took.context("the next task began while another had the device")?);
    }
    Ok(times)
}

/// Cancels a launch whose kernel runs; the time until it has left.
fn leave(launch: Handle<LaunchReport>) -> Result<Duration> {
    thread::sleep(SETTLED);
    let decided = Instant::now();
    launch.cancel();
    while launch.try_wait().is_none() {
        ensure!(decided.elapsed() < LOST, "a cancelled kernel has not left within {LOST:?}");
        std::hint::spin_loop();
    }
    let took = decided.elapsed();
    let ended = launch.wait();
    let is_cancelled = matches!(ended, Err(Error::Launch(LaunchError::Cancelled { .. })));
    ensure!(is_cancelled, "a kernel was to run for long, and then: {ended:?}");
    Ok(took)
}

/// All user-facing tasks beside batch tasks of growing duration, with and without stops.
pub fn measure(
    bench: &Bench,
    one: &[Scheduler],
    kinds: &[Kind],
    stop: Duration,
    answers: &mut Answers,
) -> Result<Vec<Inversion>> {
    let mut inversions = Vec::new();
    let durations = bench.amount(&QUICK_BATCH_MILLIS[..], &BATCH_MILLIS[..]);
    for yields in [false, true] {
        let stop = if yields { Stop::Yield(stop) } else { Stop::Never };
        let pool = pool_of(one, Policy::Priority, stop)?;
        let service = pool.application(Class::UserFacing);
        let samples = if yields { bench.amount(SAMPLES.1, SAMPLES.0) } else { 1 };
        for (index, &millis) in durations.iter().enumerate() {
            let batch = Duration::from_millis(millis);
            let ends = yields && index == 0;
            let kind_of_batch = batch_of(kinds)?.lasting(batch);
            for kind in kinds.iter().filter(|kind| kind.class == Class::UserFacing) {
                let (mut responses, mut delays) = (Samples::default(), Samples::default());
                for _ in 0..samples {
                    let running = start(&pool, &kind_of_batch)?;
                    let occupancy = Arc::new(Occupancy::new(1));
                    let task = kind.task(Ticket::default(), &occupancy, Duration::ZERO);
                    let (answer, report) = service.submit(&task)?.wait_with_report()?;
                    answers.check(kind, &answer);
                    responses.push(report.turnaround);
                    if ends {
                        let (answer, beside) = running.wait_with_report()?;
                        answers.check(&kind_of_batch, &answer);
                        delays.push(beside.turnaround.saturating_sub(batch + report.turnaround));
                    } else {
                        cancel(running)?;
                    }
                }
                let (name, alone, response) = (kind.name, kind.alone, responses.p50());
                let delays_batch = ends.then(|| delays.p50());
                inversions.push(Inversion { name, yields, batch, response, alone, delays_batch });
            }
        }
    }
    Ok(inversions)
}
