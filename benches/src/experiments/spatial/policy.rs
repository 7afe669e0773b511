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

/// The factor of the policy, and the SMs that an urgent launch needed. The atomics order nothing: both sides use them
/// while no urgent launch is in flight, or around calls of the scheduler, which locks.
#[derive(Debug)]
pub struct SmFactor {
    factor: AtomicU32,
    needed: AtomicU32,
}

impl SmFactor {
    /// Sets the factor of the SMs that an urgent launch gets to those that it needs: 1 or more, or [`ALL`]. Nothing
    /// urgent is in flight.
    pub fn set(&self, factor: u32) {
        self.factor.store(factor, Relaxed);
    }

    /// The SMs that the last urgent launch could fill when it arrived; 0 before the first.
    pub fn needed(&self) -> u32 {
        self.needed.load(Relaxed)
    }
}

/// Of two launches, the more urgent one has the first SMs, and the other the rest. Further launches wait.
///
/// A launch of a priority above 0 is urgent. It has the SMs that it could fill when it arrived, times the factor of the
/// [`SmFactor`]. A launch that is not urgent has all SMs that are left, even if it cannot fill them: that is the same
/// in all arms.
#[derive(Debug)]
pub struct SmSharing(Queue<LaunchId>);

impl SmSharing {
    /// The policy, and the handle that sets its factor, which starts at 1.
    pub fn new() -> (SmSharing, Arc<SmFactor>) {
        let sm_factor = Arc::new(SmFactor { factor: AtomicU32::new(1), needed: AtomicU32::new(0) });
        (SmSharing(Queue::new(sm_factor.clone())), sm_factor)
    }
}

impl Policy for SmSharing {
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

/// The launches, the most urgent first. Generic, because tests cannot make a [`LaunchId`].
#[derive(Debug)]
struct Queue<Id> {
    sm_factor: Arc<SmFactor>,
    waiting: BTreeMap<(Reverse<Priority>, u64), Waiting<Id>>,
    arrivals: u64,
}

/// A launch in the queue.
#[derive(Debug)]
struct Waiting<Id> {
    id: Id,
    /// The SMs that it could fill when it was first granted some. It is constant: what is needed shrinks with the work
    /// that is left, and SMs would change hands without reason.
    need: Option<u32>,
}

impl<Id: Copy + PartialEq> Queue<Id> {
    fn new(sm_factor: Arc<SmFactor>) -> Queue<Id> {
        Queue { sm_factor, waiting: BTreeMap::new(), arrivals: 0 }
    }

    fn arrived(&mut self, id: Id, priority: Priority) {
        self.arrivals += 1;
        self.waiting.insert((Reverse(priority), self.arrivals), Waiting { id, need: None });
    }

    fn departed(&mut self, id: Id) {
        // The queue is two or three launches long here.
        self.waiting.retain(|_, waiting| waiting.id != id);
    }

    /// The SMs of each launch, out of `sms`; `need` gives the SMs that a launch can fill.
    fn grants(&mut self, sms: u32, need: impl Fn(Id) -> u32) -> [Option<(Id, SmRange)>; 2] {
        let mut queue = self.waiting.iter_mut();
        let Some(((Reverse(priority), _), first)) = queue.next() else { return [None; 2] };
        let mut end = sms;
        if *priority > Priority(0) {
            let need = *first.need.get_or_insert_with(|| {
                let need = need(first.id);
                self.sm_factor.needed.store(need, Relaxed);
                need
            });
            end = need.saturating_mul(self.sm_factor.factor.load(Relaxed)).clamp(1, sms);
        }
        let rest = queue.next().filter(|_| end < sms);
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
        let (SmSharing(Queue { sm_factor, .. }), _) = SmSharing::new();
        let mut queue = Queue::new(sm_factor.clone());
        sm_factor.set(factor);
        queue.arrived("victim", Priority(0));
        let whole = SmRange::new(0, SMS);
        assert_eq!(
            queue.grants(SMS, |_| 3),
            [Some(("victim", whole)), None],
            "also if it needs less"
        );
        queue.arrived("urgent", Priority(1));
        let grants = queue.grants(SMS, |_| need);
        assert_eq!(sm_factor.needed(), need);
        assert_eq!(queue.grants(SMS, |_| 1), grants, "although less is left to do");
        queue.departed("urgent");
        assert_eq!(queue.grants(SMS, |_| 3), [Some(("victim", whole)), None]);
        queue.departed("victim");
        assert_eq!(queue.grants(SMS, |_| 3), [None; 2]);
        grants
    }

    #[test]
    fn the_urgent_launch_has_what_it_needs_times_the_factor() {
        /// `end` is the first SM that the urgent launch does not have.
        struct Case {
            factor: u32,
            need: u32,
            end: u32,
        }
        for Case { factor, need, end } in [
            Case { factor: 1, need: 1, end: 1 },
            Case { factor: 2, need: 1, end: 2 },
            Case { factor: ALL, need: 1, end: SMS },
            Case { factor: 1, need: 3, end: 3 },
            Case { factor: 2, need: 3, end: 6 },
            Case { factor: 2, need: 5, end: SMS },
            Case { factor: ALL, need: SMS, end: SMS },
        ] {
            let victim = (end < SMS).then(|| ("victim", SmRange::new(end, SMS)));
            let expected = [Some(("urgent", SmRange::new(0, end))), victim];
            assert_eq!(shares(factor, need), expected, "{factor} times {need}");
        }
    }

    #[test]
    fn a_launch_that_comes_later_waits() {
        let (SmSharing(Queue { sm_factor, .. }), _) = SmSharing::new();
        let mut queue = Queue::new(sm_factor);
        queue.arrived("first", Priority(0));
        queue.arrived("second", Priority(0));
        assert_eq!(queue.grants(SMS, |_| 1), [Some(("first", SmRange::new(0, SMS))), None]);
        queue.arrived("urgent", Priority(1));
        assert_eq!(queue.grants(SMS, |_| 1)[1], Some(("first", SmRange::new(1, SMS))));
    }
}
