//! Urgent requests beside a library whose kernels are closed, and so are no launches of the scheduler: products of cuBLAS.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use preempt::policy::StaticPriority;
use preempt::{Handle, Opaque, Scheduler};
use preempt_driver::{Array, Blas, Gpu, Launch, Level, Module, Pinned, Stream};
use preempt_microkernels::answer;
use preempt_report::microseconds;
use preempt_test_kit::Random;
use preempt_test_kit::storm::Tally;
use serde_json::{Map, Value, json};

use super::cuda::Submitted;
use super::requests::{BLOCKS, Requests};
use super::{Bench, Experiment, KERNELS, Outcome, Rows, SetOnDrop, line, with_tally};
use crate::progress::Progress;
use crate::samples::{Samples, show, show_percent, show_time};

/// Rows of the matrices, and with `--quick`.
const SIZES: [u32; 5] = [1024, 2048, 4096, 8192, 16_384];
const QUICK_SIZES: usize = 2;

/// Requests of each arm.
const REQUESTS: u32 = 200;
const QUICK_REQUESTS: u32 = 5;

/// Time for which products run alone.
const ALONE: Duration = Duration::from_millis(150);
const QUICK_ALONE: Duration = Duration::from_millis(5);

/// Products that are submitted and not over.
const DEPTH: usize = 4;

/// Parts of the device in the arm that has parts: products in one of them, requests in the other.
const PARTS: u32 = 2;

/// Time that `wait` spins.
const SPIN: Duration = Duration::from_millis(100);

/// The experiment `libraries`.
#[derive(Debug)]
pub struct Libraries;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
Requests beside products of cuBLAS (`cublasGemmEx`, halves with sums of 32 bits), for a GPU alone.
Kernels of closed libraries have no PTX that could be made preemptible. So a request waits for the
blocks that are on its SMs, and what can be chosen is which SMs those are.

- A batch multiplies square matrices of `size` rows again and again, up to four products deep.
  Requests of 8 blocks of 1024 threads come up to 4 ms apart; `p50` and `p99` are the times from a
  request to its answer, `idle` (p50) those with no batch.
- streams: both by the driver, on two streams of one priority. `stream priorities`: on streams of
  the lowest and the highest one. The host sees the answers in its memory.
- preempt: products are opaque work of a scheduler (`Stream::opaque`), one operation each, and
  requests are launches of a more urgent stream, until `wait` returns. So products that have not
  begun wait for requests; a running product does not yield.
- preempt, in parts: the device is split in two (`Device::split`). Products run in one part, by a
  scheduler of its own, and requests in the other.
- product: its time, one after the other, without requests, in the SMs that the arm has for them.
  `batch`: products in the time of the requests, to those that would have been done without any,
  by the same arm. `batch_to_streams` is the same to the first arm's products without requests, so
  it has the SMs in it that the arm does not use.
- Each arm's last product is compared with sums by the host, to the bit: the left matrix has random
  signs, the right one is all ones. It is overwritten before.
";

impl Experiment for Libraries {
    fn name(&self) -> &'static str {
        "libraries"
    }

    fn about(&self) -> &'static str {
        "Urgent requests beside products of cuBLAS, whose kernels are closed."
    }

    fn meaning(&self) -> &'static [&'static str] {
        &[MEANING]
    }

    fn run(&self, bench: &Bench) -> Result<Outcome> {
        let gpu = bench.gpu.context("cuBLAS runs on a GPU alone: `--device cuda`")?;
        run(bench, gpu)
    }
}

/// How products and requests come to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Arm {
    Streams,
    Priorities,
    Ours,
    Parts,
}

const ARMS: [Arm; 4] = [Arm::Streams, Arm::Priorities, Arm::Ours, Arm::Parts];

impl Arm {
    fn name(self) -> &'static str {
        match self {
            Arm::Streams => "streams",
            Arm::Priorities => "stream priorities",
            Arm::Ours => "preempt",
            Arm::Parts => "preempt, in parts",
        }
    }
}

/// Matrices of one size.
struct Matrices {
    size: u32,
    /// The factors, two elements in each word, and the product.
    factors: [Array<u32>; 2],
    product: Array<u32>,
    /// The bits of a column of the product; all columns are alike.
    column: Vec<u32>,
}

impl Matrices {
    fn new(size: u32, random: &mut Random) -> Result<Matrices> {
        const ONE: u32 = 0x3c00;
        const SIGN: u32 = 0x8000;
        let rows = size as usize;
        let words = rows * rows / 2;
        let (mut signs, mut sums) = (Vec::with_capacity(words), vec![0i32; rows]);
        let mut bits = 0u32;
        for word in 0..words {
            if word % 16 == 0 {
                bits = random.bits() as u32;
            }
            let [low, high] = [bits & 1, bits >> 1 & 1];
            bits >>= 2;
            signs.push((ONE | (low * SIGN)) | ((ONE | (high * SIGN)) << 16));
            let row = 2 * word % rows;
            sums[row] += 1 - 2 * low as i32;
            sums[row + 1] += 1 - 2 * high as i32;
        }
        let ones = vec![ONE | ONE << 16; words];
        Ok(Matrices {
            size,
            factors: [Array::new(&signs)?, Array::new(&ones)?],
            product: Array::zeroed(rows * rows)?,
            column: sums.into_iter().map(|sum| (sum as f32).to_bits()).collect(),
        })
    }

    fn addresses(&self) -> [u64; 3] {
        let [a, b] = &self.factors;
        [a.address(), b.address(), self.product.address()]
    }

    /// Overwrites the product.
    fn poison(&self, stream: &Stream) -> Result<()> {
        // SAFETY: nothing runs.
        unsafe { stream.fill(self.product.address(), u32::MAX, self.product.len())? };
        Ok(stream.synchronize()?)
    }

    fn check(&self, arm: Arm, tally: &mut Tally) -> Result<()> {
        let found = self.product.read()?;
        for column in found.chunks(self.size as usize) {
            tally.compare(
                &format!("products of {}, {}", self.size, arm.name()),
                column,
                &self.column,
            );
        }
        Ok(())
    }
}

/// Products one after the other, on a thread of their own.
trait Batch: Send {
    /// Submits a product if fewer than [`DEPTH`] are not over; how many have ended.
    fn top_up(&mut self) -> Result<u32>;

    /// Waits for all; how many have ended.
    fn end(&mut self) -> Result<u32>;
}

/// Products by the driver.
struct RawBatch {
    gpu: Gpu,
    stream: Stream,
    blas: Blas,
    of: (u32, [u64; 3]),
    submitted: Submitted,
}

impl Batch for RawBatch {
    fn top_up(&mut self) -> Result<u32> {
        self.gpu.make_current()?;
        let ended = self.submitted.ended()?;
        if self.submitted.len() < DEPTH {
            let (size, addresses) = self.of;
            // SAFETY: the matrices stay until the batch has ended, and only products use them, in the order of the stream.
            unsafe { self.blas.multiply(self.stream.as_raw(), size, addresses)? };
            self.submitted.push(&self.stream)?;
        }
        Ok(ended)
    }

    fn end(&mut self) -> Result<u32> {
        self.stream.synchronize()?;
        Ok(std::mem::take(&mut self.submitted).len() as u32)
    }
}

/// cuBLAS in the context of a scheduler, from its first product on.
type SharedBlas = Arc<Mutex<Option<Blas>>>;

/// Products as opaque work of a scheduler.
struct OurBatch {
    stream: preempt::Stream,
    blas: SharedBlas,
    of: (u32, [u64; 3]),
    handles: VecDeque<Handle<()>>,
}

impl Batch for OurBatch {
    fn top_up(&mut self) -> Result<u32> {
        let mut ended = 0;
        if self.handles.len() >= DEPTH
            && let Some(first) = self.handles.pop_front()
        {
            first.wait()?;
            ended += 1;
        }
        let ((size, addresses), blas) = (self.of, self.blas.clone());
        let product = Opaque::new("product").variant(size.into());
        self.handles.push_back(self.stream.opaque(product, move |raw| {
            let stream: *mut c_void = raw.as_raw().ok_or("a stream of the driver")?;
            let mut blas = blas.lock().unwrap_or_else(PoisonError::into_inner);
            let blas = match &mut *blas {
                Some(blas) => blas,
                none => none.insert(Blas::new()?),
            };
            // SAFETY: as for the raw batch; the stream is one of the context that is current here, in which the handle was made.
            unsafe { blas.multiply(stream, size, addresses)? };
            Ok(())
        })?);
        Ok(ended)
    }

    fn end(&mut self) -> Result<u32> {
        let ended = self.handles.len() as u32;
        self.handles.drain(..).try_for_each(|handle| handle.wait())?;
        Ok(ended)
    }
}

/// Runs the batch while `task` runs: its time, and its products.
fn beside(mut batch: impl Batch, task: impl FnOnce() -> Result<()>) -> Result<(Duration, u32)> {
    let ends = AtomicBool::new(false);
    let start = Instant::now();
    let products = thread::scope(|scope| {
        // Also where the task panics: the scope waits for the thread.
        let task_is_over = SetOnDrop(&ends);
        let running = scope.spawn(|| {
            let mut products = 0;
            while !ends.load(Relaxed) {
                products += batch.top_up()?;
            }
            batch.end().map(|last| products + last)
        });
        let result = task();
        drop(task_is_over);
        let products = running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        result.and(products)
    })?;
    Ok((start.elapsed(), products))
}

/// One arm at one size.
struct Row {
    arm: Arm,
    size: u32,
    /// SMs that products and requests have.
    sms: [u32; 2],
    times: Samples,
    idle: Samples,
    /// Time and number of products, without requests and beside them.
    alone: (Duration, u32),
    batch: (Duration, u32),
}

impl Row {
    /// The time of a product.
    fn product(&self) -> Option<Duration> {
        self.alone.0.checked_div(self.alone.1)
    }

    /// Products beside requests, to those that take this time each.
    fn batch_to(&self, product: Option<Duration>) -> Option<f64> {
        let beside = self.batch.0.checked_div(self.batch.1)?;
        Some(product?.as_secs_f64() / beside.as_secs_f64())
    }
}

/// What all arms have.
struct Setting<'a> {
    bench: &'a Bench,
    random: Random,
    tally: Tally,
    rows: Vec<Row>,
    progress: Progress,
}

impl Setting<'_> {
    /// Measures an arm.
    fn measure<B: Batch>(
        &mut self,
        (arm, sms): (Arm, [u32; 2]),
        matrices: &Matrices,
        mut requests: Requests<'_>,
        batch: impl Fn() -> Result<B>,
    ) -> Result<()> {
        let count = self.bench.amount(QUICK_REQUESTS, REQUESTS);
        let alone = self.bench.amount(QUICK_ALONE, ALONE);
        let clearing = Stream::new(Level::Lowest)?;
        // What the first product loads, it loads here, and clocks rise.
        let (mut first, start) = (batch()?, Instant::now());
        while start.elapsed() < alone {
            first.top_up()?;
        }
        first.end()?;
        requests.request()?;
        let idle = requests.some(count, &mut self.random)?;
        let alone = beside(batch()?, || {
            thread::sleep(alone);
            Ok(())
        })?;
        matrices.poison(&clearing)?;
        let mut times = Samples::default();
        let found = beside(batch()?, || {
            times.append(requests.some(count, &mut self.random)?);
            Ok(())
        })?;
        matrices.check(arm, &mut self.tally)?;
        let size = matrices.size;
        self.rows.push(Row { arm, size, sms, times, idle, alone, batch: found });
        self.progress.step();
        Ok(())
    }
}

fn run(bench: &Bench, gpu: Gpu) -> Result<Outcome> {
    let sizes = bench.amount(&SIZES[..QUICK_SIZES], &SIZES);
    let sms = gpu.sms()?;
    let version = Blas::new()?.version()?;
    let mut setting = Setting {
        bench,
        random: Random(bench.seed),
        tally: Tally::default(),
        rows: Vec::new(),
        progress: Progress::new("arms", (sizes.len() * ARMS.len()) as u64),
    };
    let mut done = Pinned::filled(0u32, BLOCKS as usize)?;
    let call = answer(1, &mut done).grid(BLOCKS);
    let ptx = KERNELS.ptx().context("this build has no kernels for a GPU")?;
    let entry = Module::load(ptx, &[call.kernel()])?.plain(call.kernel())?;
    let raw = Launch::plain(entry, call);
    let all = sizes.iter().map(|&size| Matrices::new(size, &mut setting.random));
    let all = all.collect::<Result<Vec<Matrices>>>()?;

    // The whole device has one scheduler, or its parts have one each.
    let scheduler = bench.spinning_scheduler(StaticPriority::new(), SPIN)?;
    let (blas, mut answers) = (SharedBlas::default(), scheduler.zeroed(BLOCKS as usize)?);
    for matrices in &all {
        for (arm, level) in [(Arm::Streams, Level::Lowest), (Arm::Priorities, Level::Highest)] {
            let requests =
                Requests::Raw { launch: &raw, stream: Stream::new(level)?, done: &mut done };
            setting.measure((arm, [sms; 2]), matrices, requests, || {
                Ok(RawBatch {
                    gpu,
                    stream: Stream::new(Level::Lowest)?,
                    blas: Blas::new()?,
                    of: (matrices.size, matrices.addresses()),
                    submitted: Submitted::default(),
                })
            })?;
        }
        let requests = Requests::Ours { stream: scheduler.stream(10), done: &mut answers };
        let batch = || Ok(our_batch(&scheduler, &blas, matrices));
        setting.measure((Arm::Ours, [sms; 2]), matrices, requests, batch)?;
    }
    release(&scheduler, &blas)?;
    drop((answers, scheduler));

    let parts = bench.device.as_ref().context("this suite is not simulated")?.split(PARTS)?;
    let schedulers = parts.iter().map(|part| {
        let builder = Scheduler::builder().device(part.clone()).policy(StaticPriority::new());
        builder.kernels(KERNELS).wait_spin(SPIN).poller_spin(Duration::MAX).build()
    });
    let schedulers = schedulers.collect::<Result<Vec<Scheduler>, _>>()?;
    let [products, urgent] = &schedulers[..] else { unreachable!("two parts") };
    let sms = [0, 1].map(|part| parts[part].properties().sms);
    let (blas, mut answers) = (SharedBlas::default(), urgent.zeroed(BLOCKS as usize)?);
    for matrices in &all {
        let requests = Requests::Ours { stream: urgent.stream(10), done: &mut answers };
        let batch = || Ok(our_batch(products, &blas, matrices));
        setting.measure((Arm::Parts, sms), matrices, requests, batch)?;
    }
    release(products, &blas)?;
    let Setting { rows, tally, .. } = setting;
    Ok(outcome(rows, &tally, version))
}

/// Drops a scheduler's handle of cuBLAS in its context.
fn release(scheduler: &Scheduler, blas: &SharedBlas) -> Result<()> {
    let blas = blas.clone();
    let release = Opaque::new("release").exclusive();
    let released = scheduler.stream(0).opaque(release, move |_| {
        blas.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(())
    })?;
    Ok(released.wait()?)
}

fn our_batch(scheduler: &Scheduler, blas: &SharedBlas, matrices: &Matrices) -> OurBatch {
    OurBatch {
        stream: scheduler.stream(0),
        blas: blas.clone(),
        of: (matrices.size, matrices.addresses()),
        handles: VecDeque::new(),
    }
}

fn outcome(mut rows: Vec<Row>, tally: &Tally, version: u32) -> Outcome {
    rows.sort_by_key(|row| (row.size, ARMS.iter().position(|&arm| arm == row.arm)));
    let mut found =
        Rows::below(["size", "arm", "product", "idle", "p50", "p99", "max", "batch", "to streams"]);
    let mut p99 = Map::new();
    for row in &rows {
        let first = rows.iter().find(|first| first.size == row.size && first.arm == Arm::Streams);
        let (own, product) = (row.batch_to(row.product()), row.product());
        let to_streams = row.batch_to(first.and_then(Row::product));
        let (times, idle) = (row.times.summary(), row.idle.summary());
        found.push(
            line([
                &row.size.to_string(),
                row.arm.name(),
                &show_time(product),
                &show(idle.p50),
                &show(times.p50),
                &show(times.p99),
                &show(times.max),
                &show_percent(own),
                &show_percent(to_streams),
            ]),
            json!({
                "size": row.size,
                "arm": row.arm.name(),
                "sms_of_products": row.sms[0],
                "sms_of_requests": row.sms[1],
                "product_us": product.map(microseconds),
                "idle_p50_us": microseconds(idle.p50),
                "requests": row.times.len(),
                "p50_us": microseconds(times.p50),
                "p99_us": microseconds(times.p99),
                "max_us": microseconds(times.max),
                "batch": own,
                "batch_to_streams": to_streams,
            }),
        );
        let of = p99.entry(row.arm.name()).or_insert_with(|| json!({}));
        of[row.size.to_string()] = json!(microseconds(times.p99));
    }
    let summary = json!({ "cublas": version, "p99_us": Value::Object(p99) });
    Outcome {
        about: format!(
            "Requests beside products of cuBLAS {version}, of square matrices with `size` rows: the time from a request to its \
             answer."
        ),
        table: found.table,
        text_columns: 2,
        rows: found.json,
        summary: with_tally(summary, tally),
        mistake: tally.mistake.clone(),
    }
}
