//! Long walks and urgent scores on one GPU, with cudarc and preempt.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use cudarc::driver::CudaContext;
use cudarc_app::{BLOCK, BLOCKS, ROWS, STEPS, Work, measure};
use preempt::{Device, Scheduler};

pub fn run(name: &str, context: &Arc<CudaContext>, ptx: &str) -> Result<()> {
    let work = Work::new();
    let device = Device::from_cudarc(context)?;
    let scheduler = Scheduler::builder()
        .device(device)
        .ptx("app", ptx)
        .poller_spin(Duration::from_secs(1))
        .build()?;
    let (walk, score) = (scheduler.foreign("app", "walk")?, scheduler.foreign("app", "score")?);
    let batch = scheduler.stream(0);
    let urgent = scheduler.stream(1);

    let theirs = context.new_stream()?;
    let starts = theirs.clone_htod(&work.starts)?;
    let mut ends = theirs.alloc_zeros::<u32>(work.starts.len())?;
    let weights = theirs.clone_htod(&work.weights)?;
    let window = theirs.clone_htod(&work.window)?;
    let mut scores = theirs.alloc_zeros::<i32>(ROWS as usize)?;

    {
        let starts = scheduler.lend(&starts)?;
        let mut ends = scheduler.lend_mut(&mut ends)?;
        let (weights, window) = (scheduler.lend(&weights)?, scheduler.lend(&window)?);
        let mut scores = scheduler.lend_mut(&mut scores)?;
        measure(
            name,
            || {
                // SAFETY: these are the parameters; there is a row of weights and a score for each block.
                let call = unsafe { score.call() }.read(&weights).read(&window).write(&mut scores);
                let call = call.block(BLOCK).grid(ROWS);
                scheduler.scope(|scope| scope.launch(&urgent, call)?.wait())?;
                Ok(())
            },
            || {
                // SAFETY: these are the parameters; there is a start and an end for each thread.
                let call = unsafe { walk.call() }.read(&starts).write(&mut ends).value(STEPS);
                let call = call.block(BLOCK).grid(BLOCKS);
                scheduler.scope(|scope| scope.launch(&batch, call)?.wait())?;
                Ok(())
            },
        )?;
    }

    work.check_walks(&theirs.clone_dtoh(&ends)?)?;
    work.check_scores(&theirs.clone_dtoh(&scores)?)
}
