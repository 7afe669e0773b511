//! How long urgent softmaxes take beside long ones.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use candle_core::backend::BackendDevice;
use candle_core::{Device, Tensor};
use candle_nn::ops::softmax_last_dim;

use crate::difference;
use crate::gpu::{Gpu, scheduler};
use crate::softmax::Softmax;

type Error = Box<dyn std::error::Error + Send + Sync>;
pub type Result<T> = std::result::Result<T, Error>;

/// Urgent tensors, each two milliseconds after the one before it was done.
const URGENT: u32 = 500;
const PERIOD: Duration = Duration::from_millis(2);

pub fn run() -> Result<()> {
    let device = Device::new_cuda(0)?;
    let of_candle = device.as_cuda_device()?;
    // Before anything runs.
    let scheduler = scheduler(of_candle)?;
    let [long, urgent] = [0, 10]
        .map(|priority| Gpu::new(&scheduler, priority).map(|gpu| Softmax { gpu: Some(gpu) }));
    let (long, urgent) = (long?, urgent?);
    let x = Tensor::randn(0f32, 1., (1 << 16, 1 << 14), &device)?;
    let small = Tensor::randn(0f32, 1., (64, 1000), &device)?;
    println!("largest difference on the GPU: {:e}", difference(&small, &urgent)?);

    let synchronized = |y: candle_core::Result<Tensor>| -> Result<()> {
        y?;
        // Of this thread's stream.
        Ok(of_candle.synchronize()?)
    };
    of_candle.synchronize()?;
    let candle = |x: &Tensor| synchronized(softmax_last_dim(x));
    measure("candle", || candle(&small), || candle(&x))?;
    let with = |x: &Tensor, op: &Softmax| synchronized(x.apply_op1_no_bwd(op));
    measure("candle and preempt", || with(&small, &urgent), || with(&x, &long))?;
    Ok(())
}

fn measure(
    name: &str,
    urgent: impl Fn() -> Result<()>,
    long: impl Fn() -> Result<()> + Sync,
) -> Result<()> {
    // Each loads its kernel, and has run once.
    urgent()?;
    long()?;
    let is_done = AtomicBool::new(false);
    let start = Instant::now();
    let (mut times, longs) = thread::scope(|scope| -> Result<_> {
        let longs = scope.spawn(|| {
            let mut longs = 0u32;
            // Relaxed: nothing is read that was written before it.
            while !is_done.load(Ordering::Relaxed) {
                long()?;
                longs += 1;
            }
            Ok::<_, Error>(longs)
        });
        let times: Result<Vec<_>> = (0..URGENT)
            .map(|_| {
                let arrival = Instant::now() + PERIOD;
                while Instant::now() < arrival {
                    std::hint::spin_loop();
                }
                urgent().map(|()| arrival.elapsed())
            })
            .collect();
        is_done.store(true, Ordering::Relaxed);
        let longs = longs.join().map_err(|_| "the long ones panicked")??;
        Ok((times?, longs))
    })?;
    let longs = f64::from(longs) / start.elapsed().as_secs_f64();
    times.sort_unstable();
    let micros = |share: usize| times[times.len() * share / 100].as_secs_f64() * 1e6;
    println!(
        "{name:<20} urgent p50 {:8.1} µs, p99 {:8.1} µs; {longs:6.1} long ones a second",
        micros(50),
        micros(99)
    );
    Ok(())
}
