//! The suites, one file each.

use anyhow::Result;
use preempt::policy::Policy;
use preempt::{Device, Scheduler};
use serde_json::Value;

use crate::args::Suite;

mod counted;
mod latency;
mod launch;
mod storm;

/// The kernels' PTX.
pub const KERNELS: preempt::Module = preempt::include_kernels!("preempt_bench_kernels");

/// What every suite is given.
#[derive(Debug)]
pub struct Bench {
    /// The device, which no scheduler has.
    pub device: Device,
    /// Whether to do little.
    pub quick: bool,
    /// Where random numbers come from.
    pub seed: u64,
}

/// What every suite gives.
#[derive(Debug)]
pub struct Outcome {
    /// What is measured, in a sentence or two.
    pub about: String,
    /// Headings, then a line for each row.
    pub table: Vec<Vec<String>>,
    /// How many columns of the table are text.
    pub text_columns: usize,
    /// A JSON object for each row.
    pub rows: Vec<Value>,
    /// What it comes to: a JSON object.
    pub summary: Value,
    /// What was wrong with the kernels' results.
    pub mistake: Option<String>,
}

impl Suite {
    /// The suite's name.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Storm => "storm",
            Suite::Latency => "latency",
            Suite::Launch => "launch",
        }
    }

    /// SMs and blocks per SM of the CPU device, unless asked for otherwise, on a machine with
    /// this many processors.
    pub fn shape(self, processors: u32) -> (u32, u32) {
        match self {
            // More SMs than processors, so that there are many ways to deal them.
            Suite::Storm => (5, 2),
            // At least two, so that an urgent kernel can have one while the batch keeps the other;
            // otherwise a processor less than there are, for the threads that launch.
            Suite::Latency | Suite::Launch => (processors.saturating_sub(1).clamp(2, 8), 1),
        }
    }

    /// Measures.
    ///
    /// # Errors
    ///
    /// What the scheduler says. Wrong results are in the outcome.
    pub fn run(self, bench: &Bench) -> Result<Outcome> {
        match self {
            Suite::Storm => storm::run(bench),
            Suite::Latency => latency::run(bench),
            Suite::Launch => launch::run(bench),
        }
    }
}

impl Bench {
    /// A scheduler that has the device until it is dropped.
    fn scheduler(&self, policy: impl Policy + 'static) -> Result<Scheduler> {
        let builder = Scheduler::builder().device(self.device.clone()).policy(policy);
        Ok(builder.kernels(KERNELS).kernels(preempt_tests::KERNELS).build()?)
    }
}

/// A line of a table.
fn line<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}
