//! Pairs of programs that ran under a policy: their decisions replayed, and their turnarounds simulated.

use std::time::Duration;

use anyhow::Result;
use preempt::policy::Hpf;
use preempt::sim::{Costs, KernelModel, Machine};
use preempt::{Call, LaunchReport};
use preempt_report::microseconds;
use preempt_test_kit::storm::Tally;
use serde_json::{Value, json};

use super::corun::{
    self, Arm, Completed, DeviceTestbed, Job, Launches, Rounds, Simulated, Testbed, row,
};
use super::{Bench, Experiment, FLEP, LONG, Outcome, Rows, antt, line, priority, with_tally};
use crate::progress::Progress;
use crate::samples::{Samples, mean, show, show_percent};
use model::{Runs, launch_models};
use pair::{Found, HEADINGS, Pair, error};
use watch::{LaunchNotes, Note, Watch};

pub(super) mod model;
mod pair;
pub(super) mod watch;

/// Samples of each pair, and with `--quick`.
const SAMPLES: u32 = 7;
const QUICK_SAMPLES: u32 = 2;

/// The arms, by the testbed's only policy.
const OURS: Arm = Arm::Ours(0);
const LOOPED: Arm = Arm::AllPreemptible(0);
const ARMS: [Arm; 2] = [OURS, LOOPED];

/// Programs alone run in this form, too.
const PLAIN: Arm = Arm::Reordered(0);

/// The priority of an idle stream, beside which a program alone takes the forms that it takes beside a more urgent one. No
/// program has as high a priority.
const RIVAL: i32 = 9;

/// Two programs that run at the same time.
#[derive(Clone, Copy)]
struct Case {
    /// The long program, which is submitted first, and the short one.
    members: [usize; 2],
    /// Arrival of the second program, as a share of the first one's time alone.
    delay: f64,
    priorities: [i32; 2],
}

/// The experiment `sim`.
#[derive(Debug)]
pub struct Sim;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
The pairs of `priority`, and those of `antt`: the decisions are replayed from their recording, and
the simulator says how long the programs should have taken.

One scheduler with `Hpf::by_stream` and `recording(true)` runs everything. The arms are `preempt` and
`preempt, all preemptible`. `first` is the long program, `second` the short one: pairs with
`low, high` priorities are those of `priority`, pairs of `equal` ones those of `antt`.

- Replay: at the end, the recording of the whole run is replayed to an engine with a new
  `Hpf::by_stream`. `replays_identical` is whether it decided the same from the first to the last of
  `decisions` plans; if not, the suite fails and prints the first difference.
- simulated: the turnaround of the same programs in `preempt::sim`, submitted as far apart as they
  were in the median. Each launch of a program is a launch there, too, as long in each form as in the
  program's run alone in that form with the median turnaround: `done` less `started` of the first
  one, less what launching costs; from one `done` to the next for the others, less what it costs to
  follow (`LaunchReport`). In the arm `preempt`, a launch is as long in the form that is chosen for
  it as in the program's run alone in the chosen forms, beside an idle stream that is more urgent.
  The form of a launch is chosen as the scheduler chooses it, by those times.
  Nothing of the pair's own times is used but the yield overheads.
- Costs: `launch_us`, `follow_us` and `decision_us` were measured in this run, by 200 single
  launches of an empty kernel, 20 streams of one of 20 µs, and `Stats::decisions`; `report_us`, and the time of
  a call, are those of `Costs::h200`, and 0 on the CPU device. A launch takes as long to stop as the scheduler expects it
  to, which is the mean of its kernel's last yields, or twice `Costs::stop` before the first, and repeats as much
  work as the scheduler expects to be requeued at yield points (`DeviceView::requeued`; together
  they are `yield_overhead`).
- error of a pair: the distance of the simulated mean turnaround of its two programs from that of
  their medians, by the latter. `mean_turnaround_error` is the mean over the pairs in the arm
  `preempt`, `max_turnaround_error` the largest, and `mean_turnaround_error_if_free` the first with
  `Costs::free`; `_priority` and `_antt` are of the pairs of one suite, `_all_preemptible` of the
  other arm. `mean_error_alone` is of each program alone in the worker loop, where the simulator's
  only error is what the costs leave out.
- `yields` are the mean of the samples.
- Rows with `program` are of programs alone, long and short: all that `--program` names, FLEP's or
  not. `launches` has, of each launch, the kernel, its duration in microseconds without the cost of
  launching, its block-tasks, how many blocks an SM holds as far as the launch does not fill the
  device, and as far as they are known the duration of the plain grid, the time to stop and the work
  that each SM does again then. `--device sim` takes such rows from `results/sim-gpu.json`, so a new
  one of those has to be of all programs.
- With `--device sim`, this suite simulates the pairs of that file again: the same launches, times of
  submission and costs, on the simulator as it is now.
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

    fn is_simulated(&self) -> bool {
        true
    }

    fn run(&self, bench: &Bench) -> Result<Outcome> {
        if bench.device.is_some() { run(bench) } else { again() }
    }
}

/// Measures, simulates, and replays.
fn run(bench: &Bench) -> Result<Outcome> {
    let longs = bench.programs_among(&FLEP)?;
    let (policy, notes) = Watch::new(Hpf::by_stream());
    let mut testbed = DeviceTestbed::recording(bench, policy)?;
    let costs = model::costs(&mut testbed, bench.gpu.is_some())?;
    let [long, short] = bench.sizes();
    let rounds = bench.rounds(QUICK_SAMPLES, SAMPLES);
    testbed.add_flep(short)?;
    let mut pairs = Vec::new();
    let progress = Progress::new("long programs", longs.len() as u64);
    for definition in longs {
        // One at a time, because their buffers take gigabytes.
        let first = testbed.add(definition, long)?;
        for case in cases(&testbed, first, bench.quick) {
            pairs.extend(pair(&mut testbed, &notes, case, rounds, costs)?);
        }
        testbed.remove_last();
        progress.step();
    }
    drop(progress);
    let programs = programs(bench, &mut testbed, &notes, rounds.samples, costs)?;
    testbed.scheduler.synchronize()?;
    let sms = testbed.scheduler.device().properties().sms;
    let simulated = pairs.into_iter().map(|pair| {
        let found = pair.simulate(sms, costs)?;
        Ok((pair, found))
    });
    outcome(&simulated.collect::<Result<Vec<_>>>()?, programs, testbed, costs)
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

/// Runs of a program alone: in each form, and in those that the scheduler chooses where there is a more urgent stream.
#[derive(Default)]
struct Forms {
    looped: Vec<Alone>,
    plain: Vec<Alone>,
    chosen: Vec<Alone>,
}

impl Forms {
    /// Runs a program alone once more in each form.
    fn run(&mut self, testbed: &mut DeviceTestbed, program: usize) -> Result<()> {
        let forms =
            [(LOOPED, &mut self.looped), (PLAIN, &mut self.plain), (OURS, &mut self.chosen)];
        for (form, runs) in forms {
            let _rival = (form == OURS).then(|| testbed.scheduler.stream(RIVAL));
            let Completed { turnaround, runs: done, .. } =
                testbed.run_jobs(form, &[Job::now(program)])?;
            let done = turnaround.into_iter().zip(done);
            runs.extend(done.map(|(turnaround, run)| Alone { turnaround, reports: run.reports }));
            runs.sort_by_key(|run| run.turnaround);
        }
        Ok(())
    }

    /// The launches of the run with the median turnaround in each form, and for the arm with the chosen forms of that in those.
    fn models(
        &self,
        arm: Arm,
        steps: &[Call<'static>],
        notes: &[Note],
        costs: &Costs,
        sms: u32,
    ) -> Vec<KernelModel> {
        let [looped, plain, chosen] = [&self.looped, &self.plain, &self.chosen]
            .map(|runs| median(runs).map_or(&[][..], |run| &run.reports));
        let chosen = if arm == OURS { chosen } else { &[] };
        launch_models(steps, Runs { looped, plain, chosen }, notes, costs, sms)
    }
}

/// The median of sorted runs.
fn median(sorted: &[Alone]) -> Option<&Alone> {
    sorted.get(sorted.len().saturating_sub(1) / 2)
}

/// The median turnaround of sorted runs.
fn time_of(sorted: &[Alone]) -> Duration {
    median(sorted).map_or(Duration::ZERO, |run| run.turnaround)
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
            notes.take();
            Forms::default().run(testbed, program)?;
            // The first round warms up.
            let mut forms = Forms::default();
            for _ in 0..samples {
                forms.run(testbed, program)?;
            }
            let steps = testbed.programs()[program].steps();
            let launches = forms.models(LOOPED, steps, &notes.take(), &costs, sms);
            let took = time_of(&forms.looped);
            let count = format!("{} launches", launches.len());
            let mut cells = line([definition.name, "-", "alone", &count, "-", &show(took)]);
            cells.resize(HEADINGS.len(), "-".to_owned());
            rows.push((cells, row(definition.name, size, took, &launches)));
            testbed.remove_last();
        }
        progress.step();
    }
    Ok(rows)
}

/// What is measured of a pair in an arm.
#[derive(Default)]
struct Measured {
    turnaround: [Samples; 2],
    apart: Samples,
    yields: u64,
    notes: [Vec<Note>; 2],
}

/// The pair in each arm.
fn pair(
    testbed: &mut DeviceTestbed,
    notes: &LaunchNotes,
    case: Case,
    rounds: Rounds,
    costs: Costs,
) -> Result<Vec<Pair>> {
    let Case { members, delay, priorities } = case;
    let mut alone: [Forms; 2] = Default::default();
    let mut arms = ARMS.map(|arm| (arm, Measured::default()));
    for round in 0..rounds.count() {
        // Earlier rounds warm up, and teach the scheduler how long the launches take, and what each form costs.
        if round == rounds.learning {
            alone = Default::default();
        }
        for (alone, program) in alone.iter_mut().zip(members) {
            alone.run(testbed, program)?;
        }
        let at = time_of(&alone[0].plain).mul_f64(delay);
        let jobs = [0, 1].map(|member| Job {
            at: if member == 0 { Duration::ZERO } else { at },
            priority: priorities[member],
            ..Job::now(members[member])
        });
        for (arm, measured) in &mut arms {
            notes.take();
            let completed = testbed.run_jobs(*arm, &jobs)?;
            if round >= rounds.learning {
                measured.take(completed, &notes.take());
            }
        }
    }
    let sms = testbed.scheduler.device().properties().sms;
    let pairs = arms.into_iter().map(|(arm, measured)| {
        let [first, second] = [0, 1].map(|member| {
            let steps = testbed.programs()[members[member]].steps();
            alone[member].models(arm, steps, &measured.notes[member], &costs, sms)
        });
        Pair {
            names: members.map(|program| testbed.programs()[program].name.to_owned()),
            arm,
            priorities,
            delay,
            apart: measured.apart.p50(),
            launches: [first, second],
            samples: measured.turnaround[0].len(),
            alone: alone.each_ref().map(|forms| match arm {
                LOOPED => time_of(&forms.looped),
                _ => time_of(&forms.plain),
            }),
            turnaround: measured.turnaround.each_ref().map(Samples::p50),
            mean_yields: measured.yields as f64 / rounds.samples.max(1) as f64,
        }
    });
    Ok(pairs.collect())
}

impl Measured {
    fn take(&mut self, completed: Completed, notes: &[Note]) {
        self.turnaround
            .iter_mut()
            .zip(&completed.turnaround)
            .for_each(|(all, &time)| all.push(time));
        self.yields += completed.yields;
        let queued = |run: usize| Some(completed.runs.get(run)?.reports.first()?.queued);
        self.apart.extend(queued(1).zip(queued(0)).map(|(second, first)| second - first));
        for (seen, run) in self.notes.iter_mut().zip(&completed.runs) {
            seen.extend(notes.iter().filter(|note| note.stream == run.stream).copied());
        }
    }
}

/// The summary of the pairs and their costs, by its keys.
fn summary(pairs: &[(Pair, Found)], costs: Costs) -> Value {
    let of = |arm: Arm| pairs.iter().filter(move |(pair, _)| pair.arm == arm);
    let errors = |arm, found: fn(&Found) -> &Simulated| {
        let errors = of(arm).filter_map(|(pair, result)| pair.error(found(result)));
        errors.collect::<Vec<f64>>()
    };
    let [ours, looped] = [OURS, LOOPED].map(|arm| errors(arm, |found| &found.pair));
    let of_priorities = |are_equal: bool| {
        let all =
            of(OURS).filter(|(pair, _)| (pair.priorities[0] == pair.priorities[1]) == are_equal);
        mean(&all.filter_map(|(pair, found)| pair.error(&found.pair)).collect::<Vec<_>>())
    };
    let alone = of(LOOPED).flat_map(|(pair, found)| {
        let each = found.alone.into_iter().zip(pair.alone);
        each.filter_map(|(found, truth)| error(found, truth))
    });
    let most = |errors: &[f64]| errors.iter().copied().reduce(f64::max);
    json!({
        "pairs": of(OURS).count(),
        "mean_turnaround_error": mean(&ours),
        "max_turnaround_error": most(&ours),
        "mean_turnaround_error_priority": of_priorities(false),
        "mean_turnaround_error_antt": of_priorities(true),
        "mean_turnaround_error_all_preemptible": mean(&looped),
        "max_turnaround_error_all_preemptible": most(&looped),
        "mean_turnaround_error_if_free": mean(&errors(OURS, |found| &found.free)),
        "mean_error_alone": mean(&alone.collect::<Vec<_>>()),
        "launch_us": microseconds(costs.launch),
        "follow_us": microseconds(costs.follow),
        "report_us": microseconds(costs.report),
        "decision_us": microseconds(costs.decision),
    })
}

/// What the table and the rows say of pairs.
fn rows(pairs: &[(Pair, Found)]) -> Rows {
    let mut rows = Rows::below(HEADINGS);
    for (pair, found) in pairs {
        let (cells, json) = pair.row(found);
        rows.push(cells, json);
    }
    rows
}

/// Simulates the pairs of the results that were measured on an H200 again.
fn again() -> Result<Outcome> {
    let known = Launches::measured()?;
    let (costs, sms) = (known.costs()?, Machine::h200().sms);
    let mut pairs = Vec::new();
    let mut tally = Tally::default();
    for row in known.rows() {
        if let Some(pair) = Pair::read(row, &ARMS)? {
            let found = pair.simulate(sms, costs)?;
            // The engine has checked that none is lost or repeated.
            tally.kernels += found.pair.results.launches.len() as u64;
            tally.block_tasks += found
                .pair
                .results
                .launches
                .iter()
                .map(|launch| u64::from(launch.tasks))
                .sum::<u64>();
            pairs.push((pair, found));
        }
    }
    let summary = with_tally(summary(&pairs, costs), &tally);
    let Rows { table, json: rows } = rows(&pairs);
    Ok(Outcome {
        about: format!(
            "The pairs of results/sim-gpu.json, simulated again: mean turnarounds are off by {} in the mean.",
            show_percent(summary["mean_turnaround_error"].as_f64()),
        ),
        table,
        text_columns: 4,
        rows,
        summary,
        mistake: None,
    })
}

fn outcome(
    pairs: &[(Pair, Found)],
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
    let mut summary = with_tally(summary(pairs, costs), &testbed.tally);
    summary["replays_identical"] = json!(replay.is_identical());
    summary["decisions"] = json!(replay.plans);
    let mut rows = rows(pairs);
    for (cells, row) in programs {
        rows.push(cells, row);
    }
    let is_identical = if replay.is_identical() { "the same" } else { "others" };
    Ok(Outcome {
        about: format!(
            "A long program and a short one under `Hpf`, measured and simulated, from their \
             launches alone and measured costs: mean turnarounds are off by {} in the mean, and by {} where all \
             launches are preemptible. Of what the scheduler was told, the engine made {is_identical} again: {} plans.",
            show_percent(summary["mean_turnaround_error"].as_f64()),
            show_percent(summary["mean_turnaround_error_all_preemptible"].as_f64()),
            replay.plans,
        ),
        table: rows.table,
        text_columns: 4,
        rows: rows.json,
        summary,
        mistake: testbed.tally.mistake,
    })
}
