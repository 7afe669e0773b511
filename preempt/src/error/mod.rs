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
//! let scheduler = Scheduler::builder().device(Device::cpu(1, 1)?).build()?;
//! match scheduler.stream(0).launch(nothing().grid(0)) {
//!     Err(Error::Configuration(ConfigurationError::EmptyGrid { kernel, .. })) => assert_eq!(kernel, "nothing"),
//!     other => panic!("{other:?}"),
//! }
//! # Ok::<(), Error>(())
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

mod argument;
mod code;
mod configuration;
mod device;
mod launch;
mod memory;
mod prediction;
mod recording;
mod scheduler;
mod simulation;
mod tuning;

pub use argument::ArgumentError;
pub use code::CodeError;
pub use configuration::ConfigurationError;
pub use device::DeviceError;
pub use launch::LaunchError;
pub use memory::MemoryError;
pub use prediction::PredictionError;
pub use recording::RecordingError;
pub use scheduler::SchedulerError;
pub use simulation::SimulationError;
pub use tuning::TuningError;

/// Why a call was refused, or what became of an operation that did not succeed.
#[derive(Clone, Debug, thiserror::Error)]
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
    /// The operating system gave no thread.
    #[error("a thread for {what} could not be started: {source}")]
    Thread {
        /// What the thread was for.
        what: &'static str,
        /// What the operating system said.
        source: Arc<std::io::Error>,
    },
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
