//! Buffers that kernels on several devices use, each device with its own scheduler.

#[path = "moves.rs"]
mod direct;
mod gpus;
#[path = "moves.rs"]
#[allow(
    clippy::duplicate_mod,
    reason = "the same tests, with devices that do not read each other's memory"
)]
mod through_the_host;
