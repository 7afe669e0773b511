//! What an event and a decision take the engine, by policy and by what waits.

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{WIDE, distinct, parse};
use crate::chart::{Axis, Bars, Content, Panel, Picture};

#[derive(Deserialize)]
struct Row {
    policy: String,
    launches: String,
    waiting: u64,
    event_p50_us: f64,
    event_p99_us: f64,
    decision_p50_us: f64,
    decision_p99_us: f64,
}

pub fn picture(rows: &[Value]) -> Result<Picture> {
    let rows: Vec<Row> = parse(rows)?;
    let panel = |waiting: u64| {
        let rows: Vec<_> = rows.iter().filter(|row| row.waiting == waiting).collect();
        Panel {
            title: format!("{waiting} launches wait"),
            y: Axis::linear("in µs"),
            content: Content::Bars {
                groups: rows
                    .iter()
                    .map(|row| format!("{}, {}", row.policy, row.launches))
                    .collect(),
                series: vec![
                    Bars::of("event, p50", &rows, |row| row.event_p50_us),
                    Bars::of("event, p99", &rows, |row| row.event_p99_us),
                    Bars::of("decision, p50", &rows, |row| row.decision_p50_us),
                    Bars::of("decision, p99", &rows, |row| row.decision_p99_us),
                ],
            },
            marks: Vec::new(),
        }
    };
    let waiting = distinct(rows.iter().map(|row| row.waiting));
    Ok(Picture {
        title: "What the engine takes for an event, and for a decision".to_owned(),
        note: String::new(),
        size: WIDE,
        rows: vec![waiting.into_iter().map(panel).collect()],
    })
}
