//! What urgent launches wait beside a kernel that fills the GPU, over the length of its block-tasks, and how long stops of
//! the papers' kernels take (EffiSha figure 10).

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{WIDE, parse_with};
use crate::chart::{Axis, Bars, Content, LineStyle, Mark, Panel, Picture, PlottedLine};
use crate::papers::{EFFISHA, effisha};

#[derive(Deserialize)]
struct Launch {
    arm: String,
    block_task_us: f64,
    yield_points: bool,
    p50_us: f64,
    p99_us: f64,
}

#[derive(Deserialize)]
struct Stop {
    program: String,
    p50_us: f64,
    p99_us: f64,
}

/// In the order of the legend.
const ARMS: [&str; 5] = ["preempt", "preempt, armed", "floor", "stream priority", "idle GPU"];

pub fn picture(rows: &[Value]) -> Result<Picture> {
    let launches: Vec<Launch> = parse_with(rows, "block_task_us")?;
    let stops: Vec<Stop> = parse_with(rows, "program")?;
    let panel = |title: &str, of: fn(&Launch) -> f64| Panel {
        title: title.to_owned(),
        y: Axis::logarithmic("from the launch until the host knows of the end, in µs"),
        content: Content::Lines {
            x: Axis::logarithmic("block-tasks of the kernel that fills the GPU, in µs"),
            lines: lines(&launches, of),
        },
        marks: Vec::new(),
    };
    let mut panels = vec![vec![
        panel("Half of the launches", |row| row.p50_us),
        panel("99 of 100", |row| row.p99_us),
    ]];
    if !stops.is_empty() {
        panels.push(vec![of_stops(&stops)]);
    }
    Ok(Picture {
        title: "An urgent launch beside a kernel with yield points that fills the GPU".to_owned(),
        note: String::new(),
        size: WIDE,
        rows: panels,
    })
}

/// Of kernels with yield points: without, a launch waits for the end of a block-task on any GPU.
fn lines(launches: &[Launch], of: fn(&Launch) -> f64) -> Vec<PlottedLine> {
    let line = |(colour, arm): (usize, &str)| {
        let rows = launches.iter().filter(|row| row.arm == arm && row.yield_points);
        let mut points: Vec<(f64, f64)> = rows.map(|row| (row.block_task_us, of(row))).collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        let style = match arm {
            "floor" | "idle GPU" => LineStyle::Dashed,
            _ => LineStyle::Solid,
        };
        PlottedLine { name: arm.to_owned(), colour, style, points }
    };
    ARMS.into_iter().enumerate().map(line).filter(|line| !line.points.is_empty()).collect()
}

fn of_stops(stops: &[Stop]) -> Panel {
    let value = effisha::EVICTION_US;
    Panel {
        title: "From the signal until the last block has left".to_owned(),
        y: Axis::linear("in µs"),
        content: Content::Bars {
            groups: stops.iter().map(|row| row.program.clone()).collect(),
            series: vec![
                Bars::of("p50", stops, |row| row.p50_us),
                Bars::of("p99", stops, |row| row.p99_us),
            ],
        },
        marks: vec![Mark { label: format!("{EFFISHA}, mean: {value} µs"), value, group: None }],
    }
}
