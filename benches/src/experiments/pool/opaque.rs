//! Batch work in a process of its own, which is killed where a user-facing task comes: how soon that one's first kernel has run.

use std::cell::RefCell;
use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use preempt::pool::{Class, Pool, Run, Task, UserFacingFirst};
use preempt::worker::{Functions, Job, Workers};
use preempt::{Device, Scheduler};
use preempt_driver::{Array, Gpu};

use super::inversion::SETTLED;
use super::occupancy::Occupancy;
use super::replay::{LOST, await_batch};
use super::tasks::Hold;
use crate::experiments::Bench;
use crate::experiments::processes::{Batch, RawBatch};
use crate::samples::Samples;

/// Kills, and with `--quick`.
const KILLS: (u32, u32) = (50, 2);
/// Of the worker's grids, which none leaves before.
const BLOCK: Duration = Duration::from_secs(1);
/// Device memory that the worker takes, in bytes.
const TAKES: usize = 20 << 30;
/// Device memory that other processes may have taken or given back meanwhile: contexts of standbys.
const OTHERS: usize = 2 << 30;

/// The worker's function.
const OCCUPY: &str = "occupy";

/// How long it takes to take a device from a worker: from when a user-facing task is submitted.
#[derive(Clone, Debug, Default)]
pub struct Kills {
    /// Until the task's body begins.
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
    let warm = |device: usize| {
        if Device::count().is_ok_and(|gpus| gpus > 0) {
            let batch = RawBatch::new(Gpu::open(device as i32)?, BLOCK)?;
            BATCH.with(|of| of.replace(Some(batch)));
        }
        Ok(0)
    };
    let occupy = |_: &Job| {
        let batch = BATCH.with(RefCell::take);
        match batch {
            Some(batch) => occupy(batch),
            None => loop {
                thread::park();
            },
        }
    };
    Functions::new().add(OCCUPY, occupy).warm(warm).serve_if_worker();
}

/// Fills a GPU until the process is killed.
fn occupy(mut batch: RawBatch) -> Result<Vec<u8>, Box<dyn StdError>> {
    let _taken = Array::<u32>::zeroed(TAKES / size_of::<u32>())?;
    loop {
        batch.top_up()?;
        thread::sleep(SETTLED);
    }
}

/// Kills workers that have a device, or all parts of one.
pub fn measure(bench: &Bench, devices: &[Scheduler], hold: Hold) -> Result<Kills> {
    let device = devices.first().context("a pool of no device")?.device();
    // A part has a share of memory, which no other process takes of.
    let device = device.whole().unwrap_or(device);
    let free = || Ok::<_, anyhow::Error>(device.memory()?.free);
    let before = free()?;
    let builder = Pool::builder().policy(UserFacingFirst).workers(Workers::this_program()?);
    let builder = devices.iter().fold(builder, |builder, device| builder.scheduler(device.clone()));
    let pool = builder.build()?;
    let mut kills = Kills::default();
    let is_gpu = bench.gpu.is_some();
    if is_gpu {
        // Other devices have theirs.
        let of_device = pool.standbys().iter().filter(|standby| standby.device == 0).count();
        kills.standby = Some(before.saturating_sub(free()?) / of_device.max(1));
    }
    let [service, nightly] = [Class::UserFacing, Class::Batch].map(|class| pool.application(class));
    for _ in 0..bench.amount(KILLS.1, KILLS.0) {
        let free_before = free()?;
        let occupancy = Arc::new(Occupancy::new(pool.devices()));
        let running = nightly.submit(&occupying(&occupancy))?;
        await_batch(&occupancy)?;
        if is_gpu {
            await_memory("a worker has not taken its memory", || {
                Ok(free()? + TAKES <= free_before + OTHERS)
            })?;
        }
        thread::sleep(SETTLED);
        let decided = Instant::now();
        let users: Vec<_> = (0..pool.devices())
            .map(|_| service.submit(&user(decided, hold)))
            .collect::<Result<_, _>>()?;
        let memory = thread::scope(|scope| {
            let freed = || -> Result<Duration> {
                await_memory("a worker's memory is not free", || {
                    Ok(free()? + OTHERS >= free_before)
                })?;
                Ok(decided.elapsed())
            };
            let freed = is_gpu.then(|| scope.spawn(freed));
            freed
                .map(|freed| freed.join().map_err(|_| anyhow!("a thread has panicked"))?)
                .transpose()
        })?;
        for user in users {
            let [begins, first_kernel] = user.wait()?;
            kills.begins.push(begins);
            kills.first_kernel.push(first_kernel);
        }
        if let Some(memory) = memory {
            kills.memory.push(memory);
        }
        let ((), report) = running.wait_with_report()?;
        ensure!(report.revocations == 1, "a worker was to be killed once: {report:?}");
    }
    Ok(kills)
}

/// A task whose worker has all of a device until it is killed. Nothing is left of it when it runs again.
fn occupying(occupancy: &Arc<Occupancy>) -> Task<()> {
    let (occupancy, is_over) = (occupancy.clone(), AtomicBool::new(false));
    let body = move |run: &Run| {
        let _entered = occupancy.enter(run.device(), Class::Batch);
        if !is_over.swap(true, Relaxed) {
            run.call(OCCUPY, &[])?;
        }
        Ok(())
    };
    Task::new("occupying", body).opaque()
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

fn await_memory(what: &str, is_so: impl Fn() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !is_so()? {
        ensure!(start.elapsed() < LOST, "{what} within {LOST:?}");
        thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}
