//! Whether a toolchain works at all: it compiles an empty kernel.

use std::fs;
use std::path::Path;

use super::error::io;
use super::nested_cargo;
use super::sources::Crate;
use super::toolchain::Toolchain;

const MANIFEST: &str = "\
[package]
name = \"preempt-probe\"
edition = \"2024\"

[workspace]
";

const KERNEL: &str = "\
#[unsafe(no_mangle)]
pub extern \"ptx-kernel\" fn probe() {}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
";

/// Compiles an empty kernel, in a folder below `work`.
///
/// # Errors
///
/// Why that fails, in a line.
pub(super) fn compile(target_cpu: &str, toolchain: &Toolchain, work: &Path) -> Result<(), String> {
    // Of this process alone: others may probe at the same time.
    let folder = work.join(format!("probe-{}", std::process::id()));
    let krate = write(&folder).map_err(|error| error.to_string())?;
    let compiled = nested_cargo::compile(&krate, target_cpu, toolchain, work);
    // Only scratch space.
    let _ = fs::remove_dir_all(&folder);
    compiled.map(drop).map_err(|error| first_error(&error.to_string()))
}

fn write(dir: &Path) -> Result<Crate, super::Error> {
    let source = dir.join("src");
    fs::create_dir_all(&source).map_err(io("create", &source))?;
    for (file, text) in [(dir.join("Cargo.toml"), MANIFEST), (source.join("lib.rs"), KERNEL)] {
        if !fs::read_to_string(&file).is_ok_and(|present| present == text) {
            fs::write(&file, text).map_err(io("write", file))?;
        }
    }
    Crate::resolve(dir)
}

/// The line that tells best what is wrong.
fn first_error(output: &str) -> String {
    let mut lines = output.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = lines.clone().find(|line| line.contains("error")).or_else(|| lines.next_back());
    line.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_found_in_the_output() {
        let cargo = "   Compiling core\nerror: failed to download\n\nCaused by:\n  no network\n";
        assert_eq!(first_error(cargo), "error: failed to download");
        assert_eq!(first_error("llc failed:\nno such processor\n"), "no such processor");
        assert_eq!(first_error(""), "");
    }
}
