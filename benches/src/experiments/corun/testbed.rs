//! Jobs, the arms in which they run, and the testbed that runs them: a device or a model of one.

use std::time::Duration;

use anyhow::Result;
use preempt::LaunchReport;
use preempt::policy::Policy;
use preempt_test_kit::storm::Tally;
use preempt_workloads::{Definition, Size};

use super::DeviceTestbed;
use super::endless::{Endless, Looped};
use crate::experiments::FLEP;

/// One run of a program.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// The number of the program on the testbed.
    pub program: usize,
    /// When it is submitted, from the start of the run on.
    pub at: Duration,
    /// Of its stream.
    pub priority: i32,
}

/// What decides about the order of jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arm {
    /// Ordinary grids on streams of equal priority: submission order, as far as the device keeps it.
    PlainStreams,
    /// The same on streams with the hardware's priorities. On a GPU only.
    StreamPriorities,
    /// Ordinary grids, in the order that the policy of this number gives those that have not started.
    Reordered(usize),
    /// The policy of this number, which preempts.
    Ours(usize),
    /// The same, with ordinary grids for the jobs of the highest priority, which no job preempts.
    UrgentNative(usize),
}

/// Times and reports of jobs that have run.
#[derive(Debug)]
pub struct Completed {
    /// From submission to the end, for each.
    pub turnaround: Vec<Duration>,
    /// From the first submission to the last end.
    pub makespan: Duration,
    /// Of all launches of all jobs, where the scheduler ran them.
    pub yields: u64,
    /// For each job, where the scheduler ran them.
    pub runs: Vec<Run>,
}

/// A job as the scheduler ran it.
#[derive(Debug)]
pub struct Run {
    /// The number of its stream, which no other run has.
    pub stream: u32,
    /// Of its launches, in order.
    pub reports: Vec<LaunchReport>,
}

/// The number of the policy that stands for submission order where there are no raw streams.
pub(super) const FIFO: usize = 0;

/// Makes a policy that knows nothing yet.
pub type NewPolicy = Box<dyn Fn() -> Box<dyn Policy>>;

/// A device or a model of one, with programs that run there again and again.
pub trait Testbed {
    /// Whether there is what the arm needs.
    fn has(&self, arm: Arm) -> bool;

    /// Takes in a program; its number, which is one more than that of the last one.
    ///
    /// # Errors
    ///
    /// What the scheduler or the driver says; or that nothing is known of the program.
    fn add(&mut self, definition: &Definition, size: Size) -> Result<usize>;

    /// Takes in FLEP's programs, in their order.
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

    /// Lets the last program go, with its memory.
    fn remove_last(&mut self);

    /// The program of this number.
    fn name(&self, program: usize) -> &'static str;

    /// Runs the jobs once, and checks their results.
    ///
    /// # Errors
    ///
    /// What the scheduler, the driver or the simulation says; wrong results go to the tally.
    fn run_jobs(&mut self, arm: Arm, jobs: &[Job]) -> Result<Completed>;

    /// Runs programs in loops for so long.
    ///
    /// # Errors
    ///
    /// What the scheduler, the driver or the simulation says.
    fn endless(&mut self, arm: Arm, loops: &[Endless], window: Duration) -> Result<Looped>;

    /// Runs a program once, alone, and checks its results.
    ///
    /// # Errors
    ///
    /// What the scheduler or the simulation says; wrong results go to the tally.
    fn verify(&mut self, program: usize) -> Result<()> {
        self.run_jobs(Arm::Ours(FIFO), &[Job::now(program)]).map(drop)
    }

    /// The testbed, if it is a device.
    fn device(&self) -> Option<&DeviceTestbed> {
        None
    }

    /// Waits for everything: what was run, and what was wrong with it.
    ///
    /// # Errors
    ///
    /// What the scheduler says, also if a policy was refused.
    fn close(self: Box<Self>) -> Result<Tally>;
}

impl Job {
    /// A program that is submitted at once, with a priority of 0.
    pub fn now(program: usize) -> Job {
        Job { program, at: Duration::ZERO, priority: 0 }
    }
}

impl Arm {
    /// The number of the policy that decides, where there are no raw streams.
    pub(super) fn policy(self) -> usize {
        match self {
            Arm::PlainStreams | Arm::StreamPriorities => FIFO,
            Arm::Reordered(policy) | Arm::Ours(policy) | Arm::UrgentNative(policy) => policy,
        }
    }

    /// What the policy is told of a job.
    pub(super) fn priority(self, job: &Job) -> i32 {
        if self == Arm::PlainStreams { 0 } else { job.priority }
    }

    /// Whether a job's launches are ordinary grids.
    pub(super) fn is_native(self, job: &Job, jobs: &[Job]) -> bool {
        match self {
            Arm::PlainStreams | Arm::StreamPriorities | Arm::Reordered(_) => true,
            Arm::Ours(_) => false,
            Arm::UrgentNative(_) => jobs.iter().all(|other| other.priority <= job.priority),
        }
    }

    /// What it is called in tables.
    pub fn name(self) -> &'static str {
        match self {
            Arm::PlainStreams => "plain streams",
            Arm::StreamPriorities => "stream priorities",
            Arm::Reordered(_) => "reordered",
            Arm::Ours(_) => "preempt",
            Arm::UrgentNative(_) => "preempt, urgent ones native",
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
