//! Cohorts: which blocks go to the device for the SMs that a launch has, and which are queued there ahead of time.

use std::time::Duration;

use preempt_device::abi::{SmRange, departures};

use super::ledger::{self, intersection};
use super::{Action, Engine, Op, Phase};
use crate::vocabulary::{After, CohortOrder, LaunchId, OpKey, QueueIndex};

/// How many launches are queued behind a running one while others want SMs: each of them has to leave the queue, and to be
/// launched again, if these are taken away.
const AHEAD_OF_OTHERS: usize = 8;

/// Where a cohort goes.
enum CohortPlace {
    /// Into a free queue, with the SMs that its blocks may use.
    Free { keeps_to: SmRange },
    /// Behind another launch, with what the queue may use.
    Behind(After),
}

impl Engine {
    /// Tells the cohorts of a launch which SMs are left to them, and what is queued behind them.
    pub(super) fn shrink(&mut self, key: OpKey, actions: &mut Vec<Action>) {
        let sms = self.ledger.sms();
        let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) else { return };
        if launch.spec.plain {
            // Its blocks leave when they are done, whatever they are told.
            return;
        }
        let mut signalled = false;
        for cohort in launch.cohorts.iter().flatten() {
            let queue = cohort.queue;
            let range = intersection(self.queues.range(queue), launch.range, sms);
            if range != self.queues.range(queue) {
                let signal = self.queues.signal(queue, range);
                actions.push(Action::Signal { queue, signal });
                signalled = true;
            }
        }
        if signalled {
            launch.count_yield();
        }
    }

    /// Launches blocks for the SMs of a launch that have none yet.
    pub(super) fn cover(&mut self, now: Duration, key: OpKey, actions: &mut Vec<Action>) {
        let sms = self.ledger.sms();
        let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) else { return };
        let range = launch.range;
        let uncovered = self.ledger.uncovered(range);
        if uncovered == 0 {
            return;
        }
        let there = launch.blocks_that_stay(&self.queues);
        if launch.spec.plain && !launch.is_out() || there >= launch.remaining() {
            // All its blocks are out, and find room by themselves.
            self.ledger.cover(range);
            return;
        }
        // Without a free slot or queue the SMs stay uncovered until a cohort is out.
        let Some(slot) = launch.free_slot() else { return };
        let has_taken = self.ledger.has_taken(range);
        let Some(queue) = self.queues.free(has_taken) else {
            self.agenda.short_of_queues = true;
            return;
        };
        let room = launch.room(uncovered, self.ledger.is_last_uncovered(range));
        let mut blocks = room.min(launch.remaining() - there);
        // The hardware spreads blocks over all SMs, also those that others have to themselves as far as anybody knows,
        // and blocks that share an SM hold each other up. A word that grants the launch's SMs alone keeps it
        // from that, but excludes and does not place: it takes blocks to spare. Where blocks have yet to leave, those
        // would be gone before there is room; and where this failed, others lie on its SMs.
        let crowds = launch.crowds(sms);
        let is_apart = (crowds || launch.has_long_few(room))
            && launch.is_out()
            && !(has_taken || launch.spilled)
            && self.ledger.has_others(range);
        let mut keeps_to = SmRange::ALL;
        if is_apart {
            // As many on each SM as on its own.
            let each = if crowds { launch.spec.blocks_per_sm } else { blocks.div_ceil(uncovered) };
            let spare = (self.sms_outside(range, None) * f64::from(each)) as u32;
            if spare > 0 {
                (keeps_to, blocks) = (range, blocks + spare);
            }
        }
        self.ledger.cover(range);
        self.put(key, (slot, queue), blocks, CohortPlace::Free { keeps_to }, actions);
        if let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) {
            launch.start(now);
        }
        self.go_on_behind(queue);
    }

    /// How many SMs are free outside of a range, beside the cohorts that are at the head of other queues than this one.
    fn sms_outside(&self, range: SmRange, queue: Option<QueueIndex>) -> f64 {
        let sms = self.ledger.sms();
        let mut free = f64::from(sms - ledger::count(range, sms));
        for (head, op, slot) in self.queues.heads().filter(|&(head, ..)| Some(head) != queue) {
            let Some(Op { launch: Some(other), .. }) = self.ops.get(op) else { continue };
            let Some(cohort) = &other.cohorts[slot] else { continue };
            // Those to spare have left.
            let most = match self.queues.range(head) {
                SmRange::ALL | SmRange::EMPTY => cohort.blocks,
                part => other.room(ledger::count(part, sms), false),
            };
            free -= f64::from(cohort.blocks.min(most)) / f64::from(other.spec.blocks_per_sm);
        }
        free.max(0.0)
    }

    /// Puts a cohort into a queue.
    fn put(
        &mut self,
        key: OpKey,
        (slot, queue): (usize, QueueIndex),
        blocks: u32,
        place: CohortPlace,
        actions: &mut Vec<Action>,
    ) {
        let sms = self.ledger.sms();
        let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) else { return };
        let control = *launch.control.get_or_insert_with(|| self.controls.take());
        let (after, keeps_to, hands) = match place {
            CohortPlace::Free { keeps_to: SmRange::ALL } => (None, SmRange::ALL, blocks),
            // Blocks behind another launch, or outside of their range, may have to leave at once, and would leave those
            // tasks behind.
            CohortPlace::Free { keeps_to } => (None, keeps_to, 0),
            CohortPlace::Behind(after) => (Some(after), self.queues.range(queue), 0),
        };
        let is_first = launch.handed.is_none() && hands > 0;
        let handed = *launch.handed.get_or_insert(hands);
        launch.cohort_in(slot, queue, blocks, keeps_to);
        actions.push(Action::Launch(CohortOrder {
            op: key,
            queue,
            control,
            slot: slot as u8,
            ticket: self.controls.ticket(control.control, slot),
            left: self.controls.left(control.control, slot),
            signal: self.queues.enter(queue, key, slot, keeps_to),
            plain: launch.spec.plain,
            blocks,
            workers: sms.saturating_mul(launch.spec.blocks_per_sm),
            handed,
            is_first,
            after,
        }));
    }

    /// Has more launches queued in a queue, when there is time.
    pub(super) fn go_on_behind(&mut self, queue: QueueIndex) {
        if !self.agenda.behind.contains(&queue) {
            self.agenda.behind.push_back(queue);
        }
    }

    /// Whether there may be a launch to queue behind another one.
    pub fn may_go_ahead(&self) -> bool {
        !self.agenda.behind.is_empty()
    }

    /// Queues one launch behind another one, if there is any to queue. Each takes the driver microseconds, in which
    /// nobody else gets through: so whoever calls this sees first what else there is to do.
    pub fn go_ahead(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if !self.may_go_ahead() {
            return;
        }
        let told = actions.len();
        while let Some(queue) = self.agenda.behind.pop_front() {
            if self.queue_ahead(queue, actions) {
                self.agenda.behind.push_back(queue);
                break;
            }
        }
        if let Some(recorder) = &mut self.observers.recorder {
            recorder.went_ahead(now, &actions[told..]);
        }
    }

    /// Queues a launch behind the last one in a queue, if it waits for nothing but launches that are ahead of it in
    /// that queue. The device starts it when the one before it is done, or lets it leave if that one has left without
    /// being done.
    fn queue_ahead(&mut self, queue: QueueIndex, actions: &mut Vec<Action>) -> bool {
        let is_enough = self.launches.known > 1 && self.queues.waiting(queue) >= AHEAD_OF_OTHERS;
        if is_enough || self.is_draining() {
            return false;
        }
        let sms = self.ledger.sms();
        let Some((tail, slot)) = self.queues.tail(queue) else { return false };
        let Some(Op { launch: Some(last), next: Some(next), phase, verdict: None, .. }) =
            self.ops.get(tail)
        else {
            return false;
        };
        let (next, handover) = match phase {
            Phase::Blocked => (*next, last.handover),
            Phase::Active => (*next, last.range),
            Phase::Finished => return false,
        };
        let range = intersection(handover, self.queues.range(queue), sms);
        let (Some(used), Some(cohort)) = (last.control, &last.cohorts[slot]) else { return false };
        let plain = last.spec.plain;
        let before = self.controls.left(used.control, slot);
        let after = After {
            control: used.control,
            slot: slot as u8,
            // If it does all that is left to do; what another cohort does at the same time, this
            // word does not say.
            left: before.wrapping_add(departures(cohort.blocks, last.remaining())),
        };
        // If nobody else wants SMs, it can have more than the one before.
        let room = if self.launches.known <= 1 { sms } else { ledger::count(range, sms) };
        let Some(Op {
            launch: Some(launch),
            phase: Phase::Blocked,
            verdict: None,
            foreign_blockers: 0,
            uses,
            ..
        }) = self.ops.get_mut(next)
        else {
            return false;
        };
        // Of the blocks of a queue that keeps to a part of the device some come to lie outside.
        let keeps_to = self.queues.range(queue);
        if keeps_to != SmRange::ALL && !launch.crowds(sms) {
            return false;
        }
        // A long launch of few blocks loses more where these lie among the blocks of others than by waiting for its turn.
        let has_few = launch.has_long_few(launch.room(ledger::count(range, sms), false));
        if has_few && keeps_to == SmRange::ALL && self.ledger.has_others(range) {
            return false;
        }
        // A plain launch is in nobody's word, and looks at none: it can only follow another one, which
        // is done when its queue comes to the next.
        if launch.spec.plain != plain || self.order.lost(uses).is_some() {
            return false;
        }
        // One that was queued before may be done, and not reported.
        if range.is_empty() || !launch.is_out() || launch.remaining() == 0 {
            return false;
        }
        let wanted = launch.need(sms).min(room);
        // All of it: the one behind this one may fill more than this one does.
        launch.handover = range;
        let room = launch.room(wanted, range.contains(sms - 1));
        let (left, each) = (launch.remaining(), f64::from(launch.spec.blocks_per_sm));
        let spare = match keeps_to {
            SmRange::ALL => 0,
            _ => (self.sms_outside(keeps_to, Some(queue)) * each) as u32,
        };
        self.put(next, (0, queue), (room + spare).min(left), CohortPlace::Behind(after), actions);
        true
    }

    /// Lets a launch whose turn has come go on with the SMs of the one before it, if a cohort of it
    /// was queued behind that one.
    pub(super) fn take_over(
        &mut self,
        now: Duration,
        key: OpKey,
        handover: SmRange,
        actions: &mut Vec<Action>,
    ) {
        let sms = self.ledger.sms();
        let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) else { return };
        launch.start(now);
        let blocks_per_sm = launch.spec.blocks_per_sm;
        let Some(queue) = launch.queue.filter(|_| !launch.is_out()) else { return };
        let wanted = launch.blocks().div_ceil(blocks_per_sm).min(launch.need(sms));
        let keeps_to = self.queues.range(queue);
        let range = if self.ledger.is_free() && !handover.is_empty() && keeps_to == SmRange::ALL {
            let lo = handover.lo().min(sms - wanted);
            SmRange::new(lo, lo + wanted)
        } else {
            // Its blocks are nowhere else.
            ledger::first(intersection(handover, keeps_to, sms), wanted, sms)
        };
        self.ledger.hand_over(LaunchId(key), range);
        launch.set_range(now, range, sms);
        let room = launch.room(ledger::count(range, sms), range.contains(sms - 1));
        if launch.blocks() > room {
            self.shrink(key, actions);
        }
        self.note(key, now, range, false);
        self.go_on_behind(queue);
    }
}
