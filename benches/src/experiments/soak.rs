//! A long run of everything at once: launches in all forms, programs, armed ones, copies, opaque work, limits, cancels, panics,
//! pools, and schedulers that are dropped in its midst. Results are right to the bit, and memory stays flat.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{panic, process, thread};

use anyhow::{Context, Result, bail, ensure};
use preempt::error::LaunchError;
use preempt::policy::{
    DynamicPriority, FairShare, Ffs, Fifo, Hpf, ShortestRemaining, StaticPriority,
};
use preempt::pool::{Class, Pool, Task};
use preempt::ptx::Options;
use preempt::{Error, LaunchReport, Scheduler};
use preempt_microkernels::{hash_yielding, hashed};
use preempt_test_kit::storm::Chaos;
use preempt_test_kit::{Random, resident_bytes};
use serde_json::{Value, json};

use self::worker::{ROUNDS, Values, Worker, elements};
use super::{Bench, Experiment, KERNELS, Outcome, Rows};
use crate::progress::Progress;

mod worker;

/// The time of a run, and of one with `--quick`. It is as long on each device, and shorter than a run there may be.
const LENGTH: Duration = Duration::from_secs(450);
const QUICK_LENGTH: Duration = Duration::from_secs(2);

/// Rows: equal parts of the run.
const PARTS: u32 = 10;
const QUICK_PARTS: u32 = 2;

/// Threads with a stream each.
const THREADS: u32 = 4;

/// One scheduler in this many is dropped while its operations are under way, and one is followed by a pool with tasks.
const DROPPED: u32 = 4;
const POOLED: u32 = 5;
const TASKS: u32 = 30;

/// Without an operation for so long, something hangs.
const STUCK: Duration = Duration::from_secs(60);

/// A kernel as another compiler makes them, on a GPU: it hashes an array.
const FOREIGN: &str = include_str!("soak/hash.ptx");

/// Bytes by which memory may differ at the end, because allocators divide it differently each time.
const SLACK: f64 = 48e6;

/// The experiment `soak`.
#[derive(Debug)]
pub struct Soak;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
Four threads do what applications do, at random: they launch kernels that hash an array, with yield
points, with a checkpoint, or with neither, in each form of preemption; on a GPU they launch one of
another compiler, too, which has got yield points (`foreign`). They record programs of our kernels,
launch these, arm them and launch them in time, too late or not at all; they upload, copy, fill and
download; they put opaque work between; they cancel, and change priorities, weights and latency
limits. On the CPU device some kernels panic, since a panic on a GPU ends its context. After 150
operations of each thread all arrays are downloaded and compared with the host's, and the scheduler
is dropped; one in four is dropped at once, while operations are under way. The next one has another
policy. One in five is followed by a pool with tasks, some of which are cancelled.

- wrong: whether an array was not to the bit what the host computed, or an operation or a task of a
  pool ended with an error that it should not have. Anything but 0 is a bug, and ends the run. So
  does a minute in which no operation ends.
- operations, foreign, programs, armed, cancelled, panics, yields, dropped: what happened. `armed`
  are launches that began without a call of the driver, `dropped` those that a scheduler's drop ended.
- resident: memory of the process, in MB, at the end of each part, and free: that of the device.
  `host_growth_mb` and `device_growth_mb` are the least of the last three parts, less the most of the
  three before; with `--quick` there are fewer parts, and no growth is told. More than 48 MB is a
  mistake.
";

impl Experiment for Soak {
    fn name(&self) -> &'static str {
        "soak"
    }

    fn about(&self) -> &'static str {
        "Everything at once for eight minutes, at random: results to the bit, and memory that stays flat."
    }

    fn meaning(&self) -> &'static [&'static str] {
        &[MEANING]
    }

    fn shape(&self, _: u32) -> (u32, u32) {
        (4, 2)
    }

    fn run(&self, bench: &Bench) -> Result<Outcome> {
        run(bench)
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    schedulers: u64,
    dropped: u64,
    operations: u64,
    foreign: u64,
    programs: u64,
    armed: u64,
    cancelled: u64,
    panics: u64,
    yields: u64,
    tasks: u64,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        let Counts {
            schedulers,
            dropped,
            operations,
            foreign,
            programs,
            armed,
            cancelled,
            panics,
            yields,
            tasks,
        } = other;
        self.schedulers += schedulers;
        self.dropped += dropped;
        self.operations += operations;
        self.foreign += foreign;
        self.programs += programs;
        self.armed += armed;
        self.cancelled += cancelled;
        self.panics += panics;
        self.yields += yields;
        self.tasks += tasks;
    }

    /// What a launch did that is over.
    fn take(&mut self, report: LaunchReport) {
        self.yields += u64::from(report.yields);
        self.armed += u64::from(report.armed);
    }
}

/// Operations of all threads, for the watchdog. Relaxed throughout: only whether it changes counts.
static STEPS: AtomicU64 = AtomicU64::new(0);

/// Whether an operation was ended by the drop of its scheduler.
fn is_dropped(error: &Error) -> bool {
    matches!(error, Error::Launch(LaunchError::SchedulerDropped { .. }))
}

/// The scheduler of this number, each with another policy.
fn scheduler(bench: &Bench, number: u32, seed: u64) -> Result<Scheduler> {
    let device = bench.device.clone().context("this suite is not simulated")?;
    let builder = Scheduler::builder().device(device).kernels(KERNELS);
    let builder = match bench.gpu {
        Some(_) => builder.ptx_with("foreign", FOREIGN, Options::default().yields(true)),
        None => builder,
    };
    let builder = match number % 9 {
        0 => builder.policy(StaticPriority::new()),
        1 => builder.policy(StaticPriority::whole_device()),
        2 => builder.policy(Hpf::new()),
        3 => builder.policy(Ffs::new()),
        4 => builder.policy(FairShare::new()),
        5 => builder.policy(DynamicPriority::new()),
        6 => builder.policy(ShortestRemaining::new()),
        7 => builder.policy(Fifo::new()),
        _ => builder.policy(Chaos::new(seed)),
    };
    Ok(builder.build()?)
}

/// One scheduler, from its building to its drop.
fn round(bench: &Bench, number: u32, random: &mut Random) -> Result<Counts> {
    let seed = random.bits();
    let scheduler = scheduler(bench, number, seed)?;
    let looks = !number.is_multiple_of(DROPPED);
    let is_gpu = bench.gpu.is_some();
    let foreign = is_gpu.then(|| scheduler.foreign("foreign", "hash_foreign")).transpose()?;
    let workers = (0..THREADS)
        .map(|thread| Worker::new(&scheduler, foreign, Random(seed ^ u64::from(thread) << 32)));
    let workers: Vec<_> = workers.collect::<Result<_>>()?;
    let results: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> =
            workers.into_iter().map(|worker| scope.spawn(move || worker.run(looks))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let refused = scheduler.policy_error();
    drop(scheduler);
    if let Some(error) = refused {
        bail!("scheduler {number}: {error}");
    }
    let mut counts = Counts { schedulers: 1, ..Counts::default() };
    for result in results {
        let (of_thread, handles) = result.with_context(|| format!("scheduler {number}"))?;
        counts.add(of_thread);
        for handle in handles {
            match handle.wait() {
                Ok(report) => counts.take(report),
                Err(error) if is_dropped(&error) => counts.dropped += 1,
                Err(error) => bail!("after the drop: {error}"),
            }
        }
    }
    if number.is_multiple_of(POOLED) {
        counts.tasks += tasks(bench, random)?;
    }
    Ok(counts)
}

/// A pool of the device, and tasks of two applications; how many there were.
fn tasks(bench: &Bench, random: &mut Random) -> Result<u64> {
    let device = bench.device.clone().context("this suite is not simulated")?;
    let pool = Pool::builder().device(device).kernels(KERNELS).build()?;
    let applications = [Class::UserFacing, Class::Batch].map(|class| pool.application(class));
    let mut handles = Vec::new();
    for _ in 0..TASKS {
        let (rounds, key) = (1 + random.below(ROUNDS), random.bits() as u32);
        let values: Values = std::array::from_fn(|_| random.bits() as u32);
        let task = Task::new("hash", move |run| {
            let x = run.buffer(&elements(&values, 1000))?;
            let mut y = run.zeroed::<u32>(1000)?;
            run.launch(hash_yielding(rounds, key, &x, &mut y).threads(1000))?;
            run.download(&y)
        });
        let handle = applications[random.below(2) as usize].submit(&task)?;
        let is_cancelled = random.below(5) == 0;
        if is_cancelled {
            handle.cancel();
        }
        handles.push((handle, is_cancelled, values.map(|x| hashed(x, rounds, key))));
    }
    for (handle, is_cancelled, expected) in handles {
        STEPS.fetch_add(1, Relaxed);
        match handle.wait() {
            Ok(found) => {
                ensure!(found == elements(&expected, 1000), "a task's result is wrong");
            }
            Err(error) => ensure!(is_cancelled, "a task: {error}"),
        }
    }
    Ok(TASKS.into())
}

/// Megabytes by which the memory of the process has grown, and that which is in use on the device: the least of the last three
/// parts is compared with the most of the three before, since an allocator keeps now more, now less.
fn grown(memory: &[(f64, Option<f64>)]) -> (Option<f64>, Option<f64>) {
    let [.., a, b, c, d, e, f] = memory else { return (None, None) };
    let (before, after) = ([a, b, c], [d, e, f]);
    let most = |of: fn(&(f64, Option<f64>)) -> Option<f64>| {
        let before = before.into_iter().filter_map(of).fold(f64::MIN, f64::max);
        let after = after.into_iter().filter_map(of).fold(f64::MAX, f64::min);
        (before > f64::MIN).then_some(after - before)
    };
    (most(|(resident, _)| Some(*resident)), most(|(_, free)| free.map(|free| -free)))
}

/// Ends the process if no operation ends for long: a run that hangs says where, and takes no more time.
fn watch(seed: u64) {
    thread::spawn(move || {
        let (mut known, mut since) = (STEPS.load(Relaxed), Instant::now());
        loop {
            thread::sleep(Duration::from_secs(1));
            let steps = STEPS.load(Relaxed);
            if steps != known {
                (known, since) = (steps, Instant::now());
            } else if since.elapsed() > STUCK {
                eprintln!(
                    "soak: nothing has ended for {STUCK:?}, after {steps} operations with seed {seed}"
                );
                process::abort();
            }
        }
    });
}

fn run(bench: &Bench) -> Result<Outcome> {
    watch(bench.seed);
    let messages = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref::<&str>() != Some(&"on purpose") {
            messages(info);
        }
    }));
    let length = bench.amount(QUICK_LENGTH, LENGTH);
    let parts = bench.amount(QUICK_PARTS, PARTS);
    let progress = Progress::new("parts", parts.into());
    let mut random = Random(bench.seed);
    let mut rows = Rows::below([
        "part",
        "schedulers",
        "operations",
        "foreign",
        "programs",
        "armed",
        "cancelled",
        "panics",
        "yields",
        "tasks of pools",
        "resident",
        "free on the device",
    ]);
    let (mut all, mut memory, mut mistake) = (Counts::default(), Vec::new(), None);
    let (start, mut number) = (Instant::now(), 0);
    for part in 1..=parts {
        let mut counts = Counts::default();
        while start.elapsed() < length * part / parts && mistake.is_none() {
            match round(bench, number, &mut random) {
                Ok(of_round) => counts.add(of_round),
                Err(error) => mistake = Some(format!("{error:#}")),
            }
            number += 1;
        }
        all.add(counts);
        // The CPU device's is the host's, which others use.
        let device = bench.device.as_ref().filter(|_| bench.gpu.is_some());
        let free = device.and_then(|device| device.memory().ok());
        let (resident, free) =
            (resident_bytes() as f64 / 1e6, free.map(|info| info.free as f64 / 1e6));
        memory.push((resident, free));
        rows.push(cells(part, &counts, (resident, free)), json(part, &counts, (resident, free)));
        progress.step();
    }
    let last = memory[memory.len() - 1];
    let (host, device) = grown(&memory);
    let is_more = [host, device].into_iter().flatten().any(|mb| mb > SLACK / 1e6);
    if is_more && mistake.is_none() {
        mistake =
            Some(format!("memory has grown: by {host:?} MB here, by {device:?} MB on the device"));
    }
    let mut summary = json(0, &all, last);
    summary.as_object_mut().expect("an object").remove("part");
    summary["seconds"] = json!(start.elapsed().as_secs_f64());
    summary["wrong"] = json!(u32::from(mistake.is_some()));
    summary["host_growth_mb"] = json!(host);
    summary["device_growth_mb"] = json!(device);
    let about =
        "Everything at once, at random, by four threads: what happened in each part of the run."
            .to_owned();
    Ok(Outcome { about, table: rows.table, text_columns: 1, rows: rows.json, summary, mistake })
}

fn cells(part: u32, counts: &Counts, (resident, free): (f64, Option<f64>)) -> Vec<String> {
    let &Counts {
        schedulers,
        operations,
        foreign,
        programs,
        armed,
        cancelled,
        panics,
        yields,
        tasks,
        ..
    } = counts;
    let counts =
        [schedulers, operations, foreign, programs, armed, cancelled, panics, yields, tasks];
    let mut cells = vec![part.to_string()];
    cells.extend(counts.map(|count| count.to_string()));
    cells.push(format!("{resident:.0} MB"));
    cells.push(free.map_or_else(|| "-".to_owned(), |free| format!("{free:.0} MB")));
    cells
}

fn json(part: u32, counts: &Counts, (resident, free): (f64, Option<f64>)) -> Value {
    json!({
        "part": part,
        "schedulers": counts.schedulers,
        "dropped": counts.dropped,
        "operations": counts.operations,
        "foreign": counts.foreign,
        "programs": counts.programs,
        "armed": counts.armed,
        "cancelled": counts.cancelled,
        "panics": counts.panics,
        "yields": counts.yields,
        "tasks": counts.tasks,
        "resident_mb": resident,
        "free_mb": free,
    })
}

#[cfg(test)]
mod tests {
    use preempt::ptx::{Droppable, transform_with};

    use super::*;

    #[test]
    fn the_foreign_kernel_can_be_dropped_in_its_loop() {
        let options = Options::default().yields(true);
        let transformed = transform_with(FOREIGN, &["hash_foreign"], options).expect("it is PTX");
        let kernel = &transformed.kernels[0];
        let points = kernel.yielding.as_ref().map_or(0, |yielding| yielding.points);
        assert!(points > 0 && kernel.droppable == Some(Droppable::Strict), "{}", kernel.verdict);
    }
}
