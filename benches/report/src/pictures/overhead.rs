//! What preemptible kernels take longer than plain ones (FLEP's abstract and figure 17, EffiSha figure 13).

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{WIDE, distinct, parse};
use crate::chart::{Axis, Bars, Content, Mark, Panel, Picture};
use crate::papers::{EFFISHA, FLEP, effisha, flep};

#[derive(Deserialize)]
struct Row {
    program: String,
    arm: String,
    p50_to_plain: f64,
}

pub fn picture(rows: &[Value]) -> Result<Picture> {
    let rows: Vec<Row> = parse(rows)?;
    let programs = distinct(rows.iter().map(|row| &row.program));
    let panel = |title: &str, y, arms: &[&str], shown: fn(f64) -> f64, marks| {
        let bars = |arm: &&str| {
            let of = |program: &String| {
                let row = rows.iter().find(|row| row.program == *program && row.arm == **arm)?;
                Some(shown(row.p50_to_plain))
            };
            let values = programs.iter().map(|&program| of(program)).collect();
            Bars { name: (*arm).to_owned(), values }
        };
        let groups = programs.iter().map(|&program| program.clone()).collect();
        let series = arms.iter().map(bars).collect();
        Panel { title: title.to_owned(), y, content: Content::Bars { groups, series }, marks }
    };
    let mark = |paper, what, value: f64| {
        let value = 100.0 * value;
        Mark { label: format!("{paper}, {what}: {value} %"), value, group: None }
    };
    Ok(Picture {
        title: "The cost of being preemptible".to_owned(),
        note: String::new(),
        size: WIDE,
        rows: vec![
            vec![panel(
                "Longer than the plain kernel",
                Axis::linear("in %"),
                &["preempt", "preempt, all preemptible"],
                |ratio| 100.0 * (ratio - 1.0),
                vec![
                    mark(FLEP, "mean", flep::OVERHEAD),
                    mark(EFFISHA, "worst", effisha::WORST_OVERHEAD),
                ],
            )],
            vec![panel(
                "Beside other ways",
                Axis::logarithmic("times the plain kernel"),
                &["preempt", "preempt, all preemptible", "slices", "FLEP's loop"],
                |ratio| ratio,
                Vec::new(),
            )],
        ],
    })
}
