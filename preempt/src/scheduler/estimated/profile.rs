//! Profiling runs for a predictor.

use preempt_device::host::Call;

use super::forecast::features;
use crate::engine::fills;
use crate::error::Error;
use crate::predict::{Features, Run};
use crate::scheduler::{Scheduler, Shape};

impl Scheduler {
    /// The features of a launch, as a [`Predictor`](crate::predict::Predictor) gets them before it runs.
    ///
    /// # Errors
    ///
    /// What is wrong with the grid, the block or the kernel's demands.
    pub fn features(&self, call: &Call<'static>) -> Result<Features<'static>, Error> {
        let Shape { tasks, block, .. } = Shape::of(call, self.device())?;
        Ok(features(call.kernel(), call.args(), tasks, block))
    }

    /// Runs each of `calls` once, one after the other. Returns the time of each with as many SMs as it can fill: from
    /// its launch until the scheduler has found it done.
    ///
    /// Nothing else should use the device meanwhile. The first launch of a kernel may have to load it, and finds cold
    /// caches: run it once before. The launches go through a stream of priority 0, and this thread waits for them.
    ///
    /// # Errors
    ///
    /// The errors of [`Stream::launch`](crate::Stream::launch), and those of the launches themselves.
    pub fn profile(
        &self,
        calls: impl IntoIterator<Item = Call<'static>>,
    ) -> Result<Vec<Run<'static>>, Error> {
        let (stream, sms) = (self.stream(0), self.device().properties().sms);
        let profile = |call: Call<'static>| {
            let shape = Shape::of(&call, self.device())?;
            let launch = features(call.kernel(), call.args(), shape.tasks, shape.block);
            let report = stream.launch(call)?.wait()?;
            let fills = fills(shape.tasks, sms);
            Ok(Run { launch, took: report.sm_time / fills })
        };
        calls.into_iter().map(profile).collect()
    }
}
