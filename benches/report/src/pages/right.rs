//! That each block-task runs exactly once, and an application before and after.

use anyhow::Result;
use serde::Deserialize;

use super::markdown::{Table, count};
use super::results::{Folder, Results};
use crate::pictures::distinct;
use crate::time;

#[derive(Deserialize)]
struct Storm {
    name: String,
    kernels: f64,
    block_tasks: f64,
    yields: f64,
    resumes: f64,
    lost: f64,
    repeated: f64,
    on_excluded_sm: Option<f64>,
}

fn storm_table(results: &Results) -> Result<String> {
    let mut table = Table::new([
        "",
        "kernels",
        "block-tasks",
        "yields",
        "resumes",
        "lost",
        "repeated",
        "on taken SMs",
    ]);
    for row in results.rows::<Storm>()? {
        table.row([
            row.name,
            count(row.kernels),
            count(row.block_tasks),
            count(row.yields),
            count(row.resumes),
            count(row.lost),
            count(row.repeated),
            row.on_excluded_sm.map_or_else(|| "-".to_owned(), count),
        ]);
    }
    Ok(table.text())
}

pub fn storm(folder: &Folder) -> Result<String> {
    let (gpu, cpu) = (folder.get("storm-gpu")?, folder.get("storm-cpu")?);
    Ok(format!(
        "Kernels that count their block-tasks, while other launches and policies take SMs from them and give them back. \
         *Yields* are in mid-kernel, *resumes* are later cohorts that ran on.\n\n{}\n{}\n{}\n{}",
        storm_table(&gpu)?,
        gpu.source(),
        storm_table(&cpu)?,
        cpu.source(),
    ))
}

/// The runs on a device: `soak-gpu`, `soak-gpu-2`, and so on.
fn soaked(folder: &Folder, device: &str) -> Result<String> {
    let first = format!("soak-{device}");
    let is_run = |name: &String| name.strip_prefix(&first).is_some_and(is_number_of_run);
    let names: Vec<String> = folder.names()?.into_iter().filter(is_run).collect();
    if names.is_empty() {
        return Ok(format!("Not measured yet: `{first}`.\n\n"));
    }
    let mut table = Table::new([
        "run",
        "seconds",
        "schedulers",
        "operations",
        "programs",
        "began armed",
        "cancelled",
        "panics",
        "yields",
        "tasks of pools",
        "the process's memory grew by",
        "the device's by",
        "mistakes",
    ]);
    let grown = |mb: f64| format!("{mb:.1} MB");
    let (mut seconds, mut operations, mut mistakes, mut sources) = (0.0, 0.0, 0.0, String::new());
    for (run, name) in (1u32..).zip(&names) {
        let results = folder.get(name)?;
        let number = |key| results.number(key);
        let counted = |key| number(key).map(count);
        seconds += number("seconds")?;
        operations += number("operations")?;
        mistakes += number("wrong")?;
        table.row([
            format!("[{run}](results/{})", results.file),
            counted("seconds")?,
            counted("schedulers")?,
            counted("operations")?,
            counted("programs")?,
            counted("armed")?,
            counted("cancelled")?,
            counted("panics")?,
            counted("yields")?,
            counted("tasks")?,
            grown(number("host_growth_mb")?),
            number("device_growth_mb").map_or_else(|_| "-".to_owned(), grown),
            counted("wrong")?,
        ]);
        sources += &format!("{}\n", results.source());
    }
    let told = format!(
        "{:.0} minutes in all, {} operations; {} mistakes were found.",
        seconds / 60.0,
        count(operations),
        count(mistakes),
    );
    Ok(format!("{told}\n\n{}\n{sources}", table.text()))
}

/// What follows the name of the first run: nothing, or the number of another one.
fn is_number_of_run(rest: &str) -> bool {
    let number = rest.strip_prefix('-');
    rest.is_empty() || number.is_some_and(|number| number.parse::<u32>().is_ok())
}

pub fn soak(folder: &Folder) -> Result<String> {
    let mut text = String::from(
        "Four threads do what applications do, at random: launches in all forms, programs, armed ones, copies, opaque work, \
         latency limits, cancels, kernels that panic (on the CPU device), and schedulers that are dropped in its midst, each with \
         another policy. Arrays are compared with the host's, to the bit.\n\n",
    );
    for device in ["gpu", "cpu"] {
        text += &soaked(folder, device)?;
    }
    Ok(text)
}

#[derive(Deserialize)]
struct Verified {
    program: String,
    size: String,
    runs: f64,
    block_tasks: f64,
    yields: f64,
    resumes: f64,
    right: bool,
}

pub fn verify(folder: &Folder) -> Result<String> {
    let results = folder.get("verify-gpu")?;
    let rows: Vec<Verified> = results.rows()?;
    let mut table =
        Table::new(["program", "size", "runs", "block-tasks", "yields", "resumes", "right"]);
    for (program, size) in distinct(rows.iter().map(|row| (&row.program, &row.size))) {
        let of = || rows.iter().filter(|row| (&row.program, &row.size) == (program, size));
        let sum = |what: fn(&Verified) -> f64| count(of().map(what).sum());
        let right = of().all(|row| row.right);
        table.row([
            program.clone(),
            size.clone(),
            sum(|row| row.runs),
            sum(|row| row.block_tasks),
            sum(|row| row.yields),
            sum(|row| row.resumes),
            if right { "yes" } else { "NO" }.to_owned(),
        ]);
    }
    Ok(format!(
        "The papers' programs, plain and preemptible, left alone and in storms of urgent launches: against their \
         references, and to the bit against each other. {} of {} are right, with {} yields in mid-kernel.\n\n{}\n{}",
        results.number("kernels_right")?,
        results.number("kernels")?,
        count(results.number("yields_mid_kernel")?),
        table.text(),
        results.source(),
    ))
}

#[derive(Deserialize)]
struct Application {
    scores: f64,
    score_p50_us: f64,
    score_p99_us: f64,
    walks_s: f64,
    yields: f64,
}

pub fn cust_app(folder: &Folder) -> Result<String> {
    let mut table = Table::new(["", "scores", "score p50", "p99", "walks", "yields"]);
    let mut sources = String::new();
    for name in ["before", "after"] {
        let results = folder.get(&format!("cust-app-{name}-gpu"))?;
        for row in results.rows::<Application>()? {
            table.row([
                name.to_owned(),
                count(row.scores),
                time(row.score_p50_us),
                time(row.score_p99_us),
                time(1e6 * row.walks_s),
                count(row.yields),
            ]);
        }
        sources += &format!("\n{}", results.source());
    }
    Ok(format!(
        "[One application on rust-cuda](../examples/cust-app), before and after it uses preempt.\n\n{}{sources}",
        table.text(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_a_soak_have_numbers() {
        for (rest, is_run) in
            [("", true), ("-2", true), ("-12", true), ("2", false), ("-b", false), ("-", false)]
        {
            assert_eq!(is_number_of_run(rest), is_run, "soak-gpu{rest}");
        }
    }
}
