//! Urgent requests beside a long batch job, with and without preemption.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `workload` | the batch job, and the requests with their moments |
//! | `arms` | the rows: the same work under different circumstances |
//! | `streams`, `driver` | the row without preempt, on a GPU, and the driver's calls for it |
//! | `report`, `machine`, `plot` | table, JSON, picture |

mod args;
mod arms;
mod driver;
mod plot;
mod progress;
mod report;
mod streams;
mod workload;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use preempt::{CpuLayout, Device, Scheduler};
use preempt_record::hardware;

use crate::args::{Args, DeviceKind};
use crate::arms::{Arm, BATCH_ALONE, PREEMPT, REQUESTS_ALONE, Row, SUBMISSION_ORDER};
use crate::driver::Gpu;
use crate::progress::Progress;
use crate::report::{Report, milliseconds};
use crate::streams::{STREAM_PRIORITY, Streams};
use crate::workload::{CLIENTS, Workload};

/// The kernels' PTX.
const KERNELS: preempt::Module = preempt::include_kernels!();

/// Requests come within this share of the batch job's time alone, so that they all meet it.
const REQUESTS_WITHIN: f64 = 0.9;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("urgent-inference: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let (device, gpu) = device(args.device)?;
    // Before anything runs, so that no measurement is lost to a result that cannot be written.
    let mut out = args.out.as_deref().map(create).transpose()?;
    let picture = picture_file(args)?;
    if let Some(path) = &args.trace {
        create(path)?;
    }

    // Not `println!`, which panics where the reader has closed the pipe.
    let mut stdout = io::stdout();
    let mut builder = Scheduler::builder().device(device).kernels(KERNELS);
    if gpu.is_some() {
        builder = builder.wait_spin(SPIN).poller_spin(Duration::MAX);
    }
    if args.trace.is_some() {
        builder = builder.trace(TRACED);
    }
    let scheduler = builder.build()?;
    let streams = gpu.map(Streams::new).transpose()?;
    let properties = scheduler.device().properties().clone();
    let workload = Workload::new(args, properties.sms)?;
    writeln!(stdout, "device    {}; {}", properties.name, hardware())?;
    writeln!(
        stdout,
        "batch     {} Asian options, one block-task each: {} paths of {} periods",
        workload.book.len(),
        workload.paths,
        workload.periods
    )?;

    // First, because it determines the time in which requests come.
    let (batch_alone, alone) = measure_batch_alone(&scheduler, &workload)?;
    let time = alone.mul_f64(REQUESTS_WITHIN);
    writeln!(
        stdout,
        "          {} of an SM's time for one block-task",
        milliseconds(alone * properties.sms / workload.book.len() as u32)
    )?;
    writeln!(
        stdout,
        "requests  {} handwritten digits from {CLIENTS} threads, one kernel each, at random \
         moments within {:.1} s\n",
        workload.requests(),
        time.as_secs_f64()
    )?;
    let mut rows = vec![batch_alone];
    for arm in [REQUESTS_ALONE, SUBMISSION_ORDER, PREEMPT] {
        rows.push(measure(&scheduler, &workload, arm, time)?);
    }
    if let Some(path) = &args.trace {
        scheduler.write_trace(path)?;
    }

    let mut request_time = None;
    if let Some(streams) = &streams {
        scheduler.synchronize()?;
        let progress = Progress::new(STREAM_PRIORITY.name, workload.requests());
        rows.push(streams.run(&workload, time, &progress)?);
        progress.finish();
        request_time = Some(streams.request_time(&workload)?);
    }

    let report = Report { device: properties.name, driver: properties.driver, rows, request_time };
    writeln!(stdout, "{}", report.table())?;
    if let Some((file, path)) = &mut out {
        let text = serde_json::to_string_pretty(&report.json())? + "\n";
        write(file, path, &text)?;
    }
    if let Some((mut file, path)) = picture {
        write(&mut file, &path, &plot::svg(&report.rows)?)?;
        writeln!(stdout, "The latencies as a picture: {}", path.display())?;
    }
    for sentence in
        report.warning().into_iter().chain(report.verdict()).chain(report.batch_sentence())
    {
        writeln!(stdout, "{sentence}")?;
    }
    ensure!(report.checksums_equal(), "the batch job's results differ from row to row");
    Ok(())
}

/// Entries of the timeline: more than all launches have.
const TRACED: usize = 1_000_000;

/// Time that a waiting thread drives the scheduler itself before it sleeps. On a GPU the threads of the row without
/// preempt spin, too; on the CPU device spinning would take processors from the SMs.
const SPIN: Duration = Duration::from_millis(5);

/// The faster of two runs, because the first may find the machine cold or busy.
fn measure_batch_alone(scheduler: &Scheduler, workload: &Workload) -> Result<(Row, Duration)> {
    let run = || measure(scheduler, workload, BATCH_ALONE, Duration::ZERO);
    let time = |row: &Row| row.batch.as_ref().map_or(Duration::MAX, |batch| batch.time);
    let (first, second) = (run()?, run()?);
    let faster = if time(&second) < time(&first) { second } else { first };
    let time = time(&faster);
    Ok((faster, time))
}

fn measure(scheduler: &Scheduler, workload: &Workload, arm: Arm, time: Duration) -> Result<Row> {
    let requests = arm.requests.map_or(0, |_| workload.requests());
    let progress = Progress::new(arm.name, requests);
    let row = arms::run(scheduler, workload, arm, time, &progress)?;
    progress.finish();
    Ok(row)
}

/// The device, and for a GPU the driver's side of it.
fn device(kind: DeviceKind) -> Result<(Device, Option<Gpu>)> {
    match kind {
        // One SM for each processor, at least two, so that an urgent kernel can have one while
        // the batch keeps the other. The requests' threads get no processor of their own.
        DeviceKind::Cpu => {
            let processors = thread::available_parallelism().map_or(1, usize::from);
            Ok((Device::cpu_with(CpuLayout::sms(processors.clamp(2, 8) as u32))?, None))
        }
        // In this order: preempt has settings to make before the driver starts.
        DeviceKind::Cuda => Ok((Device::cuda(0)?, Some(Gpu::open(0)?))),
    }
}

fn create(path: &Path) -> Result<(File, PathBuf)> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok((file, path.to_owned()))
}

/// The file of the picture. Only a requested file has to be writable.
fn picture_file(args: &Args) -> Result<Option<(File, PathBuf)>> {
    if let Some(path) = &args.svg {
        return create(path).map(Some);
    }
    let folder = Path::new(if Path::new("target").is_dir() { "target" } else { "" });
    Ok(create(&folder.join("urgent-inference.svg")).ok())
}

fn write(file: &mut File, path: &Path, text: &str) -> Result<()> {
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}
