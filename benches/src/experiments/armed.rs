//! Armed programs at random, beside threads that wait in the driver; and what they cost others.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use preempt::policy::StaticPriority;
use preempt::{Buffer, Preemption, Program, Scheduler, Stream};
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

/// The longest time from arming to the launch: beyond the millisecond for which a program stays armed.
const LATE: Duration = Duration::from_micros(1500);

/// One try in this many may come too late; the others come soon.
const SELDOM: u32 = 100;
const SOON: Duration = Duration::from_micros(30);

/// Programs that are kept armed beside a victim, and launches of it with each number.
const BESIDE: [usize; 4] = [0, 1, 2, 4];
const VICTIMS: u32 = 40;

/// The victim: its time, and the length of a block-task.
const VICTIM: Duration = Duration::from_millis(5);
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
Programs are armed and launched at random moments, or not at all, or changed, while threads call
what waits for the whole device in the driver: `cuMemAlloc`, `cuMemFree`, `cuCtxSynchronize`, copies
on the legacy stream, and `cuModuleLoad`. (On the CPU device there are no such threads.) A program
has two kernels that count. Then a victim of 5 ms runs, and short launches one by one, beside
programs that are kept armed and never launched.

- tries: how often a program was armed. `began_armed` of them began without a call of the driver.
- the longest calls: the longest time in each of the driver's calls, with the time of the call
  itself. A program stays armed for 1 ms.
- lost, repeated: block-tasks that should have run and did not, and runs beyond the first. Anything
  but 0 is a bug.
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
    counts: Buffer<u32>,
    launches: u32,
}

impl Counts {
    fn new(scheduler: &Scheduler, stream: &Stream) -> Result<Counts> {
        let mut counts = scheduler.zeroed(TASKS as usize)?;
        let program = stream.program("counts", |program| {
            program.preemption(Preemption::Preemptible);
            for _ in 0..2 {
                program.launch(count(&mut counts).grid(TASKS).block(32))?;
            }
            Ok(())
        })?;
        Ok(Counts { program, counts, launches: 0 })
    }

    fn check(&self, stream: &Stream, tally: &mut Tally) -> Result<()> {
        let found = stream.download(&self.counts)?.wait()?;
        tally.count("an armed program", &found, &vec![2 * self.launches; found.len()]);
        Ok(())
    }
}

fn run(bench: &Bench) -> Result<Outcome> {
    let tries = if bench.gpu.is_some() { TRIES } else { CPU_TRIES };
    let tries = bench.amount(QUICK_TRIES, tries);
    let scheduler = bench.builder(StaticPriority::new())?.build()?;
    let mut tally = Tally::default();
    let mut rows = Rows::below(["", "", "tries, samples", "p50", "longest", "ratio"]);
    let calls = bench.gpu.map(|_| Calls::default());
    let began = at_random(bench, &scheduler, tries, calls.as_ref(), &mut tally)?;
    rows.push(
        line(["at random", "began armed", &tries.to_string(), "-", "-", &format!("{began}")]),
        json!({ "what": "at random", "tries": tries, "began_armed": began }),
    );
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
                "began_armed": began,
                "longest_call_us": calls.is_some().then(|| microseconds(longest)),
                "victim_beside_four": worst(&victims),
                "launch_beside_four": worst(&launches),
            }),
            &tally,
        ),
        mistake: tally.mistake,
    })
}

/// Arms a program again and again. How many launches began armed.
fn at_random(
    bench: &Bench,
    scheduler: &Scheduler,
    tries: u32,
    calls: Option<&Calls>,
    tally: &mut Tally,
) -> Result<u32> {
    let stream = scheduler.stream(1);
    let mut random = Random(bench.seed);
    let mut counts = Counts::new(scheduler, &stream)?;
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
            let mut began = 0;
            for _ in 0..tries {
                counts.program.arm()?;
                let most = if random.below(SELDOM) == 0 { LATE } else { SOON };
                let (start, after) = (Instant::now(), super::random_time(&mut random, most));
                while start.elapsed() < after {
                    std::hint::spin_loop();
                }
                // Otherwise it stays armed, or is disarmed by its limit.
                if random.below(8) > 0 {
                    let report = counts.program.launch()?.wait()?;
                    counts.launches += 1;
                    began += u32::from(report.armed);
                    tally.report(&report);
                }
                progress.step();
            }
            Ok(began)
        })();
        over.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().ok().context("a thread in the driver panicked")??;
        }
        counts.check(&stream, tally)?;
        began
    })
}

/// Calls of the driver that wait for the whole device, by two threads.
#[derive(Default)]
struct Calls {
    memory: Mutex<Samples>,
    copies: Mutex<Samples>,
    modules: Mutex<Samples>,
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
    let sms = bench.device.as_ref().map_or(1, |device| device.properties().sms);
    let tasks = sms * 2 * VICTIM.as_nanos().div_ceil(LENGTH.as_nanos()) as u32;
    let mut counts = scheduler.zeroed::<u32>(tasks as usize)?;
    let batch = scheduler.stream(0);
    let (mut victims, mut launches) =
        (vec![Samples::default(); BESIDE.len()], vec![Samples::default(); BESIDE.len()]);
    let (armed, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let samples = bench.amount(2, VICTIMS);
    let progress = Progress::new("beside armed programs", u64::from(samples));
    let mut count_of_victims = 0;
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
                    let call =
                        occupy(&mut counts, LENGTH.as_nanos() as u64).grid(tasks).block(1024);
                    // The same form each time.
                    let call = call.preemption(Preemption::Preemptible);
                    let start = Instant::now();
                    let report = batch.launch(call)?.wait()?;
                    victims[index].push(start.elapsed());
                    tally.report(&report);
                    count_of_victims += 1;
                    for _ in 0..5 {
                        let call = count(&mut counts).grid(1).block(32);
                        let start = Instant::now();
                        let report = batch.launch(call)?.wait()?;
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
    let found = batch.download(&counts)?.wait()?;
    let mut expected = vec![count_of_victims; found.len()];
    expected[0] += 5 * count_of_victims;
    tally.count("a victim", &found, &expected);
    for (counts, stream) in programs.iter().zip(&streams) {
        counts.check(stream, tally)?;
    }
    Ok((victims, launches))
}
