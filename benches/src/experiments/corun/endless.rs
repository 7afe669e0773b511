//! Programs in endless loops.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use preempt::policy::Priority;
use preempt::{Error, Handle, LaunchReport, Preemption, Stream};

use preempt::error::LaunchError;

use super::PreparedProgram;
use super::device::{DeviceTestbed, LIMIT};
use super::switch::Reading;
use super::testbed::{Arm, FIFO, Job};
use crate::stopped::Stopped;

/// A program that is run again as soon as it has ended.
#[derive(Clone, Copy, Debug)]
pub struct Endless {
    /// The number of the program on the testbed.
    pub program: usize,
    /// The weight of its stream; less than four.
    pub weight: u32,
    /// The priority of its stream, for arms with priorities.
    pub priority: i32,
}

/// Work that the loops did within some time.
#[derive(Debug)]
pub struct Looped {
    /// Runs of each program; a part of a run counts as a part.
    pub runs: Vec<f64>,
    /// Times that SMs were taken.
    pub yields: u64,
    /// How their blocks left; `None` in virtual time.
    pub stops: Option<Stopped>,
    pub(super) weights: Vec<u32>,
    /// The SM-time of each weight at the policy's plans, where there is a policy.
    pub(super) readings: Vec<Reading>,
}

impl Endless {
    pub(super) fn job(&self) -> Job {
        Job { priority: self.priority, ..Job::now(self.program) }
    }
}

impl DeviceTestbed {
    pub(super) fn endless_scheduled(
        &mut self,
        arm: Arm,
        jobs: &[Job],
        loops: &[Endless],
        window: Duration,
    ) -> Result<Looped> {
        self.choose(arm.policy())?;
        self.selector.start_counting();
        let mut running_loops: Vec<Loop> = loops
            .iter()
            .map(|one| {
                let stream = self.scheduler.stream(Priority(one.priority));
                stream.set_weight(one.weight);
                Loop { stream, handles: VecDeque::new(), next: 0, tasks: 0, yields: 0 }
            })
            .collect();
        let stops = Stopped::of(&self.scheduler);
        let start = Instant::now();
        while start.elapsed() < window {
            for (running_loop, job) in running_loops.iter_mut().zip(jobs) {
                running_loop.go_on(&self.programs[job.program], arm.preemption())?;
            }
            self.pause();
        }
        let readings = self.selector.take_readings();
        // Without the stops of those that are cancelled below.
        let stops = Stopped::of(&self.scheduler).since(&stops);
        for running_loop in &mut running_loops {
            running_loop.end()?;
        }
        self.scheduler.synchronize()?;
        self.selector.select(FIFO);
        let runs = running_loops.iter().zip(loops);
        let runs = runs.map(|(running_loop, one)| {
            running_loop.tasks as f64 / self.programs[one.program].tasks() as f64
        });
        Ok(Looped {
            runs: runs.collect(),
            yields: running_loops.iter().map(|running_loop| running_loop.yields).sum(),
            stops: Some(stops),
            weights: loops.iter().map(|one| one.weight).collect(),
            readings,
        })
    }

    pub(super) fn endless_raw(
        &mut self,
        arm: Arm,
        jobs: &[Job],
        loops: &[Endless],
        window: Duration,
    ) -> Result<Looped> {
        let levels = self.levels(arm, jobs);
        self.open_streams(jobs.len())?;
        // Runs that are over, and the end of the last one.
        let mut over = vec![(0u32, Duration::ZERO); loops.len()];
        let mut running = vec![false; loops.len()];
        let start = Instant::now();
        while start.elapsed() < window || running.contains(&true) {
            ensure!(start.elapsed() < LIMIT, "a program has not ended within {LIMIT:?}");
            for (index, job) in jobs.iter().enumerate() {
                let stream = &self.raw_streams[levels[index]][index];
                if running[index] {
                    if !stream.is_idle()? {
                        continue;
                    }
                    running[index] = false;
                    if start.elapsed() < window {
                        over[index] = (over[index].0 + 1, start.elapsed());
                    }
                }
                if start.elapsed() < window {
                    for launch in self.programs[job.program].raw_steps() {
                        // SAFETY: the program owns its buffers, and no other work uses them now.
                        unsafe { launch.on(stream)? };
                    }
                    running[index] = true;
                }
            }
            std::hint::spin_loop();
        }
        // As if the loop went on at this rate for the rest of the time.
        let runs = over.iter().map(|(runs, last)| match last.is_zero() {
            true => 0.0,
            false => f64::from(*runs) * window.as_secs_f64() / last.as_secs_f64(),
        });
        Ok(Looped {
            runs: runs.collect(),
            yields: 0,
            stops: None,
            weights: loops.iter().map(|one| one.weight).collect(),
            readings: Vec::new(),
        })
    }
}

impl Looped {
    /// The share of a loop in the SM-time of all.
    pub fn share(&self, member: usize) -> Option<f64> {
        self.share_between(member, self.readings.first()?, self.readings.last()?)
    }

    fn share_between(&self, member: usize, from: &Reading, to: &Reading) -> Option<f64> {
        let time = |weight: u32| {
            let [from, to] = [from, to].map(|reading| reading.sm_nanos[weight as usize]);
            (to - from) as f64
        };
        let all: f64 = self.weights.iter().map(|&weight| time(weight)).sum();
        (all > 0.0).then(|| time(self.weights[member]) / all)
    }

    /// The largest distance of a loop's share from `fair` in a tenth of the time.
    pub fn worst_share(&self, member: usize, fair: f64) -> Option<f64> {
        let (first, last) = (self.readings.first()?, self.readings.last()?);
        let tenth = last.at.saturating_sub(first.at) / 10;
        let at = |part: u32| {
            let place =
                self.readings.partition_point(|reading| reading.at < first.at + tenth * part);
            self.readings.get(place).unwrap_or(last)
        };
        let shares = (0..10).filter_map(|part| self.share_between(member, at(part), at(part + 1)));
        shares.map(|share| (share - fair).abs()).reduce(f64::max)
    }
}

/// A program in a loop on a stream of the scheduler.
struct Loop {
    stream: Stream,
    handles: VecDeque<Handle<LaunchReport>>,
    /// The step to submit next.
    next: usize,
    /// Block-tasks that are done.
    tasks: u64,
    yields: u64,
}

impl Loop {
    /// Submits launches while there is room, and collects those that are over.
    fn go_on(&mut self, program: &PreparedProgram, mode: Preemption) -> Result<()> {
        // Two runs ahead, so that the stream never waits for the submitting thread.
        let most = (2 * program.steps().len()).clamp(2, DeviceTestbed::AHEAD);
        while self.handles.len() < most {
            let call = program.steps()[self.next].clone();
            self.handles.push_back(self.stream.launch(call.preemption(mode))?);
            self.next = (self.next + 1) % program.steps().len();
        }
        while let Some(handle) = self.handles.front()
            && let Some(report) = handle.try_wait()
        {
            self.count(report)?;
            self.handles.pop_front();
        }
        Ok(())
    }

    /// Cancels what is under way, and counts the part of it that is done.
    fn end(&mut self) -> Result<()> {
        self.handles.iter().for_each(Handle::cancel);
        for handle in std::mem::take(&mut self.handles) {
            self.count(handle.wait())?;
        }
        Ok(())
    }

    fn count(&mut self, result: Result<LaunchReport, Error>) -> Result<()> {
        match result {
            Ok(report) => {
                self.tasks += u64::from(report.tasks);
                self.yields += u64::from(report.yields);
            }
            Err(Error::Launch(LaunchError::Cancelled { done, .. })) => {
                self.tasks += u64::from(done)
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}
