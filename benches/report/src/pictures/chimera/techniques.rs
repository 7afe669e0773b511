//! Each program with each technique. Techniques have the same colours in all panels.

use super::{Estimate, Row};
use crate::chart::{Axis, Bars, Content, Mark, Panel};
use crate::papers::{CHIMERA, chimera};
use crate::pictures::distinct;

/// The limit of the summary, which rows without a limit have, too.
fn limit_us(rows: &[Row]) -> Option<f64> {
    rows.iter().find(|row| row.arm == "drain").map(|row| row.limit_us)
}

/// In percent, what a program has in an arm, with the limit of the summary.
fn in_arm(rows: &[Row], program: &str, arm: &str, of: fn(&Row) -> Option<f64>) -> Option<f64> {
    let limit_us = limit_us(rows)?;
    let is_it = |row: &&Row| row.arm == arm && row.limit_us == limit_us && row.program == program;
    Some(100.0 * of(rows.iter().find(is_it)?)?)
}

/// A bar for each program and technique, in percent.
fn by_technique(
    rows: &[Row],
    title: &str,
    label: &str,
    of: fn(&Row) -> Option<f64>,
    paper: f64,
) -> Panel {
    let programs = distinct(rows.iter().map(|row| &row.program));
    let bars = |arm: &str| Bars {
        name: arm.to_owned(),
        values: programs.iter().map(|program| in_arm(rows, program, arm, of)).collect(),
    };
    let value = 100.0 * paper;
    Panel {
        title: title.to_owned(),
        y: Axis::linear(label),
        content: Content::Bars {
            groups: programs.iter().map(|&program| program.clone()).collect(),
            series: ["drain", "flush", "switch", "choice"].map(bars).to_vec(),
        },
        marks: vec![Mark { label: format!("{CHIMERA}, choice: {value:.1} %"), value, group: None }],
    }
}

/// Figure 6: the tasks that were killed at their deadline, as the paper has it.
pub fn late(rows: &[Row]) -> Panel {
    let title = "Tasks behind their deadline";
    let limit = limit_us(rows).map(|limit| format!(", which a limit of {limit} µs allows"));
    let title = format!("{title}{}", limit.unwrap_or_default());
    by_technique(rows, &title, "late, in %", |row| row.late, chimera::VIOLATIONS)
}

/// Figure 7.
pub fn lost(rows: &[Row]) -> Panel {
    let title = "Throughput of the program that is lost beside the task";
    by_technique(rows, title, "lost, in %", |row| row.throughput_lost, chimera::LOST)
}

/// Bars of what is estimated of each program, for drain, flush, switch at a checkpoint, and switch with all registers.
fn by_estimate(
    estimates: &[Estimate],
    (title, label): (&str, &str),
    of: [fn(&Estimate) -> Option<f64>; 4],
    marks: Vec<Mark>,
) -> Panel {
    let names = ["drain", "flush", "switch", "switch, all registers and shared memory"];
    let series = names.into_iter().zip(of).map(|(name, of)| Bars {
        name: name.to_owned(),
        values: estimates.iter().map(of).collect(),
    });
    Panel {
        title: title.to_owned(),
        y: Axis::logarithmic(label),
        content: Content::Bars {
            groups: estimates.iter().map(|of| of.program.clone()).collect(),
            series: series.collect(),
        },
        marks,
    }
}

/// Figure 2.
pub fn estimated_time(estimates: &[Estimate]) -> Panel {
    let mark = |name: &str, value: f64| Mark {
        label: format!("{CHIMERA}, {name}: {value:.1} µs"),
        value,
        group: None,
    };
    by_estimate(
        estimates,
        ("Estimated time until blocks have left; to drop a block-task takes none", "time, in µs"),
        [|of| Some(of.drain_us), |_| None, |of| of.switch_us, |of| of.context_us],
        vec![mark("drain", chimera::DRAIN_US), mark("switch", chimera::SWITCH_US)],
    )
}

/// Figure 3.
pub fn estimated_loss(estimates: &[Estimate]) -> Panel {
    let value = 100.0 * chimera::ESTIMATED_SWITCH_LOST;
    let label = format!("{CHIMERA}, switch: {value:.1} %");
    by_estimate(
        estimates,
        ("Estimated throughput that is lost by that; to drain loses none", "lost, in %"),
        [
            |_| None,
            |of| Some(100.0 * of.flush_lost?),
            |of| Some(100.0 * of.switch_lost?),
            |of| Some(100.0 * of.context_lost?),
        ],
        vec![Mark { label, value, group: None }],
    )
}

/// Figure 9: what drops only kernels that are strictly idempotent, and what drops all that may be.
pub fn strict(rows: &[Row], estimates: &[Estimate]) -> Panel {
    let late = |of: &Estimate, arm| in_arm(rows, &of.program, arm, |row| row.late);
    let bars = |name: &str, late: &dyn Fn(&Estimate) -> Option<f64>| Bars {
        name: name.to_owned(),
        values: estimates.iter().map(late).collect(),
    };
    let mark = |name: &str, part: f64| {
        let value = 100.0 * part;
        Mark { label: format!("{CHIMERA}, {name}: {value:.1} %"), value, group: None }
    };
    Panel {
        title: "Tasks behind their deadline, where block-tasks are dropped".to_owned(),
        y: Axis::linear("late, in %"),
        content: Content::Bars {
            groups: estimates.iter().map(|of| of.program.clone()).collect(),
            series: vec![
                bars("of kernels that are strictly idempotent", &|of| late(of, of.strict_arm()?)),
                bars("of all kernels that may be", &|of| late(of, "flush")),
            ],
        },
        marks: vec![
            mark("strict", chimera::VIOLATIONS_STRICT),
            mark("relaxed", chimera::VIOLATIONS_RELAXED),
        ],
    }
}
