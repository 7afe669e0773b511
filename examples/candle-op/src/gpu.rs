//! Candle's own kernel, launched by preempt on candle's memory.

use candle_core::cuda_backend::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaView};
use candle_core::cuda_backend::kernels;
use preempt::{Device, Error, ForeignKernel, Priority, Scheduler, Stream};

/// A scheduler on candle's GPU, in candle's context.
pub fn scheduler(device: &CudaDevice) -> Result<Scheduler, Error> {
    let device = Device::from_cudarc(device.cuda_stream().context())?;
    Scheduler::builder().device(device).ptx("reduce", kernels::REDUCE.ptx()).build()
}

/// The kernel, and the stream that it is launched in.
pub struct Gpu {
    scheduler: Scheduler,
    stream: Stream,
    kernel: ForeignKernel,
}

impl Gpu {
    pub fn new(scheduler: &Scheduler, priority: i32) -> Result<Gpu, Error> {
        let kernel = scheduler.foreign("reduce", "softmax_f32")?;
        let stream = scheduler.stream(Priority(priority));
        Ok(Gpu { scheduler: scheduler.clone(), stream, kernel })
    }

    pub fn softmax(
        &self,
        x: &CudaView<'_, f32>,
        y: &mut CudaSlice<f32>,
        columns: usize,
    ) -> Result<(), Error> {
        let rows = (x.len() / columns) as u32;
        let (x, mut y) = (self.scheduler.lend(x)?, self.scheduler.lend_mut(y)?);
        // SAFETY: `softmax_f32(const float *src, float *dst, int n_cols)` has a row in each block, of 32 threads in y.
        let call = unsafe { self.kernel.call() }.read(&x).write(&mut y).value(columns as i32);
        let call = call.block((1, 32)).grid(rows);
        self.scheduler.scope(|scope| scope.launch(&self.stream, call)?.wait()).map(drop)
    }
}
