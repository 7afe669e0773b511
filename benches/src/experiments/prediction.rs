//! The errors of predicted durations: by a regression over runs with random inputs, and by online learning (FLEP figure
//! 7).

use std::time::Duration;

use anyhow::Result;
use preempt::policy::StaticPriority;
use preempt::predict::{Online, Predictor, Ridge, Run};
use preempt::{Call, Scheduler, Stream};
use preempt_report::microseconds;
use preempt_test_kit::Random;
use preempt_workloads::{Between, SCALABLE, Scalable, Size};
use serde_json::{Value, json};

use super::{Bench, Experiment, Outcome, line};
use crate::progress::Progress;
use crate::samples::{mean, show, show_percent};

/// Inputs of each program to train with, as many as in FLEP (section 4.2), and to test with.
const INPUTS: [usize; 2] = [100, 50];
/// The same with `--quick`.
const QUICK: [usize; 2] = [8, 4];

/// Launches with each input; the median is its duration.
const SAMPLES: usize = 3;

/// Time that `wait` spins.
const SPIN: Duration = Duration::from_millis(20);

struct Row {
    program: &'static str,
    inputs: [usize; 2],
    shortest: Duration,
    longest: Duration,
    ridge: Errors,
    online: Errors,
}

/// Relative errors of predictions.
#[derive(Clone, Copy, Default)]
struct Errors {
    mean: f64,
    most: f64,
}

/// The experiment `prediction`.
#[derive(Debug)]
pub struct Prediction;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
How far predicted durations of launches are from true ones, for random inputs (FLEP, figure 7).

The dominating launch of each of FLEP's eight programs with inputs of random sizes, evenly by the
logarithm, from small to full size (on the CPU device from a few block-tasks to reduced size). Each
input is launched three times after a first launch that does not count; the median is its duration.
Nothing else runs.

- inputs: those that are learned from, and those that are predicted after them: 100 and 50, as in
  FLEP (section 4.2).
- regression is `Ridge`, fitted once to the first ones. `online` is `Online`, as schedulers have it:
  it has learned from the first ones, too, and learns from each of the others after it has predicted
  it. A missing prediction has an error of 1.
- The `error` of a program is the mean distance of predicted durations from true ones, by the
  latter; `worst` is the largest distance. `mean_error` of the summary is the mean of the programs'
  errors by the regression, `online_mean_error` that of the others, `worst_program_error` the
  largest error of a program by the regression.
";

impl Experiment for Prediction {
    fn name(&self) -> &'static str {
        "prediction"
    }

    fn about(&self) -> &'static str {
        "The errors of predicted durations."
    }

    fn meaning(&self) -> &'static [&'static str] {
        &[MEANING]
    }

    fn run(&self, bench: &Bench) -> Result<Outcome> {
        run(bench)
    }
}

/// Measures every program whose size can vary.
fn run(bench: &Bench) -> Result<Outcome> {
    let names: Vec<_> = SCALABLE.iter().map(|program| program.name).collect();
    let asked = bench.programs_among(&names)?;
    let is_asked_for = |program: &&Scalable| asked.iter().any(|one| one.name == program.name);
    let programs: Vec<&Scalable> = SCALABLE.iter().filter(is_asked_for).collect();
    let scheduler = bench.spinning_scheduler(StaticPriority::new(), SPIN)?;
    let inputs = bench.amount(QUICK, INPUTS);
    let sizes = match bench.gpu {
        Some(_) => (Size::Small, Size::Large),
        None => (Size::Trivial, Size::Reduced),
    };
    let mut random = Random(bench.seed);
    let progress = Progress::new("inputs", (programs.len() * (inputs[0] + inputs[1])) as u64);
    let mut rows = Vec::new();
    for program in programs {
        let mut runs = Vec::new();
        for _ in 0..inputs[0] + inputs[1] {
            runs.push(measure(&scheduler, program, sizes, &mut random)?);
            progress.step();
        }
        rows.push(Row::of(program, inputs, &runs));
    }
    drop(progress);
    Ok(outcome(&rows))
}

fn outcome(rows: &[Row]) -> Outcome {
    let mean =
        |of: fn(&Row) -> Errors| mean(&rows.iter().map(|row| of(row).mean).collect::<Vec<_>>());
    let summary = json!({
        "programs": rows.len(),
        "mean_error": mean(|row| row.ridge),
        "online_mean_error": mean(|row| row.online),
        "worst_program_error": rows.iter().map(|row| row.ridge.mean).reduce(f64::max),
    });
    let mut table = vec![line([
        "program",
        "inputs",
        "shortest",
        "longest",
        "regression",
        "worst",
        "online",
        "worst",
    ])];
    table.extend(rows.iter().map(Row::line));
    Outcome {
        about: "The dominating launch of each program with inputs of random sizes; the error of predictions of its \
                duration, in the mean and at worst, for inputs after those that were learned from."
            .to_owned(),
        table,
        text_columns: 1,
        rows: rows.iter().map(Row::json).collect(),
        summary,
        mistake: None,
    }
}

/// The durations of a program's dominating launch with inputs of random size.
fn measure(
    scheduler: &Scheduler,
    program: &Scalable,
    (from, to): (Size, Size),
    random: &mut Random,
) -> Result<Run<'static>> {
    let share = f64::from(random.below(1 << 20)) / f64::from(1 << 20);
    let seed = random.below(1 << 20);
    let program = (program.build)(scheduler.into(), Between { from, to, share }, seed)?;
    let stream = scheduler.stream(0);
    launch(&stream, &program.setup)?;
    // The first launch warms caches up, and may load the kernel.
    let mut runs = Vec::new();
    for _ in 0..1 + SAMPLES {
        launch(&stream, &program.steps[..program.dominant])?;
        runs.extend(scheduler.profile([program.steps[program.dominant].clone()])?);
    }
    runs.remove(0);
    runs.sort_by_key(|run| run.took);
    Ok(runs[SAMPLES / 2])
}

fn launch(stream: &Stream, calls: &[Call<'static>]) -> Result<()> {
    for call in calls {
        stream.launch(call.clone())?.wait()?;
    }
    Ok(())
}

/// The errors of `predict`. A missing prediction has an error of 1.
fn errors(
    test: &[Run<'static>],
    mut predict: impl FnMut(&Run<'static>) -> Option<Duration>,
) -> Errors {
    let error = |run| {
        let predicted = predict(run).unwrap_or_default();
        predicted.abs_diff(run.took).as_secs_f64() / run.took.as_secs_f64().max(1e-9)
    };
    let errors: Vec<f64> = test.iter().map(error).collect();
    Errors {
        mean: mean(&errors).unwrap_or_default(),
        most: errors.iter().copied().fold(0.0, f64::max),
    }
}

impl Row {
    /// Learns from the first runs of the program, and predicts the others.
    fn of(program: &Scalable, inputs: [usize; 2], runs: &[Run<'static>]) -> Row {
        let (training, test) = runs.split_at(inputs[0]);
        let ridge = Ridge::train(training);
        let mut online = Online::new();
        for run in training {
            online.finished(&run.launch, run.took);
        }
        let took = || runs.iter().map(|run| run.took);
        Row {
            program: program.name,
            inputs,
            shortest: took().min().unwrap_or_default(),
            longest: took().max().unwrap_or_default(),
            ridge: errors(test, |run| ridge.predict(&run.launch)),
            online: errors(test, |run| {
                let predicted = online.predict(&run.launch);
                online.finished(&run.launch, run.took);
                predicted
            }),
        }
    }

    fn line(&self) -> Vec<String> {
        line([
            self.program,
            &format!("{} + {}", self.inputs[0], self.inputs[1]),
            &show(self.shortest),
            &show(self.longest),
            &show_percent(Some(self.ridge.mean)),
            &show_percent(Some(self.ridge.most)),
            &show_percent(Some(self.online.mean)),
            &show_percent(Some(self.online.most)),
        ])
    }

    fn json(&self) -> Value {
        json!({
            "program": self.program,
            "training_inputs": self.inputs[0],
            "test_inputs": self.inputs[1],
            "shortest_us": microseconds(self.shortest),
            "longest_us": microseconds(self.longest),
            "mean_error": self.ridge.mean,
            "max_error": self.ridge.most,
            "online_mean_error": self.online.mean,
            "online_max_error": self.online.most,
        })
    }
}
