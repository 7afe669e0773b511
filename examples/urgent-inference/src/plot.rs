//! The latencies as a picture: for each row, the share of requests that were answered in time.

use std::time::Duration;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::arms::Row;
use crate::report::milliseconds;

const SIZE: (u32, u32) = (900, 520);

/// The colours of the rows, which are told apart by eyes that do not see red or green too
/// (Okabe and Ito).
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115), RGBColor(204, 121, 167)];

/// Points of each line; more would only make the file larger.
const POINTS: usize = 400;

/// The picture of all rows that have requests, as SVG.
///
/// # Errors
///
/// If it cannot be drawn.
pub fn svg(rows: &[Row]) -> Result<String> {
    let mut text = String::new();
    draw(rows, &mut text).map_err(|error| anyhow!("cannot draw the latencies: {error}"))?;
    Ok(text)
}

fn draw(rows: &[Row], text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let rows: Vec<&Row> = rows.iter().filter(|row| !row.latencies.is_empty()).collect();
    let all = || rows.iter().flat_map(|row| &row.latencies).map(|time| in_milliseconds(*time));
    let least = all().fold(f64::INFINITY, f64::min);
    let most = all().fold(0.0, f64::max);

    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption("Requests beside a long batch job", ("sans-serif", 22))
        .margin(20)
        .x_label_area_size(50)
        .y_label_area_size(60)
        .build_cartesian_2d((least / 1.5..most * 1.5).log_scale(), 0.0..100.0)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("from the moment of a request to its answer, in milliseconds")
        .y_desc("requests answered, in %")
        .x_label_formatter(&|time| format!("{time}"))
        .y_label_formatter(&|share| format!("{share:.0}"))
        .label_style(("sans-serif", 15))
        .draw()?;
    for (row, colour) in rows.iter().zip(COLOURS.iter().cycle()) {
        let style = colour.stroke_width(3);
        let p99 = row.percentile(0.99).map(milliseconds).unwrap_or_default();
        chart
            .draw_series(LineSeries::new(distribution(&row.latencies), style))?
            .label(format!("{}: p99 {p99}", row.name))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerMiddle)
        .background_style(WHITE.mix(0.9))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 15))
        .draw()?;
    root.present()?;
    Ok(())
}

/// Latencies and the share of requests, in %, that they were enough for.
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
    // A logarithm has no room for 0.
    (time.as_secs_f64() * 1e3).max(1e-3)
}
