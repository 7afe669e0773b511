//! A periodic task and pairs of programs, with blocks that drain, are dropped or switch (Chimera figures 2, 3 and 6 to 11).
//!
//! | file | what is in it |
//! | --- | --- |
//! | `techniques` | each program with each technique, as it is estimated and as it was measured (figures 2, 3, 6, 7 and 9) |
//! | `limits` | the choice by its limit (figure 8) |

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{WIDE, distinct, parse_with};
use crate::chart::{Axis, Bars, Content, Mark, Panel, Picture};
use crate::papers::{CHIMERA, chimera};

mod limits;
mod techniques;

/// A program beside the task, in one arm.
#[derive(Deserialize)]
struct Row {
    program: String,
    arm: String,
    limit_us: f64,
    violations: Option<f64>,
    late: Option<f64>,
    throughput_lost: Option<f64>,
    drained: Option<u64>,
    requeued: Option<u64>,
    switched: Option<u64>,
}

/// A program's kernels, and what is estimated of the one of them that takes the longest.
#[derive(Deserialize)]
pub(crate) struct Estimate {
    #[serde(rename = "estimated")]
    pub program: String,
    pub kernel: String,
    pub block_task_us: f64,
    pub blocks_per_sm: u64,
    pub saved_bytes: Option<f64>,
    pub context_bytes: Option<f64>,
    pub drain_us: f64,
    pub switch_us: Option<f64>,
    pub context_us: Option<f64>,
    pub flush_lost: Option<f64>,
    pub switch_lost: Option<f64>,
    pub context_lost: Option<f64>,
    pub lost_to_pauses: Option<f64>,
    pub kernels_strict: u64,
    pub kernels_relaxed: u64,
    pub kernels_declared: u64,
    pub kernels_without: u64,
}

impl Estimate {
    /// The field that its row has, and no other.
    pub const FIELD: &'static str = "estimated";

    /// The arm that is as if only kernels were dropped that are strictly idempotent; `None` if some of those that are dropped
    /// are and some are not, which no arm tells apart.
    pub fn strict_arm(&self) -> Option<&'static str> {
        match (self.kernels_strict, self.kernels_relaxed + self.kernels_declared) {
            (_, 0) => Some("flush"),
            (0, _) => Some("drain"),
            _ => None,
        }
    }
}

/// A pair in one arm.
#[derive(Deserialize)]
struct Pair {
    pair: Vec<String>,
    arm: String,
    antt: Option<f64>,
    stp: Option<f64>,
}

pub fn picture(rows: &[Value]) -> Result<Picture> {
    let pairs: Vec<Pair> = parse_with(rows, "pair")?;
    // Older results have none.
    let estimates: Vec<Estimate> = parse_with(rows, Estimate::FIELD)?;
    let rows: Vec<Row> = parse_with(rows, "program")?;
    let panels = [
        vec![techniques::estimated_time(&estimates)],
        vec![techniques::estimated_loss(&estimates)],
        vec![techniques::late(&rows)],
        vec![techniques::lost(&rows)],
        vec![limits::violations(&rows), limits::late(&rows)],
        vec![limits::lost(&rows), limits::leaving(&rows)],
        vec![techniques::strict(&rows, &estimates)],
        vec![gains(&pairs, "ANTT")],
        vec![gains(&pairs, "STP")],
    ];
    // The CPU device counts no time of stops, and a few programs can be measured without a pair.
    let drawn = panels.map(|row| row.into_iter().filter(|panel| has_values(&panel.content)));
    let drawn = drawn.map(Iterator::collect::<Vec<_>>).into_iter().filter(|row| !row.is_empty());
    Ok(Picture {
        title: "Blocks that drain, are dropped or switch".to_owned(),
        note: String::new(),
        size: WIDE,
        rows: drawn.collect(),
    })
}

fn has_values(content: &Content) -> bool {
    match content {
        Content::Bars { series, .. } => {
            series.iter().any(|bars| bars.values.iter().any(Option::is_some))
        }
        Content::Lines { lines, .. } => {
            lines.iter().any(|line| !line.name.contains(CHIMERA) && !line.points.is_empty())
        }
    }
}

/// ANTT or STP of the pairs that the paper shows, by that of one kernel at a time.
fn gains(pairs: &[Pair], what: &str) -> Panel {
    let is_antt = what == "ANTT";
    let shown = pairs.iter().filter(|pair| pair.pair.iter().any(|name| name == chimera::SHOWN));
    let groups = distinct(shown.map(|pair| &pair.pair));
    let value = |group: &Vec<String>, arm: &str| {
        let pair = pairs.iter().find(|pair| pair.pair == *group && pair.arm == arm)?;
        if is_antt { pair.antt } else { pair.stp }
    };
    let gain = |group: &Vec<String>, arm: &str| {
        let (before, after) = (value(group, "in order")?, value(group, arm)?);
        Some(if is_antt { before / after } else { after / before })
    };
    let bars = |arm: &str| Bars {
        name: arm.to_owned(),
        values: groups.iter().map(|&group| gain(group, arm)).collect(),
    };
    // Some devices make no halves.
    let arms = ["shared", "ceiling", "halves"].into_iter();
    let arms = arms.filter(|&arm| pairs.iter().any(|pair| pair.arm == arm));
    let paper = if is_antt { chimera::SHOWN_ANTT_GAIN } else { 1.0 + chimera::SHOWN_STP_GAIN };
    Panel {
        title: format!("{what} of pairs with {}, by that of one kernel at a time", chimera::SHOWN),
        y: Axis::logarithmic(if is_antt { "ANTT lower, times" } else { "STP higher, times" }),
        content: Content::Bars {
            groups: groups.iter().map(|&group| group.join(" ")).collect(),
            series: arms.map(bars).collect(),
        },
        marks: vec![Mark {
            label: format!("{CHIMERA}, mean: {paper:.2}x"),
            value: paper,
            group: None,
        }],
    }
}
