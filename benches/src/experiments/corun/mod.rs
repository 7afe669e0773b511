//! Programs that run at the same time: what `priority`, `antt`, `fairness`, `mix` and `sim` share.
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
pub use launches::{Launches, row};
pub use metrics::{Turnarounds, antt, stp};
pub use prepared::PreparedProgram;
pub use simulated::{Simulated, simulate};
pub use testbed::{Arm, Completed, Job, NewPolicy, Testbed};

use super::Bench;

impl Bench {
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
