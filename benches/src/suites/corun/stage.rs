//! Jobs, played on one device: by a policy, as ordinary grids, or on raw streams of the driver.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use preempt::policy::{Policy, Priority};
use preempt::{Call, Handle, LaunchReport, Preemption, Scheduler, Stream};
use preempt_raw::{Gpu, Level};
use preempt_tests::storm::Tally;

use super::Cast;
use super::switch::{Lever, Switch};
use crate::suites::Bench;

/// How long anything here may take before it counts as hung.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// How long `wait` spins.
const SPIN: Duration = Duration::from_millis(100);

/// A program that somebody wants to run.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Which one: its number among the casts.
    pub cast: usize,
    /// When it is submitted, from the start of the play on.
    pub at: Duration,
    /// Of its stream.
    pub priority: i32,
}

/// Who decides.
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
    /// The same, with ordinary grids for the jobs of the highest priority, which nobody preempts.
    UrgentNative(usize),
}

/// What became of the jobs of a play.
#[derive(Debug)]
pub struct Played {
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

/// A device with a scheduler that has many policies.
pub struct Stage {
    /// The scheduler.
    pub scheduler: Scheduler,
    pub(super) lever: Lever,
    pub(super) gpu: Option<Gpu>,
    /// Raw streams, by level and by job.
    raw_streams: Vec<Vec<preempt_raw::Stream>>,
    /// What was run, and what was wrong with it.
    pub tally: Tally,
}

/// The number of the policy that stands for submission order where there are no raw streams.
pub(super) const FIFO: usize = 0;

impl Stage {
    /// How many launches of a job are submitted and not over, at most; a stream takes 64.
    pub const AHEAD: usize = 48;

    /// Takes the device. The first policy is `Fifo`; `policies` follow, from number 1 on.
    ///
    /// # Errors
    ///
    /// What the scheduler says.
    pub fn new(bench: &Bench, policies: Vec<Box<dyn Policy>>) -> Result<Stage> {
        let fifo: Box<dyn Policy> = Box::new(preempt::policy::Fifo::new());
        let (switch, lever) = Switch::new(std::iter::once(fifo).chain(policies).collect());
        Ok(Stage::of(bench, bench.spinning_scheduler(switch, SPIN)?, lever))
    }

    /// Takes the device, and records what this policy decides, which it does in every `Arm::Ours`.
    ///
    /// # Errors
    ///
    /// What the scheduler says.
    pub fn recording(bench: &Bench, policy: impl Policy + 'static) -> Result<Stage> {
        // A lever of nothing.
        Ok(Stage::of(bench, bench.recording_scheduler(policy, SPIN)?, Lever::default()))
    }

    fn of(bench: &Bench, scheduler: Scheduler, lever: Lever) -> Stage {
        let tally = Tally::default();
        Stage { scheduler, lever, gpu: bench.gpu, raw_streams: Vec::new(), tally }
    }

    /// Whether the device has what the arm needs.
    pub fn has(&self, arm: Arm) -> bool {
        arm != Arm::StreamPriorities || self.gpu.is_some()
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

    /// Runs a program once, alone, and checks its results.
    ///
    /// # Errors
    ///
    /// What the scheduler says; wrong results go to the tally.
    pub fn verify(&mut self, casts: &[Cast], cast: usize) -> Result<()> {
        let job = Job { cast, at: Duration::ZERO, priority: 0 };
        self.play(Arm::Ours(FIFO), casts, &[job]).map(drop)
    }

    /// Plays the jobs once, and checks their results.
    ///
    /// # Errors
    ///
    /// What the scheduler or the driver says; wrong results go to the tally.
    pub fn play(&mut self, arm: Arm, casts: &[Cast], jobs: &[Job]) -> Result<Played> {
        for job in jobs {
            casts[job.cast].poison()?;
        }
        // Also says if a policy was refused.
        self.scheduler.synchronize()?;
        let played = match (arm, self.gpu) {
            (Arm::PlainStreams | Arm::StreamPriorities, Some(_)) => self.play_raw(arm, casts, jobs),
            (Arm::StreamPriorities, None) => anyhow::bail!("the CPU device has no such streams"),
            (Arm::PlainStreams, None) => self.play_scheduled(FIFO, |_| true, casts, jobs),
            (Arm::Reordered(policy), _) => self.play_scheduled(policy, |_| true, casts, jobs),
            (Arm::Ours(policy), _) => self.play_scheduled(policy, |_| false, casts, jobs),
            (Arm::UrgentNative(policy), _) => {
                let most = jobs.iter().map(|job| job.priority).max();
                self.play_scheduled(policy, |job| Some(job.priority) == most, casts, jobs)
            }
        }?;
        for job in jobs {
            casts[job.cast].check(arm.name(), &mut self.tally)?;
        }
        Ok(played)
    }

    fn play_scheduled(
        &mut self,
        policy: usize,
        native: impl Fn(&Job) -> bool,
        casts: &[Cast],
        jobs: &[Job],
    ) -> Result<Played> {
        self.lever.pull(policy);
        let mut acts: Vec<Act> = jobs
            .iter()
            .map(|job| {
                let stream = self.scheduler.stream(Priority(job.priority));
                Act::new(stream, casts, *job, native(job))
            })
            .collect();
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
            let cast = &casts[act.job.cast];
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

    fn play_raw(&mut self, arm: Arm, casts: &[Cast], jobs: &[Job]) -> Result<Played> {
        let levels = self.levels(arm, jobs);
        let streams = self.streams(jobs.len())?;
        let mut times: Vec<(Option<Duration>, Option<Duration>)> = vec![(None, None); jobs.len()];
        let start = Instant::now();
        while times.iter().any(|(_, ended)| ended.is_none()) {
            ensure!(start.elapsed() < LIMIT, "a job has not ended within {LIMIT:?}");
            for (index, (job, times)) in jobs.iter().zip(&mut times).enumerate() {
                let stream = &streams[levels[index]][index];
                match times {
                    (None, _) if start.elapsed() >= job.at => {
                        times.0 = Some(start.elapsed());
                        for launch in casts[job.cast].raw_steps() {
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

    /// A raw stream of each level for each of so many jobs.
    pub(super) fn streams(&mut self, jobs: usize) -> Result<&[Vec<preempt_raw::Stream>]> {
        self.raw_streams.resize_with(LEVELS, Vec::new);
        for (level, streams) in self.raw_streams.iter_mut().enumerate() {
            while streams.len() < jobs {
                streams.push(preempt_raw::Stream::new(Level::Above(level as u32))?);
            }
        }
        Ok(&self.raw_streams)
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

impl Arm {
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

impl Played {
    fn new(times: Vec<(Duration, Duration)>, yields: u64, runs: Vec<Run>) -> Played {
        let first = times.iter().map(|(start, _)| *start).min().unwrap_or_default();
        let last = times.iter().map(|(_, end)| *end).max().unwrap_or_default();
        let turnaround = times.iter().map(|(start, end)| end.saturating_sub(*start)).collect();
        Played { turnaround, makespan: last.saturating_sub(first), yields, runs }
    }
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
    fn new(stream: Stream, casts: &[Cast], job: Job, native: bool) -> Act {
        let mode = if native { Preemption::Native } else { Preemption::Software };
        let steps = casts[job.cast].steps().iter().map(|call| call.clone().preemption(mode));
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
        while self.handles.len() < Stage::AHEAD
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
