//! User-facing tasks beside batch tasks on several devices (TReM figures 6 to 9).

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{WIDE, distinct, parse};
use crate::chart::{Axis, Bars, Content, Panel, Picture};
use crate::papers::{TREM, trem};

/// A policy with a workload.
#[derive(Deserialize)]
struct Replayed {
    mix: String,
    arm: String,
    load: f64,
    late: f64,
    wasted: f64,
}

/// A user-facing task beside a batch task.
#[derive(Deserialize)]
struct Beside {
    task: String,
    arm: String,
    batch_us: f64,
    response_over_alone: f64,
}

/// The policies that are shown, and TReM's own, whose figures of the paper are beside ours.
const ARMS: [&str; 6] = [
    "first come",
    "elastic",
    TREMS,
    "priority, yielding",
    "elastic, yielding",
    "in time, yielding",
];
const TREMS: &str = "elastic, killed";

pub fn picture(rows: &[Value]) -> Result<Picture> {
    let of_figure = |figure: &str| -> Vec<Value> {
        rows.iter().filter(|row| row["figure"] == figure).cloned().collect()
    };
    let replayed: Vec<Replayed> = parse(&of_figure("7-9"))?;
    let beside: Vec<Beside> = parse(&of_figure("6"))?;
    let mut panels = Vec::new();
    if !beside.is_empty() {
        panels.push(vec![responses(&beside)]);
    }
    if !replayed.is_empty() {
        panels.push(vec![late(&replayed)]);
        panels.push(vec![wasted(&replayed)]);
    }
    Ok(Picture {
        title: "User-facing tasks beside batch tasks on several devices".to_owned(),
        note: String::new(),
        size: WIDE,
        rows: panels,
    })
}

/// Beside the longest batch tasks.
fn responses(rows: &[Beside]) -> Panel {
    let longest = rows.iter().map(|row| row.batch_us).fold(0.0, f64::max);
    let tasks = distinct(rows.iter().map(|row| &row.task));
    let bars = |arm: &str| {
        let of = |task: &String| {
            let mut rows = rows.iter().filter(|row| row.batch_us == longest);
            let row = rows.find(|row| row.task == *task && row.arm == arm);
            row.map(|row| row.response_over_alone)
        };
        Bars { name: arm.to_owned(), values: tasks.iter().map(|&task| of(task)).collect() }
    };
    Panel {
        title: format!("Response of a task that comes to a batch task of {} ms", longest / 1e3),
        y: Axis::logarithmic("times that of the task alone"),
        content: Content::Bars {
            groups: tasks.iter().map(|&task| task.clone()).collect(),
            series: ["no stop", "yielding"].map(bars).to_vec(),
        },
        marks: Vec::new(),
    }
}

fn late(rows: &[Replayed]) -> Panel {
    let loads = distinct(rows.iter().map(|row| (&row.mix, row.load)));
    let paper = loads.iter().map(|(mix, load)| Some(100.0 * trem::late(mix, TREMS, *load)?));
    let paper = Bars { name: format!("{TREM}: {TREMS}"), values: paper.collect() };
    let (groups, mut series) = by_policy(rows, |row| row.late);
    series.push(paper);
    panel("User-facing tasks behind their SLA", "late, in %", groups, series)
}

fn wasted(rows: &[Replayed]) -> Panel {
    let (groups, series) = by_policy(rows, |row| row.wasted);
    panel("Work that was done for nothing", "wasted, in %", groups, series)
}

/// A bar, in percent, for each policy with each workload and load.
fn by_policy(rows: &[Replayed], of: fn(&Replayed) -> f64) -> (Vec<String>, Vec<Bars>) {
    let loads = distinct(rows.iter().map(|row| (&row.mix, row.load)));
    let bars = |arm: &str| {
        let value = |&(mix, load): &(&String, f64)| {
            let mut rows = rows.iter().filter(|row| row.mix == *mix && row.load == load);
            Some(100.0 * of(rows.find(|row| row.arm == arm)?))
        };
        Bars { name: arm.to_owned(), values: loads.iter().map(value).collect() }
    };
    let groups = loads.iter().map(|(mix, load)| format!("{mix}, load {load}")).collect();
    (groups, ARMS.map(bars).to_vec())
}

fn panel(title: &str, y: &str, groups: Vec<String>, series: Vec<Bars>) -> Panel {
    Panel {
        title: title.to_owned(),
        y: Axis::linear(y),
        content: Content::Bars { groups, series },
        marks: Vec::new(),
    }
}
