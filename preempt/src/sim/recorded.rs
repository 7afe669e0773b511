//! The workload of a recording: what was submitted, and how much work it was.

use std::slice;
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::machine::{KernelModel, Machine, Prediction};
use super::program::JobModel;
use super::workload::{Job, StreamModel, StreamNumber, Workload};
use super::{Costs, refused};
use crate::engine::{ChangeRecord, Input, LaunchRecord, UrgencyRecord, UseRecord, WhoseRecord};
use crate::error::Error;
use crate::policy::{Priority, Urgency};
use crate::recording::Recording;

#[cfg(test)]
mod tests;

/// What a recording knows of an operation beside its kernels.
#[derive(Clone, Debug)]
pub(super) struct RecordedJob {
    pub urgency: Urgency,
    pub uses: Vec<UseRecord>,
    /// The job that it waits for, whatever its stream.
    pub after: Option<usize>,
    /// Of each kernel: whether it is one. Copies, opaque work and launches that never ran only keep an order.
    pub takes_time: Vec<bool>,
}

/// A launch or a stream becomes more or less urgent.
#[derive(Clone, Debug)]
pub(super) struct RecordedChange {
    pub at: Duration,
    /// How many jobs were submitted before.
    pub jobs_before: usize,
    pub of: Changed,
    pub change: ChangeRecord,
}

/// What a change is about.
#[derive(Clone, Copy, Debug)]
pub(super) enum Changed {
    Job(usize),
    Stream(StreamNumber),
}

/// The work of a launch, as far as the recording tells it.
#[derive(Clone, Debug)]
struct Work {
    /// The job, and the place in it if that is a program.
    job: usize,
    call: usize,
    launch: LaunchRecord,
    /// The SMs that it can fill with blocks.
    fills: u32,
    /// The SMs that it uses since `since`, in nanoseconds.
    used: u32,
    since: u64,
    /// SM-nanoseconds.
    done: u64,
    /// Block-tasks that were reported.
    tasks: u32,
    /// Whether the application or the device ended it.
    ended: bool,
}

impl Work {
    fn new((job, call): (usize, usize), launch: LaunchRecord, sms: u32) -> Work {
        let fills = launch.tasks.div_ceil(launch.blocks_per_sm.max(1)).clamp(1, sms);
        Work { job, call, launch, fills, used: 0, since: 0, done: 0, tasks: 0, ended: false }
    }

    /// Counts what was done until `now`, after which the launch has this number of SMs.
    fn has(&mut self, now: u64, sms: u32) {
        let time = now.saturating_sub(self.since);
        self.done = self.done.saturating_add(time.saturating_mul(self.used.into()));
        (self.used, self.since) = (sms.min(self.fills), now);
    }

    fn is_over(&self) -> bool {
        self.tasks >= self.launch.tasks
    }

    /// The kernel, and whether it takes time at all.
    fn kernel(&self, name: &str) -> (KernelModel, bool) {
        let LaunchRecord {
            tasks, predicted, yield_overhead, requeued, blocks_per_sm, plain, ..
        } = self.launch;
        let nanos = Duration::from_nanos;
        let predicted = predicted.map(nanos);
        // A launch that the policy did not admit would have taken what was predicted.
        let is_whole = self.is_over() || (self.tasks == 0 && !self.ended && predicted.is_some());
        let measured =
            Some(nanos(self.done / u64::from(self.fills))).filter(|time| !time.is_zero());
        let duration = measured.or(predicted).unwrap_or_default();
        let kernel = KernelModel {
            blocks_per_sm,
            plain,
            prediction: predicted.map_or(Prediction::Unknown, Prediction::Is),
            ..KernelModel::new(name, duration, if is_whole { tasks } else { self.tasks.max(1) })
                .stop(nanos(yield_overhead.saturating_sub(requeued)))
                .redo(nanos(requeued))
        };
        (kernel, is_whole || self.tasks > 0)
    }
}

impl Workload {
    /// The workload of a recorded run, to be played under another policy.
    ///
    /// [`Recording::replay`] stops at the first other decision, because what the device reported later belongs to
    /// another history. A simulation goes on: each launch is submitted when it was, to the same stream and behind the
    /// same buffers and events, with the urgency that it had, and takes the time for which it had SMs.
    ///
    /// - That time contains what launching and stopping cost, so [`Costs::free`] suits the machine, which should have
    ///   [`Recording::sms`] SMs.
    /// - Copies and work of other libraries keep the order, and take no time.
    /// - A preemptible program is a program of its kernels that ran. A plain one is a launch of a single kernel, which
    ///   takes as long: the recording has the block-tasks of its widest kernel alone.
    /// - A launch that was cancelled, or had not ended, has the block-tasks that ran. A launch that the policy did not
    ///   admit takes its predicted duration.
    /// - A launch that a host submitted after it had waited for another comes when it came, whatever the policy does.
    /// - A launch that followed another in its stream within microseconds may have been counted with it. It then takes
    ///   its predicted duration, or none.
    ///
    /// [`Results::launches`](super::Results::launches) has the launches in the order in which they were submitted.
    ///
    /// ```
    /// use std::time::Duration;
    /// use preempt::policy::{Fifo, StaticPriority};
    /// use preempt::sim::{Costs, KernelModel, Machine, Simulation, Workload};
    ///
    /// # let ms = Duration::from_millis(1);
    /// # let mut workload = Workload::new(1);
    /// # let (batch, urgent) = (workload.stream(0), workload.stream(10));
    /// # workload.launch(batch, &KernelModel::new("long", 20 * ms, 1000), Duration::ZERO);
    /// # workload.launch(urgent, &KernelModel::new("short", ms, 1000), 5 * ms);
    /// # let machine = Machine::new(4, Costs::free());
    /// # let run = Simulation::new(machine, StaticPriority::new()).recording(true).run(&workload)?;
    /// # let recording = run.recording.expect("asked for");
    /// // A recording of `Scheduler::recording`, or of a simulation.
    /// let machine = Machine::new(recording.sms(), Costs::free());
    /// let workload = Workload::from_recording(&recording)?;
    /// let preempted = Simulation::new(machine, StaticPriority::new()).run(&workload)?;
    /// let in_order = Simulation::new(machine, Fifo::new()).run(&workload)?;
    /// assert!(preempted.launches[1].done < in_order.launches[1].done);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SimulationError::GivenUp`](crate::error::SimulationError::GivenUp) if the recording holds what cannot have
    /// happened: its file was changed.
    pub fn from_recording(recording: &Recording) -> Result<Workload, Error> {
        let sms = recording.sms();
        Machine::new(sms, Costs::free()).check()?;
        let mut reader = Reader { sms, ..Reader::default() };
        for step in recording.steps() {
            reader.read(step.now, &step.input);
        }
        reader.workload()
    }
}

/// A recording, as far as it was read.
#[derive(Default)]
struct Reader {
    sms: u32,
    jobs: Vec<Job>,
    streams: Vec<StreamModel>,
    changes: Vec<RecordedChange>,
    stream_of: FxHashMap<u32, StreamNumber>,
    job_of: FxHashMap<u64, usize>,
    /// By the number of a preemptible program: those of its calls.
    programs: FxHashMap<u64, Vec<u64>>,
    /// By the number of a call: that of its program.
    program_of: FxHashMap<u64, u64>,
    /// By the number of the operation.
    work: FxHashMap<u64, Work>,
}

impl Reader {
    fn read(&mut self, now: u64, input: &Input) {
        match input {
            Input::Submit { op, stream, name, uses, after, urgency, launch, calls, .. } => {
                let after = after.and_then(|after| self.job_of.get(&after).copied());
                let stream = self.stream(*stream, urgency);
                let job = self.jobs.len();
                self.job_of.insert(*op, job);
                let mut enter =
                    |call: usize, op: u64, name: &str, launch: &Option<LaunchRecord>| {
                        if let Some(launch) = launch {
                            self.work.insert(op, Work::new((job, call), launch.clone(), self.sms));
                        }
                        KernelModel::new(name, Duration::ZERO, 1)
                    };
                let model = if calls.is_empty() {
                    JobModel::Kernel(enter(0, *op, name, launch))
                } else {
                    self.program_of.extend(calls.iter().map(|call| (call.op, *op)));
                    self.programs.insert(*op, calls.iter().map(|call| call.op).collect());
                    let kernels = calls.iter().enumerate();
                    let kernels = kernels
                        .map(|(index, call)| enter(index, call.op, &call.name, &call.launch));
                    JobModel::Program { name: name.clone(), kernels: kernels.collect() }
                };
                let recorded = RecordedJob {
                    urgency: urgency.to_urgency(),
                    uses: uses.clone(),
                    after,
                    takes_time: vec![false; model.kernels().len()],
                };
                let (at, recorded) = (Duration::from_nanos(now), Some(recorded));
                self.jobs.push(Job { stream, model, at, again: None, recorded });
            }
            Input::CohortOut { op, done, .. } => {
                if let Some(work) = self.work.get_mut(op) {
                    work.tasks = work.tasks.saturating_add(*done);
                    if work.is_over() {
                        work.has(now, 0);
                    }
                }
            }
            Input::Release { op } => {
                // It counts as submitted from now on.
                if let Some(&job) = self.job_of.get(op) {
                    self.jobs[job].at = Duration::from_nanos(now);
                }
            }
            Input::Cancel { op } | Input::Revoke { op } | Input::Disarmed { op } => {
                for op in Self::meant(&self.programs, op) {
                    if let Some(work) = self.work.get_mut(op) {
                        work.ended = true;
                    }
                }
            }
            Input::Fault { op } => {
                let program = self.program_of.get(op).and_then(|of| self.programs.get(of));
                let calls = program.map_or(slice::from_ref(op), Vec::as_slice);
                // Calls behind a failed call have no effect.
                for op in calls.iter().skip_while(|call| *call != op) {
                    if let Some(work) = self.work.get_mut(op) {
                        work.ended = true;
                    }
                }
            }
            Input::Close | Input::Lost => {
                self.work
                    .values_mut()
                    .filter(|work| !work.is_over())
                    .for_each(|work| work.ended = true);
            }
            Input::Settle { plans } => {
                if let Some(plan) = plans.last() {
                    self.plan(now, plan);
                }
            }
            Input::Change { of, change } => {
                let of = match of {
                    WhoseRecord::Launch(op) => self.job_of.get(op).copied().map(Changed::Job),
                    WhoseRecord::Stream(stream) => {
                        self.stream_of.get(stream).copied().map(Changed::Stream)
                    }
                };
                let (at, jobs_before) = (Duration::from_nanos(now), self.jobs.len());
                if let Some(of) = of {
                    let change = change.clone();
                    self.changes.push(RecordedChange { at, jobs_before, of, change });
                }
            }
            Input::Refused { .. }
            | Input::CopyDone { .. }
            | Input::GoAhead
            | Input::Look { .. } => {}
        }
    }

    /// The calls of a program, or else the operation itself.
    fn meant<'a>(programs: &'a FxHashMap<u64, Vec<u64>>, op: &'a u64) -> &'a [u64] {
        programs.get(op).map_or(slice::from_ref(op), Vec::as_slice)
    }

    /// The stream of this number, which is as urgent as its first operation.
    fn stream(&mut self, number: u32, urgency: &UrgencyRecord) -> StreamNumber {
        let next = StreamNumber(self.streams.len() as u32);
        let known = *self.stream_of.entry(number).or_insert(next);
        if known == next {
            let model = StreamModel::new(Priority(urgency.priority));
            self.streams.push(model.weight(urgency.weight));
        }
        known
    }

    /// Launches have the SMs of a plan from now on.
    fn plan(&mut self, now: u64, plan: &[(u64, u32, u32)]) {
        for work in self.work.values_mut().filter(|work| work.used > 0) {
            work.has(now, 0);
        }
        for &(op, lo, hi) in plan {
            if let Some(work) = self.work.get_mut(&op).filter(|work| !work.is_over()) {
                let length =
                    if lo <= hi { hi - lo } else { self.sms.saturating_sub(lo).saturating_add(hi) };
                work.has(now, length);
            }
        }
    }

    fn workload(self) -> Result<Workload, Error> {
        let Reader { mut jobs, streams, changes, work, .. } = self;
        for work in work.into_values() {
            let Job { model, recorded: Some(recorded), .. } = &mut jobs[work.job] else { continue };
            let place = &mut model.kernels_mut()[work.call];
            let (kernel, takes_time) = work.kernel(&place.name);
            kernel.check()?;
            *place = kernel;
            recorded.takes_time[work.call] = takes_time;
        }
        let workload = Workload { seed: 0, streams, jobs, changes };
        workload.check()?;
        if workload.is_empty() {
            return Err(refused("the recording has no launch that ran"));
        }
        Ok(workload)
    }
}
