//! Makes a library to link with where there is no CUDA toolkit. `cust` is linked with the driver's
//! library, which a toolkit has a stand-in for; this makes one. The program then runs with the real one.

use std::env;
use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

const USAGE: &str = "\
Makes DIR/lib64/stubs/libcuda.so and prints DIR, for programs that use `cust` to be linked with:

  export CUDA_LIBRARY_PATH=$(preempt-cuda-stub)

Usage: preempt-cuda-stub [DIR]    [default: target/cuda-stub]

It needs a C compiler: `cc`, or what CC names.
";

/// The driver's functions, one in a line.
const FUNCTIONS: &str = include_str!("functions.txt");

/// What each of them returns (`CUDA_ERROR_STUB_LIBRARY`).
const STUB_LIBRARY: u32 = 34;

/// The name that the driver's library has at run time.
const AT_RUN_TIME: &str = "libcuda.so.1";

fn main() -> ExitCode {
    let mut args = env::args_os().skip(1);
    let dir = args.next().map_or_else(|| PathBuf::from("target/cuda-stub"), PathBuf::from);
    if args.next().is_some() || dir.to_string_lossy().starts_with('-') {
        print!("{USAGE}");
        return ExitCode::from(u8::from(!["-h", "--help"].contains(&&*dir.to_string_lossy())));
    }
    match make(&dir) {
        Ok(dir) => {
            println!("{}", dir.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("preempt-cuda-stub: {error}");
            ExitCode::FAILURE
        }
    }
}

fn make(dir: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let stubs = dir.join("lib64/stubs");
    fs::create_dir_all(&stubs).map_err(|error| format!("{}: {error}", stubs.display()))?;
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut child = Command::new(&compiler)
        .args(["-shared", "-fPIC", "-x", "c", "-", "-o"])
        .arg(stubs.join("libcuda.so"))
        .arg(format!("-Wl,-soname,{AT_RUN_TIME}"))
        .stdin(Stdio::piped())
        .spawn()
        .map_err(|error| format!("no C compiler `{}`: {error}", compiler.display()))?;
    if let Some(mut source) = child.stdin.take() {
        for function in FUNCTIONS.lines() {
            writeln!(source, "int {function}(void) {{ return {STUB_LIBRARY}; }}")?;
        }
    }
    if !child.wait()?.success() {
        return Err(format!("`{}` failed", compiler.display()).into());
    }
    // For a look at a program on a machine without a driver.
    fs::copy(stubs.join("libcuda.so"), stubs.join(AT_RUN_TIME))?;
    Ok(dir.canonicalize()?)
}
