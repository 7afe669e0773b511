//! Blocks that drain, are dropped or switch, and the choice among them (Chimera, ASPLOS 2015, figures 2, 3 and 6 to 11).

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use preempt_report::{digits, microseconds, percentile};
use preempt_workloads::{CHIMERA, Definition};
use serde_json::{Value, json};

use super::{Bench, Experiment, Outcome, Rows, line, with_tally};
use crate::samples::{mean, show, show_number, show_percent, show_time};

mod estimates;
mod halves;
mod paused;
mod periodic;
mod policies;
mod sharing;
mod site;

use estimates::{Estimate, Estimates};
pub use periodic::LIMIT;
use periodic::{Arm, Found, Periodic, Row};
use sharing::Pair;
use site::{Checks, Site};

/// The experiment `chimera`.
#[derive(Debug)]
pub struct Chimera;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
A periodic task with a deadline beside each of Chimera's programs, and pairs of them that share the
device, with blocks that leave their SM by one technique or by the one that costs least (Chimera,
sections 4.1, 4.2 and 4.4). Programs are at full size on a GPU, reduced on the CPU device. Signals
go by the proxy where that has its place, and the device knows then when one arrived; for others
the host's time counts, which is some microseconds longer.

The task, once in a period of 1 ms, takes half of the SMs from the program for 200 µs: those that
its blocks fill, and the program has the others; on the CPU device all that is 20 times longer. The
program runs again and again meanwhile, in its preemptible form. The arms, which take turns:

- drain: a block that has to leave ends its block-task.
- flush: it drops the block-task at its next yield point, and the block-task starts anew. Kernels
  without yield points drain, as those do that are not idempotent.
- switch: it saves the block-task at its next checkpoint, and another block goes on with it. Where
  there is no form of the program with checkpoints, the row has no numbers.
- choice: by cost, with a limit of 5 to 50 µs. 30 µs count for the summary, where the paper has 15,
  and for the deadlines of arms without a limit. Where there is a form with checkpoints, that runs.

- violations: stops that took longer than the limit, from the signal's arrival to the last block
  out, on the device's clock where it is known, as `Stats::stops` counts them; of arms with a limit
  only. To stop all blocks of half an H200 as soon as possible takes 16 to 19 µs.
- late: tasks that were not over at their deadline, as the host sees it, and were killed then:
  200 µs, the limit, the floor and 5 µs after the call of `launch`. The `floor` is the 99.8th
  percentile of the task's latency on an idle device. `latency` is from the call of `launch` to the
  end, less 200 µs. `beyond floor`: latencies of more than the floor and 5 µs.
- lost: the throughput of the program that is lost, 1 less its runs by those of a device that loses
  these SMs for 200 µs at no cost. That one runs the program at its rate alone, less half of it
  while the task has half of the SMs. Programs that leave SMs idle can lose less than nothing by
  that. `lost beside half`: the rate without these SMs is measured instead, beside a task that never
  ends. What a program gains because a task was killed or late does not count: the time that the
  task did not hold its SMs is taken off, at the rate of half of the device.
- drained, dropped, switched: blocks that had to leave, by what they did; `work dropped` is the time
  that dropped block-tasks had run, and `saved_bytes` the slots that blocks took at checkpoints.

In pairs both programs start at once, each is started again until the other one has ended, too, and
the first run of each counts. `in order`: plain grids, one kernel at a time in the order of arrival.
`shared`: preemptible, in even parts of the SMs except where a launch can fill fewer (Smart Even
with Rounds, in a policy of the suite's own), with a limit of 30 µs. `ceiling`: the same policy in
virtual time, where launching and preempting cost nothing, with the launches as they were alone.
`halves`: plain grids, each program on a part of the device that is its own (`Device::split`: on a
GPU green contexts, two of 64 SMs on an H200), where no block has to leave for another; measured
first, as the parts have the device then. The ceiling knows nothing of caches and memory that both
programs use, and takes it that a launch that would fill the device is twice as long on half of it;
halves have both as they are.
ANTT and STP are by the median time alone, plain, and for the ceiling by the time alone there.

For each program there is an estimate beside that, as the paper makes it (section 2.4). It is of
the `kernel` that takes the longest when the program runs alone, of those with yield points where
there are any, in the preemptible form without checkpoints.

- `block_task_us`: the mean time of its `block_tasks`, a launch's time by how many blocks run at a
  time: all that the SMs hold, or as many as there are block-tasks. Short launches have some
  microseconds of the host in it.
- `drain_us`: half of that, since a block is to leave at any moment of its block-task. To drain
  loses nothing. To drop the block-task at a yield point takes no time, and `flush_lost` is the mean
  of what is done again, by that and the block-task: 1 - ln 2.
- `switch_us`: the time in which all blocks of an SM write their slots at a checkpoint
  (`saved_bytes` each, padding included), where the SM has its part of the memory's
  bandwidth; `switch_lost`: two of that by the time of a block-task. `context_us` and `context_lost`
  are the same of all registers and shared memory (`context_bytes`), which the paper has.
- `lost_to_pauses`: what the program would lose beside the periodic task on a device that pauses half of
  its SMs for 200 µs at no cost, where no SM goes on with a block-task of another one: computed, from
  the launches as they were alone, with block-tasks that all take as long. Launches of few waves end
  later than by the SMs that they lack, which is in `lost` of every arm that takes the SMs.
- `kernels_strict`, `_relaxed`, `_declared` and `_without`: the program's kernels whose block-tasks
  may run again from any yield point, from those ahead of what cannot be repeated, because the
  kernel says so, and those without yield points. Where all or none are strict of those that may be
  dropped, `flush` or `drain` is what a device does that drops only these (the paper's figure 9).

- `violations_mean` and `_worst` (of the `violations_programs` whose launches were stopped at all),
  `throughput_lost_mean`, `end_to_end_late` and
  `end_to_end_beyond_floor` are of `choice` with `limit_us`; the mean and the worst are over the
  programs. `throughput_lost_flush`, `_switch` and `_drain` are means of the other arms, `_switch`
  of the programs that have checkpoints, null without any. `.._beside_half` are the same by the
  measured rate without the SMs.
- `antt_gain`: how many times lower ANTT is in `shared` than in order, `stp_gain`: by how much STP
  is higher, as a part; means over all pairs, and `lud_..` over those of LUD. `.._ceiling` is the
  same of the ceiling, `.._halves` of halves. `over_ceiling`: the lowest ratio of a mean to that of
  the ceiling, of the four means of ANTT and of STP, the latter with 1 added; `over_halves`: the
  same by the means of halves, and `halves_over_ceiling`: theirs by those of the ceiling.
- `by_kernel`, of `choice` with `limit_us`: the tasks by the kernel of the program that ran when they
  came, `beyond_floor` as a part of those.
- `with_checkpoints_over_without`: how much longer a program takes alone with checkpoints than with
  yield points in their places or without any, a ratio; `with_checkpoints_over_without_max` the largest. `lost` is
  by the rate with yield points in all arms, so it has this cost in it.
- `memory_gb_per_s`: what a copy of 1 GiB reads and writes in a second, on the CPU device a copy of
  64 KiB. `estimated_drain_us`, `estimated_switch_us` and so on are the means of the estimates, each
  over the programs that have it, as `throughput_lost_to_pauses` is of `lost_to_pauses`.
  `kernels_strict` and so on are sums over the programs.
- `wrong`: how often the outputs of a program were not those of an undisturbed run; they are
  compared after each part of an arm and each run of a pair. `drains`, `drops` and `switches` are
  blocks of the programs, over the whole suite.
";

impl Experiment for Chimera {
    fn name(&self) -> &'static str {
        "chimera"
    }

    fn about(&self) -> &'static str {
        "Drain, drop, switch, or the one that costs least: a periodic task beside each program, and pairs."
    }

    fn meaning(&self) -> &'static [&'static str] {
        &[MEANING]
    }

    fn programs(&self) -> Vec<&'static Definition> {
        CHIMERA.iter().collect()
    }

    fn run(&self, bench: &Bench) -> Result<Outcome> {
        run(bench)
    }
}

fn run(bench: &Bench) -> Result<Outcome> {
    let names: Vec<_> = CHIMERA.iter().map(|definition| definition.name).collect();
    let definitions = bench.programs_among(&names)?;
    let device = bench.device.as_ref().context("this suite is not simulated")?;
    ensure!(
        device.properties().sms >= 2,
        "a device with a single SM has no half of them: two at least"
    );
    let mut checks = Checks::default();
    let halves = halves::halves(bench, &definitions, &mut checks)?;
    let mut site = Site::new(bench, checks)?;
    let size = bench.sizes()[0];
    let programs = definitions.iter().map(|definition| site.prepare(definition, size));
    let programs = programs.collect::<Result<Vec<_>>>()?;
    let periodic = periodic::periodic(bench, &mut site, &programs)?;
    let pairs = sharing::sharing(bench, &mut site, &programs, halves)?;
    let estimates = estimates::estimates(bench, &mut site, &programs, &periodic)?;
    site.scheduler.synchronize()?;
    Ok(outcome(&periodic, &pairs, &estimates, &site))
}

/// The share of the stops or of the tasks of a row.
fn share(part: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| part as f64 / all as f64)
}

impl Row {
    /// `None` for arms without a limit.
    fn violations(&self) -> Option<f64> {
        let Found { stops, .. } = self.found.as_ref()?;
        matches!(self.arm, Arm::Choice(_)).then_some(())?;
        share(stops.violations, stops.count)
    }
}

/// The summary, by its keys.
fn summary(periodic: &Periodic, pairs: &[Pair], estimates: &Estimates, site: &Site) -> Value {
    let of = |arm| periodic.rows.iter().filter(move |row: &&Row| row.arm == arm);
    let chosen = Arm::Choice(LIMIT);
    let violations: Vec<f64> = of(chosen).filter_map(Row::violations).collect();
    let lost = |arm| mean(&of(arm).filter_map(|row| row.lost(periodic)).collect::<Vec<_>>());
    let lost_beside_half =
        |arm| mean(&of(arm).filter_map(|row| row.lost_beside_half(periodic)).collect::<Vec<_>>());
    let found = || of(chosen).filter_map(|row| row.found.as_ref());
    let tasks: u64 = found().map(|found| found.latencies.len() as u64).sum();
    let stops = site.scheduler.stats().stops;
    let mut summary = json!({
        "violations_mean": mean(&violations),
        "violations_programs": violations.len(),
        "violations_worst": violations.iter().copied().reduce(f64::max),
        "limit_us": microseconds(LIMIT),
        "longest_stop_us": microseconds(periodic.longest),
        "end_to_end_samples": tasks,
        "end_to_end_late": share(found().map(|found| found.late).sum(), tasks),
        "end_to_end_beyond_floor": share(found().map(|found| found.beyond(periodic.floor)).sum(), tasks),
        "floor_p998_us": microseconds(periodic.floor),
        "task_us": microseconds(periodic.task),
        "period_us": microseconds(periodic.period),
        "throughput_lost_mean": lost(chosen),
        "throughput_lost_flush": lost(Arm::Flush),
        "throughput_lost_switch": lost(Arm::Switch),
        "throughput_lost_drain": lost(Arm::Drain),
        "throughput_lost_mean_beside_half": lost_beside_half(chosen),
        "throughput_lost_flush_beside_half": lost_beside_half(Arm::Flush),
        "throughput_lost_switch_beside_half": lost_beside_half(Arm::Switch),
        "throughput_lost_drain_beside_half": lost_beside_half(Arm::Drain),
        "with_checkpoints_over_without_max":
            of(chosen).filter_map(Row::cost_of_checkpoints).reduce(f64::max),
        "pairs": pairs.len(),
        "wrong": site.checks.wrong,
        "drains": stops.drained,
        "drops": stops.requeued.saturating_sub(periodic.killed),
        "switches": stops.switched,
    });
    for more in [shared(pairs), estimated(estimates)] {
        if let (Some(summary), Value::Object(more)) = (summary.as_object_mut(), more) {
            summary.extend(more);
        }
    }
    with_tally(summary, &site.checks.tally)
}

/// The keys of the pairs.
fn shared(pairs: &[Pair]) -> Value {
    // ANTT and STP, each of what was measured, of the ceiling and of halves, by that in order.
    let gains = |shown: bool| {
        let of = || pairs.iter().filter(|pair| !shown || pair.is_shown());
        let mean_of =
            |gain: &dyn Fn(&Pair) -> Option<f64>| mean(&of().filter_map(gain).collect::<Vec<_>>());
        [
            mean_of(&|pair| Some(pair.antt()[0]? / pair.antt()[1]?)),
            mean_of(&|pair| Some(pair.antt()[0]? / pair.antt()[2]?)),
            mean_of(&|pair| Some(pair.antt()[0]? / pair.antt()[3]?)),
            mean_of(&|pair| Some(pair.stp()[1]? / pair.stp()[0]?)),
            mean_of(&|pair| Some(pair.stp()[2]? / pair.stp()[0]?)),
            mean_of(&|pair| Some(pair.stp()[3]? / pair.stp()[0]?)),
        ]
    };
    let (all, lud) = (gains(false), gains(true));
    let part = |ratio: Option<f64>| ratio.map(|ratio| ratio - 1.0);
    // The lowest of the four ratios between what is at two places of these.
    let over = |of: usize, other: usize| {
        let pairs = [all, lud]
            .into_iter()
            .flat_map(|gains| [gains[of].zip(gains[other]), gains[of + 3].zip(gains[other + 3])]);
        pairs.flatten().map(|(of, other)| of / other).reduce(f64::min)
    };
    json!({
        "antt_gain": all[0],
        "antt_ceiling": all[1],
        "antt_halves": all[2],
        "stp_gain": part(all[3]),
        "stp_ceiling": part(all[4]),
        "stp_halves": part(all[5]),
        "lud_antt_gain": lud[0],
        "lud_antt_ceiling": lud[1],
        "lud_antt_halves": lud[2],
        "lud_stp_gain": part(lud[3]),
        "lud_stp_ceiling": part(lud[4]),
        "lud_stp_halves": part(lud[5]),
        "over_ceiling": over(0, 1),
        "over_halves": over(0, 2),
        "halves_over_ceiling": over(2, 1),
    })
}

/// The keys of the estimates.
fn estimated(Estimates { programs, bandwidth }: &Estimates) -> Value {
    let mean_of = |of: fn(&Estimate) -> Option<f64>| {
        mean(&programs.iter().filter_map(of).collect::<Vec<_>>())
    };
    let sum = |of: fn(&Estimate) -> u32| programs.iter().map(of).sum::<u32>();
    json!({
        "memory_gb_per_s": bandwidth / 1e9,
        "estimated_drain_us": mean_of(|of| Some(microseconds(of.drain()))),
        "estimated_switch_us": mean_of(|of| of.switch(of.saved).map(microseconds)),
        "estimated_context_us": mean_of(|of| of.switch(of.context).map(microseconds)),
        "estimated_flush_lost": mean_of(Estimate::flush_lost),
        "estimated_switch_lost": mean_of(|of| of.switch_lost(of.saved)),
        "estimated_context_lost": mean_of(|of| of.switch_lost(of.context)),
        "throughput_lost_to_pauses": mean_of(|of| of.lost_to_pauses),
        "kernels_strict": sum(|of| of.kernels.strict),
        "kernels_relaxed": sum(|of| of.kernels.relaxed),
        "kernels_declared": sum(|of| of.kernels.declared),
        "kernels_without": sum(|of| of.kernels.without),
    })
}

/// A count, where there is one.
fn show_count(count: Option<u64>) -> String {
    count.map_or_else(|| "-".to_owned(), |count| count.to_string())
}

fn push_row(rows: &mut Rows, periodic: &Periodic, row: &Row) {
    let found = row.found.as_ref();
    let tasks = found.map(|found| found.latencies.len() as u64);
    let latency = |share| {
        let mut sorted = found?.latencies.clone();
        sorted.sort_unstable();
        percentile(&sorted, share)
    };
    let late = found.zip(tasks).and_then(|(found, tasks)| share(found.late, tasks));
    let beyond =
        found.zip(tasks).and_then(|(found, tasks)| share(found.beyond(periodic.floor), tasks));
    let [p50, p998, max] = [0.5, 0.998, 1.0].map(latency);
    let (lost, beside_half) = (row.lost(periodic), row.lost_beside_half(periodic));
    let stops = found.map(|found| found.stops);
    let cells = line([
        row.program,
        row.arm.name(),
        &format!("{} µs", digits(microseconds(row.arm.limit()))),
        if found.is_some() { row.form.name() } else { "no checkpoint" },
        &show_percent(row.violations()),
        &show_percent(late),
        &show_time(p50),
        &show_time(p998),
        &show_percent(lost),
        &show_percent(beside_half),
        &show_count(stops.map(|stops| stops.drained)),
        &show_count(stops.map(|stops| stops.requeued)),
        &show_count(stops.map(|stops| stops.switched)),
    ]);
    let json = json!({
        "program": row.program,
        "arm": row.arm.name(),
        "limit_us": microseconds(row.arm.limit()),
        "form": if found.is_some() { row.form.name() } else { "no checkpoint" },
        "runs": found.map(|found| found.runs),
        "tasks": tasks,
        "stops": stops.map(|stops| stops.count),
        "violations": row.violations(),
        "late": late,
        "beyond_floor": beyond,
        "latency_p50_us": p50.map(microseconds),
        "latency_p998_us": p998.map(microseconds),
        "latency_max_us": max.map(microseconds),
        "throughput_lost": lost,
        "throughput_lost_beside_half": beside_half,
        "with_checkpoints_over_without": row.cost_of_checkpoints(),
        "drained": stops.map(|stops| stops.drained),
        "requeued": stops.map(|stops| stops.requeued),
        "switched": stops.map(|stops| stops.switched),
        "work_dropped_us": stops.map(|stops| microseconds(stops.lost)),
        "saved_bytes": stops.map(|stops| stops.saved_bytes),
        "by_kernel": by_kernel(periodic, row),
    });
    rows.push(cells, json);
}

/// The tasks of a row by the kernel that they met; of the arm of the summary, whose tasks are enough for it.
fn by_kernel(periodic: &Periodic, row: &Row) -> Option<Vec<Value>> {
    (row.arm == Arm::Choice(LIMIT)).then(|| {
        let told = row.by_kernel().into_iter().map(|mut beside| {
            beside.latencies.sort_unstable();
            let [p50, p998] = [0.5, 0.998].map(|share| percentile(&beside.latencies, share));
            let tasks = beside.latencies.len() as u64;
            json!({
                "kernel": beside.kernel,
                "tasks": tasks,
                "beyond_floor": share(beside.beyond(periodic.floor), tasks),
                "latency_p50_us": p50.map(microseconds),
                "latency_p998_us": p998.map(microseconds),
            })
        });
        told.collect()
    })
}

fn push_pair(rows: &mut Rows, pair: &Pair) {
    let (antt, stp) = (pair.antt(), pair.stp());
    let [in_order, shared, halves] = pair.measured();
    let arms = [
        ("in order", in_order, pair.alone),
        ("shared", shared, pair.alone),
        ("ceiling", pair.ceiling, pair.alone_there),
        ("halves", halves, pair.alone),
    ];
    let arms = arms.into_iter().take(if pair.has_halves() { 4 } else { 3 });
    for (index, (arm, times, alone)) in arms.enumerate() {
        let told = |times: [Duration; 2]| times.map(show).join("  ");
        let mut cells = line([&pair.names.join(" "), arm]);
        cells.extend([
            "-".to_owned(),
            format!("ANTT {}, STP {}", show_number(antt[index]), show_number(stp[index])),
        ]);
        cells.extend(line(["-", "-", &told(times), &told(alone), "-", "-", "-", "-", "-"]));
        let json = json!({
            "pair": pair.names,
            "arm": arm,
            "samples": pair.shared[0].len(),
            "antt": antt[index],
            "stp": stp[index],
            "turnaround_p50_us": times.map(microseconds),
            "alone_p50_us": alone.map(microseconds),
            "yields": if arm == "shared" { Some(pair.yields) } else { None },
        });
        rows.push(cells, json);
    }
}

fn push_estimate(rows: &mut Rows, of: &Estimate) {
    let [switch, context] = [of.saved, of.context].map(|bytes| of.switch(bytes));
    let [switch_lost, context_lost] = [of.saved, of.context].map(|bytes| of.switch_lost(bytes));
    let told = format!("block-task {}, switch {}", show(of.block_task), show_time(switch));
    let mut cells = line([of.program, "estimate", "-", &told]);
    cells.extend(line(["-", "-", &show(of.drain()), "-"]));
    cells.extend(line([&show_percent(of.flush_lost()), "-", "-", "-", "-"]));
    let json = json!({
        "estimated": of.program,
        "kernel": of.kernel,
        "block_tasks": of.block_tasks,
        "block_task_us": microseconds(of.block_task),
        "blocks_per_sm": of.blocks_per_sm,
        "saved_bytes": of.saved,
        "context_bytes": of.context,
        "drain_us": microseconds(of.drain()),
        "switch_us": switch.map(microseconds),
        "context_us": context.map(microseconds),
        "flush_lost": of.flush_lost(),
        "switch_lost": switch_lost,
        "context_lost": context_lost,
        "lost_to_pauses": of.lost_to_pauses,
        "kernels_strict": of.kernels.strict,
        "kernels_relaxed": of.kernels.relaxed,
        "kernels_declared": of.kernels.declared,
        "kernels_without": of.kernels.without,
    });
    rows.push(cells, json);
}

fn outcome(periodic: &Periodic, pairs: &[Pair], estimates: &Estimates, site: &Site) -> Outcome {
    let summary = summary(periodic, pairs, estimates, site);
    let mut rows = Rows::below([
        "program",
        "arm",
        "limit",
        "leaves at",
        "violations",
        "late",
        "latency p50",
        "p99.8",
        "lost",
        "lost beside half",
        "drained",
        "dropped",
        "switched",
    ]);
    periodic.rows.iter().for_each(|row| push_row(&mut rows, periodic, row));
    pairs.iter().for_each(|pair| push_pair(&mut rows, pair));
    estimates.programs.iter().for_each(|of| push_estimate(&mut rows, of));
    let percent = |key: &str| show_percent(summary[key].as_f64());
    Outcome {
        about: format!(
            "A task that takes half of the SMs for {} in every {} from programs, and pairs of these that share the \
             device; of pairs the turnarounds, and those alone; of estimates what it takes to drain, and what is lost \
             if a block-task is dropped. With the choice, {} of the stops take longer than \
             {}, and {} of the throughput is lost.",
            show(periodic.task),
            show(periodic.period),
            percent("violations_mean"),
            show(LIMIT),
            percent("throughput_lost_mean"),
        ),
        table: rows.table,
        text_columns: 4,
        rows: rows.json,
        summary,
        mistake: site.checks.tally.mistake.clone(),
    }
}
