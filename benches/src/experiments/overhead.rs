//! The cost of being preemptible for a kernel that is not preempted, on the CPU device: the dominating launch of each
//! program, preemptible and as a plain grid, through the scheduler. On a GPU see `cuda/overhead.rs`.

use std::time::{Duration, Instant};

use anyhow::Result;
use preempt::policy::StaticPriority;
use preempt::{Preemption, Stream};
use preempt_report::microseconds;
use preempt_workloads::{Program, Size};
use serde_json::{Value, json};

use super::{Bench, Experiment, Outcome, line};
use crate::progress::Progress;
use crate::samples::{Samples, geometric_mean, ratio, show};

/// Samples of each arm, and with `--quick`.
const SAMPLES: u32 = 15;
const QUICK: u32 = 2;

/// Time that `wait` spins.
const SPIN: Duration = Duration::from_millis(20);

struct Row {
    program: &'static str,
    tasks: u32,
    plain: Samples,
    preemptible: Samples,
    amortize: u32,
}

/// The experiment `overhead`.
#[derive(Debug)]
pub struct Overhead;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
The cost of being preemptible for the dominating launch of each program when it is not preempted
(FLEP, figure 17; EffiSha, figures 13 and 14). On a GPU with FLEP's loop and kernel slicing beside
it.

- time: the launch alone, between events; `done`: until the host knows, through the scheduler for
  the arms of preempt, by raw launches for the others. All to the plain entry's. On the CPU device
  there is only `done` of `preempt, all preemptible`.
- preempt: in the form that costs least where a more urgent stream may preempt, as by default
  (`Preemption::Auto`): `done` to that of plain grids through the scheduler. `is_plain` says which
  form was chosen at last; the first seven rounds teach the scheduler what each costs. So launches
  with long blocks are preemptible.
- preempt, all preemptible: with `Preemption::Preemptible`. Below, this one is meant by *ours*.
- preempt, by the proxy: preemptible, with `SignalPath::Proxy`, measured after the others beside
  plain launches of its own, because a scheduler has one path.
- FLEP's loop: FLEP's figure 4 as it stands, with a flag in the host's memory that every block
  reads, one atomic for each block-task, and the paper's factor (`workloads/flep/`).
- slices: the plain kernel in parts, two in flight (PKM), of the largest size that stops no later
  than ours (p50). Sizes are doubled, or halved where even slices that fill the device once stop
  later, as long as each halving makes the stop a tenth shorter.
- L: the amortizing factor that the launch reached, as its last block saw it. `longest task`: under
  the same load. `stop`: from the signal to the host's knowledge that all blocks are out; the floor,
  in the line above the table, is that of a kernel that looks at the signal every microsecond.
- registers, blocks/SM: as loaded, with the register bound that preempt sets where the preemptible
  entry would lose blocks.
- `geomean_ratio` and `max_ratio` are of `time` of ours. `geomean_ratio_default` is the mean of
  `preempt`, `max_ratio_plain_chosen` and `max_ratio_preemptible_chosen` the greatest of each form
  there. `pkm_minus_ours_points` compares `done` of slices and ours, in percent of plain;
  `stop_over_bound_max` is the worst median stop over floor + 10 µs + longest task.
- All arms' outputs are compared to the bit.
";

impl Experiment for Overhead {
    fn name(&self) -> &'static str {
        "overhead"
    }

    fn about(&self) -> &'static str {
        "The cost of being preemptible for a kernel that is not preempted."
    }

    fn meaning(&self) -> &'static [&'static str] {
        &[MEANING]
    }

    fn run(&self, bench: &Bench) -> Result<Outcome> {
        match bench.gpu {
            Some(gpu) => super::cuda::overhead::run(bench, gpu),
            None => run(bench),
        }
    }
}

/// Measures every program.
fn run(bench: &Bench) -> Result<Outcome> {
    let scheduler = bench.spinning_scheduler(StaticPriority::new(), SPIN)?;
    let samples = bench.amount(QUICK, SAMPLES);
    let stream = scheduler.stream(0);
    let progress = Progress::new("programs", bench.programs.len() as u64);
    let (mut rows, mut mistake) = (Vec::new(), None);
    for definition in &bench.programs {
        let program = (definition.build)((&scheduler).into(), Size::Reduced, bench.seed as u32)?;
        for call in &program.setup {
            stream.launch(call.clone())?.wait()?;
        }
        let tasks = program.steps[program.dominant].grid_dim().count() as u32;
        let (plain, preemptible) = Default::default();
        let mut row = Row { program: definition.name, tasks, plain, preemptible, amortize: 0 };
        for _ in 0..samples {
            row.plain.push(time(&program, &stream, Preemption::Plain)?.0);
            let (time, amortize) = time(&program, &stream, Preemption::Preemptible)?;
            row.preemptible.push(time);
            row.amortize = amortize;
        }
        for call in &program.steps[program.dominant + 1..] {
            stream.launch(call.clone())?.wait()?;
        }
        for output in &program.outputs {
            let wrong = output.mistake(&output.download(&stream)?, &output.reference());
            mistake = mistake.or(wrong.map(|wrong| format!("{}: {wrong}", definition.name)));
        }
        rows.push(row);
        progress.step();
    }
    let ratios = || rows.iter().map(Row::ratio);
    let summary = json!({
        "kernels": rows.len(),
        "geomean_ratio": geometric_mean(ratios()),
        "max_ratio": ratios().flatten().reduce(f64::max),
    });
    let mut table =
        vec![line(["program", "block-tasks", "plain p50", "preemptible p50", "ratio", "L"])];
    table.extend(rows.iter().map(Row::line));
    Ok(Outcome {
        about: "The dominating launch of each program, reduced, from the launch to the return of `wait`."
            .to_owned(),
        table,
        text_columns: 1,
        rows: rows.iter().map(Row::json).collect(),
        summary,
        mistake,
    })
}

/// The time of the dominating launch, and its amortizing factor.
fn time(program: &Program, stream: &Stream, preemption: Preemption) -> Result<(Duration, u32)> {
    for call in &program.steps[..program.dominant] {
        stream.launch(call.clone())?.wait()?;
    }
    let call = program.steps[program.dominant].clone().preemption(preemption);
    let start = Instant::now();
    let report = stream.launch(call)?.wait()?;
    Ok((start.elapsed(), report.amortize))
}

impl Row {
    fn ratio(&self) -> Option<f64> {
        ratio(self.preemptible.p50(), self.plain.p50())
    }

    fn line(&self) -> Vec<String> {
        line([
            self.program,
            &self.tasks.to_string(),
            &show(self.plain.p50()),
            &show(self.preemptible.p50()),
            &self.ratio().map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}")),
            &self.amortize.to_string(),
        ])
    }

    fn json(&self) -> Value {
        json!({
            "program": self.program,
            "block_tasks": self.tasks,
            "samples": self.preemptible.len(),
            "plain_p50_us": microseconds(self.plain.p50()),
            "p50_us": microseconds(self.preemptible.p50()),
            "p50_to_plain": self.ratio(),
            "amortize": self.amortize,
        })
    }
}
