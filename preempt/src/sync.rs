//! Locks, atomics, channels, threads and the clock: those of the standard library, or shuttle's.
//!
//! With `--cfg shuttle` the tests run the scheduler on shuttle's threads. Shuttle runs one at a time and chooses at
//! every lock, atomic and channel which goes on (`scheduler/runtime/interleavings.rs`).

use std::sync::PoisonError;

use crate::error::caught;

#[cfg(all(test, shuttle))]
mod explored;

#[cfg(all(test, shuttle))]
pub(crate) use explored::{Condvar, Instant};
#[cfg(all(test, shuttle))]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic, mpsc};
#[cfg(all(test, shuttle))]
pub(crate) use shuttle::{hint, thread, thread_local};
#[cfg(not(all(test, shuttle)))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic, mpsc};
#[cfg(not(all(test, shuttle)))]
pub(crate) use std::time::Instant;
#[cfg(not(all(test, shuttle)))]
pub(crate) use std::{hint, thread, thread_local};

/// Locks a mutex. Its contents are whole even if it is poisoned: callbacks of the application, which may panic, are
/// only called through [`contain`] or the engine's own guards.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls a callback of the application; a panic ends there.
pub(crate) fn contain(callback: impl FnOnce()) {
    // The panic hook has reported it.
    let _ = caught(callback);
}
