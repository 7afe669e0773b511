//! What it costs a kernel to give an urgent one some SMs, or all, and what the urgent one takes (FLEP figures 15 and 16).

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{WIDE, distinct, parse};
use crate::chart::{Axis, Bars, Content, Panel, Picture};

#[derive(Deserialize)]
struct Row {
    victim: String,
    urgent: String,
    arm: String,
    cost_us: Option<f64>,
    urgent_p50_us: Option<f64>,
}

const ARMS: [&str; 3] = ["just enough", "twice", "all"];

pub fn picture(rows: &[Value]) -> Result<Picture> {
    let rows: Vec<Row> = parse(rows)?;
    let pairs = distinct(rows.iter().map(|row| [&row.victim, &row.urgent]));
    let panel = |title: &str, y, of: fn(&Row) -> Option<f64>| {
        let bars = |arm: &str| {
            let row = |pair: &[&String; 2]| {
                rows.iter().find(|row| [&row.victim, &row.urgent] == *pair && row.arm == arm)
            };
            let values = pairs.iter().map(|pair| row(pair).and_then(of)).collect();
            Bars { name: arm.to_owned(), values }
        };
        let groups = pairs.iter().map(|[victim, urgent]| format!("{victim} {urgent}")).collect();
        let series = ARMS.map(bars).to_vec();
        vec![Panel {
            title: title.to_owned(),
            y,
            content: Content::Bars { groups, series },
            marks: Vec::new(),
        }]
    };
    Ok(Picture {
        title: "Some SMs for an urgent kernel, or all; the long kernel is named first".to_owned(),
        note: String::new(),
        size: WIDE,
        rows: vec![
            panel(
                "What the long kernel takes longer than alone, where that is 1 µs or more",
                Axis::logarithmic("in µs"),
                |row| row.cost_us.filter(|&cost| cost >= 1.0),
            ),
            panel("What the urgent one takes, p50", Axis::linear("in µs"), |row| {
                row.urgent_p50_us
            }),
        ],
    })
}
