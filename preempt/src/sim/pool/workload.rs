//! Jobs as TReM's evaluation has them.

use std::time::Duration;

use crate::pool::Class;
use crate::sim::random::Random;

/// By which TReM's times are divided: those of its tasks (table III) and its SLA.
const SCALE: u32 = 10;
/// From when a user-facing task is outstanding until its end, at most: TReM's 200 ms, a tenth of them.
pub const SLA: Duration = Duration::from_millis(200 / SCALE as u64);
/// Of table III, in milliseconds.
const USER_FACING: [u64; 9] = [1, 8, 38, 50, 60, 68, 81, 150, 170];
const BATCH: [u64; 3] = [46_000, 130_696, 311_000];
/// Means of the jobs' durations (table IV).
const USER_FACING_JOB: Duration = Duration::from_secs(5);
const BATCH_JOB: Duration = Duration::from_secs(600);
/// Of an experiment (table IV).
const JOBS: usize = 30;
/// The paper has durations with a Pareto distribution and says no shape. With this one the mean is twice the least duration,
/// and the tail is that of a hundred times it.
const SHAPE: f64 = 2.0;
const LONGEST: f64 = 100.0;

/// The parts of user-facing jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobMix {
    /// A half, as in Alibaba's traces.
    W1,
    /// Four fifths, as in Google's.
    W2,
}

impl JobMix {
    fn user_facing(self) -> f64 {
        match self {
            JobMix::W1 => 0.5,
            JobMix::W2 => 0.8,
        }
    }
}

/// What a workload's jobs are drawn from.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct JobTimes {
    /// What tasks take on a device of their own: a user-facing job's are one of these, each as likely as the others.
    pub user_facing: Vec<Duration>,
    /// The same of batch jobs.
    pub batch: Vec<Duration>,
    /// The mean duration of user-facing jobs on one device.
    pub user_facing_job: Duration,
    /// The same of batch jobs.
    pub batch_job: Duration,
}

/// An application that comes with all of its tasks, which are alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolJob {
    /// Of its tasks.
    pub class: Class,
    /// When it comes.
    pub arrival: Duration,
    /// What one of its tasks takes on a device of its own.
    pub task: Duration,
    /// The number of its tasks.
    pub tasks: u32,
}

/// Jobs that come to a pool.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PoolWorkload {
    jobs: Vec<PoolJob>,
    /// Of the tasks of each job; where there is none, the job's.
    times: Vec<Vec<Duration>>,
}

impl PoolWorkload {
    /// These jobs.
    pub fn new(jobs: impl IntoIterator<Item = PoolJob>) -> PoolWorkload {
        PoolWorkload { jobs: jobs.into_iter().collect(), times: Vec::new() }
    }

    /// With what each task had its device for, by job and task in their order, as it was measured where devices slow each other
    /// down, where a task waits for the one to yield whose place it takes, or where that one goes on beside it. Where there is
    /// none, a task takes the time of its [job](PoolJob::task).
    pub fn with_times(self, times: Vec<Vec<Duration>>) -> PoolWorkload {
        PoolWorkload { times, ..self }
    }

    /// What a task took, if that was measured.
    pub(super) fn measured(&self, job: usize, task: u32) -> Option<Duration> {
        self.times.get(job)?.get(task as usize).copied()
    }

    /// TReM's workload (V.B), with a tenth of its times: 30 jobs whose tasks are drawn from its table III, whose durations have
    /// a Pareto distribution, and whose gaps have an exponential one.
    ///
    /// The load is the work that comes, as a part of what the devices can do: with 0.5 the jobs need half of the devices' time,
    /// with 1 all of it, and with more the jobs queue up.
    ///
    /// # Panics
    ///
    /// If the load is 0, below 0 or NaN, or so small that no [`Duration`] is as long as the gaps between jobs.
    pub fn datacenter(mix: JobMix, devices: usize, load: f64, seed: u64) -> PoolWorkload {
        PoolWorkload::jobs_of(mix, JOBS, devices, load, seed)
    }

    /// As [`datacenter`](PoolWorkload::datacenter), with this number of jobs.
    ///
    /// # Panics
    ///
    /// As for [`datacenter`](PoolWorkload::datacenter).
    pub fn jobs_of(mix: JobMix, jobs: usize, devices: usize, load: f64, seed: u64) -> PoolWorkload {
        let times = |millis: &[u64]| millis.iter().copied().map(Duration::from_millis).collect();
        let times = JobTimes {
            user_facing: times(&USER_FACING),
            batch: times(&BATCH),
            user_facing_job: USER_FACING_JOB,
            batch_job: BATCH_JOB,
        };
        let mut workload = PoolWorkload::new(jobs_from(&times, mix, jobs, seed));
        for job in &mut workload.jobs {
            job.task /= SCALE;
        }
        workload.arrive(devices, load, seed);
        workload
    }

    /// As [`jobs_of`](PoolWorkload::jobs_of), with tasks and jobs of other durations, as of tasks that were measured: with the
    /// same seed, the same jobs come in the same order. A class for which `times` has no tasks has no jobs.
    ///
    /// ```
    /// use std::time::Duration;
    /// use preempt::sim::pool::{JobMix, JobTimes, PoolWorkload};
    ///
    /// let ms = Duration::from_millis;
    /// let times = JobTimes {
    ///     user_facing: vec![ms(1), ms(4)],
    ///     batch: vec![ms(300)],
    ///     user_facing_job: ms(50),
    ///     batch_job: ms(900),
    /// };
    /// let workload = PoolWorkload::drawn(&times, JobMix::W1, 10, 4, 1.0, 7);
    /// assert_eq!(workload.jobs().len(), 10);
    /// ```
    ///
    /// # Panics
    ///
    /// As for [`datacenter`](PoolWorkload::datacenter).
    pub fn drawn(
        times: &JobTimes,
        mix: JobMix,
        jobs: usize,
        devices: usize,
        load: f64,
        seed: u64,
    ) -> PoolWorkload {
        let mut workload = PoolWorkload::new(jobs_from(times, mix, jobs, seed));
        workload.arrive(devices, load, seed);
        workload
    }

    /// Gives the jobs arrivals by which they load so many devices.
    fn arrive(&mut self, devices: usize, load: f64, seed: u64) {
        let mut gaps = Random::of(seed, 4);
        let count = self.jobs.len().max(1) as u32;
        let mean = self.work().div_f64(devices.max(1) as f64 * load) / count;
        let mut now = Duration::ZERO;
        for job in &mut self.jobs {
            now += gaps.exponential(mean);
            job.arrival = now;
        }
    }

    /// The jobs.
    pub fn jobs(&self) -> &[PoolJob] {
        &self.jobs
    }

    /// What all tasks take together, by their jobs' times.
    pub fn work(&self) -> Duration {
        self.jobs.iter().map(|job| job.task * job.tasks).sum()
    }

    /// The number of all tasks.
    pub fn tasks(&self) -> u64 {
        self.jobs.iter().map(|job| u64::from(job.tasks)).sum()
    }
}

/// Jobs that have no arrivals yet.
fn jobs_from(times: &JobTimes, mix: JobMix, jobs: usize, seed: u64) -> Vec<PoolJob> {
    let [mut classes, mut durations, mut tasks] = [1, 2, 3].map(|of| Random::of(seed, of));
    // Of each class its part, in a random order, so that 30 jobs of one seed are as mixed as those of another.
    let user_facing = (jobs as f64 * mix.user_facing()).round() as usize;
    let mut order: Vec<_> = (0..jobs).map(|job| (classes.part(), job < user_facing)).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    let job = |(_, is_user_facing): (f64, bool)| {
        let (class, of_class, mean) = match is_user_facing {
            true => (Class::UserFacing, &times.user_facing, times.user_facing_job),
            false => (Class::Batch, &times.batch, times.batch_job),
        };
        let least = mean.mul_f64((SHAPE - 1.0) / SHAPE);
        let duration = least.mul_f64(durations.pareto(SHAPE, LONGEST));
        let task = *of_class.get((tasks.part() * of_class.len() as f64) as usize)?;
        let count = match task.is_zero() {
            true => 1,
            false => (duration.as_secs_f64() / task.as_secs_f64()).round().max(1.0) as u32,
        };
        Some(PoolJob { class, arrival: Duration::ZERO, task, tasks: count })
    };
    order.into_iter().filter_map(job).collect()
}
