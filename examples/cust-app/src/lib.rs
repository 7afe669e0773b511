//! What both programs have in common: what there is to do, whether it was done right, and how long it
//! took. Nothing of it knows of a GPU.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cust_app_kernels::STRIDE;
pub use cust_app_kernels::WINDOW;
use serde_json::json;

/// The kernels' device code.
pub const KERNELS: preempt::Module = preempt::include_kernels!("cust_app_kernels");

/// Threads in a block of the walks, and blocks.
pub const BLOCK: u32 = 256;
/// How many blocks walk: some times as many as a GPU has room for.
pub const BLOCKS: u32 = 32_768;
/// How long a walk is: about a millisecond for a block.
pub const STRIDES: u32 = 200;
/// Rows of weights.
pub const ROWS: u32 = 16;
/// Walks are started this many times.
pub const ROUNDS: u32 = 20;

/// How long it is from one window to the next, on average.
const PERIOD: Duration = Duration::from_millis(1);

/// How many of the walks are checked on the host, which takes its time.
const CHECKED: usize = 500;

/// The inputs.
#[derive(Debug)]
pub struct Work {
    /// Where the walks start.
    pub starts: Vec<u32>,
    /// `ROWS` rows of weights.
    pub weights: Vec<i32>,
    /// What is scored.
    pub window: Vec<i32>,
}

impl Work {
    /// Random work, the same each time.
    pub fn new() -> Work {
        let mut x = 0x9E37_79B9_u32;
        let mut next = || {
            x = step(x);
            x
        };
        let starts = (0..BLOCKS * BLOCK).map(|_| next()).collect();
        let mut small = |count: usize| (0..count).map(|_| next() as i32 >> 20).collect();
        Work { starts, weights: small(ROWS as usize * WINDOW), window: small(WINDOW) }
    }

    /// Whether walks that start here end there.
    pub fn check_walks(&self, ends: &[u32]) -> Result<()> {
        ensure!(ends.len() == self.starts.len(), "{} walks came to an end", ends.len());
        for i in (0..ends.len()).step_by(ends.len() / CHECKED) {
            let end = (0..STRIDES * STRIDE).fold(self.starts[i], |x, _| step(x));
            ensure!(ends[i] == end, "walk {i} ends at {:#x} instead of {end:#x}", ends[i]);
        }
        Ok(())
    }

    /// Whether these are the scores of the window.
    pub fn check_scores(&self, scores: &[i32]) -> Result<()> {
        let dot = |row: &[i32]| row.iter().zip(&self.window).map(|(a, b)| a * b).sum::<i32>();
        let expected: Vec<i32> = self.weights.chunks(WINDOW).map(dot).collect();
        ensure!(scores == expected, "the scores are {scores:?} instead of {expected:?}");
        Ok(())
    }
}

impl Default for Work {
    fn default() -> Work {
        Work::new()
    }
}

fn step(mut x: u32) -> u32 {
    x ^= x << 13;
    x ^= x >> 17;
    x ^ (x << 5)
}

/// The moments at which windows come, whether or not the one before is scored: about one in a
/// millisecond, the same each time; or, with `--storm`, one after the other.
#[derive(Debug)]
pub struct Windows {
    random: u32,
    next: Instant,
    is_storm: bool,
}

impl Windows {
    /// The first one comes about now.
    pub fn new() -> Result<Windows> {
        Ok(Windows { random: 1, next: Instant::now(), is_storm: options()?.is_storm })
    }

    /// Waits for the next window; when it came.
    pub fn wait(&mut self) -> Instant {
        if self.is_storm {
            return Instant::now();
        }
        self.random = step(self.random);
        self.next += PERIOD.mul_f64(2.0 * f64::from(self.random) / f64::from(u32::MAX));
        while Instant::now() < self.next {
            std::hint::spin_loop();
        }
        self.next
    }
}

/// What came of it.
#[derive(Debug)]
pub struct Results {
    start: Instant,
    /// How long each score took.
    pub scores: Vec<Duration>,
    /// How often walks were interrupted; 0 in `before`.
    pub yields: u32,
    /// A number that depends on where every walk of every round ended.
    pub checksum: u64,
}

impl Results {
    /// Nothing yet.
    pub fn new() -> Results {
        Results { start: Instant::now(), scores: Vec::new(), yields: 0, checksum: 0 }
    }

    /// Takes a round's walks in.
    pub fn add_walks(&mut self, ends: &[u32]) {
        // FNV-1a, over whole numbers.
        let add = |hash: u64, &end: &u32| (hash ^ u64::from(end)).wrapping_mul(0x0100_0000_01B3);
        self.checksum = ends.iter().fold(self.checksum, add);
    }

    /// The time in microseconds that a share of the scores took at most (nearest rank of the sorted times).
    fn percentile(&self, share: f64) -> Result<f64> {
        let rank = (share * self.scores.len() as f64).ceil() as usize;
        let time = self.scores.get(rank.saturating_sub(1)).context("nothing was scored")?;
        Ok(time.as_nanos() as f64 / 1e3)
    }

    /// Prints what came of it, and writes it to the file that `--out` names.
    pub fn report(mut self, device: String, driver: String) -> Result<()> {
        let time = self.start.elapsed();
        self.scores.sort_unstable();
        let (p50, p99) = (self.percentile(0.5)?, self.percentile(0.99)?);
        let Results { yields, checksum, .. } = self;
        println!(
            "scores: {}, p50 {p50:.1} µs, p99 {p99:.1} µs; walks: {:.3} s, {yields} yields, \
             checksum {checksum:016x}",
            self.scores.len(),
            time.as_secs_f64(),
        );
        if let Some(file) = options()?.out {
            let results = json!({
                "suite": "cust-app",
                "device": device,
                "driver": driver,
                "summary": {
                    "scores": self.scores.len(),
                    "score_p50_us": p50,
                    "score_p99_us": p99,
                    "walks_s": time.as_secs_f64(),
                    "yields": yields,
                    "checksum": format!("{checksum:016x}"),
                },
            });
            let text = serde_json::to_string_pretty(&results)? + "\n";
            std::fs::write(&file, text).with_context(|| file.display().to_string())?;
        }
        Ok(())
    }
}

impl Default for Results {
    fn default() -> Results {
        Results::new()
    }
}

/// What the command line says.
#[derive(Default)]
struct Options {
    out: Option<PathBuf>,
    is_storm: bool,
}

fn options() -> Result<Options> {
    let mut options = Options::default();
    let mut args = std::env::args_os().skip(1);
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--storm") => options.is_storm = true,
            Some("--out") => options.out = Some(args.next().context("--out names a file")?.into()),
            _ => bail!("usage: [--storm] [--out FILE]"),
        }
    }
    Ok(options)
}
