//! Which bars and lines each suite has.

use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::chart::Picture;

mod antt;
mod armed;
pub(crate) mod chimera;
mod choice;
mod coschedule;
mod engine;
mod fairness;
mod foreign;
mod latency;
mod launch;
mod libraries;
mod mix;
mod overhead;
mod pool;
mod prediction;
mod priority;
mod processes;
mod sim;
mod soak;
mod spatial;
mod storm;
mod urgent_inference;

/// Makes the panels of a suite from its rows.
type Draw = fn(&[Value]) -> Result<Picture>;

const SUITES: [(&str, Draw); 22] = [
    ("priority", priority::picture),
    ("antt", antt::picture),
    ("fairness", fairness::picture),
    ("prediction", prediction::picture),
    ("mix", mix::picture),
    ("coschedule", coschedule::picture),
    ("chimera", chimera::picture),
    ("urgent-inference", urgent_inference::picture),
    ("latency", latency::picture),
    ("overhead", overhead::picture),
    ("spatial", spatial::picture),
    ("foreign", foreign::picture),
    ("pool", pool::picture),
    ("sim", sim::picture),
    ("launch", launch::picture),
    ("choice", choice::picture),
    ("libraries", libraries::picture),
    ("processes", processes::picture),
    ("armed", armed::picture),
    ("storm", storm::picture),
    ("soak", soak::picture),
    ("engine", engine::picture),
];

/// Whether there is a picture of this suite.
///
/// # Errors
///
/// If there is none; it names those that there are.
pub fn ensure_picture(suite: &str) -> Result<()> {
    find(suite).map(|_| ())
}

/// The picture of what `preempt-bench` wrote as JSON.
///
/// # Errors
///
/// If there is no picture of the suite, or if the results are not as the suite writes them.
pub fn picture(results: &Value) -> Result<Picture> {
    let suite = results["suite"].as_str();
    let draw = find(suite.context("these are no results of preempt-bench: they name no suite")?)?;
    let rows = results["rows"].as_array().context("the results have no rows")?;
    ensure!(!rows.is_empty(), "the results have no rows");
    let mut picture = draw(rows)?;
    let told = ["device", "driver", "hardware", "commit", "date"].map(|key| results[key].as_str());
    picture.note = told.into_iter().flatten().collect::<Vec<_>>().join("; ");
    Ok(picture)
}

fn find(suite: &str) -> Result<Draw> {
    let Some((_, draw)) = SUITES.iter().find(|(name, _)| *name == suite) else {
        let all = SUITES.map(|(name, _)| name);
        bail!(
            "there is no picture of the suite `{suite}`; there are pictures of {}",
            all.join(", ")
        );
    };
    Ok(*draw)
}

/// Rows as a suite writes them.
pub(crate) fn parse<T: DeserializeOwned>(rows: &[Value]) -> Result<Vec<T>> {
    let parse = |(index, row)| T::deserialize(row).with_context(|| format!("row {}", index + 1));
    rows.iter().enumerate().map(parse).collect()
}

/// The rows that have this field, as a suite writes them that has rows of different kinds.
pub(crate) fn parse_with<T: DeserializeOwned>(rows: &[Value], field: &str) -> Result<Vec<T>> {
    let with = rows.iter().filter(|row| row.get(field).is_some());
    parse(&with.cloned().collect::<Vec<_>>())
}

/// What is different in the order in which it first comes.
pub(crate) fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for one in all {
        if !distinct.contains(&one) {
            distinct.push(one);
        }
    }
    distinct
}

/// Wide enough for 28 groups of bars.
const WIDE: (u32, u32) = (1200, 400);
