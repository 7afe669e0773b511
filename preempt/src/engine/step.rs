//! Calls of an engine as data: what a recording keeps of them, and how they are made again.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use preempt_device::abi::Posted;
use preempt_device::host::Access;
use serde::{Deserialize, Serialize};
use slotmap::{Key, KeyData};

use super::{
    Called, Change, Engine, Event, LaunchSpec, Leaving, Opaque, Running, Submission, Use, Whose,
};
use crate::policy::{Priority, Urgency};
use crate::vocabulary::{BufferId, ByteRange, OpKey, QueueIndex};

/// A call of the engine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Step {
    /// In nanoseconds.
    pub now: u64,
    /// The digest of the actions that followed.
    pub decided: u64,
    pub input: Input,
}

/// What the engine was told. Operations are keys as numbers: an engine that is told the same gives out the same keys.
#[expect(clippy::large_enum_variant, reason = "most are submissions")]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum Input {
    Submit {
        /// The key that it got.
        op: u64,
        stream: u32,
        name: String,
        uses: Vec<UseRecord>,
        after: Option<u64>,
        urgency: UrgencyRecord,
        launch: Option<LaunchRecord>,
        opaque: Option<OpaqueRecord>,
        calls: Vec<CallRecord>,
        armed: bool,
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
    Revoke {
        op: u64,
    },
    Release {
        op: u64,
    },
    Disarmed {
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
    /// Block-tasks of the first cohort in a queue run: the SM of each, nanoseconds since it began, and whether it is spent.
    Look {
        queue: u32,
        running: Vec<(u32, u64, bool)>,
    },
    /// The policy was asked, and answered this: launches with ranges of SMs. Empty if it was refused.
    Settle {
        plans: Vec<Vec<(u64, u32, u32)>>,
    },
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct UseRecord {
    buffer: u64,
    /// The first byte of the range, and the one behind its last.
    bytes: (u64, u64),
    borrowed: bool,
    write: bool,
    overwrites: bool,
}

/// The deadline and the limit are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct UrgencyRecord {
    pub priority: i32,
    pub weight: u32,
    pub deadline: Option<u64>,
    #[serde(default)]
    pub latency_limit: Option<u64>,
}

/// A call of a preemptible program.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct CallRecord {
    /// The key that it got.
    pub op: u64,
    pub name: String,
    pub launch: Option<LaunchRecord>,
    pub together: u32,
    #[serde(default)]
    pub is_plain_kernel: bool,
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
    pub requeued: u64,
    pub blocks_per_sm: u32,
    pub on_last_sm: u32,
    pub plain: bool,
    pub hardware_stop: Option<u64>,
    #[serde(default)]
    pub leaving: Leaving,
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
    LatencyLimit(Option<u64>),
    Suspended(bool),
}

impl Step {
    /// Tells a recording engine the same again; what it recorded. `None` if there was nothing to decide where the
    /// policy was asked.
    pub fn again(&self, engine: &mut Engine) -> Option<Step> {
        let mut actions = Vec::new();
        let now = Duration::from_nanos(self.now);
        match &self.input {
            Input::Submit {
                op: _,
                stream,
                name,
                uses,
                after,
                urgency,
                launch,
                opaque,
                calls,
                armed,
            } => {
                let uses: Vec<Use> = uses.iter().map(UseRecord::to_use).collect();
                let calls: Vec<Called> = calls.iter().map(CallRecord::to_call).collect();
                let submission = Submission {
                    stream: *stream,
                    name: interned(name),
                    uses: &uses,
                    after: after.map(op),
                    urgency: urgency.to_urgency(),
                    launch: launch.as_ref().map(LaunchRecord::to_spec),
                    opaque: opaque.as_ref().map(OpaqueRecord::to_opaque),
                    calls: &calls,
                    armed: *armed,
                };
                engine.submit(now, submission, &mut actions);
            }
            Input::GoAhead => engine.go_ahead(now, &mut actions),
            Input::Look { queue, running } => {
                let running = running.iter().map(|&(sm, since, is_spent)| Running {
                    sm,
                    since: Duration::from_nanos(since),
                    is_spent,
                });
                engine.look(now, *queue, running.collect());
            }
            Input::Settle { .. } => engine.settle(now, &mut actions),
            input => engine.handle(now, input.event()?, &mut actions),
        }
        engine.last_step()
    }
}

/// A copy of a name that lives as long as the process, as names of kernels do. There are few names.
pub(crate) fn interned(name: &str) -> &'static str {
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
    /// `keys`: those that the submission and its calls got.
    pub fn of_submission(submission: Submission<'_>, (op, keys): (OpKey, &[OpKey])) -> Input {
        let Submission { stream, name, uses, after, urgency, launch, opaque, calls, armed } =
            submission;
        Input::Submit {
            op: op.data().as_ffi(),
            stream,
            name: name.to_owned(),
            uses: uses.iter().map(UseRecord::of).collect(),
            after: after.map(|op| op.data().as_ffi()),
            urgency: UrgencyRecord::of(urgency),
            launch: launch.as_ref().map(LaunchRecord::of),
            opaque: opaque.map(OpaqueRecord::of),
            calls: calls.iter().zip(keys).map(CallRecord::of).collect(),
            armed,
        }
    }

    pub fn of_look(queue: QueueIndex, running: &[Running]) -> Input {
        let running = running.iter();
        let running = running.map(|&Running { sm, since, is_spent }| (sm, nanos(since), is_spent));
        Input::Look { queue, running: running.collect() }
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
            Event::Revoke { op } => Input::Revoke { op: number(op) },
            Event::Release { op } => Input::Release { op: number(op) },
            Event::Disarmed { op } => Input::Disarmed { op: number(op) },
            Event::Change { of, change } => Input::Change {
                of: match of {
                    Whose::Launch(op) => WhoseRecord::Launch(number(op)),
                    Whose::Stream(stream) => WhoseRecord::Stream(stream),
                },
                change: match change {
                    Change::Priority(Priority(priority)) => ChangeRecord::Priority(priority),
                    Change::Weight(weight) => ChangeRecord::Weight(weight),
                    Change::Deadline(deadline) => ChangeRecord::Deadline(deadline.map(nanos)),
                    Change::LatencyLimit(limit) => ChangeRecord::LatencyLimit(limit.map(nanos)),
                    Change::Suspended(is) => ChangeRecord::Suspended(is),
                },
            },
            Event::Close => Input::Close,
            Event::Lost => Input::Lost,
        }
    }

    /// The event; `None` for other calls.
    fn event(&self) -> Option<Event> {
        Some(match *self {
            Input::Submit { .. } | Input::Settle { .. } | Input::GoAhead | Input::Look { .. } => {
                return None;
            }
            Input::CohortOut { op: key, slot, done, amortize } => {
                Event::CohortOut { op: op(key), slot, posted: Posted { done, amortize } }
            }
            Input::Refused { op: key, slot } => Event::Refused { op: op(key), slot },
            Input::CopyDone { op: key } => Event::CopyDone { op: op(key) },
            Input::Fault { op: key } => Event::Fault { op: op(key) },
            Input::Cancel { op: key } => Event::Cancel { op: op(key) },
            Input::Revoke { op: key } => Event::Revoke { op: op(key) },
            Input::Release { op: key } => Event::Release { op: op(key) },
            Input::Disarmed { op: key } => Event::Disarmed { op: op(key) },
            Input::Change { ref of, ref change } => Event::Change {
                of: match *of {
                    WhoseRecord::Launch(key) => Whose::Launch(op(key)),
                    WhoseRecord::Stream(stream) => Whose::Stream(stream),
                },
                change: change.to_change(),
            },
            Input::Close => Event::Close,
            Input::Lost => Event::Lost,
        })
    }

    pub fn plans(&self) -> &[Vec<(u64, u32, u32)>] {
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
        let Use { buffer, bytes: ByteRange { start, end }, access, overwrites } = *used;
        let (buffer, borrowed) = match buffer {
            BufferId::Own(number) => (number, false),
            BufferId::Borrowed(address) => (address, true),
        };
        let write = access == Access::Write;
        UseRecord { buffer, bytes: (start, end), borrowed, write, overwrites }
    }

    pub fn to_use(&self) -> Use {
        let UseRecord { buffer, bytes: (start, end), borrowed, write, overwrites } = *self;
        let buffer = if borrowed { BufferId::Borrowed(buffer) } else { BufferId::Own(buffer) };
        let access = if write { Access::Write } else { Access::Read };
        Use { buffer, bytes: ByteRange { start, end }, access, overwrites }
    }
}

impl UrgencyRecord {
    fn of(urgency: Urgency) -> UrgencyRecord {
        let Urgency { priority: Priority(priority), weight, deadline, latency_limit } = urgency;
        let [deadline, latency_limit] = [deadline, latency_limit].map(|time| time.map(nanos));
        UrgencyRecord { priority, weight, deadline, latency_limit }
    }

    pub fn to_urgency(self) -> Urgency {
        let UrgencyRecord { priority, weight, deadline, latency_limit } = self;
        let [deadline, latency_limit] =
            [deadline, latency_limit].map(|time| time.map(Duration::from_nanos));
        Urgency { priority: Priority(priority), weight, deadline, latency_limit }
    }
}

impl ChangeRecord {
    pub fn to_change(&self) -> Change {
        match *self {
            ChangeRecord::Priority(priority) => Change::Priority(Priority(priority)),
            ChangeRecord::Weight(weight) => Change::Weight(weight),
            ChangeRecord::Deadline(deadline) => {
                Change::Deadline(deadline.map(Duration::from_nanos))
            }
            ChangeRecord::LatencyLimit(limit) => {
                Change::LatencyLimit(limit.map(Duration::from_nanos))
            }
            ChangeRecord::Suspended(is) => Change::Suspended(is),
        }
    }
}

impl CallRecord {
    fn of((called, op): (&Called, &OpKey)) -> CallRecord {
        let Called { name, launch, together, is_plain_kernel } = *called;
        let (op, name) = (op.data().as_ffi(), name.to_owned());
        let launch = launch.as_ref().map(LaunchRecord::of);
        CallRecord { op, name, launch, together, is_plain_kernel }
    }

    fn to_call(&self) -> Called {
        let launch = self.launch.as_ref().map(LaunchRecord::to_spec);
        let CallRecord { together, is_plain_kernel, .. } = *self;
        Called { name: interned(&self.name), launch, together, is_plain_kernel }
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
            requeued,
            blocks_per_sm,
            on_last_sm,
            plain,
            hardware_stop,
            leaving,
        } = *spec;
        LaunchRecord {
            tasks,
            predicted: predicted.map(nanos),
            yield_overhead: nanos(yield_overhead),
            requeued: nanos(requeued),
            blocks_per_sm,
            on_last_sm,
            plain,
            hardware_stop: hardware_stop.map(nanos),
            leaving,
        }
    }

    fn to_spec(&self) -> LaunchSpec {
        let time = Duration::from_nanos;
        LaunchSpec {
            tasks: self.tasks,
            predicted: self.predicted.map(time),
            yield_overhead: time(self.yield_overhead),
            requeued: time(self.requeued),
            blocks_per_sm: self.blocks_per_sm,
            on_last_sm: self.on_last_sm,
            plain: self.plain,
            hardware_stop: self.hardware_stop.map(time),
            leaving: self.leaving,
        }
    }
}
