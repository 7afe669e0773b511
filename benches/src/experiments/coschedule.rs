//! Which programs run two at a time: plans for drawn instances (Eyraud-Dubois and Bentes, HiPC 2020, figures 7 and 8),
//! and plans that are carried out.

use std::time::Duration;

use anyhow::{Result, ensure};
use preempt::coschedule::{Sharing, Speeds};
use preempt_report::microseconds;
use preempt_test_kit::Random;
use preempt_test_kit::storm::Tally;
use serde_json::{Value, json};

use super::corun;
use super::{Bench, Experiment, Outcome, Rows, line, with_tally};
use crate::samples::{
    Samples, geometric_mean, mean, show, show_number, show_percent, show_ratio, show_time,
};

mod drawn;
mod executed;

use drawn::{COSTS, Drawn, Figure6};
use executed::{ARMS, Amount, Measured};

/// Programs whose buffers are small enough for several copies of each.
const PROGRAMS: [&str; 10] =
    ["CFD", "PF", "PL", "MM", "BFS", "FFT", "MD5Hash", "NeuralNet", "Sort", "Stencil2D"];

/// Programs that take least on the CPU device, where memory is no limit.
const LIGHT: [&str; 8] = ["CFD", "NN", "VA", "BFS", "FFT", "Triad", "Stencil2D", "MD"];

/// Drawn instances: their tasks, and how many there are of each number of tasks.
const TASKS: [usize; 7] = [10, 20, 40, 60, 100, 150, 200];
const QUICK_TASKS: [usize; 2] = [10, 20];
const INSTANCES: usize = 15;
const QUICK_INSTANCES: usize = 3;

/// Tasks of the plans whose computation is timed, and of the one in the summary.
const TIMED: [usize; 6] = [50, 100, 200, 400, 700, MANY];
const QUICK_TIMED: [usize; 1] = [50];
const MANY: usize = 1000;
const TIMED_RUNS: usize = 3;

/// Instances that are carried out: their tasks, and how many there are of each number of tasks.
const EXECUTED: [usize; 3] = [5, 10, 20];
const EXECUTED_INSTANCES: usize = 3;
const SAMPLES: u32 = 5;

/// The least time that a task takes alone.
const TASK: Duration = Duration::from_millis(10);

/// Runs of each pair, as in the paper.
const RUNS: u32 = 5;

/// The experiment `coschedule`.
#[derive(Debug)]
pub struct Coschedule;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
Which programs run two at a time, for how long, and in which order (Eyraud-Dubois and Bentes,
Algorithms for Preemptive Co-scheduling of Kernels on GPUs, HiPC 2020).

Computed, the same on every device (figures 7 and 8): the speeds of 60 kernels are drawn after
figure 6. Half of the pairs cannot run together, and the speeds of the others are uniform. Times
alone lie over three orders of magnitude. 15 instances for each setting and number of tasks. `actual,
uniform`: a task is one run of a kernel; kernels are equally likely. `actual, weighted`: the
probability of a kernel is inverse to its time. `random duration`: 0 to 10 s. Rows with `speeds`
`drawn` have them.

Computed from what was measured: as many instances for each setting and number of tasks, with tasks
of the programs below, at their times alone and their speeds. `random duration`: 0 to twice the mean
time of the programs. Rows with `speeds` `measured` have them, and the same keys.

- `preemptions_per_task`: preemptions of an instance by its tasks. `.._worst`: the largest mean of the
  instances of one setting and number of tasks; `.._worst_mean`: the largest mean of all instances of
  a setting.
- `over_lp`: the makespan by the lower bound of the linear program, at most; `over_sequential`,
  `over_max_pair`: by that of one task after the other, and by MaxPair's, means.
- cost 20 %, 50 %: the GPU is idle at each preemption, for this part of the mean time of a task.
  `cost_20_over_sequential` is of the same plan with that added, `cost_20_planned_over_sequential`
  of the plan that `Planner::preemption_cost` makes, with its preemptions.
- In the summary, `preemptions_per_task_..` and `makespan_over_..` are of drawn speeds; with
  `measured_` before, of measured ones.
- `plan_p50_s`: the time to plan tasks of which any two have speeds of their own. `plan_s_n1000`:
  of 1,000 tasks.

Carried out: up to ten programs, at full size on a GPU (small with `--quick`). A task runs one of them
as often in a row as takes 10 ms alone (with `--quick` once). Their times alone and their speeds
beside each other are measured (`Execution::measure`): each pair, also a program beside itself, 5
times in each way of sharing, and the run with the median sum of both speeds counts. Rows with `way` have them: row i, column j is the speed of
program i beside program j, and `twins` of the first and the second of two tasks of one program. Then
programs are drawn for 5, 10 and 20 tasks, each with buffers of its own, and run in four arms:

- plan: that of `Planner`, at the mean cost of a preemption of the tasks' programs (`preemption_us`),
  as `Execution::preemption_seconds` says after the measurement. MaxPair: each task once, alone or
  beside another. sequential: one task after the other. All three are plans that `Execution` carries
  out, all launches preemptible.
- plain, one stream: raw launches of the plain entries in one stream; on the CPU device, plain grids
  under `Fifo`. No policy decides.
- `planned_us` is the makespan of the plan without the cost of its preemptions. `executed_p50_us` is
  the median from the first submission to the last end, of 5 runs in which the arms take turns.
  `preemptions` are those of the plan, and `executed_preemptions` those that the execution saw in its
  last run.
- `executed_over_plan`: executed makespan of the arm `plan` by the planned one;
  `executed_over_maxpair_executed`, `executed_over_sequential`, `executed_over_plain`: by the
  executed makespans of the other arms; all geometric means over the instances.
- Before each run the outputs are overwritten, and after it compared by a digest of all bits with
  those of an undisturbed run: if they differ, the suite fails.
- On the CPU device, 4 SMs with 2 blocks each share the processors of this machine, and eight light
  programs have trivial sizes: what runs beside each other there says little about a GPU.
- With `--device sim`, no pair shares SMs: the model has no programs side by side on one SM, and no
  memory bandwidth that programs share. A pair gains only where one of both cannot fill the GPU. Each
  is run once, because all runs would be the same.
";

impl Experiment for Coschedule {
    fn name(&self) -> &'static str {
        "coschedule"
    }

    fn about(&self) -> &'static str {
        "Which programs run two at a time: plans, and plans that are carried out."
    }

    fn meaning(&self) -> &'static [&'static str] {
        &[MEANING, corun::WITHOUT_A_DEVICE]
    }

    fn is_simulated(&self) -> bool {
        true
    }

    fn shape(&self, _processors: u32) -> (u32, u32) {
        // A quarter of the SMs is one, and two programs have room on each.
        (4, 2)
    }

    fn run(&self, bench: &Bench) -> Result<Outcome> {
        run(bench)
    }
}

/// Computes and measures.
fn run(bench: &Bench) -> Result<Outcome> {
    let is_cpu = bench.device.is_some() && bench.gpu.is_none();
    let names = if is_cpu { &LIGHT[..] } else { &PROGRAMS };
    let definitions = bench.programs_among(names)?;
    ensure!(definitions.len() > 1, "`--program` names less than two of {}", names.join(", "));
    // First, so that mistakes show early.
    let (measured, executed, tally) =
        executed::executed(bench, &definitions, &ways(bench), &amount(bench))?;
    let (tasks, instances) =
        (bench.amount(&QUICK_TASKS[..], &TASKS), bench.amount(QUICK_INSTANCES, INSTANCES));
    let mut random = Random(bench.seed);
    let figure_6 = Figure6::new(&mut random);
    let mut computed = Computed {
        drawn: drawn::drawn(&figure_6, &mut random, tasks, instances)?,
        measured: drawn::drawn(&measured, &mut Random(bench.seed), tasks, instances)?,
        timed: Vec::new(),
    };
    for &tasks in bench.amount(&QUICK_TIMED[..], &TIMED) {
        computed.timed.push((tasks, drawn::time_of_plan(bench.seed, tasks, TIMED_RUNS)?));
    }
    Ok(outcome(&computed, &measured, &executed, tally))
}

/// Plans that are not carried out.
struct Computed {
    /// At speeds after figure 6.
    drawn: Vec<Drawn>,
    /// Of the measured programs, at their speeds.
    measured: Vec<Drawn>,
    /// Tasks of a plan, and the time that it takes to compute.
    timed: Vec<(usize, Duration)>,
}

/// The ways in which pairs are measured.
fn ways(bench: &Bench) -> Vec<Sharing> {
    let all = match bench.quick {
        true => vec![Sharing::AllSms, Sharing::split(1, 2)],
        false => Sharing::COMMON.to_vec(),
    };
    let is_modelled = |way: &Sharing| bench.device.is_some() || *way != Sharing::AllSms;
    all.into_iter().filter(is_modelled).collect()
}

fn amount(bench: &Bench) -> Amount {
    Amount {
        task: bench.amount(Duration::ZERO, TASK),
        runs: bench.samples(1, RUNS),
        tasks: bench.amount(&EXECUTED[..1], &EXECUTED).to_vec(),
        instances: bench.amount(1, EXECUTED_INSTANCES),
        samples: bench.samples(1, SAMPLES),
    }
}

/// The mean of something of each instance.
fn mean_of<T>(instances: &[T], of: impl Fn(&T) -> f64) -> Option<f64> {
    mean(&instances.iter().map(of).collect::<Vec<_>>())
}

impl Drawn {
    fn preemptions(&self) -> Option<f64> {
        mean_of(&self.instances, |of| of.preemptions)
    }

    fn over_max_pair(&self) -> Option<f64> {
        mean_of(&self.instances, |of| of.makespan / of.max_pair)
    }

    fn over_lp(&self) -> Option<f64> {
        largest(self.instances.iter().map(|of| of.makespan / of.bound))
    }

    /// A row; `speeds` are `"drawn"` or `"measured"`.
    fn row(&self, speeds: &str) -> (Vec<String>, Value) {
        let over_sequential = |of: fn(&drawn::Instance) -> f64| {
            mean_of(&self.instances, |one| of(one) / one.sequential)
        };
        let makespan = over_sequential(|of| of.makespan);
        let cells = line([
            &format!("{speeds} S"),
            self.setting.name(),
            &self.tasks.to_string(),
            &format!("{} of sequential", show_ratio(makespan)),
            &format!("{} of MaxPair", show_ratio(self.over_max_pair())),
            &show_percent(self.preemptions()),
        ]);
        let mut row = json!({
            "speeds": speeds,
            "setting": self.setting.name(),
            "tasks": self.tasks,
            "preemptions_per_task":
                self.instances.iter().map(|of| of.preemptions).collect::<Vec<_>>(),
            "over_lp": self.over_lp(),
            "over_sequential": makespan,
            "max_pair_over_sequential": over_sequential(|of| of.max_pair),
            "over_max_pair": self.over_max_pair(),
        });
        for (cost, part) in COSTS.into_iter().enumerate() {
            for (which, key) in ["", "_planned"].into_iter().enumerate() {
                let over =
                    mean_of(&self.instances, |of| of.with_costs[cost][which] / of.sequential);
                row[format!("cost_{:.0}{key}_over_sequential", 100.0 * part)] = json!(over);
            }
        }
        (cells, row)
    }
}

fn largest(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.max_by(f64::total_cmp)
}

impl executed::Instance {
    fn planned(&self, arm: usize) -> Option<Duration> {
        let plan = self.arms[arm].plan.as_ref()?;
        Some(Duration::from_secs_f64(plan.makespan()))
    }

    fn executed(&self, arm: usize) -> Duration {
        self.arms[arm].makespan.p50()
    }
}

/// The mean of the instances of the setting with most preemptions.
fn worst_mean(drawn: &[Drawn]) -> Option<f64> {
    let of_setting = |setting| {
        let of = drawn.iter().filter(move |of| of.setting == setting);
        let all = of.flat_map(|of| of.instances.iter().map(|one| one.preemptions));
        mean(&all.collect::<Vec<_>>())
    };
    largest(drawn::Setting::ALL.into_iter().filter_map(of_setting))
}

fn all_instances(drawn: &[Drawn]) -> Vec<&drawn::Instance> {
    drawn.iter().flat_map(|of| &of.instances).collect()
}

/// The summary, by its keys.
fn summary(computed: &Computed, executed: &[executed::Instance]) -> Value {
    let Computed { drawn, measured, timed } = computed;
    let by_arm = |arm: usize| {
        geometric_mean(executed.iter().map(|of| {
            let other = of.executed(arm).as_secs_f64();
            Some(of.executed(0).as_secs_f64() / other)
        }))
    };
    let by_plan = executed.iter().map(|of| {
        let planned = of.planned(0)?;
        Some(of.executed(0).as_secs_f64() / planned.as_secs_f64())
    });
    let over_max_pair = |drawn| mean_of(&all_instances(drawn), |of| of.makespan / of.max_pair);
    let many = timed.iter().find(|(tasks, _)| *tasks == MANY);
    json!({
        "instances": all_instances(drawn).len(),
        "preemptions_per_task_worst": largest(drawn.iter().filter_map(Drawn::preemptions)),
        "preemptions_per_task_worst_mean": worst_mean(drawn),
        "makespan_over_lp": largest(drawn.iter().filter_map(Drawn::over_lp)),
        "makespan_over_maxpair_mean": over_max_pair(drawn),
        "measured_preemptions_per_task_worst_mean": worst_mean(measured),
        "measured_makespan_over_maxpair_mean": over_max_pair(measured),
        "plan_s_n1000": many.map(|(_, time)| time.as_secs_f64()),
        "executed_instances": executed.len(),
        "executed_over_plan": geometric_mean(by_plan),
        "executed_over_maxpair_executed": by_arm(1),
        "executed_over_sequential": by_arm(2),
        "executed_over_plain": by_arm(3),
    })
}

fn outcome(
    computed: &Computed,
    measured: &Measured,
    executed: &[executed::Instance],
    tally: Tally,
) -> Outcome {
    let mut rows = Rows::below(["what", "case", "tasks", "makespan", "planned", "preemptions"]);
    for (speeds, drawn) in [("drawn", &computed.drawn), ("measured", &computed.measured)] {
        for of in drawn {
            let (cells, json) = of.row(speeds);
            rows.push(cells, json);
        }
    }
    for &(tasks, time) in &computed.timed {
        let json = json!({ "timed_tasks": tasks, "plan_p50_s": time.as_secs_f64() });
        rows.push(line(["planning", "dense", &tasks.to_string(), "-", &show(time), "-"]), json);
    }
    push_speeds(&mut rows, measured);
    for (number, instance) in executed.iter().enumerate() {
        push_executed(&mut rows, measured, number, instance);
    }
    let summary = with_tally(summary(computed, executed), &tally);
    let percent = |key: &str| show_percent(summary[key].as_f64());
    let times = |key: &str| show_ratio(summary[key].as_f64());
    let about = format!(
        "Drawn instances: {} preemptions for each task in the worst setting, makespans {} of MaxPair's. Carried out: \
         makespans {} of the planned ones, {} of MaxPair's, {} of one program after the other.",
        percent("preemptions_per_task_worst_mean"),
        times("makespan_over_maxpair_mean"),
        times("executed_over_plan"),
        times("executed_over_maxpair_executed"),
        times("executed_over_sequential"),
    );
    let Rows { table, json: rows } = rows;
    Outcome { about, table, text_columns: 2, rows, summary, mistake: tally.mistake }
}

/// A row for each way of sharing, with all measured speeds.
fn push_speeds(rows: &mut Rows, measured: &Measured) {
    let Measured { programs, speeds, twins, .. } = measured;
    let all = 0..programs.len();
    for (way, sharing) in speeds.ways().enumerate() {
        let matrix: Vec<Vec<f64>> =
            all.clone().map(|i| all.clone().map(|j| speeds.speed(way, i, j)).collect()).collect();
        let of_twins: Vec<[f64; 2]> =
            twins.iter().map(|of: &Speeds| [of.speed(way, 0, 1), of.speed(way, 1, 0)]).collect();
        let gains = all.clone().flat_map(|i| (0..i).map(move |j| speeds.gain(way, i, j)));
        let gaining = gains.filter(|&gain| gain > 0.0).count();
        let count = programs.len().to_string();
        let cells = line([
            "speeds",
            &sharing.to_string(),
            &count,
            "-",
            &format!("{gaining} pairs gain"),
            "-",
        ]);
        let json = json!({
            "way": sharing.to_string(),
            "programs": programs.iter().map(|job| &*job.name).collect::<Vec<_>>(),
            "alone_us": programs.iter().map(|job| 1e6 * job.seconds).collect::<Vec<_>>(),
            "speeds": matrix,
            "twins": of_twins,
        });
        rows.push(cells, json);
    }
}

/// A row for each arm.
fn push_executed(rows: &mut Rows, measured: &Measured, number: usize, of: &executed::Instance) {
    let programs: Vec<&str> =
        of.of.iter().map(|&program| &*measured.programs[program].name).collect();
    for (arm, name) in ARMS.into_iter().enumerate() {
        let executed::Measurement { plan, makespan, preemptions } = &of.arms[arm];
        let planned = of.planned(arm);
        let in_plan = plan.as_ref().map(|plan| plan.preemptions());
        let cells = line([
            "carried out",
            name,
            &of.of.len().to_string(),
            &show(makespan.p50()),
            &show_time(planned),
            &show_number(preemptions.last().map(|&count| count as f64)),
        ]);
        let json = json!({
            "arm": name,
            "instance": number,
            "tasks": of.of.len(),
            "programs": programs,
            "samples": makespan.len(),
            "planned_us": planned.map(microseconds),
            "preemption_us": of.preemption * 1e6,
            "executed_p50_us": microseconds(Samples::p50(makespan)),
            "preemptions": in_plan,
            "executed_preemptions": preemptions.last(),
        });
        rows.push(cells, json);
    }
}
