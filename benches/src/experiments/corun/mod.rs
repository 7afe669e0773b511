//! Programs that run at the same time: what `priority`, `antt`, `fairness`, `mix` and `sim` share.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `stage` | jobs and arms, and what they are played on |
//! | `device` | a device that they are played on: by a policy, as ordinary grids, or on raw streams |
//! | `cast` | a program there that can be run again and again, each time with its result checked |
//! | `endless` | programs in endless loops, in the same ways |
//! | `switch` | one scheduler, many policies, and how long whose launches had SMs |
//! | `simulated` | the same in virtual time, without any device |
//! | `launches` | the launches of each program, as they were measured on a GPU |
//! | `ceiling` | jobs in virtual time, where preemption is free |
//! | `metrics` | turnaround, ANTT and STP |

mod cast;
mod ceiling;
mod device;
mod endless;
mod launches;
mod metrics;
mod simulated;
mod stage;
mod switch;

use anyhow::Result;

pub use cast::Cast;
pub use ceiling::ceiling;
pub use device::DeviceStage;
pub use endless::Endless;
pub use launches::{Launches, row};
pub use metrics::{Turnarounds, antt, stp};
pub use simulated::{Simulated, simulate};
pub use stage::{Arm, Job, NewPolicy, Played, Stage};

use super::Bench;

impl Bench {
    /// The device, or the model of one, with these policies, from number 1 on: number 0 stands for submission order.
    ///
    /// # Errors
    ///
    /// What the scheduler says, or that nothing can be read of the programs.
    pub fn stage(&self, policies: Vec<NewPolicy>) -> Result<Box<dyn Stage>> {
        Ok(match self.device {
            Some(_) => Box::new(DeviceStage::new(self, &policies)?),
            None => Box::new(simulated::SimulatedStage::new(policies)?),
        })
    }
}
