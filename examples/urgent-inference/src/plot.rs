//! The latencies as a picture: for each row, the share of requests that were answered in time.

use std::error::Error;
use std::time::Duration;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::arms::Row;
use crate::report::milliseconds;

/// Pixels: width and height of the picture.
const SIZE: (u32, u32) = (900, 520);

/// Points of each line; more would only enlarge the file.
const POINTS: usize = 400;

/// The colours, which are distinct for readers who do not see red or green, too (Okabe and Ito).
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115), RGBColor(204, 121, 167)];

/// The picture of all rows that have requests, as SVG.
///
/// # Errors
///
/// If it cannot be drawn.
pub fn svg(rows: &[Row]) -> Result<String> {
    let mut text = String::new();
    draw(rows, &mut text).map_err(|error| anyhow!("cannot draw the picture: {error}"))?;
    Ok(text)
}

fn draw(rows: &[Row], text: &mut String) -> Result<(), Box<dyn Error>> {
    let rows: Vec<&Row> = rows.iter().filter(|row| !row.latencies.is_empty()).collect();
    let times = || rows.iter().flat_map(|row| &row.latencies).copied().map(in_milliseconds);
    let (least, most) = (times().fold(f64::MAX, f64::min), times().fold(0.0, f64::max));
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption("Requests beside a long batch job", ("sans-serif", 22))
        .margin(16)
        .x_label_area_size(50)
        .y_label_area_size(70)
        .build_cartesian_2d((least..most.max(2.0 * least)).log_scale(), 0.0..100.0)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("from the moment of a request to its answer, in milliseconds")
        .y_desc("requests answered, in %")
        .label_style(("sans-serif", 15))
        .draw()?;
    for (row, colour) in rows.iter().zip(COLOURS.into_iter().cycle()) {
        let p99 = row.percentile(0.99).map(milliseconds).unwrap_or_default();
        let points = distribution(&row.latencies);
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(3)))?
            .label(format!("{}: p99 {p99}", row.name))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(6)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .label_font(("sans-serif", 15))
        .draw()?;
    root.present()?;
    Ok(())
}

/// Latencies, and the share of requests in % that are answered within each.
fn distribution(sorted: &[Duration]) -> Vec<(f64, f64)> {
    let last = sorted.len().saturating_sub(1);
    let ranks = (0..=POINTS).map(|point| point * last / POINTS);
    ranks
        .map(|rank| {
            let share = (rank + 1) as f64 / sorted.len() as f64;
            (in_milliseconds(sorted[rank]), 100.0 * share)
        })
        .collect()
}

fn in_milliseconds(time: Duration) -> f64 {
    // A logarithmic axis has no 0.
    (time.as_secs_f64() * 1e3).max(1e-3)
}
