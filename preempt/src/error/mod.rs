//! What can go wrong, and what to do about it: one enum for each area, under [`Error`].
//!
//! ```
//! use preempt::error::{ConfigurationError, Error};
//! use preempt::{Device, Scheduler};
//! use preempt_device::prelude::*;
//!
//! #[preemptible(block = 32)]
//! fn nothing() {}
//!
//! let scheduler = Scheduler::builder().device(Device::cpu()?).build()?;
//! match scheduler.stream(0).launch(nothing().grid(0)) {
//!     Err(Error::Configuration(ConfigurationError::EmptyGrid { kernel, .. })) => assert_eq!(kernel, "nothing"),
//!     other => panic!("{other:?}"),
//! }
//! # Ok::<(), Error>(())
//! ```

use std::error::Error as StdError;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

mod argument;
mod code;
mod configuration;
mod coschedule;
mod device;
mod launch;
mod memory;
mod pool;
mod prediction;
mod program;
mod recording;
mod scheduler;
mod simulation;
mod tuning;
#[cfg(target_os = "linux")]
mod worker;

pub use argument::ArgumentError;
pub use code::CodeError;
pub use configuration::ConfigurationError;
pub use coschedule::CoscheduleError;
pub use device::DeviceError;
pub use launch::LaunchError;
pub use memory::MemoryError;
pub use pool::PoolError;
pub use prediction::PredictionError;
pub use program::ProgramError;
pub use recording::RecordingError;
pub use scheduler::SchedulerError;
pub use simulation::SimulationError;
pub use tuning::TuningError;
#[cfg(target_os = "linux")]
pub use worker::WorkerError;

/// Why a call was refused, or what became of an operation that did not succeed.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A launch configuration that the kernel or the device does not allow: grid, block, arguments, shared memory.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// A buffer, an event or memory that cannot be used as it was passed.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    /// How a launch, a copy or opaque work ended that did not succeed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// An allocation of device memory that failed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A device that cannot be used, or a driver that refuses.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Device code that is missing, stale or refused.
    #[error(transparent)]
    Code(#[from] CodeError),
    /// What a scheduler lost or never had: the application's policy or predictor, a timeline.
    #[error(transparent)]
    Scheduler(#[from] SchedulerError),
    /// A program that cannot be made, changed or launched as it was asked for.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A recording that cannot be kept, read or replayed.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// A simulation without a result.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
    /// The file of a [`Tuner`](crate::tune::Tuner) that cannot be read or written.
    #[error(transparent)]
    Tuning(#[from] TuningError),
    /// A file of trained durations that cannot be read or written.
    #[error(transparent)]
    Prediction(#[from] PredictionError),
    /// Jobs or speeds that cannot be co-scheduled as they were given.
    #[error(transparent)]
    Coschedule(#[from] CoscheduleError),
    /// A pool that cannot be built, a task that it does not take, or how a task ended that gave no result.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Why a worker process cannot be started, or how its call failed.
    #[cfg(target_os = "linux")]
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The operating system gave no thread.
    #[error("a thread for {what} could not be started: {source}")]
    Thread {
        /// What the thread was for.
        what: &'static str,
        /// What the operating system said.
        source: Arc<std::io::Error>,
    },
}

/// `Debug` is what `fn main() -> Result<(), Error>` and `unwrap` print, so it is the message, and those of its sources.
macro_rules! debug_is_the_message {
    ($($error:ty)*) => {
        $(impl fmt::Debug for $error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_with_sources(self, f)
            }
        })*
    };
}

debug_is_the_message! {
    Error ArgumentError CodeError ConfigurationError CoscheduleError DeviceError LaunchError MemoryError PoolError
    PredictionError ProgramError RecordingError SchedulerError SimulationError TuningError
}

#[cfg(target_os = "linux")]
debug_is_the_message! { WorkerError }

/// Writes the message of an error, and those of its sources that are no part of it.
fn write_with_sources(error: &dyn StdError, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let message = source.to_string();
        if !text.contains(&message) {
            text.push_str(": caused by ");
            text.push_str(&message);
        }
        next = source.source();
    }
    f.write_str(&text)
}

/// Calls code of the application; the message of its panic, if it panics.
pub(crate) fn caught<R>(call: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let message = text.unwrap_or("without a message").to_owned();
        if text.is_none() {
            // The payload's `drop` is code of the application, too, and may panic again.
            std::mem::forget(panic);
        }
        message
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the disk is full")]
    struct Root;

    #[derive(Debug, thiserror::Error)]
    #[error("the file was not written")]
    struct Middle(#[source] Root);

    #[test]
    fn debug_is_the_message_with_those_of_all_sources() {
        let source = Arc::new(std::io::Error::other(Middle(Root)));
        let error = Error::Thread { what: "a test", source };
        assert_eq!(
            format!("{error:?}"),
            "a thread for a test could not be started: the file was not written: caused by the disk is full"
        );
        let error = ConfigurationError::NoBlock { kernel: "saxpy" };
        assert_eq!(format!("{error:?}"), error.to_string());
        assert_eq!(format!("{:?}", Error::from(error.clone())), error.to_string());
    }
}
