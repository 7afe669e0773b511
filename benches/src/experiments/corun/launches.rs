//! The launches of each program alone, as they were measured on a GPU.

use std::time::Duration;

use anyhow::{Context, Result};
use preempt::sim::{Costs, KernelModel, Machine};
use preempt_report::microseconds;
use preempt_workloads::Size;
use serde_json::{Value, json};

/// Results of the experiment `sim`, of which this reads the rows that [`row`] made.
const LAUNCHES: &str = include_str!("../../../results/sim-gpu.json");

/// The measured launches of programs.
pub struct Launches(Value);

impl Launches {
    /// Those of the repository.
    ///
    /// # Errors
    ///
    /// If the file is not JSON.
    pub fn measured() -> Result<Launches> {
        Ok(Launches(serde_json::from_str(LAUNCHES).context("sim-gpu.json")?))
    }

    /// All rows.
    pub fn rows(&self) -> &[Value] {
        self.0["rows"].as_array().map_or(&[], Vec::as_slice)
    }

    /// The source of the measurements.
    pub fn source(&self) -> String {
        let told = ["device", "commit", "date"].map(|key| self.0[key].as_str());
        told.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// The costs in the run of the measurements; what it did not measure is as usual.
    ///
    /// # Errors
    ///
    /// If they are not there.
    pub fn costs(&self) -> Result<Costs> {
        let summary = &self.0["summary"];
        let cost = |key: &str| {
            let time = summary[key].as_f64().map(|time| Duration::try_from_secs_f64(time / 1e6));
            time.and_then(Result::ok).with_context(|| format!("`{key}` in sim-gpu.json"))
        };
        let (launch, follow) = (cost("launch_us")?, cost("follow_us")?);
        Ok(Costs { launch, follow, decision: cost("decision_us")?, ..Costs::h200() })
    }

    /// The launches of a program, in order. Each stops as the dominating one of the program does at full size.
    ///
    /// # Errors
    ///
    /// If there are no such rows, or if one cannot be read.
    pub fn of(&self, program: &str, size: Size) -> Result<Vec<KernelModel>> {
        let is_it = |row: &&Value| row["program"] == program && row["size"] == name(size);
        let row = self.rows().iter().find(is_it);
        let what = || format!("the launches of {program}, {}, in sim-gpu.json", name(size));
        let launches = row.and_then(|row| row["launches"].as_array()).with_context(what)?;
        let launches = launches.iter().map(|launch| model(program, launch.as_str()?));
        launches.collect::<Option<_>>().with_context(what)
    }
}

/// A launch of a program, which stops as the dominating one of the program does at full size.
fn model(program: &str, line: &str) -> Option<KernelModel> {
    let model = model_of(line)?;
    Some(match KernelModel::h200(program) {
        Some(KernelModel { stop: Some(stop), redo, .. }) => {
            let redo = if redo.is_zero() { redo } else { model.dropped(Machine::h200().sms) };
            model.stop(stop).redo(redo)
        }
        _ => model,
    })
}

/// The launch that a line of results describes; see [`line_of`].
pub fn model_of(line: &str) -> Option<KernelModel> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let &[kernel, duration, tasks, blocks_per_sm, plain, stop, redo] = &fields[..] else {
        return None;
    };
    let time = |text: &str| Duration::try_from_secs_f64(text.parse::<f64>().ok()? / 1e6).ok();
    let known = |text: &str| if text == "-" { Some(None) } else { time(text).map(Some) };
    let mut model = KernelModel::new(kernel, time(duration)?, tasks.parse().ok()?)
        .blocks_per_sm(blocks_per_sm.parse().ok()?)
        .redo(time(redo)?);
    (model.plain_duration, model.stop) = (known(plain)?, known(stop)?);
    Some(model)
}

/// A launch in a line of results: its kernel, its duration, its block-tasks and how many blocks an SM holds, as in a
/// trace of the simulator; then the duration of a plain grid, the time to stop, and the work to do again. Times are in
/// microseconds, and `-` where they are not known.
pub fn line_of(launch: &KernelModel) -> String {
    let KernelModel { name, duration, tasks, blocks_per_sm, plain_duration, stop, redo, .. } =
        launch;
    let known = |time: &Option<Duration>| {
        time.map_or_else(|| "-".to_owned(), |time| microseconds(time).to_string())
    };
    let [duration, redo] = [duration, redo].map(|&time| microseconds(time));
    let (plain, stop) = (known(plain_duration), known(stop));
    format!("{name} {duration} {tasks} {blocks_per_sm} {plain} {stop} {redo}")
}

/// A row of results with a program's launches alone, in order.
pub fn row(program: &str, size: Size, alone: Duration, launches: &[KernelModel]) -> Value {
    json!({
        "program": program,
        "size": name(size),
        "alone_p50_us": microseconds(alone),
        "launches": launches.iter().map(line_of).collect::<Vec<_>>(),
    })
}

/// The name of a size in the file.
fn name(size: Size) -> &'static str {
    match size {
        Size::Reduced => "reduced",
        Size::Trivial => "trivial",
        Size::Small => "small",
        Size::Large => "large",
    }
}

#[cfg(test)]
mod tests {
    use preempt_workloads::ALL;

    use super::*;
    use crate::experiments::FLEP;

    #[test]
    fn every_program_has_the_sizes_that_suites_ask_for() {
        let launches = Launches::measured().unwrap();
        let took = |program: &str, size| {
            let launches = launches.of(program, size).unwrap();
            launches.iter().map(|launch| launch.duration).sum::<Duration>()
        };
        for definition in ALL {
            assert!(took(definition.name, Size::Large) > Duration::from_micros(100));
        }
        for name in FLEP {
            let small = took(name, Size::Small);
            assert!(!small.is_zero() && small < took(name, Size::Large), "{name}");
        }
        let error = launches.of("MM", Size::Trivial).unwrap_err().to_string();
        assert!(error.contains("MM, trivial"), "{error}");
    }

    #[test]
    fn costs_are_those_of_the_run() {
        let summary = |launch: &str| json!({ launch: 8.5, "follow_us": 3, "decision_us": 1.5 });
        let costs = Launches(json!({ "summary": summary("launch_us") })).costs().unwrap();
        let nanos = [costs.launch, costs.follow, costs.decision].map(|cost| cost.as_nanos());
        assert_eq!((nanos, costs.stop), ([8_500, 3_000, 1_500], Costs::h200().stop));
        let error = Launches(json!({ "summary": summary("launch") })).costs().unwrap_err();
        assert!(error.to_string().contains("launch_us"), "{error}");
        assert!(Launches::measured().unwrap().costs().unwrap().decision > Duration::ZERO);
    }

    #[test]
    fn a_launch_is_read_as_it_was_written() {
        let us = Duration::from_micros;
        let launch = KernelModel::new("k", Duration::from_nanos(12_345), 77).blocks_per_sm(8);
        assert_eq!(line_of(&launch), "k 12.345 77 8 - - 0");
        let launch = launch.plain_duration(us(10));
        let stops = launch.clone().stop(us(7)).redo(us(2));
        assert_eq!(model_of(&line_of(&stops)).as_ref(), Some(&stops));
        let row = row("MM", Size::Small, Duration::ZERO, std::slice::from_ref(&launch));
        assert_eq!(row["launches"][0], "k 12.345 77 8 10 - 0");
        let launches = Launches(json!({ "rows": [row] })).of("MM", Size::Small).unwrap();
        let [again] = &launches[..] else { panic!("{launches:?}") };
        assert_eq!((again.duration, again.tasks, again.blocks_per_sm), (launch.duration, 77, 8));
        assert_eq!(again.stop, KernelModel::h200("MM").unwrap().stop);
        assert_eq!(again.plain_duration, Some(us(10)));
        assert_eq!(again.redo, again.duration / 2, "all block-tasks run at a time");
        assert!(model("MM", "k 12.345 77 8").is_none());
        assert!(model("MM", "k -1 77 8 - - 0").is_none());
    }
}
