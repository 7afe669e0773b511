//! Experiments that only a GPU can run: comparisons with raw driver calls, which use nothing of preempt but the
//! kernels.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use preempt_driver::{Event, Stream};
use preempt_microkernels::mark;
use preempt_test_kit::storm::Tally;

use super::KERNELS;

mod beside;
mod guard;
pub mod latency;
pub mod launch;
pub mod overhead;
mod raw_arms;
mod subject;

/// The longest that anything here may take before it counts as hung.
const LIMIT: Duration = Duration::from_secs(10);

/// The PTX of the kernels.
fn ptx() -> Result<&'static str> {
    KERNELS.ptx().context("this build found no compiler for PTX, so it has no kernels for a GPU")
}

/// Spins until `is_done`.
pub fn spin_until(mut is_done: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !is_done()? {
        ensure!(start.elapsed() < LIMIT, "a kernel has not ended within {LIMIT:?}");
        std::hint::spin_loop();
    }
    Ok(())
}

/// What was submitted to a stream and is not known to be over, an event for each.
#[derive(Default)]
pub struct Submitted(VecDeque<Event>);

impl Submitted {
    /// Notes what was submitted to the stream last.
    pub fn push(&mut self, stream: &Stream) -> Result<()> {
        let event = Event::new()?;
        stream.record(&event)?;
        self.0.push_back(event);
        Ok(())
    }

    /// Takes out what is over, in order; how many that are.
    pub fn ended(&mut self) -> Result<u32> {
        let mut ended = 0;
        while let Some(first) = self.0.front()
            && first.is_over()?
        {
            self.0.pop_front();
            ended += 1;
        }
        Ok(ended)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Compares the results of `spin` or `spin_yielding` with the reported number of block-tasks that are done. The latter
/// counts starts, and may contain the mark of a block-task that other threads requeued.
fn check_spins(
    tally: &mut Tally,
    what: &str,
    (runs, marks): (&[u32], &[u32]),
    done: u32,
    yields: bool,
) {
    tally.kernels += 1;
    tally.block_tasks += u64::from(done);
    let expected = |(task, &found): (usize, &u32)| if found == 0 { 0 } else { mark(task as u32) };
    let expected: Vec<u32> = marks.iter().enumerate().map(expected).collect();
    tally.compare(what, marks, &expected);
    let ran = marks.iter().filter(|&&mark| mark != 0).count() as u32;
    let ran = if yields { ran.min(done) } else { ran };
    tally.count(&format!("{what}, block-tasks in all"), &[ran], &[done]);
    if !yields {
        let once: Vec<u32> = marks.iter().map(|&mark| u32::from(mark != 0)).collect();
        tally.count(&format!("{what}, runs"), runs, &once);
    }
}
