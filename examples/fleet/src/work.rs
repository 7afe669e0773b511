//! What the tasks compute: on a device of a pool, and once more on the host.

use anyhow::{Context, Result, ensure};
use preempt::pool::{Class, Task};
use preempt::prelude::*;
use serde::{Deserialize, Serialize};

/// `y[i] = a * y[i] + x[i]`
#[preemptible(block = 128)]
fn step(a: u32, x: &[u32], y: PerThread<u32>) {
    if let Some(own) = y.own() {
        own.set(own.get().wrapping_mul(a).wrapping_add(x[own.index()]));
    }
}

/// The largest task that a process takes: 4 MB in each of two buffers.
const LARGEST: u32 = 1 << 20;

/// The most steps that a process takes, so that no message keeps a device for hours.
const MOST_ROUNDS: u32 = 10_000;

/// A task, as a message of the queue has it.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Parameters {
    pub id: u32,
    a: u32,
    len: u32,
    rounds: u32,
}

/// A result, as a message of the queue has it.
#[derive(Serialize, Deserialize)]
pub struct Answer {
    pub id: u32,
    pub sum: u32,
    /// The process that gave it.
    pub process: String,
    /// Which delivery of the task it came from, from 1 on.
    pub delivery: i64,
}

impl Parameters {
    /// The task of an id: every second one is a batch task, some twenty times as long as a user's.
    pub fn of(id: u32) -> (Class, Parameters) {
        let a = id.wrapping_mul(2).wrapping_add(3);
        match id % 2 {
            0 => (Class::Batch, Parameters { id, a, len: 1 << 15, rounds: 50 }),
            _ => (Class::UserFacing, Parameters { id, a, len: 1 << 12, rounds: 20 }),
        }
    }

    /// Reads a message, which may be of any program.
    pub fn read(message: &[u8]) -> Result<Parameters> {
        let read: Parameters = serde_json::from_slice(message)
            .context("a message is no task: submit tasks with `fleet submit`")?;
        let Parameters { id, len, rounds, .. } = read;
        ensure!(
            (1..=LARGEST).contains(&len) && rounds <= MOST_ROUNDS,
            "task {id} is too large: at most {LARGEST} elements and {MOST_ROUNDS} rounds"
        );
        Ok(read)
    }

    fn x(self) -> Vec<u32> {
        (0..self.len).map(|i| i ^ self.id).collect()
    }

    /// The task, for a pool.
    pub fn task(self) -> Task<u32> {
        Task::new(format!("task {}", self.id), move |run| {
            let x = run.buffer(&self.x())?;
            let mut y = run.zeroed::<u32>(self.len as usize)?;
            for _ in 0..self.rounds {
                run.launch(step(self.a, &x, &mut y).threads(self.len))?;
            }
            Ok(sum(&run.download(&y)?))
        })
    }

    /// What the task gives, computed on the host.
    pub fn expected(self) -> u32 {
        let x = self.x();
        let mut y = vec![0; x.len()];
        for _ in 0..self.rounds {
            for (y, &x) in y.iter_mut().zip(&x) {
                *y = u32::wrapping_add(u32::wrapping_mul(*y, self.a), x);
            }
        }
        sum(&y)
    }
}

/// One number for a vector, which an element at another place changes.
fn sum(y: &[u32]) -> u32 {
    y.iter().fold(0, |sum: u32, &y| sum.wrapping_mul(31).wrapping_add(y))
}
