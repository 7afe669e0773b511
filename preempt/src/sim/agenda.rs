//! What happens in virtual time, and when.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use preempt_device::abi::Posted;

use super::device::CohortKey;
use crate::vocabulary::OpKey;

/// What happens at a virtual time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Happening {
    /// A launch of the list is submitted.
    Arrival(usize),
    /// A cohort's blocks run, if there is room.
    Ready(CohortKey),
    /// A launch has done its work, unless its SMs have changed since.
    Complete(OpKey, u32),
    /// A cohort's blocks have left the SMs outside this range.
    Leave(CohortKey, u32, u32),
    /// Blocks of a plain cohort have ended on the SMs that another launch has for the policy.
    MakeRoom(CohortKey, OpKey),
    /// The host sees that a cohort is out.
    Report { op: OpKey, slot: u8, done: u32, plain: bool },
    /// A change of the list is made.
    Change(usize),
    /// The policy is to be asked again.
    Wake,
    /// The host goes on with its turn.
    Turn,
}

/// Events in virtual time, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    /// Events of the same time happen in the order in which they were entered.
    entered: u64,
}

impl Agenda {
    pub fn enter(&mut self, at: u64, happening: Happening) {
        self.entered += 1;
        self.heap.push(Reverse((at, self.entered, happening)));
    }

    /// The time of the next event.
    pub fn next(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// The next event, if it is at this time.
    pub fn pop(&mut self, at: u64) -> Option<Happening> {
        self.heap.peek().filter(|Reverse((next, ..))| *next == at)?;
        self.heap.pop().map(|Reverse((.., happening))| happening)
    }
}

impl Happening {
    /// What the engine is told of a cohort that is out.
    pub fn posted(done: u32, plain: bool) -> Posted {
        Posted { done, amortize: u32::from(done > 0 && !plain) }
    }
}

/// In nanoseconds, the unit of virtual time.
pub(super) fn nanos(time: Duration) -> u64 {
    time.as_nanos().min(u128::from(u64::MAX / 4)) as u64
}
