//! What blocks of each program would take to leave their SM, and would lose, as the paper estimates it (section 2.4), and which
//! of its kernels may be dropped (section 4.3).

use std::time::Duration;

use anyhow::{Context, Result};
use preempt::{Call, FormFootprint, Idempotence, LaunchReport, Preemption, Stream};
use preempt_workload_kernels::input::{BLOCK, copy_f32};

use super::paused::{Paused, Waves};
use super::periodic::Periodic;
use super::site::{Decider, Rerun, Site};
use crate::experiments::Bench;
use crate::experiments::corun::PreparedProgram;
use crate::samples::{Samples, ratio};

/// Runs of each program, over which the time of a block-task is a mean.
const RUNS: usize = 5;
const QUICK_RUNS: usize = 1;

/// Elements that are copied to tell the bandwidth of the memory: many times what an L2 cache holds, and enough for a copy to
/// take many times as long as a launch.
const COPIED: usize = 1 << 28;
const CPU_COPIED: usize = 1 << 14;
const COPIES: u32 = 9;
const QUICK_COPIES: u32 = 1;

const REGISTER_BYTES: u64 = 4;

/// All programs, and what their estimates rest on.
pub struct Estimates {
    pub programs: Vec<Estimate>,
    /// Bytes in a second that a copy reads and writes.
    pub bandwidth: f64,
}

/// A program's kernels, and the one of them whose blocks are to leave.
pub struct Estimate {
    pub program: &'static str,
    pub kernels: Kernels,
    /// The kernel that takes the longest, of those whose blocks can leave a block-task where there are any.
    pub kernel: &'static str,
    /// Whether it has yield points.
    pub yields: bool,
    /// Its block-tasks in a run of the program.
    pub block_tasks: u64,
    /// The mean time of a block-task alone.
    pub block_task: Duration,
    /// Blocks on an SM.
    pub blocks_per_sm: u32,
    /// Bytes of a block's registers and shared memory; `None` where threads have no registers that are known.
    pub context: Option<u64>,
    /// Bytes of a block's slot at a checkpoint of the program, in its form with them; `None` if none has.
    pub saved: Option<u64>,
    /// Bytes in a second, for an SM that has its part of the bandwidth.
    pub bandwidth_of_sm: f64,
    /// The throughput that the program loses beside the periodic task where stops take no time and lose nothing.
    pub lost_to_pauses: Option<f64>,
}

/// Kernels of a program by what is known of block-tasks that run again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kernels {
    pub strict: u32,
    pub relaxed: u32,
    pub declared: u32,
    /// Not asked: they have no yield points.
    pub without: u32,
}

/// What was seen of a kernel in all runs.
struct Seen<'c> {
    call: &'c Call<'static>,
    /// What its blocks take of an SM.
    form: FormFootprint,
    tasks: u64,
    /// How long its launches took.
    took: Duration,
    /// The same by the blocks that ran at a time.
    block_time: Duration,
}

/// Runs each program alone, and tells what the estimates need. All programs have run before, since the first runs are slow.
///
/// # Errors
///
/// Errors of the scheduler. Wrong results are counted.
pub fn estimates(
    bench: &Bench,
    site: &mut Site,
    programs: &[PreparedProgram],
    periodic: &Periodic,
) -> Result<Estimates> {
    site.choose(Decider::Oldest)?;
    let stream = site.stream();
    let bandwidth = bandwidth(bench, site, &stream)?;
    let estimates = programs.iter().map(|program| {
        let mut rerun = Rerun::new(&stream, program.steps(), Preemption::Preemptible);
        rerun.until(bench.amount(QUICK_RUNS, RUNS))?;
        site.checks.count(program, &rerun.reports);
        site.checks.check(program, "alone")?;
        estimate(site, program, &rerun.reports, bandwidth, periodic)
    });
    let programs = estimates.collect::<Result<_>>()?;
    // Nothing here asks for them.
    site.notes.take();
    Ok(Estimates { programs, bandwidth })
}

/// Bytes in a second that a copy of large arrays reads and writes, the median of some copies.
fn bandwidth(bench: &Bench, site: &Site, stream: &Stream) -> Result<f64> {
    let length = if bench.gpu.is_some() { COPIED } else { CPU_COPIED };
    let (from, mut to) = (site.scheduler.zeroed(length)?, site.scheduler.zeroed(length)?);
    let blocks = length.div_ceil(BLOCK as usize) as u32;
    let call = copy_f32(&from, &mut to).grid(blocks).preemption(Preemption::Plain);
    let mut times = Samples::default();
    // The first one does not count.
    for copy in 0..=bench.amount(QUICK_COPIES, COPIES) {
        let report = stream.launch(call.clone())?.wait()?;
        if copy > 0 {
            times.push(report.running());
        }
    }
    let took = times.p50().max(Duration::from_nanos(1));
    Ok((2 * length * size_of::<f32>()) as f64 / took.as_secs_f64())
}

/// The bytes of a block's slot, by all that were taken beside the task.
fn saved(periodic: &Periodic, program: &str) -> Option<u64> {
    let rows = periodic.rows.iter().filter(|row| row.program == program);
    let stops = rows.filter_map(|row| Some(row.found.as_ref()?.stops));
    let (bytes, blocks) =
        stops.fold((0, 0), |(bytes, blocks), of| (bytes + of.saved_bytes, blocks + of.switched));
    (blocks > 0).then(|| bytes / blocks)
}

fn estimate(
    site: &Site,
    program: &PreparedProgram,
    reports: &[LaunchReport],
    bandwidth: f64,
    periodic: &Periodic,
) -> Result<Estimate> {
    let sms = site.scheduler.device().properties().sms;
    let (mut seen, mut waves): (Vec<Seen<'_>>, Vec<Waves>) = Default::default();
    for (call, report) in program.steps().iter().cycle().zip(reports) {
        let known = seen.iter().position(|of| is_same(of.call, call));
        let index = match known {
            Some(index) => index,
            None => {
                let form = site.scheduler.footprint(call)?.preemptible;
                let (tasks, took, block_time) = Default::default();
                seen.push(Seen { call, form, tasks, took, block_time });
                seen.len() - 1
            }
        };
        let of = &mut seen[index];
        let tasks = call.grid_dim().count() as u32;
        let blocks_per_sm = of.form.blocks_per_sm;
        waves.push(Waves { tasks, blocks_per_sm, took: report.running() });
        of.tasks += u64::from(tasks);
        of.took += report.running();
        of.block_time += report.running() * tasks.min(sms * of.form.blocks_per_sm);
    }
    let longest = seen.iter().max_by_key(|of| (of.call.kernel().yields, of.took));
    let longest = longest.context("a program without a launch has no kernel")?;
    let (kernel, form) = (longest.call.kernel(), longest.form);
    let block = longest.call.block_dim().or(kernel.block);
    let threads = block.map_or(1, |block| block.count() as u64);
    let registers = threads * u64::from(form.registers) * REGISTER_BYTES;
    let runs = (reports.len() / program.steps().len()).max(1) as u64;
    Ok(Estimate {
        program: program.name,
        kernels: Kernels::of(program.steps()),
        kernel: kernel.name,
        yields: kernel.yields,
        block_tasks: longest.tasks / runs,
        block_task: longest.block_time.div_f64(longest.tasks.max(1) as f64),
        blocks_per_sm: form.blocks_per_sm,
        context: (registers > 0).then(|| registers + u64::from(form.shared_bytes)),
        saved: saved(periodic, program.name),
        bandwidth_of_sm: bandwidth / f64::from(sms),
        lost_to_pauses: Paused { sms, period: periodic.period, pause: periodic.task }.lost(&waves),
    })
}

/// Whether two calls are of the same kernel.
fn is_same(one: &Call<'static>, other: &Call<'static>) -> bool {
    std::ptr::eq(one.kernel(), other.kernel())
}

impl Kernels {
    /// Each kernel counts once, however often it is launched.
    fn of(steps: &[Call<'static>]) -> Kernels {
        let is_first = |(at, call): &(usize, &Call<'static>)| {
            !steps[..*at].iter().any(|before| is_same(before, call))
        };
        let mut kernels = Kernels::default();
        for (_, call) in steps.iter().enumerate().filter(is_first) {
            *match call.kernel().idempotence {
                Idempotence::Strict => &mut kernels.strict,
                Idempotence::Relaxed => &mut kernels.relaxed,
                Idempotence::Declared => &mut kernels.declared,
                _ => &mut kernels.without,
            } += 1;
        }
        kernels
    }
}

impl Estimate {
    /// Until a block-task ends, from a moment that is anywhere in it.
    pub fn drain(&self) -> Duration {
        self.block_task / 2
    }

    /// The part of the throughput that is lost where the work of a block-task up to such a moment is done again: with x of
    /// it done, x of 1 + x, whose mean is 1 - ln 2.
    pub fn flush_lost(&self) -> Option<f64> {
        self.yields.then_some(1.0 - std::f64::consts::LN_2)
    }

    /// Until all blocks of an SM have written these bytes each.
    pub fn switch(&self, bytes: Option<u64>) -> Option<Duration> {
        let bytes = bytes? * u64::from(self.blocks_per_sm);
        let took = bytes as f64 / self.bandwidth_of_sm;
        took.is_finite().then(|| Duration::from_secs_f64(took))
    }

    /// What is lost by that, by the time of a block-task: the bytes are written, and read again.
    pub fn switch_lost(&self, bytes: Option<u64>) -> Option<f64> {
        ratio(2 * self.switch(bytes)?, self.block_task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Black-Scholes as the paper's table 2 has it, on its device with 177.4 GB/s and 30 SMs.
    fn black_scholes() -> Estimate {
        Estimate {
            program: "BS",
            kernels: Kernels { strict: 1, ..Kernels::default() },
            kernel: "BlackScholesGPU",
            yields: true,
            block_tasks: 480,
            block_task: Duration::from_nanos(121_800),
            blocks_per_sm: 4,
            context: Some(24 << 10),
            saved: None,
            bandwidth_of_sm: 177.4e9 / 30.0,
            lost_to_pauses: None,
        }
    }

    #[test]
    fn estimates_are_those_of_the_paper() {
        let of = black_scholes();
        assert_eq!(of.drain(), Duration::from_nanos(60_900));
        let switch = of.switch(of.context).unwrap();
        assert!(
            switch.abs_diff(Duration::from_micros(17)) < Duration::from_micros(1),
            "{switch:?}"
        );
        let lost = of.switch_lost(of.context).unwrap();
        assert!((lost - 2.0 * 16.6 / 121.8).abs() < 0.01, "{lost}");
        assert!((of.flush_lost().unwrap() - 0.307).abs() < 1e-3);
        assert_eq!((of.switch(of.saved), of.switch_lost(of.saved)), (None, None));
    }

    #[test]
    fn a_kernel_without_yield_points_loses_nothing_by_what_cannot_be() {
        assert_eq!(Estimate { yields: false, ..black_scholes() }.flush_lost(), None);
    }
}
