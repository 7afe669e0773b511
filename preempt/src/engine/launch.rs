//! One launch, from its arrival to its last cohort.

use preempt_device::abi::{COHORT_SLOTS, SmRange};

use super::controls::ControlIndex;
use crate::policy::Priority;

/// What the engine has to know of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchSpec {
    pub priority: Priority,
    pub tasks: u32,
    /// Blocks of the kernel that fit on one SM.
    pub blocks_per_sm: u32,
}

/// What became of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LaunchReport {
    /// Block-tasks that ran.
    pub tasks: u32,
    /// How often SMs were taken from the launch while its blocks were on the device.
    pub yields: u32,
    /// How many later cohorts ran block-tasks: each is a resume or a growth in mid-kernel.
    pub resumes: u32,
}

/// The states of EffiSha (section 5.1), from the time that a policy knows the launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Has no SM.
    Ready,
    /// Has SMs, and its blocks are not launched yet.
    ToRun,
    /// Has SMs, and blocks on the device.
    Running,
    /// Has no SM any more, but blocks that have not left yet.
    ToEvict,
}

#[derive(Debug)]
pub(super) struct Launch {
    pub spec: LaunchSpec,
    /// The SMs that the launch has.
    pub range: SmRange,
    /// The control block and its generation, from the first cohort on.
    pub control: Option<(ControlIndex, u32)>,
    /// For each slot with a cohort on the device: that cohort.
    pub cohorts: [Option<OnDevice>; COHORT_SLOTS],
    /// When the policy was told, as a running number; `None` before and after.
    pub arrival: Option<u64>,
    /// The last plan, as a running number, that granted SMs to the launch.
    pub planned: u64,
    /// Whether a cohort was launched before.
    started: bool,
    report: LaunchReport,
}

/// A cohort on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnDevice {
    /// The SMs that its signal word names.
    pub range: SmRange,
    /// Whether another cohort came before.
    resumed: bool,
}

impl Launch {
    pub fn new(spec: LaunchSpec) -> Launch {
        Launch {
            spec,
            range: SmRange::EMPTY,
            control: None,
            cohorts: [None; COHORT_SLOTS],
            arrival: None,
            planned: 0,
            started: false,
            report: LaunchReport::default(),
        }
    }

    pub fn state(&self) -> State {
        match (self.range.is_empty(), self.is_out()) {
            (true, true) => State::Ready,
            (false, true) => State::ToRun,
            (false, false) => State::Running,
            (true, false) => State::ToEvict,
        }
    }

    /// Whether no cohort is on the device.
    pub fn is_out(&self) -> bool {
        self.cohorts.iter().all(Option::is_none)
    }

    pub fn free_slot(&self) -> Option<usize> {
        self.cohorts.iter().position(Option::is_none)
    }

    /// Block-tasks that no cohort has reported.
    pub fn remaining(&self) -> u32 {
        self.spec.tasks - self.report.tasks
    }

    /// The SMs that the rest can fill.
    pub fn need(&self, sms: u32) -> u32 {
        self.remaining().div_ceil(self.spec.blocks_per_sm).clamp(1, sms)
    }

    pub fn report(&self) -> LaunchReport {
        self.report
    }

    pub fn cohort_in(&mut self, slot: usize) {
        self.cohorts[slot] = Some(OnDevice { range: SmRange::ALL, resumed: self.started });
        self.started = true;
    }

    /// Takes in what the cohort in `slot` did; `false` if there is none.
    pub fn cohort_out(&mut self, slot: usize, done: u32) -> bool {
        let Some(cohort) = self.cohorts[slot].take() else { return false };
        self.report.tasks += done;
        debug_assert!(self.report.tasks <= self.spec.tasks, "tasks ran twice");
        self.report.resumes += u32::from(cohort.resumed && done > 0);
        true
    }

    pub fn count_yield(&mut self) {
        self.report.yields += 1;
    }
}
