//! Locks, atomics, channels, threads and the clock: the standard library's, or shuttle's.
//!
//! With `--cfg shuttle` the scheduler's threads are shuttle's, which runs one at a time and chooses at every lock,
//! atomic and channel who goes on (`scheduler/interleavings.rs`).

#[cfg(shuttle)]
mod explored;

#[cfg(shuttle)]
pub(crate) use explored::{Condvar, Instant};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic, mpsc};
#[cfg(shuttle)]
pub(crate) use shuttle::{hint, thread};
#[cfg(not(shuttle))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic, mpsc};
#[cfg(not(shuttle))]
pub(crate) use std::time::Instant;
#[cfg(not(shuttle))]
pub(crate) use std::{hint, thread};
