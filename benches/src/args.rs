//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Measures preempt, and checks on every run that each block-task ran exactly once.
#[derive(Parser, Debug)]
#[command(name = "preempt-bench", version)]
pub struct Args {
    /// What to measure.
    #[arg(value_enum)]
    pub suite: Suite,
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
    /// Measures these of the papers' programs only (`MM`, `BFS`, ..), where a suite has several.
    #[arg(long, value_name = "NAME")]
    pub program: Vec<String>,
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

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Suite {
    /// Every block-task exactly once, under random yields, resumes, growth and cancellation.
    Storm,
    /// From an urgent launch to its end: alone, behind a batch kernel, and with preemption.
    Latency,
    /// What a launch costs on an idle device, and in a long stream of them.
    Launch,
    /// Every program of the papers, plain and preemptible, with and without yields, against its reference.
    Verify,
    /// What being preemptible costs a kernel that nobody preempts.
    Overhead,
    /// What yielding just enough SMs, twice as many, or all of them costs a victim.
    Spatial,
    /// How far predicted durations are from true ones.
    Prediction,
    /// What the engine and a policy take for a decision, without any device.
    Engine,
    /// Short urgent programs beside long ones.
    Priority,
    /// Two and three programs of equal priority.
    Antt,
    /// Shares of programs in endless loops.
    Fairness,
    /// Eleven programs at intervals, with three settings of priorities.
    Mix,
    /// Pairs of programs, as they were decided, decided again and simulated.
    Sim,
}

/// What the kernels run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum DeviceKind {
    /// An emulated GPU on this machine's processors.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// No device: an H200 in virtual time, by what was measured on one. For `priority`, `antt`, `fairness` and `mix`.
    Sim,
}
