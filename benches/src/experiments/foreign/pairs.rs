//! Urgent requests beside kernels of other compilers: through the scheduler, and on streams of the driver whose priorities differ.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use preempt::{Buffer, Preemption, Program, ProgramCall, Scheduler};
use preempt_driver::{Event, Launch, Level, Module, Pinned, Stream};
use preempt_microkernels::answer;
use preempt_test_kit::Random;

use super::super::cuda::spin_until;
use super::super::{KERNELS, SetOnDrop, random_time, spin};
use super::subject::Subject;
use crate::samples::Samples;

/// Blocks of a request, of 1024 threads.
const BLOCKS: u32 = 8;
/// Launches of the batch that are submitted and not over.
const DEPTH: usize = 2;
/// A request comes at most so long after the one before is answered.
const GAP: Duration = Duration::from_millis(4);
/// The least and the most time from arming a request to its launch.
const ANNOUNCED: (Duration, Duration) = (Duration::from_micros(50), Duration::from_micros(600));
/// Time for which the batch runs alone.
const ALONE: Duration = Duration::from_millis(200);

/// Requests of one arm.
#[derive(Default)]
pub struct Arm {
    pub times: Samples,
    /// Time of the batch, and its runs meanwhile.
    batch: (Duration, u32),
    alone: (Duration, u32),
    pub yields: u32,
    /// Requests that began without a call of the driver.
    pub began_armed: u32,
}

impl Arm {
    /// The time of a run of the batch, less that of the requests alone, to that of one without requests.
    pub fn slowdown(&self, request: Duration) -> Option<f64> {
        let each = |(time, runs): (Duration, u32)| (runs > 0).then(|| time / runs);
        let requests = request * self.times.len() as u32;
        let beside = each((self.batch.0.saturating_sub(requests), self.batch.1))?;
        each(self.alone).map(|alone| beside.as_secs_f64() / alone.as_secs_f64())
    }
}

/// How the scheduler runs a batch and the requests beside it.
#[derive(Clone, Copy)]
pub struct Manner {
    /// Whether the batch has yield points.
    pub has_points: bool,
    /// Whether requests are armed before they come.
    pub is_armed: bool,
}

/// What the batch is: launches in their order.
pub struct Pair<'a> {
    pub steps: Vec<&'a Subject>,
}

fn is_answered(done: &Pinned<u32>) -> bool {
    (0..BLOCKS as usize).all(|block| done.get(block) == 1)
}

fn clear(done: &mut Pinned<u32>) {
    (0..BLOCKS as usize).for_each(|block| done.set(block, 0));
}

/// Streams and the request's launches.
pub struct Requests<'a> {
    scheduler: &'a Scheduler,
    random: Random,
    low: Stream,
    high: Stream,
    raw: Launch,
    done: Pinned<u32>,
    urgent: preempt::Stream,
    /// What requests through the scheduler write.
    scheduled: Buffer<u32>,
    /// A request as a program, to arm, and its place there.
    program: Program,
    place: ProgramCall,
}

impl<'a> Requests<'a> {
    /// Loads the request's kernel, and records the program, when nothing runs.
    pub fn new(scheduler: &'a Scheduler, seed: u64) -> Result<Requests<'a>> {
        let mut done = Pinned::filled(0u32, BLOCKS as usize)?;
        let call = answer(1, &mut done).grid(BLOCKS);
        let ptx = KERNELS.ptx().context("this build has no kernels for a GPU")?;
        let module = Module::load(ptx, &[call.kernel()])?;
        let raw = Launch::plain(module.plain(call.kernel())?, call);
        let (low, high) = (Stream::new(Level::Lowest)?, Stream::new(Level::Highest)?);
        let mut scheduled = scheduler.zeroed(BLOCKS as usize)?;
        let (urgent, mut place) = (scheduler.stream(10), None);
        let program = urgent.program("request", |program| {
            place = Some(program.launch(answer(1, &mut scheduled).grid(BLOCKS))?);
            Ok(())
        })?;
        let (random, place) = (Random(seed), place.context("recorded")?);
        Ok(Requests { scheduler, random, low, high, raw, done, urgent, scheduled, program, place })
    }

    /// Requests on the idle device, by raw launches.
    pub fn idle(&mut self, samples: u32) -> Result<Samples> {
        let mut times = Samples::default();
        for _ in 0..samples {
            spin(random_time(&mut self.random, GAP));
            clear(&mut self.done);
            let start = Instant::now();
            // SAFETY: no other work uses what it writes.
            unsafe { self.raw.on(&self.high)? };
            spin_until(|| Ok(is_answered(&self.done)))?;
            times.push(start.elapsed());
            self.high.synchronize()?;
        }
        Ok(times)
    }

    /// The originals on a stream of the least priority, and requests on one of the highest.
    pub fn by_priorities(&mut self, pair: &Pair<'_>, samples: u32, arm: &mut Arm) -> Result<()> {
        let mut batch = RawBatch::new(&self.low, pair)?;
        let start = Instant::now();
        while start.elapsed() < ALONE {
            batch.top_up()?;
        }
        batch.end()?;
        arm.alone = (arm.alone.0 + start.elapsed(), arm.alone.1 + batch.runs);
        let mut batch = RawBatch::new(&self.low, pair)?;
        let start = Instant::now();
        for _ in 0..samples {
            let gap = random_time(&mut self.random, GAP);
            let since = Instant::now();
            while since.elapsed() < gap {
                batch.top_up()?;
            }
            clear(&mut self.done);
            let request = Instant::now();
            // SAFETY: no other work uses what it writes.
            unsafe { self.raw.on(&self.high)? };
            while !is_answered(&self.done) {
                batch.top_up()?;
            }
            arm.times.push(request.elapsed());
        }
        batch.end()?;
        self.high.synchronize()?;
        arm.batch = (arm.batch.0 + start.elapsed(), arm.batch.1 + batch.runs);
        Ok(())
    }

    /// Through the scheduler.
    pub fn by_scheduler(
        &mut self,
        pair: &Pair<'_>,
        Manner { has_points, is_armed }: Manner,
        samples: u32,
        arm: &mut Arm,
    ) -> Result<()> {
        let (time, runs, _) = self.beside(pair, has_points, |_| {
            thread::sleep(ALONE);
            Ok(())
        })?;
        arm.alone = (arm.alone.0 + time, arm.alone.1 + runs);
        let (mut times, mut began_armed) = (Samples::default(), 0);
        let (time, runs, yields) = self.beside(pair, has_points, |requests| {
            for _ in 0..samples {
                let gap = random_time(&mut requests.random, GAP);
                let announced = random_time(&mut requests.random, ANNOUNCED.1 - ANNOUNCED.0);
                let announced = if is_armed { ANNOUNCED.0 + announced } else { Duration::ZERO };
                spin(gap.saturating_sub(announced));
                let call = answer(1, &mut requests.scheduled).grid(BLOCKS);
                if is_armed {
                    requests.program.set(requests.place, call)?;
                    requests.program.arm()?;
                    spin(announced);
                    let start = Instant::now();
                    let report = requests.program.launch()?.wait()?;
                    times.push(start.elapsed());
                    began_armed += u32::from(report.armed);
                } else {
                    let start = Instant::now();
                    requests.urgent.launch(call)?.wait()?;
                    times.push(start.elapsed());
                }
            }
            Ok(())
        })?;
        arm.batch = (arm.batch.0 + time, arm.batch.1 + runs);
        arm.yields += yields;
        arm.began_armed += began_armed;
        arm.times.append(times);
        Ok(())
    }

    /// Runs the batch while `task` runs: its time, its runs, and how often it yielded.
    fn beside(
        &mut self,
        pair: &Pair<'_>,
        has_points: bool,
        task: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<(Duration, u32, u32)> {
        let call = |step: &&Subject| {
            let with_points = step.yielding.as_ref().filter(|_| has_points);
            with_points.unwrap_or(&step.call).clone().preemption(Preemption::Preemptible)
        };
        let calls: Vec<_> = pair.steps.iter().map(call).collect();
        let stream = self.scheduler.stream(0);
        let (ends, runs, yields) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
        let start = Instant::now();
        let ended = thread::scope(|scope| {
            // Also where the task panics: the scope waits for the thread.
            let task_is_over = SetOnDrop(&ends);
            let batch = scope.spawn(|| {
                let mut running = std::collections::VecDeque::new();
                let over = |handles: Vec<preempt::Handle<preempt::LaunchReport>>| {
                    for handle in handles {
                        yields.fetch_add(handle.wait()?.yields, Relaxed);
                    }
                    runs.fetch_add(1, Relaxed);
                    Ok::<(), preempt::Error>(())
                };
                while !ends.load(Relaxed) {
                    let launched = calls.iter().map(|call| stream.launch(call.clone()));
                    running.push_back(launched.collect::<Result<Vec<_>, _>>()?);
                    if running.len() > DEPTH {
                        running.pop_front().map(over).transpose()?;
                    }
                }
                running.into_iter().try_for_each(over)
            });
            let result = task(self);
            drop(task_is_over);
            let ended = batch.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result.and(ended.map_err(anyhow::Error::from))
        });
        ended?;
        Ok((start.elapsed(), runs.into_inner(), yields.into_inner()))
    }
}

/// A batch by raw launches.
struct RawBatch<'a> {
    stream: &'a Stream,
    steps: Vec<&'a Launch>,
    events: [Event; DEPTH],
    /// Which events are recorded.
    pending: [bool; DEPTH],
    runs: u32,
}

impl<'a> RawBatch<'a> {
    fn new(stream: &'a Stream, pair: &Pair<'a>) -> Result<RawBatch<'a>> {
        let events = [Event::new()?, Event::new()?];
        let steps = pair.steps.iter().map(|step| step.raw()).collect();
        Ok(RawBatch { stream, steps, events, pending: [false; DEPTH], runs: 0 })
    }

    /// Launches the steps again if fewer runs than [`DEPTH`] are pending.
    fn top_up(&mut self) -> Result<()> {
        for (event, pending) in self.events.iter().zip(&mut self.pending) {
            if *pending && !event.is_over()? {
                continue;
            }
            self.runs += u32::from(*pending);
            for step in &self.steps {
                // SAFETY: no other work uses the buffers, but the runs before, which come first in the stream.
                unsafe { step.on(self.stream)? };
            }
            self.stream.record(event)?;
            *pending = true;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.stream.synchronize()?;
        self.runs += self.pending.iter().filter(|&&pending| pending).count() as u32;
        self.pending = [false; DEPTH];
        Ok(())
    }
}
