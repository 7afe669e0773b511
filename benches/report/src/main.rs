//! `preempt-plot`, which makes pictures, tables and pages of results that `preempt-bench` wrote earlier.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use preempt_report::table;
use preempt_report::{pages, papers, picture};
use serde_json::Value;

/// Sets results beside the papers' figures, draws them, and writes the pages that have their figures.
#[derive(Parser, Debug)]
#[command(name = "preempt-plot", version)]
struct Args {
    /// What `preempt-bench --out` wrote.
    #[arg(value_name = "RESULTS.json", required_unless_present_any = ["pages", "check"])]
    results: Option<PathBuf>,
    /// Where the picture goes.
    #[arg(value_name = "PICTURE.svg")]
    svg: Option<PathBuf>,
    /// Writes `benches/RESULTS.md`, the figures of `README.md`, and the pictures in `benches/results`, from the results
    /// there. To be run in the root of the repository.
    #[arg(long, conflicts_with = "results")]
    pages: bool,
    /// Fails if these are not what the results say, or a result is of no clean commit.
    #[arg(long, conflicts_with_all = ["results", "pages"])]
    check: bool,
    /// Fails, too, if the results are of more than one commit.
    #[arg(long, requires = "check")]
    one_commit: bool,
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
    let root = Path::new("");
    if args.check {
        pages::check(root)?;
        if args.one_commit {
            pages::check_one_commit(root)?;
        }
    }
    if args.pages {
        for pages::Page { path, text } in pages::pages(root)? {
            write(&path, &text)?;
        }
    }
    if let Some(path) = &args.results {
        plot(path, args.svg.as_deref())?;
    }
    Ok(())
}

fn plot(path: &Path, svg: Option<&Path>) -> Result<()> {
    let results = read(path).with_context(|| format!("{}", path.display()))?;
    if let Some(svg) = svg {
        let picture = picture(&results).with_context(|| format!("{}", path.display()))?;
        write(svg, &picture.svg()?)?;
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

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
