//! A softmax over the last dimension, as an operation of candle.

use candle_core::{CpuStorage, CustomOp1, Error, Layout, Result, Shape};

/// On a GPU, candle's own kernel, in a stream of preempt; on the host, a loop.
#[derive(Default)]
pub struct Softmax {
    #[cfg(feature = "cuda")]
    pub gpu: Option<crate::gpu::Gpu>,
}

/// Where the elements are, and how many are in a row.
fn rows(layout: &Layout) -> Result<(usize, usize, usize)> {
    let contiguous = layout.contiguous_offsets();
    let (start, end) = contiguous.ok_or(Error::RequiresContiguous { op: "softmax" })?;
    match layout.dims().last() {
        Some(&columns) if columns > 0 => Ok((start, end, columns)),
        _ => Err(Error::Msg("a softmax of rows without elements".into())),
    }
}

impl CustomOp1 for Softmax {
    fn name(&self) -> &'static str {
        "preemptible-softmax"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (start, end, columns) = rows(layout)?;
        let mut y = storage.as_slice::<f32>()?[start..end].to_vec();
        for row in y.chunks_mut(columns) {
            let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            row.iter_mut().for_each(|x| *x = (*x - max).exp());
            let sum: f32 = row.iter().sum();
            row.iter_mut().for_each(|x| *x /= sum);
        }
        Ok((CpuStorage::F32(y), layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        storage: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        use candle_core::backend::BackendStorage;

        let gpu = self.gpu.as_ref().ok_or_else(|| Error::Msg("made for the host".into()))?;
        let (start, end, columns) = rows(layout)?;
        let device = storage.device();
        let x = storage.as_cuda_slice::<f32>()?.slice(start..end);
        // SAFETY: the kernel writes all of it.
        let mut y = unsafe { device.alloc::<f32>(end - start) }?;
        // When this returns, the launch is over: candle uses `y` in its stream as if it had written it.
        gpu.softmax(&x, &mut y, columns).map_err(Error::wrap)?;
        Ok((candle_core::CudaStorage::wrap_cuda_slice(y, device.clone()), layout.shape().clone()))
    }
}
