//! A turn's steps: which messages it takes in before it asks the policy, as `Pace` says.

use std::time::Duration;

use preempt_device::host::Preemption;

use super::{Core, InWork, Job, Message, Target, Work};
use crate::engine::{
    Change, Circumstances, Did, Event, LaunchSpec, Next, Pace, Submission, ToDo, Whose,
};
use crate::policy::Urgency;
use crate::scheduler::runtime::combiner::Mail;
use crate::scheduler::runtime::program::ProgramJob;

impl Core {
    /// Takes in what the last look into the inbox found, and what comes meanwhile; decides, and queues launches ahead.
    pub(super) fn take_steps(&mut self, begin: Duration, mail: &mut Mail<'_, Message>) {
        let to_do = |core: &Core| ToDo {
            decide: core.engine.is_unsettled(begin),
            go_ahead: core.engine.may_go_ahead(),
        };
        let mut pace = Pace::begin(begin, mail.has_next(), &self.costs);
        // What is taken in together happens at one time, so SMs pass from launch to launch and always have an owner.
        let mut now = begin;
        let mut next = pace.first(now, to_do(self));
        loop {
            let did = match next {
                Next::TakeIn => match mail.next_or_look() {
                    Some(message) => {
                        self.news.happened = true;
                        self.take_in(now, message);
                        Did::TookIn { more: mail.has_next() }
                    }
                    None => Did::FoundNone,
                },
                Next::Decide => {
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

    fn submit(&mut self, now: Duration, job: Job) {
        let submission = Submission {
            stream: job.stream,
            name: job.name,
            uses: &job.uses,
            after: match &job.work {
                // An event exists only once it was submitted.
                Work::Marker { after: Some(after) } => after.op.get().copied(),
                _ => None,
            },
            urgency: match &job.work {
                Work::Launch { due, .. } | Work::Program(ProgramJob { due, .. }) => {
                    Urgency { deadline: due.map(|due| now.saturating_add(due)), ..job.urgency }
                }
                _ => job.urgency,
            },
            launch: match &job.work {
                Work::Launch { launch, spec, preemption, .. } => {
                    let predicted = self.forecast.predict(&launch.features(spec.tasks));
                    let requeued =
                        predicted.filter(|_| launch.kernel.yields).map_or(Duration::ZERO, |took| {
                            spec.dropped_of(took, self.device.properties().sms)
                        });
                    let yield_overhead = self.forecast.stop(launch.kernel) + requeued;
                    let spec = LaunchSpec { predicted, yield_overhead, requeued, ..*spec };
                    let (plain, hardware_stop) = match preemption {
                        Preemption::Preemptible => (false, None),
                        Preemption::Plain => (true, None),
                        Preemption::Auto => {
                            let learned = self.estimates.learned(launch.kernel);
                            let own = job.urgency.priority;
                            self.priorities.others(own, &mut self.others);
                            let mut others = self.others.iter();
                            let circumstances = Circumstances {
                                yields: launch.kernel.yields,
                                may_be_preempted: others
                                    .any(|&other| self.engine.may_preempt(other, own)),
                                sms: self.device.properties().sms,
                                longest: self.longest_plain,
                            };
                            let stop = |learned| spec.plain_stop(learned, circumstances);
                            (false, learned.and_then(stop))
                        }
                    };
                    Some(LaunchSpec { plain, hardware_stop, ..spec })
                }
                Work::Program(program) => {
                    let predicted = self.forecast.predict(&program.features());
                    Some(LaunchSpec { predicted, ..program.spec })
                }
                _ => None,
            },
            opaque: match &job.work {
                Work::Opaque(job) => Some(job.known),
                _ => None,
            },
        };
        let entry = submission.launch.map(|LaunchSpec { predicted, .. }| {
            self.accounts.submitted(
                now,
                job.stream,
                job.name,
                submission.urgency.priority,
                predicted,
            )
        });
        let op = self.engine.submit(now, submission, &mut self.actions);
        // The handle was made for this job, and no other job sets it.
        let _ = job.completion.op.set(op);
        self.jobs.insert(op, InWork { job, fault: None, is_done: false, waited: false, entry });
    }
}
