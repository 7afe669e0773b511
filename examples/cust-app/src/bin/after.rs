//! Long walks and urgent scores on one GPU, with `cust` and preempt.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use cust::prelude::*;
use cust_app::{BLOCK, BLOCKS, KERNELS, ROUNDS, ROWS, Results, STRIDES, WINDOW, Windows, Work};
use cust_app_kernels as kernels;

fn main() -> Result<()> {
    let work = Work::new();
    let context = cust::quick_init()?;
    let device = preempt::Device::from_cust(&context)?;
    let scheduler = preempt::Scheduler::builder()
        .device(device)
        .kernels(KERNELS)
        .poller_spin(Duration::from_secs(1))
        .build()?;
    let batch = scheduler.stream(0);
    let urgent = scheduler.stream(1);

    let starts = DeviceBuffer::from_slice(&work.starts)?;
    let mut ends = DeviceBuffer::from_slice(&vec![0u32; work.starts.len()])?;
    let weights = DeviceBuffer::from_slice(&work.weights)?;
    let window = DeviceBuffer::from_slice(&work.window)?;
    let mut scores = DeviceBuffer::from_slice(&[0i32; ROWS as usize])?;

    let results = Mutex::new(Results::new());
    let is_done = AtomicBool::new(false);
    let mut windows = Windows::new()?;
    thread::scope(|scope| -> Result<()> {
        let walks = scope.spawn(|| -> Result<()> {
            for _ in 0..ROUNDS {
                // SAFETY: there are as many ends as starts.
                let walk = unsafe { kernels::walk(&starts, STRIDES, &mut ends) };
                let walk = walk.grid(BLOCKS).block(BLOCK);
                let report = scheduler.scope(|scope| scope.launch(&batch, walk)?.wait())?;
                results.lock().unwrap().yields += report.yields;
            }
            is_done.store(true, SeqCst);
            Ok(())
        });
        while !is_done.load(SeqCst) && !walks.is_finished() {
            let start = windows.wait();
            // SAFETY: there is a weight for each thread, a number for each thread of a block, a score for each block.
            let score = unsafe { kernels::score(&weights, &window, &mut scores) };
            let score = score.grid(ROWS).block(WINDOW as u32);
            scheduler.scope(|scope| scope.launch(&urgent, score)?.wait())?;
            results.lock().unwrap().scores.push(start.elapsed());
        }
        walks.join().unwrap()
    })?;

    let mut results = results.into_inner().unwrap();
    let ends = ends.as_host_vec()?;
    work.check_walks(&ends)?;
    work.check_scores(&scores.as_host_vec()?)?;
    results.add_walks(&ends);
    let driver = cust::CudaApiVersion::get()?;
    let driver = format!("CUDA {}.{}", driver.major(), driver.minor());
    results.report(Device::get_device(0)?.name()?, driver)
}
