//! When to decide: the steps of a turn, in which the host takes in messages, asks the policy and queues launches ahead.
//!
//! A decision is better the more it knows, so messages are taken in first while they come. They are not for longer than it
//! takes to overturn a decision: to wait longer than that costs more than to decide too early. Launches are queued
//! ahead one at a time while the inbox is empty, so that a message waits for one such call at most. If it is never empty,
//! that is put off for as long as what the device has may last.
//!
//! The scheduler plays this on a clock, the simulator in virtual time.

use std::time::Duration;

use crate::vocabulary::Costs;

/// What a turn does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Take one message in, or look into the inbox if none is left of the last look.
    TakeIn,
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
    Decided,
    WentAhead,
}

/// What the engine could do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ToDo {
    /// Something changed that the policy should look at.
    pub decide: bool,
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
            inbox: if more { Inbox::HasMore } else { Inbox::Unknown },
            is_undecided: true,
            went_ahead: false,
        }
    }

    /// When it began. What becomes due later is for the next turn, so that each turn ends.
    pub fn began(&self) -> Duration {
        self.begin
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
                if to_do.decide || to_do.go_ahead {
                    // The message is there since before it was taken in.
                    self.since.get_or_insert(self.last);
                }
            }
            Did::FoundNone => self.inbox = Inbox::Empty,
            Did::Decided | Did::WentAhead => {
                self.is_undecided &= did != Did::Decided;
                self.went_ahead |= did == Did::WentAhead;
                self.since = None;
                if self.inbox == Inbox::Empty {
                    self.inbox = Inbox::Unknown;
                }
            }
        }
        self.step(now, to_do)
    }

    fn step(&mut self, now: Duration, ToDo { decide, go_ahead }: ToDo) -> Next {
        self.last = now;
        let is_late = match decide || go_ahead {
            true => {
                let most = if decide { self.put_off } else { self.lasts };
                now.saturating_sub(*self.since.get_or_insert(now)) > most
            }
            false => {
                self.since = None;
                false
            }
        };
        let is_over = now > self.end;
        let may_take_in = match self.inbox {
            Inbox::HasMore => true,
            // With nothing to do, messages that have come meanwhile begin another turn.
            Inbox::Unknown => (decide || go_ahead) && !is_over,
            Inbox::Empty => false,
        };
        match may_take_in {
            true if !is_late => Next::TakeIn,
            _ if decide => Next::Decide,
            true => Next::GoAhead,
            false if self.is_undecided => Next::Decide,
            // At least one in each turn, however short it is to be.
            false if go_ahead && !(is_over && self.went_ahead) => Next::GoAhead,
            false => Next::Done,
        }
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

    const IDLE: ToDo = ToDo { decide: false, go_ahead: false };
    const DECIDE: ToDo = ToDo { decide: true, go_ahead: false };
    const AHEAD: ToDo = ToDo { decide: false, go_ahead: true };
    const BOTH: ToDo = ToDo { decide: true, go_ahead: true };

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
                (ONE, 6, BOTH, Next::Decide),
                // No launch is queued ahead of the rest of it while the device has work.
                (Did::Decided, 11, AHEAD, Next::TakeIn),
                (ONE, 17, AHEAD, Next::TakeIn),
                (ONE, 71, AHEAD, Next::TakeIn),
                (ONE, 72, AHEAD, Next::GoAhead),
                (Did::WentAhead, 77, AHEAD, Next::TakeIn),
                // Something to decide precedes a launch to queue ahead.
                (ONE, 83, BOTH, Next::Decide),
            ],
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
