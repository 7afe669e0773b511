//! A policy that selects one of several policies, and the SM-time that launches of each weight had.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use preempt::LaunchId;
use preempt::policy::{Arrival, DeviceView, Plan, Policy, Priority};

/// A policy that lets one of several policies decide.
pub struct SelectedPolicy {
    policies: Vec<Box<dyn Policy>>,
    selector: PolicySelector,
}

/// Selects the policy, and reads the SM-time that it granted.
#[derive(Clone, Debug, Default)]
pub struct PolicySelector {
    chosen: Arc<AtomicUsize>,
    meter: Arc<Mutex<Meter>>,
}

/// Counts the SM-time of launches by the weight of their streams.
#[derive(Debug, Default)]
struct Meter {
    /// Set while SM-time is counted, which takes time from decisions.
    counts: bool,
    /// Each launch that has not departed, with its stream's weight, and the SMs that it has.
    launches: Vec<(LaunchId, u32, u32)>,
    /// The time up to which SM-time is counted.
    counted: Duration,
    /// The SM-time after each plan.
    readings: Vec<Reading>,
    total: Reading,
}

/// The SM-time of each weight up to some time; the index is the weight.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// The policy's clock.
    pub at: Duration,
    /// Nanoseconds of one SM.
    pub sm_nanos: [u128; WEIGHTS],
}

/// Weights below this number are counted.
const WEIGHTS: usize = 4;

impl PolicySelector {
    /// Selects the policy that decides from now on. Nothing is in flight, because no policy knows launches of another.
    // Relaxed: the scheduler's locks order it with the launches before and after.
    pub fn select(&self, policy: usize) {
        self.chosen.store(policy, Relaxed);
    }

    /// Starts to count. Nothing is in flight.
    pub fn start_counting(&self) {
        *self.meter() = Meter { counts: true, ..Meter::default() };
    }

    /// Ends the counting, and returns the readings since its start.
    pub fn take_readings(&self) -> Vec<Reading> {
        std::mem::take(&mut *self.meter()).readings
    }

    fn meter(&self) -> MutexGuard<'_, Meter> {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Meter {
    fn count(&mut self, now: Duration) {
        let nanos = now.saturating_sub(self.counted).as_nanos();
        for &(_, weight, sms) in &self.launches {
            if let Some(total) = self.total.sm_nanos.get_mut(weight as usize) {
                *total += nanos * u128::from(sms);
            }
        }
        (self.counted, self.total.at) = (now, now);
    }
}

impl SelectedPolicy {
    /// Starts with the first policy.
    pub fn new(policies: Vec<Box<dyn Policy>>) -> (SelectedPolicy, PolicySelector) {
        let selector = PolicySelector::default();
        (SelectedPolicy { policies, selector: selector.clone() }, selector)
    }

    fn policy(&mut self) -> &mut dyn Policy {
        &mut *self.policies[self.selector.chosen.load(Relaxed)]
    }

    /// The meter, if it counts.
    fn meter(&self) -> Option<MutexGuard<'_, Meter>> {
        Some(self.selector.meter()).filter(|meter| meter.counts)
    }
}

impl Policy for SelectedPolicy {
    fn name(&self) -> &str {
        self.policies[self.selector.chosen.load(Relaxed)].name()
    }

    fn admits(&mut self, now: Duration, launch: &Arrival, device: &dyn DeviceView) -> bool {
        self.policy().admits(now, launch, device)
    }

    fn arrived(&mut self, now: Duration, launch: Arrival) {
        if let Some(mut meter) = self.meter() {
            meter.launches.push((launch.id, launch.weight, 0));
        }
        self.policy().arrived(now, launch);
    }

    fn changed(&mut self, now: Duration, launch: Arrival) {
        self.policy().changed(now, launch);
    }

    fn yielded(&mut self, now: Duration, launch: LaunchId) {
        self.policy().yielded(now, launch);
    }

    fn departed(&mut self, now: Duration, launch: LaunchId) {
        if let Some(mut meter) = self.meter() {
            meter.count(now);
            meter.launches.retain(|(id, ..)| *id != launch);
        }
        self.policy().departed(now, launch);
    }

    fn goes_by_order(&self) -> bool {
        self.policies[self.selector.chosen.load(Relaxed)].goes_by_order()
    }

    fn may_preempt(&self, by: Priority, of: Priority) -> bool {
        self.policies[self.selector.chosen.load(Relaxed)].may_preempt(by, of)
    }

    fn latency_limit(&self) -> Option<Duration> {
        self.policies[self.selector.chosen.load(Relaxed)].latency_limit()
    }

    fn foresee(
        &mut self,
        now: Duration,
        launch: Arrival,
        device: &dyn DeviceView,
        plan: &mut Plan,
    ) {
        self.policy().foresee(now, launch, device, plan);
    }

    fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        self.policy().assign(now, device, plan);
        let sms = device.sms();
        let Some(mut meter) = self.meter() else { return };
        meter.count(now);
        for (_, _, has) in &mut meter.launches {
            *has = 0;
        }
        for (id, range) in plan.grants() {
            let has = (0..sms).filter(|&sm| range.contains(sm)).count() as u32;
            if let Some(launch) = meter.launches.iter_mut().find(|(other, ..)| other == id) {
                launch.2 = has;
            }
        }
        let total = meter.total;
        meter.readings.push(total);
    }

    fn wake(&self) -> Option<Duration> {
        self.policies[self.selector.chosen.load(Relaxed)].wake()
    }
}

#[cfg(test)]
mod tests {
    use preempt::policy::{Ffs, Fifo};

    use super::*;

    #[test]
    fn the_selected_policy_says_how_soon_blocks_have_to_leave() {
        let limit = Ffs::new().latency_limit();
        assert!(limit.is_some());
        let (policy, selector) =
            SelectedPolicy::new(vec![Box::new(Fifo::new()), Box::new(Ffs::new())]);
        assert_eq!(policy.latency_limit(), Fifo::new().latency_limit());
        selector.select(1);
        assert_eq!(policy.latency_limit(), limit);
    }
}
