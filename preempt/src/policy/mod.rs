//! Which launch runs on which SMs: the trait that decides, and the policies that come with the library.
//!
//! A policy is told which launches arrived and departed, and is asked for a plan: which launch has which SMs. The
//! engine turns the difference between two plans into yields, resumes and growth. A plan that breaks the contract is
//! refused; the engine then goes on with [`Fifo`].
//!
//! | policy | which goes first | source | what it guarantees |
//! | --- | --- | --- | --- |
//! | [`StaticPriority`], the default | the highest [priority](Priority), then the oldest | EffiSha 7 | a launch never waits for a less urgent one |
//! | [`Hpf`] | the highest priority, then the shortest remaining time | FLEP 5.2.1 | the same; launches of equal priority preempt each other only if that pays for the yield |
//! | [`Ffs`] | streams in turn, by [weight](Arrival::weight) | FLEP 5.2.2 | granted shares to within two epochs of the heaviest stream; yields cost at most a given fraction of the time |
//! | [`DynamicPriority`] | the highest priority, which grows with waiting | EffiSha 7 | no launch waits for ever: quotas, and an inactive queue |
//! | [`EarliestDeadline`] | the earliest [deadline](Arrival::deadline) | Liu and Layland 1973 | an admitted launch is in time, as far as predictions are right |
//! | [`ShortestRemaining`] | the shortest remaining time | FLEP 5.2.1 | at most twice the least average slowdown, as far as predictions are right |
//! | [`FairShare`] | the stream that is furthest behind its share | Goyal et al. 1996 | shares to within two quanta of the heaviest stream; no wait longer than a quantum of each other stream |
//! | [`Fifo`] | the oldest | | no launch yields, none waits for ever |
//!
//! All of them share the SMs in space. The first launch has as many as it can fill, and the next ones share the rest,
//! in their order. SMs of a launch lie side by side, on a circle where the first SM of the device is beside the last one. So
//! an SM can be left over beside launches that can fill no more.
//! None is left over while a launch has no SM, or could fill one more beside its own, but those that
//! [an anticipating policy](StaticPriority::anticipating) leaves free for a moment. Where a policy has `whole_device`, that gives
//! the first launch everything, as EffiSha does. The cost of a decision grows with the
//! number of SMs and the logarithm of the number of launches. It allocates only if more launches wait than ever before.
//!
//! A policy of an application implements [`Policy`], and shares SMs with [`Plan::share`]; [`ModelDevice`] is for its
//! unit tests. `examples/own-policy` is one in thirty lines.

use std::time::Duration;

#[doc(inline)]
pub use preempt_device::abi::SmRange;
use preempt_device::abi::StopLimit;

use crate::vocabulary::LaunchId;

mod anticipation;
mod delegate;
mod demand;
mod dynamic_priority;
mod earliest_deadline;
mod fair_share;
mod ffs;
mod fifo;
mod hpf;
mod indexed_heap;
mod model;
mod placement;
mod remaining;
mod shares;
mod shortest_remaining;
mod static_priority;

pub use dynamic_priority::DynamicPriority;
pub use earliest_deadline::{EarliestDeadline, MissedDeadlines};
pub use fair_share::FairShare;
pub use ffs::Ffs;
pub use fifo::Fifo;
pub use hpf::Hpf;
pub use model::ModelDevice;
pub use placement::Packing;
pub use shortest_remaining::ShortestRemaining;
pub use static_priority::StaticPriority;

/// How urgent a launch is. Higher is more urgent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Priority(pub i32);

impl From<i32> for Priority {
    fn from(priority: i32) -> Priority {
        Priority(priority)
    }
}

/// A launch as a policy sees it. [`Arrival::new`] makes one for tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[must_use = "a policy is told of it"]
pub struct Arrival {
    /// The launch.
    pub id: LaunchId,
    /// The number of its stream.
    pub stream: u32,
    /// Its priority, or that of the most urgent operation that waits for it.
    pub priority: Priority,
    /// Its share relative to others; at least 1.
    pub weight: u32,
    /// When it, or something that waits for it, should be done, on the policy's clock.
    pub deadline: Option<Duration>,
    /// Its block-tasks.
    pub tasks: u32,
}

/// Decides which launch runs on which SMs.
///
/// The engine calls hooks in order, on the thread that drives it. `now` is the time since the scheduler was built,
/// and never goes back. The scheduler waits for hooks, so a hook must not wait for the scheduler, nor drop it.
///
/// # Example
///
/// A policy keeps the launches that are there, and puts them into an order; [`Plan::share`] places them.
///
/// ```
/// use std::time::Duration;
/// use preempt::LaunchId;
/// use preempt::policy::{Arrival, DeviceView, ModelDevice, Packing, Plan, Policy};
/// use preempt::sim::{KernelModel, Machine, Simulation, Workload};
///
/// /// Last come, first served.
/// #[derive(Debug, Default)]
/// struct Lifo(Vec<LaunchId>);
///
/// impl Policy for Lifo {
///     fn name(&self) -> &str {
///         "last come, first served"
///     }
///
///     fn arrived(&mut self, _now: Duration, launch: Arrival) {
///         self.0.push(launch.id);
///     }
///
///     // The launch keeps its place, whatever its priority is now.
///     fn changed(&mut self, _now: Duration, _launch: Arrival) {}
///
///     fn departed(&mut self, _now: Duration, launch: LaunchId) {
///         self.0.retain(|&other| other != launch);
///     }
///
///     fn assign(&mut self, _now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
///         plan.share(self.0.iter().rev().copied(), Packing::Spread, device);
///     }
/// }
///
/// // One decision, in a unit test.
/// let (mut device, mut policy, mut plan) = (ModelDevice::new(8), Lifo::default(), Plan::default());
/// let (first, second) = (device.launch(1000), device.launch(1000));
/// policy.arrived(Duration::ZERO, first);
/// policy.arrived(Duration::ZERO, second);
/// policy.assign(Duration::ZERO, &device, &mut plan);
/// assert_eq!(plan.grants()[0].0, second.id);
///
/// // All decisions over a workload, in virtual time. `SchedulerBuilder::policy` takes it, too.
/// let mut workload = Workload::new(1);
/// let streams = [workload.stream(0), workload.stream(0)];
/// let long = KernelModel::new("long", Duration::from_millis(10), 10_000);
/// workload.launch(streams[0], &long, Duration::ZERO);
/// workload.launch(streams[1], &long, Duration::from_millis(1));
/// let results = Simulation::new(Machine::h200(), Lifo::default()).run(&workload)?;
/// assert!(results.launches[1].done < results.launches[0].done);
/// # Ok::<(), preempt::Error>(())
/// ```
pub trait Policy: Send {
    /// The name that errors and reports use.
    fn name(&self) -> &str;

    /// Whether a ready launch is to run at all. A launch that is not admitted fails with
    /// [`LaunchError::NotAdmitted`](crate::error::LaunchError::NotAdmitted), and the policy is not told of it again.
    fn admits(&mut self, _now: Duration, _launch: &Arrival, _device: &dyn DeviceView) -> bool {
        true
    }

    /// Notes that a launch is ready to run: everything that it waits for is done.
    fn arrived(&mut self, now: Duration, launch: Arrival);

    /// Notes that the priority, weight or deadline of a launch has changed, or is inherited from another one.
    fn changed(&mut self, now: Duration, launch: Arrival) {
        self.departed(now, launch.id);
        self.arrived(now, launch);
    }

    /// Notes that the blocks of a launch that has lost its SMs have left, which changes [`DeviceView::remaining`].
    /// The policy is not asked for a plan because of it.
    fn yielded(&mut self, _now: Duration, _launch: LaunchId) {}

    /// Notes that a launch is done, was cancelled or failed; it needs no SMs from now on.
    fn departed(&mut self, now: Duration, launch: LaunchId);

    /// Notes that the stream of a launch was [suspended](crate::Stream::suspend): the launch needs no SMs until it arrives again,
    /// which it does when the stream is resumed, if it was not cancelled. By default the same as [`departed`](Policy::departed).
    fn withdrawn(&mut self, now: Duration, launch: LaunchId) {
        self.departed(now, launch);
    }

    /// Grants SMs to launches that arrived and have not departed. A launch that is granted
    /// nothing yields all that it has.
    ///
    /// Called after every change, so the cost should not grow with the number of waiting launches. While launches
    /// wait, at least one must be granted an SM, because nothing else would ever call again. For a second at most, none may have
    /// any, if the policy says when it wants to be [asked again](Policy::wake).
    fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan);

    /// Whether priorities of the hardware keep what the policy promises: a launch keeps its SMs until it is done, or until
    /// launches before it in the order of grants have blocks for them. A launch may then run as a plain grid where that
    /// costs less ([`Preemption::Auto`](crate::Preemption::Auto)). A policy that takes SMs away at certain times, or keeps
    /// launches to certain SMs, says `false`. Asked for
    /// each launch that could be plain.
    fn goes_by_order(&self) -> bool {
        false
    }

    /// Whether it may take SMs from a launch of priority `of` for one of priority `by`, of another stream. Launches that no
    /// stream of the scheduler can take SMs from need not be preemptible ([`Preemption::Auto`](crate::Preemption::Auto)).
    fn may_preempt(&self, _by: Priority, _of: Priority) -> bool {
        true
    }

    /// The time that blocks have to leave SMs that are given to a launch whose stream has no
    /// [limit](crate::Stream::set_latency_limit) of its own; `None` for as soon as possible. A policy that takes SMs away
    /// without hurry has less work done again if it gives them time.
    fn latency_limit(&self) -> Option<Duration> {
        None
    }

    /// The plan that [`assign`](Policy::assign) would make if a launch arrived now, after which the policy is as it was. The
    /// decision about an [armed](crate::Program::arm) program is made ahead by it. A plan without grants says that the policy
    /// cannot tell; nothing is made ahead then.
    ///
    /// A policy that [goes by order](Policy::goes_by_order) is told of the launch, asked, and told that it has departed.
    fn foresee(
        &mut self,
        now: Duration,
        launch: Arrival,
        device: &dyn DeviceView,
        plan: &mut Plan,
    ) {
        if self.goes_by_order() {
            self.arrived(now, launch);
            self.assign(now, device, plan);
            self.departed(now, launch.id);
        }
    }

    /// When it wants to be asked again although nothing else happens, such as at the end of a quota: a time on the clock of
    /// `now`, as the other hooks have it, and not from now on. Asked for after each plan.
    ///
    /// ```
    /// use std::collections::VecDeque;
    /// use std::time::Duration;
    ///
    /// use preempt::LaunchId;
    /// use preempt::policy::{Arrival, DeviceView, Packing, Plan, Policy};
    /// use preempt::sim::{KernelModel, Machine, Simulation, Workload};
    ///
    /// const TURN: Duration = Duration::from_millis(1);
    ///
    /// /// Launches run in turns of a millisecond.
    /// #[derive(Default)]
    /// struct Turns {
    ///     /// The first one has its turn.
    ///     queue: VecDeque<LaunchId>,
    ///     until: Duration,
    /// }
    ///
    /// impl Policy for Turns {
    ///     fn name(&self) -> &str {
    ///         "turns"
    ///     }
    ///
    ///     fn arrived(&mut self, _now: Duration, launch: Arrival) {
    ///         self.queue.push_back(launch.id);
    ///     }
    ///
    ///     fn departed(&mut self, _now: Duration, launch: LaunchId) {
    ///         self.queue.retain(|&other| other != launch);
    ///     }
    ///
    ///     fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
    ///         if now >= self.until {
    ///             let last = self.queue.pop_front();
    ///             self.queue.extend(last);
    ///             self.until = now + TURN;
    ///         }
    ///         plan.share(self.queue.iter().copied(), Packing::Spread, device);
    ///     }
    ///
    ///     // Nothing else says that a turn is over.
    ///     fn wake(&self) -> Option<Duration> {
    ///         (self.queue.len() > 1).then_some(self.until)
    ///     }
    /// }
    ///
    /// let ms = Duration::from_millis;
    /// let mut workload = Workload::new(1);
    /// for _ in 0..2 {
    ///     let stream = workload.stream(0);
    ///     workload.launch(stream, &KernelModel::new("long", ms(10), 10_000), Duration::ZERO);
    /// }
    /// let results = Simulation::new(Machine::h200(), Turns::default()).run(&workload)?;
    /// // One after the other, the first one would end after 10 ms.
    /// assert!(results.launches.iter().all(|launch| launch.done > ms(15)));
    /// # assert!(results.policy_error.is_none());
    /// # Ok::<(), preempt::Error>(())
    /// ```
    fn wake(&self) -> Option<Duration> {
        None
    }
}

/// What a policy can ask about the device and about launches. [`ModelDevice`] is one for tests.
///
/// To preempt a launch costs its [yield overhead](DeviceView::yield_overhead), and gains its SMs for as long as it [has
/// left](DeviceView::remaining). Below that cost it is a loss, whatever is launched instead.
pub trait DeviceView {
    /// The number of SMs.
    fn sms(&self) -> u32;

    /// The SMs that the rest of a launch can fill, at least 1; 0 for an unknown launch. If that rest is too short for
    /// another launch to take its SMs, they include those that the next launches of its stream can fill.
    fn need(&self, launch: LaunchId) -> u32;

    /// The SMs over which the rest of a launch can be spread, one block-task on each: at least as many as it
    /// [needs](DeviceView::need). A launch with few block-tasks is faster on them than on those that it needs
    /// (FLEP section 6.4).
    fn spread(&self, launch: LaunchId) -> u32;

    /// The SMs that a launch has.
    fn range(&self, launch: LaunchId) -> SmRange;

    /// The owner of each SM.
    fn owners(&self) -> &[Option<LaunchId>];

    /// The predicted durations of the launches that are queued behind one in its stream, summed up.
    fn backlog(&self, launch: LaunchId) -> Duration;

    /// How long the rest of a launch takes on all SMs that it can fill, by its predicted duration and its progress.
    /// `None` without a prediction.
    fn remaining(&self, launch: LaunchId) -> Option<Duration>;

    /// The cost of a yield: the time from the signal until the last block is out, and the work that it
    /// [drops](DeviceView::requeued). The time is the mean of the kernel's last yields.
    fn yield_overhead(&self, launch: LaunchId) -> Duration;

    /// What it costs to take this SM from the launch that has it, by how far the block-tasks there are: the time until those
    /// have ended that blocks end first, as they do those that were dropped twice, and what blocks do again of those that they
    /// drop. As long as the new launch waits for ends beyond its latency limit, at once without one, that time counts for each
    /// of the device's SMs. Zero where nothing is known, and the SMs of a launch are alike then. Chimera chooses SMs by what
    /// they lose within the limit (Park et al., ASPLOS 2015, section 3.3).
    ///
    /// It is known of launches whose duration is predicted, and whose block-tasks take more than twice as long as a stop; in the
    /// first decision after a launch has come that does not need all SMs, if that has a latency limit or may have to wait for
    /// ends of block-tasks: to look at them takes the host some 10 us, in which the new launch does not start, and is done when the
    /// policy first asks in [`assign`](Policy::assign). Of an armed program, whose decision was made ahead, nothing is known. Blocks
    /// tell when their block-tasks begin, so what was seen last counts as now. In the simulator all block-tasks of a kernel are
    /// alike, and nothing is known.
    fn sm_yield_overhead(&self, _sm: u32) -> Duration {
        Duration::ZERO
    }

    /// Of the SMs that a launch has, the `count` SMs in a row that are [cheapest to take](DeviceView::sm_yield_overhead)
    /// together, and the first ones of equals. All that it has, if these are no more. Like the range of the launch, the
    /// result can wrap around.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use preempt::policy::{DeviceView, ModelDevice, SmRange};
    ///
    /// let mut device = ModelDevice::new(8);
    /// let launch = device.launch(1000).id;
    /// device.set_range(launch, SmRange::new(5, 3)); // SMs 5 to 7, and 0 to 2
    /// for (sm, micros) in [(5, 9), (6, 4), (7, 1), (0, 2), (1, 6), (2, 9)] {
    ///     device.set_sm_yield_overhead(sm, Duration::from_micros(micros));
    /// }
    /// assert_eq!(device.cheapest_sms(launch, 1), SmRange::new(7, 8));
    /// assert_eq!(device.cheapest_sms(launch, 2), SmRange::new(7, 1));
    /// assert_eq!(device.cheapest_sms(launch, 100), SmRange::new(5, 3));
    /// ```
    fn cheapest_sms(&self, launch: LaunchId, count: u32) -> SmRange {
        let overhead = |sm| self.sm_yield_overhead(sm);
        placement::cheapest_part(self.range(launch), count, self.sms(), overhead)
    }

    /// The work that a launch has to do again when it yields, as a time on all SMs that it can fill. Part of the [yield
    /// overhead](DeviceView::yield_overhead). For a kernel with yield points that is a part of a block-task for each of
    /// its blocks on the device, by the predicted duration: half of it, until stops have told what part is done.
    fn requeued(&self, launch: LaunchId) -> Duration;

    /// The time that a launch has had SMs, summed over SMs.
    fn sm_time(&self, launch: LaunchId) -> Duration;
}

/// Which launch has which SMs.
#[derive(Debug, Default)]
pub struct Plan {
    pub(crate) grants: Vec<(LaunchId, SmRange)>,
    /// The launches that share all SMs.
    pub(crate) both: Option<[LaunchId; 2]>,
    /// SMs that are granted to none.
    free: Vec<SmRange>,
    scratch: placement::Scratch,
}

/// The urgency that the application asks for, of a launch or of all launches of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Urgency {
    pub priority: Priority,
    /// At least 1.
    pub weight: u32,
    /// On the policy's clock.
    pub deadline: Option<Duration>,
    /// The time that blocks of others have to leave the SMs that it is given; the policy's, if it asks for none.
    pub latency_limit: Option<Duration>,
}

/// Whether blocks look at how much is left of this limit. For one of zero they drain, and for the longest ones, too.
pub(crate) fn is_watched(limit: Duration) -> bool {
    ![StopLimit::ZERO, StopLimit::NEVER].contains(&on_device(limit))
}

/// What signals have in the place of this limit.
pub(crate) fn on_device(limit: Duration) -> StopLimit {
    StopLimit::within(limit.as_nanos().try_into().unwrap_or(u64::MAX))
}

impl Default for Urgency {
    fn default() -> Urgency {
        let (priority, weight) = (Priority::default(), 1);
        Urgency { priority, weight, deadline: None, latency_limit: None }
    }
}

impl Plan {
    /// Grants the SMs in `range` to `launch`. Ranges of different launches must not overlap;
    /// [`grant_both`](Plan::grant_both) is for two launches on the same SMs.
    pub fn grant(&mut self, launch: LaunchId, range: SmRange) {
        self.grants.push((launch, range));
    }

    /// Grants all SMs to two launches at a time. Each of them has half of the room on every SM: shared memory, registers
    /// and threads. Of a kernel of which an SM holds one block, it is that block, and the other launch may have to wait. So it
    /// may beside a plain grid, which has all the room that it finds. No other launch can have an SM.
    ///
    /// A launch with blocks for all of the room leaves first, and is launched anew with half of them. One that goes on alone
    /// gets more.
    pub fn grant_both(&mut self, launches: [LaunchId; 2], device: &dyn DeviceView) {
        let all = SmRange::new(0, device.sms());
        self.grants.extend(launches.map(|launch| (launch, all)));
        self.both = Some(launches);
    }

    pub(crate) fn clear(&mut self) {
        self.grants.clear();
        self.both = None;
        self.free.clear();
    }

    /// The grants so far, for policies that ask other policies.
    pub fn grants(&self) -> &[(LaunchId, SmRange)] {
        &self.grants
    }
}
