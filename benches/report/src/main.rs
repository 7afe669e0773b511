//! `preempt-plot`, which makes pictures and tables of results that `preempt-bench` wrote earlier.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use preempt_report::table;
use preempt_report::{papers, picture};
use serde_json::Value;

/// Sets results beside the papers' figures, and draws them.
#[derive(Parser, Debug)]
#[command(name = "preempt-plot", version)]
struct Args {
    /// What `preempt-bench --out` wrote.
    #[arg(value_name = "RESULTS.json")]
    results: PathBuf,
    /// Where the picture goes.
    #[arg(value_name = "PICTURE.svg")]
    svg: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("preempt-plot: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let results = read(&args.results).with_context(|| format!("{}", args.results.display()))?;
    if let Some(path) = &args.svg {
        let picture = picture(&results).with_context(|| format!("{}", args.results.display()))?;
        fs::write(path, picture.svg()?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(lines) = papers::comparison(&results) {
        // Not `print!`: it panics where the reader has closed the pipe.
        write!(io::stdout(), "{}", table(&lines, 1))?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path).context("cannot be read")?;
    serde_json::from_str(&text).context("is no JSON; give a file that `preempt-bench --out` wrote")
}
