//! Kernels from Triton's cache: what becomes of each, and softmaxes of half a gigabyte beside small urgent ones.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use preempt::error::DeviceError;
use preempt::ptx::{Options, transform_with};
use preempt::{Buffer, Device, Error, ForeignKernel, Scheduler, Stream};

use cache::Cached;

mod cache;

/// Elements of a row, which a block has: at most 1024.
const COLUMNS: i32 = 1000;
/// Rows of a large softmax, and of a small one.
const ROWS: u32 = 1 << 17;
const FEW: u32 = 32;
/// Small ones, each so long after the one before it was done.
const REQUESTS: usize = 500;
const PAUSE: Duration = Duration::from_millis(2);

fn main() -> Result<()> {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("cache");
    let folder = env::args_os().nth(1).map_or(sample, PathBuf::from);
    let mut softmax = None;
    for kernel in Cached::all(&folder)? {
        let said = kernel.and_then(|kernel| {
            println!("{}: {}", kernel.name(), verdict(&kernel)?);
            softmax = softmax.take().or((kernel.name() == "softmax").then_some(kernel));
            Ok(())
        });
        said.unwrap_or_else(|error| println!("{error:#}"));
    }
    let Some(softmax) = softmax else {
        println!("There is no softmax among them, which is what this program runs.");
        return Ok(());
    };
    match Device::cuda(0) {
        Ok(device) => run(&softmax, device),
        Err(error @ Error::Device(DeviceError::NoDriver { .. } | DeviceError::NoGpu { .. })) => {
            println!("It is not run: {error}.");
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// What becomes of a kernel. Takes no GPU.
fn verdict(kernel: &Cached) -> Result<String> {
    let context = || format!("{} in {}", kernel.name(), kernel.key);
    let options = Options::default().yields(true);
    let text = transform_with(&kernel.ptx, &[kernel.name()], options).with_context(context)?;
    let of = text.kernels.first().with_context(context)?;
    let points = of.yielding.as_ref().map_or(0, |yielding| yielding.points);
    let (capability, threads) = (kernel.capability(), kernel.threads());
    Ok(format!(
        "for sm_{capability}, blocks of {threads} threads, {points} yield points; {}",
        of.verdict
    ))
}

/// Rows of numbers on the device, and where their softmaxes go.
struct Rows {
    input: Buffer<f32>,
    output: Buffer<f32>,
    rows: u32,
}

impl Rows {
    fn new(scheduler: &Scheduler, rows: u32) -> Result<Rows> {
        let numbers: Vec<f32> = (0..rows * COLUMNS as u32).map(number).collect();
        let output = scheduler.zeroed(numbers.len())?;
        Ok(Rows { input: scheduler.buffer(&numbers)?, output, rows })
    }

    /// Computes them, and waits.
    fn compute(&mut self, stream: &Stream, kernel: &ForeignKernel, cached: &Cached) -> Result<()> {
        // SAFETY: these are the parameters of the Python function; both buffers have `COLUMNS` elements for each block, and
        // blocks use their own ones alone.
        let call =
            unsafe { kernel.call() }.read(&self.input).write(&mut self.output).value(COLUMNS);
        stream.launch(cached.completed(call)?.grid(self.rows))?.wait()?;
        Ok(())
    }

    /// Compares the last row with the host's.
    fn check(&self, stream: &Stream) -> Result<()> {
        let found = stream.download(&self.output)?.wait()?;
        let from = (self.rows - 1) * COLUMNS as u32;
        let powers: Vec<f64> =
            (from..from + COLUMNS as u32).map(|i| f64::from(number(i)).exp()).collect();
        let sum: f64 = powers.iter().sum();
        for (found, power) in found[from as usize..].iter().zip(powers) {
            let (found, expected) = (f64::from(*found), power / sum);
            ensure!((found - expected).abs() <= 1e-5 * expected, "{found} instead of {expected}");
        }
        Ok(())
    }
}

/// Between -4 and 4.
fn number(i: u32) -> f32 {
    // 24 bits.
    (i.wrapping_mul(0x9E37_79B1) >> 8) as f32 / (1 << 21) as f32 - 4.0
}

/// Computes small softmaxes, and has a thread compute large ones in the second half of them.
fn run(cached: &Cached, device: Device) -> Result<()> {
    let options = Options::default().yields(true);
    let ptx = cached.ptx.clone();
    let scheduler = Scheduler::builder().device(device).ptx_with("triton", ptx, options).build()?;
    // Compiled and loaded here, not with the first request.
    let kernel = scheduler.foreign("triton", cached.name())?;
    let (batch, urgent) = (scheduler.stream(0), scheduler.stream(1));
    let (mut many, mut few) = (Rows::new(&scheduler, ROWS)?, Rows::new(&scheduler, FEW)?);
    for (name, has_batch) in [("alone", false), ("beside large ones", true)] {
        let is_over = AtomicBool::new(!has_batch);
        let (times, large) = thread::scope(|scope| {
            let large = scope.spawn(|| {
                let mut large = 0;
                while !is_over.load(Ordering::Relaxed) {
                    many.compute(&batch, &kernel, cached)?;
                    large += 1;
                }
                Ok::<_, anyhow::Error>(large)
            });
            let times = requests(&mut few, &urgent, &kernel, cached);
            is_over.store(true, Ordering::Relaxed);
            (times, large.join())
        });
        let (times, large) = (times?, large.map_err(|_| anyhow!("a thread panicked"))??);
        let at = |share: f64| times[(share * (times.len() - 1) as f64) as usize];
        println!("small ones {name}: p50 {:?}, p99 {:?}; {large} large ones", at(0.5), at(0.99));
    }
    few.check(&urgent)?;
    many.check(&batch)
}

/// The times of small softmaxes, sorted.
fn requests(
    few: &mut Rows,
    urgent: &Stream,
    kernel: &ForeignKernel,
    cached: &Cached,
) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for _ in 0..REQUESTS {
        let start = Instant::now();
        few.compute(urgent, kernel, cached)?;
        times.push(start.elapsed());
        thread::sleep(PAUSE);
    }
    times.sort();
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_becomes_preemptible() {
        let kernel = Cached::all(&cache::tests::sample()).unwrap().pop().unwrap().unwrap();
        let said = verdict(&kernel).unwrap();
        let is_accepted = said.contains("blocks of 128 threads") && !said.contains("refused");
        assert!(is_accepted, "{said}");
    }

    #[test]
    fn numbers_lie_between_the_bounds() {
        for i in [0, 1, 12_345, u32::MAX] {
            assert!((-4.0..=4.0).contains(&number(i)), "{}", number(i));
        }
    }
}
