//! Finds a compiler that can make PTX: rustc, the source of its own `core`, and the LLVM tools
//! that its linker calls.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::{Error, io};
use super::nested_cargo;

/// What to do when there is none.
pub(super) const INSTALL: &str = "Install one: with rustup, `rustup component add rust-src \
    llvm-tools llvm-bitcode-linker` (1.95 or newer, no nightly needed); on Debian, `apt-get \
    install rustc-web cargo-web rust-web-src llvm-22`; or name a compiler in PREEMPT_RUSTC and \
    the folder of its llvm-bitcode-linker, llvm-link, opt and llc in PREEMPT_TOOLS";

/// The first release whose flags and LLVM are known to work.
const OLDEST: (u32, u32) = (1, 95);

const LINKER: &str = "llvm-bitcode-linker";
const LLVM_TOOLS: [&str; 3] = ["llvm-link", "opt", "llc"];

/// A complete device toolchain.
#[derive(Debug)]
pub(super) struct Toolchain {
    pub rustc: PathBuf,
    pub cargo: PathBuf,
    release: String,
    /// Folders of the LLVM tools, and of the linker if there is one.
    tools: Vec<PathBuf>,
    linker: Linker,
}

#[derive(Debug, PartialEq)]
enum Linker {
    Ready(PathBuf),
    /// To be built from the compiler's source in this folder.
    Source(PathBuf),
}

/// Where to look.
#[derive(Debug)]
struct Places {
    rustc: Option<PathBuf>,
    tools: Vec<PathBuf>,
    rustup_toolchains: Option<PathBuf>,
    system_rustc: PathBuf,
    /// Holds `llvm-22/bin` and the like.
    llvm: PathBuf,
    /// Holds `rustc-1.96.0` and the like.
    sources: PathBuf,
}

impl Places {
    fn of_this_machine() -> Places {
        let home = || env::home_dir().map(|home| home.join(".rustup"));
        Places {
            rustc: env::var_os("PREEMPT_RUSTC").filter(|path| !path.is_empty()).map(PathBuf::from),
            tools: env::var_os("PREEMPT_TOOLS")
                .map(|path| env::split_paths(&path).collect())
                .unwrap_or_default(),
            rustup_toolchains: env::var_os("RUSTUP_HOME")
                .map(PathBuf::from)
                .or_else(home)
                .map(|rustup| rustup.join("toolchains")),
            system_rustc: PathBuf::from("/usr/bin/rustc"),
            llvm: PathBuf::from("/usr/lib"),
            sources: PathBuf::from("/usr/src"),
        }
    }

    /// The compilers to try, best first.
    fn compilers(&self) -> Vec<PathBuf> {
        if let Some(rustc) = &self.rustc {
            return vec![rustc.clone()];
        }
        let folders = self.rustup_toolchains.as_ref().and_then(|folder| fs::read_dir(folder).ok());
        let mut toolchains: Vec<_> = folders
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        // A stable compiler before a nightly one: of its unstable flags it is known what they do.
        toolchains.sort_by_key(|name| {
            let rank = ["stable", "1.", "beta", "nightly"];
            let rank = rank.iter().position(|start| name.starts_with(start));
            (rank.unwrap_or(usize::MAX), name.clone())
        });
        let rustup = self.rustup_toolchains.iter().flat_map(|folder| {
            let rustc = format!("rustc{}", env::consts::EXE_SUFFIX);
            toolchains.iter().map(move |name| folder.join(name).join("bin").join(&rustc))
        });
        rustup.chain([self.system_rustc.clone()]).filter(|rustc| rustc.exists()).collect()
    }
}

/// What a compiler says about itself.
#[derive(Debug)]
struct Compiler {
    release: String,
    host: String,
    llvm_major: String,
    sysroot: PathBuf,
}

impl Compiler {
    fn ask(rustc: &Path) -> Result<Compiler, String> {
        let run = |args: &[&str]| {
            let mut command = Command::new(rustc);
            nested_cargo::clean_environment(&mut command);
            let output = command.args(args).output().map_err(|error| error.to_string())?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            if output.status.success() { Ok(text) } else { Err("does not run".to_owned()) }
        };
        let version = run(&["-vV"])?;
        let field = |name: &str| {
            let line = version.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            line.map(str::to_owned).ok_or_else(|| format!("does not tell its {name}"))
        };
        let llvm_version = field("LLVM version")?;
        Ok(Compiler {
            release: field("release")?,
            host: field("host")?,
            llvm_major: llvm_version.split('.').next().unwrap_or_default().to_owned(),
            sysroot: PathBuf::from(run(&["--print", "sysroot"])?.trim()),
        })
    }

    fn is_new_enough(&self) -> bool {
        let mut numbers = self.release.split('.').map(|number| number.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= OLDEST
    }
}

impl Toolchain {
    /// The best toolchain of this machine.
    pub fn find() -> Result<Toolchain, Error> {
        Toolchain::find_in(&Places::of_this_machine())
    }

    fn find_in(places: &Places) -> Result<Toolchain, Error> {
        let mut looked = Vec::new();
        for rustc in places.compilers() {
            match Toolchain::complete(&rustc, places) {
                Ok(toolchain) => return Ok(toolchain),
                Err(lack) => looked.push(format!("{} {lack}", rustc.display())),
            }
        }
        if looked.is_empty() {
            looked.push("neither a rustup toolchain nor /usr/bin/rustc exists".to_owned());
        }
        Err(Error::NoToolchain { looked })
    }

    /// Collects the parts that belong to `rustc`, or says which one is missing.
    fn complete(rustc: &Path, places: &Places) -> Result<Toolchain, String> {
        let compiler = Compiler::ask(rustc)?;
        let Compiler { release, host, llvm_major, sysroot } = &compiler;
        if !compiler.is_new_enough() {
            return Err(format!("is {release}, older than {}.{}", OLDEST.0, OLDEST.1));
        }
        let library = sysroot.join("lib/rustlib/src/rust/library/core/Cargo.toml");
        if !library.exists() {
            return Err("lacks its library source (rust-src)".to_owned());
        }
        let cargo = rustc.with_file_name(format!("cargo{}", env::consts::EXE_SUFFIX));
        if !cargo.exists() {
            return Err("has no cargo beside it".to_owned());
        }

        let own = sysroot.join("lib/rustlib").join(host).join("bin");
        let mut folders = places.tools.clone();
        folders.extend([own.join("self-contained"), own]);
        folders.push(places.llvm.join(format!("llvm-{llvm_major}")).join("bin"));
        let holder = |tool: &str| {
            let file = format!("{tool}{}", env::consts::EXE_SUFFIX);
            folders.iter().find(|folder| folder.join(&file).exists())
        };
        let mut tools = Vec::new();
        for tool in LLVM_TOOLS {
            match holder(tool) {
                Some(folder) if tools.contains(folder) => {}
                Some(folder) => tools.push(folder.clone()),
                None => return Err(format!("lacks LLVM {llvm_major}'s {tool} (llvm-tools)")),
            }
        }
        let source = |root: PathBuf| root.join("src/tools").join(LINKER);
        let linker = match holder(LINKER) {
            Some(folder) => Linker::Ready(folder.clone()),
            None => [
                source(places.sources.join(format!("rustc-{release}"))),
                source(sysroot.join("lib/rustlib/src/rust")),
            ]
            .into_iter()
            .find(|source| source.join("Cargo.toml").exists())
            .map(Linker::Source)
            .ok_or_else(|| format!("lacks {LINKER} and the source of it"))?,
        };
        Ok(Toolchain { rustc: rustc.to_owned(), cargo, release: release.clone(), tools, linker })
    }

    /// The linker, built first if need be. What is built is kept in `work`.
    pub fn linker(&self, work: &Path) -> Result<PathBuf, Error> {
        let name = format!("{LINKER}{}", env::consts::EXE_SUFFIX);
        match &self.linker {
            Linker::Ready(folder) => Ok(folder.join(name)),
            Linker::Source(source) => {
                let folder = work.join(format!("{LINKER}-{}", self.release));
                let built = folder.join(&name);
                if !built.exists() {
                    self.build_linker(source, &folder, &name)?;
                }
                Ok(built)
            }
        }
    }

    /// Builds beside the place where the linker goes and renames it there, so that builds that
    /// run at the same time do not see each other's half-written file.
    fn build_linker(&self, source: &Path, folder: &Path, name: &str) -> Result<(), Error> {
        let scratch = folder.join(format!("build-{}", std::process::id()));
        copy_folder(source, &scratch)?;
        // In the compiler's repository it is a workspace member; here it stands alone, with the
        // dependencies that the compiler's release was tested with.
        let manifest = scratch.join("Cargo.toml");
        let mut text = fs::read_to_string(&manifest).map_err(io("read", &manifest))?;
        text.push_str("\n[workspace]\n");
        fs::write(&manifest, text).map_err(io("write", &manifest))?;
        let lock = source.join("../../../Cargo.lock");
        if lock.exists() {
            fs::copy(&lock, scratch.join("Cargo.lock")).map_err(io("read", &lock))?;
        }

        let mut command = Command::new(&self.cargo);
        nested_cargo::clean_environment(&mut command);
        let output = command
            .args(["build", "--release", "--color=never"])
            .arg("--target-dir")
            .arg(scratch.join("target"))
            .env("RUSTC", &self.rustc)
            .current_dir(&scratch)
            .output()
            .map_err(|source| Error::Spawn { program: self.cargo.clone(), source })?;
        if !output.status.success() {
            let output = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(Error::Linker { source_dir: source.to_owned(), output });
        }
        let (from, to) = (scratch.join("target/release").join(name), folder.join(name));
        fs::rename(&from, &to).map_err(io("rename", from))?;
        // Only scratch space: the linker is in place.
        let _ = fs::remove_dir_all(&scratch);
        Ok(())
    }

    /// PATH for the compiler: this toolchain's tools first.
    pub fn path(&self) -> OsString {
        let inherited = env::var_os("PATH").unwrap_or_default();
        let folders = self.tools.iter().cloned().chain(env::split_paths(&inherited));
        // A folder whose name cannot stand in PATH could not have been found through it either.
        env::join_paths(folders).unwrap_or(inherited)
    }
}

fn copy_folder(from: &Path, to: &Path) -> Result<(), Error> {
    fs::create_dir_all(to).map_err(io("create", to))?;
    for entry in fs::read_dir(from).map_err(io("read", from))? {
        let from = entry.map_err(io("read", from))?.path();
        let to = to.join(from.file_name().unwrap_or_default());
        if from.is_dir() {
            copy_folder(&from, &to)?;
        } else {
            fs::copy(&from, &to).map_err(io("copy", &from))?;
        }
    }
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Stdio;

    use super::*;

    /// A folder that looks like a machine, with compilers that only answer questions.
    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str) -> Machine {
            let root = env::temp_dir().join(format!("preempt-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            fs::create_dir_all(&root).unwrap();
            Machine(root)
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            // By another process: a child that another test starts meanwhile would have the file open for writing, too,
            // and what is open for writing cannot be run.
            let write = Command::new("sh")
                .args(["-c", "cat > \"$0\""])
                .arg(&path)
                .stdin(Stdio::piped())
                .spawn();
            let mut write = write.unwrap();
            write.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
            assert!(write.wait().unwrap().success());
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }

        fn compiler(&self, sysroot: &str, release: &str) {
            let dir = self.0.join(sysroot);
            let script = format!(
                "#!/bin/sh\nif [ \"$1\" = -vV ]; then echo 'release: {release}'; echo 'host: h'; \
                 echo 'LLVM version: 22.1.8'; else echo '{}'; fi\n",
                dir.display()
            );
            self.file(&format!("{sysroot}/bin/rustc"), &script);
            self.file(&format!("{sysroot}/bin/cargo"), "");
        }

        fn library(&self, sysroot: &str) {
            self.file(&format!("{sysroot}/lib/rustlib/src/rust/library/core/Cargo.toml"), "");
        }

        fn llvm(&self, folder: &str) {
            LLVM_TOOLS.iter().for_each(|tool| self.file(&format!("{folder}/{tool}"), ""));
        }

        fn places(&self) -> Places {
            Places {
                rustc: None,
                tools: Vec::new(),
                rustup_toolchains: Some(self.0.join("toolchains")),
                system_rustc: self.0.join("usr/bin/rustc"),
                llvm: self.0.join("usr/lib"),
                sources: self.0.join("usr/src"),
            }
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn rustup_components_make_a_toolchain() {
        let machine = Machine::new("rustup");
        machine.compiler("toolchains/nightly-h", "1.97.0-nightly");
        machine.compiler("toolchains/stable-h", "1.96.0");
        machine.library("toolchains/nightly-h");
        machine.llvm("toolchains/nightly-h/lib/rustlib/h/bin");
        let linker = "toolchains/nightly-h/lib/rustlib/h/bin/self-contained";
        machine.file(&format!("{linker}/{LINKER}"), "");
        // The stable one lacks everything, so the nightly is taken.
        let found = Toolchain::find_in(&machine.places()).unwrap();
        assert_eq!(found.rustc, machine.0.join("toolchains/nightly-h/bin/rustc"));
        assert_eq!(found.linker, Linker::Ready(machine.0.join(linker)));
    }

    #[test]
    fn distribution_packages_make_a_toolchain() {
        let machine = Machine::new("debian");
        machine.compiler("usr", "1.96.0");
        machine.library("usr");
        machine.llvm("usr/lib/llvm-22/bin");
        let source = format!("usr/src/rustc-1.96.0/src/tools/{LINKER}");
        machine.file(&format!("{source}/Cargo.toml"), "");
        let found = Toolchain::find_in(&machine.places()).unwrap();
        assert_eq!(found.tools, [machine.0.join("usr/lib/llvm-22/bin")]);
        assert_eq!(found.linker, Linker::Source(machine.0.join(source)));
    }

    #[test]
    fn what_is_missing_is_named() {
        let machine = Machine::new("bare");
        let lack = || Toolchain::find_in(&machine.places()).unwrap_err().to_string();
        assert!(lack().contains("rustup component add"), "{}", lack());
        machine.compiler("usr", "1.63.0");
        assert!(lack().contains("is 1.63.0, older than"), "{}", lack());
        machine.compiler("usr", "1.96.0");
        assert!(lack().contains("lacks its library source"), "{}", lack());
        machine.library("usr");
        // LLVM of another major version reads no bitcode of this compiler.
        machine.llvm("usr/lib/llvm-19/bin");
        assert!(lack().contains("lacks LLVM 22's llvm-link"), "{}", lack());
        machine.llvm("usr/lib/llvm-22/bin");
        assert!(lack().contains("lacks llvm-bitcode-linker"), "{}", lack());
    }

    #[test]
    fn a_named_compiler_is_the_only_one_tried() {
        let machine = Machine::new("named");
        machine.compiler("usr", "1.96.0");
        machine.compiler("mine", "1.96.0");
        machine.library("mine");
        machine.llvm("tools");
        machine.file(&format!("tools/{LINKER}"), "");
        let mut places = machine.places();
        places.rustc = Some(machine.0.join("mine/bin/rustc"));
        places.tools = vec![machine.0.join("tools")];
        let found = Toolchain::find_in(&places).unwrap();
        assert_eq!(found.rustc, machine.0.join("mine/bin/rustc"));
        assert_eq!(found.linker, Linker::Ready(machine.0.join("tools")));
    }
}
