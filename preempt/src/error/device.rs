use std::sync::Arc;

/// A device that cannot be used, or a driver that refuses.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// A CPU device of a size that is not supported.
    #[error(
        "a CPU device of {sms} SMs with {blocks_per_sm} blocks each; 1 to {max_sms} SMs, 1 to 32 blocks"
    )]
    BadDevice {
        /// SMs asked for.
        sms: u32,
        /// Blocks per SM asked for.
        blocks_per_sm: u32,
        /// The most SMs that a device can have.
        max_sms: u32,
    },
    /// The driver of the GPU is not installed.
    #[error(
        "no NVIDIA driver: the library `{library}` was not found; install the GPU's driver, start a \
         container with access to it (`--gpus all`), or use `Device::cpu`"
    )]
    NoDriver {
        /// The library that was looked for.
        library: &'static str,
    },
    /// A driver that lacks what is used.
    #[error("the NVIDIA driver is {found}; CUDA 12.0 (driver 525) or a later one is needed")]
    DriverTooOld {
        /// The version that is installed.
        found: Arc<str>,
    },
    /// The driver is installed and does not work.
    #[error("the NVIDIA driver does not start: {message}; see what `nvidia-smi` says")]
    DriverStart {
        /// The driver's number for the reason (`CUresult`).
        code: u32,
        /// What the driver said.
        message: Arc<str>,
    },
    /// No GPU, or none of this number.
    #[error(
        "there is no GPU {ordinal}: {found}; see what `nvidia-smi` lists, and whether \
         `CUDA_VISIBLE_DEVICES` hides GPUs; without one, use `Device::cpu`"
    )]
    NoGpu {
        /// The GPU that was asked for.
        ordinal: u32,
        /// What there is.
        found: Arc<str>,
    },
    /// A GPU that lacks what is used.
    #[error("this GPU cannot be used: {reason}")]
    Unsupported {
        /// What is missing.
        reason: Arc<str>,
    },
    /// A CUDA stream or event for a device that has no CUDA context.
    #[error(
        "the scheduler's device is no GPU, and CUDA streams and events cannot be ordered with its launches; make \
         the device by `Device::cuda`, `Device::from_raw`, `Device::from_cust` or `Device::from_cudarc`"
    )]
    NoContext,
    /// A CUDA context that is not the one that the device lives in, or something that belongs to such a context.
    #[error(
        "the context is not the primary one of GPU {ordinal}, in which the device lives; make streams, events and memory \
         there: in a context of the CUDA runtime, `cuDevicePrimaryCtxRetain`, `CudaContext::new` or `cust::quick_init`"
    )]
    OtherContext {
        /// The device's number, as CUDA counts GPUs.
        ordinal: u32,
    },
    /// The driver refused a call.
    #[error("the NVIDIA driver refused {message}")]
    Driver {
        /// The driver's number for the reason (`CUresult`).
        code: u32,
        /// The call, and the reason in the driver's words.
        message: Arc<str>,
    },
    /// A second scheduler on a device.
    #[error(
        "the device already has a scheduler; clone that one and share it, or drop it first: two \
         schedulers cannot order each other's launches"
    )]
    Taken,
    /// A scheduler on a device that was split.
    #[error("the device is split; build schedulers on its parts, or drop all of these first")]
    Split,
    /// A device that cannot be split so.
    #[error("the device cannot be split into {parts}: {reason}")]
    NotSplit {
        /// The number of parts asked for.
        parts: u32,
        /// Why not, and what to do.
        reason: Arc<str>,
    },
    /// The device is lost to this process, with everything that was on it.
    #[error(
        "the GPU's context is lost: {message}; nothing runs on it any more, and what was in its \
         memory is gone: start the process anew"
    )]
    ContextLost {
        /// The kernel, block-task and thread that panicked, or what the driver said when it was lost.
        message: Arc<str>,
    },
}
