//! A periodic task and pairs of programs, with blocks that drain, are dropped or switch (Chimera figures 6, 7, 8, 10 and
//! 11).

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{WIDE, distinct, parse_with};
use crate::chart::{Axis, Bars, Content, LineStyle, Mark, Panel, Picture, PlottedLine};
use crate::papers::{CHIMERA, chimera};

/// A program beside the task, in one arm.
#[derive(Deserialize)]
struct Row {
    program: String,
    arm: String,
    limit_us: f64,
    violations: Option<f64>,
    late: Option<f64>,
    throughput_lost: Option<f64>,
}

/// A pair in one arm.
#[derive(Deserialize)]
struct Pair {
    pair: Vec<String>,
    arm: String,
    antt: Option<f64>,
    stp: Option<f64>,
}

pub fn picture(rows: &[Value]) -> Result<Picture> {
    let pairs: Vec<Pair> = parse_with(rows, "pair")?;
    let rows: Vec<Row> = parse_with(rows, "program")?;
    let panels = [
        vec![violations(&rows), late(&rows)],
        vec![lost(&rows)],
        vec![gains(&pairs, "ANTT")],
        vec![gains(&pairs, "STP")],
    ];
    // The CPU device counts no time of stops, and a few programs can be measured without a pair.
    let drawn = panels.map(|row| row.into_iter().filter(|panel| has_values(&panel.content)));
    let drawn = drawn.map(Iterator::collect::<Vec<_>>).into_iter().filter(|row| !row.is_empty());
    Ok(Picture {
        title: "Blocks that drain, are dropped or switch".to_owned(),
        note: String::new(),
        size: WIDE,
        rows: drawn.collect(),
    })
}

fn has_values(content: &Content) -> bool {
    match content {
        Content::Bars { series, .. } => {
            series.iter().any(|bars| bars.values.iter().any(Option::is_some))
        }
        Content::Lines { lines, .. } => {
            lines.iter().any(|line| !line.name.contains(CHIMERA) && !line.points.is_empty())
        }
    }
}

/// A line over the limits, of what a choice has, in percent.
fn by_limit(
    rows: &[Row],
    title: &str,
    label: &str,
    of: fn(&Row) -> Option<f64>,
    paper: &[(f64, f64)],
) -> Panel {
    let chosen = rows.iter().filter(|row| row.arm == "choice");
    let point = |row: &Row| Some((row.limit_us, 100.0 * of(row)?));
    let points: Vec<(f64, f64)> = chosen.filter_map(point).collect();
    let mut limits = distinct(points.iter().map(|(limit, _)| *limit));
    limits.sort_by(f64::total_cmp);
    let mean = |limit: f64| {
        let at = points.iter().filter(|(other, _)| *other == limit);
        let values: Vec<f64> = at.map(|(_, value)| *value).collect();
        (limit, values.iter().sum::<f64>() / values.len() as f64)
    };
    let line = |name: &str, colour, style, points| PlottedLine {
        name: name.to_owned(),
        colour,
        style,
        points,
    };
    let means = limits.iter().map(|&limit| mean(limit)).collect();
    let paper = paper.iter().map(|&(limit, value)| (limit, 100.0 * value)).collect();
    Panel {
        title: title.to_owned(),
        y: Axis::linear(label),
        content: Content::Lines {
            x: Axis::linear("limit, in µs"),
            lines: vec![
                line(CHIMERA, 6, LineStyle::Dashed, paper),
                line("a program", 0, LineStyle::Points, points.clone()),
                line("mean of the programs", 1, LineStyle::Solid, means),
            ],
        },
        marks: Vec::new(),
    }
}

fn violations(rows: &[Row]) -> Panel {
    let of = |row: &Row| row.violations;
    let title = "Stops that took longer than the limit";
    by_limit(rows, title, "violations, in %", of, &chimera::VIOLATIONS_BY_LIMIT)
}

fn late(rows: &[Row]) -> Panel {
    let of = |row: &Row| row.late;
    by_limit(rows, "Tasks behind their deadline", "late, in %", of, &chimera::VIOLATIONS_BY_LIMIT)
}

fn lost(rows: &[Row]) -> Panel {
    let programs = distinct(rows.iter().map(|row| &row.program));
    // The summary's, which rows without a limit have, too.
    let limit_us = rows.iter().find(|row| row.arm == "drain").map(|row| row.limit_us);
    let bars = |arm: &str| {
        let of = |program: &String| {
            let is_it = |row: &&Row| {
                row.arm == arm && Some(row.limit_us) == limit_us && row.program == *program
            };
            Some(100.0 * rows.iter().find(is_it)?.throughput_lost?)
        };
        Bars { name: arm.to_owned(), values: programs.iter().map(|&program| of(program)).collect() }
    };
    let value = 100.0 * chimera::LOST;
    Panel {
        title: "Throughput of the program that is lost beside the task".to_owned(),
        y: Axis::linear("lost, in %"),
        content: Content::Bars {
            groups: programs.iter().map(|&program| program.clone()).collect(),
            series: ["drain", "flush", "switch", "choice"].map(bars).to_vec(),
        },
        marks: vec![Mark { label: format!("{CHIMERA}, choice: {value:.1} %"), value, group: None }],
    }
}

/// ANTT or STP of the pairs that the paper shows, by that of one kernel at a time.
fn gains(pairs: &[Pair], what: &str) -> Panel {
    let is_antt = what == "ANTT";
    let shown = pairs.iter().filter(|pair| pair.pair.iter().any(|name| name == chimera::SHOWN));
    let groups = distinct(shown.map(|pair| &pair.pair));
    let value = |group: &Vec<String>, arm: &str| {
        let pair = pairs.iter().find(|pair| pair.pair == *group && pair.arm == arm)?;
        if is_antt { pair.antt } else { pair.stp }
    };
    let gain = |group: &Vec<String>, arm: &str| {
        let (before, after) = (value(group, "in order")?, value(group, arm)?);
        Some(if is_antt { before / after } else { after / before })
    };
    let bars = |arm: &str| Bars {
        name: arm.to_owned(),
        values: groups.iter().map(|&group| gain(group, arm)).collect(),
    };
    let paper = if is_antt { chimera::SHOWN_ANTT_GAIN } else { 1.0 + chimera::SHOWN_STP_GAIN };
    Panel {
        title: format!("{what} of pairs with {}, by that of one kernel at a time", chimera::SHOWN),
        y: Axis::logarithmic(if is_antt { "ANTT lower, times" } else { "STP higher, times" }),
        content: Content::Bars {
            groups: groups.iter().map(|&group| group.join(" ")).collect(),
            series: ["shared", "ceiling"].map(bars).to_vec(),
        },
        marks: vec![Mark {
            label: format!("{CHIMERA}, mean: {paper:.2}x"),
            value: paper,
            group: None,
        }],
    }
}
