//! Batching: a turn takes in messages first, and asks the policy when that leaves no message out.

use std::time::Duration;

use preempt_device::host::Preemption;

use super::{AT_ONCE, Core, InCall, InWork, Job, Message, Target, Work};
use crate::device::KernelLaunch;
use crate::engine::{Called, Change, Circumstances, Event, LaunchSpec, Submission, Whose};
use crate::policy::{Priority, Urgency};
use crate::scheduler::runtime::combiner::Mail;
use crate::scheduler::runtime::program::ProgramJob;

/// Looks into the inbox, at most, that a turn repeats before it decides.
const LOOKS_AGAIN: usize = 3;

/// Messages, beside the last one, in which a turn seeks another stream behind a burst of one stream. Meanwhile it holds
/// back the first launch of the burst. After as many messages it starts that launch: taking them in takes as long as to
/// start a launch and make it leave again.
pub(super) const FEW: usize = 16;

impl Mail<'_, Message> {
    /// Whether the next few messages, and the last one, are all of this stream.
    fn is_of(&self, stream: u32) -> bool {
        let is_of =
            |message: &Message| matches!(message, Message::Submit(job) if job.stream == stream);
        self.coming().take(FEW).chain(self.coming().next_back()).all(is_of)
    }
}

impl Core {
    /// Takes in all messages; returns the time then. `ahead` counts the launches that were queued behind others, or
    /// might have been.
    pub(super) fn take_in_all(
        &mut self,
        mut now: Duration,
        mail: &mut Mail<'_, Message>,
        ahead: &mut usize,
    ) -> Duration {
        let (mut looks, mut taken) = (0, 0);
        loop {
            let mut stream = None;
            while let Some(message) = mail.next() {
                self.news.happened = true;
                if let Message::Submit(job) = &message {
                    // A launch behind another operation of its stream cannot run yet, and that operation can.
                    let is_behind = stream.replace(job.stream) == Some(job.stream);
                    if is_behind && self.engine.is_unsettled(now) {
                        if looks < LOOKS_AGAIN && mail.is_of(job.stream) {
                            looks += 1;
                            mail.look();
                        }
                        // Unless there is another stream, more or less urgent than the whole burst.
                        let leads = || self.engine.leads(job.stream, job.urgency.priority);
                        if taken >= FEW || mail.is_of(job.stream) && leads() {
                            self.decide(now);
                            (now, taken) = (self.start.elapsed(), 0);
                        }
                    }
                    let is_settled = !self.engine.is_unsettled(now);
                    if is_behind && is_settled && self.engine.may_go_ahead() && *ahead < AT_ONCE {
                        // The rest of the burst can wait longer than the device can for its next launch.
                        *ahead += 1;
                        mail.look();
                        if mail.is_of(job.stream) && self.go_ahead(now) {
                            now = self.start.elapsed();
                        }
                    }
                }
                self.take_in(now, message);
                taken += 1;
            }
            // A message that arrives just now is better taken in before the decision than after it.
            if looks == LOOKS_AGAIN || !self.engine.is_unsettled(now) || !mail.look() {
                return now;
            }
            looks += 1;
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
            Message::Change(target, change) => {
                let of = match target {
                    Target::Stream(stream) => Some(Whose::Stream(stream)),
                    Target::Launch(of) => of.op.get().copied().map(Whose::Launch),
                };
                let change = match change {
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
                // External operations may take for ever. No thread has to wait for them, because they use no memory of
                // the scheduler.
                for (op, _) in std::mem::take(&mut self.externals) {
                    self.engine.handle(now, Event::CopyDone { op }, &mut self.actions);
                }
            }
        }
        self.act(now);
    }

    fn submit(&mut self, now: Duration, mut job: Job) {
        let own = job.urgency.priority;
        let mut calls = std::mem::take(&mut self.called);
        let (launch, predicted, due) = match &mut job.work {
            Work::Launch { launch, spec, preemption, due } => {
                let spec = self.expected(launch, *spec, *preemption, own);
                (Some(spec), spec.predicted, *due)
            }
            Work::Program(program) => {
                let predicted = self.forecast.predict(&program.features());
                program.plain = self.enter_calls(program, predicted, own, &mut calls);
                let spec = LaunchSpec { predicted, ..program.spec };
                (program.plain.then_some(spec), predicted, program.due)
            }
            _ => (None, None, None),
        };
        let deadline = due.map(|due| now.saturating_add(due));
        let submission = Submission {
            stream: job.stream,
            name: job.name,
            uses: &job.uses,
            after: match &job.work {
                // An event exists only once it was submitted.
                Work::Marker { after: Some(after) } => after.op.get().copied(),
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
        };
        let is_launch = launch.is_some() || !calls.is_empty();
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
        for (index, &call) in self.engine.calls(op).iter().enumerate() {
            self.calls.insert(call, InCall { program: op, index, is_done: false });
        }
        calls.clear();
        self.called = calls;
    }

    /// A launch with what is expected of it. `own`: the priority of its stream.
    fn expected(
        &mut self,
        launch: &KernelLaunch,
        spec: LaunchSpec,
        preemption: Preemption,
        own: Priority,
    ) -> LaunchSpec {
        let predicted = self.forecast.predict(&launch.features(spec.tasks));
        let requeued = predicted
            .filter(|_| launch.kernel.yields)
            .map_or(Duration::ZERO, |took| spec.dropped_of(took, self.device.properties().sms));
        let yield_overhead = self.forecast.stop(launch.kernel) + requeued;
        let spec = LaunchSpec { predicted, yield_overhead, requeued, ..spec };
        let (plain, hardware_stop) = match preemption {
            Preemption::Preemptible => (false, None),
            Preemption::Plain => (true, None),
            Preemption::Auto => {
                let learned = self.estimates.learned(launch.kernel);
                self.priorities.others(own, &mut self.others);
                let mut others = self.others.iter();
                let circumstances = Circumstances {
                    yields: launch.kernel.yields,
                    may_be_preempted: others.any(|&other| self.engine.may_preempt(other, own)),
                    sms: self.device.properties().sms,
                    longest: self.longest_plain,
                };
                let stop = |learned| spec.plain_stop(learned, circumstances);
                (false, learned.and_then(stop))
            }
        };
        LaunchSpec { plain, hardware_stop, ..spec }
    }

    /// Whether a program is one plain launch; its calls otherwise.
    fn enter_calls(
        &mut self,
        program: &ProgramJob,
        predicted: Option<Duration>,
        own: Priority,
        calls: &mut Vec<Called>,
    ) -> bool {
        if program.preemption == Preemption::Plain {
            return true;
        }
        // If each kernel may be a plain grid, the program may, unless it takes too long as a whole.
        let mut may_be_plain = program.preemption == Preemption::Auto
            && predicted.is_some_and(|predicted| predicted <= self.longest_plain)
            && self.engine.goes_by_order();
        for (index, spec) in program.specs.iter().enumerate() {
            let spec = match (*spec, program.kernel(index)) {
                (Some(spec), Some(launch)) => {
                    let spec = self.expected(launch, spec, program.preemption, own);
                    may_be_plain &= spec.hardware_stop.is_some();
                    Some(LaunchSpec { hardware_stop: None, ..spec })
                }
                // Captured work runs to its end in either form.
                (spec, _) => spec,
            };
            calls.push(program.called(index, spec));
        }
        if may_be_plain {
            calls.clear();
        }
        may_be_plain
    }
}
