//! Requests of a few blocks, by the driver or by a scheduler.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use preempt::Buffer;
use preempt_driver::{Launch, Pinned, Stream};
use preempt_microkernels::answer;
use preempt_test_kit::Random;

use super::cuda::spin_until;
use super::random_time;
use crate::samples::Samples;

/// Blocks of a request, of 1024 threads.
pub const BLOCKS: u32 = 8;

/// A request comes at most so long after the one before is answered.
pub const GAP: Duration = Duration::from_millis(4);

/// Requests, one way or the other.
pub enum Requests<'a> {
    Raw { launch: &'a Launch, stream: Stream, done: &'a mut Pinned<u32> },
    Ours { stream: preempt::Stream, done: &'a mut Buffer<u32> },
}

impl Requests<'_> {
    /// The time from a request to its answer.
    pub fn request(&mut self) -> Result<Duration> {
        match self {
            Requests::Raw { launch, stream, done } => {
                (0..BLOCKS as usize).for_each(|block| done.set(block, 0));
                let start = Instant::now();
                // SAFETY: no other work uses what it writes.
                unsafe { launch.on(stream)? };
                spin_until(|| Ok((0..BLOCKS as usize).all(|block| done.get(block) == 1)))?;
                let time = start.elapsed();
                stream.synchronize()?;
                Ok(time)
            }
            Requests::Ours { stream, done } => {
                let call = answer(1, &mut **done).grid(BLOCKS);
                let start = Instant::now();
                stream.launch(call)?.wait()?;
                Ok(start.elapsed())
            }
        }
    }

    /// The times of `count` requests, at random moments.
    pub fn some(&mut self, count: u32, random: &mut Random) -> Result<Samples> {
        let mut times = Samples::default();
        for _ in 0..count {
            thread::sleep(random_time(random, GAP));
            times.push(self.request()?);
        }
        Ok(times)
    }
}
