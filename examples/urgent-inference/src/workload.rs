//! The work of every row of the table: the book of options, and the requests with their moments.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use urgent_inference::digits::{self, Sample};
use urgent_inference::network::Network;
use urgent_inference_kernels::network::{Digit, MOST_LANES};
use urgent_inference_kernels::pricing::AsianCall;

use crate::args::{Args, DeviceKind};

/// Time before a request's moment at which its thread is awake, where it has a processor for itself. The operating
/// system wakes threads a tenth of a millisecond late, which is not to be measured.
const AWAKE_BEFORE: Duration = Duration::from_millis(1);

/// Waits for a moment.
pub fn wait_until(moment: Instant) {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let awake_before = if processors > 2 * CLIENTS { AWAKE_BEFORE } else { Duration::ZERO };
    let left = || moment.saturating_duration_since(Instant::now());
    thread::sleep(left().saturating_sub(awake_before));
    while !left().is_zero() {
        std::hint::spin_loop();
    }
}

/// Threads that send requests.
pub const CLIENTS: usize = 4;

/// The amount of work and its pieces.
#[derive(Clone, Copy, Debug)]
struct Size {
    /// Options, which are block-tasks, for each SM.
    options: u32,
    /// Paths of each option.
    paths: u32,
    requests: usize,
    /// Threads that share the sum of a hidden unit.
    lanes: u32,
}

/// On the CPU device: a block-task takes one to two milliseconds on one processor.
const CPU: Size = Size { options: 1500, paths: 6144, requests: digits::COUNT, lanes: 1 };
/// On a GPU, whose SM runs about a dozen block-tasks at a time: milliseconds, too. Many lanes, because each request is
/// alone there: its kernel takes half of an SM for a few microseconds.
const GPU: Size = Size { options: 9000, paths: 65_536, requests: digits::COUNT, lanes: MOST_LANES };

/// Prices in the average of an option.
const PERIODS: u32 = 12;

impl Size {
    /// The amount of work with `--quick`.
    fn quick(self) -> Size {
        Size { options: self.options / 15, requests: 400, ..self }
    }
}

/// The batch job and the requests.
#[derive(Debug)]
pub struct Workload {
    /// The options, one block-task each.
    pub book: Vec<AsianCall>,
    /// Random paths for each option.
    pub paths: u32,
    /// Periods of each path.
    pub periods: u32,
    /// Seed of the paths.
    pub seed: u64,
    /// The network's weights, as the kernel reads them.
    pub parameters: Vec<f32>,
    /// Threads that share the sum of a hidden unit.
    pub lanes: u32,
    /// The requests of each client, in the order of their moments.
    pub clients: Vec<Vec<Request>>,
}

/// One digit to be read.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The request's number.
    pub number: u32,
    /// The image.
    pub digit: Digit,
    /// The digit that the writer meant.
    pub label: u32,
    /// Whether the network was not trained with it.
    pub held_out: bool,
    /// The network's answer on the host, which the device has to give, too.
    pub expected: u32,
    /// The request's moment, as a share of the time in which requests come.
    moment: f64,
}

impl Request {
    /// The moment of the request, if all come within `time`.
    pub fn moment(&self, time: Duration) -> Duration {
        time.mul_f64(self.moment)
    }
}

impl Workload {
    /// The work for a device of `sms` SMs: the batch grows with them, so that it takes about as
    /// long on each.
    pub fn new(args: &Args, sms: u32) -> Result<Workload> {
        let size = match args.device {
            DeviceKind::Cpu => CPU,
            DeviceKind::Cuda => GPU,
        };
        let Size { options, paths, requests, lanes } = if args.quick { size.quick() } else { size };
        let mut random = ChaCha8Rng::seed_from_u64(args.seed);
        let book = (0..options * sms).map(|_| option(&mut random)).collect();
        let network = Network::committed().context("data/weights.bin")?;
        let mut samples = digits::load()?;
        samples.shuffle(&mut random);
        samples.truncate(requests);
        let clients = samples
            .chunks(requests.div_ceil(CLIENTS))
            .zip(0u32..)
            .map(|(samples, client)| {
                let first = client * requests.div_ceil(CLIENTS) as u32;
                requests_of_one(&mut random, samples, first, &network)
            })
            .collect();
        let (periods, seed, parameters) = (PERIODS, args.seed, network.parameters);
        Ok(Workload { book, paths, periods, seed, parameters, lanes, clients })
    }

    /// Requests of all clients.
    pub fn requests(&self) -> usize {
        self.clients.iter().map(Vec::len).sum()
    }
}

/// An option as in a bank's book.
fn option(random: &mut ChaCha8Rng) -> AsianCall {
    let spot = random.random_range(20.0..200.0);
    AsianCall {
        spot,
        strike: spot * random.random_range(0.8..1.2),
        rate: random.random_range(0.01..0.05),
        volatility: random.random_range(0.1..0.5),
        maturity: random.random_range(0.25..2.0),
    }
}

/// The requests of one client: a Poisson process, that is, exponential times from one to the
/// next, scaled so that the time after the last one ends at 1.
fn requests_of_one(
    random: &mut ChaCha8Rng,
    samples: &[Sample],
    first: u32,
    network: &Network,
) -> Vec<Request> {
    let mut exponential = || -(1.0 - random.random::<f64>()).ln();
    let mut now = 0.0;
    let mut requests: Vec<Request> = samples
        .iter()
        .zip(first..)
        .map(|(sample, number)| {
            now += exponential();
            let Sample { digit, label, held_out } = *sample;
            let expected = network.classify(&digit);
            Request { number, digit, label, held_out, expected, moment: now }
        })
        .collect();
    let end = now + exponential();
    for request in &mut requests {
        request.moment /= end;
    }
    requests
}
