//! Speedups of urgent programs (FLEP figure 8), and over the delay (figure 9).

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{WIDE, distinct, parse};
use crate::chart::{Axis, Bars, Content, LineStyle, Mark, Panel, Picture, PlottedLine};
use crate::papers::{FLEP, flep};

#[derive(Deserialize)]
struct Row {
    low: String,
    high: String,
    arm: String,
    delay_over_low_alone: f64,
    speedup: Option<f64>,
}

/// The arm of the summary.
const OURS: &str = "preempt";
const ARMS: [&str; 4] = [OURS, "preempt, all preemptible", "stream priorities", "ceiling"];

pub fn picture(rows: &[Value]) -> Result<Picture> {
    let rows: Vec<Row> = parse(rows)?;
    let at_once: Vec<&Row> = rows.iter().filter(|row| row.delay_over_low_alone == 0.0).collect();
    let pairs = distinct(at_once.iter().map(|row| row.pair()));
    let series = ARMS.map(|arm| {
        let of =
            |pair: &[&str; 2]| at_once.iter().find(|row| row.pair() == *pair && row.arm == arm);
        let values = pairs.iter().map(|pair| of(pair)?.speedup).collect();
        Bars { name: arm.to_owned(), values }
    });
    let mark =
        |what, value| Mark { label: format!("{FLEP}, {what}: {value}x"), value, group: None };
    let axis = || Axis::logarithmic("times faster than on plain streams");
    let mut panels = vec![vec![Panel {
        title: "Both submitted at once; the long program is named first".to_owned(),
        y: axis(),
        content: Content::Bars {
            groups: pairs.iter().map(|pair| pair.join(" ")).collect(),
            series: series.to_vec(),
        },
        marks: vec![mark("mean", flep::SPEEDUP), mark("best", flep::BEST_SPEEDUP)],
    }]];
    let lines = delay_lines(&rows);
    if !lines.is_empty() {
        panels.push(vec![Panel {
            title: "The urgent one later".to_owned(),
            y: axis(),
            content: Content::Lines {
                x: Axis::linear("delay of the urgent program, to the time of the long one alone"),
                lines,
            },
            marks: Vec::new(),
        }]);
    }
    Ok(Picture {
        title: "Short urgent programs beside long ones".to_owned(),
        note: String::new(),
        size: WIDE,
        rows: panels,
    })
}

/// Ours and the ceiling of each pair that has more than one delay.
fn delay_lines(rows: &[Row]) -> Vec<PlottedLine> {
    let pairs = distinct(rows.iter().filter(|row| row.delay_over_low_alone > 0.0).map(Row::pair));
    let line = |index: usize, pair: &[&str; 2], arm, name, style| {
        let of_arm = rows.iter().filter(|row| row.pair() == *pair && row.arm == arm);
        let points = of_arm.filter_map(|row| Some((row.delay_over_low_alone, row.speedup?)));
        PlottedLine { name, colour: index, style, points: points.collect() }
    };
    let lines = pairs.iter().enumerate().flat_map(|(index, pair)| {
        let name = pair.join(" ");
        let free = format!("{name}, ceiling");
        [
            line(index, pair, OURS, name, LineStyle::Solid),
            line(index, pair, "ceiling", free, LineStyle::Dashed),
        ]
    });
    lines.collect()
}

impl Row {
    fn pair(&self) -> [&str; 2] {
        [&self.low, &self.high]
    }
}
