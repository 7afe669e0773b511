//! Short urgent programs beside long ones (FLEP figures 8 and 9).

use std::time::Duration;

use anyhow::Result;
use preempt::policy::{Hpf, Policy};
use preempt_report::{digits, microseconds};
use preempt_test_kit::storm::Tally;
use serde_json::{Value, json};

use super::corun::{self, Arm, IdealJob, Job, Rounds, Testbed, Turnarounds, ceiling};
use super::{Bench, Experiment, FLEP, LONG, Outcome, Rows, line, with_tally};
use crate::progress::Progress;
use crate::samples::{
    Samples, geometric_mean, mean, ratio, show, show_number, show_ratio, show_time,
};

/// Samples of each arm, and with `--quick`.
const SAMPLES: u32 = 60;
const QUICK_SAMPLES: u32 = 1;

/// Time by which a median has to differ to count as another one: as much as medians of 60 samples do in two runs.
const BEHIND: Duration = Duration::from_micros(4);

/// Arrivals of the urgent program, as shares of the victim's time alone (figure 9). The first, at once, is that of the
/// 28 pairs (figure 8).
const DELAYS: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.1];

/// The number of `Hpf` among the testbed's policies.
const HPF: usize = 1;

/// The arm of the summary.
const OURS: Arm = Arm::Ours(HPF);
const ALL_PREEMPTIBLE: Arm = Arm::AllPreemptible(HPF);

const ARMS: [Arm; 4] = [Arm::PlainStreams, Arm::StreamPriorities, OURS, ALL_PREEMPTIBLE];

/// A victim and an urgent program, with one delay between them.
struct Pair {
    names: [&'static str; 2],
    delay: f64,
    /// Times of the victim and of the urgent program, each alone.
    alone: [Samples; 2],
    arms: Vec<(Arm, Turnarounds, u64)>,
    /// The urgent program's turnaround where preemption is free.
    ceiling: Duration,
}

/// The experiment `priority`.
#[derive(Debug)]
pub struct Priority;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
A short program of high priority comes when a long one of low priority runs: the 28 pairs of FLEP
(figure 8), at once and later (figure 9).

CFD, NN, PF and PL are the long programs, with priority 0; each of the other seven of FLEP's eight
is the short one, with priority 1. The policy is `Hpf::by_stream`. The short program is submitted
when the long one has run for the `delay`, as a part of that one's time alone: 0 for all pairs,
0.25, 0.5, 0.75 and 1.1, too, for MM (SPMV, where PF is long).

- speedup (`faster than plain streams`): the short program's median turnaround on plain streams by
  that of the row.
- The keys of the summary are of `preempt`, and of the 28 pairs without a delay, unless they say
  something else. `mean_speedup` and `best_speedup` are of its speedups,
  `mean_speedup_all_preemptible` is of those of `preempt, all preemptible`; `mean_ceiling` and
  `best_ceiling` are of those of `ceiling`, and `mean_over_ceiling` is `mean_speedup` by
  `mean_ceiling`.
- `worst_vs_stream_priority` and `mean_vs_stream_priority` (geometric) are of how many times as long
  as with `preempt` the short program took with stream priorities; null on the CPU device.
- `rows_behind_stream_priority` are rows, those with a delay among them, in which the median of
  `preempt` is greater than that of stream priorities by more than 3 % and by more than 4 µs; null
  on the CPU device.
- `yields` are of preemptible launches: a plain grid makes room without one. Without a delay the
  scheduler may see the short program before it has launched the long one, and then nothing has to
  yield.
- `mid_run_over_ceiling` and `mid_run_vs_stream_priority` are of the rows with a delay of 0.25, 0.5
  and 0.75, where the long one runs.
";

impl Experiment for Priority {
    fn name(&self) -> &'static str {
        "priority"
    }

    fn about(&self) -> &'static str {
        "Short urgent programs beside long ones."
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
    let victims = bench.programs_among(&LONG)?;
    let mut testbed = bench.testbed(vec![Box::new(hpf)])?;
    let [long, short] = bench.sizes();
    let rounds = bench.rounds(QUICK_SAMPLES, SAMPLES);
    testbed.add_flep(short)?;
    let mut pairs = Vec::new();
    let progress = Progress::new("pairs", (victims.len() * (FLEP.len() - 1)) as u64);
    for victim in victims {
        // One at a time, because their buffers take gigabytes.
        let low = testbed.add(victim, long)?;
        for high in 0..low {
            let name = testbed.name(high);
            if name == victim.name {
                continue;
            }
            for &delay in delays(victim.name, name) {
                pairs.push(pair(&mut *testbed, [low, high], delay, rounds)?);
            }
            progress.step();
        }
        testbed.remove_last();
    }
    Ok(outcome(&pairs, testbed.close()?))
}

/// The policy of `priority` and `antt`.
pub(super) fn hpf() -> Box<dyn Policy> {
    Box::new(Hpf::by_stream())
}

/// The delays of a pair: all of them for one urgent program of each victim.
pub(super) fn delays(victim: &str, urgent: &str) -> &'static [f64] {
    let swept = if victim == "PF" { "SPMV" } else { "MM" };
    if urgent == swept { &DELAYS } else { &DELAYS[..1] }
}

fn pair(
    testbed: &mut dyn Testbed,
    [low, high]: [usize; 2],
    delay: f64,
    rounds: Rounds,
) -> Result<Pair> {
    let mut alone = [Samples::default(), Samples::default()];
    let mut arms: Vec<_> = ARMS
        .into_iter()
        .filter(|arm| testbed.has(*arm))
        .map(|arm| (arm, Turnarounds::default(), 0))
        .collect();
    for round in 0..rounds.count() {
        // Rounds before have the delay, too, so that the scheduler learns from launches that are preempted as later.
        if round == rounds.learning {
            alone = Default::default();
        }
        for (samples, program) in alone.iter_mut().zip([low, high]) {
            let completed = testbed.run_jobs(Arm::PlainStreams, &[Job::now(program)])?;
            samples.extend(completed.turnaround.first().copied());
        }
        let at = alone[0].p50().mul_f64(delay);
        let jobs = [Job::now(low), Job { at, priority: 1, ..Job::now(high) }];
        for (arm, times, yields) in &mut arms {
            testbed.warm(*arm, high)?;
            let completed = testbed.run_jobs(*arm, &jobs)?;
            if round >= rounds.learning {
                times.push(&completed.turnaround, completed.makespan);
                *yields += completed.yields;
            }
        }
    }
    let [long, short] = [alone[0].p50(), alone[1].p50()];
    let at = long.mul_f64(delay);
    let victim = IdealJob { at: Duration::ZERO, alone: long, priority: 0 };
    let urgent = IdealJob { at, alone: short, priority: 1 };
    let free = ceiling(hpf(), &[victim, urgent])?;
    let names = [low, high].map(|program| testbed.name(program));
    Ok(Pair { names, delay, alone, arms, ceiling: free[1] })
}

impl Pair {
    fn urgent(&self, arm: Arm) -> Option<Duration> {
        let (_, times, _) = self.arms.iter().find(|(other, ..)| *other == arm)?;
        times.jobs.get(1).map(Samples::p50)
    }

    /// How many times shorter the urgent program's turnaround is than in submission order.
    fn speedup(&self, time: Option<Duration>) -> Option<f64> {
        ratio(self.urgent(Arm::PlainStreams)?, time?)
    }

    /// Rows of the table and of the JSON: the arm's name, turnarounds of both programs, yields.
    fn lines(&self) -> impl Iterator<Item = (&'static str, Option<&Turnarounds>, Duration, u64)> {
        let arms = self.arms.iter().map(|(arm, times, yields)| {
            let urgent = times.jobs.get(1).map(Samples::p50).unwrap_or_default();
            (arm.name(), Some(times), urgent, *yields)
        });
        let alone = ("alone", None, self.alone[1].p50(), 0);
        std::iter::once(alone).chain(arms).chain([("ceiling", None, self.ceiling, 0)])
    }
}

/// The summary, by its keys.
fn summary(pairs: &[Pair]) -> Value {
    let figure_8 = || pairs.iter().filter(|pair| pair.delay == 0.0);
    let mid_run = || pairs.iter().filter(|pair| pair.delay > 0.0 && pair.delay < 1.0);
    let ours = |pair: &Pair| pair.urgent(OURS);
    let preemptible: Vec<f64> =
        figure_8().filter_map(|pair| pair.speedup(pair.urgent(ALL_PREEMPTIBLE))).collect();
    let speedup = |pair: &Pair| pair.speedup(ours(pair));
    let ceiling = |pair: &Pair| pair.speedup(Some(pair.ceiling));
    let speedups: Vec<f64> = figure_8().filter_map(speedup).collect();
    let ceilings: Vec<f64> = figure_8().filter_map(ceiling).collect();
    let mid_run_means = [
        mean(&mid_run().filter_map(speedup).collect::<Vec<_>>()),
        mean(&mid_run().filter_map(ceiling).collect::<Vec<_>>()),
    ];
    let by_priority = |pair: &Pair| ratio(pair.urgent(Arm::StreamPriorities)?, ours(pair)?);
    let is_behind = |pair: &&Pair| {
        let both = pair.urgent(Arm::StreamPriorities).zip(ours(pair));
        both.is_some_and(|(theirs, ours)| ours > theirs + (theirs * 3 / 100).max(BEHIND))
    };
    let has_priorities = pairs.iter().any(|pair| pair.urgent(Arm::StreamPriorities).is_some());
    let behind = has_priorities.then(|| pairs.iter().filter(is_behind).count());
    let mean_speedup = mean(&speedups);
    json!({
        "pairs": figure_8().count(),
        "mean_speedup": mean_speedup,
        "best_speedup": speedups.iter().copied().reduce(f64::max),
        "mean_speedup_all_preemptible": mean(&preemptible),
        "mean_ceiling": mean(&ceilings),
        "best_ceiling": ceilings.iter().copied().reduce(f64::max),
        "mean_over_ceiling": mean_speedup.zip(mean(&ceilings)).map(|(ours, best)| ours / best),
        "worst_vs_stream_priority": figure_8().filter_map(by_priority).reduce(f64::min),
        "mean_vs_stream_priority": geometric_mean(figure_8().map(by_priority)),
        "rows_behind_stream_priority": behind,
        "mid_run_over_ceiling": mid_run_means[0].zip(mid_run_means[1]).map(|(ours, best)| ours / best),
        "mid_run_vs_stream_priority": geometric_mean(mid_run().map(by_priority)),
    })
}

fn rows(pairs: &[Pair]) -> Rows {
    let mut rows = Rows::below([
        "low priority",
        "high priority",
        "arm",
        "delay / low alone",
        "high p50",
        "high p99",
        "low p50",
        "faster than plain streams",
        "yields",
    ]);
    for pair in pairs {
        for (arm, times, urgent, yields) in pair.lines() {
            let jobs = times.map(|times| &times.jobs);
            let speedup = pair.speedup(Some(urgent));
            let high_p99 = jobs.and_then(|jobs| Some(jobs.get(1)?.summary().p99));
            let low = match arm {
                "alone" => Some(pair.alone[0].p50()),
                _ => jobs.and_then(|jobs| Some(jobs.first()?.p50())),
            };
            let cells = line([
                pair.names[0],
                pair.names[1],
                arm,
                &digits(pair.delay),
                &show(urgent),
                &show_time(high_p99),
                &show_time(low),
                &show_ratio(speedup),
                &yields.to_string(),
            ]);
            let json = json!({
                "low": pair.names[0],
                "high": pair.names[1],
                "arm": arm,
                "delay_over_low_alone": pair.delay,
                "samples": pair.alone[0].len(),
                "high_p50_us": microseconds(urgent),
                "high_p99_us": high_p99.map(microseconds),
                "low_p50_us": low.map(microseconds),
                "speedup": speedup,
                "yields": yields,
            });
            rows.push(cells, json);
        }
    }
    rows
}

fn outcome(pairs: &[Pair], tally: Tally) -> Outcome {
    let summary = with_tally(summary(pairs), &tally);
    let Rows { table, json: rows } = rows(pairs);
    Outcome {
        about: format!(
            "From the submission of a short urgent program to its end, while a long one runs that was \
             submitted just before, or earlier. Without a delay it is {} times as fast as on plain streams in the \
             mean; with preemption that costs nothing it would be {} times as fast.",
            show_number(summary["mean_speedup"].as_f64()),
            show_number(summary["mean_ceiling"].as_f64()),
        ),
        table,
        text_columns: 3,
        rows,
        summary,
        mistake: tally.mistake,
    }
}
