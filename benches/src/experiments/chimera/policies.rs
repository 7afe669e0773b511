//! Which launch has which SMs where programs share the device: the periodic task's first, all evenly, or one at a time.

use std::time::Duration;

use preempt::LaunchId;
use preempt::policy::{Arrival, DeviceView, Packing, Plan, Policy, Priority, SmRange};

/// Launches of streams above priority 0 have the SMs that their blocks fill, in order of arrival, and the others all the rest.
///
/// `StaticPriority::packed` packs the least urgent launches, too, and leaves SMs idle for launches that do not come.
#[derive(Debug, Default)]
pub struct TaskFirst {
    urgent: Vec<LaunchId>,
    others: Vec<LaunchId>,
}

/// SMs in even parts, whatever the priorities: Smart Even with Rounds (Adriaens et al., HPCA 2012), as in Chimera's
/// section 4.
///
/// A launch that can fill less than its part leaves the rest to the others, if it lasts longer than a stop of theirs: they
/// would have hardly begun there when the next launch of its stream wants its part. Parts change whenever a launch comes or goes.
/// Launches lie in the order of their streams, the last one at the end of the device, so that a launch finds the SMs of its
/// predecessor in the stream.
#[derive(Debug, Default)]
pub struct SmartEven {
    /// The launches, by their streams' numbers.
    launches: Vec<(u32, LaunchId)>,
    /// Kept for its capacity: what each launch can fill, then its part.
    parts: Vec<u32>,
}

/// The oldest launch has the device, and the next one waits for its end: what a GPU without preemption does.
#[derive(Debug, Default)]
pub struct OneAtATime {
    /// In the order of arrival.
    launches: Vec<LaunchId>,
}

/// Divides `sms` among launches that can fill `wants` of them, which become their parts. A launch whose even part is more
/// than it can fill has what it can fill.
fn divide(sms: u32, wants: &mut [u32]) {
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by_key(|&index| wants[index]);
    let mut left = sms;
    for (given, &index) in order.iter().enumerate() {
        let even = left / (order.len() - given) as u32;
        wants[index] = wants[index].min(even);
        left -= wants[index];
    }
}

impl Policy for TaskFirst {
    fn name(&self) -> &str {
        "task first"
    }

    fn arrived(&mut self, _now: Duration, launch: Arrival) {
        let line = if launch.priority > Priority(0) { &mut self.urgent } else { &mut self.others };
        line.push(launch.id);
    }

    // It keeps its place.
    fn changed(&mut self, _now: Duration, _launch: Arrival) {}

    fn departed(&mut self, _now: Duration, launch: LaunchId) {
        self.urgent.retain(|&other| other != launch);
        self.others.retain(|&other| other != launch);
    }

    fn may_preempt(&self, by: Priority, of: Priority) -> bool {
        by > of
    }

    fn assign(&mut self, _now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        if plan.share(self.urgent.iter().copied(), Packing::Packed, device).is_none() {
            plan.share(self.others.iter().copied(), Packing::Spread, device);
        }
    }
}

impl Policy for SmartEven {
    fn name(&self) -> &str {
        "smart even"
    }

    fn arrived(&mut self, _now: Duration, launch: Arrival) {
        let place = self.launches.partition_point(|&(stream, _)| stream <= launch.stream);
        self.launches.insert(place, (launch.stream, launch.id));
    }

    // Priorities and weights do not count.
    fn changed(&mut self, _now: Duration, _launch: Arrival) {}

    fn departed(&mut self, _now: Duration, launch: LaunchId) {
        self.launches.retain(|&(_, other)| other != launch);
    }

    fn assign(&mut self, _now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        let sms = device.sms();
        self.parts.clear();
        let launches = &self.launches;
        self.parts.extend(launches.iter().map(|&(_, id)| {
            let others = launches.iter().map(|&(_, other)| other).filter(|&other| other != id);
            let stop = others.map(|other| device.yield_overhead(other)).max();
            let is_brief = device.remaining(id).zip(stop).is_some_and(|(left, stop)| left < stop);
            if is_brief { sms } else { device.spread(id).max(1) }
        }));
        divide(sms, &mut self.parts);
        let (mut start, last) = (0, self.launches.len().saturating_sub(1));
        for (index, (&(_, id), &part)) in self.launches.iter().zip(&self.parts).enumerate() {
            // The only launch stays at the beginning, where a lower stream's would be.
            let at = if index == last && index > 0 { sms - part } else { start };
            if part > 0 {
                plan.grant(id, SmRange::new(at, at + part));
            }
            start = at + part;
        }
    }
}

impl Policy for OneAtATime {
    fn name(&self) -> &str {
        "one at a time"
    }

    fn arrived(&mut self, _now: Duration, launch: Arrival) {
        self.launches.push(launch.id);
    }

    // It keeps its place.
    fn changed(&mut self, _now: Duration, _launch: Arrival) {}

    fn departed(&mut self, _now: Duration, launch: LaunchId) {
        self.launches.retain(|&other| other != launch);
    }

    fn may_preempt(&self, _by: Priority, _of: Priority) -> bool {
        false
    }

    fn assign(&mut self, _now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        if let Some(&first) = self.launches.first() {
            plan.grant(first, SmRange::new(0, device.sms()));
        }
    }
}

#[cfg(test)]
mod tests {
    use preempt::policy::ModelDevice;

    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn grants(policy: &mut impl Policy, device: &ModelDevice) -> Vec<(LaunchId, SmRange)> {
        let mut plan = Plan::default();
        policy.assign(NOW, device, &mut plan);
        plan.grants().to_vec()
    }

    #[test]
    fn the_task_has_what_it_fills_and_the_oldest_other_launch_the_rest() {
        let (mut device, mut policy) = (ModelDevice::new(8), TaskFirst::default());
        let [program, next] = [(); 2].map(|()| device.launch(16));
        let task = device.launch(8).priority(1);
        for launch in [program, next, task] {
            device.set_blocks_per_sm(launch.id, 4);
            policy.arrived(NOW, launch);
        }
        let both = [(task.id, SmRange::new(0, 2)), (program.id, SmRange::new(2, 8))];
        assert_eq!(grants(&mut policy, &device), both);
        policy.departed(NOW, task.id);
        assert_eq!(grants(&mut policy, &device), [(program.id, SmRange::new(0, 8))]);
        policy.departed(NOW, program.id);
        assert_eq!(grants(&mut policy, &device), [(next.id, SmRange::new(0, 8))]);
    }

    #[test]
    fn parts_are_even_and_what_one_cannot_fill_goes_to_the_others() {
        let parts = |mut wants: Vec<u32>| {
            divide(12, &mut wants);
            wants
        };
        assert_eq!(parts(vec![99, 99]), [6, 6]);
        assert_eq!(parts(vec![99, 2]), [10, 2]);
        assert_eq!(parts(vec![99, 1, 5]), [6, 1, 5]);
        assert_eq!(parts(vec![3]), [3]);
        assert_eq!(parts(vec![9; 13]).iter().sum::<u32>(), 12);
        assert!(parts(Vec::new()).is_empty());
    }

    #[test]
    fn a_launch_shares_from_its_arrival_to_its_end() {
        let (mut device, mut policy) = (ModelDevice::new(8), SmartEven::default());
        let (first, second) = (device.launch(100).stream(1), device.launch(100).stream(2));
        policy.arrived(NOW, second);
        policy.arrived(NOW, first);
        let both = [(first.id, SmRange::new(0, 4)), (second.id, SmRange::new(4, 8))];
        assert_eq!(grants(&mut policy, &device), both);
        policy.departed(NOW, first.id);
        assert_eq!(grants(&mut policy, &device), [(second.id, SmRange::new(0, 8))]);
        let small = device.launch(1).stream(1);
        policy.arrived(NOW, small);
        let both = [(small.id, SmRange::new(0, 1)), (second.id, SmRange::new(1, 8))];
        assert_eq!(grants(&mut policy, &device), both);
    }

    #[test]
    fn a_launch_that_is_over_before_others_could_stop_keeps_its_part() {
        let (mut device, mut policy) = (ModelDevice::new(8), SmartEven::default());
        let (small, long) = (device.launch(1).stream(1), device.launch(100).stream(2));
        for launch in [small, long] {
            policy.arrived(NOW, launch);
        }
        let micros = Duration::from_micros;
        device.set_yield_overhead(long.id, micros(20), NOW);
        for (left, sms) in [(19, 4), (20, 1)] {
            device.set_remaining(small.id, micros(left));
            let both = [(small.id, SmRange::new(0, sms)), (long.id, SmRange::new(sms, 8))];
            assert_eq!(grants(&mut policy, &device), both, "{left} us");
        }
        policy.departed(NOW, long.id);
        assert_eq!(grants(&mut policy, &device), [(small.id, SmRange::new(0, 1))]);
    }

    #[test]
    fn without_preemption_the_oldest_launch_has_the_device() {
        let (mut device, mut policy) = (ModelDevice::new(8), OneAtATime::default());
        let (first, second) = (device.launch(1), device.launch(100));
        policy.arrived(NOW, first);
        policy.arrived(NOW, second);
        assert_eq!(grants(&mut policy, &device), [(first.id, SmRange::new(0, 8))]);
        policy.departed(NOW, first.id);
        assert_eq!(grants(&mut policy, &device), [(second.id, SmRange::new(0, 8))]);
    }
}
