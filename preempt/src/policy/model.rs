//! A device that exists in tests of policies alone.

use std::collections::BTreeMap;
use std::time::Duration;

use preempt_device::abi::{MAX_SMS, SmRange};

use super::{Arrival, DeviceView, Plan, Priority};
use crate::vocabulary::LaunchId;

/// A device for unit tests of a [`Policy`](super::Policy): SMs, launches that have some, and no time.
///
/// It answers what a policy asks, and has the SMs that a [plan](ModelDevice::follow) grants. Kernels do not run:
/// `preempt::sim` is for that. What is not set is 0 or unknown.
///
/// ```
/// use std::time::Duration;
/// use preempt::policy::{ModelDevice, Plan, Policy, SmRange, StaticPriority};
///
/// let mut device = ModelDevice::new(8);
/// let mut policy = StaticPriority::new();
/// let batch = device.launch(1000);
/// policy.arrived(Duration::ZERO, batch);
/// let urgent = device.launch(3).priority(10);
/// policy.arrived(Duration::from_millis(1), urgent);
///
/// let mut plan = Plan::default();
/// policy.assign(Duration::from_millis(1), &device, &mut plan);
/// assert_eq!(plan.grants(), [(urgent.id, SmRange::new(0, 3)), (batch.id, SmRange::new(3, 8))]);
/// ```
#[derive(Clone, Debug)]
pub struct ModelDevice {
    owners: Vec<Option<LaunchId>>,
    /// What it costs to take each SM.
    overheads: Vec<Duration>,
    launches: BTreeMap<LaunchId, Model>,
    /// Launches that were ever made.
    made: u32,
}

/// A launch as the device knows it.
#[derive(Clone, Debug)]
struct Model {
    tasks: u32,
    blocks_per_sm: u32,
    range: SmRange,
    backlog: Duration,
    remaining: Option<Duration>,
    yield_overhead: Duration,
    requeued: Duration,
    sm_time: Duration,
}

impl ModelDevice {
    /// A device of `sms` SMs: at least 1, and no more than a device can have.
    pub fn new(sms: u32) -> ModelDevice {
        let sms = sms.clamp(1, MAX_SMS) as usize;
        let (owners, overheads) = (vec![None; sms], vec![Duration::ZERO; sms]);
        ModelDevice { owners, overheads, launches: BTreeMap::new(), made: 0 }
    }

    /// Makes a launch of `tasks` block-tasks, at least 1, of which an SM holds one. It has no SM yet. The arrival is
    /// for [`Policy::arrived`](super::Policy::arrived).
    pub fn launch(&mut self, tasks: u32) -> Arrival {
        let id = LaunchId::numbered(self.made);
        self.made += 1;
        let model = Model {
            tasks: tasks.max(1),
            blocks_per_sm: 1,
            range: SmRange::EMPTY,
            backlog: Duration::ZERO,
            remaining: None,
            yield_overhead: Duration::ZERO,
            requeued: Duration::ZERO,
            sm_time: Duration::ZERO,
        };
        self.launches.insert(id, model);
        Arrival::new(id, tasks.max(1))
    }

    /// Takes a launch off the device: it is done, or was cancelled.
    pub fn remove(&mut self, launch: LaunchId) {
        self.launches.remove(&launch);
        self.enter_owners();
    }

    /// Gives each launch the SMs that the plan grants it, and none to the others. Where ranges overlap, which the
    /// engine refuses, an SM belongs to the launch that was made last.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use preempt::policy::{Hpf, ModelDevice, Plan, Policy, SmRange};
    ///
    /// let ms = Duration::from_millis;
    /// let (mut device, mut policy) = (ModelDevice::new(8), Hpf::new());
    /// let mut plan = Plan::default();
    /// let long = device.launch(1000);
    /// device.set_remaining(long.id, ms(50));
    /// policy.arrived(ms(0), long);
    /// policy.assign(ms(0), &device, &mut plan);
    /// device.follow(&plan);
    ///
    /// // Now the long launch has all SMs. A short one takes them, ..
    /// let short = device.launch(1000);
    /// device.set_remaining(short.id, ms(25));
    /// policy.arrived(ms(1), short);
    /// let mut plan = Plan::default();
    /// policy.assign(ms(1), &device, &mut plan);
    /// assert_eq!(plan.grants(), [(short.id, SmRange::new(0, 8))]);
    ///
    /// // .. unless that costs more than it gains.
    /// device.set_yield_overhead(long.id, ms(30), ms(0));
    /// let mut plan = Plan::default();
    /// policy.assign(ms(1), &device, &mut plan);
    /// assert_eq!(plan.grants(), [(long.id, SmRange::new(0, 8))]);
    /// ```
    pub fn follow(&mut self, plan: &Plan) {
        for model in self.launches.values_mut() {
            model.range = SmRange::EMPTY;
        }
        for &(launch, range) in plan.grants() {
            self.set(launch, |model| model.range = range);
        }
        self.enter_owners();
    }

    /// Gives a launch these SMs.
    pub fn set_range(&mut self, launch: LaunchId, range: SmRange) {
        self.set(launch, |model| model.range = range);
        self.enter_owners();
    }

    /// Sets how many blocks of a launch an SM holds, at least 1: what it [needs](DeviceView::need).
    pub fn set_blocks_per_sm(&mut self, launch: LaunchId, blocks: u32) {
        self.set(launch, |model| model.blocks_per_sm = blocks.max(1));
    }

    /// Sets how long the rest of a launch takes.
    pub fn set_remaining(&mut self, launch: LaunchId, time: impl Into<Option<Duration>>) {
        let time = time.into();
        self.set(launch, |model| model.remaining = time);
    }

    /// Sets how long the launches behind one in its stream take.
    pub fn set_backlog(&mut self, launch: LaunchId, time: Duration) {
        self.set(launch, |model| model.backlog = time);
    }

    /// Sets what a yield costs, and how much of it is work that is done again.
    pub fn set_yield_overhead(&mut self, launch: LaunchId, time: Duration, requeued: Duration) {
        self.set(launch, |model| (model.yield_overhead, model.requeued) = (time, requeued));
    }

    /// Sets what it costs to take an SM, whichever launch has it.
    pub fn set_sm_yield_overhead(&mut self, sm: u32, time: Duration) {
        if let Some(overhead) = self.overheads.get_mut(sm as usize) {
            *overhead = time;
        }
    }

    /// Sets how long a launch has had SMs, summed over SMs.
    pub fn set_sm_time(&mut self, launch: LaunchId, time: Duration) {
        self.set(launch, |model| model.sm_time = time);
    }

    /// Changes a launch, if there is one.
    fn set(&mut self, launch: LaunchId, change: impl FnOnce(&mut Model)) {
        if let Some(model) = self.launches.get_mut(&launch) {
            change(model);
        }
    }

    fn enter_owners(&mut self) {
        self.owners.fill(None);
        for (&launch, model) in &self.launches {
            for (sm, owner) in (0..).zip(&mut self.owners) {
                if !model.range.is_empty() && model.range.contains(sm) {
                    *owner = Some(launch);
                }
            }
        }
    }

    /// Something about a launch; the default for an unknown one, as the engine has it.
    fn of<T: Default>(&self, launch: LaunchId, what: impl FnOnce(&Model) -> T) -> T {
        self.launches.get(&launch).map(what).unwrap_or_default()
    }
}

impl DeviceView for ModelDevice {
    fn sms(&self) -> u32 {
        self.owners.len() as u32
    }

    fn need(&self, launch: LaunchId) -> u32 {
        self.of(launch, |model| model.tasks.div_ceil(model.blocks_per_sm).min(self.sms()))
    }

    fn spread(&self, launch: LaunchId) -> u32 {
        self.of(launch, |model| model.tasks.min(self.sms()))
    }

    fn range(&self, launch: LaunchId) -> SmRange {
        self.launches.get(&launch).map_or(SmRange::EMPTY, |model| model.range)
    }

    fn owners(&self) -> &[Option<LaunchId>] {
        &self.owners
    }

    fn backlog(&self, launch: LaunchId) -> Duration {
        self.of(launch, |model| model.backlog)
    }

    fn remaining(&self, launch: LaunchId) -> Option<Duration> {
        self.of(launch, |model| model.remaining)
    }

    fn yield_overhead(&self, launch: LaunchId) -> Duration {
        self.of(launch, |model| model.yield_overhead)
    }

    fn sm_yield_overhead(&self, sm: u32) -> Duration {
        self.overheads.get(sm as usize).copied().unwrap_or_default()
    }

    fn requeued(&self, launch: LaunchId) -> Duration {
        self.of(launch, |model| model.requeued)
    }

    fn sm_time(&self, launch: LaunchId) -> Duration {
        self.of(launch, |model| model.sm_time)
    }
}

impl Arrival {
    /// A launch of `tasks` block-tasks, in stream 0, with priority 0, a weight of 1 and no deadline. For tests of
    /// policies; a scheduler makes its own.
    ///
    /// ```
    /// use std::time::Duration;
    /// use preempt::LaunchId;
    /// use preempt::policy::{Arrival, Priority};
    ///
    /// let due = Duration::from_millis(5);
    /// let launch = Arrival::new(LaunchId::numbered(7), 1000).stream(2).priority(10).deadline(due);
    /// assert_eq!((launch.priority, launch.weight, launch.tasks), (Priority(10), 1, 1000));
    /// ```
    pub fn new(id: LaunchId, tasks: u32) -> Arrival {
        Arrival { id, stream: 0, priority: Priority::default(), weight: 1, deadline: None, tasks }
    }

    /// In the stream of this number.
    pub fn stream(mut self, number: u32) -> Arrival {
        self.stream = number;
        self
    }

    /// With this priority.
    pub fn priority(mut self, priority: impl Into<Priority>) -> Arrival {
        self.priority = priority.into();
        self
    }

    /// With this share relative to others; at least 1.
    pub fn weight(mut self, weight: u32) -> Arrival {
        self.weight = weight.max(1);
        self
    }

    /// Due at this time on the policy's clock.
    pub fn deadline(mut self, time: Duration) -> Arrival {
        self.deadline = Some(time);
        self
    }
}
