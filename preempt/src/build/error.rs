//! What can go wrong while PTX is made, and what to do about it.

use std::fmt;
use std::path::PathBuf;

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

    /// No compiler for the device was found.
    #[error("no device toolchain was found ({}). {}", looked.join("; "), super::toolchain::INSTALL)]
    NoToolchain {
        /// Each place that was looked at, and what it lacks.
        looked: Vec<String>,
    },

    /// `llvm-bitcode-linker` could not be built from the compiler's source.
    #[error(
        "cannot build llvm-bitcode-linker from {}; put one into a folder and name it in \
         PREEMPT_TOOLS, or use a rustup toolchain that has it as a component:\n{output}",
        source_dir.display()
    )]
    Linker {
        /// Its source.
        source_dir: PathBuf,
        /// What cargo said.
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

    /// The text is not PTX.
    #[error("not PTX: {what}; rebuild it with `preempt-ptx`")]
    NotPtx {
        /// What is missing.
        what: &'static str,
    },

    /// A preemptible kernel reads the hardware's block index or grid dimensions.
    #[error(
        "the preemptible kernel `{entry}` reads `{register}` in `{function}`. A block that runs \
         it works on many block-tasks, so the hardware's block index is not the task's: use \
         `preempt_device::thread::block_idx_*` and `grid_dim_*` there"
    )]
    HardwareIndex {
        /// The kernel.
        entry: String,
        /// The kernel, or a function it calls.
        function: String,
        /// The special register.
        register: String,
    },

    /// A function reads the block-task's index but is not part of the kernel that sets it.
    #[error(
        "helper `{function}` reads block indices or grid dimensions and was not inlined into its \
         kernel: mark it `#[inline(always)]`, and the helpers between it and the kernel too"
    )]
    NotInlined {
        /// The function.
        function: String,
    },

    /// A preemptible kernel calls through a pointer, so what it runs cannot be checked.
    #[error(
        "the preemptible kernel `{entry}` calls through a function pointer in `{function}`; what \
         is called there cannot be checked: call the function by name, or pass it as a generic \
         `impl Fn`"
    )]
    IndirectCall {
        /// The kernel.
        entry: String,
        /// The kernel, or a function it calls.
        function: String,
    },
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
