//! What kernels of other compilers take in the worker loop, and what urgent launches wait beside them.

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{WIDE, distinct, parse_with};
use crate::chart::{Axis, Bars, Content, Panel, Picture};

#[derive(Deserialize)]
struct Kernel {
    kernel: String,
    ratio: f64,
    ratio_default: f64,
}

/// A batch kernel with requests beside it.
#[derive(Deserialize)]
struct Beside {
    batch: String,
    arm: String,
    p99_us: f64,
}

pub fn picture(rows: &[Value]) -> Result<Picture> {
    let kernels: Vec<Kernel> = parse_with(rows, "kernel")?;
    let beside: Vec<Beside> = parse_with(rows, "batch")?;
    let mut panels = vec![vec![of_kernels(&kernels)]];
    if !beside.is_empty() {
        panels.push(vec![of_requests(&beside)]);
    }
    Ok(Picture {
        title: "Kernels of other compilers".to_owned(),
        note: String::new(),
        size: WIDE,
        rows: panels,
    })
}

fn of_kernels(kernels: &[Kernel]) -> Panel {
    Panel {
        title: "To the plain kernel".to_owned(),
        y: Axis::logarithmic("times the plain kernel"),
        content: Content::Bars {
            groups: kernels.iter().map(|row| row.kernel.clone()).collect(),
            series: vec![
                Bars::of("preempt", kernels, |row| row.ratio_default),
                Bars::of("preempt, all preemptible", kernels, |row| row.ratio),
            ],
        },
        marks: Vec::new(),
    }
}

fn of_requests(rows: &[Beside]) -> Panel {
    let batches = distinct(rows.iter().map(|row| &row.batch));
    let bars = |arm: &String| {
        let of = |batch: &String| {
            let row = rows.iter().find(|row| row.batch == *batch && row.arm == *arm);
            row.map(|row| row.p99_us)
        };
        Bars { name: arm.clone(), values: batches.iter().map(|&batch| of(batch)).collect() }
    };
    Panel {
        title: "Requests beside a batch kernel, p99".to_owned(),
        y: Axis::logarithmic("from a request to its end, in µs"),
        content: Content::Bars {
            groups: batches.iter().map(|&batch| batch.clone()).collect(),
            series: distinct(rows.iter().map(|row| &row.arm)).into_iter().map(bars).collect(),
        },
        marks: Vec::new(),
    }
}
