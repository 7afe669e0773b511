//! A policy that gives an urgent launch just as many SMs as it needs, or a multiple.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use preempt::LaunchId;
use preempt::policy::{Arrival, DeviceView, Plan, Policy, Priority, SmRange};

/// The factor that gives an urgent launch all SMs.
pub const ALL: u32 = u32::MAX;

/// What whoever measures and the policy tell each other. Nothing is ordered by it: both sides use it
/// while no urgent launch is in flight, or around calls of the scheduler, which locks.
#[derive(Debug)]
pub struct Dial {
    factor: AtomicU32,
    needed: AtomicU32,
}

impl Dial {
    /// How many times the SMs that it needs an urgent launch gets from now on: 1 or more, or [`ALL`].
    /// Nothing urgent may be in flight.
    pub fn turn(&self, factor: u32) {
        self.factor.store(factor, Relaxed);
    }

    /// The SMs that the last urgent launch could fill when it arrived; 0 before the first.
    pub fn needed(&self) -> u32 {
        self.needed.load(Relaxed)
    }
}

/// Of two launches, the more urgent one has the first SMs, and the other one the rest. Launches
/// after them wait.
///
/// A launch of a priority above 0 is urgent, and has as many SMs as it could fill when it arrived,
/// times the factor of the [`Dial`]. What is not urgent has all SMs that are left, also if it could not
/// fill them: it is the same in all arms.
#[derive(Debug)]
pub struct Spatial(Line<LaunchId>);

impl Spatial {
    /// The policy, and what sets its factor, which is 1.
    pub fn new() -> (Spatial, Arc<Dial>) {
        let dial = Arc::new(Dial { factor: AtomicU32::new(1), needed: AtomicU32::new(0) });
        (Spatial(Line::new(dial.clone())), dial)
    }
}

impl Policy for Spatial {
    fn name(&self) -> &str {
        "spatial"
    }

    fn arrived(&mut self, _now: Duration, launch: Arrival) {
        self.0.arrived(launch.id, launch.priority);
    }

    fn departed(&mut self, _now: Duration, launch: LaunchId) {
        self.0.departed(launch);
    }

    fn assign(&mut self, _now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        let grants = self.0.grants(device.sms(), |launch| device.need(launch));
        for (launch, range) in grants.into_iter().flatten() {
            plan.grant(launch, range);
        }
    }
}

/// The launches, the most urgent one first. Generic, because tests cannot make a [`LaunchId`].
#[derive(Debug)]
struct Line<Id> {
    dial: Arc<Dial>,
    waiting: BTreeMap<(Reverse<Priority>, u64), Waiting<Id>>,
    arrivals: u64,
}

/// A launch in the line.
#[derive(Debug)]
struct Waiting<Id> {
    id: Id,
    /// The SMs that it could fill when it was first granted some. It stays the same: as the rest gets
    /// smaller, so would what it needs, and SMs would change hands without reason.
    need: Option<u32>,
}

impl<Id: Copy + PartialEq> Line<Id> {
    fn new(dial: Arc<Dial>) -> Line<Id> {
        Line { dial, waiting: BTreeMap::new(), arrivals: 0 }
    }

    fn arrived(&mut self, id: Id, priority: Priority) {
        self.arrivals += 1;
        self.waiting.insert((Reverse(priority), self.arrivals), Waiting { id, need: None });
    }

    fn departed(&mut self, id: Id) {
        // The line is two or three launches long here.
        self.waiting.retain(|_, waiting| waiting.id != id);
    }

    /// Who has which of `sms` SMs, with `need` for the SMs that a launch can fill.
    fn grants(&mut self, sms: u32, need: impl Fn(Id) -> u32) -> [Option<(Id, SmRange)>; 2] {
        let mut line = self.waiting.iter_mut();
        let Some(((Reverse(priority), _), first)) = line.next() else { return [None; 2] };
        let mut end = sms;
        if *priority > Priority(0) {
            let need = *first.need.get_or_insert_with(|| {
                let need = need(first.id);
                self.dial.needed.store(need, Relaxed);
                need
            });
            end = need.saturating_mul(self.dial.factor.load(Relaxed)).clamp(1, sms);
        }
        let rest = line.next().filter(|_| end < sms);
        [
            Some((first.id, SmRange::new(0, end))),
            rest.map(|(_, next)| (next.id, SmRange::new(end, sms))),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMS: u32 = 8;

    /// The SMs of a victim and of an urgent launch that needs `need`, with this factor.
    fn shares(factor: u32, need: u32) -> [Option<(&'static str, SmRange)>; 2] {
        let (Spatial(Line { dial, .. }), _) = Spatial::new();
        let mut line = Line::new(dial.clone());
        dial.turn(factor);
        line.arrived("victim", Priority(0));
        let whole = SmRange::new(0, SMS);
        assert_eq!(
            line.grants(SMS, |_| 3),
            [Some(("victim", whole)), None],
            "also if it needs less"
        );
        line.arrived("urgent", Priority(1));
        let grants = line.grants(SMS, |_| need);
        assert_eq!(dial.needed(), need);
        assert_eq!(line.grants(SMS, |_| 1), grants, "although less is left to do");
        line.departed("urgent");
        assert_eq!(line.grants(SMS, |_| 3), [Some(("victim", whole)), None]);
        line.departed("victim");
        assert_eq!(line.grants(SMS, |_| 3), [None; 2]);
        grants
    }

    #[test]
    fn the_urgent_launch_has_what_it_needs_times_the_factor() {
        let split = |at: u32| {
            let victim = (at < SMS).then(|| ("victim", SmRange::new(at, SMS)));
            [Some(("urgent", SmRange::new(0, at))), victim]
        };
        assert_eq!(shares(1, 1), split(1));
        assert_eq!(shares(2, 1), split(2));
        assert_eq!(shares(ALL, 1), split(SMS));
        assert_eq!(shares(1, 3), split(3));
        assert_eq!(shares(2, 3), split(6));
        assert_eq!(shares(2, 5), split(SMS));
        assert_eq!(shares(ALL, SMS), split(SMS));
    }

    #[test]
    fn a_launch_that_comes_later_waits() {
        let (Spatial(Line { dial, .. }), _) = Spatial::new();
        let mut line = Line::new(dial);
        line.arrived("first", Priority(0));
        line.arrived("second", Priority(0));
        assert_eq!(line.grants(SMS, |_| 1), [Some(("first", SmRange::new(0, SMS))), None]);
        line.arrived("urgent", Priority(1));
        assert_eq!(line.grants(SMS, |_| 1)[1], Some(("first", SmRange::new(1, SMS))));
    }
}
