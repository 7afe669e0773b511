//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Lets urgent requests meet a long batch job, and shows the effect of preemption.
///
/// The batch job values a book of options by Monte Carlo. Meanwhile four threads ask a small
/// network to read handwritten digits, one request a kernel, at random moments.
#[derive(Parser, Debug)]
#[command(name = "urgent-inference", version)]
pub struct Args {
    /// The device to run on.
    #[arg(long, value_enum, default_value_t = DeviceKind::Cpu)]
    pub device: DeviceKind,
    /// Seed of the book of options and of the order and moments of the requests.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A tenth of the work: what the tests run. The numbers mean little.
    #[arg(long)]
    pub quick: bool,
    /// Writes the results as JSON.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Writes the latencies as a picture; by default, `urgent-inference.svg` in `target`, or
    /// here if there is no such folder.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Writes a timeline of the launches, for https://ui.perfetto.dev.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

/// What the kernels run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum DeviceKind {
    /// An emulated GPU on this machine's processors.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}
