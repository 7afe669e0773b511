//! What blocks did that had to leave, in each storm.

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{WIDE, parse};
use crate::chart::{Axis, Bars, Content, Panel, Picture};

#[derive(Deserialize)]
struct Row {
    name: String,
    drains: f64,
    drops: f64,
    switches: f64,
}

pub fn picture(rows: &[Value]) -> Result<Picture> {
    let mut rows: Vec<Row> = parse(rows)?;
    // Of storms that cancel launches or exclude SMs, nothing is counted.
    rows.retain(|row| row.drains + row.drops + row.switches > 0.0);
    Ok(Picture {
        title: "What blocks did that had to leave, in storms".to_owned(),
        note: String::new(),
        size: WIDE,
        rows: vec![vec![Panel {
            title: String::new(),
            y: Axis::logarithmic("blocks"),
            content: Content::Bars {
                groups: rows.iter().map(|row| row.name.clone()).collect(),
                series: vec![
                    Bars::of("drained", &rows, |row| row.drains),
                    Bars::of("dropped their block-task", &rows, |row| row.drops),
                    Bars::of("switched", &rows, |row| row.switches),
                ],
            },
            marks: Vec::new(),
        }]],
    })
}
