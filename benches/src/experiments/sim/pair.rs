//! Two programs that ran at the same time, with what their simulation takes: measured, or read from results.

use std::time::Duration;

use anyhow::{Context, Result};
use preempt::policy::Hpf;
use preempt::sim::{Costs, KernelModel, Machine};
use preempt_report::{digits, microseconds};
use serde_json::{Value, json};

use crate::experiments::corun::{Arm, Simulated, line_of, model_of, simulate};
use crate::experiments::line;
use crate::samples::{show, show_percent};

/// A pair in one of the arms.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The long program, which is submitted first, and the short one.
    pub names: [String; 2],
    pub arm: Arm,
    pub priorities: [i32; 2],
    /// Arrival of the second program, as a share of the first one's time alone.
    pub delay: f64,
    /// The time between the submissions.
    pub apart: Duration,
    /// Of each program, its launches as they were alone.
    pub launches: [Vec<KernelModel>; 2],
    pub samples: usize,
    /// Medians.
    pub alone: [Duration; 2],
    pub turnaround: [Duration; 2],
    pub mean_yields: f64,
}

/// A pair in virtual time.
pub struct Found {
    pub pair: Simulated,
    /// Turnaround of each program alone.
    pub alone: [Duration; 2],
    /// The simulation in which only work takes time.
    pub free: Simulated,
}

pub const HEADINGS: [&str; 12] = [
    "first",
    "second",
    "arm",
    "priorities",
    "delay / first alone",
    "first p50",
    "simulated",
    "second p50",
    "simulated",
    "error of the mean",
    "yields",
    "simulated",
];

impl Pair {
    /// The pair on a machine of `sms` SMs with these costs.
    ///
    /// # Errors
    ///
    /// Errors of the simulation.
    pub fn simulate(&self, sms: u32, costs: Costs) -> Result<Found> {
        let is_auto = matches!(self.arm, Arm::Ours(_));
        let launches = self.launches.each_ref().map(|launches| {
            launches.iter().map(|launch| launch.clone().auto(is_auto)).collect::<Vec<_>>()
        });
        let [first, second] = &launches;
        let run = |machine, programs: &[(&[KernelModel], Duration, i32)]| {
            simulate(machine, Box::new(Hpf::by_stream()), programs)
        };
        let both = [
            (&first[..], Duration::ZERO, self.priorities[0]),
            (&second[..], self.apart, self.priorities[1]),
        ];
        let alone = |launches: &[KernelModel]| {
            let found = run(Machine::new(sms, costs), &[(launches, Duration::ZERO, 0)])?;
            Ok::<_, anyhow::Error>(found.turnaround[0])
        };
        Ok(Found {
            pair: run(Machine::new(sms, costs), &both)?,
            alone: [alone(first)?, alone(second)?],
            free: run(Machine::new(sms, Costs::free()), &both)?,
        })
    }

    /// The relative error of the mean turnaround.
    pub fn error(&self, found: &Simulated) -> Option<f64> {
        error(mean_of(&found.turnaround), mean_of(&self.turnaround))
    }

    /// The line of the table, and the row of the results.
    pub fn row(&self, found: &Found) -> (Vec<String>, Value) {
        let Pair { names, arm, priorities, delay, apart, launches, .. } = self;
        let Pair { samples, alone, turnaround, mean_yields, .. } = self;
        let Found { pair: simulated, alone: simulated_alone, free } = found;
        let shown = if priorities[0] == priorities[1] { "equal" } else { "low, high" };
        let cells = line([
            &names[0],
            &names[1],
            arm.name(),
            shown,
            &digits(*delay),
            &show(turnaround[0]),
            &show(simulated.turnaround[0]),
            &show(turnaround[1]),
            &show(simulated.turnaround[1]),
            &show_percent(self.error(simulated)),
            &digits(*mean_yields),
            &simulated.yields.to_string(),
        ]);
        let us =
            |times: &[Duration]| times.iter().map(|&time| microseconds(time)).collect::<Vec<_>>();
        let lines = |launches: &Vec<KernelModel>| launches.iter().map(line_of).collect::<Vec<_>>();
        let json = json!({
            "programs": names,
            "arm": arm.name(),
            "priorities": priorities,
            "delay_over_first_alone": delay,
            "apart_us": microseconds(*apart),
            "launches": launches.each_ref().map(lines),
            "samples": samples,
            "alone_p50_us": us(alone),
            "alone_simulated_us": us(simulated_alone),
            "turnaround_p50_us": us(turnaround),
            "turnaround_simulated_us": us(&simulated.turnaround),
            "turnaround_if_free_us": us(&free.turnaround),
            "mean_turnaround_error": self.error(simulated),
            "yields_mean": mean_yields,
            "yields_simulated": simulated.yields,
        });
        (cells, json)
    }

    /// The pair that [`row`](Pair::row) wrote, in one of `arms`; `None` if the row is not of a pair.
    ///
    /// # Errors
    ///
    /// If something of it is missing or cannot be read.
    pub fn read(row: &Value, arms: &[Arm]) -> Result<Option<Pair>> {
        let Some(names) = row["programs"].as_array() else { return Ok(None) };
        Pair::read_named(row, names, arms).with_context(|| format!("the pair {names:?}")).map(Some)
    }

    fn read_named(row: &Value, names: &[Value], arms: &[Arm]) -> Result<Pair> {
        let both = |key: &str| -> Result<[Duration; 2]> {
            let times =
                row[key].as_array().and_then(|times| <&[Value; 2]>::try_from(&times[..]).ok());
            let [first, second] = times.with_context(|| format!("no two times in `{key}`"))?;
            Ok([time(first, key)?, time(second, key)?])
        };
        let number = |key: &str| row[key].as_f64().with_context(|| format!("no `{key}`"));
        let of = |member: usize| -> Result<(String, i32, Vec<KernelModel>)> {
            let name = names.get(member).and_then(Value::as_str).context("no name")?;
            let priority = row["priorities"][member].as_i64().context("no priority")?;
            let lines = row["launches"][member].as_array().context("no launches")?;
            let launches = lines.iter().map(|line| model_of(line.as_str()?));
            let launches = launches.collect::<Option<_>>().context("a launch cannot be read")?;
            Ok((name.to_owned(), priority.try_into()?, launches))
        };
        let arm = arms.iter().find(|arm| row["arm"] == arm.name()).context("no known arm")?;
        let (first, second) = (of(0)?, of(1)?);
        Ok(Pair {
            names: [first.0, second.0],
            arm: *arm,
            priorities: [first.1, second.1],
            delay: number("delay_over_first_alone")?,
            apart: time(&row["apart_us"], "apart_us")?,
            launches: [first.2, second.2],
            samples: number("samples")? as usize,
            alone: both("alone_p50_us")?,
            turnaround: both("turnaround_p50_us")?,
            mean_yields: number("yields_mean")?,
        })
    }
}

/// A time of results, in microseconds there.
fn time(value: &Value, key: &str) -> Result<Duration> {
    let time = value.as_f64().map(|time| Duration::try_from_secs_f64(time / 1e6));
    time.and_then(Result::ok).with_context(|| format!("no time in `{key}`"))
}

/// The relative distance of `found` from `truth`.
pub fn error(found: Duration, truth: Duration) -> Option<f64> {
    let (found, truth) = (found.as_secs_f64(), truth.as_secs_f64());
    (truth > 0.0).then(|| (found - truth).abs() / truth)
}

/// The mean over both programs.
fn mean_of(times: &[Duration]) -> Duration {
    times.iter().sum::<Duration>() / times.len().max(1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn a_pair_is_read_as_it_was_written() {
        let long = KernelModel::new("long", 3000 * US, 100_000).blocks_per_sm(4).stop(20 * US);
        let short = KernelModel::new("short", 150 * US, 1000).plain_duration(130 * US).redo(2 * US);
        let pair = Pair {
            names: ["MM", "VA"].map(str::to_owned),
            arm: Arm::Ours(0),
            priorities: [0, 1],
            delay: 0.25,
            apart: 12 * US,
            launches: [vec![long], vec![short.clone(), short]],
            samples: 7,
            alone: [3010 * US, 310 * US],
            turnaround: [3350 * US, 340 * US],
            mean_yields: 1.5,
        };
        let found = pair.simulate(132, Costs::h200()).unwrap();
        let (cells, row) = pair.row(&found);
        assert_eq!(cells.len(), HEADINGS.len());
        let arms = [Arm::AllPreemptible(0), Arm::Ours(0)];
        let again = Pair::read(&row, &arms).unwrap().unwrap();
        assert_eq!(format!("{pair:?}"), format!("{again:?}"));
        assert_eq!(again.row(&again.simulate(132, Costs::h200()).unwrap()), (cells, row.clone()));
        assert!(Pair::read(&json!({ "program": "MM" }), &arms).unwrap().is_none());
        for key in ["arm", "priorities", "launches", "apart_us", "turnaround_p50_us", "samples"] {
            let mut broken = row.clone();
            broken[key] = json!("x");
            let error = format!("{:#}", Pair::read(&broken, &arms).unwrap_err());
            assert!(error.contains("the pair"), "{key}: {error}");
        }
    }
}
