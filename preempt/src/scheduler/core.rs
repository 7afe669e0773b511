//! The engine with its device. One thread at a time runs it.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use preempt_device::abi::{Cohort, Post};
use slotmap::SecondaryMap;

use super::baton::Turn;
use super::handle::Completion;
use super::lock;
use crate::device::{ControlMemory, Copy, Device, Grid, Report};
use crate::engine::{
    Action, CohortOrder, ControlIndex, Engine, Event, LaunchReport, LaunchSpec, OpKey, Outcome,
    Refusal, Submission, Use,
};
use crate::error::Error;
use crate::policy::Policy;

/// What other threads ask of the core.
#[derive(Debug)]
pub(super) enum Message {
    Submit(Job),
    Cancel(Arc<Completion>),
    Close,
}

/// A launch or copy with everything that it needs.
#[derive(Debug)]
pub(super) struct Job {
    pub completion: Arc<Completion>,
    pub stream: u32,
    pub name: &'static str,
    pub uses: Vec<Use>,
    pub work: Work,
}

pub(super) enum Work {
    Launch {
        grid: Arc<Grid>,
        extents: [u32; 3],
        amortize: u32,
        spec: LaunchSpec,
    },
    Copy {
        copy: Copy,
        /// What keeps both places valid.
        _owners: [Arc<dyn Any + Send + Sync>; 2],
    },
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Launch { grid, .. } => f.debug_tuple("Launch").field(&grid.kernel.name).finish(),
            Work::Copy { copy, .. } => f.debug_tuple("Copy").field(copy).finish(),
        }
    }
}

/// What others have to be told after a turn.
#[derive(Default)]
pub(super) struct News {
    /// Handles to complete, and how.
    pub completed: Vec<(Arc<Completion>, Result<LaunchReport, Error>)>,
    /// What nobody needs any more. Freeing memory can take long.
    pub retired: Vec<Job>,
    pub became_busy: bool,
    pub became_idle: bool,
}

/// Whether operations are in flight.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    pub any: Mutex<bool>,
    pub none: Condvar,
}

/// What there is to do for whoever looks after the core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rest {
    Busy,
    Idle,
    /// Closed, and everything is done. From now on the core does nothing: the device may have
    /// another scheduler, whose reports are none of its business.
    Retired,
}

pub(super) struct Core {
    engine: Engine,
    device: Device,
    start: Instant,
    jobs: SecondaryMap<OpKey, (Job, Option<Arc<str>>)>,
    controls: Vec<ControlMemory>,
    /// Cohorts on the device, with the ticket that their post will show.
    cohorts: Vec<(CohortOrder, *const Post)>,
    actions: Vec<Action>,
    /// Kept for their capacity.
    reports: Vec<Report>,
    out: Vec<(CohortOrder, u32)>,
    news: News,
    in_flight: Arc<InFlight>,
    closed: bool,
    retired: bool,
}

// SAFETY: the posts are atomics that the device keeps as long as it lives, and the core holds it.
unsafe impl Send for Core {}

impl Turn for Core {
    type Message = Message;
    type News = News;

    /// Takes in `messages` and what the device reports, and acts on it.
    fn turn(&mut self, messages: &mut Vec<Message>) -> News {
        if self.retired {
            // Cancels of what is over.
            messages.clear();
            return News::default();
        }
        self.take_reports();
        let now = self.start.elapsed();
        for message in messages.drain(..) {
            match message {
                Message::Submit(job) => self.submit(job),
                Message::Cancel(completion) => {
                    if let Some(&op) = completion.op.get() {
                        self.engine.handle(now, Event::Cancel { op }, &mut self.actions);
                    }
                }
                Message::Close => {
                    self.closed = true;
                    self.engine.handle(now, Event::Close, &mut self.actions);
                }
            }
            self.act();
        }
        // What goes wrong on the way may give the policy more to decide.
        loop {
            self.engine.settle(now, &mut self.actions);
            if self.actions.is_empty() {
                break;
            }
            self.act();
        }
        let is_busy = self.engine.is_busy();
        let was_busy = std::mem::replace(&mut *lock(&self.in_flight.any), is_busy);
        self.news.became_busy = is_busy && !was_busy;
        self.news.became_idle = was_busy && !is_busy;
        std::mem::take(&mut self.news)
    }
}

impl Core {
    pub fn new(device: Device, policy: Box<dyn Policy>, in_flight: Arc<InFlight>) -> Core {
        Core {
            engine: Engine::new(device.properties().sms, policy),
            device,
            start: Instant::now(),
            jobs: SecondaryMap::new(),
            controls: Vec::new(),
            cohorts: Vec::new(),
            actions: Vec::new(),
            reports: Vec::new(),
            out: Vec::new(),
            news: News::default(),
            in_flight,
            closed: false,
            retired: false,
        }
    }

    /// Whether there is more to do.
    pub fn rest(&mut self) -> Rest {
        match (self.engine.is_busy(), self.closed) {
            (true, _) => Rest::Busy,
            (false, false) => Rest::Idle,
            (false, true) => {
                self.retired = true;
                Rest::Retired
            }
        }
    }

    /// Why the policy was replaced, if it was.
    pub fn refusal(&self) -> Option<&Refusal> {
        self.engine.refusal()
    }

    fn submit(&mut self, job: Job) {
        let submission = Submission {
            stream: job.stream,
            name: job.name,
            uses: &job.uses,
            launch: match &job.work {
                Work::Launch { spec, .. } => Some(*spec),
                Work::Copy { .. } => None,
            },
        };
        let op = self.engine.submit(self.start.elapsed(), submission, &mut self.actions);
        // The handle was made for this job, and no other job sets it.
        let _ = job.completion.op.set(op);
        self.jobs.insert(op, (job, None));
    }

    fn take_reports(&mut self) {
        let now = self.start.elapsed();
        // Posts first: a fault comes before the post of its cohort, so whoever has read the post
        // finds the fault below. The engine has to hear of the fault first.
        let mut out = std::mem::take(&mut self.out);
        self.cohorts.retain(|&(order, post)| {
            // SAFETY: the device keeps posts as long as it lives.
            let done = unsafe { (*post).read(order.ticket) };
            out.extend(done.map(|done| (order, done)));
            done.is_none()
        });
        let mut reports = std::mem::take(&mut self.reports);
        self.device.inner.backend.poll(&mut reports);
        for report in reports.drain(..) {
            match report {
                Report::CopyDone(op) => {
                    self.engine.handle(now, Event::CopyDone { op }, &mut self.actions);
                }
                Report::Fault(op, message) => self.fault(op, message),
            }
        }
        self.reports = reports;
        for (CohortOrder { op, slot, .. }, done) in out.drain(..) {
            self.engine.handle(now, Event::CohortOut { op, slot, done }, &mut self.actions);
        }
        self.out = out;
        self.act();
    }

    fn fault(&mut self, op: OpKey, message: Arc<str>) {
        if let Some((_, fault)) = self.jobs.get_mut(op) {
            fault.get_or_insert(message);
        }
        self.engine.handle(self.start.elapsed(), Event::Fault { op }, &mut self.actions);
    }

    /// Carries out the engine's actions, and those that come of them.
    fn act(&mut self) {
        while !self.actions.is_empty() {
            let mut actions = std::mem::take(&mut self.actions);
            for action in actions.drain(..) {
                match action {
                    Action::Launch(order) => {
                        if let Err(error) = self.launch(order) {
                            let CohortOrder { op, slot, .. } = order;
                            self.fault(op, error.to_string().into());
                            let out = Event::CohortOut { op, slot, done: 0 };
                            self.engine.handle(self.start.elapsed(), out, &mut self.actions);
                        }
                    }
                    Action::Signal { control, slot, signal } => {
                        // There is none if it could not be allocated.
                        if let Some(&control) = self.controls.get(control as usize) {
                            self.device.inner.backend.signal(control, slot, signal);
                        }
                    }
                    Action::Copy { op } => {
                        if let Some((Job { work: Work::Copy { copy, .. }, .. }, _)) =
                            self.jobs.get(op)
                        {
                            // SAFETY: the job owns both places until the copy is done.
                            unsafe { self.device.inner.backend.copy(op, *copy) };
                        }
                    }
                    Action::Finish { op, outcome } => self.finish(op, outcome),
                    Action::Retire { op } => {
                        self.news.retired.extend(self.jobs.remove(op).map(|(job, _)| job));
                    }
                }
            }
            if self.actions.is_empty() {
                self.actions = actions;
            }
        }
    }

    fn launch(&mut self, order: CohortOrder) -> Result<(), Error> {
        let memory = self.control(order.control)?;
        let Some((Job { work: Work::Launch { grid, extents, amortize, spec }, .. }, _)) =
            self.jobs.get(order.op)
        else {
            return Ok(());
        };
        // SAFETY: the device keeps posts as long as it lives; a slot is below COHORT_SLOTS.
        let post = unsafe { &raw const (*memory.posts)[order.slot as usize] };
        let cohort = Cohort {
            control: memory.control,
            post,
            signal: order.signal,
            grid: *extents,
            tasks: spec.tasks,
            generation: order.generation,
            ticket: order.ticket,
            slot: order.slot,
            blocks: order.blocks,
            workers: order.workers,
            amortize: *amortize,
        };
        self.device.inner.backend.launch(order.op, grid, cohort)?;
        self.cohorts.push((order, post));
        Ok(())
    }

    fn control(&mut self, index: ControlIndex) -> Result<ControlMemory, Error> {
        while self.controls.len() <= index as usize {
            self.controls.push(self.device.inner.backend.new_control()?);
        }
        Ok(self.controls[index as usize])
    }

    fn finish(&mut self, op: OpKey, outcome: Outcome) {
        let Some((job, fault)) = self.jobs.get_mut(op) else { return };
        let kernel = job.name;
        let tasks = match &job.work {
            Work::Launch { spec, .. } => spec.tasks,
            Work::Copy { .. } => 0,
        };
        let result = match outcome {
            Outcome::Done(report) => Ok(report),
            Outcome::Cancelled { done } => Err(Error::Cancelled { done, tasks }),
            Outcome::Closed { done } => Err(Error::SchedulerDropped { done, tasks }),
            Outcome::InputLost { kernel } => Err(Error::InputLost { kernel }),
            Outcome::Failed => {
                let message = fault.take().unwrap_or_else(|| "for an unknown reason".into());
                Err(Error::KernelFailed { kernel, message })
            }
        };
        self.news.completed.push((job.completion.clone(), result));
    }
}
