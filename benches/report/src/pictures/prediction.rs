//! How far predicted durations are from true ones (FLEP figure 7).

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{WIDE, parse};
use crate::chart::{Axis, Bars, Content, Mark, Panel, Picture};
use crate::papers::{FLEP, flep};

#[derive(Deserialize)]
struct Row {
    program: String,
    mean_error: f64,
    online_mean_error: f64,
}

pub fn picture(rows: &[Value]) -> Result<Picture> {
    let rows: Vec<Row> = parse(rows)?;
    let bars = |name: &str, error: fn(&Row) -> f64| Bars {
        name: name.to_owned(),
        values: rows.iter().map(|row| Some(100.0 * error(row))).collect(),
    };
    let paper = 100.0 * flep::ERROR;
    let panel = Panel {
        title: String::new(),
        y: Axis::linear("error of the predicted duration, mean, in %"),
        content: Content::Bars {
            groups: rows.iter().map(|row| row.program.clone()).collect(),
            series: vec![
                bars("regression", |row| row.mean_error),
                bars("online", |row| row.online_mean_error),
            ],
        },
        marks: vec![Mark {
            label: format!("{FLEP}, mean: {paper:.1} %"),
            value: paper,
            group: None,
        }],
    };
    Ok(Picture {
        title: "Predicted durations of programs with inputs of random sizes".to_owned(),
        note: String::new(),
        size: WIDE,
        rows: vec![vec![panel]],
    })
}
