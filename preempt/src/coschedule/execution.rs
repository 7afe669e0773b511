//! A plan, carried out: the policy that runs what the plan says, as far as that is there.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::plan::{CoSchedule, Interval, Job, Running};
use super::sharing::Sharing;
use crate::error::{CoscheduleError, Error};
use crate::policy::{Arrival, DeviceView, Packing, Plan, Policy, SmRange};
use crate::sync::{Mutex, lock};
use crate::vocabulary::LaunchId;

/// A [plan](CoSchedule) that is carried out. It is a policy for [`SchedulerBuilder::policy`], and a handle to that: clones
/// are the same execution.
///
/// What a stream launches belongs to the job that the stream is [bound](Execution::bind) to: kernels, and kernels of
/// programs. Submit all of a job at once, because a job without a ready launch does not hold its place.
///
/// Progress decides, and not the clock. It is the time that the job ran, multiplied by the speed of the plan. Whenever its
/// blocks have left, it is corrected by what was done. An interval is over when each job that leaves has come as far as
/// planned; what a job is then found to lack is done in its next intervals. A job in its last interval stays until it is
/// done. Where a job is done earlier, is late or is missing:
///
/// - The other one goes on with all SMs. The job whose speeds beside it gain most joins it, if that gains more until it is
///   done than it costs to stop the other job ([`DeviceView::yield_overhead`]).
/// - A job that is there later runs its first interval then.
/// - A launch that fails or is cancelled is over, and the rest of the plan goes on.
///
/// Launches of other streams run while no job has any, in the order in which they became ready. A plain grid
/// ([`Preemption::Plain`](crate::Preemption::Plain)) cannot be made to leave, or to share an SM by halves: let jobs be
/// preemptible.
///
/// ```
/// use preempt::coschedule::{CoSchedule, Job, Sharing, Speeds};
/// use preempt::{CpuLayout, Device, Scheduler};
/// use preempt_device::prelude::*;
///
/// #[preemptible(block = 1, idempotent)]
/// fn count(out: SliceMut<u32>) {
///     // SAFETY: each block-task writes an element of its own.
///     unsafe { out.write(thread::index() as usize, 1) };
/// }
///
/// let speeds = Speeds::from_fn(Sharing::split(1, 2), 2, |_, _| 0.8)?;
/// let plan = CoSchedule::plan(&[Job::new("a", 0.002), Job::new("b", 0.001)], &speeds)?;
///
/// let execution = plan.execution();
/// let device = Device::cpu_with(CpuLayout::sms(4))?;
/// let scheduler = Scheduler::builder().device(device).policy(execution.clone()).build()?;
/// let (first, second) = (scheduler.stream(0), scheduler.stream(0));
/// execution.bind(0, first.id())?;
/// execution.bind(1, second.id())?;
///
/// let mut buffers = [scheduler.zeroed::<u32>(2000)?, scheduler.zeroed::<u32>(1000)?];
/// let [a, b] = &mut buffers;
/// first.launch(count(a).grid(2000))?.detach();
/// second.launch(count(b).grid(1000))?.detach();
/// scheduler.synchronize()?;
/// println!("{}", execution.executed());
/// # Ok::<(), preempt::Error>(())
/// ```
///
/// [`SchedulerBuilder::policy`]: crate::SchedulerBuilder::policy
#[derive(Clone, Debug)]
pub struct Execution {
    state: Arc<Mutex<State>>,
}

impl CoSchedule {
    /// Carries the plan out.
    pub fn execution(&self) -> Execution {
        Execution { state: Arc::new(Mutex::new(State::new(self.clone()))) }
    }
}

impl Execution {
    /// Lets what the stream of this number launches belong to a job; [`Stream::id`](crate::Stream::id) is its number. A
    /// job can have several streams. A stream that is bound again belongs to the other job from its next launch on.
    ///
    /// # Errors
    ///
    /// [`CoscheduleError::NoSuchJob`].
    pub fn bind(&self, job: usize, stream: u32) -> Result<(), Error> {
        let mut state = lock(&self.state);
        let jobs = state.jobs.len();
        if job >= jobs {
            return Err(CoscheduleError::NoSuchJob { job, jobs }.into());
        }
        state.streams.insert(stream, job);
        Ok(())
    }

    /// Goes on with another plan for the same jobs, such as one for what [remains](Execution::remaining) of them when
    /// another one has arrived. It takes effect at the next arrival or departure of a launch, or end of an interval.
    ///
    /// The seconds of the plan's jobs are what is left of each from now on, as [`remaining`](Execution::remaining) gives it,
    /// and not what it takes from its beginning.
    ///
    /// ```
    /// use preempt::coschedule::{CoSchedule, Job, Sharing, Speeds};
    ///
    /// let plan_for = |seconds: &[f64]| {
    ///     let jobs: Vec<Job> = ["a", "b", "c"].into_iter().zip(seconds).map(|(name, &left)| Job::new(name, left)).collect();
    ///     CoSchedule::plan(&jobs, &Speeds::from_fn(Sharing::AllSms, 3, |_, _| 0.8)?)
    /// };
    /// // The third job is not there yet.
    /// let execution = plan_for(&[2.0, 1.0, 0.0])?.execution();
    ///
    /// // Later, when it has arrived: what is left of the first two, and all of the third.
    /// let mut left = execution.remaining();
    /// left[2] = 3.0;
    /// execution.replan(plan_for(&left)?)?;
    /// assert_eq!(execution.remaining(), [2.0, 1.0, 3.0]); // nothing ran in this example
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CoscheduleError::OtherTasks`] if it has more or fewer jobs.
    pub fn replan(&self, plan: CoSchedule) -> Result<(), Error> {
        let mut state = lock(&self.state);
        state.check(&plan)?;
        state.follow(plan);
        Ok(())
    }

    /// The jobs of the plan.
    pub(super) fn jobs(&self) -> Vec<Job> {
        lock(&self.state).plan.jobs().to_vec()
    }

    /// Seconds, alone, that are left of each job, as far as the execution knows. A job that is not there counts as done if
    /// it was there. Of a job that is there, something is left.
    pub fn remaining(&self) -> Vec<f64> {
        let state = lock(&self.state);
        let left = |of: &Progress| match of.here.is_empty() {
            true if of.was_there => 0.0,
            true => of.seconds - of.done,
            // It takes longer than was planned.
            false => (of.seconds - of.done).max(CLOCK.as_secs_f64()),
        };
        state.jobs.iter().map(left).collect()
    }

    /// Seconds that a preemption of each job costs: until its blocks have left, and for the work that they drop
    /// ([`DeviceView::yield_overhead`]). They are as they were expected when the job last ran; 0 for a job that never
    /// did. [`Planner::preemption_cost`](super::Planner::preemption_cost) takes one figure for all jobs, such as their mean.
    pub fn preemption_seconds(&self) -> Vec<f64> {
        lock(&self.state).jobs.iter().map(|job| job.preemption.as_secs_f64()).collect()
    }

    /// What ran so far, as a plan: which jobs had SMs when, from the first launch of a job on. It prints and draws like
    /// one. Its speeds are those of the plan.
    pub fn executed(&self) -> CoSchedule {
        let state = lock(&self.state);
        let CoSchedule { jobs, speeds, .. } = &state.plan;
        CoSchedule::from_intervals(jobs, speeds, state.ran.clone(), None)
    }

    /// Seconds in which something ran that counts.
    pub(super) fn seconds(&self, counts: impl Fn(&Running) -> bool) -> f64 {
        let state = lock(&self.state);
        let counted = state.ran.iter().filter(|interval| counts(&interval.running));
        counted.map(|interval| interval.duration).sum()
    }

    /// Begins anew with a plan for the same jobs, and forgets what ran and how far they have come.
    ///
    /// # Errors
    ///
    /// Those of [`replan`](Execution::replan).
    pub fn begin(&self, plan: CoSchedule) -> Result<(), Error> {
        let mut state = lock(&self.state);
        state.check(&plan)?;
        // What runs now began before, and the clock may be another one's: that of the next simulation.
        (state.ran, state.began, state.running) = (Vec::new(), None, None);
        state.counted = Duration::ZERO;
        for job in &mut state.jobs {
            (job.done, job.was_there) = (0.0, !job.here.is_empty());
            for here in &mut job.here {
                (here.begun, here.has_yielded) = (None, false);
            }
        }
        state.follow(plan);
        Ok(())
    }
}

/// An interval of the plan, and what has to be done by its end.
#[derive(Debug)]
struct Step {
    running: Running,
    /// What each task of it has to do.
    ends: [End; 2],
}

/// What a task has to do in an interval.
#[derive(Clone, Copy, Debug)]
struct End {
    /// Its progress at the end of the interval, in seconds alone.
    until: f64,
    /// What becomes of it then.
    after: After,
    /// Whether it has come that far. What it is found to lack later, because block-tasks were dropped when it left, is done
    /// in its next intervals: to go back for that would drop more.
    is_reached: bool,
}

impl Step {
    /// The tasks whose progress ends it: those that leave. If both stay, they share the GPU in another way then, and either
    /// ends it.
    fn leavers(&self) -> impl Iterator<Item = (usize, End)> {
        let tasks = || self.running.tasks().zip(self.ends);
        let is_change = tasks().all(|(_, end)| end.after == After::Stays);
        tasks().filter(move |(_, end)| is_change || end.after != After::Stays)
    }
}

/// What becomes of a task after an interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum After {
    /// It runs in the next one, too.
    Stays,
    /// It runs again later.
    Leaves,
    /// This was its last interval.
    IsDone,
}

/// How far a job has come.
#[derive(Debug, Default)]
struct Progress {
    /// What it takes alone.
    seconds: f64,
    /// Of these, those that are done.
    done: f64,
    /// Its ready launches, in their order. The first one runs.
    here: Vec<Here>,
    was_there: bool,
    /// What it was expected to cost to preempt it when it last ran.
    preemption: Duration,
}

impl Progress {
    fn expect_stop(&mut self, device: &dyn DeviceView) {
        if let Some(here) = self.here.first() {
            self.preemption = device.yield_overhead(here.id);
        }
    }
}

/// A ready launch of a job.
#[derive(Clone, Copy, Debug)]
struct Here {
    id: LaunchId,
    /// The progress of the job at its beginning, and the time that the launch was predicted to take then. `None` until
    /// the policy is asked.
    begun: Option<(f64, Option<Duration>)>,
    /// Its blocks have left since its progress was looked at.
    has_yielded: bool,
}

#[derive(Debug)]
struct State {
    plan: CoSchedule,
    steps: Vec<Step>,
    jobs: Vec<Progress>,
    streams: HashMap<u32, usize>,
    /// The job of each launch; `None` for those of other streams, which are in `others`, too.
    launches: HashMap<LaunchId, Option<usize>>,
    others: Vec<LaunchId>,
    /// What runs, since when progress is not counted, and when it has to be looked at.
    running: Option<Running>,
    counted: Duration,
    wake: Option<Duration>,
    /// When the first job began.
    began: Option<Duration>,
    ran: Vec<Interval>,
}

impl State {
    fn new(plan: CoSchedule) -> State {
        let jobs = plan.jobs().iter().map(|_| Progress::default()).collect();
        let mut state = State {
            plan: plan.clone(),
            steps: Vec::new(),
            jobs,
            streams: HashMap::new(),
            launches: HashMap::new(),
            others: Vec::new(),
            running: None,
            counted: Duration::ZERO,
            wake: None,
            began: None,
            ran: Vec::new(),
        };
        state.follow(plan);
        state
    }

    fn check(&self, plan: &CoSchedule) -> Result<(), Error> {
        let (jobs, tasks) = (plan.jobs().len(), self.jobs.len());
        if jobs == tasks { Ok(()) } else { Err(CoscheduleError::OtherTasks { jobs, tasks }.into()) }
    }

    /// Follows a plan for what remains from now on.
    fn follow(&mut self, plan: CoSchedule) {
        for (job, Job { seconds, .. }) in self.jobs.iter_mut().zip(plan.jobs()) {
            job.seconds = job.done + seconds;
        }
        self.steps = steps(plan.intervals(), self.jobs.iter().map(|job| job.done).collect());
        self.plan = plan;
    }

    fn is_here(&self, job: usize) -> bool {
        !self.jobs[job].here.is_empty()
    }

    /// Counts what ran until now.
    fn count(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.counted).as_secs_f64();
        if let Some(running) = self.running.filter(|_| elapsed > 0.0) {
            for task in running.tasks() {
                let job = &mut self.jobs[task];
                job.done = (job.done + elapsed * running.speed_of(task)).min(job.seconds);
            }
            let began = *self.began.get_or_insert(self.counted);
            let start = (self.counted - began).as_secs_f64();
            match self.ran.last_mut() {
                Some(last) if last.running == running && last.start + last.duration >= start => {
                    last.duration = start + elapsed - last.start;
                }
                _ => self.ran.push(Interval { start, duration: elapsed, running }),
            }
        }
        self.counted = self.counted.max(now);
    }

    /// Corrects the progress of a job by what the device says of its launch.
    fn look(&mut self, job: usize, device: &dyn DeviceView) {
        let job = &mut self.jobs[job];
        // A simulation may have stopped before its launches were over.
        job.here.retain(|here| device.need(here.id) > 0);
        let Some(here) = job.here.first_mut() else { return };
        let Some((before, predicted)) = here.begun else {
            here.begun = Some((job.done, device.remaining(here.id)));
            return;
        };
        if std::mem::take(&mut here.has_yielded)
            && let (Some(predicted), Some(remaining)) = (predicted, device.remaining(here.id))
        {
            let done = before + predicted.saturating_sub(remaining).as_secs_f64();
            job.done = done.min(job.seconds);
        }
    }

    /// Whether a task of an interval has more to do in it. What has left is over for now.
    fn has_more(&self, task: usize, end: End) -> bool {
        let has_more =
            end.after == After::IsDone || !end.is_reached && !self.has_reached(task, end);
        self.is_here(task) && has_more
    }

    fn has_reached(&self, task: usize, end: End) -> bool {
        end.until - self.jobs[task].done <= CLOCK.as_secs_f64()
    }

    /// Notes how far tasks have come.
    fn note(&mut self) {
        for step in 0..self.steps.len() {
            let tasks = self.steps[step].running.tasks();
            for (index, task) in tasks.enumerate() {
                let end = self.steps[step].ends[index];
                self.steps[step].ends[index].is_reached |= self.has_reached(task, end);
            }
        }
    }

    /// Whether an interval goes on.
    fn goes_on(&self, step: &Step) -> bool {
        step.leavers().any(|(task, end)| self.has_more(task, end))
    }

    /// What runs now, and when it has to be looked at although nothing happens.
    fn decide(&self, device: &dyn DeviceView) -> Option<(Running, Option<Duration>)> {
        let Some(step) = self.steps.iter().find(|step| self.goes_on(step)) else {
            // Of a job that has no interval.
            let task = (0..self.jobs.len()).find(|&job| self.is_here(job))?;
            return Some((Running::Alone { task }, None));
        };
        let mut here = step.running.tasks().filter(|&task| self.is_here(task));
        let (first, second) = (here.next()?, here.next());
        let running = match step.running {
            Running::Pair { .. } if second.is_none() => self.beside(first, device),
            Running::Pair { sharing, .. } if !is_possible(sharing, device) => {
                Running::Alone { task: first }
            }
            planned => planned,
        };
        Some((running, self.until_the_end(step, running)))
    }

    /// Until the end of an interval, if this runs; `None` if it ends with a departure.
    fn until_the_end(&self, step: &Step, running: Running) -> Option<Duration> {
        let mut longest = 0.0f64;
        for (task, end) in step.leavers().filter(|&(task, end)| self.has_more(task, end)) {
            let speed = running.speed_of(task);
            if end.after == After::IsDone || speed == 0.0 {
                return None;
            }
            longest = longest.max((end.until - self.jobs[task].done) / speed);
        }
        Duration::try_from_secs_f64(longest).ok().map(|left| left.max(CLOCK))
    }

    /// A task whose companion is not there: alone, or with the task that gains most beside it.
    fn beside(&self, task: usize, device: &dyn DeviceView) -> Running {
        let Some(here) = self.jobs[task].here.first() else { return Running::Alone { task } };
        let planned = self.jobs[task].seconds - self.jobs[task].done;
        let left = device.remaining(here.id).map_or(0.0, |left| left.as_secs_f64()).max(planned);
        let speeds = &self.plan.speeds;
        // It was worth its stop when it joined, and would be stopped now for nothing.
        if let Some(Running::Pair { tasks, .. }) = self.running.filter(|of| of.speed_of(task) > 0.0)
            && tasks.iter().all(|&of| self.is_here(of))
            && let Some(running) = self.running
        {
            return running;
        }
        let others = (0..self.jobs.len()).filter(|&other| other != task);
        let pairs = others.filter_map(|other| {
            let overhead = device.yield_overhead(self.jobs[other].here.first()?.id).as_secs_f64();
            let [i, j] = [task.min(other), task.max(other)];
            let gain = |way: usize| speeds.gain(way, i, j);
            let ways = speeds.ways().enumerate().filter(|&(_, way)| is_possible(way, device));
            let (way, sharing) = ways.max_by(|a, b| gain(a.0).total_cmp(&gain(b.0)))?;
            let rates = [speeds.speed(way, i, j), speeds.speed(way, j, i)];
            // The companion is stopped when the task is done.
            let lasts = left / rates[usize::from(task == j)];
            let running = Running::Pair { tasks: [i, j], sharing, speeds: rates };
            (gain(way) * lasts > overhead).then_some((gain(way), running))
        });
        let best = pairs.max_by(|a, b| a.0.total_cmp(&b.0));
        best.map_or(Running::Alone { task }, |(_, running)| running)
    }

    fn grant(&self, running: Running, device: &dyn DeviceView, plan: &mut Plan) {
        let sms = device.sms();
        let launch = |task: usize| self.jobs[task].here.first().map(|here| here.id);
        let mut launches = running.tasks().filter_map(launch);
        let (Some(first), second) = (launches.next(), launches.next()) else { return };
        let Some(second) = second else { return plan.grant(first, SmRange::new(0, sms)) };
        let Running::Pair { sharing, .. } = running else { return };
        match sharing {
            Sharing::AllSms => plan.grant_both([first, second], device),
            Sharing::Split { first: parts, of } => {
                let share = (u64::from(sms) * u64::from(parts)).div_ceil(u64::from(of)) as u32;
                let share = share.clamp(1, sms - 1);
                // On the side where one of them is: a launch that stays keeps its SMs.
                let [a, b] = [first, second].map(|launch| device.range(launch));
                let is_high = |range: SmRange| range.lo() > 0 && !range.is_empty();
                let is_low =
                    |range: SmRange| range.lo() == 0 && range.hi() < sms && !range.is_empty();
                if is_high(a) || is_low(b) {
                    plan.grant(first, SmRange::new(sms - share, sms));
                    plan.grant(second, SmRange::new(0, sms - share));
                } else {
                    plan.grant(first, SmRange::new(0, share));
                    plan.grant(second, SmRange::new(share, sms));
                }
            }
        }
    }
}

/// Whether the device can be shared so: a range of SMs for each of two launches takes two SMs.
fn is_possible(sharing: Sharing, device: &dyn DeviceView) -> bool {
    device.sms() > 1 || sharing == Sharing::AllSms
}

/// Shorter than this, no part of a plan is worth a decision.
const CLOCK: Duration = Duration::from_micros(1);

/// The intervals with what has to be done by their ends, by jobs that have come this far.
fn steps(intervals: &[Interval], mut done: Vec<f64>) -> Vec<Step> {
    let mut last = vec![0; done.len()];
    for (at, interval) in intervals.iter().enumerate() {
        interval.running.tasks().for_each(|task| last[task] = at);
    }
    let mut end = |at: usize, task: usize| {
        let Interval { duration, running, .. } = intervals[at];
        done[task] += duration * running.speed_of(task);
        let follows =
            intervals.get(at + 1).is_some_and(|next| next.running.tasks().any(|of| of == task));
        let after = match () {
            () if last[task] == at => After::IsDone,
            () if follows => After::Stays,
            () => After::Leaves,
        };
        End { until: done[task], after, is_reached: false }
    };
    (0..intervals.len())
        .map(|at| {
            let running = intervals[at].running;
            let mut tasks = running.tasks();
            let mut ends = [End { until: 0.0, after: After::Stays, is_reached: true }; 2];
            for of in &mut ends {
                *of = tasks.next().map_or(*of, |task| end(at, task));
            }
            Step { running, ends }
        })
        .collect()
}

impl Policy for Execution {
    fn name(&self) -> &str {
        "co-schedule"
    }

    fn arrived(&mut self, now: Duration, launch: Arrival) {
        let mut state = lock(&self.state);
        state.count(now);
        let job = state.streams.get(&launch.stream).copied();
        state.launches.insert(launch.id, job);
        match job {
            Some(job) => {
                let job = &mut state.jobs[job];
                job.was_there = true;
                job.here.push(Here { id: launch.id, begun: None, has_yielded: false });
            }
            None => state.others.push(launch.id),
        }
    }

    // It keeps its place.
    fn changed(&mut self, _now: Duration, _launch: Arrival) {}

    fn yielded(&mut self, now: Duration, launch: LaunchId) {
        let mut state = lock(&self.state);
        state.count(now);
        if let Some(&Some(job)) = state.launches.get(&launch) {
            let here = state.jobs[job].here.iter_mut().filter(|here| here.id == launch);
            here.for_each(|here| here.has_yielded = true);
            // Its SMs were taken without a plan, for opaque work: nothing runs until there is one.
            state.running = state.running.filter(|of| of.speed_of(job) == 0.0);
        }
    }

    fn departed(&mut self, now: Duration, launch: LaunchId) {
        let mut state = lock(&self.state);
        state.count(now);
        match state.launches.remove(&launch) {
            Some(Some(job)) => state.jobs[job].here.retain(|here| here.id != launch),
            Some(None) => state.others.retain(|&other| other != launch),
            None => {}
        }
    }

    fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        let mut state = lock(&self.state);
        state.count(now);
        for job in 0..state.jobs.len() {
            state.look(job, device);
        }
        state.others.retain(|&other| device.need(other) > 0);
        state.note();
        let decided = state.decide(device);
        state.running = decided.map(|(running, _)| running);
        if let Some(running) = state.running {
            running.tasks().for_each(|task| state.jobs[task].expect_stop(device));
        }
        state.wake = decided.and_then(|(_, left)| left).map(|left| now + left);
        match state.running {
            Some(running) => state.grant(running, device, plan),
            None => {
                plan.share(state.others.iter().copied(), Packing::Spread, device);
            }
        }
    }

    fn wake(&self) -> Option<Duration> {
        lock(&self.state).wake
    }
}

#[cfg(test)]
mod tests;
