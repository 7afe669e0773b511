//! A turn's steps: which messages it takes in before it asks the policy, as `Pace` says.

use std::time::Duration;

use preempt_device::host::{Kernel, Preemption};

use super::{Core, InCall, InWork, Job, Message, Target, Work};
use crate::device::KernelLaunch;
use crate::engine::{
    Called, Change, Circumstances, Did, Event, Kind, LaunchSpec, Lead, Leaving, Next, Pace,
    Submission, ToDo, Waiting, Whose, goes_first, is_plain_as_a_whole,
};
use crate::policy::Urgency;
use crate::scheduler::runtime::combiner::Mail;
use crate::scheduler::runtime::program::ProgramJob;
use crate::vocabulary::OpKey;

/// What depends on how soon a launch leaves its SMs.
#[derive(Clone, Copy)]
struct Stakes {
    /// Whether the policy may take its SMs for a stream that there is.
    may_be_preempted: bool,
    /// The longest launch that may be a plain grid without being told to.
    longest: Duration,
}

impl Message {
    /// What it submits, if it is a submission.
    fn waiting(&self) -> Option<Waiting<'_>> {
        let Message::Submit(job) = self else { return None };
        let kind = match &job.work {
            Work::Launch { .. } => Kind::Launch,
            // The launch that it announces is another message.
            Work::Program(program) if program.armed.is_none() => Kind::Program,
            _ => Kind::Other,
        };
        let (stream, priority) = (job.stream, job.urgency.priority);
        Some(Waiting { stream, priority, uses: &job.uses, kind })
    }
}

impl Core {
    /// Takes in what the last look into the inbox found, and what comes meanwhile; decides, and queues launches ahead.
    pub(super) fn take_steps(&mut self, begin: Duration, mail: &mut Mail<'_, Message>) {
        let to_do = |core: &Core| ToDo {
            decide: core.engine.is_unsettled(begin),
            is_final: core.lead.is_final(),
            go_ahead: core.engine.may_go_ahead(),
        };
        let mut pace = Pace::begin(begin, mail.has_next(), &self.costs);
        // What is taken in together happens at one time, so SMs pass from launch to launch and always have an owner.
        let mut now = begin;
        let mut next = pace.first(now, to_do(self));
        loop {
            let did = match next {
                Next::TakeIn => match self.next_of(mail, pace.may_look()) {
                    Some(message) => {
                        self.news.happened = true;
                        self.take_in(now, message);
                        Did::TookIn { more: mail.has_next() }
                    }
                    None => Did::FoundNone,
                },
                Next::LookAhead { within } => {
                    mail.look();
                    let overturns = mail.has_soon(within, |message| self.overturns(message));
                    Did::LookedAhead { overturns, more: mail.has_next() }
                }
                Next::Decide => {
                    self.lead = Lead::default();
                    self.decide(now);
                    Did::Decided
                }
                Next::GoAhead => {
                    self.go_ahead(now);
                    Did::WentAhead
                }
                Next::Done => return,
            };
            let clock = self.start.elapsed();
            if matches!(did, Did::Decided | Did::WentAhead) {
                now = clock;
            }
            next = pace.next(clock, did, to_do(self));
        }
    }

    /// The message to take in next: one that goes before those that came earlier, or the earliest.
    fn next_of(&self, mail: &mut Mail<'_, Message>, may_look: bool) -> Option<Message> {
        if may_look {
            mail.look();
        }
        let may_preempt = |by, of| self.engine.may_preempt(by, of);
        let out_of_turn = mail.out_of_turn(|in_front, message| {
            let launch = message.waiting();
            launch.is_some_and(|launch| {
                goes_first(in_front.map(Message::waiting), launch, may_preempt)
            })
        });
        out_of_turn.or_else(|| mail.next())
    }

    /// Whether a message is of a launch that may preempt what would be launched without it.
    fn overturns(&self, message: &Message) -> bool {
        match message {
            Message::Submit(Job {
                stream,
                urgency,
                work: Work::Launch { .. } | Work::Program(_),
                ..
            }) => {
                let may_preempt = |by, of| self.engine.may_preempt(by, of);
                self.lead.gives_way_to(*stream, urgency.priority, may_preempt)
            }
            _ => false,
        }
    }

    fn take_in(&mut self, now: Duration, message: Message) {
        match message {
            Message::Submit(job) => self.submit(now, job),
            Message::Cancel(completion) => {
                if let Some(&op) = completion.op.get() {
                    self.engine.handle(now, Event::Cancel { op }, &mut self.actions);
                }
            }
            Message::Revoke(completions) => {
                for &op in completions.iter().filter_map(|completion| completion.op.get()) {
                    self.engine.handle(now, Event::Revoke { op }, &mut self.actions);
                }
            }
            Message::Release(completion) => {
                if let Some(&op) = completion.op.get() {
                    self.release(now, op);
                }
            }
            Message::Disarmed(completion) => {
                if let Some(&op) = completion.op.get() {
                    self.engine.handle(now, Event::Disarmed { op }, &mut self.actions);
                }
            }
            Message::Change(target, change) => {
                let of = match &target {
                    Target::Stream(stream) => Some(Whose::Stream(*stream)),
                    Target::Launch(of) => of.op.get().copied().map(Whose::Launch),
                };
                let change = match change {
                    Change::LatencyLimit(limit) => {
                        if let Target::Stream(stream) = target {
                            self.limited.add(stream, limit);
                        }
                        change
                    }
                    Change::Deadline(due) => {
                        Change::Deadline(due.map(|due| now.saturating_add(due)))
                    }
                    other => other,
                };
                if let Some(of) = of {
                    let event = Event::Change { of, change };
                    self.engine.handle(now, event, &mut self.actions);
                }
            }
            Message::Close => {
                self.closed = true;
                self.engine.handle(now, Event::Close, &mut self.actions);
                // External operations may take for ever, and no thread has to wait for those that use no memory of the
                // device.
                let externals = std::mem::take(&mut self.externals);
                let (kept, given_up): (Vec<_>, Vec<_>) =
                    externals.into_iter().partition(|(_, external)| external.uses_memory());
                self.externals = kept;
                for (op, _) in given_up {
                    self.engine.handle(now, Event::CopyDone { op }, &mut self.actions);
                }
            }
        }
        self.act(now);
    }

    fn submit(&mut self, now: Duration, mut job: Job) {
        let own = job.urgency.priority;
        self.limited.add(job.stream, job.urgency.latency_limit);
        let mut calls = std::mem::take(&mut self.called);
        let mut stakes = Stakes {
            may_be_preempted: false,
            longest: job.longest_plain.map_or(self.longest_plain, |of| of.min(self.longest_plain)),
        };
        if matches!(&job.work, Work::Launch { .. } | Work::Program(_)) {
            self.priorities.others(own, &mut self.others);
            let may_preempt = |by, of| self.engine.may_preempt(by, of);
            self.lead.take_in(job.stream, own, &self.others, may_preempt);
            stakes.may_be_preempted = self.others.iter().any(|&other| may_preempt(other, own));
        }
        let (launch, predicted, due) = match &mut job.work {
            Work::Launch { launch, spec, preemption, due } => {
                let spec = self.expected(launch, *spec, *preemption, stakes);
                (Some(spec), spec.predicted, *due)
            }
            Work::Program(program) => {
                let predicted = self.forecast.predict(&program.features());
                program.plain = self.enter_calls(program, predicted, stakes, &mut calls);
                let spec = LaunchSpec { predicted, ..program.spec };
                (program.plain.then_some(spec), predicted, program.due)
            }
            _ => (None, None, None),
        };
        let armed = matches!(&job.work, Work::Program(program) if program.armed.is_some());
        // That of an armed launch counts from its release on.
        let deadline = due.filter(|_| !armed).map(|due| now.saturating_add(due));
        let submission = Submission {
            stream: job.stream,
            name: job.name,
            uses: &job.uses,
            after: match &job.work {
                // An event exists only once it was submitted.
                Work::Event { after: Some(after) } => after.op.get().copied(),
                Work::Program(program) => program.before(),
                _ => None,
            },
            urgency: Urgency { deadline, ..job.urgency },
            launch,
            opaque: match &job.work {
                Work::Opaque(job) => Some(job.known),
                _ => None,
            },
            calls: &calls,
            armed,
        };
        let is_launch = (launch.is_some() || !calls.is_empty()) && !armed;
        let entry = is_launch.then(|| {
            self.accounts.submitted(
                now,
                job.stream,
                job.name,
                submission.urgency.priority,
                predicted,
            )
        });
        let op = self.engine.submit(now, submission, &mut self.actions);
        if let Work::Program(program) = &job.work {
            program.enter(op);
        }
        // The handle was made for this job, and no other job sets it.
        let _ = job.completion.op.set(op);
        self.jobs.insert(op, InWork { job, fault: None, is_done: false, waited: false, entry });
        for (index, (&key, call)) in self.engine.calls(op).iter().zip(&calls).enumerate() {
            let predicted = call.launch.and_then(|launch| launch.predicted);
            let call = InCall { program: op, index, predicted, is_done: false, waited: false };
            self.calls.insert(key, call);
        }
        calls.clear();
        self.called = calls;
    }

    /// Submits an armed launch of a program, as far as the application sees it.
    fn release(&mut self, now: Duration, op: OpKey) {
        let Some(InWork { job, entry, .. }) = self.jobs.get_mut(op) else { return };
        let Work::Program(program) = &job.work else { return };
        let predicted = self.forecast.predict(&program.features());
        let (priority, due) = (job.urgency.priority, program.due);
        *entry = Some(self.accounts.submitted(now, job.stream, job.name, priority, predicted));
        if let Some(due) = due {
            let change = Change::Deadline(Some(now.saturating_add(due)));
            let event = Event::Change { of: Whose::Launch(op), change };
            self.engine.handle(now, event, &mut self.actions);
        }
        self.engine.handle(now, Event::Release { op }, &mut self.actions);
    }

    /// A launch with what is expected of it.
    fn expected(
        &mut self,
        launch: &KernelLaunch,
        spec: LaunchSpec,
        preemption: Preemption,
        Stakes { may_be_preempted, longest }: Stakes,
    ) -> LaunchSpec {
        let predicted = self.forecast.predict(&launch.features(spec.tasks));
        let Kernel { yields, state_bytes, .. } = *launch.kernel;
        let has_checkpoint = state_bytes > 0;
        // A block-task that is left at a checkpoint loses nothing.
        let part = self.estimates.dropped(launch.kernel);
        let requeued =
            predicted.filter(|_| yields && !has_checkpoint).map_or(Duration::ZERO, |took| {
                spec.dropped_of(took, self.device.properties().sms, part)
            });
        let yield_overhead = self.estimates.stop(launch.kernel) + requeued;
        let spec = LaunchSpec { predicted, yield_overhead, requeued, ..spec };
        let (plain, hardware_stop) = match preemption {
            Preemption::Preemptible => (false, None),
            Preemption::Plain => (true, None),
            Preemption::Auto => {
                let learned = self.estimates.learned(launch.kernel);
                let circumstances = Circumstances {
                    yields,
                    may_be_preempted,
                    sms: self.device.properties().sms,
                    longest,
                    change: self.costs.gap(),
                };
                let stop = |learned| spec.plain_stop(learned, circumstances);
                (false, learned.and_then(stop))
            }
        };
        let leaving = match (yields, has_checkpoint) {
            (_, true) => Leaving::Switching,
            (true, false) => Leaving::Dropping,
            (false, false) => Leaving::AtEnd,
        };
        LaunchSpec { plain, hardware_stop, leaving, ..spec }
    }

    /// Whether a program is one plain launch; its calls otherwise.
    fn enter_calls(
        &mut self,
        program: &ProgramJob,
        predicted: Option<Duration>,
        stakes: Stakes,
        calls: &mut Vec<Called>,
    ) -> bool {
        if program.preemption == Preemption::Plain {
            return true;
        }
        for (index, spec) in program.specs.iter().enumerate() {
            let spec = match (*spec, program.kernel(index)) {
                (Some(spec), Some(launch)) => {
                    let has_cohorts = program.has_cohorts(index);
                    let form = if has_cohorts { program.preemption } else { Preemption::Plain };
                    Some(self.expected(launch, spec, form, stakes))
                }
                (spec, _) => spec,
            };
            calls.push(program.called(index, spec));
        }
        let launches = calls.iter().filter_map(|call| call.launch);
        let is_plain = program.preemption == Preemption::Auto
            && program.armed.is_none()
            && is_plain_as_a_whole(launches, predicted, stakes.longest)
            && self.engine.goes_by_order();
        if is_plain {
            calls.clear();
        }
        // The form is that of the program, so the engine chooses none for a call.
        for launch in calls.iter_mut().filter_map(|call| call.launch.as_mut()) {
            launch.hardware_stop = None;
        }
        is_plain
    }
}
