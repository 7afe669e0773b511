//! What launches and programs take, by preempt and by the driver, and the ways to launch a short kernel.

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use super::{WIDE, distinct, parse_with};
use crate::chart::{Axis, Bars, Content, Panel, Picture};

#[derive(Deserialize)]
struct Task {
    name: String,
    kernel: String,
    side: String,
    p50_us: f64,
}

#[derive(Deserialize)]
struct Form {
    form: String,
    p50_us: f64,
    p99_us: f64,
}

/// In the order of the legend.
const SIDES: [&str; 2] = ["preempt", "driver"];

pub fn picture(rows: &[Value]) -> Result<Picture> {
    let tasks: Vec<Task> = parse_with(rows, "name")?;
    let forms: Vec<Form> = parse_with(rows, "form")?;
    let names = distinct(tasks.iter().map(|row| [&row.name, &row.kernel]));
    let side = |side: &str| {
        let of = |name: &[&String; 2]| {
            tasks.iter().find(|row| [&row.name, &row.kernel] == *name && row.side == side)
        };
        let values = names.iter().map(|name| of(name).map(|row| row.p50_us)).collect();
        Bars { name: side.to_owned(), values }
    };
    let mut panels = vec![vec![Panel {
        title: "By preempt and by the driver alone".to_owned(),
        y: Axis::logarithmic("p50, in µs"),
        content: Content::Bars {
            groups: names.iter().map(|[name, kernel]| short(name, kernel)).collect(),
            series: SIDES.map(side).to_vec(),
        },
        marks: Vec::new(),
    }]];
    // Not where there is no GPU.
    if !forms.is_empty() {
        panels.push(vec![Panel {
            title: "A short kernel, from the launch until the host knows of the end".to_owned(),
            y: Axis::linear("in µs"),
            content: Content::Bars {
                groups: forms.iter().map(|row| row.form.clone()).collect(),
                series: vec![
                    Bars::of("p50", &forms, |row| row.p50_us),
                    Bars::of("p99", &forms, |row| row.p99_us),
                ],
            },
            marks: Vec::new(),
        }]);
    }
    Ok(Picture {
        title: "The cost of a launch".to_owned(),
        note: String::new(),
        size: WIDE,
        rows: panels,
    })
}

/// What is launched, with what tells kernels of one name apart.
fn short(name: &str, kernel: &str) -> String {
    let last = kernel.rsplit(", ").next().unwrap_or(kernel);
    format!("{name}, {}", last.split(" of ").next().unwrap_or(last))
}
