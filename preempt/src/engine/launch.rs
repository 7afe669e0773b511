//! One launch, from its arrival to its last cohort.

use std::time::Duration;

use preempt_device::abi::{COHORT_SLOTS, Posted, SmRange};

use super::controls::ControlUse;
use super::lanes::LaneIndex;
use super::ledger;

/// What the engine has to know of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchSpec {
    pub tasks: u32,
    /// How long all of it takes with as many SMs as it can fill, if anybody knows.
    pub predicted: Option<Duration>,
    /// From the signal until its last block is out.
    pub yield_overhead: Duration,
    /// Blocks of the kernel that fit on one SM.
    pub blocks_per_sm: u32,
    /// Blocks of the kernel that fit on the last SM: where a block of the device's own may be, too. At least one.
    pub on_last_sm: u32,
    /// Whether it runs as an ordinary grid: in one cohort, of which no block leaves before the end.
    pub native: bool,
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
    /// The amortizing factor: how many block-tasks a block came to claim at once, between two looks at the
    /// signal, at the end of the launch, as its last block saw it; at most 4095. 0 for a native launch.
    pub amortize: u32,
    /// Whether it ran as an ordinary grid, without preemption.
    pub native: bool,
    /// How long it had SMs, summed over SMs. Launches that follow each other in a stream within microseconds may
    /// be counted with the first of them.
    pub sm_time: Duration,
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
    /// The control block, from the first cohort on.
    pub control: Option<ControlUse>,
    /// The tasks that its first cohort's blocks start with, once there was one.
    pub handed: Option<u32>,
    /// For each slot with a cohort on the device: that cohort.
    pub cohorts: [Option<OnDevice>; COHORT_SLOTS],
    /// The lane of the last cohort.
    pub lane: Option<LaneIndex>,
    /// The SMs that the launch before it in the stream left to it, for the cohort that was queued
    /// behind that one.
    pub bequest: SmRange,
    /// When the policy was told, as a running number; `None` before and after.
    pub arrival: Option<u64>,
    /// The last plan, as a running number, that granted SMs to the launch.
    pub planned: u64,
    /// Whether a cohort came out of the device.
    pub ran: bool,
    /// Whether there was a cohort that could run at once.
    started: bool,
    /// Until when the report's time on SMs counts, and what it was when the last block was out.
    counted: Duration,
    sm_time_out: Duration,
    report: LaunchReport,
}

/// A cohort on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnDevice {
    pub lane: LaneIndex,
    pub blocks: u32,
    /// Whether another cohort came before.
    resumed: bool,
}

impl Launch {
    pub fn new(spec: LaunchSpec) -> Launch {
        Launch {
            spec,
            range: SmRange::EMPTY,
            control: None,
            handed: None,
            cohorts: [None; COHORT_SLOTS],
            lane: None,
            bequest: SmRange::EMPTY,
            arrival: None,
            planned: 0,
            ran: false,
            started: false,
            counted: Duration::ZERO,
            sm_time_out: Duration::ZERO,
            report: LaunchReport { native: spec.native, ..LaunchReport::default() },
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

    /// Blocks that fit on so many SMs, of which the last one of the device is one or not.
    pub fn room(&self, sms: u32, with_last: bool) -> u32 {
        let LaunchSpec { blocks_per_sm, on_last_sm, .. } = self.spec;
        let less = if with_last { blocks_per_sm - on_last_sm } else { 0 };
        sms.saturating_mul(blocks_per_sm) - less
    }

    /// The SMs that the rest can fill.
    pub fn need(&self, sms: u32) -> u32 {
        self.remaining().div_ceil(self.spec.blocks_per_sm).clamp(1, sms)
    }

    pub fn report(&self) -> LaunchReport {
        self.report
    }

    /// Gives it other SMs than it had until now.
    pub fn set_range(&mut self, now: Duration, range: SmRange, sms: u32) {
        self.report.sm_time = self.sm_time(now, sms);
        self.counted = now;
        self.range = range;
    }

    /// How long it has had SMs, summed over SMs.
    pub fn sm_time(&self, now: Duration, sms: u32) -> Duration {
        let has = ledger::count(self.range, sms);
        self.report.sm_time + now.saturating_sub(self.counted).saturating_mul(has)
    }

    /// How long the rest takes with as many SMs as it can fill. What was done is known when no block is out;
    /// since then it counts as done as the prediction has it.
    pub fn time_left(&self, now: Duration, sms: u32) -> Option<Duration> {
        let whole = self.spec.predicted?;
        let fills = self.spec.tasks.div_ceil(self.spec.blocks_per_sm).clamp(1, sms);
        let left = whole.mul_f64(f64::from(self.remaining()) / f64::from(self.spec.tasks));
        let since = self.sm_time(now, sms).saturating_sub(self.sm_time_out) / fills;
        Some(left.saturating_sub(since))
    }

    /// Enters a cohort; `ahead` if the launch before in its stream may not have ended.
    pub fn cohort_in(&mut self, slot: usize, lane: LaneIndex, blocks: u32, ahead: bool) {
        self.cohorts[slot] = Some(OnDevice { lane, blocks, resumed: self.started });
        self.lane = Some(lane);
        self.started |= !ahead;
    }

    /// The launch before in the stream has ended: a cohort that was queued behind it can run.
    pub fn start(&mut self) {
        self.started |= !self.is_out();
    }

    /// Takes in what the cohort in `slot` did; the lane that it was in, if there was one.
    pub fn cohort_out(
        &mut self,
        slot: usize,
        Posted { done, amortize }: Posted,
    ) -> Option<LaneIndex> {
        let cohort = self.cohorts[slot].take()?;
        // The last block of a cohort may have run nothing.
        let least = u32::from(done > 0 && !self.spec.native);
        self.report.amortize = self.report.amortize.max(amortize).max(least);
        self.report.tasks += done;
        debug_assert!(self.report.tasks <= self.spec.tasks, "tasks ran twice");
        self.report.resumes += u32::from(cohort.resumed && done > 0);
        Some(cohort.lane)
    }

    /// What is done is what was reported, now that no block is out.
    pub fn count_progress(&mut self, now: Duration, sms: u32) {
        self.sm_time_out = self.sm_time(now, sms);
    }

    /// Blocks on the device.
    pub fn blocks(&self) -> u32 {
        self.cohorts.iter().flatten().map(|cohort| cohort.blocks).sum()
    }

    pub fn count_yield(&mut self) {
        self.report.yields += 1;
    }
}
