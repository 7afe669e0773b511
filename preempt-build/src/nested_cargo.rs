//! Compiles a kernels crate for the device, by a cargo inside of the build.
//!
//! What the outer build put into the environment must not reach the inner one. Cargo gives
//! build scripts `CARGO_ENCODED_RUSTFLAGS=""`, which overrides every other source of flags: the
//! result was PTX for `sm_30` with its atomics as compare-and-swap loops, and no error.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::{Error, io};
use super::link;
use super::sources::{self, Crate, hash};
use super::toolchain::Toolchain;

/// The device's target triple.
pub(super) const TRIPLE: &str = "nvptx64-nvidia-cuda";

/// Flags for everything that is compiled for the device, `core` included. They come after those of profiles, so a
/// workspace's profile and its overrides for single packages do not reach the kernels.
const FLAGS: [&str; 8] = [
    // LLVM's passes run later, on what `ir` makes of it.
    "-Cno-prepopulate-passes",
    "-Copt-level=3",
    "-Ccodegen-units=1",
    "-Cdebuginfo=0",
    "-Coverflow-checks=no",
    "-Cdebug-assertions=no",
    // `ir` knows bodies by their names.
    "-Csymbol-mangling-version=v0",
    // The host's build shows them; here they would only stand before an error.
    "-Awarnings",
];

/// Unstable flags without which the PTX would be wrong or not come out at all.
const NEEDED: [&str; 1] = [
    // Jump threading copies barriers and shuffles into divergent branches: `if ok {..}
    // sync_threads(); if ok {..}` became two barriers, each for a part of the block.
    "-Zmir-enable-passes=-JumpThreading",
];

/// Unstable flags that are left out where the compiler does not have them.
const WELCOME: [&str; 2] = [
    // No source paths in the PTX, because panics print no messages there.
    "-Zlocation-detail=none",
    "-Zfmt-debug=none",
];

/// The rest of the profile, whatever the workspace says.
const PROFILE: [&str; 4] = [
    "profile.release.lto='fat'",
    "profile.release.incremental=false",
    // A panic is a trap: no formatting code, no strings.
    "profile.release.panic='immediate-abort'",
    "profile.release.strip='none'",
];

/// Flags for the kernels crate itself, so that its author need not write them: what the expansion
/// of `#[preemptible]` uses, and `no_std`; and no linking, since [`link`] does that.
const CRATE: [&str; 3] =
    ["-Zcrate-attr=feature(abi_ptx, stmt_expr_attributes)", "-Zcrate-attr=no_std", "-Zno-link"];

/// The unstable flags that a compiler has to have, as `rustc -Zhelp` names them.
pub(super) fn needed_flags() -> impl Iterator<Item = &'static str> {
    NEEDED.iter().chain(&CRATE).filter_map(|flag| name_of(flag))
}

/// The name of an unstable flag.
fn name_of(flag: &'static str) -> Option<&'static str> {
    flag.strip_prefix("-Z")?.split('=').next()
}

/// What to do about a dependency that wants `std`.
const NO_STD: &str = "There is no `std` on the GPU. In a dependency of your own, write \
    `#![cfg_attr(target_arch = \"nvptx64\", no_std)]` at the top of lib.rs; from another, take \
    what works without `std` (often `default-features = false`).\n";

/// What to do about code that wants `std`.
const NO_STD_HERE: &str = "There is no `std` on the GPU: no `println!`, no `vec!`, nothing that allocates. Write results \
    to a buffer; code for the host goes behind `#[cfg(not(target_arch = \"nvptx64\"))]`.\n";

/// What to do about a kernel that depends on parameters of what is around it.
const GENERIC: &str = "A kernel is inside of a generic function or `impl`. Its entries on the GPU are single symbols, so \
    move it out of there, and name the types and constants in it.\n";

/// Everything besides the sources that decides about the PTX: part of their hash. The compiler's release is left out,
/// because any release that is known to work will do.
pub(super) fn fingerprint(target_cpu: &str) -> String {
    let flags = FLAGS.iter().chain(&NEEDED).chain(&WELCOME).chain(&PROFILE).chain(&CRATE);
    [target_cpu]
        .into_iter()
        .chain(link::fingerprint())
        .chain(flags.copied())
        .collect::<Vec<_>>()
        .join("\n")
}

/// PTX as it came from the compiler, and the files that it was compiled from.
#[derive(Debug)]
pub(super) struct Compiled {
    pub ptx: String,
    pub files: Vec<PathBuf>,
}

/// Compiles `krate` for `target_cpu`; intermediate files are kept in `work`.
pub(super) fn compile(
    krate: &Crate,
    target_cpu: &str,
    toolchain: &Toolchain,
    work: &Path,
) -> Result<Compiled, Error> {
    fs::create_dir_all(work).map_err(io("create", work))?;
    let welcome =
        WELCOME.iter().filter(|flag| name_of(flag).is_some_and(|name| toolchain.has_flag(name)));
    let mut flags: Vec<_> =
        FLAGS.iter().chain(&NEEDED).chain(welcome).map(|flag| (*flag).to_owned()).collect();
    flags.push(format!("-Ctarget-cpu={target_cpu}"));

    let target_dir = work.join("target");
    // If cargo finds nothing to do, the file is that of the last time, so its name tells all that decides about it.
    let deciding = [
        krate.dir.to_string_lossy().into_owned(),
        toolchain.release.clone(),
        fingerprint(target_cpu),
    ];
    let ir = work.join(format!("{}-{:016x}.ll", krate.name, hash(&deciding.join("\n"))));
    let mut command = Command::new(&toolchain.cargo);
    clean_environment(&mut command);
    command
        .args(["rustc", "--release", "--lib", "--crate-type=cdylib", "--color=never"])
        .args(["--target", TRIPLE, "-Zbuild-std=core", "-Zpanic-immediate-abort"])
        // Standard output lists what was made; standard error says what is wrong.
        .arg("--message-format=json-render-diagnostics")
        .args(PROFILE.iter().flat_map(|setting| ["--config", setting]))
        .arg("--target-dir")
        .arg(&target_dir)
        .arg("--")
        .args(CRATE)
        .arg(format!("--emit=llvm-ir={}", ir.display()))
        .env("RUSTC", &toolchain.rustc)
        // Unstable flags on a stable compiler.
        .env("RUSTC_BOOTSTRAP", "1")
        // Separated by the unit separator, so that paths with spaces stay whole.
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        .current_dir(&krate.dir);
    let output = command
        .output()
        .map_err(|source| Error::Spawn { program: toolchain.cargo.clone(), source })?;
    if !output.status.success() {
        let output = String::from_utf8_lossy(&output.stderr);
        return Err(Error::Compile { krate: krate.name.clone(), output: explained(&output) });
    }

    let dep_info = target_dir.join(TRIPLE).join("release").join(&krate.name).with_extension("d");
    let text = fs::read_to_string(&dep_info).map_err(io("read", dep_info))?;
    let mut files = sources::dep_info(&text);
    // Generated by a build script of the crate itself; the script is a source of its own.
    files.retain(|file| !file.starts_with(&target_dir));
    let builtins = library(&String::from_utf8_lossy(&output.stdout), "compiler_builtins")
        .ok_or_else(|| Error::Compile {
            krate: krate.name.clone(),
            output: "error: cargo says of no `compiler_builtins`\n".to_owned(),
        })?;
    Ok(Compiled { ptx: link::ptx(&ir, &builtins, target_cpu, toolchain)?, files })
}

/// The library of a crate in cargo's messages, whether made now or before.
fn library(messages: &str, krate: &str) -> Option<PathBuf> {
    messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let target = &message["target"];
        let is_library = target["kind"].as_array()?.iter().any(|kind| kind == "lib");
        if target["name"] != krate || !is_library {
            return None;
        }
        let files = message["filenames"].as_array()?.iter().filter_map(|file| file.as_str());
        files.map(PathBuf::from).find(|file| file.extension().is_some_and(|end| end == "rlib"))
    })
}

/// What the compiler said, and what to do where that is not clear from it.
fn explained(output: &str) -> String {
    let misses = |what: &str| output.contains(what);
    let macros = ["println", "print", "eprintln", "eprint", "dbg", "vec", "format"];
    let misses_macro = macros.iter().any(|name| misses(&format!("cannot find macro `{name}`")));
    let help = if misses("can't find crate for `std`") {
        NO_STD.to_owned()
    } else if misses_macro || misses("crate `std`") || misses("module `std`") {
        NO_STD_HERE.to_owned()
    } else if misses("functions generic over types or consts must be mangled") {
        GENERIC.to_owned()
    } else if let Some(symbol) = defined_twice(output) {
        format!(
            "Two kernels of this crate have the name `{symbol}`, perhaps in different modules. On the GPU the name \
             is the kernel's symbol, whatever its module: give one of them another name. Kernels of different \
             crates may have the same one.\n"
        )
    } else {
        String::new()
    };
    format!("{output}{help}")
}

/// The symbol that the compiler found twice.
fn defined_twice(output: &str) -> Option<&str> {
    output
        .lines()
        .find_map(|line| line.strip_prefix("error: symbol `")?.strip_suffix("` is already defined"))
}

/// Takes out of the environment what an outer cargo, clippy or rustup put there. What says how
/// to reach registries stays.
pub(super) fn clean_environment(command: &mut Command) {
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_of_the_outer_build) {
            command.env_remove(name);
        }
    }
    // Set and empty: this also overrides a wrapper that a configuration file names.
    for wrapper in ["RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"] {
        command.env(wrapper, OsStr::new(""));
    }
}

fn is_of_the_outer_build(name: &str) -> bool {
    const KEPT: [&str; 7] = [
        "CARGO_HOME",
        "CARGO_HTTP_",
        "CARGO_MAKEFLAGS",
        "CARGO_NET_",
        "CARGO_REGISTR",
        "CARGO_SOURCE_",
        "CARGO_TERM_",
    ];
    let belongs = name.starts_with("CARGO")
        || name.starts_with("RUSTC")
        || name.starts_with("RUSTDOC")
        || matches!(name, "RUSTFLAGS" | "RUSTUP_TOOLCHAIN" | "TARGET" | "HOST" | "OUT_DIR");
    belongs && !KEPT.iter().any(|kept| name.starts_with(kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_say_little_are_explained() {
        for name in ["println", "eprintln", "dbg", "vec", "format"] {
            let said = explained(&format!("error: cannot find macro `{name}` in this scope\n"));
            assert!(said.ends_with(NO_STD_HERE), "{said}");
        }
        let said = explained("error[E0433]: cannot find module or crate `std`\n");
        assert!(said.ends_with(NO_STD_HERE), "{said}");
        assert!(explained("error[E0463]: can't find crate for `std`\n").ends_with(NO_STD));
        let said = explained("error: symbol `fill` is already defined\n --> src/lib.rs:6:1\n");
        assert!(
            said.contains("have the name `fill`") && said.contains("give one of them another name"),
            "{said}"
        );
        let said = explained("error: functions generic over types or consts must be mangled\n");
        assert!(said.ends_with(GENERIC), "{said}");
        let other = "error[E0425]: cannot find value `x`\n";
        assert_eq!(explained(other), other);
    }

    #[test]
    fn a_library_is_found_among_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"kind":["custom-build"],"name":"x"},"filenames":["/t/build"]}
{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"x"},"filenames":["/t/libx.rmeta","/t/libx.rlib"]}
{"reason":"build-finished","success":true}"#;
        assert_eq!(library(messages, "x"), Some(PathBuf::from("/t/libx.rlib")));
        assert_eq!(library(messages, "y"), None);
    }

    #[test]
    fn flags_and_wrappers_of_the_outer_build_are_cleared() {
        for name in [
            "CARGO",
            "CARGO_ENCODED_RUSTFLAGS",
            "CARGO_BUILD_TARGET",
            "CARGO_TARGET_DIR",
            "CARGO_TARGET_NVPTX64_NVIDIA_CUDA_RUSTFLAGS",
            "CARGO_PROFILE_RELEASE_LTO",
            "CARGO_UNSTABLE_BUILD_STD",
            "RUSTC",
            "RUSTC_WORKSPACE_WRAPPER",
            "RUSTC_BOOTSTRAP",
            "RUSTFLAGS",
            "RUSTUP_TOOLCHAIN",
        ] {
            assert!(is_of_the_outer_build(name), "{name} stays");
        }
        for name in ["PATH", "HOME", "CARGO_HOME", "CARGO_NET_OFFLINE", "CARGO_REGISTRIES_X_INDEX"]
        {
            assert!(!is_of_the_outer_build(name), "{name} is cleared");
        }
    }
}
