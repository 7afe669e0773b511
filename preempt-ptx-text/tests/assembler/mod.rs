//! NVIDIA's assembler, where there is one.

use std::ffi::OsString;
use std::io;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Assembles a text for an architecture, and panics with what the assembler says if it cannot. Without an assembler, says so and
/// does nothing.
pub fn assemble(architecture: &str, name: &str, text: &str) {
    match run(architecture, text) {
        Ok(output) => {
            let says = [output.stdout, output.stderr].concat();
            let says = String::from_utf8_lossy(&says);
            assert!(output.status.success(), "{name}: {}: {says}", output.status);
        }
        Err(error) => println!("SKIP: {name} is not assembled: ptxas: {error}"),
    }
}

/// What the assembler says of a text; an error if there is none. `PREEMPT_PTXAS` names another program than the `ptxas` of the
/// path.
pub fn run(architecture: &str, text: &str) -> io::Result<Output> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let program = std::env::var_os("PREEMPT_PTXAS").unwrap_or_else(|| OsString::from("ptxas"));
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!("preempt-{}-{number}.ptx", std::process::id()));
    std::fs::write(&file, text)?;
    let mut ptxas = Command::new(program);
    let arguments = [&format!("-arch={architecture}"), "-O1", "-o", "/dev/null"];
    let output = ptxas.args(arguments).arg(&file).output();
    std::fs::remove_file(&file)?;
    output
}
