//! Storms: kernels that count their block-tasks, while SMs are taken from them and given back at
//! random, and while they are cancelled. Tests and `preempt-bench` share them.

use std::time::Duration;

use preempt::policy::{Arrival, DeviceView, Plan, Policy};
use preempt::{Buffer, Error, Handle, LaunchId, LaunchReport, Scheduler, Stream};
use preempt_device::abi::SmRange;
use preempt_test_kernels as kernels;

use crate::Random;

/// Deals the SMs anew at every occasion: a random range for each launch, none for some. The
/// newest launch always gets something, so that the storm goes on.
#[derive(Debug)]
pub struct Chaos {
    random: Random,
    launches: Vec<LaunchId>,
}

impl Chaos {
    /// Deals by random numbers from this seed.
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
}

/// What was seen, and what was wrong with it.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Kernels that were launched.
    pub kernels: u64,
    /// Block-tasks that the kernels' reports speak of.
    pub block_tasks: u64,
    /// How often SMs were taken from running kernels.
    pub yields: u64,
    /// How often kernels were resumed or grew.
    pub resumes: u64,
    /// Kernels that were cancelled.
    pub cancelled: u64,
    /// Those of them of which some block-tasks had run, and some had not.
    pub cancelled_midway: u64,
    /// Block-tasks that should have run and did not.
    pub lost: u64,
    /// Times that a block-task ran beyond the first.
    pub repeated: u64,
    /// The first thing that was wrong.
    pub mistake: Option<String>,
}

impl Tally {
    /// Adds what a kernel reported.
    pub fn report(&mut self, report: &LaunchReport) {
        self.kernels += 1;
        self.block_tasks += u64::from(report.tasks);
        self.yields += u64::from(report.yields);
        self.resumes += u64::from(report.resumes);
    }

    /// Compares how often each block-task ran with how often it should have.
    pub fn count(&mut self, what: &str, found: &[u32], expected: &[u32]) {
        for (&found, &expected) in found.iter().zip(expected) {
            self.lost += u64::from(expected.saturating_sub(found));
            self.repeated += u64::from(found.saturating_sub(expected));
        }
        self.compare(what, found, expected);
    }

    /// Compares what a kernel left with what it should have.
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

    /// Compares the counters of a kernel that was perhaps cancelled with the block-tasks that it
    /// says are done.
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

/// The kernels of `preempt-test-kernels` that count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `count_1d`
    OneDimension,
    /// `count_2d`
    TwoDimensions,
    /// `count_3d`
    ThreeDimensions,
    /// `count_shared`
    SharedMemory,
    /// `count_early_return`
    EarlyReturn,
    /// `count_irregular`
    Irregular,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 6] = [
        Kind::OneDimension,
        Kind::TwoDimensions,
        Kind::ThreeDimensions,
        Kind::SharedMemory,
        Kind::EarlyReturn,
        Kind::Irregular,
    ];
}

/// A kernel that runs, with the counters that it writes and what they must hold then. The first
/// one counts block-tasks.
#[derive(Debug)]
pub struct Victim {
    kind: Kind,
    handle: Handle<LaunchReport>,
    expected: Vec<(Buffer<u32>, Vec<u32>)>,
}

impl Victim {
    /// Launches a grid of about `tasks` block-tasks.
    ///
    /// # Errors
    ///
    /// What the scheduler says.
    pub fn launch(
        kind: Kind,
        scheduler: &Scheduler,
        stream: &Stream,
        tasks: u32,
    ) -> Result<Victim, Error> {
        let zeroed = |len: u32| scheduler.zeroed::<u32>(len as usize);
        let ones = |len: u32| vec![1; len as usize];
        let tasks = match kind {
            Kind::SharedMemory => tasks / 8,
            Kind::TwoDimensions => tasks / 40 * 40,
            Kind::ThreeDimensions => tasks / 60 * 60,
            _ => tasks,
        };
        let threads = match kind {
            Kind::TwoDimensions => 24,
            Kind::ThreeDimensions => 16,
            Kind::SharedMemory => 256,
            _ => 32,
        };
        let (mut counts, tasks_once) = (zeroed(tasks)?, ones(tasks));
        let (mut writes, threads_once) = (zeroed(tasks * threads)?, ones(tasks * threads));
        let (handle, mut expected) = match kind {
            Kind::OneDimension => {
                let call = kernels::count_1d(&mut counts, &mut writes);
                let handle = stream.launch(call.grid(tasks).block(threads).amortize(7))?;
                (handle, vec![(writes, threads_once)])
            }
            Kind::TwoDimensions => {
                let call = kernels::count_2d(&mut counts, &mut writes);
                let handle = stream.launch(call.grid((tasks / 40, 40)).block((8, 3)))?;
                (handle, vec![(writes, threads_once)])
            }
            Kind::ThreeDimensions => {
                let call = kernels::count_3d(&mut counts, &mut writes);
                let call = call.grid((tasks / 60, 10, 6)).block((4, 2, 2)).amortize(3);
                (stream.launch(call)?, vec![(writes, threads_once)])
            }
            Kind::SharedMemory => {
                let (mut reversed, mut sums) = (zeroed(tasks * threads)?, zeroed(tasks)?);
                let call =
                    kernels::count_shared(&mut counts, &mut writes, &mut reversed, &mut sums);
                let handle = stream.launch(call.grid(tasks))?;
                let reversal = (0..tasks * 256).map(|i| i / 256 + 255 - i % 256).collect();
                let totals = (0..tasks).map(|task| 256 * task + 32640).collect();
                (handle, vec![(writes, threads_once), (reversed, reversal), (sums, totals)])
            }
            Kind::EarlyReturn => {
                let call = kernels::count_early_return(&mut counts, &mut writes);
                let handle = stream.launch(call.grid(tasks).block(threads).amortize(5))?;
                let stays = |i: u32| u32::from(!(i / 32).is_multiple_of(3) && i.is_multiple_of(2));
                (handle, vec![(writes, (0..tasks * 32).map(stays).collect())])
            }
            Kind::Irregular => {
                let mut random = Random(u64::from(tasks));
                let rounds: Vec<u32> = (0..tasks).map(|_| 1 << random.below(10)).collect();
                let step = |x: u32| x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let end = |i| (0..rounds[i as usize / 32]).fold(i, |x, _| step(x));
                let ends_at = (0..tasks * 32).map(end).collect();
                let mut ends = zeroed(tasks * 32)?;
                let rounds = scheduler.buffer(&rounds)?;
                let call = kernels::count_irregular(&mut counts, &mut writes, &rounds, &mut ends);
                let handle = stream.launch(call.grid(tasks).block(threads))?;
                (handle, vec![(writes, threads_once), (ends, ends_at)])
            }
        };
        expected.insert(0, (counts, tasks_once));
        Ok(Victim { kind, handle, expected })
    }

    /// Waits for the kernel, and compares what it left.
    ///
    /// # Errors
    ///
    /// What the scheduler says. What is wrong with the counters goes into the tally.
    pub fn check(self, stream: &Stream, tally: &mut Tally) -> Result<LaunchReport, Error> {
        let report = self.handle.wait()?;
        tally.report(&report);
        for (number, (buffer, expected)) in self.expected.iter().enumerate() {
            let found = stream.download(buffer)?.wait()?;
            let what = format!("{:?}, counter {number}", self.kind);
            match number {
                0 => tally.count(&what, &found, expected),
                _ => tally.compare(&what, &found, expected),
            }
        }
        Ok(report)
    }
}

/// How much of a storm there is.
#[derive(Clone, Copy, Debug)]
pub struct Strength {
    /// The number of yields, and of resumes, to see at least.
    pub enough: u64,
    /// About how many block-tasks each kernel has.
    pub tasks: u32,
    /// The priority of the small kernels; that of the others is 0.
    pub urgent_priority: i32,
    /// Where the random numbers come from.
    pub seed: u64,
}

/// Runs rounds of all kernels at once, while small kernels come in between, until the storm has
/// seen enough, or something wrong. Calls `watch` now and then.
///
/// # Errors
///
/// What the scheduler says, a refused policy included. What is wrong with the kernels' results
/// is in the tally.
pub fn yields(
    scheduler: &Scheduler,
    Strength { enough, tasks, urgent_priority, seed }: Strength,
    mut watch: impl FnMut(&Tally),
) -> Result<Tally, Error> {
    let mut tally = Tally::default();
    let mut random = Random(seed);
    let urgent = scheduler.stream(urgent_priority);
    let most = 3 * scheduler.device().properties().sms;
    let zeroed = || scheduler.zeroed::<u32>(most as usize);
    let (mut ticks, mut tick_writes, mut expected) = (zeroed()?, zeroed()?, vec![0; most as usize]);
    while tally.mistake.is_none() && (tally.yields < enough || tally.resumes < enough) {
        let streams: Vec<Stream> = Kind::ALL.iter().map(|_| scheduler.stream(0)).collect();
        let victims = Kind::ALL.iter().zip(&streams);
        let victims: Result<Vec<Victim>, Error> =
            victims.map(|(&kind, stream)| Victim::launch(kind, scheduler, stream, tasks)).collect();
        let victims = victims?;
        while victims.iter().any(|victim| !victim.handle.is_done()) {
            // From one SM to the whole device, and then a moment for the others.
            let few = 1 + random.below(most);
            let call = kernels::count_1d(&mut ticks, &mut tick_writes).grid(few).block(1);
            // Their yields do not count: what they left is compared once, at the end.
            let LaunchReport { tasks: ran, .. } = urgent.launch(call)?.wait()?;
            tally.kernels += 1;
            tally.block_tasks += u64::from(ran);
            expected[..few as usize].iter_mut().for_each(|count| *count += 1);
            (0..random.below(2000)).for_each(|_| std::hint::spin_loop());
        }
        for (victim, stream) in victims.into_iter().zip(&streams) {
            victim.check(stream, &mut tally)?;
        }
        watch(&tally);
    }
    for counter in [&ticks, &tick_writes] {
        let found = urgent.download(counter)?.wait()?;
        tally.count("the small kernels", &found, &expected);
    }
    scheduler.synchronize()?;
    Ok(tally)
}

/// Cancels `launches` kernels of `tasks` block-tasks at random moments, while small urgent ones take
/// SMs from them, and compares what they report with what they did. Calls `watch` now and then.
///
/// # Errors
///
/// As [`yields`].
pub fn cancellations(
    scheduler: &Scheduler,
    launches: u64,
    tasks: u32,
    seed: u64,
    mut watch: impl FnMut(&Tally),
) -> Result<Tally, Error> {
    let mut tally = Tally::default();
    let urgent = scheduler.stream(1);
    let mut random = Random(seed);
    for _ in 0..launches {
        let stream = scheduler.stream(0);
        let mut counts = scheduler.zeroed::<u32>(tasks as usize)?;
        let mut writes = scheduler.zeroed::<u32>(tasks as usize * 32)?;
        let call = kernels::count_1d(&mut counts, &mut writes).grid(tasks).block(32);
        let handle = stream.launch(call)?;
        let (mut tick, mut tick_writes) = (scheduler.zeroed::<u32>(1)?, scheduler.zeroed(1)?);
        let call = kernels::count_1d(&mut tick, &mut tick_writes).grid(1).block(1);
        let urgent_handle = urgent.launch(call)?;
        (0..random.below(100_000)).for_each(|_| std::hint::spin_loop());
        handle.cancel();
        let done = match handle.wait() {
            Ok(report) => {
                tally.report(&report);
                report.tasks
            }
            Err(Error::Cancelled { done, tasks: total }) if total == tasks => {
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
