//! Exactly once: kernels that count their block-tasks, under random yields, resumes, growth and
//! cancellation.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use preempt::policy::StaticPriority;
use preempt_tests::storm::{self, Chaos, Strength, Tally};
use serde_json::{Value, json};

use super::{Bench, Outcome, line};
use crate::progress::Progress;
use crate::samples::show;

/// About how many block-tasks each kernel has.
const TASKS: u32 = 12_000;

/// Yields, and resumes, that each storm has to see, and kernels that are cancelled.
const FULL: (u64, u64) = (10_000, 2_000);
/// The same with `--quick`.
const QUICK: (u64, u64) = (20, 20);

/// One storm.
struct Row {
    name: &'static str,
    tally: Tally,
    time: Duration,
}

/// Runs all storms.
pub fn run(bench: &Bench) -> Result<Outcome> {
    let (enough, launches) = if bench.quick { QUICK } else { FULL };
    let seed = bench.seed;
    let strength = |urgent_priority| Strength { enough, tasks: TASKS, urgent_priority, seed };
    let row = |name, steps, storm: &dyn Fn(&Progress) -> Result<Tally>| {
        let start = Instant::now();
        let tally = storm(&Progress::new(name, steps)).with_context(|| format!("row `{name}`"))?;
        Ok::<Row, anyhow::Error>(Row { name, tally, time: start.elapsed() })
    };
    let seen = |tally: &Tally| tally.yields.min(tally.resumes);
    let rows = [
        row("urgent kernels take what they need", enough, &|progress| {
            let scheduler = bench.scheduler(StaticPriority::new())?;
            Ok(storm::yields(&scheduler, strength(1), |tally| progress.reach(seen(tally)))?)
        })?,
        row("urgent kernels take the device", enough, &|progress| {
            let scheduler = bench.scheduler(StaticPriority::whole_device())?;
            Ok(storm::yields(&scheduler, strength(1), |tally| progress.reach(seen(tally)))?)
        })?,
        row("random ranges of SMs", enough, &|progress| {
            let scheduler = bench.scheduler(Chaos::new(bench.seed))?;
            Ok(storm::yields(&scheduler, strength(0), |tally| progress.reach(seen(tally)))?)
        })?,
        row("cancelled at random moments", launches, &|progress| {
            let scheduler = bench.scheduler(StaticPriority::new())?;
            Ok(storm::cancellations(&scheduler, launches, TASKS, seed, |_| progress.step())?)
        })?,
    ];

    let mut table = vec![line([
        "storm",
        "kernels",
        "block-tasks",
        "yields",
        "resumes",
        "cancelled",
        "lost",
        "repeated",
        "time",
    ])];
    table.extend(rows.iter().map(Row::cells));
    let sum = |field: fn(&Tally) -> u64| rows.iter().map(|row| field(&row.tally)).sum::<u64>();
    let summary = json!({
        "block_tasks": sum(|tally| tally.block_tasks),
        "yields": sum(|tally| tally.yields),
        "resumes": sum(|tally| tally.resumes),
        "cancelled": sum(|tally| tally.cancelled),
        "lost": sum(|tally| tally.lost),
        "repeated": sum(|tally| tally.repeated),
        "seconds": rows.iter().map(|row| row.time.as_secs_f64()).sum::<f64>(),
    });
    let mistake = rows.iter().find_map(|row| {
        let mistake = row.tally.mistake.as_ref()?;
        Some(format!("row `{}`: {mistake}", row.name))
    });
    Ok(Outcome {
        about: "Six kernels that count their block-tasks run at once, and SMs are taken from them \
                and given back."
            .to_owned(),
        table,
        text_columns: 1,
        rows: rows.iter().map(Row::json).collect(),
        summary,
        mistake,
    })
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let Tally { kernels, block_tasks, yields, resumes, cancelled, lost, repeated, .. } =
            &self.tally;
        let numbers = [kernels, block_tasks, yields, resumes, cancelled, lost, repeated];
        let mut cells = vec![self.name.to_owned()];
        cells.extend(numbers.map(u64::to_string));
        cells.push(show(self.time));
        cells
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "kernels": self.tally.kernels,
            "block_tasks": self.tally.block_tasks,
            "yields": self.tally.yields,
            "resumes": self.tally.resumes,
            "cancelled": self.tally.cancelled,
            "cancelled_midway": self.tally.cancelled_midway,
            "lost": self.tally.lost,
            "repeated": self.tally.repeated,
            "seconds": self.time.as_secs_f64(),
        })
    }
}
