//! Exactly once: kernels that count their block-tasks, under random yields, resumes, growth and cancellation. And no
//! block-task runs on an SM that was taken away.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use preempt::policy::StaticPriority;
use preempt_test_kit::storm::{self, Chaos, Kind, Load, Strength, Tally};
use serde_json::{Value, json};

use super::{Bench, Experiment, Outcome, exclusion, line};
use crate::progress::Progress;
use crate::samples::show;

/// Work of each kernel on the CPU device.
const CPU_LOAD: Load = Load { tasks: 12_000, ticks: 0 };
/// Work of each kernel on a GPU: block-tasks of up to about 100 µs.
const GPU_LOAD: Load = Load { tasks: 40_000, ticks: 200_000 };
/// Work of the kernels that are cancelled within four milliseconds.
const GPU_CANCELLED: Load = Load { tasks: 40_000, ticks: 600_000 };

/// Amounts of work.
struct Size {
    /// Yields, and resumes, that each storm has to see.
    enough: u64,
    /// Kernels that are cancelled.
    cancelled: u64,
    /// Kernels that lose SMs for good.
    excluded: u64,
}

const CPU: Size = Size { enough: 50_000, cancelled: 2_000, excluded: 200 };
const GPU: Size = Size { enough: 35_000, cancelled: 2_000, excluded: 200 };
/// With `--quick`.
const QUICK: Size = Size { enough: 20, cancelled: 20, excluded: 3 };

/// One storm.
struct Row {
    name: &'static str,
    tally: Tally,
    /// Block-tasks on SMs that were taken away, and SMs where they would show.
    excluded: Option<(u64, u64)>,
    time: Duration,
}

/// The experiment `storm`.
#[derive(Debug)]
pub struct Storm;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
Eight kernels that count their block-tasks run at once, while small urgent kernels, or a policy that
deals SMs at random, take SMs from them and give them back. In the third row each urgent kernel has
another latency limit, from none to for ever, so that blocks drain, drop and switch at random. In
the fifth row kernels are cancelled at random moments, in the last one they lose SMs for good.

- yields: how often SMs were taken from a running kernel; `resumes`: how often it came back or grew
  in mid-kernel. A storm goes on until both are enough.
- `drops`: how often a block-task was left at a yield point and started again; `switches`: how often
  another block went on from a checkpoint; `drains`: blocks of such kernels that ended their
  block-task on an SM that was taken. What the kernels wrote is compared to the bit.
- lost, repeated: block-tasks that did not run, and runs beyond the first, as the kernels counted
  them. Anything but 0 is a bug. Of a cancelled kernel, exactly as many block-tasks have to have run
  as it says. A kernel with yield points may start a block-task several times; there, what it wrote
  is compared.
- on taken SMs: a victim stamps each block-task with its SM and its start. At some moment it loses a
  range of SMs for good to another kernel, whose blocks then fill them. Block-tasks of the victim
  that start on a full SM after that: anything but 0 is a bug. `sms_full_of_another` is the number
  of SMs on which such a start would have shown; it is small on the CPU device, where SMs share
  processors.

In the summary, `yields_mid_kernel` is the sum of the yields, `tasks_wrong` of everything lost,
repeated or otherwise wrong, and `tasks_on_excluded_sm` that of the last column.
";

impl Experiment for Storm {
    fn name(&self) -> &'static str {
        "storm"
    }

    fn about(&self) -> &'static str {
        "Every block-task exactly once, under random yields, resumes, growth and cancellation."
    }

    fn meaning(&self) -> &'static [&'static str] {
        &[MEANING]
    }

    /// More SMs than processors, so that SMs can be dealt in many ways.
    fn shape(&self, _: u32) -> (u32, u32) {
        (5, 2)
    }

    fn run(&self, bench: &Bench) -> Result<Outcome> {
        run(bench)
    }
}

/// Runs all storms.
fn run(bench: &Bench) -> Result<Outcome> {
    let sms = bench.device.as_ref().map_or(0, |device| device.properties().sms);
    ensure!(sms > 1, "a storm takes SMs away, and leaves some: it needs two at least, not {sms}");
    let (load, cancelled_load, full) = match bench.gpu {
        None => (CPU_LOAD, CPU_LOAD, CPU),
        Some(_) => (GPU_LOAD, GPU_CANCELLED, GPU),
    };
    let Size { enough, cancelled, excluded } = bench.amount(QUICK, full);
    let seed = bench.seed;
    let strength = |urgent_priority| Strength {
        enough,
        load,
        kinds: &Kind::ALL,
        urgent_priority,
        has_limits: false,
        seed,
    };
    let row = |name, steps, storm: &dyn Fn(&Progress) -> Result<Tally>| {
        let start = Instant::now();
        let tally = storm(&Progress::new(name, steps)).with_context(|| format!("row `{name}`"))?;
        Ok::<Row, anyhow::Error>(Row { name, tally, excluded: None, time: start.elapsed() })
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
        row("urgent kernels with random limits", enough, &|progress| {
            let scheduler = bench.scheduler(StaticPriority::new())?;
            let strength = Strength { has_limits: true, ..strength(1) };
            Ok(storm::yields(&scheduler, strength, |tally| progress.reach(seen(tally)))?)
        })?,
        row("random ranges of SMs", enough, &|progress| {
            let scheduler = bench.scheduler(Chaos::new(bench.seed))?;
            Ok(storm::yields(&scheduler, strength(0), |tally| progress.reach(seen(tally)))?)
        })?,
        row("cancelled at random moments", cancelled, &|progress| {
            let scheduler = bench.scheduler(StaticPriority::new())?;
            let load = cancelled_load;
            Ok(storm::cancellations(&scheduler, cancelled, load, seed, |_| progress.step())?)
        })?,
        exclusion_row(bench, excluded)?,
    ];

    Ok(outcome(&rows, bench.gpu.is_some()))
}

/// The summary, by its keys.
fn summary(rows: &[Row]) -> Value {
    let sum = |field: fn(&Tally) -> u64| rows.iter().map(|row| field(&row.tally)).sum::<u64>();
    let (on_excluded, full_sms) = excluded(rows);
    let wrong = |tally: &Tally| tally.lost + tally.repeated + u64::from(tally.mistake.is_some());
    json!({
        "yields_mid_kernel": sum(|tally| tally.yields),
        "tasks_wrong": rows.iter().map(|row| wrong(&row.tally)).sum::<u64>(),
        "tasks_on_excluded_sm": on_excluded,
        "sms_full_of_another": full_sms,
        "block_tasks": sum(|tally| tally.block_tasks),
        "yields": sum(|tally| tally.yields),
        "resumes": sum(|tally| tally.resumes),
        "cancelled": sum(|tally| tally.cancelled),
        "drops": sum(|tally| tally.requeued),
        "switches": sum(|tally| tally.switches),
        "drains": sum(|tally| tally.drained),
        "lost": sum(|tally| tally.lost),
        "repeated": sum(|tally| tally.repeated),
        "seconds": rows.iter().map(|row| row.time.as_secs_f64()).sum::<f64>(),
    })
}

/// Block-tasks on SMs that were taken away, and SMs where they would show.
fn excluded(rows: &[Row]) -> (u64, u64) {
    let sums = |(a, b), (tasks, sms)| (a + tasks, b + sms);
    rows.iter().filter_map(|row| row.excluded).fold((0, 0), sums)
}

/// The first mistake in the rows, if there is any.
fn mistake(rows: &[Row], is_gpu: bool) -> Option<String> {
    let (on_excluded, full_sms) = excluded(rows);
    let mistake = rows.iter().find_map(|row| {
        let mistake = row.tally.mistake.as_ref()?;
        Some(format!("row `{}`: {mistake}", row.name))
    });
    let mistake = mistake.or_else(|| {
        (on_excluded > 0)
            .then(|| format!("{on_excluded} block-tasks started on SMs that had been taken away"))
    });
    // On the CPU device, where SMs share processors, the marker may come and go block by block.
    mistake.or_else(|| {
        (is_gpu && full_sms == 0)
            .then(|| "no SM was full of the marker, so nothing was looked at".to_owned())
    })
}

fn outcome(rows: &[Row], is_gpu: bool) -> Outcome {
    let mut table = vec![line([
        "storm",
        "kernels",
        "block-tasks",
        "yields",
        "resumes",
        "cancelled",
        "lost",
        "repeated",
        "on taken SMs",
        "time",
    ])];
    table.extend(rows.iter().map(Row::cells));
    Outcome {
        about:
            "Eight kernels that count their block-tasks run at once, and SMs are taken from them \
                and given back."
                .to_owned(),
        table,
        text_columns: 1,
        rows: rows.iter().map(Row::json).collect(),
        summary: summary(rows),
        mistake: mistake(rows, is_gpu),
    }
}

/// Victims that lose SMs for good, which another kernel then fills.
fn exclusion_row(bench: &Bench, victims: u64) -> Result<Row> {
    let name = "SMs taken for good";
    let start = Instant::now();
    let progress = Progress::new(name, victims);
    let seen = exclusion::run(bench, victims, || progress.step());
    let seen = seen.with_context(|| format!("row `{name}`"))?;
    let excluded = Some((seen.on_excluded, seen.full_sms));
    Ok(Row { name, tally: seen.tally, excluded, time: start.elapsed() })
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let Tally { kernels, block_tasks, yields, resumes, cancelled, lost, repeated, .. } =
            &self.tally;
        let numbers = [kernels, block_tasks, yields, resumes, cancelled, lost, repeated];
        let mut cells = vec![self.name.to_owned()];
        cells.extend(numbers.map(u64::to_string));
        cells.push(self.excluded.map_or_else(|| "-".to_owned(), |(tasks, _)| tasks.to_string()));
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
            "drops": self.tally.requeued,
            "switches": self.tally.switches,
            "drains": self.tally.drained,
            "lost": self.tally.lost,
            "repeated": self.tally.repeated,
            "on_excluded_sm": self.excluded.map(|(tasks, _)| tasks),
            "sms_full_of_another": self.excluded.map(|(_, sms)| sms),
            "seconds": self.time.as_secs_f64(),
        })
    }
}
