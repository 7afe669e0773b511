//! Every program of the papers, plain and preemptible, left alone and in a storm of yields, against its sequential
//! reference; and all four against each other, to the bit.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use anyhow::Result;
use preempt::policy::{Arrival, DeviceView, Plan, Policy, SmRange};
use preempt::{Buffer, Call, LaunchId, LaunchReport, Preemption, Priority, Scheduler, Stream};
use preempt_microkernels::count;
use preempt_test_kit::Random;
use preempt_test_kit::storm::Tally;
use preempt_workloads::{Definition, Program, Size, Values};
use serde_json::{Value, json};

use super::{Bench, Experiment, Outcome, line, random_time};
use crate::progress::Progress;
use crate::samples::show;

/// Resumes of each program to see at least: on a GPU, on the CPU device, and with `--quick`. Each follows a yield that
/// left block-tasks undone.
const ENOUGH: [u64; 3] = [100, 20, 3];
/// Runs, at most, in which the resumes have to come. A program of 20 us is resumed in every third run, or, with other
/// kernels or on another host, in every fortieth.
const MOST_ROUNDS: u32 = 10_000;
/// Runs of a plain program in a storm, to which it does not yield.
const PLAIN_ROUNDS: u32 = 5;
/// Runs at full size, on a GPU, in a storm.
const LARGE_ROUNDS: u32 = 2;

/// Time that `wait` spins.
const SPIN: Duration = Duration::from_millis(20);

/// The mode in which a program runs.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mode {
    preemption: Preemption,
    storm: bool,
}

impl Mode {
    const ALL: [Mode; 4] = [
        Mode { preemption: Preemption::Plain, storm: false },
        Mode { preemption: Preemption::Plain, storm: true },
        Mode { preemption: Preemption::Preemptible, storm: false },
        Mode { preemption: Preemption::Preemptible, storm: true },
    ];

    fn name(self) -> &'static str {
        match (self.preemption, self.storm) {
            (Preemption::Plain, false) => "plain",
            (Preemption::Plain, true) => "plain, in a storm",
            (_, false) => "preemptible",
            (_, true) => "preemptible, in a storm",
        }
    }
}

/// A program in one mode.
struct Row {
    program: &'static str,
    size: Size,
    mode: Mode,
    rounds: u32,
    tally: Tally,
    took: Duration,
}

/// The experiment `verify`.
#[derive(Debug)]
pub struct Verify;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
Every program of the papers (below) in four modes: plain and preemptible, left alone and while
urgent launches come; against its sequential reference and against plain to the bit. On a GPU at
full size, too, against plain.

- A program is `right` if all its outputs are within the stated tolerance of the reference (most are
  the same to the bit, since the reference adds up in the same order), and the same to the bit in
  all modes.
- in a storm: urgent launches come at random moments of each step, at least one. The program has a
  few SMs only, so that also a small one has more block-tasks than there is room for. A preemptible
  one is run until it was resumed in mid-kernel as often as it says in `verify.rs`, if it can be: a
  launch without yield points that has a block for each task leaves nothing undone. A plain one
  yields nothing.
- Under `compute-sanitizer`, use `--quick`: the reduced sizes with as many resumes. racecheck takes
  minutes to come to its end.
";

impl Experiment for Verify {
    fn name(&self) -> &'static str {
        "verify"
    }

    fn about(&self) -> &'static str {
        "Every program of the papers, plain and preemptible, with and without yields, against its reference."
    }

    fn meaning(&self) -> &'static [&'static str] {
        &[MEANING]
    }

    /// Those of Chimera as well: results are right or wrong whatever paper a program is of.
    fn programs(&self) -> Vec<&'static Definition> {
        preempt_workloads::every().collect()
    }

    /// More SMs than processors, so that SMs can be dealt in many ways.
    fn shape(&self, _: u32) -> (u32, u32) {
        (5, 2)
    }

    fn run(&self, bench: &Bench) -> Result<Outcome> {
        run(bench)
    }
}

/// Runs every program in every mode.
fn run(bench: &Bench) -> Result<Outcome> {
    let scheduler = bench.spinning_scheduler(Narrow::default(), SPIN)?;
    let enough = match (bench.quick, bench.gpu) {
        // On a GPU they take a second or two.
        (_, Some(_)) => ENOUGH[0],
        (false, None) => ENOUGH[1],
        (true, None) => ENOUGH[2],
    };
    let mut storm = Storm::new(&scheduler, bench.seed)?;
    let progress = Progress::new("programs", bench.programs.len() as u64);
    let mut rows = Vec::new();
    for &definition in &bench.programs {
        reduced(&scheduler, definition, &mut storm, enough, &mut rows)?;
        if bench.gpu.is_some() && !bench.quick {
            large(&scheduler, definition, &mut storm, &mut rows)?;
        }
        progress.step();
    }
    scheduler.synchronize()?;
    Ok(outcome(bench, &rows))
}

/// Gives the urgent kernels the SMs that they need, from SM 0 on, and the program a few SMs beside them. So even a
/// small program has more block-tasks than there is room for, and has to move.
#[derive(Debug, Default)]
struct Narrow {
    /// The launches, the more urgent ones first.
    launches: Vec<(Reverse<Priority>, LaunchId)>,
}

impl Policy for Narrow {
    fn name(&self) -> &str {
        "narrow"
    }

    fn arrived(&mut self, _now: Duration, launch: Arrival) {
        self.launches.push((Reverse(launch.priority), launch.id));
        self.launches.sort_by_key(|&(priority, _)| priority);
    }

    fn departed(&mut self, _now: Duration, launch: LaunchId) {
        self.launches.retain(|&(_, other)| other != launch);
    }

    fn assign(&mut self, _now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        let (sms, mut start) = (device.sms(), 0);
        for &(Reverse(priority), launch) in &self.launches {
            let few = (sms / 64).max(2);
            let most = if priority > PROGRAM { sms } else { few };
            let end = sms.min(start + device.need(launch).clamp(1, most));
            if start < end {
                plan.grant(launch, SmRange::new(start, end));
            }
            start = end;
        }
    }
}

/// The programs' priority.
const PROGRAM: Priority = Priority(0);

/// Urgent launches at random moments.
struct Storm {
    scheduler: Scheduler,
    urgent: Stream,
    counts: Buffer<u32>,
    /// The expected runs of each block of the urgent kernels.
    expected: Vec<u32>,
    random: Random,
}

impl Storm {
    fn new(scheduler: &Scheduler, seed: u64) -> Result<Storm> {
        let properties = scheduler.device().properties();
        // From a launch that needs no more than the device holds to a launch that needs twice that.
        let most = 2 * properties.sms * properties.blocks_per_sm;
        Ok(Storm {
            scheduler: scheduler.clone(),
            urgent: scheduler.stream(Priority(PROGRAM.0 + 1)),
            counts: scheduler.zeroed(most as usize)?,
            expected: vec![0; most as usize],
            random: Random(seed),
        })
    }

    /// Adds an urgent launch at some moment of the next `time`.
    fn strike(&mut self, time: Duration) -> Result<()> {
        let (start, pause) = (Instant::now(), random_time(&mut self.random, time));
        while start.elapsed() < pause {
            std::hint::spin_loop();
        }
        let blocks = 1 + self.random.below(self.expected.len() as u32);
        let call = count(&mut self.counts).grid(blocks).block(32);
        self.urgent.launch(call)?.wait()?;
        self.expected[..blocks as usize].iter_mut().for_each(|count| *count += 1);
        Ok(())
    }

    fn check(&self, tally: &mut Tally) -> Result<()> {
        let counts = self.urgent.download(&self.counts)?.wait()?;
        tally.count("the urgent kernels", &counts, &self.expected);
        Ok(())
    }
}

/// One run of the program's steps. With a storm, urgent launches come while each runs.
fn steps(
    stream: &Stream,
    calls: &[Call<'static>],
    mode: Mode,
    storm: &mut Storm,
    tally: &mut Tally,
) -> Result<()> {
    for call in calls {
        let start = Instant::now();
        let handle = stream.launch(call.clone().preemption(mode.preemption))?;
        if mode.storm {
            // At least once, however short the step is.
            storm.strike(Duration::from_micros(20))?;
            while !handle.is_done() {
                storm.strike(start.elapsed() / 2)?;
            }
        }
        let report: LaunchReport = handle.wait()?;
        let tasks = call.grid_dim().count();
        tally.report(&report);
        if u128::from(report.tasks) != tasks && tally.mistake.is_none() {
            tally.mistake = Some(format!("{} of {tasks} block-tasks ran", report.tasks));
        }
    }
    Ok(())
}

fn build(
    scheduler: &Scheduler,
    definition: &Definition,
    size: Size,
    stream: &Stream,
) -> Result<Program> {
    let program = (definition.build)(scheduler.into(), size, 1)?;
    for call in &program.setup {
        stream.launch(call.clone())?.wait()?;
    }
    Ok(program)
}

fn poison(program: &Program, stream: &Stream) -> Result<()> {
    for output in &program.outputs {
        stream.launch(output.poison.clone())?.wait()?;
    }
    Ok(())
}

/// Whether a yield can leave something of a launch undone: it can be dropped at yield points, or may have more block-tasks
/// than the device holds blocks.
fn can_resume(call: &Call<'_>, sms: u128) -> bool {
    // An SM holds one block at least.
    call.kernel().yields || call.grid_dim().count() > sms
}

/// All modes at reduced size, against the reference.
fn reduced(
    scheduler: &Scheduler,
    definition: &'static Definition,
    storm: &mut Storm,
    enough: u64,
    rows: &mut Vec<Row>,
) -> Result<()> {
    let stream = scheduler.stream(PROGRAM);
    let program = build(scheduler, definition, Size::Reduced, &stream)?;
    let references: Vec<Values> = program.outputs.iter().map(|output| output.reference()).collect();
    let sms = u128::from(scheduler.device().properties().sms);
    let can_resume = program.steps.iter().any(|call| can_resume(call, sms));
    // Outputs of the first mode.
    let mut plain: Vec<Values> = Vec::new();
    for mode in Mode::ALL {
        let (start, mut tally, mut rounds) = (Instant::now(), Tally::default(), 0);
        loop {
            poison(&program, &stream)?;
            steps(&stream, &program.steps, mode, storm, &mut tally)?;
            rounds += 1;
            for (index, (output, reference)) in program.outputs.iter().zip(&references).enumerate()
            {
                let found = output.download(&stream)?;
                let mut mistake = output.mistake(&found, reference);
                match plain.get(index) {
                    None => plain.push(found),
                    Some(plain) if !plain.is_identical(&found) => {
                        let what = format!("{}: not as without preemption", output.name);
                        mistake = mistake.or(Some(what));
                    }
                    Some(_) => {}
                }
                tally.mistake = tally.mistake.take().or(mistake);
            }
            let is_enough = match mode {
                Mode { storm: false, .. } => true,
                Mode { preemption: Preemption::Plain, .. } => rounds >= PLAIN_ROUNDS,
                _ => tally.resumes >= enough || rounds >= PLAIN_ROUNDS && !can_resume,
            };
            if is_enough || tally.mistake.is_some() {
                break;
            }
            if rounds == MOST_ROUNDS {
                let resumes = tally.resumes;
                tally.mistake = Some(format!("only {resumes} resumes in {rounds} runs"));
                break;
            }
        }
        storm.check(&mut tally)?;
        let took = start.elapsed();
        rows.push(Row { program: definition.name, size: Size::Reduced, mode, rounds, tally, took });
    }
    Ok(())
}

/// Preemptible in a storm at full size, against plain.
fn large(
    scheduler: &Scheduler,
    definition: &'static Definition,
    storm: &mut Storm,
    rows: &mut Vec<Row>,
) -> Result<()> {
    let stream = scheduler.stream(PROGRAM);
    let program = build(scheduler, definition, Size::Large, &stream)?;
    let mut plain = Vec::new();
    for (mode, rounds) in [(Mode::ALL[0], 1), (Mode::ALL[3], LARGE_ROUNDS)] {
        let (start, mut tally) = (Instant::now(), Tally::default());
        for _ in 0..rounds {
            poison(&program, &stream)?;
            steps(&stream, &program.steps, mode, storm, &mut tally)?;
            let outputs = program.outputs.iter();
            let digests = outputs.map(|output| output.digest(&stream)).collect::<Result<_, _>>()?;
            if plain.is_empty() {
                plain = digests;
            } else if plain != digests && tally.mistake.is_none() {
                tally.mistake = Some("not as without preemption, to the bit".to_owned());
            }
        }
        storm.check(&mut tally)?;
        let took = start.elapsed();
        rows.push(Row { program: definition.name, size: Size::Large, mode, rounds, tally, took });
    }
    storm.scheduler.synchronize()?;
    Ok(())
}

fn outcome(bench: &Bench, rows: &[Row]) -> Outcome {
    let right = |definition: &&&Definition| {
        let mut own = rows.iter().filter(|row| row.program == definition.name);
        own.all(|row| row.tally.mistake.is_none())
    };
    let sum = |of: fn(&Tally) -> u64| rows.iter().map(|row| of(&row.tally)).sum::<u64>();
    let summary = json!({
        "kernels": bench.programs.len(),
        "kernels_right": bench.programs.iter().filter(right).count(),
        "yields_mid_kernel": sum(|tally| tally.yields),
        "resumes": sum(|tally| tally.resumes),
        "block_tasks": sum(|tally| tally.block_tasks),
        "lost": sum(|tally| tally.lost),
        "repeated": sum(|tally| tally.repeated),
        "seconds": rows.iter().map(|row| row.took.as_secs_f64()).sum::<f64>(),
    });
    let mut table = vec![line([
        "program",
        "size",
        "",
        "runs",
        "block-tasks",
        "yields",
        "resumes",
        "right",
        "time",
    ])];
    table.extend(rows.iter().map(Row::line));
    let mut mistakes = rows.iter().filter_map(|row| {
        let mistake = row.tally.mistake.as_ref()?;
        Some(format!("{} ({:?}, {}): {mistake}", row.program, row.size, row.mode.name()))
    });
    Outcome {
        about:
            "Each program in four modes: its results against a sequential reference, and against \
                those of the plain grids to the bit; at full size against the latter alone."
                .to_owned(),
        table,
        text_columns: 3,
        rows: rows.iter().map(Row::json).collect(),
        summary,
        mistake: mistakes.next(),
    }
}

impl Row {
    fn line(&self) -> Vec<String> {
        line([
            self.program,
            &format!("{:?}", self.size).to_lowercase(),
            self.mode.name(),
            &self.rounds.to_string(),
            &self.tally.block_tasks.to_string(),
            &self.tally.yields.to_string(),
            &self.tally.resumes.to_string(),
            if self.tally.mistake.is_none() { "yes" } else { "NO" },
            &show(self.took),
        ])
    }

    fn json(&self) -> Value {
        json!({
            "program": self.program,
            "size": format!("{:?}", self.size).to_lowercase(),
            "mode": self.mode.name(),
            "runs": self.rounds,
            "block_tasks": self.tally.block_tasks,
            "yields": self.tally.yields,
            "resumes": self.tally.resumes,
            "right": self.tally.mistake.is_none(),
            "seconds": self.took.as_secs_f64(),
        })
    }
}
