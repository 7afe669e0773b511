//! The part of the program that preempt changes nothing about: the kernels, the work, the check of the results, and the times.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use cudarc::nvrtc::{self, CompileOptions};

/// The kernels' source.
pub const SOURCE: &str = include_str!("walk_and_score.cu");
/// What NVRTC made of it, for machines without NVRTC. Its first lines are the source.
pub const COMMITTED: &str = include_str!("walk_and_score.ptx");

/// Threads in a block of either kernel, and elements of a window.
pub const BLOCK: u32 = 256;
/// Blocks of a walk: many times as many as a GPU holds at once.
pub const BLOCKS: u32 = 32_768;
/// Steps of a thread: about half a millisecond for a block.
pub const STEPS: i32 = 10_000;
/// Rows of weights: blocks of a score.
pub const ROWS: u32 = 16;
/// Windows that arrive, each two milliseconds after the one before it was scored.
pub const WINDOWS: usize = 500;

const PERIOD: Duration = Duration::from_millis(2);

/// Walks that are checked on the host, which takes time.
const CHECKED: usize = 500;

/// The kernels' PTX by NVRTC, with what else there is to say; an error where there is no NVRTC.
pub fn compile() -> Result<String> {
    // SAFETY: loading NVRTC runs its initialisers, as in every program that is linked with it.
    let is_there = unsafe { nvrtc::sys::is_culib_present() };
    ensure!(is_there, "NVRTC was not found");
    let options = CompileOptions { arch: Some("compute_80"), ..CompileOptions::default() };
    let ptx = nvrtc::compile_ptx_with_opts(SOURCE, options).map_err(|error| anyhow!("{error}"))?;
    Ok(ptx.to_src())
}

/// The text of [`COMMITTED`], for this PTX.
pub fn with_source(ptx: &str) -> String {
    let source = SOURCE.lines().map(|line| format!("// {line}").trim_end().to_owned() + "\n");
    source.collect::<String>() + ptx.trim_end_matches('\0').trim() + "\n"
}

/// The inputs.
#[derive(Debug)]
pub struct Work {
    /// The starts of the walks, one for each thread.
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
        let mut small = |count| (0..count).map(|_| next() as i32 >> 20).collect();
        Work { starts, weights: small(ROWS * BLOCK), window: small(BLOCK) }
    }

    /// Checks that walks from the starts have these ends.
    pub fn check_walks(&self, ends: &[u32]) -> Result<()> {
        ensure!(ends.len() == self.starts.len(), "{} walks came to an end", ends.len());
        for i in (0..ends.len()).step_by(ends.len() / CHECKED) {
            let end = (0..STEPS).fold(self.starts[i], |x, _| step(x));
            ensure!(ends[i] == end, "walk {i} ends at {:#x} instead of {end:#x}", ends[i]);
        }
        Ok(())
    }

    /// Checks that these are the scores of the window.
    pub fn check_scores(&self, scores: &[i32]) -> Result<()> {
        let dot = |row: &[i32]| row.iter().zip(&self.window).map(|(a, b)| a * b).sum::<i32>();
        let expected: Vec<i32> = self.weights.chunks(BLOCK as usize).map(dot).collect();
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

/// Scores windows as they arrive, while another thread has one walk after the other made, and prints how long each took.
///
/// # Errors
///
/// Those of `score` and `walk`.
pub fn measure(
    name: &str,
    mut score: impl FnMut() -> Result<()>,
    mut walk: impl FnMut() -> Result<()> + Send,
) -> Result<()> {
    // Each loads its kernel, and has run once.
    score()?;
    walk()?;
    let is_done = AtomicBool::new(false);
    let start = Instant::now();
    let (mut times, walks) = thread::scope(|scope| -> Result<_> {
        let walks = scope.spawn(|| {
            let mut walks = 0u32;
            // Relaxed: nothing is read that was written before it.
            while !is_done.load(Ordering::Relaxed) {
                walk()?;
                walks += 1;
            }
            Ok::<_, anyhow::Error>(walks)
        });
        let score = (0..WINDOWS).map(|_| {
            let arrival = Instant::now() + PERIOD;
            while Instant::now() < arrival {
                std::hint::spin_loop();
            }
            score().map(|()| arrival.elapsed())
        });
        let times: Result<Vec<_>> = score.collect();
        is_done.store(true, Ordering::Relaxed);
        let walks = walks.join().map_err(|_| anyhow!("the walks panicked"))??;
        Ok((times?, walks))
    })?;
    let walks = f64::from(walks) / start.elapsed().as_secs_f64();
    times.sort_unstable();
    let micros = |rank: usize| -> Result<f64> {
        let time = times.get(rank).context("nothing was scored")?;
        Ok(time.as_secs_f64() * 1e6)
    };
    let (p50, p99) = (micros(WINDOWS / 2)?, micros(WINDOWS * 99 / 100)?);
    println!("{name:<30} score p50 {p50:8.1} µs, p99 {p99:8.1} µs; {walks:6.1} walks a second");
    Ok(())
}
