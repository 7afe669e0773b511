//! Plans beyond the paper: preemptions that cost time, and jobs that arrive.

use super::forest::{self, Column};
use super::plan::{
    CoSchedule, Interval, Job, ROUNDING, Running, cut_overruns, durations, in_caterpillars, parts,
    preemptions_of,
};
use super::speeds::{Speeds, is_time};
use super::twins;
use super::{assignment, matching};
use crate::error::{CoscheduleError, Error};

/// Plans with options. [`CoSchedule::plan`] is a planner without any.
///
/// ```
/// use preempt::coschedule::{CoSchedule, Job, Planner, Sharing, Speeds};
///
/// // Three equal jobs: each pair for a third of the time is the shortest plan, and preempts one of them.
/// let jobs = [Job::new("a", 1.0), Job::new("b", 1.0), Job::new("c", 1.0)];
/// let speeds = Speeds::from_fn(Sharing::AllSms, 3, |_, _| 1.0)?;
/// let plan = CoSchedule::plan(&jobs, &speeds)?;
/// assert_eq!((plan.makespan(), plan.preemptions()), (1.5, 1));
///
/// // If the GPU is idle for a second at each preemption, it is better to run one of them alone.
/// let plan = Planner::new().preemption_cost(1.0).plan(&jobs, &speeds)?;
/// assert_eq!((plan.makespan(), plan.preemptions()), (2.0, 0));
/// # Ok::<(), preempt::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Planner {
    preemption_seconds: f64,
}

impl Planner {
    /// A planner for preemptions that cost nothing.
    pub fn new() -> Planner {
        Planner::default()
    }

    /// Seconds for which the GPU is idle at each preemption. A preemption that costs more than it gains is left out.
    ///
    /// Which preemptions to leave out is a hard problem (theorem 2). Pairs are dropped from the optimal solution one at a
    /// time, as long as that shortens the plan with its preemptions. The result is never longer than
    /// [`CoSchedule::max_pair`].
    pub fn preemption_cost(mut self, seconds: f64) -> Planner {
        self.preemption_seconds = seconds;
        self
    }

    /// A plan for jobs that are all there at the start. [`CoSchedule::makespan`] is without the cost of preemptions,
    /// [`CoSchedule::makespan_with`] is with it.
    ///
    /// # Errors
    ///
    /// Those of [`CoSchedule::plan`], and [`CoscheduleError::NotATime`] for the cost of a preemption.
    pub fn plan(&self, jobs: &[Job], speeds: &Speeds) -> Result<CoSchedule, Error> {
        self.check()?;
        let durations = durations(jobs, speeds)?;
        let (columns, bound) = self.columns(&durations, speeds)?;
        let mut columns = in_caterpillars(jobs.len(), &columns)?;
        cut_overruns(&durations, &mut columns);
        Ok(CoSchedule::from_columns(jobs, speeds, columns, Some(bound)))
    }

    /// A plan for jobs of which each is there from its release time on, in seconds from the start of the plan.
    ///
    /// Nothing is known of a job before its release. At each release the jobs that are there are planned again with what
    /// remains of them. The new plan begins with a job that runs at that time, where it can. There is no interval while
    /// no job is there.
    ///
    /// ```
    /// use preempt::coschedule::{Job, Planner, Sharing, Speeds};
    ///
    /// let jobs = [Job::new("early", 2.0), Job::new("late", 2.0)];
    /// let speeds = Speeds::from_fn(Sharing::AllSms, 2, |_, _| 1.0)?;
    /// let plan = Planner::new().plan_released(&jobs, &[0.0, 1.0], &speeds)?;
    /// assert_eq!((plan.makespan(), plan.preemptions()), (3.0, 0));
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`plan`](Planner::plan), [`CoscheduleError::OtherReleases`], and [`CoscheduleError::NotATime`] for a
    /// release time.
    pub fn plan_released(
        &self,
        jobs: &[Job],
        releases: &[f64],
        speeds: &Speeds,
    ) -> Result<CoSchedule, Error> {
        self.check()?;
        let durations = durations(jobs, speeds)?;
        if releases.len() != jobs.len() {
            let (releases, jobs) = (releases.len(), jobs.len());
            return Err(CoscheduleError::OtherReleases { releases, jobs }.into());
        }
        if let Some(job) = releases.iter().position(|&release| !is_time(release)) {
            let what = format!("the release time of job {job} `{}`", jobs[job].name);
            return Err(CoscheduleError::NotATime { what, seconds: releases[job] }.into());
        }
        let mut events = releases.to_vec();
        events.sort_by(f64::total_cmp);
        events.dedup();
        let mut remaining = durations.clone();
        let mut intervals: Vec<Interval> = Vec::new();
        for (at, &now) in events.iter().enumerate() {
            let until = events.get(at + 1).copied().unwrap_or(f64::INFINITY);
            let is_there =
                |task: usize| releases[task] <= now && remaining[task] > ROUNDING * durations[task];
            let left: Vec<f64> = (0..jobs.len())
                .map(|task| if is_there(task) { remaining[task] } else { 0.0 })
                .collect();
            let last = intervals
                .last()
                .filter(|last| last.start + last.duration >= now * (1.0 - ROUNDING));
            let running: Vec<usize> =
                last.map_or(Vec::new(), |last| last.running.tasks().collect());
            let (columns, _) = self.columns(&left, speeds)?;
            let mut columns = beginning_with(&running, parts(jobs.len(), &columns)?);
            cut_overruns(&left, &mut columns);
            let mut start = now;
            for (column, duration) in columns {
                let duration = duration.min(until - start);
                if duration <= 0.0 {
                    break;
                }
                column.entries().for_each(|(task, speed)| remaining[task] -= speed * duration);
                intervals.push(Interval { start, duration, running: Running::of(&column, speeds) });
                start = if start + duration >= until { until } else { start + duration };
            }
        }
        Ok(CoSchedule::from_intervals(jobs, speeds, intervals, None))
    }

    fn check(&self) -> Result<(), Error> {
        let seconds = self.preemption_seconds;
        if is_time(seconds) {
            return Ok(());
        }
        Err(CoscheduleError::NotATime { what: "the cost of a preemption".into(), seconds }.into())
    }

    /// Which tasks run together for how long, and the bound of all schedules.
    fn columns(
        &self,
        durations: &[f64],
        speeds: &Speeds,
    ) -> Result<(Vec<(Column, f64)>, f64), Error> {
        let optimum = twins::solve(durations, speeds)?;
        if self.preemption_seconds == 0.0 {
            return Ok((optimum.columns, optimum.bound));
        }
        let tasks = durations.len();
        let columns = self.without_costly_pairs(tasks, &optimum.columns)?;
        let (makespan, _) = self.makespan(tasks, &columns)?;
        // A matching takes long, and a bound of all matchings does not.
        let least = durations.iter().sum::<f64>() - makespan;
        if !assignment::could_save(least, tasks, &matching::saved(durations, speeds)) {
            return Ok((columns, optimum.bound));
        }
        let pairs = matching::max_pair(durations, speeds);
        let is_shorter = pairs.iter().map(|(_, seconds)| seconds).sum::<f64>() < makespan;
        Ok((if is_shorter { pairs } else { columns }, optimum.bound))
    }

    /// Seconds with the cost of preemptions, and the preemptions of each task.
    fn makespan(
        &self,
        tasks: usize,
        columns: &[(Column, f64)],
    ) -> Result<(f64, Vec<usize>), Error> {
        let preempted = preemptions_of(tasks, columns)?;
        let seconds: f64 = columns.iter().map(|(_, seconds)| seconds).sum();
        let preemptions = preempted.iter().sum::<usize>() as f64;
        Ok((seconds + self.preemption_seconds * preemptions, preempted))
    }

    /// Drops pairs at tasks that are preempted, the pair that gains least first, as long as the preemptions that end
    /// with it cost more than it gains. Its tasks do alone what they did together, and the solution moves to a vertex.
    ///
    /// Components have no task in common, so each is looked at without the others.
    fn without_costly_pairs(
        &self,
        tasks: usize,
        columns: &[(Column, f64)],
    ) -> Result<Vec<(Column, f64)>, Error> {
        let mut components: Vec<_> = forest::components(tasks, columns).collect();
        let mut kept = Vec::new();
        while let Some(mut component) = components.pop() {
            // Numbers from 0 on, so that a trial takes as long as the component is large.
            let mut numbers: Vec<usize> =
                component.iter().flat_map(|(column, _)| column.tasks).collect();
            numbers.sort_unstable();
            numbers.dedup();
            for (column, _) in &mut component {
                column.tasks = column.tasks.map(|task| numbers.partition_point(|&of| of < task));
            }
            let shorter = self.trials(numbers.len(), &component)?;
            let is_shorter = shorter.is_some();
            let mut columns = shorter.unwrap_or(component);
            for (column, _) in &mut columns {
                column.tasks = column.tasks.map(|number| numbers[number]);
            }
            if is_shorter {
                components.extend(forest::components(tasks, &columns));
            } else {
                kept.append(&mut columns);
            }
        }
        Ok(kept)
    }

    /// Tries each pair at a preempted task once; `None` if all of them are better kept.
    fn trials(
        &self,
        tasks: usize,
        columns: &[(Column, f64)],
    ) -> Result<Option<Vec<(Column, f64)>>, Error> {
        let (mut shortest, preempted) = self.makespan(tasks, columns)?;
        let at_preempted = |column: &Column| column.entries().any(|(task, _)| preempted[task] > 0);
        let pairs = columns.iter().filter(|(column, _)| !column.is_loop() && at_preempted(column));
        let mut pairs: Vec<(f64, [usize; 2])> =
            pairs.map(|(column, seconds)| (column.gain() * seconds, column.tasks)).collect();
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut shorter: Option<Vec<(Column, f64)>> = None;
        for (_, pair) in pairs {
            let columns = shorter.as_deref().unwrap_or(columns);
            let mut trial = Vec::with_capacity(columns.len() + 2);
            let mut alone = [0.0; 2];
            for &(column, seconds) in columns {
                if column.tasks == pair {
                    alone
                        .iter_mut()
                        .zip(column.speeds)
                        .for_each(|(done, speed)| *done += speed * seconds);
                } else {
                    trial.push((column, seconds));
                }
            }
            trial.extend(pair.map(Column::alone).into_iter().zip(alone));
            let trial = forest::to_vertex(tasks, &trial);
            let (makespan, _) = self.makespan(tasks, &trial)?;
            if makespan < shortest * (1.0 - ROUNDING) {
                (shorter, shortest) = (Some(trial), makespan);
            }
        }
        Ok(shorter)
    }
}

/// The caterpillars one after the other, the first one beginning with as many as possible of the tasks that run. A
/// caterpillar can run from either end.
fn beginning_with(running: &[usize], mut parts: Vec<Vec<(Column, f64)>>) -> Vec<(Column, f64)> {
    let shared = |end: Option<&(Column, f64)>| {
        end.map_or(0, |(column, _)| {
            column.entries().filter(|(task, _)| running.contains(task)).count()
        })
    };
    let ends = parts.iter().enumerate().flat_map(|(at, part)| {
        [(shared(part.first()), at, false), (shared(part.last()), at, true)]
    });
    // The first of equal ones.
    if let Some((_, at, is_reversed)) = ends.rev().max_by_key(|&(shared, ..)| shared) {
        if is_reversed {
            parts[at].reverse();
        }
        parts[..=at].rotate_right(1);
    }
    parts.concat()
}

#[cfg(test)]
mod tests;
