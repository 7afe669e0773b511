//! How much lower ANTT is, for pairs and triples (FLEP figures 10 and 12).

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{WIDE, distinct, parse};
use crate::chart::{Axis, Bars, Content, Mark, Panel, Picture};
use crate::papers::{FLEP, flep};

#[derive(Deserialize)]
struct Row {
    programs: Vec<String>,
    arm: String,
    antt: Option<f64>,
}

const ARMS: [&str; 5] =
    ["preempt", "preempt, all preemptible", "reordered", "stream priorities", "ceiling"];

pub fn picture(rows: &[Value]) -> Result<Picture> {
    let rows: Vec<Row> = parse(rows)?;
    let sizes = [(2, "Pairs", flep::PAIRS_GAIN), (3, "Triples", flep::TRIPLES_GAIN)];
    let measured =
        sizes.into_iter().filter(|(size, ..)| rows.iter().any(|row| row.programs.len() == *size));
    let panels = measured.map(|(size, name, paper)| {
        let of_size: Vec<&Row> = rows.iter().filter(|row| row.programs.len() == size).collect();
        vec![panel(&of_size, name, paper)]
    });
    Ok(Picture {
        title: "Programs of equal priority, the long one first".to_owned(),
        note: String::new(),
        size: WIDE,
        rows: panels.collect(),
    })
}

fn panel(rows: &[&Row], title: &str, paper: f64) -> Panel {
    let groups = distinct(rows.iter().map(|row| &row.programs));
    let antt = |group: &Vec<String>, arm: &str| {
        rows.iter().find(|row| row.programs == *group && row.arm == arm)?.antt
    };
    let gain = |group, arm| Some(antt(group, "plain streams")? / antt(group, arm)?);
    let series = ARMS.map(|arm| Bars {
        name: arm.to_owned(),
        values: groups.iter().map(|group| gain(group, arm)).collect(),
    });
    Panel {
        title: title.to_owned(),
        y: Axis::logarithmic("ANTT on plain streams / ANTT"),
        content: Content::Bars {
            groups: groups.iter().map(|group| group.join(" ")).collect(),
            series: series.to_vec(),
        },
        marks: vec![Mark {
            label: format!("{FLEP}, mean: {paper:.1}x"),
            value: paper,
            group: None,
        }],
    }
}
