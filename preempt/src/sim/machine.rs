//! The simulated device, its costs, and kernels.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use preempt_device::abi::{MAX_SMS, MAX_TASKS};

use crate::error::{Error, SimulationError};
use crate::vocabulary::{Costs, QueueCount};

/// Measured figures, and their sources.
const H200: &str = include_str!("h200.txt");

/// The device that is simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Machine {
    /// Its SMs; at least 1.
    pub sms: u32,
    /// Its queues; those of a GPU by default.
    pub queues: DeviceQueues,
    /// Its costs.
    pub costs: Costs,
    /// Whether preemption costs nothing, whatever kernels say: blocks leave at the signal, and nothing is done twice.
    pub free_stops: bool,
}

/// Queues of a device, in which cohorts run one after the other. A cohort is the blocks of a launch that were
/// launched together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceQueues {
    /// Queues of the lowest level, for any cohort; at least 1.
    pub normal: u32,
    /// Queues of each level above, for cohorts that take SMs from other launches.
    pub urgent: u32,
    /// Levels above the lowest. Where blocks wait for room, those of the highest level go first.
    pub levels: u32,
    /// How many queues can hold more than one cohort at the same time.
    pub chains: u32,
}

impl Machine {
    /// A device of `sms` SMs with a GPU's queues. With [`Costs::free`], its stops are free, too.
    pub fn new(sms: u32, costs: Costs) -> Machine {
        Machine {
            sms,
            queues: DeviceQueues { normal: 16, urgent: 3, levels: 5, chains: 4 },
            costs,
            free_stops: costs == Costs::free(),
        }
    }

    /// An NVIDIA H200: 132 SMs and [measured costs](Costs::h200).
    pub fn h200() -> Machine {
        Machine::new(132, Costs::h200())
    }

    pub(super) fn queue_count(&self) -> QueueCount {
        let DeviceQueues { normal, urgent, levels, chains } = self.queues;
        QueueCount { normal, urgent, levels, chains }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        if !(1..=MAX_SMS).contains(&self.sms) {
            return Err(refused(format!("a device has 1 to {MAX_SMS} SMs, not {}", self.sms)));
        }
        if self.queues.normal == 0 {
            return Err(refused("a device has at least one normal queue"));
        }
        if self.queues.urgent == 0 && self.queues.levels > 0 {
            return Err(refused("a level has at least one queue"));
        }
        let longest = self.costs.longest();
        if longest > LONGEST {
            return Err(refused(format!("a cost of {longest:?} is longer than a day")));
        }
        Ok(())
    }
}

/// A model of a kernel.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
#[must_use = "a workload launches it"]
pub struct KernelModel {
    /// Its name, for the results.
    pub name: String,
    /// How long a launch takes alone on as many SMs as it can fill, without launch costs. On half as many SMs it
    /// takes twice as long.
    pub duration: Duration,
    /// The same of a launch that is a plain grid, if it takes longer or shorter.
    pub plain_duration: Option<Duration>,
    /// Block-tasks of a launch; with `blocks_per_sm` they say how many SMs it can fill.
    pub tasks: u32,
    /// Blocks that an SM holds.
    pub blocks_per_sm: u32,
    /// The part of `duration` by which a launch may be longer or shorter, uniformly: 0.1 is up to a tenth.
    pub variation: f64,
    /// The time from the signal until the last block has left; the machine's [`Costs::stop`] if `None`. Blocks work
    /// until then.
    pub stop: Option<Duration>,
    /// The work that each SM has to do again after a stop, dropped at a yield point: half of a block-task on average. 0
    /// without yield points. Blocks that have run for less than a block-task drop all that they did.
    pub redo: Duration,
    /// What the policy is told of a launch's duration.
    pub prediction: Prediction,
    /// Whether launches are plain grids, whose SMs the device gives to more urgent ones at the ends of blocks alone.
    pub plain: bool,
    /// Whether launches that are not plain anyway are as [`Preemption::Auto`](crate::Preemption::Auto) has them.
    pub auto: bool,
}

/// What a policy is told of a launch's duration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Prediction {
    /// Nothing.
    Unknown,
    /// The true duration.
    #[default]
    Exact,
    /// The kernel's [`duration`](KernelModel::duration), whatever the launch takes.
    Typical,
    /// This duration, right or wrong.
    Is(Duration),
}

impl KernelModel {
    /// A kernel whose launches take this long alone and have this many block-tasks, one on each SM at a time.
    pub fn new(name: impl Into<String>, duration: Duration, tasks: u32) -> KernelModel {
        KernelModel {
            name: name.into(),
            duration,
            plain_duration: None,
            tasks,
            blocks_per_sm: 1,
            variation: 0.0,
            stop: None,
            redo: Duration::ZERO,
            prediction: Prediction::default(),
            plain: false,
            auto: false,
        }
    }

    /// The dominating launch of one of the papers' programs (`MM`, `BFS`, ..) at full size, as measured on an NVIDIA
    /// H200; `None` if there is none of that name.
    pub fn h200(program: &str) -> Option<KernelModel> {
        let mut lines = H200.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let line = lines.find(|line| line.len() == 7 && line[0] == program)?;
        let time =
            |text: &str| Some(Duration::from_nanos((text.parse::<f64>().ok()? * 1e3) as u64));
        let model = KernelModel {
            blocks_per_sm: line[2].parse().ok()?,
            plain_duration: Some(time(line[4])?),
            stop: Some(time(line[5])?),
            ..KernelModel::new(program, time(line[3])?, line[1].parse().ok()?)
        };
        let redo =
            if line[6] == "yes" { model.dropped(Machine::h200().sms) } else { Duration::ZERO };
        Some(model.redo(redo))
    }

    /// The work that each SM of a device with `sms` SMs drops on average where blocks leave at a yield point: half of a
    /// block-task, if all take as long.
    pub fn dropped(&self, sms: u32) -> Duration {
        let places = self.blocks_per_sm.saturating_mul(sms).min(self.tasks);
        self.duration.mul_f64(f64::from(places) / f64::from(self.tasks.max(1)) / 2.0)
    }

    /// The duration, to that of a plain grid; `None` if they are not known to differ.
    pub(super) fn loop_to_plain(&self) -> Option<f64> {
        let plain = self.plain_duration.filter(|time| !time.is_zero())?;
        (!self.duration.is_zero()).then(|| self.duration.div_duration_f64(plain))
    }

    /// With launches that take this long where they are plain grids.
    pub fn plain_duration(mut self, time: Duration) -> KernelModel {
        self.plain_duration = Some(time);
        self
    }

    /// With this many blocks on an SM.
    pub fn blocks_per_sm(mut self, blocks: u32) -> KernelModel {
        self.blocks_per_sm = blocks;
        self
    }

    /// With launches that take up to this much longer or less, as a part of the duration.
    pub fn variation(mut self, part: f64) -> KernelModel {
        self.variation = part;
        self
    }

    /// With this time from the signal until the last block has left.
    pub fn stop(mut self, time: Duration) -> KernelModel {
        self.stop = Some(time);
        self
    }

    /// With yield points, where each SM drops this much work.
    pub fn redo(mut self, time: Duration) -> KernelModel {
        self.redo = time;
        self
    }

    /// With this prediction.
    pub fn prediction(mut self, prediction: Prediction) -> KernelModel {
        self.prediction = prediction;
        self
    }

    /// With launches that are plain grids, or are not.
    pub fn plain(mut self, plain: bool) -> KernelModel {
        self.plain = plain;
        self
    }

    /// With launches whose form is chosen, or is not.
    pub fn auto(mut self, auto: bool) -> KernelModel {
        self.auto = auto;
        self
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let KernelModel { name, tasks, blocks_per_sm, .. } = self;
        if !(1..=MAX_TASKS).contains(tasks) {
            let limit = format!("a launch has 1 to {MAX_TASKS} block-tasks, not {tasks}");
            return Err(refused(format!("kernel `{name}`: {limit}")));
        }
        if !(1..=MAX_BLOCKS).contains(blocks_per_sm) {
            let limit = format!("an SM holds 1 to {MAX_BLOCKS} blocks, not {blocks_per_sm}");
            return Err(refused(format!("kernel `{name}`: {limit}")));
        }
        if !(0.0..1.0).contains(&self.variation) {
            let limit = format!("a variation lies from 0 to below 1; {} does not", self.variation);
            return Err(refused(format!("kernel `{name}`: {limit}")));
        }
        let plain = self.plain_duration.unwrap_or_default();
        let longest = self.duration.max(plain).max(self.stop.unwrap_or_default()).max(self.redo);
        if longest > LONGEST {
            return Err(refused(format!("kernel `{name}`: {longest:?} is longer than a day")));
        }
        Ok(())
    }
}

/// More than any GPU has.
const MAX_BLOCKS: u32 = 1024;

/// Virtual time; times of all SMs together fit into 64 bits of nanoseconds.
pub(super) const LONGEST: Duration = Duration::from_secs(24 * 3600);

pub(super) fn refused(reason: impl Into<String>) -> Error {
    Error::Simulation(SimulationError::GivenUp { reason: reason.into() })
}

/// A number in a text.
pub(super) fn number<T: FromStr<Err: Display>>(text: &str, what: &str) -> Result<T, Error> {
    text.parse().map_err(|error| refused(format!("{what} is `{text}`: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_of_the_papers_has_a_model() {
        let names = "CFD NN PF PL MD SPMV MM VA BFS FFT MD5Hash NeuralNet Reduction Scan Sort Stencil2D Triad";
        for name in names.split(' ') {
            let kernel = KernelModel::h200(name).unwrap();
            kernel.check().unwrap();
            assert!(kernel.duration > Duration::from_micros(100), "{kernel:?}");
        }
        let (mm, va) = (KernelModel::h200("MM").unwrap(), KernelModel::h200("VA").unwrap());
        assert!(
            mm.plain_duration.unwrap() < mm.duration && va.plain_duration.unwrap() > va.duration
        );
        // 2025 block-tasks, of which 264 run at a time; and none is dropped without yield points.
        let of_mm = mm.duration.as_secs_f64() * 264.0 / 2025.0 / 2.0;
        assert!((mm.redo.as_secs_f64() - of_mm).abs() < 1e-8 && va.redo.is_zero());
        assert_eq!(KernelModel::h200("launch"), None);
        assert_eq!(KernelModel::h200("#"), None);
    }
}
