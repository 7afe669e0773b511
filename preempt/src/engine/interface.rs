//! What the engine is told, and what it answers.

use std::time::Duration;

use preempt_device::abi::{Posted, Signal, SmRange};

use super::launch::{LaunchReport, LaunchSpec};
use super::opaque::Opaque;
use super::order::Use;
use crate::policy::{Priority, Urgency};
use crate::vocabulary::{CohortOrder, OpKey, QueueIndex};

/// An operation that a stream takes in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submission<'a> {
    pub stream: u32,
    /// The kernel's name; what a copy is called.
    pub name: &'static str,
    pub uses: &'a [Use],
    /// Another operation that it waits for, in any stream.
    pub after: Option<OpKey>,
    pub urgency: Urgency,
    /// `None` for a copy, and for opaque work.
    pub launch: Option<LaunchSpec>,
    /// `None` for a copy, and for a launch.
    pub opaque: Option<Opaque>,
    /// The calls of a preemptible program, which is neither launch nor opaque work. Empty for everything else.
    pub calls: &'a [Called],
    /// Whether it is armed: it does not start before it is [released](Event::Release).
    pub armed: bool,
}

/// A call of a preemptible program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Called {
    /// The kernel's name; what a copy is called.
    pub name: &'static str,
    /// `None` for a copy.
    pub launch: Option<LaunchSpec>,
    /// How many calls, from this one on, the device takes at once where they are queued behind another launch. At least 1.
    pub together: u32,
    /// Whether it is a kernel that runs in the plain form alone. Other plain calls are captured work.
    pub is_plain_kernel: bool,
}

/// What happened.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// Every block of a cohort has left; together they ran `done` block-tasks.
    CohortOut { op: OpKey, slot: u8, posted: Posted },
    /// The device did not take a cohort.
    Refused { op: OpKey, slot: u8 },
    /// An operation that is no launch is over: a copy, an event, external work, or opaque work with all that it has put on the
    /// device.
    CopyDone { op: OpKey },
    /// A launch or copy went wrong. The device still reports when it is out or over.
    Fault { op: OpKey },
    /// The result of an operation is not wanted any more.
    Cancel { op: OpKey },
    /// As [`Cancel`](Event::Cancel), and nothing that it has written counts any more: blocks leave their block-tasks wherever
    /// they can.
    Revoke { op: OpKey },
    /// An armed operation is to run.
    Release { op: OpKey },
    /// An armed operation will not be released, and its gate was not opened.
    Disarmed { op: OpKey },
    /// The priority, weight, deadline or latency limit of a launch, or of all unfinished ones of a stream, has changed, or whether
    /// a stream is suspended.
    Change { of: Whose, change: Change },
    /// No result is wanted any more.
    Close,
    /// The device is gone, with everything that was on it. What is submitted later fails at once.
    Lost,
}

/// The launches that a change concerns.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whose {
    Launch(OpKey),
    Stream(u32),
}

/// What of its urgency changes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Priority(Priority),
    Weight(u32),
    Deadline(Option<Duration>),
    /// The time that blocks of others have to leave its SMs.
    LatencyLimit(Option<Duration>),
    /// Whether the launches of a stream are to have no SMs. A stream is suspended until that has ended as often as it began.
    Suspended(bool),
}

/// What has to be done, in this order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    /// Launch a cohort.
    Launch(CohortOrder),
    /// Write a queue's signal word.
    Signal { queue: QueueIndex, signal: Signal },
    /// Start an operation that is no launch: a copy, an event, external work, or opaque work.
    Copy { op: OpKey },
    /// An armed operation cannot have a gate, or another one waits for it: disarm it, unless it is about to be released.
    Disarm { op: OpKey },
    /// Complete the handle. Once for each operation, and each call of a preemptible program.
    Finish { op: OpKey, outcome: Outcome },
    /// The device does not need the operation's arguments any more. Once, and last.
    Retire { op: OpKey },
}

/// A launch has other SMs than before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub op: OpKey,
    pub at: Duration,
    pub range: SmRange,
    /// Whether another launch has them, too.
    pub shares: bool,
    /// Whether it has none because it needs none any more.
    pub is_over: bool,
}

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Done(LaunchReport),
    Cancelled {
        done: u32,
    },
    /// It went wrong on the device.
    Failed,
    /// It was not started: this kernel had failed and left a buffer in pieces.
    InputLost {
        kernel: &'static str,
    },
    /// The policy did not admit it.
    NotAdmitted,
    /// The engine was closed.
    Closed {
        done: u32,
    },
}

/// Why a policy was replaced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    pub policy: String,
    pub reason: String,
}
