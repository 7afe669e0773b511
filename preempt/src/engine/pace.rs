//! When to decide: the steps of a turn, in which the host takes in messages, asks the policy and queues launches ahead.
//!
//! A decision is better the more it knows, so messages are taken in first while they come. They are not for longer than it
//! takes to overturn a decision: to wait longer than that costs more than to decide too early. If a message that would
//! overturn it is there already, they are for as long again, since it comes to that otherwise. And nothing is put off
//! where no stream may preempt what would be launched ([`Lead`]). Launches are queued
//! ahead one at a time while the inbox is empty, so that a message waits for one such call at most. If it is never empty,
//! that is put off for as long as what the device has may last.
//!
//! The scheduler plays this on a clock, the simulator in virtual time.

use std::time::Duration;

use crate::policy::Priority;
use crate::vocabulary::Costs;

/// What a turn does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Take one message in, after a look into the inbox if there may be one ([`Pace::may_look`]).
    TakeIn,
    /// Look whether one of this many messages is of a launch that may preempt what would be launched now.
    LookAhead { within: usize },
    /// Ask the policy, and launch what it wants.
    Decide,
    /// Queue one launch behind another.
    GoAhead,
    /// End the turn.
    Done,
}

/// What a turn did last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Did {
    /// It took in a message. With `more`, the last look into the inbox found another one behind it.
    TookIn {
        more: bool,
    },
    /// It looked into the inbox, and there was none.
    FoundNone,
    /// It looked into the inbox for that. With `more`, there is a message that was not taken in.
    LookedAhead {
        overturns: bool,
        more: bool,
    },
    Decided,
    WentAhead,
}

/// What the engine could do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ToDo {
    /// Something changed that the policy should look at.
    pub decide: bool,
    /// Whether no stream may preempt what would be launched.
    pub is_final: bool,
    /// There may be a launch to queue behind another one.
    pub go_ahead: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Inbox {
    /// The last look found a message that was not taken in.
    HasMore,
    /// A message may have come since the last look.
    Unknown,
    Empty,
}

/// One turn.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Time: how long messages can put off a decision.
    put_off: Duration,
    begin: Duration,
    /// Time: how long messages can put off to queue a launch ahead.
    lasts: Duration,
    /// When the turn looks for nothing new any more. What the device had at its beginning may be over by then, since no
    /// more work than that is queued there.
    end: Duration,
    /// When the last step began.
    last: Duration,
    /// Since when there is something to decide, or to queue ahead.
    since: Option<Duration>,
    /// Messages that were taken in since the last decision.
    taken_in: usize,
    /// What a look ahead has found since then.
    overturns: Option<bool>,
    inbox: Inbox,
    /// Whether something was taken in after the last decision. The policy may have no say in it; opaque work and
    /// operations of others are looked after when it is asked.
    is_undecided: bool,
    went_ahead: bool,
}

impl Pace {
    /// A turn that begins with the device's reports taken in. `more` says whether there is a message.
    pub fn begin(now: Duration, more: bool, costs: &Costs) -> Pace {
        Pace {
            put_off: costs.overturn(),
            lasts: costs.absence,
            begin: now,
            end: now.saturating_add(costs.absence),
            last: now,
            since: None,
            taken_in: 0,
            overturns: None,
            inbox: if more { Inbox::HasMore } else { Inbox::Unknown },
            is_undecided: true,
            went_ahead: false,
        }
    }

    /// When it began. What becomes due later is for the next turn, so that each turn ends.
    pub fn began(&self) -> Duration {
        self.begin
    }

    /// Whether to look for messages that have come since the last look, before the next is taken in. A launch among them may
    /// go before those that were found ([`goes_first`](super::goes_first)). Not later: a turn that looked on and on would
    /// take in no report of the device.
    pub fn may_look(&self) -> bool {
        self.last <= self.end
    }

    /// The first step.
    pub fn first(&mut self, now: Duration, to_do: ToDo) -> Next {
        if !to_do.decide && self.inbox == Inbox::Unknown {
            // The caller has just looked.
            self.inbox = Inbox::Empty;
        }
        self.step(now, to_do)
    }

    /// The step that follows.
    pub fn next(&mut self, now: Duration, did: Did, to_do: ToDo) -> Next {
        match did {
            Did::TookIn { more } => {
                self.inbox = if more { Inbox::HasMore } else { Inbox::Unknown };
                self.is_undecided = true;
                self.taken_in += 1;
                if to_do.decide || to_do.go_ahead {
                    // The message is there since before it was taken in.
                    self.since.get_or_insert(self.last);
                }
            }
            Did::FoundNone => self.inbox = Inbox::Empty,
            Did::LookedAhead { overturns, more } => {
                self.overturns = Some(overturns);
                // What a look has found no other thread looks for, so this turn takes it in.
                self.inbox = if more { Inbox::HasMore } else { Inbox::Unknown };
            }
            Did::Decided | Did::WentAhead => {
                self.is_undecided &= did != Did::Decided;
                self.went_ahead |= did == Did::WentAhead;
                self.since = None;
                (self.taken_in, self.overturns) = (0, None);
                if self.inbox == Inbox::Empty {
                    self.inbox = Inbox::Unknown;
                }
            }
        }
        self.step(now, to_do)
    }

    fn step(&mut self, now: Duration, ToDo { decide, is_final, go_ahead }: ToDo) -> Next {
        self.last = now;
        let is_late = match decide || go_ahead {
            true => {
                let most = match (decide, self.overturns) {
                    (false, _) => self.lasts,
                    (true, Some(true)) => 2 * self.put_off,
                    (true, _) => self.put_off,
                };
                let waited = now.saturating_sub(*self.since.get_or_insert(now));
                decide && is_final || waited > most
            }
            false => {
                self.since = None;
                false
            }
        };
        let is_over = !self.may_look();
        let may_take_in = match self.inbox {
            Inbox::HasMore => true,
            // With nothing to do, messages that have come meanwhile begin another turn.
            Inbox::Unknown => (decide || go_ahead) && !is_over,
            Inbox::Empty => false,
        };
        match may_take_in {
            true if !is_late => Next::TakeIn,
            true if decide && !is_final && self.overturns.is_none() && self.taken_in > 0 => {
                // As many as it takes that long again to take in.
                Next::LookAhead { within: self.taken_in }
            }
            _ if decide => Next::Decide,
            true => Next::GoAhead,
            false if self.is_undecided => Next::Decide,
            // At least one in each turn, however short it is to be.
            false if go_ahead && !(is_over && self.went_ahead) => Next::GoAhead,
            false => Next::Done,
        }
    }
}

/// The most urgent of the launches that were taken in since the last decision, which is what that will launch if it can.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lead {
    /// Its stream, and the priority of that.
    of: Option<(u32, Priority)>,
    is_final: bool,
}

impl Lead {
    /// Takes in a launch of a stream of priority `own`; `others` are the priorities of the other streams.
    pub fn take_in(
        &mut self,
        stream: u32,
        own: Priority,
        others: &[Priority],
        may_preempt: impl Fn(Priority, Priority) -> bool,
    ) {
        if self.of.is_none() || self.gives_way_to(stream, own, &may_preempt) {
            self.of = Some((stream, own));
            // Where no stream is more urgent than another one, a decision for many launches costs as much as one for one.
            self.is_final = others.iter().any(|&other| may_preempt(own, other))
                && !others.iter().any(|&other| may_preempt(other, own));
        }
    }

    /// Whether no stream may preempt it.
    pub fn is_final(&self) -> bool {
        self.is_final
    }

    /// Whether a launch of another stream may preempt it, one of priority `by`.
    pub fn gives_way_to(
        &self,
        stream: u32,
        by: Priority,
        may_preempt: impl Fn(Priority, Priority) -> bool,
    ) -> bool {
        self.of.is_some_and(|(lead, of)| lead != stream && may_preempt(by, of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    /// A decision is overturned in 5 µs, and a turn goes ahead for 60 µs.
    fn costs() -> Costs {
        Costs { stop: us(3), launch: us(2), absence: us(60), ..Costs::free() }
    }

    const IDLE: ToDo = ToDo { decide: false, is_final: false, go_ahead: false };
    const DECIDE: ToDo = ToDo { decide: true, ..IDLE };
    const AHEAD: ToDo = ToDo { go_ahead: true, ..IDLE };
    const BOTH: ToDo = ToDo { decide: true, ..AHEAD };
    const FINAL: ToDo = ToDo { is_final: true, ..DECIDE };

    const NONE_OVERTURNS: Did = Did::LookedAhead { overturns: false, more: true };
    const ONE_OVERTURNS: Did = Did::LookedAhead { overturns: true, more: true };

    const LAST: Did = Did::TookIn { more: false };
    const ONE: Did = Did::TookIn { more: true };

    /// A turn, step by step.
    struct Case {
        name: &'static str,
        /// Whether there is a message at its beginning, and what there is to do.
        begin: (bool, ToDo),
        first: Next,
        /// What it did, until when, what there is to do then, and what comes next.
        steps: &'static [(Did, u64, ToDo, Next)],
    }

    const CASES: &[Case] = &[
        Case {
            name: "an idle turn",
            begin: (false, IDLE),
            first: Next::Decide,
            steps: &[(Did::Decided, 1, IDLE, Next::Done)],
        },
        Case {
            name: "an urgent launch and an idle inbox",
            begin: (true, IDLE),
            first: Next::TakeIn,
            steps: &[
                (LAST, 1, BOTH, Next::TakeIn),
                (Did::FoundNone, 1, BOTH, Next::Decide),
                (Did::Decided, 6, IDLE, Next::Done),
            ],
        },
        Case {
            name: "an ended launch, and a message that comes just now",
            begin: (false, DECIDE),
            first: Next::TakeIn,
            steps: &[
                (LAST, 1, DECIDE, Next::TakeIn),
                (Did::FoundNone, 1, DECIDE, Next::Decide),
                (Did::Decided, 6, IDLE, Next::Done),
            ],
        },
        Case {
            name: "a burst that is short",
            begin: (true, IDLE),
            first: Next::TakeIn,
            steps: &[
                (ONE, 1, DECIDE, Next::TakeIn),
                (ONE, 2, BOTH, Next::TakeIn),
                (LAST, 3, BOTH, Next::TakeIn),
                (Did::FoundNone, 3, BOTH, Next::Decide),
            ],
        },
        Case {
            name: "a burst that puts off the decision",
            begin: (true, IDLE),
            first: Next::TakeIn,
            steps: &[
                (ONE, 3, DECIDE, Next::TakeIn),
                (ONE, 5, BOTH, Next::TakeIn),
                (ONE, 6, BOTH, Next::LookAhead { within: 3 }),
                (NONE_OVERTURNS, 6, BOTH, Next::Decide),
                // No launch is queued ahead of the rest of it while the device has work.
                (Did::Decided, 11, AHEAD, Next::TakeIn),
                (ONE, 17, AHEAD, Next::TakeIn),
                (ONE, 71, AHEAD, Next::TakeIn),
                (ONE, 72, AHEAD, Next::GoAhead),
                (Did::WentAhead, 77, AHEAD, Next::TakeIn),
                // Something to decide precedes a launch to queue ahead.
                (ONE, 83, BOTH, Next::LookAhead { within: 1 }),
                (NONE_OVERTURNS, 83, BOTH, Next::Decide),
            ],
        },
        Case {
            name: "an urgent launch at the end of a burst",
            begin: (true, IDLE),
            first: Next::TakeIn,
            steps: &[
                (ONE, 3, DECIDE, Next::TakeIn),
                (ONE, 6, BOTH, Next::LookAhead { within: 2 }),
                (ONE_OVERTURNS, 6, BOTH, Next::TakeIn),
                (ONE, 8, BOTH, Next::TakeIn),
                // It is taken in.
                (ONE, 9, FINAL, Next::Decide),
                (Did::Decided, 14, AHEAD, Next::TakeIn),
            ],
        },
        Case {
            name: "an urgent launch that is too far behind",
            begin: (true, IDLE),
            first: Next::TakeIn,
            steps: &[
                (ONE, 6, DECIDE, Next::LookAhead { within: 1 }),
                (ONE_OVERTURNS, 6, DECIDE, Next::TakeIn),
                (ONE, 11, DECIDE, Next::Decide),
                (Did::Decided, 16, AHEAD, Next::TakeIn),
            ],
        },
        Case {
            name: "a message that a look ahead has found is taken in",
            begin: (true, IDLE),
            first: Next::TakeIn,
            steps: &[
                (LAST, 6, DECIDE, Next::LookAhead { within: 1 }),
                (NONE_OVERTURNS, 6, DECIDE, Next::Decide),
                (Did::Decided, 11, IDLE, Next::TakeIn),
                (LAST, 12, IDLE, Next::Decide),
                (Did::Decided, 12, IDLE, Next::Done),
            ],
        },
        Case {
            name: "a look ahead that finds none",
            begin: (true, IDLE),
            first: Next::TakeIn,
            steps: &[
                (LAST, 6, DECIDE, Next::LookAhead { within: 1 }),
                (Did::LookedAhead { overturns: false, more: false }, 6, DECIDE, Next::Decide),
                (Did::Decided, 11, IDLE, Next::Done),
            ],
        },
        Case {
            name: "an urgent launch ahead of a burst",
            begin: (true, IDLE),
            first: Next::TakeIn,
            steps: &[(ONE, 1, FINAL, Next::Decide), (Did::Decided, 6, AHEAD, Next::TakeIn)],
        },
        Case {
            name: "messages that leave nothing to do",
            begin: (true, IDLE),
            first: Next::TakeIn,
            steps: &[
                (ONE, 50, IDLE, Next::TakeIn),
                (ONE, 90, IDLE, Next::TakeIn),
                (LAST, 120, IDLE, Next::Decide),
                (Did::Decided, 121, IDLE, Next::Done),
            ],
        },
        Case {
            name: "an urgent launch that comes while others are queued ahead waits for one of them",
            begin: (false, DECIDE),
            first: Next::TakeIn,
            steps: &[
                (Did::FoundNone, 0, DECIDE, Next::Decide),
                (Did::Decided, 5, AHEAD, Next::TakeIn),
                (Did::FoundNone, 5, AHEAD, Next::GoAhead),
                (Did::WentAhead, 10, AHEAD, Next::TakeIn),
                (LAST, 11, BOTH, Next::TakeIn),
                (Did::FoundNone, 11, BOTH, Next::Decide),
                (Did::Decided, 16, AHEAD, Next::TakeIn),
                (Did::FoundNone, 16, AHEAD, Next::GoAhead),
                (Did::WentAhead, 21, IDLE, Next::Done),
            ],
        },
        Case {
            name: "a turn that goes ahead for long",
            begin: (false, DECIDE),
            first: Next::TakeIn,
            steps: &[
                (Did::FoundNone, 0, DECIDE, Next::Decide),
                (Did::Decided, 55, AHEAD, Next::TakeIn),
                (Did::FoundNone, 60, AHEAD, Next::GoAhead),
                (Did::WentAhead, 65, AHEAD, Next::Done),
            ],
        },
        Case {
            name: "messages without end",
            begin: (true, IDLE),
            first: Next::TakeIn,
            steps: &[
                (LAST, 61, BOTH, Next::Decide),
                (Did::Decided, 66, AHEAD, Next::GoAhead),
                (Did::WentAhead, 71, AHEAD, Next::Done),
            ],
        },
        Case {
            name: "every message that was found is taken in",
            begin: (true, IDLE),
            first: Next::TakeIn,
            steps: &[
                (ONE, 100, AHEAD, Next::GoAhead),
                (Did::WentAhead, 101, AHEAD, Next::TakeIn),
                (ONE, 102, AHEAD, Next::TakeIn),
                (LAST, 103, AHEAD, Next::Decide),
                (Did::Decided, 104, AHEAD, Next::Done),
            ],
        },
    ];

    #[test]
    fn each_turn_takes_the_steps_of_the_table() {
        for Case { name, begin: (more, to_do), first, steps } in CASES {
            let mut pace = Pace::begin(Duration::ZERO, *more, &costs());
            assert_eq!(pace.first(Duration::ZERO, *to_do), *first, "{name}");
            for (at, &(did, now, to_do, next)) in steps.iter().enumerate() {
                assert_eq!(pace.next(us(now), did, to_do), next, "{name}, step {at}");
            }
        }
    }

    /// Turns in which messages come at any time, each step takes any time, and anything may be to do.
    #[test]
    fn no_turn_ends_with_a_message_that_a_look_has_found() {
        let mut state = 1_u64;
        let mut below = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % most
        };
        let mut left = [0; 2];
        for _ in 0..20_000 {
            // Messages that a look has found, and those that come later.
            let (mut found, mut inbox, mut now) = (below(4), 0, 0);
            let to_do = |below: &mut dyn FnMut(u64) -> u64| ToDo {
                decide: below(2) == 0,
                is_final: below(4) == 0,
                go_ahead: below(3) == 0,
            };
            let mut pace = Pace::begin(Duration::ZERO, found > 0, &costs());
            let mut next = pace.first(Duration::ZERO, to_do(&mut below));
            let mut steps = 0;
            while next != Next::Done {
                let arrive = u64::from(steps < 30 && below(3) == 0);
                let did = match next {
                    Next::TakeIn => {
                        if found == 0 {
                            found = std::mem::take(&mut inbox);
                        }
                        match found.checked_sub(1) {
                            Some(rest) => {
                                found = rest;
                                Did::TookIn { more: found > 0 }
                            }
                            None => Did::FoundNone,
                        }
                    }
                    Next::LookAhead { .. } => {
                        found += std::mem::take(&mut inbox);
                        Did::LookedAhead { overturns: below(2) == 0, more: found > 0 }
                    }
                    Next::Decide => Did::Decided,
                    Next::GoAhead => Did::WentAhead,
                    Next::Done => unreachable!(),
                };
                inbox += arrive;
                now += below(8);
                steps += 1;
                assert!(steps < 10_000, "the turn does not end");
                next = pace.next(us(now), did, to_do(&mut below));
            }
            assert_eq!(found, 0, "no thread would begin another turn for it");
            left[usize::from(inbox > 0)] += 1;
        }
        assert!(left.into_iter().all(|turns| turns > 1000), "{left:?}");
    }

    #[test]
    fn a_lead_is_final_where_it_alone_may_preempt() {
        // As where the shortest of equal ones goes first.
        let may_preempt = |by: Priority, of: Priority| by >= of;
        // Each launch is of a stream of its own.
        let lead = |own: &[i32], others: &[i32]| {
            let others: Vec<Priority> = others.iter().copied().map(Priority).collect();
            let mut lead = Lead::default();
            for (stream, &own) in own.iter().enumerate() {
                lead.take_in(stream as u32, Priority(own), &others, may_preempt);
            }
            lead
        };
        assert!(lead(&[5], &[0, 3]).is_final() && lead(&[0, 5], &[0, 3]).is_final());
        assert!(!lead(&[5], &[0, 9]).is_final(), "a more urgent one may come");
        assert!(!lead(&[5], &[5]).is_final() && !lead(&[5], &[]).is_final(), "all are equal");
        assert!(!lead(&[], &[0]).is_final());
        let gives_way =
            |lead: Lead, stream, by| lead.gives_way_to(stream, Priority(by), may_preempt);
        let second = lead(&[0, 5, 3], &[9]);
        assert!(gives_way(second, 7, 5) && !gives_way(second, 7, 4));
        assert!(!gives_way(second, 1, 9), "a stream keeps its order");
        assert!(!gives_way(Lead::default(), 7, 9), "nothing would be launched");
    }

    #[test]
    fn where_nothing_takes_time_all_is_known_before_a_decision() {
        let mut pace = Pace::begin(us(7), true, &Costs::free());
        assert_eq!(pace.first(us(7), IDLE), Next::TakeIn);
        for _ in 0..1000 {
            assert_eq!(pace.next(us(7), ONE, BOTH), Next::TakeIn);
        }
        assert_eq!(pace.next(us(7), LAST, BOTH), Next::TakeIn);
        assert_eq!(pace.next(us(7), Did::FoundNone, BOTH), Next::Decide);
    }
}
