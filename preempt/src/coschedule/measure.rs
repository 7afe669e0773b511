//! Jobs alone and in pairs, measured (section V-A).

use super::execution::Execution;
use super::plan::{CoSchedule, Interval, Job, Running};
use super::sharing::Sharing;
use super::speeds::{CoRun, Speeds};
use crate::error::{CoscheduleError, Error};

/// An overlap that is shorter than this part of the shorter job says nothing.
const LEAST_OVERLAP: f64 = 0.1;

impl Execution {
    /// An execution that knows jobs by name, and nothing of how long they take: to [measure](Execution::measure) them.
    pub fn unplanned<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Execution {
        let jobs: Vec<Job> = names.into_iter().map(|name| Job::new(name, 0.0)).collect();
        unknown(&jobs, None).execution()
    }

    /// Measures the jobs: the seconds of each alone, and how fast it is beside each other job in these ways of sharing. It
    /// takes n·(`runs` + 1) runs of one of n jobs, and n·(n − 1)/2·`runs` runs of a pair for each way. The paper has five
    /// runs of each pair.
    ///
    /// `run` runs the jobs of these numbers at the same time, once each, and waits until they are done: it launches them on
    /// streams that are [bound](Execution::bind) to them, of a scheduler with this execution as its policy. Nothing else runs
    /// on the device meanwhile.
    ///
    /// The seconds alone are the median of the runs but the first. Speeds are those of [`CoRun::speed`] against that, both
    /// from the run with the median of their sums. An overlap shorter than a tenth of the shorter job counts as speed 0.
    /// Times are those in which the jobs had SMs, as the scheduler learns of them: some microseconds more than on the
    /// device. So a job should take a millisecond or longer. A job whose blocks run as long as it does keeps its SMs until
    /// it is done, or begins again: let jobs be of many short block-tasks.
    ///
    /// ```
    /// use preempt::coschedule::{CoSchedule, Execution, Sharing};
    /// use preempt::{CpuLayout, Device, Scheduler};
    /// use preempt_device::prelude::*;
    ///
    /// #[preemptible(block = 1, idempotent)]
    /// fn fill(out: SliceMut<u32>) {
    ///     // SAFETY: each block-task writes an element of its own.
    ///     unsafe { out.write(thread::index() as usize, 1) };
    /// }
    ///
    /// let execution = Execution::unplanned(["small", "large"]);
    /// let device = Device::cpu_with(CpuLayout::sms(2))?;
    /// let scheduler = Scheduler::builder().device(device).policy(execution.clone()).build()?;
    /// let streams = [scheduler.stream(0), scheduler.stream(0)];
    /// for (job, stream) in streams.iter().enumerate() {
    ///     execution.bind(job, stream.id())?;
    /// }
    /// let mut buffers = [scheduler.zeroed::<u32>(100)?, scheduler.zeroed::<u32>(400)?];
    /// let (jobs, speeds) = execution.measure(&[Sharing::split(1, 2)], 2, |these| {
    ///     let mut jobs = streams.iter().zip(&mut buffers).enumerate();
    ///     jobs.try_for_each(|(job, (stream, buffer))| {
    ///         let tasks = buffer.len() as u32;
    ///         if these.contains(&job) {
    ///             stream.launch(fill(buffer).grid(tasks))?.detach();
    ///         }
    ///         Ok::<_, preempt::Error>(())
    ///     })?;
    ///     scheduler.synchronize()
    /// })?;
    /// let plan = CoSchedule::plan(&jobs, &speeds)?;
    /// execution.begin(plan)?;
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of `run`; [`CoscheduleError::NothingRan`]; [`CoscheduleError::NoWay`], [`NotShared`](CoscheduleError::NotShared)
    /// and [`SameWay`](CoscheduleError::SameWay) for the ways.
    pub fn measure(
        &self,
        ways: &[Sharing],
        runs: u32,
        mut run: impl FnMut(&[usize]) -> Result<(), Error>,
    ) -> Result<(Vec<Job>, Speeds), Error> {
        let mut jobs = self.jobs();
        let tasks = jobs.len();
        // Of the speeds only the ways can be wrong, because measured speeds are in the range.
        Speeds::in_ways(ways.iter().copied(), 0, |_, _, _| 0.0)?;
        for task in 0..tasks {
            let mut times = Vec::new();
            for _ in 0..runs.max(1) + 1 {
                self.begin(unknown(&jobs, Some(Running::Alone { task })))?;
                run(&[task])?;
                times.push(self.time_of(task));
            }
            times.remove(0);
            times.sort_by(f64::total_cmp);
            if times[0] == 0.0 {
                let name = jobs[task].name.clone();
                return Err(CoscheduleError::NothingRan { job: task, name }.into());
            }
            jobs[task].seconds = times[times.len() / 2];
        }
        let mut tables = vec![vec![vec![1.0; tasks]; tasks]; ways.len()];
        for (&sharing, table) in ways.iter().zip(&mut tables) {
            for (i, j) in (0..tasks).flat_map(|i| (i + 1..tasks).map(move |j| (i, j))) {
                let pair = Running::Pair { tasks: [i, j], sharing, speeds: [1.0; 2] };
                let least = LEAST_OVERLAP * jobs[i].seconds.min(jobs[j].seconds);
                let mut measured = Vec::new();
                for _ in 0..runs.max(1) {
                    self.begin(unknown(&jobs, Some(pair)))?;
                    run(&[i, j])?;
                    let overlap = self.overlap();
                    let speed = |task: usize| {
                        let together = self.time_of(task).max(overlap);
                        CoRun { alone: jobs[task].seconds, together, overlap }.speed(least)
                    };
                    measured.push([speed(i)?, speed(j)?]);
                }
                measured.sort_by(|a, b| (a[0] + a[1]).total_cmp(&(b[0] + b[1])));
                [table[i][j], table[j][i]] = measured[(measured.len() - 1) / 2];
            }
        }
        let speeds = Speeds::in_ways(ways.iter().copied(), tasks, |way, i, j| tables[way][i][j])?;
        Ok((jobs, speeds))
    }

    /// Seconds in which a job had SMs.
    fn time_of(&self, task: usize) -> f64 {
        self.seconds(|running| running.tasks().any(|other| other == task))
    }

    /// Seconds in which two jobs had SMs.
    fn overlap(&self) -> f64 {
        self.seconds(|running| matches!(running, Running::Pair { .. }))
    }
}

/// A plan in which this runs until it is done, of jobs whose speeds are not known.
fn unknown(jobs: &[Job], running: Option<Running>) -> CoSchedule {
    let runs = |task: usize| running.is_some_and(|of| of.tasks().any(|other| other == task));
    let seconds = |task| if runs(task) { 1.0 } else { 0.0 };
    let jobs: Vec<Job> =
        jobs.iter().enumerate().map(|(at, job)| Job::new(&*job.name, seconds(at))).collect();
    // Nothing joins what is measured.
    let speeds = Speeds::none(jobs.len());
    let intervals = running.map(|running| Interval { start: 0.0, duration: 1.0, running });
    CoSchedule::from_intervals(&jobs, &speeds, intervals.into_iter().collect(), None)
}

#[cfg(test)]
mod tests;
