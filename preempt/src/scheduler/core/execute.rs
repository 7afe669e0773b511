//! What the core does: the engine's actions, carried out on the device and told to those who wait.

use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use preempt_device::abi::{Cohort, Divisor, share_bits};
use preempt_device::host::{Access, Amortize};

use super::{Core, InWork, Job, Out, Work};
use crate::device::{ControlMemory, Drops, PlainLaunch};
use crate::engine::{Action, Event, Outcome};
use crate::error::{DeviceError, Error, LaunchError};
use crate::vocabulary::{After, BufferId, CohortOrder, ControlIndex, OpKey};

/// The most block-tasks in such a chunk.
const MAX_CHUNK: u32 = 1024;

impl Core {
    pub(super) fn fault(&mut self, now: Duration, op: OpKey, message: Arc<str>) {
        if let Some(work) = self.jobs.get_mut(op) {
            work.fault.get_or_insert(message);
        }
        self.engine.handle(now, Event::Fault { op }, &mut self.actions);
    }

    /// Carries out the engine's actions, and those that come of them.
    pub(super) fn act(&mut self, now: Duration) {
        self.account();
        while !self.actions.is_empty() {
            let mut actions = std::mem::take(&mut self.actions);
            for action in actions.drain(..) {
                match action {
                    Action::Launch(order) => {
                        match self.launch(now, order) {
                            // The device will report that, and then this launch ends with all others.
                            Ok(()) | Err(Error::Device(DeviceError::ContextLost { .. })) => {}
                            Err(error) => {
                                let CohortOrder { op, slot, .. } = order;
                                self.fault(now, op, error.to_string().into());
                                let out = Event::Refused { op, slot };
                                self.engine.handle(now, out, &mut self.actions);
                            }
                        }
                    }
                    Action::Signal { queue, signal } => {
                        self.tell(now, queue, signal);
                        self.device.inner.backend.signal(queue, signal);
                    }
                    Action::Copy { op } => self.start(now, op),
                    Action::Finish { op, outcome } => {
                        self.learn(now, op, outcome);
                        self.finish(op, outcome);
                    }
                    Action::Retire { op } => {
                        let Some(work) = self.jobs.remove(op) else { continue };
                        if let Some(drops) = work.drops {
                            self.device.inner.backend.give_back_drops(drops, work.is_done);
                        }
                        self.news.retired.push(work.job);
                    }
                }
            }
            self.account();
            if self.actions.is_empty() {
                self.actions = actions;
            }
        }
        self.forecast.learn(&mut self.ended);
    }

    /// Starts what is no launch.
    fn start(&mut self, now: Duration, op: OpKey) {
        match self.jobs.get_mut(op).map(|work| &mut work.job.work) {
            Some(Work::Copy { copy, .. }) => {
                // SAFETY: the job owns both places until the copy is done.
                unsafe { self.device.inner.backend.copy(op, *copy) };
            }
            Some(Work::ExternalOperation(external)) => {
                external.start();
                self.externals.push((op, external.clone()));
            }
            Some(Work::Marker { .. }) => {
                self.engine.handle(now, Event::CopyDone { op }, &mut self.actions);
            }
            Some(Work::Opaque(job)) => {
                if self.cohorts.is_empty() {
                    // What it loads may wait for all that runs, the device's own blocks included.
                    self.device.inner.backend.rest();
                }
                if !job.start(op) {
                    self.fault(now, op, "its thread has ended".into());
                    self.engine.handle(now, Event::CopyDone { op }, &mut self.actions);
                }
            }
            Some(Work::Launch { .. }) | None => {}
        }
    }

    fn launch(&mut self, now: Duration, order: CohortOrder) -> Result<(), Error> {
        let memory = self.control(order.control.control)?;
        let backend = &self.device.inner.backend;
        let Some(InWork {
            job: Job { work: Work::Launch { grid, extents, amortize, spec, .. }, .. },
            drops,
            waited,
            ..
        }) = self.jobs.get_mut(order.op)
        else {
            return Ok(());
        };
        *waited |= order.queue >= backend.queues().normal;
        // SAFETY: the device keeps posts until its next scheduler; a slot is below COHORT_SLOTS.
        let post = unsafe { &raw const (*memory.posts)[usize::from(order.slot)] };
        if order.plain {
            let (extents, tasks, ticket) = (*extents, spec.tasks, order.ticket);
            let plain = PlainLaunch { extents, tasks, post, ticket };
            backend.launch_plain(order.op, order.queue, grid, plain)?;
            self.cohorts.push(Out { order, post, launched: now, told: None });
            return Ok(());
        }
        if drops.is_none() {
            *drops = Some(backend.take_drops()?);
        }
        let (after, after_word) = match order.after {
            None => (ptr::null(), 0),
            Some(After { control, slot, left }) => {
                let before = self.controls[control as usize].control;
                // SAFETY: the device keeps control blocks until its next scheduler, and a slot is below
                // COHORT_SLOTS.
                (unsafe { &raw const (*before).left[usize::from(slot)] }, left)
            }
        };
        let (amortize, pace, crowd) = match *amortize {
            Amortize::Auto => (MAX_CHUNK, self.pace, order.workers.saturating_mul(self.claim_time)),
            Amortize::Tasks(tasks) => (tasks, 0, 0),
        };
        let cohort = Cohort {
            control: memory.control,
            // SAFETY: as above, and a parity is 0 or 1.
            claims: unsafe {
                &raw const (*memory.control).claims[usize::from(order.control.parity)]
            },
            // The device knows.
            queue: ptr::null(),
            post,
            requeue_list: drops.map_or(ptr::null(), |Drops(list)| list),
            signal: order.signal,
            after,
            after_word,
            left: order.left,
            grid: *extents,
            row: Divisor::new(extents[0]),
            layer: Divisor::new(extents[1]),
            tasks: spec.tasks,
            ticket: order.ticket,
            blocks: order.blocks,
            amortize,
            pace,
            share_bits: share_bits(order.workers),
            crowd,
            handed: order.handed,
            is_first: order.is_first,
            slot: order.slot,
            barrier: true,
        };
        backend.launch(order.op, order.queue, grid, cohort)?;
        self.cohorts.push(Out { order, post, launched: now, told: None });
        Ok(())
    }

    fn control(&mut self, index: ControlIndex) -> Result<ControlMemory, Error> {
        while self.controls.len() <= index as usize {
            self.controls.push(self.device.inner.backend.new_control()?);
        }
        Ok(self.controls[index as usize])
    }

    fn finish(&mut self, op: OpKey, outcome: Outcome) {
        let Some(InWork { job, fault, is_done, .. }) = self.jobs.get_mut(op) else { return };
        *is_done = matches!(outcome, Outcome::Done(_));
        if matches!(outcome, Outcome::Failed | Outcome::InputLost { .. } | Outcome::NotAdmitted) {
            let written = job.uses.iter().filter(|used| used.access == Access::Write);
            let own = |buffer: &BufferId| matches!(buffer, BufferId::Own(_));
            let written = written.map(|used| used.buffer).filter(own);
            // With each loss what is gone since the last one: so the engine remembers no more than that.
            for gone in self.device.inner.allocations.lose(written) {
                self.engine.forget(gone);
            }
        }
        let kernel = job.name;
        let tasks = match &job.work {
            Work::Launch { spec, .. } => spec.tasks,
            _ => 0,
        };
        let is_over = match &job.work {
            Work::ExternalOperation(external) => external.end().is_some(),
            _ => true,
        };
        let result = match outcome {
            Outcome::Done(_) if !is_over => {
                Err(Error::Launch(LaunchError::SchedulerDropped { done: 0, tasks }))
            }
            Outcome::Done(report) => Ok(report),
            Outcome::NotAdmitted => {
                let policy = self.engine.policy_name().into();
                Err(Error::Launch(LaunchError::NotAdmitted { kernel, policy }))
            }
            Outcome::Cancelled { done } => {
                Err(Error::Launch(LaunchError::Cancelled { done, tasks }))
            }
            Outcome::Closed { done } => {
                Err(Error::Launch(LaunchError::SchedulerDropped { done, tasks }))
            }
            Outcome::InputLost { kernel } => Err(Error::Launch(LaunchError::InputLost { kernel })),
            Outcome::Failed if self.lost.is_some() => {
                let message = self.lost.clone().unwrap_or_default();
                Err(Error::Device(DeviceError::ContextLost { message }))
            }
            Outcome::Failed => {
                let message = fault.take().unwrap_or_else(|| "for an unknown reason".into());
                Err(Error::Launch(LaunchError::KernelFailed { kernel, message }))
            }
        };
        // At once: those who spin need not wait until others have got what they waited for.
        self.news.wakers.extend(job.completion.complete(result));
    }
}
