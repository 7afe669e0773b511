//! Long walks and urgent scores on one GPU, with `cust`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use anyhow::{Context as _, Result};
use cust::context::CurrentContext;
use cust::prelude::*;
use cust_app::{BLOCK, BLOCKS, KERNELS, ROUNDS, ROWS, Results, STRIDES, WINDOW, Windows, Work};

fn main() -> Result<()> {
    let work = Work::new();
    let context = cust::quick_init()?;
    let ptx = KERNELS.ptx().context("the build found no device toolchain")?;
    let module = Module::from_ptx(ptx, &[])?;
    let greatest = CurrentContext::get_stream_priority_range()?.greatest;
    let batch = Stream::new(StreamFlags::NON_BLOCKING, None)?;
    let urgent = Stream::new(StreamFlags::NON_BLOCKING, Some(greatest))?;

    let starts = DeviceBuffer::from_slice(&work.starts)?;
    let ends = DeviceBuffer::from_slice(&vec![0u32; work.starts.len()])?;
    let weights = DeviceBuffer::from_slice(&work.weights)?;
    let window = DeviceBuffer::from_slice(&work.window)?;
    let scores = DeviceBuffer::from_slice(&[0i32; ROWS as usize])?;

    let results = Mutex::new(Results::new());
    let is_done = AtomicBool::new(false);
    let mut windows = Windows::new()?;
    thread::scope(|scope| -> Result<()> {
        let walks = scope.spawn(|| -> Result<()> {
            CurrentContext::set_current(&context)?;
            for _ in 0..ROUNDS {
                // SAFETY: there are as many ends as starts.
                unsafe {
                    launch!(module.walk<<<BLOCKS, BLOCK, 0, batch>>>(
                        starts.as_device_ptr(),
                        starts.len(),
                        STRIDES,
                        ends.as_device_ptr()
                    ))?;
                }
                batch.synchronize()?;
            }
            is_done.store(true, SeqCst);
            Ok(())
        });
        let shared_bytes = (WINDOW * size_of::<i32>()) as u32;
        while !is_done.load(SeqCst) && !walks.is_finished() {
            let start = windows.wait();
            // SAFETY: there is a weight for each thread, a number for each thread of a block, a score for each block.
            unsafe {
                launch!(module.score<<<ROWS, WINDOW as u32, shared_bytes, urgent>>>(
                    weights.as_device_ptr(),
                    weights.len(),
                    window.as_device_ptr(),
                    window.len(),
                    scores.as_device_ptr()
                ))?;
            }
            urgent.synchronize()?;
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
