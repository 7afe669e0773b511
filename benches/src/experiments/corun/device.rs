//! Jobs on one device: by a policy, as plain grids, or on raw streams of the driver.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use preempt::policy::{Fifo, Policy, Priority};
use preempt::{Call, Handle, LaunchReport, Preemption, Scheduler, Stream};
use preempt_driver::{Gpu, Level};
use preempt_test_kit::storm::Tally;
use preempt_workloads::{Definition, Size};

use super::endless::{Endless, Looped};
use super::switch::{PolicySelector, SelectedPolicy};
use super::testbed::{Arm, Bind, Completed, FIFO, Job, Run, Testbed};
use super::{NewPolicy, PreparedProgram};
use crate::experiments::Bench;

/// The longest that anything here may take before it counts as hung.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// Time that `wait` spins.
const SPIN: Duration = Duration::from_millis(100);

/// A device with programs, and with a scheduler that has many policies.
pub struct DeviceTestbed {
    /// The scheduler.
    pub scheduler: Scheduler,
    pub(super) programs: Vec<PreparedProgram>,
    seed: u32,
    pub(super) selector: PolicySelector,
    pub(super) gpu: Option<Gpu>,
    /// Raw streams, by level and by job.
    pub(super) raw_streams: Vec<Vec<preempt_driver::Stream>>,
    /// Counts of what was run, and mistakes found in it.
    pub tally: Tally,
}

impl DeviceTestbed {
    /// Launches of a job that are submitted and not over, at most; a stream takes 64.
    pub const AHEAD: usize = 48;

    /// Takes the device. The first policy is `Fifo`; `policies` follow, from number 1 on.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler.
    pub fn new(bench: &Bench, policies: &[NewPolicy]) -> Result<DeviceTestbed> {
        let fifo: Box<dyn Policy> = Box::new(Fifo::new());
        let policies = policies.iter().map(|new| new());
        let (switch, selector) =
            SelectedPolicy::new(std::iter::once(fifo).chain(policies).collect());
        Ok(DeviceTestbed::of(bench, bench.spinning_scheduler(switch, SPIN)?, selector))
    }

    /// Takes the device, and records the decisions of this policy, which decides in every arm but those of raw streams.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler.
    pub fn recording(bench: &Bench, policy: impl Policy + 'static) -> Result<DeviceTestbed> {
        // This selector belongs to no policy.
        Ok(DeviceTestbed::of(
            bench,
            bench.recording_scheduler(policy, SPIN)?,
            PolicySelector::default(),
        ))
    }

    fn of(bench: &Bench, scheduler: Scheduler, selector: PolicySelector) -> DeviceTestbed {
        DeviceTestbed {
            scheduler,
            programs: Vec::new(),
            seed: bench.seed as u32,
            selector,
            gpu: bench.gpu,
            raw_streams: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// The programs, in the order of their numbers.
    pub fn programs(&self) -> &[PreparedProgram] {
        &self.programs
    }

    /// Lets the policy of this number decide, until the next run of jobs.
    ///
    /// # Errors
    ///
    /// If a policy was refused.
    pub fn choose(&self, policy: usize) -> Result<()> {
        self.scheduler.synchronize()?;
        self.selector.select(policy);
        Ok(())
    }

    /// Whether the arm runs on raw streams.
    pub(super) fn is_raw(&self, arm: Arm) -> Result<bool> {
        ensure!(self.has(arm), "the device has no streams with priorities");
        Ok(self.gpu.is_some() && matches!(arm, Arm::PlainStreams | Arm::StreamPriorities))
    }

    fn run_scheduled(&mut self, arm: Arm, jobs: &[Job], bind: Bind<'_>) -> Result<Completed> {
        let submission = |job: &Job| {
            let stream = self.scheduler.stream(Priority(job.priority));
            Submission::new(stream, self.steps(&[*job]), *job, arm.preemption())
        };
        let mut submissions: Vec<Submission> = jobs.iter().map(submission).collect();
        for (index, submission) in submissions.iter().enumerate() {
            bind(index, submission.stream.id())?;
        }
        self.finish(arm, &mut submissions)?;
        for submission in &submissions {
            self.count(&[submission.job], &submission.reports);
        }
        let yields = submissions
            .iter()
            .flat_map(|submission| &submission.reports)
            .map(|report| report.yields);
        let yields = yields.map(u64::from).sum();
        let times = submissions
            .iter()
            .map(|submission| (submission.started, submission.ended.unwrap_or_default()));
        let times = times.collect();
        let run = |submission: Submission| Run {
            stream: submission.stream.id(),
            reports: submission.reports,
        };
        Ok(Completed::new(times, yields, submissions.into_iter().map(run).collect()))
    }

    /// Submits everything, and waits until it is over.
    fn finish(&mut self, arm: Arm, submissions: &mut [Submission]) -> Result<()> {
        self.selector.select(arm.policy());
        let start = Instant::now();
        while submissions.iter().any(|submission| submission.ended.is_none()) {
            ensure!(start.elapsed() < LIMIT, "a job has not ended within {LIMIT:?}");
            for submission in &mut *submissions {
                if submission.ended.is_none() && start.elapsed() >= submission.job.at {
                    submission.go_on(start)?;
                }
            }
            self.pause();
        }
        self.scheduler.synchronize()?;
        self.selector.select(FIFO);
        Ok(())
    }

    /// Between two looks at what is over: no time on a GPU's host. The CPU device's SMs need the processors.
    pub fn pause(&self) {
        match self.gpu {
            Some(_) => std::hint::spin_loop(),
            None => std::thread::yield_now(),
        }
    }

    /// Launches of jobs, one job after the other, with the names of their programs.
    fn steps(&self, jobs: &[Job]) -> impl Iterator<Item = (&'static str, &Call<'static>)> {
        let programs = rounds(jobs).map(|program| &self.programs[program]);
        programs.flat_map(|program| program.steps().iter().map(|call| (program.name, call)))
    }

    /// Counts what launches of these jobs, one after the other, have reported.
    fn count(&mut self, jobs: &[Job], reports: &[LaunchReport]) {
        let calls = self.steps(jobs).map(|(name, call)| (name, call.grid_dim().count() as u32));
        let calls: Vec<_> = calls.collect();
        for (report, (name, tasks)) in reports.iter().zip(calls) {
            self.tally.report(report);
            self.tally.count(name, &[report.tasks], &[tasks]);
        }
    }

    /// Overwrites the outputs of the jobs' programs, runs them, and compares their outputs.
    fn checked<T>(
        &mut self,
        arm: &str,
        jobs: &[Job],
        run: impl FnOnce(&mut DeviceTestbed) -> Result<T>,
    ) -> Result<T> {
        for job in jobs {
            self.programs[job.program].poison()?;
        }
        // Also an error if a policy was refused.
        self.scheduler.synchronize()?;
        let done = run(self)?;
        for job in jobs {
            self.programs[job.program].check(arm, &mut self.tally)?;
        }
        Ok(done)
    }

    /// The level of the raw stream of each job.
    pub(super) fn levels(&self, arm: Arm, jobs: &[Job]) -> Vec<usize> {
        match arm {
            Arm::StreamPriorities => ranks(jobs),
            _ => vec![0; jobs.len()],
        }
    }

    fn run_raw(&mut self, arm: Arm, jobs: &[Job]) -> Result<Completed> {
        let levels = self.levels(arm, jobs);
        self.open_streams(jobs.len())?;
        let mut times: Vec<(Option<Duration>, Option<Duration>)> = vec![(None, None); jobs.len()];
        let start = Instant::now();
        while times.iter().any(|(_, ended)| ended.is_none()) {
            ensure!(start.elapsed() < LIMIT, "a job has not ended within {LIMIT:?}");
            for (index, (job, times)) in jobs.iter().zip(&mut times).enumerate() {
                let stream = &self.raw_streams[levels[index]][index];
                match times {
                    (None, _) if start.elapsed() >= job.at => {
                        times.0 = Some(start.elapsed());
                        for launch in self.raw_steps(&[*job]) {
                            // SAFETY: the program owns its buffers, and no other work uses them now.
                            unsafe { launch.on(stream)? };
                        }
                    }
                    (Some(_), None) if stream.is_idle()? => times.1 = Some(start.elapsed()),
                    _ => {}
                }
            }
            std::hint::spin_loop();
        }
        let times = times.into_iter().map(|(a, b)| (a.unwrap_or_default(), b.unwrap_or_default()));
        Ok(Completed::new(times.collect(), 0, Vec::new()))
    }

    fn raw_steps(&self, jobs: &[Job]) -> impl Iterator<Item = &preempt_driver::Launch> {
        rounds(jobs).flat_map(|program| self.programs[program].raw_steps())
    }

    fn run_in_one_raw_stream(&mut self, jobs: &[Job]) -> Result<Duration> {
        self.open_streams(1)?;
        let stream = &self.raw_streams[0][0];
        let start = Instant::now();
        for launch in self.raw_steps(jobs) {
            // SAFETY: the programs own their buffers, and no other work uses them now.
            unsafe { launch.on(stream)? };
        }
        while !stream.is_idle()? {
            ensure!(start.elapsed() < LIMIT, "the stream is not idle within {LIMIT:?}");
            std::hint::spin_loop();
        }
        Ok(start.elapsed())
    }

    /// Creates the raw streams that are missing: one of each level for each of `jobs` jobs.
    pub(super) fn open_streams(&mut self, jobs: usize) -> Result<()> {
        self.raw_streams.resize_with(LEVELS, Vec::new);
        for (level, streams) in self.raw_streams.iter_mut().enumerate() {
            while streams.len() < jobs {
                streams.push(preempt_driver::Stream::new(Level::Above(level as u32))?);
            }
        }
        Ok(())
    }
}

impl Testbed for DeviceTestbed {
    fn has(&self, arm: Arm) -> bool {
        arm != Arm::StreamPriorities || self.gpu.is_some()
    }

    fn add(&mut self, definition: &Definition, size: Size) -> Result<usize> {
        self.programs.push(PreparedProgram::new(&self.scheduler, definition, size, self.seed)?);
        Ok(self.programs.len() - 1)
    }

    fn remove_last(&mut self) {
        self.programs.pop();
    }

    fn name(&self, program: usize) -> &'static str {
        self.programs[program].name
    }

    fn run_bound(&mut self, arm: Arm, jobs: &[Job], bind: Bind<'_>) -> Result<Completed> {
        let is_raw = self.is_raw(arm)?;
        self.checked(arm.name(), jobs, |testbed| match is_raw {
            true => testbed.run_raw(arm, jobs),
            false => testbed.run_scheduled(arm, jobs, bind),
        })
    }

    fn run_in_one_stream(&mut self, jobs: &[Job]) -> Result<Duration> {
        let arm = Arm::PlainStreams;
        let is_raw = self.is_raw(arm)?;
        self.checked("one stream", jobs, |testbed| match is_raw {
            true => testbed.run_in_one_raw_stream(jobs),
            false => {
                let (stream, job) = (testbed.scheduler.stream(0), Job::now(0));
                let steps = testbed.steps(jobs);
                let mut line = [Submission::new(stream, steps, job, arm.preemption())];
                testbed.finish(arm, &mut line)?;
                let [Submission { started, ended, reports, .. }] = line;
                testbed.count(jobs, &reports);
                Ok(ended.unwrap_or_default().saturating_sub(started))
            }
        })
    }

    fn endless(&mut self, arm: Arm, loops: &[Endless], window: Duration) -> Result<Looped> {
        self.scheduler.synchronize()?;
        let jobs: Vec<Job> = loops.iter().map(Endless::job).collect();
        match self.is_raw(arm)? {
            true => self.endless_raw(arm, &jobs, loops, window),
            false => self.endless_scheduled(arm, &jobs, loops, window),
        }
    }

    fn device(&self) -> Option<&DeviceTestbed> {
        Some(self)
    }

    fn close(self: Box<Self>) -> Result<Tally> {
        self.scheduler.synchronize()?;
        Ok(self.tally)
    }
}

/// The programs of jobs, one run after the other.
fn rounds(jobs: &[Job]) -> impl Iterator<Item = usize> {
    jobs.iter().flat_map(|job| std::iter::repeat_n(job.program, job.rounds as usize))
}

/// Priorities that streams of the driver have (H200).
pub(super) const LEVELS: usize = 6;

/// The hardware priority of each job: its rank among the priorities in use, spread over the levels.
fn ranks(jobs: &[Job]) -> Vec<usize> {
    let mut priorities: Vec<i32> = jobs.iter().map(|job| job.priority).collect();
    priorities.sort_unstable();
    priorities.dedup();
    let highest = (priorities.len() - 1).max(1);
    let rank = |job: &Job| priorities.iter().position(|&p| p == job.priority).unwrap_or(0);
    let level = |rank: usize| (rank * (LEVELS - 1)).div_ceil(highest);
    jobs.iter().map(|job| level(rank(job))).collect()
}

/// A job while its launches are submitted to the scheduler.
struct Submission {
    job: Job,
    stream: Stream,
    /// Launches that are not submitted yet.
    steps: VecDeque<Call<'static>>,
    /// Launches that are not over.
    handles: VecDeque<Handle<LaunchReport>>,
    reports: Vec<LaunchReport>,
    is_started: bool,
    started: Duration,
    ended: Option<Duration>,
}

impl Submission {
    fn new<'s>(
        stream: Stream,
        steps: impl Iterator<Item = (&'static str, &'s Call<'static>)>,
        job: Job,
        mode: Preemption,
    ) -> Submission {
        let steps = steps.map(|(_, call)| call.clone().preemption(mode));
        Submission {
            job,
            stream,
            steps: steps.collect(),
            handles: VecDeque::new(),
            reports: Vec::new(),
            is_started: false,
            started: Duration::ZERO,
            ended: None,
        }
    }

    /// Submits launches while there is room, and collects those that are over.
    fn go_on(&mut self, start: Instant) -> Result<()> {
        if !std::mem::replace(&mut self.is_started, true) {
            self.started = start.elapsed();
        }
        while self.handles.len() < DeviceTestbed::AHEAD
            && let Some(call) = self.steps.pop_front()
        {
            self.handles.push_back(self.stream.launch(call)?);
        }
        while let Some(handle) = self.handles.front()
            && let Some(report) = handle.try_wait()
        {
            self.reports.push(report?);
            self.handles.pop_front();
        }
        if self.handles.is_empty() && self.steps.is_empty() {
            self.ended = Some(start.elapsed());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_priorities_keep_the_order() {
        let job = |priority| Job { priority, ..Job::now(0) };
        assert_eq!(ranks(&[job(3), job(3)]), [0, 0]);
        assert_eq!(ranks(&[job(0), job(9)]), [0, 5]);
        assert_eq!(ranks(&[0, 1, 2, 3, 4, 5].map(job)), [0, 1, 2, 3, 4, 5]);
        let many = ranks(&(0..11).map(job).collect::<Vec<_>>());
        assert!(many.is_sorted() && many[0] == 0 && many[10] == 5);
    }
}
