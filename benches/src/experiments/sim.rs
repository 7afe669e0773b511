//! Pairs of programs that ran under a policy: their decisions replayed, and their turnarounds simulated.

use std::time::Duration;

use anyhow::Result;
use preempt::LaunchReport;
use preempt::policy::Hpf;
use preempt::recording::Replay;
use preempt::sim::{Costs, Machine};
use preempt_report::{digits, microseconds};
use serde_json::{Value, json};

use super::corun::{self, Arm, Completed, DeviceTestbed, Job, Simulated, Testbed, row, simulate};
use super::{Bench, Experiment, FLEP, LONG, Outcome, Rows, antt, line, priority, with_tally};
use crate::progress::Progress;
use crate::samples::{Samples, mean, show, show_percent};
use model::launch_models;
use watch::{LaunchNotes, Note, Watch};

mod model;
mod watch;

/// Samples of each pair, and with `--quick`.
const SAMPLES: u32 = 7;
const QUICK_SAMPLES: u32 = 2;

/// The testbed's only policy. Launches are preemptible, so that their times are those of one form.
const OURS: Arm = Arm::AllPreemptible(0);

/// Two programs that run at the same time.
#[derive(Clone, Copy)]
struct Case {
    /// The long program, which is submitted first, and the short one.
    members: [usize; 2],
    /// Arrival of the second program, as a share of the first one's time alone.
    delay: f64,
    priorities: [i32; 2],
}

/// The measured and the simulated results of a pair.
struct Pair {
    names: [&'static str; 2],
    case: Case,
    alone: [Duration; 2],
    measured: [Samples; 2],
    yields: u64,
    simulated: Simulated,
    /// Simulated turnaround of each program alone.
    simulated_alone: [Duration; 2],
    /// The simulation in which only work takes time.
    free: Simulated,
}

/// The experiment `sim`.
#[derive(Debug)]
pub struct Sim;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
The pairs of `priority`, and those of `antt`: the decisions are replayed from their recording, and
the simulator says how long the programs should have taken.

One scheduler with `Hpf::by_stream` and `recording(true)` runs everything, with all launches
preemptible. `first` is the long program, `second` the short one: pairs with `low, high` priorities
are those of `priority`, pairs of `equal` ones those of `antt`.

- Replay: at the end, the recording of the whole run is replayed to an engine with a new
  `Hpf::by_stream`. `replays_identical` is whether it decided the same from the first to the last of
  `decisions` plans; if not, the suite fails and prints the first difference.
- simulated: the turnaround of the same programs in `preempt::sim`, submitted as far apart as they
  were in the median. Each launch of a program is a launch there, too, as long as in the program's
  run alone with the median turnaround: `done` less `started` of the first one, less what launching
  costs; from one `done` to the next for the others, less what it costs to follow (`LaunchReport`).
  Nothing of the pair's own times is used but the yield overheads.
- Costs: `launch_us`, `follow_us` and `decision_us` were measured in this run, by 200 single
  launches and 20 streams of an empty kernel, and by `Stats::decisions`; `report_us`, and the time of
  a call, are those of `Costs::h200`, and 0 on the CPU device. A launch takes as long to stop as the scheduler expects it
  to, which is the mean of its kernel's last yields, or twice `Costs::stop` before the first, and repeats as much
  work as the scheduler expects to be requeued at yield points (`DeviceView::requeued`; together
  they are `yield_overhead`).
- error of a pair: the distance of the simulated mean turnaround of its two programs from that of
  their medians, by the latter. `mean_turnaround_error` is the mean over the pairs,
  `max_turnaround_error` the largest, and `mean_turnaround_error_if_free` the first with
  `Costs::free`. `mean_error_alone` is of each program alone, where the simulator's only error is
  what the costs leave out.
- `yields` are the mean of the samples.
- Rows with `program` are of programs alone, long and short: all that `--program` names, FLEP's or
  not. `launches` has, of each launch, the kernel, its duration in microseconds without the cost of
  launching, its block-tasks, and how many blocks an SM holds as far as the launch does not fill the
  device. `--device sim` takes such rows from `results/sim-h200.json`, so a new one of those has to
  be of all programs.
- The model has no memory bandwidth, no waves of blocks, and no second program on an SM. On the CPU
  device, SMs share processors with each other and with the submitting thread, and block-tasks of
  milliseconds count as if they could be split: the error means nothing there. The replay means the
  same.
";

impl Experiment for Sim {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn about(&self) -> &'static str {
        "Pairs of programs: measured, their decisions replayed, and simulated."
    }

    fn meaning(&self) -> &'static [&'static str] {
        &[MEANING, corun::MEANING]
    }

    fn run(&self, bench: &Bench) -> Result<Outcome> {
        run(bench)
    }
}

/// Measures, simulates, and replays.
fn run(bench: &Bench) -> Result<Outcome> {
    let longs = bench.programs_among(&FLEP)?;
    let (policy, notes) = Watch::new(Hpf::by_stream());
    let mut testbed = DeviceTestbed::recording(bench, policy)?;
    let costs = model::costs(&mut testbed, bench.gpu.is_some())?;
    let [long, short] = bench.sizes();
    let samples = bench.amount(QUICK_SAMPLES, SAMPLES);
    testbed.add_flep(short)?;
    let mut pairs = Vec::new();
    let progress = Progress::new("long programs", longs.len() as u64);
    for definition in longs {
        // One at a time, because their buffers take gigabytes.
        let first = testbed.add(definition, long)?;
        for case in cases(&testbed, first, bench.quick) {
            pairs.push(pair(&mut testbed, &notes, case, samples, costs)?);
        }
        testbed.remove_last();
        progress.step();
    }
    drop(progress);
    let programs = programs(bench, &mut testbed, &notes, samples, costs)?;
    testbed.scheduler.synchronize()?;
    outcome(&pairs, programs, testbed, costs)
}

/// The pairs of `priority` and of `antt` in which `first` is the long program.
fn cases(testbed: &DeviceTestbed, first: usize, quick: bool) -> Vec<Case> {
    let long = testbed.programs()[first].name;
    let mut cases = Vec::new();
    for (other, short) in testbed.programs()[..first].iter().enumerate() {
        if short.name == long {
            continue;
        }
        let members = [first, other];
        if LONG.contains(&long) {
            let delays = priority::delays(long, short.name);
            let delays = delays.iter().take(if quick { 1 } else { delays.len() });
            cases.extend(delays.map(|&delay| Case { members, delay, priorities: [0, 1] }));
        }
        if antt::SHORT.contains(&short.name) {
            cases.push(Case { members, delay: 0.0, priorities: [0; 2] });
        }
    }
    cases
}

/// A run of a program alone.
struct Alone {
    turnaround: Duration,
    reports: Vec<LaunchReport>,
}

/// A program alone: its line of the table, and its row with all launches.
type Program = (Vec<String>, Value);

/// Measures the launches of all programs, long and short, for simulations without a device.
fn programs(
    bench: &Bench,
    testbed: &mut DeviceTestbed,
    notes: &LaunchNotes,
    samples: u32,
    costs: Costs,
) -> Result<Vec<Program>> {
    let sms = testbed.scheduler.device().properties().sms;
    let mut sizes = bench.sizes().to_vec();
    sizes.dedup();
    let mut rows = Vec::new();
    let progress = Progress::new("programs alone", bench.programs.len() as u64);
    for definition in &bench.programs {
        for &size in &sizes {
            let program = testbed.add(definition, size)?;
            let (mut runs, mut seen) = (Vec::new(), Vec::new());
            for round in 0..=samples {
                notes.take();
                let completed = testbed.run_jobs(OURS, &[Job::now(program)])?;
                // The first round warms up.
                if round > 0 {
                    let is_its =
                        |note: &Note| completed.runs.iter().any(|run| run.stream == note.stream);
                    seen.extend(notes.take().into_iter().filter(is_its));
                    runs.extend(only(completed));
                }
            }
            runs.sort_by_key(|run| run.turnaround);
            if let Some(Alone { turnaround, reports }) = median(&runs) {
                let launches =
                    launch_models(testbed.programs()[program].steps(), reports, &seen, &costs, sms);
                let count = format!("{} launches", launches.len());
                let mut cells = line([definition.name, "-", "alone", &count, &show(*turnaround)]);
                cells.resize(HEADINGS.len(), "-".to_owned());
                rows.push((cells, row(definition.name, size, *turnaround, &launches)));
            }
            testbed.remove_last();
        }
        progress.step();
    }
    Ok(rows)
}

fn pair(
    testbed: &mut DeviceTestbed,
    notes: &LaunchNotes,
    case: Case,
    samples: u32,
    costs: Costs,
) -> Result<Pair> {
    let Case { members, delay, priorities } = case;
    let mut alone: [Vec<Alone>; 2] = Default::default();
    let mut measured: [Samples; 2] = Default::default();
    let mut apart = Samples::default();
    let (mut yields, mut seen) = (0, [Vec::new(), Vec::new()]);
    for round in 0..=samples {
        for (alone, program) in alone.iter_mut().zip(members) {
            // The first round warms up, and teaches the scheduler how long the launches take.
            if round == 1 {
                alone.clear();
            }
            alone.extend(only(testbed.run_jobs(OURS, &[Job::now(program)])?));
            alone.sort_by_key(|run| run.turnaround);
        }
        let at = median(&alone[0]).map_or(Duration::ZERO, |run| run.turnaround.mul_f64(delay));
        let jobs = [0, 1].map(|member| Job {
            at: if member == 0 { Duration::ZERO } else { at },
            priority: priorities[member],
            ..Job::now(members[member])
        });
        notes.take();
        let completed = testbed.run_jobs(OURS, &jobs)?;
        if round == 0 {
            continue;
        }
        measured.iter_mut().zip(&completed.turnaround).for_each(|(all, &time)| all.push(time));
        yields += completed.yields;
        let queued = |run: usize| Some(completed.runs.get(run)?.reports.first()?.queued);
        apart.extend(queued(1).zip(queued(0)).map(|(second, first)| second - first));
        let notes: Vec<Note> = notes.take();
        for (seen, run) in seen.iter_mut().zip(&completed.runs) {
            seen.extend(notes.iter().filter(|note| note.stream == run.stream).copied());
        }
    }
    let sms = testbed.scheduler.device().properties().sms;
    let [first, second] = [0, 1].map(|member| {
        let reports = median(&alone[member]).map_or(&[][..], |run| &run.reports);
        launch_models(
            testbed.programs()[members[member]].steps(),
            reports,
            &seen[member],
            &costs,
            sms,
        )
    });
    let simulate_with = |costs: Costs| {
        let programs = [
            (&first[..], Duration::ZERO, priorities[0]),
            (&second[..], apart.p50(), priorities[1]),
        ];
        simulate(Machine::new(sms, costs), Box::new(Hpf::by_stream()), &programs)
    };
    let simulate_alone = |models: &[_]| {
        let machine = Machine::new(sms, costs);
        let programs = [(models, Duration::ZERO, 0)];
        let found = simulate(machine, Box::new(Hpf::by_stream()), &programs)?;
        Ok::<_, anyhow::Error>(found.turnaround[0])
    };
    Ok(Pair {
        names: members.map(|program| testbed.programs()[program].name),
        case,
        alone: [0, 1]
            .map(|member| median(&alone[member]).map_or(Duration::ZERO, |run| run.turnaround)),
        measured,
        yields,
        simulated: simulate_with(costs)?,
        simulated_alone: [simulate_alone(&first)?, simulate_alone(&second)?],
        free: simulate_with(Costs::free())?,
    })
}

/// The run of the only job.
fn only(completed: Completed) -> Option<Alone> {
    let (turnaround, run) = completed.turnaround.into_iter().zip(completed.runs).next()?;
    Some(Alone { turnaround, reports: run.reports })
}

/// The median of sorted runs.
fn median(sorted: &[Alone]) -> Option<&Alone> {
    sorted.get(sorted.len().saturating_sub(1) / 2)
}

/// The relative distance of `found` from `truth`.
fn error(found: Duration, truth: Duration) -> Option<f64> {
    let (found, truth) = (found.as_secs_f64(), truth.as_secs_f64());
    (truth > 0.0).then(|| (found - truth).abs() / truth)
}

/// The mean over both programs.
fn mean_of(times: &[Duration]) -> Duration {
    times.iter().sum::<Duration>() / times.len().max(1) as u32
}

impl Pair {
    /// The median turnarounds.
    fn measured(&self) -> [Duration; 2] {
        [self.measured[0].p50(), self.measured[1].p50()]
    }

    /// The relative error of the mean turnaround.
    fn error(&self, found: &Simulated) -> Option<f64> {
        error(mean_of(&found.turnaround), mean_of(&self.measured()))
    }
}

const HEADINGS: [&str; 11] = [
    "first",
    "second",
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

/// The summary of the pairs and their costs, by its keys.
fn summary(pairs: &[Pair], costs: Costs, replay: &Replay) -> Value {
    let errors: Vec<f64> = pairs.iter().filter_map(|pair| pair.error(&pair.simulated)).collect();
    let free: Vec<f64> = pairs.iter().filter_map(|pair| pair.error(&pair.free)).collect();
    let alone = |pair: &Pair| {
        let each = pair.simulated_alone.into_iter().zip(pair.alone);
        each.filter_map(|(found, truth)| error(found, truth)).collect::<Vec<_>>()
    };
    let alone: Vec<f64> = pairs.iter().flat_map(alone).collect();
    json!({
        "pairs": pairs.len(),
        "mean_turnaround_error": mean(&errors),
        "max_turnaround_error": errors.iter().copied().reduce(f64::max),
        "mean_turnaround_error_if_free": mean(&free),
        "mean_error_alone": mean(&alone),
        "replays_identical": replay.is_identical(),
        "decisions": replay.plans,
        "launch_us": microseconds(costs.launch),
        "follow_us": microseconds(costs.follow),
        "report_us": microseconds(costs.report),
        "decision_us": microseconds(costs.decision),
    })
}

fn rows(pairs: &[Pair]) -> Rows {
    let mut rows = Rows::below(HEADINGS);
    for pair in pairs {
        let Pair { names, case, alone, yields, simulated, free, .. } = pair;
        let [first, second] = pair.measured();
        let priorities =
            if case.priorities[0] == case.priorities[1] { "equal" } else { "low, high" };
        let samples = pair.measured[0].len();
        let mean_yields = *yields as f64 / samples.max(1) as f64;
        let cells = line([
            names[0],
            names[1],
            priorities,
            &digits(case.delay),
            &show(first),
            &show(simulated.turnaround[0]),
            &show(second),
            &show(simulated.turnaround[1]),
            &show_percent(pair.error(simulated)),
            &digits(mean_yields),
            &simulated.yields.to_string(),
        ]);
        let us =
            |times: &[Duration]| times.iter().map(|&time| microseconds(time)).collect::<Vec<_>>();
        let json = json!({
            "programs": names,
            "priorities": case.priorities,
            "delay_over_first_alone": case.delay,
            "samples": samples,
            "alone_p50_us": us(alone),
            "alone_simulated_us": us(&pair.simulated_alone),
            "turnaround_p50_us": us(&[first, second]),
            "turnaround_simulated_us": us(&simulated.turnaround),
            "turnaround_if_free_us": us(&free.turnaround),
            "mean_turnaround_error": pair.error(simulated),
            "yields_mean": mean_yields,
            "yields_simulated": simulated.yields,
        });
        rows.push(cells, json);
    }
    rows
}

fn outcome(
    pairs: &[Pair],
    programs: Vec<Program>,
    mut testbed: DeviceTestbed,
    costs: Costs,
) -> Result<Outcome> {
    let recording = testbed.scheduler.recording();
    let replay = recording.map(|recording| recording.replay(Hpf::by_stream())).transpose()?;
    let replay = replay.ok_or_else(|| anyhow::anyhow!("nothing was recorded"))?;
    if let Some(difference) = &replay.difference {
        let found = || format!("the replay decided otherwise: {difference}");
        testbed.tally.mistake.get_or_insert_with(found);
    }
    let summary = with_tally(summary(pairs, costs, &replay), &testbed.tally);
    let mut rows = rows(pairs);
    for (cells, row) in programs {
        rows.push(cells, row);
    }
    let is_identical = if replay.is_identical() { "the same" } else { "others" };
    Ok(Outcome {
        about: format!(
            "A long program and a short one under `Hpf`, measured and simulated, from their \
             launches alone and measured costs: mean turnarounds are off by {} in the mean. Of what the scheduler \
             was told, the engine made {is_identical} again: {} plans.",
            show_percent(summary["mean_turnaround_error"].as_f64()),
            replay.plans,
        ),
        table: rows.table,
        text_columns: 3,
        rows: rows.json,
        summary,
        mistake: testbed.tally.mistake,
    })
}
