//! What a program loses on a device that pauses SMs at no cost, because its block-tasks stay where they are: the work of a
//! paused SM is taken over by no other one until that has ended a block-task of its own. So launches of few waves end later than
//! by the SMs that they lack.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Periods that are simulated: enough for the ends of launches to come at all times of a period.
const PERIODS: u32 = 400;

/// A launch as it is alone.
#[derive(Clone, Copy, Debug)]
pub struct Waves {
    pub tasks: u32,
    /// Blocks on an SM.
    pub blocks_per_sm: u32,
    pub took: Duration,
}

/// A device half of whose SMs pause.
#[derive(Clone, Copy, Debug)]
pub struct Paused {
    pub sms: u32,
    pub period: Duration,
    /// The time of the period, at its start, for which the first half of the SMs pauses.
    pub pause: Duration,
}

impl Waves {
    /// The time of a block-task, all of which take as long.
    fn task(self, sms: u32) -> u64 {
        let places = sms.saturating_mul(self.blocks_per_sm).max(1);
        let waves = self.tasks.div_ceil(places).max(1);
        (self.took / waves).as_nanos() as u64
    }
}

impl Paused {
    /// The part of the throughput that is lost where launches follow each other, by that of a device on which any SM goes on with
    /// any work; `None` for a program that takes no time.
    pub fn lost(self, launches: &[Waves]) -> Option<f64> {
        let alone: Duration = launches.iter().map(|launch| launch.took).sum();
        let end = (self.period * PERIODS).as_nanos() as u64;
        if alone.is_zero() || self.sms < 2 {
            return None;
        }
        let (mut now, mut done) = (0, 0.0);
        for launch in launches.iter().cycle() {
            if now >= end {
                break;
            }
            now = self.run(*launch, now);
            done += launch.took.as_secs_f64();
        }
        let part = f64::from(self.sms / 2) / f64::from(self.sms);
        let paused = part * self.pause.div_duration_f64(self.period);
        Some(1.0 - done / (now as f64 * 1e-9 * (1.0 - paused)))
    }

    /// When a launch ends that begins at this time: each place on an SM takes the next block-task when it has ended one. Of those
    /// that are free at a time, SMs that do not pause come first, and then SMs with fewer block-tasks.
    fn run(self, launch: Waves, start: u64) -> u64 {
        let task = launch.task(self.sms);
        let places = (0..launch.blocks_per_sm.max(1))
            .flat_map(|place| (0..self.sms).map(move |sm| (place, sm)));
        let at = |free: u64, (place, sm): (u32, u32)| {
            Reverse((free, self.pauses(free) && sm < self.sms / 2, place, sm))
        };
        let mut places: BinaryHeap<_> = places.map(|place| at(start, place)).collect();
        let mut last = start;
        for _ in 0..launch.tasks {
            let Some(Reverse((free, _, place, sm))) = places.pop() else { break };
            let end = if sm < self.sms / 2 { self.after(free, task) } else { free + task };
            last = last.max(end);
            places.push(at(end, (place, sm)));
        }
        // A launch of nothing takes its time, too.
        last.max(start + u64::from(launch.tasks == 0) * task).max(start + 1)
    }

    /// Whether the first half of the SMs pauses at this time.
    fn pauses(self, at: u64) -> bool {
        let [period, pause] = [self.period, self.pause].map(|time| time.as_nanos() as u64);
        at % period < pause
    }

    /// When an SM that pauses has run for so long from this time on.
    fn after(self, from: u64, run: u64) -> u64 {
        let [period, pause] = [self.period, self.pause].map(|time| time.as_nanos() as u64);
        let awake = (period - pause).max(1);
        // The time that it has run at `from`, counted from 0.
        let ran = from / period * awake + (from % period).saturating_sub(pause);
        let all = ran + run;
        // An end at the end of a period is not one behind the next pause.
        let whole = (all.max(1) - 1) / awake;
        whole * period + pause + (all - whole * awake)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);
    const DEVICE: Paused =
        Paused { sms: 8, period: Duration::from_millis(1), pause: Duration::from_micros(200) };

    fn lost(tasks: u32, took: Duration) -> f64 {
        DEVICE.lost(&[Waves { tasks, blocks_per_sm: 2, took }]).expect("it takes time")
    }

    #[test]
    fn many_short_block_tasks_are_shared_by_the_other_sms() {
        // Some launches end while the last block-tasks of half of the SMs wait.
        let lost = lost(160_000, 20 * DEVICE.period);
        assert!((0.0..0.01).contains(&lost), "{lost}");
    }

    #[test]
    fn a_wave_that_fills_the_device_waits_for_the_sms_that_pause() {
        // It takes 1.25 times as long as alone, where 1 / 0.9 is what the device lacks.
        let lost = lost(16, DEVICE.period);
        assert!((lost - (1.0 - 0.8 / 0.9)).abs() < 0.01, "{lost}");
    }

    #[test]
    fn a_launch_that_half_of_the_device_holds_loses_less_than_its_wave() {
        // It has the SMs that do not pause, if it begins in a pause, and waits for others only if one begins while it runs: at most
        // a part of its launches does.
        let few = DEVICE.lost(&[Waves { tasks: 4, blocks_per_sm: 2, took: 20 * US }]);
        assert!(few.expect("it takes time") < -0.05, "{few:?}");
    }

    #[test]
    fn sms_run_between_their_pauses() {
        let after = |from: u64, run: u64| DEVICE.after(from * 1000, run * 1000) / 1000;
        assert_eq!([after(0, 100), after(100, 100), after(200, 100)], [300, 300, 300]);
        assert_eq!([after(900, 100), after(900, 101), after(200, 1600)], [1000, 1201, 2000]);
        assert!(DEVICE.lost(&[]).is_none());
        let nothing = Waves { tasks: 0, blocks_per_sm: 2, took: US };
        assert!(DEVICE.lost(&[nothing]).is_some());
    }
}
