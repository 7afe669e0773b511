//! One operation: what it waits for, how urgent it is, and how far it has come.

use super::interface::Outcome;
use super::launch::Launch;
use super::opaque::Opaque;
use super::order::Use;
use super::program::Program;
use crate::policy::Urgency;
use crate::vocabulary::OpKey;

/// An operation that was submitted and is not retired.
#[derive(Debug)]
pub(super) struct Op {
    pub stream: u32,
    pub name: &'static str,
    pub uses: Vec<Use>,
    /// How many operations have to finish first.
    pub blockers: u32,
    /// How many of these are in other streams.
    pub foreign_blockers: u32,
    /// Whether it is armed: its release is one of its blockers.
    pub armed: bool,
    /// Operations that wait for this one.
    pub successors: Vec<OpKey>,
    /// Operations that this one waited for when it was submitted. Some may be over.
    pub waits_for: Vec<OpKey>,
    /// Its number in the order of submission.
    pub number: u64,
    /// What the application asks for.
    pub urgency: Urgency,
    /// That, and what it inherits from all that wait for it.
    pub effective: Urgency,
    /// The operation after this one in its stream.
    pub next: Option<OpKey>,
    /// `None` for a copy, and for opaque work.
    pub launch: Option<Launch>,
    /// `None` for a copy, and for a launch.
    pub opaque: Option<Opaque>,
    /// `None` unless it is a preemptible program.
    pub program: Option<Box<Program>>,
    /// The program that it is a call of.
    pub part_of: Option<OpKey>,
    pub phase: Phase,
    /// Why the operation ends before its work is done.
    pub verdict: Option<Verdict>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Waits for its blockers ("preparing"), perhaps with a cohort queued on the device behind the
    /// last of them; or for the device to be drained.
    Blocked,
    /// A copy on the device, a program that has its turn, or a launch that the policy knows, or will know when its stream is
    /// resumed; [`Launch::state`] says more.
    Active,
    /// Reported as finished.
    Finished,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Cancelled,
    /// Cancelled, and what it wrote does not count.
    Revoked,
    Closed,
    Failed,
    /// It was queued on the device, and this kernel had failed and left a buffer in pieces.
    InputLost(&'static str),
}

impl Verdict {
    /// The outcome of an operation that ends so with `done` tasks done.
    pub fn outcome(self, done: u32) -> Outcome {
        match self {
            Verdict::Cancelled | Verdict::Revoked => Outcome::Cancelled { done },
            Verdict::Closed => Outcome::Closed { done },
            Verdict::Failed => Outcome::Failed,
            Verdict::InputLost(kernel) => Outcome::InputLost { kernel },
        }
    }
}
