//! The rows of the table: the same work, under different circumstances.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use preempt::{Call, LaunchReport, Scheduler, Stream};
use preempt_device::host::{ReadArg, WriteArg};
use urgent_inference_kernels::network::{Answer, CLASSES, HIDDEN, classify};
use urgent_inference_kernels::pricing::{
    Estimate, Sums, THREADS, estimate_asian_calls, simulate_asian_calls,
};

use crate::progress::Progress;
use crate::workload::{Request, Workload, wait_until};

/// The work of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arm {
    /// The row's name.
    pub name: &'static str,
    /// The batch job's priority, if it runs.
    pub batch: Option<i32>,
    /// The requests' priority, if there are any.
    pub requests: Option<i32>,
}

/// The batch job, and nothing else.
pub const BATCH_ALONE: Arm = Arm { name: "batch alone", batch: Some(0), requests: None };
/// The requests, and nothing else.
pub const REQUESTS_ALONE: Arm = Arm { name: "requests alone", batch: None, requests: Some(0) };
/// Equal priorities: what was submitted first runs first.
pub const SUBMISSION_ORDER: Arm =
    Arm { name: "submission order", batch: Some(0), requests: Some(0) };
/// The requests are more urgent.
pub const PREEMPT: Arm = Arm { name: "preempt", batch: Some(0), requests: Some(1) };

/// The measurements of a row.
#[derive(Debug)]
pub struct Row {
    /// The row's name.
    pub name: &'static str,
    /// From each request's moment to its answer on the host, sorted.
    pub latencies: Vec<Duration>,
    /// The share of the held-out digits that the device read correctly.
    pub accuracy: Option<f64>,
    /// The batch job.
    pub batch: Option<Batch>,
}

/// The measurements of the batch job.
#[derive(Debug)]
pub struct Batch {
    /// From the launch of its first kernel to the end of the last.
    pub time: Duration,
    /// The checksum of all its results.
    pub checksum: u64,
    /// The scheduler's report on the long kernel.
    pub report: LaunchReport,
    /// Requests that arrived before its end.
    pub met: usize,
}

impl Row {
    /// The latency that a share of the requests does not exceed (nearest rank).
    pub fn percentile(&self, share: f64) -> Option<Duration> {
        let rank = (share * self.latencies.len() as f64).ceil() as usize;
        self.latencies.get(rank.saturating_sub(1)).copied()
    }
}

/// Time from the launch of the batch job to the moment that requests count from, so that their threads are ready.
pub const LEAD: Duration = Duration::from_millis(5);

/// Runs one row; requests come within `time`.
///
/// # Errors
///
/// Errors of the scheduler, and every answer that differs from the network's on the host.
pub fn run(
    scheduler: &Scheduler,
    workload: &Workload,
    arm: Arm,
    time: Duration,
    progress: &Progress,
) -> Result<Row> {
    let clients = if arm.requests.is_some() { &workload.clients[..] } else { &[] };
    let streams = clients.iter().map(|_| scheduler.stream(arm.requests.unwrap_or_default()));
    let streams: Vec<Stream> = streams.collect();
    let batch = scheduler.stream(arm.batch.unwrap_or_default());

    let options = workload.book.len() as u32;
    let book = scheduler.buffer(&workload.book)?;
    let mut sums = scheduler.zeroed::<Sums>(workload.book.len() * THREADS)?;
    let mut estimates = scheduler.buffer(&vec![NO_ESTIMATE; workload.book.len()])?;

    let launched = Instant::now();
    let batch_handles = match arm.batch {
        Some(_) => {
            let Workload { paths, periods, seed, .. } = *workload;
            let call = simulate_asian_calls(&book, &mut sums, paths, periods, seed);
            let simulation = batch.launch(call.grid(options))?;
            let call = estimate_asian_calls(&sums, &mut estimates, paths);
            Some((simulation, batch.launch(call.grid(options))?))
        }
        None => None,
    };
    let start = launched + LEAD;
    let (batch_report, answered) = thread::scope(|scope| {
        let clients: Vec<_> = clients
            .iter()
            .zip(&streams)
            .map(|(requests, stream)| {
                let client = Client { scheduler, stream, workload, progress, start, time };
                scope.spawn(move || client.send(requests))
            })
            .collect();
        let report = batch_handles.map(|(simulation, estimation)| {
            let ended = estimation.wait();
            let time = launched.elapsed();
            (ended.and_then(|_| simulation.wait()), time)
        });
        let answered: Result<Vec<Answered>> = clients
            .into_iter()
            .map(|client| client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        (report, answered)
    });
    let answered = answered.with_context(|| format!("row `{}`", arm.name))?;
    let batch = match batch_report {
        Some((report, end)) => {
            let estimates = batch.download(&estimates)?.wait()?;
            Some(Batch::new(arm, workload, time, end, &estimates, report?)?)
        }
        None => None,
    };
    Ok(Row::new(arm.name, &answered, batch))
}

/// An estimate that no simulation gives, so that a block-task that did not run shows.
pub const NO_ESTIMATE: Estimate = Estimate { value: f32::NAN, error: f32::NAN };
/// An answer that the network never gives.
pub const NO_ANSWER: Answer =
    Answer { request: u32::MAX, class: u32::MAX, logits: [f32::NAN; CLASSES] };

/// The kernel that answers a request.
pub fn answer(
    workload: &Workload,
    parameters: impl ReadArg<'static, f32>,
    request: &Request,
    answers: impl WriteArg<'static, Answer>,
) -> Call<'static> {
    let lanes = workload.lanes;
    let call = classify(parameters, request.digit, request.number, lanes, answers);
    call.grid(1).block(HIDDEN as u32 * lanes)
}

impl Batch {
    /// A batch job that took `end` and left these estimates, while requests came within `time`.
    pub fn new(
        arm: Arm,
        workload: &Workload,
        time: Duration,
        end: Duration,
        estimates: &[Estimate],
        report: LaunchReport,
    ) -> Result<Batch> {
        let all = estimates.iter().all(|estimate| estimate.value.is_finite());
        ensure!(all, "row `{}`: the batch job left options without a value", arm.name);
        let clients = if arm.requests.is_some() { &workload.clients[..] } else { &[] };
        let requests = clients.iter().flatten();
        let met = requests.filter(|request| LEAD + request.moment(time) < end).count();
        Ok(Batch { time: end, checksum: checksum(estimates), report, met })
    }
}

impl Row {
    /// A row in which clients got these answers.
    pub fn new(name: &'static str, answered: &[Answered], batch: Option<Batch>) -> Row {
        let latencies = answered.iter().flat_map(|client| client.latencies.iter().copied());
        let mut latencies: Vec<Duration> = latencies.collect();
        latencies.sort_unstable();
        let held_out: u32 = answered.iter().map(|client| client.held_out).sum();
        let right: u32 = answered.iter().map(|client| client.right).sum();
        let accuracy = (held_out > 0).then(|| f64::from(right) / f64::from(held_out));
        Row { name, latencies, accuracy, batch }
    }
}

/// The answers to one client.
#[derive(Debug, Default)]
pub struct Answered {
    latencies: Vec<Duration>,
    /// Held-out digits among its requests, and those of them that were read correctly.
    held_out: u32,
    right: u32,
}

impl Answered {
    /// Records the answer to a request, with its latency.
    ///
    /// # Errors
    ///
    /// If the answer differs from the network's on the host.
    pub fn take(&mut self, request: &Request, answer: Answer, latency: Duration) -> Result<()> {
        let expected = request.expected;
        ensure!(
            answer.request == request.number && answer.class == expected,
            "request {} was answered with {answer:?}; the network says {expected}",
            request.number,
        );
        self.latencies.push(latency);
        if request.held_out {
            self.held_out += 1;
            self.right += u32::from(answer.class == request.label);
        }
        Ok(())
    }
}

/// A thread that sends requests.
struct Client<'a> {
    scheduler: &'a Scheduler,
    stream: &'a Stream,
    workload: &'a Workload,
    progress: &'a Progress,
    /// The start and the length of the time in which requests come.
    start: Instant,
    time: Duration,
}

impl Client<'_> {
    /// Sends each request at its moment, one after the other.
    fn send(&self, requests: &[Request]) -> Result<Answered> {
        let parameters = self.scheduler.buffer(&self.workload.parameters)?;
        let mut answers = self.scheduler.buffer(&[NO_ANSWER])?;
        let mut answered = Answered::default();
        for request in requests {
            // A request that comes while the one before it waits is late from its own moment on,
            // not from when this thread gets to it.
            let moment = self.start + request.moment(self.time);
            wait_until(moment);
            let launched =
                self.stream.launch(answer(self.workload, &parameters, request, &mut answers))?;
            let answer = self.stream.download(&answers)?.wait()?;
            let latency = moment.elapsed();
            launched.wait()?;
            answered.take(request, answer[0], latency)?;
            self.progress.answered();
        }
        Ok(answered)
    }
}

/// FNV-1a over every bit of the results.
pub fn checksum(estimates: &[Estimate]) -> u64 {
    let words = estimates.iter().flat_map(|estimate| [estimate.value, estimate.error]);
    words
        .flat_map(|value| value.to_bits().to_le_bytes())
        .fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        })
}
