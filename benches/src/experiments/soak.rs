//! A long run of everything at once: launches in all forms, programs, armed ones, copies, opaque work, limits, cancels, panics,
//! pools, and schedulers that are dropped in its midst. Results are right to the bit, and memory stays flat.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{mem, panic, process, thread};

use anyhow::{Context, Result, bail, ensure};
use preempt::error::LaunchError;
use preempt::policy::{
    DynamicPriority, FairShare, Ffs, Fifo, Hpf, ShortestRemaining, StaticPriority,
};
use preempt::pool::{Class, Pool, Task};
use preempt::{
    Buffer, Error, Handle, LaunchReport, Opaque, Preemption, Program, ProgramBuilder, Scheduler,
    Stream,
};
use preempt_microkernels::{fails, hash_in_place, hash_whole, hash_yielding, hashed};
use preempt_test_kit::storm::Chaos;
use preempt_test_kit::{Random, resident_bytes};
use serde_json::{Value, json};

use super::{Bench, Experiment, KERNELS, Outcome, Rows, random_time};
use crate::progress::Progress;

/// The time of a run, and of one with `--quick`. It is as long on each device, and shorter than a run there may be.
const LENGTH: Duration = Duration::from_secs(450);
const QUICK_LENGTH: Duration = Duration::from_secs(2);

/// Rows: equal parts of the run.
const PARTS: u32 = 10;
const QUICK_PARTS: u32 = 2;

/// Threads with a stream each, and operations of a thread until all results are looked at and the scheduler is dropped.
const THREADS: u32 = 4;
const OPERATIONS: u32 = 150;

/// One scheduler in this many is dropped while its operations are under way, and one is followed by a pool with tasks.
const DROPPED: u32 = 4;
const POOLED: u32 = 5;
const TASKS: u32 = 30;

/// Without an operation for so long, something hangs.
const STUCK: Duration = Duration::from_secs(60);

/// Different elements of an array. The 32 elements of a block-task are equal, and those of the next block-tasks differ, so one
/// block-task in the place of another shows.
const VALUES: usize = 61;

/// Elements of a buffer: few enough that the CPU device plays a launch in a millisecond.
const ELEMENTS: u32 = 2_000;
const GPU_ELEMENTS: u32 = 300_000;

/// Rounds of a thread, at most.
const ROUNDS: u32 = 60;
const GPU_ROUNDS: u32 = 3_000;

/// Bytes by which memory may differ at the end, because allocators divide it differently each time.
const SLACK: f64 = 48e6;

/// The experiment `soak`.
#[derive(Debug)]
pub struct Soak;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
Four threads do what applications do, at random: they launch kernels that hash an array, with yield
points, with a checkpoint, or with neither, in each form of preemption; they record programs of
them, launch these, arm them and launch them in time, too late or not at all; they upload, copy,
fill and download; they put opaque work between; they cancel, and change priorities, weights and
latency limits. On the CPU device some kernels panic, since a panic on a GPU ends its context. After
150 operations of each thread all arrays are downloaded and compared with the host's, and the
scheduler is dropped; one in four is dropped at once, while operations are under way. The next one
has another policy. One in five is followed by a pool with tasks, some of which are cancelled.

- wrong: whether an array was not to the bit what the host computed, or an operation or a task of a
  pool ended with an error that it should not have. Anything but 0 is a bug, and ends the run. So
  does a minute in which no operation ends.
- operations, programs, armed, cancelled, panics, yields, dropped: what happened. `armed` are
  launches that began without a call of the driver, `dropped` those that a scheduler's drop ended.
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

/// What an array is to be: its values, in turn for each block.
type Values = [u32; VALUES];

/// An array on the device, and what it is to be there. `None` after a cancel or a panic.
struct Array {
    buffer: Buffer<u32>,
    expected: Option<Values>,
}

/// The value of an element.
fn value_of(values: &Values, element: usize) -> u32 {
    values[element / 32 % VALUES]
}

/// An array of these values.
fn elements(values: &Values, len: u32) -> Vec<u32> {
    (0..len as usize).map(|element| value_of(values, element)).collect()
}

/// Operations of all threads, for the watchdog. Relaxed throughout: only whether it changes counts.
static STEPS: AtomicU64 = AtomicU64::new(0);

/// A program, and the hashes that it makes.
struct Recorded {
    program: Program,
    steps: Vec<(u32, u32)>,
}

/// One thread's part of a scheduler.
struct Worker {
    scheduler: Scheduler,
    stream: Stream,
    arrays: [Array; 3],
    handles: Vec<Handle<LaunchReport>>,
    random: Random,
    /// Elements of an array, and rounds of a thread at most.
    size: (u32, u32),
    may_panic: bool,
    counts: Counts,
}

/// Whether an operation was cancelled.
fn is_cancelled(error: &Error) -> bool {
    matches!(error, Error::Launch(LaunchError::Cancelled { .. }))
}

/// Whether an operation was ended by the drop of its scheduler.
fn is_dropped(error: &Error) -> bool {
    matches!(error, Error::Launch(LaunchError::SchedulerDropped { .. }))
}

impl Worker {
    fn new(bench: &Bench, scheduler: &Scheduler, random: Random) -> Result<Worker> {
        let size = match bench.gpu {
            None => (ELEMENTS, ROUNDS),
            Some(_) => (GPU_ELEMENTS, GPU_ROUNDS),
        };
        let array = || {
            let buffer = scheduler.zeroed(size.0 as usize)?;
            Ok::<_, Error>(Array { buffer, expected: Some([0; VALUES]) })
        };
        let mut worker = Worker {
            arrays: [array()?, array()?, array()?],
            stream: scheduler.stream(0),
            scheduler: scheduler.clone(),
            handles: Vec::new(),
            random,
            size,
            may_panic: bench.gpu.is_none(),
            counts: Counts::default(),
        };
        worker.stream.set_priority(worker.random.below(4) as i32);
        Ok(worker)
    }

    fn hashing(&mut self) -> (u32, u32) {
        (1 + self.random.below(self.size.1), self.random.bits() as u32)
    }

    fn form(&mut self) -> Preemption {
        let forms = [Preemption::Auto, Preemption::Preemptible, Preemption::Plain];
        forms[self.random.below(3) as usize]
    }

    /// Two different arrays, the second of which is written.
    fn two(&mut self) -> (usize, usize) {
        let from = self.random.below(3) as usize;
        (from, (from + 1 + self.random.below(2) as usize) % 3)
    }

    /// One operation. What it is to have done is known afterwards.
    fn step(&mut self) -> Result<()> {
        self.counts.operations += 1;
        STEPS.fetch_add(1, Relaxed);
        let (from, to) = self.two();
        match self.random.below(20) {
            0..5 => self.hash(from, to)?,
            5..7 => self.hash_in_place(to)?,
            7 => {
                self.arrays[to].expected = None;
                self.renew(to)?;
            }
            8 => {
                let [from, to] = disjoint(&mut self.arrays, from, to);
                self.stream.copy_buffer(&from.buffer, &mut to.buffer)?.detach();
                to.expected = from.expected;
            }
            9 => {
                let value = self.random.bits() as u32;
                let array = &mut self.arrays[to];
                self.stream.fill(&mut array.buffer, value)?.detach();
                array.expected = Some([value; VALUES]);
            }
            10 => self.look(from)?,
            11..14 => self.program(to)?,
            14 => {
                let opaque = Opaque::new("nothing").reads(&self.arrays[from].buffer);
                self.stream.opaque(opaque, |_| Ok(()))?.detach();
            }
            15 => self.cancel(from, to)?,
            16 => self.stream.set_priority(self.random.below(4) as i32),
            17 => self.stream.set_weight(1 + self.random.below(4)),
            18 => {
                let limits = [None, Some(Duration::ZERO), Some(Duration::from_micros(50))];
                self.stream.set_latency_limit(limits[self.random.below(3) as usize]);
            }
            _ if self.may_panic => self.panic(to)?,
            _ => self.await_some()?,
        }
        if self.handles.len() > 30 {
            self.await_some()?;
        }
        Ok(())
    }

    fn hash(&mut self, from: usize, to: usize) -> Result<()> {
        let ((rounds, key), form) = (self.hashing(), self.form());
        let threads = self.size.0;
        let [from, to] = disjoint(&mut self.arrays, from, to);
        let call = match self.random.below(2) {
            0 => hash_yielding(rounds, key, &from.buffer, &mut to.buffer).threads(threads),
            _ => hash_whole(rounds, key, &from.buffer, &mut to.buffer).threads(threads),
        };
        self.handles.push(self.stream.launch(call.preemption(form))?);
        to.expected = from.after(&[(rounds, key)]);
        Ok(())
    }

    fn hash_in_place(&mut self, to: usize) -> Result<()> {
        let ((rounds, key), form) = (self.hashing(), self.form());
        let array = &mut self.arrays[to];
        let call = hash_in_place(rounds, key, &mut array.buffer).threads(self.size.0);
        self.handles.push(self.stream.launch(call.preemption(form))?);
        array.expected = array.after(&[(rounds, key)]);
        Ok(())
    }

    /// Records a program that hashes an array in place, and launches it.
    fn program(&mut self, to: usize) -> Result<()> {
        self.counts.programs += 1;
        let steps: Vec<_> = (0..1 + self.random.below(4)).map(|_| self.hashing()).collect();
        let (form, threads) = (self.form(), self.size.0);
        let array = &mut self.arrays[to];
        let record = |program: &mut ProgramBuilder<'_>| {
            program.preemption(form);
            for &(rounds, key) in &steps {
                program.launch(hash_in_place(rounds, key, &mut array.buffer).threads(threads))?;
            }
            Ok(())
        };
        let program = self.stream.program("hashes", record)?;
        let mut recorded = Recorded { program, steps };
        for _ in 0..1 + self.random.below(3) {
            self.launch_program(&mut recorded, to)?;
        }
        Ok(())
    }

    fn launch_program(&mut self, recorded: &mut Recorded, to: usize) -> Result<()> {
        let program = &mut recorded.program;
        if self.random.below(2) == 0 {
            // Until then the array is in use, and the program is armed once it is not.
            self.stream.synchronize()?;
            program.arm()?;
            // Beyond the millisecond that it stays armed for, too.
            thread::sleep(random_time(&mut self.random, Duration::from_micros(1400)));
        }
        if self.random.below(4) == 0 {
            // Not launched. It is disarmed by the next operation.
            return Ok(());
        }
        self.handles.push(program.launch()?);
        let array = &mut self.arrays[to];
        array.expected = array.after(&recorded.steps);
        Ok(())
    }

    /// Launches, and cancels at once or soon.
    fn cancel(&mut self, from: usize, to: usize) -> Result<()> {
        let (rounds, key) = self.hashing();
        let [source, target] = disjoint(&mut self.arrays, from, to);
        let call = hash_yielding(rounds, key, &source.buffer, &mut target.buffer);
        let call = call.threads(self.size.0);
        let handle = self.stream.launch(call.preemption(Preemption::Preemptible))?;
        if self.random.below(2) == 0 {
            thread::sleep(random_time(&mut self.random, Duration::from_micros(300)));
        }
        handle.cancel();
        self.arrays[to].expected = match handle.wait() {
            Ok(report) => {
                self.counts.take(report);
                self.arrays[from].after(&[(rounds, key)])
            }
            Err(error) if is_cancelled(&error) => {
                self.counts.cancelled += 1;
                None
            }
            Err(error) => return Err(error.into()),
        };
        self.renew(to)
    }

    /// A kernel that panics loses what it was to write.
    fn panic(&mut self, to: usize) -> Result<()> {
        let at = self.random.below(self.size.0);
        let call = fails(at, &mut self.arrays[to].buffer).threads(self.size.0);
        match self.stream.launch(call)?.wait() {
            Err(Error::Launch(LaunchError::KernelFailed { .. })) => self.counts.panics += 1,
            other => bail!("a kernel that panics ended with {other:?}"),
        }
        self.arrays[to].expected = None;
        self.renew(to)
    }

    /// Uploads anew what is not known.
    fn renew(&mut self, to: usize) -> Result<()> {
        let array = &mut self.arrays[to];
        if array.expected.is_none() {
            let values = std::array::from_fn(|_| self.random.bits() as u32);
            array.expected = Some(values);
            self.stream.upload(elements(&values, self.size.0), &mut array.buffer)?.detach();
        }
        Ok(())
    }

    /// Downloads an array, and compares.
    fn look(&self, at: usize) -> Result<()> {
        let Array { buffer, expected } = &self.arrays[at];
        let found = self.stream.download(buffer)?.wait()?;
        let expected = expected.as_ref().context("renewed after each loss")?;
        let mut all = found.iter().enumerate();
        let wrong = all.find(|&(element, &found)| found != value_of(expected, element));
        ensure!(wrong.is_none(), "array {at}: element {wrong:?} is wrong");
        Ok(())
    }

    fn await_some(&mut self) -> Result<()> {
        for handle in self.handles.drain(..) {
            self.counts.take(handle.wait()?);
        }
        Ok(())
    }

    /// All operations, and a look at all arrays; or, if the scheduler is to be dropped, what is left of the handles.
    fn run(mut self, looks: bool) -> Result<(Counts, Vec<Handle<LaunchReport>>)> {
        for _ in 0..OPERATIONS {
            self.step()?;
        }
        if !looks {
            return Ok((self.counts, mem::take(&mut self.handles)));
        }
        self.await_some()?;
        (0..3).try_for_each(|at| self.look(at))?;
        self.scheduler.synchronize()?;
        Ok((self.counts, Vec::new()))
    }
}

impl Array {
    /// Its elements after these hashes.
    fn after(&self, steps: &[(u32, u32)]) -> Option<Values> {
        let hash = |x| steps.iter().fold(x, |x, &(rounds, key)| hashed(x, rounds, key));
        Some(self.expected?.map(hash))
    }
}

/// An array, and another one to write.
fn disjoint(arrays: &mut [Array; 3], from: usize, to: usize) -> [&mut Array; 2] {
    arrays.get_disjoint_mut([from, to]).expect("two of three")
}

/// The scheduler of this number, each with another policy.
fn scheduler(bench: &Bench, number: u32, seed: u64) -> Result<Scheduler> {
    let device = bench.device.clone().context("this suite is not simulated")?;
    let builder = Scheduler::builder().device(device).kernels(KERNELS);
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
    let workers = (0..THREADS)
        .map(|thread| Worker::new(bench, &scheduler, Random(seed ^ u64::from(thread) << 32)));
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
        schedulers, operations, programs, armed, cancelled, panics, yields, tasks, ..
    } = counts;
    let counts = [schedulers, operations, programs, armed, cancelled, panics, yields, tasks];
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
