//! Waiting times of requests beside a batch job.

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::parse;
use crate::chart::{Axis, Bars, Content, Panel, Picture};
use crate::time;

#[derive(Deserialize)]
struct Row {
    name: String,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    max_us: Option<f64>,
}

impl Row {
    /// The row's name, with a figure that its bars tell on a logarithmic axis only roughly.
    fn label(&self) -> String {
        let p99 = self.p99_us.map(|p99| format!(", p99 {}", time(p99)));
        format!("{}{}", self.name, p99.unwrap_or_default())
    }
}

pub fn picture(rows: &[Value]) -> Result<Picture> {
    let mut rows: Vec<Row> = parse(rows)?;
    rows.retain(|row| row.p50_us.is_some());
    let bars = |name: &str, time: fn(&Row) -> Option<f64>| Bars {
        name: name.to_owned(),
        values: rows.iter().map(time).collect(),
    };
    let panel = Panel {
        title: String::new(),
        y: Axis::logarithmic("from a request to its answer, in µs"),
        content: Content::Bars {
            groups: rows.iter().map(Row::label).collect(),
            series: vec![
                bars("half of the requests", |row| row.p50_us),
                bars("99 of 100", |row| row.p99_us),
                bars("all", |row| row.max_us),
            ],
        },
        marks: Vec::new(),
    };
    Ok(Picture {
        title: "Requests beside a long batch kernel".to_owned(),
        note: String::new(),
        size: (900, 400),
        rows: vec![vec![panel]],
    })
}
