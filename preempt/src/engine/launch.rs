//! One launch, from its arrival to its last cohort.

use std::time::Duration;

use preempt_device::abi::{COHORT_SLOTS, Posted, SmRange};
use preempt_device::host::Idempotence;
use preempt_device::worker::MAX_REQUEUES;

use super::interface::Called;
use super::ledger::{self, Ledger};
use super::progress::Leaving;
use super::queues::DeviceQueues;
use super::shape::{Work, has_spilled};
use crate::vocabulary::{ControlUse, Costs, QueueIndex, Timestamp};

/// What the engine has to know of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchSpec {
    pub tasks: u32,
    /// Its predicted duration on all SMs that it can fill, if it is known.
    pub predicted: Option<Duration>,
    /// The time from the signal until its last block is out, and the work that it has to do again.
    pub yield_overhead: Duration,
    /// The work that it has to do again, which is part of the yield overhead.
    pub requeued: Duration,
    /// Blocks of the kernel that fit on one SM.
    pub blocks_per_sm: u32,
    /// Blocks of the kernel that fit on the last SM, where a block of the device itself may run, too. At least one.
    pub on_last_sm: u32,
    /// Whether it runs as a plain grid: in one cohort, whose blocks leave only at the end.
    pub plain: bool,
    /// The time until the hardware, at the ends of blocks, has given the SMs of its plain grid to a grid of a higher
    /// level. `None` if it must be preemptible.
    pub hardware_stop: Option<Duration>,
    /// How its blocks leave SMs that are taken from it.
    pub leaving: Leaving,
}

impl LaunchSpec {
    /// The SMs that all of it can use, of a device with `sms` SMs.
    pub fn fills(&self, sms: u32) -> u32 {
        fills(self.tasks, sms)
    }

    /// Whether it can do without one of `sms` SMs, if they are full of its blocks.
    pub fn may_leave_sms(&self, sms: u32) -> bool {
        self.tasks.div_ceil(self.blocks_per_sm.max(1)) < sms
    }

    /// From the signal, or the launch of a plain grid's successor, until its last block is out.
    pub fn stop(&self) -> Duration {
        self.overhead().saturating_sub(self.redone())
    }

    /// The time until its SMs are another launch's, and the work that it has to do again.
    pub fn overhead(&self) -> Duration {
        self.hardware_stop.filter(|_| self.plain).unwrap_or(self.yield_overhead)
    }

    /// The work that it has to do again after a stop.
    pub fn redone(&self) -> Duration {
        if self.plain { Duration::ZERO } else { self.requeued }
    }

    /// The work that is dropped by a stop, as a time on all SMs that it can fill, of a launch that takes `took`: each of its blocks
    /// is stopped in a block-task, of which this part is done.
    pub fn dropped_of(&self, took: Duration, sms: u32, part: f64) -> Duration {
        self.block_task_of(took, sms).mul_f64(part)
    }

    /// The time of a block-task of a launch that takes `took`, whose other block-tasks are alike.
    pub fn block_task_of(&self, took: Duration, sms: u32) -> Duration {
        let places = self.blocks_per_sm.saturating_mul(sms).min(self.tasks);
        took.mul_f64(f64::from(places) / f64::from(self.tasks.max(1)))
    }

    /// The time of a block-task, if the launch's is known.
    pub fn block_task(&self, sms: u32) -> Option<Duration> {
        self.predicted.map(|took| self.block_task_of(took, sms))
    }
}

/// The SMs that `tasks` block-tasks can use, one on each, of a device with `sms` SMs.
pub(crate) fn fills(tasks: u32, sms: u32) -> u32 {
    tasks.clamp(1, sms)
}

/// How a launch ran.
///
/// ```text
/// queued ── queueing ── ready ── waiting ── started ── running ── done
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LaunchReport {
    /// Block-tasks that ran.
    pub tasks: u32,
    /// How often SMs were taken from the launch while its blocks were on the device.
    pub yields: u32,
    /// How many later cohorts ran block-tasks: each is a resume or a growth in mid-kernel.
    pub resumes: u32,
    /// The amortizing factor at the end of the launch, as its last block saw it. It counts the block-tasks that a block
    /// claimed between two looks at the signal. At most 4095; 0 for a plain launch.
    pub amortize: u32,
    /// Whether it ran as a plain grid, without preemption.
    pub plain: bool,
    /// Whether block-tasks of its kernel may run again from their start; `NotNeeded` for a program, whose calls have kernels of
    /// their own.
    pub idempotence: Idempotence,
    /// Whether it began as an [armed](crate::Program::arm) program, without a call of the driver.
    pub armed: bool,
    /// How long it had SMs, summed over SMs; half of it where another launch had them, too. Launches that follow each other
    /// in a stream within microseconds may be counted with the first of them.
    pub sm_time: Duration,
    /// How long it would have had SMs with as many as it can use.
    pub(crate) own_time: Duration,
    /// Whether it has shared SMs with another launch, so that the times say little of how long it takes alone.
    pub(crate) has_shared: bool,
    /// When the scheduler took it in.
    pub queued: Timestamp,
    /// When everything that it had to wait for was done: what comes before it in its stream, and what uses its
    /// buffers.
    pub ready: Timestamp,
    /// When its first blocks were launched. A launch that was queued behind another one on the device starts when
    /// that one is reported.
    pub started: Timestamp,
    /// When the scheduler found it done.
    pub done: Timestamp,
}

impl LaunchReport {
    /// The time from the submission to the end: queueing, waiting and running.
    pub fn turnaround(&self) -> Duration {
        self.done - self.queued
    }

    /// How long it waited for what comes before it in its stream, and for what uses its buffers.
    pub fn queueing(&self) -> Duration {
        self.ready - self.queued
    }

    /// How long it waited for SMs once it was ready.
    pub fn waiting(&self) -> Duration {
        self.started - self.ready
    }

    /// The time from its first blocks to its end, with the times in which it had yielded all its SMs.
    pub fn running(&self) -> Duration {
        self.done - self.started
    }
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
    /// How many launches, from this one on, are queued at once behind another one.
    pub together: u32,
    /// Whether it is a call of a program that has block-tasks although it is plain.
    pub is_plain_kernel: bool,
    /// The SMs that the launch has.
    pub range: SmRange,
    /// The control block, from the first cohort on.
    pub control: Option<ControlUse>,
    /// The tasks that its first cohort's blocks start with, once there was one.
    pub handed: Option<u32>,
    /// For each slot with a cohort on the device: that cohort.
    pub cohorts: [Option<OnDevice>; COHORT_SLOTS],
    /// The queue of the last cohort.
    pub queue: Option<QueueIndex>,
    /// The SMs that its predecessor in the stream handed over, for the cohort that was queued behind that.
    pub handover: SmRange,
    /// The running number under which the policy was told; `None` before and after, and while its stream is suspended.
    pub arrival: Option<u64>,
    /// The running number of the last plan that granted SMs to the launch.
    pub planned: u64,
    /// Whether a cohort came out of the device.
    pub ran: bool,
    /// Set from its release on until the policy has decided, if blocks of it may run behind a gate that was opened.
    pub early: bool,
    /// Whether it shares its SMs with another launch, each of them having half of the room. With it, whether it is the
    /// second of them, whose SMs are in other books.
    pub shares: bool,
    pub is_guest: bool,
    /// How often in a row its only cohort, a confined one, left its SMs without a signal and with tasks remaining: blocks of
    /// other launches occupied them.
    pub spills: u32,
    /// Whether it may have fewer blocks than its SMs hold, because some have left elsewhere.
    pub thin: bool,
    /// When all its blocks were last stopped because of that.
    pub refilled: Option<Duration>,
    /// Whether there was a cohort that could run at once.
    started: bool,
    /// Until when the report counts times on SMs.
    counted: Duration,
    /// The own time, and the block-tasks done, when the last block was out.
    own_time_out: Duration,
    tasks_out: u32,
    /// When SMs were taken from it, the last times.
    yielded: [Option<Duration>; MAX_REQUEUES as usize],
    report: LaunchReport,
}

/// A cohort on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnDevice {
    pub queue: QueueIndex,
    pub blocks: u32,
    /// The SMs that it is confined to.
    pub keeps_to: SmRange,
    /// Whether an earlier cohort of the launch could run.
    resumed: bool,
    /// Whether it is behind a gate.
    gated: bool,
    /// Whether it was queued behind another launch, without which it does nothing.
    follows: bool,
    /// Whether its blocks tell how far they are.
    pub tells_progress: bool,
}

/// What is left of a cohort that is out.
#[derive(Clone, Copy, Debug)]
pub(super) struct CohortLeft {
    pub queue: QueueIndex,
    /// Whether it did nothing because the cohort that it was queued behind had not done all that was left of its launch. Then the
    /// launch has no blocks on the SMs that the cohort was for.
    pub has_bounced: bool,
}

impl Launch {
    /// The launch of a call of a program, if it has one.
    pub fn called(now: Duration, call: &Called) -> Option<Launch> {
        let Called { together, is_plain_kernel, .. } = *call;
        call.launch.map(|spec| Launch { together, is_plain_kernel, ..Launch::new(now, spec) })
    }

    pub fn new(now: Duration, spec: LaunchSpec) -> Launch {
        Launch {
            spec,
            together: 1,
            is_plain_kernel: false,
            range: SmRange::EMPTY,
            control: None,
            handed: None,
            cohorts: [None; COHORT_SLOTS],
            queue: None,
            handover: SmRange::EMPTY,
            arrival: None,
            planned: 0,
            ran: false,
            early: false,
            shares: false,
            is_guest: false,
            spills: 0,
            thin: false,
            refilled: None,
            started: false,
            counted: Duration::ZERO,
            own_time_out: Duration::ZERO,
            tasks_out: 0,
            yielded: Default::default(),
            report: LaunchReport {
                plain: spec.plain,
                queued: Timestamp::after_start(now),
                ..LaunchReport::default()
            },
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

    /// Whether its form is still to be set: it may have either, and no blocks of it were ever launched.
    pub fn has_either_form(&self) -> bool {
        self.spec.hardware_stop.is_some() && self.control.is_none()
    }

    /// Sets its form, before its first blocks are launched.
    pub fn set_plain(&mut self, plain: bool) {
        debug_assert!(self.control.is_none(), "its blocks have the other form");
        self.spec.plain = plain;
        self.report.plain = plain;
    }

    /// Whether it could fill more SMs than it has, because others have them.
    pub fn is_deprived(&self, sms: u32) -> bool {
        ledger::count(self.range, sms) < self.need(sms)
    }

    pub fn free_slot(&self) -> Option<usize> {
        self.cohorts.iter().position(Option::is_none)
    }

    /// Block-tasks that no cohort has reported.
    pub fn remaining(&self) -> u32 {
        self.spec.tasks - self.report.tasks
    }

    /// Blocks that fit on `sms` SMs, with or without the last SM of the device among them.
    pub fn room(&self, sms: u32, with_last: bool) -> u32 {
        self.held().room(sms, with_last)
    }

    /// Blocks of it that an SM holds, beside those of the launch that it shares SMs with.
    pub fn per_sm(&self) -> u32 {
        self.held().blocks_per_sm
    }

    fn held(&self) -> LaunchSpec {
        let half = |blocks: u32| if self.shares { (blocks / 2).max(1) } else { blocks };
        let LaunchSpec { blocks_per_sm, on_last_sm, .. } = self.spec;
        LaunchSpec { blocks_per_sm: half(blocks_per_sm), on_last_sm: half(on_last_sm), ..self.spec }
    }

    /// The books that its SMs are in, of those of all launches and those of guests.
    pub fn books<'a>(&self, all: &'a mut Ledger, guests: &'a mut Ledger) -> &'a mut Ledger {
        if self.is_guest { guests } else { all }
    }

    /// The number of its SMs for which the cohort in each slot was launched.
    pub fn covered_by_slot(&self, books: &Ledger) -> [u32; COHORT_SLOTS] {
        let mut counts = books.covered_by_slot(self.range);
        // A cohort that is out may have left SMs by itself, which keep its slot's number.
        for (count, cohort) in counts.iter_mut().zip(&self.cohorts) {
            *count *= u32::from(cohort.is_some());
        }
        counts
    }

    /// What a grid of it is for, beside `there` blocks that are on the device and stay.
    pub fn work<'a>(&self, there: u32, sms: u32, costs: &'a Costs) -> Work<'a> {
        Work {
            tasks: self.remaining(),
            bare: self.remaining() - there,
            blocks_per_sm: self.per_sm(),
            most: self.room(sms, true),
            is_plain: self.spec.plain,
            predicted: self.spec.predicted,
            costs,
        }
    }

    /// The SMs that the remaining block-tasks can fill, if one of these holds as few blocks as the last: what lies there comes
    /// to others, too, and a block-task that found no room would begin only when the first ones end.
    pub fn need(&self, sms: u32) -> u32 {
        let LaunchSpec { blocks_per_sm, on_last_sm, .. } = self.held();
        let taken = blocks_per_sm - on_last_sm;
        self.remaining().saturating_add(taken).div_ceil(blocks_per_sm).clamp(1, sms)
    }

    /// The SMs that the remaining block-tasks can use, one on each.
    pub fn spread(&self, sms: u32) -> u32 {
        fills(self.remaining(), sms)
    }

    /// Whether it shares SMs with another launch, or has.
    fn has_shared(&self) -> bool {
        self.report.has_shared || self.shares && !self.range.is_empty()
    }

    pub fn report(&self) -> LaunchReport {
        self.report
    }

    /// The report of a launch that is done.
    pub fn done(&self, now: Duration, sms: u32) -> LaunchReport {
        let (sm_time, own_time) = (self.sm_time(now, sms), self.own_time(now, sms));
        let (has_shared, done) = (self.has_shared(), Timestamp::after_start(now));
        LaunchReport { sm_time, own_time, has_shared, done, ..self.report }
    }

    /// Changes its SMs from now on.
    pub fn set_range(&mut self, now: Duration, range: SmRange, sms: u32) {
        (self.report.sm_time, self.report.own_time) =
            (self.sm_time(now, sms), self.own_time(now, sms));
        self.report.has_shared = self.has_shared();
        self.counted = now;
        self.range = range;
    }

    /// How long it has had SMs, summed over SMs.
    pub fn sm_time(&self, now: Duration, sms: u32) -> Duration {
        let has = ledger::count(self.range, sms);
        let time = now.saturating_sub(self.counted).saturating_mul(has);
        self.report.sm_time + if self.shares { time / 2 } else { time }
    }

    /// How long it would have had SMs with as many as it can use. More SMs do not count: it may hold those of the
    /// next launch of its stream.
    fn own_time(&self, now: Duration, sms: u32) -> Duration {
        let uses = self.spec.fills(sms);
        let has = ledger::count(self.range, sms).min(uses);
        let time = now.saturating_sub(self.counted).saturating_mul(has) / uses;
        self.report.own_time + if self.shares { time / 2 } else { time }
    }

    /// How long the rest takes with as many SMs as it can fill. The work done is known when no block is out. The rest
    /// is then expected to take as long as that work did, weighted by its part of the whole, and otherwise as
    /// predicted.
    ///
    /// A launch that outlives its prediction is taken to need as much more again. Otherwise a launch that was predicted
    /// a hundred times too short would look as if it were about to end. Others would wait until it does.
    pub fn time_left(&self, now: Duration, sms: u32) -> Option<Duration> {
        let predicted = self.spec.predicted?;
        let done = f64::from(self.tasks_out) / f64::from(self.spec.tasks);
        let so_far = if self.has_shared() { predicted.mul_f64(done) } else { self.own_time_out };
        // `done` is the weight of the time so far, and the rest that of the prediction.
        let left = (so_far + predicted.mul_f64(1.0 - done)).mul_f64(1.0 - done);
        Some(left.abs_diff(self.own_time(now, sms).saturating_sub(self.own_time_out)))
    }

    /// Sets when it was submitted.
    pub fn submitted_at(&mut self, queued: Timestamp) {
        self.report.queued = queued;
    }

    /// Notes that everything that it waited for is done.
    pub fn ready(&mut self, now: Duration) {
        self.report.ready = Timestamp::after_start(now);
        self.report.started = self.report.ready;
    }

    /// Enters a cohort.
    pub fn cohort_in(&mut self, slot: usize, queue: QueueIndex, blocks: u32, keeps_to: SmRange) {
        self.cohorts[slot] = Some(OnDevice {
            queue,
            blocks,
            keeps_to,
            resumed: self.started,
            gated: false,
            follows: false,
            tells_progress: false,
        });
        self.queue = Some(queue);
    }

    /// Notes that the cohort in a slot is behind a gate.
    pub fn put_gate(&mut self, slot: usize) {
        self.cohorts[slot].iter_mut().for_each(|cohort| cohort.gated = true);
    }

    /// Notes that the cohort in a slot is queued behind another launch.
    pub fn put_behind(&mut self, slot: usize) {
        self.cohorts[slot].iter_mut().for_each(|cohort| cohort.follows = true);
    }

    /// Notes that the blocks of the cohort in a slot tell how far they are.
    pub fn tell_progress(&mut self, slot: usize) {
        self.cohorts[slot].iter_mut().for_each(|cohort| cohort.tells_progress = true);
    }

    /// Notes that its cohorts can run, also one that was queued behind another launch.
    pub fn start(&mut self, now: Duration) {
        if !self.started && !self.is_out() {
            self.started = true;
            self.report.started = Timestamp::after_start(now);
        }
    }

    /// Takes a cohort out with what it posted.
    pub fn cohort_out(
        &mut self,
        slot: usize,
        Posted { done, amortize }: Posted,
    ) -> Option<CohortLeft> {
        let cohort = self.cohorts[slot].take()?;
        // The last block of a cohort may have run nothing.
        let least = u32::from(done > 0 && !self.spec.plain);
        self.report.amortize = self.report.amortize.max(amortize).max(least);
        self.report.tasks += done;
        debug_assert!(self.report.tasks <= self.spec.tasks, "tasks ran twice");
        self.report.resumes += u32::from(cohort.resumed && done > 0);
        self.report.armed |= cohort.gated && done > 0;
        // Or it came when other cohorts had claimed all. Then one that is launched for nothing leaves at once.
        let has_bounced = cohort.follows && done == 0 && !self.spec.plain;
        let has_spilled = has_spilled(cohort.keeps_to, self.range, self.remaining());
        if !has_bounced && has_spilled && self.is_out() {
            self.spills = if done > 0 { 1 } else { self.spills + 1 };
        }
        Some(CohortLeft { queue: cohort.queue, has_bounced })
    }

    /// Counts the reported block-tasks as progress, now that no block is out.
    pub fn count_progress(&mut self, now: Duration, sms: u32) {
        self.own_time_out = self.own_time(now, sms);
        self.tasks_out = self.report.tasks;
    }

    /// Blocks on the device that may be on any SM: they stay while there are block-tasks.
    pub fn blocks_that_stay(&self, queues: &DeviceQueues) -> u32 {
        let stay = |cohort: &&OnDevice| queues.range(cohort.queue) == SmRange::ALL;
        self.cohorts.iter().flatten().filter(stay).map(|cohort| cohort.blocks).sum()
    }

    /// Blocks on the device.
    pub fn blocks(&self) -> u32 {
        self.cohorts.iter().flatten().map(|cohort| cohort.blocks).sum()
    }

    /// Notes that SMs are taken from it.
    pub fn count_yield(&mut self, now: Duration) {
        self.yielded[self.report.yields as usize % self.yielded.len()] = Some(now);
        self.report.yields += 1;
    }

    /// How often SMs were taken from it since then, as far as that matters to its block-tasks: at most [`MAX_REQUEUES`].
    pub fn yields_since(&self, then: Duration) -> u32 {
        self.yielded.iter().flatten().filter(|&&yielded| yielded >= then).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMS: u32 = 4;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A launch that is predicted to fill the device for 100 ms, and has had it since 0.
    fn launch() -> Launch {
        let spec = LaunchSpec {
            tasks: 1000,
            predicted: Some(at(100)),
            yield_overhead: Duration::ZERO,
            requeued: Duration::ZERO,
            blocks_per_sm: 1,
            on_last_sm: 1,
            plain: false,
            hardware_stop: None,
            leaving: Leaving::AtEnd,
        };
        let mut launch = Launch::new(at(0), spec);
        launch.set_range(at(0), SmRange::new(0, SMS), SMS);
        launch.cohort_in(0, 0, SMS, SmRange::ALL);
        launch
    }

    fn left(launch: &Launch, millis: u64) -> u128 {
        launch.time_left(at(millis), SMS).expect("predicted").as_millis()
    }

    #[test]
    fn the_time_left_goes_by_while_the_launch_has_sms() {
        let mut launch = launch();
        assert_eq!((left(&launch, 0), left(&launch, 30)), (100, 70));
        launch.set_range(at(30), SmRange::new(0, SMS / 2), SMS);
        assert_eq!(left(&launch, 50), 60, "on half of the SMs it takes twice as long");
        launch.set_range(at(50), SmRange::EMPTY, SMS);
        assert_eq!(left(&launch, 500), 60, "it waits");
    }

    #[test]
    fn a_launch_that_outlives_its_prediction_needs_as_much_more() {
        let launch = launch();
        assert_eq!((left(&launch, 100), left(&launch, 101), left(&launch, 1000)), (0, 1, 900));
    }

    #[test]
    fn all_block_tasks_find_room_beside_what_takes_that_of_one() {
        let need = |tasks, on_last_sm| {
            let spec = LaunchSpec { tasks, blocks_per_sm: 2, on_last_sm, ..launch().spec };
            Launch::new(at(0), spec).need(SMS)
        };
        assert_eq!((need(4, 2), need(4, 1), need(3, 1)), (2, 3, 2));
        assert_eq!((need(1, 0), need(8, 1), need(1000, 1)), (2, SMS, SMS));
    }

    #[test]
    fn half_a_block_task_is_dropped_in_each_place() {
        let spec = |tasks, blocks_per_sm| LaunchSpec { tasks, blocks_per_sm, ..launch().spec };
        assert_eq!(spec(800, 2).dropped_of(at(100), SMS, 0.5), at(1) / 2, "8 of 800 at a time");
        assert_eq!(spec(8, 2).dropped_of(at(100), SMS, 0.5), at(50));
        assert_eq!(spec(3, 2).dropped_of(at(100), SMS, 0.5), at(50), "all at a time");
    }

    #[test]
    fn sms_that_it_cannot_use_do_not_make_it_faster() {
        let mut launch = launch();
        launch.spec.tasks = 2;
        assert_eq!((left(&launch, 30), left(&launch, 60)), (70, 40));
        launch.set_range(at(60), SmRange::new(0, 1), SMS);
        assert_eq!(
            left(&launch, 80),
            30,
            "on one of the two that it can use it takes twice as long"
        );
        launch.set_range(at(80), SmRange::EMPTY, SMS);
        let report = launch.report();
        assert_eq!((report.sm_time, report.own_time), (at(4 * 60 + 20), at(70)));
    }

    #[test]
    fn what_was_done_tells_what_the_rest_takes() {
        // Half of it took `took`; the prediction was 50 ms.
        struct Case {
            took: u64,
            rest: u64,
        }
        let cases = [
            Case { took: 50, rest: 50 },
            Case { took: 100, rest: 75 },
            Case { took: 10, rest: 30 },
        ];
        for Case { took, rest } in cases {
            let mut launch = launch();
            launch.set_range(at(took), SmRange::EMPTY, SMS);
            launch.cohort_out(0, Posted { done: 500, amortize: 1 });
            launch.count_progress(at(took), SMS);
            assert_eq!(left(&launch, took), u128::from(rest));
            launch.set_range(at(took), SmRange::new(0, SMS), SMS);
            assert_eq!(left(&launch, took + 5), u128::from(rest - 5));
        }
    }
}
