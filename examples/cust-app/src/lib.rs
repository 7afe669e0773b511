//! The common part of both programs: the work, the check of the results, and the times. It does not depend on a GPU.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cust_app_kernels::STRIDE;
pub use cust_app_kernels::WINDOW;
use preempt_record::Record;
use serde_json::json;

/// The kernels' device code.
pub const KERNELS: preempt::Module = preempt::include_kernels!();

/// Threads in a block of the walks.
pub const BLOCK: u32 = 256;
/// Blocks of the walks: several times as many as a GPU holds at once.
pub const BLOCKS: u32 = 32_768;
/// Strides of a walk: about a millisecond for a block.
pub const STRIDES: u32 = 200;
/// Rows of weights.
pub const ROWS: u32 = 16;
/// Rounds of walks.
pub const ROUNDS: u32 = 20;

/// Mean time from one window to the next.
const PERIOD: Duration = Duration::from_millis(1);

/// Walks that are checked on the host, which takes time.
const CHECKED: usize = 500;

/// The inputs.
#[derive(Debug)]
pub struct Work {
    /// The starts of the walks.
    pub starts: Vec<u32>,
    /// `ROWS` rows of weights.
    pub weights: Vec<i32>,
    /// The window to score.
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

    /// Checks that walks from the starts have these ends.
    pub fn check_walks(&self, ends: &[u32]) -> Result<()> {
        ensure!(ends.len() == self.starts.len(), "{} walks came to an end", ends.len());
        for i in (0..ends.len()).step_by(ends.len() / CHECKED) {
            let end = (0..STRIDES * STRIDE).fold(self.starts[i], |x, _| step(x));
            ensure!(ends[i] == end, "walk {i} ends at {:#x} instead of {end:#x}", ends[i]);
        }
        Ok(())
    }

    /// Checks that these are the scores of the window.
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

/// The moments at which windows arrive, whether or not the window before is scored: about one in a millisecond, the
/// same each time. With `--storm`, they follow each other at once.
#[derive(Debug)]
pub struct Windows {
    random: u32,
    next: Instant,
    is_storm: bool,
}

impl Windows {
    /// The first window arrives about now.
    pub fn new() -> Result<Windows> {
        Ok(Windows { random: 1, next: Instant::now(), is_storm: options()?.is_storm })
    }

    /// Waits for the next window, and returns its arrival.
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

/// The results of the program.
#[derive(Debug)]
pub struct Results {
    start: Instant,
    /// Time of each score.
    pub scores: Vec<Duration>,
    /// Times that walks were interrupted; 0 in `before`.
    pub yields: u32,
    /// A number that depends on where every walk of every round ended.
    pub checksum: u64,
}

impl Results {
    /// Empty results.
    pub fn new() -> Results {
        Results { start: Instant::now(), scores: Vec::new(), yields: 0, checksum: 0 }
    }

    /// Adds the walks of a round.
    pub fn add_walks(&mut self, ends: &[u32]) {
        // FNV-1a, over whole numbers.
        let add = |hash: u64, &end: &u32| (hash ^ u64::from(end)).wrapping_mul(0x0100_0000_01B3);
        self.checksum = ends.iter().fold(self.checksum, add);
    }

    /// The time in microseconds that a share of the scores does not exceed (nearest rank of the sorted times).
    fn percentile(&self, share: f64) -> Result<f64> {
        let rank = (share * self.scores.len() as f64).ceil() as usize;
        let time = self.scores.get(rank.saturating_sub(1)).context("nothing was scored")?;
        Ok(time.as_nanos() as f64 / 1e3)
    }

    /// Prints the results, and writes them to the file that `--out` names.
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
            let summary = json!({
                "scores": self.scores.len(),
                "score_p50_us": p50,
                "score_p99_us": p99,
                "walks_s": time.as_secs_f64(),
                "yields": yields,
                "checksum": format!("{checksum:016x}"),
            });
            let (suite, driver, rows) = ("cust-app", Some(driver), vec![summary.clone()]);
            let results = Record { suite, device, driver, rows, summary }.json();
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

/// The options of the command line.
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
