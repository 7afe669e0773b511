//! What a request waits beside products of a closed library, and how long these take then.

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{WIDE, distinct, parse};
use crate::chart::{Axis, Bars, Content, Panel, Picture};

#[derive(Deserialize)]
struct Row {
    size: u32,
    arm: String,
    p50_us: f64,
    p99_us: f64,
    batch: f64,
}

pub fn picture(rows: &[Value]) -> Result<Picture> {
    let rows: Vec<Row> = parse(rows)?;
    let sizes = distinct(rows.iter().map(|row| row.size));
    let arms = distinct(rows.iter().map(|row| &row.arm));
    let panel = |title: &str, y, of: fn(&Row) -> f64| {
        let bars = |arm: &&String| {
            let row = |&size: &u32| rows.iter().find(|row| row.size == size && row.arm == **arm);
            let values = sizes.iter().map(|size| row(size).map(of)).collect();
            Bars { name: (*arm).clone(), values }
        };
        Panel {
            title: title.to_owned(),
            y,
            content: Content::Bars {
                groups: sizes.iter().map(u32::to_string).collect(),
                series: arms.iter().map(bars).collect(),
            },
            marks: Vec::new(),
        }
    };
    let time = || Axis::logarithmic("in µs");
    Ok(Picture {
        title: "Requests beside products of matrices by cuBLAS, by their size".to_owned(),
        note: String::new(),
        size: WIDE,
        rows: vec![
            vec![
                panel("Half of the requests", time(), |row| row.p50_us),
                panel("99 of 100", time(), |row| row.p99_us),
            ],
            vec![panel("The products", Axis::linear("to those alone, less the requests"), |row| {
                row.batch
            })],
        ],
    })
}
