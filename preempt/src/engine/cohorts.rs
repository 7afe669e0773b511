//! Cohorts: which blocks go to the device for the SMs that a launch has, and which are queued there ahead of time.

use std::time::Duration;

use preempt_device::abi::{COHORT_SLOTS, SmRange, StopLimit, departures};

use super::ledger::{self, intersection};
use super::program::following;
use super::shape::{Place, Shape, Takeover};
use super::{Action, Engine, Launch, Op, Phase};
use crate::vocabulary::{
    After, CohortOrder, LaunchId, OpKey, QueueIndex, QueueSet, Vicinity, queue_bit,
};

/// Where a cohort goes.
pub(super) enum CohortPlace {
    /// Into a free queue, with the blocks that an SM gets, the SMs that they may use, and the plain launch that leaves these.
    Free { on_sm: u32, keeps_to: SmRange, over: Option<OpKey> },
    /// Behind another launch, with the SMs that its blocks may use.
    Behind { after: After, keeps_to: SmRange },
    /// Into a free queue, behind a gate, with the plain launch that leaves SMs to it.
    Gated { over: Option<OpKey> },
}

impl Engine {
    /// Signals the cohorts of a launch, and those queued behind them, to leave the SMs that the launch has lost within `limit`.
    pub(super) fn shrink(
        &mut self,
        now: Duration,
        key: OpKey,
        limit: StopLimit,
        actions: &mut Vec<Action>,
    ) {
        let sms = self.ledger.sms();
        let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) else { return };
        if launch.spec.plain {
            // Its blocks look at no signal.
            return;
        }
        let mut signalled = false;
        for cohort in launch.cohorts.iter().flatten() {
            let queue = cohort.queue;
            let granted = self.queues.range_of(queue, key);
            let range = ledger::kept(granted, launch.range, sms);
            let loses = range != granted;
            // Those behind it may use more than its own word grants. Blocks that were given more time are told again.
            if range != self.queues.word(queue) || self.queues.is_slower(queue, limit) {
                let signal = self.queues.signal(queue, range, limit);
                actions.push(Action::Signal { queue, signal });
            }
            signalled |= loses;
        }
        if signalled {
            launch.count_yield(now);
        }
    }

    /// Tells blocks again that have more time than `limit` to leave an SM, which a launch is given now and their launch has
    /// lost before.
    pub(super) fn hasten(&mut self, sm: u32, limit: StopLimit, actions: &mut Vec<Action>) {
        for queue in 0..self.queues.count().total() {
            if self.queues.is_slower(queue, limit) && self.queues.has_lost(queue, sm) {
                let range = self.queues.range(queue);
                let signal = self.queues.signal(queue, range, limit);
                actions.push(Action::Signal { queue, signal });
            }
        }
    }

    /// Launches blocks for the SMs of a launch that have none yet, or have too few.
    pub(super) fn cover(&mut self, now: Duration, key: OpKey, actions: &mut Vec<Action>) {
        let sms = self.ledger.sms();
        let Some(Op { launch: Some(launch), .. }) = self.ops.get(key) else { return };
        let (range, is_thin) = (launch.range, launch.thin);
        let ledger = launch.books(&mut self.ledger, &mut self.guests);
        if ledger.uncovered(range) == 0 && !is_thin {
            return;
        }
        let has_taken = ledger.has_taken(range);
        let is_beside = self.is_beside_urgent(key);
        if !is_beside {
            self.refill_if_worth(now, key, actions);
        }
        let Some(Op { launch: Some(launch), .. }) = self.ops.get(key) else { return };
        let ledger = launch.books(&mut self.ledger, &mut self.guests);
        let uncovered = ledger.uncovered(range);
        if uncovered == 0 {
            return;
        }
        let (there, has_blocks) = (launch.blocks_that_stay(&self.queues), !launch.is_out());
        if launch.spec.plain && has_blocks || there >= launch.remaining() {
            // All its blocks are on the device, and the hardware finds room for them.
            ledger.cover(range);
            return;
        }
        if launch.early && has_blocks {
            // They were to fill what it was expected to get.
            ledger.cover(range);
            let room = launch.room(ledger::count(range, sms), range.contains(sms - 1));
            if launch.blocks() > room {
                self.shrink(now, key, StopLimit::SOONEST, actions);
            }
            return;
        }
        // Where it has blocks already, there is less room: it has shared these SMs until now.
        let room = launch.room(ledger::count(range, sms), range.contains(sms - 1));
        let room = room.saturating_sub(there);
        let room = room.min(launch.room(uncovered, ledger.is_last_uncovered(range)));
        if room == 0 {
            ledger.cover(range);
            return;
        }
        let mut cohorts = launch.cohorts.iter().flatten();
        let stays = cohorts.any(|cohort| self.queues.range(cohort.queue) != SmRange::EMPTY);
        // Without a free slot, or a queue below, the SMs stay uncovered until a cohort is out.
        let Some(slot) = launch.free_slot() else {
            if !self.merge_if_worth(now, key, uncovered, actions) {
                let launch = self.ops.get_mut(key).and_then(|op| op.launch.as_mut());
                launch.into_iter().for_each(|launch| launch.thin |= stays);
            }
            return;
        };
        // Where blocks of less urgent launches have yet to leave, confined ones would all leave before them.
        let is_beside = is_beside && !(has_taken && self.is_before_others(key));
        let has_either = launch.has_either_form();
        let (level, over) = self.level(key);
        let level = level.max(u32::from(has_taken));
        let highest = self.queues.count().plain_level();
        let is_plain = has_either && self.goes_by_order() && level <= highest;
        let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) else { return };
        if has_either {
            launch.set_plain(is_plain);
        }
        let highest = if launch.spec.plain { highest } else { self.queues.count().levels };
        let Some(queue) = self.queues.free(level.min(highest), highest) else {
            self.agenda.short_of_queues = true;
            return;
        };
        // Below that, the hardware makes no room for it.
        let over = over.filter(|_| self.queues.level(queue) >= level);
        let Some(Op { launch: Some(launch), .. }) = self.ops.get(key) else { return };
        let place = Place::Free {
            sms: uncovered,
            room,
            has_blocks,
            is_taken: has_taken,
            spills: launch.spills,
            strangers: self.strangers_on(range, key),
            is_beside,
        };
        let work = launch.work(there, sms, &self.costs);
        let (others, outside) =
            (|| self.ledger.has_others(range), || self.sms_outside(range, key, None));
        let on_sm = room.min(work.bare).div_ceil(uncovered);
        let Some(shape) = work.shape(place, others, outside) else { return };
        let Some(Op { launch: Some(launch), .. }) = self.ops.get(key) else { return };
        launch.books(&mut self.ledger, &mut self.guests).cover_by(range, Some(slot as u8));
        let keeps_to = if shape.keeps_to_own { range } else { SmRange::ALL };
        self.put(key, (slot, queue), shape, CohortPlace::Free { on_sm, keeps_to, over }, actions);
        if let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) {
            launch.start(now);
            // What it had before may have left for good.
            launch.thin = shape.is_thin || launch.thin && stays;
        }
        self.go_on_behind(queue);
    }

    /// Whether a launch of a higher priority has SMs beside this one, under a policy that goes by order. A policy may go by
    /// another order than that of priorities: then it is confined where it would not have to be, and filled up later.
    fn is_beside_urgent(&self, key: OpKey) -> bool {
        let Some(Op { effective, .. }) = self.ops.get(key) else { return false };
        let is_urgent = |(_, op, _): (QueueIndex, OpKey, usize)| {
            let other = self.ops.get(op).filter(|op| op.effective.priority > effective.priority);
            let launch = other.and_then(|op| op.launch.as_ref());
            launch.is_some_and(|launch| !launch.range.is_empty())
        };
        self.queues.heads().any(is_urgent) && self.goes_by_order()
    }

    /// Whether another launch that is not more urgent has blocks on the device.
    fn is_before_others(&self, key: OpKey) -> bool {
        let Some(Op { effective, .. }) = self.ops.get(key) else { return false };
        let is_after = |(_, op, _): (QueueIndex, OpKey, usize)| {
            let other = self.ops.get(op).filter(|_| op != key);
            other.is_some_and(|other| other.effective.priority <= effective.priority)
        };
        self.queues.heads().any(is_after)
    }

    /// Stops all blocks of a thin launch, so that as many come in their place as there is room for.
    ///
    /// How many are missing is not known. So the stop and the new launch cost at most a tenth of what is left, and of the time
    /// since the last time: more urgent launches that come and go could make it thin each time.
    fn refill_if_worth(&mut self, now: Duration, key: OpKey, actions: &mut Vec<Action>) {
        let sms = self.ledger.sms();
        let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) else { return };
        let cost = 10 * (launch.spec.overhead() + self.costs.gap());
        let is_long = || launch.time_left(now, sms).is_none_or(|left| left > cost);
        if !launch.thin || launch.is_out() || !is_long() {
            return;
        }
        let next = launch.refilled.map_or(now, |last| last + cost);
        if next > now {
            self.agenda.refills = Some(self.agenda.refills.map_or(next, |other| other.min(next)));
            return;
        }
        (launch.thin, launch.refilled) = (false, Some(now));
        let range = launch.range;
        launch.books(&mut self.ledger, &mut self.guests).uncover(range);
        self.flush(key, actions);
    }

    /// Stops the two cohorts of a launch that were launched for the fewest SMs: it has no free slot, so no blocks come for its
    /// SMs without any, until a cohort is out. One comes in the place of both, and for those.
    ///
    /// A launch that loses one SM after the other and has it again has a cohort more each time. That SMs are without blocks costs their
    /// time until the launch is over. The stop costs the two cohorts' SMs what a stop takes, and what is done again after it. `false` if
    /// it is not known which SMs the cohorts are for.
    pub(super) fn merge_if_worth(
        &mut self,
        now: Duration,
        key: OpKey,
        uncovered: u32,
        actions: &mut Vec<Action>,
    ) -> bool {
        let sms = self.ledger.sms();
        let Some(Op { launch: Some(launch), .. }) = self.ops.get(key) else { return true };
        let counts = launch.covered_by_slot(launch.books(&mut self.ledger, &mut self.guests));
        let mut known = Vec::with_capacity(COHORT_SLOTS);
        for (slot, cohort) in (0u8..).zip(&launch.cohorts) {
            let Some(queue) = cohort.as_ref().map(|cohort| cohort.queue) else { continue };
            let count = counts[usize::from(slot)];
            let range = self.queues.range(queue);
            if range == SmRange::EMPTY || count == 0 && range != SmRange::ALL {
                // It has lost all of its SMs, so a slot is free soon.
                return true;
            }
            if count > 0 && self.queues.behind_first(queue).next().is_none() {
                known.push((count, slot, queue));
            }
        }
        known.sort_unstable();
        let &[(one, ..), (other, ..), ..] = &known[..] else { return false };
        let stop = launch.spec.overhead() + self.costs.gap();
        let is_worth = |left| left * uncovered > stop * (one + other);
        if !launch.time_left(now, sms).is_none_or(is_worth) {
            return true;
        }
        for &(_, slot, queue) in &known[..2] {
            launch.books(&mut self.ledger, &mut self.guests).uncover_slot(launch.range, slot);
            let signal = self.queues.signal(queue, SmRange::EMPTY, StopLimit::SOONEST);
            actions.push(Action::Signal { queue, signal });
        }
        true
    }

    /// The level of the device's queues that the blocks of a launch need: above the plain grids that have lost SMs, since
    /// only the hardware takes these from them. With it, the last of these.
    pub(super) fn level(&self, key: OpKey) -> (u32, Option<OpKey>) {
        let sms = self.ledger.sms();
        let above = |(queue, op, _): (QueueIndex, OpKey, usize)| {
            let other = self.ops.get(op).filter(|_| op != key)?.launch.as_ref()?;
            (other.spec.plain && other.is_deprived(sms)).then(|| (self.queues.level(queue) + 1, op))
        };
        let most = self.queues.heads().filter_map(above).max_by_key(|&(level, _)| level);
        most.map_or((0, None), |(level, over)| (level, Some(over)))
    }

    /// The SMs outside of a launch's range that are free beside others' cohorts at the head of all queues but this one.
    fn sms_outside(&self, range: SmRange, key: OpKey, queue: Option<QueueIndex>) -> f64 {
        let sms = self.ledger.sms();
        let outside = f64::from(sms - ledger::count(range, sms));
        let mut free = outside;
        let is_other =
            |&(head, op, _): &(QueueIndex, OpKey, usize)| Some(head) != queue && op != key;
        for (head, op, slot) in self.queues.heads().filter(is_other) {
            let Some(Op { launch: Some(other), .. }) = self.ops.get(op) else { continue };
            let Some(cohort) = &other.cohorts[slot] else { continue };
            let blocks = match self.queues.range(head) {
                SmRange::EMPTY => f64::from(cohort.blocks),
                // The hardware has spread them over all SMs.
                SmRange::ALL => f64::from(cohort.blocks) * outside / f64::from(sms),
                // The spare blocks have left.
                part => f64::from(cohort.blocks.min(other.room(ledger::count(part, sms), false))),
            };
            free -= blocks / f64::from(other.spec.blocks_per_sm);
        }
        free.max(0.0)
    }

    /// The blocks of other streams' launches that may be on these SMs, because no word keeps them to others: the hardware
    /// spreads them over all SMs. Those of its own stream have left when it begins.
    fn strangers_on(&self, range: SmRange, key: OpKey) -> u32 {
        let sms = self.ledger.sms();
        let stream = self.ops.get(key).map(|op| op.stream);
        let there = |&(head, op, _): &(QueueIndex, OpKey, usize)| {
            self.ops.get(op).map(|op| op.stream) != stream
                && !intersection(self.queues.range(head), range, sms).is_empty()
        };
        let blocks = |(_, op, slot): (QueueIndex, OpKey, usize)| {
            self.ops.get(op)?.launch.as_ref()?.cohorts[slot].as_ref().map(|cohort| cohort.blocks)
        };
        let blocks = self.queues.heads().filter(there).filter_map(blocks);
        blocks.fold(0, u32::saturating_add)
    }

    /// The queues whose blocks those of a launch may meet on an SM, if its word grants these SMs: of launches beside it, and of
    /// those that have lost its SMs and have time to leave. An SM of the latter takes blocks while others leave, if both
    /// kernels divide its memory alike, and none before the last one has left otherwise. That takes as long as a block-task.
    /// Blocks without such time are out so soon that it costs less than cache.
    fn meets(&self, key: OpKey, keeps_to: SmRange) -> QueueSet {
        let Some(Op { launch: Some(launch), stream, .. }) = self.ops.get(key) else { return 0 };
        if launch.shares || self.launches.known <= 1 {
            return 0;
        }
        // What it has, or will take over.
        let range = if launch.range.is_empty() { launch.handover } else { launch.range };
        let (sms, has_others) = (self.ledger.sms(), self.ledger.has_others(range));
        let may_meet = |&(head, op, _): &(QueueIndex, OpKey, usize)| {
            // Those ahead of it in its stream have left when it begins.
            let is_other = self.ops.get(op).is_some_and(|op| op.stream != *stream);
            let granted = self.queues.range(head);
            let has_time =
                granted == SmRange::EMPTY && self.queues.is_slower(head, StopLimit::SOONEST);
            let has_strays = !intersection(granted, range, sms).is_empty();
            is_other && (has_time || has_others && (keeps_to == SmRange::ALL || has_strays))
        };
        let others = self.queues.heads().filter(may_meet);
        others.fold(0, |set, (head, ..)| set | queue_bit(head))
    }

    /// What a cohort of so many blocks is to an SM, and whose blocks may be there.
    fn vicinity(
        &self,
        key: OpKey,
        (queue, blocks): (QueueIndex, u32),
        place: &CohortPlace,
        keeps_to: SmRange,
    ) -> Option<Vicinity> {
        let Op { launch: Some(launch), stream, .. } = self.ops.get(key)? else { return None };
        let on_each = |range| blocks.div_ceil(ledger::count(range, self.ledger.sms()).max(1));
        let (on_sm, meets) = match *place {
            CohortPlace::Free { on_sm, .. } => (on_sm, self.meets(key, keeps_to)),
            CohortPlace::Behind { .. } => (on_each(launch.handover), self.meets(key, keeps_to)),
            // It begins at any time, beside others than now.
            CohortPlace::Gated { .. } => (on_each(launch.handover), 0),
        };
        let is_other = |&(_, op, _): &(QueueIndex, OpKey, usize)| {
            self.ops.get(op).is_some_and(|op| op.stream != *stream)
        };
        let others = self.queues.heads().filter(is_other);
        let others = others.fold(0, |set, (head, ..)| set | queue_bit(head));
        let is_behind = !self.queues.is_free(queue);
        Some(Vicinity { on_sm, meets, others, is_behind, may_ask: !launch.shares })
    }

    /// Puts a cohort into a queue.
    pub(super) fn put(
        &mut self,
        key: OpKey,
        (slot, queue): (usize, QueueIndex),
        Shape { blocks, hands, .. }: Shape,
        place: CohortPlace,
        actions: &mut Vec<Action>,
    ) {
        let sms = self.ledger.sms();
        let (after, over, keeps_to) = match place {
            CohortPlace::Free { keeps_to, over, .. } => (None, over, keeps_to),
            CohortPlace::Behind { after, keeps_to } => (Some(after), None, keeps_to),
            CohortPlace::Gated { over } => (None, over, SmRange::ALL),
        };
        let gated = matches!(place, CohortPlace::Gated { .. });
        let vicinity = self.vicinity(key, (queue, blocks), &place, keeps_to);
        let Some(vicinity) = vicinity else { return };
        let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) else { return };
        let control = *launch.control.get_or_insert_with(|| self.controls.take());
        let is_first = launch.handed.is_none() && hands > 0;
        let handed = *launch.handed.get_or_insert(hands);
        let task = launch.spec.block_task(sms).filter(|_| !launch.spec.plain);
        let tells_progress = task.is_some_and(|task| self.costs.is_worth_a_look(task));
        launch.cohort_in(slot, queue, blocks, keeps_to);
        if tells_progress {
            launch.tell_progress(slot);
        }
        if after.is_some() {
            launch.put_behind(slot);
        }
        if gated {
            launch.put_gate(slot);
            self.queues.gate(queue);
        }
        actions.push(Action::Launch(CohortOrder {
            op: key,
            queue,
            control,
            slot: slot as u8,
            ticket: self.controls.ticket(control.control, slot),
            left: self.controls.left(control.control, slot),
            signal: self.queues.enter(queue, (key, slot), keeps_to),
            plain: launch.spec.plain,
            blocks,
            workers: sms.saturating_mul(launch.per_sm()),
            handed,
            is_first,
            after,
            gated,
            over,
            tells_progress,
            vicinity,
        }));
    }

    /// Enters a queue in the agenda, to queue more launches there when there is time.
    pub(super) fn go_on_behind(&mut self, queue: QueueIndex) {
        if !self.agenda.behind.contains(&queue) {
            self.agenda.behind.push_back(queue);
        }
    }

    /// Whether there may be a launch to queue behind another one.
    pub fn may_go_ahead(&self) -> bool {
        !self.agenda.behind.is_empty() || self.agenda.may_arm
    }

    /// Queues one launch behind another one, if there is one to queue, and those that the device takes together with it. The
    /// caller first does what else there is to do, because each call takes the driver microseconds in which no urgent
    /// launch gets through.
    pub fn go_ahead(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if !self.may_go_ahead() {
            return;
        }
        let told = actions.len();
        let has_armed = self.agenda.may_arm && self.arm_one(now, actions);
        while !has_armed && let Some(queue) = self.agenda.behind.pop_front() {
            let together = self.may_queue_ahead(queue);
            if together > 0 && self.queue_behind(queue, actions) {
                // If one of them cannot be queued now, the device takes those before it one by one.
                let _ = (1..together).all(|_| self.queue_behind(queue, actions));
                self.agenda.behind.push_back(queue);
                break;
            }
        }
        if let Some(recorder) = &mut self.observers.recorder {
            recorder.went_ahead(now, &actions[told..]);
        }
    }

    /// How many launches to queue behind the last one in a queue; 0 if the device has enough there.
    fn may_queue_ahead(&self, queue: QueueIndex) -> u32 {
        if self.is_draining() || self.is_enough_ahead(queue) {
            return 0;
        }
        let next = self.queues.tail(queue).and_then(|(tail, _)| following(&self.ops, tail));
        let next = next.filter(|&next| !self.is_suspended(next));
        let next = next.and_then(|next| self.ops.get(next)?.launch.as_ref());
        next.map_or(0, |next| next.together)
    }

    /// Queues a launch behind the last one in a queue, if it waits only for launches that are ahead of it there. The
    /// device starts it when its predecessor is done, and lets it leave if that has left without being done.
    fn queue_behind(&mut self, queue: QueueIndex, actions: &mut Vec<Action>) -> bool {
        let sms = self.ledger.sms();
        let Some((tail, slot)) = self.queues.tail(queue) else { return false };
        let Some(Op { launch: Some(last), phase, verdict: None, .. }) = self.ops.get(tail) else {
            return false;
        };
        let Some(next) = following(&self.ops, tail) else { return false };
        let handover = match phase {
            Phase::Blocked => last.handover,
            Phase::Active => last.range,
            Phase::Finished => return false,
        };
        let granted = self.queues.word(queue);
        let range = intersection(handover, granted, sms);
        let (Some(used), Some(cohort)) = (last.control, &last.cohorts[slot]) else { return false };
        let (plain, shares) = (last.spec.plain, last.shares);
        if plain && !self.may_queue_plain(next, queue) {
            return false;
        }
        let follows = self.ops.get(next).and_then(|op| op.launch.as_ref());
        let has_either = follows.is_some_and(Launch::has_either_form) && self.goes_by_order();
        // Before a launch of the other form there is a gap, in which the host launches it. So a launch that could be plain
        // follows a preemptible one in that one's form. The second such launch in a row does not, because its own form
        // costs less from then on.
        let last_could_be_plain = last.spec.hardware_stop.is_some();
        let before = self.controls.left(used.control, slot);
        let after = After {
            control: used.control,
            slot: slot as u8,
            // The word if this cohort does all that is left to do; it does not count what another cohort does at the
            // same time.
            left: before.wrapping_add(departures(cohort.blocks, last.remaining())),
        };
        if self.would_lose(next) {
            return false;
        }
        let Some(Op {
            launch: Some(launch),
            phase: Phase::Blocked,
            verdict: None,
            foreign_blockers: 0,
            ..
        }) = self.ops.get(next)
        else {
            return false;
        };
        // A plain launch writes no word when it is done, and looks at none. It can only follow another plain launch,
        // which is done when its queue comes to the next.
        let has_form = match has_either {
            true => plain || !last_could_be_plain,
            false => launch.spec.plain == plain,
        };
        if !has_form {
            return false;
        }
        // A launch that was queued before may be done, and not reported.
        if range.is_empty() || !launch.is_out() || launch.remaining() == 0 {
            return false;
        }
        if launch.shares != shares {
            // It will take over what the one before it has.
            let launch = self.ops.get_mut(next).and_then(|op| op.launch.as_mut());
            launch.into_iter().for_each(|launch| launch.shares = shares);
        }
        let Some(launch) = self.ops.get(next).and_then(|op| op.launch.as_ref()) else {
            return false;
        };
        // Without other launches it can have more than its predecessor.
        let most = if self.launches.known <= 1 { sms } else { ledger::count(range, sms) };
        let wanted = launch.need(sms).min(most);
        let is_part = granted != SmRange::ALL;
        // Each call of this holds up what is more urgent.
        let has_strangers = !is_part && self.launches.known > 1;
        let place = Place::Behind {
            sms: ledger::count(range, sms),
            own: launch.room(ledger::count(range, sms), false),
            room: launch.room(wanted, range.contains(sms - 1)),
            is_part,
            strangers: if has_strangers { self.strangers_on(range, next) } else { 0 },
        };
        let work = launch.work(0, sms, &self.costs);
        let others = || self.ledger.has_others(range);
        let confined_to = if is_part { granted } else { range };
        let outside = || self.sms_outside(confined_to, next, Some(queue));
        let Some(shape) = work.shape(place, others, outside) else { return false };
        let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(next) else { return false };
        if has_either {
            launch.set_plain(plain);
        }
        // All of it, because the next launch may fill more than this one.
        launch.handover = range;
        let keeps_to = if shape.keeps_to_own { confined_to } else { granted };
        // What gates tell is to be newer than its word.
        self.agenda.foresees |= keeps_to != granted;
        self.put(next, (0, queue), shape, CohortPlace::Behind { after, keeps_to }, actions);
        true
    }

    /// Whether the device has enough to do behind the running launch of a queue.
    fn is_enough_ahead(&self, queue: QueueIndex) -> bool {
        let work = |op| {
            let spec = &self.ops.get(op)?.launch.as_ref()?.spec;
            // Of unknown duration, a launch that can be told to leave may be short; of those that cannot, there is one.
            spec.predicted.or(spec.plain.then_some(self.costs.absence))
        };
        let work = self.queues.behind_first(queue).filter_map(work).sum();
        self.costs.is_enough_ahead(work, self.queues.waiting(queue) as u32)
    }

    /// Whether a launch may become a plain grid behind those in a queue, from where no signal takes it back.
    fn may_queue_plain(&self, next: OpKey, queue: QueueIndex) -> bool {
        let predicted = |op| self.ops.get(op)?.launch.as_ref()?.spec.predicted;
        let is_short = predicted(next).is_none_or(|predicted| !self.costs.can_wait(predicted));
        let Some(Op { effective: urgency, .. }) = self.ops.get(next) else { return false };
        let level = self.queues.level(queue);
        // It would stand behind their blocks, which wait for room on the same level or above.
        let is_in_its_way = |(other, op, _): (QueueIndex, OpKey, usize)| {
            let of =
                self.ops.get(op).filter(|_| other != queue && self.queues.level(other) >= level);
            of.is_some_and(|of| {
                let is_plain = of.launch.as_ref().is_some_and(|launch| launch.spec.plain);
                is_plain && of.effective.priority < urgency.priority
            })
        };
        is_short && !self.queues.heads().any(is_in_its_way)
    }

    /// Hands the SMs of its predecessor to a launch whose turn has come, if a cohort of it was queued behind that.
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
        let Some(queue) = launch.queue.filter(|_| !launch.is_out()) else { return };
        let keeps_to = self.queues.range_of(queue, key);
        let Takeover { range, fits } = launch.takeover(
            handover,
            keeps_to,
            self.ledger.is_free() && self.guests.is_free(),
            sms,
        );
        launch.books(&mut self.ledger, &mut self.guests).hand_over(LaunchId(key), range);
        launch.set_range(now, range, sms);
        // Its word excludes its spare blocks already.
        if !fits && keeps_to != range {
            self.shrink(now, key, StopLimit::SOONEST, actions);
        }
        self.note(key, now, range, false);
        self.go_on_behind(queue);
    }
}
