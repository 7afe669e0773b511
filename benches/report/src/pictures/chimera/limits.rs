//! What the choice makes of its limit.

use super::Row;
use crate::chart::{Axis, Bars, Content, LineStyle, Panel, PlottedLine};
use crate::papers::{CHIMERA, chimera};
use crate::pictures::distinct;

/// Blocks of a row that left in some way.
type Count = fn(&Row) -> Option<u64>;

/// The limits of the choice, from the shortest one on.
fn all(rows: &[Row]) -> Vec<f64> {
    let mut limits = distinct(chosen(rows).map(|row| row.limit_us));
    limits.sort_by(f64::total_cmp);
    limits
}

fn chosen(rows: &[Row]) -> impl Iterator<Item = &Row> {
    rows.iter().filter(|row| row.arm == "choice")
}

/// A line over the limits, of what a choice has, in percent.
fn by_limit(
    rows: &[Row],
    title: &str,
    label: &str,
    of: fn(&Row) -> Option<f64>,
    paper: &[(f64, f64)],
) -> Panel {
    let point = |row: &Row| Some((row.limit_us, 100.0 * of(row)?));
    let points: Vec<(f64, f64)> = chosen(rows).filter_map(point).collect();
    let mean = |limit: f64| {
        let at = points.iter().filter(|(other, _)| *other == limit);
        let values: Vec<f64> = at.map(|(_, value)| *value).collect();
        (!values.is_empty()).then(|| (limit, values.iter().sum::<f64>() / values.len() as f64))
    };
    let line = |name: &str, colour, style, points| PlottedLine {
        name: name.to_owned(),
        colour,
        style,
        points,
    };
    let means = all(rows).into_iter().filter_map(mean).collect();
    let paper = paper.iter().map(|&(limit, value)| (limit, 100.0 * value)).collect();
    Panel {
        title: title.to_owned(),
        y: Axis::linear(label),
        content: Content::Lines {
            x: Axis::linear("limit, in µs"),
            lines: vec![
                line(CHIMERA, 6, LineStyle::Dashed, paper),
                line("a program", 0, LineStyle::Points, points.clone()),
                line("mean of the programs", 1, LineStyle::Solid, means),
            ],
        },
        marks: Vec::new(),
    }
}

/// Figure 8 (a), by the device's clock.
pub fn violations(rows: &[Row]) -> Panel {
    let of = |row: &Row| row.violations;
    let title = "Stops that took longer than the limit";
    by_limit(rows, title, "violations, in %", of, &chimera::VIOLATIONS_BY_LIMIT)
}

/// Figure 8 (a), as the host sees it.
pub fn late(rows: &[Row]) -> Panel {
    let of = |row: &Row| row.late;
    by_limit(rows, "Tasks behind their deadline", "late, in %", of, &chimera::VIOLATIONS_BY_LIMIT)
}

/// Figure 8 (b).
pub fn lost(rows: &[Row]) -> Panel {
    let of = |row: &Row| row.throughput_lost;
    by_limit(rows, "Throughput lost by limit", "lost, in %", of, &chimera::LOST_BY_LIMIT)
}

/// Figure 8 (c): of the blocks that had to leave, the part that left in each way.
pub fn leaving(rows: &[Row]) -> Panel {
    let limits = all(rows);
    let sum = |limit: f64, count: Count| {
        chosen(rows).filter(|row| row.limit_us == limit).filter_map(count).sum::<u64>()
    };
    // In the order of the techniques, which gives them their colours.
    let counts: [(_, Count); 3] = [
        ("drained", |row| row.drained),
        ("dropped", |row| row.requeued),
        ("switched", |row| row.switched),
    ];
    let part = |limit, count| {
        let blocks: u64 = counts.iter().map(|(_, count)| sum(limit, *count)).sum();
        (blocks > 0).then(|| 100.0 * sum(limit, count) as f64 / blocks as f64)
    };
    let series = counts.map(|(name, count)| Bars {
        name: name.to_owned(),
        values: limits.iter().map(|&limit| part(limit, count)).collect(),
    });
    Panel {
        title: "How blocks left by limit".to_owned(),
        y: Axis::linear("of the blocks, in %"),
        content: Content::Bars {
            groups: limits.iter().map(|limit| format!("{limit} µs")).collect(),
            series: series.to_vec(),
        },
        marks: Vec::new(),
    }
}
