//! From LLVM IR to PTX, by the LLVM tools that belong to the compiler.
//!
//! The compiler leaves the IR of all crates but `compiler_builtins` in one file, and optimises nothing: it would do so with
//! what [`ir`](super::ir) takes out first. LLVM then runs twice, since the bodies of kernels are optimised before they
//! become a part of the worker loop.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::error::{Error, io};
use super::ir;
use super::nested_cargo;
use super::tokens;
use super::toolchain::Toolchain;

/// What LLVM does to bodies and entries apart.
const APART: &str = "--passes=thinlto-pre-link<O3>";
/// What it does to entries with their bodies.
const TOGETHER: &str = "--passes=default<O3>";

/// What decides about the PTX here.
pub(super) fn fingerprint() -> Vec<&'static str> {
    let sources = [
        ("intrinsics.ll", preempt_device::INTRINSICS_LL),
        ("ir.rs", include_str!("ir.rs")),
        ("link.rs", include_str!("link.rs")),
    ];
    let tokens = sources.iter().flat_map(|(name, text)| tokens::of_source(Path::new(name), text));
    tokens.chain([APART, TOGETHER]).collect()
}

/// Makes PTX for `target_cpu` of the IR in the file `from`, and of what it calls in `builtins`, the library of that crate.
/// Intermediate files are beside it, and gone in the end.
pub(super) fn ptx(
    from: &Path,
    builtins: &Path,
    target_cpu: &str,
    toolchain: &Toolchain,
) -> Result<String, Error> {
    let whole = fs::read_to_string(from).map_err(io("read", from))?;
    // Of this process alone: others may link the same kernels at the same time.
    let beside = |part: &str| from.with_extension(format!("{}.{part}", std::process::id()));
    let (own, added) = (beside("own.ll"), beside("added.ll"));
    let (linked, apart) = (beside("linked.bc"), beside("apart.ll"));
    let (inlined, optimised, out) = (beside("inlined.ll"), beside("optimised.bc"), beside("ptx"));
    let make = || {
        write(&own, &ir::prepared(&whole))?;
        // In the words of this compiler, so that LLVM need not guess.
        let layout = whole.lines().filter(|line| line.starts_with("target "));
        let layout: Vec<_> = layout.chain([preempt_device::INTRINSICS_LL]).collect();
        write(&added, &layout.join("\n"))?;
        // What is added belongs to the kernels alone, and what they do not use goes.
        let link = ["--internalize", "--only-needed", "--ignore-non-bitcode"];
        run(toolchain, "llvm-link", &link, &[&own, &added, builtins], &linked)?;
        run(toolchain, "opt", &["--strip-debug", APART, "-S"], &[&linked], &apart)?;
        let text = fs::read_to_string(&apart).map_err(io("read", &apart))?;
        write(&inlined, &ir::with_bodies_inlined(&text))?;
        run(toolchain, "opt", &[TOGETHER], &[&inlined], &optimised)?;
        run(toolchain, "llc", &["--mcpu", target_cpu], &[&optimised], &out)?;
        fs::read_to_string(&out).map_err(io("read", &out))
    };
    let ptx = make();
    for file in [&own, &added, &linked, &apart, &inlined, &optimised, &out] {
        // A file that was not written is not there.
        let _ = fs::remove_file(file);
    }
    ptx
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(io("write", path))
}

/// Runs a tool of LLVM's on files.
fn run(
    toolchain: &Toolchain,
    tool: &'static str,
    options: &[&str],
    from: &[&Path],
    to: &Path,
) -> Result<(), Error> {
    let program = toolchain.tool(tool);
    let mut command = Command::new(&program);
    nested_cargo::clean_environment(&mut command);
    let output = command.args(options).args(from).arg("-o").arg(to).output();
    let output = output.map_err(|source| Error::Spawn { program: program.clone(), source })?;
    if output.status.success() {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Error::Tool { program, output })
}
