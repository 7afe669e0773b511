//! What makes, changes and destroys graphs, by the driver's calls and by programs of ours, on an idle GPU and beside a
//! kernel that has all SMs: whether any of it waits for the kernel.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use preempt::{Buffer, Handle, LaunchReport, Preemption, Program, ProgramCall, Scheduler, Stream};
use preempt_driver::{Array, Gpu, Graph, Launch, Level, Module};
use preempt_microkernels::{busy, spin};
use preempt_report::microseconds;
use preempt_test_kit::storm::Tally;
use serde_json::{Value, json};

use super::super::{Bench, line};
use super::launch::{CALL, CALLS, THREADS};
use super::{ptx, spin_until};
use crate::progress::Progress;
use crate::samples::{Samples, show};

/// The time of a resident kernel. A call beside it begins in the first half, so one that returns after its end has waited
/// for it, and for no longer.
const RESIDENT: Duration = Duration::from_millis(20);

/// Time after which a kernel that was launched on an idle device runs.
const START: Duration = Duration::from_micros(200);

/// Resident kernels for each kind of call, with `--quick` and without.
const RESIDENTS: (u32, u32) = (1, 5);
/// Calls of one kind beside each, and as many on the idle GPU.
const TIMES: u32 = 20;

/// Dropped programs whose graphs the recording of the next program destroys (`MOST_UNUSED` in preempt's
/// `device/cuda/graphs.rs`).
const DROPPED: u32 = 64;

/// The kernel of a program that is changed.
const CHANGED: usize = CALLS as usize / 2;

/// The times of one kind of call.
pub struct Row {
    call: &'static str,
    side: &'static str,
    of: String,
    beside: bool,
    samples: Samples,
    /// Calls that returned after the end of the resident kernel.
    waited: u32,
}

/// Measures both sides.
pub fn measure(
    bench: &Bench,
    gpu: Gpu,
    scheduler: &Scheduler,
    tally: &mut Tally,
) -> Result<Vec<Row>> {
    let residents = bench.amount(RESIDENTS.0, RESIDENTS.1);
    let (sms, ticks) = (gpu.sms()?, gpu.ticks(CALL)?);
    scheduler.synchronize()?;
    let mut resident = RawResident::new(gpu)?;
    let blocks = resident.blocks;
    let mut rows = graphs(&mut resident, ticks, sms, residents, tally)?;
    tally.count("raw resident kernels", &resident.runs.read()?, &resident.expected());

    let mut resident = OurResident::new(scheduler, gpu.ticks(RESIDENT)?, blocks)?;
    rows.extend(programs(&mut resident, ticks, sms, residents, tally)?);
    resident.check(tally)?;
    Ok(rows)
}

/// The figures of the rows that have keys.
pub fn summary(rows: &[Row]) -> Value {
    let p50 = |side: &str, call: &str, beside| {
        let row = rows.iter().find(|row| (row.side, row.call, row.beside) == (side, call, beside));
        row.filter(|row| row.samples.len() > 0).map(|row| microseconds(row.samples.p50()))
    };
    let graph = |call| p50(DRIVER, call, true);
    let waited =
        |side| -> u32 { rows.iter().filter(|row| row.side == side).map(|row| row.waited).sum() };
    let (set, same) = (p50(OURS, SET_LAUNCH, false), p50(OURS, SAME_LAUNCH, false));
    json!({
        "graph_instantiate_beside_us": graph(INSTANTIATE),
        "graph_upload_beside_us": graph(UPLOAD),
        "graph_uploaded_beside_us": graph(UPLOADED),
        "graph_update_beside_us": graph(UPDATE),
        "graph_destroy_beside_us": graph(DESTROY),
        "graph_calls_waited": waited(DRIVER),
        "program_record_beside_us": p50(OURS, RECORD, true),
        "program_set_beside_us": p50(OURS, SET, true),
        "program_drop_beside_us": p50(OURS, DROP, true),
        "program_calls_waited": waited(OURS),
        "program_update_us": set.zip(same).map(|(set, same)| set - same),
    })
}

const DRIVER: &str = "driver";
const OURS: &str = "preempt";

const INSTANTIATE: &str = "instantiate";
const UPLOAD: &str = "upload";
const UPLOADED: &str = "upload, to done";
const UPDATE: &str = "update";
const DESTROY: &str = "destroy";
const RECORD: &str = "record";
const RECORD_LATE: &str = "record, behind 64 that were dropped";
const SET: &str = "set";
const DROP: &str = "drop";
const SAME_LAUNCH: &str = "launch to done, as before";
const SET_LAUNCH: &str = "launch to done, all arguments set";

/// A kernel that has all SMs for a while.
trait Resident {
    /// Launches it on an idle device. It runs when this returns.
    fn start(&mut self) -> Result<()>;

    fn is_over(&self) -> Result<bool>;

    /// Waits until nothing runs.
    fn finish(&mut self) -> Result<()>;
}

/// Times `call` with each of what `make` makes, in turn on an idle device and beside a resident kernel.
fn timed<T>(
    resident: &mut impl Resident,
    residents: u32,
    row: impl Fn(bool) -> Row,
    mut make: impl FnMut() -> Result<T>,
    mut call: impl FnMut(&mut T) -> Result<()>,
) -> Result<[Row; 2]> {
    let mut rows = [false, true].map(row);
    let progress = Progress::new(rows[0].call, u64::from(residents));
    for _ in 0..residents {
        for row in &mut rows {
            let mut made = (0..TIMES).map(|_| make()).collect::<Result<Vec<T>>>()?;
            resident.finish()?;
            if row.beside {
                resident.start()?;
            }
            let begin = Instant::now();
            for made in &mut made {
                if begin.elapsed() > RESIDENT / 2 {
                    break;
                }
                let start = Instant::now();
                call(made)?;
                row.samples.push(start.elapsed());
                if row.beside && resident.is_over()? {
                    row.waited += 1;
                    break;
                }
            }
            // Before what was made is dropped.
            resident.finish()?;
        }
        progress.step();
    }
    Ok(rows)
}

/// The driver's calls.
fn graphs(
    resident: &mut RawResident,
    ticks: u64,
    blocks: u32,
    residents: u32,
    tally: &mut Tally,
) -> Result<Vec<Row>> {
    let stream = resident.uploads.clone();
    let mut counts = Array::zeroed(blocks as usize)?;
    let call = busy(ticks, &mut counts).grid(blocks).block(THREADS);
    let module = Module::load(ptx()?, &[])?;
    let entry = module.plain(call.kernel())?;
    let kernel = Launch::plain(entry, call);
    let other = Launch::plain(entry, busy(ticks / 2, &mut counts).grid(blocks).block(THREADS));
    let recorded =
        || -> Result<Graph> { Ok(Graph::recorded(std::iter::repeat_n(&kernel, CALLS as usize))?) };
    let instantiated = || -> Result<Graph> {
        let mut graph = recorded()?;
        graph.instantiate()?;
        Ok(graph)
    };
    let done = || spin_until(|| Ok(stream.is_idle()?));
    let launches = Cell::new(0);
    // As that of a program that was launched.
    let launched = || -> Result<Graph> {
        let graph = instantiated()?;
        graph.upload(&stream)?;
        // SAFETY: no other work uses the counters, and the graph stays until it is done.
        unsafe { graph.on(&stream)? };
        done()?;
        launches.set(launches.get() + 1);
        Ok(graph)
    };
    let row = |call| move |beside| Row::new(call, DRIVER, "a graph".to_owned(), beside);
    let upload = |graph: &mut Graph| Ok(graph.upload(&stream)?);
    let mut rows = Vec::new();
    rows.extend(timed(resident, residents, row(INSTANTIATE), recorded, |graph| {
        Ok(graph.instantiate()?)
    })?);
    rows.extend(timed(resident, residents, row(UPLOAD), instantiated, upload)?);
    rows.extend(timed(resident, residents, row(UPLOADED), instantiated, |graph| {
        upload(graph)?;
        done()
    })?);
    rows.extend(timed(resident, residents, row(UPDATE), launched, |graph| {
        Ok(graph.update(CHANGED, &other)?)
    })?);
    rows.extend(timed(resident, residents, row(DESTROY), launched, |graph| Ok(graph.destroy()?))?);
    let expected = vec![CALLS * launches.get(); blocks as usize];
    tally.kernels += u64::from(CALLS * launches.get());
    tally.block_tasks += u64::from(CALLS * launches.get()) * u64::from(blocks);
    tally.count("graphs that are given up", &counts.read()?, &expected);
    Ok(rows)
}

/// A program of ours, and the place of one of its kernels.
type Recorded = (Program, Vec<ProgramCall>);

/// Programs of ours.
fn programs(
    resident: &mut OurResident<'_>,
    ticks: u64,
    blocks: u32,
    residents: u32,
    tally: &mut Tally,
) -> Result<Vec<Row>> {
    let scheduler = resident.scheduler;
    let stream = scheduler.stream(1);
    let mut counts = scheduler.zeroed::<u32>(blocks as usize)?;
    let mut rows = Vec::new();
    for form in [Preemption::Plain, Preemption::Preemptible] {
        let of =
            if form == Preemption::Plain { "a plain program" } else { "a preemptible program" };
        let row = |call| move |beside| Row::new(call, OURS, of.to_owned(), beside);
        rows.extend(timed(
            resident,
            residents,
            row(RECORD),
            || Ok(None),
            |program| {
                *program = Some(record(&stream, form, ticks, &mut counts)?);
                Ok(())
            },
        )?);
        let mut other = scheduler.zeroed::<u32>(blocks as usize)?;
        let make = || record(&stream, form, ticks, &mut counts);
        rows.extend(timed(resident, residents, row(SET), make, |(program, places)| {
            Ok(program.set(places[CHANGED], busy(ticks, &mut other).grid(blocks).block(THREADS))?)
        })?);
        let make = || record(&stream, form, ticks, &mut counts).map(Some);
        rows.extend(timed(resident, residents, row(DROP), make, |program| {
            *program = None;
            Ok(())
        })?);
    }
    rows.push(record_late(resident, &stream, (ticks, &mut counts), residents)?);
    rows.extend(updates(scheduler, &stream, (ticks, &mut counts), residents * TIMES, tally)?);
    Ok(rows)
}

/// A program of short kernels.
fn record(
    stream: &Stream,
    form: Preemption,
    ticks: u64,
    counts: &mut Buffer<u32>,
) -> Result<Recorded> {
    let mut places = Vec::new();
    let program = stream.program("busy", |program| {
        program.preemption(form);
        (0..CALLS).try_for_each(|_| {
            let blocks = counts.len() as u32;
            let call = busy(ticks, &mut *counts).grid(blocks).block(THREADS);
            places.push(program.launch(call)?);
            Ok(())
        })
    })?;
    Ok((program, places))
}

/// One more program beside a resident kernel, behind as many that were dropped there as are destroyed with the next one.
fn record_late(
    resident: &mut OurResident<'_>,
    stream: &Stream,
    (ticks, counts): (u64, &mut Buffer<u32>),
    residents: u32,
) -> Result<Row> {
    let mut row = Row::new(RECORD_LATE, OURS, "a plain program".to_owned(), true);
    for _ in 0..residents {
        let mut plain = || record(stream, Preemption::Plain, ticks, counts);
        let programs = (0..DROPPED).map(|_| plain()).collect::<Result<Vec<_>>>()?;
        resident.finish()?;
        resident.start()?;
        drop(programs);
        let start = Instant::now();
        let program = plain()?;
        row.samples.push(start.elapsed());
        row.waited += u32::from(resident.is_over()?);
        resident.finish()?;
        drop(program);
    }
    Ok(row)
}

/// A plain program on an idle device, in turn as it was launched before, and with other arguments for each kernel: the
/// difference is what the launch takes to change the graph. Beside a kernel that cannot be told, because a launch stops it.
fn updates(
    scheduler: &Scheduler,
    stream: &Stream,
    (ticks, counts): (u64, &mut Buffer<u32>),
    times: u32,
    tally: &mut Tally,
) -> Result<[Row; 2]> {
    let row = |call| Row::new(call, OURS, "a plain program".to_owned(), false);
    let mut rows = [row(SAME_LAUNCH), row(SET_LAUNCH)];
    let (mut program, places) = record(stream, Preemption::Plain, ticks, counts)?;
    let (before, blocks) = (stream.download(counts)?.wait()?, counts.len());
    for _ in 0..times {
        for (index, row) in rows.iter_mut().enumerate() {
            if index == 1 {
                for &place in &places {
                    let call = busy(ticks, &mut *counts).grid(blocks as u32).block(THREADS);
                    program.set(place, call)?;
                }
            }
            scheduler.synchronize()?;
            let start = Instant::now();
            let report = program.launch()?.wait()?;
            row.samples.push(start.elapsed());
            tally.report(&report);
        }
    }
    let found = stream.download(counts)?.wait()?;
    let expected: Vec<u32> = before.iter().map(|count| count + 2 * times * CALLS).collect();
    tally.count("programs whose arguments are set", &found, &expected);
    Ok(rows)
}

/// A plain kernel by the driver.
struct RawResident {
    stream: preempt_driver::Stream,
    /// The stream of the graphs beside it.
    uploads: Rc<preempt_driver::Stream>,
    launch: Launch,
    /// Blocks that fill the device.
    blocks: u32,
    runs: Array<u32>,
    /// The kernel writes them.
    _marks: Array<u32>,
    launches: u32,
}

impl RawResident {
    fn new(gpu: Gpu) -> Result<RawResident> {
        let (mut runs, mut marks) = (Array::zeroed(1)?, Array::zeroed(1)?);
        let kernel = spin(0, &mut runs, &mut marks).grid(1).kernel();
        let entry = Module::load(ptx()?, &[kernel])?.plain(kernel)?;
        let block = kernel.block.context("a kernel with blocks of one size")?;
        let blocks = gpu.sms()? * entry.resident(block)?;
        (runs, marks) = (Array::zeroed(blocks as usize)?, Array::zeroed(blocks as usize)?);
        let call = spin(gpu.ticks(RESIDENT)?, &mut runs, &mut marks).grid(blocks);
        let stream = || preempt_driver::Stream::new(Level::Lowest);
        Ok(RawResident {
            stream: stream()?,
            uploads: Rc::new(stream()?),
            launch: Launch::plain(entry, call),
            blocks,
            runs,
            _marks: marks,
            launches: 0,
        })
    }

    fn expected(&self) -> Vec<u32> {
        vec![self.launches; self.blocks as usize]
    }
}

impl Resident for RawResident {
    fn start(&mut self) -> Result<()> {
        // SAFETY: no other work uses what it writes, which stays as long as the launch.
        unsafe { self.launch.on(&self.stream)? };
        self.launches += 1;
        std::thread::sleep(START);
        ensure!(!self.is_over()?, "a resident kernel is over before anything was measured");
        Ok(())
    }

    fn is_over(&self) -> Result<bool> {
        Ok(self.stream.is_idle()?)
    }

    fn finish(&mut self) -> Result<()> {
        spin_until(|| Ok(self.is_over()? && self.uploads.is_idle()?))
    }
}

/// A preemptible kernel of the scheduler.
struct OurResident<'a> {
    scheduler: &'a Scheduler,
    stream: Stream,
    ticks: u64,
    runs: Buffer<u32>,
    marks: Buffer<u32>,
    running: Option<Handle<LaunchReport>>,
    launches: u32,
}

impl<'a> OurResident<'a> {
    fn new(scheduler: &'a Scheduler, ticks: u64, blocks: u32) -> Result<OurResident<'a>> {
        let zeroed = || scheduler.zeroed::<u32>(blocks as usize);
        let (runs, marks, stream) = (zeroed()?, zeroed()?, scheduler.stream(0));
        Ok(OurResident { scheduler, stream, ticks, runs, marks, running: None, launches: 0 })
    }

    fn check(&self, tally: &mut Tally) -> Result<()> {
        let found = self.stream.download(&self.runs)?.wait()?;
        tally.kernels += u64::from(self.launches);
        tally.block_tasks += u64::from(self.launches) * found.len() as u64;
        tally.count("our resident kernels", &found, &vec![self.launches; found.len()]);
        Ok(())
    }
}

impl Resident for OurResident<'_> {
    fn start(&mut self) -> Result<()> {
        let blocks = self.runs.len() as u32;
        let call = spin(self.ticks, &mut self.runs, &mut self.marks).grid(blocks);
        self.running = Some(self.stream.launch(call.preemption(Preemption::Preemptible))?);
        self.launches += 1;
        std::thread::sleep(START);
        ensure!(!self.is_over()?, "a resident kernel is over before anything was measured");
        Ok(())
    }

    fn is_over(&self) -> Result<bool> {
        Ok(self.running.as_ref().is_none_or(Handle::is_done))
    }

    fn finish(&mut self) -> Result<()> {
        self.running.take().map(|running| running.wait()).transpose()?;
        Ok(self.scheduler.synchronize()?)
    }
}

impl Row {
    fn new(call: &'static str, side: &'static str, of: String, beside: bool) -> Row {
        Row { call, side, of, beside, samples: Samples::default(), waited: 0 }
    }

    /// Its line in the table of the suite.
    pub fn line(&self) -> Vec<String> {
        let summary = self.samples.summary();
        let place = if self.beside { "beside a kernel" } else { "idle GPU" };
        let waited =
            if self.waited > 0 { format!(", {} waited", self.waited) } else { String::new() };
        line([
            self.call,
            &format!("{}, {place}{waited}", self.of),
            self.side,
            &self.samples.len().to_string(),
            &show(summary.p50),
            &show(summary.p99),
            &show(summary.max),
            "-",
        ])
    }

    /// The same as JSON.
    pub fn json(&self) -> Value {
        let summary = self.samples.summary();
        json!({
            "call": self.call,
            "of": self.of,
            "side": self.side,
            "beside": self.beside,
            "samples": self.samples.len(),
            "waited": self.waited,
            "p50_us": microseconds(summary.p50),
            "p99_us": microseconds(summary.p99),
            "max_us": microseconds(summary.max),
        })
    }
}
