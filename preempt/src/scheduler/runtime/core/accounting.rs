//! Accounting: what the core records for accounts and timeline, and for the predictor.

use std::time::Duration;

use preempt_device::host::Preemption;

use super::{Core, InCall, InWork, Job, Work};
use crate::engine::{LaunchReport, Outcome};
use crate::scheduler::estimated::forecast::Ended;
use crate::scheduler::observed::accounts::LaunchEntry;
use crate::scheduler::observed::stats::Stats;
use crate::scheduler::observed::trace::Trace;
use crate::vocabulary::OpKey;

impl Core {
    /// Statistics since the scheduler was built.
    pub fn stats(&self) -> Stats {
        let now = self.start.elapsed();
        Stats { overdue: self.overdue(now), ..self.accounts.stats(now, self.entries()) }
    }

    /// The timeline, if it is kept.
    pub fn trace(&self) -> Option<Trace> {
        self.accounts.trace(self.start.elapsed(), self.entries())
    }

    fn entries(&self) -> impl Iterator<Item = &LaunchEntry> {
        self.jobs.values().filter_map(|work| work.entry.as_ref())
    }

    /// Records the SMs that launches got and lost, before a launch's end is reported.
    pub(super) fn account(&mut self) {
        for grant in self.engine.grants().drain(..) {
            let call = self.calls.get(grant.op);
            let op = call.map_or(grant.op, |call| call.program);
            if let Some(InWork { entry: Some(entry), .. }) = self.jobs.get_mut(op) {
                self.accounts.granted(entry, grant);
            }
        }
    }

    /// Records that a call of a program has ended: for the predictor and the choice of forms, it is a launch.
    pub(super) fn finish_call(&mut self, op: OpKey, outcome: Outcome) {
        let Some(call) = self.calls.get_mut(op) else { return };
        let Outcome::Done(LaunchReport { own_time: took, has_shared, .. }) = outcome else {
            return;
        };
        call.is_done = true;
        let InCall { program, index, predicted, waited, .. } = *call;
        let Some(InWork { job: Job { stream, work: Work::Program(of), .. }, .. }) =
            self.jobs.get(program)
        else {
            return;
        };
        let Some(launch) = of.kernel(index) else { return };
        if of.preemption == Preemption::Auto {
            self.estimates.looped(launch.kernel);
        }
        let (stream, launch) = (*stream, launch.features(launch.tasks()));
        if !has_shared {
            self.ended.push(Ended { stream, is_program: false, launch, predicted, took, waited });
        }
    }

    /// Records the end of a launch and, for the predictor, its time where that is known.
    pub(super) fn learn(&mut self, now: Duration, op: OpKey, outcome: Outcome) {
        let Some(InWork { job: Job { stream, work, .. }, waited, entry: Some(entry), .. }) =
            self.jobs.get(op)
        else {
            return;
        };
        if let Work::Launch { launch, preemption: Preemption::Auto, .. } = work
            && let Outcome::Done(LaunchReport { plain: false, .. }) = outcome
        {
            self.estimates.looped(launch.kernel);
        }
        let took = match outcome {
            Outcome::Done(report @ LaunchReport { own_time, plain, .. }) => {
                // Blocks of a plain grid run wherever there is room. So its SMs tell its time only if they were all
                // that it can use, from its start to its end.
                let is_whole = !plain || own_time >= report.running();
                (is_whole && !report.has_shared).then_some(own_time)
            }
            _ => None,
        };
        self.accounts.finished(now, entry, outcome, took);
        if let Some(took) = took {
            let launch = match work {
                Work::Launch { launch, spec, .. } => launch.features(spec.tasks),
                Work::Program(program) => program.features(),
                _ => return,
            };
            let (stream, predicted, waited) = (*stream, entry.predicted, *waited);
            // Its calls are launches of the stream already.
            let is_program = matches!(work, Work::Program(program) if !program.plain);
            self.ended.push(Ended { stream, is_program, launch, predicted, took, waited });
        }
    }
}
