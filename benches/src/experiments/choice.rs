//! Which SMs an urgent launch takes: the first ones, or those that cost least by how far the block-tasks there are (Chimera,
//! algorithm 1).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Result;
use preempt::policy::{Arrival, DeviceView, Plan, Policy, Priority, SmRange};
use preempt::{Buffer, Call, LaunchId, LaunchReport, NoGrid, Scheduler, Stream};
use preempt_microkernels::{count, uneven, uneven_yielding};
use preempt_report::{digits, microseconds};
use preempt_test_kit::Random;
use preempt_test_kit::storm::Tally;
use serde_json::{Value, json};

use super::chimera::LIMIT;
use super::{Bench, Experiment, Outcome, line, with_tally};
use crate::progress::Progress;
use crate::samples::{Samples, ratio, show};

/// Nanoseconds: the mean time of a block-task.
const MEAN: u64 = 500_000;

/// Block-tasks of the victim for each block that the device holds, and with `--quick`.
const ROUNDS: u32 = 20;
const QUICK_ROUNDS: u32 = 4;

/// Samples of each arm, and with `--quick`.
const SAMPLES: u32 = 300;
const QUICK_SAMPLES: u32 = 4;

/// Threads of a block on a GPU: an SM holds two of them.
const THREADS: u32 = 1024;

/// SMs that urgent launches fill.
const NEEDS: [u32; 3] = [1, 2, 8];

/// Time that `wait` spins.
const SPIN: Duration = Duration::from_millis(100);

/// The experiment `choice`.
#[derive(Debug)]
pub struct Choice;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
Which SMs an urgent launch takes from a kernel of long block-tasks: always the first ones, or those
that cost least by how far the block-tasks there are (Chimera, algorithm 1).

The victim's block-tasks take 500 us on average, evenly from half to one and a half times as long;
on a GPU an SM holds two of them. One victim has no yield points, so blocks end their block-tasks
first; the other has, and what its block-tasks have done is done again. The urgent launch needs one
SM, two or eight, and comes at a random moment, after a fifth to three fifths of the victim's time.
Beside the victim with yield points it has a latency limit of 30 us, as in the suite chimera:
without one, it does not wait for the look at block-tasks.

- first, cheapest: the SMs that the policy gives to the urgent launch: from SM 0 on, or what
  `DeviceView::cheapest_sms` says. Both arms take turns.
- urgent: from the call of `launch` to the return of `wait`, which spins. Without yield points that
  is mostly the wait for the last block on the SMs.
- work lost: the time that block-tasks had run which are done again, summed over blocks, in the
  mean of all samples: only with yield points.
- `cheapest_over_first_urgent`: the ratio of both arms' medians, of the victim without yield points,
  for the urgent launch that needs one SM; `cheapest_over_first_lost` the ratio of the work lost, of
  the other victim.
- Each block-task counts, or leaves the launch's number where it may be dropped, and is checked
  after each sample.
";

impl Experiment for Choice {
    fn name(&self) -> &'static str {
        "choice"
    }

    fn about(&self) -> &'static str {
        "Which SMs an urgent launch takes: the first ones, or the cheapest."
    }

    fn meaning(&self) -> &'static [&'static str] {
        &[MEANING]
    }

    /// Enough SMs that there is a choice.
    fn shape(&self, processors: u32) -> (u32, u32) {
        (processors.saturating_sub(1).clamp(4, 8), 1)
    }

    fn run(&self, bench: &Bench) -> Result<Outcome> {
        run(bench)
    }
}

/// Of two launches, the more urgent one has as many SMs as it needs, and the other the rest. Further launches wait.
#[derive(Debug, Default)]
struct Takes {
    /// Whether it takes the cheapest SMs.
    cheapest: Arc<AtomicBool>,
    /// The launches, the most urgent first, with the SMs that an urgent one was given.
    waiting: BTreeMap<(Reverse<Priority>, u64), (LaunchId, Option<SmRange>)>,
    arrivals: u64,
}

impl Policy for Takes {
    fn name(&self) -> &str {
        "choice"
    }

    fn arrived(&mut self, _now: Duration, launch: Arrival) {
        self.arrivals += 1;
        self.waiting.insert((Reverse(launch.priority), self.arrivals), (launch.id, None));
    }

    fn departed(&mut self, _now: Duration, launch: LaunchId) {
        self.waiting.retain(|_, waiting| waiting.0 != launch);
    }

    fn assign(&mut self, _now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        let victim = self.waiting.values().nth(1).map(|waiting| waiting.0);
        let Some(((Reverse(priority), _), (first, given))) = self.waiting.iter_mut().next() else {
            return;
        };
        let sms = device.sms();
        if *priority == Priority(0) {
            plan.grant(*first, SmRange::new(0, sms));
            return;
        }
        let range = *given.get_or_insert_with(|| {
            let need = device.need(*first).clamp(1, sms - 1);
            match victim {
                // Relaxed: it changes while no urgent launch is in flight.
                Some(victim) if self.cheapest.load(Relaxed) && !device.range(victim).is_empty() => {
                    device.cheapest_sms(victim, need)
                }
                _ => SmRange::new(0, need),
            }
        });
        plan.grant(*first, range);
        if let Some(victim) = victim {
            let (lo, hi) = (range.hi() % sms, range.lo());
            plan.grant(victim, SmRange::new(lo, if hi == 0 { sms } else { hi }));
        }
    }
}

/// A kernel whose block-tasks leave the number of its launch.
struct Numbered {
    /// The call of the launch with this number.
    call: fn(u32, &mut Buffer<u32>) -> Call<'static, NoGrid>,
    threads: u32,
    tasks: u32,
    numbers: Buffer<u32>,
    launches: u32,
}

impl Numbered {
    fn new(
        scheduler: &Scheduler,
        (tasks, threads): (u32, u32),
        call: fn(u32, &mut Buffer<u32>) -> Call<'static, NoGrid>,
    ) -> Result<Numbered> {
        let numbers = scheduler.zeroed(tasks as usize)?;
        Ok(Numbered { call, threads, tasks, numbers, launches: 0 })
    }

    /// The call of the next launch.
    fn next(&mut self) -> Call<'static> {
        self.launches += 1;
        (self.call)(self.launches, &mut self.numbers).block(self.threads).grid(self.tasks)
    }

    /// Checks the last launch, which is over.
    fn check(&self, stream: &Stream, report: &LaunchReport, tally: &mut Tally) -> Result<()> {
        tally.report(report);
        let numbers = stream.download(&self.numbers)?.wait()?;
        tally.count("block-tasks", &numbers, &vec![self.launches; numbers.len()]);
        Ok(())
    }
}

/// What was measured with one victim, one urgent launch and one choice.
#[derive(Default)]
struct Arm {
    urgent: Samples,
    victim: Samples,
    lost: Duration,
    yields: u64,
}

struct Row {
    yields: bool,
    sms: u32,
    cheapest: bool,
    arm: Arm,
}

fn run(bench: &Bench) -> Result<Outcome> {
    let takes = Takes::default();
    let cheapest = takes.cheapest.clone();
    let scheduler = bench.spinning_scheduler(takes, SPIN)?;
    let device = scheduler.device().properties().clone();
    let (threads, per_sm) = if bench.gpu.is_some() { (THREADS, 2) } else { (1, 1) };
    let places = device.sms * per_sm;
    let tasks = places * bench.amount(QUICK_ROUNDS, ROUNDS);
    let samples = bench.amount(QUICK_SAMPLES, SAMPLES);
    let (low, high) = (scheduler.stream(0), scheduler.stream(1));
    let (mut random, mut tally) = (Random(bench.seed), Tally::default());
    let mut rows = Vec::new();
    for yields in [false, true] {
        let call: fn(u32, &mut Buffer<u32>) -> Call<'static, NoGrid> = match yields {
            false => |_, counts| uneven(MEAN, counts),
            true => |number, done| uneven_yielding(MEAN, number, done),
        };
        high.set_latency_limit(yields.then_some(LIMIT));
        let mut victim = Numbered::new(&scheduler, (tasks, threads), call)?;
        let mut alone = Samples::default();
        // The first ones are of unknown duration.
        for round in 0..6 {
            let start = Instant::now();
            let report = low.launch(victim.next())?.wait()?;
            if round >= 3 {
                alone.push(start.elapsed());
            }
            victim.check(&low, &report, &mut tally)?;
        }
        let needs = NEEDS.into_iter().filter(|&sms| sms < device.sms);
        for sms in needs {
            let mut urgent =
                Numbered::new(&scheduler, (sms * per_sm, threads), |_, counts| count(counts))?;
            let progress = Progress::new(format!("{sms} SMs"), u64::from(samples));
            let mut arms: [Arm; 2] = Default::default();
            for round in 0..samples {
                for turn in 0..2 {
                    let choice = ((round + turn) % 2) as usize;
                    cheapest.store(choice == 1, Relaxed);
                    let lost = scheduler.stats().stops.lost;
                    let share = 0.2 + 0.4 * f64::from(random.below(1000)) / 1000.0;
                    let start = Instant::now();
                    let handle = low.launch(victim.next())?;
                    while start.elapsed() < alone.p50().mul_f64(share) {
                        std::hint::spin_loop();
                    }
                    let begin = Instant::now();
                    let of_urgent = high.launch(urgent.next())?.wait()?;
                    let took = begin.elapsed();
                    let of_victim = handle.wait()?;
                    let arm = &mut arms[choice];
                    arm.victim.push(start.elapsed());
                    arm.urgent.push(took);
                    arm.yields += u64::from(of_victim.yields);
                    scheduler.synchronize()?;
                    arm.lost += scheduler.stats().stops.lost.saturating_sub(lost);
                    urgent.check(&high, &of_urgent, &mut tally)?;
                    victim.check(&low, &of_victim, &mut tally)?;
                }
                progress.step();
            }
            let [first, chosen] = arms;
            for (cheapest, arm) in [(false, first), (true, chosen)] {
                rows.push(Row { yields, sms, cheapest, arm });
            }
        }
    }
    scheduler.synchronize()?;
    Ok(outcome(&rows, tally))
}

impl Row {
    /// The time of block-tasks that was lost, in the mean of all samples.
    fn lost(&self) -> Duration {
        self.arm.lost / (self.arm.urgent.len() as u32).max(1)
    }

    fn line(&self) -> Vec<String> {
        let Arm { urgent, victim, .. } = &self.arm;
        line([
            if self.yields { "yes" } else { "no" },
            if self.cheapest { "cheapest" } else { "first" },
            &self.sms.to_string(),
            &urgent.len().to_string(),
            &show(urgent.p50()),
            &show(urgent.summary().p99),
            &show(self.lost()),
            &show(victim.p50()),
        ])
    }

    fn json(&self) -> Value {
        let Arm { urgent, victim, yields, .. } = &self.arm;
        json!({
            "yield_points": self.yields,
            "arm": if self.cheapest { "cheapest" } else { "first" },
            "sms": self.sms,
            "samples": urgent.len(),
            "urgent_p50_us": microseconds(urgent.p50()),
            "urgent_p99_us": microseconds(urgent.summary().p99),
            "lost_mean_us": microseconds(self.lost()),
            "victim_p50_us": microseconds(victim.p50()),
            "yields": yields,
        })
    }
}

fn outcome(rows: &[Row], tally: Tally) -> Outcome {
    let of = |yields: bool, cheapest: bool| {
        rows.iter().find(|row| row.yields == yields && row.cheapest == cheapest && row.sms == 1)
    };
    let pair = |yields: bool| of(yields, true).zip(of(yields, false));
    let urgent = pair(false)
        .and_then(|(chosen, first)| ratio(chosen.arm.urgent.p50(), first.arm.urgent.p50()));
    let lost = pair(true).and_then(|(chosen, first)| ratio(chosen.lost(), first.lost()));
    let summary = with_tally(
        json!({
            "cheapest_over_first_urgent": urgent,
            "cheapest_over_first_lost": lost,
            "yields": rows.iter().map(|row| row.arm.yields).sum::<u64>(),
        }),
        &tally,
    );
    let told = |ratio: Option<f64>| ratio.map_or("-".into(), digits);
    let about = format!(
        "An urgent launch takes SMs from a kernel of long block-tasks: always the first ones, or the cheapest. On the \
         cheapest SM it takes {} of the time until blocks without yield points have left, and {} of the work is lost \
         that blocks with yield points do again.",
        told(urgent),
        told(lost),
    );
    let mut table = vec![line([
        "yield points",
        "takes",
        "SMs",
        "samples",
        "urgent p50",
        "urgent p99",
        "work lost",
        "victim p50",
    ])];
    table.extend(rows.iter().map(Row::line));
    let rows = rows.iter().map(Row::json).collect();
    Outcome { about, table, text_columns: 2, rows, summary, mistake: tally.mistake }
}
