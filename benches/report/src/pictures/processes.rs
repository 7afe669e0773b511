//! What a request waits beside a batch of another process, by the length of the batch's blocks.

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{WIDE, distinct, parse};
use crate::chart::{Axis, Bars, Content, Panel, Picture};
use crate::time;

#[derive(Deserialize)]
struct Row {
    block_us: f64,
    arm: String,
    p50_us: f64,
    p99_us: f64,
}

pub fn picture(rows: &[Value]) -> Result<Picture> {
    let rows: Vec<Row> = parse(rows)?;
    let blocks = distinct(rows.iter().map(|row| time(row.block_us)));
    let arms = distinct(rows.iter().map(|row| &row.arm));
    let panel = |title: &str, of: fn(&Row) -> f64| {
        let bars = |arm: &&String| {
            let is_meant =
                |row: &&Row, block: &str| row.arm == **arm && time(row.block_us) == block;
            let row = |block: &String| rows.iter().find(|row| is_meant(row, block));
            Bars {
                name: (*arm).clone(),
                values: blocks.iter().map(|block| row(block).map(of)).collect(),
            }
        };
        Panel {
            title: title.to_owned(),
            y: Axis::logarithmic("in µs"),
            content: Content::Bars {
                groups: blocks.clone(),
                series: arms.iter().map(bars).collect(),
            },
            marks: Vec::new(),
        }
    };
    Ok(Picture {
        title: "Requests beside a batch of another process, by the length of its blocks".to_owned(),
        note: String::new(),
        size: WIDE,
        rows: vec![vec![
            panel("Half of the requests", |row| row.p50_us),
            panel("99 of 100", |row| row.p99_us),
        ]],
    })
}
