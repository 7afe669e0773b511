//! The policy: what it sees, its plan, and how the plan is followed.

use std::time::Duration;

use preempt_device::abi::{SmRange, StopLimit};
use slotmap::SlotMap;

use super::launch::{Launch, State};
use super::ledger::{Ledger, count, intersection};
use super::program::following;
use super::progress::{Look, Looks};
use super::{Action, Engine, Op, Refusal, arrival};
use crate::error::caught;
use crate::policy::{Arrival, DeviceView, Fifo, Plan, Policy, Priority, is_watched};
use crate::vocabulary::{Costs, LaunchId, OpKey};

/// How long a policy may leave all SMs free while launches wait: a thousand times what it may save, and no user takes it for a
/// hang.
const LONGEST_NOTHING: Duration = Duration::from_secs(1);

/// The policy, and what it decided last.
pub(super) struct Decider {
    policy: Box<dyn Policy>,
    name: String,
    /// Why the policy was replaced, if it was.
    refusal: Option<Refusal>,
    pub plan: Plan,
    /// Since when it has granted nothing to those that wait.
    nothing_since: Option<Duration>,
    /// Plans that were ever made.
    plans: u64,
    /// The SMs that the plan takes from launches, each with how; kept for their capacity.
    lost: Vec<(u32, Loss)>,
    /// One for each launch that loses SMs.
    losers: Vec<Loss>,
    /// Launches that were not told of SMs that they have lost to plain grids, and have as many as they fill.
    untold: Vec<OpKey>,
}

/// How a launch loses SMs.
#[derive(Clone, Copy, Debug)]
struct Loss {
    of: OpKey,
    /// Whether it has to be told.
    told: bool,
    /// The time that its blocks have to leave.
    limit: StopLimit,
    /// Whether another launch is given the SMs.
    gained: bool,
}

impl Decider {
    pub fn new(policy: Box<dyn Policy>) -> Decider {
        let name = caught(|| policy.name().to_owned());
        Decider {
            policy,
            name: name.unwrap_or_else(|_| "a policy that cannot say its name".into()),
            refusal: None,
            plan: Plan::default(),
            nothing_since: None,
            plans: 0,
            lost: Vec::new(),
            losers: Vec::new(),
            untold: Vec::new(),
        }
    }

    /// Whether the policy, which grants nothing, says when it wants to be asked again, and that is soon. Nothing else might ever
    /// call the engine, and the launches would wait for ever.
    fn gives_soon(&mut self, now: Duration) -> bool {
        let since = *self.nothing_since.get_or_insert(now);
        let wake = caught(|| self.policy.wake()).ok().flatten();
        wake.is_some_and(|wake| wake > now && wake <= since.saturating_add(LONGEST_NOTHING))
    }

    /// The name of the policy that decided first.
    pub fn first_policy(&self) -> &str {
        self.refusal.as_ref().map_or(&self.name, |refusal| &refusal.policy)
    }
}

impl Engine {
    /// The name of the policy that decides.
    pub fn policy_name(&self) -> &str {
        &self.decider.name
    }

    /// Why the policy was replaced, if it was.
    pub fn refusal(&self) -> Option<&Refusal> {
        self.decider.refusal.as_ref()
    }

    /// Whether [`settle`](Engine::settle) would ask the policy.
    pub fn is_unsettled(&self, now: Duration) -> bool {
        self.agenda.unsettled || self.agenda.wake.is_some_and(|wake| wake <= now)
    }

    /// Asks the policy for a plan, if something changed, and acts on it. Nothing is read of block-tasks that run.
    pub fn settle(&mut self, now: Duration, actions: &mut Vec<Action>) {
        self.settle_by(now, &|_| Vec::new(), actions);
    }

    /// The same, where it can be read how far block-tasks are.
    pub fn settle_by(&mut self, now: Duration, look: &Look<'_>, actions: &mut Vec<Action>) {
        self.agenda.unsettled = self.is_unsettled(now);
        let told = actions.len();
        let is_asked = self.agenda.unsettled;
        let has_armed = is_asked && !self.agenda.armed.is_empty();
        self.agenda.may_arm |= has_armed;
        self.agenda.foresees |= has_armed;
        loop {
            self.advance_opaque(now, actions);
            if !std::mem::take(&mut self.agenda.unsettled) {
                break;
            }
            if self.is_draining() {
                self.drain(now, actions);
                continue;
            }
            if let Err(reason) = self.make_plan(now, look) {
                self.replace_policy(now, reason);
                continue;
            }
            self.agenda.refills = None;
            self.follow_plan(now, actions);
            self.agenda.wake = None;
            let mut wake = None;
            self.ask(now, |policy| wake = policy.wake());
            if self.launches.known > 0 {
                let refills = self.agenda.refills.take();
                let wakes = [wake, refills, self.opaque_wake(now)].into_iter().flatten();
                self.agenda.wake =
                    wakes.map(|wake| wake.max(now + self.costs.shortest_wait())).min();
            }
        }
        let looked = self.sm_costs.forget();
        if let Some(recorder) = &mut self.observers.recorder
            && (is_asked || actions.len() > told)
        {
            looked.iter().for_each(|(queue, running)| recorder.looked(now, *queue, running));
            recorder.settled(now, &actions[told..]);
        }
    }

    /// When [`settle`](Engine::settle) has to be called again, whatever else happens.
    pub fn wake(&self) -> Option<Duration> {
        self.agenda.wake
    }

    /// Whether hardware priorities, which follow the order of grants, keep what the policy promises.
    pub fn goes_by_order(&self) -> bool {
        // A policy that panics here is replaced when it does so elsewhere.
        caught(|| self.decider.policy.goes_by_order()).unwrap_or_default()
    }

    /// Whether the policy may take SMs from a launch of priority `of` for one of priority `by`, of another stream.
    pub fn may_preempt(&self, by: Priority, of: Priority) -> bool {
        caught(|| self.decider.policy.may_preempt(by, of)).unwrap_or(true)
    }

    /// Whether the policy takes a launch.
    pub(super) fn admits(&mut self, now: Duration, arrival: &Arrival) -> bool {
        let Engine { ops, ledger, costs, decider, .. } = self;
        let view = View { now, ops, ledger, costs, looks: None };
        let policy = &mut decider.policy;
        match caught(|| policy.admits(now, arrival, &view)) {
            Ok(admits) => admits,
            Err(message) => {
                self.replace_policy(now, format!("it panicked: {message}"));
                true
            }
        }
    }

    /// The plan that the policy would make if a launch arrived now; nothing is granted where it cannot tell.
    pub(super) fn foresee(&mut self, now: Duration, launch: Arrival) -> Plan {
        let mut plan = Plan::default();
        let Engine { ops, ledger, costs, decider, .. } = self;
        let view = View { now, ops, ledger, costs, looks: None };
        let policy = &mut decider.policy;
        if let Err(message) = caught(|| policy.foresee(now, launch, &view, &mut plan)) {
            self.replace_policy(now, format!("it panicked: {message}"));
            plan.clear();
        }
        plan
    }

    /// Asks the policy for a plan, and refuses it if it breaks the contract.
    fn make_plan(&mut self, now: Duration, look: &Look<'_>) -> Result<(), String> {
        let mut plan = std::mem::take(&mut self.decider.plan);
        plan.clear();
        let newcomer = self.sm_costs.newcomer();
        let limit = newcomer.map_or(StopLimit::SOONEST, |newcomer| self.limit(newcomer));
        let Engine { ops, ledger, costs, sm_costs, queues, decider, .. } = self;
        let looks = Some(Looks { known: sm_costs, queues, look, limit });
        let view = View { now, ops, ledger, costs, looks };
        let policy = &mut decider.policy;
        let answer = caught(|| policy.assign(now, &view, &mut plan));
        self.decider.plan = plan;
        answer.map_err(|message| format!("it panicked: {message}"))?;

        self.ledger.begin_plan();
        self.guests.begin_plan();
        let sms = self.ledger.sms();
        let both = self.decider.plan.both;
        let mut granted = 0;
        self.decider.plans += 1;
        for &(id, range) in &self.decider.plan.grants {
            let launch = self.ops.get_mut(id.0).and_then(|op| op.launch.as_mut());
            let Some(launch) = launch.filter(|launch| launch.arrival.is_some()) else {
                return Err(format!("it granted SMs to {id:?}, which is not waiting or running"));
            };
            if std::mem::replace(&mut launch.planned, self.decider.plans) == self.decider.plans {
                return Err(format!("it granted SMs to {id:?} twice"));
            }
            if range.hi() > sms || range.lo() >= sms && !range.is_empty() {
                return Err(format!("it granted SMs {range:?} of a device that has {sms}"));
            }
            let is_second = both.is_some_and(|[_, second]| second == id);
            let ledger = if is_second { &mut self.guests } else { &mut self.ledger };
            if let Err(sm) = ledger.plan(range) {
                return Err(format!("it granted SM {sm} twice"));
            }
            granted += usize::from(!range.is_empty());
        }
        if both.is_some() && granted != 2 {
            return Err("it granted all SMs to two launches, and some to others".into());
        }
        if granted > 0 || self.launches.known == 0 {
            self.decider.nothing_since = None;
        } else if !self.decider.gives_soon(now) {
            return Err(format!("it granted no SM to any of {} launches", self.launches.known));
        }
        Ok(())
    }

    /// Makes the plan true: signals launches that lose SMs, then launches blocks on the gained SMs.
    pub(super) fn follow_plan(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let sms = self.ledger.sms();
        if let Some(recorder) = &mut self.observers.recorder {
            recorder.planned(&self.decider.plan);
        }
        let (mut lost, mut losers) =
            (std::mem::take(&mut self.decider.lost), std::mem::take(&mut self.decider.losers));
        let plan = std::mem::take(&mut self.decider.plan);
        lost.clear();
        let mut others_gain = false;
        let guest = plan.both.map(|pair| self.guest_of(pair));
        for &(id, range) in &plan.grants {
            let shares = plan.both.is_some_and(|pair| pair.contains(&id));
            self.share(now, id.0, shares, guest == Some(id), range, actions);
        }
        for &(id, range) in &plan.grants {
            // Most launches keep the SMs that they have.
            if let Some(launch) = self.ops.get(id.0).and_then(|op| op.launch.as_ref())
                && launch.range != range
            {
                // Blocks of a plain grid that wait for room go wherever there is any. To make room for them on certain
                // SMs gains nothing, unless the loser has more blocks than it should.
                let tells = !launch.spec.plain || launch.is_out();
                let kept = count(intersection(launch.range, range, sms), sms);
                others_gain |= tells && kept < count(range, sms);
                let limit = self.limit(id.0);
                let Some(Op { launch: Some(launch), .. }) = self.ops.get(id.0) else { continue };
                let ledger = launch.books(&mut self.ledger, &mut self.guests);
                let mut lose = |sm, of: LaunchId| {
                    lost.push((sm, Loss { of: of.0, told: tells, limit, gained: true }))
                };
                ledger.commit(id, range, &mut lose);
            }
        }
        let limit = StopLimit::SOONEST;
        for ledger in [&mut self.ledger, &mut self.guests] {
            ledger.commit_rest(|sm, of| {
                lost.push((sm, Loss { of: of.0, told: true, limit, gained: false }))
            });
        }
        // In the order of SMs.
        lost.sort_unstable_by_key(|&(sm, Loss { of, told, .. })| (sm, of, told));
        losers.clear();
        for &(_, loss) in &lost {
            // Few launches lose SMs at a time.
            match losers.iter_mut().find(|known| known.of == loss.of) {
                Some(known) => {
                    known.told |= loss.told;
                    known.limit = known.limit.or_stricter(loss.limit);
                }
                None => losers.push(loss),
            }
        }
        for &Loss { of: loser, .. } in &losers {
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
        for &Loss { of: op, .. } in &losers {
            let launch = self.ops.get_mut(op).and_then(|op| op.launch.as_mut());
            if let Some(launch) = launch.filter(|launch| launch.range.is_empty()) {
                (launch.shares, launch.is_guest) = (false, false);
                self.note(op, now, SmRange::EMPTY, false);
            }
        }
        // Ownership passes at the signal, so it comes before the launch on the gained SMs.
        for &Loss { of, told, limit, .. } in &losers {
            let launch = self.ops.get(of).and_then(|op| op.launch.as_ref());
            if told || launch.is_some_and(|launch| launch.is_deprived(sms)) {
                self.shrink(now, of, limit, actions);
            } else if !self.decider.untold.contains(&of) {
                self.decider.untold.push(of);
            }
        }
        // Blocks of those that lost these SMs earlier may still be there.
        for &(sm, Loss { limit, .. }) in lost.iter().filter(|(_, loss)| loss.gained) {
            self.hasten(sm, limit, actions);
        }
        if others_gain {
            // The SMs may be theirs.
            for loser in std::mem::take(&mut self.decider.untold) {
                self.shrink(now, loser, StopLimit::SOONEST, actions);
            }
        }
        for &(id, _) in &plan.grants {
            self.cover(now, id.0, actions);
        }
        self.decider.plan = plan;
        (self.decider.lost, self.decider.losers) = (lost, losers);
        for op in std::mem::take(&mut self.agenda.released_early) {
            let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(op) else { continue };
            launch.early = false;
            if launch.range.is_empty() && !launch.is_out() {
                // The policy has decided otherwise than was foreseen.
                self.shrink(now, op, StopLimit::SOONEST, actions);
            }
        }
        // Every launch with SMs is in the plan. A look at all waiting launches would take longer than the rest.
        debug_assert!(
            self.agenda.short_of_queues
                || self
                    .decider
                    .plan
                    .grants
                    .iter()
                    .filter_map(|(id, _)| self.ops.get(id.0)?.launch.as_ref())
                    .all(|launch| launch.state() != State::ToRun),
            "a launch has SMs and no blocks"
        );
    }

    /// What the policy asks for where streams ask for nothing.
    fn policy_limit(&self) -> Option<Duration> {
        let policy = &self.decider.policy;
        // A policy that panics here is replaced when it does so elsewhere.
        caught(|| policy.latency_limit()).ok().flatten()
    }

    /// Whether the policy asks for SMs within some time.
    pub fn policy_limits(&self) -> bool {
        self.policy_limit().is_some_and(is_watched)
    }

    /// The time in which blocks of others leave the SMs that a launch is given: what its stream asks for, or else the policy.
    pub(super) fn limit(&mut self, key: OpKey) -> StopLimit {
        let asked = self.ops.get(key).and_then(|op| op.effective.latency_limit);
        let limit = asked.or_else(|| self.policy_limit());
        limit.map_or(StopLimit::SOONEST, |limit| self.asked.add(limit))
    }

    /// What was asked for where a signal has this limit.
    pub fn asked(&self, limit: StopLimit) -> Duration {
        self.asked.of(limit)
    }

    /// The one of two launches that share all SMs whose SMs are in the books of guests. What is in some books stays there.
    fn guest_of(&self, [first, second]: [LaunchId; 2]) -> LaunchId {
        let launch = |id: LaunchId| self.ops.get(id.0).and_then(|op| op.launch.as_ref());
        let is_guest = |id| launch(id).is_some_and(|launch| launch.is_guest);
        let has_sms = |id| launch(id).is_some_and(|launch| !launch.range.is_empty());
        if is_guest(first) || has_sms(second) && !is_guest(second) && !has_sms(first) {
            first
        } else {
            second
        }
    }

    /// Notes whether a launch shares the SMs that it is granted. If it has blocks for more than its part of the room, they
    /// leave. If it has more room than before, its SMs are uncovered, for more blocks; where these would not be on its SMs
    /// alone, it is launched anew, too.
    fn share(
        &mut self,
        now: Duration,
        key: OpKey,
        shares: bool,
        is_guest: bool,
        range: SmRange,
        actions: &mut Vec<Action>,
    ) {
        let sms = self.ledger.sms();
        let Some(Op { launch: Some(launch), .. }) = self.ops.get_mut(key) else { return };
        if launch.is_guest != is_guest {
            launch.books(&mut self.ledger, &mut self.guests).release(launch.range);
            launch.set_range(now, SmRange::EMPTY, sms);
            launch.is_guest = is_guest;
        }
        if launch.shares == shares {
            return;
        }
        // Until now it had another part of them.
        launch.set_range(now, launch.range, sms);
        launch.shares = shares;
        let (has, has_blocks) = (launch.range, !launch.is_out() && !launch.spec.plain);
        let leaves = has_blocks && (shares || count(range, sms) < sms);
        if has_blocks {
            launch.books(&mut self.ledger, &mut self.guests).uncover(has);
        }
        if leaves {
            launch.count_yield(now);
            self.flush(key, actions);
        }
        if !has.is_empty() {
            self.note(key, now, has, false);
        }
    }

    /// Calls a hook of the policy.
    pub(super) fn ask(&mut self, now: Duration, hook: impl FnOnce(&mut dyn Policy)) {
        let policy = &mut *self.decider.policy;
        if let Err(message) = caught(|| hook(policy)) {
            self.replace_policy(now, format!("it panicked: {message}"));
        }
    }

    /// Replaces a policy that broke its contract by first come, first served.
    fn replace_policy(&mut self, now: Duration, reason: String) {
        // A policy that panics when it is dropped must not take the engine with it.
        let refused = std::mem::replace(&mut self.decider.policy, Box::new(Fifo::new()));
        let _ = caught(|| drop(refused));
        let name = std::mem::replace(&mut self.decider.name, "fifo".into());
        assert!(self.decider.refusal.is_none(), "the last resort was refused: {reason}");
        self.decider.refusal = Some(Refusal { policy: name, reason });
        let mut known: Vec<(u64, OpKey)> = self
            .ops
            .iter()
            .filter_map(|(key, op)| Some((op.launch.as_ref()?.arrival?, key)))
            .collect();
        known.sort_unstable();
        for (_, key) in known {
            if let Some(arrival) = arrival(key, &self.ops[key]) {
                self.decider.policy.arrived(now, arrival);
            }
        }
        self.agenda.unsettled = true;
    }
}

/// What the policy sees of the engine.
struct View<'a> {
    now: Duration,
    ops: &'a SlotMap<OpKey, Op>,
    ledger: &'a Ledger,
    costs: &'a Costs,
    /// In a decision.
    looks: Option<Looks<'a>>,
}

impl View<'_> {
    fn launch(&self, id: LaunchId) -> Option<&Launch> {
        self.ops.get(id.0)?.launch.as_ref()
    }

    /// The launches behind one in its stream, up to the first that waits for something else, too.
    fn behind(&self, id: LaunchId) -> impl Iterator<Item = &Launch> {
        let next = |&key: &OpKey| {
            let next = following(self.ops, key)?;
            self.ops.get(next).filter(|op| op.foreign_blockers == 0).map(|_| next)
        };
        let behind = std::iter::successors(Some(id.0), next).skip(1);
        behind.map_while(|key| self.ops.get(key)?.launch.as_ref())
    }

    /// The SMs that launches behind this one will use, as long as they do so shortly.
    fn soon(&self, id: LaunchId, launch: &Launch, uses: impl Fn(&Launch, u32) -> u32) -> u32 {
        // Mostly there is none. To see that costs less than to find out how long this launch takes.
        if self.behind(id).next().is_none() {
            return 0;
        }
        let mut most = 0;
        let mut until = launch.time_left(self.now, self.sms());
        for next in self.behind(id) {
            if !until.is_some_and(|until| self.costs.is_short(until, launch.spec.stop())) {
                break;
            }
            most = most.max(uses(next, self.sms()));
            let (until, took) = (&mut until, next.spec.predicted);
            *until = until.zip(took).map(|(until, took)| until + self.costs.follow + took);
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
        self.launch(launch).map_or(Duration::ZERO, |launch| launch.spec.overhead())
    }

    fn requeued(&self, launch: LaunchId) -> Duration {
        self.launch(launch).map_or(Duration::ZERO, |launch| launch.spec.redone())
    }

    fn sm_time(&self, launch: LaunchId) -> Duration {
        self.launch(launch).map_or(Duration::ZERO, |launch| launch.sm_time(self.now, self.sms()))
    }

    fn sm_yield_overhead(&self, sm: u32) -> Duration {
        let looks = self.looks.as_ref();
        looks.map_or(Duration::ZERO, |looks| looks.cost(self.now, self.ops, self.ledger, sm))
    }
}
