//! Programs that run at the same time: what `priority`, `antt`, `fairness`, `mix`, `coschedule` and `sim` share.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `testbed` | jobs and arms, and what they run on |
//! | `device` | jobs on a device: by a policy, as plain grids, or on raw streams |
//! | `prepared` | a program there that can be run again and again, each time with its result checked |
//! | `endless` | programs in endless loops, in the same ways |
//! | `switch` | one scheduler, many policies, and the SM-time that launches had |
//! | `simulated` | the same in virtual time, without any device |
//! | `launches` | the launches of each program, as they were measured on a GPU |
//! | `ceiling` | jobs in virtual time, where preemption is free |
//! | `metrics` | turnaround, ANTT and STP |

mod ceiling;
mod device;
mod endless;
mod launches;
mod metrics;
mod prepared;
mod simulated;
mod switch;
mod testbed;

use anyhow::Result;

pub use ceiling::{IdealJob, ceiling};
pub use device::DeviceTestbed;
pub use endless::Endless;
pub use launches::{Launches, line_of, model_of, row};
pub use metrics::{Turnarounds, antt, stp};
pub use prepared::PreparedProgram;
pub use simulated::{MEANING as WITHOUT_A_DEVICE, Simulated, simulate};
pub use switch::{PolicySelector, SelectedPolicy};
pub use testbed::{Arm, Completed, Job, NewPolicy, Testbed};

use super::Bench;

/// What rows and keys of all suites with several programs at a time mean.
pub const MEANING: &str = "\
`priority`, `antt`, `fairness`, `mix` and `sim` have this in common.

- A `program` is all launches of one run of a benchmark, in a stream of its own; up to 48 of them
  are submitted and not over at a time (on raw streams, all). Its `turnaround` is from when the
  first launch is submitted until the submitting thread, which spins, sees that the last one is
  over. `alone` is the median turnaround on the otherwise idle device: as plain grids in `priority`,
  `antt` and `mix`, in the arm's form in `sim`.
- `long` programs are at full size, `short` ones at a size small enough to wait for them. On the CPU
  device all are reduced, so a long program may be the shorter one there.
- With T and A for the turnarounds of a program together with others and alone, the normalized
  turnaround time (`NTT`) is T / A, `ANTT` its mean over the programs, 1 at best, and `STP` the sum
  of A / T, the number of programs at best (Eyerman and Eeckhout, IEEE Micro 28(3), 2008). All are
  of medians. `makespan` is from the first submission to the last end.

The arms:

- plain streams: raw launches of the plain entries on streams of equal priority; on the CPU device,
  plain grids under `Fifo`.
- stream priorities: raw launches of the plain entries on streams with the hardware's priorities,
  where these keep the order of ours; on a GPU only.
- reordered: plain grids by our scheduler: the policy says which launch starts next, and no launch
  yields.
- preempt: the policy, with launches in the form that costs least, as they are by default
  (`Preemption::Auto`).
- preempt, all preemptible: the policy, with preemptible launches.
- ceiling: the policy in virtual time, with each program as one launch that fills the device and
  takes as long as the program alone. Launching and preempting cost nothing (`Costs::free`). Only
  the time alone is measured.

- The arms take turns. Before each run, one of its programs, the urgent one in `priority`, runs alone
  in the same arm: raw arms launch the same code, so the second would find it in the caches, and the
  other arms theirs not. The first seven rounds of each arm (one with `--quick`) do not count: they warm up, and teach the
  scheduler how long the launches take, and what each form costs. (Times alone in `mix` count them.)
  What a form costs is learned from launches of `preempt` alone; how long launches run and take to
  stop, from all that the scheduler launches.
- The ceiling shares SMs by whole launches. Programs that leave SMs free for others can do better
  than it.
- Before each run the outputs are overwritten, and after it compared by a digest of all bits with
  those of an undisturbed run: if they differ, the suite fails. `lost` and `repeated` are of the
  block-tasks that each launch reports.
";

/// Rounds that do not count: the first of a process is slow, and the scheduler compares three launches of each form.
pub const LEARNING: u32 = 7;
const QUICK_LEARNING: u32 = 1;

/// The rounds of a measurement.
#[derive(Clone, Copy)]
pub struct Rounds {
    /// Those that do not count, which come first.
    pub learning: u32,
    /// Those of which samples are kept.
    pub samples: u32,
}

impl Rounds {
    /// All rounds.
    pub fn count(self) -> u32 {
        self.learning + self.samples
    }
}

impl Bench {
    /// The rounds of each group of programs, with `--quick` and otherwise.
    pub fn rounds(&self, quick: u32, full: u32) -> Rounds {
        // In virtual time a round costs little.
        let learning = if self.device.is_some() && self.quick { QUICK_LEARNING } else { LEARNING };
        Rounds { learning, samples: self.samples(quick, full) }
    }

    /// The device, or the model of one, with these policies, numbered from 1. Number 0 is submission order.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler, or that no launches of the programs can be read.
    pub fn testbed(&self, policies: Vec<NewPolicy>) -> Result<Box<dyn Testbed>> {
        Ok(match self.device {
            Some(_) => Box::new(DeviceTestbed::new(self, &policies)?),
            None => Box::new(simulated::SimulatedTestbed::new(policies)?),
        })
    }
}
