//! How far simulated turnarounds are from measured ones.

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{WIDE, distinct, parse_with};
use crate::chart::{Axis, Content, LineStyle, Panel, Picture, PlottedLine};

#[derive(Deserialize)]
struct Row {
    arm: String,
    turnaround_p50_us: Vec<f64>,
    turnaround_simulated_us: Vec<f64>,
}

pub fn picture(rows: &[Value]) -> Result<Picture> {
    // Rows without a turnaround are of programs alone.
    let rows: Vec<Row> = parse_with(rows, "turnaround_simulated_us")?;
    let points = |arm: &String| {
        let mut points = Vec::new();
        for row in rows.iter().filter(|row| row.arm == *arm) {
            let both = row.turnaround_p50_us.iter().zip(&row.turnaround_simulated_us);
            points.extend(both.map(|(measured, simulated)| (*measured, simulated / measured)));
        }
        points
    };
    let line = |(colour, arm): (usize, &String)| PlottedLine {
        name: arm.clone(),
        colour,
        style: LineStyle::Points,
        points: points(arm),
    };
    let arms = distinct(rows.iter().map(|row| &row.arm));
    Ok(Picture {
        title: "Simulated turnarounds of programs, by those that were measured".to_owned(),
        note: String::new(),
        size: WIDE,
        rows: vec![vec![Panel {
            title: String::new(),
            y: Axis::linear("simulated to measured"),
            content: Content::Lines {
                x: Axis::logarithmic("measured turnaround, in µs"),
                lines: arms.into_iter().enumerate().map(line).collect(),
            },
            marks: Vec::new(),
        }]],
    })
}
