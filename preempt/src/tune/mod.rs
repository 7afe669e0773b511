//! The amortizing factor of a launch, found by measuring (FLEP, ASPLOS 2017, section 4.1).
//!
//! A preemptible kernel looks at the signal once for each group of block-tasks; the amortizing factor is the size of
//! the group. With a small one, it leaves soon when it has to, and looks often; with a large one, it looks seldom,
//! and leaves late. FLEP takes the smallest factor whose overhead over the original kernel is below 4 %. So does a
//! [`Tuner`], for one kernel, grid, block and input on one device, by running the launch in both forms:
//!
//! ```
//! use preempt::{Device, Scheduler, tune::Tuner};
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
//! let scheduler = Scheduler::builder().device(Device::cpu()?).build()?;
//! let stream = scheduler.stream(0);
//! let x = scheduler.buffer(&vec![3.0f32; 640])?;
//! let mut out = scheduler.zeroed::<f32>(640)?;
//! let call = squares(&x, &mut out).grid(10);
//!
//! let tuner = Tuner::new(&scheduler).samples(3);
//! # let file = std::env::temp_dir().join(format!("preempt-tuned-doc-{}.tsv", std::process::id()));
//! # let tuner = tuner.cache(&file);
//! # /*
//!     .cache("preempt-tuned.tsv");
//! # */
//! let tuned = tuner.tune("640 elements", || call.clone())?;
//! println!("{} block-tasks at once, overhead {:.1} %", tuned.amortize, 100.0 * tuned.overhead);
//! stream.launch(call.amortize(tuned.amortize))?.wait()?;
//! assert_eq!(stream.download(&out)?.wait()?, [9.0; 640]);
//! # assert!(file.exists());
//! # let _ = std::fs::remove_file(file);
//! # Ok::<(), preempt::Error>(())
//! ```
//!
//! Without tuning, the factor is [automatic](crate::Amortize::Auto): each block adapts it while it runs. A tuned
//! factor is the same in every run.
//!
//! # What is asked of the caller
//!
//! - The launch runs many times: twice before anything is measured, and twice as often as
//!   [`samples`](Tuner::samples) says for each factor that is tried. That must be harmless. A kernel that adds to
//!   its output, or changes its input, should be tuned on buffers that are not needed otherwise. If its running time
//!   depends on what an earlier run left in them, its times are compared wrongly.
//! - Nothing else should use the device meanwhile: launches are ordered and interrupted as always, and what they
//!   wait for is measured with them.
//!
//! # The file
//!
//! With [`cache`](Tuner::cache), what was found is kept in a text file, one line for each kernel (module path and
//! name), grid, block, name of the input, device and limit. It holds for one build: of the PTX of the kernels'
//! crate, if the scheduler has it, of this crate's version, and of the GPU's driver, which compiles the PTX. A
//! scheduler without PTX does not see that a kernel has changed: give the input another name then, or remove the
//! file. Another build's entry for the same launch is replaced.
//!
//! The file is replaced as a whole, so it is never seen half written. If two programs add to it at the same time,
//! one of the entries may be missing afterwards, and that launch is tuned again. Lines that cannot be read are
//! ignored, and gone with the next entry that is added; so is a file of another version of this format. A file of
//! something else is an error, and left alone.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use preempt_device::host::{Call, Preemption};

use crate::error::{Error, TuningError};
use crate::scheduler::{Scheduler, Shape};
pub use crate::vocabulary::Tuned;

mod cache;
mod decision;

use cache::{Key, LaunchKey};

/// Part of the plain time that a factor may cost, unless the caller says otherwise (FLEP section 4.1).
const OVERHEAD: f64 = 0.04;

/// Launches that are timed in each form, unless the caller says otherwise.
const SAMPLES: u32 = 9;

/// The plain kernel and the preemptible one.
const FORMS: [Preemption; 2] = [Preemption::Plain, Preemption::Preemptible];

/// Finds amortizing factors; see the [module](self).
#[derive(Clone, Debug)]
#[must_use = "a tuner does nothing until `tune`"]
pub struct Tuner<'a> {
    scheduler: &'a Scheduler,
    overhead: f64,
    samples: u32,
    cache: Option<PathBuf>,
}

impl<'a> Tuner<'a> {
    /// A tuner for launches of this scheduler, on its device.
    pub fn new(scheduler: &'a Scheduler) -> Tuner<'a> {
        Tuner { scheduler, overhead: OVERHEAD, samples: SAMPLES, cache: None }
    }

    /// Sets the limit of the overhead, as a part of the plain kernel's time; 0.04 by default. If no factor is below
    /// it, the one with the least overhead is taken: with a limit of -1, always.
    pub fn overhead(mut self, overhead: f64) -> Tuner<'a> {
        self.overhead = overhead;
        self
    }

    /// Sets how often the launch is timed in each form for each factor; 9 by default, and at least 1. The medians are
    /// compared.
    pub fn samples(mut self, samples: u32) -> Tuner<'a> {
        self.samples = samples.max(1);
        self
    }

    /// Sets the file that results are kept in, and looked for; see [the module](self#the-file). Its folder has to
    /// be there. By default nothing is kept.
    pub fn cache(mut self, file: impl Into<PathBuf>) -> Tuner<'a> {
        self.cache = Some(file.into());
        self
    }

    /// Returns the smallest of the factors 1, 2, 4, .. with which the launch takes less than the limit longer than in
    /// its plain form; if there is none, the one that comes closest. The largest factor is 1024, or the number of
    /// block-tasks for each block that fits on the device.
    ///
    /// `input` names what the launch works on, where its time depends on that; it tells entries of the file apart.
    /// `call` makes the launch, the same one each time; the factor and the form in it are overruled. The launches
    /// go through a stream of priority 0, and this thread waits for them. See [the
    /// module](self#what-is-asked-of-the-caller) for what running it often asks of the launch.
    ///
    /// # Errors
    ///
    /// Those of [`Stream::launch`](crate::Stream::launch), and what becomes of one of the launches
    /// ([`LaunchError::KernelFailed`](crate::error::LaunchError::KernelFailed) and so on); nothing is kept then.
    /// [`TuningError::NotRead`] before anything is launched, and [`TuningError::NotKept`], which has the result, if
    /// there is something wrong with the file.
    pub fn tune(&self, input: &str, call: impl FnMut() -> Call<'static>) -> Result<Tuned, Error> {
        let stream = self.scheduler.stream(0);
        self.tune_by(input, call, |call| {
            let start = Instant::now();
            stream.launch(call)?.wait()?;
            Ok(start.elapsed())
        })
    }

    /// [`tune`](Self::tune), where `time` says how long a launch takes.
    fn tune_by(
        &self,
        input: &str,
        mut call: impl FnMut() -> Call<'static>,
        mut time: impl FnMut(Call<'static>) -> Result<Duration, Error>,
    ) -> Result<Tuned, Error> {
        let first = call();
        let shape = Shape::of(&first, self.scheduler.device())?;
        let key = self.cache.as_ref().map(|path| {
            let launch = LaunchKey {
                module: first.kernel().module.into(),
                kernel: first.kernel().name.into(),
                grid: shape.grid,
                block: shape.block,
                input: input.into(),
                device: self.scheduler.device().properties().name.clone(),
                limit: self.overhead.to_string(),
            };
            (path, Key { launch, build: self.build(&first) })
        });
        if let Some((path, key)) = &key {
            let found = cache::find(path, key).map_err(|source| {
                let (path, source) = (PathBuf::clone(path), Arc::new(source));
                Error::Tuning(TuningError::NotRead { path, source })
            })?;
            if let Some(tuned) = found {
                return Ok(tuned);
            }
        }

        // The first launch of a kernel, in either form, may have to load it, and finds cold caches.
        for form in FORMS {
            time(first.clone().amortize(1).preemption(form))?;
        }
        let places =
            self.scheduler.device().properties().sms.saturating_mul(shape.occupancy.blocks_per_sm);
        let steps = decision::factors(shape.tasks.div_ceil(places.max(1)))
            .map(|factor| self.measure(factor, || call().amortize(factor), &mut time));
        // There always is a first factor.
        let tuned = decision::choose(steps, self.overhead)?
            .unwrap_or_else(|| Tuned::new(1, Duration::ZERO, Duration::ZERO));

        if let Some((path, key)) = key {
            cache::keep(path, key, tuned).map_err(|source| {
                let (path, source) = (path.clone(), Arc::new(source));
                Error::Tuning(TuningError::NotKept { path, tuned, source })
            })?;
        }
        Ok(tuned)
    }

    /// Times both forms of a call with this factor.
    fn measure(
        &self,
        amortize: u32,
        mut call: impl FnMut() -> Call<'static>,
        mut time: impl FnMut(Call<'static>) -> Result<Duration, Error>,
    ) -> Result<Tuned, Error> {
        let (mut plain, mut preemptible) = (Vec::new(), Vec::new());
        for sample in 0..self.samples {
            // In turns, so that other work of the machine meets both. Each goes first every other time, so that both
            // follow the other one as often as themselves.
            let mut forms = FORMS;
            if sample % 2 == 1 {
                forms.reverse();
            }
            for form in forms {
                let took = time(call().preemption(form))?;
                match form {
                    Preemption::Plain => plain.push(took),
                    _ => preemptible.push(took),
                }
            }
        }
        let (plain, preemptible) =
            (decision::median(&mut plain), decision::median(&mut preemptible));
        Ok(Tuned::new(amortize, plain, preemptible))
    }

    /// A hash of the code that runs.
    fn build(&self, call: &Call<'static>) -> u64 {
        let module = call.kernel().module;
        let name = module.split("::").next().unwrap_or(module);
        let driver = self.scheduler.device().properties().driver.as_deref().unwrap_or("");
        let versions = [env!("CARGO_PKG_VERSION"), driver];
        cache::build(versions.into_iter().chain(self.scheduler.ptx(name)))
    }
}

#[cfg(test)]
mod tests {
    use preempt_device::prelude::*;

    use super::*;
    use crate::{Amortize, CpuLayout, Device, Module};

    #[preemptible(block = 1)]
    fn nothing() {}

    #[test]
    fn both_forms_take_turns_until_a_factor_is_good_enough() {
        use Preemption::{Plain, Preemptible};

        let device = Device::cpu_with(CpuLayout::sms(2)).expect("a device");
        let scheduler = Scheduler::builder().device(device).build().expect("a scheduler");
        let tune = |limit: f64, time: fn(u32) -> u64| {
            let tuner = Tuner::new(&scheduler).samples(3);
            let mut timed = Vec::new();
            let tuned = tuner.overhead(limit).tune_by(
                "",
                || nothing().grid(16).amortize(0).preemption(Preemption::Auto),
                |call| {
                    let Amortize::Tasks(factor) = call.amortizing_factor() else { panic!("set") };
                    let form = call.preemption_mode().expect("set");
                    timed.push((form, factor));
                    let plain = form == Plain;
                    Ok(Duration::from_micros(if plain { 100 } else { time(factor) }))
                },
            );
            (tuned.expect("no launch fails"), timed)
        };

        let (tuned, timed) = tune(0.15, |factor| 100 + 40 / u64::from(factor));
        assert_eq!((tuned.amortize, tuned.overhead), (4, 0.1));
        let times = (Duration::from_micros(100), Duration::from_micros(110));
        assert_eq!((tuned.plain, tuned.preemptible), times);
        let mut expected = vec![(Plain, 1), (Preemptible, 1)];
        for factor in [1, 2, 4] {
            let forms = [Plain, Preemptible, Preemptible, Plain, Plain, Preemptible];
            expected.extend(forms.map(|form| (form, factor)));
        }
        assert_eq!(timed, expected);

        // Two blocks of 16 block-tasks: no more than 8 for each.
        let (tuned, timed) = tune(0.04, |factor| 150 + u64::from(factor.abs_diff(2)));
        assert_eq!((tuned.amortize, tuned.overhead), (2, 0.5));
        assert_eq!(timed.last(), Some(&(Preemptible, 8)));
    }

    #[test]
    fn a_build_is_that_of_the_kernels_own_crate() {
        let build = |modules: &[Module]| {
            let device = Device::cpu_with(CpuLayout::sms(1)).expect("a device");
            let builder = Scheduler::builder().device(device);
            let builder = modules.iter().fold(builder, |builder, module| builder.kernels(*module));
            Tuner::new(&builder.build().expect("a scheduler")).build(&nothing().grid(1))
        };
        let (own, other) =
            (|ptx| Module::new("preempt", Some(ptx)), Module::new("kernels", Some("b")));
        assert_eq!(build(&[own("a")]), build(&[own("a")]));
        assert_ne!(build(&[own("a")]), build(&[own("b")]));
        assert_ne!(build(&[own("a")]), build(&[]));
        assert_eq!(build(&[own("a"), other]), build(&[own("a")]));
        assert_eq!(build(&[Module::new("preempt", None)]), build(&[]));
    }
}
