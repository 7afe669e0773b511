//! The row without preempt: the same kernels in their plain form, on streams of the driver. Those of the requests have
//! the highest priority, as a user of CUDA would do it.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use preempt::LaunchReport;
use urgent_inference_kernels::network::Answer;
use urgent_inference_kernels::pricing::{
    Sums, THREADS, estimate_asian_calls, simulate_asian_calls,
};

use crate::arms::{Answered, Arm, Batch, LEAD, NO_ANSWER, NO_ESTIMATE, Row, answer};
use crate::driver::{Array, Event, Gpu, KernelEntry, Launch, Level, Module, Pinned, Stream};
use crate::progress::Progress;
use crate::workload::{Request, Workload, wait_until};

/// The requests' streams are more urgent for the hardware.
pub const STREAM_PRIORITY: Arm = Arm { name: "stream priority", batch: Some(0), requests: Some(1) };

/// Launches over which the time of a request's kernel is measured.
const TIMED: u32 = 1000;

/// The kernels, loaded once more, for launches without a scheduler.
#[derive(Debug)]
pub struct Streams {
    gpu: Gpu,
    module: Module,
}

impl Streams {
    /// Loads the kernels, when nothing runs.
    pub fn new(gpu: Gpu) -> Result<Streams> {
        let ptx = crate::KERNELS.ptx().context("this build has no kernels for a GPU")?;
        Ok(Streams { gpu, module: Module::load(ptx)? })
    }

    /// Runs the row; requests come within `time`.
    ///
    /// # Errors
    ///
    /// Errors of the driver, and every answer that differs from the network's on the host.
    pub fn run(&self, workload: &Workload, time: Duration, progress: &Progress) -> Result<Row> {
        let options = workload.book.len() as u32;
        let book = Array::new(&workload.book)?;
        let mut sums = Array::<Sums>::zeroed(workload.book.len() * THREADS)?;
        let mut estimates = Array::new(&vec![NO_ESTIMATE; workload.book.len()])?;
        let Workload { paths, periods, seed, .. } = *workload;
        let call = simulate_asian_calls(&book, &mut sums, paths, periods, seed).grid(options);
        let simulation = Launch::plain(self.module.plain(call.kernel())?, call);
        let call = estimate_asian_calls(&sums, &mut estimates, paths).grid(options);
        let estimation = Launch::plain(self.module.plain(call.kernel())?, call);
        let batch = Stream::new(Level::Lowest)?;
        // Everything is allocated before anything runs, and stays until everything has ended.
        let clients = workload.clients.iter().map(|requests| Client::new(self, workload, requests));
        let clients: Vec<Client> = clients.collect::<Result<_>>()?;

        let launched = Instant::now();
        // SAFETY: no other work uses the arrays until both kernels have ended.
        unsafe {
            simulation.on(&batch)?;
            estimation.on(&batch)?;
        }
        let start = launched + LEAD;
        let (ended, end, answered) = thread::scope(|scope| {
            let threads: Vec<_> = clients
                .iter()
                .map(|client| scope.spawn(|| client.send(start, time, progress)))
                .collect();
            let ended = batch.synchronize();
            let end = launched.elapsed();
            let answered: Result<Vec<Answered>> = threads
                .into_iter()
                .map(|thread| {
                    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect();
            (ended, end, answered)
        });
        ended?;
        let answered = answered.with_context(|| format!("row `{}`", STREAM_PRIORITY.name))?;
        let estimates = estimates.read()?;
        let report = LaunchReport::default();
        let batch = Batch::new(STREAM_PRIORITY, workload, time, end, &estimates, report)?;
        Ok(Row::new(STREAM_PRIORITY.name, &answered, Some(batch)))
    }

    /// The time of a request's kernel that has the GPU to itself, one after the other.
    pub fn request_time(&self, workload: &Workload) -> Result<Duration> {
        let requests = workload.clients.first().context("no client")?;
        let client = Client::new(self, workload, requests)?;
        let launch = client.launch(requests.first().context("no request")?);
        let (start, end) = (Event::new()?, Event::new()?);
        let mut time = Duration::ZERO;
        // The first round warms up.
        for _ in 0..2 {
            client.stream.record(&start)?;
            for _ in 0..TIMED {
                // SAFETY: no other work uses the arrays.
                unsafe { launch.on(&client.stream)? };
            }
            client.stream.record(&end)?;
            client.stream.synchronize()?;
            time = end.since(&start)? / TIMED;
        }
        Ok(time)
    }
}

/// A thread that sends requests, with its memory.
struct Client<'a> {
    gpu: Gpu,
    workload: &'a Workload,
    requests: &'a [Request],
    stream: Stream,
    entry: KernelEntry,
    parameters: Array<f32>,
    answers: Array<Answer>,
    received: Pinned<Answer>,
}

impl<'a> Client<'a> {
    fn new(
        streams: &Streams,
        workload: &'a Workload,
        requests: &'a [Request],
    ) -> Result<Client<'a>> {
        let parameters = Array::new(&workload.parameters)?;
        let mut answers = Array::new(&[NO_ANSWER])?;
        let first = requests.first().context("a client without requests")?;
        let kernel = answer(workload, &parameters, first, &mut answers).kernel();
        Ok(Client {
            gpu: streams.gpu,
            workload,
            requests,
            stream: Stream::new(Level::Highest)?,
            entry: streams.module.plain(kernel)?,
            parameters,
            answers,
            received: Pinned::filled(NO_ANSWER, 1)?,
        })
    }

    fn launch(&self, request: &Request) -> Launch {
        let answers = self.answers.shared();
        Launch::plain(self.entry, answer(self.workload, &self.parameters, request, answers))
    }

    /// Sends each request at its moment, one after the other.
    fn send(&self, start: Instant, time: Duration, progress: &Progress) -> Result<Answered> {
        self.gpu.make_current()?;
        let mut answered = Answered::default();
        for request in self.requests {
            let moment = start + request.moment(time);
            wait_until(moment);
            let launch = self.launch(request);
            // SAFETY: no other work uses the client's memory, and this thread waits for the end.
            unsafe {
                launch.on(&self.stream)?;
                self.stream.download(&self.answers, &self.received)?;
            }
            self.stream.spin()?;
            let latency = moment.elapsed();
            answered.take(request, self.received.get(0), latency)?;
            progress.answered();
        }
        Ok(answered)
    }
}
