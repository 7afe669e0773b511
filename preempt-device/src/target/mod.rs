//! The primitives on each target: instructions on the GPU, an emulated thread's context on the host.

#[cfg(target_arch = "nvptx64")]
mod cuda;
#[cfg(target_arch = "nvptx64")]
pub(crate) use cuda::*;

#[cfg(not(target_arch = "nvptx64"))]
pub(crate) mod host_context;
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) use host_context::primitives::*;
