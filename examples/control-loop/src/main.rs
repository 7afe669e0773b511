//! A control loop with a deadline in each period, beside batch work that fills the device.
//!
//! Pendulums stand on their ends, each on a cart. In each period the loop uploads their states, launches a feedback, and
//! downloads the accelerations that keep them upright. Meanwhile random walks run, whose block-tasks take far longer than a
//! period has time. The rows differ in what the walks' blocks do when the loop takes their SMs.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::{Parser, ValueEnum};
use control_loop_kernels::{State, THREADS, command_for, end, feedback, walk};
use preempt::policy::StaticPriority;
use preempt::prelude::*;
use preempt::stats::Stops;
use preempt::{CpuLayout, Preemption, SignalPath};

/// The kernels' PTX.
const KERNELS: preempt::Module = preempt::include_kernels!();

/// Runs a control loop with a deadline beside batch work.
#[derive(Parser, Debug)]
#[command(name = "control-loop", version)]
struct Args {
    /// The device to run on.
    #[arg(long, value_enum, default_value_t = DeviceKind::Cpu)]
    device: DeviceKind,
    /// A few periods: what the tests run. The numbers mean little.
    #[arg(long)]
    quick: bool,
}

/// What the kernels run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum DeviceKind {
    /// An emulated GPU on this machine's processors.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

/// The times of the loop and of the walks, which differ by the device.
#[derive(Clone, Copy, Debug)]
struct Setting {
    /// From one round of the loop to the next, and from its begin to when its answer is due.
    period: Duration,
    deadline: Duration,
    /// The time that blocks have to leave.
    limit: Duration,
    /// Rounds of each row.
    rounds: u32,
    /// Yield points in a block-task of the walks, and block-tasks of a launch for each SM.
    strides: u32,
    tasks_per_sm: u32,
}

impl DeviceKind {
    fn setting(self, quick: bool) -> Setting {
        let ms = Duration::from_millis;
        match self {
            // A fifth of the rounds, as far apart as threads that share processors with SMs can keep to.
            DeviceKind::Cpu => Setting {
                period: ms(20),
                deadline: ms(10),
                limit: ms(2),
                rounds: if quick { 10 } else { 200 },
                strides: 500,
                tasks_per_sm: 8,
            },
            DeviceKind::Cuda => Setting {
                period: ms(1),
                deadline: Duration::from_micros(200),
                limit: Duration::from_micros(15),
                rounds: if quick { 100 } else { 5000 },
                strides: 1000,
                tasks_per_sm: 256,
            },
        }
    }

    /// A scheduler that gives the loop the SMs that its blocks fill, and leaves the rest to the walks.
    fn scheduler(self) -> Result<Scheduler> {
        let builder = Scheduler::builder()
            .policy(StaticPriority::packed())
            .kernels(KERNELS)
            // The walks can always be stopped.
            .preemption(Preemption::Preemptible);
        Ok(match self {
            DeviceKind::Cpu => {
                let processors = thread::available_parallelism().map_or(1, usize::from);
                let layout = CpuLayout::sms(processors.clamp(2, 8) as u32);
                builder.device(Device::cpu_with(layout)?).build()?
            }
            // By the proxy, the GPU knows when a signal has arrived, and counts the limit from there.
            DeviceKind::Cuda => builder
                .device(Device::cuda(0)?)
                .signal_path(SignalPath::Proxy)
                .wait_spin(Duration::from_millis(1))
                .poller_spin(Duration::from_secs(1))
                .build()?,
        })
    }
}

/// Pendulums, and the feedback that keeps them upright: poles at -5 and -6 per second.
const PENDULUMS: usize = 256;
const GRAVITY_OVER_LENGTH: f32 = 9.81;
const GAIN: State = State { angle: 30.0 + GRAVITY_OVER_LENGTH, speed: 11.0 };

/// A row: how it is told, and the limit of the loop's stream.
struct Row {
    name: &'static str,
    limit: fn(&Setting) -> Option<Duration>,
}

const ROWS: [Row; 3] = [
    Row { name: "leave at the next yield point", limit: |_| None },
    Row { name: "end the block-task", limit: |_| Some(Duration::MAX) },
    Row { name: "by cost, within the limit", limit: |setting| Some(setting.limit) },
];

/// What the loop and the walks did in a row.
struct Outcome {
    /// From the begin of each round to its answer, sorted.
    latencies: Vec<Duration>,
    missed: usize,
    /// The largest angle in the last round, in radians.
    angle: f32,
    /// Block-tasks of the walks, and the time that they took.
    tasks: u64,
    took: Duration,
    stops: Stops,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("control-loop: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let setting = args.device.setting(args.quick);
    // Not `println!`, which panics where the reader has closed the pipe.
    let mut stdout = io::stdout();
    writeln!(
        stdout,
        "a round every {:?}, due after {:?}; blocks have {:?} to leave\n",
        setting.period, setting.deadline, setting.limit
    )?;
    writeln!(
        stdout,
        "{:<30} {:>10} {:>10} {:>7} {:>10} {:>9} {:>8} {:>12}",
        "blocks", "p50", "p99", "missed", "violations", "drained", "dropped", "block-tasks/s"
    )?;
    for Row { name, limit } in ROWS {
        let outcome = measure(args.device, &setting, limit(&setting)).context(name)?;
        let Stops { count, violations, drained, requeued, .. } = outcome.stops;
        let [p50, p99] = [0.5, 0.99].map(|share| outcome.percentile(share));
        writeln!(
            stdout,
            "{name:<30} {:>10} {:>10} {:>7} {:>10} {drained:>9} {requeued:>8} {:>12.0}",
            format!("{p50:.1?}"),
            format!("{p99:.1?}"),
            outcome.missed,
            format!("{violations} of {count}"),
            outcome.tasks as f64 / outcome.took.as_secs_f64(),
        )?;
        ensure!(outcome.angle < 0.1, "{name}: a pendulum is {} from upright", outcome.angle);
    }
    writeln!(stdout, "\nall pendulums are upright, and all walks ended where they should")?;
    Ok(())
}

/// The loop beside the walks, with a scheduler of its own, whose counts are those of the row.
fn measure(device: DeviceKind, setting: &Setting, limit: Option<Duration>) -> Result<Outcome> {
    let scheduler = device.scheduler()?;
    let control = scheduler.stream(10);
    control.set_latency_limit(limit);
    let is_over = AtomicBool::new(false);
    let start = Instant::now();
    let (controlled, walked) = thread::scope(|scope| {
        let walks = scope.spawn(|| walks(&scheduler, setting, &is_over));
        let controlled = rounds(&scheduler, &control, setting);
        // Relaxed: it says no more than that.
        is_over.store(true, Relaxed);
        (controlled, walks.join().map_err(|_| anyhow!("the thread of the walks panicked")))
    });
    let (mut latencies, angle) = controlled?;
    let (tasks, took) = (walked??, start.elapsed());
    // Fails if the policy gave an invalid plan.
    scheduler.synchronize()?;
    latencies.sort_unstable();
    let missed = latencies.iter().filter(|&&latency| latency > setting.deadline).count();
    Ok(Outcome { latencies, missed, angle, tasks, took, stops: scheduler.stats().stops })
}

/// The rounds of the loop: the time of each, and the largest angle at the end.
fn rounds(
    scheduler: &Scheduler,
    control: &Stream,
    setting: &Setting,
) -> Result<(Vec<Duration>, f32)> {
    let mut pendulums: Vec<State> = (0..PENDULUMS)
        .map(|i| State { angle: 0.05 * (i as f32 / PENDULUMS as f32 - 0.5), speed: 0.0 })
        .collect();
    let mut states = scheduler.zeroed::<State>(PENDULUMS)?;
    let mut commands = scheduler.zeroed::<f32>(PENDULUMS)?;
    let mut latencies = Vec::new();
    let mut next = Instant::now() + setting.period;
    for _ in 0..setting.rounds {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        let begin = Instant::now();
        // The download comes last in the stream; the scheduler orders the rest before it.
        control.upload(&pendulums[..], &mut states)?.detach();
        let call = feedback(&states, GAIN, &mut commands).threads(PENDULUMS as u32);
        control.launch(call)?.detach();
        let accelerations = control.download(&commands)?.wait()?;
        latencies.push(begin.elapsed());
        for (state, acceleration) in pendulums.iter_mut().zip(accelerations) {
            let expected = command_for(*state, GAIN);
            ensure!((acceleration - expected).abs() < 1e-5, "{acceleration} is not {expected}");
            state.move_on(acceleration);
        }
        next += setting.period;
    }
    let angles = pendulums.iter().map(|state| state.angle.abs());
    Ok((latencies, angles.fold(0.0, f32::max)))
}

/// Milliseconds of a pendulum's time from one round to the next, whatever the device.
const STEP: f32 = 1e-3;

/// A pendulum's next state, near upright.
trait Pendulum {
    fn move_on(&mut self, acceleration: f32);
}

impl Pendulum for State {
    fn move_on(&mut self, acceleration: f32) {
        self.speed += (GRAVITY_OVER_LENGTH * self.angle + acceleration) * STEP;
        self.angle += self.speed * STEP;
    }
}

/// Launches walks until the loop is over. Returns how many block-tasks they had.
fn walks(scheduler: &Scheduler, setting: &Setting, is_over: &AtomicBool) -> Result<u64> {
    let stream = scheduler.stream(0);
    let tasks = scheduler.device().properties().sms * setting.tasks_per_sm;
    let zeroed = || scheduler.zeroed::<u32>(tasks as usize * THREADS);
    let mut ends = [zeroed()?, zeroed()?];
    let mut done = 0;
    let mut outstanding = None;
    for seed in 0.. {
        let ends = &mut ends[seed as usize % 2];
        let launched = stream.launch(walk(seed, setting.strides, &mut *ends).grid(tasks))?;
        // One launch ahead, so that the device never waits for this thread.
        if let Some(before) = outstanding.replace(launched) {
            done += u64::from(before.wait()?.tasks);
        }
        if is_over.load(Relaxed) {
            let last = outstanding.take().context("a launch is outstanding")?;
            done += u64::from(last.wait()?.tasks);
            let found = stream.download(ends)?.wait()?;
            for thread in (0..found.len()).step_by(97) {
                let expected = end(seed, setting.strides, thread as u32);
                ensure!(found[thread] == expected, "walk {thread} ended at {}", found[thread]);
            }
            break;
        }
    }
    Ok(done)
}

impl Outcome {
    /// The latency that a share of the rounds does not exceed (nearest rank).
    fn percentile(&self, share: f64) -> Duration {
        let rank = (share * self.latencies.len() as f64).ceil() as usize;
        self.latencies.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }
}
