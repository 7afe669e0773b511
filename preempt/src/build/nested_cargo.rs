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
use super::sources::{self, Crate, hash};
use super::toolchain::Toolchain;

/// The target.
pub(super) const TRIPLE: &str = "nvptx64-nvidia-cuda";

/// Flags for everything that is compiled for the device, `core` included.
const FLAGS: [&str; 4] = [
    // Jump threading copies barriers and shuffles into divergent branches: `if ok {..}
    // sync_threads(); if ok {..}` became two barriers, each for a part of the block.
    "-Zmir-enable-passes=-JumpThreading",
    // `&mut` is noalias by default, and then loads are forwarded across barriers.
    "-Zmutable-noalias=no",
    // No source paths in the PTX. Nobody reads panic messages there.
    "-Zlocation-detail=none",
    "-Zfmt-debug=none",
];

/// The profile, whatever the workspace says.
const PROFILE: [&str; 6] = [
    "profile.release.opt-level=3",
    "profile.release.lto='fat'",
    "profile.release.codegen-units=1",
    "profile.release.debug=false",
    "profile.release.incremental=false",
    // A panic is a trap: no formatting code, no strings.
    "profile.release.panic='immediate-abort'",
];

/// Flags for the kernels crate itself, so that its author need not write them: what the expansion
/// of `#[preemptible]` uses, and `no_std`.
const CRATE: [&str; 2] =
    ["-Zcrate-attr=feature(abi_ptx, stmt_expr_attributes)", "-Zcrate-attr=no_std"];

/// What to do about a dependency that wants `std`.
const NO_STD: &str = "There is no `std` on the GPU. In a dependency of your own, write \
    `#![cfg_attr(target_arch = \"nvptx64\", no_std)]` at the top of lib.rs; from another, take \
    what works without `std` (often `default-features = false`).\n";

/// What decides about the PTX besides the sources: part of their hash.
pub(super) fn fingerprint(target_cpu: &str) -> String {
    [target_cpu, preempt_device::INTRINSICS_LL]
        .into_iter()
        .chain(FLAGS)
        .chain(PROFILE)
        .chain(CRATE)
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
    let linker = toolchain.linker(work)?;
    // Cargo does not look into what it passes to the linker, so the name tells the content.
    let intrinsics =
        work.join(format!("intrinsics-{:016x}.ll", hash(preempt_device::INTRINSICS_LL)));
    write_if_changed(&intrinsics, preempt_device::INTRINSICS_LL)?;

    let mut flags = FLAGS.map(str::to_owned).to_vec();
    flags.push(format!("-Ctarget-cpu={target_cpu}"));

    let target_dir = work.join("target");
    let mut command = Command::new(&toolchain.cargo);
    clean_environment(&mut command);
    command
        .args(["rustc", "--release", "--lib", "--crate-type=cdylib", "--color=never"])
        .args(["--target", TRIPLE, "-Zbuild-std=core", "-Zpanic-immediate-abort"])
        .args(PROFILE.iter().flat_map(|setting| ["--config", setting]))
        .arg("--target-dir")
        .arg(&target_dir)
        .arg("--")
        .args(CRATE)
        .arg(format!("-Clinker={}", linker.display()))
        .arg(format!("-Clink-arg={}", intrinsics.display()))
        .env("RUSTC", &toolchain.rustc)
        // Unstable flags on a stable compiler.
        .env("RUSTC_BOOTSTRAP", "1")
        // Separated by the unit separator, so that paths with spaces stay whole.
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        .env("PATH", toolchain.path())
        .current_dir(&krate.dir);
    let output = command
        .output()
        .map_err(|source| Error::Spawn { program: toolchain.cargo.clone(), source })?;
    if !output.status.success() {
        let mut output = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.contains("can't find crate for `std`") {
            output.push_str(NO_STD);
        }
        return Err(Error::Compile { krate: krate.name.clone(), output });
    }

    let folder = target_dir.join(TRIPLE).join("release");
    let read = |extension| {
        let path = folder.join(&krate.name).with_extension(extension);
        fs::read_to_string(&path).map_err(io("read", path))
    };
    let ptx = read("ptx")?;
    let mut files = sources::dep_info(&read("d")?);
    // Generated by a build script of the crate itself; the script is a source of its own.
    files.retain(|file| !file.starts_with(&target_dir));
    Ok(Compiled { ptx, files })
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

/// Leaves the time stamp alone where the content is the same.
pub(super) fn write_if_changed(path: &Path, text: &str) -> Result<(), Error> {
    if fs::read_to_string(path).is_ok_and(|present| present == text) {
        return Ok(());
    }
    fs::write(path, text).map_err(io("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

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
