//! Shares of the device (FLEP figure 13), and what sharing it costs (figure 14).

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{WIDE, distinct, parse};
use crate::chart::{Axis, Bars, Content, LineStyle, Mark, Panel, Picture, PlottedLine};
use crate::papers::{FLEP, flep};

#[derive(Deserialize)]
struct Row {
    weight_2: String,
    weight_1: String,
    arm: String,
    max_overhead: Option<f64>,
    share: Option<f64>,
    share_of_work: f64,
    throughput_lost: f64,
}

pub fn picture(rows: &[Value]) -> Result<Picture> {
    let rows: Vec<Row> = parse(rows)?;
    Ok(Picture {
        title: "Two programs in endless loops, the first one with twice the weight".to_owned(),
        note: String::new(),
        size: WIDE,
        rows: vec![vec![shares(&rows)], vec![lost(&rows)]],
    })
}

fn shares(rows: &[Row]) -> Panel {
    let pairs = distinct(rows.iter().map(Row::pair));
    let bars = |name: &str, arm: &str, share: fn(&Row) -> Option<f64>| {
        // Of ours, what FLEP has.
        let of_arm = |row: &&Row| {
            row.arm == arm && row.max_overhead.is_none_or(|most| most == flep::MAX_OVERHEAD)
        };
        let of = |pair: &[&str; 2]| rows.iter().filter(of_arm).find(|row| row.pair() == *pair);
        let values = pairs.iter().map(|pair| share(of(pair)?).map(|share| 100.0 * share));
        Bars { name: name.to_owned(), values: values.collect() }
    };
    let work = |row: &Row| Some(row.share_of_work);
    Panel {
        title: "Share of the program with twice the weight, which is named first".to_owned(),
        y: Axis::linear("share, in %"),
        content: Content::Bars {
            groups: pairs.iter().map(|pair| pair.join(" ")).collect(),
            series: vec![
                bars("preempt, of SM-time", "preempt", |row| row.share),
                bars("preempt, of work", "preempt", work),
                bars("plain streams, of work", "plain streams", work),
                bars("stream priorities, of work", "stream priorities", work),
            ],
        },
        marks: vec![Mark {
            label: format!("{FLEP}: 2/3"),
            value: 100.0 * flep::SHARE,
            group: None,
        }],
    }
}

fn lost(rows: &[Row]) -> Panel {
    let point = |row: &Row| Some((100.0 * row.max_overhead?, 100.0 * row.throughput_lost));
    let points: Vec<(f64, f64)> = rows.iter().filter_map(point).collect();
    let mut allowed = distinct(points.iter().map(|(most, _)| *most));
    allowed.sort_by(f64::total_cmp);
    let mean = |most: f64| {
        let lost: Vec<f64> =
            points.iter().filter(|(other, _)| *other == most).map(|(_, lost)| *lost).collect();
        (most, lost.iter().sum::<f64>() / lost.len() as f64)
    };
    let line = |name: &str, colour, style, points| PlottedLine {
        name: name.to_owned(),
        colour,
        style,
        points,
    };
    let as_allowed = allowed.iter().map(|&most| (most, most)).collect();
    let means = allowed.iter().map(|&most| mean(most)).collect();
    let paper = 100.0 * flep::MAX_OVERHEAD;
    Panel {
        title: "Throughput lost to sharing".to_owned(),
        y: Axis::linear("lost, in %"),
        content: Content::Lines {
            x: Axis::linear("max_overhead, in %"),
            lines: vec![
                line("as much as allowed", 6, LineStyle::Dashed, as_allowed),
                line("a pair", 0, LineStyle::Points, points.clone()),
                line("mean of the pairs", 1, LineStyle::Solid, means),
            ],
        },
        marks: vec![Mark { label: format!("{FLEP}: about {paper} %"), value: paper, group: None }],
    }
}

impl Row {
    fn pair(&self) -> [&str; 2] {
        [&self.weight_2, &self.weight_1]
    }
}
