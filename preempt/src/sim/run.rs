//! A simulation from its first event to its last one.

use std::collections::BTreeMap;
use std::time::Duration;

use preempt_device::abi::SmRange;
use slotmap::SecondaryMap;

use super::Simulation;
use super::agenda::{Agenda, Happening, nanos};
use super::device::{Device, Kernel, Running};
use super::host::Host;
use super::machine::{KernelModel, LONGEST, Machine, Prediction, refused};
use super::program::{self, Form, JobModel};
use super::random::Random;
use super::recorded::{Changed, RecordedChange};
use super::results::{End, LaunchResult, Results};
use super::workload::{Again, Job, StreamNumber, Workload};
use crate::engine::{
    Action, Called, Circumstances, Engine, Event, Kind, LONGEST_PLAIN, LaunchReport, LaunchSpec,
    Learned, Leaving, Outcome, Submission, Use, UseRecord, Waiting, Whose, interned,
};
use crate::error::{Error, SchedulerError};
use crate::policy::Priority;
use crate::recording::Recording;
use crate::vocabulary::OpKey;

/// Events for each launch of a kernel at most. A policy needs about ten; one that needs this many moves launches to and
/// fro, and lets none run.
const EVENTS_PER_LAUNCH: u64 = 100_000;

/// The name of every kernel for an engine that does not record it.
const NAME: &str = "simulated";

/// A launch that was submitted, or will be.
struct Submitted {
    job: usize,
    /// The number of launches before it from the same loop.
    turn: u32,
    at: u64,
}

/// A kernel of a job that is submitted.
struct Submitting<'a> {
    model: &'a KernelModel,
    /// What it takes this time: in the form that it is expected to have, and in each.
    alone: Duration,
    looped: Duration,
    plain: Duration,
    /// Times until it has left, and to do again.
    stop: Duration,
    requeued: Duration,
    /// `None` if it takes no time.
    spec: Option<LaunchSpec>,
}

/// A call of a preemptible program that is not finished.
pub(super) struct InCall {
    /// The place of the program's result.
    result: usize,
    /// How many calls, from this one on, the device takes at once where they are queued behind another launch.
    pub together: u32,
}

pub(super) struct Run<'a> {
    workload: &'a Workload,
    pub machine: Machine,
    plain: bool,
    records: bool,
    pub engine: Engine,
    pub device: Device,
    pub host: Host,
    pub agenda: Agenda,
    /// How many streams there are of each priority.
    priorities: BTreeMap<Priority, usize>,
    pub actions: Vec<Action>,
    submitted: Vec<Submitted>,
    /// Launches and programs: the place of the result of each.
    pub ops: SecondaryMap<OpKey, usize>,
    pub calls: SecondaryMap<OpKey, InCall>,
    /// The last operation of each job.
    keys: Vec<Option<OpKey>>,
    launches: Vec<LaunchResult>,
    /// Kernels of all that was or will be submitted.
    kernels: u64,
    events: u64,
}

pub(super) fn run(workload: &Workload, simulation: Simulation) -> Result<Results, Error> {
    let Simulation { machine, policy, plain, record, until } = simulation;
    machine.check()?;
    workload.check()?;
    let mut engine = Engine::new(machine.sms, machine.queue_count(), machine.costs, policy);
    if record {
        engine.record();
    }
    let mut run = Run {
        workload,
        machine,
        plain,
        records: record,
        engine,
        device: Device::new(&machine),
        host: Host::default(),
        agenda: Agenda::default(),
        priorities: BTreeMap::new(),
        actions: Vec::new(),
        submitted: Vec::new(),
        ops: SecondaryMap::new(),
        calls: SecondaryMap::new(),
        kernels: 0,
        keys: vec![None; workload.jobs.len()],
        launches: Vec::new(),
        events: 0,
    };
    for stream in &workload.streams {
        *run.priorities.entry(stream.priority).or_default() += 1;
    }
    let mut changes = workload.changes.iter().enumerate().peekable();
    for (job, planned) in workload.jobs.iter().enumerate() {
        while let Some((change, told)) = changes.next_if(|(_, told)| told.jobs_before <= job) {
            run.agenda.enter(nanos(told.at), Happening::Change(change));
        }
        run.plan(job, 0, nanos(planned.at));
    }
    for (change, told) in changes {
        run.agenda.enter(nanos(told.at), Happening::Change(change));
    }
    run.go(until)?;
    let policy = run.engine.policy_name().to_owned();
    let policy_error = run.engine.refusal().map(|refusal| {
        let (policy, reason) = (refusal.policy.as_str().into(), refusal.reason.as_str().into());
        Error::Scheduler(SchedulerError::PolicyReplaced { policy, reason })
    });
    let makespan = run.launches.iter().map(|launch| launch.done).max().unwrap_or_default();
    Ok(Results {
        policy,
        policy_error,
        makespan,
        events: run.events,
        recording: Recording::of(&run.engine),
        launches: run.launches,
    })
}

impl Run<'_> {
    /// Enters a launch that will be submitted.
    fn plan(&mut self, job: usize, turn: u32, at: u64) {
        self.agenda.enter(at, Happening::Arrival(self.submitted.len()));
        self.submitted.push(Submitted { job, turn, at });
        self.kernels += self.workload.jobs[job].model.kernels().len() as u64;
    }

    fn go(&mut self, until: Option<Duration>) -> Result<(), Error> {
        let mut wake = None;
        while let Some(now) = self.agenda.next() {
            if let Some(end) = until.map(nanos).filter(|end| *end < now) {
                self.stop(end);
                return Ok(());
            }
            let time = Duration::from_nanos(now);
            // The policy is asked once all events of this time are known.
            while let Some(happening) = self.agenda.pop(now) {
                self.events += 1;
                self.happen(now, happening);
            }
            self.host(now);
            self.device.place(now, self.engine.owners(), &mut self.agenda);
            let wakes = self.engine.wake();
            if wakes != wake {
                wake = wakes;
                if let Some(wake) = wakes {
                    self.agenda.enter(nanos(wake).max(now + 1), Happening::Wake);
                }
            }
            if self.events > EVENTS_PER_LAUNCH * (self.kernels + 1) {
                let over = self.launches.iter().filter(|launch| launch.end.is_some()).count();
                return Err(refused(format!(
                    "after {time:?} of virtual time and {} events only {over} of {} launches are over; the \
                     policy moves them to and fro",
                    self.events,
                    self.launches.len(),
                )));
            }
        }
        if self.engine.is_busy() {
            let waits = self.launches.iter().filter(|launch| launch.end.is_none()).count();
            return Err(refused(format!(
                "nothing happens any more, and {waits} launches are not over; this is an error in preempt"
            )));
        }
        Ok(())
    }

    /// Records the progress of unfinished launches.
    fn stop(&mut self, now: u64) {
        for (op, &index) in &self.ops {
            let launch = &mut self.launches[index];
            if launch.end.is_none() {
                launch.done = Duration::from_nanos(now);
                launch.tasks = launch.tasks.saturating_add(self.device.tasks_done(now, op));
            }
        }
        for (op, call) in &self.calls {
            let launch = &mut self.launches[call.result];
            launch.tasks = launch.tasks.saturating_add(self.device.tasks_done(now, op));
        }
    }

    fn happen(&mut self, now: u64, happening: Happening) {
        let (device, agenda) = (&mut self.device, &mut self.agenda);
        match happening {
            Happening::Ready(cohort) => device.ready(now, cohort, agenda),
            Happening::Complete(op, version) => device.complete(now, op, version, agenda),
            Happening::Leave(cohort, lo, hi) => {
                device.leave(now, cohort, SmRange::new(lo, hi), agenda);
            }
            Happening::MakeRoom(cohort, to) => {
                device.make_room(now, cohort, to, self.engine.owners(), agenda);
            }
            // The host comes after everything.
            Happening::Turn => {}
            told => self.host.tell(told),
        }
    }

    /// Makes a change of a recording.
    pub(super) fn change(&mut self, now: u64, index: usize) {
        let RecordedChange { of, change, .. } = &self.workload.changes[index];
        let of = match *of {
            Changed::Job(job) => self.keys[job].map(Whose::Launch),
            Changed::Stream(StreamNumber(number)) => Some(Whose::Stream(number)),
        };
        if let Some(of) = of {
            let event = Event::Change { of, change: change.to_change() };
            self.engine.handle(Duration::from_nanos(now), event, &mut self.actions);
        }
    }

    pub(super) fn submit(&mut self, now: u64, index: usize) {
        let Submitted { job, turn, at } = self.submitted[index];
        let planned = &self.workload.jobs[job];
        let stream = &self.workload.streams[planned.stream.0 as usize];
        // A launch draws the same numbers whatever the policy does.
        let number = (job as u64) << 32 | u64::from(turn);
        let mut random = Random::of(self.workload.seed, !number);
        let calls = planned.calls();
        let calls: Vec<Submitting<'_>> =
            calls.map(|call| self.submitting(planned, call, &mut random)).collect();
        let recorded = planned.recorded.as_ref();
        let urgency = recorded
            .map_or_else(|| stream.urgency(Duration::from_nanos(now)), |recorded| recorded.urgency);
        let uses = recorded.map_or(&[][..], |recorded| &recorded.uses);
        let uses: Vec<Use> = uses.iter().map(UseRecord::to_use).collect();
        let after = recorded.and_then(|recorded| self.keys[recorded.after?]);
        let (launch, called) = self.form(planned, &calls);
        let StreamNumber(number) = planned.stream;
        let submission = Submission {
            stream: number,
            name: self.name(planned.model.name()),
            uses: &uses,
            after,
            urgency,
            launch,
            opaque: None,
            calls: &called,
            armed: false,
        };
        let time = Duration::from_nanos(now);
        let op = self.engine.submit(time, submission, &mut self.actions);
        self.keys[job] = Some(op);
        let others: Vec<Priority> = self.others(urgency.priority).collect();
        let may_preempt = |by, of| self.engine.may_preempt(by, of);
        self.host.lead.take_in(number, urgency.priority, &others, may_preempt);
        if !planned.takes_time() {
            return;
        }
        let result = self.launches.len();
        let kernel = |call: &Submitting<'_>, alone| {
            let KernelModel { tasks, blocks_per_sm, .. } = *call.model;
            Kernel::new(tasks, blocks_per_sm, nanos(alone), &self.machine)
        };
        let plain = |call: &Submitting<'_>| kernel(call, call.plain);
        let running = |call: &Submitting<'_>| {
            let (stop, redo) = (nanos(call.stop), nanos(call.requeued));
            Running::launch(kernel(call, call.looped), stop, redo).or_plain(plain(call))
        };
        match (&planned.model, launch) {
            (JobModel::Kernel(_), _) => {
                self.device.launches.insert(op, running(&calls[0]));
            }
            (JobModel::Program { .. }, Some(whole)) => {
                let kernels = calls.iter().filter(|call| call.spec.is_some()).map(plain);
                if let Some(graph) = Running::graph(kernels.collect(), whole.tasks) {
                    self.device.launches.insert(op, graph);
                }
            }
            (JobModel::Program { .. }, None) => {
                for ((&key, call), told) in self.engine.calls(op).iter().zip(&calls).zip(&called) {
                    if call.spec.is_some() {
                        self.device.launches.insert(key, running(call));
                        self.calls.insert(key, InCall { result, together: told.together });
                    }
                }
            }
        }
        self.ops.insert(op, result);
        self.launches.push(LaunchResult {
            stream: planned.stream,
            job,
            turn,
            kernel: planned.model.name().to_owned(),
            priority: urgency.priority,
            alone: calls.iter().filter(|call| call.spec.is_some()).map(|call| call.alone).sum(),
            queued: Duration::from_nanos(at),
            started: None,
            done: Duration::ZERO,
            tasks: 0,
            yields: 0,
            resumes: 0,
            sm_time: Duration::ZERO,
            deadline: urgency.deadline,
            end: None,
        });
    }

    /// The priorities of the streams beside one of priority `own`, each once.
    fn others(&self, own: Priority) -> impl Iterator<Item = Priority> {
        let is_other =
            move |&(&priority, &count): &(&Priority, &usize)| priority != own || count > 1;
        self.priorities.iter().filter(is_other).map(|(&priority, _)| priority)
    }

    /// A job that will be submitted.
    pub(super) fn waiting(&self, index: usize) -> Waiting<'static> {
        let job = &self.workload.jobs[self.submitted[index].job];
        let StreamNumber(stream) = job.stream;
        let (priority, kind) = match (&job.recorded, &job.model) {
            // They come in the order that the recorded scheduler took them in.
            (Some(recorded), _) => (recorded.urgency.priority, Kind::Other),
            (None, JobModel::Kernel(_)) => (self.priority(stream), Kind::Launch),
            (None, JobModel::Program { .. }) => (self.priority(stream), Kind::Program),
        };
        // Jobs share memory only where they are recorded.
        Waiting { stream, priority, uses: &[], kind }
    }

    fn priority(&self, stream: u32) -> Priority {
        self.workload.streams[stream as usize].priority
    }

    /// The name of an operation, for the engine.
    fn name(&self, name: &str) -> &'static str {
        if self.records { interned(name) } else { NAME }
    }

    /// A kernel of a job, with what it takes this time.
    fn submitting<'k>(
        &self,
        planned: &Job,
        (model, takes_time): (&'k KernelModel, bool),
        random: &mut Random,
    ) -> Submitting<'k> {
        let looped = duration(model, random);
        let loop_to_plain = model.loop_to_plain();
        // It varies as the other one does.
        let plain = match model.plain_duration {
            Some(plain) if model.duration.is_zero() => plain,
            Some(plain) => plain.mul_f64(looped.div_duration_f64(model.duration)),
            None => looped,
        };
        let stop = model.stop.unwrap_or(self.machine.costs.stop);
        let (stop, requeued) = match self.machine.free_stops {
            true => (Duration::ZERO, Duration::ZERO),
            false => (stop, model.redo),
        };
        let predicted = |exact, typical| match model.prediction {
            Prediction::Unknown => None,
            Prediction::Exact => Some(exact),
            Prediction::Typical => Some(typical),
            Prediction::Is(time) => Some(time),
        };
        let mut spec = LaunchSpec {
            tasks: model.tasks,
            predicted: predicted(looped, model.duration),
            yield_overhead: stop + requeued,
            requeued,
            blocks_per_sm: model.blocks_per_sm,
            on_last_sm: model.blocks_per_sm,
            plain: self.plain || model.plain,
            hardware_stop: None,
            leaving: if model.redo.is_zero() { Leaving::AtEnd } else { Leaving::Dropping },
        };
        if model.auto && !spec.plain {
            let priority = self.workload.streams[planned.stream.0 as usize].priority;
            let circumstances = Circumstances {
                yields: !model.redo.is_zero(),
                may_be_preempted: self
                    .others(priority)
                    .any(|other| self.engine.may_preempt(other, priority)),
                sms: self.machine.sms,
                longest: LONGEST_PLAIN,
                change: self.machine.costs.gap(),
            };
            let learned = Learned { loop_to_plain, ..Learned::default() };
            spec.hardware_stop = spec.plain_stop(learned, circumstances);
        }
        // Elsewhere the engine takes the worker loop.
        let may_be_plain = spec.hardware_stop.is_some() && self.engine.goes_by_order();
        let is_plain = spec.plain || may_be_plain;
        if is_plain {
            spec.predicted = predicted(plain, model.plain_duration.unwrap_or(model.duration));
        }
        let alone = if is_plain { plain } else { looped };
        let spec = takes_time.then_some(spec);
        Submitting { model, alone, looped, plain, stop, requeued, spec }
    }

    /// What the engine is told of a job: the launch, or else the calls. Neither, if it takes no time.
    fn form(&self, planned: &Job, calls: &[Submitting<'_>]) -> (Option<LaunchSpec>, Vec<Called>) {
        match planned.model {
            JobModel::Program { .. } if planned.takes_time() => {
                let circumstances = program::Circumstances {
                    sms: self.machine.sms,
                    gap: self.machine.costs.graph,
                    goes_by_order: self.engine.goes_by_order(),
                };
                let named: Vec<_> =
                    calls.iter().map(|call| (self.name(&call.model.name), call.spec)).collect();
                let may_be_plain = calls.iter().all(|call| match call.spec {
                    Some(spec) => spec.plain || call.model.auto,
                    None => true,
                });
                match program::form(&named, may_be_plain, circumstances) {
                    Form::Plain(whole) => (Some(whole), Vec::new()),
                    Form::Preemptible(called) => (None, called),
                }
            }
            _ => (calls.first().and_then(|call| call.spec), Vec::new()),
        }
    }

    pub(super) fn finish(&mut self, now: u64, op: OpKey, outcome: Outcome) {
        let started = self.device.launches.get(op).and_then(|launch| launch.started);
        let started = started.map(Duration::from_nanos);
        if let Some(InCall { result, .. }) = self.calls.remove(op) {
            let launch = &mut self.launches[result];
            launch.started = launch.started.or(started);
            if let Outcome::Done(LaunchReport { tasks, .. }) = outcome {
                launch.tasks = launch.tasks.saturating_add(tasks);
            }
            return;
        }
        let Some(&index) = self.ops.get(op) else { return };
        // As the engine counts them, a plain program has the block-tasks of its widest kernel.
        let on_device = self.device.tasks_done(now, op);
        let launch = &mut self.launches[index];
        launch.done = Duration::from_nanos(now);
        launch.started = launch.started.or(started);
        launch.end = Some(match outcome {
            Outcome::Done(report) => {
                (launch.yields, launch.resumes) = (report.yields, report.resumes);
                launch.tasks = match self.workload.jobs[launch.job].model {
                    JobModel::Kernel(_) => report.tasks,
                    // Those of calls were counted at their ends.
                    JobModel::Program { .. } => launch.tasks.saturating_add(on_device),
                };
                launch.sm_time = report.sm_time;
                End::Done
            }
            _ => End::NotAdmitted,
        });
        let (job, turn) = (launch.job, launch.turn + 1);
        if let Some(Again { wait, until }) = self.workload.jobs[job].again {
            let next = now + nanos(wait);
            if next < nanos(until) {
                self.plan(job, turn, next);
            }
        }
    }
}

/// The duration of a launch alone.
fn duration(kernel: &KernelModel, random: &mut Random) -> Duration {
    let drawn = random.part();
    let factor = 1.0 + kernel.variation * (2.0 * drawn - 1.0);
    let drawn =
        if kernel.variation == 0.0 { kernel.duration } else { kernel.duration.mul_f64(factor) };
    drawn.clamp(Duration::from_nanos(1), 2 * LONGEST)
}
