//! The parts of the README whose figures come from results.

use anyhow::{Context, Result};

use super::markdown::{Table, range};
use super::results::Folder;
use super::urgent::{Latency, latency_of};
use crate::time;

/// Writes a marked part.
type Part = fn(&Folder) -> Result<String>;

/// The parts by the name in their marks.
const PARTS: [(&str, Part); 2] = [("promise", promise), ("choice", choice)];

/// The README with the parts that lie between marks as the results have them.
///
/// # Errors
///
/// If a mark is missing, or a result.
pub fn with_figures(readme: &str, folder: &Folder) -> Result<String> {
    let mut text = readme.to_owned();
    for (name, part) in PARTS {
        let (begin, end) = (format!("<!-- figures: {name} -->\n"), "<!-- end -->");
        let told = || format!("README.md has no part between `{}` and `{end}`", begin.trim());
        let start = text.find(&begin).with_context(told)? + begin.len();
        let length = text[start..].find(end).with_context(told)?;
        text.replace_range(start..start + length, &part(folder)?);
    }
    Ok(text)
}

/// What an urgent launch takes at least and at most beside a kernel with yield points.
fn promise(folder: &Folder) -> Result<String> {
    let results = folder.get("latency-gpu")?;
    let rows: Vec<Latency> = results.rows_with("block_task_us")?;
    let of = |arm| {
        let rows = rows.iter().filter(|row| row.arm == arm && row.yield_points);
        range(rows.map(|row| row.p50_us)).context("no row has yield points")
    };
    let ((least, most), (armed, most_armed)) = (of(Latency::PREEMPT)?, of(Latency::ARMED)?);
    Ok(format!(
        "On an {} an urgent kernel is done {least:.0} to {most:.0} µs after its launch (median), beside a kernel that fills \
         the GPU and has places\nto be interrupted; {armed:.0} to {most_armed:.0} µs if it was announced (`Program::arm`). \
         Beside one without such places, it waits for\nblocks to end.\n",
        results.gpu()?,
    ))
}

/// What to choose for which blocks.
fn choice(folder: &Folder) -> Result<String> {
    let results = folder.get("latency-gpu")?;
    let rows: Vec<Latency> = results.rows_with("block_task_us")?;
    let mut table = Table::new([
        "blocks of the kernel that fills the GPU",
        "urgent launch, CUDA stream priorities",
        "urgent launch, `preempt`",
        "the same, announced",
    ]);
    for (what, block_task_us, yield_points) in [
        ("take 10 µs", 10.0, false),
        ("take 1 ms", 1000.0, false),
        ("take 1 ms, and have yield points", 1000.0, true),
    ] {
        let of = |arm| latency_of(&rows, arm, block_task_us, yield_points);
        let arms = [Latency::STREAM_PRIORITY, Latency::PREEMPT, Latency::ARMED];
        let [priority, ours, armed] = arms.map(|arm| of(arm).map(|row| time(row.p50_us)));
        table.row([what.to_owned(), priority?, ours?, armed?]);
    }
    let gpu = results.gpu()?;
    let told = "From an urgent launch to its end, median on an";
    Ok(format!("{told} {gpu} ([all results](benches/RESULTS.md)):\n\n{}", table.text()))
}
