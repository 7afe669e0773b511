//! Storms: kernels that count their block-tasks, while SMs are taken from them and given back at
//! random, and while they are cancelled. Tests and `preempt-bench` share them.

use std::time::Duration;

use preempt::policy::{Arrival, DeviceView, Plan, Policy};
use preempt::{Buffer, Error, Handle, LaunchId, LaunchReport, Preemption, Scheduler, Stream};
use preempt_device::abi::SmRange;
use preempt_device::worker::{MAX_REQUEUES, MAX_REQUEUES_FOR_LIMITS};
use preempt_test_kernels as kernels;

use crate::Random;
use preempt::error::LaunchError;

/// Deals the SMs anew at every occasion: a random range for each launch, none for some, or all SMs to two of them. The
/// newest launch always gets some, so that the storm goes on.
#[derive(Debug)]
pub struct Chaos {
    random: Random,
    launches: Vec<LaunchId>,
}

impl Chaos {
    /// A policy that deals by random numbers from this seed.
    pub fn new(seed: u64) -> Chaos {
        Chaos { random: Random(seed), launches: Vec::new() }
    }
}

impl Policy for Chaos {
    fn name(&self) -> &str {
        "chaos"
    }

    fn arrived(&mut self, _now: Duration, launch: Arrival) {
        self.launches.push(launch.id);
    }

    fn departed(&mut self, _now: Duration, launch: LaunchId) {
        self.launches.retain(|&other| other != launch);
    }

    fn assign(&mut self, _now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        let sms = device.sms();
        if let [.., other, newest] = self.launches[..]
            && self.random.below(4) == 0
        {
            return plan.grant_both([other, newest], device);
        }
        let mut start = 0;
        for (index, &launch) in self.launches.iter().rev().enumerate() {
            let skipped =
                self.random.below(sms - start + 1).min(if index == 0 { sms - 1 } else { sms });
            let lo = start + skipped.min(sms - start);
            let hi = lo + self.random.below(sms - lo + 1).max(u32::from(index == 0));
            plan.grant(launch, SmRange::new(lo, hi));
            start = hi;
            if start == sms {
                break;
            }
        }
    }

    /// Expects everything for the launch, whatever will be.
    fn foresee(
        &mut self,
        _now: Duration,
        launch: Arrival,
        device: &dyn DeviceView,
        plan: &mut Plan,
    ) {
        plan.grant(launch.id, SmRange::new(0, device.sms()));
    }
}

/// Counts of a storm, and its first mistake.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Kernels that were launched.
    pub kernels: u64,
    /// Block-tasks in the kernels' reports.
    pub block_tasks: u64,
    /// Times that SMs were taken from running kernels.
    pub yields: u64,
    /// Times that kernels were resumed or grew.
    pub resumes: u64,
    /// Kernels that were cancelled.
    pub cancelled: u64,
    /// Cancelled kernels of which some block-tasks had run, and some had not.
    pub cancelled_midway: u64,
    /// Block-tasks that should have run and did not.
    pub lost: u64,
    /// Times that a block-task ran beyond the first.
    pub repeated: u64,
    /// Times that a block-task was requeued at a yield point. It started once more for each.
    pub requeued: u64,
    /// Times that a block went on with a block-task that another one had left at a checkpoint.
    pub switches: u64,
    /// Blocks that ended their block-task on an SM that was taken.
    pub drained: u64,
    /// Whether launches that take SMs have latency limits, within which block-tasks are requeued more often.
    pub has_limits: bool,
    /// The first mistake.
    pub mistake: Option<String>,
}

impl Tally {
    /// Adds the report of a kernel.
    pub fn report(&mut self, report: &LaunchReport) {
        self.kernels += 1;
        self.block_tasks += u64::from(report.tasks);
        self.yields += u64::from(report.yields);
        self.resumes += u64::from(report.resumes);
    }

    /// Compares the runs of each block-task with the expected ones.
    pub fn count(&mut self, what: &str, found: &[u32], expected: &[u32]) {
        for (&found, &expected) in found.iter().zip(expected) {
            self.lost += u64::from(expected.saturating_sub(found));
            self.repeated += u64::from(found.saturating_sub(expected));
        }
        self.compare(what, found, expected);
    }

    /// Checks the starts of each block-task of a kernel with yield points: one, and one more for each requeue.
    fn starts(&mut self, what: &str, starts: &[u32]) {
        let most = if self.has_limits { MAX_REQUEUES_FOR_LIMITS } else { MAX_REQUEUES };
        for (task, &starts) in starts.iter().enumerate() {
            self.requeued += u64::from(starts.saturating_sub(1));
            if !(1..=most + 1).contains(&starts) {
                self.wrong(format!("{what}: block-task {task} was started {starts} times"));
            }
        }
    }

    /// Counts the starts of each block-task of a kernel with a checkpoint: one, and one more for each time that it was left.
    fn switches(&mut self, what: &str, starts: &[u32]) {
        for (task, &starts) in starts.iter().enumerate() {
            self.switches += u64::from(starts.saturating_sub(1));
            if starts == 0 {
                self.wrong(format!("{what}: block-task {task} was not started"));
            }
        }
    }

    /// Compares the results of a kernel with the expected ones.
    pub fn compare(&mut self, what: &str, found: &[u32], expected: &[u32]) {
        if found.len() != expected.len() {
            self.wrong(format!("{what}: {} elements, not {}", found.len(), expected.len()));
        }
        let different = found.iter().zip(expected).position(|(found, expected)| found != expected);
        if let Some(at) = different {
            let (found, expected) = (found[at], expected[at]);
            self.wrong(format!("{what}: element {at} is {found}, not {expected}"));
        }
    }

    /// Compares the counters of a kernel that may have been cancelled with the block-tasks in its report.
    fn cancelled_counts(&mut self, counts: &[u32], done: u32) {
        let ran = counts.iter().filter(|&&count| count > 0).count() as u64;
        let repeated: u64 = counts.iter().map(|&count| u64::from(count.saturating_sub(1))).sum();
        self.repeated += repeated;
        self.lost += u64::from(done).saturating_sub(ran);
        if ran != u64::from(done) || repeated > 0 {
            self.wrong(format!(
                "a cancelled kernel says that {done} block-tasks are done; {ran} ran, and \
                 {repeated} of their runs were not the first"
            ));
        }
    }

    fn wrong(&mut self, mistake: String) {
        self.mistake.get_or_insert(mistake);
    }
}

/// The kernels of `preempt-test-kernels` that count, and those with yield points.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `paced_1d`
    OneDimension,
    /// `paced_2d`
    TwoDimensions,
    /// `paced_3d`
    ThreeDimensions,
    /// `paced_shared`
    SharedMemory,
    /// `paced_early_return`
    EarlyReturn,
    /// `paced_irregular`
    Irregular,
    /// `rotate_yielding`
    YieldingTogether,
    /// `spin_yielding`
    Yielding,
    /// `rotate_marking`
    MarkingTogether,
    /// `spin_marking`
    Marking,
    /// `rotate_saving`
    Saving,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 11] = [
        Kind::OneDimension,
        Kind::TwoDimensions,
        Kind::ThreeDimensions,
        Kind::SharedMemory,
        Kind::EarlyReturn,
        Kind::Irregular,
        Kind::YieldingTogether,
        Kind::Yielding,
        Kind::MarkingTogether,
        Kind::Marking,
        Kind::Saving,
    ];

    /// Whether the kernel counts the starts of block-tasks, of which each may have more than one.
    fn counts_starts(self) -> bool {
        matches!(self, Kind::YieldingTogether | Kind::Yielding)
    }

    /// Block-tasks and threads of a kernel of about `tasks` block-tasks.
    fn shape(self, tasks: u32) -> (u32, u32) {
        match self {
            Kind::TwoDimensions => (tasks / 40 * 40, 24),
            Kind::ThreeDimensions => (tasks / 60 * 60, 16),
            Kind::SharedMemory | Kind::YieldingTogether | Kind::MarkingTogether | Kind::Saving => {
                (tasks / 8, 256)
            }
            _ => (tasks, 32),
        }
    }
}

/// The work of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// Block-tasks, approximately.
    pub tasks: u32,
    /// Ticks of its SM's clock that each block-task spins. On a GPU, block-tasks that only count are over before SMs
    /// can be taken from them.
    pub ticks: u64,
}

impl From<u32> for Load {
    fn from(tasks: u32) -> Load {
        Load { tasks, ticks: 0 }
    }
}

/// `rounds` rounds of the test kernels' generator at once: from `x` to `factor * x + offset` (wrapping).
fn rounds_at_once(mut rounds: u32) -> (u32, u32) {
    let (mut factor, mut offset) = (1u32, 0u32);
    let (mut step, mut step_offset) = (1_664_525u32, 1_013_904_223u32);
    while rounds > 0 {
        if rounds % 2 == 1 {
            (factor, offset) =
                (step.wrapping_mul(factor), step.wrapping_mul(offset).wrapping_add(step_offset));
        }
        step_offset = step.wrapping_mul(step_offset).wrapping_add(step_offset);
        step = step.wrapping_mul(step);
        rounds /= 2;
    }
    (factor, offset)
}

/// Divisor of the time of a block-task of [`Kind::Irregular`] for one of its rounds, of which it has about 100.
const ROUND: u64 = 128;

/// Ticks that a round of a kernel with yield points takes on a GPU, about, and the least number of rounds.
const YIELDING_ROUND: (u64, u64) = (64, 16);

/// A kernel with its memory, which is allocated before anything runs.
#[derive(Debug)]
struct Prepared {
    kind: Kind,
    load: Load,
    /// The kernel's outputs with their expected contents. The first counts block-tasks; with yield points, their
    /// starts.
    buffers: Vec<(Buffer<u32>, Vec<u32>)>,
    /// The rounds of [`Kind::Irregular`].
    rounds: Buffer<u32>,
}

impl Prepared {
    fn new(kind: Kind, scheduler: &Scheduler, load: Load) -> Result<Prepared, Error> {
        let (tasks, threads) = kind.shape(load.tasks);
        let ones = |len: u32| vec![1; len as usize];
        let first_count = |tasks| if kind.counts_starts() { Vec::new() } else { ones(tasks) };
        let mut rounds = Vec::new();
        let expected: Vec<Vec<u32>> = match kind {
            Kind::OneDimension | Kind::TwoDimensions | Kind::ThreeDimensions => {
                vec![ones(tasks), ones(tasks * threads)]
            }
            Kind::SharedMemory => {
                let reversal = (0..tasks * 256).map(|i| i / 256 + 255 - i % 256).collect();
                let totals = (0..tasks).map(|task| 256 * task + 32640).collect();
                vec![ones(tasks), ones(tasks * threads), reversal, totals]
            }
            Kind::EarlyReturn => {
                let stays = |i: u32| u32::from(!(i / 32).is_multiple_of(3) && i.is_multiple_of(2));
                vec![ones(tasks), (0..tasks * 32).map(stays).collect()]
            }
            Kind::Irregular => {
                let mut random = Random(u64::from(tasks));
                rounds = (0..tasks).map(|_| 1 << random.below(10)).collect();
                let end = |i: u32, (factor, offset): (u32, u32)| {
                    factor.wrapping_mul(i).wrapping_add(offset)
                };
                let of_task = |task: u32| {
                    let jump = rounds_at_once(rounds[task as usize]);
                    (32 * task..32 * task + 32).map(move |i| end(i, jump))
                };
                vec![ones(tasks), ones(tasks * threads), (0..tasks).flat_map(of_task).collect()]
            }
            // Starts are no result, and ends are.
            Kind::YieldingTogether | Kind::MarkingTogether | Kind::Saving => {
                let rounds = yielding_rounds(load);
                let (factor, offset) = rounds_at_once(rounds);
                let end = |i: u32| {
                    let first = i / 256 * 256 + (i % 256 + rounds) % 256;
                    factor.wrapping_mul(first).wrapping_add(offset)
                };
                let mut expected =
                    vec![first_count(tasks), (0..tasks * threads).map(end).collect()];
                if kind == Kind::Saving {
                    expected.push(vec![rounds; (tasks * threads) as usize]);
                    expected.push(Vec::new());
                }
                expected
            }
            Kind::Yielding | Kind::Marking => {
                let (factor, offset) = rounds_at_once(yielding_rounds(load));
                let end = |i: u32| factor.wrapping_mul(i).wrapping_add(offset);
                vec![first_count(tasks), (0..tasks * threads).map(end).collect()]
            }
        };
        let mut buffers = Vec::with_capacity(expected.len());
        for expected in expected {
            buffers.push((scheduler.zeroed(expected.len().max(tasks as usize))?, expected));
        }
        Ok(Prepared { kind, load, buffers, rounds: scheduler.buffer(&rounds)? })
    }

    fn launch(mut self, stream: &Stream) -> Result<Victim, Error> {
        let Load { tasks, ticks } = self.load;
        let (tasks, threads) = self.kind.shape(tasks);
        let mut buffers = self.buffers.iter_mut().map(|(buffer, _)| buffer);
        let mut next = || buffers.next().expect("each kind has the buffers that its kernel writes");
        let (counts, writes) = (next(), next());
        let call = match self.kind {
            Kind::OneDimension => {
                kernels::paced_1d(ticks, counts, writes).grid(tasks).block(threads).amortize(7)
            }
            Kind::TwoDimensions => {
                kernels::paced_2d(ticks, counts, writes).grid((tasks / 40, 40)).block((8, 3))
            }
            Kind::ThreeDimensions => kernels::paced_3d(ticks, counts, writes)
                .grid((tasks / 60, 10, 6))
                .block((4, 2, 2))
                .amortize(3),
            Kind::SharedMemory => {
                kernels::paced_shared(ticks, counts, writes, next(), next()).grid(tasks)
            }
            Kind::EarlyReturn => kernels::paced_early_return(ticks, counts, writes)
                .grid(tasks)
                .block(threads)
                .amortize(5),
            Kind::Irregular => {
                kernels::paced_irregular(ticks / ROUND, counts, writes, &self.rounds, next())
                    .grid(tasks)
                    .block(threads)
            }
            Kind::YieldingTogether => {
                kernels::rotate_yielding(counts, yielding_rounds(self.load), writes).grid(tasks)
            }
            Kind::Yielding => kernels::spin_yielding(counts, yielding_rounds(self.load), writes)
                .grid(tasks)
                .block(threads),
            Kind::MarkingTogether => {
                kernels::rotate_marking(counts, yielding_rounds(self.load), writes).grid(tasks)
            }
            Kind::Saving => {
                let (rounds, done, starts) = (yielding_rounds(self.load), next(), next());
                kernels::rotate_saving(counts, starts, rounds, writes, done).grid(tasks)
            }
            Kind::Marking => kernels::spin_marking(counts, yielding_rounds(self.load), writes)
                .grid(tasks)
                .block(threads),
        };
        // What a storm is about.
        let handle = stream.launch(call.preemption(Preemption::Preemptible))?;
        Ok(Victim { kind: self.kind, handle, expected: self.buffers })
    }
}

fn yielding_rounds(load: Load) -> u32 {
    let (ticks, least) = YIELDING_ROUND;
    (least + load.ticks / ticks) as u32
}

/// A kernel that runs, with its counters and their expected values.
#[derive(Debug)]
pub struct Victim {
    kind: Kind,
    handle: Handle<LaunchReport>,
    expected: Vec<(Buffer<u32>, Vec<u32>)>,
}

impl Victim {
    /// Launches a grid.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler.
    pub fn launch(
        kind: Kind,
        scheduler: &Scheduler,
        stream: &Stream,
        load: impl Into<Load>,
    ) -> Result<Victim, Error> {
        Prepared::new(kind, scheduler, load.into())?.launch(stream)
    }

    /// Launches a grid of each kind on the stream of its place. All are prepared before the first one runs.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler.
    pub fn launch_all(
        kinds: &[Kind],
        scheduler: &Scheduler,
        streams: &[Stream],
        load: Load,
    ) -> Result<Vec<Victim>, Error> {
        let prepared = kinds.iter().map(|&kind| Prepared::new(kind, scheduler, load));
        let prepared = prepared.collect::<Result<Vec<_>, _>>()?;
        prepared.into_iter().zip(streams).map(|(one, stream)| one.launch(stream)).collect()
    }

    /// Waits for the kernel, and compares its results.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler. Mistakes in the counters go into the tally.
    pub fn check(self, stream: &Stream, tally: &mut Tally) -> Result<LaunchReport, Error> {
        let report = self.handle.wait()?;
        tally.report(&report);
        for (number, (buffer, expected)) in self.expected.iter().enumerate() {
            let found = stream.download(buffer)?.wait()?;
            let what = format!("{:?}, counter {number}", self.kind);
            match number {
                0 if self.kind.counts_starts() => tally.starts(&what, &found),
                0 => tally.count(&what, &found, expected),
                3 if self.kind == Kind::Saving => tally.switches(&what, &found),
                _ => tally.compare(&what, &found, expected),
            }
        }
        Ok(report)
    }
}

/// Latency limits: none, which stops blocks as soon as possible; zero; less and more than most block-tasks take; and for ever.
const LIMITS: [Option<Duration>; 5] = [
    None,
    Some(Duration::ZERO),
    Some(Duration::from_micros(20)),
    Some(Duration::from_micros(200)),
    Some(Duration::MAX),
];

/// The size of a storm.
#[derive(Clone, Copy, Debug)]
pub struct Strength {
    /// The number of yields, and of resumes, to see at least; with limits, also a block that leaves in each way.
    pub enough: u64,
    /// The most work of each kernel.
    pub load: Load,
    /// The kernels that run at once.
    pub kinds: &'static [Kind],
    /// The priority of the small kernels; that of the others is 0.
    pub urgent_priority: i32,
    /// Whether the small kernels have random latency limits, so that blocks leave in each way.
    pub has_limits: bool,
    /// The seed of the random numbers.
    pub seed: u64,
}

/// Runs rounds of all kernels at once, while small kernels come in between, until the storm has seen enough, or a
/// mistake. Calls `watch` now and then.
///
/// # Errors
///
/// Errors of the scheduler, a refused policy included. Mistakes in the kernels' results are in the tally.
pub fn yields(
    scheduler: &Scheduler,
    Strength { enough, load, kinds, urgent_priority, has_limits, seed }: Strength,
    mut watch: impl FnMut(&Tally),
) -> Result<Tally, Error> {
    let mut tally = Tally { has_limits, ..Tally::default() };
    let drained = scheduler.stats().stops.drained;
    let mut random = Random(seed);
    let urgent = scheduler.stream(urgent_priority);
    let properties = scheduler.device().properties();
    // One and a half times the blocks that the device holds.
    let most = 3 * properties.sms * properties.blocks_per_sm / 2;
    let zeroed = || scheduler.zeroed::<u32>(most as usize);
    let (mut ticks, mut tick_writes, mut expected) = (zeroed()?, zeroed()?, vec![0; most as usize]);
    let is_enough = |tally: &Tally| {
        let ways = [tally.requeued, tally.switches, tally.drained];
        tally.yields >= enough && tally.resumes >= enough && !(has_limits && ways.contains(&0))
    };
    while tally.mistake.is_none() && !is_enough(&tally) {
        let streams: Vec<Stream> = kinds.iter().map(|_| scheduler.stream(0)).collect();
        // Block-tasks of an eighth of the time up to all of it.
        let load = Load { ticks: load.ticks / u64::from(1 + random.below(8)), ..load };
        let victims = Victim::launch_all(kinds, scheduler, &streams, load)?;
        while victims.iter().any(|victim| !victim.handle.is_done()) {
            // From one SM to the whole device, and then a moment for the other kernels.
            let few = 1 + random.below(most);
            let call = kernels::count_1d(&mut ticks, &mut tick_writes).grid(few).block(1);
            // Kernels as short as this run as plain grids, for which no cohort leaves its SMs.
            let form = [Preemption::Auto, Preemption::Preemptible][(random.below(8) > 0) as usize];
            // Sometimes a kernel leaves to all others, and not for what these need.
            let of_stream = &streams[random.below(kinds.len() as u32) as usize];
            let _suspension = (random.below(4) == 0).then(|| of_stream.suspend());
            if has_limits {
                urgent.set_latency_limit(LIMITS[random.below(LIMITS.len() as u32) as usize]);
            }
            // Their yields do not count, and their results are compared once, at the end.
            let LaunchReport { tasks: ran, .. } = urgent.launch(call.preemption(form))?.wait()?;
            tally.kernels += 1;
            tally.block_tasks += u64::from(ran);
            expected[..few as usize].iter_mut().for_each(|count| *count += 1);
            (0..random.below(2000)).for_each(|_| std::hint::spin_loop());
        }
        for (victim, stream) in victims.into_iter().zip(&streams) {
            victim.check(stream, &mut tally)?;
        }
        tally.drained = scheduler.stats().stops.drained - drained;
        watch(&tally);
    }
    for counter in [&ticks, &tick_writes] {
        let found = urgent.download(counter)?.wait()?;
        tally.count("the small kernels", &found, &expected);
    }
    scheduler.synchronize()?;
    Ok(tally)
}

/// Cancels `launches` kernels at random moments, while small urgent ones take SMs from them, and compares their reports
/// with their results. Calls `watch` now and then.
///
/// # Errors
///
/// As [`yields`].
pub fn cancellations(
    scheduler: &Scheduler,
    launches: u64,
    load: impl Into<Load>,
    seed: u64,
    mut watch: impl FnMut(&Tally),
) -> Result<Tally, Error> {
    let Load { tasks, ticks } = load.into();
    let mut tally = Tally::default();
    let urgent = scheduler.stream(1);
    let mut random = Random(seed);
    for _ in 0..launches {
        let stream = scheduler.stream(0);
        let mut counts = scheduler.zeroed::<u32>(tasks as usize)?;
        let mut writes = scheduler.zeroed::<u32>(tasks as usize * 32)?;
        let (mut tick, mut tick_writes) = (scheduler.zeroed::<u32>(1)?, scheduler.zeroed(1)?);
        let call = kernels::paced_1d(ticks, &mut counts, &mut writes).grid(tasks).block(32);
        let handle = stream.launch(call.preemption(Preemption::Preemptible))?;
        let call = kernels::count_1d(&mut tick, &mut tick_writes).grid(1).block(1);
        let urgent_handle = urgent.launch(call)?;
        (0..random.below(100_000)).for_each(|_| std::hint::spin_loop());
        handle.cancel();
        let done = match handle.wait() {
            Ok(report) => {
                tally.report(&report);
                report.tasks
            }
            Err(Error::Launch(LaunchError::Cancelled { done, tasks: total })) if total == tasks => {
                tally.kernels += 1;
                tally.block_tasks += u64::from(done);
                tally.cancelled += 1;
                tally.cancelled_midway += u64::from(done > 0 && done < tasks);
                done
            }
            Err(other) => return Err(other),
        };
        tally.report(&urgent_handle.wait()?);
        tally.count("an urgent kernel", &urgent.download(&tick)?.wait()?, &[1]);
        tally.cancelled_counts(&stream.download(&counts)?.wait()?, done);
        watch(&tally);
    }
    scheduler.synchronize()?;
    Ok(tally)
}
