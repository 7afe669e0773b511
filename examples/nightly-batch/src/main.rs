//! A night's batch jobs, run two at a time by a plan.
//!
//! The jobs are measured alone and in pairs, by their kernels. From that comes the shortest plan, which a scheduler
//! carries out. The same jobs one after the other, and in the pairs of MaxPair, are what it is compared with.

mod jobs;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use preempt::coschedule::{CoSchedule, Execution, Job, Planner, Sharing, Speeds};
use preempt::{CpuLayout, Device, Scheduler};

use crate::jobs::{Jobs, names};

/// The kernels' PTX.
const KERNELS: preempt::Module = preempt::include_kernels!();

/// Measures twenty batch jobs, plans which of them run side by side, and runs them by the plan.
#[derive(Parser, Debug)]
#[command(name = "nightly-batch", version)]
struct Args {
    /// The device to run on.
    #[arg(long, value_enum, default_value_t = DeviceKind::Cpu)]
    device: DeviceKind,
    /// A tenth of the work: what the tests run. The numbers mean little.
    #[arg(long)]
    quick: bool,
    /// Writes the plan as a Gantt chart, and beside it, with `executed` in its name, what ran by it.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// What the kernels run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum DeviceKind {
    /// An emulated GPU on this machine's processors.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

impl DeviceKind {
    /// One SM of the CPU device for each processor, at least two, so that jobs can have SMs of their own.
    fn open(self) -> Result<Device, preempt::Error> {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        match self {
            DeviceKind::Cpu => Device::cpu_with(CpuLayout::sms(processors.clamp(2, 8) as u32)),
            DeviceKind::Cuda => Device::cuda(0),
        }
    }

    /// An SM of the CPU device has room for one block, so jobs share it by ranges of SMs only.
    fn ways(self) -> &'static [Sharing] {
        match self {
            DeviceKind::Cpu => &[const { Sharing::split(1, 2) }],
            DeviceKind::Cuda => &Sharing::COMMON,
        }
    }

    /// Numbers that the kernels read: more than caches hold.
    fn numbers(self) -> u32 {
        match self {
            DeviceKind::Cpu => 1 << 22,
            DeviceKind::Cuda => 1 << 25,
        }
    }

    /// The time of a part of a job, which is a launch. One with few block-tasks is preempted at its end.
    fn part(self) -> Duration {
        match self {
            DeviceKind::Cpu => Duration::from_millis(5),
            DeviceKind::Cuda => Duration::from_millis(1),
        }
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nightly-batch: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    // Before anything runs, so that no measurement is lost to a chart that cannot be written.
    for file in args.svg.iter().flat_map(|path| [path.clone(), executed_file(path)]) {
        write(&file, "")?;
    }
    // Not `println!`, which panics where the reader has closed the pipe.
    let mut stdout = io::stdout();
    let mut night = Night::new(args)?;
    let start = Instant::now();
    let (jobs, speeds) = night.measure()?;
    writeln!(stdout, "{} jobs, measured in {:.1} s\n", jobs.len(), start.elapsed().as_secs_f64())?;

    let plan = Planner::new().preemption_cost(night.preemption()).plan(&jobs, &speeds)?;
    writeln!(stdout, "{plan}\n")?;
    let arms = [
        ("one after the other", CoSchedule::sequential(&jobs, &speeds)?),
        ("MaxPair", CoSchedule::max_pair(&jobs, &speeds)?),
        ("the plan", plan),
    ];
    writeln!(stdout, "{:<20} {:>10} {:>10} {:>12}", "", "planned", "executed", "preemptions")?;
    let mut fastest = [const { None::<CoSchedule> }; 3];
    for _ in 0..night.runs {
        for ((_, plan), fastest) in arms.iter().zip(&mut fastest) {
            let executed = night.execute(plan)?;
            if fastest.as_ref().is_none_or(|other| executed.makespan() < other.makespan()) {
                *fastest = Some(executed);
            }
        }
    }
    for ((name, plan), executed) in arms.iter().zip(fastest.iter().flatten()) {
        let [planned, took] = [plan, executed].map(|of| format!("{:.3} s", of.makespan()));
        writeln!(stdout, "{name:<20} {planned:>10} {took:>10} {:>12}", plan.preemptions())?;
        if let Some(path) = args.svg.as_ref().filter(|_| *name == "the plan") {
            write(path, &plan.svg())?;
            write(&executed_file(path), &executed.svg())?;
        }
    }
    writeln!(stdout, "\nall results are right")?;
    Ok(())
}

/// Twenty jobs, and the scheduler whose policy is a plan for them.
struct Night {
    jobs: Jobs,
    execution: Execution,
    ways: &'static [Sharing],
    /// How often everything is run.
    runs: u32,
}

impl Night {
    fn new(args: &Args) -> Result<Night> {
        let execution = Execution::unplanned(names().map(|(name, _)| name));
        let builder = Scheduler::builder().device(args.device.open()?).kernels(KERNELS);
        let scheduler = builder.policy(execution.clone()).build()?;
        let part = args.device.part() / if args.quick { 10 } else { 1 };
        let jobs = Jobs::new(scheduler, args.device.numbers(), part)?;
        for (job, stream) in jobs.streams() {
            execution.bind(job, stream)?;
        }
        let runs = if args.quick { 1 } else { 3 };
        Ok(Night { jobs, execution, ways: args.device.ways(), runs })
    }

    /// Seconds of each job alone, and speeds of the jobs beside each other.
    ///
    /// Speeds are those of kernels: the first job of each is measured beside the second one of it and of later ones.
    /// Jobs are in the order of their kernels, so the first of a pair has the first job's part of the SMs.
    fn measure(&mut self) -> Result<(Vec<Job>, Speeds)> {
        let kernels: Vec<usize> = names().map(|(_, kernel)| kernel).collect();
        let first = |job: usize| kernels.partition_point(|&kernel| kernel < kernels[job]);
        let stand_in = |job: usize, beside: usize| first(job) + usize::from(job > beside);
        let jobs = &mut self.jobs;
        let (seconds, measured) =
            self.execution.measure(self.ways, self.runs, |these| match *these {
                // A pair that is not run counts as a pair without gain.
                [a, b] if a != first(a) || b != first(b) + 1 => Ok(()),
                _ => jobs.run(these),
            })?;
        jobs.check()?;
        let speeds = Speeds::in_ways(measured.ways(), seconds.len(), |way, i, j| {
            measured.speed(way, stand_in(i, j), stand_in(j, i))
        })?;
        Ok((seconds, speeds))
    }

    /// Seconds that a preemption of a job costs, in the mean.
    fn preemption(&self) -> f64 {
        let costs = self.execution.preemption_seconds();
        costs.iter().sum::<f64>() / costs.len() as f64
    }

    /// Runs all jobs by a plan, and checks their results.
    fn execute(&mut self, plan: &CoSchedule) -> Result<CoSchedule> {
        // What the plan begins with is there first.
        let order = plan.order();
        self.jobs.clear()?;
        self.execution.begin(plan.clone())?;
        self.jobs.run(&order)?;
        self.jobs.check()?;
        Ok(self.execution.executed())
    }
}

/// The file of the chart of what ran.
fn executed_file(path: &Path) -> PathBuf {
    path.with_extension("executed.svg")
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
