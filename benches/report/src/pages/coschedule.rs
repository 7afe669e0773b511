//! Plans for kernels two at a time, drawn and carried out.

use anyhow::{Context, Result};
use serde::Deserialize;

use super::markdown::{Table, percent, time_or_dash};
use super::results::{Folder, Results};
use super::scheduling::compared;
use crate::pictures::distinct;
use crate::{digits, time};

/// Instances of one setting and one number of tasks (figures 7 and 8).
#[derive(Deserialize)]
struct Drawn {
    speeds: String,
    setting: String,
    tasks: u32,
    preemptions_per_task: Vec<f64>,
    over_sequential: f64,
    over_max_pair: f64,
    max_pair_over_sequential: f64,
    cost_20_planned_over_sequential: f64,
    cost_50_planned_over_sequential: f64,
}

/// Speeds in one way of sharing.
#[derive(Deserialize)]
struct Way {
    way: String,
    speeds: Vec<Vec<f64>>,
    twins: Vec<[f64; 2]>,
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
    let results = folder.get("coschedule-gpu")?;
    let simulated = folder.get("coschedule-sim")?;
    let rows: Vec<Drawn> = results.rows_with("setting")?;
    let of = |key| results.number(key);
    let [over_plan, over_max_pair, over_sequential] = carried_out(&results)?;
    let [sim_over_plan, sim_over_max_pair, sim_over_sequential] = carried_out(&simulated)?;
    Ok(format!(
        "Plans for kernels that run two at a time (Eyraud-Dubois and Bentes, HiPC 2020, figures 7 and 8), for {} \
         instances drawn after the paper's measurements. They are computed, and the same on every device. Ranges are of the \
         means for each number of tasks. Makespans \
         are at most {:.6} times the lower bound of the linear program, and {} times MaxPair's in the mean. The last two \
         columns of the second table are of plans made for preemptions that cost this part of a task's mean time. In the \
         picture these are dashed; lines of a cost that are drawn through are of the plans for free preemption, as in \
         the paper.\n\n\
         {}\n{}\n\
         Speeds of ten programs beside each other on the GPU, in each way of sharing. A pair gains if its speeds add up \
         to more than 1.\n\n{}\n\
         Plans for as many instances whose tasks run these programs, at the measured speeds; means of all numbers of \
         tasks. In the worst setting there are {} preemptions for each task, and makespans are {} times MaxPair's in the \
         mean. These plans are not carried out.\n\n{}\n\
         Plans that are carried out on the GPU, and in the last columns the same tasks in the other arms. Makespans are {} \
         times the planned ones, {} times MaxPair's, and {} times those of one program after the other (geometric \
         means).\n\n{}\n{}\n\
         In virtual time, on the model of an H200, makespans are {} times the planned ones, {} times MaxPair's, and {} \
         times those of one program after the other. There two programs gain beside each other only where one of them \
         cannot fill the GPU: the model has no memory bandwidth, and no two programs on an SM.\n\n{}",
        of("instances")?,
        of("makespan_over_lp")?,
        digits(of("makespan_over_maxpair_mean")?),
        compared(&results)?,
        by_tasks(&rows),
        ways(&results)?,
        percent(of("measured_preemptions_per_task_worst_mean")?),
        digits(of("measured_makespan_over_maxpair_mean")?),
        by_setting(&rows),
        over_plan,
        over_max_pair,
        over_sequential,
        by_arm(&results)?,
        results.source(),
        sim_over_plan,
        sim_over_max_pair,
        sim_over_sequential,
        simulated.source(),
    ))
}

/// Makespans of plans that were carried out: by the planned ones, by MaxPair's and by sequential ones.
fn carried_out(results: &Results) -> Result<[String; 3]> {
    let of = |key| results.number(key).map(digits);
    Ok([
        of("executed_over_plan")?,
        of("executed_over_maxpair_executed")?,
        of("executed_over_sequential")?,
    ])
}

fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.into_iter().collect();
    values.iter().sum::<f64>() / values.len() as f64
}

/// Instances at drawn speeds.
fn by_tasks(rows: &[Drawn]) -> String {
    let mut table = Table::new([
        "setting",
        "tasks",
        "preemptions per task",
        "plan / sequential",
        "MaxPair / sequential",
        "preemptions cost 20 %",
        "50 %",
    ]);
    for row in rows.iter().filter(|row| row.speeds == "drawn") {
        table.row([
            row.setting.clone(),
            row.tasks.to_string(),
            percent(mean(row.preemptions_per_task.iter().copied())),
            digits(row.over_sequential),
            digits(row.max_pair_over_sequential),
            digits(row.cost_20_planned_over_sequential),
            digits(row.cost_50_planned_over_sequential),
        ]);
    }
    table.text()
}

/// Instances at measured speeds.
fn by_setting(rows: &[Drawn]) -> String {
    let mut table = Table::new([
        "setting",
        "preemptions per task",
        "plan / sequential",
        "plan / MaxPair",
        "preemptions cost 20 %",
        "50 %",
    ]);
    let measured = || rows.iter().filter(|row| row.speeds == "measured");
    for setting in distinct(measured().map(|row| &row.setting)) {
        let of = || measured().filter(|row| row.setting == *setting);
        let mean_of = |value: fn(&Drawn) -> f64| digits(mean(of().map(value)));
        table.row([
            setting.clone(),
            percent(mean(of().flat_map(|row| row.preemptions_per_task.iter().copied()))),
            mean_of(|row| row.over_sequential),
            mean_of(|row| row.over_max_pair),
            mean_of(|row| row.cost_20_planned_over_sequential),
            mean_of(|row| row.cost_50_planned_over_sequential),
        ]);
    }
    table.text()
}

/// What pairs gain in each way of sharing.
fn ways(results: &Results) -> Result<String> {
    let mut table = Table::new([
        "way",
        "pairs that gain",
        "gain of these, mean",
        "best",
        "programs that gain beside themselves",
    ]);
    for Way { way, speeds, twins } in results.rows_with("way")? {
        let pairs = (0..speeds.len()).flat_map(|i| (0..i).map(move |j| (i, j)));
        let gains: Vec<f64> = pairs.map(|(i, j)| speeds[i][j] + speeds[j][i] - 1.0).collect();
        let gaining: Vec<f64> = gains.iter().copied().filter(|&gain| gain > 0.0).collect();
        let best = gaining.iter().copied().max_by(f64::total_cmp);
        let gain = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), percent);
        let beside_themselves = twins.iter().filter(|both| both[0] + both[1] > 1.0).count();
        table.row([
            way,
            format!("{} of {}", gaining.len(), gains.len()),
            gain(best.map(|_| mean(gaining.iter().copied()))),
            gain(best),
            format!("{beside_themselves} of {}", twins.len()),
        ]);
    }
    Ok(table.text())
}

/// Instances that were carried out, with a column for each arm.
fn by_arm(results: &Results) -> Result<String> {
    let rows: Vec<Executed> = results.rows_with("arm")?;
    let mut table = Table::new([
        "tasks",
        "planned",
        "carried out",
        "MaxPair",
        "sequential",
        "plain, one stream",
    ]);
    for instance in distinct(rows.iter().map(|row| row.instance)) {
        let of = |arm: &str| {
            let found = rows.iter().find(|row| row.instance == instance && row.arm == arm);
            let told = || format!("{}: instance {instance} has no arm `{arm}`", results.file);
            found.with_context(told)
        };
        let plan = of("plan")?;
        let executed = |arm| of(arm).map(|row| time(row.executed_p50_us));
        table.row([
            plan.tasks.to_string(),
            time_or_dash(plan.planned_us),
            time(plan.executed_p50_us),
            executed("MaxPair")?,
            executed("sequential")?,
            executed("plain, one stream")?,
        ]);
    }
    Ok(table.text())
}
