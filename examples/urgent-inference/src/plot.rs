//! The latencies as a picture: for each row, the share of requests that were answered in time.

use std::time::Duration;

use anyhow::Result;
use preempt_plot::chart::{Axis, Content, Line, LineStyle, Panel, Picture};

use crate::arms::Row;
use crate::report::milliseconds;

const SIZE: (u32, u32) = (900, 460);

/// Points of each line; more would only make the file larger.
const POINTS: usize = 400;

/// The picture of all rows that have requests, as SVG.
///
/// # Errors
///
/// If it cannot be drawn.
pub fn svg(rows: &[Row]) -> Result<String> {
    let rows = rows.iter().filter(|row| !row.latencies.is_empty());
    let lines = rows.enumerate().map(|(colour, row)| {
        let p99 = row.percentile(0.99).map(milliseconds).unwrap_or_default();
        Line {
            name: format!("{}: p99 {p99}", row.name),
            colour,
            style: LineStyle::Solid,
            points: distribution(&row.latencies),
        }
    });
    let panel = Panel {
        title: String::new(),
        y: Axis::linear("requests answered, in %"),
        content: Content::Lines {
            x: Axis::logarithmic("from the moment of a request to its answer, in milliseconds"),
            lines: lines.collect(),
        },
        marks: Vec::new(),
    };
    let picture = Picture {
        title: "Requests beside a long batch job".to_owned(),
        note: String::new(),
        size: SIZE,
        rows: vec![vec![panel]],
    };
    picture.svg()
}

/// Latencies and the share of requests, in %, that they were enough for.
fn distribution(sorted: &[Duration]) -> Vec<(f64, f64)> {
    let last = sorted.len().saturating_sub(1);
    let ranks = (0..=POINTS).map(|point| point * last / POINTS);
    ranks
        .map(|rank| {
            let share = (rank + 1) as f64 / sorted.len() as f64;
            (in_milliseconds(sorted[rank]), 100.0 * share)
        })
        .collect()
}

fn in_milliseconds(time: Duration) -> f64 {
    // A logarithm has no room for 0.
    (time.as_secs_f64() * 1e3).max(1e-3)
}
