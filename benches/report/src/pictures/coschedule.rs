//! Preemptions (figure 7 of Eyraud-Dubois and Bentes) and makespans (figure 8) of plans, over the number of tasks.

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{distinct, parse};
use crate::chart::{Axis, Content, LineStyle, Mark, Panel, Picture, PlottedLine};
use crate::papers::coscheduling as paper;

#[derive(Deserialize)]
struct Row {
    speeds: String,
    setting: String,
    tasks: u32,
    preemptions_per_task: Vec<f64>,
    over_sequential: f64,
    max_pair_over_sequential: f64,
    cost_20_over_sequential: f64,
    cost_50_over_sequential: f64,
    cost_20_planned_over_sequential: f64,
    cost_50_planned_over_sequential: f64,
}

pub fn picture(rows: &[Value]) -> Result<Picture> {
    let rows: Vec<Value> =
        rows.iter().filter(|row| row.get("setting").is_some()).cloned().collect();
    let rows: Vec<Row> = parse(&rows)?;
    let mut panels = vec![Vec::new()];
    for kind in distinct(rows.iter().map(|row| row.speeds.as_str())) {
        let of: Vec<&Row> = rows.iter().filter(|row| row.speeds == kind).collect();
        panels[0].push(preemptions(kind, &of));
        let settings = distinct(of.iter().map(|row| row.setting.as_str()));
        let of_setting = |setting: &str| {
            let of = of.iter().copied().filter(|row| row.setting == setting).collect::<Vec<_>>();
            makespans(format!("Makespans at {kind} speeds: {setting}"), &of)
        };
        panels.push(settings.into_iter().map(of_setting).collect());
    }
    Ok(Picture {
        title: "Plans for tasks that run two at a time".to_owned(),
        note: String::new(),
        size: (1500, 420),
        rows: panels,
    })
}

/// A point for each instance, and a line through the means of each setting.
fn preemptions(kind: &str, rows: &[&Row]) -> Panel {
    let settings = distinct(rows.iter().map(|row| row.setting.as_str()));
    let lines = settings.iter().enumerate().flat_map(|(colour, setting)| {
        let of = || rows.iter().filter(move |row| row.setting == *setting);
        let percent = |row: &Row, value: f64| (f64::from(row.tasks), 100.0 * value);
        let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
        let means = of().map(|row| percent(row, mean(&row.preemptions_per_task)));
        let each =
            of().flat_map(|row| row.preemptions_per_task.iter().map(move |&one| percent(row, one)));
        let line = |name: &str, style, points| PlottedLine {
            name: name.to_owned(),
            colour,
            style,
            points,
        };
        [
            line("", LineStyle::Points, each.collect()),
            line(setting, LineStyle::Solid, means.collect()),
        ]
    });
    let mark = |what, value: f64| {
        let value = 100.0 * value;
        Mark { label: format!("paper, {what}: {value:.0} %"), value, group: None }
    };
    Panel {
        title: format!("Preemptions at {kind} speeds"),
        y: Axis::linear("preemptions per task, in %"),
        content: Content::Lines { x: Axis::linear("tasks"), lines: lines.collect() },
        marks: vec![mark("mean", paper::PREEMPTIONS), mark("at most", paper::MOST_PREEMPTIONS)],
    }
}

/// Of one setting. The paper has the solid lines.
fn makespans(title: String, rows: &[&Row]) -> Panel {
    let line = |name: &str, colour, style, makespan: fn(&Row) -> f64| PlottedLine {
        name: name.to_owned(),
        colour,
        style,
        points: rows
            .iter()
            .map(|row| (f64::from(row.tasks), 100.0 * (1.0 - makespan(row))))
            .collect(),
    };
    let (solid, dashed) = (LineStyle::Solid, LineStyle::Dashed);
    Panel {
        title,
        y: Axis::linear("shorter than sequential, in %"),
        content: Content::Lines {
            x: Axis::linear("tasks"),
            lines: vec![
                line("MaxPair", 6, solid, |row| row.max_pair_over_sequential),
                line("plan", 0, solid, |row| row.over_sequential),
                line("cost 20 %", 4, solid, |row| row.cost_20_over_sequential),
                line("cost 50 %", 1, solid, |row| row.cost_50_over_sequential),
                line("planned for 20 %", 4, dashed, |row| row.cost_20_planned_over_sequential),
                line("planned for 50 %", 1, dashed, |row| row.cost_50_planned_over_sequential),
            ],
        },
        marks: Vec::new(),
    }
}
