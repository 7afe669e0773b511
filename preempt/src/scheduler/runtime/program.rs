//! Programs on their way: for the engine, a program is one plain launch, or a chain of calls.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use preempt_device::host::Preemption;

use super::armed::Armed;
use crate::device::{KernelLaunch, Owner, ProgramLaunch, Step};
use crate::engine::{Called, LaunchReport, LaunchSpec, Outcome};
use crate::predict::Features;
use crate::scheduler::api::stream::COPY;
use crate::sync::{Mutex, lock};
use crate::vocabulary::OpKey;

/// A launch of a program, in the order of a stream.
pub(in crate::scheduler) struct ProgramJob {
    pub name: &'static str,
    pub program: Arc<ProgramLaunch>,
    /// The memory of its buffers, each once.
    pub owners: Arc<[Owner]>,
    /// As wide as its widest kernel.
    pub spec: LaunchSpec,
    /// Of each call; `None` for a copy.
    pub specs: Arc<[Option<LaunchSpec>]>,
    pub preemption: Preemption,
    /// Whether dropping it may run application code.
    pub is_of_others: bool,
    /// The last launch of the program that was taken in and uses a graph.
    pub last: Arc<Mutex<Option<OpKey>>>,
    /// Each call that is captured work, as a program of its own; for preemptible ones.
    pub alone: Arc<[Option<Arc<ProgramLaunch>>]>,
    /// Whether it is one plain launch; set when the core takes it in.
    pub plain: bool,
    /// Set if it does not start before it is released.
    pub armed: Option<Arc<Armed>>,
    /// Time from submission to deadline.
    pub due: Option<Duration>,
}

impl ProgramJob {
    /// What is known of it before it runs.
    pub fn features(&self) -> Features<'static> {
        let (mut block, mut input_bytes) = (0, 0);
        for step in &self.program.steps {
            let Step::Launch { launch, .. } = step else { continue };
            let features = launch.features(launch.tasks());
            block = block.max(features.block);
            input_bytes += features.input_bytes;
        }
        let grid = self.program.tasks().max(1);
        Features {
            module: "program",
            kernel: self.name,
            grid,
            block: block.max(1),
            input_bytes,
            shared_bytes: 0,
        }
    }

    /// Notes this launch of the program, if a later one has to wait for it.
    pub fn enter(&self, op: OpKey) {
        if self.has_graph() {
            *lock(&self.last) = Some(op);
        }
    }

    /// The launch of the program that this one has to wait for, whatever the two use: the driver runs launches of an
    /// executable graph one after the other, so the second would be in the way of what is behind it in its queue.
    pub fn before(&self) -> Option<OpKey> {
        self.has_graph().then(|| *lock(&self.last)).flatten()
    }

    /// Whether this launch may use an executable graph.
    fn has_graph(&self) -> bool {
        self.plain || self.program.chains.is_some() || self.alone.iter().any(Option::is_some)
    }

    /// The chain that starts with a call, where the device takes its launches together.
    pub fn chain(&self, index: usize) -> Option<&Range<usize>> {
        self.program.chains.as_ref()?.from(index)
    }

    /// The kernel that a call launches; `None` for other calls.
    pub fn kernel(&self, index: usize) -> Option<&Arc<KernelLaunch>> {
        match &self.program.steps[index] {
            Step::Launch { launch, .. } => Some(launch),
            Step::Copy(_) | Step::Captured(_) => None,
        }
    }

    /// Whether a call runs as cohorts in a preemptible program.
    pub fn has_cohorts(&self, index: usize) -> bool {
        self.program.steps[index].has_cohorts()
    }

    /// A call with what is known of its launch.
    pub fn called(&self, index: usize, launch: Option<LaunchSpec>) -> Called {
        let name = match &self.program.steps[index] {
            Step::Launch { launch, .. } => launch.kernel.name,
            Step::Captured(captured) => captured.name,
            Step::Copy(_) => COPY,
        };
        let together = self.chain(index).map_or(1, |chain| chain.len() as u32);
        let is_plain_kernel = self.kernel(index).is_some() && !self.has_cohorts(index);
        Called { name, launch, together, is_plain_kernel }
    }

    /// A message of a call, with its place in the program.
    pub fn message(&self, index: usize, message: &str) -> Arc<str> {
        format!("{}: {message}", self.program.steps[index].describe(index)).into()
    }

    /// The outcome in block-tasks of all its kernels; for the engine, a plain program has those of the widest.
    pub fn counted(&self, outcome: Outcome) -> Outcome {
        if !self.plain {
            return outcome;
        }
        let tasks = self.program.tasks();
        // All or nothing, as of every plain launch.
        let all = |done: u32| if done > 0 { tasks } else { 0 };
        match outcome {
            Outcome::Done(report) => Outcome::Done(LaunchReport { tasks, ..report }),
            Outcome::Cancelled { done } => Outcome::Cancelled { done: all(done) },
            Outcome::Closed { done } => Outcome::Closed { done: all(done) },
            other => other,
        }
    }
}

impl fmt::Debug for ProgramJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Program").field(&self.name).finish()
    }
}
