//! Pairs of programs that share the device, against one kernel at a time (section 4.4 of the paper).

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use preempt::sim::{Costs, KernelModel, Machine};
use preempt::{LaunchReport, Preemption, Stream};

use super::halves::OnHalves;
use super::policies::SmartEven;
use super::site::{Decider, HUNG, Rerun, Site};
use crate::experiments::Bench;
use crate::experiments::corun::{PreparedProgram, antt, simulate, stp};
use crate::experiments::sim::model::{Runs, launch_models};
use crate::progress::Progress;
use crate::samples::Samples;

/// Microseconds that blocks have to leave, as in the paper.
const LIMIT: Duration = Duration::from_micros(30);

/// Runs of each pair and arm, of which medians count; fewer once those of a pair have taken this many milliseconds.
const RUNS: u32 = 3;
const QUICK_RUNS: u32 = 1;
pub const ENOUGH: Duration = Duration::from_millis(500);

/// Runs of each program alone, and before them, since the first ones of a process are slow.
const ALONE_RUNS: u32 = 9;
const QUICK_ALONE_RUNS: u32 = 2;
const WARM_RUNS: u32 = 2;

/// Pairs with `--quick`: those of the program that has one with each other.
const QUICK_PAIRS: usize = 2;

/// Runs of a program in virtual time, at most, while the other one runs for the first time.
const MOST_SIMULATED_RUNS: usize = 500;

/// The program that the paper shows beside each other one.
pub const SHOWN: &str = "LUD";

/// Who decides, and in which form launches run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arm {
    /// Plain, the oldest launch first.
    InOrder,
    /// Preemptible, in even parts.
    Shared,
}

/// Two programs.
pub struct Pair {
    pub names: [&'static str; 2],
    /// Of each program, the median time of a run alone, plain.
    pub alone: [Duration; 2],
    /// Of each program, the time of its first run beside the other.
    pub in_order: [Samples; 2],
    pub shared: [Samples; 2],
    /// The same where each has a part of the device that is its own; empty where the device makes no parts.
    pub halves: OnHalves,
    /// The same in virtual time, where preemption is free, and alone there.
    pub ceiling: [Duration; 2],
    pub alone_there: [Duration; 2],
    /// How often SMs were taken in `shared`.
    pub yields: u64,
}

/// A program with what was measured of it alone.
struct Member<'p> {
    program: &'p PreparedProgram,
    alone: Duration,
    /// Its launches, as they were alone.
    models: Vec<KernelModel>,
}

/// Measures all pairs, and adds what was measured of them on halves of the device.
///
/// # Errors
///
/// Errors of the scheduler and the simulation. Wrong results are counted.
pub fn sharing(
    bench: &Bench,
    site: &mut Site,
    programs: &[PreparedProgram],
    halves: Vec<OnHalves>,
) -> Result<Vec<Pair>> {
    // In this order, so that a launch of the first program of a pair has the first SMs.
    let streams = [site.stream(), site.stream()];
    site.choose(Decider::Oldest)?;
    let mut members = Vec::new();
    for program in programs {
        members.push(alone(bench, site, &streams[0], program)?);
    }
    let pairs = pairs(bench, &programs.iter().map(|program| program.name).collect::<Vec<_>>());
    let progress = Progress::new("pairs", pairs.len() as u64);
    let mut measured = Vec::new();
    let mut halves = halves.into_iter();
    for members in pairs.into_iter().map(|pair| pair.map(|index| &members[index])) {
        let halves = halves.next().unwrap_or_default();
        measured.push(Pair { halves, ..pair(bench, site, &streams, members)? });
        progress.step();
    }
    Ok(measured)
}

/// The pairs to measure: those of the shown program, and as many as there may be.
pub fn pairs(bench: &Bench, names: &[&str]) -> Vec<[usize; 2]> {
    let all = (0..names.len())
        .flat_map(|first| (first + 1..names.len()).map(move |second| [first, second]));
    let mut pairs: Vec<_> = all.collect();
    let is_shown = |pair: &[usize; 2]| pair.iter().any(|&one| names[one] == SHOWN);
    pairs.sort_by_key(|pair| !is_shown(pair));
    pairs.truncate(bench.amount(QUICK_PAIRS, usize::MAX));
    pairs
}

/// Runs of each pair and arm, at most.
pub fn runs_of_pairs(bench: &Bench) -> u32 {
    bench.amount(QUICK_RUNS, RUNS)
}

/// A program alone, plain.
fn alone<'p>(
    bench: &Bench,
    site: &mut Site,
    stream: &Stream,
    program: &'p PreparedProgram,
) -> Result<Member<'p>> {
    let (mut times, mut reports) = (Samples::default(), Vec::new());
    let runs = bench.amount(QUICK_ALONE_RUNS, ALONE_RUNS);
    site.notes.take();
    for run in 0..WARM_RUNS + runs {
        site.scheduler.synchronize()?;
        let mut rerun = Rerun::new(stream, program.steps(), Preemption::Plain);
        let took = rerun.until(1)?;
        site.checks.count(program, &rerun.reports);
        if run >= WARM_RUNS {
            times.push(took);
        }
        reports = std::mem::take(&mut rerun.reports);
    }
    let notes: Vec<_> =
        site.notes.take().into_iter().filter(|note| note.stream == stream.id()).collect();
    let (sms, free) = (site.scheduler.device().properties().sms, Costs::free());
    let runs = Runs { looped: &reports, plain: &reports, chosen: &[] };
    let models = launch_models(program.steps(), runs, &notes, &free, sms);
    Ok(Member { program, alone: times.p50(), models })
}

fn pair(
    bench: &Bench,
    site: &mut Site,
    streams: &[Stream; 2],
    members: [&Member<'_>; 2],
) -> Result<Pair> {
    let programs = members.map(|member| member.program);
    let (mut in_order, mut shared) = <([Samples; 2], [Samples; 2])>::default();
    let (start, mut yields) = (Instant::now(), 0);
    for _ in 0..runs_of_pairs(bench) {
        for (arm, times) in [(Arm::InOrder, &mut in_order), (Arm::Shared, &mut shared)] {
            let (took, taken) = together(site, streams, programs, arm)?;
            times.iter_mut().zip(took).for_each(|(samples, took)| samples.push(took));
            yields += if arm == Arm::Shared { taken } else { 0 };
        }
        if start.elapsed() > ENOUGH {
            break;
        }
    }
    let sms = site.scheduler.device().properties().sms;
    Ok(Pair {
        names: programs.map(|program| program.name),
        alone: members.map(|member| member.alone),
        in_order,
        shared,
        halves: OnHalves::default(),
        ceiling: simulated(sms, members.map(|member| &member.models[..]))?,
        alone_there: members.map(|member| member.models.iter().map(|launch| launch.duration).sum()),
        yields,
    })
}

/// Both programs at once by an arm. Returns the times of their first runs, and how often SMs were taken.
fn together(
    site: &mut Site,
    streams: &[Stream; 2],
    programs: [&PreparedProgram; 2],
    arm: Arm,
) -> Result<([Duration; 2], u64)> {
    for program in programs {
        program.poison()?;
    }
    let (decider, mode) = match arm {
        Arm::InOrder => (Decider::Oldest, Preemption::Plain),
        Arm::Shared => (Decider::Even, Preemption::Preemptible),
    };
    site.choose(decider)?;
    streams.iter().for_each(|stream| stream.set_latency_limit(Some(LIMIT)));
    let rerun = |index: usize| Rerun::new(&streams[index], programs[index].steps(), mode);
    let (first, reports) = first_runs([rerun(0), rerun(1)])?;
    let yields = reports.iter().flatten().map(|report| u64::from(report.yields)).sum();
    let name = if arm == Arm::Shared { "shared" } else { "one kernel at a time" };
    site.scheduler.synchronize()?;
    for (program, reports) in programs.into_iter().zip(&reports) {
        site.checks.count(program, reports);
        site.checks.check(program, name)?;
    }
    Ok((first, yields))
}

/// Starts both programs at once, and each again until the other has ended, too. Returns the times of their first runs, and the
/// reports of all.
pub fn first_runs(mut reruns: [Rerun<'_>; 2]) -> Result<([Duration; 2], [Vec<LaunchReport>; 2])> {
    let (start, mut first) = (Instant::now(), [None; 2]);
    while first.contains(&None) {
        ensure!(start.elapsed() < HUNG, "two programs have not ended within {HUNG:?}");
        for (rerun, first) in reruns.iter_mut().zip(&mut first) {
            rerun.go_on(usize::MAX)?;
            if first.is_none() && rerun.runs() > 0 {
                *first = Some(start.elapsed());
            }
        }
        std::hint::spin_loop();
    }
    // Whole runs, so that their outputs can be checked.
    for rerun in &mut reruns {
        rerun.finish()?;
    }
    Ok((first.map(Option::unwrap_or_default), reruns.map(|rerun| rerun.reports)))
}

/// The first run of each of two programs that share a device without costs in even parts.
fn simulated(sms: u32, launches: [&[KernelModel]; 2]) -> Result<[Duration; 2]> {
    let alone =
        launches.map(|launches| launches.iter().map(|launch| launch.duration).sum::<Duration>());
    // With at least an even part each, one run of a program takes no longer than two of it alone.
    let runs = [0, 1].map(|index| {
        let longest = alone[1 - index] * 2;
        let own = alone[index].max(Duration::from_nanos(1));
        (longest.div_duration_f64(own).ceil() as usize + 1).min(MOST_SIMULATED_RUNS)
    });
    let programs = [0, 1].map(|index| {
        let launches = launches[index].iter().cycle().take(runs[index] * launches[index].len());
        (launches.cloned().collect::<Vec<_>>(), Duration::ZERO, 0)
    });
    let machine = Machine::new(sms, Costs::free());
    let found = simulate(machine, Box::new(SmartEven::default()), &programs)?.results.launches;
    // Launches are numbered in the order in which they are in the workload: those of the first program come first.
    let begins = [0, programs[0].0.len()];
    let ends = [0, 1].map(|index| {
        let last = begins[index] + launches[index].len() - 1;
        found.iter().find(|launch| launch.job == last).map(|launch| launch.done)
    });
    let [first, second] = ends;
    first.zip(second).map(|(first, second)| [first, second]).context("a launch has no result")
}

impl Pair {
    /// The medians in order, shared, and on halves.
    pub fn measured(&self) -> [[Duration; 2]; 3] {
        [&self.in_order, &self.shared, &self.halves].map(|times| [times[0].p50(), times[1].p50()])
    }

    /// Whether it was measured on halves.
    pub fn has_halves(&self) -> bool {
        self.halves[0].len() > 0
    }

    /// ANTT in order, shared, where preemption is free, and on halves.
    pub fn antt(&self) -> [Option<f64>; 4] {
        let [in_order, shared, halves] = self.measured();
        [
            antt(&in_order, &self.alone),
            antt(&shared, &self.alone),
            antt(&self.ceiling, &self.alone_there),
            self.has_halves().then(|| antt(&halves, &self.alone)).flatten(),
        ]
    }

    /// STP in the same.
    pub fn stp(&self) -> [Option<f64>; 4] {
        let [in_order, shared, halves] = self.measured();
        [
            stp(&in_order, &self.alone),
            stp(&shared, &self.alone),
            stp(&self.ceiling, &self.alone_there),
            self.has_halves().then(|| stp(&halves, &self.alone)).flatten(),
        ]
    }

    /// Whether it is one of those that the paper shows.
    pub fn is_shown(&self) -> bool {
        self.names.contains(&SHOWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(launches: u32, micros: u64, tasks: u32) -> Vec<KernelModel> {
        let launch = KernelModel::new("launch", Duration::from_micros(micros), tasks);
        vec![launch; launches as usize]
    }

    #[test]
    fn programs_that_fill_the_device_have_half_of_it_each() {
        let (long, short) = (program(1, 10_000, 8000), program(10, 100, 8000));
        let [first, second] = simulated(8, [&long, &short]).unwrap();
        assert!(
            first.abs_diff(Duration::from_millis(20)) < Duration::from_micros(100),
            "{first:?}"
        );
        assert!(
            second.abs_diff(Duration::from_millis(2)) < Duration::from_micros(100),
            "{second:?}"
        );
    }

    #[test]
    fn a_program_of_few_blocks_leaves_the_rest() {
        let (wide, narrow) = (program(1, 8000, 8000), program(1, 8000, 2));
        let [first, second] = simulated(8, [&wide, &narrow]).unwrap();
        assert!(first < Duration::from_millis(11) && second < Duration::from_micros(8100));
    }
}
