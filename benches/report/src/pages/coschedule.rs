//! Plans for kernels two at a time, drawn and carried out.

use anyhow::Result;
use serde::Deserialize;

use super::markdown::{Table, percent};
use super::results::Folder;
use crate::papers::coscheduling as paper;
use crate::{digits, time};

/// Instances of one setting and one number of tasks (figures 7 and 8).
#[derive(Deserialize)]
struct Drawn {
    setting: String,
    tasks: u32,
    preemptions_per_task: Vec<f64>,
    over_sequential: f64,
    max_pair_over_sequential: f64,
    cost_20_planned_over_sequential: f64,
    cost_50_planned_over_sequential: f64,
}

/// An instance in one arm.
#[derive(Deserialize)]
struct Executed {
    arm: String,
    instance: u32,
    tasks: u32,
    planned_us: Option<f64>,
    executed_p50_us: f64,
}

pub fn coschedule(folder: &Folder) -> Result<String> {
    let results = folder.get("coschedule-sim")?;
    let mut drawn = Table::new([
        "setting",
        "tasks",
        "preemptions per task",
        "plan / sequential",
        "MaxPair / sequential",
        "preemptions cost 20 %",
        "50 %",
    ]);
    for row in results.rows_with::<Drawn>("setting")? {
        let instances = row.preemptions_per_task.len() as f64;
        drawn.row([
            row.setting,
            row.tasks.to_string(),
            percent(row.preemptions_per_task.iter().sum::<f64>() / instances),
            digits(row.over_sequential),
            digits(row.max_pair_over_sequential),
            digits(row.cost_20_planned_over_sequential),
            digits(row.cost_50_planned_over_sequential),
        ]);
    }
    let mut executed = Table::new(["instance", "tasks", "arm", "planned", "carried out"]);
    for row in results.rows_with::<Executed>("arm")? {
        executed.row([
            (row.instance + 1).to_string(),
            row.tasks.to_string(),
            row.arm,
            super::markdown::time_or_dash(row.planned_us),
            time(row.executed_p50_us),
        ]);
    }
    let of = |key| results.number(key);
    Ok(format!(
        "Plans for kernels that run two at a time (Eyraud-Dubois and Bentes, HiPC 2020, figures 7 and 8), for {} \
         instances drawn after the paper's measurements; means of each setting and number of tasks. In the worst setting \
         there are {} preemptions for each task (paper: {}), {} for its worst number of tasks (paper: at most {}). \
         Makespans are at most {:.6} times the lower bound of the linear program, and {} times MaxPair's in the mean. \
         The last two columns are of plans made for preemptions that cost this part of a task's mean time.\n\n{}\n\
         Plans that are carried out, on the model of an H200, with measured launches of ten programs. There two programs \
         gain beside each other only where one of them cannot fill the GPU: the model has no memory bandwidth, and no \
         two programs on an SM. Makespans are {} times the planned ones, {} times MaxPair's, and {} times those of one \
         program after the other (geometric means).\n\n{}\n{}",
        of("instances")?,
        percent(of("preemptions_per_task_worst_mean")?),
        percent(paper::PREEMPTIONS),
        percent(of("preemptions_per_task_worst")?),
        percent(paper::MOST_PREEMPTIONS),
        of("makespan_over_lp")?,
        digits(of("makespan_over_maxpair_mean")?),
        drawn.text(),
        digits(of("executed_over_plan")?),
        digits(of("executed_over_maxpair_executed")?),
        digits(of("executed_over_sequential")?),
        executed.text(),
        results.source(),
    ))
}
