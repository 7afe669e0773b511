//! `preempt-bench`, the one binary that measures preempt.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `experiments` | what is measured, one file each |
//! | `samples` | percentiles of measured times |
//! | `args`, `progress` | command line, progress bar |

mod args;
mod experiments;
mod progress;
mod samples;
mod stopped;

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use preempt::{CpuLayout, Device};
use preempt_driver::Gpu;
use preempt_record::{Record, hardware};
use preempt_report::{papers, table};
use preempt_workloads::Definition;

use crate::args::{Args, DeviceKind};
use crate::experiments::corun::Launches;
use crate::experiments::pool::serve_if_worker;
use crate::experiments::processes::serve_if_neighbour;
use crate::experiments::{BASELINES, Bench, Experiment, KERNELS, Outcome, PROGRAMS};

fn main() -> ExitCode {
    serve_if_worker();
    if let Some(code) = serve_if_neighbour() {
        return code;
    }
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("preempt-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    if args.explain {
        return explain(args.suite);
    }
    // Before anything runs, so that no measurement is lost to a result that cannot be drawn or written.
    if args.svg.is_some() {
        preempt_report::ensure_picture(args.suite.name())?;
    }
    let programs = programs(&args.program, args.suite)?;
    let (device, gpu) = device(args)?;
    let out = args.out.as_deref().map(create).transpose()?;
    let svg = args.svg.as_deref().map(create).transpose()?;
    let properties = device.as_ref().map(Device::properties);
    let name = properties.map_or("sim".to_owned(), |properties| properties.name.clone());
    let driver = properties.and_then(|properties| properties.driver.clone());
    // Not `println!`, which panics where the reader has closed the pipe.
    let mut stdout = io::stdout();
    writeln!(stdout, "{}: {name}; {}", args.suite.name(), hardware())?;

    if args.log {
        progress::log_parts();
    }
    let corpus = args.corpus.clone();
    let (mixes, loads) = (args.mix.clone(), args.load.clone());
    let (quick, seed) = (args.quick, args.seed);
    let bench = Bench { device, gpu, programs, corpus, mixes, loads, quick, seed };
    let outcome = args.suite.run(&bench)?;
    let Outcome { about, table: lines, text_columns, rows, summary, mistake } = outcome;
    writeln!(stdout, "{about}{}\n\n{}", how_it_was_simulated(args)?, table(&lines, text_columns))?;
    let record = Record { suite: args.suite.name(), device: name, driver, rows, summary }.json();
    if let Some(lines) = papers::comparison(&record) {
        writeln!(stdout, "{}", table(&lines, 1))?;
    }
    if let Some(out) = out {
        write(out, &(serde_json::to_string_pretty(&record)? + "\n"))?;
    }
    if let Some(svg) = svg {
        write(svg, &preempt_report::picture(&record)?.svg()?)?;
    }
    match mistake {
        Some(mistake) => bail!("the results are wrong: {mistake}"),
        None => Ok(()),
    }
}

fn explain(suite: &dyn Experiment) -> Result<()> {
    let text = suite.meaning().join("\n");
    write!(io::stdout(), "{}: {}\n\n{text}", suite.name(), suite.about())?;
    Ok(())
}

/// The device, unless it is simulated, and for a GPU the driver's side of it.
fn device(args: &Args) -> Result<(Option<Device>, Option<Gpu>)> {
    let is_shaped = args.sms.is_some() || args.blocks_per_sm.is_some();
    ensure!(
        args.device == DeviceKind::Cpu || !is_shaped,
        "`--sms` and `--blocks-per-sm` shape the CPU device; leave them out, or `--device`"
    );
    match args.device {
        DeviceKind::Cpu => {
            let processors = thread::available_parallelism().map_or(1, usize::from);
            let (sms, blocks_per_sm) = args.suite.shape(processors.try_into().unwrap_or(u32::MAX));
            let (sms, blocks_per_sm) =
                (args.sms.unwrap_or(sms), args.blocks_per_sm.unwrap_or(blocks_per_sm));
            Ok((Some(Device::cpu_with(CpuLayout::sms(sms).blocks_per_sm(blocks_per_sm))?), None))
        }
        // In this order: preempt has settings to make before the driver starts.
        DeviceKind::Cuda => {
            let gpu = (Some(Device::cuda(0)?), Some(Gpu::open(0)?));
            ensure_device_code()?;
            Ok(gpu)
        }
        DeviceKind::Sim => {
            let simulated = experiments::ALL.into_iter().filter(|suite| suite.is_simulated());
            let all: Vec<_> = simulated.map(Experiment::name).collect();
            let (suite, all) = (args.suite.name(), all.join(", "));
            ensure!(
                args.suite.is_simulated(),
                "`{suite}` needs a device: `--device cpu` or `--device cuda`; simulated are {all}"
            );
            Ok((None, None))
        }
    }
}

/// Fails if this binary has no PTX for the kernels.
fn ensure_device_code() -> Result<()> {
    for module in [KERNELS, PROGRAMS, BASELINES, preempt_test_kit::KERNELS] {
        ensure!(
            module.ptx().is_some(),
            "this program was built without device code of `{}`, so it runs on the CPU device alone: build it where \
             `rustup component add rust-src llvm-tools` was run, and see the warnings of the build",
            module.name()
        );
    }
    Ok(())
}

/// For simulated results, a sentence about the model.
fn how_it_was_simulated(args: &Args) -> Result<String> {
    if args.device != DeviceKind::Sim || !args.suite.has_model() {
        return Ok(String::new());
    }
    let source = Launches::measured()?.source();
    Ok(format!(
        " In virtual time, on the model of an H200, with the launches of {source}; `--explain` says what it leaves out."
    ))
}

/// The programs of these names, each once, or those that the suite is about.
fn programs(names: &[String], suite: &dyn Experiment) -> Result<Vec<&'static Definition>> {
    let find = |name: &String| {
        preempt_workloads::find(name).with_context(|| {
            let all: Vec<_> = preempt_workloads::every().map(|program| program.name).collect();
            format!("there is no program {name}; there are {}", all.join(", "))
        })
    };
    if names.is_empty() {
        return Ok(suite.programs());
    }
    let mut programs: Vec<&'static Definition> = Vec::new();
    for name in names {
        let program = find(name)?;
        if programs.iter().all(|other| other.name != program.name) {
            programs.push(program);
        }
    }
    Ok(programs)
}

/// Opens a file whose contents stay until there are results to write.
fn create(path: &Path) -> Result<(File, &Path)> {
    let file = File::options().write(true).create(true).truncate(false).open(path);
    Ok((file.with_context(|| cannot_write(path))?, path))
}

fn write((mut file, path): (File, &Path), text: &str) -> Result<()> {
    let write = |file: &mut File| {
        // A terminal or a pipe has no length.
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        file.write_all(text.as_bytes())
    };
    write(&mut file).with_context(|| cannot_write(path))
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}
