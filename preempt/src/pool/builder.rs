//! A pool, and its settings.

use std::fmt;
use std::sync::Arc;

use super::dispatch::{PoolPolicy, PoolStats, Rules};
use super::policy::UserFacingFirst;
use super::runtime::Inner;
#[cfg(target_os = "linux")]
use super::runtime::first_part;
use super::task::Application;
use super::terms::{Class, OUTSTANDING, REVOCATIONS, Stop};
use crate::device::Device;
use crate::error::{Error, PoolError};
use crate::module::Module;
use crate::scheduler::Scheduler;
use crate::sync::thread::JoinHandle;
#[cfg(target_os = "linux")]
use crate::worker::{Standbys, Workers, start_all};

/// Devices that run tasks, and the policy that says which runs where.
///
/// Clones are the same pool. When the last one is dropped, tasks that have not ended are given up with
/// [`PoolError::PoolDropped`], and the pool waits for the bodies that run, for ten seconds at most, and for the ends of its
/// [workers](crate::worker); [`synchronize`](Pool::synchronize) before lets all of them finish.
///
/// ```
/// # use preempt_device::prelude::*;
/// # #[preemptible(block = 32)]
/// # fn double(x: &[u32], out: SliceMut<u32>) {
/// #     let i = thread::index_1d() as usize;
/// #     if i < out.len() {
/// #         // SAFETY: each thread writes its own element.
/// #         unsafe { out.write(i, 2 * x[i]) }
/// #     }
/// # }
/// use std::time::Duration;
///
/// use preempt::Device;
/// use preempt::pool::{Class, Elastic, Pool, Task};
///
/// let sla = Duration::from_millis(20);
/// let pool = Pool::builder().device(Device::cpu()?).device(Device::cpu()?).policy(Elastic::new(sla)).build()?;
/// let [service, nightly] = [Class::UserFacing, Class::Batch].map(|class| pool.application(class));
///
/// let task = |len: u32| {
///     Task::new("double", move |run| {
///         let x = run.buffer(&(0..len).collect::<Vec<u32>>())?;
///         let mut out = run.zeroed::<u32>(len as usize)?;
///         run.launch(double(&x, &mut out).threads(len))?;
///         run.download(&out)
///     })
/// };
/// let large = task(100_000);
/// let jobs = [(); 4].map(|()| nightly.submit(&large));
/// let answer = service.submit(&task(3))?; // it waits for no batch task
/// assert_eq!(answer.wait()?, [0, 2, 4]);
/// for job in jobs {
///     assert_eq!(job?.wait()?.len(), 100_000);
/// }
/// # Ok::<(), preempt::Error>(())
/// ```
#[derive(Clone)]
pub struct Pool {
    closer: Arc<Closer>,
}

struct Closer {
    inner: Arc<Inner>,
    schedulers: Vec<Scheduler>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.inner.close(std::mem::take(&mut self.threads));
    }
}

impl Pool {
    /// A builder, for a pool of devices of your choice.
    pub fn builder() -> PoolBuilder {
        PoolBuilder {
            schedulers: Vec::new(),
            devices: Vec::new(),
            kernels: Vec::new(),
            policy: Box::new(UserFacingFirst),
            stop: None,
            outstanding: OUTSTANDING,
            revocations: REVOCATIONS,
            #[cfg(target_os = "linux")]
            workers: None,
        }
    }

    /// An application, which submits tasks.
    pub fn application(&self, class: Class) -> Application {
        let inner = &self.closer.inner;
        Application::new(inner.clone(), inner.application(class), class)
    }

    /// The number of its devices, with those that have failed.
    pub fn devices(&self) -> usize {
        self.closer.schedulers.len()
    }

    /// The scheduler of a device, for its statistics and its timeline; `None` if the pool has no device of this number.
    pub fn scheduler(&self, device: usize) -> Option<&Scheduler> {
        self.closer.schedulers.get(device)
    }

    /// Waits until all submitted tasks have ended, of all applications. Where tasks keep coming, that may be never.
    pub fn synchronize(&self) {
        self.closer.inner.wait_until_idle();
    }

    /// What became of the tasks until now.
    pub fn stats(&self) -> PoolStats {
        self.closer.inner.stats()
    }

    /// The workers that wait for a task.
    #[cfg(target_os = "linux")]
    pub fn standbys(&self) -> Vec<crate::worker::Standby> {
        let Closer { inner, schedulers, .. } = &*self.closer;
        let devices =
            (0..self.devices()).filter(|&device| first_part(schedulers, device) == device);
        devices.filter_map(|device| inner.workers(device)).flat_map(|of| of.list()).collect()
    }

    /// Why the policy was replaced by [`FirstCome`](super::FirstCome), if it was.
    pub fn policy_error(&self) -> Option<Error> {
        self.closer.inner.policy_error()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("devices", &self.devices()).finish_non_exhaustive()
    }
}

/// Settings of a [`Pool`].
#[must_use = "settings do nothing until `build`"]
pub struct PoolBuilder {
    schedulers: Vec<Scheduler>,
    devices: Vec<Device>,
    kernels: Vec<Module>,
    policy: Box<dyn PoolPolicy>,
    stop: Option<Stop>,
    outstanding: usize,
    revocations: u32,
    #[cfg(target_os = "linux")]
    workers: Option<Workers>,
}

impl PoolBuilder {
    /// Adds a device, with a scheduler of the usual settings, behind those that are there.
    pub fn device(mut self, device: Device) -> PoolBuilder {
        self.devices.push(device);
        self
    }

    /// Adds several devices, as [`device`](PoolBuilder::device) does: the [parts](Device::split) of one, for instance, each of
    /// which runs tasks beside the others.
    ///
    /// ```
    /// use preempt::pool::Pool;
    /// use preempt::{CpuLayout, Device};
    ///
    /// let device = Device::cpu_with(CpuLayout::sms(4))?;
    /// let pool = Pool::builder().devices(device.split(4)?).build()?;
    /// assert_eq!(pool.devices(), 4);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    pub fn devices(mut self, devices: impl IntoIterator<Item = Device>) -> PoolBuilder {
        self.devices.extend(devices);
        self
    }

    /// Adds a device by its scheduler, ahead of those that are added by [`device`](PoolBuilder::device).
    ///
    /// User-facing tasks launch with priority 1, batch tasks with 0. A batch task that [yields](Stop::Yield) has no SMs meanwhile,
    /// whatever the scheduler's policy; its plain grids that are on the device run to their end.
    pub fn scheduler(mut self, scheduler: Scheduler) -> PoolBuilder {
        self.schedulers.push(scheduler);
        self
    }

    /// The device code of a kernels crate, for all devices that are added by [`device`](PoolBuilder::device).
    pub fn kernels(mut self, module: Module) -> PoolBuilder {
        self.kernels.push(module);
        self
    }

    /// The policy, which decides which task runs on which device. By default, [`UserFacingFirst`].
    pub fn policy(mut self, policy: impl PoolPolicy + 'static) -> PoolBuilder {
        self.policy = Box::new(policy);
        self
    }

    /// How batch tasks are stopped; the time is what the policy counts on. By default they yield, in the
    /// [time](crate::Costs::stop) that the slowest of the devices takes.
    pub fn stop(mut self, stop: Stop) -> PoolBuilder {
        self.stop = Some(stop);
        self
    }

    /// How many tasks of an application are outstanding at most; [`OUTSTANDING`] by default.
    pub fn outstanding(mut self, tasks: usize) -> PoolBuilder {
        self.outstanding = tasks;
        self
    }

    /// How often a task is revoked at most; [`REVOCATIONS`] by default. After that it runs to its end, and does not yield either:
    /// with 0, no task is stopped.
    pub fn revocations(mut self, most: u32) -> PoolBuilder {
        self.revocations = most;
        self
    }

    /// Which program the workers are that [opaque](super::Task::opaque) tasks call. By default, there are none.
    #[cfg(target_os = "linux")]
    pub fn workers(mut self, workers: Workers) -> PoolBuilder {
        self.workers = Some(workers);
        self
    }

    /// Builds the pool and its threads: two for each device, and one that decides.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoDevice`], [`PoolError::NoneOutstanding`], [`PoolError::PolicyRefused`]; errors of
    /// [`SchedulerBuilder::build`](crate::SchedulerBuilder::build) and of [`Device::memory`]; [`Error::Worker`];
    /// [`Error::Thread`].
    pub fn build(self) -> Result<Pool, Error> {
        let PoolBuilder { mut schedulers, devices, kernels, policy, .. } = self;
        let (outstanding, revocations) = (self.outstanding, self.revocations);
        if schedulers.is_empty() && devices.is_empty() {
            return Err(PoolError::NoDevice.into());
        }
        if outstanding == 0 {
            return Err(PoolError::NoneOutstanding.into());
        }
        if let Some(reason) = policy.refused() {
            return Err(PoolError::PolicyRefused { reason }.into());
        }
        for device in devices {
            let builder = Scheduler::builder().device(device);
            let builder = kernels.iter().fold(builder, |builder, &module| builder.kernels(module));
            schedulers.push(builder.build()?);
        }
        let mut memory = u64::MAX;
        for scheduler in &schedulers {
            memory = memory.min(scheduler.device().memory()?.total as u64);
        }
        let takes = schedulers.iter().map(|scheduler| scheduler.device().costs().stop).max();
        let stop = self.stop.unwrap_or(Stop::Yield(takes.unwrap_or_default()));
        let rules = Rules { stop, outstanding, revocations };
        #[cfg(target_os = "linux")]
        let workers = match &self.workers {
            Some(workers) => workers_of(workers, &schedulers)?,
            None => Vec::new(),
        };
        let (inner, threads) = Inner::start(
            schedulers.clone(),
            #[cfg(target_os = "linux")]
            workers,
            memory,
            rules,
            policy,
        )?;
        Ok(Pool { closer: Arc::new(Closer { inner, schedulers, threads }) })
    }
}

/// The workers of each device. Parts of one device have the same, since a worker has the whole device.
#[cfg(target_os = "linux")]
fn workers_of(workers: &Workers, schedulers: &[Scheduler]) -> Result<Vec<Arc<Standbys>>, Error> {
    let first: Vec<_> = (0..schedulers.len()).map(|of| first_part(schedulers, of)).collect();
    let firsts: Vec<_> = (0..first.len()).filter(|&device| first[device] == device).collect();
    let started = start_all(workers, firsts.iter().copied())?.into_iter().map(Arc::new);
    let started: Vec<_> = started.collect();
    let of = |first| firsts.iter().position(|of| of == first).unwrap_or_default();
    Ok(first.iter().map(|first| started[of(first)].clone()).collect())
}

impl fmt::Debug for PoolBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuilder")
            .field("schedulers", &self.schedulers)
            .field("devices", &self.devices)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}
