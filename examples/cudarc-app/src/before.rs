//! Long walks and urgent scores on one GPU, with cudarc.

use std::sync::Arc;

use anyhow::Result;
use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg, result};
use cudarc::nvrtc::Ptx;
use cudarc_app::{BLOCK, BLOCKS, ROWS, STEPS, Work, measure};

pub fn run(name: &str, context: &Arc<CudaContext>, ptx: &str, has_priorities: bool) -> Result<()> {
    let work = Work::new();
    let module = context.load_module(Ptx::from_src(ptx))?;
    let (walk, score) = (module.load_function("walk")?, module.load_function("score")?);
    let (least, greatest) = result::stream::get_priority_range()?;
    let batch = context.new_stream_with_priority(least)?;
    let urgent = context.new_stream_with_priority(if has_priorities { greatest } else { least })?;

    let starts = batch.clone_htod(&work.starts)?;
    let mut ends = batch.alloc_zeros::<u32>(work.starts.len())?;
    let weights = urgent.clone_htod(&work.weights)?;
    let window = urgent.clone_htod(&work.window)?;
    let mut scores = urgent.alloc_zeros::<i32>(ROWS as usize)?;

    let grid = |blocks| LaunchConfig {
        grid_dim: (blocks, 1, 1),
        block_dim: (BLOCK, 1, 1),
        shared_mem_bytes: 0,
    };
    measure(
        name,
        || {
            let mut launch = urgent.launch_builder(&score);
            launch.arg(&weights).arg(&window).arg(&mut scores);
            // SAFETY: these are the parameters; there is a row of weights and a score for each block.
            unsafe { launch.launch(grid(ROWS)) }?;
            Ok(urgent.synchronize()?)
        },
        || {
            let mut launch = batch.launch_builder(&walk);
            launch.arg(&starts).arg(&mut ends).arg(&STEPS);
            // SAFETY: these are the parameters; there is a start and an end for each thread.
            unsafe { launch.launch(grid(BLOCKS)) }?;
            Ok(batch.synchronize()?)
        },
    )?;

    work.check_walks(&batch.clone_dtoh(&ends)?)?;
    work.check_scores(&urgent.clone_dtoh(&scores)?)
}
