//! The results of a workload.

use std::time::Duration;

use super::workload::StreamNumber;
use crate::error::Error;
use crate::policy::Priority;
use crate::recording::Recording;

/// How a workload ran under a policy.
#[derive(Debug)]
#[non_exhaustive]
pub struct Results {
    /// The name of the policy that decided last.
    pub policy: String,
    /// Why the policy was replaced by [`Fifo`](crate::policy::Fifo), if it was.
    pub policy_error: Option<Error>,
    /// When the last launch was over, or the simulation stopped.
    pub makespan: Duration,
    /// The number of simulated events: a measure of the work to simulate it.
    pub events: u64,
    /// What was decided, if the simulation [was to record it](super::Simulation::recording).
    pub recording: Option<Recording>,
    /// In the order in which the host took them in.
    pub launches: Vec<LaunchResult>,
}

/// How a launch of a kernel or of a program ran. Times are since the start of the simulation.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct LaunchResult {
    /// Its stream.
    pub stream: StreamNumber,
    /// The number of the launch or loop of the workload that it came from.
    pub job: usize,
    /// Which launch of that loop it is, counted from 0.
    pub turn: u32,
    /// The name of its kernel, or of its program.
    pub kernel: String,
    /// Its priority.
    pub priority: Priority,
    /// How long it takes alone, with as many SMs as it can fill and without what launching costs. For a program, the sum
    /// of its kernels.
    pub alone: Duration,
    /// When it was submitted.
    pub queued: Duration,
    /// When its first block ran; `None` if none did.
    pub started: Option<Duration>,
    /// When the host knew that it was over, or the simulation stopped.
    pub done: Duration,
    /// Block-tasks that ran, of all kernels; at most `u32::MAX`.
    pub tasks: u32,
    /// How often SMs were taken from it while its blocks were on the device.
    pub yields: u32,
    /// How many later cohorts ran block-tasks.
    pub resumes: u32,
    /// How long it had SMs, summed over SMs.
    pub sm_time: Duration,
    /// When it was due.
    pub deadline: Option<Duration>,
    /// How it ended; every launch does, unless the simulation [stopped](super::Simulation::until) before.
    pub end: Option<End>,
}

/// How a launch ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum End {
    /// All its block-tasks ran.
    Done,
    /// The policy did not admit it.
    NotAdmitted,
}

impl LaunchResult {
    /// From the submission until it was over.
    pub fn turnaround(&self) -> Duration {
        self.done.saturating_sub(self.queued)
    }

    /// From the submission until its first block ran; the whole turnaround if none did.
    pub fn waited(&self) -> Duration {
        self.started.unwrap_or(self.done).saturating_sub(self.queued)
    }

    /// The normalized turnaround time: turnaround divided by the duration alone.
    pub fn slowdown(&self) -> f64 {
        self.turnaround().as_secs_f64() / self.alone.as_secs_f64()
    }

    /// Whether it was done when it was due, or had no deadline.
    pub fn is_in_time(&self) -> bool {
        self.end == Some(End::Done) && self.deadline.is_none_or(|deadline| self.done <= deadline)
    }
}

impl Results {
    /// The launches of a stream, in the order of submission.
    pub fn of(&self, stream: StreamNumber) -> impl Iterator<Item = &LaunchResult> {
        self.launches.iter().filter(move |launch| launch.stream == stream)
    }
}
