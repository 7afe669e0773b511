//! The kernels of the example: a long batch job, and a network that classifies one digit.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `pricing` | the batch job: Asian options by Monte Carlo, one option a block-task |
//! | `philox` | its random numbers |
//! | `network` | the urgent kernel: a multilayer perceptron, one request a launch |
//!
//! Without `std` on the host too, so that host and GPU use the same floating-point functions.
#![no_std]

pub mod network;
pub mod philox;
pub mod pricing;
