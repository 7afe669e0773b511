//! Jobs, the arms in which they run, and the testbed that runs them: a device or a model of one.

use std::time::Duration;

use anyhow::Result;
use preempt::policy::Policy;
use preempt::{LaunchReport, Preemption};
use preempt_test_kit::storm::Tally;
use preempt_workloads::{Definition, Size};

use super::DeviceTestbed;
use super::endless::{Endless, Looped};
use crate::experiments::FLEP;

/// Runs of a program.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// The number of the program on the testbed.
    pub program: usize,
    /// How often it runs, one run after the other.
    pub rounds: u32,
    /// The time of its submission, from the start of the run on.
    pub at: Duration,
    /// The priority of its stream.
    pub priority: i32,
}

/// The decision-maker about the order of jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arm {
    /// Plain grids on streams of equal priority: submission order, as far as the device keeps it.
    PlainStreams,
    /// Plain grids on streams with the hardware's priorities. On a GPU only.
    StreamPriorities,
    /// Plain grids: the policy of this number orders those that have not started.
    Reordered(usize),
    /// The policy of this number, which preempts launches of the form that costs least.
    Ours(usize),
    /// The policy of this number, with all launches preemptible.
    AllPreemptible(usize),
}

/// Times and reports of jobs that have run.
#[derive(Debug)]
pub struct Completed {
    /// Time from submission to the end, for each job.
    pub turnaround: Vec<Duration>,
    /// Time from the first submission to the last end.
    pub makespan: Duration,
    /// Yields of all launches of all jobs, where the scheduler ran them.
    pub yields: u64,
    /// Runs of all jobs, where the scheduler ran them.
    pub runs: Vec<Run>,
}

/// A job as the scheduler ran it.
#[derive(Debug)]
pub struct Run {
    /// The number of its stream, which no other run has.
    pub stream: u32,
    /// Reports of its launches, in order.
    pub reports: Vec<LaunchReport>,
}

/// The number of the policy for submission order where there are no raw streams.
pub(super) const FIFO: usize = 0;

/// Is told the place of a job and the number of its stream.
pub type Bind<'a> = &'a dyn Fn(usize, u32) -> Result<()>;

/// Makes a policy that knows nothing yet.
pub type NewPolicy = Box<dyn Fn() -> Box<dyn Policy>>;

/// A device or a model of one, with programs that run there again and again.
pub trait Testbed {
    /// Whether the testbed has what the arm needs.
    fn has(&self, arm: Arm) -> bool;

    /// Adds a program, and returns its number, which is one more than that of the last one.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler and the driver; or that there are no measurements of the program.
    fn add(&mut self, definition: &Definition, size: Size) -> Result<usize>;

    /// Adds FLEP's programs, in their order.
    ///
    /// # Errors
    ///
    /// Those of [`add`](Testbed::add).
    fn add_flep(&mut self, size: Size) -> Result<()> {
        for definition in FLEP.into_iter().filter_map(preempt_workloads::find) {
            self.add(definition, size)?;
        }
        Ok(())
    }

    /// Drops the last program, with its memory.
    fn remove_last(&mut self);

    /// The name of the program of this number.
    fn name(&self, program: usize) -> &'static str;

    /// Runs the jobs once, and checks their results.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler, the driver and the simulation. Wrong results go to the tally.
    fn run_jobs(&mut self, arm: Arm, jobs: &[Job]) -> Result<Completed> {
        self.run_bound(arm, jobs, &|_, _| Ok(()))
    }

    /// The same; where the scheduler runs the jobs, `bind` is told each job's place in the list and the number of its
    /// stream, before anything is submitted.
    ///
    /// # Errors
    ///
    /// Those of [`run_jobs`](Testbed::run_jobs) and of `bind`.
    fn run_bound(&mut self, arm: Arm, jobs: &[Job], bind: Bind<'_>) -> Result<Completed>;

    /// Runs jobs as plain grids, one after the other in one stream, and checks their results. Returns the time from the
    /// first submission to the last end.
    ///
    /// # Errors
    ///
    /// Those of [`run_jobs`](Testbed::run_jobs).
    fn run_in_one_stream(&mut self, jobs: &[Job]) -> Result<Duration>;

    /// Runs programs in loops for the time of the window.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler, the driver and the simulation.
    fn endless(&mut self, arm: Arm, loops: &[Endless], window: Duration) -> Result<Looped>;

    /// Runs a program once, alone and preemptible, and checks its results.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler and the simulation. Wrong results go to the tally.
    fn verify(&mut self, program: usize) -> Result<()> {
        self.run_jobs(Arm::AllPreemptible(FIFO), &[Job::now(program)]).map(drop)
    }

    /// Runs a program once, alone in an arm, before what is measured in that arm. Arms that launch the same code would find it
    /// in the caches where they follow each other, and all others not; nor their path to the device. Virtual time has no
    /// caches.
    ///
    /// # Errors
    ///
    /// Those of [`run_jobs`](Testbed::run_jobs).
    fn warm(&mut self, arm: Arm, program: usize) -> Result<()> {
        match self.device() {
            Some(_) => self.run_jobs(arm, &[Job::now(program)]).map(drop),
            None => Ok(()),
        }
    }

    /// The testbed, if it is a device.
    fn device(&self) -> Option<&DeviceTestbed> {
        None
    }

    /// Waits for everything; returns the counts of what was run, and the mistakes found.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler, also if a policy was refused.
    fn close(self: Box<Self>) -> Result<Tally>;
}

impl Job {
    /// A program that is submitted at once, with a priority of 0.
    pub fn now(program: usize) -> Job {
        Job { program, rounds: 1, at: Duration::ZERO, priority: 0 }
    }
}

impl Arm {
    /// The number of the policy that decides, where there are no raw streams.
    pub(super) fn policy(self) -> usize {
        match self {
            Arm::PlainStreams | Arm::StreamPriorities => FIFO,
            Arm::Reordered(policy) | Arm::Ours(policy) | Arm::AllPreemptible(policy) => policy,
        }
    }

    /// The priority of a job, as the policy knows it.
    pub(super) fn priority(self, job: &Job) -> i32 {
        if self == Arm::PlainStreams { 0 } else { job.priority }
    }

    /// The form of launches.
    pub(super) fn preemption(self) -> Preemption {
        match self {
            Arm::PlainStreams | Arm::StreamPriorities | Arm::Reordered(_) => Preemption::Plain,
            Arm::Ours(_) => Preemption::Auto,
            Arm::AllPreemptible(_) => Preemption::Preemptible,
        }
    }

    /// The arm's name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Arm::PlainStreams => "plain streams",
            Arm::StreamPriorities => "stream priorities",
            Arm::Reordered(_) => "reordered",
            Arm::Ours(_) => "preempt",
            Arm::AllPreemptible(_) => "preempt, all preemptible",
        }
    }
}

impl Completed {
    pub(super) fn new(times: Vec<(Duration, Duration)>, yields: u64, runs: Vec<Run>) -> Completed {
        let first = times.iter().map(|(start, _)| *start).min().unwrap_or_default();
        let last = times.iter().map(|(_, end)| *end).max().unwrap_or_default();
        let turnaround = times.iter().map(|(start, end)| end.saturating_sub(*start)).collect();
        Completed { turnaround, makespan: last.saturating_sub(first), yields, runs }
    }
}
