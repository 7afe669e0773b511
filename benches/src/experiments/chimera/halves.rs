//! Pairs of programs on two parts of the device: what even parts are worth where nothing is preempted.

use std::time::Instant;

use anyhow::{Context, Result};
use preempt::error::DeviceError;
use preempt::policy::Fifo;
use preempt::{Error, Preemption, Scheduler, Stream};
use preempt_workloads::Definition;

use super::sharing::{ENOUGH, first_runs, pairs, runs_of_pairs};
use super::site::{Checks, Rerun, SPIN};
use crate::experiments::Bench;
use crate::experiments::corun::PreparedProgram;
use crate::progress::Progress;
use crate::samples::Samples;

/// Of two programs, each on an equal part of the device that is its own, the time of its first run beside the other.
pub type OnHalves = [Samples; 2];

/// A part of the device with programs.
struct Half {
    scheduler: Scheduler,
    stream: Stream,
    programs: Vec<PreparedProgram>,
}

/// Measures the pairs, while no scheduler has the whole device; none where it makes no parts.
///
/// # Errors
///
/// Errors of the scheduler. Wrong results are counted.
pub fn halves(
    bench: &Bench,
    definitions: &[&Definition],
    checks: &mut Checks,
) -> Result<Vec<OnHalves>> {
    let device = bench.device.as_ref().context("this suite is not simulated")?;
    let parts = match device.split(2) {
        Ok(parts) => parts,
        // The driver is too old for parts.
        Err(Error::Device(DeviceError::NotSplit { .. })) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let names: Vec<_> = definitions.iter().map(|definition| definition.name).collect();
    let pairs = pairs(bench, &names);
    let schedulers =
        parts.iter().map(|part| bench.spinning_builder_on(part, Fifo::new(), SPIN).build());
    let schedulers = schedulers.collect::<Result<Vec<_>, _>>()?;
    let mut halves = Vec::new();
    for scheduler in schedulers {
        let programs = definitions.iter().map(|definition| {
            PreparedProgram::scheduled(&scheduler, definition, bench.sizes()[0], bench.seed as u32)
        });
        let programs = programs.collect::<Result<_>>()?;
        halves.push(Half { stream: scheduler.stream(0), programs, scheduler });
    }
    let progress = Progress::new("pairs on halves", pairs.len() as u64);
    let mut measured = Vec::new();
    for pair in pairs {
        measured.push(on_halves(bench, &halves, pair, checks)?);
        progress.step();
    }
    Ok(measured)
}

fn on_halves(
    bench: &Bench,
    halves: &[Half],
    pair: [usize; 2],
    checks: &mut Checks,
) -> Result<OnHalves> {
    let both = [0, 1].map(|part| (&halves[part], &halves[part].programs[pair[part]]));
    let (mut first, start) = (OnHalves::default(), Instant::now());
    for _ in 0..runs_of_pairs(bench) {
        for (_, program) in both {
            program.poison()?;
        }
        let (took, reports) =
            first_runs(both.map(|(half, program)| {
                Rerun::new(&half.stream, program.steps(), Preemption::Plain)
            }))?;
        first.iter_mut().zip(took).for_each(|(samples, took)| samples.push(took));
        for ((half, program), reports) in both.into_iter().zip(&reports) {
            half.scheduler.synchronize()?;
            checks.count(program, reports);
            checks.check(program, "halves")?;
        }
        if start.elapsed() > ENOUGH {
            break;
        }
    }
    Ok(first)
}
