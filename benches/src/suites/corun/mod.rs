//! Programs that run at the same time: what `priority`, `antt`, `fairness`, `mix` and `sim` share.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `cast` | a program that can be run again and again, each time with its result checked |
//! | `stage` | jobs, played on one device by a policy, as ordinary grids, or on raw streams |
//! | `endless` | programs in endless loops, in the same ways |
//! | `switch` | one scheduler, many policies, and how long whose launches had SMs |
//! | `ceiling` | the same jobs in virtual time, where preemption is free |
//! | `metrics` | turnaround, ANTT and STP |

mod cast;
mod ceiling;
mod endless;
mod metrics;
mod stage;
mod switch;

pub use cast::Cast;
pub use ceiling::ceiling;
pub use endless::Endless;
pub use metrics::{Turnarounds, antt, stp};
pub use stage::{Arm, Job, Played, Stage};
