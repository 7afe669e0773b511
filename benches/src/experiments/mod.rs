//! The experiments, one file each; those in `cuda` compare with plain driver calls.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use preempt::policy::Policy;
use preempt::{Device, Preemption, Scheduler, SchedulerBuilder, SignalPath};
use preempt_driver::Gpu;
use preempt_test_kit::Random;
use preempt_test_kit::storm::Tally;
use preempt_workloads::{Definition, Size};
use serde_json::{Value, json};

mod antt;
mod armed;
mod chimera;
mod choice;
pub mod corun;
mod coschedule;
mod counted;
mod cuda;
mod engine;
mod exclusion;
mod fairness;
mod foreign;
mod latency;
mod launch;
mod libraries;
mod mix;
mod overhead;
pub mod pool;
mod prediction;
mod priority;
pub mod processes;
mod requests;
mod sim;
mod soak;
mod spatial;
mod storm;
mod verify;

/// The kernels' PTX.
pub const KERNELS: preempt::Module = preempt::include_kernels!("preempt_microkernels");

/// The PTX of the papers' benchmarks.
pub const PROGRAMS: preempt::Module = preempt::include_kernels!("preempt_workload_kernels");

/// The PTX of the same kernels with FLEP's loop, for raw launches.
pub const BASELINES: preempt::Module = preempt::include_kernels!("preempt_flep_kernels");

/// FLEP's programs (table 1).
const FLEP: [&str; 8] = ["CFD", "NN", "PF", "PL", "MD", "SPMV", "MM", "VA"];

/// FLEP's programs that run on the large input, while another program runs on the small one.
const LONG: [&str; 4] = ["CFD", "NN", "PF", "PL"];

/// The setting that every experiment is given.
#[derive(Debug)]
pub struct Bench {
    /// The device, which no scheduler has; `None` if it is simulated.
    pub device: Option<Device>,
    /// The driver's side of the device, if that is a GPU.
    pub gpu: Option<Gpu>,
    /// The papers' programs to run.
    pub programs: Vec<&'static Definition>,
    /// PTX of other compilers, if there is any beside what is in this program.
    pub corpus: Option<PathBuf>,
    /// Workloads of the suite `pool` by their mixes and loads; all where there are none.
    pub mixes: Vec<String>,
    /// The same.
    pub loads: Vec<f64>,
    /// Set for little work.
    pub quick: bool,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// The results that every experiment returns.
#[derive(Debug)]
pub struct Outcome {
    /// A sentence or two about what is measured.
    pub about: String,
    /// Headings, then a line for each row.
    pub table: Vec<Vec<String>>,
    /// How many columns of the table are text.
    pub text_columns: usize,
    /// A JSON object for each row.
    pub rows: Vec<Value>,
    /// A few figures of the rows: a JSON object.
    pub summary: Value,
    /// Mistakes in the kernels' results.
    pub mistake: Option<String>,
}

/// The rows of an outcome, as lines of its table and as JSON.
#[derive(Debug)]
struct Rows {
    table: Vec<Vec<String>>,
    json: Vec<Value>,
}

impl Rows {
    /// An empty table with these headings.
    fn below<const N: usize>(headings: [&str; N]) -> Rows {
        Rows { table: vec![line(headings)], json: Vec::new() }
    }

    fn push(&mut self, cells: Vec<String>, json: Value) {
        self.table.push(cells);
        self.json.push(json);
    }
}

/// A measurement that `preempt-bench NAME` runs. A new experiment is a file with an implementation of this, and a line
/// in [`ALL`].
pub trait Experiment: Debug + Sync {
    /// The name on the command line and in the results.
    fn name(&self) -> &'static str;

    /// A sentence for `--help`.
    fn about(&self) -> &'static str;

    /// What the experiment does, and what its rows, columns and keys mean: texts that `--explain` prints.
    fn meaning(&self) -> &'static [&'static str];

    /// Whether the experiment can run in virtual time.
    fn is_simulated(&self) -> bool {
        false
    }

    /// Whether what runs in virtual time is on the model of a GPU.
    fn has_model(&self) -> bool {
        self.is_simulated()
    }

    /// The programs that the suite runs unless `--program` names others: those of FLEP and EffiSha, since most suites
    /// repeat figures of these papers.
    fn programs(&self) -> Vec<&'static Definition> {
        preempt_workloads::ALL.iter().collect()
    }

    /// SMs of the CPU device and blocks that each SM holds, on a machine with this number of processors. The command
    /// line overrides both.
    fn shape(&self, processors: u32) -> (u32, u32) {
        // At least two SMs, so that an urgent kernel can have one while a batch kernel keeps the other. Otherwise one
        // processor is left to the threads that launch.
        (processors.saturating_sub(1).clamp(2, 8), 1)
    }

    /// Runs the measurement.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler and the driver. Wrong results of kernels are in the outcome.
    fn run(&self, bench: &Bench) -> Result<Outcome>;
}

/// All experiments, in the order of `--help`.
pub const ALL: [&dyn Experiment; 22] = [
    &storm::Storm,
    &soak::Soak,
    &armed::Armed,
    &latency::Latency,
    &launch::Launch,
    &verify::Verify,
    &overhead::Overhead,
    &spatial::Spatial,
    &choice::Choice,
    &prediction::Prediction,
    &engine::Engine,
    &priority::Priority,
    &antt::Antt,
    &fairness::Fairness,
    &mix::Mix,
    &coschedule::Coschedule,
    &chimera::Chimera,
    &foreign::Foreign,
    &libraries::Libraries,
    &processes::Processes,
    &pool::Pool,
    &sim::Sim,
];

impl Bench {
    /// The programs to run that have one of these names.
    ///
    /// # Errors
    ///
    /// If there are none.
    fn programs_among(&self, names: &[&str]) -> Result<Vec<&'static Definition>> {
        let is_named = |definition: &&Definition| names.contains(&definition.name);
        let programs: Vec<_> = self.programs.iter().copied().filter(is_named).collect();
        let all = names.join(", ");
        ensure!(
            !programs.is_empty(),
            "`--program` chooses among {all} here, and names none of them"
        );
        Ok(programs)
    }

    /// The amount of work with `--quick`, and otherwise.
    fn amount<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    /// The number of samples of each arm: one in virtual time, where all would be the same.
    fn samples(&self, quick: u32, full: u32) -> u32 {
        if self.device.is_some() { self.amount(quick, full) } else { 1 }
    }

    /// The sizes of long and of short programs that run at the same time.
    fn sizes(&self) -> [Size; 2] {
        match (&self.device, self.gpu, self.quick) {
            // Virtual time takes no longer for them.
            (None, ..) | (_, Some(_), false) => [Size::Large, Size::Small],
            (_, Some(_), true) => [Size::Small; 2],
            (Some(_), None, _) => [Size::Reduced; 2],
        }
    }

    /// A scheduler that has the device until it is dropped. Its launches are preemptible unless they say something else.
    fn scheduler(&self, policy: impl Policy + 'static) -> Result<Scheduler> {
        let builder = self.builder(policy)?.kernels(preempt_test_kit::KERNELS);
        Ok(builder.preemption(Preemption::Preemptible).build()?)
    }

    /// A scheduler like [`Bench::scheduler`]'s, whose `wait` spins for this time before it sleeps.
    fn spinning_scheduler(
        &self,
        policy: impl Policy + 'static,
        spin: Duration,
    ) -> Result<Scheduler> {
        self.spinning_scheduler_by(SignalPath::default(), policy, spin)
    }

    /// A scheduler like [`Bench::spinning_scheduler`]'s, whose signals take this path.
    fn spinning_scheduler_by(
        &self,
        path: SignalPath,
        policy: impl Policy + 'static,
        spin: Duration,
    ) -> Result<Scheduler> {
        let builder = self.spinning_builder(policy, spin)?.signal_path(path);
        Ok(builder.preemption(Preemption::Preemptible).build()?)
    }

    /// A scheduler like [`Bench::spinning_scheduler`]'s, which records its decisions.
    fn recording_scheduler(
        &self,
        policy: impl Policy + 'static,
        spin: Duration,
    ) -> Result<Scheduler> {
        let builder = self.spinning_builder(policy, spin)?.recording(true);
        Ok(builder.preemption(Preemption::Preemptible).build()?)
    }

    /// A builder of a scheduler whose launches have the form that those of an application have by default. Nothing spins on the CPU
    /// device, whose SMs need the processors.
    fn spinning_builder(
        &self,
        policy: impl Policy + 'static,
        spin: Duration,
    ) -> Result<SchedulerBuilder> {
        Ok(self.spins(self.builder(policy)?, spin))
    }

    /// As [`Bench::spinning_builder`], on a part of the device.
    fn spinning_builder_on(
        &self,
        part: &Device,
        policy: impl Policy + 'static,
        spin: Duration,
    ) -> SchedulerBuilder {
        self.spins(Bench::builder_on(part, policy), spin)
    }

    fn spins(&self, builder: SchedulerBuilder, spin: Duration) -> SchedulerBuilder {
        let spins = self.gpu.is_some();
        if spins { builder.wait_spin(spin).poller_spin(Duration::MAX) } else { builder }
    }

    /// As [`Bench::spinning_builder`], with a `wait` that sleeps.
    fn builder(&self, policy: impl Policy + 'static) -> Result<SchedulerBuilder> {
        let device = self.device.as_ref().context("this suite is not simulated")?;
        Ok(Bench::builder_on(device, policy))
    }

    fn builder_on(device: &Device, policy: impl Policy + 'static) -> SchedulerBuilder {
        let builder = Scheduler::builder().device(device.clone()).policy(policy);
        builder.kernels(KERNELS).kernels(PROGRAMS)
    }
}

/// Tells a thread to end when it is dropped.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Keeps the thread awake for this time, so that what comes then meets a processor that is, too.
fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// A random time below `most`.
fn random_time(random: &mut Random, most: Duration) -> Duration {
    let nanos = most.as_nanos().min(u128::from(u32::MAX)) as u32;
    Duration::from_nanos(random.below(nanos.max(1)).into())
}

/// A summary, with the counts of the tally and the mistakes.
fn with_tally(mut summary: Value, tally: &Tally) -> Value {
    summary["kernels"] = json!(tally.kernels);
    summary["block_tasks"] = json!(tally.block_tasks);
    summary["lost"] = json!(tally.lost);
    summary["repeated"] = json!(tally.repeated);
    summary
}

/// A line of a table.
fn line<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use preempt_workloads::CHIMERA;

    use super::ALL;

    #[test]
    fn suites_of_other_papers_leave_the_programs_of_chimera_out() {
        for suite in ALL {
            let [all, of_chimera] = [preempt_workloads::ALL.len(), CHIMERA.len()];
            let expected = match suite.name() {
                "verify" => all + of_chimera,
                "chimera" => of_chimera,
                _ => all,
            };
            assert_eq!(suite.programs().len(), expected, "{}", suite.name());
        }
    }
}
