//! What an urgent launch waits that takes the first SMs of another one or the cheapest, and the work that is lost by that.

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{WIDE, distinct, parse};
use crate::chart::{Axis, Bars, Content, Panel, Picture};

#[derive(Deserialize)]
struct Row {
    yield_points: bool,
    sms: u32,
    arm: String,
    urgent_p50_us: f64,
    urgent_p99_us: f64,
    lost_mean_us: f64,
}

const ARMS: [&str; 2] = ["first", "cheapest"];

pub fn picture(rows: &[Value]) -> Result<Picture> {
    let rows: Vec<Row> = parse(rows)?;
    let panel = |title: &str, is_shown: fn(bool) -> bool, of: fn(&Row) -> f64| {
        let shown = || rows.iter().filter(|row| is_shown(row.yield_points));
        let groups = distinct(shown().map(|row| (row.yield_points, row.sms)));
        let bars = |arm: &str| {
            let value = |&group: &(bool, u32)| {
                shown().find(|row| (row.yield_points, row.sms) == group && row.arm == arm).map(of)
            };
            Bars { name: arm.to_owned(), values: groups.iter().map(value).collect() }
        };
        let name = |&(has_points, sms): &(bool, u32)| {
            let points = if has_points { "yield points" } else { "none" };
            format!("{sms} SM{}, {points}", if sms == 1 { "" } else { "s" })
        };
        Panel {
            title: title.to_owned(),
            y: Axis::linear("in µs"),
            content: Content::Bars {
                groups: groups.iter().map(name).collect(),
                series: ARMS.map(bars).to_vec(),
            },
            marks: Vec::new(),
        }
    };
    Ok(Picture {
        title: "An urgent launch that takes some SMs".to_owned(),
        note: String::new(),
        size: WIDE,
        rows: vec![
            vec![
                panel("Half of the launches", |_| true, |row| row.urgent_p50_us),
                panel("99 of 100", |_| true, |row| row.urgent_p99_us),
            ],
            vec![panel("Work that is lost, summed over blocks", |has| has, |row| row.lost_mean_us)],
        ],
    })
}
