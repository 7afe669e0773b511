//! Who runs on which SMs: the trait that decides, and the policies that come with the library.
//!
//! A policy hears of launches that came and went, and is asked for a plan: which launch has
//! which SMs. The engine turns the difference between two plans into yields, resumes and
//! growth. A plan that makes no sense is refused; the engine then goes on with [`Fifo`].
//!
//! | policy | who goes first | source | what it guarantees |
//! | --- | --- | --- | --- |
//! | [`StaticPriority`], the default | the highest [priority](Priority), then the oldest | EffiSha 7 | a launch never waits for a less urgent one |
//! | [`Hpf`] | the highest priority, then the shortest remaining time | FLEP 5.2.1 | the same; launches of equal priority preempt each other only if that pays for the yield |
//! | [`Ffs`] | streams in turn, by [weight](Arrival::weight) | FLEP 5.2.2 | shares to within two epochs of the heaviest stream; yields cost at most a given fraction of the time |
//! | [`DynamicPriority`] | the highest priority, which grows with waiting | EffiSha 7 | nobody waits for ever: quotas, and an inactive queue |
//! | [`EarliestDeadline`] | the earliest [deadline](Arrival::deadline) | Liu and Layland 1973 | whoever is admitted is in time, as far as predictions are right |
//! | [`ShortestRemaining`] | the shortest remaining time | FLEP 5.2.1 | at most twice the least average slowdown, as far as predictions are right |
//! | [`FairShare`] | the stream that is furthest behind its share | Goyal et al. 1996 | shares to within two quanta of the heaviest stream; no wait longer than a quantum of each other stream |
//! | [`Fifo`] | the oldest | | no launch yields, none waits for ever |
//!
//! All of them share the SMs in space: the first launch has as many as it can fill, and the next ones have
//! the rest, in their order. SMs of a launch lie side by side, so an SM can be left over beside launches that can fill
//! no more; none is while a launch has no SM, or could fill one more beside its own. (`whole_device`, where a policy
//! has it, gives the first launch everything, as EffiSha does.) The cost of a decision grows with the number of
//! SMs and the logarithm of the number of launches, and nothing is allocated for it but where more launches wait than
//! ever before.
//!
//! A policy of one's own takes thirty lines: see `examples/own-policy`.

use std::time::Duration;

pub use preempt_device::abi::SmRange;

use crate::vocabulary::LaunchId;

mod delegate;
mod demand;
mod dynamic_priority;
mod earliest_deadline;
mod fair_share;
mod ffs;
mod fifo;
mod hpf;
mod indexed_heap;
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

/// A launch as a policy hears of it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
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
/// Hooks are called by the engine, in order, from whichever thread drives it. `now` is the time
/// since the scheduler was built, and never goes back. The scheduler waits for them: a hook must not wait for the
/// scheduler, nor drop it.
pub trait Policy: Send {
    /// The name that errors and reports use.
    fn name(&self) -> &str;

    /// Whether a launch that is ready is to run at all. One that is not fails with
    /// [`LaunchError::NotAdmitted`](crate::error::LaunchError::NotAdmitted); the policy hears no more of it.
    fn admits(&mut self, _now: Duration, _launch: &Arrival, _device: &dyn DeviceView) -> bool {
        true
    }

    /// A launch is ready to run: everything it has to wait for is done.
    fn arrived(&mut self, now: Duration, launch: Arrival);

    /// The priority, weight or deadline of a launch was changed, or it has inherited another one.
    fn changed(&mut self, now: Duration, launch: Arrival) {
        self.departed(now, launch.id);
        self.arrived(now, launch);
    }

    /// Blocks of a launch that has lost its SMs have left, so that [`DeviceView::remaining`] says something else than
    /// before. The policy is not asked for a plan on that account.
    fn yielded(&mut self, _now: Duration, _launch: LaunchId) {}

    /// A launch is done, was cancelled or failed; it needs no SMs from now on.
    fn departed(&mut self, now: Duration, launch: LaunchId);

    /// Grants SMs to launches that arrived and have not departed. A launch that is granted
    /// nothing yields all that it has.
    ///
    /// Called after every change; the cost should not grow with the number of launches that
    /// wait. While launches wait, at least one must be granted an SM: nothing else would ever
    /// call again.
    fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan);

    /// When it wants to be asked again although nothing else happens: when a quota ends, say. Asked for
    /// after each plan.
    fn wake(&self) -> Option<Duration> {
        None
    }
}

/// What a policy can ask about the device and about launches.
pub trait DeviceView {
    /// The number of SMs.
    fn sms(&self) -> u32;

    /// The SMs that the rest of a launch can fill, at least 1; 0 for an unknown launch. If that rest is shorter than
    /// it would take anyone else to leave again, also those that the next launches of its stream can fill.
    fn need(&self, launch: LaunchId) -> u32;

    /// The SMs over which the rest of a launch can be spread, one block-task on each: at least as many as it
    /// [needs](DeviceView::need). A launch with few block-tasks is faster on them than on those that it needs
    /// (FLEP section 6.4).
    fn spread(&self, launch: LaunchId) -> u32;

    /// The SMs that a launch has.
    fn range(&self, launch: LaunchId) -> SmRange;

    /// Who has each SM.
    fn owners(&self) -> &[Option<LaunchId>];

    /// How long the launches take that are queued behind a launch in its stream, as far as that was predicted.
    fn backlog(&self, launch: LaunchId) -> Duration;

    /// How long the rest of a launch takes if it has all the SMs that it can fill, by its predicted duration
    /// and its progress; `None` if nobody can tell.
    fn remaining(&self, launch: LaunchId) -> Option<Duration>;

    /// What it costs to make a launch yield: from the signal until its last block is out, the mean of its kernel's last
    /// yields, and what it [drops](DeviceView::dropped).
    fn yield_overhead(&self, launch: LaunchId) -> Duration;

    /// The work that a launch has to do again when it yields, as a time on all the SMs that it can fill; part of the
    /// [yield overhead](DeviceView::yield_overhead). Where there are yield points, half of a block-task in each place
    /// on the device, by the predicted duration.
    fn dropped(&self, launch: LaunchId) -> Duration;

    /// The time that a launch has had SMs, summed over SMs.
    fn sm_time(&self, launch: LaunchId) -> Duration;
}

/// Which launch has which SMs.
#[derive(Debug, Default)]
pub struct Plan {
    pub(crate) grants: Vec<(LaunchId, SmRange)>,
}

/// What a stream or its owner asks of the policy for a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Urgency {
    pub priority: Priority,
    /// At least 1.
    pub weight: u32,
    /// On the policy's clock.
    pub deadline: Option<Duration>,
}

impl Default for Urgency {
    fn default() -> Urgency {
        Urgency { priority: Priority::default(), weight: 1, deadline: None }
    }
}

impl Plan {
    /// Grants the SMs in `range` to `launch`. Ranges of different launches must not overlap.
    pub fn grant(&mut self, launch: LaunchId, range: SmRange) {
        self.grants.push((launch, range));
    }

    /// What was granted until now, for policies that ask others.
    pub fn grants(&self) -> &[(LaunchId, SmRange)] {
        &self.grants
    }
}
