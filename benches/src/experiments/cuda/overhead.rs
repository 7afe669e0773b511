//! The cost of being preemptible for a kernel that is not preempted, and the time that it takes to stop. Measured for
//! the dominating launch of each program, in its plain form, ours, FLEP's loop, and in slices (FLEP figures 10 and 17,
//! EffiSha figures 13 and 14).

use std::time::Duration;

use anyhow::Result;
use preempt::policy::StaticPriority;
use preempt::{Preemption, Scheduler, SignalPath, Stream};
use preempt_driver::Gpu;
use preempt_report::{digits, microseconds};
use preempt_test_kit::Random;
use preempt_test_kit::storm::Tally;
use preempt_workloads::{Definition, Size};
use serde_json::{Value, json};

use super::super::corun::LEARNING;
use super::super::{Bench, Outcome, line};
use super::raw_arms::RawArms;
use super::subject::{Demand, Modules, Subject};
use crate::progress::Progress;
use crate::samples::{Samples, geometric_mean, ratio, show};

/// Samples of the plain entry and of ours, of each other arm's time, and of each stop.
const SAMPLES: [u32; 3] = [100, 10, 100];
/// The same with `--quick`.
const QUICK: [u32; 3] = [5, 2, 5];

/// Time that `wait` spins; the raw side spins, too.
const SPIN: Duration = Duration::from_millis(100);

/// Time of a chunk: what a stop may take beyond the floor and the longest block-task.
const CHUNK: Duration = Duration::from_micros(10);

/// A kernel's times in one form.
struct Arm {
    name: &'static str,
    /// Times of the launch alone.
    time: Samples,
    /// Times from the launch to the host's knowledge of the end.
    done: Samples,
    /// `done` of plain launches in turn with these, where the row's were not.
    plain_done: Option<Samples>,
    /// Times from a stop to the end.
    stop: Samples,
    amortize: Option<u32>,
    demand: Demand,
    /// Blocks of a slice.
    blocks: Option<u32>,
}

impl Arm {
    fn new(name: &'static str, demand: Demand) -> Arm {
        let (time, done, stop) = Default::default();
        Arm { name, time, done, plain_done: None, stop, amortize: None, demand, blocks: None }
    }
}

/// A kernel.
struct Row {
    name: &'static str,
    kernel: &'static str,
    yields: bool,
    tasks: u32,
    longest: Duration,
    plain: Arm,
    /// Times through the scheduler, in the form that it chose at last, to those of the plain form.
    chosen: Arm,
    is_plain: bool,
    preemptible: Arm,
    /// Times with signals by the proxy.
    proxy: Arm,
    flep: Arm,
    slices: Arm,
}

/// Measures every program.
pub fn run(bench: &Bench, gpu: Gpu) -> Result<Outcome> {
    let counts = bench.amount(QUICK, SAMPLES);
    let size = bench.amount(Size::Small, Size::Large);
    let scheduler = bench.spinning_scheduler(StaticPriority::new(), SPIN)?;
    // Without a stream that may preempt, a launch need not leave soon, and is plain however long its blocks are.
    let _more_urgent = scheduler.stream(1);
    let mut tally = Tally::default();
    let mut random = Random(bench.seed);
    let floor = floor(gpu, counts[2], &mut random)?;
    let modules = Modules::load(&scheduler)?;
    let progress = Progress::new("programs", bench.programs.len() as u64);
    let mut rows = Vec::new();
    for &definition in &bench.programs {
        let mut arms = Arms {
            subject: Subject::new(&scheduler, gpu, &modules, definition, size, bench.seed as u32)?,
            scheduler: &scheduler,
            stream: scheduler.stream(0),
            random: &mut random,
        };
        rows.push(arms.measure(definition, counts, &mut tally)?);
        drop(arms);
        progress.step();
    }
    scheduler.synchronize()?;
    drop(scheduler);
    // The scheduler has one path of signals as long as it lives, so this cannot take turns with the others. Plain
    // launches are measured again beside it.
    let scheduler = bench.spinning_scheduler_by(SignalPath::Proxy, StaticPriority::new(), SPIN)?;
    let stream = scheduler.stream(0);
    for (row, &definition) in rows.iter_mut().zip(&bench.programs) {
        let seed = bench.seed as u32;
        let mut subject = Subject::new(&scheduler, gpu, &modules, definition, size, seed)?;
        let mut plain = Samples::default();
        for round in 0..=3 * counts[1] {
            let times =
                [subject.plain_done()?, subject.scheduled(&stream, Preemption::Preemptible)?.0];
            scheduler.synchronize()?;
            if round > 0 {
                plain.push(times[0]);
                row.proxy.done.push(times[1]);
            }
        }
        row.proxy.plain_done = Some(plain);
    }
    Ok(outcome(&rows, &floor, tally))
}

/// The least time until the host knows that all blocks have left: that of a kernel that looks at the signal every
/// microsecond.
fn floor(gpu: Gpu, samples: u32, random: &mut Random) -> Result<Samples> {
    let mut raw = RawArms::new(gpu, Duration::from_micros(10), true, Duration::from_millis(4))?;
    let mut floor = Samples::default();
    for _ in 0..samples {
        let pause = Duration::from_micros(random.below(1000).into());
        if let Some(times) = raw.floor(true, pause)? {
            floor.push(times.drained);
        }
    }
    Ok(floor)
}

struct Arms<'a> {
    subject: Subject,
    scheduler: &'a Scheduler,
    stream: Stream,
    random: &'a mut Random,
}

impl Arms<'_> {
    fn measure(
        &mut self,
        definition: &'static Definition,
        [samples, others, stops]: [u32; 3],
        tally: &mut Tally,
    ) -> Result<Row> {
        let subject = &mut self.subject;
        let mut row = Row {
            name: definition.name,
            kernel: subject.kernel(),
            yields: subject.yields(),
            tasks: subject.tasks(),
            longest: Duration::ZERO,
            plain: Arm::new("plain", subject.plain_demand),
            chosen: Arm::new("preempt", subject.demand),
            is_plain: false,
            preemptible: Arm::new("preempt, all preemptible", subject.demand),
            proxy: Arm::new("preempt, by the proxy", subject.demand),
            flep: Arm::new("FLEP's loop", subject.flep_demand),
            slices: Arm::new("slices", subject.plain_demand),
        };
        row.flep.amortize = Some(definition.flep_amortize);
        let mut amortize = Vec::new();
        let mut plain_done = Samples::default();
        // The first rounds warm up, and teach the scheduler what each form costs.
        for round in 0..samples + LEARNING {
            // Each goes first in every other round.
            let (plain, (mine, factor)) = if round % 2 == 0 {
                let mine = subject.preemptible()?;
                (subject.plain()?, mine)
            } else {
                (subject.plain()?, subject.preemptible()?)
            };
            let mut through = |preemption| {
                let run = subject.scheduled(&self.stream, preemption)?;
                self.scheduler.synchronize()?;
                Ok::<_, anyhow::Error>(run)
            };
            let forms = [Preemption::Preemptible, Preemption::Plain, Preemption::Auto];
            let mut scheduled = forms.map(|form| (form, None));
            // In another order in each round.
            scheduled.rotate_left(round as usize % forms.len());
            for (form, run) in &mut scheduled {
                *run = Some(through(*form)?);
            }
            scheduled.sort_by_key(|(form, _)| forms.iter().position(|other| other == form));
            let [loops, plain_scheduled, chosen] =
                scheduled.map(|(_, run)| run.unwrap_or_default());
            let done = [subject.plain_done()?, loops.0];
            self.scheduler.synchronize()?;
            if round >= LEARNING {
                row.chosen.done.push(chosen.0);
                plain_done.push(plain_scheduled.0);
                row.is_plain = chosen.1;
                row.plain.time.push(plain);
                row.preemptible.time.push(mine);
                row.plain.done.push(done[0]);
                row.preemptible.done.push(done[1]);
                amortize.push(factor);
            }
        }
        row.chosen.plain_done = Some(plain_done);
        amortize.sort_unstable();
        row.preemptible.amortize = amortize.get(amortize.len() / 2).copied();
        for _ in 0..3 {
            row.longest = row.longest.max(subject.longest()?);
        }
        for round in 0..=others {
            let time = subject.flep()?;
            if round > 0 {
                row.flep.time.push(time);
            }
        }
        self.stops(&mut row, stops)?;
        self.slices(&mut row, others, stops)?;
        self.check(&row, tally)?;
        Ok(row)
    }

    /// A moment in the middle of this time.
    fn moment(&mut self, time: Duration) -> Duration {
        time.mul_f64(0.1 + 0.7 * f64::from(self.random.below(1000)) / 1000.0)
    }

    fn stops(&mut self, row: &mut Row, stops: u32) -> Result<()> {
        for _ in 0..stops {
            let after = self.moment(row.preemptible.time.p50());
            row.preemptible.stop.extend(self.subject.stop(after)?);
        }
        for _ in 0..stops.div_ceil(5) {
            let after = self.moment(row.flep.time.p50());
            row.flep.stop.extend(self.subject.flep_stop(after)?);
        }
        Ok(())
    }

    /// The largest slices that stop no later than ours, down to a quarter of their size where they do not fill the
    /// device. If none do, because a block-task alone takes longer, smaller slices as long as each halving makes the
    /// stop a tenth shorter.
    fn slices(&mut self, row: &mut Row, others: u32, stops: u32) -> Result<()> {
        let limit = row.preemptible.stop.p50();
        let mut blocks = self.subject.wave();
        let (mut times, mut stop) = self.sliced(blocks, others, stops)?;
        // No stop was seen if a single slice is the whole grid.
        let is_in_time = |stop: &Samples| stop.len() > 0 && stop.p50() <= limit;
        let grows = is_in_time(&stop);
        loop {
            let next = if grows { blocks.saturating_mul(2) } else { blocks / 2 };
            let is_last = if grows { blocks >= row.tasks } else { is_in_time(&stop) };
            if is_last || next == 0 {
                break;
            }
            let tried = self.sliced(next, others, stops)?;
            let is_better = match grows {
                true => is_in_time(&tried.1),
                false => stop.len() == 0 || tried.1.p50() <= stop.p50().mul_f64(0.9),
            };
            if !is_better {
                break;
            }
            blocks = next;
            (times, stop) = tried;
        }
        if !grows && is_in_time(&stop) {
            // Twice that number was too many.
            let mut more = blocks / 2;
            for _ in 0..2 {
                let tried = self.sliced(blocks + more, others, stops)?;
                if more > 0 && is_in_time(&tried.1) {
                    blocks += more;
                    (times, stop) = tried;
                }
                more /= 2;
            }
        }
        row.slices.done = times;
        row.slices.stop = stop;
        row.slices.blocks = Some(blocks);
        Ok(())
    }

    /// The times of whole runs in slices of `blocks` blocks, and of stops.
    fn sliced(&mut self, blocks: u32, others: u32, stops: u32) -> Result<(Samples, Samples)> {
        let mut times = Samples::default();
        for round in 0..=others {
            let time = self.subject.slices(blocks, None)?;
            times.extend(time.filter(|_| round > 0));
        }
        let mut stop = Samples::default();
        for _ in 0..stops.div_ceil(5) {
            let after = self.moment(times.p50());
            stop.extend(self.subject.slices(blocks, Some(after))?);
        }
        Ok((times, stop))
    }

    /// Whether all arms give the same result, to the bit.
    fn check(&mut self, row: &Row, tally: &mut Tally) -> Result<()> {
        let slice = row.slices.blocks.unwrap_or(1);
        let subject = &mut self.subject;
        subject.poison(&self.stream)?;
        subject.plain()?;
        let plain = subject.digests(&self.stream)?;
        let mut compare = |what: &str, subject: &Subject| -> Result<()> {
            let found = subject.digests(&self.stream)?;
            tally.kernels += 1;
            tally.block_tasks += u64::from(row.tasks);
            if found != plain && tally.mistake.is_none() {
                tally.mistake = Some(format!("{}: {what} and plain differ", row.name));
            }
            Ok(())
        };
        subject.poison(&self.stream)?;
        subject.preemptible()?;
        compare("preempt, all preemptible", subject)?;
        subject.poison(&self.stream)?;
        subject.flep()?;
        compare("FLEP's loop", subject)?;
        subject.poison(&self.stream)?;
        subject.slices(slice, None)?;
        compare("slices", subject)?;
        self.scheduler.synchronize()?;
        Ok(())
    }
}

impl Row {
    fn arms(&self) -> [&Arm; 6] {
        [&self.plain, &self.chosen, &self.preemptible, &self.proxy, &self.flep, &self.slices]
    }

    /// The ratio of an arm's time to the plain one's, of the launch alone where it can be measured.
    fn over(&self, arm: &Arm) -> Option<f64> {
        match arm.time.len() {
            0 => self.done_over(arm),
            _ => ratio(arm.time.p50(), self.plain.time.p50()),
        }
    }

    /// The ratio of `done` to that of plain launches; `None` if it was not measured.
    fn done_over(&self, arm: &Arm) -> Option<f64> {
        let plain = arm.plain_done.as_ref().unwrap_or(&self.plain.done);
        (arm.done.len() > 0).then(|| ratio(arm.done.p50(), plain.p50())).flatten()
    }

    /// The ratio of our stop to its bound.
    fn stop_over_bound(&self, floor: Duration) -> Option<f64> {
        (self.preemptible.stop.len() > 0)
            .then(|| ratio(self.preemptible.stop.p50(), floor + CHUNK + self.longest))
            .flatten()
    }

    fn lines(&self) -> Vec<Vec<String>> {
        let lines = self.arms().map(|arm| {
            let number = |value: Option<u32>| value.map_or("-".into(), |value| value.to_string());
            let time = |samples: &Samples, time: Duration| match samples.len() {
                0 => "-".to_owned(),
                _ => show(time),
            };
            let over = |over: Option<f64>| over.map_or("-".into(), |over| format!("{over:.4}"));
            line([
                self.name,
                arm.name,
                &time(&arm.time, arm.time.p50()),
                &over(self.over(arm)),
                &over(self.done_over(arm)),
                &number(arm.amortize),
                &arm.demand.registers.to_string(),
                &arm.demand.blocks_per_sm.to_string(),
                &show(self.longest),
                &time(&arm.stop, arm.stop.p50()),
                &time(&arm.stop, arm.stop.summary().p99),
            ])
        });
        lines.into()
    }

    fn json(&self) -> Vec<Value> {
        let rows = self.arms().map(|arm| {
            let told =
                |samples: &Samples, time: Duration| (samples.len() > 0).then(|| microseconds(time));
            json!({
                "program": self.name,
                "kernel": self.kernel,
                "block_tasks": self.tasks,
                "yield_points": self.yields,
                "longest_task_us": microseconds(self.longest),
                "arm": arm.name,
                "is_plain": (arm.name == self.chosen.name).then_some(self.is_plain),
                "samples": arm.time.len().max(arm.done.len()),
                "p50_us": told(&arm.time, arm.time.p50()),
                "p99_us": told(&arm.time, arm.time.summary().p99),
                "done_p50_us": told(&arm.done, arm.done.p50()),
                "p50_to_plain": self.over(arm),
                "amortize": arm.amortize,
                "slice_blocks": arm.blocks,
                "registers": arm.demand.registers,
                "local_bytes": arm.demand.local_bytes,
                "blocks_per_sm": arm.demand.blocks_per_sm,
                "stops": arm.stop.len(),
                "stop_p50_us": told(&arm.stop, arm.stop.p50()),
                "stop_p99_us": told(&arm.stop, arm.stop.summary().p99),
            })
        });
        rows.into()
    }
}

fn outcome(rows: &[Row], floor: &Samples, tally: Tally) -> Outcome {
    let ours = || rows.iter().map(|row| row.over(&row.preemptible));
    let slices = geometric_mean(rows.iter().map(|row| row.over(&row.slices)));
    let done = |row: &Row| row.done_over(&row.preemptible);
    let loses = |row: &&Row| row.preemptible.demand.blocks_per_sm < row.plain.demand.blocks_per_sm;
    let bounds = rows.iter().filter_map(|row| row.stop_over_bound(floor.p50()));
    let geomean = geometric_mean(ours());
    let most = |is_plain| {
        let rows = rows.iter().filter(|row| row.is_plain == is_plain);
        rows.filter_map(|row| row.over(&row.chosen)).reduce(f64::max)
    };
    let points = slices
        .zip(geometric_mean(rows.iter().map(done)))
        .map(|(slices, ours)| 100.0 * (slices - ours));
    let summary = json!({
        "kernels": rows.len(),
        "geomean_ratio": geomean,
        "max_ratio": ours().flatten().reduce(f64::max),
        "geomean_ratio_default": geometric_mean(rows.iter().map(|row| row.over(&row.chosen))),
        "max_ratio_plain_chosen": most(true),
        "max_ratio_preemptible_chosen": most(false),
        "geomean_done_ratio": geometric_mean(rows.iter().map(done)),
        "kernels_losing_a_block": rows.iter().filter(loses).count(),
        "flep_geomean_ratio": geometric_mean(rows.iter().map(|row| row.over(&row.flep))),
        "slices_geomean_ratio": slices,
        "proxy_geomean_done_ratio": geometric_mean(rows.iter().map(|row| row.done_over(&row.proxy))),
        "pkm_minus_ours_points": points,
        "stop_floor_p50_us": microseconds(floor.p50()),
        "stop_over_bound_max": bounds.reduce(f64::max),
        "tasks_wrong": u32::from(tally.mistake.is_some()),
    });
    let mut table = vec![line([
        "program",
        "",
        "time p50",
        "/ plain",
        "done / plain",
        "L",
        "registers",
        "blocks/SM",
        "longest task",
        "stop p50",
        "stop p99",
    ])];
    table.extend(rows.iter().flat_map(Row::lines));
    Outcome {
        about: format!(
            "The dominating launch of each program, between events; done: until the host knows, those of \
             preempt through the scheduler. Stop: from the signal to the host's knowledge that all blocks are \
             out; {} at least. Slices: the largest that stop no later than preemptible launches (p50), or else \
             halved as long as that makes the stop a tenth shorter. In the mean, preemptible launches take {} of \
             the plain time.",
            show(floor.p50()),
            geomean.map_or_else(|| "-".to_owned(), digits),
        ),
        table,
        text_columns: 2,
        rows: rows.iter().flat_map(Row::json).collect(),
        summary,
        mistake: tally.mistake,
    }
}
