//! The command line.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Parser, ValueEnum};

use crate::experiments::{ALL, Experiment};

/// Measures preempt, and checks on every run that each block-task ran exactly once.
#[derive(Parser, Debug)]
#[command(name = "preempt-bench", version)]
pub struct Args {
    /// What to measure.
    #[arg(value_name = "SUITE", value_parser = suites())]
    pub suite: &'static dyn Experiment,
    /// Measures nothing: prints what the suite does, and what its rows and keys mean.
    #[arg(long)]
    pub explain: bool,
    /// The device to run on.
    #[arg(long, value_enum, default_value_t = DeviceKind::Cpu)]
    pub device: DeviceKind,
    /// SMs of the CPU device [default: 5 for `storm`, otherwise one less than processors, 2 to 8].
    #[arg(long, value_name = "N")]
    pub sms: Option<u32>,
    /// Blocks that each SM of the CPU device holds [default: 2 for `storm`, otherwise 1].
    #[arg(long, value_name = "M")]
    pub blocks_per_sm: Option<u32>,
    /// Little work: what the tests run. The numbers mean little.
    #[arg(long)]
    pub quick: bool,
    /// Where there is no terminal for progress bars: says on the standard error how long each part took, as it ends.
    #[arg(long)]
    pub log: bool,
    /// Measures these of the papers' programs only (`MM`, `BFS`, ..), where a suite has several.
    #[arg(long, value_name = "NAME")]
    pub program: Vec<String>,
    /// Measures these workloads of the suite `pool` on devices only: `W1` or `W2`.
    #[arg(long, value_name = "NAME")]
    pub mix: Vec<String>,
    /// Measures `pool` at these loads on devices only [default: 0.5, 1 and 2].
    #[arg(long, value_name = "LOAD")]
    pub load: Vec<f64>,
    /// A folder of PTX that `benches/corpus/build.py` has filled, for `foreign`.
    #[arg(long, value_name = "FOLDER")]
    pub corpus: Option<PathBuf>,
    /// Seed of everything that is random: moments, sizes, ranges of SMs.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Writes the results as JSON.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Draws the results as SVG; `preempt-plot` draws them later, from the JSON.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// What the kernels run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum DeviceKind {
    /// An emulated GPU on this machine's processors.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// No device: an H200 in virtual time, from measured times. For `priority`, `antt`, `fairness`, `mix`,
    /// `coschedule` and `pool`.
    Sim,
}

/// Reads the name of an experiment.
fn suites() -> impl TypedValueParser<Value = &'static dyn Experiment> {
    let names =
        ALL.map(|experiment| PossibleValue::new(experiment.name()).help(experiment.about()));
    let find = |name: String| ALL.into_iter().find(|experiment| experiment.name() == name);
    PossibleValuesParser::new(names).try_map(move |name| find(name).ok_or("it has no experiment"))
}
