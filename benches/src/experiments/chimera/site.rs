//! The device with the programs, and programs that run there again and again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use preempt::policy::{Policy, Priority};
use preempt::{Call, Handle, LaunchReport, Preemption, Scheduler, SignalPath, Stream};
use preempt_test_kit::storm::Tally;
use preempt_workloads::{Definition, Size};

use super::policies::{OneAtATime, SmartEven, TaskFirst};
use crate::experiments::Bench;
use crate::experiments::corun::{DeviceTestbed, PolicySelector, PreparedProgram, SelectedPolicy};
use crate::experiments::sim::watch::{LaunchNotes, Watch};

/// Time that `wait` spins.
pub const SPIN: Duration = Duration::from_millis(100);

/// Seconds, the longest that anything here may take before it counts as hung.
pub const HUNG: Duration = Duration::from_secs(60);

/// The policy that decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decider {
    /// The periodic task has the SMs that it needs, and others the rest.
    TaskFirst,
    /// Even parts.
    Even,
    /// The oldest launch has all SMs.
    Oldest,
}

/// What is checked of the runs.
#[derive(Default)]
pub struct Checks {
    /// Counts of what was run, and the first mistake found in it.
    pub tally: Tally,
    /// Programs whose outputs were wrong, over all runs that were checked.
    pub wrong: u64,
}

/// The device with a scheduler of all policies, and with the programs.
pub struct Site {
    /// The scheduler. Its signals go by the proxy where that has its place, and the device knows then when one arrived.
    pub scheduler: Scheduler,
    /// Of launches that arrived while [`Decider::Oldest`] decided.
    pub notes: LaunchNotes,
    pub checks: Checks,
    selector: PolicySelector,
    seed: u32,
}

impl Site {
    /// Takes the device, and goes on with these checks.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler.
    pub fn new(bench: &Bench, checks: Checks) -> Result<Site> {
        let (oldest, notes) = Watch::new(OneAtATime::default());
        // In the order of `Decider`.
        let policies: Vec<Box<dyn Policy>> =
            vec![Box::new(TaskFirst::default()), Box::new(SmartEven::default()), Box::new(oldest)];
        let (policy, selector) = SelectedPolicy::new(policies);
        let scheduler = bench.spinning_scheduler_by(SignalPath::Auto, policy, SPIN)?;
        Ok(Site { scheduler, notes, checks, selector, seed: bench.seed as u32 })
    }

    /// Allocates a program and makes its inputs.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler.
    pub fn prepare(&self, definition: &Definition, size: Size) -> Result<PreparedProgram> {
        PreparedProgram::scheduled(&self.scheduler, definition, size, self.seed)
    }

    /// Waits until the device is idle, and lets a policy decide from then on.
    ///
    /// # Errors
    ///
    /// If a policy was refused.
    pub fn choose(&self, decider: Decider) -> Result<()> {
        self.scheduler.synchronize()?;
        self.selector.select(decider as usize);
        Ok(())
    }

    /// A stream of programs.
    pub fn stream(&self) -> Stream {
        self.scheduler.stream(Priority(0))
    }
}

impl Checks {
    /// Compares a program's outputs with those of an undisturbed run.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler. Wrong results are counted.
    pub fn check(&mut self, program: &PreparedProgram, arm: &str) -> Result<()> {
        let mut found = Tally::default();
        program.check(arm, &mut found)?;
        self.wrong += u64::from(found.mistake.is_some());
        self.tally.mistake = self.tally.mistake.take().or(found.mistake);
        Ok(())
    }

    /// Counts what launches of a program, which run one after the other, have reported.
    pub fn count(&mut self, program: &PreparedProgram, reports: &[LaunchReport]) {
        for (report, call) in reports.iter().zip(program.steps().iter().cycle()) {
            self.tally.report(report);
            self.tally.count(program.name, &[report.tasks], &[call.grid_dim().count() as u32]);
        }
    }
}

/// A program that is run again and again on a stream.
pub struct Rerun<'p> {
    stream: &'p Stream,
    steps: &'p [Call<'static>],
    mode: Preemption,
    /// Launches submitted.
    submitted: usize,
    handles: VecDeque<Handle<LaunchReport>>,
    /// Reports of launches that are over, in order.
    pub reports: Vec<LaunchReport>,
    /// How many those are, for other threads.
    over: Arc<AtomicUsize>,
}

impl<'p> Rerun<'p> {
    /// Nothing is submitted yet.
    pub fn new(stream: &'p Stream, steps: &'p [Call<'static>], mode: Preemption) -> Rerun<'p> {
        let (submitted, handles, reports) = (0, VecDeque::new(), Vec::new());
        Rerun { stream, steps, mode, submitted, handles, reports, over: Arc::default() }
    }

    /// How many launches are over, as far as was seen when it last went on.
    pub fn over(&self) -> Arc<AtomicUsize> {
        self.over.clone()
    }

    /// Submits launches while there is room, up to the end of this many runs, and collects those that are over.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler.
    pub fn go_on(&mut self, runs: usize) -> Result<()> {
        // Two runs ahead, so that the stream never waits for the submitting thread, and little is left at the end.
        let most = (2 * self.steps.len()).clamp(2, DeviceTestbed::AHEAD);
        while self.handles.len() < most && self.submitted < runs.saturating_mul(self.steps.len()) {
            let call = self.steps[self.submitted % self.steps.len()].clone();
            self.handles.push_back(self.stream.launch(call.preemption(self.mode))?);
            self.submitted += 1;
        }
        while let Some(report) = self.handles.front().and_then(Handle::try_wait) {
            self.reports.push(report?);
            self.handles.pop_front();
        }
        // Relaxed: a number for tables.
        self.over.store(self.reports.len(), Relaxed);
        Ok(())
    }

    /// Runs that are over.
    pub fn runs(&self) -> usize {
        self.reports.len() / self.steps.len()
    }

    /// Submits the rest of the run that has begun, and waits for it.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler.
    pub fn finish(&mut self) -> Result<()> {
        let runs = self.submitted.div_ceil(self.steps.len());
        self.until(runs).map(drop)
    }

    /// Goes on for this time, and until the run that has begun is over. Returns the runs of that time, and how long they took.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler, or that it takes too long.
    pub fn during(&mut self, window: Duration) -> Result<(usize, Duration)> {
        let (start, before) = (Instant::now(), self.runs());
        while start.elapsed() < window {
            self.go_on(usize::MAX)?;
            std::hint::spin_loop();
        }
        self.finish()?;
        Ok((self.runs() - before, start.elapsed()))
    }

    /// Goes on until this many runs are over, and returns the time that it took.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler, or that it takes too long.
    pub fn until(&mut self, runs: usize) -> Result<Duration> {
        let start = Instant::now();
        while self.runs() < runs {
            ensure!(start.elapsed() < HUNG, "{runs} runs have not ended within {HUNG:?}");
            self.go_on(runs)?;
            std::hint::spin_loop();
        }
        Ok(start.elapsed())
    }
}
