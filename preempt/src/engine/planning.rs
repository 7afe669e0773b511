//! From the policy's plan to signals and cohorts.

use std::time::Duration;

use preempt_device::abi::{SmRange, departures};
use slotmap::SlotMap;

use super::lanes::LaneIndex;
use super::launch::{Launch, State};
use super::ledger::{self, Ledger, intersection};
use super::{Action, After, CohortOrder, Engine, LaunchId, Op, OpKey, Phase, Refusal, arrival};
use crate::error::caught;
use crate::policy::{Arrival, DeviceView, Fifo, Policy, Priority};

/// How many launches are queued behind a running one while others want SMs: each of them has to leave the lane, and to be
/// launched again, if these are taken away.
const AHEAD_OF_OTHERS: usize = 8;

/// A launch whose rest takes less than so many times as long as one takes to stop keeps the SMs that the one behind
/// it in its stream will fill: whoever got them meanwhile would have to leave at once.
const WORTH_A_YIELD: u32 = 3;

/// How far that looks.
const LOOK_AHEAD: usize = 4;

/// Where a cohort goes.
enum Place {
    /// Into a free lane, with the SMs that its blocks may use.
    Free { keeps_to: SmRange },
    /// Behind another launch, with what the lane may use.
    Behind(After),
}

/// A policy that wants to be asked again at once, again and again, would leave no time for anything else.
const SHORTEST_WAIT: Duration = Duration::from_micros(10);

impl Engine {
    /// Whether all launches that have SMs, or came since the policy was asked, are in this stream or less urgent: so
    /// that no policy that goes by priority puts one of them first, whatever comes behind this one in its stream.
    pub fn leads(&self, stream: u32, priority: Priority) -> bool {
        let owners = self.ledger.owners().chunk_by(|a, b| a == b).filter_map(|run| run[0]);
        let mut others = owners.map(|owner| owner.0).chain(self.newcomers.iter().copied());
        others.all(|other| {
            let other = self.ops.get(other);
            other.is_none_or(|other| other.stream == stream || other.effective.priority < priority)
        })
    }

    /// Whether [`settle`](Engine::settle) would ask the policy.
    pub fn is_unsettled(&self, now: Duration) -> bool {
        self.unsettled || self.wake.is_some_and(|wake| wake <= now)
    }

    /// Asks the policy who runs where, if something changed, and acts on it.
    pub fn settle(&mut self, now: Duration, actions: &mut Vec<Action>) {
        self.unsettled = self.is_unsettled(now);
        let told = actions.len();
        let is_asked = self.unsettled;
        self.newcomers.clear();
        loop {
            self.advance_opaque(now, actions);
            if !std::mem::take(&mut self.unsettled) {
                break;
            }
            if self.is_draining() {
                self.drain(now, actions);
                continue;
            }
            if let Err(reason) = self.make_plan(now) {
                self.replace_policy(now, reason);
                continue;
            }
            self.follow_plan(now, actions);
            self.wake = None;
            let mut wake = None;
            self.ask(now, |policy| wake = policy.wake());
            if self.known > 0 {
                let wakes = [wake, self.opaque_wake(now)].into_iter().flatten();
                self.wake = wakes.map(|wake| wake.max(now + SHORTEST_WAIT)).min();
            }
        }
        if let Some(recorder) = &mut self.recorder
            && (is_asked || actions.len() > told)
        {
            recorder.settled(now, &actions[told..]);
        }
    }

    /// When [`settle`](Engine::settle) has to be called again, whatever else happens.
    pub fn wake(&self) -> Option<Duration> {
        self.wake
    }

    /// Whether the policy takes a launch.
    pub(super) fn admits(&mut self, now: Duration, arrival: &Arrival) -> bool {
        let view = View { now, ops: &self.ops, ledger: &self.ledger };
        let policy = &mut self.policy;
        match caught(|| policy.admits(now, arrival, &view)) {
            Ok(admits) => admits,
            Err(message) => {
                self.replace_policy(now, format!("it panicked: {message}"));
                true
            }
        }
    }

    /// Tells the cohorts of a launch which SMs are left to them, and what is queued behind them.
    pub(super) fn shrink(&mut self, key: OpKey, actions: &mut Vec<Action>) {
        let sms = self.ledger.sms();
        let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) else { return };
        if launch.spec.native {
            // Its blocks leave when they are done, whatever they are told.
            return;
        }
        let mut signalled = false;
        for cohort in launch.cohorts.iter().flatten() {
            let lane = cohort.lane;
            let range = intersection(self.lanes.range(lane), launch.range, sms);
            if range != self.lanes.range(lane) {
                let signal = self.lanes.signal(lane, range);
                actions.push(Action::Signal { lane, signal });
                signalled = true;
            }
        }
        if signalled {
            launch.count_yield();
        }
    }

    /// Launches blocks for the SMs of a launch that have none yet.
    fn cover(&mut self, now: Duration, key: OpKey, actions: &mut Vec<Action>) {
        let sms = self.ledger.sms();
        let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) else { return };
        let range = launch.range;
        let uncovered = self.ledger.uncovered(range);
        if uncovered == 0 {
            return;
        }
        let there = launch.blocks_that_stay(&self.lanes);
        if launch.spec.native && !launch.is_out() || there >= launch.remaining() {
            // All its blocks are out, and find room by themselves.
            self.ledger.cover(range);
            return;
        }
        // Without a free slot or lane the SMs stay uncovered until a cohort is out.
        let Some(slot) = launch.free_slot() else { return };
        let has_taken = self.ledger.has_taken(range);
        let Some(lane) = self.lanes.free(has_taken) else {
            self.short_of_lanes = true;
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
        self.put(key, (slot, lane), blocks, Place::Free { keeps_to }, actions);
        if let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) {
            launch.start(now);
        }
        self.go_on_behind(lane);
    }

    /// How many SMs are free outside of a range, beside the cohorts that are at the head of other lanes than this one.
    fn sms_outside(&self, range: SmRange, lane: Option<LaneIndex>) -> f64 {
        let sms = self.ledger.sms();
        let mut free = f64::from(sms - ledger::count(range, sms));
        for (head, op, slot) in self.lanes.heads().filter(|&(head, ..)| Some(head) != lane) {
            let Some(Op { launch: Some(other), .. }) = self.ops.get(op) else { continue };
            let Some(cohort) = &other.cohorts[slot] else { continue };
            // Those to spare have left.
            let most = match self.lanes.range(head) {
                SmRange::ALL | SmRange::EMPTY => cohort.blocks,
                part => other.room(ledger::count(part, sms), false),
            };
            free -= f64::from(cohort.blocks.min(most)) / f64::from(other.spec.blocks_per_sm);
        }
        free.max(0.0)
    }

    /// Puts a cohort into a lane.
    fn put(
        &mut self,
        key: OpKey,
        (slot, lane): (usize, LaneIndex),
        blocks: u32,
        place: Place,
        actions: &mut Vec<Action>,
    ) {
        let sms = self.ledger.sms();
        let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) else { return };
        let control = *launch.control.get_or_insert_with(|| self.controls.take());
        let (after, keeps_to, hands) = match place {
            Place::Free { keeps_to: SmRange::ALL } => (None, SmRange::ALL, blocks),
            // Blocks behind another launch, or outside of their range, may have to leave at once, and would leave those
            // tasks behind.
            Place::Free { keeps_to } => (None, keeps_to, 0),
            Place::Behind(after) => (Some(after), self.lanes.range(lane), 0),
        };
        let is_first = launch.handed.is_none() && hands > 0;
        let handed = *launch.handed.get_or_insert(hands);
        launch.cohort_in(slot, lane, blocks, keeps_to);
        actions.push(Action::Launch(CohortOrder {
            op: key,
            lane,
            control,
            slot: slot as u8,
            ticket: self.controls.ticket(control.control, slot),
            left: self.controls.left(control.control, slot),
            signal: self.lanes.enter(lane, key, slot, keeps_to),
            native: launch.spec.native,
            blocks,
            workers: sms.saturating_mul(launch.spec.blocks_per_sm),
            handed,
            is_first,
            after,
        }));
    }

    /// Has more launches queued in a lane, when there is time.
    pub(super) fn go_on_behind(&mut self, lane: LaneIndex) {
        if !self.behind.contains(&lane) {
            self.behind.push_back(lane);
        }
    }

    /// Whether there may be a launch to queue behind another one.
    pub fn may_go_ahead(&self) -> bool {
        !self.behind.is_empty()
    }

    /// Queues one launch behind another one, if there is any to queue. Each takes the driver microseconds, in which
    /// nobody else gets through: so whoever calls this sees first what else there is to do.
    pub fn go_ahead(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if self.behind.is_empty() {
            return;
        }
        let told = actions.len();
        while let Some(lane) = self.behind.pop_front() {
            if self.queue_ahead(lane, actions) {
                self.behind.push_back(lane);
                break;
            }
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.went_ahead(now, &actions[told..]);
        }
    }

    /// Queues a launch behind the last one in a lane, if it waits for nothing but launches that are ahead of it in
    /// that lane. The device starts it when the one before it is done, or lets it leave if that one has left without
    /// being done.
    fn queue_ahead(&mut self, lane: LaneIndex, actions: &mut Vec<Action>) -> bool {
        let is_enough = self.known > 1 && self.lanes.waiting(lane) >= AHEAD_OF_OTHERS;
        if is_enough || self.is_draining() {
            return false;
        }
        let sms = self.ledger.sms();
        let Some((tail, slot)) = self.lanes.tail(lane) else { return false };
        let Some(Op { launch: Some(last), next: Some(next), phase, verdict: None, .. }) =
            self.ops.get(tail)
        else {
            return false;
        };
        let (next, bequest) = match phase {
            Phase::Blocked => (*next, last.bequest),
            Phase::Active => (*next, last.range),
            Phase::Finished => return false,
        };
        let range = intersection(bequest, self.lanes.range(lane), sms);
        let (Some(used), Some(cohort)) = (last.control, &last.cohorts[slot]) else { return false };
        let native = last.spec.native;
        let before = self.controls.left(used.control, slot);
        let after = After {
            control: used.control,
            slot: slot as u8,
            // If it does all that is left to do; what another cohort does at the same time, this
            // word does not say.
            left: before.wrapping_add(departures(cohort.blocks, last.remaining())),
        };
        // If nobody else wants SMs, it can have more than the one before.
        let room = if self.known <= 1 { sms } else { ledger::count(range, sms) };
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
        // Of the blocks of a lane that keeps to a part of the device some come to lie outside.
        let keeps_to = self.lanes.range(lane);
        if keeps_to != SmRange::ALL && !launch.crowds(sms) {
            return false;
        }
        // A long launch of few blocks loses more where these lie among the blocks of others than by waiting for its turn.
        let has_few = launch.has_long_few(launch.room(ledger::count(range, sms), false));
        if has_few && keeps_to == SmRange::ALL && self.ledger.has_others(range) {
            return false;
        }
        // A native launch is in nobody's word, and looks at none: it can only follow another one, which
        // is done when its lane comes to the next.
        if launch.spec.native != native || self.order.lost(uses).is_some() {
            return false;
        }
        // One that was queued before may be done, and not reported.
        if range.is_empty() || !launch.is_out() || launch.remaining() == 0 {
            return false;
        }
        let wanted = launch.need(sms).min(room);
        // All of it: the one behind this one may fill more than this one does.
        launch.bequest = range;
        let room = launch.room(wanted, range.contains(sms - 1));
        let (left, each) = (launch.remaining(), f64::from(launch.spec.blocks_per_sm));
        let spare = match keeps_to {
            SmRange::ALL => 0,
            _ => (self.sms_outside(keeps_to, Some(lane)) * each) as u32,
        };
        self.put(next, (0, lane), (room + spare).min(left), Place::Behind(after), actions);
        true
    }

    /// Lets a launch whose turn has come go on with the SMs of the one before it, if a cohort of it
    /// was queued behind that one.
    pub(super) fn take_over(
        &mut self,
        now: Duration,
        key: OpKey,
        bequest: SmRange,
        actions: &mut Vec<Action>,
    ) {
        let sms = self.ledger.sms();
        let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) else { return };
        launch.start(now);
        let blocks_per_sm = launch.spec.blocks_per_sm;
        let Some(lane) = launch.lane.filter(|_| !launch.is_out()) else { return };
        let wanted = launch.blocks().div_ceil(blocks_per_sm).min(launch.need(sms));
        let keeps_to = self.lanes.range(lane);
        let range = if self.ledger.is_free() && !bequest.is_empty() && keeps_to == SmRange::ALL {
            let lo = bequest.lo().min(sms - wanted);
            SmRange::new(lo, lo + wanted)
        } else {
            // Its blocks are nowhere else.
            ledger::first(intersection(bequest, keeps_to, sms), wanted, sms)
        };
        self.ledger.inherit(LaunchId(key), range);
        launch.set_range(now, range, sms);
        let room = launch.room(ledger::count(range, sms), range.contains(sms - 1));
        if launch.blocks() > room {
            self.shrink(key, actions);
        }
        self.note(key, now, range, false);
        self.go_on_behind(lane);
    }

    /// Asks the policy for a plan, and refuses one that cannot be.
    fn make_plan(&mut self, now: Duration) -> Result<(), String> {
        let mut plan = std::mem::take(&mut self.plan);
        plan.grants.clear();
        let view = View { now, ops: &self.ops, ledger: &self.ledger };
        let policy = &mut self.policy;
        let answer = caught(|| policy.assign(now, &view, &mut plan));
        self.plan = plan;
        answer.map_err(|message| format!("it panicked: {message}"))?;

        self.ledger.begin_plan();
        let sms = self.ledger.sms();
        let mut granted = 0;
        self.plans += 1;
        for &(id, range) in &self.plan.grants {
            let launch = self.ops.get_mut(id.0).and_then(|op| op.launch.as_mut());
            let Some(launch) = launch.filter(|launch| launch.arrival.is_some()) else {
                return Err(format!("it granted SMs to {id:?}, which is not waiting or running"));
            };
            if std::mem::replace(&mut launch.planned, self.plans) == self.plans {
                return Err(format!("it granted SMs to {id:?} twice"));
            }
            if range.hi() > sms || range.lo() >= sms && !range.is_empty() {
                return Err(format!("it granted SMs {range:?} of a device that has {sms}"));
            }
            if let Err(sm) = self.ledger.plan(range) {
                return Err(format!("it granted SM {sm} twice"));
            }
            granted += usize::from(!range.is_empty());
        }
        if granted == 0 && self.known > 0 {
            return Err(format!("it granted no SM to any of {} launches", self.known));
        }
        Ok(())
    }

    /// Makes the plan true: signals those that lose SMs, then launches blocks on the gained ones.
    pub(super) fn follow_plan(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let sms = self.ledger.sms();
        if let Some(recorder) = &mut self.recorder {
            recorder.planned(&self.plan);
        }
        let (mut lost, mut losers) =
            (std::mem::take(&mut self.lost), std::mem::take(&mut self.losers));
        let plan = std::mem::take(&mut self.plan);
        lost.clear();
        for &(id, range) in &plan.grants {
            // Most keep what they have.
            if self
                .ops
                .get(id.0)
                .and_then(|op| op.launch.as_ref())
                .is_some_and(|launch| launch.range != range)
            {
                self.ledger.commit(id, range, |sm, loser| lost.push((sm, loser.0)));
            }
        }
        self.ledger.commit_rest(|sm, loser| lost.push((sm, loser.0)));
        // In the order of SMs.
        lost.sort_unstable();
        losers.clear();
        losers.extend(lost.iter().map(|&(_, loser)| loser));
        losers.dedup();
        for &loser in &losers {
            if let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(loser) {
                launch.set_range(now, SmRange::EMPTY, sms);
            }
        }
        for &(id, range) in &plan.grants {
            if let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(id.0)
                && launch.range != range
            {
                launch.set_range(now, range, sms);
                self.note(id.0, now, range, false);
            }
        }
        for &op in &losers {
            let launch = self.ops.get(op).and_then(|op| op.launch.as_ref());
            if launch.is_some_and(|launch| launch.range.is_empty()) {
                self.note(op, now, SmRange::EMPTY, false);
            }
        }
        // Ownership passes at the signal: it comes before the launch of whoever gained the SMs.
        for &loser in &losers {
            self.shrink(loser, actions);
        }
        for &(id, _) in &plan.grants {
            self.cover(now, id.0, actions);
        }
        self.plan = plan;
        (self.lost, self.losers) = (lost, losers);
        // Whoever has SMs is in the plan; to look at all that wait would take longer than the rest.
        debug_assert!(
            self.short_of_lanes
                || self
                    .plan
                    .grants
                    .iter()
                    .filter_map(|(id, _)| self.ops.get(id.0)?.launch.as_ref())
                    .all(|launch| launch.state() != State::ToRun),
            "a launch has SMs and no blocks"
        );
    }

    /// Calls a hook of the policy.
    pub(super) fn ask(&mut self, now: Duration, hook: impl FnOnce(&mut dyn Policy)) {
        let policy = &mut *self.policy;
        if let Err(message) = caught(|| hook(policy)) {
            self.replace_policy(now, format!("it panicked: {message}"));
        }
    }

    /// Goes on first come, first served, instead of a policy that answered nonsense.
    fn replace_policy(&mut self, now: Duration, reason: String) {
        // A policy that panics when it is dropped must not take the engine with it.
        let refused = std::mem::replace(&mut self.policy, Box::new(Fifo::new()));
        let _ = caught(|| drop(refused));
        let name = std::mem::replace(&mut self.policy_name, "fifo".into());
        assert!(self.refusal.is_none(), "the last resort was refused: {reason}");
        self.refusal = Some(Refusal { policy: name, reason });
        let mut known: Vec<(u64, OpKey)> = self
            .ops
            .iter()
            .filter_map(|(key, op)| Some((op.launch.as_ref()?.arrival?, key)))
            .collect();
        known.sort_unstable();
        for (_, key) in known {
            if let Some(arrival) = arrival(key, &self.ops[key]) {
                self.policy.arrived(now, arrival);
            }
        }
        self.unsettled = true;
    }
}

/// What the policy sees of the engine.
struct View<'a> {
    now: Duration,
    ops: &'a SlotMap<OpKey, Op>,
    ledger: &'a Ledger,
}

impl View<'_> {
    fn launch(&self, id: LaunchId) -> Option<&Launch> {
        self.ops.get(id.0)?.launch.as_ref()
    }

    /// The launches behind one in its stream, as long as they wait for nothing else.
    fn behind(&self, id: LaunchId) -> impl Iterator<Item = &Launch> {
        let next = |op: &&Op| self.ops.get(op.next?).filter(|next| next.foreign_blockers == 0);
        std::iter::successors(self.ops.get(id.0), next).skip(1).map_while(|op| op.launch.as_ref())
    }

    /// The SMs that launches behind this one will use, as long as all before them are short.
    fn soon(&self, id: LaunchId, launch: &Launch, uses: impl Fn(&Launch, u32) -> u32) -> u32 {
        let is_short = |launch: &Launch, left: Option<Duration>| {
            left.is_some_and(|left| left < WORTH_A_YIELD * launch.spec.stop())
        };
        // Mostly nobody is, and to see that costs less than to find out how long this one takes.
        if self.behind(id).next().is_none()
            || !is_short(launch, launch.time_left(self.now, self.sms()))
        {
            return 0;
        }
        let mut most = 0;
        for next in self.behind(id).take(LOOK_AHEAD) {
            most = most.max(uses(next, self.sms()));
            if !is_short(next, next.spec.predicted) {
                break;
            }
        }
        most
    }
}

impl DeviceView for View<'_> {
    fn sms(&self) -> u32 {
        self.ledger.sms()
    }

    fn need(&self, launch: LaunchId) -> u32 {
        let need = Launch::need;
        self.launch(launch).map_or(0, |of| need(of, self.sms()).max(self.soon(launch, of, need)))
    }

    fn spread(&self, launch: LaunchId) -> u32 {
        let spread = Launch::spread;
        let of = self.launch(launch);
        of.map_or(0, |of| spread(of, self.sms()).max(self.soon(launch, of, spread)))
    }

    fn range(&self, launch: LaunchId) -> SmRange {
        self.launch(launch).map_or(SmRange::EMPTY, |launch| launch.range)
    }

    fn owners(&self) -> &[Option<LaunchId>] {
        self.ledger.owners()
    }

    fn remaining(&self, launch: LaunchId) -> Option<Duration> {
        self.launch(launch)?.time_left(self.now, self.sms())
    }

    fn backlog(&self, launch: LaunchId) -> Duration {
        self.behind(launch).filter_map(|launch| launch.spec.predicted).sum()
    }

    fn yield_overhead(&self, launch: LaunchId) -> Duration {
        self.launch(launch).map_or(Duration::ZERO, |launch| launch.spec.yield_overhead)
    }

    fn dropped(&self, launch: LaunchId) -> Duration {
        self.launch(launch).map_or(Duration::ZERO, |launch| launch.spec.dropped)
    }

    fn sm_time(&self, launch: LaunchId) -> Duration {
        self.launch(launch).map_or(Duration::ZERO, |launch| launch.sm_time(self.now, self.sms()))
    }
}
