//! The same jobs in virtual time, where preemption is free.

use std::time::Duration;

use anyhow::Result;
use preempt::policy::Policy;
use preempt::sim::{Costs, KernelModel, Machine};

use super::simulate;

/// The SMs of the model, and the block-tasks of each job: enough of both that nothing is lost to rounding.
const SMS: u32 = 132;
const TASKS: u32 = 1 << 20;

/// What the policy reaches at most: the turnaround of each job, which is a launch that fills the device, if
/// launching and preempting take no time. Of each, when it comes, what it takes alone, and its priority.
///
/// # Errors
///
/// What the simulation says.
pub fn ceiling(
    policy: Box<dyn Policy>,
    jobs: &[(Duration, Duration, i32)],
) -> Result<Vec<Duration>> {
    let program = |&(at, alone, priority): &(Duration, Duration, i32)| {
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
        let jobs = [(ms(0), ms(10), 0), (ms(1), ms(2), 1), (ms(4), ms(1), 0)];
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
