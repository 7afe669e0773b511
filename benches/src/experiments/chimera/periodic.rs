//! A periodic task with a deadline beside each program (sections 4.1 and 4.2 of the paper).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use preempt::error::LaunchError;
use preempt::policy::Priority;
use preempt::{Buffer, Error, Handle, LaunchReport, Preemption, Stream};
use preempt_microkernels::{Held, hold};
use preempt_report::percentile;
use preempt_workloads::with_checkpoints;

use super::site::{Decider, Rerun, Site};
use crate::experiments::Bench;
use crate::experiments::corun::PreparedProgram;
use crate::progress::Progress;
use crate::stopped::Stopped;

/// Microseconds that the task has half of the SMs, and from one of its launches to the next, as in the paper.
const TASK: Duration = Duration::from_micros(200);
const PERIOD: Duration = Duration::from_millis(1);
/// How many times longer both are on the CPU device, whose SMs share processors with the threads that launch.
const CPU_STRETCH: u32 = 20;

/// The limit of the summary, and the limits of figure 8 with two more. The paper has 15 µs in its place: on an H200, to stop all
/// blocks of half of the SMs as soon as possible takes 16 to 19, from the arrival of the signal to the last one out.
pub const LIMIT: Duration = Duration::from_micros(30);
const LIMITS: [u64; 6] = [5, 10, 15, 20, 30, 50];
/// The longest of them, which shows whether all kernels of the suite can keep to any.
const LONGEST: Duration = Duration::from_micros(50);

/// Periods of each arm and program, at least: 40 runs of a program of 5 ms, which tell a throughput to a percent. With
/// [`LIMIT`] and with [`LONGEST`] as many as tell 1 % of violations of a program, by ten, and as make 10^4 samples of ten programs.
const PERIODS: u32 = 200;
const LIMIT_PERIODS: u32 = 1000;
const QUICK_PERIODS: u32 = 3;
/// Parts that each arm's periods come in: the arms take turns.
const ROUNDS: u32 = 2;
/// The time that half of the SMs are held, by that which is measured beside it: enough for two runs of a program that take
/// longer than that.
const HELD: u32 = 20;
/// Periods of the task alone.
const FLOOR_PERIODS: u32 = 2000;
const QUICK_FLOOR_PERIODS: u32 = 10;

/// Microseconds that a task may be later than the limit and its floor allow, for what the host adds.
const SLACK: Duration = Duration::from_micros(5);
/// The share of the floor's samples that are no later than the floor.
const FLOOR_SHARE: f64 = 0.998;

/// What blocks do that have to leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arm {
    /// They end their block-task.
    Drain,
    /// They leave at the next yield point, where the program has any.
    Flush,
    /// They leave at the next checkpoint, where the program has any.
    Switch,
    /// The one of these that costs least and keeps the limit.
    Choice(Duration),
}

impl Arm {
    /// All arms, in order.
    pub fn all() -> impl Iterator<Item = Arm> {
        let limits = LIMITS.into_iter().map(|limit| Arm::Choice(Duration::from_micros(limit)));
        [Arm::Drain, Arm::Flush, Arm::Switch].into_iter().chain(limits)
    }

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Arm::Drain => "drain",
            Arm::Flush => "flush",
            Arm::Switch => "switch",
            Arm::Choice(_) => "choice",
        }
    }

    /// The limit that the task's deadline has: that of the summary for arms without one.
    pub fn limit(self) -> Duration {
        if let Arm::Choice(limit) = self { limit } else { LIMIT }
    }

    /// Whether its violations are counted to a part of a percent.
    fn is_counted(self) -> bool {
        [Arm::Choice(LIMIT), Arm::Choice(LONGEST)].contains(&self)
    }

    /// What the task's stream is told.
    fn latency_limit(self) -> Option<Duration> {
        match self {
            Arm::Drain => Some(Duration::MAX),
            Arm::Flush | Arm::Switch => None,
            Arm::Choice(limit) => Some(limit),
        }
    }
}

/// Where a program's blocks can leave a block-task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// In one kernel at least, at yield points.
    YieldPoints,
    /// At checkpoints.
    Checkpoints,
    /// Nowhere: they drain.
    Neither,
}

impl Form {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Form::YieldPoints => "yield points",
            Form::Checkpoints => "checkpoints",
            Form::Neither => "neither",
        }
    }
}

/// What a program and the task did in some time.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Whole runs of the program, and how long they took.
    pub runs: usize,
    pub took: Duration,
    /// From each launch of the task to its end, less its length; of one that was killed, until it was out.
    pub latencies: Vec<Duration>,
    /// For each of them, the launch of the program that ran when the task came, as its place among the program's launches.
    pub beside: Vec<usize>,
    /// Tasks that were killed at their deadline.
    pub late: u64,
    /// How long the task held its SMs, over all its launches.
    pub held: Duration,
    pub stops: Stopped,
}

/// A program in one arm.
pub struct Row {
    pub program: &'static str,
    pub arm: Arm,
    /// The kernels of the program's launches.
    pub kernels: Vec<&'static str>,
    /// `None` if there is no program of the form that the arm needs.
    pub found: Option<Found>,
    pub form: Form,
    /// The program alone, and beside a task that holds half of the SMs all the time.
    pub alone: Rate,
    pub beside_half: Rate,
    /// The form with checkpoints alone, if there is one.
    alone_saving: Rate,
}

/// Runs in some time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    runs: usize,
    took: Duration,
}

/// All rows, and what they are compared with.
pub struct Periodic {
    pub rows: Vec<Row>,
    /// From a launch of the task on an idle device to its end, less its length: the share of [`FLOOR_SHARE`].
    pub floor: Duration,
    pub period: Duration,
    pub task: Duration,
    /// The part of the SMs that the task takes.
    pub part: f64,
    /// The longest stop with [`LIMIT`], on the device's clock.
    pub longest: Duration,
    /// Blocks of the task that left because it was killed.
    pub killed: u64,
}

/// The task: where it runs, and for how long.
struct Task {
    stream: Stream,
    held: Buffer<Held>,
    /// Threads of a block.
    block: u32,
    length: Duration,
    period: Duration,
    floor: Duration,
}

/// Measures all arms of all programs.
///
/// # Errors
///
/// Errors of the scheduler. Wrong results are counted.
pub fn periodic(bench: &Bench, site: &mut Site, programs: &[PreparedProgram]) -> Result<Periodic> {
    let mut task = Task::new(bench, site)?;
    site.choose(Decider::TaskFirst)?;
    task.floor = task.alone(bench.amount(QUICK_FLOOR_PERIODS, FLOOR_PERIODS))?;
    // Signals go by the same path in all arms, also in those ahead of the first one with a limit.
    task.stream.set_latency_limit(Some(LIMIT));
    let progress = Progress::new("programs beside a periodic task", programs.len() as u64);
    let mut rows = Vec::new();
    for program in programs {
        rows.extend(beside(bench, site, &mut task, program)?);
        progress.step();
    }
    let stops = site.scheduler.stats().stops;
    // Signals have the same for a limit that is up to an eighth shorter, and stops count with the shortest.
    let is_it = |limit: Duration| limit <= LIMIT && limit >= LIMIT * 7 / 8;
    let longest = stops.limits.iter().find(|stops| is_it(stops.limit));
    let sms = site.scheduler.device().properties().sms;
    let held = task.held()?;
    Ok(Periodic {
        rows,
        floor: task.floor,
        period: task.period,
        task: task.length,
        part: f64::from(sms / 2) / f64::from(sms),
        longest: longest.map(|stops| stops.longest).unwrap_or_default(),
        killed: held.begun - held.ended,
    })
}

/// A program beside the task, in all arms.
fn beside(
    bench: &Bench,
    site: &mut Site,
    task: &mut Task,
    program: &PreparedProgram,
) -> Result<Vec<Row>> {
    let size = bench.sizes()[0];
    let switched = with_checkpoints(program.name);
    let switched = switched.map(|definition| site.prepare(definition, size)).transpose()?;
    let has_yield_points = program.steps().iter().any(|call| call.kernel().yields);
    let form = if has_yield_points { Form::YieldPoints } else { Form::Neither };
    let form_of = |arm| match (arm, &switched) {
        (Arm::Switch, None) => None,
        (Arm::Switch, Some(switched)) => Some((switched, Form::Checkpoints)),
        // A kernel has yield points or a checkpoint. To stop at the latter loses less.
        (Arm::Choice(_), Some(switched)) => Some((switched, Form::Checkpoints)),
        _ => Some((program, form)),
    };
    let stream = site.stream();
    let run = |site: &mut Site, program: &PreparedProgram, runs: usize, arm: &str| {
        let mut rerun = Rerun::new(&stream, program.steps(), Preemption::Preemptible);
        let took = rerun.until(runs)?;
        let reports = std::mem::take(&mut rerun.reports);
        site.checks.count(program, &reports);
        site.checks.check(program, arm)?;
        anyhow::Ok(took)
    };
    // The first run of a process is slow.
    run(site, program, 1, "alone")?;
    let once = run(site, program, 1, "alone")?.max(Duration::from_micros(1));
    if let Some(saving) = &switched {
        run(site, saving, 1, "alone")?;
    }
    let [mut alone, mut alone_saving, mut beside_half] = [Rate::default(); 3];
    let mut found: Vec<(Arm, Found)> = Arm::all().map(|arm| (arm, Found::default())).collect();
    let rounds = bench.amount(1, ROUNDS);
    for _ in 0..rounds {
        let period = task.period;
        let runs_in = |periods: u32| {
            let window = period * periods.div_ceil(rounds);
            window.div_duration_f64(once).ceil() as usize
        };
        let runs = runs_in(bench.amount(QUICK_PERIODS, PERIODS));
        program.poison()?;
        alone.add(runs, run(site, program, runs, "alone")?);
        if let Some(saving) = &switched {
            saving.poison()?;
            alone_saving.add(runs, run(site, saving, runs, "alone")?);
        }
        program.poison()?;
        let window = period * bench.amount(QUICK_PERIODS, PERIODS) / rounds;
        let mut rerun = Rerun::new(&stream, program.steps(), Preemption::Preemptible);
        // The task's blocks fill half of the SMs only where the program has the others: on an idle device they would lie on
        // all SMs, each of which then has its memory divided as the task's kernel has it.
        rerun.go_on(usize::MAX)?;
        let half = task.hold_on(window)?;
        rerun.finish()?;
        // For as long, however few runs that is.
        let (runs, took) = rerun.during(window)?;
        let reports = std::mem::take(&mut rerun.reports);
        site.checks.count(program, &reports);
        site.checks.check(program, "beside half")?;
        beside_half.add(runs, took);
        task.kill(&half)?;
        for (arm, found) in &mut found {
            let Some((program, _)) = form_of(*arm) else { continue };
            let periods = if arm.is_counted() { LIMIT_PERIODS } else { PERIODS };
            let runs = runs_in(bench.amount(QUICK_PERIODS, periods));
            program.poison()?;
            round(site, task, &stream, program, *arm, runs, found)?;
            site.checks.check(program, arm.name())?;
        }
    }
    let rows = found.into_iter().map(|(arm, found)| {
        let of_arm = form_of(arm);
        Row {
            program: program.name,
            arm,
            kernels: of_arm.map_or_else(Vec::new, |(program, _)| {
                program.steps().iter().map(|call| call.kernel().name).collect()
            }),
            found: of_arm.is_some().then_some(found),
            form: of_arm.map_or(form, |(_, form)| form),
            alone,
            beside_half,
            alone_saving,
        }
    });
    Ok(rows.collect())
}

/// Runs of a program beside the task.
fn round(
    site: &mut Site,
    task: &mut Task,
    stream: &Stream,
    program: &PreparedProgram,
    arm: Arm,
    runs: usize,
    found: &mut Found,
) -> Result<()> {
    site.scheduler.synchronize()?;
    task.stream.set_latency_limit(arm.latency_limit());
    let stops = Stopped::of(&site.scheduler);
    let held_before = task.held()?;
    let is_over = AtomicBool::new(false);
    let mut rerun = Rerun::new(stream, program.steps(), Preemption::Preemptible);
    let over = rerun.over();
    // Launches run one after the other, and are over in this order.
    let running = || over.load(Relaxed) % program.steps().len();
    let (took, ticked) = thread::scope(|scope| {
        let batch = scope.spawn(|| {
            let took = rerun.until(runs);
            // Relaxed: it says no more than that.
            is_over.store(true, Relaxed);
            took
        });
        // Once at least, also if a run took less time than was expected of all of them.
        let is_over = |ticks| ticks > 0 && is_over.load(Relaxed);
        let ticked = task.tick(arm.limit(), is_over, running, found);
        let took = batch.join().map_err(|_| anyhow!("the thread of {} panicked", program.name));
        (took, ticked)
    });
    ticked?;
    found.took += took??;
    found.runs += runs;
    let held = task.held()?;
    let nanos = held.nanos - held_before.nanos;
    found.held += Duration::from_nanos(nanos) / task.held.len() as u32;
    let mut stopped = Stopped::of(&site.scheduler).since(&stops);
    // Those of the task itself, when it was killed, are none of the program's.
    let ended = held.ended - held_before.ended;
    let dropped = held.begun - held_before.begun - ended;
    stopped.requeued = stopped.requeued.saturating_sub(dropped);
    let in_vain = nanos.saturating_sub(ended * task.length.as_nanos() as u64);
    stopped.lost = stopped.lost.saturating_sub(Duration::from_nanos(in_vain));
    found.stops.add(&stopped);
    let reports = std::mem::take(&mut rerun.reports);
    site.checks.count(program, &reports);
    Ok(())
}

impl Task {
    fn new(bench: &Bench, site: &Site) -> Result<Task> {
        let sms = site.scheduler.device().properties().sms;
        let (block, stretch) = if bench.gpu.is_some() { (1024, 1) } else { (1, CPU_STRETCH) };
        let mut task = Task {
            stream: site.scheduler.stream(Priority(1)),
            held: site.scheduler.zeroed(sms as usize)?,
            block,
            length: TASK * stretch,
            period: PERIOD * stretch,
            floor: Duration::ZERO,
        };
        site.choose(Decider::Oldest)?;
        // The SMs that all blocks need, as the scheduler says.
        let need = |task: &mut Task| {
            site.notes.take();
            task.launch(Duration::ZERO)?.wait()?;
            anyhow::Ok(site.notes.take().first().map_or(sms, |note| note.need.max(1)))
        };
        // As many blocks as fill half of the SMs, and find room there beside what else lies on an SM.
        let each = sms.div_ceil(need(&mut task)?);
        let mut blocks = sms / 2 * each;
        while blocks > 1 {
            task.held = site.scheduler.zeroed(blocks as usize)?;
            if need(&mut task)? <= sms / 2 {
                break;
            }
            blocks -= 1;
        }
        Ok(task)
    }

    /// What its block-tasks have held so far, in sum.
    fn held(&self) -> Result<Held> {
        let places = self.stream.download(&self.held)?.wait()?;
        Ok(places.iter().fold(Held::default(), |sum, place| Held {
            nanos: sum.nanos + place.nanos,
            begun: sum.begun + place.begun,
            ended: sum.ended + place.ended,
        }))
    }

    fn launch(&mut self, length: Duration) -> Result<Handle<LaunchReport>> {
        let blocks = self.held.len() as u32;
        let call = hold(length.as_nanos() as u64, &mut self.held).grid(blocks).block(self.block);
        // A plain grid has all SMs, and its length is an argument, which nothing that was learned of others tells.
        Ok(self.stream.launch(call.preemption(Preemption::Preemptible))?)
    }

    /// Takes half of the SMs until it is killed, or for many times as long as what is to be beside it.
    fn hold_on(&mut self, window: Duration) -> Result<Handle<LaunchReport>> {
        let handle = self.launch(HELD * window)?;
        // It has them when its blocks have run for a while.
        thread::sleep(self.period);
        Ok(handle)
    }

    fn kill(&self, task: &Handle<LaunchReport>) -> Result<()> {
        task.cancel();
        match task.wait() {
            // It may have ended meanwhile.
            Ok(_) | Err(Error::Launch(LaunchError::Cancelled { .. })) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The floor: launches on an otherwise idle device, of which few are later.
    fn alone(&mut self, periods: u32) -> Result<Duration> {
        let mut found = Found::default();
        self.floor = self.period;
        self.tick(Duration::ZERO, |ticks| ticks >= periods, || 0, &mut found)?;
        found.latencies.sort_unstable();
        Ok(percentile(&found.latencies, FLOOR_SHARE).unwrap_or_default())
    }

    /// Launches the task each period until it is over, and kills each that misses its deadline.
    fn tick(
        &mut self,
        limit: Duration,
        is_over: impl Fn(u32) -> bool,
        running: impl Fn() -> usize,
        found: &mut Found,
    ) -> Result<()> {
        let deadline = self.length + self.floor + limit + SLACK;
        let (mut next, mut ticks) = (Instant::now() + self.period, 0);
        loop {
            while Instant::now() < next {
                if is_over(ticks) {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            let (start, beside) = (Instant::now(), running());
            let task = self.launch(self.length)?;
            match task.wait_timeout(deadline.saturating_sub(start.elapsed())) {
                Some(report) => drop(report?),
                None => {
                    found.late += 1;
                    self.kill(&task)?;
                }
            }
            let latency = start.elapsed().saturating_sub(self.length);
            found.latencies.push(latency);
            found.beside.push(beside);
            ticks += 1;
            next += self.period;
            // A task that ended behind the next period's begin skips that one.
            while next < Instant::now() {
                next += self.period;
            }
        }
    }
}

impl Rate {
    fn add(&mut self, runs: usize, took: Duration) {
        self.runs += runs;
        self.took += took;
    }

    fn per_second(&self) -> Option<f64> {
        (!self.took.is_zero()).then(|| self.runs as f64 / self.took.as_secs_f64())
    }
}

/// Tasks that came while one kernel of a program ran.
#[derive(Debug, Default)]
pub struct Beside {
    pub kernel: &'static str,
    pub latencies: Vec<Duration>,
}

impl Found {
    /// Tasks that were later than the floor and [`SLACK`].
    pub fn beyond(&self, floor: Duration) -> u64 {
        beyond(&self.latencies, floor)
    }
}

impl Beside {
    /// As [`Found::beyond`].
    pub fn beyond(&self, floor: Duration) -> u64 {
        beyond(&self.latencies, floor)
    }
}

fn beyond(latencies: &[Duration], floor: Duration) -> u64 {
    latencies.iter().filter(|&&latency| latency > floor + SLACK).count() as u64
}

impl Row {
    /// The tasks by the kernel that ran when they came, in the order of the program's launches.
    pub fn by_kernel(&self) -> Vec<Beside> {
        let mut by_kernel: Vec<Beside> = Vec::new();
        let found = self.found.iter().flat_map(|found| found.beside.iter().zip(&found.latencies));
        for (place, &name) in self.kernels.iter().enumerate() {
            let own = found.clone().filter(|&(&beside, _)| beside == place);
            let own = own.map(|(_, &latency)| latency);
            match by_kernel.iter_mut().find(|of| of.kernel == name) {
                Some(of) => of.latencies.extend(own),
                None => by_kernel.push(Beside { kernel: name, latencies: own.collect() }),
            }
        }
        by_kernel
    }

    /// How much longer the program takes with checkpoints than without, when nothing preempts it: a ratio, for arms that run that
    /// form.
    pub fn cost_of_checkpoints(&self) -> Option<f64> {
        (self.form == Form::Checkpoints).then_some(())?;
        Some(self.alone.per_second()? / self.alone_saving.per_second()?)
    }

    /// The throughput lost, where an SM that the task has costs the program its even part of the rate alone.
    pub fn lost(&self, periodic: &Periodic) -> Option<f64> {
        let rate = self.alone.per_second()?;
        lost(self.found.as_ref()?, periodic.task, [rate, rate * (1.0 - periodic.part)])
    }

    /// The same, where the SMs cost the program what it is slower without them all the time.
    pub fn lost_beside_half(&self, periodic: &Periodic) -> Option<f64> {
        let rates = [self.alone.per_second()?, self.beside_half.per_second()?];
        lost(self.found.as_ref()?, periodic.task, rates)
    }
}

/// The throughput lost, from runs in a second alone and without the task's SMs. A device that loses these SMs at no cost
/// loses nothing.
fn lost(found: &Found, task: Duration, [alone, without]: [f64; 2]) -> Option<f64> {
    let asked = task.as_secs_f64() * found.latencies.len() as f64;
    let took = found.took.as_secs_f64();
    let ideal = alone * (took - asked) + without * asked;
    // What the program did on SMs that the task did not take, or that it was killed on, does not count.
    let gained = (alone - without) * (asked - found.held.as_secs_f64());
    (ideal > 0.0).then(|| 1.0 - (found.runs as f64 - gained) / ideal)
}
