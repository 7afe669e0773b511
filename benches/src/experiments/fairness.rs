//! Shares of two programs in endless loops, with weights of 2 to 1 (FLEP figures 13 and 14).

use std::time::Duration;

use anyhow::Result;
use preempt::policy::{Ffs, Policy};
use preempt_report::{digits, microseconds};
use preempt_test_kit::storm::Tally;
use serde_json::{Value, json};

use super::corun::{self, Arm, Endless, NewPolicy, Testbed};
use super::{Bench, Experiment, FLEP, LONG, Outcome, line, with_tally};
use crate::progress::Progress;
use crate::samples::{mean, show, show_percent};
use crate::stopped::Stopped;

/// Window in which each pair is measured, and with `--quick`.
const WINDOW: Duration = Duration::from_millis(600);
const QUICK_WINDOW: Duration = Duration::from_millis(60);

/// Share of the throughput that switching may cost, at most.
const MAX_OVERHEAD: f64 = 0.10;
/// Further values of that share (figure 14).
const OVERHEADS: [f64; 4] = [MAX_OVERHEAD, 0.02, 0.05, 0.20];

/// The weights of the short program and of the long one.
const WEIGHTS: [u32; 2] = [2, 1];

/// A pair in one arm.
struct Row {
    names: [&'static str; 2],
    arm: String,
    /// `None` for arms without the policy.
    max_overhead: Option<f64>,
    /// The short program's share of the SM-time of both, and its share of both programs' work, relative to alone.
    /// `None` if one of them did nothing alone.
    share: Option<f64>,
    share_of_work: Option<f64>,
    /// The throughput lost: 1 less the sum of both programs' work, relative to alone.
    lost: Option<f64>,
    /// The largest distance from the short program's fair share in tenths of the window.
    worst: Option<f64>,
    yields: u64,
    /// `None` in virtual time, and without the scheduler.
    stops: Option<Stopped>,
}

/// The experiment `fairness`.
#[derive(Debug)]
pub struct Fairness;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
Two programs in endless loops, with weights of 2 and 1 (FLEP, figures 13 and 14).

CFD, NN, PF and PL are the long programs, with weight 1; each of the other seven of FLEP's is the
short one, with weight 2. Both are run again and again for a `window` of 600 ms, by `Ffs` without
spatial sharing, as in the paper; the weights are their priorities, too, for the arm with stream
priorities. `preempt` is `Ffs`, which makes turns long enough that yields cost at most `max.
overhead`: 10 %, and 2, 5 and 20 %. Its launches are all preemptible, because `Ffs` takes SMs away
at certain times.

- work: how often a program was run within the window, by how often it was run alone in a window of
  its own, by the same scheduler. A part of a run counts by its block-tasks; on raw streams, where
  parts cannot be seen, the runs that ended are carried on to the end of the window.
- share: the short program's part of the SM-time that the policy granted both, where there is a
  policy; 2/3 is fair. `share of work`: its part of the sum of both programs' work. `worst tenth off
  by`: the largest distance of the share from 2/3 in the tenths of the window. Where turns are
  longer than a tenth, it says nothing.
- throughput lost: 1 less the sum of both programs' work. Below 0, both did more work side by side
  than one after the other.
- `drained` and `requeued` are blocks that had to leave and ended their block-task, or dropped it at
  a yield point; `work_dropped_us` is the time that dropped block-tasks had run, summed over blocks.
- `share_error_points` is the largest distance of the share from 2/3, in percent of the device,
  `share_error_points_mean` their mean. `throughput_lost` is the mean over the `pairs`,
  `throughput_lost_max` the largest, all with 10 %; `throughput_lost_by_max_overhead_percent` has
  the means for each of the four.
- What is under way when the window ends is cancelled, so outputs are compared in a run of each
  program afterwards.
";

impl Experiment for Fairness {
    fn name(&self) -> &'static str {
        "fairness"
    }

    fn about(&self) -> &'static str {
        "Shares of programs in endless loops."
    }

    fn meaning(&self) -> &'static [&'static str] {
        &[MEANING, corun::MEANING, corun::WITHOUT_A_DEVICE]
    }

    fn is_simulated(&self) -> bool {
        true
    }

    fn run(&self, bench: &Bench) -> Result<Outcome> {
        run(bench)
    }
}

/// Measures all pairs.
fn run(bench: &Bench) -> Result<Outcome> {
    let longs = bench.programs_among(&LONG)?;
    let ffs = |most| Box::new(Ffs::with_max_overhead(most).whole_device()) as Box<dyn Policy>;
    let policies = OVERHEADS.map(|most| Box::new(move || ffs(most)) as NewPolicy);
    let mut testbed = bench.testbed(policies.into())?;
    let [long, short] = bench.sizes();
    let window = bench.amount(QUICK_WINDOW, WINDOW);
    let overheads = bench.amount(&OVERHEADS[..1], &OVERHEADS);
    testbed.add_flep(short)?;
    let mut rows = Vec::new();
    let progress = Progress::new("pairs", (longs.len() * (FLEP.len() - 1)) as u64);
    for definition in longs {
        // One at a time, because their buffers take gigabytes.
        let last = testbed.add(definition, long)?;
        for other in 0..last {
            if testbed.name(other) != definition.name {
                pair(&mut *testbed, [other, last], window, overheads, &mut rows)?;
                progress.step();
            }
        }
        testbed.remove_last();
    }
    Ok(outcome(&rows, window, testbed.close()?))
}

fn pair(
    testbed: &mut dyn Testbed,
    members: [usize; 2],
    window: Duration,
    overheads: &[f64],
    rows: &mut Vec<Row>,
) -> Result<()> {
    let names = members.map(|program| testbed.name(program));
    let one = |program, weight| Endless { program, weight, priority: weight as i32 };
    let both = [one(members[0], WEIGHTS[0]), one(members[1], WEIGHTS[1])];
    // Measured by the same scheduler, so that only sharing makes the difference.
    let mut alone = [0.0; 2];
    for (alone, member) in alone.iter_mut().zip(both) {
        *alone = testbed.endless(Arm::Ours(1), &[member], window)?.runs[0];
    }
    let ours = overheads.iter().enumerate();
    let ours = ours.map(|(policy, &most)| (Arm::Ours(1 + policy), Some(most)));
    let others = [Arm::PlainStreams, Arm::StreamPriorities].map(|arm| (arm, None));
    for (arm, max_overhead) in others.into_iter().chain(ours) {
        if !testbed.has(arm) {
            continue;
        }
        let found = testbed.endless(arm, &both, window)?;
        let work = [0, 1].map(|member| found.runs[member] / alone[member]);
        let sum = Some(work[0] + work[1]).filter(|sum| sum.is_finite());
        rows.push(Row {
            names,
            arm: arm.name().to_owned(),
            max_overhead,
            share: found.share(0),
            share_of_work: sum.filter(|sum| *sum > 0.0).map(|sum| work[0] / sum),
            lost: sum.map(|sum| 1.0 - sum),
            worst: found.worst_share(0, fair()),
            yields: found.yields,
            stops: found.stops,
        });
    }
    for program in members {
        // Cancelled launches left partial results; a whole run shows that nothing else is wrong.
        testbed.verify(program)?;
    }
    Ok(())
}

/// The fair share of the short program.
fn fair() -> f64 {
    f64::from(WEIGHTS[0]) / f64::from(WEIGHTS[0] + WEIGHTS[1])
}

/// The summary, by its keys.
fn summary(rows: &[Row]) -> Value {
    let of = |most: f64| rows.iter().filter(move |row| row.max_overhead == Some(most));
    let errors: Vec<f64> =
        of(MAX_OVERHEAD).filter_map(|row| Some(100.0 * (row.share? - fair()).abs())).collect();
    let lost = |most| mean(&of(most).filter_map(|row| row.lost).collect::<Vec<_>>());
    let by_overhead: serde_json::Map<String, Value> =
        OVERHEADS.iter().map(|&most| (digits(100.0 * most), json!(lost(most)))).collect();
    json!({
        "pairs": of(MAX_OVERHEAD).count(),
        "share_error_points": errors.iter().copied().reduce(f64::max),
        "share_error_points_mean": mean(&errors),
        "throughput_lost": lost(MAX_OVERHEAD),
        "throughput_lost_max": of(MAX_OVERHEAD).filter_map(|row| row.lost).reduce(f64::max),
        "throughput_lost_by_max_overhead_percent": by_overhead,
    })
}

fn outcome(rows: &[Row], window: Duration, tally: Tally) -> Outcome {
    let summary = with_tally(summary(rows), &tally);
    let mut table = vec![line([
        "weight 2",
        "weight 1",
        "arm",
        "max. overhead",
        "share",
        "share of work",
        "worst tenth off by",
        "throughput lost",
        "yields",
    ])];
    table.extend(rows.iter().map(|row| {
        line([
            row.names[0],
            row.names[1],
            &row.arm,
            &show_percent(row.max_overhead),
            &show_percent(row.share),
            &show_percent(row.share_of_work),
            &show_percent(row.worst),
            &show_percent(row.lost),
            &row.yields.to_string(),
        ])
    }));
    Outcome {
        about: format!(
            "Two programs in endless loops for {}, the first one with twice the weight: its share of the SM-time \
             that both were granted, and of what both did relative to alone; and what is lacking in the sum of \
             that.",
            show(window),
        ),
        table,
        text_columns: 3,
        rows: rows
            .iter()
            .map(|row| {
                json!({
                    "weight_2": row.names[0],
                    "weight_1": row.names[1],
                    "arm": row.arm,
                    "max_overhead": row.max_overhead,
                    "share": row.share,
                    "share_of_work": row.share_of_work,
                    "worst_tenth_off_by": row.worst,
                    "throughput_lost": row.lost,
                    "yields": row.yields,
                    "drained": row.stops.map(|stops| stops.drained),
                    "requeued": row.stops.map(|stops| stops.requeued),
                    "work_dropped_us": row.stops.map(|stops| microseconds(stops.lost)),
                    "window_us": microseconds(window),
                })
            })
            .collect(),
        summary,
        mistake: tally.mistake,
    }
}
