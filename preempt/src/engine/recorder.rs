//! What enters an engine and what it decides, recorded to be decided again.

use std::time::Duration;

use preempt_device::abi::SmRange;
use slotmap::Key;

use super::{Action, Engine, Event, Grant, Input, Outcome, Running, Step, Submission};
use crate::policy::Plan;
use crate::vocabulary::{After, CohortOrder, ControlUse, Costs, OpKey, QueueCount, QueueIndex};

/// What an engine was told and decided, and whose decisions they were.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recorded<'a> {
    /// The policy that decided first.
    pub policy: &'a str,
    pub sms: u32,
    pub queues: QueueCount,
    pub costs: Costs,
    pub steps: &'a [Step],
}

/// Every call of an engine that can change anything.
#[derive(Clone, Debug, Default)]
pub(super) struct Recorder {
    pub steps: Vec<Step>,
    /// The plans of the call that is under way.
    plans: Vec<Vec<(u64, u32, u32)>>,
}

impl Recorder {
    pub fn submitted(
        &mut self,
        now: Duration,
        submission: Submission<'_>,
        keys: (OpKey, &[OpKey]),
        actions: &[Action],
    ) {
        let decided = digest(actions).0;
        self.step(now, Input::of_submission(submission, keys), decided);
    }

    pub fn handled(&mut self, now: Duration, event: Event, actions: &[Action]) {
        self.step(now, Input::of_event(event), digest(actions).0);
    }

    pub fn went_ahead(&mut self, now: Duration, actions: &[Action]) {
        self.step(now, Input::GoAhead, digest(actions).0);
    }

    pub fn looked(&mut self, now: Duration, queue: QueueIndex, running: &[Running]) {
        self.step(now, Input::of_look(queue, running), digest(&[]).0);
    }

    pub fn planned(&mut self, plan: &Plan) {
        let grants = plan.grants.iter();
        let grants = grants.map(|(id, range)| (id.0.data().as_ffi(), range.lo(), range.hi()));
        self.plans.push(grants.collect());
    }

    pub fn settled(&mut self, now: Duration, actions: &[Action]) {
        let plans = std::mem::take(&mut self.plans);
        self.step(now, Input::Settle { plans }, digest(actions).0);
    }

    fn step(&mut self, now: Duration, input: Input, decided: u64) {
        let now = now.as_nanos().min(u128::from(u64::MAX)) as u64;
        self.steps.push(Step { now, decided, input });
    }
}

/// What the engine notes on request; none of it decides anything.
#[derive(Debug, Default)]
pub(super) struct Observers {
    /// Launches whose SMs have changed, once that was asked for.
    grants: Option<Vec<Grant>>,
    /// What the engine is told and decides, if it is recorded.
    pub recorder: Option<Box<Recorder>>,
}

impl Engine {
    /// Records from now on what the engine is told and decides; nothing has happened yet.
    pub fn record(&mut self) {
        self.observers.recorder = Some(Box::default());
    }

    /// What was recorded, if anything is.
    pub fn recorded(&self) -> Option<Recorded<'_>> {
        let recorder = self.observers.recorder.as_ref()?;
        let policy = self.decider.first_policy();
        let (sms, queues) = (self.ledger.sms(), self.queues.count());
        Some(Recorded { policy, sms, queues, costs: self.costs, steps: &recorder.steps })
    }

    /// Takes the last call that was recorded since this was called.
    pub fn last_step(&mut self) -> Option<Step> {
        let steps = &mut self.observers.recorder.as_mut()?.steps;
        let last = steps.pop();
        steps.clear();
        last
    }

    /// The launches that got or lost SMs since the first call, in order, for the caller to take out.
    pub fn grants(&mut self) -> &mut Vec<Grant> {
        self.observers.grants.get_or_insert_default()
    }

    /// Notes that a launch has other SMs than before.
    pub(super) fn note(&mut self, op: OpKey, at: Duration, range: SmRange, is_over: bool) {
        if let Some(grants) = &mut self.observers.grants {
            let launch = self.ops.get(op).and_then(|op| op.launch.as_ref());
            let shares = launch.is_some_and(|launch| launch.shares);
            grants.push(Grant { op, at, range, shares, is_over });
        }
    }
}

/// A number for a list of actions, which is the same in every process and every build.
fn digest(actions: &[Action]) -> Digest {
    actions.iter().fold(Digest(0xcbf2_9ce4_8422_2325), |digest, action| match *action {
        Action::Launch(CohortOrder {
            op,
            queue,
            control: ControlUse { control, parity },
            slot,
            ticket,
            left,
            signal,
            plain,
            blocks,
            workers,
            handed,
            is_first,
            after,
            gated,
            // It only tells whose time the wait was.
            over: _,
            // What blocks tell by it is recorded where it is taken in.
            tells_progress: _,
            // It follows from the words and the grants, and changes how fast blocks run.
            vicinity: _,
        }) => {
            let digest =
                digest.with(1u8).with(op.data().as_ffi()).with(queue).with(control).with(parity);
            let digest = digest.with(slot).with(ticket).with(left).with(signal.to_bits());
            let digest = digest.with(plain).with(blocks).with(workers).with(handed).with(is_first);
            let digest = digest.with(gated);
            match after {
                None => digest.with(0u8),
                Some(After { control, slot, left }) => {
                    digest.with(1u8).with(control).with(slot).with(left)
                }
            }
        }
        Action::Signal { queue, signal } => digest.with(2u8).with(queue).with(signal.to_bits()),
        Action::Copy { op } => digest.with(3u8).with(op.data().as_ffi()),
        Action::Finish { op, outcome } => {
            let digest = digest.with(4u8).with(op.data().as_ffi());
            match outcome {
                Outcome::Done(report) => {
                    let digest = digest.with(1u8).with(report.tasks).with(report.yields);
                    digest.with(report.resumes).with(report.sm_time.as_nanos() as u64)
                }
                Outcome::Cancelled { done } => digest.with(2u8).with(done),
                Outcome::Failed => digest.with(3u8),
                Outcome::InputLost { .. } => digest.with(4u8),
                Outcome::NotAdmitted => digest.with(5u8),
                Outcome::Closed { done } => digest.with(6u8).with(done),
            }
        }
        Action::Disarm { op } => digest.with(6u8).with(op.data().as_ffi()),
        Action::Retire { op } => digest.with(5u8).with(op.data().as_ffi()),
    })
}

/// FNV-1a (Fowler, Noll and Vo), of whole numbers instead of bytes.
#[derive(Clone, Copy)]
struct Digest(u64);

impl Digest {
    fn with(self, number: impl Into<u64>) -> Digest {
        let mixed = (self.0 ^ number.into()).wrapping_mul(0x0100_0000_01b3);
        // The multiplication alone would leave the upper bits out of the lower ones.
        Digest(mixed ^ mixed >> 32)
    }
}
