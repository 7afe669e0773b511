//! Trains the network of the example and writes its weights.
//!
//! `cargo run --release --bin train-digits` reproduces `data/weights.bin` to the bit.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use urgent_inference::digits::{self, Sample};
use urgent_inference::training::{EPOCHS, SEED, train};

/// Trains a network on three quarters of the digits and says how well it reads the others.
#[derive(Parser)]
struct Args {
    /// Seed of the first weights and of the order of the digits.
    #[arg(long, default_value_t = SEED)]
    seed: u64,
    /// How often each digit is shown.
    #[arg(long, default_value_t = EPOCHS)]
    epochs: u32,
    /// Where to write the weights.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/data/weights.bin"))]
    out: PathBuf,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("train-digits: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let (held_out, training): (Vec<Sample>, Vec<Sample>) =
        digits::load()?.into_iter().partition(|sample| sample.held_out);
    let network = train(&training, args.seed, args.epochs);
    println!(
        "accuracy: {:.2} % of {} training digits, {:.2} % of {} held out",
        100.0 * network.accuracy(&training),
        training.len(),
        100.0 * network.accuracy(&held_out),
        held_out.len(),
    );
    fs::write(&args.out, network.to_bytes())
        .with_context(|| format!("cannot write {}", args.out.display()))?;
    println!("weights:  {}", args.out.display());
    Ok(())
}
