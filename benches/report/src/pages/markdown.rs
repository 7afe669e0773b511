//! Tables and times as Markdown has them.

use crate::time;

/// A time that may not have been measured.
pub fn time_or_dash(microseconds: Option<f64>) -> String {
    microseconds.map_or_else(|| "-".to_owned(), time)
}

/// Two percentiles.
pub fn times(p50: f64, p99: f64) -> String {
    format!("{} / {}", time(p50), time(p99))
}

/// A share as a percentage.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// A difference as a percentage with its sign.
pub fn change(share: f64) -> String {
    format!("{:+.1} %", 100.0 * share)
}

/// A count with its thousands apart.
pub fn count(value: f64) -> String {
    let digits = format!("{value:.0}");
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().collect();
    groups.iter().map(|group| String::from_utf8_lossy(group)).collect::<Vec<_>>().join(",")
}

/// The least and the greatest of some values; `None` without values.
pub fn range(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    values.into_iter().fold(None, |range, value| {
        let (least, most) = range.unwrap_or((value, value));
        Some((least.min(value), most.max(value)))
    })
}

/// A table with these headings.
#[derive(Debug)]
pub struct Table(Vec<Vec<String>>);

impl Table {
    /// A table without rows.
    pub fn new<const N: usize>(headings: [&str; N]) -> Table {
        Table(vec![headings.map(str::to_owned).to_vec()])
    }

    /// The lines of a table; the first one has the headings.
    pub fn of(lines: Vec<Vec<String>>) -> Table {
        Table(lines)
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.0.push(cells.to_vec());
    }

    /// The table as Markdown.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (index, line) in self.0.iter().enumerate() {
            let cells: Vec<_> = line.iter().map(|cell| cell.replace('|', "\\|")).collect();
            text += &format!("| {} |\n", cells.join(" | "));
            if index == 0 {
                text += &format!("|{}\n", " --- |".repeat(line.len()));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_their_thousands_apart() {
        assert_eq!(
            [0.0, 999.0, 1797.0, 717_617_903.0].map(count),
            ["0", "999", "1,797", "717,617,903"]
        );
    }

    #[test]
    fn a_table_has_a_line_below_its_headings() {
        let mut table = Table::new(["a", "b"]);
        table.row(["1".to_owned(), "x|y".to_owned()]);
        assert_eq!(table.text(), "| a | b |\n| --- | --- |\n| 1 | x\\|y |\n");
    }

    #[test]
    fn a_range_of_nothing_is_none() {
        assert_eq!(range([]), None);
        assert_eq!(range([3.0, -1.0, 2.0]), Some((-1.0, 3.0)));
    }
}
