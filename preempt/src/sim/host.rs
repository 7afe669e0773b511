//! The host in virtual time: it takes in messages, decides and launches in turns, as the scheduler does.

use std::collections::VecDeque;
use std::time::Duration;

use super::agenda::{Happening, nanos};
use super::run::Run;
use crate::engine::{Action, Did, Event, Lead, Next, Pace, ToDo, Waiting, goes_first};
use crate::vocabulary::CohortOrder;

/// What the host is told, and what it is doing.
#[derive(Debug, Default)]
pub(super) struct Host {
    /// Submissions and changes.
    inbox: VecDeque<Happening>,
    /// How many of these were considered for being taken in out of their turn.
    considered: usize,
    /// News of the device, which a turn takes in at its beginning.
    reports: Vec<Happening>,
    /// Whether a turn is due without any of these.
    is_due: bool,
    /// Of what was taken in since the last decision.
    pub lead: Lead,
    turn: Option<Turn>,
    /// Until when the last step takes.
    busy_until: u64,
}

/// A turn, and its last step.
#[derive(Debug)]
struct Turn {
    pace: Pace,
    did: Did,
}

impl Host {
    /// Tells the host of something, which it takes in when it has time.
    pub fn tell(&mut self, happening: Happening) {
        match happening {
            Happening::Report { .. } => self.reports.push(happening),
            Happening::Wake => self.is_due = true,
            _ => self.inbox.push_back(happening),
        }
    }
}

impl Run<'_> {
    /// Lets the host do what there is to do, until a step takes time.
    pub(super) fn host(&mut self, now: u64) {
        if now < self.host.busy_until {
            return;
        }
        let time = Duration::from_nanos(now);
        loop {
            let (pace, next) = match self.host.turn.take() {
                Some(Turn { mut pace, did }) => {
                    let next = pace.next(time, did, self.to_do(&pace));
                    (pace, next)
                }
                None => {
                    let Host { inbox, reports, is_due, .. } = &mut self.host;
                    let has_mail = !inbox.is_empty();
                    if !(std::mem::take(is_due) || has_mail || !reports.is_empty()) {
                        return;
                    }
                    for report in std::mem::take(reports) {
                        self.take_in(now, report);
                    }
                    let mut pace = Pace::begin(time, has_mail, &self.machine.costs);
                    let next = pace.first(time, self.to_do(&pace));
                    (pace, next)
                }
            };
            let (did, over) = match next {
                Next::TakeIn => match self.next_message() {
                    Some(message) => {
                        self.take_in(now, message);
                        let over = now + nanos(self.machine.costs.take_in);
                        (Did::TookIn { more: !self.host.inbox.is_empty() }, over)
                    }
                    None => (Did::FoundNone, now),
                },
                Next::LookAhead { within } => {
                    let mut soon = self.host.inbox.iter().take(within);
                    let overturns = soon.any(|&message| self.overturns(message));
                    (Did::LookedAhead { overturns, more: !self.host.inbox.is_empty() }, now)
                }
                Next::Decide => {
                    self.host.lead = Lead::default();
                    let decides = self.engine.is_unsettled(time);
                    let took = if decides { nanos(self.machine.costs.decision) } else { 0 };
                    self.engine.settle(time, &mut self.actions);
                    (Did::Decided, self.act(now, now + took))
                }
                Next::GoAhead => {
                    self.engine.go_ahead(time, &mut self.actions);
                    (Did::WentAhead, self.act(now, now))
                }
                Next::Done => {
                    self.host.is_due |= self.engine.may_go_ahead();
                    continue;
                }
            };
            self.host.turn = Some(Turn { pace, did });
            if over > now {
                self.host.busy_until = over;
                self.agenda.enter(over, Happening::Turn);
                return;
            }
        }
    }

    /// The message to take in next: one that goes before those that came earlier, or the earliest.
    fn next_message(&mut self) -> Option<Happening> {
        let Host { inbox, considered, .. } = &self.host;
        let submitted = |message: &Happening| match *message {
            Happening::Arrival(index) => Some(self.waiting(index)),
            _ => None,
        };
        let may_preempt = |by, of| self.engine.may_preempt(by, of);
        let first = ((*considered).max(1)..inbox.len()).find(|&at| {
            let launch = inbox.get(at).and_then(submitted);
            let in_front = inbox.range(..at).map(submitted);
            launch.is_some_and(|launch| goes_first(in_front, launch, may_preempt))
        });
        let inbox = &mut self.host.inbox;
        let next = inbox.remove(first.unwrap_or(0));
        self.host.considered = first.unwrap_or(inbox.len());
        next
    }

    fn to_do(&self, pace: &Pace) -> ToDo {
        ToDo {
            decide: self.engine.is_unsettled(pace.began()),
            is_final: self.host.lead.is_final(),
            go_ahead: self.engine.may_go_ahead(),
        }
    }

    /// Whether a message is of a launch that may preempt what would be launched without it.
    fn overturns(&self, message: Happening) -> bool {
        let Happening::Arrival(index) = message else { return false };
        let Waiting { stream, priority: by, .. } = self.waiting(index);
        self.host.lead.gives_way_to(stream, by, |by, of| self.engine.may_preempt(by, of))
    }

    fn take_in(&mut self, now: u64, happening: Happening) {
        match happening {
            Happening::Arrival(index) => self.submit(now, index),
            Happening::Change(index) => self.change(now, index),
            Happening::Report { op, slot, done, plain } => {
                let posted = Happening::posted(done, plain);
                let event = Event::CohortOut { op, slot, posted };
                self.engine.handle(Duration::from_nanos(now), event, &mut self.actions);
            }
            _ => {}
        }
        self.act(now, now);
    }

    /// Carries out the engine's actions from `at` on; returns when the host has done so.
    fn act(&mut self, now: u64, mut at: u64) -> u64 {
        while !self.actions.is_empty() {
            let mut actions = std::mem::take(&mut self.actions);
            let mut rest = &actions[..];
            while let [action, behind @ ..] = rest {
                rest = behind;
                match *action {
                    Action::Launch(order) => {
                        self.device.launch(at, order, &mut self.agenda);
                        // The launches of a chain are one call.
                        for _ in 1..self.together(&order, behind) {
                            let [Action::Launch(next), behind @ ..] = rest else { break };
                            self.device.launch(at, *next, &mut self.agenda);
                            rest = behind;
                        }
                        at += nanos(self.machine.costs.call);
                    }
                    Action::Signal { queue, signal } => {
                        self.device.signal(at, queue, signal, &mut self.agenda);
                    }
                    Action::Finish { op, outcome } => self.finish(now, op, outcome),
                    Action::Retire { op } => {
                        self.device.launches.remove(op);
                        self.ops.remove(op);
                        self.calls.remove(op);
                    }
                    // No operation is submitted before its release.
                    Action::Disarm { .. } => {}
                    // It takes no time.
                    Action::Copy { op } => {
                        let event = Event::CopyDone { op };
                        self.engine.handle(Duration::from_nanos(now), event, &mut self.actions);
                    }
                }
            }
            actions.clear();
            if self.actions.is_empty() {
                self.actions = actions;
            }
        }
        at
    }

    /// How many launches the device takes together from this one on: all those of its chain, if they are ordered, and
    /// queued behind another one.
    fn together(&self, order: &CohortOrder, behind: &[Action]) -> usize {
        let call = self.calls.get(order.op).filter(|_| order.after.is_some());
        let together = call.map_or(1, |call| call.together as usize);
        let goes_on = |action: &&Action| match action {
            Action::Launch(next) => next.queue == order.queue,
            _ => false,
        };
        let ordered = 1 + behind.iter().take(together - 1).take_while(goes_on).count();
        if ordered == together { together } else { 1 }
    }
}
