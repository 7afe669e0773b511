//! Short urgent programs beside long ones (FLEP figures 8 and 9).

use std::time::Duration;

use anyhow::{Result, ensure};
use preempt::policy::{Hpf, Policy};
use preempt_programs::{Definition, Size};
use preempt_record::{digits, microseconds};
use serde_json::{Value, json};

use super::corun::{Arm, Cast, FLEP, Job, Stage, Turnarounds, ceiling, mean};
use super::{Bench, Outcome, line};
use crate::progress::Progress;
use crate::samples::{Samples, geometric_mean, ratio, show, show_ratio};

/// Those that run on the large input, with a low priority.
pub(super) const VICTIMS: [&str; 4] = ["CFD", "NN", "PF", "PL"];

/// Samples of each arm, and with `--quick`.
const SAMPLES: u32 = 15;
const QUICK_SAMPLES: u32 = 1;

/// When the urgent program comes, as shares of the victim's time alone (figure 9). The first one is that of the
/// 28 pairs (figure 8), at once.
pub(super) const DELAYS: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.1];

/// `Hpf` among the stage's policies.
const HPF: usize = 1;

/// What the summary is about: nobody preempts what is most urgent, so that need not be preemptible.
const BEST: Arm = Arm::UrgentNative(HPF);

const ARMS: [Arm; 4] = [Arm::PlainStreams, Arm::StreamPriorities, Arm::Ours(HPF), BEST];

/// A victim and an urgent program, with one delay between them.
struct Pair {
    names: [&'static str; 2],
    delay: f64,
    /// The victim, and the urgent program, each alone.
    alone: [Samples; 2],
    arms: Vec<(Arm, Turnarounds, u64)>,
    /// The urgent program's, where preemption is free.
    ceiling: Duration,
}

/// Measures all pairs.
pub fn run(bench: &Bench) -> Result<Outcome> {
    let hpf = || Box::new(Hpf::by_stream()) as Box<dyn Policy>;
    let mut stage = Stage::new(bench, vec![hpf()])?;
    let is_victim = |definition: &&Definition| VICTIMS.contains(&definition.name);
    let victims: Vec<_> = bench.programs.iter().copied().filter(is_victim).collect();
    ensure!(!victims.is_empty(), "`--program` names no victim; they are {}", VICTIMS.join(", "));
    let [long, short] = bench.sizes();
    let samples = if bench.quick { QUICK_SAMPLES } else { SAMPLES };
    let seed = bench.seed as u32;
    let mut casts = Vec::new();
    for definition in FLEP.into_iter().filter_map(preempt_programs::find) {
        casts.push(Cast::new(&stage.scheduler, definition, short, seed)?);
    }
    let mut pairs = Vec::new();
    let progress = Progress::new("pairs", (victims.len() * (casts.len() - 1)) as u64);
    for victim in victims {
        // One at a time: they take gigabytes.
        casts.push(Cast::new(&stage.scheduler, victim, long, seed)?);
        let low = casts.len() - 1;
        for high in 0..low {
            if casts[high].name == victim.name {
                continue;
            }
            // The sweep is over one urgent program for each victim.
            let sweeps = casts[high].name == sweep_partner(victim.name);
            let delays = if sweeps { &DELAYS[..] } else { &DELAYS[..1] };
            for &delay in delays {
                pairs.push(pair(&mut stage, &casts, [low, high], delay, samples, hpf)?);
            }
            progress.step();
        }
        casts.pop();
    }
    stage.scheduler.synchronize()?;
    Ok(outcome(&pairs, stage))
}

/// With whom the delay is swept.
pub(super) fn sweep_partner(victim: &str) -> &'static str {
    if victim == "PF" { "SPMV" } else { "MM" }
}

fn pair(
    stage: &mut Stage,
    casts: &[Cast],
    [low, high]: [usize; 2],
    delay: f64,
    samples: u32,
    policy: impl Fn() -> Box<dyn Policy>,
) -> Result<Pair> {
    let mut alone = [Samples::default(), Samples::default()];
    let mut arms: Vec<_> = ARMS
        .into_iter()
        .filter(|arm| stage.has(*arm))
        .map(|arm| (arm, Turnarounds::default(), 0))
        .collect();
    for round in 0..=samples {
        for (samples, cast) in alone.iter_mut().zip([low, high]) {
            let job = Job { cast, at: Duration::ZERO, priority: 0 };
            let played = stage.play(Arm::PlainStreams, casts, &[job])?;
            samples.extend(played.turnaround.first().copied().filter(|_| round > 0));
        }
        let at = alone[0].p50().mul_f64(delay);
        let jobs = [
            Job { cast: low, at: Duration::ZERO, priority: 0 },
            Job { cast: high, at, priority: 1 },
        ];
        for (arm, times, yields) in &mut arms {
            let played = stage.play(*arm, casts, &jobs)?;
            // The first round warms up, and teaches the scheduler how long the launches take.
            if round > 0 {
                times.push(&played.turnaround, played.makespan);
                *yields += played.yields;
            }
        }
    }
    let [long, short] = [alone[0].p50(), alone[1].p50()];
    let at = long.mul_f64(delay);
    let free = ceiling(policy(), &[(Duration::ZERO, long, 0), (at, short, 1)])?;
    let names = [casts[low].name, casts[high].name];
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

fn outcome(pairs: &[Pair], stage: Stage) -> Outcome {
    let figure_8 = || pairs.iter().filter(|pair| pair.delay == 0.0);
    let ours = |pair: &Pair| pair.urgent(BEST);
    let preemptible: Vec<f64> =
        figure_8().filter_map(|pair| pair.speedup(pair.urgent(Arm::Ours(HPF)))).collect();
    let speedups: Vec<f64> = figure_8().filter_map(|pair| pair.speedup(ours(pair))).collect();
    let ceilings: Vec<f64> =
        figure_8().filter_map(|pair| pair.speedup(Some(pair.ceiling))).collect();
    let by_priority = || {
        figure_8()
            .map(|pair| ratio(pair.urgent(Arm::StreamPriorities)?, ours(pair)?))
            .collect::<Vec<_>>()
    };
    let mean_speedup = mean(&speedups);
    let summary = json!({
        "pairs": figure_8().count(),
        "mean_speedup": mean_speedup,
        "best_speedup": speedups.iter().copied().reduce(f64::max),
        "mean_speedup_all_preemptible": mean(&preemptible),
        "mean_ceiling": mean(&ceilings),
        "best_ceiling": ceilings.iter().copied().reduce(f64::max),
        "mean_over_ceiling": mean_speedup.zip(mean(&ceilings)).map(|(ours, best)| ours / best),
        "worst_vs_stream_priority": by_priority().into_iter().flatten().reduce(f64::min),
        "mean_vs_stream_priority": geometric_mean(by_priority().into_iter()),
        "kernels": stage.tally.kernels,
        "block_tasks": stage.tally.block_tasks,
        "lost": stage.tally.lost,
        "repeated": stage.tally.repeated,
    });
    let mut table = vec![line([
        "low priority",
        "high priority",
        "arm",
        "delay / low alone",
        "high p50",
        "high p99",
        "low p50",
        "faster than plain streams",
        "yields",
    ])];
    let mut rows: Vec<Value> = Vec::new();
    for pair in pairs {
        for (arm, times, urgent, yields) in pair.lines() {
            let jobs = times.map(|times| &times.jobs);
            let speedup = pair.speedup(Some(urgent));
            let high_p99 = jobs.and_then(|jobs| Some(jobs.get(1)?.summary().p99));
            let low = match arm {
                "alone" => Some(pair.alone[0].p50()),
                _ => jobs.and_then(|jobs| Some(jobs.first()?.p50())),
            };
            let told = |time: Option<Duration>| time.map_or("-".to_owned(), show);
            table.push(line([
                pair.names[0],
                pair.names[1],
                arm,
                &digits(pair.delay),
                &show(urgent),
                &told(high_p99),
                &told(low),
                &show_ratio(speedup),
                &yields.to_string(),
            ]));
            rows.push(json!({
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
            }));
        }
    }
    Outcome {
        about: format!(
            "From the submission of a short urgent program to its end, while a long one runs that was \
             submitted just before, or earlier. Without a delay it is {} times as fast as on plain streams in the \
             mean; with preemption that costs nothing it would be {} times as fast.",
            mean_speedup.map_or("-".into(), digits),
            mean(&ceilings).map_or("-".into(), digits),
        ),
        table,
        text_columns: 3,
        rows,
        summary,
        mistake: stage.tally.mistake,
    }
}

impl Bench {
    /// The sizes of long and of short programs.
    pub(super) fn sizes(&self) -> [Size; 2] {
        match (self.gpu.is_some(), self.quick) {
            (false, _) => [Size::Reduced; 2],
            (true, true) => [Size::Small; 2],
            (true, false) => [Size::Large, Size::Small],
        }
    }
}
