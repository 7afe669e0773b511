//! Carries out the engine's actions on the device, and reports to waiting threads.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use preempt_device::host::{Access, Idempotence};

use super::{Core, InCall, InWork, Job, Work};
use crate::device::{Gate, Step, shown_by};
use crate::engine::{Action, Event, LaunchReport, Outcome};
use crate::error::{DeviceError, Error, LaunchError};
use crate::vocabulary::{BufferId, CohortOrder, OpKey};

impl Core {
    pub(super) fn fault(&mut self, now: Duration, op: OpKey, message: Arc<str>) {
        let (reported, message) = self.blamed(op, &message);
        if let Some(work) = self.jobs.get_mut(reported) {
            work.fault.get_or_insert(message);
        }
        self.engine.handle(now, Event::Fault { op }, &mut self.actions);
    }

    /// Carries out the engine's actions, and those that follow from them.
    pub(super) fn act(&mut self, now: Duration) {
        self.account();
        while !self.actions.is_empty() {
            let mut actions = std::mem::take(&mut self.actions);
            let mut rest = actions.drain(..).peekable();
            while let Some(action) = rest.next() {
                match action {
                    Action::Launch(order) => {
                        let mut orders = std::mem::take(&mut self.orders);
                        orders.push(order);
                        let chain = self.chain(&order);
                        let goes_on = |action: &Action| match action {
                            Action::Launch(next) => next.queue == order.queue,
                            _ => false,
                        };
                        // The engine orders a chain as a whole, or only the beginning of it.
                        while orders.len() < chain.len()
                            && let Some(Action::Launch(next)) = rest.next_if(goes_on)
                        {
                            orders.push(next);
                        }
                        self.launch_all(now, &orders, chain);
                        orders.clear();
                        self.orders = orders;
                    }
                    Action::Signal { queue, signal } => {
                        self.session.signal(now, queue, signal);
                    }
                    Action::Copy { op } => self.start(now, op),
                    Action::Disarm { op } => self.disarm(now, op),
                    Action::Finish { op, outcome } if !self.jobs.contains_key(op) => {
                        self.finish_call(op, outcome);
                    }
                    Action::Finish { op, outcome } => {
                        let outcome = match self.jobs.get(op).map(|work| &work.job.work) {
                            Some(Work::Program(program)) => program.counted(outcome),
                            _ => outcome,
                        };
                        self.learn(now, op, outcome);
                        self.finish(op, outcome);
                    }
                    Action::Retire { op } if !self.jobs.contains_key(op) => {
                        let call = self.calls.remove(op);
                        self.session.retire(op, call.is_some_and(|call| call.is_done));
                    }
                    Action::Retire { op } => {
                        let Some(work) = self.jobs.remove(op) else { continue };
                        self.session.retire(op, work.is_done);
                        self.news.retired.push(work.job);
                    }
                }
            }
            drop(rest);
            self.account();
            if self.actions.is_empty() {
                self.actions = actions;
            }
        }
        self.forecast.learn(&mut self.ended);
    }

    /// Starts an operation that is no launch.
    fn start(&mut self, now: Duration, op: OpKey) {
        if let Some(&InCall { program, index, .. }) = self.calls.get(op) {
            let program = self.program(program).map(|of| of.program.clone());
            if let Some(Step::Copy(copy)) = program.as_ref().map(|of| &of.steps[index]) {
                self.session.copy(op, copy);
            }
            return;
        }
        match self.jobs.get_mut(op).map(|work| &mut work.job.work) {
            Some(Work::Copy(copy)) => self.session.copy(op, copy),
            Some(Work::ExternalOperation(external)) => {
                external.start();
                self.externals.push((op, external.clone()));
            }
            Some(Work::Event { .. }) => {
                self.engine.handle(now, Event::CopyDone { op }, &mut self.actions);
            }
            Some(Work::Opaque(job)) => {
                if self.session.has_no_cohorts() {
                    // Loading may wait for all that runs, the device's own blocks included.
                    self.session.rest();
                }
                if !job.start(op) {
                    self.fault(now, op, "its thread has ended".into());
                    self.engine.handle(now, Event::CopyDone { op }, &mut self.actions);
                }
            }
            Some(Work::Launch { .. } | Work::Program(_)) | None => {}
        }
    }

    /// The calls that the device takes together if they are all ordered, this one first; none if it takes it by itself.
    fn chain(&self, order: &CohortOrder) -> Range<usize> {
        let Some(&InCall { program, index, .. }) = self.calls.get(order.op) else { return 0..0 };
        let chain = self.program(program).and_then(|of| of.chain(index));
        // The first call of a part of the program may be in a queue of its own, in another cohort.
        chain.filter(|_| order.after.is_some()).cloned().unwrap_or(0..0)
    }

    /// Launches what was ordered, together if it is the whole chain.
    fn launch_all(&mut self, now: Duration, orders: &[CohortOrder], chain: Range<usize>) {
        if orders.len() == chain.len() && self.launch_chain(now, orders, chain.start).is_ok() {
            return;
        }
        // The device may have refused the chain, for want of memory or because it has the chain in another queue, and take
        // each by itself. If it does not, it says of which call that is.
        for order in orders {
            match self.launch(now, order) {
                // The device will report the loss, which ends this launch with all others.
                Ok(()) | Err(Error::Device(DeviceError::ContextLost { .. })) => {}
                Err(error) => {
                    let &CohortOrder { op, slot, gated, .. } = order;
                    if !gated {
                        self.fault(now, op, error.to_string().into());
                    }
                    let out = Event::Refused { op, slot };
                    self.engine.handle(now, out, &mut self.actions);
                    if gated {
                        // If it was released, it is launched without a gate, and fails then if it does.
                        self.disarm(now, op);
                    }
                }
            }
        }
    }

    fn launch_chain(
        &mut self,
        now: Duration,
        orders: &[CohortOrder],
        first: usize,
    ) -> Result<(), Error> {
        let call = orders.first().and_then(|order| self.calls.get(order.op));
        let Some(of) = call.and_then(|call| self.program(call.program)) else { return Ok(()) };
        let program = of.program.clone();
        let predicted = orders.iter().map(|order| self.calls.get(order.op)?.predicted);
        let calls = program.steps.iter().skip(first).take(orders.len());
        let leave_place = calls.clone().all(|step| match step {
            Step::Launch { launch, .. } => launch.leaves_place,
            Step::Copy(_) | Step::Captured(_) => true,
        });
        let stream = orders.first().map_or(0, |order| self.stream_of(order));
        let are_long = predicted.clone().any(|predicted| self.is_long(predicted, stream));
        self.session.expect_signals(leave_place, are_long)?;
        let shown_by = shown_by(predicted, self.costs.absence);
        self.session.launch_chain(now, orders, &program, (first, &shown_by))?;
        orders.iter().for_each(|order| self.note_wait(order));
        Ok(())
    }

    /// Notes whether a launch has to wait for blocks of others to leave.
    fn note_wait(&mut self, order: &CohortOrder) {
        let waits = order.queue >= self.device.inner.capabilities.queues.normal;
        if let Some(InCall { waited, .. }) = self.calls.get_mut(order.op) {
            *waited |= waits;
        }
        let op = self.calls.get(order.op).map_or(order.op, |call| call.program);
        if let Some(InWork { waited, .. }) = self.jobs.get_mut(op) {
            // A program has waited if a call of it has.
            *waited |= waits;
        }
    }

    /// The stream of the launch, or of the program, that an order is for.
    fn stream_of(&self, order: &CohortOrder) -> u32 {
        let op = self.calls.get(order.op).map_or(order.op, |call| call.program);
        self.jobs.get(op).map_or(0, |work| work.job.stream)
    }

    /// Whether a launch waits for the path of its signals. What is not known to be short may be long.
    ///
    /// Where another stream has had a latency limit, or the policy has one, it waits if that costs it a tenth, not a hundredth: how
    /// much of the limit is left counts from the signal's arrival, which is known on that path alone.
    fn is_long(&self, predicted: Option<Duration>, stream: u32) -> bool {
        predicted.is_none_or(|predicted| {
            let has_limits = || self.limited.has_others(stream) || self.engine.policy_limits();
            self.costs.can_wait(predicted) || self.costs.is_long(predicted) && has_limits()
        })
    }

    fn launch(&mut self, now: Duration, order: &CohortOrder) -> Result<(), Error> {
        self.note_wait(order);
        if order.gated
            && let Some((op, _)) = self.armed(order.op)
        {
            self.armed.push_back((now.saturating_add(self.armed_for), op));
        }
        let call = self.calls.get(order.op).copied();
        let op = call.map_or(order.op, |call| call.program);
        if let Some((launch, _)) = self.kernel(order.op).filter(|_| !order.plain) {
            let entry = self.jobs.get(op).and_then(|work| work.entry.as_ref());
            let whole = entry.and_then(|entry| entry.predicted);
            let stream = self.stream_of(order);
            let is_long = self.is_long(call.map_or(whole, |call| call.predicted), stream);
            self.session.expect_signals(launch.leaves_place, is_long)?;
        }
        let Some(InWork { job: Job { work, .. }, .. }) = self.jobs.get(op) else {
            return Ok(());
        };
        match (work, call) {
            (Work::Launch { launch, .. }, _) => self.session.launch(now, order, launch),
            (Work::Program(program), Some(InCall { index, .. })) => {
                let launched =
                    match (program.kernel(index), &program.alone[index], program.specs[index]) {
                        (Some(launch), ..) => self.session.launch(now, order, launch),
                        (None, Some(alone), Some(spec)) => {
                            self.session.launch_program(now, order, alone, spec.tasks)
                        }
                        _ => Ok(()),
                    };
                if let Some(armed) = program.armed.as_ref().filter(|_| order.gated)
                    && launched.is_ok()
                {
                    armed.has_gate(Gate::of(order));
                }
                launched
            }
            (Work::Program(whole), None) => {
                self.session.launch_program(now, order, &whole.program, whole.spec.tasks)
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, op: OpKey, outcome: Outcome) {
        let Some(InWork { job, fault, is_done, .. }) = self.jobs.get_mut(op) else { return };
        *is_done = matches!(outcome, Outcome::Done(_));
        if matches!(outcome, Outcome::Failed | Outcome::InputLost { .. } | Outcome::NotAdmitted) {
            let written = job.uses.iter().filter(|used| used.access == Access::Write);
            let own = |buffer: &BufferId| matches!(buffer, BufferId::Own(_));
            let written = written.map(|used| used.buffer).filter(own);
            // Each loss also returns the buffers freed since the last loss, so the engine remembers no more than that.
            for gone in self.device.inner.allocations.lose(written) {
                self.engine.forget(gone);
            }
        }
        let kernel = job.name;
        let tasks = match &job.work {
            Work::Launch { spec, .. } => spec.tasks,
            Work::Program(whole) => whole.program.tasks(),
            _ => 0,
        };
        let idempotence = match &job.work {
            Work::Launch { launch, .. } => launch.kernel.idempotence,
            _ => Idempotence::NotNeeded,
        };
        let is_over = match &job.work {
            Work::ExternalOperation(external) => external.end().is_some(),
            _ => true,
        };
        let result = match outcome {
            Outcome::Done(_) if !is_over => {
                Err(Error::Launch(LaunchError::SchedulerDropped { done: 0, tasks }))
            }
            Outcome::Done(report) => Ok(LaunchReport { idempotence, ..report }),
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
            Outcome::Failed if self.lost.is_some() && self.panicked != Some(op) => {
                let message = self.lost.clone().unwrap_or_default();
                Err(Error::Device(DeviceError::ContextLost { message }))
            }
            Outcome::Failed => {
                let message = fault.take().unwrap_or_else(|| "for an unknown reason".into());
                Err(Error::Launch(LaunchError::KernelFailed { kernel, message }))
            }
        };
        // At once, so that spinning threads need not wait for other operations' ends.
        self.news.wakers.extend(job.completion.complete(result));
    }
}
