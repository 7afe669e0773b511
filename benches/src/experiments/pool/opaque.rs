//! Batch work in a process of its own, which is killed where a user-facing task comes: how soon that one's first kernel has run.

use std::cell::RefCell;
use std::error::Error as StdError;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{env, process, thread};

use anyhow::{Context, Result, ensure};
use preempt::Scheduler;
use preempt::pool::{Class, Pool, Run, Task, UserFacingFirst};
use preempt::worker::{Functions, Job, Workers};
use preempt_driver::{Array, Gpu};

use super::inversion::SETTLED;
use super::replay::LOST;
use super::tasks::Hold;
use crate::experiments::Bench;
use crate::experiments::processes::{Batch, RawBatch};
use crate::samples::Samples;

/// Kills by which times are measured, and as many again by which memory is; and with `--quick`.
const KILLS: (u32, u32) = (50, 1);
/// Of the worker's grids, which none leaves before.
const BLOCK: Duration = Duration::from_secs(1);
/// Device memory that the worker takes, in bytes.
const TAKES: usize = 20 << 30;
/// What other processes may have taken of that meanwhile: contexts of standbys.
const OTHERS: usize = 1 << 30;

/// The worker's functions: on a GPU, and where there is none. Their input is the path of a file that they make when they run.
const OCCUPY: &str = "occupy";
const SLEEP: &str = "sleep";

/// How long it takes to take a device from a worker: from when user-facing tasks are submitted.
#[derive(Clone, Debug, Default)]
pub struct Kills {
    /// Until a task's body begins.
    pub begins: Samples,
    /// Until its first kernel has run, which fills its device, and its output is on the host.
    pub first_kernel: Samples,
    /// Until the worker's memory is free; on a GPU.
    pub memory: Samples,
    /// What a standby has of a GPU's memory, in bytes.
    pub standby: Option<usize>,
}

/// If this process is a worker, serves calls and does not return.
pub fn serve_if_worker() {
    thread_local! {
        /// Grids of a GPU, if there is one; of the thread that serves.
        static BATCH: RefCell<Option<RawBatch>> = const { RefCell::new(None) };
    }
    // Also beside CPU devices, where it may be that there is none.
    let warm = |device: usize| {
        let batch = Gpu::open(device as i32).map_err(Into::into);
        BATCH.set(batch.and_then(|gpu| RawBatch::new(gpu, BLOCK)).ok());
        Ok(0)
    };
    let on_gpu = |job: &Job| occupy(BATCH.take().ok_or("a worker has no GPU")?, mark(job)?);
    let sleep = |job: &Job| {
        File::create(mark(job)?)?;
        loop {
            thread::park();
        }
    };
    Functions::new().add(OCCUPY, on_gpu).add(SLEEP, sleep).warm(warm).serve_if_worker();
}

fn mark(job: &Job) -> Result<&Path, Box<dyn StdError>> {
    Ok(Path::new(std::str::from_utf8(&job.input)?))
}

/// Fills a GPU until the process is killed.
fn occupy(mut batch: RawBatch, mark: &Path) -> Result<Vec<u8>, Box<dyn StdError>> {
    let _taken = Array::<u32>::zeroed(TAKES / size_of::<u32>())?;
    for round in 0.. {
        batch.top_up()?;
        thread::sleep(SETTLED);
        // The first grid is on the GPU by then.
        if round == 1 {
            File::create(mark)?;
        }
    }
    Ok(Vec::new())
}

/// A file of this process alone.
struct Mark(PathBuf);

impl Drop for Mark {
    fn drop(&mut self) {
        // Where there is none, nothing happens.
        let _ = fs::remove_file(&self.0);
    }
}

/// Kills workers that have the first device, or all parts of it.
pub fn measure(bench: &Bench, devices: &[Scheduler], hold: Hold) -> Result<Kills> {
    let first = devices.first().context("a pool of no device")?.device();
    // A part has a share of memory, which no other process takes of.
    let device = first.whole().unwrap_or(first);
    let parts = if first.whole().is_some() { devices.len() } else { 1 };
    let free = || Ok::<_, anyhow::Error>(device.memory()?.free);
    let before = free()?;
    let builder = Pool::builder().policy(UserFacingFirst).workers(Workers::this_program()?);
    let parts = devices.iter().take(parts);
    let pool = parts.fold(builder, |builder, part| builder.scheduler(part.clone())).build()?;
    let is_gpu = bench.gpu.is_some();
    let without_worker = free()?;
    let of_standby = before.saturating_sub(without_worker) / pool.standbys().len();
    let is_free = || Ok(free()? + OTHERS >= without_worker);
    let mut kills = Kills { standby: is_gpu.then_some(of_standby), ..Kills::default() };
    let [service, nightly] = [Class::UserFacing, Class::Batch].map(|class| pool.application(class));
    let mark = Mark(env::temp_dir().join(format!("preempt-bench-{}", process::id())));
    for kill in 0..2 * bench.amount(KILLS.1, KILLS.0) {
        wait_until("the memory of the worker before is not free", || Ok(!is_gpu || is_free()?))?;
        let running = nightly.submit(&occupying(is_gpu, &mark.0)?)?;
        wait_until("a worker has not begun", || Ok(mark.0.exists() || running.is_done()))?;
        fs::remove_file(&mark.0).context("a worker has ended with its task")?;
        let decided = Instant::now();
        let user = || service.submit(&user(decided, hold));
        let users: Vec<_> = (0..pool.devices()).map(|_| user()).collect::<Result<_, _>>()?;
        // The driver is asked for it in kills of its own, so that nothing waits for that.
        let is_of_memory = kill % 2 == 1 && is_gpu;
        if is_of_memory {
            wait_until("a worker's memory is not free", is_free)?;
            kills.memory.push(decided.elapsed());
        }
        for user in users {
            let [begins, first_kernel] = user.wait()?;
            if !is_of_memory {
                kills.begins.push(begins);
                kills.first_kernel.push(first_kernel);
            }
        }
        let ((), report) = running.wait_with_report()?;
        ensure!(report.revocations == 1, "a worker was to be killed once: {report:?}");
    }
    Ok(kills)
}

/// A task whose worker has all of a device until it is killed. Nothing is left of it when it runs again.
fn occupying(is_gpu: bool, mark: &Path) -> Result<Task<()>> {
    let function = if is_gpu { OCCUPY } else { SLEEP };
    let mark =
        mark.to_str().context("the folder for temporary files has a name that is no text")?;
    let (mark, is_over) = (mark.to_owned(), AtomicBool::new(false));
    let body = move |run: &Run| {
        // Relaxed: the pool's lock orders the runs of a task.
        if !is_over.swap(true, Relaxed) {
            run.call(function, mark.as_bytes())?;
        }
        Ok(())
    };
    Ok(Task::new("occupying", body).opaque())
}

/// A user-facing task: when it begins, and when its kernel has run, which has all SMs of a device.
fn user(decided: Instant, hold: Hold) -> Task<[Duration; 2]> {
    Task::new("user", move |run| {
        let begins = decided.elapsed();
        let mut counts = run.zeroed(hold.places as usize)?;
        run.launch(hold.brief_call(&mut counts))?;
        run.download(&counts)?;
        Ok([begins, decided.elapsed()])
    })
}

fn wait_until(what: &str, is_so: impl Fn() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !is_so()? {
        ensure!(start.elapsed() < LOST, "{what} within {LOST:?}");
        thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}
