//! The results: a table for people, JSON for programs.

use std::time::Duration;

use preempt_record::Record;
use serde_json::{Value, json};

use crate::arms::{BATCH_ALONE, Batch, PREEMPT, REQUESTS_ALONE, Row, SUBMISSION_ORDER};
use crate::streams::STREAM_PRIORITY;

/// The rows, and the device that they were measured on.
#[derive(Debug)]
pub struct Report {
    /// The device's name.
    pub device: String,
    /// The version of its driver, if it has one.
    pub driver: Option<String>,
    /// Time of the kernel of one request that has the GPU to itself; `None` on the CPU device.
    pub request_time: Option<Duration>,
    /// The rows, in the order of measurement.
    pub rows: Vec<Row>,
}

impl Report {
    fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    fn p50(&self, name: &str) -> Option<Duration> {
        self.row(name)?.percentile(0.5)
    }

    fn p99(&self, name: &str) -> Option<Duration> {
        self.row(name)?.percentile(0.99)
    }

    fn batch_alone(&self) -> Option<&Batch> {
        self.row(BATCH_ALONE.name)?.batch.as_ref()
    }

    /// The additional time of the batch job, relative to alone.
    fn slowdown(&self, row: &Row) -> Option<f64> {
        let alone = self.batch_alone()?.time.as_secs_f64();
        Some(row.batch.as_ref()?.time.as_secs_f64() / alone)
    }

    /// The additional time of the batch job without the time of the requests' own kernels, relative to alone.
    fn slowdown_less_requests(&self, row: &Row) -> Option<f64> {
        let requests = self.request_time?.as_secs_f64() * row.latencies.len() as f64;
        Some(self.slowdown(row)? - requests / self.batch_alone()?.time.as_secs_f64())
    }

    /// A sentence about the additional time of the batch job, with and without the time of the requests' own kernels;
    /// on a GPU.
    pub fn batch_sentence(&self) -> Option<String> {
        let row = self.row(PREEMPT.name)?;
        Some(format!(
            "Less the {} requests' own time on the GPU ({:.1} µs each), the batch took {:.3}x its time \
             alone.",
            row.latencies.len(),
            microseconds(self.request_time?),
            self.slowdown_less_requests(row)?,
        ))
    }

    /// Whether the batch job gave the same results in every row.
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
        columns(&lines)
    }

    /// The comparison of `preempt` with submission order, in a sentence.
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

    /// A warning about a measurement of little use: a batch job that was over before the requests were.
    pub fn warning(&self) -> Option<String> {
        let missed = |row: &&Row| {
            let met = row.batch.as_ref().map_or(usize::MAX, |batch| batch.met);
            10 * met.min(row.latencies.len()) < 9 * row.latencies.len()
        };
        let row = self.rows.iter().find(missed)?;
        Some(format!(
            "Warning: in the row `{}`, many requests came after the end of the batch job, since \
             other programs used the processors while it ran alone. Run again on a quiet machine.",
            row.name
        ))
    }

    /// The contents of the file that `--out` names.
    pub fn json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(|row| self.json_row(row)).collect();
        let preempt = self.row(PREEMPT.name);
        let summary = json!({
            "alone_p50_us": self.p50(REQUESTS_ALONE.name).map(microseconds),
            "alone_p99_us": self.p99(REQUESTS_ALONE.name).map(microseconds),
            "fifo_p50_us": self.p50(SUBMISSION_ORDER.name).map(microseconds),
            "fifo_p99_us": self.p99(SUBMISSION_ORDER.name).map(microseconds),
            "preempt_p50_us": self.p50(PREEMPT.name).map(microseconds),
            "preempt_p99_us": self.p99(PREEMPT.name).map(microseconds),
            // There are no CUDA streams on the CPU device.
            "stream_priority_p50_us": self.p50(STREAM_PRIORITY.name).map(microseconds),
            "stream_priority_p99_us": self.p99(STREAM_PRIORITY.name).map(microseconds),
            "batch_slowdown": preempt.and_then(|row| self.slowdown(row)),
            "batch_slowdown_less_requests":
                preempt.and_then(|row| self.slowdown_less_requests(row)),
            "request_kernel_us": self.request_time.map(microseconds),
            "accuracy": preempt.and_then(|row| row.accuracy),
            "checksums_equal": self.checksums_equal(),
        });
        let (device, driver) = (self.device.clone(), self.driver.clone());
        Record { suite: "urgent-inference", device, driver, rows, summary }.json()
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
            "requests_before_batch_end": batch.map(|batch| batch.met),
            "checksum": batch.map(|batch| hexadecimal(batch.checksum)),
        })
    }
}

/// A time in milliseconds, with about three significant digits.
pub fn milliseconds(time: Duration) -> String {
    let value = time.as_secs_f64() * 1e3;
    let decimals = match value {
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} ms")
}

fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// Lines of cells in columns: the first column flush left, the others flush right.
fn columns<const N: usize>(lines: &[[String; N]]) -> String {
    let mut table = String::new();
    let length = |cell: &String| cell.chars().count();
    let width = |column: usize| lines.iter().map(|line| length(&line[column])).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    for line in lines {
        let mut text = format!("{:<width$}", line[0], width = widths[0]);
        for (cell, width) in line.iter().zip(widths).skip(1) {
            text += &format!("   {cell:>width$}");
        }
        table += text.trim_end();
        table.push('\n');
    }
    table
}

fn hexadecimal(checksum: u64) -> String {
    format!("{checksum:016x}")
}
