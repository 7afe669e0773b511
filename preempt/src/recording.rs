//! What a scheduler was told and what it decided, to look at it later and to decide again.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use preempt_device::abi::{MAX_SMS, Posted};
use preempt_device::host::Access;
use serde::{Deserialize, Serialize};
use slotmap::{Key, KeyData};

use crate::device::QueueCount;
use crate::engine::{
    BufferId, Change, Engine, Event, LaunchSpec, OpKey, Opaque, Recorder, Submission, Use, Whose,
};
use crate::error::{Error, caught};
use crate::policy::{Policy, Priority, Urgency};

/// The version of the file.
const VERSION: u32 = 2;

/// Everything that a scheduler's engine was told, when, and what it decided.
///
/// The engine has no clock and no threads: told the same again, it decides the same. So a run that went wrong can be
/// looked at as often as one likes, without the device, and with other policies. From
/// [`Scheduler::recording`](crate::Scheduler::recording), or from a [`Simulation`](crate::sim::Simulation).
///
/// It holds names of kernels, sizes and times, and nothing that launches computed. A launch takes a few hundred bytes,
/// as long as the scheduler lives.
///
/// ```
/// use preempt::{Device, Recording, Scheduler, policy};
/// use preempt_device::prelude::*;
///
/// #[preemptible(block = 32)]
/// fn nothing() {}
///
/// let scheduler = Scheduler::builder().device(Device::cpu(2, 1)?).record(true).build()?;
/// let stream = scheduler.stream(0);
/// for _ in 0..10 {
///     stream.launch(nothing().grid(100))?;
/// }
/// scheduler.synchronize()?;
/// let recording = scheduler.recording().expect("asked for");
/// assert_eq!(recording.launches(), 10);
/// let replay = recording.replay(policy::StaticPriority::new())?;
/// assert!(replay.is_identical());
/// # Ok::<(), preempt::Error>(())
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    version: u32,
    policy: String,
    sms: u32,
    /// Normal, urgent, and those that can be chains.
    queues: (u32, u32, u32),
    steps: Vec<Step>,
}

/// A call of the engine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Step {
    /// In nanoseconds.
    pub now: u64,
    /// A number for the actions that came of it.
    pub decided: u64,
    pub input: Input,
}

/// What the engine was told. Operations are keys as numbers: told the same, it gives out the same keys.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum Input {
    Submit {
        stream: u32,
        name: String,
        uses: Vec<UseRecord>,
        after: Option<u64>,
        urgency: UrgencyRecord,
        launch: Option<LaunchRecord>,
        opaque: Option<OpaqueRecord>,
    },
    CohortOut {
        op: u64,
        slot: u8,
        done: u32,
        amortize: u32,
    },
    Refused {
        op: u64,
        slot: u8,
    },
    CopyDone {
        op: u64,
    },
    Fault {
        op: u64,
    },
    Cancel {
        op: u64,
    },
    Change {
        of: WhoseRecord,
        change: ChangeRecord,
    },
    Close,
    Lost,
    /// There was time to queue a launch ahead.
    GoAhead,
    /// The policy was asked, and answered this: launches with ranges of SMs. Empty if it was refused.
    Settle {
        plans: Vec<Vec<(u64, u32, u32)>>,
    },
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct UseRecord {
    buffer: u64,
    borrowed: bool,
    write: bool,
    overwrites: bool,
}

/// The deadline is in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct UrgencyRecord {
    pub priority: i32,
    pub weight: u32,
    pub deadline: Option<u64>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct OpaqueRecord {
    pub name: String,
    pub variant: u64,
    pub exclusive: bool,
}

/// Times are in nanoseconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct LaunchRecord {
    pub tasks: u32,
    pub predicted: Option<u64>,
    pub yield_overhead: u64,
    pub dropped: u64,
    pub blocks_per_sm: u32,
    pub on_last_sm: u32,
    pub plain: bool,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum WhoseRecord {
    Launch(u64),
    Stream(u32),
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum ChangeRecord {
    Priority(i32),
    Weight(u32),
    Deadline(Option<u64>),
}

/// What came of telling an engine the same again.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Replay {
    /// The policy that decided this time.
    pub policy: String,
    /// Calls of the engine that were made again, up to the first one with another result.
    pub steps: usize,
    /// Plans that were made again.
    pub plans: usize,
    /// Where it first decided otherwise, if it did. Nothing is replayed beyond: what the device reported then
    /// belongs to another history.
    pub difference: Option<Difference>,
}

/// The first decision that is not as recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Difference {
    /// Which call of the engine it is, counted from 0.
    pub step: usize,
    /// When that was.
    pub at: Duration,
    /// What the engine was told.
    pub event: String,
    /// The plans that were made then: launches with ranges of SMs.
    pub recorded: String,
    /// The plans that were made now. If they are the same, what came of them is not.
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
    pub(crate) fn new(
        policy: &str,
        sms: u32,
        queues: QueueCount,
        recorder: &Recorder,
    ) -> Recording {
        Recording {
            version: VERSION,
            policy: policy.to_owned(),
            sms,
            queues: (queues.normal, queues.urgent, queues.chains),
            steps: recorder.steps.clone(),
        }
    }

    /// The policy that decided first.
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// The SMs of the device.
    pub fn sms(&self) -> u32 {
        self.sms
    }

    /// How many launches were submitted.
    pub fn launches(&self) -> usize {
        let is_launch = |step: &&Step| matches!(step.input, Input::Submit { launch: Some(_), .. });
        self.steps.iter().filter(is_launch).count()
    }

    /// How many plans were made.
    pub fn plans(&self) -> usize {
        self.steps.iter().map(|step| step.input.plans().len()).sum()
    }

    /// Tells an engine with this policy, which has not decided anything yet, the same in the same order, and compares
    /// what it decides.
    ///
    /// # Errors
    ///
    /// [`Error::BadRecording`] if what was recorded cannot have happened: the file was changed, or comes from
    /// another version of this library.
    pub fn replay(&self, policy: impl Policy + 'static) -> Result<Replay, Error> {
        if !(1..=MAX_SMS).contains(&self.sms) {
            return Err(bad(format!("a device of {} SMs", self.sms)));
        }
        let (normal, urgent, chains) = self.queues;
        if !(1..=MAX_LANES).contains(&normal) || urgent > MAX_LANES {
            return Err(bad(format!("a device of {normal} and {urgent} queues")));
        }
        let queues = QueueCount { normal, urgent, chains };
        let mut engine = Engine::new(self.sms, queues, Box::new(policy));
        engine.record();
        let mut replay = Replay {
            policy: engine.policy_name().to_owned(),
            steps: 0,
            plans: 0,
            difference: None,
        };
        for (index, step) in self.steps.iter().enumerate() {
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
    /// # Errors
    ///
    /// [`Error::RecordingFile`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let text = serde_json::to_vec(self).map_err(|error| bad(error.to_string()))?;
        std::fs::write(&path, text).map_err(|error| file_error(path.as_ref(), error))
    }

    /// Reads a recording from a file.
    ///
    /// # Errors
    ///
    /// [`Error::RecordingFile`] if the file cannot be read; [`Error::BadRecording`] if it is no recording of this
    /// version.
    pub fn load(path: impl AsRef<Path>) -> Result<Recording, Error> {
        let text = std::fs::read(&path).map_err(|error| file_error(path.as_ref(), error))?;
        let recording: Recording =
            serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
        match recording.version {
            VERSION => Ok(recording),
            other => {
                Err(bad(format!("version {other} of the file, and this is version {VERSION}")))
            }
        }
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording")
            .field("policy", &self.policy)
            .field("sms", &self.sms)
            .field("steps", &self.steps.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

/// More than any device has.
const MAX_LANES: u32 = 1024;

fn bad(reason: impl Into<String>) -> Error {
    Error::BadRecording { reason: reason.into() }
}

fn file_error(path: &Path, source: std::io::Error) -> Error {
    Error::RecordingFile { path: path.to_owned(), source: Arc::new(source) }
}

impl Step {
    /// Tells the engine, which records it, the same again; what it recorded. `None` if there was nothing to decide
    /// where the policy was asked.
    fn again(&self, engine: &mut Engine) -> Option<Step> {
        let mut actions = Vec::new();
        let now = Duration::from_nanos(self.now);
        match &self.input {
            Input::Submit { stream, name, uses, after, urgency, launch, opaque } => {
                let uses: Vec<Use> = uses.iter().map(UseRecord::to_use).collect();
                let submission = Submission {
                    stream: *stream,
                    name: interned(name),
                    uses: &uses,
                    after: after.map(op),
                    urgency: urgency.to_urgency(),
                    launch: launch.as_ref().map(LaunchRecord::to_spec),
                    opaque: opaque.as_ref().map(OpaqueRecord::to_opaque),
                };
                engine.submit(now, submission, &mut actions);
            }
            Input::GoAhead => engine.go_ahead(now, &mut actions),
            Input::Settle { .. } => engine.settle(now, &mut actions),
            input => engine.handle(now, input.event()?, &mut actions),
        }
        engine.last_step()
    }
}

/// A name that lives as long as the process, which names of kernels do. There are few.
fn interned(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    match names.get(name) {
        Some(name) => name,
        None => {
            let name = String::leak(name.to_owned());
            names.insert(name);
            name
        }
    }
}

fn op(key: u64) -> OpKey {
    KeyData::from_ffi(key).into()
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos().min(u128::from(u64::MAX)) as u64
}

impl Input {
    pub fn of_submission(submission: Submission<'_>) -> Input {
        let Submission { stream, name, uses, after, urgency, launch, opaque } = submission;
        Input::Submit {
            stream,
            name: name.to_owned(),
            uses: uses.iter().map(UseRecord::of).collect(),
            after: after.map(|op| op.data().as_ffi()),
            urgency: UrgencyRecord::of(urgency),
            launch: launch.as_ref().map(LaunchRecord::of),
            opaque: opaque.map(OpaqueRecord::of),
        }
    }

    pub fn of_event(event: Event) -> Input {
        let number = |op: OpKey| op.data().as_ffi();
        match event {
            Event::CohortOut { op, slot, posted: Posted { done, amortize } } => {
                Input::CohortOut { op: number(op), slot, done, amortize }
            }
            Event::Refused { op, slot } => Input::Refused { op: number(op), slot },
            Event::CopyDone { op } => Input::CopyDone { op: number(op) },
            Event::Fault { op } => Input::Fault { op: number(op) },
            Event::Cancel { op } => Input::Cancel { op: number(op) },
            Event::Change { of, change } => Input::Change {
                of: match of {
                    Whose::Launch(op) => WhoseRecord::Launch(number(op)),
                    Whose::Stream(stream) => WhoseRecord::Stream(stream),
                },
                change: match change {
                    Change::Priority(Priority(priority)) => ChangeRecord::Priority(priority),
                    Change::Weight(weight) => ChangeRecord::Weight(weight),
                    Change::Deadline(deadline) => ChangeRecord::Deadline(deadline.map(nanos)),
                },
            },
            Event::Close => Input::Close,
            Event::Lost => Input::Lost,
        }
    }

    /// `None` for what is no event.
    fn event(&self) -> Option<Event> {
        Some(match *self {
            Input::Submit { .. } | Input::Settle { .. } | Input::GoAhead => return None,
            Input::CohortOut { op: key, slot, done, amortize } => {
                Event::CohortOut { op: op(key), slot, posted: Posted { done, amortize } }
            }
            Input::Refused { op: key, slot } => Event::Refused { op: op(key), slot },
            Input::CopyDone { op: key } => Event::CopyDone { op: op(key) },
            Input::Fault { op: key } => Event::Fault { op: op(key) },
            Input::Cancel { op: key } => Event::Cancel { op: op(key) },
            Input::Change { ref of, ref change } => Event::Change {
                of: match *of {
                    WhoseRecord::Launch(key) => Whose::Launch(op(key)),
                    WhoseRecord::Stream(stream) => Whose::Stream(stream),
                },
                change: match *change {
                    ChangeRecord::Priority(priority) => Change::Priority(Priority(priority)),
                    ChangeRecord::Weight(weight) => Change::Weight(weight),
                    ChangeRecord::Deadline(deadline) => {
                        Change::Deadline(deadline.map(Duration::from_nanos))
                    }
                },
            },
            Input::Close => Event::Close,
            Input::Lost => Event::Lost,
        })
    }

    fn plans(&self) -> &[Vec<(u64, u32, u32)>] {
        match self {
            Input::Settle { plans } => plans,
            _ => &[],
        }
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Input::Submit { stream, name, .. } => {
                write!(f, "`{name}` submitted to stream {stream}")
            }
            Input::CohortOut { op, done, .. } => write!(f, "a cohort of {op} out with {done} done"),
            Input::Settle { .. } => f.write_str("the policy asked"),
            input => write!(f, "{input:?}"),
        }
    }
}

impl UseRecord {
    fn of(used: &Use) -> UseRecord {
        let Use { buffer, access, overwrites } = *used;
        let (buffer, borrowed) = match buffer {
            BufferId::Own(number) => (number, false),
            BufferId::Borrowed(address) => (address, true),
        };
        UseRecord { buffer, borrowed, write: access == Access::Write, overwrites }
    }

    fn to_use(&self) -> Use {
        let UseRecord { buffer, borrowed, write, overwrites } = *self;
        let buffer = if borrowed { BufferId::Borrowed(buffer) } else { BufferId::Own(buffer) };
        Use { buffer, access: if write { Access::Write } else { Access::Read }, overwrites }
    }
}

impl UrgencyRecord {
    fn of(Urgency { priority: Priority(priority), weight, deadline }: Urgency) -> UrgencyRecord {
        UrgencyRecord { priority, weight, deadline: deadline.map(nanos) }
    }

    fn to_urgency(self) -> Urgency {
        let UrgencyRecord { priority, weight, deadline } = self;
        let deadline = deadline.map(Duration::from_nanos);
        Urgency { priority: Priority(priority), weight, deadline }
    }
}

impl OpaqueRecord {
    fn of(Opaque { name, variant, exclusive }: Opaque) -> OpaqueRecord {
        OpaqueRecord { name: name.to_owned(), variant, exclusive }
    }

    fn to_opaque(&self) -> Opaque {
        let OpaqueRecord { name, variant, exclusive } = self;
        Opaque { name: interned(name), variant: *variant, exclusive: *exclusive }
    }
}

impl LaunchRecord {
    fn of(spec: &LaunchSpec) -> LaunchRecord {
        let LaunchSpec {
            tasks,
            predicted,
            yield_overhead,
            dropped,
            blocks_per_sm,
            on_last_sm,
            plain,
        } = *spec;
        LaunchRecord {
            tasks,
            predicted: predicted.map(nanos),
            yield_overhead: nanos(yield_overhead),
            dropped: nanos(dropped),
            blocks_per_sm,
            on_last_sm,
            plain,
        }
    }

    fn to_spec(&self) -> LaunchSpec {
        let time = Duration::from_nanos;
        LaunchSpec {
            tasks: self.tasks,
            predicted: self.predicted.map(time),
            yield_overhead: time(self.yield_overhead),
            dropped: time(self.dropped),
            blocks_per_sm: self.blocks_per_sm,
            on_last_sm: self.on_last_sm,
            plain: self.plain,
        }
    }
}
