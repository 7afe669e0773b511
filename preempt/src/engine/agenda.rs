//! What the engine keeps beside operations and the device: what was submitted, what the policy knows, what is to do.

use std::collections::VecDeque;
use std::time::Duration;

use super::operation::Verdict;
use super::order::Use;
use crate::vocabulary::{OpKey, QueueIndex};

/// The submissions. `mod.rs` and `program.rs` take operations in; `ending.rs` returns their lists and says when all is over.
#[derive(Debug, Default)]
pub(super) struct Intake {
    /// Operations that there ever were.
    pub submissions: u64,
    /// How everything ends that is submitted from now on.
    pub over: Option<Verdict>,
    /// Lists of retired operations, kept for their capacity.
    pub spare_uses: Vec<Vec<Use>>,
    pub spare_keys: Vec<Vec<OpKey>>,
}

/// The launches that the policy knows. `mod.rs` adds launches whose turn has come, and `ending.rs` takes finished ones
/// out; `suspend.rs` takes out those of a suspended stream, and adds them again.
#[derive(Debug, Default)]
pub(super) struct Launches {
    /// How many there are.
    pub known: usize,
    /// How many there ever were.
    pub arrivals: u64,
}

/// What there is to do.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    /// Operations whose last blocker is gone; always empty between calls. Written where an operation ends
    /// (`ending.rs`, `opaque.rs`) or has nothing to wait for (`armed.rs`, `program.rs`, `mod.rs`, which also takes them out).
    pub released: VecDeque<OpKey>,
    /// Queues in which more launches could be queued. Only `cohorts.rs` writes it.
    pub behind: VecDeque<QueueIndex>,
    /// Armed operations that wait for their release alone. Only `armed.rs` writes it.
    pub armed: Vec<OpKey>,
    /// Whether an armed operation could get a gate now. `armed.rs`, `planning.rs` and `mod.rs` set it.
    pub may_arm: bool,
    /// Whether what gates are to tell may have changed. `armed.rs` and `planning.rs` set it.
    pub foresees: bool,
    /// Released operations whose blocks ran before the policy knew of them. `mod.rs` adds them; `planning.rs` takes them out
    /// once the policy has decided.
    pub released_early: Vec<OpKey>,
    /// Whether a launch waits for a queue. `cohorts.rs` and `armed.rs` set it; `mod.rs` clears it when a
    /// queue is free.
    pub short_of_queues: bool,
    /// When a launch with too few blocks may be filled up. `cohorts.rs` sets it; `planning.rs` takes it out.
    pub refills: Option<Duration>,
    /// Something changed that the policy should look at. All files set it; `planning.rs` clears it.
    pub unsettled: bool,
    /// When the policy has to be asked again, whatever else happens. `planning.rs` sets it, and `opaque.rs` clears it
    /// while the device is drained.
    pub wake: Option<Duration>,
}
