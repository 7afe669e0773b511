//! Does a kernel stay away from SMs that were taken from it? A victim stamps each block-task with its SM and its start.
//! From some moment on a range of SMs belongs to another kernel, the marker, whose blocks fill them. No block-task of
//! the victim may start there from then on.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use preempt::policy::{Arrival, DeviceView, Plan, Policy, SmRange};
use preempt::{LaunchId, Priority, Properties};
use preempt_microkernels::{Stamp, stamp};
use preempt_test_kit::Random;
use preempt_test_kit::storm::Tally;

use super::{Bench, random_time};

/// Clock ticks of an SM that block-tasks of the victim and of the marker take on a GPU: about 15 and 150 µs.
const GPU_TICKS: (u64, u64) = (30_000, 300_000);
/// Ticks on the CPU device, whose threads spin one after the other.
const CPU_TICKS: (u64, u64) = (30, 300);
/// Block-tasks of the victim for each place on the device.
const WAVES: u32 = 200;
/// The most time from the launch of the victim to that of the marker.
const PAUSE: Duration = Duration::from_millis(1);

/// Priorities, by which the policy tells the two.
const VICTIM: Priority = Priority(0);
const MARKER: Priority = Priority(1);

/// The observations.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Kernels, block-tasks, and those that left no stamp.
    pub tally: Tally,
    /// Block-tasks of victims that started on an SM after it was taken and drained.
    pub on_excluded: u64,
    /// SMs that were full of the marker's blocks, so that a later start there would show.
    pub full_sms: u64,
}

/// Gives the marker's SMs to no other launch, from its arrival to the end of the victim.
#[derive(Debug)]
struct Exclude {
    /// The range of the next marker.
    next: Arc<Mutex<SmRange>>,
    excluded: SmRange,
    victim: Option<LaunchId>,
    marker: Option<LaunchId>,
}

impl Policy for Exclude {
    fn name(&self) -> &str {
        "exclude"
    }

    fn arrived(&mut self, _now: Duration, launch: Arrival) {
        if launch.priority == MARKER {
            self.excluded = *self.next.lock().unwrap_or_else(PoisonError::into_inner);
            self.marker = Some(launch.id);
        } else {
            self.excluded = SmRange::EMPTY;
            self.victim = Some(launch.id);
        }
    }

    fn departed(&mut self, _now: Duration, launch: LaunchId) {
        self.victim.take_if(|victim| *victim == launch);
        self.marker.take_if(|marker| *marker == launch);
    }

    fn assign(&mut self, _now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        let excluded = self.excluded;
        if let Some(victim) = self.victim {
            let rest = match (excluded.is_empty(), excluded.lo(), excluded.hi()) {
                (true, ..) => SmRange::new(0, device.sms()),
                (false, lo, hi) if hi == device.sms() => SmRange::new(0, lo),
                // Wraps around the last SM unless the excluded range starts at the first one.
                (false, 0, hi) => SmRange::new(hi, device.sms()),
                (false, lo, hi) => SmRange::new(hi, lo),
            };
            plan.grant(victim, rest);
        }
        if let Some(marker) = self.marker {
            plan.grant(marker, excluded);
        }
    }
}

/// Runs victims, each of which loses SMs in its middle. Calls `watch` after each.
pub fn run(bench: &Bench, victims: u64, mut watch: impl FnMut()) -> Result<Seen> {
    let next = Arc::new(Mutex::new(SmRange::EMPTY));
    let policy =
        Exclude { next: next.clone(), excluded: SmRange::EMPTY, victim: None, marker: None };
    let scheduler = bench.scheduler(policy)?;
    let properties = scheduler.device().properties().clone();
    let places = places(&properties);
    let (batch, urgent) = (scheduler.stream(VICTIM), scheduler.stream(MARKER));
    let ticks = if bench.gpu.is_some() { GPU_TICKS } else { CPU_TICKS };
    let tasks = properties.sms * places * WAVES;
    let mut random = Random(bench.seed);
    let mut seen = Seen::default();
    for _ in 0..victims {
        let length = 1 + random.below((properties.sms / 2).max(1));
        let lo = random.below(properties.sms - length + 1);
        let range = SmRange::new(lo, lo + length);
        *next.lock().unwrap_or_else(PoisonError::into_inner) = range;
        let mut stamps = scheduler.zeroed::<Stamp>(tasks as usize)?;
        let mut marks = scheduler.zeroed::<Stamp>((length * places) as usize)?;

        let victim = batch.launch(stamp(ticks.0, &mut stamps).grid(tasks))?;
        thread::sleep(random_time(&mut random, PAUSE));
        let marker = urgent.launch(stamp(ticks.1, &mut marks).grid(length * places))?.wait()?;
        let report = victim.wait()?;
        seen.tally.report(&marker);
        seen.tally.report(&report);
        let (stamps, marks) = (batch.download(&stamps)?.wait()?, batch.download(&marks)?.wait()?);
        scheduler.synchronize()?;
        seen.compare(&stamps, &marks, range, places);
        watch();
    }
    Ok(seen)
}

/// Blocks of the stamping kernel that an SM holds: those of 1024 threads, with few registers.
fn places(properties: &Properties) -> u32 {
    properties.blocks_per_sm.min(properties.threads_per_sm / 1024).max(1)
}

impl Seen {
    /// Checks the stamps that one victim and its marker, which had `range`, left.
    fn compare(&mut self, victim: &[Stamp], marker: &[Stamp], range: SmRange, places: u32) {
        for (what, stamps) in [("the victim", victim), ("the marker", marker)] {
            let ran: Vec<u32> = stamps.iter().map(|stamp| u32::from(stamp.end != 0)).collect();
            self.tally.count(&format!("{what}'s stamps"), &ran, &vec![1; ran.len()]);
        }
        for sm in range.lo()..range.hi() {
            let on_sm = |stamp: &&Stamp| stamp.sm == u64::from(sm);
            let marks: Vec<&Stamp> = marker.iter().filter(on_sm).collect();
            // The SM was full of the marker when this number of its block-tasks were resident at a time.
            let beside = |at: u64| {
                let there = |stamp: &&&Stamp| stamp.start <= at && at < stamp.end;
                marks.iter().filter(there).count() as u32
            };
            let full = marks.iter().map(|stamp| stamp.start).filter(|&at| beside(at) >= places);
            let Some(full) = full.min() else { continue };
            self.full_sms += 1;
            let late = victim.iter().filter(on_sm).filter(|stamp| stamp.start > full);
            self.on_excluded += late.count() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sm: u64, start: u64, end: u64) -> Stamp {
        Stamp { sm, start, end }
    }

    #[test]
    fn late_starts_show_where_the_marker_filled_the_sm() {
        let marker = [at(1, 100, 200), at(1, 150, 250), at(2, 100, 200), at(2, 300, 400)];
        let victim = [at(0, 500, 510), at(1, 120, 140), at(1, 260, 270), at(2, 500, 510)];
        let mut seen = Seen::default();
        seen.compare(&victim, &marker, SmRange::new(1, 3), 2);
        assert_eq!((seen.on_excluded, seen.full_sms), (1, 1));
        assert_eq!(seen.tally.mistake, None);
    }
}
