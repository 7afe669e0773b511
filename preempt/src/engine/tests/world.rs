//! A model device that does everything in its own time, and holds each action of the engine to its word.

use std::collections::{HashMap, HashSet};

use preempt_device::abi::{Posted, Signal, SmRange, StopLimit, departures};
use preempt_device::host::Access;

use super::super::*;
use crate::policy::{Priority, Urgency};

mod checks;
mod gates;

use crate::vocabulary::{After, CohortOrder, ControlIndex, ControlUse};
use checks::{Heard, Listening};
use gates::{Armed, Gate};

/// Queues; few, so that launches have to wait for them.
pub const QUEUES: QueueCount = QueueCount { normal: 3, urgent: 1, levels: 2, chains: 2 };

/// A cohort on the model device.
#[derive(Debug)]
pub struct Cohort {
    pub order: CohortOrder,
    /// Whether those before it in its queue have left.
    pub at_head: bool,
    pub waiting: u32,
    /// The SM of each resident block.
    pub resident: Vec<u32>,
    pub done: u32,
    /// The gate before it, if it is behind one.
    pub gate: Option<Gate>,
}

#[derive(Debug)]
pub struct ModelOp {
    pub stream: u32,
    pub uses: Vec<Use>,
    /// Another operation that it waits for.
    pub after: Option<OpKey>,
    /// The urgency that the application asks for.
    pub urgency: Urgency,
    pub opaque: Option<Opaque>,
    /// 0 for a copy, and for opaque work.
    pub tasks: u32,
    pub claimed: u32,
    /// Block-tasks of cohorts that are out.
    pub done: u32,
    pub started: bool,
    /// The tasks that the blocks of its first cohort start with, once there was one.
    pub handed: Option<u32>,
    pub failed: bool,
    pub finished: Option<Outcome>,
    /// The program that it is a call of.
    pub part_of: Option<OpKey>,
}

/// What is submitted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    pub stream: u32,
    /// 0 for a copy, and for opaque work.
    pub tasks: u32,
    pub uses: &'a [Use],
    pub asks: Asks,
    pub after: Option<OpKey>,
    pub opaque: Option<Opaque>,
    /// The block-tasks of a program's calls: 0 for a copy, less for a plain launch.
    pub calls: &'a [i32],
    pub armed: bool,
}

/// What a submission asks for beside its tasks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asks {
    pub urgency: Urgency,
    pub predicted: Option<Duration>,
    pub yield_overhead: Duration,
    pub plain: bool,
    pub hardware_stop: Option<Duration>,
}

pub struct World {
    pub engine: Engine,
    pub now: Duration,
    sm_times: HashMap<u32, Duration>,
    pub sms: u32,
    pub blocks_per_sm: u32,
    /// The same of the last SM.
    pub on_last_sm: u32,
    /// Free block slots of each SM.
    pub room: Vec<u32>,
    pub cohorts: Vec<Cohort>,
    pub copies: Vec<OpKey>,
    /// Operations that were revoked, whole programs.
    revoked: HashSet<OpKey>,
    /// Opaque work that was run before.
    pub known_opaque: HashSet<(&'static str, u64)>,
    /// The last that the policy was told of each launch that it knows.
    pub heard: Heard,
    /// In order of submission, and where to find each.
    pub ops: Vec<(OpKey, ModelOp)>,
    places: HashMap<OpKey, usize>,
    /// The last word of each queue.
    pub words: HashMap<QueueIndex, Signal>,
    /// For each control block, its user, the parity of that use, and the last ticket of each slot.
    pub controls: HashMap<ControlIndex, (OpKey, u8, HashMap<u8, u32>)>,
    /// The word of each slot, and the claims of each parity, in each control block.
    pub left: HashMap<(ControlIndex, u8), u64>,
    pub claims: HashMap<(ControlIndex, u8), u32>,
    /// Launches that were queued behind others, and how many of these bounced.
    pub queued_ahead: usize,
    pub bounced: usize,
    pub retired: HashSet<OpKey>,
    pub actions: Vec<Action>,
    /// How far armed operations have come.
    pub armed: HashMap<OpKey, Armed>,
    /// The last word of each queue that a gate has told.
    pub told: HashMap<QueueIndex, Signal>,
    /// The owner of each SM after the last event.
    pub owners: Vec<Option<OpKey>>,
    /// Random placement of blocks, as that of hardware is unknown.
    pub chance: u32,
    /// Whether the policy is one of the library's.
    pub work_conserving: bool,
    /// How often each stream is suspended.
    pub suspended: HashMap<u32, u32>,
}

/// Calls that are queued at once from this one on: three launches, where they are not the first of a row.
fn together(calls: &[i32], index: usize) -> u32 {
    let before = calls[..index].iter().rev().take_while(|tasks| **tasks > 0).count();
    let from_here = calls[index..].iter().take_while(|tasks| **tasks > 0).take(3).count();
    if before % 3 == 1 { from_here.max(1) as u32 } else { 1 }
}

impl World {
    pub fn new(sms: u32, blocks_per_sm: u32, policy: impl Policy + 'static) -> World {
        World::with(sms, blocks_per_sm, Box::new(policy))
    }

    pub fn with(sms: u32, blocks_per_sm: u32, policy: Box<dyn Policy>) -> World {
        let heard = Heard::default();
        let policy = Listening { policy, heard: heard.clone() };
        World {
            engine: Engine::new(sms, QUEUES, Costs::h200(), Box::new(policy)),
            now: Duration::ZERO,
            sm_times: HashMap::new(),
            revoked: HashSet::new(),
            known_opaque: HashSet::new(),
            heard,
            sms,
            blocks_per_sm,
            on_last_sm: blocks_per_sm,
            room: vec![blocks_per_sm; sms as usize],
            cohorts: Vec::new(),
            copies: Vec::new(),
            ops: Vec::new(),
            places: HashMap::new(),
            words: HashMap::new(),
            controls: HashMap::new(),
            left: HashMap::new(),
            claims: HashMap::new(),
            queued_ahead: 0,
            bounced: 0,
            retired: HashSet::new(),
            actions: Vec::new(),
            armed: HashMap::new(),
            told: HashMap::new(),
            owners: vec![None; sms as usize],
            chance: 0,
            work_conserving: false,
            suspended: HashMap::new(),
        }
    }

    /// With less room for blocks on the last SM.
    pub fn with_less_on_the_last(mut self, less: u32) -> World {
        self.on_last_sm = self.blocks_per_sm.saturating_sub(less).max(1);
        *self.room.last_mut().expect("an SM") = self.on_last_sm;
        self
    }

    pub fn op(&mut self, key: OpKey) -> &mut ModelOp {
        let place = *self.places.get(&key).expect("a known operation");
        &mut self.ops[place].1
    }

    pub fn submit(&mut self, stream: u32, priority: i32, tasks: u32, uses: &[Use]) -> OpKey {
        self.submit_as(stream, priority, tasks, uses, false)
    }

    pub fn submit_as(
        &mut self,
        stream: u32,
        priority: i32,
        tasks: u32,
        uses: &[Use],
        plain: bool,
    ) -> OpKey {
        let urgency = Urgency { priority: Priority(priority), ..Urgency::default() };
        self.submit_asking(stream, tasks, uses, Asks { urgency, plain, ..Asks::default() })
    }

    pub fn submit_asking(&mut self, stream: u32, tasks: u32, uses: &[Use], asks: Asks) -> OpKey {
        self.ask(Asked { stream, tasks, uses, asks, ..Asked::default() })
    }

    pub fn ask(&mut self, asked: Asked<'_>) -> OpKey {
        let Asked { stream, tasks, uses, asks, after, opaque, calls, armed } = asked;
        let Asks { urgency, predicted, yield_overhead, plain, hardware_stop } = asks;
        let spec = LaunchSpec {
            tasks,
            predicted,
            yield_overhead,
            requeued: Duration::ZERO,
            blocks_per_sm: self.blocks_per_sm,
            on_last_sm: self.on_last_sm,
            plain,
            hardware_stop,
            leaving: Leaving::AtEnd,
        };
        let launch = (tasks > 0).then_some(spec);
        let name = "model";
        let called = |(index, &tasks): (usize, &i32)| {
            let (plain, tasks) = (tasks < 0, tasks.unsigned_abs());
            let launch = (tasks > 0).then_some(LaunchSpec { tasks, plain, ..spec });
            let together = together(calls, index);
            Called { name: "call", launch, together, is_plain_kernel: false }
        };
        let called: Vec<Called> = calls.iter().enumerate().map(called).collect();
        let calls_of = &called;
        let submission = Submission {
            stream,
            name,
            uses,
            after,
            urgency,
            launch,
            opaque,
            calls: calls_of,
            armed,
        };
        let key = self.engine.submit(self.now, submission, &mut self.actions);
        let op = |tasks, part_of| ModelOp {
            stream,
            uses: uses.to_vec(),
            after,
            urgency,
            opaque,
            tasks,
            claimed: 0,
            done: 0,
            started: false,
            handed: None,
            failed: false,
            finished: None,
            part_of,
        };
        let mut keys = self.engine.calls(key).to_vec();
        if keys.is_empty() {
            // It ended at once.
            keys.extend(self.actions.iter().filter_map(|action| match action {
                Action::Finish { op, .. } if *op != key => Some(*op),
                _ => None,
            }));
        }
        for (call, &tasks) in keys.into_iter().zip(calls) {
            self.places.insert(call, self.ops.len());
            self.ops.push((call, op(tasks.unsigned_abs(), Some(key))));
        }
        self.places.insert(key, self.ops.len());
        // Those of plain calls do not count.
        let counted: i32 = calls.iter().map(|&tasks| tasks.max(0)).sum();
        self.ops.push((key, op(tasks + counted.unsigned_abs(), None)));
        if armed {
            self.armed.insert(key, Armed::Waits);
        }
        self.act();
        key
    }

    /// The program that an operation is a call of, or else the operation itself.
    pub fn whole(&mut self, key: OpKey) -> OpKey {
        self.op(key).part_of.unwrap_or(key)
    }

    /// Changes the urgency of an operation, or of all of a stream.
    pub fn change(&mut self, of: Whose, change: Change) {
        for (key, op) in &mut self.ops {
            let is_meant = match of {
                Whose::Launch(launch) => *key == launch,
                Whose::Stream(stream) => op.stream == stream,
            };
            match change {
                Change::Priority(priority) if is_meant => op.urgency.priority = priority,
                Change::Deadline(deadline) if is_meant => op.urgency.deadline = deadline,
                Change::LatencyLimit(limit) if is_meant => op.urgency.latency_limit = limit,
                Change::Weight(weight) if is_meant => op.urgency.weight = weight.max(1),
                _ => {}
            }
        }
        self.handle(Event::Change { of, change });
    }

    /// Suspends a stream, or resumes it.
    pub fn suspend(&mut self, stream: u32, is_suspended: bool) {
        let count = self.suspended.entry(stream).or_default();
        *count = if is_suspended { *count + 1 } else { count.saturating_sub(1) };
        let change = Change::Suspended(is_suspended);
        self.handle(Event::Change { of: Whose::Stream(stream), change });
    }

    pub fn is_suspended(&self, stream: u32) -> bool {
        self.suspended.get(&stream).is_some_and(|&count| count > 0)
    }

    /// Lets time pass; the engine is asked when it wants to be.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(wake) = self.engine.wake().filter(|wake| *wake <= end) {
            assert!(wake > self.now, "it has been asked");
            self.advance(wake);
            self.act();
        }
        self.advance(end);
    }

    fn advance(&mut self, now: Duration) {
        let time = now - self.now;
        self.now = now;
        for owner in self.engine.ledger.owners().iter().flatten() {
            let stream = self.engine.ops[owner.0].stream;
            *self.sm_times.entry(stream).or_default() += time;
        }
    }

    /// How long a stream has had SMs, summed over SMs.
    pub fn sm_time(&self, stream: u32) -> Duration {
        self.sm_times.get(&stream).copied().unwrap_or_default()
    }

    pub fn is_finished(&self, key: OpKey) -> bool {
        self.places.get(&key).is_some_and(|&place| self.ops[place].1.finished.is_some())
    }

    pub fn handle(&mut self, event: Event) {
        if let Event::Revoke { op } = event {
            self.revoked.insert(op);
        }
        self.engine.handle(self.now, event, &mut self.actions);
        self.act();
    }

    pub fn act(&mut self) {
        // With those that a release or a disarm adds, before the books are checked.
        self.act_beside(self.cohorts.len());
    }

    fn act_beside(&mut self, on_device: usize) {
        self.engine.settle(self.now, &mut self.actions);
        self.engine.go_ahead(self.now, &mut self.actions);
        for action in std::mem::take(&mut self.actions) {
            match action {
                Action::Launch(order) => self.launch(order),
                Action::Signal { queue, signal } => {
                    assert!(
                        self.cohorts.iter().any(|cohort| cohort.order.queue == queue),
                        "a signal goes to cohorts on the device"
                    );
                    if signal.limit() == StopLimit::REVOKED {
                        assert_eq!(signal.range(), SmRange::EMPTY);
                        let there =
                            self.cohorts.iter().filter(|cohort| cohort.order.queue == queue);
                        let there: Vec<OpKey> = there.map(|cohort| cohort.order.op).collect();
                        for op in there {
                            let op = self.whole(op);
                            assert!(
                                self.revoked.contains(&op),
                                "what counts is not stopped like that"
                            );
                        }
                    }
                    let before = self.words.insert(queue, signal);
                    assert!(before.is_none_or(|before| signal.is_newer(before)));
                    for cohort in self.cohorts.iter().filter(|cohort| cohort.order.queue == queue) {
                        assert!(signal.is_newer(cohort.order.signal), "{cohort:?}");
                    }
                }
                Action::Copy { op } => {
                    self.start(op);
                    self.check_alone(op);
                    self.copies.push(op);
                }
                Action::Disarm { op } => self.disarm(op),
                Action::Finish { op, outcome } => self.finish(op, outcome),
                Action::Retire { op } => {
                    assert!(self.retired.insert(op), "retired once");
                    assert!(self.op(op).finished.is_some(), "finished before retired");
                    assert!(self.cohorts.iter().all(|cohort| cohort.order.op != op));
                    assert!(!self.copies.contains(&op));
                    let mut calls = self.ops.iter().filter(|(_, call)| call.part_of == Some(op));
                    assert!(calls.all(|(call, _)| self.retired.contains(call)), "calls first");
                }
            }
        }
        if !self.actions.is_empty() {
            self.act_beside(on_device);
            return;
        }
        self.foresee();
        self.check_urgency();
        self.check_inheritance();
        self.check_order();
        self.check_books();
        self.check_signals(on_device);
    }

    /// The owners in the books of a launch.
    pub(super) fn owners_of(&self, launch: &Launch) -> &[Option<LaunchId>] {
        if launch.is_guest { self.engine.guests.owners() } else { self.engine.ledger.owners() }
    }

    fn needs_all(&self, Opaque { name, variant, exclusive }: Opaque) -> bool {
        exclusive || !self.known_opaque.contains(&(name, variant))
    }

    /// The word that a cohort obeys.
    fn word(&self, cohort: &Cohort) -> Signal {
        let queue = cohort.order.queue;
        let words = [self.words.get(&queue), self.told.get(&queue)];
        let newer = |one: Signal, other: &Signal| if other.is_newer(one) { *other } else { one };
        words.into_iter().flatten().fold(cohort.order.signal, newer)
    }

    fn launch(&mut self, order: CohortOrder) {
        assert!(order.blocks > 0 && order.ticket > 0, "{order:?}");
        let stream = self.op(order.op).stream;
        assert!(!self.is_suspended(stream), "a cohort of a stream that is suspended: {order:?}");
        for op in self.copies.clone() {
            let opaque = self.op(op).opaque;
            let alone = opaque.is_some_and(|opaque| self.needs_all(opaque));
            assert!(!alone, "{opaque:?} has the device alone");
        }
        let mut at_head = true;
        for cohort in &self.cohorts {
            if cohort.order.control.control == order.control.control {
                let other = &cohort.order;
                assert_eq!(other.op, order.op, "a control block serves one launch at a time");
                assert_ne!(other.slot, order.slot, "a slot serves one cohort at a time");
            }
            at_head &= cohort.order.queue != order.queue;
        }
        let waiting = self.cohorts.iter().filter(|cohort| !cohort.at_head);
        let mut chains: HashSet<QueueIndex> = waiting.map(|cohort| cohort.order.queue).collect();
        chains.extend((!at_head).then_some(order.queue));
        assert!(chains.len() <= QUEUES.chains as usize, "more chains than hardware queues");
        self.check_level(&order);
        let ControlUse { control, parity } = order.control;
        // It was never used; the first parity is 0.
        let fresh = (OpKey::default(), 1, HashMap::new());
        let (owner, last, tickets) = self.controls.entry(control).or_insert(fresh);
        assert_ne!(tickets.insert(order.slot, order.ticket), Some(order.ticket));
        if !order.plain {
            if *owner == order.op {
                assert_eq!(*last, parity);
            } else {
                assert_ne!(*last, parity, "in turn");
                assert!(self.claims.get(&(control, parity)).is_none_or(|&claims| claims == 0));
            }
            (*owner, *last) = (order.op, parity);
            let left = self.left.get(&(control, order.slot));
            assert_eq!(left.copied().unwrap_or(0), order.left, "what is in the slot's word");
        }
        let keeps_to = order.signal.range();
        let is_free = order.after.is_none() && !order.gated;
        let hands = if is_free && keeps_to == SmRange::ALL { order.blocks } else { 0 };
        let before = self.op(order.op).handed.replace(order.handed);
        // All cohorts of a launch count claims from the same task, and at most one has those before it.
        assert_eq!(order.handed, before.unwrap_or(hands));
        assert_eq!(order.is_first, before.is_none() && hands > 0);
        match order.after {
            Some(_) => {
                assert!(!at_head, "it is behind what it waits for");
                self.queued_ahead += 1;
            }
            None if order.gated => assert!(at_head && !order.plain, "{order:?}"),
            None => {
                assert!(at_head, "nothing is in its way");
                if before.is_none() || keeps_to != SmRange::ALL {
                    let own = |owner: &&Option<LaunchId>| **owner == Some(LaunchId(order.op));
                    let launch = self.engine.ops[order.op].launch.as_ref().expect("a launch");
                    let is_thin = launch.thin;
                    let half =
                        |blocks: u32| if launch.shares { (blocks / 2).max(1) } else { blocks };
                    let [each, on_last] = [self.blocks_per_sm, self.on_last_sm].map(half);
                    let owners = self.owners_of(launch).to_vec();
                    let has = owners.iter().filter(own).count() as u32;
                    let less = owners.iter().skip(self.sms as usize - 1).filter(own).count() as u32
                        * (each - on_last);
                    let room = has * each - less;
                    let ModelOp { tasks, done, .. } = *self.op(order.op);
                    let wanted = room.min(tasks - done);
                    if keeps_to == SmRange::ALL {
                        assert_eq!(order.blocks, wanted, "as many as have room");
                    } else {
                        let is_own = |sm: u32| owners[sm as usize] == Some(LaunchId(order.op));
                        assert!((0..self.sms).all(|sm| keeps_to.contains(sm) == is_own(sm)));
                        let is_other = |sm: u32| !is_own(sm) && owners[sm as usize].is_some();
                        assert!(
                            (0..self.sms).any(is_other),
                            "there is no launch to be confined beside"
                        );
                        // Beside blocks that it has, it needs fewer. The model has no room for more than there is outside.
                        let has_blocks = self.cohorts.iter().any(|of| of.order.op == order.op);
                        let outside = (self.sms - has) * self.blocks_per_sm;
                        let spare = order.blocks.saturating_sub(wanted);
                        assert!(spare <= outside && (spare > 0 || is_thin), "{order:?}");
                        assert!(has_blocks || order.blocks >= wanted, "{order:?}");
                        let each_does_one = order.blocks >= tasks;
                        assert!(!each_does_one || room >= tasks - done, "not all have room");
                    }
                }
                if !self.op(order.op).started {
                    self.start(order.op);
                }
            }
        }
        let waiting = order.blocks;
        let gate = order.gated.then(|| self.gate(order.op));
        self.cohorts.push(Cohort { order, at_head, waiting, resident: Vec::new(), done: 0, gate });
    }

    /// Whether the launch that a cohort was queued behind is done, as far as the device can tell.
    fn may_work(&self, order: &CohortOrder) -> bool {
        order.plain
            || order.after.is_none_or(|After { control, slot, left }| {
                self.left.get(&(control, slot)) == Some(&left)
            })
    }

    /// An operation starts: everything that it has to wait for is over.
    fn start(&mut self, key: OpKey) {
        let place = *self.places.get(&key).expect("known");
        let (before, rest) = self.ops.split_at_mut(place);
        let op = &mut rest[0].1;
        assert!(!op.started && op.finished.is_none());
        op.started = true;
        for (key, other) in before.iter().filter(|(_, other)| !over(other)) {
            assert_ne!(other.stream, op.stream, "a stream runs in order");
            assert_ne!(op.after, Some(*key), "it waits for the event");
            let conflicts = |a: &Use| op.uses.iter().any(|b| conflict(a, b));
            assert!(!other.uses.iter().any(conflicts), "a writer has its range alone");
        }
    }

    fn finish(&mut self, key: OpKey, outcome: Outcome) {
        let running = |world: &mut World| {
            let resident = world.cohorts.iter().filter(|cohort| !cohort.resident.is_empty());
            let resident: Vec<OpKey> = resident.map(|cohort| cohort.order.op).collect();
            resident.into_iter().any(|op| {
                // A late cohort of a call that is done does nothing.
                let is_done = matches!(world.op(op).finished, Some(Outcome::Done(_)));
                let whole = world.whole(op);
                // So does one behind a gate that was not opened.
                let is_disarmed = world.armed.get(&whole) == Some(&Armed::Disarmed);
                (op == key || whole == key && !is_done) && !is_disarmed
            })
        };
        let running = running(self);
        let on_device = self.cohorts.iter().any(|c| c.order.op == key);
        let op = self.op(key);
        assert!(op.finished.replace(outcome).is_none(), "finished once");
        match outcome {
            Outcome::Done(report) => {
                assert_eq!((report.tasks, op.claimed), (op.tasks, op.tasks), "every task ran once");
                assert!(!op.failed);
            }
            Outcome::Cancelled { done } | Outcome::Closed { done } => {
                assert_eq!(done, op.claimed, "every claimed task is reported");
                assert!(!running, "it stopped before it was reported");
            }
            Outcome::Failed => assert!(op.failed),
            Outcome::NotAdmitted => assert!(!on_device && !op.started),
            // A launch that was queued behind the failed kernel may have run on what that left.
            Outcome::InputLost { .. } => assert!(!on_device, "it left before it was reported"),
        }
    }

    /// One block of one cohort goes one step: gets an SM, runs a task, or leaves.
    pub fn step_cohort(&mut self, index: usize) {
        if !self.cohorts[index].at_head {
            return;
        }
        self.chance = self.chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let free = (0..self.sms).filter(|&sm| self.room[sm as usize] > 0);
        let sm = free.clone().nth((self.chance >> 16) as usize % free.count().max(1));
        let range = self.word(&self.cohorts[index]).range();
        let order = self.cohorts[index].order;
        let Some(is_open) = self.pass_gate(index) else { return };
        let may_work = is_open && self.may_work(&order);
        let cohort = &mut self.cohorts[index];
        if cohort.waiting > 0
            && let Some(sm) = sm
        {
            self.room[sm as usize] -= 1;
            cohort.waiting -= 1;
            cohort.resident.push(sm);
        } else if let Some(sm) = cohort.resident.pop() {
            let ModelOp { claimed, tasks, .. } = *self.op(order.op);
            if (range.contains(sm) || order.plain) && may_work && claimed < tasks {
                if !self.op(order.op).started {
                    self.start(order.op);
                }
                self.op(order.op).claimed += 1;
                self.check_released(order.op);
                let whole = self.whole(order.op);
                self.op(whole).claimed += u32::from(whole != order.op && !order.plain);
                let ControlUse { control, parity } = order.control;
                *self.claims.entry((control, parity)).or_default() += u32::from(!order.plain);
                let cohort = &mut self.cohorts[index];
                cohort.done += 1;
                if order.plain || order.blocks < tasks {
                    cohort.resident.insert(0, sm);
                } else {
                    // There was a block for each.
                    self.room[sm as usize] += 1;
                }
            } else {
                self.room[sm as usize] += 1;
            }
        }
        let cohort = &self.cohorts[index];
        if cohort.waiting == 0 && cohort.resident.is_empty() {
            let Cohort { order: CohortOrder { op, slot, queue, after, .. }, done, .. } =
                self.cohorts.remove(index);
            self.op(op).done += done;
            let whole = self.whole(op);
            self.op(whole).done += if whole == op || order.plain { 0 } else { done };
            let ControlUse { control, parity } = order.control;
            if !order.plain {
                let left = self.left.entry((control, slot)).or_default();
                *left = left.wrapping_add(departures(order.blocks, done));
                self.claims.insert((control, 1 - parity), 0);
            }
            self.bounced += usize::from(after.is_some() && done == 0);
            if let Some(next) = self.cohorts.iter_mut().find(|other| other.order.queue == queue) {
                next.at_head = true;
            }
            let posted = Posted { done, amortize: u32::from(!order.plain) };
            self.handle(Event::CohortOut { op, slot, posted });
            if order.gated && done == 0 {
                self.disarm(whole);
                self.act();
            }
        }
    }

    pub fn step_copy(&mut self, index: usize) {
        let op = self.copies.remove(index);
        let model = self.op(op);
        if let Some(opaque) = model.opaque.filter(|_| !model.failed) {
            self.known_opaque.insert((opaque.name, opaque.variant));
        }
        self.handle(Event::CopyDone { op });
    }

    /// Lets the device go on until nothing is left to do.
    pub fn run_out(&mut self) {
        for (stream, count) in self.suspended.clone() {
            (0..count).for_each(|_| self.suspend(stream, false));
        }
        for round in 0.. {
            assert!(round < 100_000, "something waits for ever: {:?}", self.engine);
            if !self.copies.is_empty() {
                self.step_copy(0);
            } else if self.tell_released() {
                // It goes on.
            } else if self.cohorts.is_empty()
                && self.engine.is_busy()
                && let Some(wake) = self.engine.wake()
            {
                // SMs are left free until then.
                self.pass(wake - self.now);
            } else if self.cohorts.is_empty() {
                // An armed program that waits has a gate, which would be on the device.
                break;
            } else {
                self.step_cohort(round % self.cohorts.len());
            }
        }
        assert!(!self.engine.is_busy(), "{:?}", self.engine);
        assert!(
            self.ops.iter().all(|(key, op)| op.finished.is_some() && self.retired.contains(key))
        );
        let (last, others) = self.room.split_last().expect("an SM");
        assert!(others.iter().all(|&room| room == self.blocks_per_sm));
        assert_eq!(*last, self.on_last_sm);
    }
}

/// Whether an operation keeps no other one waiting.
fn over(op: &ModelOp) -> bool {
    // An operation that was cancelled before it started keeps its place, but touches nothing. A launch that is done
    // on the device may not have been reported.
    op.finished.is_some() || op.tasks > 0 && op.done == op.tasks
}

/// Whether two operations with these uses must not run at the same time.
fn conflict(a: &Use, b: &Use) -> bool {
    let both_read = a.access == Access::Read && b.access == Access::Read;
    let shared =
        (a.bytes.start..a.bytes.end).any(|byte| (b.bytes.start..b.bytes.end).contains(&byte));
    a.buffer == b.buffer && shared && !both_read
}
