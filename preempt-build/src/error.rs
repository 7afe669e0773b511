//! What can go wrong while PTX is made, and what to do about it.

use std::fmt;
use std::path::PathBuf;

use super::toolchain::TESTED;
use preempt_ptx_text::KernelFault;

/// Why there is no PTX.
///
/// `Debug` prints the same text as `Display`, because that is what a build script whose `main`
/// returns the error shows to its user.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was attempted: "read", "write", ...
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },

    /// A program could not be started.
    #[error("cannot run {}: {source}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },

    /// Cargo could not tell what the kernels crate consists of.
    #[error(
        "{} is not a kernels crate that cargo can resolve; name the folder of a library crate \
         that depends on `preempt-device`:\n{output}", dir.display()
    )]
    NotACrate {
        /// The folder that was given.
        dir: PathBuf,
        /// What cargo said.
        output: String,
    },

    /// The kernels crate depends on the host library.
    #[error(
        "`{krate}` depends on `preempt`, which is for the host alone, so it does not compile for the GPU: let it depend on \
         `preempt-device` and use `preempt_device::prelude`; what only the host needs goes below \
         `[target.'cfg(not(target_arch = \"nvptx64\"))'.dependencies]` in its Cargo.toml"
    )]
    HostLibrary {
        /// The library's name.
        krate: String,
    },

    /// No compiler for the device was found, or none that works.
    #[error("no toolchain compiles for a GPU; Rust {TESTED} are known to:\n{}\nrun: {install}", looked.join("\n"))]
    NoToolchain {
        /// Each place that was looked at, and what it lacks.
        looked: Vec<String>,
        /// The command that installs one.
        install: &'static str,
    },

    /// The compiler that `PREEMPT_RUSTC` names cannot be used.
    #[error(
        "PREEMPT_RUSTC names {}, which {lack}; name a complete one (Rust {TESTED}), with the folder of its llvm-link, \
         opt and llc in PREEMPT_TOOLS if they are not in its own, or unset it", rustc.display()
    )]
    NamedToolchain {
        /// The compiler.
        rustc: PathBuf,
        /// What it lacks.
        lack: String,
    },

    /// One of LLVM's tools failed.
    #[error("{} failed:\n{output}", program.display())]
    Tool {
        /// The program.
        program: PathBuf,
        /// What it said.
        output: String,
    },

    /// The kernels crate does not compile for the device.
    #[error("`{krate}` does not compile for the GPU:\n{output}")]
    Compile {
        /// The library's name.
        krate: String,
        /// What the compiler said.
        output: String,
    },

    /// A file that the kernels are compiled from lies outside of every package.
    #[error(
        "{} is compiled into the kernels but lies in no path dependency's folder, so a change \
         to it would go unnoticed; move it into the crate", path.display()
    )]
    SourceOutside {
        /// The file.
        path: PathBuf,
    },

    /// The PTX is for another GPU than asked for, so flags were lost on the way.
    #[error(
        "the PTX is for `{found}` and not for `{asked}`: something between here and the compiler \
         replaced its flags; look for `rustflags` and wrappers in the environment and in \
         .cargo/config.toml"
    )]
    WrongTarget {
        /// The `.target` that was asked for.
        asked: String,
        /// The `.target` of the PTX.
        found: String,
    },

    /// The PTX is refused.
    #[error(transparent)]
    Refused(#[from] KernelFault),
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `map_err` for file operations.
pub(super) fn io(
    action: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.into();
    move |source| Error::Io { action, path, source }
}
