//! Writes `kernels.ptx` beside the `Cargo.toml` of kernels crates, to be committed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use preempt_build::Kernels;

const USAGE: &str = "\
Compiles kernels crates to PTX and writes it to `kernels.ptx` in each crate's folder.

Usage: preempt-ptx [OPTIONS] [CRATE_DIR]...

Without a CRATE_DIR: every workspace member that has a `kernels.ptx` already.

Options:
  --check             write nothing; fail if a file was not compiled from the present sources
  --target-cpu NAME   the oldest GPU to run on [default: sm_80]
  --out-dir DIR       write DIR/<library's name>.ptx instead
";

/// The file's name in each crate.
const FILE: &str = "kernels.ptx";

#[derive(Default)]
struct Options {
    check: bool,
    target_cpu: Option<String>,
    out_dir: Option<PathBuf>,
    crates: Vec<PathBuf>,
}

fn main() -> ExitCode {
    match parse(env::args().skip(1)).and_then(run) {
        Ok(code) => code,
        Err(message) => {
            eprintln!("preempt-ptx: {message}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options::default();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value\n\n{USAGE}"));
        match arg.as_str() {
            "--check" => options.check = true,
            "--target-cpu" => options.target_cpu = Some(value()?),
            "--out-dir" => options.out_dir = Some(value()?.into()),
            "--help" | "-h" => return Ok(None),
            flag if flag.starts_with('-') => {
                return Err(format!("there is no option {flag}\n\n{USAGE}"));
            }
            dir => options.crates.push(dir.into()),
        }
    }
    Ok(Some(options))
}

fn run(options: Option<Options>) -> Result<ExitCode, String> {
    let Some(mut options) = options else {
        print!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    };
    if options.crates.is_empty() {
        options.crates = members()?;
    }
    let mut code = ExitCode::SUCCESS;
    for dir in &options.crates {
        let mut kernels = Kernels::new(dir).committed(FILE);
        if let Some(cpu) = &options.target_cpu {
            kernels = kernels.target_cpu(cpu);
        }
        let explain = |error: preempt_build::Error| format!("{}: {error}", dir.display());
        if options.check {
            let fresh = kernels.is_fresh().map_err(explain)?;
            if !fresh {
                code = ExitCode::FAILURE;
            }
            let state = if fresh { "fresh" } else { "STALE: run preempt-ptx" };
            println!("{}: {state}", dir.join(FILE).display());
        } else {
            let ptx = kernels.compile().map_err(explain)?;
            let file = match &options.out_dir {
                Some(out) => out.join(kernels.name().map_err(explain)? + ".ptx"),
                None => dir.join(FILE),
            };
            fs::write(&file, ptx).map_err(|error| format!("{}: {error}", file.display()))?;
            println!("{}", file.display());
        }
    }
    Ok(code)
}

/// The workspace members that have committed PTX.
fn members() -> Result<Vec<PathBuf>, String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--workspace", "--depth=0", "--prefix=none", "--format={p}"])
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    // `name v1.0.0 (/folder)`
    let dirs = text.lines().filter_map(|line| line.split_once(" (")?.1.strip_suffix(')'));
    let members: Vec<_> =
        dirs.map(PathBuf::from).filter(|dir: &PathBuf| dir.join(FILE).exists()).collect();
    if members.is_empty() {
        let folder = Path::new(FILE).display();
        return Err(format!(
            "no workspace member has a {folder}; name the folder of a kernels crate"
        ));
    }
    Ok(members)
}
