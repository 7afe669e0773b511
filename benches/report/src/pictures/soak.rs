//! Memory over the parts of a long run.

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{WIDE, parse};
use crate::chart::{Axis, Content, LineStyle, Panel, Picture, PlottedLine};

#[derive(Deserialize)]
struct Row {
    part: f64,
    resident_mb: Option<f64>,
    free_mb: Option<f64>,
}

pub fn picture(rows: &[Value]) -> Result<Picture> {
    let rows: Vec<Row> = parse(rows)?;
    let panel = |title: &str, of: fn(&Row) -> Option<f64>| {
        let points: Vec<_> = rows.iter().filter_map(|row| Some((row.part, of(row)?))).collect();
        let line = PlottedLine { name: String::new(), colour: 0, style: LineStyle::Solid, points };
        (!line.points.is_empty()).then(|| Panel {
            title: title.to_owned(),
            y: Axis::linear("in MB"),
            content: Content::Lines { x: Axis::linear("part of the run"), lines: vec![line] },
            marks: Vec::new(),
        })
    };
    let panels = [
        panel("Memory of the process", |row| row.resident_mb),
        panel("Free memory of the device", |row| row.free_mb),
    ];
    Ok(Picture {
        title: "Everything at once, for minutes".to_owned(),
        note: String::new(),
        size: WIDE,
        rows: vec![panels.into_iter().flatten().collect()],
    })
}
