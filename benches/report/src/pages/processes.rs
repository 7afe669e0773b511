//! Requests beside a batch of another process.

use anyhow::Result;
use serde::Deserialize;

use super::markdown::{Table, percent, times};
use super::results::{Folder, Results};
use crate::time;

/// The file, which a run on a GPU writes.
const FILE: &str = "processes-gpu";

/// Requests beside blocks of one length, in one arm.
#[derive(Deserialize)]
struct Row {
    arm: String,
    block_us: f64,
    idle_p50_us: f64,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
    batch: f64,
}

pub fn processes(folder: &Folder) -> Result<String> {
    match folder.find(FILE)? {
        Some(results) => measured(&results),
        None => Ok("Not measured yet: `preempt-bench processes --device cuda` does.".to_owned()),
    }
}

fn measured(results: &Results) -> Result<String> {
    let rows: Vec<Row> = results.rows_with("arm")?;
    let mut table =
        Table::new(["blocks", "batch and requests", "request, idle", "request", "max", "batch"]);
    for row in &rows {
        table.row([
            time(row.block_us),
            row.arm.clone(),
            time(row.idle_p50_us),
            times(row.p50_us, row.p99_us),
            time(row.max_us),
            percent(row.batch),
        ]);
    }
    let mps = if rows.iter().any(|row| row.arm.ends_with("MPS")) {
        "With MPS, kernels of both run side by side where there is room, and a request waits for blocks of the batch to end."
    } else {
        "MPS was not there."
    };
    Ok(format!(
        "A batch that fills the GPU, and requests of 8 blocks, p50 / p99. The driver gives the GPU to one process after the \
         other, for a time slice each. {mps} The last column is what the batch does beside requests, of what it does \
         without.\n\n{}\n{}",
        table.text(),
        results.source(),
    ))
}
