//! A kernel that counts, launched again and again.

use anyhow::Result;
use preempt::{Buffer, Call, Handle, LaunchReport, NoGrid, Scheduler, Stream};
use preempt_test_kit::storm::Tally;

/// Counters that each launch of a kernel adds 1 to, one for each block-task.
pub struct Counted {
    name: &'static str,
    counts: Buffer<u32>,
    launches: u32,
}

impl Counted {
    /// Counters for a grid of `tasks` block-tasks.
    pub fn new(name: &'static str, scheduler: &Scheduler, tasks: u32) -> Result<Counted> {
        Ok(Counted { name, counts: scheduler.zeroed(tasks as usize)?, launches: 0 })
    }

    /// Launches what `call` makes of the counters, with a block-task for each.
    pub fn launch(
        &mut self,
        stream: &Stream,
        call: impl FnOnce(&mut Buffer<u32>) -> Call<'static, NoGrid>,
    ) -> Result<Handle<LaunchReport>> {
        let tasks = self.counts.len() as u32;
        self.launches += 1;
        Ok(stream.launch(call(&mut self.counts).grid(tasks).block(1))?)
    }

    /// Waits for all launches, and adds them and what they counted to the tally.
    pub fn check(&self, stream: &Stream, tally: &mut Tally) -> Result<()> {
        let found = stream.download(&self.counts)?.wait()?;
        tally.kernels += u64::from(self.launches);
        tally.block_tasks += found.iter().copied().map(u64::from).sum::<u64>();
        tally.count(self.name, &found, &vec![self.launches; found.len()]);
        Ok(())
    }
}
