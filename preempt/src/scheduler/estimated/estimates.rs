//! How long launches take, for launches whose preemption is `Auto`.

use std::time::Duration;

use preempt_device::host::Kernel;
use rustc_hash::FxHashMap;

/// Time of a launch, as the host sees it, below which it ends before it could be interrupted. On an H200 about 8 µs go
/// to the launch itself, and from the signal to the last block out it takes 12 µs.
const SHORT: Duration = Duration::from_micros(20);

/// Launches, at most, that are remembered; beyond that, all are forgotten.
const MOST: usize = 4096;

/// Weight of the last launch in the mean, 0 to 1.
const WEIGHT: f32 = 0.25;

/// Times of whole launches, in seconds, by kernel and number of block-tasks.
#[derive(Debug, Default)]
pub(in crate::scheduler) struct Estimates(FxHashMap<(usize, u32), f32>);

fn key(kernel: &'static Kernel, tasks: u32) -> (usize, u32) {
    (std::ptr::from_ref(kernel).addr(), tasks)
}

impl Estimates {
    /// Records the time of an uninterrupted launch that did not wait for others: from the call to the host's knowledge
    /// of its end.
    pub fn record(&mut self, kernel: &'static Kernel, tasks: u32, took: Duration) {
        let took = took.as_secs_f32();
        if self.0.len() >= MOST {
            self.0.clear();
        }
        let mean = self.0.entry(key(kernel, tasks)).or_insert(took);
        *mean += WEIGHT * (took - *mean);
    }

    /// Whether such a launch ends before it could be interrupted; `false` without a record.
    pub fn is_short(&self, kernel: &'static Kernel, tasks: u32) -> bool {
        self.0.get(&key(kernel, tasks)).is_some_and(|&mean| mean < SHORT.as_secs_f32())
    }
}

#[cfg(test)]
mod tests {
    use preempt_device::prelude::*;

    use super::*;

    #[preemptible]
    fn nothing() {}

    #[preemptible]
    fn nothing_else() {}

    #[test]
    fn a_launch_is_short_if_the_last_ones_were() {
        let (kernel, other) = (nothing().kernel(), nothing_else().kernel());
        let mut estimates = Estimates::default();
        assert!(!estimates.is_short(kernel, 8), "no launch was recorded");
        estimates.record(kernel, 8, Duration::from_micros(12));
        assert!(estimates.is_short(kernel, 8));
        assert!(!estimates.is_short(kernel, 9) && !estimates.is_short(other, 8));
        for _ in 0..8 {
            estimates.record(kernel, 8, Duration::from_micros(100));
        }
        assert!(!estimates.is_short(kernel, 8), "it takes longer now");
    }

    #[test]
    fn the_number_of_remembered_launches_is_bounded() {
        let mut estimates = Estimates::default();
        for tasks in 0..3 * MOST as u32 {
            estimates.record(nothing().kernel(), tasks, Duration::ZERO);
        }
        assert!(estimates.0.len() <= MOST);
    }
}
