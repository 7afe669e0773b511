//! The calls of a scheduler's engine and its decisions, to be looked at later and made again.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use preempt_device::abi::MAX_SMS;
use serde::{Deserialize, Serialize};

use crate::engine::{Engine, Input, Recorded, Step};
use crate::error::{Error, RecordingError, caught};
use crate::policy::Policy;
use crate::vocabulary::{Costs, QueueCount};

/// The version of the file.
const VERSION: u32 = 8;

/// Everything that a scheduler's engine was told, when, and what it decided.
///
/// The engine has no clock and no threads: told the same again, it decides the same. So a run that went wrong can be
/// examined repeatedly, without the device. [`Workload::from_recording`](crate::sim::Workload::from_recording) plays it
/// under another policy. A recording comes from
/// [`Scheduler::recording`](crate::Scheduler::recording), or from a [`Simulation`](crate::sim::Simulation).
///
/// It holds names of kernels, sizes and times, and nothing that launches computed. A launch takes a few hundred bytes
/// for the life of the scheduler.
///
/// ```
/// use preempt::{Device, Scheduler, policy};
/// use preempt_device::prelude::*;
///
/// #[preemptible(block = 32)]
/// fn nothing() {}
///
/// let scheduler = Scheduler::builder().device(Device::cpu()?).recording(true).build()?;
/// let stream = scheduler.stream(0);
/// for _ in 0..10 {
///     stream.launch(nothing().grid(100))?;
/// }
/// scheduler.synchronize()?;
/// let recording = scheduler.recording().expect("asked for");
/// assert_eq!(recording.launches(), 10);
/// let replay = recording.replay(policy::StaticPriority::new().anticipating())?;
/// assert!(replay.is_identical());
/// # Ok::<(), preempt::Error>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct Recording(pub(crate) Contents);

/// What is in the file.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contents {
    version: u32,
    policy: String,
    sms: u32,
    /// The fields of `QueueCount`, in their order.
    queues: [u32; 4],
    costs: Costs,
    steps: Vec<Step>,
}

/// The result of telling an engine the same again.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Replay {
    /// The policy that decided this time.
    pub policy: String,
    /// Calls of the engine that were made again, up to the first one with another result.
    pub steps: usize,
    /// Plans that were made again.
    pub plans: usize,
    /// The first decision that is not as recorded. Nothing is replayed beyond it, because the later reports of the
    /// device belong to another history.
    pub difference: Option<Difference>,
}

/// The first decision that is not as recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Difference {
    /// The number of the engine's call, counted from 0.
    pub step: usize,
    /// When the call was made.
    pub at: Duration,
    /// What the engine was told.
    pub event: String,
    /// The recorded plans of that call: launches with ranges of SMs.
    pub recorded: String,
    /// The plans that were made now. If they are the same, the actions that followed differ.
    pub replayed: String,
}

impl Replay {
    /// Whether every decision was as recorded.
    pub fn is_identical(&self) -> bool {
        self.difference.is_none()
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { step, at, event, recorded, replayed } = self;
        write!(f, "step {step}, at {at:?}, {event}: recorded {recorded}, now {replayed}")
    }
}

impl Recording {
    /// What an engine was told and decided until now, if it records.
    pub(crate) fn of(engine: &Engine) -> Option<Recording> {
        let Recorded { policy, sms, queues, costs, steps } = engine.recorded()?;
        Some(Recording(Contents {
            version: VERSION,
            policy: policy.to_owned(),
            sms,
            queues: [queues.normal, queues.urgent, queues.levels, queues.chains],
            costs,
            steps: steps.to_vec(),
        }))
    }

    /// The policy that decided first.
    pub fn policy(&self) -> &str {
        &self.0.policy
    }

    /// The SMs of the device.
    pub fn sms(&self) -> u32 {
        self.0.sms
    }

    /// Everything that the engine was told.
    pub(crate) fn steps(&self) -> &[Step] {
        &self.0.steps
    }

    /// How many launches were submitted. Each launch of a preemptible program counts.
    pub fn launches(&self) -> usize {
        let launches = |step: &Step| match &step.input {
            Input::Submit { launch: Some(_), .. } => 1,
            Input::Submit { calls, .. } => {
                calls.iter().filter(|call| call.launch.is_some()).count()
            }
            _ => 0,
        };
        self.0.steps.iter().map(launches).sum()
    }

    /// How many plans were made.
    pub fn plans(&self) -> usize {
        self.0.steps.iter().map(|step| step.input.plans().len()).sum()
    }

    /// Tells a new engine with this policy the same in the same order, and compares what it decides.
    ///
    /// # Errors
    ///
    /// [`RecordingError::Invalid`] if what was recorded cannot have happened: the file was changed, or comes from
    /// another version of this library.
    pub fn replay(&self, policy: impl Policy + 'static) -> Result<Replay, Error> {
        if !(1..=MAX_SMS).contains(&self.0.sms) {
            return Err(bad(format!("a device of {} SMs", self.0.sms)));
        }
        let [normal, urgent, levels, chains] = self.0.queues;
        if !(1..=MAX_QUEUES).contains(&normal) || urgent.saturating_mul(levels) > MAX_QUEUES {
            let all = format!("{normal} queues and {urgent} on each of {levels} levels");
            return Err(bad(format!("a device of {all}")));
        }
        let queues = QueueCount { normal, urgent, levels, chains };
        let mut engine = Engine::new(self.0.sms, queues, self.0.costs, Box::new(policy));
        engine.record();
        let mut replay = Replay {
            policy: engine.policy_name().to_owned(),
            steps: 0,
            plans: 0,
            difference: None,
        };
        for (index, step) in self.0.steps.iter().enumerate() {
            let again = caught(|| step.again(&mut engine))
                .map_err(|message| bad(format!("step {index} cannot have happened: {message}")))?;
            if again.as_ref() != Some(step) {
                let made = again.as_ref().map_or(&[][..], |again| again.input.plans());
                replay.difference = Some(Difference {
                    step: index,
                    at: Duration::from_nanos(step.now),
                    event: step.input.to_string(),
                    recorded: format!("{:?}", step.input.plans()),
                    replayed: format!("{made:?}"),
                });
                break;
            }
            replay.steps += 1;
            replay.plans += step.input.plans().len();
        }
        Ok(replay)
    }

    /// Writes the recording to a file, as JSON.
    ///
    /// ```
    /// # use preempt_device::prelude::*;
    /// # #[preemptible(block = 32)]
    /// # fn nothing() {}
    /// use preempt::Scheduler;
    /// use preempt::policy::StaticPriority;
    /// use preempt::recording::Recording;
    ///
    /// let scheduler = Scheduler::builder().policy(StaticPriority::new()).recording(true).build()?;
    /// scheduler.stream(0).launch(nothing().grid(100))?.wait()?;
    /// scheduler.synchronize()?;
    /// let path = std::env::temp_dir().join(format!("recording-{}.json", std::process::id()));
    /// scheduler.recording().expect("asked for").save(&path)?;
    ///
    /// // Another day, without the device.
    /// let recording = Recording::load(&path)?;
    /// assert_eq!(recording.launches(), 1);
    /// assert!(recording.replay(StaticPriority::new())?.is_identical());
    /// # std::fs::remove_file(path).expect("there");
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RecordingError::File`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let text = serde_json::to_vec(&self.0).map_err(|error| bad(error.to_string()))?;
        std::fs::write(&path, text).map_err(|error| file_error(path.as_ref(), error))
    }

    /// Reads a recording that [`save`](Recording::save) has written to a file; the example is there.
    ///
    /// # Errors
    ///
    /// [`RecordingError::File`] if the file cannot be read; [`RecordingError::Invalid`] if it is no recording of this
    /// version.
    pub fn load(path: impl AsRef<Path>) -> Result<Recording, Error> {
        let text = std::fs::read(&path).map_err(|error| file_error(path.as_ref(), error))?;
        let contents: Contents =
            serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
        match contents.version {
            VERSION => Ok(Recording(contents)),
            other => {
                Err(bad(format!("version {other} of the file, and this is version {VERSION}")))
            }
        }
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording")
            .field("policy", &self.0.policy)
            .field("sms", &self.0.sms)
            .field("steps", &self.0.steps.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod changed;
#[cfg(test)]
mod tests;

/// Queues; more than any device has.
const MAX_QUEUES: u32 = 1024;

fn bad(reason: impl Into<String>) -> Error {
    Error::Recording(RecordingError::Invalid { reason: reason.into() })
}

fn file_error(path: &Path, source: std::io::Error) -> Error {
    Error::Recording(RecordingError::File { path: path.to_owned(), source: Arc::new(source) })
}
