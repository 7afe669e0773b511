//! The tasks: programs for those of TReM's table III that users wait for, and long kernels for batch tasks.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use preempt::error::PoolError;
use preempt::pool::{Application, Class, Pool, Run, Task, TaskReport};
use preempt::{Buffer, Call, Error, Preemption, Scheduler};
use preempt_microkernels::{HOLD_ROUND_NANOS, hold_in_rounds};
use preempt_workloads::{
    BLACK_SCHOLES, Between, Definition, Memory, Program, SCALABLE, Scalable, Size, Values, find,
};

use super::occupancy::Occupancy;
use crate::experiments::Bench;
use crate::samples::Samples;

/// By which the paper's times are divided: those of user-facing tasks, as the SLA, and those of batch tasks.
pub const USER_FACING_SCALE: u32 = 10;
pub const BATCH_SCALE: u32 = 200;

/// Runs of a task, of which the median is its time alone, and with `--quick`.
const SAMPLES: (u32, u32) = (9, 3);
/// Runs of a task on each other device, ahead of all workloads.
const WARM: u32 = 3;
/// Runs of a program ahead of its time: launches of its kernels change their form in the first of them.
const SETTLES: (u32, u32) = (20, 1);
/// Corrections of the number of repeats.
const CORRECTIONS: u32 = 4;
/// Repeats after a correction by those before, at most: where one takes next to nothing, its time is that of other things.
const GROWTH: u32 = 16;
/// Of a batch task's block-tasks: what stops one at its end alone waits for half of that.
const BLOCK_TASK: Duration = Duration::from_millis(1);
/// Rounds of block-tasks by which the time of one is measured, and with `--quick`.
const ROUNDS: (u32, u32) = (100, 5);

/// A task of table III that users wait for, and the program that stands for it.
#[derive(Debug)]
pub struct Service {
    /// The program.
    pub name: &'static str,
    /// The paper's task.
    pub stands_for: &'static str,
    /// The paper's time, in milliseconds.
    millis: u64,
    /// Where its input is on a GPU: all of `Size::Small`, or evenly between that and `Size::Reduced`, so that its output is
    /// no longer than a few megabytes.
    share: Option<f64>,
}

const fn service(
    name: &'static str,
    stands_for: &'static str,
    millis: u64,
    share: Option<f64>,
) -> Service {
    Service { name, stands_for, millis, share }
}

/// In the order of table III. The repository has no Monte Carlo and no Darkgray, and HotSpot in two dimensions.
pub const SERVICES: [Service; 9] = [
    service("PL", "Particle Filter", 1, Some(0.0)),
    service("NN", "Euclid", 8, Some(0.45)),
    service("NW", "NW", 38, None),
    service("BFS", "BFS", 50, None),
    service("BS", "Black&Scholes", 60, Some(0.5)),
    service("PF", "Pathfinder", 68, Some(0.5)),
    service("HS", "Hot Spot 3D", 81, None),
    service("MD", "Monte Carlo", 150, Some(0.5)),
    service("VA", "Darkgray", 170, Some(0.45)),
];

/// The paper's batch tasks and their times in milliseconds. Here each is one launch of the kernel `hold_in_rounds`.
pub const BATCH: [(&str, u64); 3] =
    [("Lava MD", 46_000), ("Hot Spot", 130_696), ("Gaussian", 311_000)];
/// Milliseconds of the three with `--quick`.
const QUICK_BATCH: [u64; 3] = [20, 30, 40];

/// What builds a program.
#[derive(Clone, Copy, Debug)]
enum Input {
    Sized(&'static Definition, Size),
    Scaled(&'static Scalable, Between),
}

impl Input {
    /// What the service needs: as little as there is on the CPU device.
    fn of(service: &Service, is_gpu: bool) -> Result<Input> {
        let missing = || format!("there is no program {}", service.name);
        match service.share.filter(|_| is_gpu) {
            Some(share) => {
                let all = SCALABLE.iter().chain([&BLACK_SCHOLES]);
                let program = all.into_iter().find(|program| program.name == service.name);
                let size = Between { from: Size::Reduced, to: Size::Small, share };
                Ok(Input::Scaled(program.with_context(missing)?, size))
            }
            None => {
                let size = if is_gpu { Size::Small } else { Size::Trivial };
                Ok(Input::Sized(find(service.name).with_context(missing)?, size))
            }
        }
    }

    fn build(self, memory: Memory<'_>, seed: u32) -> Result<Program, Error> {
        match self {
            Input::Sized(program, size) => (program.build)(memory, size, seed),
            Input::Scaled(program, size) => (program.build)(memory, size, seed),
        }
    }
}

/// Where a task's answer belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ticket {
    /// The job, by its number in the workload.
    pub job: usize,
    /// The task, by its number in the job.
    pub task: u32,
}

/// What a task gives.
#[derive(Debug)]
pub struct Answer {
    /// As the task was given it.
    pub ticket: Ticket,
    /// Whether a batch task has ended while a user-facing one had its place.
    pub ended_stopped: bool,
    output: Output,
}

#[derive(Debug)]
enum Output {
    Values(Values),
    Counts(Vec<u32>),
}

/// A kind of task, as it was measured alone.
#[derive(Clone, Debug)]
pub struct Kind {
    /// What it runs.
    pub name: &'static str,
    /// The paper's task.
    pub stands_for: &'static str,
    /// Whether users wait for it.
    pub class: Class,
    /// The time that it is made for.
    pub wanted: Duration,
    /// The time that it has a device for if it is alone there.
    pub alone: Duration,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    /// A program, the repeats of its steps, and its output, which was compared with the reference.
    Program { input: Input, seed: u32, repeats: u32, expected: Arc<Values> },
    /// Rows of block-tasks of `hold_in_rounds` on all places of the device.
    Hold(Hold),
}

/// Launches of `hold_in_rounds` on all of a device.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    /// Blocks that the device holds.
    pub places: u32,
    /// Threads of a block.
    block: u32,
    rounds: u32,
}

impl Hold {
    /// Of a launch.
    pub fn block_tasks(self) -> u32 {
        self.places.saturating_mul(self.rounds)
    }

    /// A launch that counts in `counts`, which has an element for each block-task.
    pub fn call(self, counts: &mut Buffer<u32>) -> Call<'static> {
        let rounds = BLOCK_TASK.as_nanos() as u32 / HOLD_ROUND_NANOS;
        self.launch(rounds, self.block_tasks(), counts)
    }

    /// A launch of a block-task for each place, which ends at once.
    pub fn brief_call(self, counts: &mut Buffer<u32>) -> Call<'static> {
        self.launch(1, self.places, counts)
    }

    fn launch(self, rounds: u32, block_tasks: u32, counts: &mut Buffer<u32>) -> Call<'static> {
        // In no arm a plain grid: it could neither yield nor be revoked.
        let call = hold_in_rounds(rounds, counts).preemption(Preemption::Preemptible);
        call.grid(block_tasks).block(self.block)
    }
}

impl Kind {
    /// Repeats of a program, or rounds of block-tasks.
    pub fn repeats(&self) -> u32 {
        match self.body {
            Body::Program { repeats, .. } => repeats,
            Body::Hold(Hold { rounds, .. }) => rounds,
        }
    }

    /// The launch of a batch task.
    pub fn hold(&self) -> Option<Hold> {
        match self.body {
            Body::Program { .. } => None,
            Body::Hold(hold) => Some(hold),
        }
    }

    /// Blocks that a device holds, of a batch task.
    pub fn places(&self) -> Option<u32> {
        self.hold().map(|hold| hold.places)
    }

    /// A batch task that is as long as this.
    pub fn lasting(&self, time: Duration) -> Kind {
        let mut kind = self.clone();
        if let Body::Hold(hold) = &mut kind.body {
            let part = time.as_secs_f64() / self.alone.as_secs_f64().max(1e-9);
            hold.rounds = (f64::from(hold.rounds) * part).ceil().max(1.0) as u32;
            kind.alone = time;
        }
        kind
    }

    /// A task of this kind. If it is revoked, its device stays empty for `after` more once its kernel has left.
    ///
    /// A pool that revokes gives the device to the next task as soon as the body has returned and its operations have ended,
    /// whatever time `Stop::Revoke` has, which is what the policy counts on. So it is the body that stays: the task has its
    /// device until then, as in TReM, where the next task waits for a new process.
    pub fn task(
        &self,
        ticket: Ticket,
        occupancy: &Arc<Occupancy>,
        after: Duration,
    ) -> Task<Answer> {
        let (kind, occupancy) = (self.clone(), occupancy.clone());
        Task::new(self.name, move |run| {
            let _entered = occupancy.enter(run.device(), kind.class);
            let output = kind.run(run);
            let ended_stopped =
                kind.class == Class::Batch && occupancy.is_user_facing(run.device());
            if let Err(Error::Pool(PoolError::Revoked { .. })) = &output {
                std::thread::sleep(after);
            }
            Ok(Answer { ticket, ended_stopped, output: output? })
        })
    }

    fn run(&self, run: &Run) -> Result<Output, Error> {
        match self.body {
            Body::Program { input, seed, repeats, .. } => {
                let program = input.build(run.into(), seed)?;
                let repeated = (0..repeats).flat_map(|_| &program.steps);
                for call in program.setup.iter().chain(repeated) {
                    run.launch(call.clone())?;
                }
                // Each program has one.
                let output = program.outputs.first().map(|output| output.download_in(run));
                Ok(Output::Values(output.unwrap_or(Ok(Values::U32(Vec::new())))?))
            }
            Body::Hold(hold) => {
                let mut counts = run.zeroed(hold.block_tasks() as usize)?;
                run.launch(hold.call(&mut counts))?;
                Ok(Output::Counts(run.download(&counts)?))
            }
        }
    }

    /// What is wrong with an answer, if anything is.
    pub fn mistake(&self, answer: &Answer) -> Option<String> {
        let is_right = match (&answer.output, &self.body) {
            (Output::Values(found), Body::Program { expected, .. }) => found.is_identical(expected),
            (Output::Counts(counts), Body::Hold(hold)) => {
                counts.len() == hold.block_tasks() as usize && counts.iter().all(|&one| one == 1)
            }
            _ => false,
        };
        (!is_right).then(|| format!("the output of {} is another one than alone", self.name))
    }
}

/// Runs tasks on a device that they have alone.
#[derive(Debug)]
pub struct Alone {
    user_facing: Application,
    batch: Application,
    is_quick: bool,
}

impl Alone {
    /// On the device of this pool, which has one.
    pub fn on(pool: &Pool, bench: &Bench) -> Alone {
        let [user_facing, batch] =
            [Class::UserFacing, Class::Batch].map(|class| pool.application(class));
        Alone { user_facing, batch, is_quick: bench.quick }
    }

    /// Runs a kind as often as it takes until its kernels are loaded and have their form.
    pub fn warm(&self, kind: &Kind) -> Result<()> {
        match kind.class {
            Class::UserFacing => (0..WARM).try_for_each(|_| self.report(kind).map(drop)),
            Class::Batch => self.report(&kind.lasting(10 * BLOCK_TASK)).map(drop),
        }
    }

    /// What became of one run of this kind.
    fn report(&self, kind: &Kind) -> Result<TaskReport> {
        let application = match kind.class {
            Class::UserFacing => &self.user_facing,
            Class::Batch => &self.batch,
        };
        let task = kind.task(Ticket::default(), &Arc::new(Occupancy::new(1)), Duration::ZERO);
        let (answer, report) = application.submit(&task)?.wait_with_report()?;
        let mistake = kind.mistake(&answer);
        ensure!(mistake.is_none(), "alone on a device, {}", mistake.unwrap_or_default());
        Ok(report)
    }

    /// The median time, after a run that does not count.
    fn time(&self, kind: &Kind, samples: u32) -> Result<Duration> {
        let mut times = Samples::default();
        for sample in 0..=samples {
            let report = self.report(kind)?;
            if sample > 0 {
                times.push(report.ran);
            }
        }
        Ok(times.p50())
    }

    /// The service's task, repeated until it takes the paper's time in this scale. With `--quick`, it takes what it takes.
    pub fn service(
        &self,
        service: &'static Service,
        bench: &Bench,
        scheduler: &Scheduler,
    ) -> Result<Kind> {
        let (input, seed) = (Input::of(service, bench.gpu.is_some())?, bench.seed as u32);
        let expected = Arc::new(expected(input, seed, scheduler)?);
        let mut kind = Kind {
            name: service.name,
            stands_for: service.stands_for,
            class: Class::UserFacing,
            wanted: Duration::from_millis(service.millis) / USER_FACING_SCALE,
            alone: Duration::ZERO,
            body: Body::Program { input, seed, repeats: 1, expected },
        };
        let (samples, settles) = match self.is_quick {
            true => (SAMPLES.1, SETTLES.1),
            false => (SAMPLES.0, SETTLES.0),
        };
        (0..settles).try_for_each(|_| self.report(&kind).map(drop))?;
        kind.alone = self.time(&kind, samples)?;
        let once = kind.alone;
        for _ in 0..if self.is_quick { 0 } else { CORRECTIONS } {
            let missing = kind.wanted.saturating_sub(once).as_secs_f64();
            let Body::Program { repeats, .. } = &mut kind.body else { break };
            let each = match *repeats - 1 {
                // For a start, as if the inputs took no time.
                0 => once.as_secs_f64(),
                more => kind.alone.saturating_sub(once).as_secs_f64() / f64::from(more),
            };
            let more = (missing / each.max(1e-9)).round() as u32;
            let corrected = more.saturating_add(1).min(repeats.saturating_mul(GROWTH));
            if corrected == *repeats {
                break;
            }
            *repeats = corrected;
            kind.alone = self.time(&kind, samples)?;
        }
        Ok(kind)
    }

    /// A batch task of the paper, as long as in this scale.
    pub fn batch(&self, index: usize, bench: &Bench, scheduler: &Scheduler) -> Result<Kind> {
        let (stands_for, millis) = BATCH[index];
        let wanted = match self.is_quick {
            true => Duration::from_millis(QUICK_BATCH[index]),
            false => Duration::from_millis(millis) / BATCH_SCALE,
        };
        let properties = scheduler.device().properties();
        // A GPU's SMs have room for two blocks of the largest size, and for nothing beside them.
        let (block, of_sm) = match bench.gpu {
            Some(_) => (1024, properties.threads_per_sm / 1024),
            None => (1, properties.blocks_per_sm),
        };
        let places = properties.sms * of_sm.max(1);
        let rounds = if self.is_quick { ROUNDS.1 } else { ROUNDS.0 };
        let body = Body::Hold(Hold { places, block, rounds });
        let (name, class, alone) = ("hold", Class::Batch, Duration::ZERO);
        let mut kind = Kind { name, stands_for, class, wanted, alone, body };
        kind.alone = self.time(&kind, 1)?;
        let mut kind = kind.lasting(wanted);
        kind.alone = self.report(&kind)?.ran;
        Ok(kind)
    }
}

/// What a program gives alone on a device, compared with the sequential reference. All later outputs must be the same, bit by
/// bit.
fn expected(input: Input, seed: u32, scheduler: &Scheduler) -> Result<Values> {
    let program = input.build(scheduler.into(), seed)?;
    let stream = scheduler.stream(0);
    for call in program.setup.iter().chain(&program.steps) {
        drop(stream.launch(call.clone())?);
    }
    let output = program.outputs.first().context("a program without an output")?;
    let values = output.download(&stream)?;
    let mistake = output.mistake(&values, &output.reference());
    ensure!(mistake.is_none(), "alone on a device: {}", mistake.unwrap_or_default());
    Ok(values)
}
