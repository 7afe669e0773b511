//! The results: a table for people, JSON for programs.

use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, SystemTime};
use std::{env, fs, thread};

use serde_json::{Value, json};

use crate::arms::{BATCH_ALONE, Batch, PREEMPT, REQUESTS_ALONE, Row, SUBMISSION_ORDER};

/// The rows, and what is asked of them all.
#[derive(Debug)]
pub struct Report {
    /// The device's name.
    pub device: String,
    /// In the order in which they were measured.
    pub rows: Vec<Row>,
}

impl Report {
    fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    fn p99(&self, name: &str) -> Option<Duration> {
        self.row(name)?.percentile(0.99)
    }

    fn batch_alone(&self) -> Option<&Batch> {
        self.row(BATCH_ALONE.name)?.batch.as_ref()
    }

    /// How much longer the batch kernel takes than alone.
    fn slowdown(&self, row: &Row) -> Option<f64> {
        let alone = self.batch_alone()?.time.as_secs_f64();
        Some(row.batch.as_ref()?.time.as_secs_f64() / alone)
    }

    /// Whether the batch kernel gave the same results in every row.
    pub fn checksums_equal(&self) -> bool {
        let mut checksums = self.rows.iter().filter_map(|row| Some(row.batch.as_ref()?.checksum));
        let first = checksums.next();
        first.is_some_and(|first| checksums.all(|other| other == first))
    }

    /// The table.
    pub fn table(&self) -> String {
        let mut lines = vec![
            ["", "request p50", "p99", "max", "batch", "vs alone", "accuracy", "batch checksum"]
                .map(str::to_owned),
        ];
        let or_dash = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
        for row in &self.rows {
            lines.push([
                row.name.to_owned(),
                or_dash(row.percentile(0.5).map(milliseconds)),
                or_dash(row.percentile(0.99).map(milliseconds)),
                or_dash(row.percentile(1.0).map(milliseconds)),
                or_dash(row.batch.as_ref().map(|batch| milliseconds(batch.time))),
                or_dash(self.slowdown(row).map(|times| format!("{times:.2}x"))),
                or_dash(row.accuracy.map(|share| format!("{:.1} %", 100.0 * share))),
                or_dash(row.batch.as_ref().map(|batch| hexadecimal(batch.checksum))),
            ]);
        }
        let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
        let mut table = String::new();
        for line in &lines {
            let mut text = format!("{:<width$}", line[0], width = widths[0]);
            for (cell, width) in line.iter().zip(&widths).skip(1) {
                let _ = write!(text, "   {cell:>width$}");
            }
            table += text.trim_end();
            table.push('\n');
        }
        table
    }

    /// What it comes to, in a sentence.
    pub fn verdict(&self) -> Option<String> {
        let with = self.p99(PREEMPT.name)?;
        let without = self.p99(SUBMISSION_ORDER.name)?;
        let slowdown = self.slowdown(self.row(PREEMPT.name)?)?;
        let same = if self.checksums_equal() { "the same" } else { "DIFFERENT" };
        Some(format!(
            "p99 with preempt: {}, {:.0} times lower than in submission order ({}); \
             the batch took {slowdown:.2}x its time alone and gave {same} results.",
            milliseconds(with),
            without.as_secs_f64() / with.as_secs_f64(),
            milliseconds(without),
        ))
    }

    /// What `--out` writes.
    pub fn json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(|row| self.json_row(row)).collect();
        let preempt = self.row(PREEMPT.name);
        json!({
            "suite": "urgent-inference",
            "device": self.device,
            "driver": null,
            "hardware": hardware(),
            "commit": commit(),
            "date": date(),
            "command": env::args().collect::<Vec<_>>().join(" "),
            "rows": rows,
            "summary": {
                "alone_p99_us": self.p99(REQUESTS_ALONE.name).map(microseconds),
                "fifo_p99_us": self.p99(SUBMISSION_ORDER.name).map(microseconds),
                "preempt_p99_us": self.p99(PREEMPT.name).map(microseconds),
                // There are no CUDA streams on the CPU device.
                "stream_priority_p99_us": null,
                "batch_slowdown": preempt.and_then(|row| self.slowdown(row)),
                "accuracy": preempt.and_then(|row| row.accuracy),
                "checksums_equal": self.checksums_equal(),
            },
        })
    }

    fn json_row(&self, row: &Row) -> Value {
        let batch = row.batch.as_ref();
        json!({
            "name": row.name,
            "requests": row.latencies.len(),
            "p50_us": row.percentile(0.5).map(microseconds),
            "p99_us": row.percentile(0.99).map(microseconds),
            "max_us": row.percentile(1.0).map(microseconds),
            "accuracy": row.accuracy,
            "batch_us": batch.map(|batch| microseconds(batch.time)),
            "batch_slowdown": self.slowdown(row),
            "batch_yields": batch.map(|batch| batch.report.yields),
            "batch_resumes": batch.map(|batch| batch.report.resumes),
            "checksum": batch.map(|batch| hexadecimal(batch.checksum)),
        })
    }
}

/// With about three digits that count.
pub fn milliseconds(time: Duration) -> String {
    let time = time.as_secs_f64() * 1e3;
    let decimals = if time < 10.0 {
        2
    } else if time < 100.0 {
        1
    } else {
        0
    };
    format!("{time:.decimals$} ms")
}

fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

fn hexadecimal(checksum: u64) -> String {
    format!("{checksum:016x}")
}

/// The processor's model, and how many of them this program may use.
pub fn hardware() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim())
    });
    let processors = thread::available_parallelism().map_or(1, usize::from);
    format!("{}, {processors} processors", model.unwrap_or(env::consts::ARCH))
}

/// The commit that the working folder is at, if it is in a repository.
fn commit() -> Option<String> {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short", "HEAD"])?;
    let dirty = git(&["status", "--porcelain", "--untracked-files=no"])
        .is_none_or(|changes| !changes.is_empty());
    Some(if dirty { commit + "-dirty" } else { commit })
}

/// Today, in UTC.
fn date() -> String {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    now.chars().take_while(|letter| *letter != 'T').collect()
}
