//! The form of a launch: a plain grid, which the hardware preempts at the ends of blocks, or the worker loop.

use std::time::Duration;

use super::LaunchSpec;

/// Part of a plain grid's time that the worker loop has to save to be preferred: less is within the differences
/// between runs.
const GAIN: f64 = 0.02;

/// Time: the longest launch that may be a plain grid without being told to, unless the builder sets another. A cancelled
/// one is waited for that long, and a launch that is as long saves a few percent of it.
pub(crate) const LONGEST_PLAIN: Duration = Duration::from_millis(10);

/// What was learned of a kernel.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Learned {
    /// The time until the hardware had given a plain grid's SMs to a more urgent one.
    pub hardware_stop: Option<Duration>,
    /// The time in the worker loop, to that of the plain grid.
    pub loop_to_plain: Option<f64>,
}

/// What else decides about the form of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circumstances {
    /// Whether the kernel has yield points.
    pub yields: bool,
    /// Whether the policy may take its SMs for a stream that there is.
    pub may_be_preempted: bool,
    /// SMs of the device.
    pub sms: u32,
    /// The longest launch that may be a plain grid.
    pub longest: Duration,
    /// What it costs that the launch behind it has the other form: the host launches that once this one is over, and does
    /// not queue it ahead.
    pub change: Duration,
}

impl LaunchSpec {
    /// The time until the hardware has taken the SMs of this launch's plain grid. `None` if the launch should be
    /// preemptible: it may run for longer than `longest`, or its duration is unknown; the worker loop stops sooner; or it
    /// is faster. For that, the loop has to save more time than a change of forms costs; and if it may be preempted, more
    /// than it takes longer to stop than the hardware would.
    ///
    /// Until the hardware was seen to do it, that is the time of a block, if all blocks take as long: as many as fit run
    /// at a time. `yields` says whether the kernel has yield points. Without them, the worker loop waits for the ends of
    /// block-tasks, too. If the policy takes its SMs for no stream that there is, it matters less how
    /// soon they can be had: a stream that comes to be later waits once, and each launch is faster.
    pub fn plain_stop(
        &self,
        learned: Learned,
        Circumstances { yields, may_be_preempted, sms, longest, change }: Circumstances,
    ) -> Option<Duration> {
        let predicted = self.predicted.filter(|&predicted| predicted <= longest)?;
        let places = self.room(sms, true).clamp(1, self.tasks.max(1));
        let block = predicted.mul_f64(f64::from(places) / f64::from(self.tasks.max(1)));
        let hardware = learned.hardware_stop.unwrap_or(block);
        let software = self.yield_overhead.saturating_sub(self.requeued);
        if let Some(ratio) = learned.loop_to_plain.filter(|&ratio| ratio < 1.0 - GAIN) {
            let saved = predicted.mul_f64(1.0 - ratio);
            let later =
                if may_be_preempted { software.saturating_sub(hardware) } else { Duration::ZERO };
            if saved >= later.max(change) {
                return None;
            }
        }
        (hardware <= software || !yields || !may_be_preempted).then_some(hardware)
    }

    /// Blocks that fit on `sms` SMs, with or without the last SM of the device among them.
    pub fn room(&self, sms: u32, with_last: bool) -> u32 {
        let less = if with_last { self.blocks_per_sm - self.on_last_sm } else { 0 };
        sms.saturating_mul(self.blocks_per_sm) - less
    }
}

/// Whether a program that may have either form is one plain launch: each of its launches may be a plain grid, and together
/// they are known to take no longer than `longest`. Those that are plain in any case, such as captured work, run to their ends
/// in either form of the program.
pub(crate) fn is_plain_as_a_whole(
    mut launches: impl Iterator<Item = LaunchSpec>,
    predicted: Option<Duration>,
    longest: Duration,
) -> bool {
    predicted.is_some_and(|predicted| predicted <= longest)
        && launches.all(|launch| launch.plain || launch.hardware_stop.is_some())
}

#[cfg(test)]
mod tests {
    use super::super::Leaving;
    use super::*;

    const LONGEST: Duration = Duration::from_millis(10);

    fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    fn circumstances(yields: bool) -> Circumstances {
        Circumstances { yields, may_be_preempted: true, sms: 4, longest: LONGEST, change: us(6) }
    }

    /// A launch of ten rounds of blocks on four SMs with two blocks each, which the worker loop stops within 20 µs.
    fn launch(predicted: Option<Duration>) -> LaunchSpec {
        LaunchSpec {
            tasks: 80,
            predicted,
            yield_overhead: us(25),
            requeued: us(5),
            blocks_per_sm: 2,
            on_last_sm: 2,
            plain: false,
            hardware_stop: None,
            leaving: Leaving::AtEnd,
        }
    }

    #[test]
    fn short_blocks_are_left_to_the_hardware() {
        let stop = |predicted, yields| {
            launch(predicted).plain_stop(Learned::default(), circumstances(yields))
        };
        assert_eq!(stop(Some(us(200)), true), Some(us(20)), "as soon as the worker loop");
        assert_eq!(stop(Some(us(210)), true), None, "later");
        assert_eq!(stop(Some(us(210)), false), Some(us(21)), "so does the worker loop");
        assert_eq!(stop(Some(LONGEST), false), Some(LONGEST / 10));
        assert_eq!(stop(Some(LONGEST + us(1)), false), None, "it keeps SMs for too long");
        assert_eq!(stop(None, false), None, "nothing is known");
    }

    #[test]
    fn a_launch_that_no_stream_can_preempt_need_not_leave_soon() {
        let all = Circumstances { may_be_preempted: false, ..circumstances(true) };
        let stop = |predicted, learned| launch(Some(predicted)).plain_stop(learned, all);
        assert_eq!(stop(LONGEST, Learned::default()), Some(LONGEST / 10));
        assert_eq!(stop(LONGEST + us(1), Learned::default()), None, "a stream may come to be");
        let faster = Learned { loop_to_plain: Some(0.9), ..Learned::default() };
        assert_eq!(stop(us(60), faster), None);
        assert_eq!(stop(us(59), faster), Some(us(59) / 10), "a change of forms costs more");
    }

    #[test]
    fn what_was_seen_counts_more_than_what_was_assumed() {
        let stop = |predicted, hardware_stop, loop_to_plain| {
            let learned = Learned { hardware_stop, loop_to_plain };
            launch(Some(us(predicted))).plain_stop(learned, circumstances(true))
        };
        assert_eq!(stop(100, Some(us(21)), None), None, "some blocks are longer than most");
        assert_eq!(stop(300, Some(us(7)), None), Some(us(7)));
        assert_eq!(stop(100, None, Some(0.9)), None, "the loop saves as much as it leaves later");
        assert_eq!(stop(100, None, Some(0.91)), Some(us(10)), "less");
        assert_eq!(stop(200, None, Some(0.97)), None, "both leave as soon");
        assert_eq!(stop(100, None, Some(0.99)), Some(us(10)), "as fast");
        assert_eq!(stop(100, None, Some(1.5)), Some(us(10)), "the plain grid is");
    }

    #[test]
    fn a_program_is_plain_if_each_launch_may_be_and_all_together_are_short() {
        let loops = launch(Some(us(100)));
        let either = LaunchSpec { hardware_stop: Some(us(5)), ..loops };
        let plain = LaunchSpec { plain: true, ..loops };
        let is_plain = |launches: &[LaunchSpec], predicted| {
            is_plain_as_a_whole(launches.iter().copied(), predicted, LONGEST)
        };
        assert!(is_plain(&[either, plain, either], Some(LONGEST)));
        assert!(!is_plain(&[either, plain, either], Some(LONGEST + us(1))), "all of it is longer");
        assert!(!is_plain(&[either], None), "nothing is known");
        assert!(!is_plain(&[either, loops], Some(us(200))), "one has to be preemptible");
    }
}
