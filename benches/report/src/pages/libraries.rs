//! Requests beside closed libraries.

use anyhow::Result;
use serde::Deserialize;

use super::markdown::{Table, percent, time_or_dash, times};
use super::results::{Folder, Results};
use crate::time;

/// The file, which a run on a GPU writes.
const FILE: &str = "libraries-gpu";

/// Requests beside products of one size, in one arm.
#[derive(Deserialize)]
struct Row {
    size: u32,
    arm: String,
    sms_of_products: u32,
    product_us: Option<f64>,
    idle_p50_us: f64,
    p50_us: f64,
    p99_us: f64,
    batch: Option<f64>,
    batch_to_streams: Option<f64>,
}

pub fn libraries(folder: &Folder) -> Result<String> {
    match folder.find(FILE)? {
        Some(results) => measured(&results),
        None => Ok("Not measured yet: `preempt-bench libraries --device cuda` does.".to_owned()),
    }
}

fn measured(results: &Results) -> Result<String> {
    let rows: Vec<Row> = results.rows_with("arm")?;
    let mut table = Table::new([
        "matrix rows",
        "arm",
        "SMs of products",
        "product",
        "request, idle",
        "request",
        "products kept",
        "of the products of streams alone",
    ]);
    let kept = |part: Option<f64>| part.map_or_else(|| "-".to_owned(), percent);
    for row in &rows {
        table.row([
            row.size.to_string(),
            row.arm.clone(),
            row.sms_of_products.to_string(),
            time_or_dash(row.product_us),
            time(row.idle_p50_us),
            times(row.p50_us, row.p99_us),
            kept(row.batch),
            kept(row.batch_to_streams),
        ]);
    }
    Ok(format!(
        "Kernels of closed libraries are machine code of the GPU, which preempt cannot rewrite. A request of 8 blocks beside products of cuBLAS {} \
         waits for room, p50 / p99. Large products run in blocks that stay until the kernel ends, so a higher stream priority gains nothing \
         beside them. In parts of the device (`Device::split`) the request waits for none of them, and the products have fewer SMs.\n\n{}\n{}",
        results.number("cublas")?,
        table.text(),
        results.source(),
    ))
}
