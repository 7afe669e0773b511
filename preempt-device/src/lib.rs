//! The device side of preempt: the control block that host and device share, and the worker
//! loop that turns an ordinary grid into one that can yield SMs between block-tasks.
//!
//! The same code runs on the GPU, on emulated devices, and in a loom model.
#![no_std]
#![deny(missing_docs)]

#[cfg(test)]
extern crate std;

pub mod abi;
mod atomic_shim;
pub mod kernel;
pub mod worker;
