//! Kernels as they are written for rust-cuda, in `kernels.rs`, with `#[preemptible]` and nothing else
//! added. Without the feature `cuda-std`, `cuda_std` is `preempt_device`.
#![cfg_attr(feature = "cuda-std", allow(unexpected_cfgs, reason = "`cuda_std` names old targets"))]

#[cfg(not(feature = "cuda-std"))]
extern crate preempt_device as cuda_std;

mod kernels;

pub use kernels::*;
