//! NTT of each program (EffiSha figure 11), ANTT and STP (figure 12), makespans (figure 15), and
//! evictions (figure 9).

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{WIDE, distinct, parse};
use crate::chart::{Axis, Bars, Content, LineStyle, Mark, Panel, Picture, PlottedLine};
use crate::papers::effisha;

#[derive(Deserialize)]
struct Row {
    setting: String,
    arm: String,
    antt: Option<f64>,
    stp: Option<f64>,
    makespan_p50_us: Option<f64>,
    programs: Vec<String>,
    ntt: Vec<Option<f64>>,
}

#[derive(Deserialize)]
struct Evictions {
    wait_ms: u64,
    yields_by_priority: Vec<f64>,
}

/// The arm that the paper compares with.
const PLAIN: &str = "plain streams";

/// The setting of figure 11.
const FIGURE_11: &str = "sjf";

pub fn picture(rows: &[Value]) -> Result<Picture> {
    let (evictions, rows): (Vec<Value>, Vec<Value>) =
        rows.iter().cloned().partition(|row| row.get("wait_ms").is_some());
    let rows: Vec<Row> = parse(&rows)?;
    let evictions: Vec<Evictions> = parse(&evictions)?;
    let antt = Marked { of_arm: |row| row.antt, paper: |antt, _| (1.0 + antt, change(antt)) };
    let stp = Marked { of_arm: |row| row.stp, paper: |_, stp| (stp, format!("EffiSha: {stp}x")) };
    let mut last = vec![overheads(&rows)];
    if !evictions.is_empty() {
        last.push(by_priority(&evictions));
    }
    Ok(Picture {
        title: "EffiSha's eleven programs at intervals, with three settings of priorities"
            .to_owned(),
        note: String::new(),
        size: WIDE,
        rows: vec![
            vec![
                marked(&rows, "ANTT (lower is better)", &antt),
                marked(&rows, "STP (higher is better)", &stp),
            ],
            vec![programs(&rows)],
            last,
        ],
    })
}

/// Something of each arm, and by how much the paper changes it, with what to call that.
struct Marked {
    of_arm: fn(&Row) -> Option<f64>,
    paper: fn(f64, f64) -> (f64, String),
}

fn change(antt: f64) -> String {
    format!("EffiSha: {:+.0} %", 100.0 * antt)
}

/// What is marked is the paper's change of what plain streams have here.
fn marked(rows: &[Row], label: &str, Marked { of_arm, paper }: &Marked) -> Panel {
    let marks = settings(rows).into_iter().enumerate().filter_map(|(group, setting)| {
        let of_paper = effisha::SETTINGS.into_iter().find(|paper| paper.name == setting)?;
        let (to_plain, label) = paper(of_paper.antt_change, of_paper.stp_gain);
        let value = to_plain * of_arm(find(rows, setting, PLAIN)?)?;
        Some(Mark { label, value, group: Some(group) })
    });
    Panel {
        title: String::new(),
        y: Axis::linear(label),
        content: by_setting(rows, of_arm),
        marks: marks.collect(),
    }
}

/// What all takes longer than on plain streams.
fn overheads(rows: &[Row]) -> Panel {
    let paper = 100.0 * effisha::MAX_OVERHEAD;
    Panel {
        title: "Scheduling overhead: makespan, to that on plain streams".to_owned(),
        y: Axis::linear("longer, in %"),
        content: by_setting(rows, |row| {
            let plain = find(rows, &row.setting, PLAIN)?.makespan_p50_us?;
            let to_plain = row.makespan_p50_us? / plain;
            (row.arm != PLAIN).then_some(100.0 * (to_plain - 1.0))
        }),
        marks: vec![Mark { label: format!("EffiSha: < {paper} %"), value: paper, group: None }],
    }
}

/// A bar of each arm that has this, in each setting.
fn by_setting(rows: &[Row], of_row: impl Fn(&Row) -> Option<f64>) -> Content {
    let settings = settings(rows);
    let arms = distinct(rows.iter().map(|row| row.arm.as_str()));
    let series = arms.into_iter().map(|arm| Bars {
        name: arm.to_owned(),
        values: settings.iter().map(|setting| find(rows, setting, arm).and_then(&of_row)).collect(),
    });
    Content::Bars {
        groups: settings.iter().map(|setting| (*setting).to_owned()).collect(),
        series: series.collect(),
    }
}

fn settings(rows: &[Row]) -> Vec<&str> {
    distinct(rows.iter().map(|row| row.setting.as_str()))
}

fn find<'a>(rows: &'a [Row], setting: &str, arm: &str) -> Option<&'a Row> {
    rows.iter().find(|row| row.setting == setting && row.arm == arm)
}

/// NTT of each program in one setting.
fn programs(rows: &[Row]) -> Panel {
    let of_setting = rows.iter().filter(|row| row.setting == FIGURE_11);
    let series =
        of_setting.clone().map(|row| Bars { name: row.arm.clone(), values: row.ntt.clone() });
    Panel {
        title: format!("Setting {FIGURE_11}, in the order of submission"),
        y: Axis::logarithmic("turnaround / time alone (NTT)"),
        content: Content::Bars {
            groups: of_setting.clone().next().map_or_else(Vec::new, |row| row.programs.clone()),
            series: series.collect(),
        },
        marks: Vec::new(),
    }
}

fn by_priority(evictions: &[Evictions]) -> Panel {
    let lines =
        evictions.iter().enumerate().map(|(colour, Evictions { wait_ms, yields_by_priority })| {
            let points = yields_by_priority.iter().enumerate();
            PlottedLine {
                name: format!("{wait_ms} ms"),
                colour,
                style: LineStyle::Solid,
                points: points.map(|(index, yields)| ((index + 1) as f64, *yields)).collect(),
            }
        });
    Panel {
        title: "Evictions, by the wait between runs".to_owned(),
        y: Axis::linear("evictions"),
        content: Content::Lines { x: Axis::linear("priority"), lines: lines.collect() },
        marks: Vec::new(),
    }
}
