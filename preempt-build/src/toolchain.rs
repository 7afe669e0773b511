//! Finds a compiler that can make PTX: rustc, the source of its own `core`, and the tools of its LLVM.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::Error;
use super::nested_cargo;

/// The first release whose flags and LLVM are known to work.
const OLDEST: (u32, u32) = (1, 95);

/// The releases that all kernels of this workspace were compiled with; they ran with those of the first and of the last.
pub(super) const TESTED: &str = "1.95 to 1.99";

const LLVM_TOOLS: [&str; 3] = ["llvm-link", "opt", "llc"];

/// A complete device toolchain.
#[derive(Debug)]
pub(super) struct Toolchain {
    pub rustc: PathBuf,
    pub cargo: PathBuf,
    pub release: String,
    /// For each of [`LLVM_TOOLS`], where it is.
    tools: Vec<PathBuf>,
    /// The unstable flags that the compiler has, without `-Z`.
    flags: BTreeSet<String>,
    /// Whether `PREEMPT_RUSTC` names it.
    pub is_named: bool,
}

/// Where to look.
#[derive(Debug)]
struct Places {
    rustc: Option<PathBuf>,
    tools: Vec<PathBuf>,
    /// Rustup's folder, with `settings.toml` and `toolchains`.
    rustup: Option<PathBuf>,
    /// The rustup toolchain that the application is built with.
    active: Option<String>,
    system_rustc: PathBuf,
    /// Holds `llvm-22/bin` and the like.
    llvm: PathBuf,
}

impl Places {
    fn of_this_machine() -> Places {
        let home = || env::home_dir().map(|home| home.join(".rustup"));
        let named = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        Places {
            rustc: named("PREEMPT_RUSTC").map(PathBuf::from),
            tools: named("PREEMPT_TOOLS")
                .map(|path| env::split_paths(&path).collect())
                .unwrap_or_default(),
            rustup: named("RUSTUP_HOME").map(PathBuf::from).or_else(home),
            active: named("RUSTUP_TOOLCHAIN").and_then(|name| name.into_string().ok()),
            system_rustc: PathBuf::from("/usr/bin/rustc"),
            llvm: PathBuf::from("/usr/lib"),
        }
    }

    /// The compilers to try, best first.
    fn compilers(&self) -> Vec<PathBuf> {
        let folder = self.rustup.as_ref().map(|rustup| rustup.join("toolchains"));
        let entries = folder.as_ref().and_then(|folder| fs::read_dir(folder).ok());
        let mut toolchains: Vec<_> = entries
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        // First the application's toolchain, then rustup's default. Then stable compilers before nightly ones, whose
        // unstable flags are known less well, and newer ones before older ones.
        let preferred = [self.active.clone(), self.default_toolchain()];
        toolchains.sort_by_cached_key(|name| {
            let is_named = |preferred: &Option<String>| {
                preferred.as_ref().is_some_and(|preferred| is_of(name, preferred))
            };
            let rank = ["stable", "1.", "beta", "nightly"];
            let kind = rank.iter().position(|start| name.starts_with(start));
            let version: Vec<u32> =
                name.split(['.', '-']).map_while(|number| number.parse().ok()).collect();
            (
                preferred.iter().position(is_named).unwrap_or(preferred.len()),
                kind.unwrap_or(rank.len()),
                Reverse(version),
                name.clone(),
            )
        });
        let rustup = folder.iter().flat_map(|folder| {
            let rustc = format!("rustc{}", env::consts::EXE_SUFFIX);
            toolchains.iter().map(move |name| folder.join(name).join("bin").join(&rustc))
        });
        rustup.chain([self.system_rustc.clone()]).filter(|rustc| rustc.exists()).collect()
    }

    fn default_toolchain(&self) -> Option<String> {
        let settings = fs::read_to_string(self.rustup.as_ref()?.join("settings.toml")).ok()?;
        let line =
            settings.lines().find_map(|line| line.trim().strip_prefix("default_toolchain"))?;
        Some(line.split('"').nth(1)?.to_owned())
    }
}

/// Whether a folder of rustup's holds this toolchain, whose name may lack the host.
fn is_of(folder: &str, toolchain: &str) -> bool {
    folder.strip_prefix(toolchain).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
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
        let version = ask(rustc, &["-vV"])?;
        let field = |name: &str| {
            let line = version.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            line.map(str::to_owned).ok_or_else(|| format!("does not tell its {name}"))
        };
        let llvm_version = field("LLVM version")?;
        Ok(Compiler {
            release: field("release")?,
            host: field("host")?,
            llvm_major: llvm_version.split('.').next().unwrap_or_default().to_owned(),
            sysroot: PathBuf::from(ask(rustc, &["--print", "sysroot"])?.trim()),
        })
    }

    fn is_new_enough(&self) -> bool {
        let mut numbers = self.release.split('.').map(|number| number.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= OLDEST
    }
}

/// What a compiler answers.
fn ask(rustc: &Path, args: &[&str]) -> Result<String, String> {
    let mut command = Command::new(rustc);
    nested_cargo::clean_environment(&mut command);
    // Stable compilers tell of their unstable flags only then.
    let output = command.args(args).env("RUSTC_BOOTSTRAP", "1").output();
    let output = output.map_err(|error| format!("does not run ({error})"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(text) } else { Err("does not run".to_owned()) }
}

/// The unstable flags in what `rustc -Zhelp` prints: `    -Z   no-link=val -- compile without linking`.
fn unstable_flags(help: &str) -> BTreeSet<String> {
    let names = help.lines().filter_map(|line| line.trim_start().strip_prefix("-Z"));
    names
        .filter_map(|line| line.split(['=', ' ']).find(|word| !word.is_empty()))
        .map(str::to_owned)
        .collect()
}

impl Toolchain {
    /// The complete toolchains of this machine, best first. What incomplete toolchains lack is added to `looked`.
    ///
    /// # Errors
    ///
    /// If `PREEMPT_RUSTC` names a compiler whose toolchain is not complete.
    pub fn all(looked: &mut Vec<String>) -> Result<Vec<Toolchain>, Error> {
        Toolchain::all_in(&Places::of_this_machine(), looked)
    }

    fn all_in(places: &Places, looked: &mut Vec<String>) -> Result<Vec<Toolchain>, Error> {
        if let Some(rustc) = &places.rustc {
            let toolchain = Toolchain::complete(rustc, places);
            let incomplete = |lack| Error::NamedToolchain { rustc: rustc.clone(), lack };
            return Ok(vec![toolchain.map_err(incomplete)?]);
        }
        let compilers = places.compilers();
        if compilers.is_empty() {
            looked.push("neither a rustup toolchain nor /usr/bin/rustc exists".to_owned());
        }
        let mut complete = Vec::new();
        for rustc in compilers {
            match Toolchain::complete(&rustc, places) {
                Ok(toolchain) => complete.push(toolchain),
                Err(lack) => looked.push(format!("{} {lack}", rustc.display())),
            }
        }
        Ok(complete)
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
            return Err("lacks its library's source (rust-src)".to_owned());
        }
        let cargo = rustc.with_file_name(format!("cargo{}", env::consts::EXE_SUFFIX));
        if !cargo.exists() {
            return Err("has no cargo beside it".to_owned());
        }

        let mut folders = places.tools.clone();
        folders.push(sysroot.join("lib/rustlib").join(host).join("bin"));
        folders.push(places.llvm.join(format!("llvm-{llvm_major}")).join("bin"));
        let find = |tool: &str| {
            let file = format!("{tool}{}", env::consts::EXE_SUFFIX);
            let mut places = folders.iter().map(|folder| folder.join(&file));
            let place = places.find(|path| path.exists());
            place.ok_or_else(|| format!("lacks LLVM {llvm_major}'s {tool} (llvm-tools)"))
        };
        let tools = LLVM_TOOLS.iter().map(|tool| find(tool)).collect::<Result<_, _>>()?;
        let flags = unstable_flags(&ask(rustc, &["-Zhelp"])?);
        if let Some(flag) = nested_cargo::needed_flags().find(|flag| !flags.contains(*flag)) {
            return Err(format!("has no flag -Z{flag}"));
        }
        let is_named = places.rustc.is_some();
        Ok(Toolchain {
            rustc: rustc.to_owned(),
            cargo,
            release: release.clone(),
            tools,
            flags,
            is_named,
        })
    }

    /// Where one of LLVM's tools is.
    pub fn tool(&self, name: &'static str) -> PathBuf {
        let number = LLVM_TOOLS.iter().position(|tool| *tool == name);
        number.map_or_else(|| PathBuf::from(name), |number| self.tools[number].clone())
    }

    /// Whether the compiler has an unstable flag.
    pub fn has_flag(&self, name: &str) -> bool {
        self.flags.contains(name)
    }
}

/// The command that installs a toolchain that works, or the parts that one lacks.
pub(super) fn install(lacks_parts: bool) -> &'static str {
    install_on(&Places::of_this_machine(), lacks_parts)
}

const INSTALL: &str =
    "rustup toolchain install 1.99.1 --profile minimal --component rust-src,llvm-tools";

fn install_on(places: &Places, lacks_parts: bool) -> &'static str {
    if !lacks_parts {
        return INSTALL;
    }
    let first = places.compilers().into_iter().next();
    if first.as_ref() == Some(&places.system_rustc) {
        return "apt-get install rustc-web cargo-web rust-web-src llvm-22";
    }
    let compiler = first.and_then(|rustc| Compiler::ask(&rustc).ok());
    match compiler.is_some_and(|compiler| compiler.is_new_enough()) {
        true => "rustup component add rust-src llvm-tools",
        false => INSTALL,
    }
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
                "#!/bin/sh\ncase \"$1\" in -vV) echo 'release: {release}'; echo 'host: h'; \
                 echo 'LLVM version: 22.1.8';; -Zhelp) echo '    -Z  mir-enable-passes=val -- x'; \
                 echo '    -Z  crate-attr=val -- x'; echo '    -Z  no-link=val -- x';; \
                 *) echo '{}';; esac\n",
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
                rustup: Some(self.0.clone()),
                active: None,
                system_rustc: self.0.join("usr/bin/rustc"),
                llvm: self.0.join("usr/lib"),
            }
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn find(places: &Places) -> Result<Vec<PathBuf>, Error> {
        let found = Toolchain::all_in(places, &mut Vec::new())?;
        Ok(found.into_iter().map(|toolchain| toolchain.rustc).collect())
    }

    #[test]
    fn two_components_make_a_toolchain_and_the_default_comes_first() {
        let machine = Machine::new("rustup");
        for (name, release) in
            [("nightly-h", "2.2.0-nightly"), ("1.95.0-h", "1.95.0"), ("stable-h", "1.99.1")]
        {
            let sysroot = format!("toolchains/{name}");
            machine.compiler(&sysroot, release);
            machine.library(&sysroot);
            machine.llvm(&format!("{sysroot}/lib/rustlib/h/bin"));
        }
        let rustc = |name: &str| machine.0.join(format!("toolchains/{name}/bin/rustc"));
        let mut places = machine.places();
        assert_eq!(find(&places).unwrap(), ["stable-h", "1.95.0-h", "nightly-h"].map(rustc));
        machine.file("settings.toml", "version = \"12\"\ndefault_toolchain = \"nightly\"\n");
        assert_eq!(find(&places).unwrap(), ["nightly-h", "stable-h", "1.95.0-h"].map(rustc));
        places.active = Some("1.95.0-h".to_owned());
        assert_eq!(find(&places).unwrap(), ["1.95.0-h", "nightly-h", "stable-h"].map(rustc));
    }

    #[test]
    fn of_toolchains_with_versions_the_newest_comes_first() {
        let machine = Machine::new("versions");
        for version in ["1.99.1", "1.100.0", "1.95.0"] {
            machine.file(&format!("toolchains/{version}-h/bin/rustc"), "");
        }
        let rustc = |name: &str| machine.0.join(format!("toolchains/{name}-h/bin/rustc"));
        assert_eq!(machine.places().compilers(), ["1.100.0", "1.99.1", "1.95.0"].map(rustc));
    }

    #[test]
    fn distribution_packages_make_a_toolchain() {
        let machine = Machine::new("debian");
        machine.compiler("usr", "1.96.0");
        machine.library("usr");
        machine.llvm("usr/lib/llvm-22/bin");
        let found = Toolchain::all_in(&machine.places(), &mut Vec::new()).unwrap();
        assert_eq!(found[0].tool("opt"), machine.0.join("usr/lib/llvm-22/bin/opt"));
        assert!(found[0].has_flag("no-link") && !found[0].has_flag("mutable-noalias"));
    }

    #[test]
    fn what_is_missing_is_named_with_the_command_that_installs_it() {
        let machine = Machine::new("bare");
        let lack = || {
            let mut looked = Vec::new();
            assert!(Toolchain::all_in(&machine.places(), &mut looked).unwrap().is_empty());
            format!("{}: {}", looked.join("; "), install_on(&machine.places(), true))
        };
        assert!(lack().contains("neither a rustup toolchain"), "{}", lack());
        machine.compiler("usr", "1.63.0");
        assert!(lack().contains("is 1.63.0, older than"), "{}", lack());
        machine.compiler("usr", "1.96.0");
        assert!(lack().contains("lacks its library's source"), "{}", lack());
        assert!(lack().ends_with("apt-get install rustc-web cargo-web rust-web-src llvm-22"));
        machine.library("usr");
        // LLVM of another major version reads no bitcode of this compiler.
        machine.llvm("usr/lib/llvm-19/bin");
        assert!(lack().contains("lacks LLVM 22's llvm-link"), "{}", lack());
        machine.compiler("toolchains/stable-h", "1.94.0");
        assert!(lack().contains("rustup toolchain install 1.99.1"), "{}", lack());
        machine.compiler("toolchains/stable-h", "1.97.0");
        assert!(lack().ends_with("rustup component add rust-src llvm-tools"), "{}", lack());
    }

    #[test]
    fn a_compiler_without_a_flag_that_is_needed_is_not_taken() {
        let machine = Machine::new("flags");
        machine.compiler("usr", "1.96.0");
        let rustc = fs::read_to_string(machine.0.join("usr/bin/rustc")).unwrap();
        machine.file("usr/bin/rustc", &rustc.replace("no-link=", "no-more="));
        machine.library("usr");
        machine.llvm("usr/lib/llvm-22/bin");
        let mut looked = Vec::new();
        assert!(Toolchain::all_in(&machine.places(), &mut looked).unwrap().is_empty());
        assert!(looked[0].ends_with("has no flag -Zno-link"), "{looked:?}");
    }

    #[test]
    fn a_named_compiler_is_the_only_one_tried_and_has_to_be_complete() {
        let machine = Machine::new("named");
        machine.compiler("usr", "1.96.0");
        machine.library("usr");
        machine.llvm("usr/lib/llvm-22/bin");
        machine.compiler("mine", "1.96.0");
        machine.llvm("tools");
        let mut places = machine.places();
        places.rustc = Some(machine.0.join("mine/bin/rustc"));
        places.tools = vec![machine.0.join("tools")];
        let error = find(&places).unwrap_err().to_string();
        assert!(error.contains("mine/bin/rustc") && error.contains("rust-src"), "{error}");
        machine.library("mine");
        let found = Toolchain::all_in(&places, &mut Vec::new()).unwrap();
        assert_eq!(found[0].rustc, machine.0.join("mine/bin/rustc"));
        assert_eq!(found[0].tool("llc"), machine.0.join("tools/llc"));
    }

    #[test]
    fn flags_are_read_from_the_help() {
        let help = "Available options:\n\n    -Z                           no-link=val -- compile\n    \
                    -Z           crate-attr=val -- inject\n";
        assert_eq!(unstable_flags(help).into_iter().collect::<Vec<_>>(), ["crate-attr", "no-link"]);
    }
}
