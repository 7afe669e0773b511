//! What was seen of each kernel: how long its launches take to stop, and in which form they are faster.

use std::time::Duration;

use preempt_device::host::Kernel;
use rustc_hash::FxHashMap;

use super::mean::Mean;
use crate::engine::Learned;

/// Launches of one size that are remembered, at most; beyond that, all sizes are forgotten.
const MOST: usize = 4096;

/// Launches of a form: how many are seen before the form counts as known. The first of a process is slow, because its
/// code and data are in no cache.
const ENOUGH: u32 = 3;

/// Hardware stops that are seen before they count more than what blocks are expected to take.
const STOPS: f64 = 3.0;

/// Times of stops, and of whole launches whose preemption is `Auto`.
///
/// What a launch will take is the predictor's to say, and is not asked for here. The two forms of a kernel are compared by
/// their shortest launches of one size: they differ by percents, and a mean by what ran beside each launch.
#[derive(Debug)]
pub(in crate::scheduler) struct Estimates {
    /// Time that a launch takes to stop, assumed until a launch of the same kernel was seen to stop.
    first_stop: Duration,
    /// By kernel and number of block-tasks: the two forms, preemptible first.
    sizes: FxHashMap<(usize, u32), [Seen; 2]>,
    /// By kernel.
    kernels: FxHashMap<usize, OfKernel>,
}

/// Launches of one size, in one form.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    count: u32,
    /// The shortest of them: others may have taken longer because of what ran beside them.
    shortest: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct OfKernel {
    /// Preemptible launches.
    loops: u32,
    loop_to_plain: Option<f64>,
    /// Times from the signal until a launch's last block is out.
    stop: Mean,
    /// Parts of block-tasks that were done where blocks had to leave, and are done again.
    dropped: Mean,
    /// Times until the hardware has given the SMs of a plain grid to another launch.
    hardware_stop: Mean,
}

/// The part of a block-task that is done where a block is stopped at a random moment.
const UNSEEN: f64 = 0.5;

fn key(kernel: &'static Kernel) -> usize {
    std::ptr::from_ref(kernel).addr()
}

impl Estimates {
    pub fn new(first_stop: Duration) -> Estimates {
        let (sizes, kernels) = (FxHashMap::default(), FxHashMap::default());
        Estimates { first_stop, sizes, kernels }
    }

    /// Records the time of a launch of one cohort that had not to wait for the one before it: from the call to the
    /// host's knowledge of its end.
    pub fn record(&mut self, kernel: &'static Kernel, tasks: u32, plain: bool, took: Duration) {
        if self.sizes.len() >= MOST {
            self.sizes.clear();
        }
        let forms = self.sizes.entry((key(kernel), tasks)).or_default();
        let seen = &mut forms[usize::from(plain)];
        seen.shortest = if seen.count == 0 { took } else { seen.shortest.min(took) };
        seen.count = seen.count.saturating_add(1);
        if forms.iter().all(|seen| seen.count >= ENOUGH && !seen.shortest.is_zero()) {
            let [in_loop, plain] = forms.map(|seen| seen.shortest);
            let of = self.kernels.entry(key(kernel)).or_default();
            of.loop_to_plain = Some(in_loop.div_duration_f64(plain));
        }
    }

    /// Records that a preemptible launch is done, interrupted or not.
    pub fn looped(&mut self, kernel: &'static Kernel) {
        let loops = &mut self.kernels.entry(key(kernel)).or_default().loops;
        *loops = loops.saturating_add(1);
    }

    /// Time from the signal until a launch's last block is out: the mean of those seen.
    pub fn stop(&self, kernel: &'static Kernel) -> Duration {
        let mean = self.kernels.get(&key(kernel)).and_then(|of| of.stop.of_at_least(1.0));
        mean.unwrap_or(self.first_stop)
    }

    /// Records the time from the signal until a launch's blocks have left.
    pub fn stopped(&mut self, kernel: &'static Kernel, took: Duration) {
        self.kernels.entry(key(kernel)).or_default().stop.add(took);
    }

    /// The part of a block-task that is done again where a block has to leave: the mean of those seen, and of one half, which
    /// it is where a block is as likely to be stopped at any moment.
    pub fn dropped(&self, kernel: &'static Kernel) -> f64 {
        self.kernels.get(&key(kernel)).map_or(UNSEEN, |of| of.dropped.with(UNSEEN))
    }

    /// Records that blocks had to leave, and do so much of each block-task again in the mean.
    pub fn has_dropped(&mut self, kernel: &'static Kernel, part: f64) {
        // A block-task that takes longer than others is dropped behind its expected end.
        self.kernels.entry(key(kernel)).or_default().dropped.add_number(part.clamp(0.0, 1.0));
    }

    /// Records the time for which a launch waited until the hardware had given it the SMs of a plain grid.
    pub fn made_room(&mut self, kernel: &'static Kernel, took: Duration) {
        self.kernels.entry(key(kernel)).or_default().hardware_stop.add(took);
    }

    /// What is known of a kernel; `None` while a plain grid would not teach what it costs, because too few launches were
    /// preemptible.
    pub fn learned(&self, kernel: &'static Kernel) -> Option<Learned> {
        let of = self.kernels.get(&key(kernel)).filter(|of| of.loops >= ENOUGH)?;
        let hardware_stop = of.hardware_stop.of_at_least(STOPS);
        Some(Learned { hardware_stop, loop_to_plain: of.loop_to_plain })
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

    fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn a_kernel_is_known_by_its_preemptible_launches() {
        let (kernel, other) = (nothing().kernel(), nothing_else().kernel());
        let mut estimates = Estimates::new(us(20));
        for tasks in [1, 2, 3] {
            assert!(estimates.learned(kernel).is_none(), "{tasks}");
            estimates.record(kernel, 8, true, us(5));
            estimates.record(kernel, tasks, false, us(12));
            estimates.looped(kernel);
        }
        assert!(estimates.learned(kernel).is_some() && estimates.learned(other).is_none());
    }

    #[test]
    fn forms_are_compared_by_their_shortest_launches_of_one_size() {
        let kernel = nothing().kernel();
        let mut estimates = Estimates::new(us(20));
        let ratio = |estimates: &Estimates| estimates.learned(kernel)?.loop_to_plain;
        for took in [500, 90, 95] {
            estimates.looped(kernel);
            estimates.record(kernel, 8, false, us(took));
            estimates.record(kernel, 9, true, us(10));
        }
        assert_eq!(ratio(&estimates), None, "of other sizes");
        for took in [100, 300, 100] {
            assert_eq!(ratio(&estimates), None, "too few");
            estimates.record(kernel, 8, true, us(took));
        }
        assert_eq!(ratio(&estimates), Some(0.9));
    }

    #[test]
    fn the_first_stop_is_assumed_and_the_others_are_means() {
        let (kernel, other) = (nothing().kernel(), nothing_else().kernel());
        let mut estimates = Estimates::new(us(20));
        assert_eq!(estimates.stop(kernel), us(20));
        [100, 300].into_iter().for_each(|took| estimates.stopped(kernel, us(took)));
        assert_eq!((estimates.stop(kernel).as_micros(), estimates.stop(other)), (200, us(20)));
        assert!(estimates.learned(kernel).is_none(), "no launch of it is done");
        (0..1000).for_each(|_| estimates.stopped(kernel, us(8)));
        assert_eq!(estimates.stop(kernel).as_micros(), 8, "it is faster now");
    }

    #[test]
    fn what_is_dropped_is_half_of_a_block_task_until_stops_say_otherwise() {
        let (kernel, other) = (nothing().kernel(), nothing_else().kernel());
        let mut estimates = Estimates::new(us(20));
        assert_eq!(estimates.dropped(kernel), 0.5);
        estimates.has_dropped(kernel, 1.0);
        assert_eq!((estimates.dropped(kernel), estimates.dropped(other)), (0.75, 0.5));
        (0..1000).for_each(|_| estimates.has_dropped(kernel, 7.0));
        assert!((0.98..=1.0).contains(&estimates.dropped(kernel)), "no more than all of it");
        (0..1000).for_each(|_| estimates.has_dropped(kernel, 0.0));
        assert!(estimates.dropped(kernel) < 0.02);
    }

    #[test]
    fn stops_by_the_hardware_count_once_there_are_enough() {
        let kernel = nothing().kernel();
        let mut estimates = Estimates::new(us(20));
        (0..3).for_each(|_| estimates.looped(kernel));
        let stop = |estimates: &Estimates| estimates.learned(kernel)?.hardware_stop;
        for took in [10, 20, 60] {
            assert_eq!(stop(&estimates), None);
            estimates.made_room(kernel, us(took));
        }
        assert_eq!(stop(&estimates).map(|time| time.as_micros()), Some(30));
    }

    #[test]
    fn the_number_of_remembered_launches_is_bounded() {
        let mut estimates = Estimates::new(us(20));
        for tasks in 0..3 * MOST as u32 {
            estimates.record(nothing().kernel(), tasks, false, Duration::ZERO);
        }
        assert!(estimates.sizes.len() <= MOST);
    }
}
