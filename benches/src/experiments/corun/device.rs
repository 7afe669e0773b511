//! Jobs, played on one device: by a policy, as ordinary grids, or on raw streams of the driver.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use preempt::policy::{Fifo, Policy, Priority};
use preempt::{Call, Handle, LaunchReport, Preemption, Scheduler, Stream};
use preempt_driver::{Gpu, Level};
use preempt_test_kit::storm::Tally;
use preempt_workloads::{Definition, Size};

use super::endless::{Endless, Looped};
use super::stage::{Arm, FIFO, Job, Played, Run, Stage};
use super::switch::{Lever, Switch};
use super::{Cast, NewPolicy};
use crate::experiments::Bench;

/// How long anything here may take before it counts as hung.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// How long `wait` spins.
const SPIN: Duration = Duration::from_millis(100);

/// A device with a scheduler that has many policies, and programs.
pub struct DeviceStage {
    /// The scheduler.
    pub scheduler: Scheduler,
    pub(super) casts: Vec<Cast>,
    seed: u32,
    pub(super) lever: Lever,
    pub(super) gpu: Option<Gpu>,
    /// Raw streams, by level and by job.
    pub(super) raw_streams: Vec<Vec<preempt_driver::Stream>>,
    /// What was run, and what was wrong with it.
    pub tally: Tally,
}

impl DeviceStage {
    /// How many launches of a job are submitted and not over, at most; a stream takes 64.
    pub const AHEAD: usize = 48;

    /// Takes the device. The first policy is `Fifo`; `policies` follow, from number 1 on.
    ///
    /// # Errors
    ///
    /// What the scheduler says.
    pub fn new(bench: &Bench, policies: &[NewPolicy]) -> Result<DeviceStage> {
        let fifo: Box<dyn Policy> = Box::new(Fifo::new());
        let policies = policies.iter().map(|new| new());
        let (switch, lever) = Switch::new(std::iter::once(fifo).chain(policies).collect());
        Ok(DeviceStage::of(bench, bench.spinning_scheduler(switch, SPIN)?, lever))
    }

    /// Takes the device, and records what this policy decides, which it does in every `Arm::Ours`.
    ///
    /// # Errors
    ///
    /// What the scheduler says.
    pub fn recording(bench: &Bench, policy: impl Policy + 'static) -> Result<DeviceStage> {
        // A lever of nothing.
        Ok(DeviceStage::of(bench, bench.recording_scheduler(policy, SPIN)?, Lever::default()))
    }

    fn of(bench: &Bench, scheduler: Scheduler, lever: Lever) -> DeviceStage {
        DeviceStage {
            scheduler,
            casts: Vec::new(),
            seed: bench.seed as u32,
            lever,
            gpu: bench.gpu,
            raw_streams: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// The programs, each at its number.
    pub fn casts(&self) -> &[Cast] {
        &self.casts
    }

    /// Has the policy of this number decide from now on, until something is played.
    ///
    /// # Errors
    ///
    /// If a policy was refused.
    pub fn choose(&self, policy: usize) -> Result<()> {
        self.scheduler.synchronize()?;
        self.lever.pull(policy);
        Ok(())
    }

    /// Whether the arm is played on raw streams.
    pub(super) fn is_raw(&self, arm: Arm) -> Result<bool> {
        ensure!(self.has(arm), "the device has no streams with priorities");
        Ok(self.gpu.is_some() && matches!(arm, Arm::PlainStreams | Arm::StreamPriorities))
    }

    fn play_scheduled(&mut self, arm: Arm, jobs: &[Job]) -> Result<Played> {
        self.lever.pull(arm.policy());
        let act = |job: &Job| {
            let stream = self.scheduler.stream(Priority(job.priority));
            Act::new(stream, &self.casts[job.cast], *job, arm.is_native(job, jobs))
        };
        let mut acts: Vec<Act> = jobs.iter().map(act).collect();
        let start = Instant::now();
        while acts.iter().any(|act| act.ended.is_none()) {
            ensure!(start.elapsed() < LIMIT, "a job has not ended within {LIMIT:?}");
            for act in &mut acts {
                if act.ended.is_none() && start.elapsed() >= act.job.at {
                    act.go_on(start)?;
                }
            }
            std::hint::spin_loop();
        }
        self.scheduler.synchronize()?;
        self.lever.pull(FIFO);
        for act in &acts {
            let cast = &self.casts[act.job.cast];
            for (report, call) in act.reports.iter().zip(cast.steps()) {
                self.tally.report(report);
                let tasks = call.grid_dim().count() as u32;
                self.tally.count(cast.name, &[report.tasks], &[tasks]);
            }
        }
        let yields = acts.iter().flat_map(|act| &act.reports).map(|report| report.yields);
        let yields = yields.map(u64::from).sum();
        let times = acts.iter().map(|act| (act.started, act.ended.unwrap_or_default()));
        let times = times.collect();
        let run = |act: Act| Run { stream: act.stream.id(), reports: act.reports };
        Ok(Played::new(times, yields, acts.into_iter().map(run).collect()))
    }

    /// The level of the raw stream of each job.
    pub(super) fn levels(&self, arm: Arm, jobs: &[Job]) -> Vec<usize> {
        match arm {
            Arm::StreamPriorities => ranks(jobs),
            _ => vec![0; jobs.len()],
        }
    }

    fn play_raw(&mut self, arm: Arm, jobs: &[Job]) -> Result<Played> {
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
                        for launch in self.casts[job.cast].raw_steps() {
                            // SAFETY: the cast owns its buffers, and nobody else uses them now.
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
        Ok(Played::new(times.collect(), 0, Vec::new()))
    }

    /// Sees that there is a raw stream of each level for each of so many jobs.
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

impl Stage for DeviceStage {
    fn has(&self, arm: Arm) -> bool {
        arm != Arm::StreamPriorities || self.gpu.is_some()
    }

    fn enter(&mut self, definition: &Definition, size: Size) -> Result<usize> {
        self.casts.push(Cast::new(&self.scheduler, definition, size, self.seed)?);
        Ok(self.casts.len() - 1)
    }

    fn leave(&mut self) {
        self.casts.pop();
    }

    fn name(&self, cast: usize) -> &'static str {
        self.casts[cast].name
    }

    fn play(&mut self, arm: Arm, jobs: &[Job]) -> Result<Played> {
        for job in jobs {
            self.casts[job.cast].poison()?;
        }
        // Also says if a policy was refused.
        self.scheduler.synchronize()?;
        let played = match self.is_raw(arm)? {
            true => self.play_raw(arm, jobs)?,
            false => self.play_scheduled(arm, jobs)?,
        };
        for job in jobs {
            self.casts[job.cast].check(arm.name(), &mut self.tally)?;
        }
        Ok(played)
    }

    fn endless(&mut self, arm: Arm, loops: &[Endless], window: Duration) -> Result<Looped> {
        self.scheduler.synchronize()?;
        let jobs: Vec<Job> = loops.iter().map(Endless::job).collect();
        match self.is_raw(arm)? {
            true => self.endless_raw(arm, &jobs, loops, window),
            false => self.endless_scheduled(arm, &jobs, loops, window),
        }
    }

    fn device(&self) -> Option<&DeviceStage> {
        Some(self)
    }

    fn close(self: Box<Self>) -> Result<Tally> {
        self.scheduler.synchronize()?;
        Ok(self.tally)
    }
}

/// Priorities that streams of the driver have (H200).
pub(super) const LEVELS: usize = 6;

/// Which hardware priority each job has: its place among the priorities that there are, spread over the levels.
fn ranks(jobs: &[Job]) -> Vec<usize> {
    let mut priorities: Vec<i32> = jobs.iter().map(|job| job.priority).collect();
    priorities.sort_unstable();
    priorities.dedup();
    let highest = (priorities.len() - 1).max(1);
    let rank = |job: &Job| priorities.iter().position(|&p| p == job.priority).unwrap_or(0);
    let level = |rank: usize| (rank * (LEVELS - 1)).div_ceil(highest);
    jobs.iter().map(|job| level(rank(job))).collect()
}

/// A job on the stage of the scheduler.
struct Act {
    job: Job,
    stream: Stream,
    /// Launches to come.
    steps: VecDeque<Call>,
    /// Launches that are not over.
    handles: VecDeque<Handle<LaunchReport>>,
    reports: Vec<LaunchReport>,
    is_started: bool,
    started: Duration,
    ended: Option<Duration>,
}

impl Act {
    fn new(stream: Stream, cast: &Cast, job: Job, native: bool) -> Act {
        let mode = if native { Preemption::Native } else { Preemption::Software };
        let steps = cast.steps().iter().map(|call| call.clone().preemption(mode));
        Act {
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

    /// Submits what there is room for, and takes in what is over.
    fn go_on(&mut self, start: Instant) -> Result<()> {
        if !std::mem::replace(&mut self.is_started, true) {
            self.started = start.elapsed();
        }
        while self.handles.len() < DeviceStage::AHEAD
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
        let job = |priority| Job { cast: 0, at: Duration::ZERO, priority };
        assert_eq!(ranks(&[job(3), job(3)]), [0, 0]);
        assert_eq!(ranks(&[job(0), job(9)]), [0, 5]);
        assert_eq!(ranks(&[0, 1, 2, 3, 4, 5].map(job)), [0, 1, 2, 3, 4, 5]);
        let many = ranks(&(0..11).map(job).collect::<Vec<_>>());
        assert!(many.is_sorted() && many[0] == 0 && many[10] == 5);
    }
}
