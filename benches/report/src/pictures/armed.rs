//! What armed programs cost others, and threads in calls of the driver that wait for the device.

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{WIDE, distinct, parse_with};
use crate::chart::{Axis, Bars, Content, Panel, Picture};

#[derive(Deserialize)]
struct Beside {
    what: String,
    armed: u32,
    over_none: f64,
}

#[derive(Deserialize)]
struct Call {
    call: String,
    p50_us: f64,
    max_us: f64,
}

pub fn picture(rows: &[Value]) -> Result<Picture> {
    let beside: Vec<Beside> = parse_with(rows, "over_none")?;
    let calls: Vec<Call> = parse_with(rows, "call")?;
    let counts = distinct(beside.iter().map(|row| row.armed));
    let what = distinct(beside.iter().map(|row| &row.what));
    let bars = |what: &&String| {
        let row = |&armed: &u32| beside.iter().find(|row| row.armed == armed && row.what == **what);
        let values = counts.iter().map(|count| row(count).map(|row| row.over_none)).collect();
        Bars { name: (*what).clone(), values }
    };
    Ok(Picture {
        title: "What armed programs cost others".to_owned(),
        note: String::new(),
        size: WIDE,
        rows: vec![vec![
            Panel {
                title: "Beside programs that are armed and not launched".to_owned(),
                y: Axis::linear("time to that beside none"),
                content: Content::Bars {
                    groups: counts.iter().map(u32::to_string).collect(),
                    series: what.iter().map(bars).collect(),
                },
                marks: Vec::new(),
            },
            Panel {
                title: "Calls of other threads".to_owned(),
                y: Axis::logarithmic("in µs"),
                content: Content::Bars {
                    groups: calls.iter().map(|row| row.call.clone()).collect(),
                    series: vec![
                        Bars::of("p50", &calls, |row| row.p50_us),
                        Bars::of("longest", &calls, |row| row.max_us),
                    ],
                },
                marks: Vec::new(),
            },
        ]],
    })
}
