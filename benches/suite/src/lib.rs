//! The kernels of the benchmarks that FLEP (ASPLOS 2017) and EffiSha (PPoPP 2017) were measured with, after
//! their public definitions: Rodinia, SHOC, and the CUDA samples. One file for each benchmark.
//!
//! What launches them, with which inputs, and what the results have to be, is in `preempt-programs`. Kernels
//! that only make inputs are here, too: inputs come from a seed, on the device.

pub mod input;
pub mod mm;
pub mod neural_net;
pub mod pf;
pub mod pl;
pub mod stencil_2d;
pub mod va;
