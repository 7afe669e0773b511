//! Runs a workload on a pool, as its jobs' users would, and checks each answer.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use preempt::pool::{Class, Pool, PoolStats, TaskHandle, TaskReport};
use preempt::sim::pool::{PoolJob, PoolWorkload, SLA};

use super::occupancy::{Occupancy, Used};
use super::tasks::{Answer, Kind, Ticket};

/// Time between two looks at which devices have tasks.
pub const SAMPLE: Duration = Duration::from_millis(10);

/// The longest from one answer of a job to its next before the task counts as lost.
pub const LOST: Duration = Duration::from_secs(120);

/// What is added to the time of a task that has ended while it was stopped. It had run for just as long when it was stopped; in the
/// simulation, it is to be stopped before it ends, although threads wake a little sooner or later.
const STOPS_FIRST: Duration = Duration::from_micros(500);

/// What came of a workload on a pool.
#[derive(Debug, Default)]
pub struct Replayed {
    /// From when a user-facing task was outstanding until its answer was there, of all.
    pub responses: Vec<Duration>,
    /// What each task had its device for, by job and task in their order. While it was stopped, it had none.
    pub times: Vec<Vec<Duration>>,
    /// When each job came.
    pub arrivals: Vec<Duration>,
    /// The sum of user-facing tasks' times, by that of their times alone.
    pub slowed: Option<f64>,
    /// From the arrival of a batch job until its last answer was there, of all.
    pub batch_jobs: Vec<Duration>,
    /// Devices with tasks, every ten milliseconds from the first moment on.
    pub samples: Vec<Used>,
    /// The part of the devices' time with a task, until the last job came; `None` if that was sooner than the first look.
    pub used: Option<f64>,
    /// Of arms that yield, the devices' time that block-tasks had run for which began anew then.
    pub requeued: Duration,
    /// What the pool counted.
    pub stats: PoolStats,
    /// What came of the answers.
    pub answers: Answers,
}

/// Answers of tasks.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// Tasks that were submitted.
    pub tasks: u64,
    /// Those that have given none, or an error.
    pub lost: u64,
    /// Answers beyond the first of a task.
    pub twice: u64,
    /// Answers that were wrong.
    pub wrong: u64,
    /// The first thing that was wrong.
    pub first: Option<String>,
}

impl Answers {
    /// Adds others.
    pub fn add(&mut self, other: &Answers) {
        self.tasks += other.tasks;
        self.lost += other.lost;
        self.twice += other.twice;
        self.wrong += other.wrong;
        self.first = self.first.take().or_else(|| other.first.clone());
    }

    /// Counts an answer, and whether it is right.
    pub fn check(&mut self, kind: &Kind, answer: &Answer) {
        self.tasks += 1;
        self.is_right(kind, answer);
    }

    fn is_right(&mut self, kind: &Kind, answer: &Answer) {
        if let Some(mistake) = kind.mistake(answer) {
            self.wrong += 1;
            self.note(|| mistake);
        }
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        self.first.get_or_insert_with(what);
    }
}

impl Replayed {
    /// User-facing tasks that took longer than the SLA.
    pub fn late_tasks(&self) -> usize {
        self.responses.iter().filter(|&&response| response > SLA).count()
    }

    /// The part of the user-facing tasks that they are.
    pub fn late(&self) -> f64 {
        self.late_tasks() as f64 / self.responses.len().max(1) as f64
    }

    /// What revoked tasks had run for, and block-tasks that were requeued, by what all tasks ran for that ended.
    pub fn wasted(&self) -> f64 {
        let PoolStats { useful, wasted, .. } = self.stats;
        (wasted + self.requeued).as_secs_f64() / useful.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// What one job has seen.
#[derive(Default)]
struct Seen {
    responses: Vec<Duration>,
    times: Vec<Duration>,
    answers: Answers,
    came: Duration,
    ended: Duration,
}

/// Lets each job come in its time, with all of its tasks, and waits for all of them. Tasks that are revoked keep their device for
/// `after` more.
pub fn replay(
    pool: &Pool,
    workload: &PoolWorkload,
    kinds: &[Kind],
    after: Duration,
) -> Result<Replayed> {
    let occupancy = Arc::new(Occupancy::new(pool.devices()));
    let jobs = workload.jobs();
    let kinds: Vec<&Kind> = jobs
        .iter()
        .map(|job| kind_of(job, kinds).context("a job of no kind"))
        .collect::<Result<_>>()?;
    // By job and task: how many answers each has given, whichever handle they came by.
    let given: Vec<Vec<AtomicU32>> =
        jobs.iter().map(|job| (0..job.tasks).map(|_| AtomicU32::new(0)).collect()).collect();
    let is_over = AtomicBool::new(false);
    let start = Instant::now();
    let mut replayed = Replayed::default();
    let seen: Vec<Result<Seen>> = thread::scope(|scope| {
        let (occupancy, given) = (&occupancy, &given);
        let clients: Vec<_> = jobs
            .iter()
            .zip(&kinds)
            .enumerate()
            .map(|(number, (job, kind))| {
                let client = Client { pool, job, number, kind, occupancy, after, start };
                thread::Builder::new().spawn_scoped(scope, move || client.run(given))
            })
            .collect();
        let watch = scope.spawn(|| watch(occupancy, start, &is_over));
        let join = |client: std::io::Result<thread::ScopedJoinHandle<'_, Result<Seen>>>| {
            client?.join().map_err(|_| anyhow!("a job's thread has panicked"))?
        };
        let seen = clients.into_iter().map(join).collect();
        is_over.store(true, Relaxed);
        replayed.samples = watch.join().unwrap_or_default();
        seen
    });
    for (job, seen) in jobs.iter().zip(seen) {
        let Seen { responses, times, answers, came, ended } = seen?;
        replayed.responses.extend(responses);
        replayed.times.push(times);
        replayed.arrivals.push(came);
        replayed.answers.add(&answers);
        if job.class == Class::Batch {
            replayed.batch_jobs.push(ended.saturating_sub(job.arrival));
        }
    }
    for given in given.iter().flatten().map(|given| given.load(Relaxed)) {
        replayed.answers.lost += u64::from(given == 0);
        replayed.answers.twice += u64::from(given.saturating_sub(1));
    }
    let is_user_facing = |of: &(&PoolJob, &Vec<Duration>)| of.0.class == Class::UserFacing;
    let [alone, took] = jobs.iter().zip(&replayed.times).filter(is_user_facing).fold(
        [Duration::ZERO; 2],
        |[alone, took], (job, times)| {
            [alone + job.task * times.len() as u32, took + times.iter().sum::<Duration>()]
        },
    );
    replayed.slowed = (!alone.is_zero()).then(|| took.as_secs_f64() / alone.as_secs_f64());
    replayed.stats = pool.stats();
    let last = jobs.iter().map(|job| job.arrival).max().unwrap_or_default();
    let until_last = (last.as_nanos() / SAMPLE.as_nanos()) as usize;
    let looks = &replayed.samples[..until_last.min(replayed.samples.len())];
    let used: u32 = looks.iter().map(|used| used.user_facing + used.batch).sum();
    let all = looks.len() * pool.devices();
    replayed.used = (all > 0).then(|| f64::from(used) / all as f64);
    Ok(replayed)
}

/// The kind whose time alone the job's tasks have.
fn kind_of<'a>(job: &PoolJob, kinds: &'a [Kind]) -> Option<&'a Kind> {
    kinds.iter().find(|kind| kind.class == job.class && kind.alone == job.task)
}

/// Which devices have tasks, until all jobs are over.
fn watch(occupancy: &Occupancy, start: Instant, is_over: &AtomicBool) -> Vec<Used> {
    let mut samples = Vec::new();
    while !is_over.load(Relaxed) {
        samples.push(occupancy.used());
        let next = start + SAMPLE * samples.len() as u32;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    samples
}

/// A job, and who submits it.
struct Client<'a> {
    pool: &'a Pool,
    job: &'a PoolJob,
    number: usize,
    kind: &'a Kind,
    occupancy: &'a Arc<Occupancy>,
    after: Duration,
    start: Instant,
}

impl Client<'_> {
    fn run(self, given: &[Vec<AtomicU32>]) -> Result<Seen> {
        let application = self.pool.application(self.job.class);
        let arrival = self.start + self.job.arrival;
        thread::sleep(arrival.saturating_duration_since(Instant::now()));
        let mut seen = Seen { came: self.start.elapsed(), ..Seen::default() };
        let mut handles = Vec::new();
        for task in 0..self.job.tasks {
            let ticket = Ticket { job: self.number, task };
            let task = self.kind.task(ticket, self.occupancy, self.after);
            handles.push((ticket, application.submit(&task)?));
        }
        seen.answers.tasks = handles.len() as u64;
        for (ticket, handle) in handles {
            let Some(ended) = wait(handle, Instant::now() + LOST) else {
                seen.answers.note(|| format!("{ticket:?} gave no answer within {LOST:?}"));
                seen.times.push(self.job.task);
                continue;
            };
            let (answer, report) = match ended {
                Ok(ended) => ended,
                Err(error) => {
                    seen.answers.note(|| format!("{ticket:?}: {error}"));
                    seen.times.push(self.job.task);
                    continue;
                }
            };
            let Ticket { job, task } = answer.ticket;
            if let Some(count) = given.get(job).and_then(|job| job.get(task as usize)) {
                count.fetch_add(1, Relaxed);
            }
            seen.answers.is_right(self.kind, &answer);
            let goes_on = if answer.ended_stopped { STOPS_FIRST } else { Duration::ZERO };
            seen.times.push(report.ran + goes_on);
            if self.job.class == Class::UserFacing {
                seen.responses.push(report.turnaround);
            }
        }
        seen.ended = self.start.elapsed();
        Ok(seen)
    }
}

/// Wakes a thread that waits for a task.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

type Reported = Result<(Answer, TaskReport), preempt::Error>;

/// What a task gives until then, with its report; `None` if it gives nothing. The task is cancelled then.
fn wait(handle: TaskHandle<Answer>, until: Instant) -> Option<Reported> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut report = pin!(handle.cancel_on_drop().with_report());
    loop {
        if let Poll::Ready(reported) = report.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(reported);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::park_timeout(left);
    }
}

/// Waits until a device has a batch task.
pub fn await_batch(occupancy: &Occupancy) -> Result<()> {
    let start = Instant::now();
    while occupancy.used().batch == 0 {
        ensure!(start.elapsed() < LOST, "a batch task has not begun within {LOST:?}");
        thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}
