//! What a kernels crate is made of, and a hash of it.
//!
//! A committed PTX says in its first lines which files it was compiled from, and a hash of them. So it is
//! known to be fresh without a device toolchain. Only the tokens of those files are hashed. So neither
//! comments, nor line breaks, nor files that the device never sees (tests, host modules) make PTX stale.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::{Error, io};
use super::{nested_cargo, tokens};
use preempt_ptx_text::KernelFault;

/// The marker of the first line of a PTX file that `preempt-ptx` wrote.
const MARKER: &str = "// preempt-sources: ";
/// Starts each line that names a source file.
const FILE: &str = "//   ";

/// A kernels crate as cargo resolves it for the device.
#[derive(Debug)]
pub(super) struct Crate {
    pub dir: PathBuf,
    /// The library's name, with underscores.
    pub name: String,
    /// The crate itself and its path dependencies, macros included.
    pub packages: Vec<Package>,
    /// Name, version and features of every other package that is compiled for the device.
    pins: Vec<String>,
}

/// A package whose source can change.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Package {
    pub name: String,
    pub dir: PathBuf,
    /// The folder of the library's root file, relative to `dir`: `src`, unless the manifest says otherwise.
    library: String,
    features: String,
}

impl Crate {
    pub fn resolve(dir: &Path) -> Result<Crate, Error> {
        let dir = dir.canonicalize().map_err(io("find", dir))?;
        let manifest = dir.join("Cargo.toml");
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(&cargo);
        nested_cargo::clean_environment(&mut command);
        if let Some(rustc) = env::var_os("RUSTC") {
            command.env("RUSTC", rustc);
        }
        command
            .args(["tree", "--color=never", "--edges=normal", "--prefix=depth", "--no-dedupe"])
            .args(["--target", nested_cargo::TRIPLE, "--format", "|{lib}|{p}|{f}"])
            .arg("--manifest-path")
            .arg(&manifest)
            .current_dir(&dir);
        let output = command
            .output()
            .map_err(|source| Error::Spawn { program: PathBuf::from(cargo), source })?;
        if !output.status.success() {
            let output = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(Error::NotACrate { dir, output });
        }
        Crate::parse(dir, &String::from_utf8_lossy(&output.stdout))
    }

    /// Reads the lines of `cargo tree`: depth, library, package and features.
    fn parse(dir: PathBuf, tree: &str) -> Result<Crate, Error> {
        let mut name = None;
        let (mut packages, mut pins) = (Vec::new(), Vec::new());
        let mut needs_host = false;
        // The depth of the macro crate that we are below, if any. What a macro is built with is
        // not compiled for the device; its own source decides what is.
        let mut below_macro = None;
        for line in tree.lines() {
            let mut parts = line.splitn(4, '|');
            let (Some(depth), Some(lib), Some(package), Some(features)) =
                (parts.next(), parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            let Ok(depth) = depth.parse::<usize>() else { continue };
            if below_macro.is_some_and(|at| depth <= at) {
                below_macro = None;
            }
            let is_macro = package.contains(" (proc-macro)");
            // Also where a kernels crate gets it from another crate.
            needs_host |= package.starts_with("preempt v") && below_macro.is_none();
            if depth == 0 {
                if name.is_some() {
                    let output = "it is a workspace; name one of its members".to_owned();
                    return Err(Error::NotACrate { dir, output });
                }
                name = Some(lib.to_owned());
            }
            match path_of(package) {
                Some(dir) => packages.push(Package {
                    name: package.split(' ').next().unwrap_or_default().to_owned(),
                    dir: PathBuf::from(dir),
                    library: library_folder(Path::new(dir)),
                    features: features.to_owned(),
                }),
                None if below_macro.is_none() => pins.push(format!("{package} {features}")),
                None => {}
            }
            if is_macro && below_macro.is_none() {
                below_macro = Some(depth);
            }
        }
        packages.sort();
        packages.dedup();
        pins.sort();
        pins.dedup();
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Err(Error::NotACrate { dir, output: "it has no library target".into() });
        };
        if needs_host {
            return Err(Error::HostLibrary { krate: name });
        }
        Ok(Crate { dir, name, packages, pins })
    }

    /// Everything whose change can change the PTX, as paths for `cargo:rerun-if-changed`.
    pub fn watched(&self) -> Vec<PathBuf> {
        let mut watched = Vec::new();
        for Package { dir, library, .. } in &self.packages {
            watched.extend(["Cargo.toml", library, "build.rs"].map(|name| dir.join(name)));
        }
        watched.extend(self.dir.ancestors().map(|dir| dir.join("Cargo.lock")));
        watched.retain(|path| path.exists());
        watched
    }

    /// The names that a PTX file's header gives the source files: package and path within.
    pub fn name_sources(&self, files: &[PathBuf]) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        for file in files {
            let mut found = None;
            for package in &self.packages {
                // A library's folder may lie outside of its package.
                for folder in ["", &package.library] {
                    let dir = package.dir.join(folder);
                    let dir = dir.canonicalize().unwrap_or(dir);
                    let Ok(within) = file.strip_prefix(&dir) else { continue };
                    let depth = dir.components().count();
                    if found.as_ref().is_none_or(|&(deepest, _)| depth > deepest) {
                        let within =
                            within.components().map(|part| part.as_os_str().to_string_lossy());
                        let parts =
                            [package.name.as_str().into(), folder.into()].into_iter().chain(within);
                        let parts: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
                        found = Some((depth, parts.join("/")));
                    }
                }
            }
            match found {
                Some((_, name)) => names.push(name),
                None => return Err(Error::SourceOutside { path: file.clone() }),
            }
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Hashes the named sources, what else decides about the PTX, and `flags`.
    fn hash(&self, names: &[impl AsRef<str>], flags: &str) -> Result<u64, Error> {
        let mut hash = Fnv::new();
        hash.part(flags);
        self.pins.iter().for_each(|pin| hash.part(pin));
        for package in &self.packages {
            hash.part(&package.name);
            hash.part(&package.features);
        }
        for name in names {
            let name = name.as_ref();
            let path =
                self.locate(name).ok_or(KernelFault::NotPtx { what: "it names no source" })?;
            let text = fs::read(&path).map_err(io("read", &path))?;
            hash.part(name);
            // A checkout with other line endings is the same source, also in its strings.
            let text = String::from_utf8_lossy(&text).replace("\r\n", "\n");
            let tokens = tokens::of_source(&path, &text);
            hash.number(tokens.len() as u64);
            tokens.iter().for_each(|token| hash.part(token));
        }
        Ok(hash.0)
    }

    fn locate(&self, name: &str) -> Option<PathBuf> {
        let (package, within) = name.split_once('/')?;
        let package = self.packages.iter().find(|candidate| candidate.name == package)?;
        Some(package.dir.join(within))
    }

    /// The lines to put in front of PTX that was compiled from `files` with `flags` by this `release` of Rust.
    pub fn header(&self, files: &[PathBuf], flags: &str, release: &str) -> Result<String, Error> {
        let names = self.name_sources(files)?;
        let hash = self.hash(&names, flags)?;
        let mut header = format!(
            "{MARKER}{hash:016x}\n// Written by `preempt-ptx` with Rust {release}; the hash covers its flags, the \
             dependencies and these files:\n"
        );
        for name in names {
            let _ = writeln!(header, "{FILE}{name}");
        }
        Ok(header)
    }

    /// Whether the PTX was compiled from the sources as they are, with `flags`.
    pub fn is_fresh(&self, ptx: &str, flags: &str) -> bool {
        let mut lines = ptx.lines();
        let Some(recorded) = lines.next().and_then(|line| line.strip_prefix(MARKER)) else {
            return false;
        };
        let names: Vec<_> = lines.skip(1).map_while(|line| line.strip_prefix(FILE)).collect();
        // A source that cannot be read was moved or deleted.
        !names.is_empty()
            && self.hash(&names, flags).is_ok_and(|hash| format!("{hash:016x}") == recorded.trim())
    }
}

/// The folder of a path dependency in cargo's description of a package, `name v1.0.0 (/folder)`.
fn path_of(package: &str) -> Option<&str> {
    let (_, rest) = package.split_once(" (")?;
    let rest = rest.strip_prefix("proc-macro) (").unwrap_or(rest);
    rest.strip_suffix(')').filter(|dir| Path::new(dir).is_absolute())
}

/// The folder of a library's root file, relative to the package in `dir`.
fn library_folder(dir: &Path) -> String {
    let manifest = fs::read_to_string(dir.join("Cargo.toml")).unwrap_or_default();
    let library = manifest.lines().skip_while(|line| line.trim() != "[lib]").skip(1);
    let mut settings = library
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.trim(), value.trim().trim_matches('"')));
    let path = settings.find(|(key, _)| *key == "path").map(|(_, path)| path);
    let folder = path.and_then(|path| Some(path.rsplit_once('/')?.0));
    folder.unwrap_or("src").to_owned()
}

/// FNV-1a, 64 bits: stable everywhere. It need not resist attacks, because it guards against accidents only.
struct Fnv(u64);

impl Fnv {
    fn new() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    fn part(&mut self, part: &str) {
        // The length keeps "a", "bc" and "ab", "c" apart.
        self.number(part.len() as u64);
        self.bytes(part.as_bytes());
    }

    fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

/// The hash of one text.
pub(super) fn hash(text: &str) -> u64 {
    let mut hash = Fnv::new();
    hash.part(text);
    hash.0
}

/// The prerequisites in a `.d` file as cargo writes it: one rule, spaces escaped.
pub(super) fn dep_info(text: &str) -> Vec<PathBuf> {
    let Some((_, files)) = text.lines().next().unwrap_or_default().split_once(": ") else {
        return Vec::new();
    };
    // A space within a name is `\ `; no file name contains the stand-in.
    files
        .replace("\\ ", "\0")
        .split(' ')
        .filter(|file| !file.is_empty())
        .map(|file| PathBuf::from(file.replace('\0', " ")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(dir: &Path) -> Crate {
        fs::create_dir_all(dir.join("src")).unwrap();
        fs::write(dir.join("src/lib.rs"), "fn one() {}\nfn two() {}\n").unwrap();
        let tree = format!("0|my_kernels|my-kernels v0.1.0 ({})|default\n", dir.display());
        Crate::parse(dir.into(), &tree).unwrap()
    }

    #[test]
    fn the_tree_of_a_macro_is_not_pinned_but_the_macro_is_source() {
        let tree = "0|k|k v0.1.0 (/w/my kernels)|\n\
                    1|libm|libm v0.2.16|default\n\
                    1|m|m v0.1.0 (proc-macro) (/w/m)|\n\
                    2|syn|syn v3.0.0|full\n\
                    1|rand|rand v0.9.0|\n";
        let krate = Crate::parse("/w/my kernels".into(), tree).unwrap();
        assert_eq!(krate.name, "k");
        assert_eq!(krate.pins, ["libm v0.2.16 default", "rand v0.9.0 "]);
        let dirs: Vec<_> = krate.packages.iter().map(|package| package.dir.as_path()).collect();
        assert_eq!(dirs, [Path::new("/w/my kernels"), Path::new("/w/m")]);
    }

    #[test]
    fn a_workspace_or_a_crate_without_library_is_an_error() {
        for (tree, what) in [
            ("0|a|a v0.1.0 (/w/a)|\n0|b|b v0.1.0 (/w/b)|\n", "it is a workspace"),
            ("0||a v0.1.0 (/w/a)|\n", "no library target"),
            ("", "no library target"),
        ] {
            let error = Crate::parse("/w".into(), tree).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn kernels_that_depend_on_the_host_library_are_told_so() {
        for host in ["preempt v0.1.0|", "preempt v0.1.0 (/w/preempt)|"] {
            let tree =
                format!("0|k|k v0.1.0 (/w/k)|\n1|helpers|helpers v0.1.0|\n2|preempt|{host}\n");
            let error = Crate::parse("/w/k".into(), &tree).unwrap_err().to_string();
            assert!(error.contains("`k` depends on `preempt`"), "{error}");
        }
        let tree = "0|k|k v0.1.0 (/w/k)|\n1|preempt_device|preempt-device v0.1.0|\n";
        assert!(Crate::parse("/w/k".into(), tree).is_ok());
    }

    #[test]
    fn a_registry_or_git_package_has_no_path() {
        assert_eq!(path_of("libm v0.2.16"), None);
        assert_eq!(path_of("x v1.0.0 (https://example.org/x#1234)"), None);
        assert_eq!(path_of("x v1.0.0 (/a (b)/c)"), Some("/a (b)/c"));
    }

    #[test]
    fn ptx_is_fresh_until_tokens_or_flags_change() {
        let dir = env::temp_dir().join(format!("preempt-sources-{}", std::process::id()));
        let krate = example(&dir);
        let source = dir.join("src/lib.rs");
        let ptx = krate.header(std::slice::from_ref(&source), "sm_80", "1.99.1").unwrap()
            + ".version 7.0\n";
        assert!(!ptx.contains(dir.to_str().unwrap()), "no path of this machine");
        assert!(krate.is_fresh(&ptx, "sm_80"));
        assert!(!krate.is_fresh(&ptx, "sm_90"));
        assert!(!krate.is_fresh(".version 7.0\n", "sm_80"), "no header");

        for same in ["fn one() {}\r\nfn two() {}\r\n", "/// Doc.\nfn one() {} fn two() {\n} // end"]
        {
            fs::write(&source, same).unwrap();
            assert!(krate.is_fresh(&ptx, "sm_80"), "{same}");
        }
        fs::write(&source, "fn one() {}\nfn three() {}\n").unwrap();
        assert!(!krate.is_fresh(&ptx, "sm_80"));
        fs::remove_file(&source).unwrap();
        assert!(!krate.is_fresh(&ptx, "sm_80"));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_sources_of_a_library_may_lie_outside_of_its_package() {
        let dir = env::temp_dir().join(format!("preempt-library-{}", std::process::id()));
        let krate = example(&dir.join("k"));
        fs::create_dir_all(dir.join("other")).unwrap();
        let source = dir.join("other/lib.rs");
        fs::write(&source, "fn three() {}\n").unwrap();
        assert!(krate.name_sources(std::slice::from_ref(&source)).is_err());

        let manifest = "[package]\nname = \"k\"\n[lib]\npath = \"../other/lib.rs\"\n";
        fs::write(dir.join("k/Cargo.toml"), manifest).unwrap();
        let krate = example(&dir.join("k"));
        let names = krate.name_sources(std::slice::from_ref(&source)).unwrap();
        assert_eq!(names, ["my-kernels/../other/lib.rs"]);
        assert!(krate.watched().contains(&dir.join("k/../other")));
        let ptx = krate.header(std::slice::from_ref(&source), "sm_80", "1.99.1").unwrap();
        assert!(krate.is_fresh(&ptx, "sm_80"));
        fs::write(&source, "fn four() {}\n").unwrap();
        assert!(!krate.is_fresh(&ptx, "sm_80"));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_source_outside_of_every_package_is_an_error() {
        let krate = Crate::parse("/w/k".into(), "0|k|k v0.1.0 (/w/k)|\n").unwrap();
        let files = [PathBuf::from("/elsewhere/x.rs")];
        assert!(matches!(krate.name_sources(&files), Err(Error::SourceOutside { .. })));
    }

    #[test]
    fn dep_info_with_spaces_in_names() {
        let files = dep_info("/t/a.ptx: /w/my\\ kernels/a.rs /w/b.rs\n\n# env-dep:X\n");
        assert_eq!(files, [Path::new("/w/my kernels/a.rs"), Path::new("/w/b.rs")]);
    }
}
