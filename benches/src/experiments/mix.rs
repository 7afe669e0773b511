//! EffiSha's eleven programs at intervals, with three settings of priorities (figures 9, 11, 12 and 15).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use preempt::policy::{DynamicPriority, StaticPriority};
use preempt::{Handle, LaunchReport, Stream};
use preempt_report::microseconds;
use preempt_test_kit::Random;
use preempt_test_kit::storm::Tally;
use serde_json::{Value, json};

use super::corun::{
    self, Arm, DeviceTestbed, IdealJob, Job, NewPolicy, Testbed, Turnarounds, antt, ceiling, stp,
};
use super::{Bench, Experiment, Outcome, Rows, line, with_tally};
use crate::progress::Progress;
use crate::samples::{Samples, mean, ratio, show, show_number, show_time};

/// A program, and its priority in each setting.
type Member = (&'static str, [i32; 3]);

/// The programs in the order of their requests (table 2).
const PROGRAMS: [Member; 11] = [
    ("NeuralNet", [1, 2, 2]),
    ("Sort", [4, 17, 2]),
    ("Reduction", [7, 17, 2]),
    ("MD5Hash", [6, 22, 5]),
    ("MD", [2, 22, 5]),
    ("Scan", [8, 7, 5]),
    ("Triad", [9, 3, 8]),
    ("Stencil2D", [0, 20, 8]),
    ("FFT", [10, 24, 11]),
    ("SPMV", [5, 7, 11]),
    ("BFS", [3, 1, 11]),
];
const SETTINGS: [&str; 3] = ["sjf", "random", "group"];

/// Ratio of the time between two requests and the mean of the programs' times alone (3 ms and 7.42 ms in the paper).
const INTERVAL: f64 = 3.0 / 7.42;

/// Samples of each arm, and with `--quick`.
const SAMPLES: u32 = 10;
const QUICK_SAMPLES: u32 = 1;

/// Launches of figure 9, each with a random priority from 1 to 9, and the waits between an end and the next launch.
const LAUNCHES: u32 = 1000;
const QUICK_LAUNCHES: u32 = 22;
const WAITS: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];
const PRIORITIES: usize = 9;

/// The longest that anything here may take before it counts as hung.
const LIMIT: Duration = Duration::from_secs(60);

/// Numbers of the policies on the testbed.
const STATIC: usize = 1;
const DYNAMIC: usize = 2;

const ARMS: [(&str, Arm); 4] = [
    ("plain streams", Arm::PlainStreams),
    ("stream priorities", Arm::StreamPriorities),
    ("preempt, static", Arm::Ours(STATIC)),
    ("preempt, dynamic", Arm::Ours(DYNAMIC)),
];

/// The results of one setting of priorities.
struct Setting {
    name: &'static str,
    arms: Vec<(&'static str, Arm, Turnarounds)>,
    /// Turnarounds where preemption is free, with the static and with the dynamic policy.
    ceilings: [Vec<Duration>; 2],
}

/// Times that SMs were taken from launches of each priority.
struct Evictions {
    wait: Duration,
    yields: [u64; PRIORITIES],
}

fn policies() -> [NewPolicy; 2] {
    [Box::new(|| Box::new(StaticPriority::new())), Box::new(|| Box::new(DynamicPriority::new()))]
}

/// The experiment `mix`.
#[derive(Debug)]
pub struct Mix;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
EffiSha's eleven programs, one after the other at intervals, with three settings of priorities
(figures 11, 12 and 15), and how often each priority yields (figure 9).

The programs are those of EffiSha's table 2, in its order of requests, at full size on a GPU (small
with `--quick`). From one to the next it takes 0.404 of the mean of their times alone, as 3 ms in
the paper's 7.42 ms. `sjf`, `random` and `group` are the paper's settings of priorities.

- `preempt, static` is `StaticPriority`, `preempt, dynamic` `DynamicPriority`, each with its own
  `ceiling`.
- Keys of the summary that start with a setting are of the one of the two that has the lower ANTT
  there. `.._antt_change`: its ANTT by that on plain streams, less 1. `.._stp_gain`: its STP by that
  on plain streams. `.._antt_over_ceiling` is the ceiling's ANTT by its own, `.._stp_over_ceiling`
  its STP by the ceiling's, and `.._over_ceiling` the lower of the two; 1 is the ceiling.
- `scheduling_overhead`: its median makespan by that on plain streams, less 1; the mean of the
  settings.
- yields (figure 9): each program runs again and again, with a random priority from 1 to 9 for each
  run, and the same wait after each; under `StaticPriority`, 1,000 runs in all for each wait from 1
  to 64 ms, with all launches preemptible. How often SMs were taken from the launches of each
  priority.
";

impl Experiment for Mix {
    fn name(&self) -> &'static str {
        "mix"
    }

    fn about(&self) -> &'static str {
        "Eleven programs at intervals, with three settings of priorities."
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

/// Measures all settings.
fn run(bench: &Bench) -> Result<Outcome> {
    let names = PROGRAMS.map(|(name, _)| name);
    let definitions = bench.programs_among(&names)?;
    ensure!(definitions.len() > 1, "`--program` names less than two of {}", names.join(", "));
    let mut testbed = bench.testbed(policies().into())?;
    let [size, _] = bench.sizes();
    let rounds = bench.rounds(QUICK_SAMPLES, SAMPLES);
    let mut members: Vec<Member> = Vec::new();
    for member in PROGRAMS {
        if let Some(definition) = definitions.iter().find(|one| one.name == member.0) {
            testbed.add(definition, size)?;
            members.push(member);
        }
    }
    let count = members.len();
    let progress = Progress::new("rounds", u64::from(rounds.count()) + WAITS.len() as u64);
    let mut alone = vec![Samples::default(); count];
    let mut settings: Vec<_> =
        SETTINGS.into_iter().map(|name| Setting::new(name, &*testbed)).collect();
    for round in 0..rounds.count() {
        for (program, samples) in alone.iter_mut().enumerate() {
            let completed = testbed.run_jobs(Arm::PlainStreams, &[Job::now(program)])?;
            samples.extend(completed.turnaround.first().copied());
        }
        let mean = alone.iter().map(Samples::p50).sum::<Duration>() / alone.len() as u32;
        let interval = mean.mul_f64(INTERVAL);
        for (index, setting) in settings.iter_mut().enumerate() {
            let jobs: Vec<Job> = (0..count)
                .map(|program| Job {
                    at: interval * program as u32,
                    priority: members[program].1[index],
                    ..Job::now(program)
                })
                .collect();
            for (_, arm, times) in &mut setting.arms {
                testbed.warm(*arm, 0)?;
                let completed = testbed.run_jobs(*arm, &jobs)?;
                if round >= rounds.learning {
                    times.push(&completed.turnaround, completed.makespan);
                }
            }
        }
        progress.step();
    }
    let alone: Vec<Duration> = alone.iter().map(Samples::p50).collect();
    add_ceilings(&mut settings, &members, &alone)?;
    let mut evictions = Vec::new();
    // Not in virtual time, where no stream changes its priority.
    if let Some(testbed) = testbed.device() {
        let launches = bench.amount(QUICK_LAUNCHES, LAUNCHES);
        let waits = bench.amount(&WAITS[..1], &WAITS);
        testbed.choose(STATIC)?;
        for wait in waits.iter().copied().map(Duration::from_millis) {
            let mut random = Random(bench.seed);
            evictions.push(evict(testbed, wait, launches, &mut random)?);
            progress.step();
        }
    }
    Ok(outcome(&members, &settings, &alone, &evictions, testbed.close()?))
}

/// A program that runs again some time after it has ended.
struct Loop {
    stream: Stream,
    priority: usize,
    handles: VecDeque<Handle<LaunchReport>>,
    /// Steps of this run that were submitted.
    submitted: usize,
    is_running: bool,
    next: Duration,
}

/// Simulates each setting with its intervals where preemption is free.
fn add_ceilings(settings: &mut [Setting], members: &[Member], alone: &[Duration]) -> Result<()> {
    let interval = alone.iter().sum::<Duration>().mul_f64(INTERVAL / alone.len() as f64);
    for (index, setting) in settings.iter_mut().enumerate() {
        let jobs: Vec<_> = (0..members.len())
            .map(|program| IdealJob {
                at: interval * program as u32,
                alone: alone[program],
                priority: members[program].1[index],
            })
            .collect();
        let [of_static, of_dynamic] = policies();
        setting.ceilings = [ceiling(of_static(), &jobs)?, ceiling(of_dynamic(), &jobs)?];
    }
    Ok(())
}

/// Runs each program again and again, until `launches` runs are over in all.
fn evict(
    testbed: &DeviceTestbed,
    wait: Duration,
    launches: u32,
    random: &mut Random,
) -> Result<Evictions> {
    let mut loops: Vec<Loop> = testbed
        .programs()
        .iter()
        .map(|_| Loop {
            stream: testbed.scheduler.stream(0),
            priority: 0,
            handles: VecDeque::new(),
            submitted: 0,
            is_running: false,
            next: Duration::ZERO,
        })
        .collect();
    let mut yields = [0; PRIORITIES];
    let (mut begun, mut ended) = (0, 0);
    let start = Instant::now();
    while ended < launches {
        ensure!(start.elapsed() < LIMIT, "{ended} of {launches} runs ended within {LIMIT:?}");
        for (one, program) in loops.iter_mut().zip(testbed.programs()) {
            if !one.is_running && begun < launches && start.elapsed() >= one.next {
                one.priority = random.below(PRIORITIES as u32) as usize;
                one.stream.set_priority(one.priority as i32 + 1);
                (one.is_running, one.submitted) = (true, 0);
                begun += 1;
            }
            while one.is_running && one.handles.len() < DeviceTestbed::AHEAD {
                let Some(call) = program.steps().get(one.submitted) else { break };
                one.handles.push_back(one.stream.launch(call.clone())?);
                one.submitted += 1;
            }
            while let Some(handle) = one.handles.front()
                && let Some(report) = handle.try_wait()
            {
                yields[one.priority] += u64::from(report?.yields);
                one.handles.pop_front();
            }
            if one.is_running && one.handles.is_empty() {
                one.is_running = false;
                one.next = start.elapsed() + wait;
                ended += 1;
            }
        }
        testbed.pause();
    }
    Ok(Evictions { wait, yields })
}

impl Setting {
    fn new(name: &'static str, testbed: &dyn Testbed) -> Setting {
        let arms = ARMS.into_iter().filter(|(_, arm)| testbed.has(*arm));
        let arms = arms.map(|(name, arm)| (name, arm, Turnarounds::default())).collect();
        Setting { name, arms, ceilings: Default::default() }
    }

    fn times(&self, arm: Arm) -> Option<&Turnarounds> {
        self.arms.iter().find(|(_, other, _)| *other == arm).map(|(.., times)| times)
    }

    /// The number of the policy with the lower ANTT.
    fn best(&self, alone: &[Duration]) -> usize {
        let antt = |policy| antt(&self.times(Arm::Ours(policy))?.p50(), alone);
        if antt(DYNAMIC) < antt(STATIC) { DYNAMIC } else { STATIC }
    }

    /// Four ratios: ANTT with our better policy over plain streams, less one; STP likewise; and the part of the ceiling
    /// that is reached, by ANTT and by STP.
    fn summary(&self, alone: &[Duration]) -> Option<[f64; 4]> {
        let best = self.best(alone);
        let ours = self.times(Arm::Ours(best))?.p50();
        let plain = self.times(Arm::PlainStreams)?.p50();
        let free = &self.ceilings[best - STATIC];
        let [plain_antt, our_antt, free_antt] =
            [antt(&plain, alone)?, antt(&ours, alone)?, antt(free, alone)?];
        let [plain_stp, our_stp, free_stp] =
            [stp(&plain, alone)?, stp(&ours, alone)?, stp(free, alone)?];
        let reached = [free_antt / our_antt, our_stp / free_stp];
        Some([our_antt / plain_antt - 1.0, our_stp / plain_stp, reached[0], reached[1]])
    }

    /// The makespan over that on plain streams, with our better policy, less one.
    fn overhead(&self, alone: &[Duration]) -> Option<f64> {
        let ours = self.times(Arm::Ours(self.best(alone)))?.makespan.p50();
        Some(ratio(ours, self.times(Arm::PlainStreams)?.makespan.p50())? - 1.0)
    }
}

/// The summary, by its keys.
fn summary(settings: &[Setting], alone: &[Duration]) -> Value {
    let mut summary = serde_json::Map::new();
    for setting in settings {
        let told = setting.summary(alone);
        let mut tell = |key: &str, value: Option<f64>| {
            summary.insert(format!("{}_{key}", setting.name), json!(value));
        };
        tell("antt_change", told.map(|told| told[0]));
        tell("stp_gain", told.map(|told| told[1]));
        tell("over_ceiling", told.map(|told| told[2].min(told[3])));
        tell("antt_over_ceiling", told.map(|told| told[2]));
        tell("stp_over_ceiling", told.map(|told| told[3]));
    }
    let overheads: Vec<f64> =
        settings.iter().filter_map(|setting| setting.overhead(alone)).collect();
    summary.insert("scheduling_overhead".into(), json!(mean(&overheads)));
    Value::Object(summary)
}

fn rows(
    members: &[Member],
    settings: &[Setting],
    alone: &[Duration],
    evictions: &[Evictions],
) -> Rows {
    let mut rows =
        Rows::below(["setting", "arm", "ANTT", "STP", "makespan", "NTT of each program"]);
    for setting in settings {
        let ceilings = ["ceiling, static", "ceiling, dynamic"].into_iter().zip(&setting.ceilings);
        let ceilings = ceilings.map(|(name, times)| (name, times.clone(), None));
        let arms = setting
            .arms
            .iter()
            .map(|(name, _, times)| (*name, times.p50(), Some(times.makespan.p50())));
        for (arm, times, makespan) in arms.chain(ceilings) {
            let ntt: Vec<_> = times.iter().zip(alone).map(|(&a, &b)| ratio(a, b)).collect();
            let each: Vec<String> = ntt.iter().map(|&ntt| show_number(ntt)).collect();
            let (antt, stp) = (antt(&times, alone), stp(&times, alone));
            let cells = line([
                setting.name,
                arm,
                &show_number(antt),
                &show_number(stp),
                &show_time(makespan),
                &each.join("  "),
            ]);
            let json = json!({
                "setting": setting.name,
                "arm": arm,
                "antt": antt,
                "stp": stp,
                "makespan_p50_us": makespan.map(microseconds),
                "programs": members.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
                "alone_p50_us": alone.iter().map(|&time| microseconds(time)).collect::<Vec<_>>(),
                "ntt": ntt,
            });
            rows.push(cells, json);
        }
    }
    for Evictions { wait, yields } in evictions {
        let each: Vec<String> = yields.iter().map(u64::to_string).collect();
        let name = format!("yields, a wait of {}", show(*wait));
        rows.push(
            line([&name, "priorities 1 to 9", "-", "-", "-", &each.join("  ")]),
            json!({ "wait_ms": wait.as_millis() as u64, "yields_by_priority": yields }),
        );
    }
    rows
}

fn outcome(
    members: &[Member],
    settings: &[Setting],
    alone: &[Duration],
    evictions: &[Evictions],
    tally: Tally,
) -> Outcome {
    let summary = with_tally(summary(settings, alone), &tally);
    let Rows { table, json: rows } = rows(members, settings, alone, evictions);
    let mut about = "EffiSha's eleven programs, each submitted an interval after the one before; priorities as in \
                     the paper's table 2. Normalized turnaround times (NTT) are to each program alone."
        .to_owned();
    if !evictions.is_empty() {
        about += " Then how often each priority had to yield, where every program is run again a while after it \
                  ended, with a random priority.";
    }
    Outcome { about, table, text_columns: 2, rows, summary, mistake: tally.mistake }
}
