//! Armed programs at random, beside threads that wait in the driver; and what they cost others.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use preempt::error::LaunchError;
use preempt::policy::StaticPriority;
use preempt::{
    Buffer, Error, Handle, LaunchReport, Preemption, Program, ProgramCall, Scheduler, Stream,
};
use preempt_driver::{Array, Gpu, Module};
use preempt_microkernels::{count, occupy};
use preempt_report::microseconds;
use preempt_test_kit::Random;
use preempt_test_kit::storm::Tally;
use serde_json::json;

use super::{Bench, Experiment, Outcome, Rows, line, with_tally};
use crate::progress::Progress;
use crate::samples::{Samples, ratio, show, show_ratio};

/// Times that a program is armed.
const TRIES: u32 = 100_000;
const CPU_TRIES: u32 = 5_000;
const QUICK_TRIES: u32 = 100;

/// Block-tasks of each of the two kernels of a program.
const TASKS: u32 = 16;

/// Times: a program stays armed for the first, and a call of the driver is late after both.
const ARMED_FOR: Duration = Duration::from_millis(1);
const SLACK: Duration = Duration::from_millis(5);

/// Parts of the tries, in turn on an idle device and beside victims.
const PARTS: u64 = 10;

/// The longest time from arming to the launch: beyond that for which a program stays armed.
const LATE: Duration = Duration::from_micros(1500);

/// One try in this many may come too late; the others come soon.
const SELDOM: u32 = 100;
const SOON: Duration = Duration::from_micros(30);

/// Programs that are kept armed beside a victim, and launches of it with each number.
const BESIDE: [usize; 4] = [0, 1, 2, 4];
const VICTIMS: u32 = 40;

/// The victim: its time, and the length of a block-task. One beside programs at random is shorter, because what waits for
/// the whole device waits for it, too, and is not to be late for that.
const VICTIM: Duration = Duration::from_millis(5);
const VICTIM_AT_RANDOM: Duration = Duration::from_millis(2);
const LENGTH: Duration = Duration::from_micros(20);

/// The time after which a program is armed again.
const AGAIN: Duration = Duration::from_micros(300);

/// Time between two calls of a thread in the driver. A module is never unloaded.
const OFTEN: Duration = Duration::from_micros(200);
const SELDOM_LOADED: Duration = Duration::from_millis(20);

/// The least PTX.
const MODULE: &str =
    ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry nothing() { ret; }\n";

/// The experiment `armed`.
#[derive(Debug)]
pub struct Armed;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
A program is armed and launched at random moments, or not at all. It is changed at random before it
is launched, and cancelled at random after. Meanwhile, threads call what waits for the whole device
in the driver: `cuMemAlloc`, `cuMemFree`, `cuCtxSynchronize`, copies on the legacy stream, and
`cuModuleLoad`. (On the CPU device there are no such threads.) A program has two kernels that count.
In half of the tries the device is idle, and in the others victims of 2 ms fill it, so that a gate
may wait for room. Then a victim of 5 ms runs, and short launches one by one, beside programs that
are kept armed and never launched.

- tries: how often a program was armed. `began_armed` of them began without a call of the driver,
  `began_armed_beside_victims` of these beside a victim. `changed` and `cancelled` say how often it
  was changed, and cancelled in time; `cancelled_midway` of these launches had done a part.
- the longest calls: the longest time in each of the driver's calls, with the time of the call
  itself, and of a victim. A program stays armed for 1 ms. `calls_late` took longer than 6 ms.
- lost, repeated: block-tasks that should have run and did not, and runs beyond the first. After a
  cancel, those of the report are looked for. Anything but 0 is a bug.
- beside armed programs: medians, and their ratio to those beside none. A victim is a launch of the
  scheduler; a short launch is one of another stream, from the call to the return of `wait`.
";

impl Experiment for Armed {
    fn name(&self) -> &'static str {
        "armed"
    }

    fn about(&self) -> &'static str {
        "Armed programs at random, beside threads that wait in the driver; and what they cost others."
    }

    fn meaning(&self) -> &'static [&'static str] {
        &[MEANING]
    }

    fn run(&self, bench: &Bench) -> Result<Outcome> {
        run(bench)
    }
}

/// A program of two kernels that count.
struct Counts {
    program: Program,
    calls: [ProgramCall; 2],
    /// Block-tasks of each call.
    grids: [u32; 2],
    counts: Buffer<u32>,
    /// What the counts are, after all that was launched.
    expected: Vec<u32>,
}

impl Counts {
    fn new(scheduler: &Scheduler, stream: &Stream) -> Result<Counts> {
        let mut counts = scheduler.zeroed(TASKS as usize)?;
        let mut calls = None;
        let program = stream.program("counts", |program| {
            program.preemption(Preemption::Preemptible);
            let mut call = || program.launch(count(&mut counts).grid(TASKS).block(32));
            calls = Some([call()?, call()?]);
            Ok(())
        })?;
        let (calls, expected) = (calls.context("recorded")?, vec![0; TASKS as usize]);
        Ok(Counts { program, calls, grids: [TASKS; 2], counts, expected })
    }

    /// Gives one of the calls another grid.
    fn change(&mut self, random: &mut Random) -> Result<()> {
        let (at, grid) = (random.below(2) as usize, 1 + random.below(TASKS));
        let call = count(&mut self.counts).grid(grid).block(32);
        self.program.set(self.calls[at], call)?;
        self.grids[at] = grid;
        Ok(())
    }

    /// Expects the block-tasks of the first `calls` calls once more.
    fn expect(&mut self, calls: usize) {
        for &grid in &self.grids[..calls] {
            self.expected[..grid as usize].iter_mut().for_each(|count| *count += 1);
        }
    }

    /// Takes the end of a launch; `None` if it was cancelled. The report of a cancel says how many block-tasks have run: all
    /// of the first call before any of the second one.
    fn end(
        &mut self,
        handle: &Handle<LaunchReport>,
        stream: &Stream,
        tally: &mut Tally,
    ) -> Result<Option<LaunchReport>> {
        let (done, tasks) = match handle.wait() {
            Ok(report) => {
                tally.report(&report);
                self.expect(2);
                return Ok(Some(report));
            }
            Err(Error::Launch(LaunchError::Cancelled { done, tasks })) => (done, tasks),
            Err(error) => return Err(error.into()),
        };
        tally.cancelled += 1;
        tally.cancelled_midway += u64::from(done > 0 && done < tasks);
        let is_first_over = done >= self.grids[0];
        self.expect(usize::from(is_first_over));
        let part = self.grids[usize::from(is_first_over)] as usize;
        let left = if is_first_over { done - self.grids[0] } else { done };
        let found = stream.download(&self.counts)?.wait()?;
        let possible: Vec<u32> = (0..)
            .zip(found.iter().zip(&self.expected))
            .map(|(at, (&found, &least))| found.clamp(least, least + u32::from(at < part)))
            .collect();
        tally.count("a cancelled program", &found, &possible);
        let sum = |counts: &[u32]| counts.iter().sum::<u32>();
        let expected = sum(&self.expected) + left;
        tally.count("all of a cancelled program", &[sum(&possible)], &[expected]);
        self.expected = found;
        Ok(None)
    }

    fn check(&self, stream: &Stream, tally: &mut Tally) -> Result<()> {
        let found = stream.download(&self.counts)?.wait()?;
        tally.count("an armed program", &found, &self.expected);
        Ok(())
    }
}

/// Launches that fill the device.
struct Victims {
    stream: Stream,
    counts: Buffer<u32>,
    tasks: u32,
    launches: u32,
}

impl Victims {
    fn new(bench: &Bench, scheduler: &Scheduler, time: Duration) -> Result<Victims> {
        let sms = bench.device.as_ref().map_or(1, |device| device.properties().sms);
        let tasks = sms * 2 * time.as_nanos().div_ceil(LENGTH.as_nanos()) as u32;
        let counts = scheduler.zeroed(tasks as usize)?;
        Ok(Victims { stream: scheduler.stream(0), counts, tasks, launches: 0 })
    }

    fn launch(&mut self) -> Result<Handle<LaunchReport>> {
        let call = occupy(&mut self.counts, LENGTH.as_nanos() as u64).grid(self.tasks).block(1024);
        self.launches += 1;
        // The same form each time.
        Ok(self.stream.launch(call.preemption(Preemption::Preemptible))?)
    }

    /// Compares the counts, the first of which short launches have raised, too.
    fn check(&self, short: u32, tally: &mut Tally) -> Result<()> {
        let found = self.stream.download(&self.counts)?.wait()?;
        let mut expected = vec![self.launches; found.len()];
        expected[0] += short;
        tally.count("a victim", &found, &expected);
        Ok(())
    }
}

fn run(bench: &Bench) -> Result<Outcome> {
    let tries = if bench.gpu.is_some() { TRIES } else { CPU_TRIES };
    let tries = bench.amount(QUICK_TRIES, tries);
    let scheduler = bench.builder(StaticPriority::new())?.armed_for(ARMED_FOR).build()?;
    let mut tally = Tally::default();
    let mut rows = Rows::below(["", "", "tries, samples", "p50", "longest", "ratio"]);
    let calls = bench.gpu.map(|_| Calls::default());
    let Began { armed: began, changed } =
        at_random(bench, &scheduler, tries, calls.as_ref(), &mut tally)?;
    for (name, beside_victims) in [("idle", false), ("beside victims", true)] {
        let tries = (0..tries).filter(|&at| is_beside_victims(at, tries) == beside_victims).count();
        let began = began[usize::from(beside_victims)];
        let what = format!("{name}: began armed");
        rows.push(
            line(["at random", &what, &tries.to_string(), "-", "-", &format!("{began}")]),
            json!({ "what": "at random", "beside": name, "tries": tries, "began_armed": began }),
        );
    }
    let mut longest = Duration::ZERO;
    for (name, samples) in calls.iter().flat_map(Calls::samples) {
        let summary = samples.summary();
        longest = longest.max(summary.max);
        let (p50, most) = (show(summary.p50), show(summary.max));
        rows.push(
            line(["in the driver", name, &samples.len().to_string(), &p50, &most, "-"]),
            json!({
                "what": "in the driver",
                "call": name,
                "samples": samples.len(),
                "p50_us": microseconds(summary.p50),
                "max_us": microseconds(summary.max),
            }),
        );
    }
    let (victims, launches) = beside(bench, &scheduler, &mut tally)?;
    for (name, of) in [("victim", &victims), ("short launch", &launches)] {
        for (programs, samples) in BESIDE.iter().zip(of) {
            let summary = samples.summary();
            let over = ratio(summary.p50, of[0].p50());
            let beside = format!("beside {programs} armed");
            let (samples, p50) = (samples.len(), show(summary.p50));
            rows.push(
                line([
                    name,
                    &beside,
                    &samples.to_string(),
                    &p50,
                    &show(summary.max),
                    &show_ratio(over),
                ]),
                json!({
                    "what": name,
                    "armed": programs,
                    "samples": samples,
                    "p50_us": microseconds(summary.p50),
                    "over_none": over,
                }),
            );
        }
    }
    let worst = |of: &[Samples]| ratio(of[of.len() - 1].p50(), of[0].p50());
    Ok(Outcome {
        about: "Armed programs at random, and what they cost others.".into(),
        table: rows.table,
        text_columns: 2,
        rows: rows.json,
        summary: with_tally(
            json!({
                "tries": tries,
                "began_armed": began.iter().sum::<u32>(),
                "began_armed_beside_victims": began[1],
                "changed": changed,
                "cancelled": tally.cancelled,
                "cancelled_midway": tally.cancelled_midway,
                "longest_call_us": calls.is_some().then(|| microseconds(longest)),
                "calls_late": calls.as_ref().map(|calls| calls.late.load(Ordering::Relaxed)),
                "victim_beside_four": worst(&victims),
                "launch_beside_four": worst(&launches),
            }),
            &tally,
        ),
        mistake: tally.mistake,
    })
}

/// What became of the tries.
#[derive(Default)]
struct Began {
    /// Launches that began armed, on an idle device and beside a victim.
    armed: [u32; 2],
    /// Times that the program was changed.
    changed: u32,
}

/// Whether a victim fills the device in one of the tries.
fn is_beside_victims(at: u32, tries: u32) -> bool {
    u64::from(at) * PARTS / u64::from(tries) % 2 == 1
}

/// Arms a program again and again.
fn at_random(
    bench: &Bench,
    scheduler: &Scheduler,
    tries: u32,
    calls: Option<&Calls>,
    tally: &mut Tally,
) -> Result<Began> {
    let stream = scheduler.stream(1);
    let mut random = Random(bench.seed);
    let mut counts = Counts::new(scheduler, &stream)?;
    let mut victims = Victims::new(bench, scheduler, VICTIM_AT_RANDOM)?;
    let progress = Progress::new("at random", u64::from(tries));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let threads: Vec<_> = calls
            .zip(bench.gpu)
            .map(|(calls, gpu)| {
                let over = &over;
                scope.spawn(move || calls.make(gpu, over))
            })
            .into_iter()
            .collect();
        let began = (|| {
            let mut began = Began::default();
            let mut victim: Option<Handle<LaunchReport>> = None;
            for at in 0..tries {
                let is_beside = is_beside_victims(at, tries);
                if let Some(last) = victim.take_if(|last| !is_beside || last.is_done()) {
                    tally.report(&last.wait()?);
                }
                if is_beside && victim.is_none() {
                    victim = Some(victims.launch()?);
                }
                counts.program.arm()?;
                let most = if random.below(SELDOM) == 0 { LATE } else { SOON };
                super::spin(super::random_time(&mut random, most));
                if random.below(8) == 0 {
                    counts.change(&mut random)?;
                    began.changed += 1;
                }
                // Otherwise it stays armed, or is disarmed by its limit.
                if random.below(8) > 0 {
                    let handle = counts.program.launch()?;
                    if random.below(8) == 0 {
                        super::spin(super::random_time(&mut random, SOON));
                        handle.cancel();
                    }
                    let report = counts.end(&handle, &stream, tally)?;
                    let is_armed = report.is_some_and(|report| report.armed);
                    began.armed[usize::from(is_beside)] += u32::from(is_armed);
                }
                progress.step();
            }
            victim.map_or(Ok(()), |last| last.wait().map(|report| tally.report(&report)))?;
            Ok(began)
        })();
        over.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().ok().context("a thread in the driver panicked")??;
        }
        counts.check(&stream, tally)?;
        victims.check(0, tally)?;
        began
    })
}

/// Calls of the driver that wait for the whole device, by two threads.
#[derive(Default)]
struct Calls {
    memory: Mutex<Samples>,
    copies: Mutex<Samples>,
    modules: Mutex<Samples>,
    /// Calls that took longer than a program stays armed, and the slack.
    late: AtomicU32,
}

impl Calls {
    fn samples(&self) -> Vec<(&'static str, Samples)> {
        let of = |samples: &Mutex<Samples>| samples.lock().map(|of| of.clone()).unwrap_or_default();
        vec![
            ("allocate, fill, synchronize, free", of(&self.memory)),
            ("copy on the legacy stream", of(&self.copies)),
            ("load a module", of(&self.modules)),
        ]
    }

    fn make(&self, gpu: Gpu, over: &AtomicBool) -> Result<()> {
        let timed =
            |samples: &Mutex<Samples>, pause, call: &dyn Fn() -> Result<()>| -> Result<()> {
                gpu.make_current()?;
                // The first one takes longer whatever runs.
                call()?;
                while !over.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    call()?;
                    let took = start.elapsed();
                    let is_late = took > ARMED_FOR + SLACK;
                    self.late.fetch_add(u32::from(is_late), Ordering::Relaxed);
                    if let Ok(mut samples) = samples.lock() {
                        samples.push(took);
                    }
                    thread::sleep(pause);
                }
                Ok(())
            };
        thread::scope(|scope| {
            let memory = scope.spawn(|| {
                timed(&self.memory, OFTEN, &|| {
                    Array::<u32>::zeroed(256).map(drop).map_err(Into::into)
                })
            });
            let copies = scope.spawn(|| {
                gpu.make_current()?;
                let array = Array::new(&[1u32; 256])?;
                timed(&self.copies, OFTEN, &|| array.read().map(drop).map_err(Into::into))
            });
            timed(&self.modules, SELDOM_LOADED, &|| {
                Module::load(MODULE, &[]).map(|_| ()).map_err(Into::into)
            })?;
            for thread in [memory, copies] {
                thread.join().ok().context("a thread in the driver panicked")??;
            }
            Ok(())
        })
    }
}

/// Times of a victim, and of short launches, beside each number of armed programs.
fn beside(
    bench: &Bench,
    scheduler: &Scheduler,
    tally: &mut Tally,
) -> Result<(Vec<Samples>, Vec<Samples>)> {
    let streams: Vec<Stream> = (0..4).map(|_| scheduler.stream(2)).collect();
    let programs: Vec<Counts> =
        streams.iter().map(|stream| Counts::new(scheduler, stream)).collect::<Result<_>>()?;
    let mut of = Victims::new(bench, scheduler, VICTIM)?;
    let (mut victims, mut launches) =
        (vec![Samples::default(); BESIDE.len()], vec![Samples::default(); BESIDE.len()]);
    let (armed, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let samples = bench.amount(2, VICTIMS);
    let progress = Progress::new("beside armed programs", u64::from(samples));
    thread::scope(|scope| {
        let arming = scope.spawn(|| -> Result<()> {
            while !over.load(Ordering::Relaxed) {
                let mut programs = programs.iter().take(armed.load(Ordering::Relaxed));
                programs.try_for_each(|counts| counts.program.arm())?;
                thread::sleep(AGAIN);
            }
            Ok(())
        });
        let measured = (|| {
            for _ in 0..samples {
                for (index, &programs) in BESIDE.iter().enumerate() {
                    armed.store(programs, Ordering::Relaxed);
                    thread::sleep(2 * AGAIN);
                    let start = Instant::now();
                    let report = of.launch()?.wait()?;
                    victims[index].push(start.elapsed());
                    tally.report(&report);
                    for _ in 0..5 {
                        let call = count(&mut of.counts).grid(1).block(32);
                        let start = Instant::now();
                        let report = of.stream.launch(call)?.wait()?;
                        launches[index].push(start.elapsed());
                        tally.report(&report);
                    }
                }
                progress.step();
            }
            Ok::<_, anyhow::Error>(())
        })();
        over.store(true, Ordering::Relaxed);
        arming.join().ok().context("the thread that arms panicked")??;
        measured
    })?;
    scheduler.synchronize()?;
    of.check(5 * of.launches, tally)?;
    for (counts, stream) in programs.iter().zip(&streams) {
        counts.check(stream, tally)?;
    }
    Ok((victims, launches))
}
