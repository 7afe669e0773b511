//! Jobs, and plans for them.

use std::sync::Arc;

use super::forest::Column;
use super::matching;
use super::planner::Planner;
use super::sharing::Sharing;
use super::speeds::{Speeds, is_time};
use super::split::caterpillars;
use crate::error::{CoscheduleError, Error};

/// Work that the GPU is shared for, in one or more launches.
#[derive(Clone, PartialEq, Debug)]
pub struct Job {
    /// What the job is called in tables and charts.
    pub name: String,
    /// Seconds that the job takes alone.
    pub seconds: f64,
}

impl Job {
    /// A job, and the seconds that it takes alone.
    pub fn new(name: impl Into<String>, seconds: f64) -> Job {
        Job { name: name.into(), seconds }
    }
}

/// Tasks that run in an interval. A task is the place of its job in the list.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum Running {
    /// One task has the GPU.
    Alone {
        /// The task.
        task: usize,
    },
    /// Two tasks share the GPU.
    Pair {
        /// The tasks; the smaller number is the first.
        tasks: [usize; 2],
        /// How they share the GPU.
        sharing: Sharing,
        /// How fast each of them is, as part of its speed alone.
        speeds: [f64; 2],
    },
}

impl Running {
    /// The tasks, one or two.
    pub fn tasks(&self) -> impl Iterator<Item = usize> + use<> {
        let (tasks, count) = match *self {
            Running::Alone { task } => ([task, task], 1),
            Running::Pair { tasks, .. } => (tasks, 2),
        };
        tasks.into_iter().take(count)
    }

    /// How fast a task makes progress, as part of its speed alone; 0 if it does not run.
    pub fn speed_of(&self, task: usize) -> f64 {
        match *self {
            Running::Alone { task: other } => {
                if other == task {
                    1.0
                } else {
                    0.0
                }
            }
            Running::Pair { tasks: [i, _], speeds: [a, _], .. } if i == task => a,
            Running::Pair { tasks: [_, j], speeds: [_, b], .. } if j == task => b,
            Running::Pair { .. } => 0.0,
        }
    }

    /// What runs in a column. Columns of pairs have numbers of ways in `speeds`.
    pub(super) fn of(column: &Column, speeds: &Speeds) -> Running {
        let Column { tasks, way, speeds: rates } = *column;
        match speeds.ways().nth(way).filter(|_| !column.is_loop()) {
            Some(sharing) => Running::Pair { tasks, sharing, speeds: rates },
            None => Running::Alone { task: tasks[0] },
        }
    }
}

/// A time in which the same tasks run in the same way.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Interval {
    /// Seconds from the start of the plan.
    pub start: f64,
    /// Seconds.
    pub duration: f64,
    /// What runs.
    pub running: Running,
}

/// Which jobs run together, for how long, and in which order.
///
/// It prints as a table. [`svg`](CoSchedule::svg) draws it.
///
/// ```
/// use preempt::coschedule::{CoSchedule, Job, Sharing, Speeds};
///
/// let jobs = [Job::new("sort", 4.0), Job::new("fft", 3.0), Job::new("blur", 1.0)];
/// // Sorting leaves room for the others, which are in each other's way.
/// let rows = vec![vec![1.0, 0.9, 1.0], vec![0.8, 1.0, 0.3], vec![0.7, 0.4, 1.0]];
/// let speeds = Speeds::new(Sharing::AllSms, rows)?;
///
/// let plan = CoSchedule::plan(&jobs, &speeds)?;
/// assert!((plan.makespan() - 4.9375).abs() < 1e-9);
/// assert_eq!(plan.preemptions(), 0);
/// assert!(plan.makespan() <= CoSchedule::max_pair(&jobs, &speeds)?.makespan());
/// println!("{plan}");
/// # Ok::<(), preempt::Error>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct CoSchedule {
    pub(super) jobs: Vec<Job>,
    pub(super) speeds: Arc<Speeds>,
    intervals: Vec<Interval>,
    preemptions: Vec<usize>,
    lower_bound: Option<f64>,
}

impl CoSchedule {
    /// The plan with the smallest makespan, its intervals ordered so that jobs are preempted the fewest times. Its
    /// makespan is the optimum of the linear program, to a part of 10⁻⁶.
    ///
    /// There is one job for each task of the speeds. A job of 0 seconds has no interval.
    ///
    /// # Errors
    ///
    /// [`CoscheduleError::NotADuration`], [`OtherTasks`](CoscheduleError::OtherTasks),
    /// [`NotSolved`](CoscheduleError::NotSolved).
    pub fn plan(jobs: &[Job], speeds: &Speeds) -> Result<CoSchedule, Error> {
        Planner::new().plan(jobs, speeds)
    }

    /// MaxPair: each job runs once, alone or beside one other job, so that the most time is saved. No job is preempted.
    ///
    /// Time grows with the cube of the number of jobs.
    ///
    /// # Errors
    ///
    /// [`CoscheduleError::NotADuration`], [`OtherTasks`](CoscheduleError::OtherTasks).
    pub fn max_pair(jobs: &[Job], speeds: &Speeds) -> Result<CoSchedule, Error> {
        let columns = matching::max_pair(&durations(jobs, speeds)?, speeds);
        Ok(CoSchedule::from_columns(jobs, speeds, columns, None))
    }

    /// One job after the other.
    ///
    /// # Errors
    ///
    /// [`CoscheduleError::NotADuration`], [`OtherTasks`](CoscheduleError::OtherTasks).
    pub fn sequential(jobs: &[Job], speeds: &Speeds) -> Result<CoSchedule, Error> {
        let durations = durations(jobs, speeds)?.into_iter().enumerate();
        let alone = durations.map(|(task, seconds)| (Column::alone(task), seconds));
        let columns = alone.filter(|&(_, seconds)| seconds > 0.0).collect();
        Ok(CoSchedule::from_columns(jobs, speeds, columns, None))
    }

    /// The jobs, in the order in which they were given.
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// The intervals, in their order.
    pub fn intervals(&self) -> &[Interval] {
        &self.intervals
    }

    /// The jobs by their places, each once, in the order in which they begin; last those that take no time. Where launches
    /// are submitted in this order, nothing that comes later in the plan runs first and has to be preempted.
    pub fn order(&self) -> Vec<usize> {
        let mut seen = vec![false; self.jobs.len()];
        let begun = self.intervals.iter().flat_map(|interval| interval.running.tasks());
        let all = begun.chain(0..self.jobs.len());
        all.filter(|&task| !std::mem::replace(&mut seen[task], true)).collect()
    }

    /// Seconds from the start of the plan to its end, with preemptions that cost nothing.
    pub fn makespan(&self) -> f64 {
        self.intervals.last().map_or(0.0, |last| last.start + last.duration)
    }

    /// Seconds from the start of the plan to its end if the GPU is idle for `preemption_seconds` at each preemption.
    pub fn makespan_with(&self, preemption_seconds: f64) -> f64 {
        self.makespan() + preemption_seconds * self.preemptions() as f64
    }

    /// How often jobs are preempted: a job that runs in k separate spans of time is preempted k - 1 times.
    pub fn preemptions(&self) -> usize {
        self.preemptions.iter().sum()
    }

    /// How often a job is preempted.
    ///
    /// # Panics
    ///
    /// If there is no job at that place.
    pub fn preemptions_of(&self, task: usize) -> usize {
        self.preemptions[task]
    }

    /// Seconds that no schedule of these jobs is shorter than, as the prices of the linear program prove. `None` for
    /// plans that do not come from it: baselines, and jobs with release times.
    pub fn lower_bound(&self) -> Option<f64> {
        self.lower_bound
    }

    pub(super) fn from_columns(
        jobs: &[Job],
        speeds: &Speeds,
        columns: Vec<(Column, f64)>,
        lower_bound: Option<f64>,
    ) -> CoSchedule {
        let mut start = 0.0;
        let intervals = columns.into_iter().map(|(column, duration)| {
            let interval = Interval { start, duration, running: Running::of(&column, speeds) };
            start += duration;
            interval
        });
        let intervals = intervals.collect();
        CoSchedule::from_intervals(jobs, speeds, intervals, lower_bound)
    }

    /// Neighbours in which the same tasks run in the same way become one interval.
    pub(super) fn from_intervals(
        jobs: &[Job],
        speeds: &Speeds,
        given: Vec<Interval>,
        lower_bound: Option<f64>,
    ) -> CoSchedule {
        let mut intervals: Vec<Interval> = Vec::new();
        for interval in given {
            let follows = |last: &&mut Interval| {
                last.running == interval.running
                    && last.start + last.duration >= interval.start * (1.0 - ROUNDING)
            };
            match intervals.last_mut().filter(follows) {
                Some(last) => last.duration = interval.start + interval.duration - last.start,
                None => intervals.push(interval),
            }
        }
        let preemptions =
            preemptions(jobs.len(), intervals.iter().map(|interval| interval.running.tasks()));
        let speeds = Arc::new(speeds.clone());
        CoSchedule { jobs: jobs.to_vec(), speeds, intervals, preemptions, lower_bound }
    }
}

pub(super) fn durations(jobs: &[Job], speeds: &Speeds) -> Result<Vec<f64>, Error> {
    if let Some(job) = jobs.iter().position(|job| !is_time(job.seconds)) {
        let Job { name, seconds } = jobs[job].clone();
        return Err(CoscheduleError::NotADuration { job, name, seconds }.into());
    }
    if jobs.len() != speeds.tasks() {
        let (jobs, tasks) = (jobs.len(), speeds.tasks());
        return Err(CoscheduleError::OtherTasks { jobs, tasks }.into());
    }
    Ok(jobs.iter().map(|job| job.seconds).collect())
}

/// The same columns in an order with the fewest preemptions.
pub(super) fn in_caterpillars(
    tasks: usize,
    columns: &[(Column, f64)],
) -> Result<Vec<(Column, f64)>, Error> {
    Ok(parts(tasks, columns)?.concat())
}

/// The same columns as caterpillars, each in an order without preemptions.
pub(super) fn parts(
    tasks: usize,
    columns: &[(Column, f64)],
) -> Result<Vec<Vec<(Column, f64)>>, Error> {
    let edges: Vec<(usize, usize)> =
        columns.iter().map(|(column, _)| column.tasks.into()).collect();
    let parts = caterpillars(tasks, &edges)?.into_iter();
    Ok(parts.map(|part| part.edges.into_iter().map(|edge| columns[edge]).collect()).collect())
}

/// For each task, its preemptions when the columns run in an order with the fewest.
pub(super) fn preemptions_of(tasks: usize, columns: &[(Column, f64)]) -> Result<Vec<usize>, Error> {
    let ordered = in_caterpillars(tasks, columns)?;
    Ok(preemptions(tasks, ordered.iter().map(|(column, _)| column.entries().map(|of| of.0))))
}

/// For each task, the spans of neighbouring intervals in which it runs, less one.
pub(super) fn preemptions<T: IntoIterator<Item = usize>>(
    tasks: usize,
    running: impl Iterator<Item = T>,
) -> Vec<usize> {
    let mut last = vec![None; tasks];
    let mut preemptions = vec![0; tasks];
    for (at, running) in running.enumerate() {
        for task in running {
            let before = last[task].replace(at);
            preemptions[task] += usize::from(before.is_some_and(|before| before + 1 != at));
        }
    }
    preemptions
}

/// What a task may lack or do beyond its duration, as a part of it: the rounding of the linear program.
pub(super) const ROUNDING: f64 = 1e-9;

/// Cuts what tasks would do beyond their durations off their last intervals.
///
/// PLP lets a task do more than its duration, for it has `>=`: of two tasks of 1 s and 3 s at full speed, both run for
/// 3 s in an optimal solution. From the time when the first task is done, the other one goes on alone, for as long as
/// it takes to make the same progress. That is no longer than before, and neither task is preempted more often.
pub(super) fn cut_overruns(durations: &[f64], columns: &mut Vec<(Column, f64)>) {
    let mut done = vec![0.0; durations.len()];
    for (column, seconds) in &*columns {
        column.entries().for_each(|(task, speed)| done[task] += speed * seconds);
    }
    let overruns = |task: &usize| done[*task] > durations[*task] * (1.0 + ROUNDING);
    for task in (0..durations.len()).filter(overruns) {
        let mut beyond = done[task] - durations[task];
        let mut at = columns.len();
        while at > 0 && beyond > 0.0 {
            at -= 1;
            let (column, seconds) = columns[at];
            let Some((_, speed)) = column.entries().find(|&(other, _)| other == task) else {
                continue;
            };
            let cut = seconds.min(beyond / speed);
            beyond -= cut * speed;
            columns[at].1 -= cut;
            if let Some((other, speed)) = column.beside(task) {
                columns.insert(at + 1, (Column::alone(other), cut * speed));
            }
        }
        columns.retain(|&(_, seconds)| seconds > 0.0);
    }
}

#[cfg(test)]
pub(super) mod tests;
