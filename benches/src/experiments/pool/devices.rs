//! TReM's evaluation on pools of devices, beside the same workloads in virtual time.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use preempt::pool::{
    Class, Elastic, FirstCome, InTime, Pool, PoolBuilder, PoolPolicy, Stop, UserFacingFirst,
};
use preempt::sim::pool::{JobTimes, PoolJob, PoolResults, PoolSimulation, PoolWorkload, SLA};
use preempt::{CpuLayout, Device, Scheduler};

use super::inversion::{self, Inversion, Revocations};
use super::isolation::{self, Isolation};
use super::opaque::Kills;
use super::replay::{Answers, Replayed, replay};
use super::tasks::{Alone, BATCH, BATCH_SCALE, Kind, SERVICES};
use super::{DEVICES, JOBS, MIXES, PERIOD, opaque, outcome};
use crate::experiments::{Bench, KERNELS, Outcome, PROGRAMS};
use crate::progress::Progress;

/// Loads, unless `--load` names others.
const LOADS: [f64; 3] = [0.5, 1.0, 2.0];
/// The load of figure 9. Priority without stops is measured for that figure alone.
const BATCH_LOAD: f64 = 2.0;
/// For how long a device stays empty once a killed task's kernel has left: the paper's 22 ms, a tenth of it.
const KILL: Duration = Duration::from_micros(2200);
/// Jobs with `--quick`.
const QUICK_JOBS: usize = 6;
/// Means of the jobs' durations, in seconds (table IV), and with `--quick`, in milliseconds.
const JOB_SECONDS: [u64; 2] = [5, 600];
/// By which the former are divided. A job of users' tasks is to be a small part of a batch job: a 30th, and a 120th in the paper,
/// of which few tasks would be left.
pub const JOB_SCALES: [u32; 2] = [50, BATCH_SCALE];
const QUICK_JOB_MILLIS: [u64; 2] = [15, 60];
/// Bytes: pieces up to this size are kept when they are freed. The allocator takes no more.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const BYTES_KEPT: libc::c_int = 32 << 20;

/// The policy of an arm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// The oldest task first.
    FirstCome,
    /// TReM's Priority.
    Priority,
    /// TReM's Elastic.
    Elastic,
    /// User-facing tasks that can be in time ahead of others.
    InTime,
}

impl Policy {
    fn of(self, builder: PoolBuilder) -> PoolBuilder {
        match self {
            Policy::FirstCome => builder.policy(FirstCome),
            Policy::Priority => builder.policy(UserFacingFirst),
            Policy::Elastic => builder.policy(Elastic::new(SLA).period(PERIOD)),
            Policy::InTime => builder.policy(InTime::new(SLA)),
        }
    }

    fn boxed(self) -> Box<dyn PoolPolicy> {
        match self {
            Policy::FirstCome => Box::new(FirstCome),
            Policy::Priority => Box::new(UserFacingFirst),
            Policy::Elastic => Box::new(Elastic::new(SLA).period(PERIOD)),
            Policy::InTime => Box::new(InTime::new(SLA)),
        }
    }
}

/// How an arm stops batch tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stopping {
    /// Not at all.
    Never,
    /// They yield.
    Yields,
    /// Their kernel leaves at a yield point, and they run again.
    Revokes,
    /// The same, and their device stays empty for a while: TReM.
    Kills,
}

impl Stopping {
    /// For the pool and for the simulation, where a stop takes so long.
    fn stop(self, measured: Duration) -> Stop {
        match self {
            Stopping::Never => Stop::Never,
            Stopping::Yields => Stop::Yield(measured),
            Stopping::Revokes => Stop::Revoke(measured),
            Stopping::Kills => Stop::Revoke(measured + KILL),
        }
    }

    fn after(self) -> Duration {
        if self == Stopping::Kills { KILL } else { Duration::ZERO }
    }
}

/// A policy, and how it stops tasks.
#[derive(Clone, Copy, Debug)]
pub struct Arm {
    /// As in the tables.
    pub name: &'static str,
    policy: Policy,
    stopping: Stopping,
}

const fn arm(name: &'static str, policy: Policy, stopping: Stopping) -> Arm {
    Arm { name, policy, stopping }
}

/// The arms, which take turns for each workload.
const ARMS: [Arm; 9] = [
    arm("first come", Policy::FirstCome, Stopping::Never),
    arm("priority", Policy::Priority, Stopping::Never),
    arm("elastic", Policy::Elastic, Stopping::Never),
    arm("in time, yielding", Policy::InTime, Stopping::Yields),
    arm("elastic, yielding", Policy::Elastic, Stopping::Yields),
    arm("priority, yielding", Policy::Priority, Stopping::Yields),
    arm("elastic, killed", Policy::Elastic, Stopping::Kills),
    arm("priority, killed", Policy::Priority, Stopping::Kills),
    arm("elastic, revoked", Policy::Elastic, Stopping::Revokes),
];

impl Arm {
    fn is_of(&self, load: f64) -> bool {
        self.name != "priority" || load == BATCH_LOAD
    }
}

/// What came of a workload in one arm.
#[derive(Debug)]
pub struct Measured {
    /// W1 or W2.
    pub mix: &'static str,
    /// What comes, by what the devices can do.
    pub load: f64,
    /// The arm's name.
    pub arm: &'static str,
    /// On the devices.
    pub real: Replayed,
    /// In virtual time, where jobs come when they came and tasks take what they took.
    pub simulated: PoolResults,
    /// In virtual time, where all tasks take what they take alone.
    pub undisturbed: PoolResults,
}

/// All that was measured.
#[derive(Debug)]
pub struct All {
    /// The tasks.
    pub kinds: Vec<Kind>,
    /// The number of devices.
    pub devices: usize,
    /// Whether they are GPUs, as opposed to parts of one.
    pub are_gpus: bool,
    /// On one device.
    pub revocations: Revocations,
    /// Of workers.
    pub kills: Kills,
    /// Figure 6.
    pub inversions: Vec<Inversion>,
    /// What neighbours cost.
    pub isolation: Vec<Isolation>,
    /// Figures 7 to 10.
    pub runs: Vec<Measured>,
    /// Over all runs.
    pub answers: Answers,
}

/// The devices of the pools.
fn devices(bench: &Bench) -> Result<Vec<Device>> {
    let device = bench.device.clone().context("this part of the suite is not simulated")?;
    if bench.gpu.is_some() {
        return Ok(match Device::count()? {
            0 | 1 => device.split(DEVICES as u32)?,
            gpus => (0..gpus).map(Device::cuda).collect::<Result<_, _>>()?,
        });
    }
    let properties = device.properties();
    let layout = CpuLayout::sms(properties.sms).blocks_per_sm(properties.blocks_per_sm);
    Ok((0..DEVICES).map(|_| Device::cpu_with(layout)).collect::<Result<_, _>>()?)
}

/// Their schedulers, whose pollers spin on a GPU, as in a service that has to be in time. All pools have the same, one after the
/// other, so that what is loaded and learned in one arm is there in the next.
fn schedulers(bench: &Bench) -> Result<Vec<Scheduler>> {
    let build = |device| {
        let builder = Scheduler::builder().device(device).kernels(KERNELS).kernels(PROGRAMS);
        // The SMs of CPU devices need the processors.
        let spins = bench.gpu.is_some();
        Ok(if spins { builder.poller_spin(Duration::MAX) } else { builder }.build()?)
    };
    devices(bench)?.into_iter().map(build).collect()
}

/// A pool of these devices.
pub fn pool_of(devices: &[Scheduler], policy: Policy, stop: Stop) -> Result<Pool> {
    let builder = policy.of(Pool::builder().stop(stop));
    let builder = devices.iter().fold(builder, |builder, device| builder.scheduler(device.clone()));
    Ok(builder.build()?)
}

/// Has the allocator keep freed memory, so that outputs of tasks are not new pages each time.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn keep_freed_memory() {
    // One heap: a thread's own is given back with its last piece.
    for (parameter, value) in [
        (libc::M_ARENA_MAX, 1),
        (libc::M_MMAP_THRESHOLD, BYTES_KEPT),
        (libc::M_TRIM_THRESHOLD, libc::c_int::MAX),
    ] {
        // SAFETY: it takes any parameter, and says by its result that it ignores one, which costs time alone. Threads of the
        // device allocate beside it: it changes plain numbers, under the lock of the main heap, and each value of them is right.
        unsafe { libc::mallopt(parameter, value) };
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn keep_freed_memory() {}

/// Measures all figures.
pub fn run(bench: &Bench) -> Result<Outcome> {
    keep_freed_memory();
    let devices = schedulers(bench)?;
    let mixes: Vec<_> =
        MIXES.into_iter().filter(|(name, _)| is_chosen(&bench.mixes, name)).collect();
    let chosen = bench.loads.clone();
    let loads = if chosen.is_empty() { LOADS.to_vec() } else { chosen };
    check(bench, &loads)?;
    let (one, others) = devices.split_at_checked(1).context("a pool of no device")?;
    let progress = Progress::new("tasks", (SERVICES.len() + BATCH.len()) as u64);
    let kinds = calibrate(bench, one, &progress)?;
    for other in others.chunks(1) {
        let pool = pool_of(other, Policy::FirstCome, Stop::Never)?;
        kinds.iter().try_for_each(|kind| Alone::on(&pool, bench).warm(kind))?;
    }
    let mut answers = Answers::default();
    let revocations = inversion::revocations(bench, one, &kinds)?;
    let stop = revocations.passes_on.p50();
    let kills = opaque::measure(bench, &devices, inversion::hold_of(&kinds)?)?;
    let inversions = inversion::measure(bench, one, &kinds, stop, &mut answers)?;
    let isolation = isolation::measure(bench, &devices)?;
    drop(progress);

    let progress = Progress::new("workloads", (mixes.len() * loads.len() * ARMS.len()) as u64);
    let times = times(bench, &kinds);
    let jobs = bench.amount(QUICK_JOBS, JOBS);
    let mut runs = Vec::new();
    for &(mix_name, mix) in &mixes {
        for &load in &loads {
            let workload = PoolWorkload::drawn(&times, mix, jobs, devices.len(), load, bench.seed);
            for arm in ARMS.iter().filter(|arm| arm.is_of(load)) {
                let real = measure(&devices, arm, stop, &workload, &kinds)?;
                answers.add(&real.answers);
                let simulate = |workload: &PoolWorkload| {
                    let pool = PoolSimulation::boxed(devices.len(), arm.policy.boxed());
                    pool.stop(arm.stopping.stop(stop)).run(workload)
                };
                runs.push(Measured {
                    mix: mix_name,
                    load,
                    arm: arm.name,
                    simulated: simulate(&as_measured(&workload, &real))?,
                    undisturbed: simulate(&workload)?,
                    real,
                });
                progress.step();
            }
        }
    }
    drop(progress);
    let are_gpus = bench.gpu.is_some() && one.iter().all(|of| of.device().whole().is_none());
    let devices = devices.len();
    Ok(outcome::outcome(
        bench,
        &All { kinds, devices, are_gpus, revocations, kills, inversions, isolation, runs, answers },
    ))
}

/// A workload as it was on devices: parts of one GPU share its memory, so that tasks take longer than alone.
fn as_measured(workload: &PoolWorkload, real: &Replayed) -> PoolWorkload {
    let came = |(job, &arrival): (&PoolJob, &Duration)| PoolJob { arrival, ..*job };
    let jobs = workload.jobs().iter().zip(&real.arrivals).map(came);
    PoolWorkload::new(jobs).with_times(real.times.clone())
}

fn is_chosen(chosen: &[String], name: &str) -> bool {
    chosen.is_empty() || chosen.iter().any(|of| of == name)
}

fn check(bench: &Bench, loads: &[f64]) -> Result<()> {
    if let Some(load) = loads.iter().find(|load| !(load.is_finite() && **load > 0.0)) {
        bail!("`--load {load}`: what comes by what the devices can do, such as 0.5");
    }
    let known = |name: &String| MIXES.iter().any(|(of, _)| of == name);
    if let Some(name) = bench.mixes.iter().find(|name| !known(name)) {
        bail!("there is no mix {name}; there are {}", MIXES.map(|(name, _)| name).join(" and "));
    }
    Ok(())
}

/// One workload in one arm.
fn measure(
    devices: &[Scheduler],
    arm: &Arm,
    stop: Duration,
    workload: &PoolWorkload,
    kinds: &[Kind],
) -> Result<Replayed> {
    let Arm { policy, stopping, .. } = *arm;
    let requeued = || devices.iter().map(|device| device.stats().stops.lost).sum::<Duration>();
    let before = requeued();
    let mut real = {
        let pool = pool_of(devices, policy, stopping.stop(stop))?;
        replay(&pool, workload, kinds, stopping.after())?
    };
    // Summed over the blocks that a device holds.
    let places = kinds.iter().find_map(Kind::places).unwrap_or(1);
    if stopping == Stopping::Yields {
        real.requeued = requeued().saturating_sub(before) / places.max(1);
    }
    Ok(real)
}

/// All kinds of tasks, each alone on the device.
fn calibrate(bench: &Bench, one: &[Scheduler], progress: &Progress) -> Result<Vec<Kind>> {
    let scheduler = one.first().context("a pool of no device")?;
    let pool = pool_of(one, Policy::FirstCome, Stop::Never)?;
    let alone = Alone::on(&pool, bench);
    let mut kinds = Vec::new();
    for service in &SERVICES {
        kinds.push(alone.service(service, bench, scheduler)?);
        progress.step();
    }
    for index in 0..BATCH.len() {
        kinds.push(alone.batch(index, bench, scheduler)?);
        progress.step();
    }
    Ok(kinds)
}

/// What workloads are drawn from.
fn times(bench: &Bench, kinds: &[Kind]) -> JobTimes {
    let of =
        |class| kinds.iter().filter(|kind| kind.class == class).map(|kind| kind.alone).collect();
    let [user_facing, batch] = JOB_SECONDS.map(Duration::from_secs);
    let full = [user_facing / JOB_SCALES[0], batch / JOB_SCALES[1]];
    let [user_facing_job, batch_job] = match bench.quick {
        true => QUICK_JOB_MILLIS.map(Duration::from_millis),
        false => full,
    };
    JobTimes {
        user_facing: of(Class::UserFacing),
        batch: of(Class::Batch),
        user_facing_job,
        batch_job,
    }
}
