//! A table for people, and how times are told.

use std::fmt::Write as _;
use std::time::Duration;

/// The least time that a share of `sorted` times does not exceed (nearest rank).
pub fn percentile(sorted: &[Duration], share: f64) -> Option<Duration> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// In microseconds, as the JSON has all times.
pub fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// With about three digits that count.
pub fn digits(value: f64) -> String {
    let decimals = if value < 10.0 {
        2
    } else if value < 100.0 {
        1
    } else {
        0
    };
    format!("{value:.decimals$}")
}

/// A time in microseconds, told in the unit that suits it.
pub fn time(microseconds: f64) -> String {
    match microseconds {
        ..1e3 => format!("{} µs", digits(microseconds)),
        ..1e6 => format!("{} ms", digits(microseconds / 1e3)),
        _ => format!("{} s", digits(microseconds / 1e6)),
    }
}

/// Lines of cells in columns, the first `left` columns flush left and the others flush right.
///
/// ```
/// let lines = [["", "p50"], ["alone", "11 µs"]].map(|line| line.map(str::to_owned));
/// assert_eq!(preempt_report::table(&lines, 1), "          p50\nalone   11 µs\n");
/// ```
pub fn table<L: AsRef<[String]>>(lines: &[L], left: usize) -> String {
    let length = |cell: &String| cell.chars().count();
    let mut widths = Vec::new();
    for line in lines {
        let line = line.as_ref();
        widths.resize(widths.len().max(line.len()), 0);
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = length(cell).max(*width);
        }
    }
    let mut table = String::new();
    for line in lines {
        let mut text = String::new();
        for (column, (cell, width)) in line.as_ref().iter().zip(&widths).enumerate() {
            let gap = if column > 0 { "   " } else { "" };
            // Writing to a string cannot fail.
            let _ = match column < left {
                true => write!(text, "{gap}{cell:<width$}"),
                false => write!(text, "{gap}{cell:>width$}"),
            };
        }
        table += text.trim_end();
        table.push('\n');
    }
    table
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn times_are_told_in_the_unit_that_suits_them() {
        let told = [8.559, 24.24, 492.293, 5107.8, 8_797_610.0].map(time);
        assert_eq!(told, ["8.56 µs", "24.2 µs", "492 µs", "5.11 ms", "8.80 s"]);
    }
}
