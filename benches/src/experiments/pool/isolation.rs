//! What neighbours on other devices of a pool cost an urgent kernel: they are parts of one GPU, with its caches, its memory
//! and its clock in common.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use preempt::{Call, Scheduler, Stream};
use preempt_workloads::{Program, Size, find};

use crate::experiments::Bench;
use crate::samples::Samples;

/// The load of the neighbours: idle, a compute-bound program, and a memory-bound program.
pub const NEIGHBOURS: [&str; 3] = ["idle", "MD5Hash", "Triad"];
/// The urgent programs: a compute-bound and a memory-bound program.
pub const URGENT: [&str; 2] = ["MD5Hash", "VA"];
/// Rounds over all neighbours, and samples in each; and with `--quick`.
const ROUNDS: (u32, u32) = (10, 1);
const SAMPLES: (u32, u32) = (100, 2);
/// From when neighbours are told what to run until they do.
const SETTLES: Duration = Duration::from_millis(20);
/// In the place of a neighbour's program: its thread ends.
const END: usize = usize::MAX;

/// Times of an urgent program from its launch until its end is known, beside each of [`NEIGHBOURS`].
#[derive(Debug)]
pub struct Isolation {
    /// The urgent program.
    pub name: &'static str,
    /// By neighbour.
    pub times: [Samples; NEIGHBOURS.len()],
}

/// A program on a device of its own.
struct Runner {
    stream: Stream,
    /// The launches of each, which keep its memory.
    programs: Vec<Vec<Call<'static>>>,
}

impl Runner {
    fn new(scheduler: &Scheduler, names: &[&str], size: Size) -> Result<Runner> {
        let stream = scheduler.stream(0);
        let build = |name: &&str| {
            let program = find(name).with_context(|| format!("there is no program {name}"))?;
            let Program { setup, steps, .. } = (program.build)(scheduler.into(), size, 1)?;
            run(&stream, &setup)?;
            // Launches of a kernel change their form in the first few.
            (0..5).try_for_each(|_| run(&stream, &steps).map(drop))?;
            Ok(steps)
        };
        let programs = names.iter().map(build).collect::<Result<_>>()?;
        Ok(Runner { stream, programs })
    }
}

/// Launches these, and waits for the last.
fn run(stream: &Stream, calls: &[Call<'static>]) -> Result<Duration> {
    let start = Instant::now();
    let mut last = None;
    for call in calls {
        last = Some(stream.launch(call.clone())?);
    }
    last.map_or(Ok(()), |last| last.wait().map(drop))?;
    Ok(start.elapsed())
}

/// All urgent programs on the first of these devices, beside all neighbours on the others.
pub fn measure(bench: &Bench, devices: &[Scheduler]) -> Result<Vec<Isolation>> {
    let (first, others) = devices.split_first().context("a pool of no device")?;
    let (small, large) = match bench.gpu {
        Some(_) => (Size::Small, Size::Large),
        None => (Size::Trivial, Size::Trivial),
    };
    let urgent = Runner::new(first, &URGENT, small)?;
    let others = others.iter().map(|device| Runner::new(device, &NEIGHBOURS[1..], large));
    let others = others.collect::<Result<Vec<_>>>()?;
    let mut measured = URGENT.map(|name| Isolation { name, times: Default::default() });
    let runs = AtomicUsize::new(0);
    thread::scope(|scope| {
        let neighbours: Vec<_> =
            others.iter().map(|other| scope.spawn(|| keep_running(other, &runs))).collect();
        let mut sample = || {
            for _ in 0..bench.amount(ROUNDS.1, ROUNDS.0) {
                for neighbour in 0..NEIGHBOURS.len() {
                    runs.store(neighbour, Relaxed);
                    thread::sleep(SETTLES);
                    for _ in 0..bench.amount(SAMPLES.1, SAMPLES.0) {
                        for (program, measured) in urgent.programs.iter().zip(&mut measured) {
                            let took = run(&urgent.stream, program)?;
                            measured.times[neighbour].push(took);
                        }
                    }
                }
            }
            Ok(())
        };
        let sampled: Result<()> = sample();
        runs.store(END, Relaxed);
        for neighbour in neighbours {
            neighbour.join().map_err(|_| anyhow!("a neighbour's thread has panicked"))??;
        }
        sampled
    })?;
    Ok(measured.into())
}

/// Runs the program of this number, and nothing at 0, until [`END`].
fn keep_running(runner: &Runner, runs: &AtomicUsize) -> Result<()> {
    loop {
        match runs.load(Relaxed) {
            END => return Ok(()),
            0 => thread::sleep(SETTLES / 20),
            program => drop(run(&runner.stream, &runner.programs[program - 1])?),
        }
    }
}
