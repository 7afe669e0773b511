//! For build scripts: compiles a kernels crate to PTX and embeds it in the application.
//!
//! ```toml
//! [build-dependencies]
//! preempt-build = "0.1"
//! ```
//!
//! ```no_run
//! // build.rs
//! fn main() -> Result<(), preempt_build::Error> {
//!     preempt_build::Kernels::new("../kernels").build()
//! }
//! ```
//!
//! ```ignore
//! // main.rs
//! const KERNELS: preempt::Module = preempt::include_kernels!();
//! ```
//!
//! A kernels crate is an ordinary library crate. It needs no nightly features and no `no_std`
//! of its own: both are added when it is compiled for the GPU. Other crates that it depends on
//! must be `no_std` there, by `#![cfg_attr(target_arch = "nvptx64", no_std)]`.
//!
//! # Toolchains
//!
//! The application is built by any stable compiler. For the kernels a compiler of Rust 1.95 or later is needed,
//! with the source of its library and its LLVM's tools. The first of these that is complete is used:
//!
//! 1. what `PREEMPT_RUSTC` (a path of rustc) names, and only that; `PREEMPT_TOOLS` names folders of `llvm-link`,
//!    `opt` and `llc`, if they are elsewhere;
//! 2. the rustup toolchain that builds the application, or else rustup's default, or else any other one, with two
//!    components: `rustup component add rust-src llvm-tools`;
//! 3. Debian's: `apt-get install rustc-web cargo-web rust-web-src llvm-22`.
//!
//! Stable, beta and nightly compilers will do. All kernels of this workspace were compiled and run with Rust 1.95 and
//! 1.99, and compiled with the releases between them. Where there is no toolchain, or none that compiles an empty kernel,
//! the build says so in a warning and goes on; the application then has the CPU device.
//!
//! # Committed PTX
//!
//! With [`committed`](Kernels::committed), a PTX file in the repository is embedded as it is
//! while it is fresh, which takes no time and no toolchain. `preempt-ptx` writes it:
//!
//! ```sh
//! cargo install preempt-build
//! preempt-ptx path/to/kernels
//! ```
//!
//! A stale one is never embedded. `PREEMPT_PTX=compile` in the environment compiles whether or
//! not it is fresh, and `PREEMPT_PTX=committed` never compiles.

mod error;
mod ir;
mod link;
mod nested_cargo;
mod probe;
mod sources;
mod tokens;
mod toolchain;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

pub use error::Error;
use error::io;
use nested_cargo::Compiled;
#[doc(inline)]
pub use preempt_ptx_text::{Report, check};
use sources::Crate;
use toolchain::Toolchain;

/// Oldest GPU architecture of the PTX unless another is asked for: every GPU since 2020 runs it.
const DEFAULT_CPU: &str = "sm_80";

/// A kernels crate to compile and embed.
///
/// ```no_run
/// # fn main() -> Result<(), preempt_build::Error> {
/// preempt_build::Kernels::new("../kernels").target_cpu("sm_90").committed("kernels.ptx").build()
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is compiled before `build`"]
pub struct Kernels {
    dir: PathBuf,
    target_cpu: String,
    committed: Option<PathBuf>,
}

impl Kernels {
    /// The kernels crate in the folder `dir`, relative to the package of the build script.
    pub fn new(dir: impl Into<PathBuf>) -> Kernels {
        Kernels { dir: dir.into(), target_cpu: DEFAULT_CPU.to_owned(), committed: None }
    }

    /// Sets the oldest GPU that the PTX runs on, `sm_80` if this is not called. The driver
    /// compiles PTX for newer ones when it loads it.
    pub fn target_cpu(mut self, name: impl Into<String>) -> Kernels {
        self.target_cpu = name.into();
        self
    }

    /// Embeds this file, relative to the kernels crate, while it is fresh.
    pub fn committed(mut self, file: impl Into<PathBuf>) -> Kernels {
        self.committed = Some(file.into());
        self
    }

    /// Call this from a build script: leaves the PTX where `preempt::include_kernels!` finds it, and tells cargo when to
    /// run the script again.
    ///
    /// If there is no toolchain and no fresh committed PTX, prints a warning and leaves a
    /// module without PTX.
    ///
    /// # Errors
    ///
    /// If the crate cannot be found or compiled, if the PTX does not pass [`check`], or if a
    /// file cannot be written.
    pub fn build(self) -> Result<(), Error> {
        let krate = Crate::resolve(&self.dir)?;
        for path in krate.watched().into_iter().chain(self.committed_file()) {
            println!("cargo:rerun-if-changed={}", path.display());
        }
        for name in ["PREEMPT_PTX", "PREEMPT_RUSTC", "PREEMPT_TOOLS"] {
            println!("cargo:rerun-if-env-changed={name}");
        }
        let ptx = match self.ptx_of(&krate) {
            Ok(ptx) => Some(ptx),
            Err(Absent::Failed(error)) => return Err(error),
            Err(Absent::Explained(why)) => {
                println!(
                    "cargo:warning=`{}` runs on the CPU device alone, without PTX:",
                    krate.name
                );
                // Cargo takes a warning for each line.
                why.lines().for_each(|line| println!("cargo:warning={line}"));
                None
            }
        };
        embed(&krate.name, ptx.as_deref())
    }

    /// The committed PTX if it is fresh, or else what the compiler makes.
    fn ptx_of(&self, krate: &Crate) -> Result<String, Absent> {
        let mode = env::var("PREEMPT_PTX").unwrap_or_default();
        if mode != "compile"
            && let Some(ptx) = self.fresh(krate)
        {
            check(&ptx).map_err(Error::from)?;
            return Ok(ptx);
        }
        let stale = match &self.committed {
            Some(file) => format!("{} is stale or missing", file.display()),
            None => "none is committed".to_owned(),
        };
        if mode == "committed" {
            return Err(Absent::Explained(format!("PREEMPT_PTX=committed, and {stale}")));
        }
        match self.compile_on_this_machine(krate) {
            Ok((compiled, _)) => Ok(compiled.ptx),
            Err(error @ Error::NoToolchain { .. }) => {
                Err(Absent::Explained(format!("{stale}, and {error}")))
            }
            Err(error) => Err(Absent::Failed(error)),
        }
    }

    /// By the first toolchain that works; its release comes with what it made.
    fn compile_on_this_machine(&self, krate: &Crate) -> Result<(Compiled, String), Error> {
        let work = work_folder(krate);
        let mut looked = Vec::new();
        let toolchains = Toolchain::all(&mut looked)?;
        // Whether components are what is missing.
        let lacks_parts = toolchains.is_empty();
        for toolchain in toolchains {
            match self.compile_with(krate, &toolchain, &work) {
                Ok(compiled) => return Ok((compiled, toolchain.release)),
                Err(error @ Error::SourceOutside { .. }) => return Err(error),
                // The kernels' fault, unless an empty kernel fares no better.
                Err(error) => {
                    let Err(why) = probe::compile(&self.target_cpu, &toolchain, &work) else {
                        return Err(error);
                    };
                    let lack = format!("compiles no empty kernel ({why})");
                    if toolchain.is_named {
                        return Err(Error::NamedToolchain { rustc: toolchain.rustc, lack });
                    }
                    looked.push(format!("{} {lack}", toolchain.rustc.display()));
                }
            }
        }
        Err(Error::NoToolchain { looked, install: toolchain::install(lacks_parts) })
    }

    fn compile_with(
        &self,
        krate: &Crate,
        toolchain: &Toolchain,
        work: &Path,
    ) -> Result<Compiled, Error> {
        let compiled = nested_cargo::compile(krate, &self.target_cpu, toolchain, work)?;
        let report = check(&compiled.ptx)?;
        if report.target != self.target_cpu {
            return Err(Error::WrongTarget {
                asked: self.target_cpu.clone(),
                found: report.target,
            });
        }
        Ok(compiled)
    }

    /// Compiles the crate and returns the PTX, with the header that [`is_fresh`](Self::is_fresh)
    /// reads: what `preempt-ptx` commits.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build), and [`Error::NoToolchain`].
    pub fn compile(&self) -> Result<String, Error> {
        let krate = Crate::resolve(&self.dir)?;
        let (compiled, release) = self.compile_on_this_machine(&krate)?;
        let header = krate.header(&compiled.files, &self.fingerprint(), &release)?;
        Ok(header + &compiled.ptx)
    }

    /// The library's name, with underscores: what `preempt::include_kernels!` takes.
    ///
    /// # Errors
    ///
    /// If cargo cannot resolve the crate.
    pub fn name(&self) -> Result<String, Error> {
        Ok(Crate::resolve(&self.dir)?.name)
    }

    /// Whether the committed PTX was compiled from the sources as they are now.
    ///
    /// # Errors
    ///
    /// If cargo cannot resolve the crate. A missing file is not fresh.
    pub fn is_fresh(&self) -> Result<bool, Error> {
        Ok(self.fresh(&Crate::resolve(&self.dir)?).is_some())
    }

    fn fresh(&self, krate: &Crate) -> Option<String> {
        let ptx = fs::read_to_string(self.committed_file()?).ok()?;
        krate.is_fresh(&ptx, &self.fingerprint()).then_some(ptx)
    }

    fn committed_file(&self) -> Option<PathBuf> {
        self.committed.as_ref().map(|file| self.dir.join(file))
    }

    fn fingerprint(&self) -> String {
        nested_cargo::fingerprint(&self.target_cpu)
    }
}

/// Why there is no PTX.
enum Absent {
    /// Nothing is wrong with the kernels.
    Explained(String),
    Failed(Error),
}

impl From<Error> for Absent {
    fn from(error: Error) -> Absent {
        Absent::Failed(error)
    }
}

/// The kernels crates that this build script has compiled, for `include_kernels!` without a name.
static EMBEDDED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Leaves what `include_kernels!` includes: an expression of type `Option<&'static str>` for each name, and another one
/// for the only kernels crate, with its name. The path of that is in a variable, which tells whether this was called.
fn embed(name: &str, ptx: Option<&str>) -> Result<(), Error> {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let expression = match ptx {
        Some(ptx) => {
            let file = out.join(format!("{name}.ptx"));
            fs::write(&file, ptx).map_err(io("write", file))?;
            format!("Some(include_str!(concat!(env!(\"OUT_DIR\"), \"/{name}.ptx\")))\n")
        }
        None => "None\n".to_owned(),
    };
    let file = out.join(format!("{name}.kernels.rs"));
    fs::write(&file, expression).map_err(io("write", file))?;
    // A set of names is whole whatever panicked.
    let mut embedded = EMBEDDED.lock().unwrap_or_else(PoisonError::into_inner);
    embedded.insert(name.to_owned());
    let file = out.join("only.rs");
    println!("cargo:rustc-env=PREEMPT_KERNELS={}", file.display());
    fs::write(&file, only(&embedded)).map_err(io("write", file))
}

/// The name and the PTX of the only kernels crate, or an error that tells the names.
fn only(names: &BTreeSet<String>) -> String {
    if let [name] = names.iter().collect::<Vec<_>>()[..] {
        return format!("({name:?}, include!(\"{name}.kernels.rs\"))\n");
    }
    let names: Vec<_> = names.iter().map(|name| format!("include_kernels!(\"{name}\")")).collect();
    let message =
        format!("the build script compiles several kernels crates: {}", names.join(" or "));
    format!("compile_error!({message:?})\n")
}

/// Where the compiler's intermediate files go: a folder of its own in the target folder that
/// this program was built into, shared by all kernels crates of the workspace.
fn work_folder(krate: &Crate) -> PathBuf {
    let program = env::current_exe().unwrap_or_default();
    // Cargo writes one or both into its target folders.
    let is_target = |dir: &&Path| {
        [".rustc_info.json", "CACHEDIR.TAG"].iter().any(|file| dir.join(file).exists())
    };
    let target = program.ancestors().find(is_target).map(Path::to_owned);
    let target = target.or_else(|| env::var_os("OUT_DIR").map(PathBuf::from));
    target.unwrap_or_else(|| krate.dir.join("target")).join("preempt")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only_of<const N: usize>(names: [&str; N]) -> String {
        only(&names.map(str::to_owned).into())
    }

    #[test]
    fn the_only_kernels_crate_needs_no_name_and_several_do() {
        assert_eq!(only_of(["a"]), "(\"a\", include!(\"a.kernels.rs\"))\n");
        let several = only_of(["a", "b"]);
        assert!(several.starts_with("compile_error!("), "{several}");
        for name in ["a", "b"] {
            let call = format!("include_kernels!(\\\"{name}\\\")");
            assert!(several.contains(&call), "{several}");
        }
    }
}
