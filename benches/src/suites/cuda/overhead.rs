//! What being preemptible costs a kernel that nobody preempts: its preemptible entry against its plain
//! one, through the scheduler and alone.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use preempt::policy::StaticPriority;
use preempt::{Buffer, Call, Dim3, Scheduler};
use preempt_bench_kernels::{TILE, fill, matrix_multiply, random, vector_add};
use preempt_raw::{Control, Entry, Event, Gpu, Launch, Level, Module, Stream};
use preempt_record::microseconds;
use preempt_tests::Random;
use preempt_tests::storm::Tally;
use serde_json::{Value, json};

use super::super::{Bench, Outcome, line};
use super::{ptx, spin_until};
use crate::progress::Progress;
use crate::samples::{Samples, ratio, show, show_ratio};

/// Elements of the vectors, and threads of the blocks that add and fill them.
const VECTOR: (usize, u32) = (1 << 28, 256);
/// Rows of the matrices.
const MATRIX: u32 = 4096;
/// The same with `--quick`.
const QUICK: (usize, u32) = (1 << 22, 1024);

/// Samples of each arm.
const SAMPLES: u64 = 200;
/// The same with `--quick`.
const QUICK_SAMPLES: u64 = 5;

/// Elements of a product that the host computes, too.
const CHECKED: u32 = 2000;

/// What no kernel here writes: a NaN.
const POISON: u32 = 0xFFFF_FFFF;

/// How long `wait` spins; the raw side spins, too.
const SPIN: Duration = Duration::from_millis(100);

/// One kernel.
struct Row {
    name: String,
    /// From the launch to the moment at which the host knows that it is done.
    ours: Samples,
    plain: Samples,
    /// Of the entries alone, between events.
    preemptible_entry: Samples,
    plain_entry: Samples,
    /// Registers of a thread, and resident blocks on an SM.
    preemptible: (u32, u32),
    plain_has: (u32, u32),
}

/// Measures both kernels.
pub fn run(bench: &Bench, gpu: Gpu) -> Result<Outcome> {
    let (length, n) = if bench.quick { QUICK } else { (VECTOR.0, MATRIX) };
    let scheduler = bench.spinning_scheduler(StaticPriority::new(), SPIN)?;
    let mut tally = Tally::default();
    let seed = bench.seed as u32;

    let add = {
        let (a, b) = (filled(&scheduler, seed, length)?, filled(&scheduler, seed + 1, length)?);
        let call = |out: &mut Buffer<f32>| {
            vector_add(&a, &b, out).grid(length.div_ceil(VECTOR.1 as usize) as u32)
        };
        let mut arms = Arms::new(&scheduler, gpu, format!("vector_add, {length}"), length, &call)?;
        arms.measure(bench, &call, &mut tally)?;
        // Every element.
        let sums = (0..length as u32).map(|i| random(seed, i) + random(seed + 1, i));
        let sums: Vec<u32> = sums.map(f32::to_bits).collect();
        arms.finish(&mut tally, |found, tally| tally.compare("vector_add", found, &sums))?
    };
    let multiply = {
        let elements = (n * n) as usize;
        let (a, b) = (filled(&scheduler, seed, elements)?, filled(&scheduler, seed + 1, elements)?);
        let tiles = n / TILE as u32;
        let call =
            |c: &mut Buffer<f32>| matrix_multiply(&a, &b, c, n).grid(Dim3::from((tiles, tiles)));
        let name = format!("matrix_multiply, {n} x {n}");
        let mut arms = Arms::new(&scheduler, gpu, name, elements, &call)?;
        arms.measure(bench, &call, &mut tally)?;
        // Some elements, in the kernel's order.
        let mut chosen = Random(bench.seed);
        let chosen: Vec<(u32, u32)> =
            (0..CHECKED).map(|_| (chosen.below(n), chosen.below(n))).collect();
        arms.finish(&mut tally, |found, tally| {
            let at = |&(row, column): &(u32, u32)| found[(row * n + column) as usize];
            let found: Vec<u32> = chosen.iter().map(at).collect();
            let product = |&(row, column): &(u32, u32)| {
                let term = |sum: f32, k: u32| {
                    random(seed, row * n + k).mul_add(random(seed + 1, k * n + column), sum)
                };
                (0..n).fold(0.0, term).to_bits()
            };
            let expected: Vec<u32> = chosen.iter().map(product).collect();
            tally.compare("matrix_multiply", &found, &expected);
        })?
    };
    scheduler.synchronize()?;

    let rows = [add, multiply];
    let over = |row: &Row| ratio(row.ours.p50(), row.plain.p50());
    let entries = |row: &Row| ratio(row.preemptible_entry.p50(), row.plain_entry.p50());
    let lost = |row: &Row| i64::from(row.plain_has.1) - i64::from(row.preemptible.1);
    let summary = json!({
        "va_over_plain": over(&rows[0]),
        "mm_over_plain": over(&rows[1]),
        "va_entry_over_plain": entries(&rows[0]),
        "mm_entry_over_plain": entries(&rows[1]),
        "blocks_lost": rows.iter().map(lost).max(),
        "kernels": tally.kernels,
        "block_tasks": tally.block_tasks,
        "lost": tally.lost,
        "repeated": tally.repeated,
    });
    let mut table = vec![line([
        "kernel",
        "entry",
        "samples",
        "launch to done p50",
        "p99",
        "/ plain",
        "entry alone p50",
        "p99",
        "/ plain",
        "registers",
        "blocks per SM",
    ])];
    table.extend(rows.iter().flat_map(Row::lines));
    Ok(Outcome {
        about: "Launch to done: through the scheduler, against the plain entry on a stream of the \
                driver, by the host's clock; threads that wait spin. Entry alone: both by raw \
                launches, between events."
            .to_owned(),
        table,
        text_columns: 2,
        rows: rows.iter().flat_map(Row::json).collect(),
        summary,
        mistake: tally.mistake,
    })
}

/// A buffer of random numbers.
fn filled(scheduler: &Scheduler, seed: u32, length: usize) -> Result<Buffer<f32>> {
    let mut buffer = scheduler.zeroed(length)?;
    let call = fill(seed, &mut buffer).grid(length.div_ceil(VECTOR.1 as usize) as u32);
    scheduler.stream(0).launch(call)?.wait()?;
    scheduler.synchronize()?;
    Ok(buffer)
}

/// The arms of one kernel, which take turns and write to buffers of their own.
struct Arms<'a> {
    scheduler: &'a Scheduler,
    row: Row,
    our_out: Buffer<f32>,
    raw_out: Buffer<f32>,
    stream: preempt::Stream,
    raw_stream: Stream,
    control: Control,
    call: Call,
    plain: Launch,
    preemptible: Launch,
    blocks: u32,
    barrier: bool,
    events: [Event; 2],
}

impl<'a> Arms<'a> {
    fn new(
        scheduler: &'a Scheduler,
        gpu: Gpu,
        name: String,
        length: usize,
        call: &dyn Fn(&mut Buffer<f32>) -> Call,
    ) -> Result<Arms<'a>> {
        let (our_out, mut raw_out) = (scheduler.zeroed(length)?, scheduler.zeroed(length)?);
        let raw_stream = Stream::new(Level::Lowest)?;
        let mut control = Control::new(gpu)?;
        let call = call(&mut raw_out);
        let kernel = call.kernel();
        let block = kernel.block.context("a kernel without a block size")?;
        let module = Module::load(ptx()?, &[kernel])?;
        let (preemptible, plain) = (module.preemptible(kernel)?, module.plain(kernel)?);
        let has = |entry: Entry| {
            Ok::<_, preempt_raw::Error>((entry.registers()?, entry.resident(block)?))
        };
        let row = Row {
            name,
            ours: Samples::default(),
            plain: Samples::default(),
            preemptible_entry: Samples::default(),
            plain_entry: Samples::default(),
            preemptible: has(preemptible)?,
            plain_has: has(plain)?,
        };
        // Of the kernels here, those with barriers use shared memory.
        let barrier = kernel.shared_bytes > 0;
        let blocks = gpu.sms()? * row.preemptible.1;
        let blocks = u128::from(blocks).min(call.grid_dim().count()) as u32;
        let cohort = control.start(&raw_stream, &call, blocks, barrier)?;
        raw_stream.synchronize()?;
        Ok(Arms {
            scheduler,
            row,
            our_out,
            raw_out,
            stream: scheduler.stream(0),
            raw_stream,
            control,
            plain: Launch::plain(plain, call.clone()),
            preemptible: Launch::preemptible(preemptible, call.clone(), cohort),
            call,
            blocks,
            barrier,
            events: [Event::new()?, Event::new()?],
        })
    }

    fn measure(
        &mut self,
        bench: &Bench,
        call: &dyn Fn(&mut Buffer<f32>) -> Call,
        tally: &mut Tally,
    ) -> Result<()> {
        let samples = if bench.quick { QUICK_SAMPLES } else { SAMPLES };
        let progress = Progress::new(self.row.name.clone(), samples);
        // The first round warms up.
        for sample in 0..=samples {
            let times =
                [self.ours(call, tally)?, self.plain()?, self.entry()?, self.plain_entry()?];
            tally.kernels += 3;
            tally.block_tasks += 3 * self.call.grid_dim().count() as u64;
            if sample > 0 {
                let row = &mut self.row;
                let arms = [
                    &mut row.ours,
                    &mut row.plain,
                    &mut row.preemptible_entry,
                    &mut row.plain_entry,
                ];
                arms.into_iter().zip(times).for_each(|(arm, time)| arm.push(time));
            }
            progress.step();
        }
        Ok(())
    }

    fn poison(&self, address: u64) -> Result<()> {
        // SAFETY: nothing runs, and the buffer has this length.
        unsafe { self.raw_stream.fill(address, POISON, self.our_out.len())? };
        Ok(self.raw_stream.synchronize()?)
    }

    fn ours(
        &mut self,
        call: &dyn Fn(&mut Buffer<f32>) -> Call,
        tally: &mut Tally,
    ) -> Result<Duration> {
        self.poison(self.our_out.address())?;
        let call = call(&mut self.our_out);
        let start = Instant::now();
        let report = self.stream.launch(call)?.wait()?;
        let time = start.elapsed();
        tally.report(&report);
        self.scheduler.synchronize()?;
        Ok(time)
    }

    fn plain(&mut self) -> Result<Duration> {
        self.poison(self.raw_out.address())?;
        let start = Instant::now();
        // SAFETY: nobody else uses the buffers now.
        unsafe { self.plain.on(&self.raw_stream)? };
        spin_until(|| Ok(self.raw_stream.is_idle()?))?;
        Ok(start.elapsed())
    }

    fn plain_entry(&mut self) -> Result<Duration> {
        self.poison(self.raw_out.address())?;
        self.between_events(&self.plain)
    }

    /// The preemptible entry. It writes where the plain one does.
    fn entry(&mut self) -> Result<Duration> {
        self.poison(self.raw_out.address())?;
        let (call, blocks) = (&self.call, self.blocks);
        let cohort = self.control.start(&self.raw_stream, call, blocks, self.barrier)?;
        self.raw_stream.synchronize()?;
        self.preemptible.set_cohort(cohort);
        self.between_events(&self.preemptible)
    }

    fn between_events(&self, launch: &Launch) -> Result<Duration> {
        let [start, end] = &self.events;
        self.raw_stream.record(start)?;
        // SAFETY: nobody else uses the buffers now, and the control block is reset.
        unsafe { launch.on(&self.raw_stream)? };
        self.raw_stream.record(end)?;
        spin_until(|| Ok(self.raw_stream.is_idle()?))?;
        Ok(end.since(start)?)
    }

    /// Compares the results of the last launches with each other, and with what `check` knows.
    fn finish(mut self, tally: &mut Tally, check: impl FnOnce(&[u32], &mut Tally)) -> Result<Row> {
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<u32>>();
        let ours = bits(self.stream.download(&self.our_out)?.wait()?);
        check(&ours, tally);
        let name = self.row.name.clone();
        self.plain_entry()?;
        let plain = bits(self.stream.download(&self.raw_out)?.wait()?);
        tally.compare(&format!("{name}: preempt, against plain"), &ours, &plain);
        self.entry()?;
        let entry = bits(self.stream.download(&self.raw_out)?.wait()?);
        tally.compare(&format!("{name}: preemptible entry, against plain"), &entry, &plain);
        self.scheduler.synchronize()?;
        Ok(self.row)
    }
}

impl Row {
    /// The entry's name, launch to done, alone, registers and blocks.
    fn sides(&self) -> [(&'static str, &Samples, &Samples, (u32, u32)); 2] {
        [
            ("preemptible", &self.ours, &self.preemptible_entry, self.preemptible),
            ("plain", &self.plain, &self.plain_entry, self.plain_has),
        ]
    }

    fn lines(&self) -> Vec<Vec<String>> {
        let line = |(entry, done, alone, (registers, blocks)): (&str, &Samples, &Samples, _)| {
            let (all, kernel) = (done.summary(), alone.summary());
            let (registers, blocks): (u32, u32) = (registers, blocks);
            line([
                &self.name,
                entry,
                &done.len().to_string(),
                &show(all.p50),
                &show(all.p99),
                &show_ratio(ratio(all.p50, self.plain.p50())),
                &show(kernel.p50),
                &show(kernel.p99),
                &show_ratio(ratio(kernel.p50, self.plain_entry.p50())),
                &registers.to_string(),
                &blocks.to_string(),
            ])
        };
        self.sides().into_iter().map(line).collect()
    }

    fn json(&self) -> Vec<Value> {
        let row = |(entry, done, alone, has): (&str, &Samples, &Samples, (u32, u32))| {
            let (all, kernel) = (done.summary(), alone.summary());
            json!({
                "kernel": self.name,
                "entry": entry,
                "samples": done.len(),
                "p50_us": microseconds(all.p50),
                "p99_us": microseconds(all.p99),
                "p50_to_plain": ratio(all.p50, self.plain.p50()),
                "entry_p50_us": microseconds(kernel.p50),
                "entry_p99_us": microseconds(kernel.p99),
                "entry_p50_to_plain": ratio(kernel.p50, self.plain_entry.p50()),
                "registers": has.0,
                "blocks_per_sm": has.1,
            })
        };
        self.sides().into_iter().map(row).collect()
    }
}
