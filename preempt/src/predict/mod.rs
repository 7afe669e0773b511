//! Durations of launches, with which policies look ahead (FLEP, ASPLOS 2017, sections 4.2 and 5.1).
//!
//! A [`Predictor`] is asked once for each launch, when it is submitted. Its answer, less the time that the launch has
//! had SMs since, is what policies see as [`DeviceView::remaining`](crate::policy::DeviceView::remaining). A duration
//! is always that of the whole launch, alone on as many SMs as it can fill.
//!
//! | | |
//! | --- | --- |
//! | [`Online`] | learns from each launch that ends; what a scheduler has unless it is given another |
//! | [`Ridge`] | FLEP's linear regression for each kernel, from runs that were recorded before; kept in a file |
//!
//! [`Scheduler::profile`](crate::Scheduler::profile) records runs:
//!
//! ```
//! use preempt::{Device, Scheduler, predict::{Online, Ridge}};
//! use preempt_device::prelude::*;
//!
//! /// `out[i] = x[i] * x[i]`
//! #[preemptible(block = 64)]
//! pub fn squares(x: &[f32], out: SliceMut<f32>) {
//!     let i = thread::index_1d() as usize;
//!     if i < out.len() {
//!         // SAFETY: each thread writes its own element.
//!         unsafe { out.write(i, x[i] * x[i]) }
//!     }
//! }
//!
//! let device = Device::cpu()?;
//! let scheduler = Scheduler::builder().device(device.clone()).build()?;
//! let mut runs = Vec::new();
//! for blocks in [10, 40, 100, 160] {
//!     let x = scheduler.zeroed(64 * blocks as usize)?;
//!     let mut out = scheduler.zeroed(64 * blocks as usize)?;
//!     runs.extend(scheduler.profile([squares(&x, &mut out).grid(blocks)])?);
//! }
//! let ridge = Ridge::train(&runs);
//! # let file = std::env::temp_dir().join(format!("preempt-ridge-doc-{}.tsv", std::process::id()));
//! # /*
//! ridge.save("preempt-ridge.tsv")?;
//! # */
//! # ridge.save(&file)?;
//! drop(scheduler);
//!
//! // The next run of the program.
//! # /*
//! let ridge = Ridge::load("preempt-ridge.tsv")?;
//! # */
//! # let ridge = Ridge::load(&file)?;
//! # let _ = std::fs::remove_file(file);
//! let scheduler = Scheduler::builder().device(device).predictor(Online::after(ridge)).build()?;
//! # let _ = scheduler;
//! # Ok::<(), preempt::Error>(())
//! ```

use std::time::Duration;

use rustc_hash::FxHashMap;

mod model;
mod online;
mod ridge;

pub use online::Online;
pub use ridge::Ridge;

/// What is known of a launch before it runs: FLEP's four features, and the kernel (FLEP section 4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features<'a> {
    /// Where the kernel was written, from `module_path!`.
    pub module: &'a str,
    /// The kernel's name.
    pub kernel: &'a str,
    /// Block-tasks in the grid.
    pub grid: u32,
    /// Threads in a block.
    pub block: u32,
    /// Bytes of the buffers that are passed to it.
    pub input_bytes: u64,
    /// Bytes of shared memory that a block takes.
    pub shared_bytes: u32,
}

/// A launch that ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run<'a> {
    /// The launch.
    pub launch: Features<'a>,
    /// How long it took, alone on as many SMs as it can fill.
    pub took: Duration,
}

/// Predicts how long launches take.
///
/// The thread that drives the scheduler calls it and waits for it, so neither method may wait for the scheduler. A
/// predictor that panics is dropped: nothing is predicted from then on, and
/// [`Scheduler::predictor_error`](crate::Scheduler::predictor_error) says so.
///
/// ```
/// use std::collections::HashMap;
/// use std::time::Duration;
///
/// use preempt::Scheduler;
/// use preempt::policy::EarliestDeadline;
/// use preempt::predict::{Features, Predictor};
///
/// /// What the longest launch of each kernel has taken: with deadlines, too much is better than too little.
/// #[derive(Default)]
/// struct Longest(HashMap<String, Duration>);
///
/// impl Predictor for Longest {
///     fn predict(&self, launch: &Features<'_>) -> Option<Duration> {
///         self.0.get(launch.kernel).copied()
///     }
///
///     fn finished(&mut self, launch: &Features<'_>, took: Duration) {
///         let longest = self.0.entry(launch.kernel.to_owned()).or_default();
///         *longest = took.max(*longest);
///     }
/// }
///
/// // In a unit test.
/// let launch = Features {
///     module: "kernels",
///     kernel: "squares",
///     grid: 100,
///     block: 256,
///     input_bytes: 0,
///     shared_bytes: 0,
/// };
/// let (mut longest, ms) = (Longest::default(), Duration::from_millis);
/// assert_eq!(longest.predict(&launch), None);
/// [3, 5, 4].into_iter().for_each(|time| longest.finished(&launch, ms(time)));
/// assert_eq!(longest.predict(&launch), Some(ms(5)));
///
/// let scheduler = Scheduler::builder()
///     .policy(EarliestDeadline::new())
///     .predictor(longest)
///     .build()?;
/// # let _ = scheduler;
/// # Ok::<(), preempt::Error>(())
/// ```
pub trait Predictor: Send {
    /// Predicts how long a launch will take, alone on as many SMs as it can fill; `None` if it cannot tell. Asked
    /// once for each launch, when it is submitted.
    fn predict(&self, launch: &Features<'_>) -> Option<Duration>;

    /// Learns how long a launch took, as if alone on as many SMs as it can fill: the time that it had SMs, summed
    /// over SMs, divided by the number of SMs that it can fill. Its waiting, before it started or because it had to
    /// yield, is not in it.
    ///
    /// It is not called for launches that failed or were cancelled, nor where that time is not known. That is so for
    /// some launches that followed others of their stream within microseconds. If the host saw the ends of several
    /// launches together, each has a share of their time, in proportion to the predictions.
    fn finished(&mut self, launch: &Features<'_>, took: Duration);
}

/// A value for each kernel.
#[derive(Clone, Debug)]
struct ByKernel<T>(FxHashMap<Box<str>, Vec<(Box<str>, T)>>);

impl<T> Default for ByKernel<T> {
    fn default() -> ByKernel<T> {
        ByKernel(FxHashMap::default())
    }
}

impl<T> ByKernel<T> {
    fn get(&self, launch: &Features<'_>) -> Option<&T> {
        let modules = self.0.get(launch.kernel)?;
        modules.iter().find(|(module, _)| **module == *launch.module).map(|(_, of)| of)
    }

    /// The value of a kernel, made if there is none.
    fn entry(&mut self, module: &str, kernel: &str) -> &mut T
    where
        T: Default,
    {
        // Not `entry`, which takes an owned name each time.
        if !self.0.contains_key(kernel) {
            self.0.insert(kernel.into(), Vec::new());
        }
        let modules = self.0.entry(kernel.into()).or_default();
        let at = modules.iter().position(|(other, _)| **other == *module).unwrap_or_else(|| {
            modules.push((module.into(), T::default()));
            modules.len() - 1
        });
        &mut modules[at].1
    }

    fn iter(&self) -> impl Iterator<Item = (&str, &str, &T)> {
        self.0.iter().flat_map(|(kernel, modules)| {
            modules.iter().map(move |(module, of)| (&**module, &**kernel, of))
        })
    }
}
