//! Policies in virtual time: the engine and the policies of a [`Scheduler`](crate::Scheduler), with a workload and a
//! device that are models. No threads, no clock: the same workload, machine and policy give the same results.
//!
//! ```
//! use std::time::Duration;
//! use preempt::policy::StaticPriority;
//! use preempt::sim::{KernelModel, Machine, Simulation, Workload};
//!
//! let ms = Duration::from_millis(1);
//! let mut workload = Workload::new(1);
//! let (batch, urgent) = (workload.stream(0), workload.stream(10));
//! let (long, short) = (KernelModel::new("long", 20 * ms, 10_000), KernelModel::new("short", ms / 10, 132));
//! workload.repeat(batch, &long, Duration::ZERO, Duration::ZERO, 100 * ms);
//! workload.repeat(urgent, &short, ms, 3 * ms, 100 * ms);
//!
//! let preempted = Simulation::new(Machine::h200(), StaticPriority::new()).run(&workload)?;
//! let queued = Simulation::submission_order(Machine::h200()).run(&workload)?;
//! assert!(preempted.of(urgent).all(|launch| launch.turnaround() < ms / 5));
//! assert!(queued.of(urgent).any(|launch| launch.turnaround() > 10 * ms));
//! # Ok::<(), preempt::Error>(())
//! ```
//!
//! # The model
//!
//! - A launch is an amount of work: its [duration](KernelModel::duration) alone, times the SMs that it can fill. Each SM
//!   that has blocks of it does as much of it as time passes; it is done when nothing is left. A launch that has some
//!   SMs is as fast on them whatever runs on the others.
//! - Block-tasks are counted, and each is reported once, but they have no ends: a launch is slowed down evenly, not by
//!   whole waves of blocks.
//! - A launch of blocks takes effect after [`Costs::launch`], and where other blocks have to leave first, when these are
//!   out. Blocks that are told to leave work until they are out, [`KernelModel::stop`] later; with yield points, each SM
//!   then has [`KernelModel::redo`] of its work to do again, or all that it did, if that is less than a block-task. With a
//!   [limit](crate::policy::Policy::latency_limit), the rests of block-tasks are taken to be anything up to a whole one.
//! - Blocks are placed on the SMs that the policy meant them for, spread over all of them; on a GPU some may not at
//!   first. Those of a plain grid fill one SM after the other, and leave the rest to others, which stands for the room
//!   that a GPU has beside them. SMs of a plain grid that the policy gives to a more urgent launch are that one's after
//!   the time of a block, and the plain grid's other blocks wait for room. A launch with more SMs than it can fill is no faster for it.
//! - A [program](Workload::program) is one launch for streams and results. A plain one takes the host one
//!   [`Costs::call`], whatever number of kernels it has. On the device, it has what the kernel that runs can fill, and
//!   nothing between two kernels, for [`Costs::graph`].
//! - The host decides when the scheduler would. Submissions and reports of one time are handled together, then the policy
//!   is asked once. While the host decides or launches, for [`Costs::decision`] and [`Costs::call`], others wait.
//!
//! Of two launches that [share all SMs](crate::policy::Plan::grant_both), one waits until it has them alone.
//!
//! With [`Costs::free`] all of that takes no time: what a policy reaches then is the most that it can reach.
//!
//! # Why this is not a device
//!
//! Threads of a scheduler and of the application run in real time. Virtual time cannot know when it may pass: whether
//! a thread is about to submit something is known only after it did. So the simulation has to know the workload,
//! which is part of it.

mod agenda;
mod device;
mod host;
mod load;
mod machine;
pub mod pool;
mod program;
mod random;
mod recorded;
mod reference;
mod results;
mod run;
#[cfg(test)]
mod tests;
mod workload;

use std::fmt;
use std::time::Duration;

#[doc(hidden)]
pub use load::EngineLoad;
use machine::refused;
pub use machine::{DeviceQueues, KernelModel, Machine, Prediction};
pub use program::JobModel;
pub use results::{End, LaunchResult, Results};
pub use workload::{Arrivals, Sizes, StreamModel, StreamNumber, Workload};

use crate::error::Error;
use crate::policy::{Fifo, Policy};
pub use crate::vocabulary::Costs;

/// A machine and a policy, for one workload.
#[must_use = "nothing is simulated before `run`"]
pub struct Simulation {
    machine: Machine,
    policy: Box<dyn Policy>,
    plain: bool,
    record: bool,
    until: Option<Duration>,
}

impl Simulation {
    /// With this policy.
    pub fn new(machine: Machine, policy: impl Policy + 'static) -> Simulation {
        Simulation::boxed(machine, Box::new(policy))
    }

    /// With this boxed policy.
    pub fn boxed(machine: Machine, policy: Box<dyn Policy>) -> Simulation {
        Simulation { machine, policy, plain: false, record: false, until: None }
    }

    /// Without preemption, as streams of a GPU do it: plain grids in the order in which they became ready, and what
    /// the first one leaves free goes to the next one.
    pub fn submission_order(machine: Machine) -> Simulation {
        Simulation::new(machine, Fifo::new()).plain(true)
    }

    /// Without preemption or sharing: plain grids in the order in which they became ready, one at a time.
    pub fn one_at_a_time(machine: Machine) -> Simulation {
        Simulation::new(machine, reference::OneAtATime::default()).plain(true)
    }

    /// Whether all launches are plain grids, which leave no SM before they are done. Single kernels can be, too:
    /// [`KernelModel::plain`].
    pub fn plain(mut self, plain: bool) -> Simulation {
        self.plain = plain;
        self
    }

    /// Whether every decision is recorded, for [`Results::recording`].
    pub fn recording(mut self, records: bool) -> Simulation {
        self.record = records;
        self
    }

    /// Stops at this time, if launches are not over then.
    pub fn until(mut self, time: Duration) -> Simulation {
        self.until = Some(time);
        self
    }

    /// Runs a workload until every launch is over, or [until](Simulation::until) a time.
    ///
    /// # Errors
    ///
    /// [`SimulationError::GivenUp`](crate::error::SimulationError::GivenUp) if the machine or a kernel cannot be, or
    /// if the policy lets no launch end.
    pub fn run(self, workload: &Workload) -> Result<Results, Error> {
        run::run(workload, self)
    }
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation")
            .field("machine", &self.machine)
            .field("plain", &self.plain)
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}
