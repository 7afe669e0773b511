//! The same jobs in virtual time, where preemption is free.

use std::time::Duration;

use anyhow::Result;
use preempt::policy::Policy;
use preempt::sim::{Costs, KernelModel, Machine};

use super::simulate;

/// SMs of the model, and block-tasks of each job: enough of both that rounding loses nothing.
const SMS: u32 = 132;
const TASKS: u32 = 1 << 20;

/// A job of a single launch that fills the device.
#[derive(Clone, Copy, Debug)]
pub struct IdealJob {
    /// The time of its arrival.
    pub at: Duration,
    /// The time that it takes alone.
    pub alone: Duration,
    /// The priority of its stream.
    pub priority: i32,
}

/// The turnaround of each job if launching and preempting take no time, which bounds what the policy can reach.
///
/// # Errors
///
/// Errors of the simulation.
pub fn ceiling(policy: Box<dyn Policy>, jobs: &[IdealJob]) -> Result<Vec<Duration>> {
    let program = |&IdealJob { at, alone, priority }: &IdealJob| {
        ([KernelModel::new("job", alone, TASKS)], at, priority)
    };
    let programs: Vec<_> = jobs.iter().map(program).collect();
    Ok(simulate(Machine::new(SMS, Costs::free()), policy, &programs)?.turnaround)
}

#[cfg(test)]
mod tests {
    use preempt::policy::{Fifo, StaticPriority};

    use super::*;

    #[test]
    fn what_is_urgent_takes_as_long_as_alone() {
        let ms = Duration::from_millis;
        let jobs = [
            IdealJob { at: ms(0), alone: ms(10), priority: 0 },
            IdealJob { at: ms(1), alone: ms(2), priority: 1 },
            IdealJob { at: ms(4), alone: ms(1), priority: 0 },
        ];
        let close = |found: Vec<Duration>, expected: [u64; 3]| {
            found
                .iter()
                .zip(expected)
                .all(|(&found, expected)| found.abs_diff(ms(expected)) < Duration::from_micros(5))
        };
        let found = ceiling(Box::new(StaticPriority::new()), &jobs).expect("simulated");
        assert!(close(found.clone(), [12, 2, 9]), "{found:?}");
        let found = ceiling(Box::new(Fifo::new()), &jobs).expect("simulated");
        assert!(close(found.clone(), [10, 11, 9]), "{found:?}");
    }
}
