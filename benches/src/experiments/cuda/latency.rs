//! From an urgent launch to its end while a victim fills the GPU: ours, the floor, and CUDA's streams. The arms take
//! turns, so that disturbances by the machine meet all of them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use preempt::policy::StaticPriority;
use preempt::{Buffer, Handle, LaunchReport, Program, ProgramCall, Scheduler, SignalPath, Stream};
use preempt_driver::Gpu;
use preempt_microkernels::answer;
use preempt_report::microseconds;
use preempt_test_kit::Random;
use preempt_test_kit::storm::Tally;
use preempt_workloads::Size;
use serde_json::{Value, json};

use super::super::{Bench, Outcome, line, random_time};
use super::raw_arms::{RawArms, URGENT_BLOCKS, victim};
use super::subject::{Modules, Subject};
use super::{check_spins, spin_until};
use crate::progress::Progress;
use crate::samples::{Samples, Summary, ratio, show, show_ratio};

/// Lengths of the victim's block-tasks, groups of samples with yield points, and groups of the arms whose p99s are compared:
/// those of all arms, and more of these. There are fewer of long block-tasks, beside which armed launches are far ahead of the
/// floor and priorities wait for long, so no p99 of these decides.
const CASES: [(Duration, u32, u32); 5] = [
    (Duration::from_micros(1), 200, 1000),
    (Duration::from_micros(10), 200, 1000),
    (Duration::from_micros(100), 200, 1000),
    (Duration::from_millis(1), 200, 1000),
    (Duration::from_millis(10), 15, 200),
];
/// A quarter of these groups are measured without yield points, and again with each path of signals. No p99 of these is
/// compared.
const FEWER: u32 = 4;
/// Groups with `--quick`.
const QUICK_GROUPS: u32 = 1;

/// Samples of each arm in a group.
const GROUP: u32 = 10;

/// The most time between two urgent launches, in addition to two block-tasks.
const PAUSE: Duration = Duration::from_millis(1);

/// The least time of a victim of the raw arms, in addition to four block-tasks.
const RAW_TIME: Duration = Duration::from_millis(2);

/// Stops of each program.
const EVICTIONS: u32 = 100;

/// The floor of a stop is the drained time of block-tasks of this length, with yield points.
const FLOOR_LENGTH: Duration = Duration::from_micros(10);

/// Up to this length, an armed launch is compared with one on an idle GPU.
const MILLISECOND: Duration = Duration::from_millis(1);

/// Up to this length, a stream priority's p99 can be shorter than ours: it waits for the end of a block, which takes as long.
const SHORT: Duration = Duration::from_micros(100);

/// Time from which on block-tasks are long.
const LONG: Duration = Duration::from_micros(100);

/// The least and the most time from arming a program to its launch.
const ANNOUNCED: (Duration, Duration) = (Duration::from_micros(50), Duration::from_micros(600));

/// Time that a thread that waits for an urgent launch drives the scheduler itself. The raw arms spin, too.
const SPIN: Duration = Duration::from_millis(20);

/// The arms that a group measures.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Measured {
    All,
    /// Those whose p99s are compared.
    Compared,
}

/// One length of block-tasks, with or without yield points.
struct Case {
    length: Duration,
    yields: bool,
    ours: Samples,
    /// Those of a program that was armed, and how many of them began so.
    armed: Samples,
    began_armed: u32,
    /// Times of `preempt` with signals by the proxy, and by stream writes alone.
    proxy: Samples,
    stream_writes: Samples,
    floor: Samples,
    /// Times of the floor where the victim leaves all SMs.
    floor_all: Samples,
    drained: Samples,
    stream_priority: Samples,
    plain_streams: Samples,
    /// The urgent kernel on the idle GPU.
    idle: Samples,
    /// Yields of our victims.
    victim_yields: u64,
}

/// Measures all cases.
pub fn run(bench: &Bench, gpu: Gpu) -> Result<Outcome> {
    let build = |path| -> Result<Scheduler> {
        let builder = bench.spinning_builder(StaticPriority::new(), SPIN)?;
        Ok(builder.signal_path(path).build()?)
    };
    let scheduler = build(SignalPath::default())?;
    let mut random = Random(bench.seed);
    let mut tally = Tally::default();
    let mut cases = Vec::new();
    for (length, groups, compared) in CASES {
        for yields in [false, true] {
            let groups = if yields { groups } else { groups.div_ceil(FEWER) };
            let compared = if yields { compared - groups } else { 0 };
            let groups = bench.amount(QUICK_GROUPS, groups);
            let with = if yields { "with" } else { "without" };
            let name = format!("block-tasks of {}, {with} yield points", show(length));
            let compared = bench.amount(QUICK_GROUPS.min(compared), compared);
            let progress = Progress::new(name, u64::from(groups + compared));
            let raw = RawArms::new(gpu, length, yields, RAW_TIME + 4 * length)?;
            let ours = Ours::new(&scheduler, gpu, length, raw.blocks)?;
            let mut arms = Arms { case: Case::new(length, yields), ours, raw, random: &mut random };
            for group in 0..groups + compared {
                let measured = if group < groups { Measured::All } else { Measured::Compared };
                arms.measure_group(measured, &mut tally)?;
                progress.step();
            }
            scheduler.synchronize()?;
            cases.push(arms.case);
        }
    }

    let evictions = evictions(bench, gpu, &scheduler, &mut random)?;
    // A scheduler has one path of signals, so these cannot take turns with the others.
    drop(scheduler);
    for path in [SignalPath::Proxy, SignalPath::StreamWrite] {
        let scheduler = build(path)?;
        for case in &mut cases {
            let times = measure_again(bench, gpu, &scheduler, case, &mut random, &mut tally)?;
            match path {
                SignalPath::Proxy => case.proxy = times,
                _ => case.stream_writes = times,
            }
        }
    }
    Ok(outcome(&cases, &evictions, tally))
}

/// Measures the urgent launches of a case again, by a scheduler whose signals go by another path.
fn measure_again(
    bench: &Bench,
    gpu: Gpu,
    scheduler: &Scheduler,
    case: &Case,
    random: &mut Random,
    tally: &mut Tally,
) -> Result<Samples> {
    let blocks = RawArms::new(gpu, case.length, case.yields, RAW_TIME + 4 * case.length)?.blocks;
    let mut ours = Ours::new(scheduler, gpu, case.length, blocks)?;
    let mut again = Case::new(case.length, case.yields);
    let (_, groups, _) = CASES.into_iter().find(|case| case.0 == again.length).unwrap_or(CASES[0]);
    for _ in 0..bench.amount(QUICK_GROUPS, groups.div_ceil(FEWER)) {
        ours.measure_group(&mut again, false, Measured::All, random, tally)?;
    }
    scheduler.synchronize()?;
    Ok(again.ours)
}

/// The summary, by its keys.
fn summary(cases: &[Case], evictions: &[Eviction], floor: Duration, tally: &Tally) -> Value {
    let find = |length| cases.iter().find(|case| case.yields && case.length == length);
    let over_ours =
        |length| find(length).and_then(|case| ratio(case.stream_priority.p50(), case.ours.p50()));
    let with_yields = cases.iter().filter(|case| case.yields);
    let worst = |times: [fn(&Case) -> &Samples; 2],
                 most: Option<Duration>,
                 at: fn(Summary) -> Duration| {
        let cases = with_yields.clone().filter(|case| most.is_none_or(|most| case.length <= most));
        let ratios = cases.filter_map(|case| {
            let [of, to] = times.map(|times| at(times(case).summary()));
            ratio(of, to)
        });
        ratios.reduce(f64::max)
    };
    let (p50, p99) = (|times: Summary| times.p50, |times: Summary| times.p99);
    let over_floor: [fn(&Case) -> &Samples; 2] = [|case| &case.ours, |case| &case.floor];
    let armed_over_floor: [fn(&Case) -> &Samples; 2] = [|case| &case.armed, |case| &case.floor];
    let armed_over_idle: [fn(&Case) -> &Samples; 2] = [|case| &case.armed, |case| &case.idle];
    let armed_over_priority: [fn(&Case) -> &Samples; 2] =
        [|case| &case.armed, |case| &case.stream_priority];
    let of_all = cases.iter().map(|case| case.armed.len()).sum::<usize>();
    let began_armed = cases.iter().map(|case| case.began_armed).sum::<u32>();
    json!({
        "urgent_over_floor_p50": worst(over_floor, None, p50),
        "urgent_over_floor_p99": worst(over_floor, None, p99),
        "armed_over_floor_p50_max": worst(armed_over_floor, None, p50),
        "armed_over_floor_p99_max": worst(armed_over_floor, None, p99),
        "armed_over_idle_launch_p50_max": worst(armed_over_idle, Some(MILLISECOND), p50),
        "armed_over_idle_launch_p99_max": worst(armed_over_idle, Some(MILLISECOND), p99),
        "armed_over_stream_priority_p50_max": worst(armed_over_priority, None, p50),
        "armed_over_stream_priority_p99_max": worst(armed_over_priority, None, p99),
        "began_armed": f64::from(began_armed) / of_all.max(1) as f64,
        "stream_priority_over_ours_p50_1ms": over_ours(Duration::from_millis(1)),
        "stream_priority_over_ours_p50_10ms": over_ours(Duration::from_millis(10)),
        "urgent_p50_us_1ms":
            find(Duration::from_millis(1)).map(|case| microseconds(case.ours.p50())),
        "stop_floor_p50_us": microseconds(floor),
        "stop_over_floor_long_tasks_max": evictions
            .iter()
            .filter(|eviction| eviction.longest > LONG)
            .filter_map(|eviction| ratio(eviction.stop.p50(), floor))
            .reduce(f64::max),
        "yields": cases.iter().map(|case| case.victim_yields).sum::<u64>(),
        "kernels": tally.kernels,
        "block_tasks": tally.block_tasks,
        "lost": tally.lost,
        "repeated": tally.repeated,
    })
}

fn outcome(cases: &[Case], evictions: &[Eviction], tally: Tally) -> Outcome {
    let floor = cases.iter().find(|case| case.yields && case.length == FLOOR_LENGTH);
    let floor = floor.map_or(Duration::ZERO, |case| case.drained.p50());

    let mut table = vec![line([
        "block-tasks",
        "yield points",
        "",
        "samples",
        "p50",
        "p99",
        "max",
        "p50 / floor",
        "drained p50",
        "drained p99",
    ])];
    table.extend(cases.iter().flat_map(Case::lines));
    table.extend(evictions.iter().map(|eviction| eviction.line(floor)));
    Outcome {
        about: format!(
            "From an urgent launch of {URGENT_BLOCKS} blocks of 1024 threads to its end, while a \
             victim fills the GPU. All threads that wait spin ({} in `wait` of `preempt`).",
            show(SPIN)
        ),
        table,
        text_columns: 3,
        rows: cases
            .iter()
            .flat_map(Case::json_rows)
            .chain(evictions.iter().map(|eviction| eviction.json(floor)))
            .collect(),
        summary: summary(cases, evictions, floor, &tally),
        mistake: tally.mistake,
    }
}

/// How fast a program's dominating kernel leaves the device (EffiSha, figure 10).
struct Eviction {
    program: &'static str,
    yields: bool,
    longest: Duration,
    stop: Samples,
}

/// Times from the signal to the last block's end, for each program.
fn evictions(
    bench: &Bench,
    gpu: Gpu,
    scheduler: &Scheduler,
    random: &mut Random,
) -> Result<Vec<Eviction>> {
    let modules = Modules::load(scheduler)?;
    let size = bench.amount(Size::Small, Size::Large);
    let samples = bench.amount(QUICK_GROUPS * GROUP, EVICTIONS);
    let mut evictions = Vec::new();
    for &definition in &bench.programs {
        let seed = bench.seed as u32;
        let mut subject = Subject::new(scheduler, gpu, &modules, definition, size, seed)?;
        let (time, _) = subject.preemptible()?;
        let longest = subject.longest()?;
        let mut stop = Samples::default();
        for _ in 0..samples {
            let after = time.mul_f64(0.1) + random_time(random, time.mul_f64(0.7));
            stop.extend(subject.stop(after)?);
        }
        let yields = subject.yields();
        evictions.push(Eviction { program: definition.name, yields, longest, stop });
    }
    Ok(evictions)
}

impl Eviction {
    fn line(&self, floor: Duration) -> Vec<String> {
        let summary = self.stop.summary();
        line([
            &format!("{}, up to {}", self.program, show(self.longest)),
            if self.yields { "yes" } else { "no" },
            "stop",
            &self.stop.len().to_string(),
            &show(summary.p50),
            &show(summary.p99),
            &show(summary.max),
            &show_ratio(ratio(summary.p50, floor)),
            "-",
            "-",
        ])
    }

    fn json(&self, floor: Duration) -> Value {
        let summary = self.stop.summary();
        json!({
            "program": self.program,
            "longest_task_us": microseconds(self.longest),
            "yield_points": self.yields,
            "arm": "stop",
            "samples": self.stop.len(),
            "p50_us": microseconds(summary.p50),
            "p99_us": microseconds(summary.p99),
            "max_us": microseconds(summary.max),
            "p50_to_floor": ratio(summary.p50, floor),
        })
    }
}

/// The least of a pause in which a block-task of this length ends.
fn least_long(length: Duration) -> Duration {
    length.mul_f64(1.2)
}

/// What the arms of a case share.
struct Arms<'a> {
    case: Case,
    ours: Ours<'a>,
    raw: RawArms,
    random: &'a mut Random,
}

impl Arms<'_> {
    /// Measures a group of samples. Arms that are compared need not meet all moments of a long block-task with yield points.
    fn measure_group(&mut self, measured: Measured, tally: &mut Tally) -> Result<()> {
        let (length, all) = (self.case.length, measured == Measured::All);
        let most = if all { PAUSE + 2 * length } else { PAUSE };
        for sample in 0..GROUP {
            let (raw, random) = (&mut self.raw, &mut *self.random);
            // As long as those before launches through the scheduler: the longer a pause, the slower the host is behind it.
            let least = if all || sample % 2 > 0 { Duration::ZERO } else { least_long(length) };
            let mut pause = || least + random_time(random, most);
            if let Some(times) = raw.floor(false, pause())? {
                self.case.floor.push(times.urgent);
            }
            if all && let Some(times) = raw.floor(true, pause())? {
                self.case.floor_all.push(times.urgent);
                self.case.drained.push(times.drained);
            }
            if (all || length <= SHORT)
                && let Some(time) = raw.plain(true, pause())?
            {
                self.case.stream_priority.push(time);
            }
            if all || length <= MILLISECOND {
                self.case.idle.push(raw.idle(pause())?);
            }
        }
        if all {
            // It waits for the rest of the victim, which takes as long as all other arms together.
            if let Some(time) = self.raw.plain(false, random_time(self.random, most))? {
                self.case.plain_streams.push(time);
            }
            self.raw.check(tally, false)?;
        }
        self.raw.floor(false, random_time(self.random, most))?;
        self.raw.check(tally, true)?;
        self.ours.measure_group(&mut self.case, false, measured, self.random, tally)?;
        self.ours.measure_group(&mut self.case, true, measured, self.random, tally)
    }
}

/// The arm that preempts through the scheduler.
struct Ours<'a> {
    scheduler: &'a Scheduler,
    ticks: u64,
    blocks: u32,
    batch: Stream,
    urgent: Stream,
    done: Buffer<u32>,
    /// The urgent kernel as a program, to arm, and its place there.
    program: Program,
    place: ProgramCall,
    ticket: u32,
}

/// A victim that runs, and the memory that it writes.
struct Batch {
    handle: Handle<LaunchReport>,
    runs: Buffer<u32>,
    marks: Buffer<u32>,
}

impl<'a> Ours<'a> {
    fn new(scheduler: &'a Scheduler, gpu: Gpu, length: Duration, blocks: u32) -> Result<Ours<'a>> {
        let urgent = scheduler.stream(1);
        let mut done = scheduler.zeroed(URGENT_BLOCKS as usize)?;
        let mut place = None;
        let program = urgent.program("urgent", |program| {
            place = Some(program.launch(answer(0, &mut done).grid(URGENT_BLOCKS))?);
            Ok(())
        })?;
        let place = place.context("recorded")?;
        Ok(Ours {
            scheduler,
            ticks: gpu.ticks(length)?,
            blocks,
            batch: scheduler.stream(0),
            urgent,
            done,
            program,
            place,
            ticket: 0,
        })
    }

    fn measure_group(
        &mut self,
        case: &mut Case,
        armed: bool,
        measured: Measured,
        random: &mut Random,
        tally: &mut Tally,
    ) -> Result<()> {
        // A block-task that is requeued each time would have to run to its end the third time (the limit is in preempt's
        // worker loop), and no other arm meets such a block-task. So more than a block-task lies between two launches, or
        // before each second one.
        let (length, all) = (case.length, measured == Measured::All);
        let announced: Vec<Duration> = (0..GROUP)
            .map(|_| ANNOUNCED.0 + random_time(random, ANNOUNCED.1 - ANNOUNCED.0))
            .collect();
        let most = if all { PAUSE + length } else { PAUSE };
        let mut pause = |is_long: bool| {
            let least = if is_long { least_long(length) } else { Duration::ZERO };
            std::thread::sleep(least + random_time(random, most));
        };
        // While the group's launches come.
        let time = GROUP * if all { PAUSE + 5 * length } else { PAUSE + length };
        let mut batch = self.launch_batch(case, time)?;
        for (launch, announced) in announced.into_iter().enumerate() {
            let is_long = all || launch % 2 == 0;
            pause(is_long);
            while batch.handle.is_done() {
                self.check(batch, case, tally)?;
                batch = self.launch_batch(case, time)?;
                pause(is_long);
            }
            self.ticket += 1;
            // The raw arms have their parameters ready, too.
            let call = answer(self.ticket, &mut self.done).grid(URGENT_BLOCKS);
            if !armed {
                let start = Instant::now();
                self.urgent.launch(call)?.wait()?;
                case.ours.push(start.elapsed());
                continue;
            }
            self.program.set(self.place, call)?;
            self.program.arm()?;
            let start = Instant::now();
            spin_until(|| Ok(start.elapsed() >= announced))?;
            let start = Instant::now();
            let report = self.program.launch()?.wait()?;
            case.armed.push(start.elapsed());
            case.began_armed += u32::from(report.armed);
        }
        let answers = self.urgent.download(&self.done)?.wait()?;
        tally.compare("the urgent kernel", &answers, &[self.ticket; URGENT_BLOCKS as usize]);
        tally.kernels += u64::from(GROUP);
        self.check(batch, case, tally)?;
        // `wait` returns before the last block has left its SM.
        self.scheduler.synchronize()?;
        Ok(())
    }

    /// Launches a victim that takes `time`.
    fn launch_batch(&self, case: &Case, time: Duration) -> Result<Batch> {
        let tasks = self.blocks * time.as_nanos().div_ceil(case.length.as_nanos()) as u32;
        let zeroed = || self.scheduler.zeroed::<u32>(tasks as usize);
        let (mut runs, mut marks) = (zeroed()?, zeroed()?);
        let call = victim(case.yields, self.ticks, &mut runs, &mut marks, tasks);
        Ok(Batch { handle: self.batch.launch(call)?, runs, marks })
    }

    fn check(&self, batch: Batch, case: &mut Case, tally: &mut Tally) -> Result<()> {
        let report = batch.handle.wait()?;
        case.victim_yields += u64::from(report.yields);
        let runs = self.batch.download(&batch.runs)?.wait()?;
        let marks = self.batch.download(&batch.marks)?.wait()?;
        ensure!(
            report.tasks as usize == marks.len(),
            "the victim says that it did {} tasks",
            report.tasks
        );
        check_spins(tally, "our victim", (&runs, &marks), report.tasks, case.yields);
        Ok(())
    }
}

impl Case {
    fn new(length: Duration, yields: bool) -> Case {
        Case {
            length,
            yields,
            ours: Samples::default(),
            armed: Samples::default(),
            began_armed: 0,
            proxy: Samples::default(),
            stream_writes: Samples::default(),
            floor: Samples::default(),
            floor_all: Samples::default(),
            drained: Samples::default(),
            stream_priority: Samples::default(),
            plain_streams: Samples::default(),
            idle: Samples::default(),
            victim_yields: 0,
        }
    }

    /// Name and times, and the times from the signal to the victim's end, where they can be seen.
    fn arms(&self) -> [(&'static str, &Samples, Option<Summary>); 9] {
        [
            ("preempt", &self.ours, None),
            ("preempt, armed", &self.armed, None),
            ("preempt, by the proxy", &self.proxy, None),
            ("preempt, by stream writes", &self.stream_writes, None),
            ("floor", &self.floor, None),
            ("floor, all SMs", &self.floor_all, Some(self.drained.summary())),
            ("stream priority", &self.stream_priority, None),
            ("plain streams", &self.plain_streams, None),
            ("idle GPU", &self.idle, None),
        ]
    }

    fn lines(&self) -> Vec<Vec<String>> {
        let floor = self.floor.p50();
        let line = |(name, samples, drained): (&str, &Samples, Option<Summary>)| {
            let summary = samples.summary();
            let drained = |time: fn(Summary) -> Duration| {
                drained.map_or_else(|| "-".to_owned(), |drained| show(time(drained)))
            };
            line([
                &show(self.length),
                if self.yields { "yes" } else { "no" },
                name,
                &samples.len().to_string(),
                &show(summary.p50),
                &show(summary.p99),
                &show(summary.max),
                &show_ratio(ratio(summary.p50, floor)),
                &drained(|drained| drained.p50),
                &drained(|drained| drained.p99),
            ])
        };
        self.arms().into_iter().map(line).collect()
    }

    fn json_rows(&self) -> Vec<Value> {
        let floor = self.floor.p50();
        let row = |(name, samples, drained): (&str, &Samples, Option<Summary>)| {
            let summary = samples.summary();
            json!({
                "block_task_us": microseconds(self.length),
                "yield_points": self.yields,
                "arm": name,
                "samples": samples.len(),
                "p50_us": microseconds(summary.p50),
                "p99_us": microseconds(summary.p99),
                "max_us": microseconds(summary.max),
                "p50_to_floor": ratio(summary.p50, floor),
                "drained_p50_us": drained.map(|drained| microseconds(drained.p50)),
                "drained_p99_us": drained.map(|drained| microseconds(drained.p99)),
            })
        };
        self.arms().into_iter().map(row).collect()
    }
}
